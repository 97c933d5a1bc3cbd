"""Causes: what is done to a right training's numbers is what is said of it, and nothing is said of what no fault explains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from equigrad.judge.causes import UNKNOWN, cause_of
from equigrad.judge.on_rank.protocol import Case, Clip, Group, LossScale, Model, Optimizer, Precision, StepAnswer
from equigrad.judge.seen import CaseSeen, Number, StepSeen, Tensors

SHAPES = {"first.weight": (7, 5), "first.bias": (7,), "tied.weight": (7, 7), "wide.weight": (131, 7), "last.bias": (3,), "gain": (1,)}
SGD = Optimizer("sgd", 0.25)
ADAMW = Optimizer("adamw", 0.01, weight_decay=0.1)
GROUPS = (Group(("first.weight", "first.bias", "tied.weight"), 0.25, 0.5), Group(("wide.weight", "last.bias", "gain"), 0.125, 0.0))
CLIP = Clip(1.0, "2")


@dataclasses.dataclass
class Run:
    """A training that is right but for what a test puts in its place: functions that are called with what is right."""

    case: Case
    lattice: bool = True
    gradient: Callable[[Any], Tensors] | None = None
    norm: Callable[[Any], float] | None = None
    clip: Callable[[Any], float] | None = None
    update: Callable[[Any], Tensors] | None = None
    scale: Callable[[int], float] | None = None


@dataclasses.dataclass
class Now:
    """What a fault may look at."""

    case: Case
    step: int
    rank: int
    parts: list[list[Tensors]]
    right: Tensors
    last: Tensors | None = None
    before: Tensors = dataclasses.field(default_factory=dict)
    norm: float = 0.0
    clip: float = 1.0


def case_of(world: int = 2, accumulation: int = 4, optimizer: Optimizer = SGD, **more: Any) -> Case:
    return Case("case", world, Model("m"), 3, accumulation, Precision("fp32"), optimizer, "", "", **more)


def drawn(lattice: bool, generator: torch.Generator) -> Tensors:
    numbers = (torch.randint(-8, 9, shape, generator=generator) if lattice else torch.randn(shape, generator=generator) for shape in SHAPES.values())
    return {name: one.float() for name, one in zip(SHAPES, numbers)}


def added(parts: list[list[Tensors]], share: Callable[[int, int], float]) -> Tensors:
    """The sum of contributions by their shares of 1 / (ranks x micro-batches), in fp32."""
    terms = len(parts) * len(parts[0])
    return {
        name: sum(one[name] * share(r, m) for r, row in enumerate(parts) for m, one in enumerate(row)) / terms  # type: ignore[misc]
        for name in SHAPES
    }


def seen_of(run: Run, seed: int = 0) -> CaseSeen:
    """Three steps, judged as a right judge would: exactly on a lattice, within some roundings elsewhere."""
    case, generator = run.case, torch.Generator().manual_seed(seed)
    values = drawn(run.lattice, generator)
    state: Any = None
    steps, last = [], None
    for step in range(case.steps):
        parts = [[drawn(run.lattice, generator) for _ in range(case.accumulation)] for _ in range(case.world)]
        right = added(parts, lambda r, m: 1.0)
        size = float(torch.cat([one.flatten() for one in right.values()]).double().norm())
        clip = min(1.0, case.clip.max_norm / (size + 1e-6)) if case.clip else 1.0
        nows = [Now(case, step, rank, parts, right, last, values, size, clip) for rank in range(case.world)]
        got = [run.gradient(now) if run.gradient else right for now in nows]
        norms = [run.norm(now) if run.norm else size for now in nows]
        factor = run.clip(nows[0]) if run.clip else clip
        after, state_after = stepped(case, values, right, state, clip, step)
        engine = after if run.clip is None else stepped(case, values, right, state, factor, step)[0]
        given = [run.update(now) if run.update else engine for now in nows]
        scale = case.precision.loss_scale.value if case.precision.loss_scale else 1.0
        told = run.scale(step) if run.scale else scale
        answers = [StepAnswer((), True, norm if case.clip else None, None, told) for norm in norms]
        steps.append(
            StepSeen(
                parts, right, roomy(right, run.lattice), got, values, after, roomy(after, False), given, answers,
                norm=Number(size, 1e-5 * size), lrs=rates(case, step), loss_scale=scale,
            )
        )
        values, state, last = after, state_after, got[0]
    return CaseSeen(case, steps, kinds={"tied": ["tied.weight"]})


def roomy(right: Tensors, exact: bool) -> Tensors:
    return {name: torch.zeros_like(one) if exact else 2e-6 * (one.abs() + one.abs().mean()) for name, one in right.items()}


def rates(case: Case, step: int) -> tuple[float, ...]:
    base = tuple(one.lr for one in case.groups) or (case.optimizer.lr,)
    return tuple(one * (case.schedule[step] if case.schedule else 1.0) for one in base)


def stepped(case: Case, values: Tensors, gradient: Tensors, state: Any, clip: float, step: int, **other: Any) -> tuple[Tensors, Any]:
    """torch.optim's own step."""
    ones = {name: torch.nn.Parameter(value.clone()) for name, value in values.items()}
    groups: Any = [
        {"params": [ones[name] for name in group.parameters], "lr": lr, "weight_decay": group.weight_decay}
        for group, lr in zip(case.groups, rates(case, step))
    ] or [{"params": list(ones.values()), "lr": rates(case, step)[0], "weight_decay": case.optimizer.weight_decay}]
    made: Any = (
        torch.optim.SGD(groups, 0.1, momentum=case.optimizer.momentum)
        if case.optimizer.name == "sgd"
        else torch.optim.AdamW(groups, 0.1, case.optimizer.betas, case.optimizer.eps)
    )
    if state is not None:
        own = made.state_dict()
        made.load_state_dict({**state, "param_groups": own["param_groups"]})
    for group in made.param_groups:
        group.update(other)
    for name, one in ones.items():
        one.grad = gradient[name] * clip
    made.step()
    return {name: one.detach().clone() for name, one in ones.items()}, made.state_dict()


def shared(share: Callable[[Now], Callable[[int, int], float]]) -> Callable[[Now], Tensors]:
    return lambda now: added(now.parts, share(now))


def only_one(name: str, index: int, wrong: Callable[[Now], Tensors]) -> Callable[[Now], Tensors]:
    def one_element(now: Now) -> Tensors:
        got = {key: value.clone() for key, value in now.right.items()}
        got[name].view(-1)[index] = wrong(now)[name].view(-1)[index]
        return got

    return one_element


def rolled(now: Now) -> Tensors:
    return {name: one.flatten().roll(1).view_as(one) for name, one in now.right.items()}


def swapped(now: Now) -> Tensors:
    got = dict(now.right)
    half = got["wide.weight"].clone()
    half[:65], half[66:131] = now.right["wide.weight"][66:131], now.right["wide.weight"][:65]
    return {**got, "wide.weight": half}


def not_zeroed(now: Now) -> Tensors:
    return {name: one + (now.last[name] if now.last else 0) for name, one in now.right.items()}


OWN = shared(lambda now: lambda r, m: now.case.world * (r == now.rank))
GRADIENTS: dict[str, tuple[str, Callable[[Now], Tensors]]] = {
    "halved": ("divided-by-ranks-twice", shared(lambda now: lambda r, m: 1 / now.case.world)),
    "summed over ranks": ("not-divided-by-ranks", shared(lambda now: lambda r, m: now.case.world)),
    "divided by micro-batches twice": ("divided-by-micro-batches-twice", shared(lambda now: lambda r, m: 1 / now.case.accumulation)),
    "own": ("not-reduced", OWN),
    "own part": ("only-own-part", shared(lambda now: lambda r, m: float(r == now.rank))),
    "rank 0 missing": ("rank-missing", shared(lambda now: lambda r, m: float(r != 0))),
    "rank 1 twice": ("rank-counted-twice", shared(lambda now: lambda r, m: 1.0 + (r == 1))),
    "last alone": ("only-last-micro-batch", shared(lambda now: lambda r, m: float(m == now.case.accumulation - 1))),
    "first alone": ("only-first-micro-batch", shared(lambda now: lambda r, m: float(m == 0))),
    "middle missing": ("middle-micro-batches-missing", shared(lambda now: lambda r, m: float(m in (0, now.case.accumulation - 1)))),
    "third missing": ("micro-batch-missing", shared(lambda now: lambda r, m: float(m != 2))),
    "one contribution": ("micro-batch-missing-on-a-rank", shared(lambda now: lambda r, m: float((r, m) != (1, 2)))),
    "last not reduced": (
        "last-micro-batch-not-reduced",
        shared(lambda now: lambda r, m: 1.0 if m < now.case.accumulation - 1 else now.case.world * float(r == now.rank)),
    ),
    "other shares": ("other-shares", shared(lambda now: lambda r, m: 0.0 if (r, m) == (0, 0) else 3.0 if (r, m) == (1, 3) else 1.0)),
    "not zeroed": ("not-zeroed", not_zeroed),
    "stale": ("stale", lambda now: now.last or now.right),
    "zeros": ("zeros", lambda now: {name: one * 0 for name, one in now.right.items()}),
    "rolled": ("shifted", rolled),
    "shards swapped": ("shards-swapped", swapped),
    "one element of each rank": ("not-reduced", only_one("wide.weight", 916, OWN)),
}


@pytest.mark.parametrize("lattice", [True, False])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, lattice: bool) -> None:
    kind, wrong = GRADIENTS[name]
    cause = cause_of(seen_of(Run(case_of(), lattice, gradient=wrong)))
    assert cause is not None and cause.what == "gradient"
    few = lattice and name == "one element of each rank"  # few small integers prove nothing
    assert kind in cause.kinds or few and cause.kinds == UNKNOWN, cause.sentence


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_gradients(dtype: torch.dtype) -> None:
    def rounded(now: Now) -> Tensors:
        return {name: one.to(dtype).float() for name, one in now.right.items()}

    cause = cause_of(seen_of(Run(case_of(), False, gradient=rounded)))
    assert cause is not None and cause.kinds == (f"rounded-to-{'bf16' if dtype is torch.bfloat16 else 'fp16'}",)


def test_a_gradient_of_another_parameter_is_named() -> None:
    def other(now: Now) -> Tensors:
        return {**now.right, "first.bias": now.right["tied.weight"][2].clone()}

    cause = cause_of(seen_of(Run(case_of(), gradient=other)))
    assert cause is not None and cause.kinds == ("of-another-parameter",)
    assert "tied.weight, from its element 14 on" in cause.sentence


def test_a_bucket_that_comes_back_shifted() -> None:
    """Buckets begin with the last parameter; what falls out at the end comes in at the beginning."""

    def rolled(now: Now) -> Tensors:
        flat = torch.cat([now.right[name].flatten() for name in reversed(SHAPES)]).roll(1)
        parts = torch.split(flat, [now.right[name].numel() for name in reversed(SHAPES)])
        return {name: part.view(SHAPES[name]) for name, part in zip(reversed(SHAPES), parts)}

    cause = cause_of(seen_of(Run(case_of(), gradient=rolled)))
    assert cause is not None and cause.kinds == ("shifted",) and "every parameter" in cause.sentence, cause.sentence


def test_numbers_that_are_met_exactly_tell_more_than_those_that_are_met_roughly() -> None:
    """In a coarse type the roundings leave much open; the same integers leave nothing."""
    case = dataclasses.replace(case_of(), precision=Precision("bf16"))

    def doubled(now: Now) -> Tensors:
        return {**now.right, "last.bias": now.right["last.bias"] * 2}

    cause = cause_of(seen_of(Run(case, gradient=doubled)))
    assert cause is not None and "added-twice" in cause.kinds, cause.sentence


def test_where_it_is_wrong_is_said() -> None:
    def tied(now: Now) -> Tensors:
        return {**now.right, "tied.weight": now.right["tied.weight"] * (2 if now.step else 1)}

    cause = cause_of(seen_of(Run(case_of(), gradient=tied)))
    assert cause is not None and cause.step == 1
    assert cause.sentence.startswith("From step 2 on: the gradient of tied.weight (tied) is"), cause.sentence


@pytest.mark.parametrize("seed", range(8))
def test_noise_has_no_cause(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed + 100)

    def noisy(now: Now) -> Tensors:
        return {name: one + torch.randn(one.shape, generator=generator) / 8 for name, one in now.right.items()}

    cause = cause_of(seen_of(Run(case_of(), lattice=bool(seed % 2), gradient=noisy), seed))
    assert cause is not None and cause.kinds == UNKNOWN
    assert "no known fault explains" in cause.sentence


@pytest.mark.parametrize("seed", range(8))
def test_one_wrong_integer_has_no_cause(seed: int) -> None:
    """On a lattice a single number is met by many faults: that is no proof of one."""
    def wrong(now: Now) -> Tensors:
        got = {key: value.clone() for key, value in now.right.items()}
        if now.step == 1:
            got["wide.weight"].view(-1)[17 + seed] += 0.125 * (1 + seed)
        return got

    cause = cause_of(seen_of(Run(case_of(), gradient=wrong), seed))
    assert cause is not None and cause.kinds == UNKNOWN, cause.sentence


def test_a_right_run_has_no_cause() -> None:
    assert cause_of(seen_of(Run(case_of()))) is None
    assert cause_of(seen_of(Run(case_of(optimizer=ADAMW, groups=GROUPS, clip=CLIP), lattice=False))) is None


NORMS: dict[str, tuple[str, Callable[[Now], float]]] = {
    "root of ranks": ("norm-times-root-ranks", lambda now: now.norm * now.case.world**0.5),
    "first alone": ("norm-of-some", lambda now: float(now.right["first.weight"].norm())),
    "matrices": ("norm-of-some", lambda now: float(sum(one.square().sum() for one in now.right.values() if one.dim() > 1) ** 0.5)),
    "tied twice": ("norm-counts-twice", lambda now: float((now.norm**2 + now.right["tied.weight"].square().sum()) ** 0.5)),
    "infinity": ("norm-of-another-type", lambda now: float(max(one.abs().max() for one in now.right.values()))),
    "after clipping": ("norm-after-clip", lambda now: now.norm * now.clip),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    kind, wrong = NORMS[name]
    cause = cause_of(seen_of(Run(case_of(clip=CLIP), lattice=False, norm=wrong)))
    assert cause is not None and cause.what == "norm"
    assert kind in cause.kinds, cause.sentence


CLIPS: dict[str, tuple[str, Callable[[Now], float]]] = {
    "skipped": ("clip-skipped", lambda now: 1.0),
    "inverted": ("clip-inverted", lambda now: 1 / now.clip),
    "twice": ("clipped-twice", lambda now: now.clip**2),
    "another": ("clipped-by-another-factor", lambda now: now.clip * 0.9371),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clips(name: str) -> None:
    kind, wrong = CLIPS[name]
    cause = cause_of(seen_of(Run(case_of(clip=CLIP), lattice=False, clip=wrong)))
    assert cause is not None and cause.what == "parameter"
    assert kind in cause.kinds, cause.sentence


def test_a_maximum_for_a_minimum_below_the_threshold() -> None:
    cause = cause_of(seen_of(Run(case_of(clip=Clip(1000.0, "2")), lattice=False, clip=lambda now: 1000.0 / now.norm)))
    assert cause is not None and "clip-max-for-min" in cause.kinds, cause.sentence


def of_group_0(now: Now) -> Tensors:
    one_rate = dataclasses.replace(now.case, groups=tuple(dataclasses.replace(one, lr=0.25) for one in GROUPS))
    return stepped(one_rate, now.before, now.right, None, now.clip, now.step)[0]


def no_decay(now: Now) -> Tensors:
    return stepped(now.case, now.before, now.right, None, now.clip, now.step, weight_decay=0.0)[0]


def tail(now: Now) -> Tensors:
    after = stepped(now.case, now.before, now.right, None, now.clip, now.step)[0]
    after["wide.weight"].view(-1)[-1] = now.before["wide.weight"].view(-1)[-1]
    after["first.weight"].view(-1)[-1] = now.before["first.weight"].view(-1)[-1]
    return after


UPDATES: dict[str, tuple[str, Callable[[Now], Tensors]]] = {
    "not updated": ("not-updated", lambda now: now.before),
    "group 0's rate": ("lr-of-another-group", of_group_0),
    "no decay": ("no-weight-decay", no_decay),
    "last elements": ("not-updated", tail),
}


@pytest.mark.parametrize("lattice", [True, False])
@pytest.mark.parametrize("name", UPDATES)
def test_updates(name: str, lattice: bool) -> None:
    kind, wrong = UPDATES[name]
    cause = cause_of(seen_of(Run(case_of(groups=GROUPS), lattice, update=wrong)))
    assert cause is not None and cause.what == "parameter"
    assert kind in cause.kinds, cause.sentence


MOMENTS = {
    "momentum begins anew": ("state-lost", dataclasses.replace(SGD, momentum=0.5), {}),
    "Nesterov": ("nesterov", dataclasses.replace(SGD, momentum=0.5), {"nesterov": True}),
    "L2": ("decay-to-gradient", ADAMW, {"decoupled_weight_decay": False}),
    "moments begin anew": ("state-lost", dataclasses.replace(ADAMW, weight_decay=0.0), {}),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name: str) -> None:
    kind, optimizer, other = MOMENTS[name]
    states: dict[int, Any] = {}

    def wrong(now: Now) -> Tensors:
        state = states.get(now.step) if other else None
        after, states[now.step + 1] = stepped(now.case, now.before, now.right, state, 1.0, now.step, **other)
        return after if other or now.step else stepped(now.case, now.before, now.right, None, 1.0, 0)[0]

    cause = cause_of(seen_of(Run(case_of(optimizer=optimizer), lattice=False, update=wrong)))
    assert cause is not None and cause.what == "parameter"
    assert kind in cause.kinds or name == "moments begin anew" and cause.known, cause.sentence


@pytest.mark.parametrize("optimizer", [SGD, dataclasses.replace(SGD, momentum=0.5), ADAMW])
def test_an_update_that_is_made_twice(optimizer: Optimizer) -> None:
    """The second one goes on from the state and the step count of the first."""
    states: dict[int, Any] = {}

    def twice(now: Now) -> Tensors:
        once, after = stepped(now.case, now.before, now.right, states.get(now.step), 1.0, now.step)
        states[now.step + 1] = after
        return stepped(now.case, once, now.right, after, 1.0, now.step)[0]

    cause = cause_of(seen_of(Run(case_of(world=1, optimizer=optimizer), lattice=False, update=twice)))
    assert cause is not None and "updated-twice" in cause.kinds, cause.sentence


def test_a_norm_that_is_no_number() -> None:
    cause = cause_of(seen_of(Run(case_of(clip=CLIP), norm=lambda now: float("nan"))))
    assert cause is not None and cause.kinds == ("not-finite",) and cause.what == "norm", cause.sentence


def test_the_loss_scale_in_a_gradient() -> None:
    precision = Precision("fp16", loss_scale=LossScale(False, 1024.0))

    def scaled(now: Now) -> Tensors:
        return {name: one * 1024 for name, one in now.right.items()}

    cause = cause_of(seen_of(Run(dataclasses.replace(case_of(), precision=precision), gradient=scaled)))
    assert cause is not None and cause.kinds == ("loss-scale-left-in",)


@pytest.mark.parametrize(("factor", "kind"), [(65536.0, "loss-scale-left-in"), (1 / 65536.0, "loss-scale-taken-out-twice")])
def test_a_loss_scale_that_nobody_asked_for(factor: float, kind: str) -> None:
    cause = cause_of(seen_of(Run(case_of(), gradient=lambda now: {name: one * factor for name, one in now.right.items()})))
    assert cause is not None and cause.kinds == (kind,) and "though none is asked for" in cause.sentence
    norm = cause_of(seen_of(Run(case_of(clip=CLIP), norm=lambda now: now.norm * 65536)))
    assert norm is not None and norm.kinds == ("norm-of-scaled-gradient",)


def test_the_loss_scale_that_the_engine_says_is_taken_too() -> None:
    """After a step that went wrong an engine's scale may go its own way."""
    precision = Precision("fp16", loss_scale=LossScale(True, 32.0))

    def own(step: int) -> float:
        return 32.0 if step == 0 else 64.0

    def scaled(now: Now) -> Tensors:
        return {name: one / own(now.step) for name, one in now.right.items()}

    cause = cause_of(seen_of(Run(dataclasses.replace(case_of(), precision=precision), gradient=scaled, scale=own)))
    assert cause is not None and cause.kinds == ("loss-scale-taken-out-twice",) and "Every step" in cause.sentence


def test_a_gradient_that_is_not_there() -> None:
    def without(now: Now) -> Tensors:
        return {name: one for name, one in now.right.items() if name != "last.bias"}

    cause = cause_of(seen_of(Run(case_of(), gradient=without)))
    assert cause is not None and cause.kinds == ("no-gradient",)
    assert "last.bias has no gradient" in cause.sentence


def test_old_weights() -> None:
    seen = seen_of(Run(case_of(), lattice=False))
    generator = torch.Generator().manual_seed(5)
    slopes = [[[drawn(False, generator) for _ in range(4)] for _ in range(2)] for _ in seen.steps]

    def local(step: int, weights: Tensors) -> list[list[Tensors]]:
        return [[{n: slopes[step][r][m][n] + weights[n] for n in SHAPES} for m in range(4)] for r in range(2)]

    steps = []
    for number, step in enumerate(seen.steps):
        right = added(local(number, step.before), lambda r, m: 1.0)
        older = seen.steps[max(0, number - 1)].before
        got = added(local(number, older), lambda r, m: 1.0)
        steps.append(dataclasses.replace(
            step, contributions=local(number, step.before), right_gradient=right, gradient_room=roomy(right, False), gradient=[got, got]
        ))
    cause = cause_of(dataclasses.replace(seen, steps=steps, local=local))
    assert cause is not None and cause.kinds == ("old-weights",), cause.sentence
