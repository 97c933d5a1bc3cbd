"""The record of a run: which engines were judged on which cases, and what came out (board.schema.json is its format)."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .on_rank.protocol import ProtocolError, from_json, to_json

BOARD = 1
"""The version of the format."""
VERDICTS = ("red", "crashed", "hung", "void", "refused", "absent", "held")
"""Of a cell, the worst first. refused: the engine itself said that it does not support this; absent: it has no such feature;
void: the judge is at fault, or nothing was compared."""
WRONG = ("red", "crashed", "hung", "void")
"""The verdicts that fail a run."""


class BoardError(ValueError):
    """A file that is no board of this format, or boards that do not belong together."""


@dataclass(frozen=True)
class Engine:
    """One engine under judgement, in one version."""

    key: str
    """As it was asked for: "ddp", "deepspeed==0.18.2". Cells name it by this."""
    name: str
    """Without a version: "deepspeed"."""
    version: str
    torch: str
    python: str = ""


@dataclass(frozen=True)
class Machine:
    """Where the run was."""

    processor: str = ""
    cores: int = 0
    memory_bytes: int = 0
    system: str = ""


@dataclass(frozen=True)
class Finding:
    """One thing that an engine computed and that is not what it must be: its worst element."""

    step: int
    """From 0."""
    what: str
    """"gradient", "parameter", "master", "norm", "loss", "lr", "loss scale", "applied", "replicas", ..."""
    got: float
    want: float
    radius: float
    """What rounding explains: |got - want| is at most this. 0: the bits must be equal."""
    name: str = ""
    """Of the parameter; "" where the finding is of none."""
    rank: int = -1
    """-1: of all ranks alike."""
    element: tuple[int, ...] = ()
    """Its index in the tensor."""
    wrong: int = 1
    """Elements that are wrong, of `of`."""
    of: int = 1


@dataclass(frozen=True)
class Repro:
    """A script with the engine and plain torch only, which shows a red cell without the judge."""

    script: str
    confirmed: bool | None = None
    """Whether it showed the fault when it was run; None: it was not run."""
    said: str = ""
    """What it printed."""
    path: str = ""
    """Relative to the folder of the report; "" where it is only in here."""


@dataclass(frozen=True)
class Known:
    """A fault that is known already."""

    link: str
    words: str


@dataclass(frozen=True)
class Cell:
    """One engine on one case."""

    engine: str
    """Engine.key."""
    case: str
    """A key of Board.cases."""
    verdict: str
    """One of VERDICTS."""
    seconds: float = 0.0
    compared: int = 0
    """Elements."""
    exact: int = 0
    """Those of them that had to be equal in every bit."""
    cause: str = ""
    """Of a red cell, a sentence."""
    kind: str = ""
    """A short word that is the same where the cause is the same, though its sentence has other numbers: "not-reduced";
    "not-reduced or rank-missing" where the numbers cannot tell; "unknown"; "": the sentence."""
    text: str = ""
    """Why it is absent or refused; what a crashed, hung or void one said."""
    findings: tuple[Finding, ...] = ()
    repro: Repro | None = None
    known: tuple[Known, ...] = ()

    @property
    def headline(self) -> str:
        """The cause of a red cell; else the line of its text that says most: of a traceback the error's."""
        if self.verdict == "red" and self.cause:
            return self.cause
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Timeout)\b", line)]
        return errors[-1] if errors else lines[0] if lines else self.verdict


@dataclass(frozen=True)
class Run:
    """How the cells came to be."""

    seed: int = 0
    command: str = ""
    started: str = ""
    """UTC, ISO 8601."""
    seconds: float = 0.0
    machine: Machine = Machine()
    made_by: str = ""
    """Equigrad's version."""
    shard: str = ""
    """"2/4" for the second of four; "" where it was not divided."""
    partial: str = ""
    """Why this is not all that was asked for: "interrupted", "shard 3/4 is missing"; "" where it is."""
    device: str = "cpu"
    """That models and engines were on: "cpu" or "cuda"."""


@dataclass(frozen=True)
class Board:
    """Engines, cases, and a cell for each engine on each case."""

    engines: tuple[Engine, ...]
    cases: dict[str, dict[str, str]]
    """By id, its value on every axis: {"stage": "2", "precision": "bf16", ...}."""
    cells: tuple[Cell, ...]
    run: Run = Run()
    not_run: dict[str, int] = field(default_factory=dict)
    """Why cells that were planned are not among `cells`, and how many."""
    notes: tuple[str, ...] = ()
    format: int = BOARD

    def engine(self, key: str) -> Engine:
        """The engine that cells call so. Raises BoardError where there is none."""
        for one in self.engines:
            if one.key == key:
                return one
        raise BoardError(
            f"[judge] expected an engine of {[one.key for one in self.engines]}, got {key!r}. Choose one of these."
        )

    def of_engine(self, key: str) -> tuple[Cell, ...]:
        """The cells of that engine."""
        return tuple(cell for cell in self.cells if cell.engine == key)


def dumps(board: Board) -> str:
    """The board as JSON text."""
    return json.dumps(to_json(board), indent=1, allow_nan=False) + "\n"


def loads(text: str, name: str = "the text") -> Board:
    """The board in JSON text, checked. `name` is for errors. Raises BoardError."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BoardError(
            f"[judge] expected {name} to be JSON, got: {error}. Give a file that `equigrad judge --json` wrote."
        ) from None
    found = value.get("format") if isinstance(value, dict) else None
    if found != BOARD:
        raise BoardError(
            f"[judge] expected {name} to be a board of format {BOARD}, got format {found}. "
            "Give a file that `equigrad judge --json` of this version wrote."
        )
    try:
        board = from_json(Board, value)
        _check(board)
    except (ProtocolError, BoardError) as error:
        said = (
            str(error)
            .removeprefix("[judge] ")
            .replace("docs/judge-protocol.md has all fields", "board.schema.json has all fields")
        )
        raise BoardError(f"[judge] {name}: {said}") from None
    return board


def read(path: str | os.PathLike[str]) -> Board:
    """The board in that file. Raises BoardError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BoardError(
            f"[judge] expected a board in {os.fspath(path)}, got: {error}. Give a file that `equigrad judge --json` wrote."
        ) from None
    return loads(text, os.fspath(path))


def write(board: Board, path: str | os.PathLike[str]) -> None:
    """Writes the board as JSON; a reader sees the old file or the new one, never a part."""
    whole = Path(path)
    part = whole.with_name(whole.name + ".part")
    part.write_text(dumps(board), encoding="utf-8")
    part.replace(whole)


def _check(board: Board) -> None:
    keys = [one.key for one in board.engines]
    if len(set(keys)) < len(keys):
        raise BoardError(f"[judge] expected every engine once, got {keys}. Take the second away.")
    seen = set()
    for cell in board.cells:
        where = f"{cell.engine} on {cell.case}"
        if cell.verdict not in VERDICTS:
            raise BoardError(
                f"[judge] expected a verdict of {list(VERDICTS)} for {where}, got {cell.verdict!r}. Correct it."
            )
        if cell.engine not in keys or cell.case not in board.cases:
            raise BoardError(f"[judge] expected cells of the engines and cases of the board, got {where}. Add it to them.")
        if (cell.engine, cell.case) in seen:
            raise BoardError(f"[judge] expected every cell once, got two of {where}. Take one away.")
        if not 0 <= cell.exact <= cell.compared:
            raise BoardError(
                f"[judge] expected 0 <= exact <= compared for {where}, got {cell.exact} of {cell.compared}. Correct it."
            )
        if cell.verdict == "held" and cell.compared == 0:
            raise BoardError(f"[judge] expected compared elements where {where} held, got none. Such a cell is void.")
        seen.add((cell.engine, cell.case))
