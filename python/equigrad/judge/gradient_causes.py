"""What faults make of a gradient: each predicts the wrong elements from every rank's and micro-batch's contribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from equigrad.judge.proof import Claim
from equigrad.judge.seen import CaseSeen, Layout, Tensors, least_number, unit_roundoff

Matrix = list[list[float]]
"""[rank][micro-batch], relative to a right average: 1 is right, 0 is missing."""

NAMED, OWN, PATTERN, TIME, PLACE, ROUNDED, FITTED, MATRIX = range(8)
"""Simple causes first."""

FIRST_SCALE = 65536.0
"""Of torch's GradScaler and of DeepSpeed, where nobody says another one."""


@dataclass(frozen=True)
class Place:
    """Wrong elements of one rank in one step."""

    step: int
    rank: int
    index: torch.Tensor
    """Into the flat vector of all parameters, ascending."""
    got: torch.Tensor
    right: torch.Tensor
    alike: bool = False
    """Whether all ranks have the same."""


class GradientFaults:
    """The claims about a gradient, for each place."""

    def __init__(self, seen: CaseSeen, layout: Layout) -> None:
        self._seen, self._layout = seen, layout
        self._world, self._micro = seen.case.world, seen.case.accumulation
        self._owners = {how: layout.owner(self._world, how) for how in ("rows", "elements", "all")}
        self._unit = unit_roundoff(seen.case)
        self._least = least_number(seen.case)
        self._parts: dict[int, torch.Tensor] = {}
        self._scale: dict[int, float] = {}
        self._elsewhere: dict[tuple[int, str], torch.Tensor] = {}

    def claims(self, place: Place) -> Iterator[Claim]:
        """Every fault that is known of, and what it would give here."""
        room = self._room(place)
        yield from self._factors(place, room)
        yield from self._patterns(place, room)
        yield from self._times(place, room)
        yield from self._backwards(place, room)
        yield from self._places(place)
        yield from self._rounded(place)

    def parts(self, step: int) -> torch.Tensor:
        """[rank, micro-batch, element]: contributions, scaled so that their sum is the right average."""
        if step not in self._parts:
            one = self._seen.steps[step]
            rows = [[self._layout.flat(part) for part in row] for row in one.contributions]
            given = torch.stack([torch.stack(row) for row in rows])
            total, right = given.sum((0, 1)), self._layout.flat(one.right_gradient)
            bottom = float(total @ total)
            scale = float(right @ total) / bottom if bottom else 1.0 / (self._world * self._micro)
            nearest = round(1 / scale) if scale > 0 else 0
            if nearest and abs(scale * nearest - 1) < 1e-3:
                scale = 1 / nearest
            self._parts[step], self._scale[step] = given * scale, scale
        return self._parts[step]

    def predicted(self, place: Place, matrix: torch.Tensor) -> torch.Tensor:
        """The elements of the place under coefficients [rank, micro-batch] or [rank, micro-batch, element]."""
        weights = matrix if matrix.dim() == 3 else matrix.unsqueeze(-1)
        return (self.parts(place.step)[:, :, place.index] * weights).sum((0, 1))

    def _room(self, place: Place) -> torch.Tensor:
        """What the roundings of a sum of all contributions, and those within them, may come to."""
        within = self._layout.flat(self._seen.steps[place.step].gradient_room)[place.index].nan_to_num(posinf=0.0)
        return (self._world * self._micro + 4) * self._unit * self._sizes(place) + within

    def _sizes(self, place: Place) -> torch.Tensor:
        return torch.maximum(self.parts(place.step)[:, :, place.index].abs().sum((0, 1)), place.right.abs())

    def _factors(self, place: Place, room: torch.Tensor) -> Iterator[Claim]:
        for factor, kind, says in self.named_factors(place.step):
            exact = factor in (0.0, -1.0)
            yield Claim(kind, says, place.right * factor, torch.zeros_like(room) if exact else self._room_of(room, factor), NAMED)
        ratios = (place.got / place.right)[(place.right != 0)]
        if ratios.numel():
            factor = float(ratios.median())
            says = f"is multiplied by {factor:.6g}: a scale, or a factor of clipping?"
            yield Claim("other-factor", says, place.right * factor, self._room_of(room, factor), FITTED, fitted=1)

    def _room_of(self, room: torch.Tensor, factor: float) -> torch.Tensor:
        """What is wrong by a factor is off by so much of the right one's room, and by a rounding to what is next to zero."""
        return room * abs(factor) + self._least

    def named_factors(self, step: int) -> list[tuple[float, str, str]]:
        """(factor, kind, words) of faults that multiply a gradient."""
        world, micro = self._world, self._micro
        ranks, batches = f"the number of ranks ({world})", f"the number of micro-batches ({micro})"
        found = [(0.0, "zeros", "is zeros: lost"), (-1.0, "sign", "has the other sign"), (2.0, "added-twice", "is added twice")]
        if world > 1:
            found += [(1 / world, "divided-by-ranks-twice", f"is divided by {ranks} twice")]
            found += [(world, "not-divided-by-ranks", f"is summed over the ranks, not divided by {ranks}")]
        if micro > 1:
            found += [(1 / micro, "divided-by-micro-batches-twice", f"is divided by {batches} twice")]
            found += [(micro, "not-divided-by-micro-batches", f"is summed, not divided by {batches}")]
        if world > 1 and micro > 1:
            both = f"{ranks} and {batches}"
            found += [(1 / (world * micro), "divided-by-all-twice", f"is divided by {both} twice")]
            found += [(world * micro, "not-divided-at-all", f"is summed, not divided by {both}")]
        return found + self._scales(step)

    def _scales(self, step: int) -> list[tuple[float, str, str]]:
        scale = self._seen.steps[step].loss_scale
        found = []
        said = {answer.loss_scale for answer in self._seen.steps[step].answers} - {None, scale}
        for other in (one for one in said if one is not None and one > 0):  # it went its own way after a wrong step
            found += [(other, "loss-scale-left-in", f"is multiplied by the loss scale ({other:g}), which was not taken out")]
            found += [(1 / other, "loss-scale-taken-out-twice", f"is divided by the loss scale ({other:g}) once too often")]
        if scale == 1 and self._seen.case.precision.loss_scale is None:
            of = f"{FIRST_SCALE:g}, the loss scale that engines begin with, though none is asked for"
            found += [(FIRST_SCALE, "loss-scale-left-in", f"is multiplied by {of}")]
            found += [(1 / FIRST_SCALE, "loss-scale-taken-out-twice", f"is divided by {of}")]
        if scale != 1:
            found += [(scale, "loss-scale-left-in", f"is multiplied by the loss scale ({scale:g}), which was not taken out")]
            found += [(1 / scale, "loss-scale-taken-out-twice", f"is divided by the loss scale ({scale:g}) once too often")]
        for other, kind, whose in ((step + 1, "loss-scale-of-next-step", "next step"), (step - 1, "loss-scale-of-last-step", "step before")):
            if 0 <= other < len(self._seen.steps):
                theirs = self._seen.steps[other].loss_scale
                if theirs != scale and theirs > 0:
                    found += [(scale / theirs, kind, f"is divided by the loss scale of the {whose} ({theirs:g}, not {scale:g})")]
        if scale != 1:
            found += [(0.5, "another-loss-scale", "is half as large: divided by twice the loss scale?")]
        return found

    def _patterns(self, place: Place, room: torch.Tensor) -> Iterator[Claim]:
        for kind, says, matrix in patterns(self._world, self._micro):
            weights = torch.tensor(matrix, dtype=torch.float64)
            wide = room * max(1.0, float(weights.abs().max()))
            yield Claim(kind, says, self.predicted(place, weights), wide, PATTERN, variant=says)
        if self._world > 1:
            yield from self._own(place, room)
            yield from self._at_every_reduction(place, room)
            yield from self._mixed(place, room)
        yield from self._fitted(place, room)

    def _backwards(self, place: Place, room: torch.Tensor) -> Iterator[Claim]:
        """Some of several backwards of a micro-batch are lost."""
        given = self._seen.steps[place.step].last_backwards
        if not given:
            return
        whole = self.parts(place.step)[:, :, place.index]
        rows = [[self._layout.flat(part)[place.index] for part in row] for row in given]
        last = torch.stack([torch.stack(row) for row in rows]) * self._scale[place.step]
        here = whole.sum((0, 1))
        wide = 2 * room
        for kind, says, values in (
            ("only-last-backward", "is the last backward() of the step alone: those before it are lost", last[:, -1].sum(0)),
            ("only-last-backward", "is the last backward() of each micro-batch alone", last.sum((0, 1))),
            ("last-backward-missing", "lacks the last backward() of each micro-batch", here - last.sum((0, 1))),
            ("last-backward-missing", "lacks the last backward() of the step", here - last[:, -1].sum(0)),
            ("earlier-backwards-lost", "has of the last micro-batch the last backward() alone", whole[:, :-1].sum((0, 1)) + last[:, -1].sum(0)),
        ):
            yield Claim(kind, says, values, wide, PATTERN, variant=says)

    def _mixed(self, place: Place, room: torch.Tensor) -> Iterator[Claim]:
        """Ranks that use different parameters of one shape send them at one place: an owner gets the sum as that of the one it uses."""
        partner = self._partners()[place.index]
        if bool((partner < 0).any()):
            return
        parts = self.parts(place.step)
        both = (parts[:, :, place.index] + parts[:, :, partner]).sum(0)
        wide = room + (self._world * self._micro + 4) * self._unit * parts[:, :, partner].abs().sum((0, 1))
        for owner in range(self._world):
            uses = torch.zeros_like(parts[owner])
            for name in self._layout.names:
                where = self._layout.of(name)
                uses[:, where] = parts[owner, :, where].any(1, keepdim=True).double()
            says = f"has the gradient of the branch that other ranks take added: what is sent is told apart by the branch of rank {owner}"
            yield Claim("mixed-between-ranks", says, (both * uses[:, place.index]).sum(0), wide, PATTERN, variant=says)

    def _partners(self) -> torch.Tensor:
        """For each element that of the one other conditional parameter of its shape; -1 where there is none, or are several."""
        layout, found = self._layout, torch.full((self._layout.numel,), -1)
        conditional = [name for name in self._seen.kinds.get("conditional", ()) if name in layout.offsets]
        for name in conditional:
            alike = [other for other in conditional if other != name and layout.shapes[other] == layout.shapes[name]]
            if len(alike) == 1:
                other = layout.of(alike[0])
                found[layout.of(name)] = torch.arange(other.start, other.stop)
        return found

    def _at_every_reduction(self, place: Place, room: torch.Tensor) -> Iterator[Claim]:
        """Faults of a reduction that takes what was accumulated along, once a micro-batch (DDP without no_sync)."""
        world, micro = self._world, self._micro
        if micro == 1:
            return
        for kind, says, mixing in reductions(world):
            if place.alike and not bool((mixing == mixing[0]).all()):
                continue
            powers = [torch.linalg.matrix_power(mixing, micro - m)[place.rank] for m in range(micro)]
            weights = world * torch.stack(powers, dim=1)
            wide = room * max(1.0, float(weights.abs().max()))
            yield Claim(kind, f"{says}, in every micro-batch's reduction", self.predicted(place, weights), wide, PATTERN, variant=says)

    def _own(self, place: Place, room: torch.Tensor) -> Iterator[Claim]:
        """Every rank, or every shard's owner, has its own part."""
        world, micro = self._world, self._micro
        whose = {how: owner[place.index] for how, owner in self._owners.items()}
        if not place.alike:
            whose["rank"] = torch.full((place.index.numel(),), place.rank)
        for how, owner in whose.items():
            own = torch.zeros(world, 1, place.index.numel(), dtype=torch.float64)
            own[owner.clamp(max=world - 1), 0, torch.arange(place.index.numel())] = 1
            whom = "is each rank's own" if how == "rank" else "is in each shard its own rank's"
            for times, kind, says in (
                (world, "not-reduced", f"{whom}, not reduced over the ranks"),
                (1, "only-own-part", f"{whom} part, divided by the number of ranks: the others' did not arrive"),
                (world * micro, "not-reduced-nor-divided", f"{whom}, neither reduced over the ranks nor divided by micro-batches"),
            ):
                if kind != "not-reduced-nor-divided" or micro > 1:
                    yield Claim(kind, says, self.predicted(place, (own * times).expand(-1, micro, -1)), room * times, OWN)
            if micro > 1:
                yield from self._own_in_part(place, own, room * world)

    def _own_in_part(self, place: Place, own: torch.Tensor, room: torch.Tensor) -> Iterator[Claim]:
        world, micro = self._world, self._micro
        for times in (world, 1):
            last = torch.ones(world, micro, place.index.numel(), dtype=torch.float64)
            last[:, -1:] = own * times
            says = "has of the last micro-batch each rank's own part only, not reduced over the ranks"
            yield Claim("last-micro-batch-not-reduced", says, self.predicted(place, last), room, OWN)
            early = (own * times).expand(-1, micro, -1).clone()
            early[:, -1:] = 1
            says = "has of all but the last micro-batch each rank's own part only, not reduced over the ranks"
            yield Claim("only-last-micro-batch-reduced", says, self.predicted(place, early), room, OWN)
            for kept, words, kind in ((0, "first", "only-first-micro-batch"), (micro - 1, "last", "only-last-micro-batch")):
                alone = torch.zeros_like(last)
                alone[:, kept : kept + 1] = own * times
                says = f"is the {words} micro-batch alone, of each rank's own, not reduced over the ranks"
                yield Claim(kind, says, self.predicted(place, alone), room, OWN)

    def _times(self, place: Place, room: torch.Tensor) -> Iterator[Claim]:
        if place.step == 0:
            return
        before = self._seen.steps[place.step - 1]
        shown = before.gradient[place.rank] if before.gradient else before.right_gradient
        clipped = clip_factor(self._seen, place.step - 1)
        for source in (shown, before.right_gradient):
            last = self._layout.flat(source)[place.index]
            wide = room + 8 * self._unit * last.abs()
            yield Claim("stale", "is that of the step before", last, wide, TIME)
            says = "is the sum of this step's and the step before's: it was not zeroed in between"
            for factor in {1.0, clipped}:
                yield Claim("not-zeroed", says, place.right + factor * last, wide, TIME)

    def of_other_weights(self, place: Place) -> Iterator[Claim]:
        """What plain autograd gives at weights that the forward may have read. Each asks the reference: it takes its time."""
        if self._seen.local is None:
            return
        room = self._room(place)
        for kind, says, weights in other_weights(self._seen, place.step):
            key = (place.step, says)
            if key not in self._elsewhere:
                parts = [self._layout.flat(part) for row in self._seen.local(place.step, weights) for part in row]
                given = torch.stack(parts) / len(parts)
                self._elsewhere[key] = torch.stack([given.sum(0), given.abs().sum(0)])
            total, sizes = self._elsewhere[key][:, place.index]
            wide = room + (self._world * self._micro + 12) * self._unit * sizes
            yield Claim(kind, says, total, wide, TIME)

    def _places(self, place: Place) -> Iterator[Claim]:
        one = self._seen.steps[place.step]
        right, room = self._layout.flat(one.right_gradient), self._layout.flat(one.gradient_room)
        yield from moved(self._layout, place, right, room, self._world)
        if self._micro > 1:
            yield from self._moved_again(place, room)

    def _moved_again(self, place: Place, room: torch.Tensor) -> Iterator[Claim]:
        """Moved in every micro-batch's reduction, which takes along what was moved before."""
        averages = self.parts(place.step).sum(0)
        numel, last = averages.shape[1], self._micro
        wide = 4 * self._unit * averages.abs().sum() / max(numel, 1) + room[place.index]

        def total(source: Callable[[int], torch.Tensor]) -> torch.Tensor:
            values = torch.zeros_like(place.right)
            for batch in range(last):
                at = source(last - batch)
                inside = (at >= 0) & (at < numel)
                values += torch.where(inside, averages[batch, at.clamp(0, numel - 1)], torch.nan)
            return values

        for by in (1, -1):
            for moved_by in (partial(_shift, place.index, by), partial(_shift_in_buckets, self._layout, place.index, by)):
                yield Claim("shifted", "is shifted by 1 element, in every micro-batch's reduction", total(moved_by), wide, PLACE)
        name = self._layout.name_of(place.index)
        if name is None:
            return
        for other in self._layout.names:
            if other != name and self._layout.shapes[other].numel() == self._layout.shapes[name].numel():
                away = self._layout.offsets[other] - self._layout.offsets[name]
                says = f"is that of {other}, in every micro-batch's reduction: the two are swapped"
                swapped = partial(_there_and_back, place.index, away)
                yield Claim("of-another-parameter", says, total(swapped), wide, PLACE)

    def _rounded(self, place: Place) -> Iterator[Claim]:
        parts = self.parts(place.step)[:, :, place.index]
        sizes = self._sizes(place)
        within = self._layout.flat(self._seen.steps[place.step].gradient_room)[place.index].nan_to_num(posinf=0.0)
        near = torch.where(within > 0, 2.0**-22 * sizes + within, 0.0)  # what was exact is rounded to one number
        for dtype, name in ((torch.float16, "fp16"), (torch.bfloat16, "bf16")):
            low, high = (rounded_ways(parts, place.right, sign * near, dtype) for sign in (-1, 1))
            for under, over in zip(low, high):
                values = torch.where((under - over).abs() <= 4 * near, (under + over) / 2, torch.nan)
                yield Claim(f"rounded-to-{name}", f"is rounded to {name} on the way", values, 2 * near, ROUNDED)

    def _fitted(self, place: Place, room: torch.Tensor) -> Iterator[Claim]:
        terms = self._world * self._micro
        if place.index.numel() < 2 * terms or terms == 1:
            return
        columns = self.parts(place.step)[:, :, place.index].reshape(terms, -1).T
        solved = torch.linalg.lstsq(columns, place.got.unsqueeze(1), driver="gelsd")
        if int(solved.rank) < terms:
            return
        fitted = solved.solution.reshape(self._world, self._micro)
        simple = snapped(fitted, self._world, self._micro)
        says = "is made of the contributions in wrong shares: " + shares(simple, terms)
        wide = room * max(1.0, float(simple.abs().max()))
        yield Claim("other-shares", says, self.predicted(place, simple), wide, MATRIX, fitted=terms)


def other_weights(seen: CaseSeen, step: int) -> Iterator[tuple[str, str, Tensors]]:
    """(kind, words, parameters) that a forward may have read in the place of the right ones."""
    now, world = seen.steps[step].before, seen.case.world
    if not step:
        says = "is that at weights that decayed before the first step: the optimizer made one with gradients of zero"
        yield "stepped-before-training", says, _decayed(seen, now)
    if step > 1:
        yield "old-weights", "is that at the weights that the training began with", seen.steps[0].before
    if step:
        old, says = seen.steps[step - 1].before, "is that at the weights of the step before"
        yield "old-weights", f"{says}: forward or backward read old weights", old
        rows = {name: one.shape[0] for name, one in now.items() if one.dim()}
        odd = {name: torch.cat([one[:-1], old[name][-1:]]) if rows.get(name, 0) % world else one for name, one in now.items()}
        yield "old-weights", f"{says} in the last row of parameters that have padding, at the right ones elsewhere", odd
        for module in dict.fromkeys(name.rpartition(".")[0] for name in now):
            mixed = {name: old[name] if name.rpartition(".")[0] == module else one for name, one in now.items()}
            yield "old-weights", f"{says} in {module or 'the outermost module'}: forward or backward read old weights there", mixed
    if world > 1:
        says = "is that at weights whose shards are in the opposite order"
        yield "weights-shards-swapped", says, {name: _opposite(one, world) for name, one in now.items()}


def _decayed(seen: CaseSeen, weights: Tensors) -> Tensors:
    case, lrs = seen.case, seen.steps[0].lrs
    whole = [(tuple(weights), case.optimizer.weight_decay)]
    groups = [(one.parameters, one.weight_decay) for one in case.groups] or whole
    factors = {name: 1 - lr * decay for (names, decay), lr in zip(groups, lrs or (case.optimizer.lr,)) for name in names}
    return {name: (one.double() * factors.get(name, 1.0)).to(one.dtype) for name, one in weights.items()}


def _opposite(weight: torch.Tensor, world: int) -> torch.Tensor:
    if not weight.dim():
        return weight
    rows = -(-weight.shape[0] // world)
    padded = torch.cat([weight, torch.zeros(rows * world - weight.shape[0], *weight.shape[1:], dtype=weight.dtype)])
    return torch.cat(list(torch.split(padded, rows))[::-1])[: weight.shape[0]]


def rounded_ways(parts: torch.Tensor, right: torch.Tensor, off: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """A gradient that was rounded to the type somewhere; every number before a rounding is off by so much (both signs tell which
    roundings are sure). parts: [rank, micro-batch, element], whose sum is right."""

    def to(values: torch.Tensor) -> torch.Tensor:
        return (values + off).to(dtype).double()

    world, micro = parts.shape[:2]
    each = [to(one) for one in parts.sum(1)]
    added = each[0]
    for one in each[1:]:
        added = to(added + one)
    accumulated, taken_along, sent = torch.zeros_like(parts[:, 0]), torch.zeros_like(right), torch.zeros_like(right)
    for batch in range(micro):
        accumulated = to(accumulated + parts[:, batch])
        shares = [to(taken_along / world + parts[rank, batch]) for rank in range(world)]
        taken_along = shares[0]
        for one in shares[1:]:
            taken_along = to(taken_along + one)
        sent = torch.stack([to(sent / world + parts[rank, batch]) for rank in range(world)]).sum(0)
    reduced = [to(torch.stack([to(one) for one in parts[:, batch]]).sum(0)) for batch in range(micro)]
    in_micro_batches = torch.stack(reduced).sum(0)
    rounded = to(torch.stack(reduced).sum(0))
    flat = torch.stack([to(one) for one in parts.flatten(0, 1)]).sum(0)
    return [to(right), torch.stack(each).sum(0), added, accumulated.sum(0), taken_along, sent, in_micro_batches, rounded, flat]


def _shift(index: torch.Tensor, by: int, times: int) -> torch.Tensor:
    return index + by * times


def _shift_in_buckets(layout: Layout, index: torch.Tensor, by: int, times: int) -> torch.Tensor:
    return layout.in_buckets(index, by * times)


def _there_and_back(index: torch.Tensor, away: int, times: int) -> torch.Tensor:
    return index + away * (times % 2)


def clip_factor(seen: CaseSeen, step: int) -> float:
    """What clipping multiplies a right gradient of the step by."""
    clip, norm = seen.case.clip, seen.steps[step].norm
    if clip is None or norm is None or not norm.mid > clip.max_norm:
        return 1.0
    return clip.max_norm / (norm.mid + 1e-6)


def snapped(matrix: torch.Tensor, world: int, micro: int) -> torch.Tensor:
    """Every coefficient replaced by the nearest that a fault makes, where one is near."""
    simple = {0.0, 1.0, 2.0, 3.0, 0.5, -1.0, float(world), 1 / world, float(micro), 1 / micro, float(world * micro), 1 / (world * micro)}
    result = matrix.clone()
    for value in simple:
        result[(matrix - value).abs() < 1e-4] = value
    return result


def shares(matrix: torch.Tensor, terms: int) -> str:
    """ "rank 0: 1 0 1, rank 1: 1 1 1 (each of 1/6)"."""
    rows = [f"rank {r}: " + " ".join(f"{float(one):.4g}" for one in row) for r, row in enumerate(matrix)]
    return ", ".join(rows) + f" (by micro-batch, each of 1/{terms})"


def patterns(world: int, micro: int) -> Iterator[tuple[str, str, Matrix]]:
    """(kind, words, coefficients): ranks, micro-batches or single contributions that are missing, or count too much."""
    def made(inside: float, outside: float, rank: int | None, batch: int | None) -> Matrix:
        return [
            [inside if rank in (None, r) and batch in (None, m) else outside for m in range(micro)] for r in range(world)
        ]

    for rank in range(world if world > 1 else 0):
        name = f"rank {rank}"
        yield "rank-missing", f"lacks the part of {name}", made(0, 1, rank, None)
        yield "rank-missing", f"lacks the part of {name}, and is averaged over the others", made(0, world / (world - 1), rank, None)
        yield "rank-counted-twice", f"has the part of {name} twice", made(2, 1, rank, None)
        yield "rank-not-divided", f"has the part of {name} not divided by the number of ranks", made(world, 1, rank, None)
        yield "only-one-rank", f"is that of {name} alone", made(world, 0, rank, None)
        yield "only-one-rank", f"is that of {name} alone, divided by the number of ranks", made(1, 0, rank, None)
    if micro > 1:
        yield from _batch_patterns(world, micro)
    if micro > 1 and world > 1:
        for rank in range(world):
            for batch in range(micro):
                name = f"micro-batch {batch + 1} of rank {rank}"
                yield "micro-batch-missing-on-a-rank", f"lacks {name}", made(0, 1, rank, batch)
                yield "micro-batch-twice-on-a-rank", f"has {name} twice", made(2, 1, rank, batch)


def reductions(world: int) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(kind, words, [rank that gets][rank that gives]) of wrong reductions over ranks; a right one is 1 / world everywhere."""
    right = torch.full((world, world), 1 / world, dtype=torch.float64)
    own = torch.eye(world, dtype=torch.float64)
    yield "divided-by-ranks-twice", f"is divided by the number of ranks ({world}) twice", right / world
    yield "not-divided-by-ranks", f"is summed over the ranks, not divided by their number ({world})", right * world
    yield "only-own-part", "is each rank's own part, divided by the number of ranks: the others' did not arrive", own / world
    for rank in range(world):
        for times, kind, says in (
            (0.0, "rank-missing", f"lacks the part of rank {rank}"),
            (2.0, "rank-counted-twice", f"has the part of rank {rank} twice"),
            (float(world), "rank-not-divided", f"has the part of rank {rank} not divided by the number of ranks"),
        ):
            mixing = right.clone()
            mixing[:, rank] *= times
            yield kind, says, mixing
        mixing = own / world
        mixing[rank] = right[rank]
        yield "only-own-part", f"is each rank's own part, divided by the number of ranks: the sum came to rank {rank} alone", mixing


def _batch_patterns(world: int, micro: int) -> Iterator[tuple[str, str, Matrix]]:
    def made(row: list[float]) -> Matrix:
        return [list(row) for _ in range(world)]

    for batch in range(micro):
        alone, rest = [0.0] * micro, [1.0] * micro
        alone[batch], rest[batch] = 1.0, 0.0
        word = "first" if batch == 0 else "last" if batch == micro - 1 else f"{batch + 1}th" if batch > 2 else ("second", "third")[batch - 1]
        kind = "only-first-micro-batch" if batch == 0 else "only-last-micro-batch" if batch == micro - 1 else "only-one-micro-batch"
        yield kind, f"is the {word} micro-batch alone, divided by all {micro}", made(alone)
        yield kind, f"is the {word} micro-batch alone, not divided", made([micro * one for one in alone])
        yield "micro-batch-missing", f"lacks the {word} micro-batch", made(rest)
        yield "micro-batch-missing", f"lacks the {word} micro-batch, and is averaged over the others", made([one * micro / (micro - 1) for one in rest])
        yield "micro-batch-twice", f"has the {word} micro-batch twice", made([2 - one for one in rest])
    if micro > 2:
        ends = [1.0, *[0.0] * (micro - 2), 1.0]
        yield "middle-micro-batches-missing", "lacks the micro-batches between the first and the last", made(ends)
    says = "has earlier micro-batches again at every later one: what was sent was not cleared"
    yield "accumulated-again", says, made([float(micro - m) for m in range(micro)])
    says = "has earlier micro-batches divided by the number of ranks again"
    yield "averaged-again", says, made([float(world) ** -(micro - 1 - m) for m in range(micro)])


def moved(layout: Layout, place: Place, right: torch.Tensor, room: torch.Tensor, world: int) -> Iterator[Claim]:
    """Right numbers at wrong places: `right` and its room are flat vectors of all parameters."""
    starts = torch.tensor([layout.offsets[name] for name in layout.names])
    of = torch.bucketize(place.index, starts, right=True) - 1

    def taken(kind: str, says: str, source: torch.Tensor, known: torch.Tensor) -> Claim:
        known = known & (source >= 0) & (source < right.numel())
        source = source.clamp(0, right.numel() - 1)
        return Claim(kind, says, torch.where(known, right[source], torch.nan), room[source], PLACE)

    everywhere = torch.ones_like(place.index, dtype=torch.bool)
    for by in (1, -1, 2, -2, 3, -3, 4, -4):
        if abs(by) == 1 or place.index.numel() >= 16:
            says = f"is shifted by {abs(by)} element{'' if abs(by) == 1 else 's'}"
            yield taken("shifted", says, place.index + by, everywhere)
    for by in (1, -1):
        says = "is shifted by 1 element, in buckets from the last parameter to the first"
        yield taken("shifted", says, layout.in_buckets(place.index, by), everywhere)
    numel = torch.tensor([layout.shapes[name].numel() for name in layout.names])[of]
    rows = torch.tensor([layout.shapes[name][0] if len(layout.shapes[name]) else 1 for name in layout.names])[of]
    for by in range(1, world):
        for size in (-(-rows // world) * (numel // rows.clamp(min=1)), -(-numel // world)):
            inside = place.index - starts[of]
            source = inside + torch.where(inside // size + by < world, by * size, (by - world) * size)
            says = "is that of another rank's shard: shards are swapped"
            yield taken("shards-swapped", says, starts[of] + source, (source >= 0) & (source < numel))
    if place.index.numel() >= 3 and bool((of == of[0]).all()):
        for order in (layout.names, layout.names[::-1]):
            found = _window(layout, order, place, right, room)
            if found is not None:
                yield found


def _window(layout: Layout, order: list[str], place: Place, right: torch.Tensor, room: torch.Tensor) -> Claim | None:
    """The wrong elements of one parameter, found in a row somewhere else among all parameters in that order."""
    vector = torch.cat([right[layout.of(name)] for name in order])
    near = torch.cat([room[layout.of(name)] for name in order])
    relative = place.index - place.index[0]
    anchor = int(place.got.abs().argmax())
    spots = ((vector - place.got[anchor]).abs() <= near).nonzero().flatten()[:64]
    for spot in spots.tolist():
        source = relative - relative[anchor] + spot
        if int(source.min()) < 0 or int(source.max()) >= vector.numel():
            continue
        values, allowed = vector[source], near[source]
        if bool(((values - place.got).abs() <= allowed).all()):
            name, at = _name_at(layout, order, int(source[0]))
            says = f"is that of {name}, from its element {at} on" if at else f"is that of {name}"
            return Claim("of-another-parameter", says, values, allowed, PLACE)
    return None


def _name_at(layout: Layout, order: list[str], position: int) -> tuple[str, int]:
    for name in order:
        numel = layout.shapes[name].numel()
        if position < numel:
            return name, position
        position -= numel
    return order[-1], 0
