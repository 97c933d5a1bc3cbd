"""Every honest engine is right, whatever it chooses; every fault that is planted into one is seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted_faults
import pytest
import torch
from simulated import Choices, Prepared, prepared, split_linear

from equigrad.judge import cases, truth
from equigrad.judge.causes import cause_of
from equigrad.judge.gradient_causes import GradientFaults, Place
from equigrad.judge.on_rank.protocol import Case, Clip, LossScale, Model, Optimizer, Precision
from equigrad.judge.scales import rule_of
from equigrad.judge.seen import Layout

torch.set_num_threads(1)
SGD = Optimizer("sgd", lr=0.25)
ADAMW = Optimizer("adamw", lr=2.0**-7, weight_decay=0.125)
DYNAMIC = LossScale(dynamic=True, value=32.0)
FP16 = Precision("fp16", loss_scale=DYNAMIC)
BASE = Case("x", 2, Model("lattice-mlp"), 3, 3, Precision("fp32"), SGD, "", "")
GROUPS = cases._two_groups(BASE.model, SGD.lr)

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp64": {"precision": Precision("fp64")},
    "frozen": {"model": Model("lattice-mlp", {"frozen": True})},
    "clip": {"clip": Clip(1.0, "2")},
    "clip-inf": {"clip": Clip(0.5, "inf")},
    "clip-below": {"clip": Clip(2.0**20, "2")},
    "clip-scaled": {"clip": Clip(32.0, "2"), "precision": FP16},
    "groups": {"groups": GROUPS},
    "schedule": {"schedule": (1.0, 0.5, 0.25)},
    "momentum": {"optimizer": dataclasses.replace(SGD, momentum=0.5)},
    "decay": {"optimizer": dataclasses.replace(SGD, weight_decay=0.125)},
    "adamw": {"optimizer": ADAMW},
    "adamw-bf16": {"optimizer": ADAMW, "precision": Precision("bf16")},
    "odd": {
        "optimizer": Optimizer("adamw", lr=0.0123, weight_decay=0.1),
        "clip": Clip(0.7, "2"),
        "schedule": (1.0, 0.3, 0.7),
    },
    "odd-sgd": {"optimizer": Optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=0.01), "clip": Clip(0.7, "inf")},
    "odd-bf16": {"optimizer": Optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=0.01), "precision": Precision("bf16")},
    "scaled": {"precision": FP16},
    "odd-scale": {"precision": Precision("fp16", loss_scale=LossScale(False, 24.0))},
    "grows-each": {"precision": Precision("fp16", loss_scale=dataclasses.replace(DYNAMIC, value=4.0, window=1))},
    "grows": {"precision": Precision("fp16", loss_scale=dataclasses.replace(DYNAMIC, value=4.0, window=2)), "steps": 5},
    "overflow": {"precision": FP16, "options": {"overflow": "1:1"}, "schedule": (1.0, 0.5, 0.25)},
    "overflow-unscaled": {"options": {"overflow": "1:1"}},
    "hysteresis": {
        "precision": Precision("fp16", loss_scale=dataclasses.replace(DYNAMIC, hysteresis=2)),
        "options": {"overflow": "1:1"},
    },
    "masters": {"precision": Precision("bf16"), "optimizer": dataclasses.replace(ADAMW, lr=2.0**-9)},
    "bf16": {"precision": Precision("bf16")},
    "autocast": {"precision": Precision("fp32", autocast="bf16"), "optimizer": ADAMW},
    "branch": {"model": Model("lattice-mlp", {"branch": True})},
    "fork": {"model": Model("lattice-mlp", {"fork": True})},
    "backwards": {"options": {"backwards": 2}},
    "embedding": {"model": Model("lattice-embedding"), "optimizer": ADAMW},
    "convolution": {"model": Model("lattice-convolution"), "clip": Clip(1.0, "2")},
    "gpt": {"model": Model("gpt")},
    "gpt-bf16": {"model": Model("gpt"), "precision": Precision("bf16"), "optimizer": ADAMW},
    "world3": {"world": 3},
    "one": {"world": 1, "accumulation": 1},
}

HONEST: dict[str, dict[str, Any]] = {
    "plain": {},
    "scattered": {"factors": "each", "order": 3, "kernel": "foreach", "rule": "deepspeed"},
    "before": {"factors": "before", "linear": split_linear, "clip": "deepspeed", "rule": "deepspeed"},
    "stage 3": {"factors": "parts", "order": 5, "ranks_first": True, "unused": "zero", "linear": split_linear},
    "masters": {"factors": "around", "masters": "shown:weights", "clip": "deepspeed", "order": 9},
    "hidden masters": {"factors": "late", "masters": "hidden:rounded", "accumulation": "fp32", "linear": split_linear},
    "rounded masters": {"masters": "shown:rounded", "factors": "late", "order": 2},
    "cpu_adam": {"kernel": "deepspeed", "masters": "hidden:weights", "clip": "deepspeed", "unused": "zero"},
    "silent": {"shows_gradient": False, "communication": "fp32", "unused": "zero"},
}

Prepare = Callable[[str], Prepared]


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    """A case by its kind, made once."""
    folder: Path = tmp_path_factory.mktemp("workloads")
    made: dict[str, Prepared] = {}

    def make(kind: str) -> Prepared:
        if kind not in made:
            made[kind] = prepared(dataclasses.replace(BASE, id=kind, **KINDS[kind]), folder)
        return made[kind]

    return make


def suits(case: Case, choices: dict[str, Any]) -> bool:
    """Whether an engine with these choices can train the case."""
    scale = case.precision.loss_scale
    if choices.get("kernel") == "deepspeed" and (case.optimizer.name != "adamw" or case.precision.model == "fp64"):
        return False
    if case.precision.model == "fp64" and {"masters", "accumulation", "communication"} & set(choices):
        return False
    return scale is None or scale.hysteresis == 1 or choices.get("rule") == "deepspeed"


WITH_ALL = ("plain", "adamw", "odd", "odd-bf16", "gpt-bf16")
COVERING = [
    (kind, honest) for i, kind in enumerate(KINDS) for j, honest in enumerate(HONEST) if kind in WITH_ALL or (i + j) % 3 == 0
]


@pytest.mark.parametrize(("kind", "honest"), COVERING)
def test_an_honest_engine_is_right(prepare: Prepare, kind: str, honest: str) -> None:
    here, choices = prepare(kind), HONEST[honest]
    if not suits(here.case, choices):
        pytest.skip("this engine does not train such a case")
    verdict = here.verdict(here.engine(**choices))
    assert not verdict.findings, verdict.findings[:3]
    assert verdict.held and verdict.compared > 300


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_has_a_gradient(prepare: Prepare, kind: str) -> None:
    """A step without one is right whatever an engine does with gradients."""
    here = prepare(kind)
    for step in here.verdict(here.engine(rule="deepspeed")).seen.steps:
        assert not step.applied or any(bool((one != 0).any()) for one in step.right_gradient.values())


@pytest.mark.parametrize("name", planted_faults.FAULTS)
def test_a_planted_fault_is_seen(prepare: Prepare, name: str) -> None:
    kind, plant, choices = planted_faults.FAULTS[name]
    here = prepare(kind)
    if kind in ("hysteresis",):
        choices = {**choices, "rule": "deepspeed"}
    right = here.verdict(here.engine(**choices))
    assert right.held, right.findings[:3]
    engine = here.engine(**choices)
    plant(engine)
    verdict = here.verdict(engine)
    assert verdict.findings, "the fault was not seen"
    assert all(one.wrong <= one.of for one in verdict.findings)


CAUSES = {
    "the_last_backward_of_the_step_alone": "only-last-backward",
    "the_last_backward_of_each_micro_batch_lost": "last-backward-missing",
    "branches_added_as_rank_0_takes_them": "mixed-between-ranks",
    "branches_added_as_rank_1_takes_them": "mixed-between-ranks",
    "a_step_before_training": "stepped-before-training",
    "a_decay_before_training": "stepped-before-training",
    "a_step_of_masters_before_training": "stepped-before-training",
    "an_overflow_that_is_not_said": "applied-said-wrong",
    "made_in_spite_of_overflow": "applied-in-spite-of-overflow",
    "unscaled_by_the_scale_that_grows_each_step": "loss-scale-of-next-step",
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_of_a_planted_fault_is_named(prepare: Prepare, name: str) -> None:
    kind, plant, choices = planted_faults.FAULTS[name]
    here = prepare(kind)
    engine = here.engine(**choices)
    plant(engine)
    cause = cause_of(here.verdict(engine).seen)
    assert cause is not None and CAUSES[name] in cause.kinds and len(cause.kinds) <= 2, cause


def test_a_branch_has_a_partner_only_where_one_other_is_of_its_shape(prepare: Prepare) -> None:
    """Of three no two are told apart by their place."""
    here = prepare("fork")
    seen = here.verdict(here.engine()).seen
    layout = Layout({name: one.shape for name, one in seen.steps[0].right_gradient.items()})
    two, three = ("branch.weight", "other.weight"), ("branch.weight", "other.weight", "second.weight")
    for names, known in ((two, True), (three, False)):
        partners = GradientFaults(dataclasses.replace(seen, kinds={"conditional": names}), layout)._partners()
        assert bool((partners[layout.of("branch.weight")] >= 0).all()) == known
        assert not bool((partners[layout.of("first.weight")] >= 0).any())


def test_what_is_nearly_zero_is_not_any_small_factor(prepare: Prepare) -> None:
    """Bounds may be as wide as half of the value; a gradient of the other sign is none that was divided."""
    here = prepare("odd-bf16")
    seen = here.verdict(here.engine()).seen
    layout = Layout({name: one.shape for name, one in seen.steps[0].right_gradient.items()})
    right = layout.flat(seen.steps[0].right_gradient)
    index = right.nonzero().flatten()
    right = right[index]
    place = Place(0, 0, index, -0.2 * right, right)
    claims = {claim.says: claim for claim in GradientFaults(seen, layout)._factors(place, right.abs() * 0.5)}
    small = [says for says in claims if "divided by" in says]
    assert len(small) >= 3, list(claims)
    for says in small:
        fits = (place.got - claims[says].values).abs() <= claims[says].room
        assert not fits.any(), says


def test_bits_are_compared_where_the_lattice_allows(prepare: Prepare) -> None:
    for kind in ("plain", "bf16", "scaled", "fp64", "schedule", "momentum", "grows"):
        here = prepare(kind)
        verdict = here.verdict(here.engine())
        assert verdict.exact / verdict.compared > 0.99, kind


def test_a_fault_of_one_bit_on_the_lattice_is_red(prepare: Prepare) -> None:
    here = prepare("plain")
    engine = here.engine()

    def spoil(one: torch.Tensor, step: int, name: str) -> torch.Tensor:
        return torch.nextafter(one, one + 1) if name == "first.bias" and step == 2 else one

    planted_faults.after(engine, "parameter", spoil)
    findings = here.verdict(engine).findings
    assert {one.name for one in findings} == {"first.bias"}
    assert findings[0].radius == 0 and findings[0].step == 2 and findings[0].wrong == 7


def test_a_finding_names_the_worst_element_the_rank_and_the_share(prepare: Prepare) -> None:
    here = prepare("plain")
    engine = here.engine()
    right = engine.say

    def spoil(step: int, rank: int, answer: truth.RankSteps, *rest: Any) -> None:
        right(step, rank, answer, *rest)
        if rank == 1 and step == 1:
            answer.tensors["step1/parameter/wide.weight"][130, 6] += 5
            answer.tensors["step1/parameter/wide.weight"][3, 2] += 1

    engine.say = spoil  # type: ignore[method-assign]
    by_what = {one.what: one for one in here.verdict(engine).findings}
    assert set(by_what) == {"parameter", "replicas of the parameter"}
    found = by_what["parameter"]
    assert (found.name, found.rank, found.element, found.wrong, found.of) == ("wide.weight", 1, (130, 6), 2, 917)
    assert found.got == found.want + 5


def test_what_is_seen_is_handed_on_for_causes(prepare: Prepare) -> None:
    here = prepare("clip")
    seen = here.verdict(here.engine()).seen
    assert len(seen.steps) == 3 and seen.case is here.case
    first = seen.steps[0]
    assert len(first.contributions) == 2 and len(first.contributions[0]) == 3
    total = sum(micro["last.bias"] for rank in first.contributions for micro in rank)
    assert torch.equal(total / 6, first.right_gradient["last.bias"])
    assert first.norm is not None and first.norm.mid > 1 and first.lrs == (0.25,) and first.applied
    assert seen.kinds["tied"] == ("second.weight",) and "unused" in seen.kinds
    assert torch.equal(seen.steps[1].before["last.bias"], first.parameters[0]["last.bias"])
    assert seen.local is not None and "last.bias" in seen.local(1, seen.steps[1].before)[1][2]


def test_after_an_overflow_nothing_has_changed_and_the_scale_is_half(prepare: Prepare) -> None:
    here = prepare("overflow")
    seen = here.verdict(here.engine()).seen
    assert [step.applied for step in seen.steps] == [True, False, True]
    assert [step.loss_scale for step in seen.steps] == [32.0, 32.0, 16.0]
    assert [step.lrs for step in seen.steps] == [(0.25,), (0.125,), (0.125,)]
    assert torch.equal(seen.steps[1].right_parameters["last.weight"], seen.steps[1].before["last.weight"].double())


def test_an_overflow_without_a_scale_may_be_skipped_or_made(prepare: Prepare) -> None:
    here = prepare("overflow-unscaled")
    made = here.engine()
    assert here.verdict(made).held
    skipped = here.engine()
    right = skipped.update
    skipped.update = lambda step, *rest: None if step == 1 else right(step, *rest)  # type: ignore[method-assign]
    right_say = skipped.say
    skipped.say = lambda s, r, a, n, read: right_say(s, r, a, (n[0], s != 1, *n[2:]), read)  # type: ignore[method-assign]
    assert here.verdict(skipped).held
    half = here.engine()
    planted_faults.after(half, "parameter", lambda one, step, name: here.setting.weights[name] if name == "gain" else one)
    assert not here.verdict(half).held


def test_a_known_engine_is_held_to_the_rule_that_it_documents(prepare: Prepare) -> None:
    """A window that is one step too long is torch's rule no more, though it is DeepSpeed's."""
    here = prepare("grows-each")
    assert here.verdict(here.engine(rule="deepspeed")).held
    setting = dataclasses.replace(here.setting, scale_rule=rule_of("ddp", here.case.precision))
    late = truth.judge(setting, here.engine(rule="deepspeed").run(), here.local)
    assert {one.what for one in late.findings} == {"loss scale"}
    assert truth.judge(setting, here.engine(rule="torch").run(), here.local).held
    assert rule_of("mine", here.case.precision) == "" and rule_of("deepspeed", here.case.precision) == "deepspeed"


def test_one_history_only_is_followed(prepare: Prepare) -> None:
    """Either of two documented behaviours is right, but not one for this step and the other one for the next."""
    here = prepare("adamw")
    engine = here.engine()

    def spoil(one: torch.Tensor | None, step: int, name: str, *_: Any) -> torch.Tensor | None:
        return torch.zeros_like(engine.weights[name]) if name == "unused.weight" and step == 1 else one

    planted_faults.after(engine, "mean", spoil)  # left alone, moved by decay, left alone
    assert here.verdict(engine).held  # each step by itself is documented
    wrong = here.engine(unused="zero")
    planted_faults.after(wrong, "parameter", lambda one, step, name: one * 0.5 if name == "unused.weight" else one)
    assert not here.verdict(wrong).held


def test_rounding_of_other_kernels_is_no_fault_but_more_than_that_is(prepare: Prepare) -> None:
    here = prepare("gpt")
    slightly = here.engine()
    planted_faults.after(slightly, "combine", lambda mean, *_: mean * (1 + 2.0**-22))
    assert here.verdict(slightly).held
    more = here.engine()
    planted_faults.after(more, "combine", lambda mean, *_: mean * (1 + 2.0**-12))
    assert not here.verdict(more).held


def test_a_user_s_model_says_what_is_frozen() -> None:
    case = dataclasses.replace(BASE, model=Model("torch.nn:Linear", {"in_features": 2, "out_features": 1}))
    assert truth.Setting.of(case, {"weight": torch.zeros(1, 2)}).frozen == frozenset()


def test_torch_s_own_fused_sgd_in_16_bits_is_judged_as_it_is(prepare: Prepare) -> None:
    """torch 2.11 leaves out whole vectors of 16-bit parameters on the CPU; the judge found it."""
    value = torch.nn.Parameter(torch.zeros(64, dtype=torch.bfloat16))
    value.grad = torch.ones_like(value)
    torch.optim.SGD([value], lr=1.0, fused=True).step()
    works = bool((value == -1).all())
    here = prepare("bf16")
    assert here.verdict(here.engine(kernel="fused")).held == works


def test_choices_are_what_the_table_says() -> None:
    assert set(HONEST["plain"]) <= {one.name for one in dataclasses.fields(Choices)}
