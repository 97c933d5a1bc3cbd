"""Local gradients by plain autograd, and how far those of an honest engine may be from them.

They are computed in the case's precision, and again in fp64 at the same parameters. Where both agree to the last bit in a whole
tensor, nothing was rounded: every order of additions gives these bits. Elsewhere an engine may call other kernels, or add the
gradients of a tensor with several users in another order, and no bound of an arbitrary model's rounding is known. So it is
measured: the difference between both precisions is a sample of it. A sample of n comparable elements stays below a share 1/k of
the true size in all of them with a chance of about (1/k)^n; k is taken so that this is CHANCE, at least LEAST_FACTOR.

Where a sign decides (relu), rounding may turn it and change whole rows. Before such a step is called wrong, the gradients are
computed again at parameters that are moved by about one rounding each, and what that changes is allowed for too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from .balls import FORMATS, Ball, Format, coarsest
from .on_rank import tensors
from .on_rank.protocol import Case, local_key

CHANCE = 1e-9
LEAST_FACTOR = 16.0
DRAWS = 8
"""Of moved parameters."""
_MOVES_COUNT = 4.0

Tensors = dict[str, torch.Tensor]
Losses = Mapping[str, Sequence[float]]


class LocalGradients(Protocol):
    """What plain autograd gives at a step: losses and gradients of all ranks and micro-batches, in the case's precision and in
    fp64, by the names of on_rank/reference.py."""

    def __call__(self, step: int, parameters: Tensors, scale: float) -> tuple[Losses, Tensors]: ...


@dataclass(frozen=True)
class Locals:
    """Of one step. [rank][micro-batch], with a radius for each element and loss."""

    gradients: Sequence[Sequence[dict[str, Ball]]]
    losses: Sequence[Sequence[Ball]]
    certain: bool
    """Nothing was rounded in any of them."""
    last: Sequence[Sequence[Tensors]] = ()
    """What the last of several backwards added to each, in fp64; () with one backward."""

    def of(self, name: str) -> list[Ball]:
        """All contributions to a parameter's gradient; those of micro-batches that do not use it are left out."""
        return [micro[name] for rank in self.gradients for micro in rank if name in micro]

    @property
    def names(self) -> list[str]:
        """Of the parameters that some micro-batch uses."""
        return list(dict.fromkeys(name for rank in self.gradients for micro in rank for name in micro))

    @property
    def overflow(self) -> bool:
        """Whether a gradient is not finite."""
        return any(
            not bool(ball.mid.isfinite().all()) for rank in self.gradients for micro in rank for ball in micro.values()
        )


def local_balls(case: Case, answer: tuple[Losses, Tensors]) -> Locals:
    """Contributions and losses, each with the radius that its sample of errors gives."""
    losses, named = answer
    low = [[_part(named, rank, micro, False) for micro in range(case.accumulation)] for rank in range(case.world)]
    exact = [[_part(named, rank, micro, True) for micro in range(case.accumulation)] for rank in range(case.world)]
    names = list(dict.fromkeys(name for rank in low for micro in rank for name in micro))
    room = {
        name: _room([(low[r][m][name], exact[r][m][name]) for r, m in _places(case) if name in low[r][m]]) for name in names
    }
    gradients = [[{name: Ball.of(one).widened(room[name]) for name, one in micro.items()} for micro in rank] for rank in low]
    pairs = {
        place: tuple(torch.tensor(losses[_losses_key(*place, fp64)], dtype=torch.float64) for fp64 in (False, True))
        for place in _places(case)
    }
    spread = _room([(one[0], one[1]) for one in pairs.values()])
    balls = [
        [Ball.of(pairs[rank, micro][0]).widened(spread) for micro in range(case.accumulation)] for rank in range(case.world)
    ]
    last = [[_part(named, rank, micro, False, "last/") for micro in range(case.accumulation)] for rank in range(case.world)]
    return Locals(gradients, balls, not any(room.values()), last if any(map(any, last)) else ())


def allowing_for_signs(case: Case, local: LocalGradients, at: tuple[int, Tensors, float], known: Locals) -> Locals:
    """The same with radii that hold what moved parameters give. at: the arguments of `local`."""
    step, parameters, scale = at
    unit = coarsest(case.precision.model, case.precision.autocast).unit
    least = [[{name: ball.mid.clone() for name, ball in micro.items()} for micro in rank] for rank in known.gradients]
    most = [[{name: ball.mid.clone() for name, ball in micro.items()} for micro in rank] for rank in known.gradients]
    low_loss = [[ball.mid.clone() for ball in rank] for rank in known.losses]
    high_loss = [[ball.mid.clone() for ball in rank] for rank in known.losses]
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        moved = {name: _moved(one, unit, generator) for name, one in parameters.items()}
        other = local_balls(case, local(step, moved, scale))
        for rank, micro in _places(case):
            for name, ball in other.gradients[rank][micro].items():
                if name in least[rank][micro]:
                    least[rank][micro][name] = torch.minimum(least[rank][micro][name], ball.mid)
                    most[rank][micro][name] = torch.maximum(most[rank][micro][name], ball.mid)
            low_loss[rank][micro] = torch.minimum(low_loss[rank][micro], other.losses[rank][micro].mid)
            high_loss[rank][micro] = torch.maximum(high_loss[rank][micro], other.losses[rank][micro].mid)
    gradients = [
        [
            {name: _reaching(ball, least[r][m][name], most[r][m][name]) for name, ball in micro.items()}
            for m, micro in enumerate(rank)
        ]
        for r, rank in enumerate(known.gradients)
    ]
    losses = [
        [_reaching(ball, low_loss[r][m], high_loss[r][m]) for m, ball in enumerate(rank)]
        for r, rank in enumerate(known.losses)
    ]
    return Locals(gradients, losses, False, known.last)


def from_process(ask: Callable[[int, Path, float], Mapping[str, Any]], folder: Path) -> LocalGradients:
    """Of the reference process: ask(step, file of parameters, scale) is what it answers (ranks.Reference.local); files go to the
    folder. Raises KeyError for an answer that has no losses."""

    def local(step: int, parameters: Tensors, scale: float) -> tuple[Losses, Tensors]:
        path = folder / "parameters.safetensors"
        tensors.write(path, parameters)
        line = ask(step, path, scale)
        losses = {key: [float(one) for one in row] for key, row in line["losses"].items()}
        return losses, tensors.read(line["tensors"])

    return local


def _places(case: Case) -> list[tuple[int, int]]:
    return [(rank, micro) for rank in range(case.world) for micro in range(case.accumulation)]


def _losses_key(rank: int, micro: int, exact: bool) -> str:
    return local_key(rank, micro, "", exact).rstrip("/")


def _part(named: Tensors, rank: int, micro: int, exact: bool, before: str = "") -> Tensors:
    prefix = before + local_key(rank, micro, "", exact)
    return {name[len(prefix) :]: one.to(torch.float64) for name, one in named.items() if name.startswith(prefix)}


def _room(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The radius of all elements of these pairs of (case's precision, fp64); 0 where nothing was rounded."""
    errors = torch.cat([(low - exact).abs().flatten() for low, exact in pairs])
    errors = errors[errors.isfinite()]
    largest = float(errors.max()) if errors.numel() else 0.0
    if largest == 0:
        return 0.0
    comparable = int((errors >= largest / 8).sum())
    return largest * max(LEAST_FACTOR, float(CHANCE ** (-1 / comparable)))


def _moved(parameter: torch.Tensor, unit: float, generator: torch.Generator) -> torch.Tensor:
    if not parameter.is_floating_point():
        return parameter
    share = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 4 - 2
    return (parameter.double() * (1 + unit * share)).to(parameter.dtype)


def _reaching(ball: Ball, least: torch.Tensor, most: torch.Tensor) -> Ball:
    return ball.widened(_MOVES_COUNT * torch.maximum(most - ball.mid, ball.mid - least).nan_to_num(torch.inf))


def format_of_gradients(case: Case) -> Format:
    """The coarsest format that an averaged gradient may go through. With autocast DeepSpeed communicates in its type."""
    precision = case.precision
    return coarsest(precision.model, precision.autocast, precision.accumulation, precision.communication)


def averaged_again(case: Case) -> tuple[int, int]:
    """What averaging after every pass (DDP without no_sync) does beside: the average of the passes before is averaged with the next.

    By what a micro-batch's gradient may be divided more than once, the odd part of the number of ranks for each pass that follows in
    its step; and how much finer than a gradient an average is that it is added to.
    """
    passes = case.accumulation * int(case.options.get("backwards", 1))
    power = case.world & -case.world
    return int((case.world // power) ** (passes - 1)), power if passes > 1 else 1


def format_of_parameters(case: Case) -> Format:
    """Of what the next forward uses."""
    return FORMATS[case.precision.model]
