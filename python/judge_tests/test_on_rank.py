"""The loop that adapters share, and the process that it runs in."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_cases import SGD, full_case, is_valid, small_case

from equigrad.judge.on_rank import loop, protocol, reference, tensors
from equigrad.judge.on_rank.protocol import (
    Absent,
    Answer,
    Case,
    Clip,
    Model,
    Precision,
    Refused,
    local_key,
    tensor_key,
    to_json,
)

ON_RANK = Path(protocol.__file__).parent
PLAIN: dict[str, Any] = {
    "world": 1,
    "model": Model("models:make", {"size": 2}),
    "steps": 1,
    "accumulation": 1,
    "precision": Precision("fp32"),
    "style": "loss_backward",
    "options": {},
}


class OneProcess(loop.Engine):
    """An engine without ranks, that notes what is asked of it. faults: what it does wrong."""

    def __init__(self, case: Case, module: torch.nn.Module, noted: list[Any]) -> None:
        super().__init__(module)
        self.case, self.noted = case, noted
        self.named = dict(module.named_parameters())
        self.rate = case.optimizer.lr

    @contextlib.contextmanager
    def at(self, place: loop.Place) -> Iterator[None]:
        self.noted.append(place)
        yield

    def gradients(self) -> loop.Named:
        self.noted.append("gradients")
        return {name: one.grad for name, one in self.named.items() if one.grad is not None}

    def step(self) -> loop.Stepped:
        self.noted.append("step")
        with torch.no_grad():
            for one in self.named.values():
                if one.grad is not None:
                    one -= self.rate * one.grad
                one.grad = None
        return loop.Stepped(applied=True, lrs=(self.rate,))

    def values(self) -> tuple[loop.Named, loop.Named]:
        self.noted.append("values")
        return dict(self.named), {}

    def save(self, folder: str) -> None:
        tensors.write(Path(folder) / "saved", self.named)

    def load(self, folder: str) -> None:
        loop.load_weights(self.module, tensors.read(Path(folder) / "saved"))

    def close(self) -> None:
        self.noted.append("close")


class OneProcessAdapter(loop.Adapter):
    name = "one"
    options = frozenset({"save_after", "scale_wrt_gas"})

    def __init__(self, error: Exception | None = None) -> None:
        self.noted: list[Any] = []
        self.error = error

    def version(self) -> str:
        return "1"

    def start(self) -> None:
        pass

    def make(self, case: Case, module: torch.nn.Module) -> loop.Engine:
        if self.error is not None:
            raise self.error
        return OneProcess(case, module, self.noted)


def trained(case: Case, tmp_path: Path, adapter: loop.Adapter | None = None) -> tuple[Answer, loop.Named]:
    return loop.run_case(adapter or OneProcessAdapter(), case, 0, str(tmp_path))


@pytest.mark.parametrize("style", protocol.STYLES)
@pytest.mark.parametrize("backwards", [1, 2])
def test_the_loop_gives_what_the_reference_says(tmp_path: Path, style: str, backwards: int) -> None:
    """Every step from the values that the step before gave."""
    case = small_case(tmp_path, steps=3, style=style, options={"backwards": backwards})
    answer, named = trained(case, tmp_path)
    values = tensors.read(case.weights)
    assert (answer.engine, answer.version, answer.torch) == ("one", "1", torch.__version__)
    for step in range(3):
        losses, local = reference.local(case, step, values)
        assert list(answer.steps[step].losses) == losses["r0.m0"] + losses["r0.m1"]
        for name in values:
            parts = [local[key] for micro in range(2) if (key := local_key(0, micro, name)) in local]
            got = named.get(tensor_key(step, "gradient", name))
            assert (got is None) == (not parts)
            if got is not None:
                assert torch.equal(got, (torch.stack(parts).sum(0) / 2).float()), (step, name)
                assert torch.equal(named[tensor_key(step, "parameter", name)], values[name] - SGD.lr * got)
        values = {name: named[tensor_key(step, "parameter", name)] for name in values}


def test_places_are_told_and_things_are_read_in_their_order(tmp_path: Path) -> None:
    adapter = OneProcessAdapter()
    trained(small_case(tmp_path, options={"backwards": 2}), tmp_path, adapter)
    place = loop.Place
    assert adapter.noted == [
        place(0, 0, 0, False, False),
        place(0, 0, 1, True, False),
        place(0, 1, 0, False, False),
        place(0, 1, 1, True, True),
        "gradients",
        "step",
        "values",
        "close",
    ]


def test_a_resumed_training_is_the_same_and_its_engine_another(tmp_path: Path) -> None:
    case = small_case(tmp_path, steps=3)
    _, want = trained(case, tmp_path)
    adapter = OneProcessAdapter()
    answer, got = trained(dataclasses.replace(case, options={"save_after": 1}), tmp_path, adapter)
    assert len(answer.steps) == 3
    assert adapter.noted.count("close") == 2
    assert set(got) == set(want)
    assert all(torch.equal(one, want[name]) for name, one in got.items())
    OneProcess.load, real = (lambda self, folder: None), OneProcess.load  # type: ignore[method-assign]
    try:
        _, forgotten = trained(dataclasses.replace(case, options={"save_after": 1}), tmp_path)
    finally:
        OneProcess.load = real  # type: ignore[method-assign]
    key = tensor_key(2, "parameter", "unused.weight")
    assert torch.equal(forgotten[key], want[key] + 1), (
        "what load() does not bring back shows: the new engine has other weights"
    )


def test_two_engines_are_one_model(tmp_path: Path) -> None:
    case = small_case(tmp_path, Model("lattice-pair"), steps=2)
    adapter = OneProcessAdapter()
    _, want = trained(case, tmp_path)
    _, got = trained(dataclasses.replace(case, options={"engines": 2}), tmp_path, adapter)
    assert adapter.noted.count("step") == 4
    assert set(got) == set(want)
    assert all(torch.equal(one, want[name]) for name, one in got.items())


def test_the_loss_is_divided_once(tmp_path: Path) -> None:
    case = small_case(tmp_path)
    key = tensor_key(0, "gradient", "last.weight")
    want = trained(case, tmp_path)[1][key]
    assert want.any()
    for divides, options, times in ((False, {}, 1), (True, {}, 2), (True, {"scale_wrt_gas": False}, 1)):
        OneProcess.divides = divides  # and does not, so that what the loop leaves to it is missing
        try:
            got = trained(dataclasses.replace(case, options=options), tmp_path)[1][key]
        finally:
            OneProcess.divides = False
        assert torch.equal(got, times * want)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Absent("it has none"), "absent"),
        (Refused("it says no"), "refused"),
        (NotImplementedError("stage 3"), "refused"),
        (ValueError("bf16 is not supported with offload"), "refused"),
        (RuntimeError("Half is not yet supported"), "refused"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "failed"),
        (KeyError("first.weight"), "failed"),
    ],
)
def test_what_an_engine_raises_is_an_answer(tmp_path: Path, error: Exception, kind: str) -> None:
    answer, named = trained(small_case(tmp_path), tmp_path, OneProcessAdapter(error))
    assert named == {}
    text = getattr(answer, kind)
    assert str(error.args[0]) in text
    assert is_valid("answer", to_json(answer))
    assert [one for one in ("absent", "refused", "failed") if getattr(answer, one) is not None] == [kind]


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"find_unused": True}},
        {"options": {"engines": 2}},
        {"options": {"engines": 3}, "model": Model("lattice-pair")},
        {"options": {"engines": 2}, "model": Model("lattice-pair"), "clip": Clip(1.0, "2")},
    ],
)
def test_what_the_loop_cannot_do_is_absent(tmp_path: Path, change: dict[str, Any]) -> None:
    model = change.pop("model", None)
    answer, _ = trained(small_case(tmp_path, model, **change), tmp_path)
    assert answer.absent


class Dropping(torch.nn.Module):
    """Of a user: it draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 64)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = torch.nn.functional.dropout(self.layer(input), 0.5)
        return value


def test_random_numbers_are_those_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = small_case(tmp_path, steps=2)
    tensors.write(case.weights, dict(Dropping().named_parameters()))
    inputs = {name: one for name, one in tensors.read(case.batches).items() if name.endswith("input")}
    tensors.write(case.batches, inputs)
    monkeypatch.setitem(
        sys.modules, "mine", type("mine", (), {"make": lambda: (Dropping(), lambda one, batch: one(**batch).sum())})
    )
    case = dataclasses.replace(case, model=Model("mine:make"))
    answer, named = trained(case, tmp_path)
    assert answer.steps, answer
    local: loop.Named = {}
    for step in range(2):
        values = (
            tensors.read(case.weights)
            if not step
            else {name: named[tensor_key(0, "parameter", name)] for name in ("layer.weight", "layer.bias")}
        )
        losses, local = reference.local(case, step, values)
        assert list(answer.steps[step].losses) == losses["r0.m0"] + losses["r0.m1"]
        assert losses["r0.m0"] != losses["r0.m1"]
    masks = [local[local_key(0, micro, "layer.bias")] for micro in range(2)]
    assert not torch.equal(*masks), "every micro-batch draws its own"


def test_nothing_of_the_judges_is_in_the_way_of_a_user(tmp_path: Path) -> None:
    """Modules of the user's have names of the judge's, in the working directory; on_rank runs as the judge starts it."""
    (tmp_path / "loop.py").write_text("MINE = True\n")
    (tmp_path / "models.py").write_text(
        textwrap.dedent("""
            import os, sys, torch, loop
            assert loop.MINE
            there = [path for path in sys.path if os.path.exists(os.path.join(path, "causes.py")) or os.path.exists(os.path.join(path, "serve.py"))]
            assert not there, there
            imported = {name.split(".")[0] for name in sys.modules} & {"equigrad", "safetensors", "deepspeed", "accelerate"}
            assert not imported, imported

            def make(size):
                return torch.nn.Linear(size, 1), lambda called, batch: called(batch["x"]).mean()
        """)
    )
    weights = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
    tensors.write(tmp_path / "weights", weights)
    tensors.write(tmp_path / "batches", {"s0.r0.m0.b0.x": torch.tensor([[1.0, 2.0]])})
    case = dataclasses.replace(full_case(), **PLAIN, weights=str(tmp_path / "weights"), batches=str(tmp_path / "batches"))
    protocol.write_case(case, str(tmp_path / "case.json"))
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/channel")
        listener.listen()
        environment = {**os.environ, protocol.CHANNEL: f"{short}/channel", "PYTHONPATH": ""}
        command = [sys.executable, str(ON_RANK), "--reference"]
        with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
            try:
                said = talk(listener, case, tmp_path)
                assert process.wait(120) == 0
            finally:
                process.kill()
    assert is_valid("hello_line", said[0])
    assert said[1].get("losses") == {"r0.m0": [3.0], "fp64/r0.m0": [3.0]}, said[1].get("error")
    assert "none.json" in said[2]["error"]


def talk(listener: socket.socket, case: Case, folder: Path) -> list[dict[str, Any]]:
    """What a reference process says first, of a case, and of a case that is not there; it is asked to end then."""
    listener.settimeout(240)
    channel = protocol.Channel(listener.accept()[0])
    said = [channel.receive()]
    for name in ("case.json", "none.json"):
        line = {"do": "local", "number": 5, "step": 0, "parameters": case.weights, "scale": 1.0, "folder": str(folder)}
        channel.send({**line, "case": str(folder / name)})
        said.append(channel.receive())
    channel.send({"do": "stop"})
    channel.close()
    return [one or {} for one in said]
