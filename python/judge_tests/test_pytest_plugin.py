"""The fixture `equigrad_judge`, in a pytest of its own: what holds passes, what does not fails with the board's text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
def test_held(equigrad_judge):
    board = equigrad_judge("plain", only=["zero0/fp32/loss_backward/accumulation2", "!world3"], styles=["loss_backward"], quiet=True)
    assert [(cell.case, cell.verdict) for cell in board.cells] == [("zero0/fp32/loss_backward/accumulation2", "held")]

def test_crashed(equigrad_judge):
    equigrad_judge(ENDS, only="zero0/fp32/loss_backward/accumulation2", quick=False, quiet=True)

def test_wrong_option(equigrad_judge):
    equigrad_judge("plain", onyl="x")
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plugin")
    tree = (Path(__file__).with_name("conftest.py")).read_text().replace("__file__", repr(str(Path(__file__))))
    (folder / "conftest.py").write_text(f"{tree}\npytest_plugins = ['equigrad.pytest_plugin']\n")
    ends = f"{sys.executable} -c 'raise SystemExit(3)'"
    (folder / "test_it.py").write_text(f"ENDS = {ends!r}\n{TESTS}")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-q", "test_it.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=170)
    return done.stdout + done.stderr


def test_what_holds_passes_and_shows_its_board(report: str) -> None:
    assert "PASSED test_it.py::test_held" in report, report
    assert "HELD  plain: every number is right in 1 cell" in report


def test_what_does_not_hold_fails_with_its_text(report: str) -> None:
    assert "FAILED test_it.py::test_crashed" in report, report
    assert "BROKEN" in report and "judge-report/index.html" in report and "exit code 3" in report
    assert "Traceback" not in report


def test_a_wrong_option_fails_with_what_was_meant(report: str) -> None:
    assert "FAILED test_it.py::test_wrong_option" in report, report
    assert "[judge] expected a known option, got --onyl. Did you mean --only?" in report
    assert "1 passed" in report
