"""The command `equigrad` of the package: a model of Python through the matrix of a check, and the C++ program's commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import torch

def batches(step, rank, micro_batch):
    return torch.randn(4, 24, generator=torch.Generator().manual_seed(100 * step + 10 * rank + micro_batch))

def loss(model, batch):
    return model(batch).square().mean()

def factory():
    return (lambda: torch.nn.Linear(24, 16)), loss, batches

def other():
    return torch.nn.Linear(3, 2)
"""
ONE = ("--world", "2", "--stages", "3", "--dtypes", "bf16")


@pytest.fixture
def equigrad(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MODULE)

    def run(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "equigrad", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    return run


def test_a_model_of_python_goes_through_the_cases(equigrad, tmp_path: Path) -> None:
    done = equigrad("run", "--model", "mine:factory", *ONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "HELD" in done.stdout and "3 cases: 3 equal" in done.stdout
    assert len(json.loads((tmp_path / "equigrad-report" / "run.json").read_text())["cases"]) == 3
    listed = equigrad("run", "--model", "mine:factory", "--list").stdout.split()
    assert len(listed) > 500 and len(set(listed)) == len(listed)


def test_a_failure_is_repeated_by_its_replay(equigrad) -> None:
    done = equigrad("run", "--model", "mine:factory", *ONE, "--fault", "averaged_twice")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "averaged twice over 2 ranks" in done.stdout
    replay = next(line for line in done.stdout.splitlines() if line.startswith("  replay: equigrad "))
    again = equigrad(*replay.removeprefix("  replay: equigrad ").split())
    assert again.returncode == 1 and "1 case of 1 failed" in again.stdout, again.stdout + again.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "mine:nothing",
            "expected mine:nothing to be MODULE:FACTORY, such as my_module:factory without .py, got: module 'mine' has no attribute 'nothing'",
        ),
        ("nowhere:factory", "No module named 'nowhere'"),
        ("mine:other", "to give (make_model, loss_fn, batches), got a Linear"),
    ],
)
def test_what_is_no_model_is_a_wrong_command(equigrad, target: str, said: str) -> None:
    done = equigrad("run", "--model", target)
    assert done.returncode == 2
    assert said in done.stderr


def test_other_commands_are_those_of_the_program(equigrad, tmp_path: Path) -> None:
    assert "equigrad 0." in equigrad("--version").stdout
    (tmp_path / "ds_config.json").write_text(
        '{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}'
    )
    assert "AdamW" in equigrad("config", "check", "ds_config.json").stdout
    assert equigrad("no-such-command").returncode == 2
    bench = equigrad("bench", "rase")  # another program's
    assert bench.returncode in (2, 3) and ("Did you mean" in bench.stderr or "Build it" in bench.stderr), bench.stderr
