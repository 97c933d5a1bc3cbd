"""All that is known of a case that went wrong: what came from the ranks, beside what is right. Causes are looked for in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from equigrad.judge.on_rank.protocol import Case, StepAnswer

Tensors = dict[str, torch.Tensor]
Contributions = Sequence[Sequence[Tensors]]
"""[rank][micro-batch]: local gradients by name, unscaled, summed over backwards; a name is absent where there is no gradient."""
LocalGradients = Callable[[int, Tensors], Contributions]
"""What the local gradients of a step are at other parameters: (step, parameters)."""


@dataclass(frozen=True)
class Number:
    """A right number and how far from it a right engine may be."""

    mid: float
    rad: float = 0.0


@dataclass(frozen=True)
class StepSeen:
    """One step. Tensors are whole, of any floating type; `*_room` is how far from the right element a right engine may be."""

    contributions: Contributions
    right_gradient: Tensors
    gradient_room: Tensors
    gradient: Sequence[Tensors]
    """By rank; () where the engine does not show it."""
    before: Tensors
    """The parameters that the step began with."""
    right_parameters: Tensors
    parameter_room: Tensors
    parameters: Sequence[Tensors]
    """After the step, by rank."""
    answers: Sequence[StepAnswer]
    """By rank."""
    applied: bool = True
    """Whether a right engine updates its parameters in this step."""
    norm: Number | None = None
    """Of the averaged gradient, before clipping; None where nothing is clipped."""
    lrs: tuple[float, ...] = ()
    """By group, as a right engine uses them; () is the optimizer's own."""
    loss_scale: float = 1.0
    losses: Sequence[Sequence[Number]] = ()
    """[rank][as in StepAnswer.losses]."""
    right_masters: Tensors = field(default_factory=dict)
    master_room: Tensors = field(default_factory=dict)
    masters: Sequence[Tensors] = ()
    """After the step, by rank; () where the engine has none, or shows none."""
    last_backwards: Contributions = ()
    """What the last of several backwards of each micro-batch gave; () where each has one."""


@dataclass(frozen=True)
class CaseSeen:
    """A case and its steps, in order, up to the last one that was looked at."""

    case: Case
    steps: Sequence[StepSeen]
    local: LocalGradients | None = None
    kinds: dict[str, Sequence[str]] = field(default_factory=dict)
    """Names of the parameters that are "tied", "unused", "conditional", ..., for the words."""


@dataclass(frozen=True)
class Cause:
    """Why something is wrong, as far as the numbers tell."""

    kinds: tuple[str, ...]
    """What all of them predict is what was got; ("unknown",) where no known fault explains it."""
    sentence: str
    what: str
    """"gradient", "parameter", "norm", ..."""
    step: int
    """The first wrong one, from 0."""

    @property
    def known(self) -> bool:
        """Whether a fault was found that explains what was got."""
        return self.kinds != ("unknown",)


class Layout:
    """Where parameters lie in one flat vector of all of them."""

    def __init__(self, shapes: dict[str, torch.Size]) -> None:
        self.names = list(shapes)
        self.shapes = shapes
        self.offsets: dict[str, int] = {}
        self.numel = 0
        for name, shape in shapes.items():
            self.offsets[name] = self.numel
            self.numel += shape.numel()

    def flat(self, tensors: Tensors, missing: float = 0.0) -> torch.Tensor:
        """The parameters in fp64, one after another; those that are absent are filled with `missing`."""
        parts = []
        for name, shape in self.shapes.items():
            tensor = tensors.get(name)
            if tensor is None:
                parts.append(torch.full((shape.numel(),), missing, dtype=torch.float64))
            else:
                parts.append(tensor.detach().double().flatten())
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def of(self, name: str) -> slice:
        """Where it lies."""
        return slice(self.offsets[name], self.offsets[name] + self.shapes[name].numel())

    def in_buckets(self, index: torch.Tensor, by: int) -> torch.Tensor:
        """What lies `by` elements further where parameters are from the last to the first, the order of buckets; round at the end."""
        order = torch.cat([torch.arange(self.of(name).start, self.of(name).stop) for name in reversed(self.names)])
        where = torch.empty_like(order)
        where[order] = torch.arange(order.numel())
        return order[(where[index] + by) % order.numel()]

    def name_of(self, index: torch.Tensor) -> str | None:
        """The parameter that all of these elements, ascending, are of; None where there are several."""
        for name in self.names:
            where = self.of(name)
            if where.start <= int(index[0]) < where.stop:
                return name if int(index[-1]) < where.stop else None
        return None

    def owner(self, world: int, how: str) -> torch.Tensor:
        """Which rank holds each element: `how` is "rows" (chunks of the first dimension), "elements" (of each parameter, flat) or
        "all" (of all parameters together)."""
        if how == "all":
            return torch.arange(self.numel) // max(1, -(-self.numel // world))
        parts = []
        for shape in self.shapes.values():
            numel = shape.numel()
            rows = shape[0] if len(shape) and how == "rows" else max(numel, 1)
            width = max(1, numel // max(rows, 1))
            parts.append(torch.arange(numel) // width // max(1, -(-rows // world)))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


_WIDTHS = {"fp64": 53, "fp32": 24, "fp16": 11, "bf16": 8}
_LEAST = {"fp64": 2.0**-1074, "fp32": 2.0**-149, "fp16": 2.0**-24, "bf16": 2.0**-133}


def least_number(case: Case) -> float:
    """Above zero, of the narrowest type that a right engine uses: less is rounded to zero, or to this."""
    precision = case.precision
    types = [precision.model, precision.autocast, precision.accumulation, precision.communication]
    return max(_LEAST[one] for one in types if one)


def unit_roundoff(case: Case) -> float:
    """Half a unit in the last place of the coarsest type that a right engine uses."""
    precision = case.precision
    types = [precision.model, precision.autocast, precision.accumulation, precision.communication]
    return float(max(2.0 ** -_WIDTHS[one] for one in types if one))
