"""What may have become of one parameter, by each of the behaviours that documents allow (truth.py has the table)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from .balls import FORMATS, Ball, Format
from .local_gradients import Tensors, format_of_parameters
from .on_rank.protocol import Case
from .updates import Rates, State, clip_factor, clipped, update

_MOST = 64
"""Of one parameter. The count grows with steps: each may have counted for the optimizer, or not."""


@dataclass(frozen=True)
class Averages:
    """Of one step: the averaged gradients of the parameters that some rank used, in what format, and their norm."""

    gradients: dict[str, Ball]
    form: Format
    norm: Ball
    """Of gradients in that format."""
    fine_norm: Ball
    """Of gradients that were taken to fp32 first, as for masters."""


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


Histories = dict[str, tuple[History, ...]]
"""By parameter."""


def beginnings(case: Case, weights: Tensors) -> Histories:
    """The histories of all parameters before the first step."""
    form = format_of_parameters(case)
    return {name: _beginnings(weight, form) for name, weight in weights.items()}


def follow(
    case: Case, histories: Histories, averages: Averages, rates: Mapping[str, Rates], still: Collection[str]
) -> dict[str, list[Following]]:
    """All that may come of a step, by parameter, each once. still: parameters that nothing is done to."""
    parameters = format_of_parameters(case)
    following: dict[str, list[Following]] = {name: [] for name in histories}
    together: dict[tuple[object, ...], list[tuple[str, History]]] = {}
    for name, theirs in histories.items():
        for history in theirs:
            if name in still or name not in averages.gradients:
                _add(following[name], Following(history, history.value, history.state, parameters))
            if name not in still:
                fine = history.hidden and parameters.digits < 24
                state = history.state
                key = (fine, rates[name], state.steps, state.first is None, state.second is None)
                together.setdefault(key, []).append((name, history))
    for alike, some in together.items():
        for (name, history), (value, state) in zip(some, _updated(case, averages, some, rates[some[0][0]], bool(alike[0]))):
            _add(following[name], Following(history, value, state, parameters))
    return {name: found[:_MOST] for name, found in following.items()}


def _updated(
    case: Case, averages: Averages, some: Sequence[tuple[str, History]], rates: Rates, fine: bool
) -> Iterator[tuple[Ball, State]]:
    """The step of several parameters that have all numbers of the optimizer in common. fine: of masters in fp32."""
    form = FORMATS["fp32"] if fine else format_of_parameters(case)
    shapes = [history.value.mid.shape for _, history in some]
    gradient = _joined([averages.gradients.get(name, _zeros(history.value)) for name, history in some])
    if case.clip is not None:
        gradient = clipped(gradient, clip_factor(averages.fine_norm if fine else averages.norm, case.clip, form), form)
    state = State(
        _joined_if_any([history.state.first for _, history in some]),
        _joined_if_any([history.state.second for _, history in some]),
        some[0][1].state.steps,
    )
    whole = _joined([history.value for _, history in some])
    value, after = update(case.optimizer, whole, state, gradient, rates, form)
    firsts, seconds = ([None] * len(shapes) if one is None else _parts(one, shapes) for one in (after.first, after.second))
    for one, first, second in zip(_parts(value, shapes), firsts, seconds):
        yield one, State(first, second, after.steps)


def _zeros(like: Ball) -> Ball:
    return Ball.of(torch.zeros_like(like.mid))


def _joined(balls: Sequence[Ball]) -> Ball:
    """One after another, flat."""
    return Ball(torch.cat([one.mid.flatten() for one in balls]), torch.cat([one.rad.flatten() for one in balls]))


def _joined_if_any(balls: Sequence[Ball | None]) -> Ball | None:
    there = [one for one in balls if one is not None]
    return _joined(there) if there else None


def _parts(ball: Ball, shapes: Sequence[torch.Size]) -> list[Ball]:
    """What _joined() put together."""
    sizes = [shape.numel() for shape in shapes]
    pairs = zip(torch.split(ball.mid, sizes), torch.split(ball.rad, sizes), shapes)
    return [Ball(mid.reshape(shape), rad.reshape(shape)) for mid, rad, shape in pairs]


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
