"""docs/deepspeed-tests.md: what it says is read back from it as it was; it names commits, earlier pages and files without tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "deepspeed_tests"))

import earlier
import table

FILE, OTHER, SKIPPED = "unit/runtime/test_pld.py", "unit/v1/zero/test_zero.py", "unit/runtime/half_precision/test_fp16.py"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "deepspeed-tests.md"


def ended(outcome: str, reason: str = "", **more: object) -> dict:
    return {"outcome": outcome, "reason": reason, "reached": True, **more}


def outcomes() -> dict:
    here = {
        FILE: {
            f"{FILE}::Test::a[1-x]": ended("passed", commit="aaaaaaa"),
            f"{FILE}::Test::a[2-y]": ended("passed", commit="aaaaaaa"),
            f"{FILE}::Test::b": ended("failed", "AssertionError: a|b", commit="aaaaaaa"),
            f"{FILE}::Test::c": ended("skipped", "Skipped: why", commit="aaaaaaa"),
        },
        OTHER: {f"{OTHER}::Test::d": ended("passed", commit="bbbbbbb")},
    }
    theirs = {
        FILE: {
            f"{FILE}::Test::a[1-x]": ended("failed", "ValueError: theirs"),
            f"{FILE}::Test::a[2-y]": ended("passed"),
            f"{FILE}::Test::b": ended("passed"),
            f"{FILE}::Test::c": ended("skipped"),
        },
        OTHER: {f"{OTHER}::Test::d": ended("passed", page="ccccccc")},
    }
    return {"equigrad": here, "deepspeed": theirs, "skipped files": {SKIPPED: "Skipped: no fp16"}}


def test_a_page_is_read_as_it_was_written() -> None:
    read = earlier.read_page(table.write(outcomes(), "0" * 40, "2"))
    assert read == {
        (FILE, f"{FILE}::Test::a[1-x]"): ("failed", "ValueError: theirs"),
        (FILE, f"{FILE}::Test::b"): ("passed", ""),
        (FILE, f"{FILE}::Test::c"): ("skipped", ""),
    }


def test_a_page_of_several_commits_says_which_file_is_of_which() -> None:
    known = outcomes()
    page = table.write(known, "0" * 40, "2")
    assert f"of several of its commits: of `aaaaaaa` in `{FILE}`; of `bbbbbbb` in `{OTHER}`." in page
    assert f"is taken from this page at `ccccccc`: `{OTHER}`." in page
    del known["equigrad"][OTHER], known["deepspeed"][OTHER]
    page = table.write(known, "0" * 40, "2")
    assert "outcomes are of its commit `aaaaaaa`." in page
    assert "taken from this page" not in page


def test_a_file_that_is_skipped_as_a_whole_is_not_one_that_was_not_run() -> None:
    page = table.write(outcomes(), "0" * 40, "2")
    assert f"`{SKIPPED}` is skipped as a whole: no fp16." in page
    assert SKIPPED not in page[page.index("Not run yet") :]


def test_a_row_of_another_number_of_tests_is_refused() -> None:
    row = f"### `{FILE}`\n| `Test::a` `1`, `2` | 3 | passed | failed | why |"
    with pytest.raises(SystemExit, match="expected 3 tests"):
        earlier.read_page(row)


def test_the_committed_page_is_read_whole() -> None:
    read = earlier.read_page(PAGE.read_text())
    details = PAGE.read_text().partition("## Test by test")[2]
    numbers = [int(line.split(" | ")[1]) for line in details.splitlines() if line.startswith("| `")]
    assert len(read) == sum(numbers)
