"""From outcomes of both engines to docs/deepspeed-tests.md."""

from __future__ import annotations

import json
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent

HEAD = """# DeepSpeed's own tests on this engine

DeepSpeed's tests at commit `{commit}`, unmodified, with `equigrad.deepspeed` in the place of its engine (`take_over`), beside
DeepSpeed itself at that commit, on the same machine: a CPU, Gloo, torch {torch}. `python/deepspeed_tests/run.py` runs them and
writes this page; the sentences are in `python/deepspeed_tests/reasons.json`.

- **passed**: on this engine, of those that apply.
- **refused**: by name, with what to do instead: the test asks for something that is not built here.
- **not applicable**: what a test is about is no part of this engine (experts, pipelines, NVMe), or is DeepSpeed's inside (a private
  method, a class or a file of its own, the number of its collectives), or no call of the test reaches this engine.
- **failed**: everything else, with its reason below.
- **of DeepSpeed's**: how many of the applicable tests that DeepSpeed passes here pass on this engine.

Tests run one after the other in one set of processes. Of those that failed in it, {theirs} of DeepSpeed's and {own} of this
engine's ran once more in processes of their own, and that outcome counts. {made}

Checkpoint tests look whether a load without optimizer states calls a private method of DeepSpeed's engine. The runner gives this
engine one, which a load calls where it asks for them.
"""


class Row(NamedTuple):
    test: str
    deepspeed: str
    here: str  # passed, refused, failed, skipped, not applicable
    reason: str


def read_reasons() -> list[dict]:
    return json.loads((HERE / "reasons.json").read_text())


def _first_line(text: str) -> str:
    line = next((one for one in text.splitlines() if one.strip()), "no reason was told").strip()
    return line if len(line) <= 200 else line[:197] + "..."


def _rule(reasons: list[dict], test: str, outcome: dict) -> dict | None:
    for rule in reasons:
        if fnmatchcase(test, rule["test"].replace("[", "[[]")) and rule.get("says", "") in outcome["reason"]:
            return rule
    return None


def rows(deepspeed: dict[str, dict], here: dict[str, dict], reasons: list[dict]) -> list[Row]:
    made = []
    for test, own in sorted(here.items()):
        other = deepspeed.get(test, {"outcome": "not run", "reason": ""})
        kind, reason = own["outcome"], ""
        if kind == "skipped":
            reason = _first_line(own["reason"].removeprefix("Skipped: "))
        elif not own.get("reached", True):
            needs = _rule([one for one in reasons if one.get("unreached")], test, own)
            kind, reason = "not applicable", needs["reason"] if needs is not None else "No call of it reaches this engine."
        elif kind != "passed":
            rule = _rule(reasons, test, own)
            kind = rule["kind"] if rule is not None else "failed"
            reason = rule["reason"] if rule is not None else _first_line(own["reason"])
        if other["outcome"] not in ("passed", "skipped", "not run") and kind == "passed":
            reason = f"DeepSpeed {other['outcome']}: {_first_line(other['reason'])}"
        made.append(Row(test, other["outcome"], kind, reason))
    return made


def _summary(file: str, found: list[Row]) -> str:
    here = Counter(row.here for row in found)
    theirs = Counter(row.deepspeed for row in found)
    both = sum(row.deepspeed == "passed" and row.here == "passed" for row in found)
    asked = sum(row.deepspeed == "passed" and row.here != "not applicable" for row in found)
    share = f"{both} of {asked} ({100 * both / asked:.0f} %)" if asked else "-"
    kinds = ("passed", "refused", "failed", "skipped", "not applicable")
    cells = [len(found), theirs["passed"], *(here[kind] for kind in kinds), share]
    return f"| {file} | " + " | ".join(str(cell) for cell in cells) + " |"


def _details(found: list[Row]) -> list[str]:
    groups: dict[tuple, list[str]] = {}
    for row in found:
        if row.here == "passed" and row.deepspeed in ("passed", "not run"):
            continue
        name, _, parameters = row.test.partition("::")[2].partition("[")
        groups.setdefault((name, row.deepspeed, row.here, row.reason), []).append(parameters.removesuffix("]"))
    lines = []
    for (name, theirs, here, reason), parameters in groups.items():
        given = ", ".join(f"`{one}`" for one in parameters if one)
        text = reason.replace("|", "\\|")
        lines.append(f"| `{name}` {given} | {len(parameters)} | {theirs} | {here} | {text} |")
    return lines


def _made(here: dict[str, dict]) -> str:
    """Of which commits of this engine the outcomes are; file by file where they are of several."""
    files: dict[str, set[str]] = {}
    for file, of_file in sorted(here.items()):
        for outcome in of_file.values():
            files.setdefault(outcome.get("commit", "unknown"), set()).add(f"`{file}`")
    if len(files) == 1:
        return f"This engine's outcomes are of its commit `{next(iter(files))}`."
    parts = [f"of `{commit}` in {', '.join(sorted(names))}" for commit, names in sorted(files.items())]
    return f"This engine's outcomes are of several of its commits: {'; '.join(parts)}."


def write(outcomes: dict, commit: str, torch_version: str) -> str:
    reasons = read_reasons()
    theirs, own = (
        sum("alone" in one for of_file in outcomes.get(name, {}).values() for one in of_file.values())
        for name in ("deepspeed", "equigrad")
    )
    made = _made(outcomes.get("equigrad", {}))
    parts = [HEAD.format(commit=commit, torch=torch_version, theirs=theirs, own=own, made=made)]
    by_file = {
        file: rows(outcomes.get("deepspeed", {}).get(file, {}), here, reasons)
        for file, here in sorted(outcomes.get("equigrad", {}).items())
    }
    parts.append(
        "| file | tests | DeepSpeed passed | passed | refused | failed | skipped | not applicable | of DeepSpeed's |"
    )
    parts.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    parts += [_summary(f"`{file}`", found) for file, found in by_file.items()]
    parts.append(_summary("all", [row for found in by_file.values() for row in found]))
    chosen = (HERE / "files.txt").read_text().split()
    skipped = outcomes.get("skipped files", {})
    for file in chosen:
        if file in skipped:
            parts.append(f"\n`{file}` is skipped as a whole: {_first_line(skipped[file].removeprefix('Skipped: '))}.")
    missing = [f"`{file}`" for file in chosen if file not in by_file and file not in skipped]
    if missing:
        parts.append(f"\nNot run yet: {', '.join(missing)}.")
    listed = outcomes.get("listed", {})  # how many tests each file has
    left = [f"{listed[file] - len(found)} of `{file}`" for file, found in by_file.items() if listed.get(file, 0) > len(found)]
    if left:
        parts.append(f"\nTests that were not run yet, and are in no number: {', '.join(left)}.")
    unknown = sum(row.deepspeed == "not run" for found in by_file.values() for row in found)
    if unknown:
        parts.append(f"\nDeepSpeed itself has not been run on {unknown} of these tests yet; they are in no percentage.")
    parts.append("\n## Test by test\n\nWhat passes here and does not fail with DeepSpeed is left out.")
    for file, found in by_file.items():
        lines = _details(found)
        if lines:
            parts.append(f"\n### `{file}`\n\n| test | number | DeepSpeed | here | reason |\n| --- | --- | --- | --- | --- |")
            parts += lines
    return "\n".join(parts) + "\n"
