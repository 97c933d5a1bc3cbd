"""Faults that are known already: known.json names their engine, versions, cells and kinds of cause, and where to read of them."""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .board import Board, BoardError, Cell, Known
from .cases import matches
from .on_rank.protocol import ProtocolError, from_json

FILE = Path(__file__).with_name("known.json")
_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Fault:
    """A known fault. A red cell is it, where everything fits."""

    engine: str
    """As in Engine.name."""
    versions: str
    """Comparisons, all of which must hold: ">=0.17.6,<0.18.3"; "" is every version."""
    cells: tuple[str, ...]
    """Patterns of ids, as --only has them; one of them must match."""
    kinds: tuple[str, ...]
    """One of them must be among the kinds of the cell's cause."""
    link: str
    words: str


@functools.cache
def faults(path: Path = FILE) -> tuple[Fault, ...]:
    """Those in the file. Raises BoardError where it is not as it should be."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        found = tuple(from_json(Fault, one) for one in value["faults"])
        for one in found:
            _parsed(one.versions)
    except (OSError, ValueError, KeyError, TypeError, ProtocolError) as error:
        raise BoardError(f"[judge] expected known faults in {path.name}, got: {error}. Correct the file.") from None
    return found


def with_known(board: Board, known: Sequence[Fault] | None = None) -> Board:
    """The board, each red cell with the faults that it is; what it had already stays."""
    listed = faults() if known is None else known
    return replace(board, cells=tuple(_named(board, cell, listed) for cell in board.cells))


def meets(version: str, versions: str) -> bool:
    """Whether a version is among those: meets("0.18.2", ">=0.17.6,<0.18.3"). An unknown version ("") is among none but ""."""
    if not versions:
        return True
    release = _release(version)
    return bool(release) and all(compare(release, bound) for compare, bound in _parsed(versions))


def _named(board: Board, cell: Cell, listed: Sequence[Fault]) -> Cell:
    if cell.verdict != "red":
        return cell
    engine = board.engine(cell.engine)
    kinds = cell.kind.split(" or ")
    fitting = [
        Known(one.link, one.words)
        for one in listed
        if one.engine == engine.name
        and meets(engine.version, one.versions)
        and any(matches(cell.case, pattern) for pattern in one.cells)
        and any(kind in one.kinds for kind in kinds)
    ]
    return replace(cell, known=tuple(dict.fromkeys([*cell.known, *fitting])))


def _parsed(versions: str) -> list[tuple[Callable[[tuple[int, ...], tuple[int, ...]], bool], tuple[int, ...]]]:
    found = []
    for part in filter(None, (part.strip() for part in versions.split(","))):
        match = re.fullmatch(r"(>=|<=|==|>|<)\s*(\d+(?:\.\d+)*)", part)
        if match is None:
            raise BoardError(f'[judge] expected versions like ">=0.17.6,<0.18.3", got {versions!r}. Correct it.')
        found.append((_COMPARISONS[match[1]], _release(match[2])))
    return found


def _release(version: str) -> tuple[int, ...]:
    """ "0.18.2+cpu" -> (0, 18, 2); trailing zeros count for nothing."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
