"""The cells: every pair of axes is there, ids are read and filtered, shards and selections lose nothing."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from equigrad.judge import cases, judging
from equigrad.judge.cases import PRECISIONS, STAGES, Axes
from equigrad.judge.environments import UsageError
from equigrad.judge.on_rank.protocol import STYLES, Case, from_json, to_json


@pytest.fixture(scope="module", params=STAGES)
def adapter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_cross_is_full(adapter: str) -> None:
    plain = {cell.id for cell in cases.plan(adapter, Axes()) if not cell.axes["feature"]}
    wanted = itertools.product(STAGES[adapter], PRECISIONS, STYLES, cases.ACCUMULATIONS)
    assert plain == {f"zero{s}/{p}/{style}/accumulation{n}" for s, p, style, n in wanted}


def test_every_feature_is_tried_at_every_stage_and_precision_of_its(adapter: str) -> None:
    found = {(cell.axes["feature"], cell.axes["stage"], cell.axes["precision"]) for cell in cases.plan(adapter, Axes())}
    for name, feature in cases.FEATURES.items():
        if not feature.engines or adapter in feature.engines or not adapter:
            stages = [stage for stage in STAGES[adapter] if stage in (feature.stages or STAGES[adapter])]
            assert {(name, str(stage), precision) for stage in stages for precision in feature.precisions} <= found


def test_ids_are_unique_and_cases_are_of_the_protocol(adapter: str) -> None:
    cells = cases.plan(adapter, Axes())
    assert len({cell.id for cell in cells}) == len(cells)
    for cell in cells:
        assert from_json(Case, to_json(cell.case)) == cell.case
        assert cell.id == "/".join(
            filter(
                None,
                (
                    f"zero{cell.case.stage}",
                    cell.axes["precision"],
                    cell.case.style,
                    f"accumulation{cell.case.accumulation}",
                    cell.axes["feature"],
                ),
            )
        )
        assert int(cell.axes["world"]) == cell.case.world
    assert {cell.case.world for cell in cells} == {1, 2, 3, 4}


def test_processes_of_one_number_of_ranks_follow_one_another(adapter: str) -> None:
    worlds = [cell.case.world for cell in cases.plan(adapter, Axes())]
    assert worlds == sorted(worlds)


def test_groups_hold_every_parameter_once() -> None:
    for cell in cases.plan("", Axes(only=("groups",))):
        names = [name for group in cell.case.groups for name in group.parameters]
        assert len(cell.case.groups) == 2 and names and len(set(names)) == len(names)
        assert cell.case.groups[0].lr != cell.case.groups[1].lr


def test_quick_covers_pairs_and_features(adapter: str) -> None:
    whole, quick = cases.plan(adapter, Axes()), cases.plan(adapter, Axes(quick=True))
    assert len(quick) < len(whole) / 2.5
    assert {cell.axes["feature"] for cell in quick} == {cell.axes["feature"] for cell in whole}
    for one, other in itertools.combinations(("stage", "precision", "style", "accumulation"), 2):
        pairs = {(cell.axes[one], cell.axes[other]) for cell in whole if not cell.axes["feature"]}
        assert {(cell.axes[one], cell.axes[other]) for cell in quick if not cell.axes["feature"]} == pairs


def test_quick_tries_features_at_every_stage() -> None:
    quick = [cell for cell in cases.plan("deepspeed", Axes(quick=True)) if cell.axes["feature"]]
    assert {cell.axes["stage"] for cell in quick} == {"0", "1", "2", "3"}
    assert {cell.axes["precision"] for cell in quick} >= {"fp32", "bf16", "fp16-dynamic"}


def test_shards_are_the_whole(adapter: str) -> None:
    whole = cases.plan(adapter, Axes())
    parts = [cell.id for index in (1, 2, 3) for cell in cases.shard(whole, index, 3)]
    assert sorted(parts) == sorted(cell.id for cell in whole) and len(parts) == len(whole)


@pytest.mark.parametrize(
    ("pattern", "name", "matched"),
    [
        ("zero2", "zero2/bf16/loss_backward/accumulation3/clip", True),
        ("zero2/clip", "zero2/bf16/loss_backward/accumulation3/clip", True),
        ("clip/zero2", "zero2/bf16/loss_backward/accumulation3/clip", False),
        ("clip", "zero2/bf16/loss_backward/accumulation3/clip-inf", False),
        ("clip*", "zero2/bf16/loss_backward/accumulation3/clip-inf", True),
        ("zero[12]/*/loss*", "zero1/fp32/loss_backward/accumulation1", True),
        ("bf16", "zero1/bf16-accumulate-fp32/loss_backward/accumulation1", False),
    ],
)
def test_patterns(pattern: str, name: str, matched: bool) -> None:
    assert cases.matches(name, pattern) == matched


def test_axes_and_patterns_choose() -> None:
    chosen = cases.plan("deepspeed", Axes(stages=(2, 3), precisions=("bf16",), only=("accumulation3", "!loss_backward", "!zero3")))
    assert chosen and {(cell.axes["stage"], cell.axes["precision"], cell.axes["accumulation"]) for cell in chosen} == {
        ("2", "bf16", "3")
    }
    assert "loss_backward" not in {cell.axes["style"] for cell in chosen}


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    ids = [cell.id for cell in cases.plan("ddp", Axes())]
    with pytest.raises(UsageError, match="Did you mean clip-inf"):
        cases.check_patterns(["zero0/clip-imf"], ids)
    cases.check_patterns(["zero0/clip-inf", "!clip"], ids)


def test_a_feature_has_the_loss_scale_that_it_names() -> None:
    for name, window, hysteresis in (("scale-grows", 1, 1), ("hysteresis", 1000, 2)):
        (cell,) = cases.plan("deepspeed", Axes(only=(f"zero2/fp16-dynamic/{name}",)))
        scale = cell.case.precision.loss_scale
        assert scale is not None and (scale.window, scale.hysteresis) == (window, hysteresis)


def test_local_gradients_are_kept_by_all_that_they_depend_on() -> None:
    (cell,) = cases.plan("ddp", Axes(only=("zero0/fp32/engine_backward/accumulation1",), worlds=(2,)))[:1]
    weights = {"w": torch.ones(3)}

    def key(**options: bool | int | str) -> str:
        return judging._key(dataclasses.replace(cell.case, options=options), 1, weights, 1.0)

    others = [key(overflow="1:1"), key(backwards=2), key(activation_checkpointing=True)]
    assert len({key(), *others}) == 4 and key(no_sync=True) == key()
    assert judging._key(cell.case, 1, {"w": torch.zeros(3)}, 1.0) != key() != judging._key(cell.case, 2, weights, 1.0)
