"""What faults make of an update: each predicts the parameters after the step from what the step began with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from equigrad.judge.gradient_causes import FITTED, NAMED, PATTERN, PLACE, ROUNDED, TIME, Place, clip_factor, moved
from equigrad.judge.on_rank.protocol import Case
from equigrad.judge.proof import Claim
from equigrad.judge.seen import CaseSeen, Layout, StepSeen, Tensors, unit_roundoff

_ROUNDS = 16


@dataclass(frozen=True)
class Rule:
    """The settings of one update; per element where groups differ."""

    name: str
    lr: torch.Tensor
    weight_decay: torch.Tensor
    momentum: float
    betas: tuple[float, float]
    eps: float
    count: int
    """Applied updates, this one included."""
    nesterov: bool = False
    decoupled: bool = True
    """Of adamw: whether the decay is taken from the weights, not added to the gradient."""


@dataclass(frozen=True)
class State:
    """What an update begins with. first and second: momentum, or the moments of AdamW."""

    weights: torch.Tensor
    gradient: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor


def updated(rule: Rule, state: State) -> State:
    """One step of torch.optim.SGD or AdamW, in fp64."""
    weights, gradient = state.weights, state.gradient
    if rule.name == "sgd":
        gradient = gradient + rule.weight_decay * weights
        first = gradient if rule.count == 1 or not rule.momentum else rule.momentum * state.first + gradient
        step = gradient + rule.momentum * first if rule.nesterov else first
        return State(weights - rule.lr * step, state.gradient, first, state.second)
    if rule.decoupled:
        weights = weights * (1 - rule.lr * rule.weight_decay)
    else:
        gradient = gradient + rule.weight_decay * weights
    one, two = rule.betas
    first, second = one * state.first + (1 - one) * gradient, two * state.second + (1 - two) * gradient**2
    below = (second / (1 - two**rule.count)).sqrt() + rule.eps
    return State(weights - rule.lr / (1 - one**rule.count) * first / below, state.gradient, first, second)


class UpdateFaults:
    """The claims about the parameters after a step, or about their fp32 masters, for each place."""

    def __init__(self, seen: CaseSeen, layout: Layout, masters: bool = False) -> None:
        self._seen, self._layout, self._masters = seen, layout, masters
        self._unit = 2.0**-24 if masters else unit_roundoff(seen.case)
        self._starts: dict[int, tuple[Rule, State, torch.Tensor]] = {}
        self._of_group = _group_of(seen.case, layout)

    def claims(self, place: Place) -> Iterator[Claim]:
        """Every fault that is known of, and what it would give here."""
        rule, state, clip = self._start(place.step)
        part = _part(rule, state, place.index)
        yield from self._whole(place, *part)
        for kind, says, other in self._rules(place.step, part[0], place.index):
            yield self._claim(place, kind, says, other, part[1])
        for kind, says, other_state in self._states(place, *part):
            yield self._claim(place, kind, says, part[0], other_state)
        if part[0].name == "adamw" and place.step:
            anew = replace(part[1], first=torch.zeros_like(part[1].first), second=torch.zeros_like(part[1].second))
            yield self._claim(place, "state-lost", "is as if the moments and the step counter began anew", replace(part[0], count=1), anew)
        for kind, says, gradient, order, fitted in self._gradients(place, part[1], float(clip)):
            other_state = replace(part[1], gradient=gradient)
            yield self._claim(place, kind, says, part[0], other_state, order, fitted)
        yield from self._places(place)

    def _claim(
        self, place: Place, kind: str, says: str, rule: Rule, state: State, order: int = NAMED, fitted: int = 0
    ) -> Claim:
        after = updated(rule, state)
        return Claim(kind, says, after.weights, self._room(state, after), order, fitted)

    def _room(self, state: State, after: State) -> torch.Tensor:
        moved_by = (after.weights - state.weights).abs()
        return _ROUNDS * self._unit * (state.weights.abs() + moved_by + after.weights.abs()) / 4

    def _start(self, step: int) -> tuple[Rule, State, torch.Tensor]:
        """The rule, what the step began with, and the factor of clipping; all updates before it as they should have been."""
        if step in self._starts:
            return self._starts[step]
        zeros = torch.zeros(self._layout.numel, dtype=torch.float64)
        count, first, second = 0, zeros, zeros
        if step:
            rule, state, _ = self._start(step - 1)
            count, first, second = rule.count - 1, state.first, state.second
            if self._seen.steps[step - 1].applied:
                after = updated(rule, state)
                count, first, second = rule.count, after.first, after.second
        one = self._seen.steps[step]
        clip = clip_factor(self._seen, step)
        shown = one.gradient[0] if one.gradient else {}
        gradient = self._layout.flat({**one.right_gradient, **shown}) * clip
        state = State(self._layout.flat(self._before(step)), gradient, first, second)
        self._starts[step] = (self._rule(step, count + 1), state, torch.tensor(clip))
        return self._starts[step]

    def _before(self, step: int) -> Tensors:
        """What the step began with."""
        if self._masters and step:
            return self._seen.steps[step - 1].masters[0]
        return self._seen.steps[step].before

    def _rule(self, step: int, count: int) -> Rule:
        settings, case = self._seen.case.optimizer, self._seen.case
        lrs = self._seen.steps[step].lrs or tuple(one.lr for one in case.groups) or (settings.lr,)
        decays = tuple(one.weight_decay for one in case.groups) or (settings.weight_decay,)
        lr = torch.tensor(lrs, dtype=torch.float64)[self._of_group.clamp(max=len(lrs) - 1)]
        decay = torch.tensor(decays, dtype=torch.float64)[self._of_group.clamp(max=len(decays) - 1)]
        return Rule(settings.name, lr, decay, settings.momentum, settings.betas, settings.eps, count)

    def _whole(self, place: Place, rule: Rule, state: State) -> Iterator[Claim]:
        """Faults after which the step itself is not the right one."""
        exact = torch.zeros_like(place.got)
        yield Claim("not-updated", "was not made", state.weights, exact, NAMED)
        once = updated(rule, state)
        again = replace(once, gradient=state.gradient)
        yield self._claim(place, "updated-twice", "was made twice", replace(rule, count=rule.count + 1), again)
        yield from self._ahead(place)
        if place.step:
            before = self._layout.flat(self._before(place.step - 1))[place.index]
            yield Claim("older-weights", "left the weights of two steps before", before, exact, TIME)
        for dtype, name in ((torch.float16, "fp16"), (torch.bfloat16, "bf16")):
            yield Claim(f"rounded-to-{name}", f"left weights that are rounded to {name}", place.right.to(dtype).double(), self._room(state, once) / 16, ROUNDED)
        if not self._seen.steps[place.step].applied:
            yield Claim("applied-in-spite-of-overflow", "was made in a step that is to be skipped", once.weights, self._room(state, once), NAMED)
            finite = torch.nan_to_num(state.gradient, nan=0.0, posinf=0.0, neginf=0.0)
            says = "was made in a step that is to be skipped, its infinities taken for zeros"
            yield self._claim(place, "applied-in-spite-of-overflow", says, rule, replace(state, gradient=finite))

    def _ahead(self, place: Place) -> Iterator[Claim]:
        """The optimizer has made a step with gradients of zero before the first one, to make its state."""
        rule, state, _ = self._start(0)
        after = updated(rule, replace(state, gradient=torch.zeros_like(state.gradient)))
        for step in range(place.step + 1):
            rule, state, _ = self._start(step)
            if self._seen.steps[step].applied:
                after = updated(replace(rule, count=rule.count + 1), replace(after, gradient=state.gradient))
        values = after.weights[place.index]
        moved_by = (values - state.weights[place.index]).abs()
        room = _ROUNDS * self._unit * (values.abs() + moved_by) / 4
        yield Claim("stepped-before-training", "is that of an optimizer that made a step with gradients of zero before the first", values, room, NAMED)

    def _rules(self, step: int, rule: Rule, index: torch.Tensor) -> Iterator[tuple[str, str, Rule]]:
        yield from self._rates(step, rule, index)
        if bool((rule.weight_decay != 0).any()):
            yield "no-weight-decay", "has no weight decay", replace(rule, weight_decay=rule.weight_decay * 0)
            yield "weight-decay-twice", "has twice the weight decay", replace(rule, weight_decay=rule.weight_decay * 2)
            if rule.name == "adamw":
                yield "decay-to-gradient", "has the decay added to the gradient (L2), not decoupled", replace(rule, decoupled=False)
                says = "has a decay that is not multiplied by the learning rate"
                yield "decay-without-rate", says, replace(rule, weight_decay=rule.weight_decay / rule.lr)
        if rule.name == "sgd":
            if rule.momentum:
                yield "nesterov", "is by Nesterov's rule", replace(rule, nesterov=True)
                yield "no-momentum", "has no momentum", replace(rule, momentum=0.0)
            return
        counts = {1 << 30: "has no bias correction", 1: "has the bias correction of step 1"}
        counts |= {rule.count + 1: "has the bias correction of the next step", 2 * rule.count: "has the bias correction of a step counted twice"}
        counts |= {2 * rule.count - 1: "has the bias correction of a step counted twice", rule.count - 1: "has the bias correction of the step before"}
        counts |= {rule.count * self._seen.case.accumulation: "has the bias correction of micro-batches counted as steps"}
        for count, words in counts.items():
            if count > 0 and count != rule.count:
                yield "step-counter", words, replace(rule, count=count)
        yield "betas-swapped", "has beta1 and beta2 swapped", replace(rule, betas=(rule.betas[1], rule.betas[0]))
        yield "no-eps", "has no eps", replace(rule, eps=0.0)
        below = math.sqrt(1 - rule.betas[1] ** rule.count)
        yield "eps-inside", "has eps under the bias correction", replace(rule, eps=rule.eps / below)

    def _rates(self, step: int, rule: Rule, index: torch.Tensor) -> Iterator[tuple[str, str, Rule]]:
        case, steps = self._seen.case, self._seen.steps
        if case.groups:
            for number, group in enumerate(case.groups):
                lrs = steps[step].lrs or tuple(one.lr for one in case.groups)
                lr, decay = torch.full_like(rule.lr, lrs[number]), torch.full_like(rule.weight_decay, group.weight_decay)
                yield "lr-of-another-group", f"uses the learning rate of group {number}", replace(rule, lr=lr)
                yield "decay-of-another-group", f"uses the weight decay of group {number}", replace(rule, weight_decay=decay)
                yield "settings-of-another-group", f"uses the settings of group {number}", replace(rule, lr=lr, weight_decay=decay)
        base = tuple(one.lr for one in case.groups) or (case.optimizer.lr,)
        bases = torch.tensor(base, dtype=torch.float64)[self._of_group.clamp(max=len(base) - 1)][index]
        yield "no-schedule", "has the learning rate of no schedule", replace(rule, lr=bases)
        yield "schedule-twice", "has the schedule's factor applied twice", replace(rule, lr=rule.lr * rule.lr / bases)
        for other, words, kind in ((step - 1, "step before", "lr-of-last-step"), (step + 1, "next step", "lr-of-next-step")):
            if 0 <= other < len(steps):
                lr = self._rule(other, 1).lr[index]
                yield kind, f"uses the learning rate of the {words}", replace(rule, lr=lr)
        factors = {case.world: "number of ranks", case.accumulation: "number of micro-batches", case.world * case.accumulation: "ranks and micro-batches"}
        for factor, words in factors.items():
            if factor > 1:
                yield "lr-divided", f"uses a learning rate divided by the {words} ({factor})", replace(rule, lr=rule.lr / factor)
                yield "lr-multiplied", f"uses a learning rate multiplied by the {words} ({factor})", replace(rule, lr=rule.lr * factor)
        yield "sign-of-step", "goes in the wrong direction", replace(rule, lr=-rule.lr)

    def _states(self, place: Place, rule: Rule, state: State) -> Iterator[tuple[str, str, State]]:
        if rule.name == "sgd" and not rule.momentum:
            return
        zeros = torch.zeros_like(state.first)
        what = "momentum" if rule.name == "sgd" else "moments"
        lost = replace(state, first=zeros, second=zeros)
        yield "state-lost", f"is as if the {what} began anew", lost
        if rule.name == "adamw":
            yield "first-moment-lost", "is as if the first moment began anew", replace(state, first=zeros)
            yield "second-moment-lost", "is as if the second moment began anew", replace(state, second=zeros)
        if place.step == 0:
            return
        _, older, _ = self._start(place.step - 1)
        first, second = older.first[place.index], older.second[place.index]
        yield "state-stale", f"uses the {what} of one step before", replace(state, first=first, second=second)
        if rule.name == "adamw":
            yield "first-moment-stale", "uses the first moment of one step before", replace(state, first=first)
            yield "second-moment-stale", "uses the second moment of one step before", replace(state, second=second)
        yield from self._moved_states(place, state, what)

    def _moved_states(self, place: Place, state: State, what: str) -> Iterator[tuple[str, str, State]]:
        whole = self._start(place.step)[1]
        nowhere = torch.zeros_like(whole.first)
        firsts = [one for one in moved(self._layout, place, whole.first, nowhere, self._seen.case.world) if one.kind == "shards-swapped"]
        seconds = [one for one in moved(self._layout, place, whole.second, nowhere, self._seen.case.world) if one.kind == "shards-swapped"]
        for first, second in zip(firsts, seconds):
            yield "state-shards-swapped", f"uses the {what} of another rank's shard", replace(state, first=first.values, second=second.values)

    def _gradients(self, place: Place, state: State, clip: float) -> Iterator[tuple[str, str, torch.Tensor, int, int]]:
        case, one, gradient = self._seen.case, self._seen.steps[place.step], state.gradient
        if case.clip is not None:
            for factor, kind, words in self._clips(place.step, one):
                yield kind, f"uses a gradient {words}", gradient / clip * factor, NAMED, 0
        for other, kind, whose in ((place.step + 1, "loss-scale-of-next-step", "next step"), (place.step - 1, "loss-scale-of-last-step", "step before")):
            theirs = self._scale_of(other, one)
            if theirs > 0 and theirs != one.loss_scale:
                says = f"uses a gradient divided by the loss scale of the {whose} ({theirs:g}, not {one.loss_scale:g})"
                yield kind, says, gradient * (one.loss_scale / theirs), NAMED, 0
        for factor, words in {case.world: "number of ranks", case.accumulation: "number of micro-batches", 1 / one.loss_scale: "loss scale"}.items():
            if factor not in (0.0, 1.0):
                times = factor if factor > 1 else 1 / factor
                yield "gradient-divided", f"uses a gradient divided by the {words} ({times:g})", gradient / times, PATTERN, 0
                yield "gradient-multiplied", f"uses a gradient multiplied by the {words} ({times:g})", gradient * times, PATTERN, 0
        yield "zero-gradient", "uses a gradient of zeros", gradient * 0, NAMED, 0
        if one.gradient and place.rank < len(one.gradient):
            shown = self._layout.flat(one.gradient[place.rank])[place.index]
            yield "gradient-as-shown", "uses the wrong gradient above", shown * clip, NAMED, 0
        if place.step:
            last = self._layout.flat(self._seen.steps[place.step - 1].right_gradient)[place.index]
            yield "stale", "uses the gradient of the step before", last, TIME, 0
        if place.rank < len(one.contributions):
            parts = [self._layout.flat(part)[place.index] for part in one.contributions[place.rank]]
            own = torch.stack(parts).sum(0) / case.accumulation
            yield "not-reduced", "uses each rank's own gradient, not reduced over the ranks", own * clip, PATTERN, 0
        fitted = _fitted_factor(place, state, self._start(place.step)[0])
        if fitted is not None:
            says = f"uses a gradient multiplied by {fitted:.6g} of the right one"
            kind = "clipped-by-another-factor" if case.clip is not None else "other-factor"
            yield kind, says, gradient * fitted, FITTED, 1

    def _scale_of(self, step: int, one: StepSeen) -> float:
        """The loss scale of a step; after the last one, that to which `one`'s has grown; 0 where there is none."""
        if 0 <= step < len(self._seen.steps):
            return self._seen.steps[step].loss_scale
        setting = self._seen.case.precision.loss_scale
        return 2 * one.loss_scale if step > 0 and setting is not None and setting.dynamic else 0.0

    def _clips(self, step: int, one: StepSeen) -> Iterator[tuple[float, str, str]]:
        clip, norm = self._seen.case.clip, one.norm
        if clip is None or norm is None or norm.mid <= 0:
            return
        coefficient = clip.max_norm / (norm.mid + 1e-6)
        yield 1.0, "clip-skipped", "that is not clipped"
        yield max(1.0, coefficient), "clip-max-for-min", "multiplied by max(1, maximum / norm): the larger where the smaller is meant"
        yield coefficient, "clip-max-for-min", "multiplied by maximum / norm though the norm is below the maximum"
        yield 1 / coefficient, "clip-inverted", "multiplied by norm / maximum: the factor of clipping is upside down"
        yield min(1.0, coefficient) ** 2, "clipped-twice", "clipped twice"
        yield min(1.0, coefficient / one.loss_scale), "clip-before-unscale", "clipped by the norm that still had the loss scale in it"
        root = math.sqrt(self._seen.case.world)
        yield min(1.0, coefficient / root), "clip-norm-times-root-ranks", "clipped by a norm that is too large by the square root of the number of ranks"
        yield min(1.0, coefficient * root), "clip-norm-by-root-ranks", "clipped by a norm that is too small by the square root of the number of ranks"
        last = self._seen.steps[step - 1].norm if step else None
        if last is not None and last.mid > 0:
            yield min(1.0, clip.max_norm / (last.mid + 1e-6)), "clip-by-last-norm", "clipped by the norm of the step before"
        for answer in one.answers:
            if answer.norm is not None and math.isfinite(answer.norm) and answer.norm > 0:
                yield min(1.0, clip.max_norm / (answer.norm + 1e-6)), "clip-by-shown-norm", "clipped by the wrong norm above"

    def _places(self, place: Place) -> Iterator[Claim]:
        one = self._seen.steps[place.step]
        right, room = self._layout.flat(one.right_parameters), self._layout.flat(one.parameter_room)
        if self._masters:
            right, room = self._layout.flat(one.right_masters), self._layout.flat(one.master_room)
        for claim in moved(self._layout, place, right, room, self._seen.case.world):
            yield replace(claim, order=PLACE)


def _part(rule: Rule, state: State, index: torch.Tensor) -> tuple[Rule, State]:
    some = State(state.weights[index], state.gradient[index], state.first[index], state.second[index])
    return replace(rule, lr=rule.lr[index], weight_decay=rule.weight_decay[index]), some


def _group_of(case: Case, layout: Layout) -> torch.Tensor:
    """The group of each element of the flat vector."""
    of = torch.zeros(layout.numel, dtype=torch.int64)
    for number, group in enumerate(case.groups):
        for name in group.parameters:
            if name in layout.offsets:
                of[layout.of(name)] = number
    return of


def _fitted_factor(place: Place, state: State, rule: Rule) -> float | None:
    """By what the gradient was multiplied, where the step is linear in it (plain SGD)."""
    if rule.name != "sgd":
        return None
    lr, decay = rule.lr[place.index], rule.weight_decay[place.index]
    rest = state.weights - lr * (decay * state.weights + (rule.momentum * state.first if rule.count > 1 else 0.0))
    some = state.gradient != 0
    if not bool(some.any()):
        return None
    ratios = (rest - place.got)[some] / (lr * state.gradient)[some]
    return float(ratios[torch.isfinite(ratios)].median()) if bool(torch.isfinite(ratios).any()) else None
