"""From what is wrong in a cell to one honest sentence.

A cause is offered only where the numbers that it predicts are those that were got, within the roundings of its own, on every
wrong element in every step, and where these are too many to be an accident (proof.py). Where several predict the same, the
sentence names them all. Otherwise no known fault explains it, and the sentence says that.

What goes wrong first decides: within the first wrong step a gradient before the norm, the norm before the update.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from equigrad.judge.gradient_causes import FITTED, MATRIX, GradientFaults, Place
from equigrad.judge.number_causes import NumberFaults, WrongNumber
from equigrad.judge.proof import LEAST_BITS, Claim, Wrong, grid_of, prove
from equigrad.judge.seen import CaseSeen, Cause, Layout, Number, StepSeen, Tensors
from equigrad.judge.update_causes import UpdateFaults

UNKNOWN = ("unknown",)
_MOST_WORDS = 3
Claims = Callable[[Place], Iterator[Claim]]


@dataclass(frozen=True)
class _Found:
    """A kind of cause that explains all places that it was asked about."""

    kind: str
    says: str
    order: int
    bits: float


def cause_of(seen: CaseSeen) -> Cause | None:
    """Why the case went wrong; None where nothing is wrong."""
    for step in range(len(seen.steps)):
        for look in (_gradient, _numbers, _applied, _parameters, _masters, _replicas):
            cause = look(seen, step)
            if cause is not None:
                return cause
    return None


def _gradient(seen: CaseSeen, step: int) -> Cause | None:
    if not any(one.gradient for one in seen.steps):
        return None
    one = seen.steps[step]
    lost = _without_gradient(one)
    layout = Layout(_shapes(seen, lambda at: (at.right_gradient, *at.gradient)))
    places = _places(seen, layout, step, lambda at: (at.gradient, at.right_gradient, at.gradient_room), skip=lost)
    if lost and not places:
        return Cause(("no-gradient",), _sentence(step, f"{_names(lost)} {'has' if len(lost) == 1 else 'have'} no gradient."), "gradient", step)
    if not places:
        return None
    if any(not bool(torch.isfinite(place.got).all()) for place in places):
        return _not_finite("gradient", places, layout, step)
    faults = GradientFaults(seen, layout)
    return _explained("gradient", seen, layout, places, faults.claims, faults.of_other_weights)


def _parameters(seen: CaseSeen, step: int) -> Cause | None:
    layout = Layout(_shapes(seen, lambda at: (at.right_parameters, *at.parameters)))
    places = _places(seen, layout, step, lambda at: (at.parameters, at.right_parameters, at.parameter_room))
    if not places:
        return None
    faults = UpdateFaults(seen, layout)
    if any(not bool(torch.isfinite(place.got).all()) for place in places):
        if not seen.steps[step].applied:
            says = "parameters are infinite or NaN: the step was made, in spite of an overflow."
            return Cause(("applied-in-spite-of-overflow",), _sentence(step, says), "parameter", step)
        return _not_finite("parameter", places, layout, step)
    return _explained("parameter", seen, layout, places, faults.claims)


def _masters(seen: CaseSeen, step: int) -> Cause | None:
    """Masters that are wrong where the parameters are what the masters make of them."""
    layout = Layout(_shapes(seen, lambda at: (at.right_masters, *at.masters)))
    places = _places(seen, layout, step, lambda at: (at.masters, at.right_masters, at.master_room))
    if not places:
        return None
    if any(not bool(torch.isfinite(place.got).all()) for place in places):
        return _not_finite("master", places, layout, step)
    return _explained("master", seen, layout, places, UpdateFaults(seen, layout, masters=True).claims)


def _shapes(seen: CaseSeen, of: Callable[[StepSeen], Sequence[Tensors]]) -> dict[str, torch.Size]:
    shapes: dict[str, torch.Size] = {}
    for step in seen.steps:
        for tensors in of(step):
            for name, tensor in tensors.items():
                shapes.setdefault(name, tensor.shape)
    return shapes


def _without_gradient(step: StepSeen) -> list[str]:
    """Parameters that a right engine has a gradient of, and some rank has none."""
    some = [name for name, right in step.right_gradient.items() if bool((right != 0).any())]
    return [name for name in some if any(name not in rank for rank in step.gradient)]


def _places(
    seen: CaseSeen,
    layout: Layout,
    first: int,
    of: Callable[[StepSeen], tuple[Sequence[Tensors], Tensors, Tensors]],
    skip: Sequence[str] = (),
) -> list[Place]:
    """The wrong elements from the step `first` on, where that one has some; ranks that have the same numbers once."""
    places: list[Place] = []
    for step in range(first, len(seen.steps)):
        got, right, room = of(seen.steps[step])
        want, near = layout.flat(right), layout.flat(room)
        flats = [layout.flat(one) for one in got]
        known: list[torch.Tensor] = []
        for rank, flat in enumerate(flats):
            if any(torch.equal(flat, other) for other in known):
                continue
            known.append(flat)
            wrong = ~((flat - want).abs() <= near) & torch.isfinite(want)
            for name in skip:
                wrong[layout.of(name)] = False
            index = wrong.nonzero().flatten()
            if index.numel():
                alike = all(torch.equal(flat, other) for other in flats)
                places.append(Place(step, rank, index, flat[index], want[index], alike and len(flats) > 1))
        if step == first and not places:
            return []
    return places


def _explained(
    what: str, seen: CaseSeen, layout: Layout, places: list[Place], claims: Claims, dear: Claims | None = None
) -> Cause:
    """The cause of all places; else of those of the first wrong step; else of single parameters. dear: claims that are looked at
    where the others explain nothing, and first where a loss is wrong too: then the forward was another one."""
    first = places[0].step
    only_first = [place for place in places if place.step == first]
    grid = grid_of(*(place.got for place in places), *(place.right for place in places))
    sources = [one for one in ((dear, claims) if _wrong_losses(seen, first) else (claims, dear)) if one is not None]
    parts = (places, only_first) if len(only_first) < len(places) else (places,)
    for most in (FITTED - 1, MATRIX):  # a number that is fitted explains much: first what needs none
        for kinds, some in itertools.product(sources, parts):
            found = _common(some, kinds, grid, most)
            if found:
                return _cause(what, seen, layout, some, found, len(some) == len(places))
    return _by_parameter(what, seen, layout, places, claims, grid)


def _by_parameter(what: str, seen: CaseSeen, layout: Layout, places: list[Place], claims: Claims, grid: float) -> Cause:
    named: dict[str, list[str]] = {}
    founds: dict[str, list[_Found]] = {}
    unknown: list[str] = []
    for name in _names_of(layout, places):
        some = [part for place in places if (part := _only(layout, place, name)).index.numel()]
        found = _common(some, claims, grid) or _common([one for one in some if one.step == some[0].step], claims, grid)
        if not found:
            unknown.append(name)
            continue
        named.setdefault(_words(found), []).append(name)
        founds.setdefault(_words(found), found)
    if not named:
        where = f"{_of(what)} of {_scope(seen, layout, places, what)} {_count(places)}"
        says = f"no known fault explains {where}."
        return Cause(UNKNOWN, _sentence(places[0].step, says), what, places[0].step)
    ordered = sorted(named, key=lambda words: -len(named[words]))
    parts = [f"that of {_names(named[words])} {words}" for words in ordered[:_MOST_WORDS]]
    parts[0] = f"{_of(what)} of {_names(named[ordered[0]])} {ordered[0]}"
    if len(ordered) > _MOST_WORDS:
        parts.append(f"that of {sum(len(named[words]) for words in ordered[_MOST_WORDS:])} other parameters has other causes")
    if unknown:
        parts.append(f"no known fault explains that of {_names(unknown)}")
    kinds = Counter(kind for words, names in named.items() for kind in {one.kind for one in founds[words]} for _ in names)
    most = max(kinds.values())
    commonest = tuple(kind for kind, count in kinds.items() if count == most)
    return Cause(commonest, _sentence(places[0].step, "; ".join(parts) + "."), what, places[0].step)


def _common(places: list[Place], claims: Claims, grid: float, most: int = MATRIX) -> list[_Found]:
    """The simplest kinds, of an order up to `most`, that explain every place; together they must tell enough to be no accident."""
    left: dict[tuple[str, str], _Found] | None = None
    for place in places:
        wrong = Wrong(place.got, place.right, grid)
        here: dict[tuple[str, str], _Found] = {}
        for claim in claims(place):
            if claim.order > most:
                continue
            key = (claim.kind, claim.variant)
            proof = None if left is not None and key not in left else prove(wrong, claim, least=0.0)
            if proof is not None and (key not in here or proof.bits > here[key].bits):
                here[key] = _Found(claim.kind, claim.says, claim.order, proof.bits)
        if left is not None:
            here = {key: _Found(one.kind, left[key].says, one.order, left[key].bits + one.bits) for key, one in here.items()}
        left = here
        if not left:
            return []
    enough = [one for one in (left or {}).values() if one.bits >= LEAST_BITS]
    simplest = min((one.order for one in enough), default=0)
    return [one for one in enough if one.order == simplest]


def _cause(what: str, seen: CaseSeen, layout: Layout, places: list[Place], found: list[_Found], all_steps: bool) -> Cause:
    steps = sorted({place.step for place in places})
    says = f"{_of(what)} of {_scope(seen, layout, places, what)} {_words(found)} {_count(places)}"
    when = _when(steps, len(seen.steps)) if all_steps else f"Step {steps[0] + 1}"
    return Cause(tuple(dict.fromkeys(one.kind for one in found)), f"{when}: {says}.", what, steps[0])


def _not_finite(what: str, places: list[Place], layout: Layout, step: int) -> Cause:
    names = _names_of(layout, [place for place in places if place.step == step])
    says = f"{_of(what)} of {_names(names)} has NaN or infinite elements where the right ones are finite."
    return Cause(("not-finite",), _sentence(step, says), what, step)


def _numbers(seen: CaseSeen, step: int) -> Cause | None:
    for what, of in (("loss", _wrong_losses), ("loss scale", _wrong_scales), ("norm", _wrong_norms), ("lr", _wrong_rates)):
        first = of(seen, step)
        if not first:
            continue
        every = [one for at in range(step, len(seen.steps)) for one in of(seen, at)]
        layout = Layout(_shapes(seen, lambda at: (at.right_gradient,)))
        claims = partial(NumberFaults(seen, layout).claims, what)
        found = _common_number(every, claims) or _common_number(first, claims)
        label = {"lr": "learning rate"}.get(what, what)
        got, right = first[0].got, first[0].right.mid
        kinds: tuple[str, ...] = UNKNOWN
        says = f"no known fault explains the {label}: got {got:.9g}, right is {right:.9g}."
        if found:
            kinds = tuple(dict.fromkeys(one.kind for one in found))
            says = f"the {label} is {_words(found)} (got {got:.9g}, right is {right:.9g})."
        elif not math.isfinite(got):
            kinds, says = ("not-finite",), f"the {label} is {got}, right is {right:.9g}."
        return Cause(kinds, _sentence(step, says), what, step)
    return None


def _common_number(numbers: list[WrongNumber], claims: Callable[[WrongNumber], Iterator[Claim]]) -> list[_Found]:
    places = [
        Place(one.step, one.rank, torch.tensor([0]), torch.tensor([one.got], dtype=torch.float64), torch.tensor([one.right.mid], dtype=torch.float64))
        for one in numbers
    ]
    by_place = dict(zip(map(id, places), numbers))
    return _common(places, lambda place: claims(by_place[id(place)]), 2.0**-60)


def _wrong(got: float | None, right: Number | None) -> bool:
    return got is not None and right is not None and math.isfinite(right.mid) and not abs(got - right.mid) <= right.rad


def _wrong_losses(seen: CaseSeen, step: int) -> list[WrongNumber]:
    one = seen.steps[step]
    return [
        WrongNumber(step, rank, index, got, right)
        for rank, (answer, row) in enumerate(zip(one.answers, one.losses))
        for index, (got, right) in enumerate(zip(answer.losses, row))
        if _wrong(got, right)
    ]


def _wrong_norms(seen: CaseSeen, step: int) -> list[WrongNumber]:
    one = seen.steps[step]
    if one.norm is None or not one.applied:
        return []
    return [WrongNumber(step, rank, 0, a.norm, one.norm) for rank, a in enumerate(one.answers) if a.norm is not None and _wrong(a.norm, one.norm)]


def _wrong_scales(seen: CaseSeen, step: int) -> list[WrongNumber]:
    one, right = seen.steps[step], Number(seen.steps[step].loss_scale)
    if seen.case.precision.loss_scale is None:
        return []
    return [
        WrongNumber(step, rank, 0, a.loss_scale, right)
        for rank, a in enumerate(one.answers)
        if a.loss_scale is not None and _wrong(a.loss_scale, right)
    ]


def _wrong_rates(seen: CaseSeen, step: int) -> list[WrongNumber]:
    one = seen.steps[step]
    if not one.applied:
        return []
    return [
        WrongNumber(step, rank, group, got, Number(right, 1e-12 * abs(right)))
        for rank, answer in enumerate(one.answers)
        for group, (got, right) in enumerate(zip(answer.lrs or (), one.lrs))
        if _wrong(got, Number(right, 1e-12 * abs(right)))
    ]


def _applied(seen: CaseSeen, step: int) -> Cause | None:
    one = seen.steps[step]
    said = [answer.applied for answer in one.answers if answer.applied is not None]
    if not said or all(applied == one.applied for applied in said):
        return None
    wrong = [f"rank {rank}" for rank, answer in enumerate(one.answers) if answer.applied not in (None, one.applied)]
    whose = _names(wrong) if len(wrong) < len(said) else "every rank"
    if one.applied:
        return Cause(("skipped-without-overflow",), _sentence(step, f"{whose} skipped a step without an overflow."), "applied", step)
    layout = Layout(_shapes(seen, lambda at: (at.right_parameters, *at.parameters)))
    if one.parameters and not _places(seen, layout, step, lambda at: (at.parameters, at.right_parameters, at.parameter_room)):
        says = f"{whose} {'says' if len(wrong) == 1 or whose == 'every rank' else 'say'} that the step was made; its parameters are those of one that was not."
        return Cause(("applied-said-wrong",), _sentence(step, says), "applied", step)
    says = f"{whose} made the step, in spite of an overflow."
    return Cause(("applied-in-spite-of-overflow",), _sentence(step, says), "applied", step)


def _replicas(seen: CaseSeen, step: int) -> Cause | None:
    """Ranks that have other numbers than rank 0, each of them near enough to the right ones."""
    one = seen.steps[step]
    for what, ranks in (("gradient", one.gradient), ("parameter", one.parameters)):
        differ = [name for name in (ranks[0] if ranks else ()) if any(_unlike(rank.get(name), ranks[0][name]) for rank in ranks)]
        if differ:
            says = f"ranks have different bits in {_of(what)} of {_names(differ)}, each within the roundings of a right one."
            return Cause(("ranks-disagree",), _sentence(step, says), what, step)
    return None


def _unlike(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and not bool(((one == other) | (one.isnan() & other.isnan())).all())


def _only(layout: Layout, place: Place, name: str) -> Place:
    where = layout.of(name)
    some = (place.index >= where.start) & (place.index < where.stop)
    return Place(place.step, place.rank, place.index[some], place.got[some], place.right[some], place.alike)


def _names_of(layout: Layout, places: Sequence[Place]) -> list[str]:
    return [name for name in layout.names if any(_only(layout, place, name).index.numel() for place in places)]


def _scope(seen: CaseSeen, layout: Layout, places: Sequence[Place], what: str) -> str:
    names = _names_of(layout, places)
    step = seen.steps[places[0].step]
    right = {"gradient": step.right_gradient, "master": step.right_masters}.get(what, step.right_parameters)
    changing = {name for name, tensor in right.items() if bool((tensor != 0).any())}
    scope = "every parameter" if len(names) > 1 and changing <= set(names) else _names(names)
    for word, theirs in seen.kinds.items():
        if names and set(names) <= set(theirs):
            scope += f" ({word})"
    ranks = sorted({place.rank for place in places})
    if any(place.alike for place in places) or len(ranks) == seen.case.world:
        return scope
    return f"{scope} on {_names([f'rank {rank}' for rank in ranks])}"


def _when(steps: list[int], count: int) -> str:
    if len(steps) == 1 and count > 1:
        return f"Step {steps[0] + 1} alone"
    if steps == list(range(count)):
        return "Every step" if count > 1 else "Step 1"
    if steps == list(range(steps[0], count)):
        return f"From step {steps[0] + 1} on"
    return "Steps " + ", ".join(str(step + 1) for step in steps)


def _words(found: Sequence[_Found]) -> str:
    counts = Counter(one.says for one in found)
    return " or ".join(list(counts)[:_MOST_WORDS]) + (", or one of other faults that give the same" if len(counts) > _MOST_WORDS else "")


def _count(places: Sequence[Place]) -> str:
    wrong = sum(place.index.numel() for place in places)
    got, right = float(places[0].got[0]), float(places[0].right[0])
    return f"({wrong} wrong element{'s' if wrong > 1 else ''}; the first: got {got:.9g}, right is {right:.9g})"


def _of(what: str) -> str:
    return {"gradient": "the gradient", "master": "the update of the masters"}.get(what, "the update")


def _names(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} others"
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" and {names[-1]}"


def _sentence(step: int, says: str) -> str:
    return f"Step {step + 1}: {says}"
