"""Boards put together and put beside each other: shards into one, a re-run into a board, a board against a baseline, two
versions of an engine in one board."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .board import VERDICTS, WRONG, Board, BoardError, Cell, Engine, Run


@dataclass(frozen=True)
class Change:
    """One case of one engine, before and after; None where a side has no such cell."""

    engine: str
    """The key of the later side, or of the earlier where the later has no such engine."""
    case: str
    before: Cell | None
    after: Cell | None


@dataclass(frozen=True)
class Comparison:
    """What changed between two boards, or two versions in one. Every case that either side has is in one of the lists."""

    before: str
    """What the earlier side is called."""
    after: str
    broke: tuple[Change, ...] = ()
    """Went wrong, and did not before, or was not there."""
    other_cause: tuple[Change, ...] = ()
    """Was wrong already, but for another cause or with another verdict."""
    still: tuple[Change, ...] = ()
    """As wrong as before."""
    mended: tuple[Change, ...] = ()
    """Was wrong, and held now."""
    gone: tuple[Change, ...] = ()
    """Was wrong, and is refused, absent or not run now: nobody knows."""
    lost: tuple[Change, ...] = ()
    """Held, and is refused, absent or not run now."""
    same: int = 0
    """Cases that are right, refused or absent on both sides, or new and not wrong."""

    @property
    def new(self) -> tuple[Change, ...]:
        """What a gate fails on."""
        return self.broke + self.other_cause


def merged(boards: Sequence[Board]) -> Board:
    """One board of the shards of a run. Raises BoardError where they are of different runs, or one cell is in two of them."""
    if not boards:
        raise BoardError("[judge] expected one board or more to merge, got none. Name the files of the shards.")
    first = boards[0]
    shards = [one.run.shard for one in boards]
    if len(set(shards)) < len(shards):
        twice = sorted(name or "a whole run" for name, count in Counter(shards).items() if count > 1)
        raise BoardError(f"[judge] expected every shard once, got {', '.join(twice)} twice. Take one away.")
    for one in boards[1:]:
        if one.run.seed != first.run.seed:
            raise BoardError(
                f"[judge] expected shards of one seed, got {first.run.seed} and {one.run.seed}. Give every shard the same --seed."
            )
    _expect_one_device(boards)
    return replace(
        first,
        engines=_engines(boards),
        cases={name: axes for one in boards for name, axes in one.cases.items()},
        cells=_cells(boards),
        run=_run(boards),
        not_run=_not_run(boards),
        notes=tuple(dict.fromkeys(note for one in boards for note in one.notes)),
    )


def renewed(board: Board, again: Board) -> Board:
    """The board with cells that were run again in place of the old ones. Raises BoardError where versions or devices differ."""
    _expect_one_device([board, again])
    newer = {(cell.engine, cell.case): cell for cell in again.cells}
    old = {(cell.engine, cell.case) for cell in board.cells}
    return replace(
        board,
        engines=_engines([board, again]),
        cases={**board.cases, **again.cases},
        cells=tuple(newer.get((cell.engine, cell.case), cell) for cell in board.cells)
        + tuple(cell for where, cell in newer.items() if where not in old),
        run=replace(board.run, seconds=board.run.seconds + again.run.seconds),
    )


def against_baseline(baseline: Board, board: Board) -> Comparison:
    """What changed since the baseline. An engine is the same one in another version, where each side has it once. A baseline of
    another device is named so."""
    pairs = _same_engines(baseline, board)
    changes = []
    for later, earlier in pairs:
        changes += _changes(_by_case(baseline, earlier), _by_case(board, later), later or earlier)
    where = f", on {baseline.run.device}" if baseline.run.device != board.run.device else ""
    return _sorted(f"the baseline{where}", "this run", changes)


def beside(board: Board, before: str, after: str) -> Comparison:
    """Two engines of one board, as a rule two versions. Raises BoardError where it has no such engine."""
    board.engine(before), board.engine(after)
    return _sorted(before, after, _changes(_by_case(board, before), _by_case(board, after), after))


def versions(board: Board) -> tuple[tuple[str, str], ...]:
    """Keys of engines that are versions of one, each with the next, in the order in which they were asked for."""
    by_name: dict[str, list[str]] = {}
    for one in board.engines:
        by_name.setdefault(one.name, []).append(one.key)
    return tuple(pair for keys in by_name.values() for pair in pairwise(keys))


def kinds_of(cell: Cell) -> tuple[str, ...]:
    """What may be the cause of a wrong cell, in short, the simplest first: several where its numbers cannot tell."""
    if cell.verdict != "red" or not cell.kind:
        return (re.sub(r"\d+", "#", cell.headline),)  # which rank died first is chance
    if cell.kind == "unknown":
        return (f"unknown, {cell.findings[0].what if cell.findings else ''}",)
    return tuple(cell.kind.split(" or "))


def same_cause(one: Cell, other: Cell) -> bool:
    """Whether two cells of an engine may be wrong for the same reason."""
    return one.verdict == other.verdict and bool(set(kinds_of(one)) & set(kinds_of(other)))


def worst(verdicts: Iterable[str]) -> str:
    """The worst of them; "" of none."""
    return min(verdicts, key=VERDICTS.index, default="")


def _engines(boards: Sequence[Board]) -> tuple[Engine, ...]:
    found: dict[str, Engine] = {}
    for one in (engine for board in boards for engine in board.engines):
        other = found.setdefault(one.key, one)
        if not (_agree(one.version, other.version) and _agree(one.torch, other.torch)):
            raise BoardError(
                f"[judge] expected {one.key} in one version, got {other.version} on torch {other.torch} and {one.version} on torch "
                f"{one.torch}. Run all of it with one of these."
            )
        if not other.torch:
            found[one.key] = one
    return tuple(found.values())


def _expect_one_device(boards: Sequence[Board]) -> None:
    devices = list(dict.fromkeys(one.run.device for one in boards))
    if len(devices) > 1:
        raise BoardError(f"[judge] expected boards of one device, got {' and '.join(devices)}. Give all the same --device.")


def _agree(one: str, other: str) -> bool:
    """An engine that never answered has told nothing of itself."""
    return one == other or not one or not other


def _cells(boards: Sequence[Board]) -> tuple[Cell, ...]:
    found: dict[tuple[str, str], Cell] = {}
    for cell in (cell for board in boards for cell in board.cells):
        if (cell.engine, cell.case) in found:
            raise BoardError(
                f"[judge] expected every cell in one shard, got {cell.engine} on {cell.case} in two. Give shards of one run: 1/n to n/n."
            )
        found[(cell.engine, cell.case)] = cell
    order = {key: index for index, key in enumerate(_engines_order(boards))}
    return tuple(sorted(found.values(), key=lambda cell: order[cell.engine]))


def _engines_order(boards: Sequence[Board]) -> list[str]:
    return list(dict.fromkeys(one.key for board in boards for one in board.engines))


def _not_run(boards: Sequence[Board]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in boards:
        total.update(one.not_run)
    return dict(total)


def _run(boards: Sequence[Board]) -> Run:
    runs = [one.run for one in boards]
    shards = [one.shard for one in runs]
    return replace(
        runs[0],
        seconds=sum(one.seconds for one in runs),
        started=min(one.started for one in runs),
        shard="",
        partial="; ".join(dict.fromkeys([*filter(None, (one.partial for one in runs)), *_missing(shards)])),
    )


def _missing(shards: Sequence[str]) -> list[str]:
    totals = {name.partition("/")[2] for name in shards if name}
    if len(totals) > 1:
        raise BoardError(
            f"[judge] expected shards of one number, got {', '.join(sorted(shards))}. Give 1/n to n/n of one n."
        )
    return [f"shard {i}/{n} is missing" for n in totals for i in range(1, int(n) + 1) if f"{i}/{n}" not in shards]


def _same_engines(baseline: Board, board: Board) -> list[tuple[str, str]]:
    """(key of the board or "", key of the baseline or "")."""
    earlier = {one.key: one.name for one in baseline.engines}
    pairs = [(one.key, one.key) for one in board.engines if one.key in earlier]
    rest = [one for one in board.engines if one.key not in earlier]
    taken = {key for key, _ in pairs}
    for one in rest:
        keys = [key for key, name in earlier.items() if name == one.name and key not in taken]
        alone = len(keys) == 1 and sum(other.name == one.name for other in rest) == 1
        pairs.append((one.key, keys[0] if alone else ""))
        taken.update(keys if alone else ())
    return pairs + [("", key) for key in earlier if key not in taken]


def _by_case(board: Board, key: str) -> dict[str, Cell]:
    return {cell.case: cell for cell in board.of_engine(key)}


def _changes(before: dict[str, Cell], after: dict[str, Cell], key: str) -> list[Change]:
    return [Change(key, case, before.get(case), after.get(case)) for case in dict.fromkeys([*after, *before])]


def _kind_of(change: Change) -> str:
    before, after = change.before, change.after
    was = before is not None and before.verdict in WRONG
    if after is not None and after.verdict in WRONG:
        if before is None or not was:
            return "broke"
        return "still" if same_cause(before, after) else "other_cause"
    held = after is not None and after.verdict == "held"
    if was:
        return "mended" if held else "gone"
    return "lost" if before is not None and before.verdict == "held" and not held else "same"


def _sorted(before: str, after: str, changes: Iterable[Change]) -> Comparison:
    lists: dict[str, list[Change]] = {
        name: [] for name in ("broke", "other_cause", "still", "mended", "gone", "lost", "same")
    }
    for change in changes:
        lists[_kind_of(change)].append(change)
    same = len(lists.pop("same"))
    return Comparison(before, after, **{name: tuple(found) for name, found in lists.items()}, same=same)
