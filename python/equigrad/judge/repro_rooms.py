"""How far a right engine may be from plain torch in a script that rounds: by the balls that the judge itself judges with.

Every history that documents allow (histories.py) is followed in the case's types, and so is plain torch in the script's own; the
room is the widest distance between the two. Gradients are exact in scripts, so nothing else is rounded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from .balls import Ball, Format, coarsest
from .histories import Averages, beginnings, follow
from .local_gradients import Tensors, format_of_gradients
from .on_rank.protocol import Case, Precision
from .updates import Rates, norm_of


class Rooms:
    """Of a script's steps, one after the other."""

    def __init__(self, case: Case, weights: Tensors) -> None:
        wide = "fp64" if case.precision.model == "fp64" else "fp32"
        self._cases = (case, dataclasses.replace(case, precision=Precision(wide)))
        self._histories = [beginnings(one, weights) for one in self._cases]
        self.parameter = 0.0
        """Of the parameters after the steps so far, absolute."""
        self.norm = 0.0
        """Of the norm in the last step, relative."""

    def step(self, means: Tensors, lrs: Sequence[float]) -> None:
        """An applied step with these averaged gradients. lrs: of each group, whose parameters take turns."""
        decays = [group.weight_decay for group in self._cases[0].groups] or [self._cases[0].optimizer.weight_decay]
        groups = [Rates(lr, decay) for lr, decay in zip(lrs, decays, strict=True)]
        rates = {name: groups[number % len(groups)] for number, name in enumerate(self._histories[0])}
        ends, norms = [], []
        for at, case in enumerate(self._cases):
            averages = _averages(case, means)
            still = [name for name in rates if name not in means]
            following = follow(case, self._histories[at], averages, rates, still)
            ends.append({name: [one.parameter_given(None) for one in some] for name, some in following.items()})
            norms.append(averages.norm)
            self._histories[at] = {name: tuple(one.after(None, None) for one in some) for name, some in following.items()}
        self.parameter = max(_apart(ends[0][name], ends[1][name]) for name in rates)
        self.norm = _apart(norms[:1], norms[1:]) / max(float(norms[1].mid), 2.0**-126)


def _averages(case: Case, means: Tensors) -> Averages:
    form, fp32 = format_of_gradients(case), coarsest("fp32")
    balls = {name: Ball.of(one) for name, one in means.items()}
    rough: Format = form if form.digits < 24 else fp32
    norm, fine_norm = (norm_of(list(balls.values()), case.clip, one) for one in (rough, fp32))
    return Averages(balls, form, norm, fine_norm)


def _apart(some: Sequence[Ball], others: Sequence[Ball]) -> float:
    """The widest distance of a number in one of these balls from one in those."""
    return max(
        float(torch.maximum((one.high - other.low).abs(), (other.high - one.low).abs()).max()) if one.mid.numel() else 0.0
        for one in some
        for other in others
    )
