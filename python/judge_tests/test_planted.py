"""Faults planted into DDP and FSDP2 come to the ranks, are found, and are gone with the next one (conformance/judge/planted)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "conformance" / "judge" / "planted"


@pytest.fixture(scope="module")
def plant() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    before = dict(os.environ)
    import plant as module  # type: ignore[import-not-found]

    yield module
    sys.path.remove(str(FOLDER))
    os.environ.clear()
    os.environ.update(before)


def test_the_list_is_that_of_the_inventions(plant: Any) -> None:
    lines = (FOLDER / "inventions.md").read_text().splitlines()
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in lines if line.startswith(("| ddp-", "| fsdp2-"))]
    known = plant.planted_faults.FAULTS
    assert [row[0] for row in rows if row[0] not in known] == []
    assert len(rows) == len(known)
    assert {row[0] for row in rows if len(row) == 4 and row[2] == "subtle"} == {name for name, one in known.items() if one.subtle}


def test_faults_are_planted_one_after_another(plant: Any, tmp_path: Path) -> None:
    room = plant.Room()
    harness = plant.Harness(room, tmp_path)
    try:
        for name, verdict, kind in (
            ("ddp-divided-twice", "red", "divided-by-ranks-twice"),
            ("ddp-right-hook", "held", ""),
            ("ddp-not-zeroed", "red", "not-zeroed"),
            ("fsdp2-rank-dropped", "red", "rank-missing"),
            ("fsdp2-other-order", "held", ""),
        ):
            cells = plant.cells_of(plant.planted_faults.FAULTS[name], "fp32/engine_backward/accumulation3/no_sync,!zero2")
            (outcome,) = harness.outcomes(name, cells)
            assert outcome.verdict == verdict, outcome
            assert not kind or kind in outcome.kinds, outcome
            assert outcome.fired or not kind, outcome
    finally:
        harness.close()
        room.close()
