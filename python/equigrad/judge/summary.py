"""A board, counted and grouped as a person reads it: the verdict, every cause once, engines by axes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .board import VERDICTS, WRONG, Board, Cell, Engine, Finding, Known, Repro
from .compare import Comparison, kinds_of, worst

GLYPHS = {"red": "✗", "crashed": "!", "hung": "◷", "void": "?", "refused": "⊘", "absent": "–", "held": "✓", "": "·"}
"""So that no verdict is known by its colour alone; "" is a place without cells."""
MEANINGS = {
    "held": "Every number is right.",
    "red": "A number is wrong by more than rounding explains.",
    "crashed": "A rank died or raised an error that it should not have: nothing is known of the numbers.",
    "hung": "A rank did not answer in its time.",
    "void": "The judge is at fault, or nothing could be compared. It counts for nobody.",
    "refused": "The engine itself said that it does not support this. Neither a pass nor a failure.",
    "absent": "The engine has no such feature.",
}


@dataclass(frozen=True)
class Condition:
    """What the cells of a cause have in common on one axis, where the engine was tried with other values, too."""

    axis: str
    values: tuple[str, ...]
    others: tuple[str, ...]
    """Values with which it was tried, and is not wrong for this reason."""

    @property
    def words(self) -> str:
        """ "stage 2", "precision other than fp64", "7 of 10 precisions"."""
        named = [value or "none" for value in self.values]
        if len(named) <= 4:
            return f"{self.axis} {listed(named, 'or')}"
        if len(self.others) <= 2:
            return f"{self.axis} other than {listed([value or 'none' for value in self.others], 'or')}"
        return f"{len(named)} of {counted(len(named) + len(self.others), self.axis)}"


@dataclass(frozen=True)
class Cause:
    """Cells of one engine that are wrong for one reason; versions of an engine are one engine."""

    number: int
    """From 1, in the order in which they are shown."""
    verdict: str
    engine: str
    """Its name, without a version."""
    keys: tuple[str, ...]
    """The versions that have it."""
    cells: tuple[Cell, ...]
    conditions: tuple[Condition, ...]
    alike: int
    """Cells of these versions that meet all conditions and held; 0: the conditions tell right from wrong."""
    known: tuple[Known, ...]

    @property
    def example(self) -> Cell:
        """The cell to look at: with a script that was confirmed, if there is one, without a feature, wrong from the first step."""
        return min(self.cells, key=_plainness)

    @property
    def sentence(self) -> str:
        """That of the example."""
        return self.example.headline

    @property
    def others(self) -> tuple[str, ...]:
        """What else its cells say, but for other numbers."""
        said = {re.sub(r"[\d.]+", "#", cell.headline): cell.headline for cell in (*self.cells, self.example)}
        return tuple(one for one in said.values() if one != self.sentence)

    @property
    def finding(self) -> Finding | None:
        """The first finding of the example."""
        return next(iter(self.example.findings), None)

    @property
    def repro(self) -> Repro | None:
        """The script of the example."""
        return self.example.repro


@dataclass(frozen=True)
class Reason:
    """Cells of one engine that were not judged, for one reason in its own words; of those that held, what was not compared."""

    verdict: str
    engine: str
    text: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Box:
    """Cells counted together."""

    counts: dict[str, int]

    @property
    def verdict(self) -> str:
        """The worst that is in it. What is right counts more than what was not judged."""
        judged = [one for one in self.counts if one not in ("refused", "absent")]
        return worst(judged or self.counts)

    @property
    def total(self) -> int:
        """All cells."""
        return sum(self.counts.values())

    @property
    def judged(self) -> int:
        """Those that are neither refused nor absent."""
        return self.total - self.of("refused") - self.of("absent")

    def of(self, verdict: str) -> int:
        """How many have that verdict."""
        return self.counts.get(verdict, 0)

    @property
    def text(self) -> str:
        """For a box of a table: "14", or "3/14" where 3 of 14 judged went wrong."""
        wrong = sum(self.of(one) for one in WRONG)
        return f"{wrong}/{self.judged}" if wrong else str(self.judged or self.total) if self.total else ""

    @property
    def words(self) -> str:
        """For who cannot see the box: "3 red, 11 held, 2 absent"."""
        return ", ".join(f"{self.of(one):,} {one}" for one in VERDICTS if self.of(one)) or "no cells"


@dataclass(frozen=True)
class Row:
    """One value of an axis."""

    value: str
    boxes: tuple[Box, ...]
    """By engine, in the board's order."""


@dataclass(frozen=True)
class Axis:
    """An axis on which cases differ."""

    name: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class EngineSummary:
    """One engine's part."""

    engine: Engine
    box: Box
    causes: tuple[Cause, ...]
    compared: int
    exact: int


@dataclass(frozen=True)
class Outcome:
    """The verdict on a run."""

    word: str
    """HELD, RED, BROKEN (crashed, hung or void, nothing red), INCONCLUSIVE (nothing compared) or PARTIAL."""
    sentence: str
    exit_code: int
    """0 held, 1 red, 3 broken, 4 inconclusive or partial. With a baseline only what is new counts."""


@dataclass(frozen=True)
class Summary:
    """All of it."""

    board: Board
    outcome: Outcome
    box: Box
    engines: tuple[EngineSummary, ...]
    causes: tuple[Cause, ...]
    """Of red cells."""
    troubles: tuple[Cause, ...]
    """Of crashed, hung and void ones."""
    reasons: tuple[Reason, ...]
    axes: tuple[Axis, ...]
    comparisons: tuple[Comparison, ...] = ()
    gate: Comparison | None = None
    """Against a baseline; it decides the outcome."""
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    """(engine's key, case) -> number of its cause."""


def summarise(board: Board, baseline: Comparison | None = None, beside: Sequence[Comparison] = ()) -> Summary:
    """The board, grouped. `baseline` decides the outcome where it is given; `beside` are shown with it."""
    wrong = _causes(board)
    causes = tuple(one for one in wrong if one.verdict == "red")
    comparisons = (*((baseline,) if baseline else ()), *beside)
    return Summary(
        board=board,
        outcome=_outcome(board, causes, baseline),
        box=box_of(board.cells),
        engines=tuple(_engine(board, one, wrong) for one in board.engines),
        causes=causes,
        troubles=tuple(one for one in wrong if one.verdict != "red"),
        reasons=_reasons(board),
        axes=axes_of(board),
        comparisons=comparisons,
        gate=baseline,
        numbers={(cell.engine, cell.case): one.number for one in wrong for cell in one.cells},
    )


def box_of(cells: Iterable[Cell]) -> Box:
    """The cells, counted."""
    return Box(dict(Counter(cell.verdict for cell in cells)))


def axes_of(board: Board) -> tuple[Axis, ...]:
    """Engines by axes: those axes that have more than one value, in the order of the cases."""
    values: dict[str, dict[str, None]] = {}
    for axes in board.cases.values():
        for axis, value in axes.items():
            values.setdefault(axis, {})[value] = None
    cells: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in board.cells:
        for axis, value in board.cases[cell.case].items():
            cells.setdefault((axis, value, cell.engine), []).append(cell)
    return tuple(
        Axis(
            axis,
            tuple(
                Row(value, tuple(box_of(cells.get((axis, value, one.key), ())) for one in board.engines))
                for value in in_order(found)
            ),
        )
        for axis, found in values.items()
        if len(found) > 1
    )


def in_order(values: Iterable[str]) -> list[str]:
    """Each once: numbers as numbers, all else as it comes; "" is first."""
    once = list(dict.fromkeys(values))
    return sorted(once, key=int) if all(value.isdigit() for value in once) else sorted(once, key=bool)


def counted(number: int, word: str, plural: str = "") -> str:
    """ "1 cause", "2 causes", "1,234 cells"."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """ "a", "a and b", "a, b and c"."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def label_of(engine: Engine) -> str:
    """The engine with its version, as it is shown: "deepspeed 0.19.8"; engines that are torch's go by torch's version."""
    return f"{short(engine.name)} {engine.version or engine.torch}".strip()


def short(name: str) -> str:
    """An engine that never answered is called by its whole command."""
    return name if len(name) <= 40 else name[:37] + "..."


def _plainness(cell: Cell) -> tuple[bool, bool, int, int]:
    confirmed = cell.repro is not None and cell.repro.confirmed is True
    return (not confirmed, cell.repro is None, cell.case.count("/"), min((one.step for one in cell.findings), default=0))


def _causes(board: Board) -> tuple[Cause, ...]:
    names = {one.key: one.name for one in board.engines}
    wrong: dict[tuple[str, str], list[Cell]] = {}
    for cell in board.cells:
        if cell.verdict in WRONG:
            wrong.setdefault((names[cell.engine], cell.verdict), []).append(cell)
    groups = [(name, verdict, cells) for (name, verdict), found in wrong.items() for cells in _explained(found)]
    engines = list(dict.fromkeys(names.values()))
    groups.sort(key=lambda group: (VERDICTS.index(group[1]), engines.index(group[0]), -len(group[2])))
    return tuple(_cause(board, number, name, cells) for number, (name, _, cells) in enumerate(groups, 1))


def _explained(cells: Sequence[Cell]) -> list[list[Cell]]:
    """As few groups as may be, each of which one kind explains; where numbers leave several open, the commonest is taken."""
    groups = []
    left = list(cells)
    while left:
        kind, _ = Counter(kind for cell in left for kind in kinds_of(cell)).most_common(1)[0]
        groups.append([cell for cell in left if kind in kinds_of(cell)])
        left = [cell for cell in left if kind not in kinds_of(cell)]
    return groups


def _cause(board: Board, number: int, name: str, cells: Sequence[Cell]) -> Cause:
    keys = tuple(one.key for one in board.engines if any(cell.engine == one.key for cell in cells))
    judged = [cell for key in keys for cell in board.of_engine(key) if cell.verdict in ("held", *WRONG)]
    mine = {(cell.engine, cell.case) for cell in cells}
    others = [cell for cell in judged if (cell.engine, cell.case) not in mine]
    conditions, alike = _telling(board, _conditions(board, cells, judged), others)
    known = tuple(dict.fromkeys(one for cell in cells for one in cell.known))
    return Cause(number, cells[0].verdict, name, keys, tuple(cells), conditions, len(alike), known)


def _conditions(board: Board, cells: Sequence[Cell], judged: Sequence[Cell]) -> tuple[Condition, ...]:
    """Axes on which these cells have fewer values than all that were judged."""
    found = []
    for axis in dict.fromkeys(axis for cell in judged for axis in board.cases[cell.case]):
        all_values = in_order(board.cases[cell.case].get(axis, "") for cell in judged)
        here = {board.cases[cell.case].get(axis, "") for cell in cells}
        if len(here) < len(all_values):
            others = tuple(value for value in all_values if value not in here)
            found.append(Condition(axis, tuple(value for value in all_values if value in here), others))
    return tuple(found)


def _telling(
    board: Board, conditions: Sequence[Condition], others: Sequence[Cell]
) -> tuple[tuple[Condition, ...], list[Cell]]:
    """As few of the conditions as tell these cells from others, and the other cells that held and meet them all the same."""
    left = [cell for cell in others if cell.verdict == "held"]
    chosen: list[Condition] = []
    while left:
        meeting = {
            one.axis: [cell for cell in left if board.cases[cell.case].get(one.axis, "") in one.values] for one in conditions
        }
        best = min(conditions, key=lambda one: len(meeting[one.axis]), default=None)
        if best is None or len(meeting[best.axis]) == len(left):
            break
        chosen.append(best)
        left = meeting[best.axis]
    return tuple(one for one in conditions if one in chosen), left


def _reasons(board: Board) -> tuple[Reason, ...]:
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in board.cells:
        if cell.verdict in ("refused", "absent"):
            groups.setdefault((cell.verdict, cell.engine, cell.text), []).append(cell)
        elif cell.verdict == "held":
            for note in filter(None, cell.text.splitlines()):
                groups.setdefault((cell.verdict, cell.engine, note), []).append(cell)
    return tuple(Reason(*where, tuple(cells)) for where, cells in sorted(groups.items(), key=_by_reason))


def _by_reason(item: tuple[tuple[str, str, str], list[Cell]]) -> tuple[int, int]:
    (verdict, _, _), cells = item
    return VERDICTS.index(verdict), -len(cells)


def _engine(board: Board, engine: Engine, causes: Sequence[Cause]) -> EngineSummary:
    cells = board.of_engine(engine.key)
    mine = tuple(one for one in causes if engine.key in one.keys)
    return EngineSummary(
        engine, box_of(cells), mine, sum(cell.compared for cell in cells), sum(cell.exact for cell in cells)
    )


def _outcome(board: Board, causes: Sequence[Cause], baseline: Comparison | None) -> Outcome:
    box = box_of(board.cells)
    broken = sum(box.of(one) for one in ("crashed", "hung", "void"))
    engines = list(dict.fromkeys(short(one.engine) for one in causes))
    tail = f" This is not the whole run: {board.run.partial}." if board.run.partial else ""
    if baseline is not None:
        return _against(board, baseline, tail)
    if causes:
        text = f"{counted(len(causes), 'cause')} in {listed(engines)}: {counted(box.of('red'), 'cell')} of {box.judged:,} judged went red."
        more = f" {counted(broken, 'cell')} more crashed, hung or could not be judged." if broken else ""
        return Outcome("RED", text + more + tail, 1)
    if broken:
        rest = "In the others every number is right." if box.of("held") else "No other was judged."
        text = f"{counted(broken, 'cell')} of {box.judged:,} crashed, hung or could not be judged. {rest}"
        return Outcome("BROKEN", text + tail, 3)
    return _green(board, box, tail)


def _green(board: Board, box: Box, tail: str) -> Outcome:
    compared = sum(cell.compared for cell in board.cells)
    if not compared:
        return Outcome("INCONCLUSIVE", "Nothing was compared." + tail, 4)
    if board.run.partial:
        return Outcome("PARTIAL", f"All {counted(box.of('held'), 'cell')} that were judged held." + tail, 4)
    names = listed(list(dict.fromkeys(short(one.name) for one in board.engines)))
    text = f"{names}: every number is right in {counted(box.of('held'), 'cell')}, {counted(compared, 'element')}."
    return Outcome("HELD", text, 0)


def _against(board: Board, baseline: Comparison, tail: str) -> Outcome:
    new, old = len(baseline.new), len(baseline.still)
    known = f" {counted(old, 'cell')} {'is' if old == 1 else 'are'} as wrong as in the baseline." if old else ""
    if any(change.after and change.after.verdict == "red" for change in baseline.new):
        return Outcome("RED", f"{counted(new, 'cell')} went wrong that did not before.{known}{tail}", 1)
    if new:
        return Outcome("BROKEN", f"{counted(new, 'cell')} crashed, hung or became void that did not before.{known}{tail}", 3)
    if not any(cell.compared for cell in board.cells):
        return Outcome("INCONCLUSIVE", "Nothing was compared." + tail, 4)
    if board.run.partial:
        return Outcome("PARTIAL", f"Nothing new went wrong in what was judged.{known}{tail}", 4)
    mended = f" {counted(len(baseline.mended), 'cell')} mended." if baseline.mended else ""
    return Outcome("HELD", f"Nothing went wrong that was right before.{known}{mended}", 0)
