"""A person's model in the place of the built-in ones: its batches, what is refused, and a board of it."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from equigrad.judge import board as boards
from equigrad.judge import cases, users
from equigrad.judge.environments import UsageError
from equigrad.judge.on_rank import loop, tensors
from equigrad.judge.on_rank.protocol import Case, Model, ProtocolError, batch_key

MODULE = """
import torch
def make_model():
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
def loss(model, batch):
    return model(batch).square().mean()
def listed():
    return make_model, loss, [torch.full((2, 3), float(number)) for number in range(24)]
def drawn():
    return make_model, loss, lambda step, rank, micro: torch.randn(
        4, 3, generator=torch.Generator().manual_seed(100 * step + 10 * rank + micro))
def few():
    return make_model, loss, [torch.zeros(2, 3)]
counted = []
def another():
    def make():
        counted.append(1)
        model = make_model()
        torch.nn.init.constant_(model[0].bias, len(counted))
        return model
    return make, loss, lambda *at: torch.zeros(2, 3)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("stranger", None)


def case_of(factory: str) -> Case:
    model = users.model_of(f"stranger:{factory}", 1)
    return Case("x", 2, model, 2, 3, cases.PRECISIONS["fp32"], cases.SGD, "", "")


def test_every_rank_and_micro_batch_takes_another_batch_of_a_list(tmp_path: Path) -> None:
    case, drawn = users.write(case_of("listed"), tmp_path)
    places = list(itertools.product(range(2), range(2), range(3)))
    keys = [key for key in drawn.batches if key.startswith(batch_key(0, 0, 0, 0, ""))]
    assert len(keys) == 1
    name = keys[0][len(batch_key(0, 0, 0, 0, "")) :]
    numbers = [float(drawn.batches[batch_key(step, rank, micro, 0, name)][0, 0]) for step, rank, micro in places]
    assert numbers == [float(number) for number in range(12)]
    assert tensors.read(case.batches).keys() == drawn.batches.keys()
    assert drawn.factor == 1 and drawn.certified == 0


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(ProtocolError, match="expected at least 6 batches for 2 ranks with 3 micro-batches, got 1"):
        users.write(dataclasses.replace(case_of("few")), Path())
    with pytest.raises(UsageError, match="the same model under the same seed, got another 0.bias"):
        users.model_of("stranger:another", 1)
    with pytest.raises(UsageError, match="no_such"):
        users.model_of("stranger:no_such", 1)
    assert isinstance(users.model_of("stranger:drawn", 1), Model)


@pytest.mark.parametrize("options", [{}, {"record": True}, {"engines": 2}])
def test_a_model_may_be_called_by_position_in_every_cell(options: dict[str, object]) -> None:
    training = object.__new__(loop._Training)
    training._case = SimpleNamespace(options=options)
    given = loop.Record if "record" in options else lambda value: value
    training.engines = {str(number): SimpleNamespace(module=given) for number in range(2 if "engines" in options else 1)}
    assert training.called()(3) == (6 if "engines" in options else 3)


def test_a_board_of_it(tmp_path: Path) -> None:
    """Three micro-batches on two ranks: averages that no power of two divides."""
    command = [sys.executable, "-m", "equigrad", "judge", "ddp", "--model", "stranger:drawn", "-q", "--report", "out"]
    for pattern in ("fp32/loss_backward/accumulation3", "bf16/adamw"):
        command += ["--only", pattern]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(tmp_path)])}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    board = boards.read(tmp_path / "out" / "board.json")
    assert [cell.verdict for cell in board.cells] == ["held", "held"]
    assert all(cell.compared > 50 for cell in board.cells)
