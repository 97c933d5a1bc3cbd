"""A red cell, end to end: found, confirmed in new processes, explained, and no exit code 0; and one that does not come again."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equigrad.judge import board as boards
from equigrad.judge import command, on_rank
from equigrad.judge.board import Cell, Finding, Repro
from equigrad.judge.judging import FINDINGS, told
from equigrad.judge.outputs import Outputs
from equigrad.judge.seen import Cause

WHERE = Path(str(on_rank.__file__)).parents[1]
ENGINE = f"""
import os, sys
sys.path.insert(0, {str(WHERE)!r})
from torch import distributed
from on_rank.adapters import plain
from on_rank.serve import main

def summed(parameter):
    parameter.grad is None or distributed.all_reduce(parameter.grad)

if CONDITION:
    plain._PlainEngine._average = staticmethod(summed)
sys.exit(main(["plain"]))
"""
CELL = "zero0/fp32/loss_backward/accumulation2"


def engine(tmp_path: Path, condition: str) -> str:
    """A COMMAND: plain PyTorch, whose ranks forget to divide where the condition holds when they start."""
    path = tmp_path / "engine.py"
    path.write_text(ENGINE.replace("CONDITION", condition))
    return shlex.join([sys.executable, str(path)])


def judged(tmp_path: Path, condition: str, *arguments: str, code: int) -> Cell:
    """The only cell of a run that ends with the code."""
    given = [engine(tmp_path, condition), "--only", CELL, "--quiet", "--report", str(tmp_path / "r"), *arguments]
    assert command.main(given) == code
    (cell,) = boards.read(tmp_path / "r" / "board.json").cells
    return cell


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Cell]:
    folder = tmp_path_factory.mktemp("red")
    return folder, judged(folder, "True", "--write-baseline", str(folder / "base.json"), code=1)


def test_what_is_wrong_is_red_and_explained(red: tuple[Path, Cell]) -> None:
    cell = red[1]
    assert cell.verdict == "red"
    assert "1/2" in cell.cause or "twice" in cell.cause or "x 2" in cell.cause or "summed" in cell.cause, cell.cause
    assert cell.findings and cell.findings[0].what == "gradient" and cell.findings[0].radius == 0
    assert cell.findings[0].got == 2 * cell.findings[0].want


def test_what_the_cause_speaks_of_is_shown_first() -> None:
    norm, other, beside, gradient = (
        Finding(step, what, 2.0, 1.0, 0.0) for step, what in ((0, "norm"), (0, "gradient"), (1, "norm"), (1, "gradient"))
    )
    cause = Cause(("averaged",), "Step 2: the gradient is added twice.", "gradient", 1)
    assert told([norm, other, beside, gradient], cause) == (gradient, norm, other, beside)
    assert told([norm, other, gradient], None) == (norm, other, gradient)
    many = [norm] * FINDINGS
    assert told([*many, gradient], cause) == (gradient, *many[1:])


def test_a_baseline_knows_it(red: tuple[Path, Cell], tmp_path: Path) -> None:
    cell = judged(tmp_path, "True", "--baseline", str(_of(red[0], tmp_path)), code=0)
    assert cell.verdict == "red"


def test_a_merged_board_is_judged_again_whichever_shard_a_cell_was_of(
    red: tuple[Path, Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = boards.read(red[0] / "r" / "board.json")
    boards.write(replace(board, run=replace(board.run, command=f"{board.run.command} --shard 2/2")), tmp_path / "board.json")
    assert command.main(["rerun", str(tmp_path), "--quiet"]) == 1
    (again,) = boards.read(tmp_path / "board.json").cells
    assert "nothing went wrong" not in capsys.readouterr().err and again.verdict == "red" and again.seconds != red[1].seconds


@pytest.mark.parametrize("other", [{"case": f"{CELL}/of-another-version"}, {"engine": "of another run"}])
def test_cells_that_the_command_does_not_have_are_no_cells_that_held(
    red: tuple[Path, Cell], tmp_path: Path, other: dict[str, Any]
) -> None:
    board = boards.read(red[0] / "r" / "board.json")
    engines = (*board.engines, replace(board.engines[0], key="of another run"))
    cells = (red[1], replace(red[1], **other))
    boards.write(replace(board, engines=engines, cells=cells, cases={one.case: {} for one in cells}), tmp_path / "board.json")
    assert command.main(["rerun", str(tmp_path), "--quiet"]) == 2


def test_what_is_right_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(tmp_path, "False", code=0).verdict == "held"
    assert "again:" not in capsys.readouterr().out


def test_what_is_not_red_again_is_void(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = f"not os.path.exists({str(tmp_path)!r} + '/' + os.environ['RANK']) and open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w')"
    cell = judged(tmp_path, once, code=3)
    assert cell.verdict == "void" and "red again in new processes" in cell.text and "got held" in cell.text
    assert "\nagain:  equigrad judge rerun " in capsys.readouterr().out, "it went wrong, though nobody's number is red"


def test_the_lines_behind_again_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged(tmp_path, "True", "--seed", "3", code=1)
    said = capsys.readouterr().out.splitlines()
    cell, whole = (line.partition("again:")[2] for line in said if line.lstrip().startswith("again:"))
    assert said[-2:] == [f"report: {tmp_path / 'r' / 'index.html'}", f"again:{whole}"]
    assert whole.split() == ["equigrad", "judge", "rerun", str(tmp_path / "r")]
    assert command.main([*shlex.split(cell)[2:], "--quiet", "--report", str(tmp_path / "other")]) == 1
    board = boards.read(tmp_path / "other" / "board.json")
    assert [(one.case, one.verdict) for one in board.cells] == [(CELL, "red")] and board.run.seed == 3


def test_a_script_in_a_report_names_itself(red: tuple[Path, Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = boards.read(red[0] / "r" / "board.json")
    script = "#     torchrun --nproc-per-node 2 repro.py\nprint('repro.py')\n"
    cell = replace(red[1], engine="by hand", repro=Repro(script, True))
    of_hand = replace(board, cells=(cell,), engines=(replace(board.engines[0], key="by hand"),))
    assert Outputs(report=str(tmp_path)).write(of_hand, None) == 1
    name = "zero0-fp32-loss_backward-accumulation2.py"
    path = tmp_path / "repro" / "by-hand" / name
    assert path.read_text() == f"#     torchrun --nproc-per-node 2 {name}\nprint('repro.py')\n"
    assert f"  script: {path}\n" in capsys.readouterr().out


def _of(folder: Path, tmp_path: Path) -> Path:
    """The baseline, as if the engine of another folder had been judged."""
    path = tmp_path / "base.json"
    path.write_text((folder / "base.json").read_text().replace(str(folder), str(tmp_path)))
    return path
