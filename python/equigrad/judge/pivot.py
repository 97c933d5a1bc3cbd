"""All cells of an engine on one screen: a small square each, two axes down and two across."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from .board import Board, Cell
from .cases import FEATURES
from .summary import in_order


@dataclass(frozen=True)
class Head:
    """A heading over several columns."""

    text: str
    span: int


@dataclass(frozen=True)
class Line:
    """A row: its headings, and a cell or None for every column."""

    heads: tuple[str, ...]
    about: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Pivot:
    """One table."""

    title: str
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    heads: tuple[tuple[Head, ...], ...]
    """A row of headings for each axis that goes across."""
    lines: tuple[Line, ...]


def pivots(board: Board, key: str) -> tuple[Pivot, ...]:
    """The cells of an engine: those of the cross of axes, then those of features. Every cell is in exactly one."""
    cells = board.of_engine(key)
    plain = [cell for cell in cells if not board.cases[cell.case].get("feature")]
    special = [cell for cell in cells if board.cases[cell.case].get("feature")]
    found = []
    if plain:
        found += _tables(
            board,
            "Every stage, precision, call style and accumulation",
            plain,
            ("stage", "precision"),
            ("style", "accumulation"),
        )
    if special:
        found += _tables(board, "Features", special, ("feature",), ("stage", "precision"))
    return tuple(found)


def _tables(
    board: Board, title: str, cells: Sequence[Cell], row_axes: tuple[str, ...], column_axes: tuple[str, ...]
) -> list[Pivot]:
    """One table; a further one for cells whose place in it is taken, as where cases differ on an axis that it has not."""
    places: dict[tuple[tuple[str, ...], tuple[str, ...]], Cell] = {}
    rest: list[Cell] = []
    for cell in cells:
        axes = board.cases[cell.case]
        where = (_values(axes, row_axes), _values(axes, column_axes))
        if places.setdefault(where, cell) is not cell:
            rest.append(cell)
    rows = sorted({row for row, _ in places}, key=_order(board, row_axes))
    columns = sorted({column for _, column in places}, key=_order(board, column_axes))
    lines = tuple(Line(row, _about(row_axes, row), tuple(places.get((row, column)) for column in columns)) for row in rows)
    table = Pivot(title, row_axes, column_axes, _heads(columns, len(column_axes)), lines)
    return [table, *(_tables(board, title, rest, row_axes, column_axes) if rest else ())]


def _values(axes: dict[str, str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(axes.get(name, "") for name in names)


def _order(board: Board, names: tuple[str, ...]) -> Callable[[tuple[str, ...]], tuple[int, ...]]:
    """By the order of the values in the board."""
    seen: list[dict[str, int]] = []
    for name in names:
        values = in_order(axes.get(name, "") for axes in board.cases.values())
        seen.append({value: index for index, value in enumerate(values)})
    return lambda where: tuple(known[value] for known, value in zip(seen, where, strict=True))


def _heads(columns: Sequence[tuple[str, ...]], depth: int) -> tuple[tuple[Head, ...], ...]:
    rows = []
    for level in range(depth):
        runs = [(part, len(list(group))) for part, group in groupby(columns, key=lambda column: column[: level + 1])]
        rows.append(tuple(Head(part[-1], count) for part, count in runs))
    return tuple(rows)


def _about(axes: Sequence[str], row: Sequence[str]) -> str:
    feature = dict(zip(axes, row, strict=True)).get("feature", "")
    return FEATURES[feature].about if feature in FEATURES else ""
