"""Takes DeepSpeed's own outcomes from an earlier page, for the files that have not been run with DeepSpeed again.

    python python/deepspeed_tests/earlier.py --outcomes deepspeed-tests.json --commit COMMIT --write docs/deepspeed-tests.md

The page is docs/deepspeed-tests.md at COMMIT of this repository. It has to be of the same commit of DeepSpeed, and tests that it does not
list have passed with both. Every outcome that is taken carries the commit, and the page that is written names the files.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path

import run
import table
import torch

ROW = re.compile(r"\| `([^`]+)` (.*?) ?\| (\d+) \| ([^|]+) \| ([^|]+) \| (.*) \|$")


def read_page(text: str) -> dict[tuple[str, str], tuple[str, str]]:
    """By file and test what DeepSpeed did, and why where the page says so, of the tests that the page lists."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    file = ""
    for line in text.splitlines():
        if line.startswith("### `"):
            file = line[5:-1]
        row = ROW.match(line) if file else None
        if row is None:
            continue
        name, given, number, theirs, here, reason = row.groups()
        parameters = re.findall(r"`([^`]*)`", given) or [""]
        if len(parameters) != int(number):
            raise SystemExit(f"expected {number} tests in a row of {file}, got {len(parameters)}: {line}")
        why = reason.removeprefix(f"DeepSpeed {theirs}: ") if here == "passed" else ""
        for one in parameters:
            found[(file, f"{file}::{name}" + (f"[{one}]" if one else ""))] = (theirs, why)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outcomes", type=Path, default=Path("deepspeed-tests.json"))
    parser.add_argument("--commit", required=True, help="of this repository, whose page is read")
    parser.add_argument("--write", type=Path, required=True)
    given = parser.parse_args()
    git = ["git", "-C", str(run.HERE.parent.parent)]
    shown = [*git, "show", f"{given.commit}:docs/deepspeed-tests.md"]
    text = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    if run.COMMIT not in text:
        raise SystemExit(f"expected a page of DeepSpeed at {run.COMMIT}, got another. Run DeepSpeed again: run.py --engine deepspeed.")
    listed = read_page(text)
    counted = {row[1]: int(row[2]) for row in re.finditer(r"^\| `([^`]+\.py)` \| (\d+) \|", text, re.MULTILINE)}
    known = json.loads(given.outcomes.read_text())
    theirs = known.setdefault("deepspeed", {})
    for file, here in known["equigrad"].items():
        if all(test in theirs.get(file, {}) for test in here):
            continue
        if counted.get(file) != len(here):
            raise SystemExit(f"{file}: expected its {len(here)} tests on the page, got {counted.get(file, 0)}. Run DeepSpeed on it.")
        taken = {test: listed.get((file, test), ("passed", "")) for test in here}
        theirs[file] = {test: {"outcome": kind, "reason": why, "page": given.commit} for test, (kind, why) in taken.items()}
    given.write.write_text(table.write(known, run.COMMIT, torch.__version__.split("+")[0]))


if __name__ == "__main__":
    main()
