"""What faults make of a norm, a loss, a learning rate, a loss scale, and of whether a step is made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from equigrad.judge.gradient_causes import FIRST_SCALE, NAMED, PATTERN, PLACE, TIME, clip_factor
from equigrad.judge.proof import Claim
from equigrad.judge.seen import CaseSeen, Layout, Number, unit_roundoff


@dataclass(frozen=True)
class WrongNumber:
    """One number of one rank in one step; index: which loss, or which group."""

    step: int
    rank: int
    index: int
    got: float
    right: Number


Named = Iterator[tuple[str, str, float, int]]
"""(kind, words, value, order)."""


class NumberFaults:
    """The claims about numbers of a step."""

    def __init__(self, seen: CaseSeen, layout: Layout) -> None:
        self._seen, self._layout = seen, layout
        self._unit = unit_roundoff(seen.case)

    def claims(self, what: str, number: WrongNumber) -> Iterator[Claim]:
        """Every fault that is known of, and what it would give for that number. what: "norm", "loss", "lr", "loss scale"."""
        named = {"norm": self._norms, "loss": self._losses, "lr": self._rates, "loss scale": self._scales}[what]
        for kind, says, value, order in named(number):
            exact = what in ("lr", "loss scale")
            near = 1e-12 * abs(value) if exact else 4 * number.right.rad + 16 * max(self._unit / 16, 2.0**-24) * abs(value)
            values, room = torch.tensor([value], dtype=torch.float64), torch.tensor([near], dtype=torch.float64)
            yield Claim(kind, says, values, room, order)

    def _norms(self, number: WrongNumber) -> Named:
        case, step = self._seen.case, self._seen.steps[number.step]
        two = case.clip is None or case.clip.norm_type == "2"
        right, flat = number.right.mid, self._layout.flat(step.right_gradient)
        yield from self._norm_factors(number.step, right)
        yield "norm-after-clip", "that of the clipped gradient", right * clip_factor(self._seen, number.step), NAMED
        if number.step and (last := self._seen.steps[number.step - 1].norm) is not None:
            yield "norm-of-last-step", "that of the step before", last.mid, TIME
        yield "norm-of-another-type", "the infinity norm" if two else "the Euclidean norm", _norm(flat, not two), NAMED
        yield "norm-of-another-type", "the sum of absolute values", float(flat.abs().sum()), NAMED
        yield "norm-squared", "the square of the norm: no root was taken", right * right, NAMED
        yield from self._norm_parts(flat, two)
        yield from self._norm_shards(number, flat, two)

    def _norm_factors(self, step: int, right: float) -> Named:
        case, one = self._seen.case, self._seen.steps[step]
        world, micro, scale = case.world, case.accumulation, one.loss_scale
        if world > 1:
            root = math.sqrt(world)
            words = f"too large by the square root of the number of ranks ({world}): squares were added up over ranks that have all of them"
            yield "norm-times-root-ranks", words, right * root, NAMED
            yield "norm-by-root-ranks", f"too small by the square root of the number of ranks ({world})", right / root, NAMED
            yield "norm-times-ranks", f"multiplied by the number of ranks ({world})", right * world, NAMED
            yield "norm-by-ranks", f"divided by the number of ranks ({world})", right / world, NAMED
        if micro > 1:
            yield "norm-times-micro-batches", f"multiplied by the number of micro-batches ({micro})", right * micro, NAMED
            yield "norm-by-micro-batches", f"divided by the number of micro-batches ({micro})", right / micro, NAMED
        if scale == 1 and case.precision.loss_scale is None:
            words = f"that of the gradient with {FIRST_SCALE:g} in it, the loss scale that engines begin with, though none is asked for"
            yield "norm-of-scaled-gradient", words, right * FIRST_SCALE, NAMED
        if scale != 1:
            yield "norm-of-scaled-gradient", f"that of the gradient with the loss scale ({scale:g}) still in it", right * scale, NAMED
            yield "norm-divided-by-scale", f"divided by the loss scale ({scale:g}) once too often", right / scale, NAMED
            for other, whose in ((step + 1, "next step"), (step - 1, "step before")):
                theirs = self._seen.steps[other].loss_scale if 0 <= other < len(self._seen.steps) else 0.0
                if theirs > 0 and theirs != scale:
                    yield "norm-by-another-scale", f"divided by the loss scale of the {whose} ({theirs:g}, not {scale:g})", right * scale / theirs, NAMED
            yield "norm-by-another-scale", "half as large: divided by twice the loss scale", right / 2, NAMED
            yield "norm-by-another-scale", "twice as large: divided by half the loss scale", right * 2, NAMED

    def _norm_parts(self, flat: torch.Tensor, two: bool) -> Named:
        layout = self._layout
        flats = {name: flat[layout.of(name)] for name in layout.names}
        thin = [name for name in layout.names if len(layout.shapes[name]) <= 1]
        thick = [name for name in layout.names if name not in thin]
        for words, names in (("without the parameters of one dimension", thick), ("of the parameters of one dimension alone", thin)):
            yield "norm-of-some", words, _norm_of([flats[name] for name in names], two), NAMED
        for number, group in enumerate(self._seen.case.groups):
            inside = [flats[name] for name in group.parameters if name in flats]
            outside = [flats[name] for name in layout.names if name not in group.parameters]
            yield "norm-of-some", f"of the parameters of group {number} alone", _norm_of(inside, two), NAMED
            yield "norm-of-some", f"without the parameters of group {number}", _norm_of(outside, two), NAMED
        for name in layout.names:
            rest = [flats[other] for other in layout.names if other != name]
            yield "norm-of-some", f"without {name}", _norm_of(rest, two), PATTERN
            yield "norm-of-some", f"of {name} alone", _norm(flats[name], two), PATTERN
            if two:
                yield "norm-counts-twice", f"with {name} counted twice", _norm_of([flat, flats[name]], two), PATTERN
        world = self._seen.case.world
        rows = [layout.shapes[name][0] if len(layout.shapes[name]) else 0 for name in layout.names]
        last = [flats[name].view(count, -1)[-1] for name, count in zip(layout.names, rows) if count and count % world]
        if last and two:
            says = "with the last rows counted twice of parameters that are padded: what lies in their padding is in it"
            yield "norm-with-padding", says, _norm_of([flat, *last], two), PATTERN
        shared = [flats[name] for name in self._seen.kinds.get("tied", ()) if name in flats]
        if shared and two:
            yield "norm-counts-twice", "with tied parameters counted twice", _norm_of([flat, *shared], two), PATTERN

    def _norm_shards(self, number: WrongNumber, flat: torch.Tensor, two: bool) -> Named:
        world = self._seen.case.world
        for how in ("rows", "elements", "all"):
            owner = self._layout.owner(world, how)
            each = [_norm(flat[owner == rank], two) for rank in range(world)]
            if world > 1:
                yield "norm-of-own-shard", f"that of rank {number.rank}'s own shards alone", each[number.rank], NAMED
                yield "norm-sum-of-shards", "the sum of the shards' norms", sum(each), NAMED
                for rank in range(world):
                    yield "norm-of-a-shard", f"that of rank {rank}'s shards alone", each[rank], PATTERN
        step = self._seen.steps[number.step]
        for rank, row in enumerate(step.contributions):
            own = torch.stack([self._layout.flat(part) for part in row]).sum(0) / self._seen.case.accumulation
            if world > 1 and rank == number.rank:
                yield "norm-of-own-gradient", f"that of rank {rank}'s own gradient, not reduced over the ranks", _norm(own, two), NAMED

    def _losses(self, number: WrongNumber) -> Named:
        step, case = self._seen.steps[number.step], self._seen.case
        for rank, row in enumerate(step.losses):
            for index, loss in enumerate(row):
                yield "loss-of-another", f"that of micro-batch {index + 1} of rank {rank}", loss.mid, PLACE
        if number.step and self._seen.steps[number.step - 1].losses:
            yield "loss-of-last-step", "that of the step before", self._seen.steps[number.step - 1].losses[number.rank][number.index].mid, TIME
        factors = {case.world: "number of ranks", case.accumulation: "number of micro-batches", step.loss_scale: "loss scale"}
        for factor, words in factors.items():
            if factor != 1:
                yield "loss-divided", f"divided by the {words} ({factor:g})", number.right.mid / factor, NAMED
                yield "loss-multiplied", f"multiplied by the {words} ({factor:g})", number.right.mid * factor, NAMED
        every = [loss.mid for row in step.losses for loss in row]
        if len(every) > 1:
            yield "loss-averaged", "the average over ranks and micro-batches", sum(every) / len(every), NAMED

    def _rates(self, number: WrongNumber) -> Named:
        case, steps = self._seen.case, self._seen.steps
        base = tuple(one.lr for one in case.groups) or (case.optimizer.lr,)
        lrs = steps[number.step].lrs or base
        for group, lr in enumerate(lrs):
            yield "lr-of-another-group", f"that of group {group}", lr, NAMED
        if number.index < len(base):
            own, right = base[number.index], number.right.mid
            yield "no-schedule", "that of no schedule", own, NAMED
            yield "schedule-twice", "with the schedule's factor applied twice", right * right / own if own else 0.0, NAMED
            for place, factor in enumerate(case.schedule):
                kind = "lr-of-last-step" if place < number.step else "lr-of-next-step"
                yield kind, f"that of step {place + 1}", own * factor, TIME

    def _scales(self, number: WrongNumber) -> Named:
        steps, right = self._seen.steps, number.right.mid
        if number.step:
            before = steps[number.step - 1].loss_scale
            if not steps[number.step - 1].applied:
                yield "scale-not-shrunk", "that of the step before: an overflow did not make it smaller", before, NAMED
            yield "scale-unchanged", "that of the step before: it did not change", before, TIME
            yield "scale-grew", "twice that of the step before: it grew", 2 * before, TIME
            yield "scale-shrank", "half that of the step before: it shrank", before / 2, TIME
        yield "scale-twice", "twice the right one", 2 * right, PLACE
        yield "scale-half", "half the right one", right / 2, PLACE


def _norm(flat: torch.Tensor, two: bool) -> float:
    if flat.numel() == 0:
        return 0.0
    return float(flat.square().sum().sqrt() if two else flat.abs().max())


def _norm_of(flats: list[torch.Tensor], two: bool) -> float:
    return _norm(torch.cat(flats), two) if flats else 0.0
