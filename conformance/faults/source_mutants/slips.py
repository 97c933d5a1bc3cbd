"""Slips that people made, for the same campaign: a patch in which each sits behind `slip(N)`.

A patch of ../slips changes the engine's sources, and adds SLIPS.tsv (number, file, what is wrong, when it shows, severity) and
engine/slip.hpp, which is written anew here so that a slip is switched on as a mutant is.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections import Counter
from pathlib import Path

import report
from planting import Plan, git
from rules import Slip
from schemata import SWITCH
from sites import Site

HEADER = "engine/slip.hpp"


def header() -> str:
    switch = SWITCH.partition("#pragma clang diagnostic push")[0]
    return f"#pragma once\n{switch}namespace equigrad {{\ninline bool slip(int number) {{ return equigrad_mutant(number); }}\n}}\n"


def line_of(tree: Path, file: str, number: int) -> int:
    wanted = re.compile(rf"\bslip\({number}\)")
    for line, text in enumerate((tree / file).read_text().splitlines(), 1):
        if wanted.search(text):
            return line
    raise SystemExit(f"source_mutants: expected slip({number}) in {file}, as SLIPS.tsv says, got none. Mend the patch.")


def plant(tree: Path, patch: Path, plan: Plan) -> None:
    changed = git(tree, "status", "--porcelain").split("\n")[0]
    if changed:
        raise SystemExit(
            f"source_mutants: expected a clean git checkout, got in {tree}: {changed}. Take slips out again: git reset --hard."
        )
    done = subprocess.run(["git", "-C", str(tree), "apply", "--3way", str(patch.resolve())], capture_output=True, text=True)
    if done.returncode != 0:
        wrong = next(iter(done.stderr.splitlines()), "")
        raise SystemExit(
            f"source_mutants: expected {patch} to fit {tree}, got: {wrong}. Check out the commit that the page names for it."
        )
    (tree / HEADER).write_text(header())
    plan.sites = {}
    with open(tree / "SLIPS.tsv", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            number = int(row["number"])
            slip = Slip(operator=row["severity"], at=0, edits=[])
            line = line_of(tree, row["file"], number)
            key = f"{patch.stem}-{number}"
            plan.sites[number] = Site(row["file"], line, slip, "", row["what is wrong"], row["when it shows"], key)
    plan.about = {"commit": git(tree, "rev-parse", "--short", "HEAD").strip(), "patch": patch.name}
    plan.save()


def seen_by(row: dict) -> str:
    if row["killed_by"] is None:
        return "**not seen**" if any(one["outcome"] == "held" for one in row["judged"].values()) else "**not reached**"
    how = "" if row["how"] == "failed" else f", {row['how']}"
    return f"{row['killed_by']}{how}" + (f": `{row['test']}`" if row["test"] else "")


def page(rows: list[dict], examined: dict) -> str:
    """A table of the slips, for ../UNLISTED.md."""
    equal = [one for one in rows if "equivalent" in examined.get(one["site"], {})]
    counted = [one for one in rows if one not in equal]
    by = Counter(one["killed_by"] for one in counted if one["killed_by"] is not None)
    seen = sum(by.values())
    told = ", ".join(f"{count} by {name}" for name, count in by.most_common())
    lines = [f"Of {len(rows)} slips {len(equal)} change nothing; of the others **{report.share(seen, len(counted))}** were seen: {told}.", ""]
    head = ["No.", "Source in `engine/`", "The slip", "Seen first by", "What is known of it"]
    shown = []
    for one in sorted(rows, key=lambda row: row["mutant"]):
        found = examined.get(one["site"], {})
        known = found.get("equivalent") or found.get("why") or ""
        file = one["file"].removeprefix("engine/")
        by_whom = "equivalent" if one in equal else seen_by(one)
        shown.append([str(one["mutant"]), file, report.escaped(one["before"]), by_whom, report.escaped(known)])
    return "\n".join([*lines, *report.table(head, shown)])
