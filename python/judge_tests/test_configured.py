"""A DeepSpeed configuration as axes: what it sets is in every cell, what it does not set is varied, what cells lack is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equigrad.judge import cases, configured
from equigrad.judge.cases import PRECISIONS, Axes
from equigrad.judge.configured import Fixed
from equigrad.judge.environments import UsageError
from equigrad.judge.on_rank.protocol import STYLES, Clip, LossScale, Optimizer, Precision

WHOLE: dict[str, Any] = {
    "train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "communication_data_type": "fp32",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 100, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True},
    "bf16": {"enabled": True},
    "data_types": {"grad_accum_dtype": "fp32"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1, "betas": [0.8, 0.9], "eps": 1e-6}},
    "scheduler": {"type": "WarmupLR"},
}


def read(tmp_path: Path, config: object) -> Fixed:
    path = tmp_path / "ds.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return configured.read(str(path))


def test_what_a_file_sets_is_in_every_cell(tmp_path: Path) -> None:
    fixed = read(tmp_path, WHOLE)
    assert fixed.left_out == ("zero_optimization.overlap_comm", "scheduler")
    cells = cases.plan("deepspeed", Axes(fixed=fixed))
    assert {cell.axes["style"] for cell in cells} == set(STYLES)
    assert {cell.case.world for cell in cells} == {1, 2, 3, 4}
    for cell in cells:
        case = cell.case
        assert (case.stage, case.accumulation, case.clip) == (2, 2, Clip(1.0, "2"))
        assert case.precision == Precision("bf16", accumulation="fp32", communication="fp32")
        assert case.optimizer == Optimizer("adamw", 0.01, 0.0, 0.1, (0.8, 0.9), 1e-6)
        assert case.options["offload"] == "optimizer" and case.options["bucket_bytes"] == 200
        assert cell.axes["precision"] == "config"
    features = {cell.axes["feature"] for cell in cells}
    assert {"branch", "checkpointing", "two-backwards", "schedule"} <= features
    assert not features & {"clip", "clip-inf", "adamw", "momentum", "groups", "offload", "small-buckets", "overflow"}


def test_what_a_file_does_not_set_is_varied(tmp_path: Path) -> None:
    cells = cases.plan("deepspeed", Axes(fixed=read(tmp_path, {"zero_optimization": {"stage": 3}})))
    assert {cell.axes["stage"] for cell in cells} == {"3"}
    assert {cell.axes["precision"] for cell in cells} == set(PRECISIONS)
    assert {"clip", "adamw", "overflow"} <= {cell.axes["feature"] for cell in cells}


SCALES = {
    "static": ({"enabled": True, "loss_scale": 128}, LossScale(False, 128.0)),
    "dynamic": (
        {"enabled": True, "initial_scale_power": 5, "loss_scale_window": 7, "hysteresis": 3, "min_loss_scale": 2},
        LossScale(True, 32.0, 7, 3, 2.0),
    ),
    "by default": ({"enabled": True}, LossScale(True, 65536.0, 1000, 2, 1.0)),
}


@pytest.mark.parametrize("name", SCALES)
def test_loss_scales(name: str, tmp_path: Path) -> None:
    block, wanted = SCALES[name]
    fixed = read(tmp_path, {"fp16": block})
    assert fixed.precision == Precision("fp16", loss_scale=wanted)
    features = {cell.axes["feature"] for cell in cases.plan("deepspeed", Axes(fixed=fixed))}
    assert ("overflow" in features) == (name != "static")


def test_zero_as_the_first_releases_had_it(tmp_path: Path) -> None:
    assert read(tmp_path, {"zero_optimization": True}).stage == 1
    assert read(tmp_path, {"bf16": {}}).precision == Precision("fp32")


def test_a_precision_of_the_table_has_its_name(tmp_path: Path) -> None:
    cells = cases.plan("deepspeed", Axes(fixed=read(tmp_path, {"bf16": {"enabled": True}, "fp16": {"enabled": False}})))
    assert {cell.axes["precision"] for cell in cells} == {"bf16"}


WRONG = {
    "no JSON": ("{", "expected a DeepSpeed configuration in"),
    "a list": ([1], "expected an object of JSON"),
    "auto": ({"gradient_clipping": "auto"}, "placeholder of Hugging Face's Trainer"),
    "a word": ({"gradient_accumulation_steps": "two"}, "expected a number as gradient_accumulation_steps, got 'two'"),
    "none": ({"gradient_accumulation_steps": 0}, "at least 1, got 0"),
    "both": ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "bf16 or fp16 to be enabled, got both"),
    "a block": ({"zero_optimization": 3}, "expected an object as zero_optimization, got 3"),
    "a type": ({"data_types": {"grad_accum_dtype": "int8"}}, "got 'int8'"),
    "an optimizer": ({"optimizer": {"type": "Lion"}}, "optimizer.type of AdamW, Adam and SGD, got Lion"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_file_is_named(name: str, tmp_path: Path) -> None:
    config, text = WRONG[name]
    with pytest.raises(UsageError) as caught:
        read(tmp_path, config)
    assert text in str(caught.value) and str(caught.value).startswith("[judge] ")
