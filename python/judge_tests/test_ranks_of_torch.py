"""Adapters of plain PyTorch and DDP, and the example of docs/judge-protocol.md, in real processes: on small integers, bit by bit."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_cases import small_case

from equigrad.judge.on_rank import loop, models, protocol, reference, tensors
from equigrad.judge.on_rank.adapters import ddp
from equigrad.judge.on_rank.protocol import (
    Case,
    Clip,
    Group,
    LossScale,
    Model,
    Optimizer,
    Precision,
    local_key,
    tensor_key,
    write_case,
)
from equigrad.judge.processes import Program, Room
from equigrad.judge.ranks import Pool, RankAnswer

ON_RANK = Path(protocol.__file__).parent
EXAMPLE = Path(__file__).parents[2] / "examples/judge/hand_written_ddp.py"
COMMANDS = {
    "plain": (sys.executable, str(ON_RANK), "plain"),
    "ddp": (sys.executable, str(ON_RANK), "ddp"),
    "example": (sys.executable, str(EXAMPLE)),
}


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, Pool]]:
    room = Room()
    made = {name: Pool(room, Program(name, command), world=2) for name, command in COMMANDS.items()}
    yield made
    for pool in made.values():
        pool.stop()
    room.close()


def asked(pool: Pool, case: Case) -> list[RankAnswer]:
    path = Path(case.weights).with_name("case.json")
    write_case(case, str(path))
    return pool.ask(path, hashlib.sha256(Path(case.batches).read_bytes()).hexdigest(), 240.0)


def steps_of(answers: list[RankAnswer]) -> list[loop.Named]:
    """The tensors by rank; the answers have steps."""
    assert [one.kind for one in answers] == ["steps"] * 2, [dataclasses.asdict(one.answer) for one in answers]
    return [tensors.read(str(one.tensors)) for one in answers]


def averages(case: Case, step: int, values: loop.Named, scale: float = 1.0) -> loop.Named:
    """Of the local gradients, on which every addition is exact."""
    _, local = reference.local(case, step, values, scale)
    places = [(rank, micro) for rank in range(case.world) for micro in range(case.accumulation)]
    found = {}
    for name in values:
        parts = [local[key] for place in places if (key := local_key(*place, name, exact=True)) in local]
        if parts:
            found[name] = (torch.stack(parts).sum(0) / len(places)).float()
    return found


CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "bf16": {"precision": Precision("bf16")},
    "fp64": {"precision": Precision("fp64")},
    "autocast": {"precision": Precision("fp32", autocast="bf16")},
    "loss scale": {"precision": Precision("fp32", autocast="fp16", loss_scale=LossScale(False, 16.0))},
    "tensor": {"style": "tensor_backward"},
    "loss": {"style": "loss_backward"},
    "three": {"accumulation": 3, "model": Model("lattice-mlp", factor=3)},
    "branch": {"model": Model("lattice-mlp", {"branch": True})},
    "frozen": {"model": Model("lattice-mlp", {"frozen": True})},
    "embedding": {"model": Model("lattice-embedding")},
    "convolution": {"model": Model("lattice-convolution")},
    "backwards": {"options": {"backwards": 2}},
    "checkpointing": {"options": {"activation_checkpointing": True}},
    "engines": {"model": Model("lattice-pair"), "options": {"engines": 2}},
    "no_sync": {"options": {"no_sync": True}},
}
ONLY_DDP: dict[str, dict[str, Any]] = {
    "buckets": {"options": {"bucket_bytes": 256, "gradient_as_bucket_view": True}},
    "static": {"options": {"static_graph": True}, "model": Model("lattice-mlp", {"unused": False})},
    "hook": {"precision": Precision("fp32", communication="bf16")},
}
ONLY_EXAMPLE = ("as it is", "tensor", "loss", "three")


def changes() -> Iterator[Any]:
    for name, change in CHANGES.items():
        for engine in ("plain", "ddp", *(["example"] if name in ONLY_EXAMPLE else [])):
            yield pytest.param(engine, change, id=f"{engine}-{name.replace(' ', '_')}")
    for name, change in ONLY_DDP.items():
        yield pytest.param("ddp", change, id=f"ddp-{name}")


@pytest.mark.parametrize(("engine", "change"), list(changes()))
def test_the_average_is_that_of_plain_autograd(
    pools: dict[str, Pool], tmp_path: Path, engine: str, change: dict[str, Any]
) -> None:
    case = small_case(tmp_path / "case", world=2, **change)
    answers = asked(pools[engine], case)
    named = steps_of(answers)
    assert set(named[0]) == set(named[1])
    assert all(torch.equal(one, named[1][name]) for name, one in named[0].items())
    values = tensors.read(case.weights)
    scale = answers[0].answer.steps[0].loss_scale or 1.0
    want = averages(case, 0, values, scale)
    assert any(bool(one.any()) for one in want.values())
    for name, value in values.items():
        got = named[0].get(tensor_key(0, "gradient", name))
        assert (got is None) == (name not in want), name
        if got is not None:
            assert torch.equal(got.float(), want[name]), name
            value = value - case.optimizer.lr * want[name]
        assert torch.equal(named[0][tensor_key(0, "parameter", name)].float(), value), name
    losses, _ = reference.local(case, 0, values, scale)
    for rank, answer in enumerate(answers):
        assert list(answer.answer.steps[0].losses) == [x for m in range(case.accumulation) for x in losses[f"r{rank}.m{m}"]]


@pytest.mark.parametrize("engine", ["plain", "ddp"])
def test_norm_schedule_and_a_resumed_training(pools: dict[str, Pool], tmp_path: Path, engine: str) -> None:
    change: dict[str, Any] = {"clip": Clip(0.5, "inf"), "schedule": (1.0, 0.5), "optimizer": Optimizer("adamw", 2.0**-7)}
    case = small_case(tmp_path / "case", world=2, steps=3, **change)
    answers = asked(pools[engine], case)
    named = steps_of(answers)
    assert [one.lrs for one in answers[0].answer.steps] == [(2.0**-7,), (2.0**-8,), (2.0**-8,)]
    for step, said in enumerate(answers[0].answer.steps):
        largest = max(one.abs().max().item() for name, one in named[0].items() if name.startswith(f"step{step}/gradient/"))
        assert said.norm == largest > 0.5
    resumed = dataclasses.replace(case, options={"save_after": 0}, batches=case.batches)
    again = steps_of(asked(pools[engine], resumed))
    assert all(torch.equal(one, again[0][name]) for name, one in named[0].items())


@pytest.mark.parametrize("engine", ["plain", "ddp"])
def test_groups_have_rates_and_decays_of_their_own(pools: dict[str, Pool], tmp_path: Path, engine: str) -> None:
    names = [name for name, _ in models.make("lattice-mlp", {}).named_parameters()]
    groups = (Group(tuple(names[::2]), 1.0, 0.5), Group(tuple(names[1::2]), 0.25, 0.0))
    case = small_case(tmp_path / "case", world=2, groups=groups)
    answers = asked(pools[engine], case)
    named = steps_of(answers)[0]
    assert answers[0].answer.steps[0].lrs == (1.0, 0.25)
    for name, value in tensors.read(case.weights).items():
        group = groups[names.index(name) % 2]
        gradient = named.get(tensor_key(0, "gradient", name))
        want = value if gradient is None else value - group.lr * (gradient + group.weight_decay * value)
        assert torch.equal(named[tensor_key(0, "parameter", name)], want), name


def test_ddp_is_set_up_as_the_options_say(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import json, os, sys
        sys.path.insert(0, {str(ON_RANK.parent)!r})
        from on_rank import adapters, loop, protocol
        ddp = adapters.make("ddp")
        ddp.start()
        case = protocol.read_case(sys.argv[1])
        made = ddp.make(case, loop.plain_module(case).module).module
        print(json.dumps([made.bucket_bytes_cap, made.gradient_as_bucket_view, made.find_unused_parameters, made.static_graph]))
    """)
    given = {"bucket_bytes": 4096, "gradient_as_bucket_view": True, "find_unused": False, "static_graph": True}
    case = small_case(tmp_path, options=given)
    write_case(case, str(tmp_path / "case.json"))
    launcher = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, "-c", program, str(tmp_path / "case.json")]
    done = subprocess.run(command, env={**os.environ, **launcher}, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [4096, True, False, True]


@pytest.mark.parametrize("engine", ["plain", "ddp"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(pools: dict[str, Pool], tmp_path: Path, engine: str) -> None:
    precision = Precision("fp32", autocast="fp16", loss_scale=LossScale(True, 32.0))
    case = small_case(
        tmp_path / "case", world=2, steps=3, precision=precision, options={"overflow": "1:1"}, schedule=(1.0, 0.5, 0.25)
    )
    answers = asked(pools[engine], case)
    named = steps_of(answers)
    for answer in answers:
        assert [one.applied for one in answer.answer.steps] == [True, False, True]
        assert [one.loss_scale for one in answer.answer.steps] == [32.0, 32.0, 16.0]
        assert [one.lrs for one in answer.answer.steps] == [(1.0,), (0.5,), (0.5,)]
    names = tensors.names(case.weights)
    assert all(
        torch.equal(named[0][tensor_key(1, "parameter", name)], named[0][tensor_key(0, "parameter", name)]) for name in names
    )
    assert not all(bool(one.isfinite().all()) for name, one in named[0].items() if name.startswith("step1/gradient/"))


@pytest.mark.parametrize(
    ("engine", "kind", "change"),
    [
        ("plain", "absent", {"stage": 1}),
        ("plain", "absent", {"options": {"bucket_bytes": 7}}),
        ("plain", "absent", {"options": {"no_sync": False}}),
        ("ddp", "absent", {"options": {"offload": "optimizer"}}),
        ("ddp", "absent", {"precision": Precision("bf16", accumulation="fp32")}),
        ("ddp", "absent", {"precision": Precision("bf16", communication="fp32")}),
        ("ddp", "refused", {"precision": Precision("fp16", loss_scale=LossScale(False, 16.0))}),
        ("ddp", "refused", {"options": {"find_unused": False}, "steps": 2}),
        ("example", "absent", {"precision": Precision("bf16")}),
        ("example", "absent", {"model": Model("lattice-embedding")}),
        ("example", "absent", {"schedule": (1.0, 0.5)}),
    ],
)
def test_what_is_not_there_is_said_and_the_next_case_held(
    pools: dict[str, Pool], tmp_path: Path, engine: str, kind: str, change: dict[str, Any]
) -> None:
    answers = asked(pools[engine], small_case(tmp_path / "case", world=2, **change))
    assert [one.kind for one in answers] == [kind] * 2, [dataclasses.asdict(one.answer) for one in answers]
    steps_of(asked(pools[engine], small_case(tmp_path / "next", world=2, seed=1)))
    assert pools[engine].starts == 1


def test_ddp_is_quiet_before_the_last_backward_of_a_step_and_only_then(tmp_path: Path) -> None:
    """Else the cell no_sync would try what the one without it tries."""
    entered: list[bool] = []

    class Module:
        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            entered.append(True)
            yield

    case = small_case(tmp_path, accumulation=3, options={"no_sync": True, "backwards": 2})
    engine = object.__new__(ddp._DdpEngine)
    engine._case, engine.module = case, Module()
    quiet = []
    for place in loop.places(case, 0):
        entered.clear()
        with engine.at(place):
            quiet.append(bool(entered))
    assert quiet == [True] * 5 + [False]
