"""The table of what was caught, from results of plant.py."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAD = """\
# Faults planted into the engines under test

Each is a patch of DDP or FSDP2 in the ranks' own processes (`planted_faults/`), invented before the cells were looked at
(`inventions.md`). The judge is not told of any. `plant.py --enough 4` plants one after another, runs cells that it can show in until
four are red, and writes this page.

- fired: cells in which the fault changed numbers, by its own count, of all cells that ran;
- red: cells that the judge calls wrong;
- right: red cells whose cause, as printed, is the fault's; where several faults give the same numbers, it is named among them;
- unknown: red cells that say that no known fault explains what was got; wrong: red cells with another cause.

A fault is caught where a cell is red in which it changed something. Its cause is right where more than half of these name it.
"""


@dataclass(frozen=True)
class Row:
    """What became of a fault."""

    name: str
    what: str
    subtle: bool
    expected: tuple[str, ...]
    cells: list[dict[str, Any]]

    @property
    def ran(self) -> int:
        return sum(cell["verdict"] in ("held", "red", "crashed", "hung", "void") for cell in self.cells)

    @property
    def fired(self) -> int:
        return sum(cell["fired"] > 0 for cell in self.cells)

    @property
    def red(self) -> list[dict[str, Any]]:
        return [cell for cell in self.cells if cell["verdict"] == "red" and cell["fired"]]

    @property
    def false(self) -> int:
        """Red cells in which nothing was changed."""
        return sum(cell["verdict"] == "red" and not cell["fired"] for cell in self.cells)

    def count(self, how: str) -> int:
        """Of red cells: "right", "unknown" or "wrong"."""
        return sum(self._how(cell) == how for cell in self.red)

    def _how(self, cell: dict[str, Any]) -> str:
        if set(cell["kinds"]) & set(self.expected):
            return "right"
        return "unknown" if cell["kinds"] == ["unknown"] else "wrong"

    @property
    def is_right(self) -> bool:
        return self.count("right") * 2 > len(self.red)

    @property
    def printed(self) -> str:
        """The commonest sentence, without where it was."""
        for how in ("right", "wrong", "unknown"):
            causes = Counter(cell["cause"] for cell in self.red if self._how(cell) == how)
            if causes and (how == "right" or not self.count("right")):
                return causes.most_common(1)[0][0].replace("|", "\\|")
        return ""


def rows_of(results: Path, faults: dict[str, Any]) -> list[Row]:
    """In the order of the faults."""
    rows = []
    for name, fault in faults.items():
        path = results / f"{name}.json"
        if path.exists():
            rows.append(Row(name, fault.what, fault.subtle, fault.kinds, json.loads(path.read_text())["cells"]))
    return rows


def table(results: Path, faults: dict[str, Any]) -> str:
    """The page."""
    rows = rows_of(results, faults)
    real, controls = [row for row in rows if row.expected], [row for row in rows if not row.expected]
    planted = [row for row in real if row.fired]
    caught = [row for row in planted if row.red]
    right = [row for row in caught if row.is_right]
    lines = [HEAD]
    lines.append(f"{len(real)} faults, {len(planted)} of which changed numbers in some cell ({sum(row.subtle for row in planted)} subtle).")
    lines.append(f"**Caught: {len(caught)} of {len(planted)}. Cause right: {len(right)} of {len(caught)}.**")
    reds = [cell for row in real for cell in row.red]
    named = sum(row.count("right") for row in real)
    lines.append(f"Over all {len(reds)} red cells: {named} right, {sum(row.count('unknown') for row in real)} unknown, {sum(row.count('wrong') for row in real)} wrong.")
    green = sum(not row.red and not row.false for row in controls)
    lines.append(f"Controls, which are no faults: {green} of {len(controls)} green.")
    lines.append(f"Red cells in which the fault changed nothing: {sum(row.false for row in rows)}.\n")
    lines.append("| fault | what | subtle | fired | red | right | unknown | wrong | cause as printed |")
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in real:
        mark = "" if row.red and row.is_right else "**" if row.fired else "_"
        counts = f"{row.fired} of {row.ran} | {len(row.red)} | {row.count('right')} | {row.count('unknown')} | {row.count('wrong')}"
        lines.append(f"| {mark}{row.name}{mark} | {row.what} | {'yes' if row.subtle else ''} | {counts} | {row.printed} |")
    lines.append("\nBold: not caught, or its cause is not right. Italic: it changed no number in any cell.\n")
    lines.append("## Controls\n\n| control | what | fired | red |\n|---|---|---|---|")
    lines += [f"| {row.name} | {row.what} | {row.fired} of {row.ran} | {len(row.red)} |" for row in controls]
    return "\n".join(lines) + "\n"
