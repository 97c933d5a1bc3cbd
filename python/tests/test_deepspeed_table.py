"""docs/deepspeed-tests.md: it names the commits of its outcomes, and files that are skipped as a whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "deepspeed_tests"))

import other_ranks
import table

FILE, OTHER, SKIPPED = "unit/runtime/test_pld.py", "unit/v1/zero/test_zero.py", "unit/runtime/half_precision/test_fp16.py"


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
        OTHER: {f"{OTHER}::Test::d": ended("passed")},
    }
    return {"equigrad": here, "deepspeed": theirs, "skipped files": {SKIPPED: "Skipped: no fp16"}}


def test_a_page_of_several_commits_says_which_file_is_of_which() -> None:
    known = outcomes()
    page = table.write(known, "0" * 40, "2")
    assert f"of several of its commits: of `aaaaaaa` in `{FILE}`; of `bbbbbbb` in `{OTHER}`." in page
    del known["equigrad"][OTHER], known["deepspeed"][OTHER]
    page = table.write(known, "0" * 40, "2")
    assert "outcomes are of its commit `aaaaaaa`." in page


def test_a_file_that_is_skipped_as_a_whole_is_not_one_that_was_not_run() -> None:
    page = table.write(outcomes(), "0" * 40, "2")
    assert f"`{SKIPPED}` is skipped as a whole: no fp16." in page
    assert SKIPPED not in page[page.index("Not run yet") :]


def test_what_is_refused_by_name_has_a_column_of_its_own() -> None:
    known = outcomes()
    test = f"{OTHER}::Test::d"
    known["equigrad"][OTHER][test] = ended("failed", "Error: [initialize] expected one, got two, which another engine holds.")
    page = table.write(known, "0" * 40, "2")
    assert f"| `{OTHER}` | 1 | 1 | 0 | 1 | 0 | 0 | 0 | 0 of 1 (0 %) |" in page  # it counts among those that apply
    assert "| `Test::d`  | 1 | passed | refused | A second engine of a model" in page


def test_what_a_test_needs_is_told_where_it_does_not_reach_the_engine() -> None:
    known = outcomes()
    told = {
        "OSError: We couldn't connect to 'https://huggingface.co'": "Needs a model of a hub, which is out of reach here.",
        "RuntimeError: Found no NVIDIA driver": "Needs CUDA.",
        "else": "No call of it reaches this engine.",
    }
    here = [{**ended("failed", text), "reached": False} for text in told]
    known["equigrad"][OTHER] = {f"{OTHER}::Test::d[{k}]": one for k, one in enumerate(here)}
    page = table.write(known, "0" * 40, "2")
    for k, reason in enumerate(told.values()):
        assert f"| `Test::d` `{k}` | 1 | not run | not applicable | {reason} |" in page


def test_tests_that_were_not_run_are_counted() -> None:
    page = table.write({**outcomes(), "listed": {FILE: 6, OTHER: 1}}, "0" * 40, "2")
    assert f"Tests that were not run yet, and are in no number: 2 of `{FILE}`." in page
    assert "not run yet, and" not in table.write({**outcomes(), "listed": {FILE: 4, OTHER: 1}}, "0" * 40, "2")


def test_what_ranks_of_a_port_leave_in_shared_memory_is_removed(tmp_path: Path) -> None:
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_"
    kept = [f"{name}29501_0", f"deepspeed_allreduce_buffer_{os.getuid() + 1}_127.0.0.1_29500_0", "another_29500_0"]
    for one in (f"{name}29500_0", f"{name}29500_1", *kept):
        (tmp_path / one).touch()
    other_ranks.remove_buffers(29500, tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(kept)
