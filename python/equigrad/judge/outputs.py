"""Where a board goes: the terminal, the folder of a report, files, a workflow's annotations. Checked before anything runs."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from . import board as boards
from . import compare, known, writers
from .board import Board, Cell
from .environments import UsageError
from .summary import Summary, summarise

BOARD_FILE = "board.json"
"""In the folder of a report."""


@dataclass(frozen=True)
class Outputs:
    """As a person gave them; "" for none, "-" for the standard output."""

    report: str = ""
    json: str = ""
    junit: str = ""
    write_baseline: str = ""
    quiet: bool = False

    @staticmethod
    def add_to(parser: argparse.ArgumentParser, report: str) -> None:
        """The options. report: the folder where none is given."""
        group = parser.add_argument_group("what comes out")
        group.add_argument(
            "--report", default=report, metavar="DIR", help="index.html, board.json, board.md, junit.xml (%(default)s)"
        )
        group.add_argument("--json", default="", metavar="FILE", help="the board; - is the standard output")
        group.add_argument("--junit", default="", metavar="FILE", help="JUnit XML; - is the standard output")
        group.add_argument("--baseline", default="", metavar="FILE", help="a board: only what is newly wrong fails")
        group.add_argument("--write-baseline", default="", metavar="FILE", help="the board, for --baseline of later runs")
        group.add_argument("-q", "--quiet", action="store_true", help="no progress")

    @staticmethod
    def of(given: argparse.Namespace) -> Outputs:
        """Raises UsageError where a file or the folder cannot be written."""
        outputs = Outputs(given.report, given.json, given.junit, given.write_baseline, given.quiet)
        if outputs.json == outputs.junit == "-":
            raise UsageError("[judge] expected one of --json and --junit on the standard output, got both. Give one a file.")
        for option, path in (
            ("--json", outputs.json),
            ("--junit", outputs.junit),
            ("--write-baseline", outputs.write_baseline),
        ):
            if path and path != "-":
                _check_file(option, Path(path))
        if outputs.report:
            _check_folder(Path(outputs.report))
        return outputs

    def write(self, board: Board, baseline: Board | None) -> int:
        """Everything, and the summary for the terminal. Returns the exit code."""
        board = known.with_known(self._with_scripts(board))
        gate = compare.against_baseline(baseline, board) if baseline is not None else None
        beside = [compare.beside(board, *pair) for pair in compare.versions(board)]
        summary = summarise(board, gate, beside)
        if self.report:
            self._write_report(summary)
        for path, text in ((self.json, boards.dumps(board)), (self.junit, writers.to_junit(summary))):
            if path == "-":
                say(sys.stdout, text)
            elif path:
                Path(path).write_text(text, encoding="utf-8")
        if self.write_baseline:
            boards.write(board, self.write_baseline)
        self._say(summary)
        return summary.outcome.exit_code

    def _with_scripts(self, board: Board) -> Board:
        """The board, whose scripts say where they lie in the report."""
        if not self.report:
            return board
        return dataclasses.replace(board, cells=tuple(self._with_script(cell) for cell in board.cells))

    def _with_script(self, cell: Cell) -> Cell:
        if cell.repro is None or not cell.repro.script:
            return cell
        path = f"repro/{_file_name(cell.engine)}/{_file_name(cell.case)}.py"
        whole = Path(self.report, path)
        whole.parent.mkdir(parents=True, exist_ok=True)
        # Its own line that starts it names it as it is called here.
        whole.write_text(cell.repro.script.replace(" repro.py\n", f" {whole.name}\n", 1), encoding="utf-8")
        return dataclasses.replace(cell, repro=dataclasses.replace(cell.repro, path=path))

    def _write_report(self, summary: Summary) -> None:
        folder = Path(self.report)
        folder.mkdir(parents=True, exist_ok=True)
        boards.write(summary.board, folder / BOARD_FILE)
        runs = folder.resolve() / writers.RUNS
        page = writers.to_html(summary, writers.RUNS if runs.exists() else "")
        (folder / "index.html").write_text(page, encoding="utf-8")
        if runs.exists() and folder.resolve().name == "judge-report" and os.access(runs, os.W_OK):
            runs.write_text(writers.with_judge(runs.read_text(encoding="utf-8"), summary), encoding="utf-8")
        (folder / "board.md").write_text(writers.to_markdown(summary), encoding="utf-8")
        (folder / "junit.xml").write_text(writers.to_junit(summary), encoding="utf-8")

    def _say(self, summary: Summary) -> None:
        stream = sys.stderr if "-" in (self.json, self.junit) else sys.stdout
        colour = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        report = str(Path(self.report).resolve()) if self.report else ""
        say(stream, writers.to_text(summary, width, colour, report))
        if report:
            say(stream, f"report: {Path(report, 'index.html')}\n")
        if report and any(cell.verdict in boards.WRONG for cell in summary.board.cells):
            say(stream, f"again:  {shlex.join(['equigrad', 'judge', 'rerun', self.report])}\n")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            say(stream, writers.to_annotations(summary))
            step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
            if step_summary:
                with open(step_summary, "a", encoding="utf-8") as file:
                    file.write(writers.to_markdown(summary))


def say(stream: TextIO, text: str) -> None:
    """A reader that has gone, as `head` goes, misses the rest: that changes no verdict and no exit code."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def read_board(path: str) -> Board:
    """Of a file, or of a report's folder. Raises BoardError."""
    return boards.read(Path(path, BOARD_FILE) if Path(path).is_dir() else path)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-.")


def _check_file(option: str, path: Path) -> None:
    if (
        path.is_dir()
        or not path.resolve().parent.is_dir()
        or not os.access(path if path.exists() else path.resolve().parent, os.W_OK)
    ):
        raise UsageError(
            f"[judge] expected a file that can be written after {option}, got {path}. Make its folder, or give another."
        )


def _check_folder(path: Path) -> None:
    """Makes the folder and takes it away: some refuse what os.access() grants, and a run that is refused leaves nothing."""
    folder = path.resolve()
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"[judge] expected a folder that can be made after --report, got {path}: {error.strerror}. Give another."
        ) from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"[judge] expected a folder that can be written after --report, got {path}. Give another.")
    for one in missing:
        one.rmdir()
