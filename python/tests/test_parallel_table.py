"""Every row of docs/autotp-and-ulysses.md names tests, and they are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/autotp-and-ulysses.md"
ROW = re.compile(r"^\| (\d+) \| (.*) \| (.*) \|$")
IN_PYTHON = re.compile(r"`(python/\S+\.py)::(\w+)`")
IN_CPP = re.compile(r"`([A-Z]\w+\.[A-Z]\w+)`")


def cpp_tests() -> set[str]:
    found = set()
    for room in ("engine/parallel", "engine/config", "engine/core"):
        for file in (ROOT / room).rglob("*_test.cpp"):
            for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", file.read_text(), re.MULTILINE):
                found.add(f"{suite}.{name}")
    return found


def missing_of(text: str) -> list[str]:
    there = cpp_tests()
    missing = [name for name in IN_CPP.findall(text) if name not in there]
    for file, name in IN_PYTHON.findall(text):
        path = ROOT / file
        if not path.exists() or not re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE):
            missing.append(f"{file}::{name}")
    return missing


def test_the_tests_that_the_table_names_are_there() -> None:
    assert missing_of(PAGE.read_text()) == []


def test_every_row_is_numbered_and_names_a_test() -> None:
    tables: list[list[int]] = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| | they say"):
            tables.append([])
        row = ROW.match(line)
        if row is not None:
            tables[-1].append(int(row[1]))
            assert IN_PYTHON.search(row[3]) or IN_CPP.search(row[3]), f"row {row[1]} names no test: {row[2]}"
        elif tables and line.startswith("|") and not line.startswith(("| | ", "|---")):
            raise AssertionError(f"expected a number first, got {line}")
    assert [len(rows) for rows in tables] == [29, 9]
    assert all(rows == list(range(1, len(rows) + 1)) for rows in tables)


def test_a_name_that_is_nowhere_is_found() -> None:
    said = "`python/tests/test_tensor_parallel.py::test_of_nothing`, `python/tests/no_file.py::test_a`, `Split.OfNothing`"
    assert len(missing_of(said)) == 3
