"""What may have become of one parameter, by each of the behaviours that documents allow (truth.py has the table)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .balls import FORMATS, Ball, Format
from .local_gradients import Tensors, format_of_parameters
from .on_rank.protocol import Case
from .updates import Rates, State, clip_factor, clipped, update

_MOST = 12


@dataclass(frozen=True)
class Averages:
    """Of one step: the averaged gradients of the parameters that some rank used, in what format, and their norm."""

    gradients: dict[str, Ball]
    form: Format
    norm: Ball
    """Of gradients in that format."""
    fine_norm: Ball
    """Of gradients that were taken to fp32 (or finer) first, as for masters."""


@dataclass(frozen=True)
class History:
    """How one parameter came to be what it is before a step."""

    value: Ball
    """The parameter, or the master that it is rounded from."""
    state: State
    hidden: bool = False
    """The value is a master."""


@dataclass(frozen=True)
class Following:
    """A history after a step, before it is held against what was reported."""

    before: History
    value: Ball
    state: State
    parameters: Format

    def master_given(self) -> Ball:
        """What a reported master must be."""
        return self.value

    def parameter_given(self, master: torch.Tensor | None) -> Ball:
        """What the reported parameter must be, beside this reported master (None: none is reported)."""
        if master is not None:
            return _cast(Ball.of(master), self.parameters)
        return _cast(self.value, self.parameters) if self.before.hidden else self.value

    def misses(self, got: torch.Tensor | None, master: torch.Tensor | None) -> int:
        """How many elements of what was reported this history does not explain."""
        missed = 0
        for one, ball in ((got, self.parameter_given(master)), (master, self.value)):
            if one is not None:
                missed += one.numel() if one.shape != ball.mid.shape else int((~ball.holds(one)).sum())
        return missed

    def after(self, got: torch.Tensor | None, master: torch.Tensor | None) -> History:
        """The history before the next step, which goes on from what was reported."""
        if master is not None and master.shape == self.value.mid.shape:
            return History(Ball.of(master), self.state, True)
        if not self.before.hidden and got is not None and got.shape == self.value.mid.shape:
            return History(Ball.of(got), self.state, False)
        return History(self.value, self.state, self.before.hidden)


def beginnings(case: Case, weights: Tensors) -> dict[str, tuple[History, ...]]:
    """The histories of all parameters before the first step."""
    form = format_of_parameters(case)
    return {name: _beginnings(weight, form) for name, weight in weights.items()}


def follow(
    case: Case, histories: tuple[History, ...], averages: Averages, name: str, rates: Rates, still: bool
) -> list[Following]:
    """All that may come of a step, each once. still: nothing is changed (a skipped step, a frozen parameter)."""
    parameters = format_of_parameters(case)
    following: list[Following] = []
    for history in histories:
        fine = history.hidden and parameters.digits < 24
        form = FORMATS["fp32"] if fine else parameters
        if still or name not in averages.gradients:
            _add(following, Following(history, history.value, history.state, parameters))
        if still:
            continue
        gradient = averages.gradients.get(name, Ball.of(torch.zeros_like(history.value.mid)))
        if case.clip is not None:
            gradient = clipped(gradient, clip_factor(averages.fine_norm if fine else averages.norm, case.clip, form), form)
        value, state = update(case.optimizer, history.value, history.state, gradient, rates, form)
        _add(following, Following(history, value, state, parameters))
    return following[:_MOST]


def _beginnings(weight: torch.Tensor, form: Format) -> tuple[History, ...]:
    given = weight.to(torch.float64)
    held = given.to(form.dtypes[0]).to(torch.float64)
    found = [History(Ball.of(held), State())]
    if form.digits < 24:
        found.append(History(Ball.of(given), State(), True))
        if not torch.equal(given, held):
            found.append(History(Ball.of(held), State(), True))
    return tuple(found)


def _add(following: list[Following], one: Following) -> None:
    """Where it is another one than those that are there."""
    if not any(_same(one, other) for other in following):
        following.append(one)


def _same(one: Following, other: Following) -> bool:
    if one.before.hidden != other.before.hidden or one.state.steps != other.state.steps:
        return False
    pairs = [(one.value, other.value), (one.state.first, other.state.first), (one.state.second, other.state.second)]
    return all(_equal(a, b) for a, b in pairs)


def _equal(a: Ball | None, b: Ball | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.mid, b.mid) and torch.equal(a.rad, b.rad)


def _cast(ball: Ball, form: Format) -> Ball:
    """Rounded to nearest in the format: monotone, so the ends of the ball give the ends."""
    dtype = form.dtypes[0]
    return Ball.between(ball.low.to(dtype).to(torch.float64), ball.high.to(dtype).to(torch.float64))
