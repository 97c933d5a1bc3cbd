"""Adapters of FSDP1, FSDP2, DeepSpeed, Accelerate and Equigrad in real processes, against plain autograd and updates by hand."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from adapter_bench import SGD, Bench, case_of, differences, told

from equigrad.judge.on_rank import tensors
from equigrad.judge.on_rank.protocol import Absent, Clip, Group, LossScale, Model, Optimizer, Precision, tensor_key
from equigrad.judge.processes import Room

FP32, BF16, FP16 = Precision("fp32"), Precision("bf16"), Precision("fp16", loss_scale=LossScale(True, 32.0, window=2))
MOMENTUM = dataclasses.replace(SGD, momentum=0.5)
ADAMW = Optimizer("adamw", lr=2.0**-7, weight_decay=0.125)
FULL = Model("lattice-mlp")
EVEN, ODD = (
    ("first.weight", "second.weight", "wide.bias", "last.bias", "unused.weight"),
    (
        "first.bias",
        "wide.weight",
        "last.weight",
        "gain",
        "unused.bias",
    ),
)
GROUPS = (Group(EVEN, 2.0**-10, 0.0), Group(ODD, 2.0**-11, 0.125))

COMMON: dict[str, dict[str, Any]] = {
    "fp32": {"precision": FP32},
    "clip": {"precision": FP32, "clip": Clip(1.0, "2")},
    "momentum, saved": {"precision": FP32, "optimizer": MOMENTUM, "options": {"save_after": 0}},
    "groups, schedule": {"precision": FP32, "groups": GROUPS, "schedule": (1.0, 0.5, 0.25)},
    "frozen, embedding": {"precision": FP32, "model": Model("lattice-embedding"), "accumulation": 2},
    "recomputed": {"precision": FP32, "options": {"activation_checkpointing": True}},
    "bf16": {"precision": BF16},
}
SHARDED: dict[str, dict[str, Any]] = {
    "no_sync": {"precision": FP32, "options": {"no_sync": True}},
    "tensor": {"precision": BF16, "style": "tensor_backward"},
    "two engines": {"precision": FP32, "model": Model("lattice-pair"), "options": {"engines": 2}},
    "fp16": {"precision": FP16, "steps": 4, "options": {"overflow": "1:1"}},
    "bf16 in fp32": {"precision": Precision("bf16", communication="fp32", accumulation="fp32")},
    "adamw": {"precision": FP32, "optimizer": ADAMW, "options": {"save_after": 1}},
}
ZERO: dict[str, dict[str, Any]] = {
    "offload": {"precision": FP32, "options": {"offload": "optimizer"}},
    "small buckets": {"precision": FP32, "options": {"bucket_bytes": 256}},
    "caller divides": {"precision": FP32, "options": {"scale_wrt_gas": False}},
    "loss": {"precision": BF16, "style": "loss_backward"},
    "tensor": {"precision": FP32, "style": "tensor_backward"},
    "fp16, scale": {"precision": Precision("fp16", loss_scale=LossScale(False, 16.0)), "style": "scale_backward"},
    "autocast": {"precision": Precision("fp32", autocast="bf16")},
    "three ranks": {"precision": FP32, "world": 3, "accumulation": 1},
}
CELLS: dict[str, list[tuple[int, dict[str, dict[str, Any]]]]] = {
    "fsdp1": [(3, COMMON), (2, {"no_sync": SHARDED["no_sync"]}), (0, {"bf16": COMMON["bf16"]})],
    "fsdp2": [(3, {**COMMON, **SHARDED}), (2, {"bf16": COMMON["bf16"]})],
    "deepspeed": [
        (0, {"fp32": COMMON["fp32"], "bf16": COMMON["bf16"], "no_sync": SHARDED["no_sync"]}),
        (
            1,
            {
                **{name: COMMON[name] for name in ("clip", "groups, schedule")},
                **{name: ZERO[name] for name in ("offload", "loss")},
            },
        ),
        (2, {**COMMON, "small buckets": ZERO["small buckets"]}),
        (3, {**COMMON, **ZERO}),
    ],
    "accelerate": [(0, COMMON)],
    "accelerate-deepspeed": [
        (2, {name: COMMON[name] for name in ("fp32", "clip", "groups, schedule")}),
        (3, {"bf16": COMMON["bf16"]}),
    ],
    "equigrad": [
        (0, {"fp32": COMMON["fp32"], "no_sync": SHARDED["no_sync"]}),
        (3, {**COMMON, **ZERO, "fp16": SHARDED["fp16"]}),
    ],
}
ALL = [(engine, stage, name) for engine, parts in CELLS.items() for stage, cells in parts for name in cells]


def cell_of(engine: str, stage: int, name: str) -> dict[str, Any]:
    cells = dict(CELLS[engine])[stage]
    return {**cells[name], "stage": stage}


def skip_without(engine: str) -> None:
    for package in engine.split("-"):
        needed = {"equigrad": "equigrad._core", "fsdp1": "torch", "fsdp2": "torch"}.get(package, package)
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")


@pytest.fixture(scope="module")
def benches() -> Iterator[dict[str, Bench]]:
    room = Room()
    made = {engine: Bench(room, engine) for engine in CELLS}
    yield made
    for one in made.values():
        one.stop()
    room.close()


@pytest.mark.parametrize(("engine", "stage", "name"), ALL, ids=[f"{engine}-{stage}-{name}" for engine, stage, name in ALL])
def test_what_an_adapter_reads_is_what_autograd_gives(benches: dict[str, Bench], engine: str, stage: int, name: str) -> None:
    skip_without(engine)
    case = case_of(benches[engine].room, f"{engine}-{stage}-{name}", **cell_of(engine, stage, name))
    answers = benches[engine].ask(case)
    assert told(answers)["kind"] == "steps", told(answers)["text"]
    assert differences(case, answers) == []


def _doubled(named: dict[str, torch.Tensor]) -> None:
    named[tensor_key(1, "gradient", "wide.weight")] *= 2


def _stale(named: dict[str, torch.Tensor]) -> None:
    named[tensor_key(1, "parameter", "last.weight")] = named[tensor_key(0, "parameter", "last.weight")]


def _missing(named: dict[str, torch.Tensor]) -> None:
    del named[tensor_key(0, "gradient", "first.bias")]


def _shifted(named: dict[str, torch.Tensor]) -> None:
    key = tensor_key(2, "gradient", "wide.weight")
    named[key] = named[key].roll(1)


@pytest.mark.parametrize("tamper", [_doubled, _stale, _missing, _shifted])
def test_what_is_read_wrong_is_seen(benches: dict[str, Bench], tamper: Any) -> None:
    bench = benches["fsdp2"]
    case = case_of(bench.room, f"tampered{tamper.__name__}", stage=3, precision=FP32)
    answers = bench.ask(case)
    assert differences(case, answers) == []
    for one in answers:
        named = tensors.read(str(one.tensors))
        tamper(named)
        tensors.write(str(one.tensors), named)
    assert differences(case, answers)


def test_a_rank_of_its_own_opinion_is_seen(benches: dict[str, Bench]) -> None:
    bench = benches["fsdp2"]
    case = case_of(bench.room, "other rank", stage=3, precision=FP32)
    answers = bench.ask(case)
    named = tensors.read(str(answers[1].tensors))
    named[tensor_key(0, "gradient", "gain")] += 1
    tensors.write(str(answers[1].tensors), named)
    assert differences(case, answers) == ["rank 1 has other values: step0/gradient/gain"]


ABSENT: list[tuple[str, dict[str, Any]]] = [
    ("fsdp1", {"stage": 1}),
    ("fsdp1", {"stage": 3, "model": Model("lattice-mlp", {"branch": True})}),
    ("fsdp2", {"stage": 0}),
    ("fsdp2", {"stage": 3, "precision": Precision("fp32", accumulation="bf16")}),
    ("deepspeed", {"stage": 1, "precision": Precision("fp64")}),
    ("deepspeed", {"stage": 1, "clip": Clip(1.0, "inf")}),
    ("deepspeed", {"stage": 0, "options": {"offload": "optimizer"}}),
    ("deepspeed", {"stage": 2, "precision": FP16, "style": "loss_backward"}),
    ("deepspeed", {"stage": 2, "style": "loss_backward", "options": {"scale_wrt_gas": False}}),
    ("accelerate", {"stage": 3}),
    ("accelerate", {"style": "loss_backward"}),
    ("accelerate", {"precision": Precision("fp32", autocast="fp16", loss_scale=LossScale(True, 32.0))}),
    ("accelerate-deepspeed", {"stage": 1, "options": {"backwards": 2}}),
    ("equigrad", {"stage": 1, "options": {"scale_wrt_gas": False}, "style": "loss_backward"}),
]


@pytest.mark.parametrize(("engine", "fields"), ABSENT, ids=[f"{engine}-{index}" for index, (engine, _) in enumerate(ABSENT)])
def test_what_an_engine_has_not_is_said_before_anything_is_made(
    benches: dict[str, Bench], engine: str, fields: dict[str, Any]
) -> None:
    skip_without(engine)
    bench = benches[engine]
    answers = bench.ask(case_of(bench.room, "absent", **{"precision": FP32, **fields}))
    assert {one.kind for one in answers} == {"absent"}
    assert told(answers)["text"]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("deepspeed", {"stage": 0, "style": "loss_backward"}),
    ("deepspeed", {"stage": 2, "options": {"no_sync": True}}),
    ("deepspeed", {"stage": 0, "precision": Precision("bf16", accumulation="fp32")}),
]


@pytest.mark.parametrize(
    ("engine", "fields"), REFUSED, ids=[f"{engine}-{index}" for index, (engine, _) in enumerate(REFUSED)]
)
def test_what_an_engine_refuses_is_its_own_text(benches: dict[str, Bench], engine: str, fields: dict[str, Any]) -> None:
    skip_without(engine)
    bench = benches[engine]
    answers = bench.ask(case_of(bench.room, "refused", **{"precision": FP32, **fields}))
    assert {one.kind for one in answers} == {"refused"}, told(answers)["text"]


def test_deepspeeds_configuration_leaves_no_default_that_releases_changed() -> None:
    skip_without("deepspeed")
    plain = importlib.import_module("equigrad.judge.on_rank.adapters.deepspeed")
    room = Room()
    try:
        config = plain.config_of(case_of(room, "config", stage=3, precision=BF16))
    finally:
        room.close()
    assert config["gradient_clipping"] == 0.0
    assert config["bf16"] == {"enabled": True, "immediate_grad_update": False, "check_grad_overflow": True}
    assert config["zero_force_ds_cpu_optimizer"] is False
    assert config["train_batch_size"] == config["gradient_accumulation_steps"] * 2


def test_an_option_that_an_adapter_does_not_know_is_absent(benches: dict[str, Bench]) -> None:
    bench = benches["fsdp1"]
    answers = bench.ask(case_of(bench.room, "unknown", stage=3, precision=FP32, options={"bucket_bytes": 256}))
    assert told(answers)["kind"] == "absent"
    assert issubclass(Absent, Exception)
