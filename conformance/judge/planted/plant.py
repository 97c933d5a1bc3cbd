"""Plants each fault into DDP or FSDP2, runs the judge's cells on it, and writes down what was caught and why.

    PYTHONPATH=python python conformance/judge/planted/plant.py --results DIR            every fault
    ... plant.py ddp-bf16 fsdp2-not-zeroed --cells all --results DIR                     some, on every cell
    ... plant.py --table DIR > conformance/judge/planted/README.md                       the table of what is in DIR

The judge itself is not told of any fault: a variable of the environment plants it in the ranks (hook/sitecustomize.py). It names a
file here, so that ranks, workloads and local gradients are kept over faults.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if importlib.util.find_spec("equigrad") is None:  # a tree without a build: the judge needs nothing compiled
    package = types.ModuleType("equigrad")
    package.__path__ = [str(HERE.parents[2] / "python" / "equigrad")]
    sys.modules["equigrad"] = package
sys.path.insert(0, str(HERE))

import planted_faults
from planted_faults.base import Fault
from table import table

from equigrad.judge import cases, environments
from equigrad.judge.cases import Axes, Planned
from equigrad.judge.judging import Bench, Judged, Prepared, VoidError
from equigrad.judge.processes import Fault as Ended
from equigrad.judge.processes import Room
from equigrad.judge.ranks import Pool

CELL_S, START_S = 120.0, 600.0
_OF = "engine_backward/accumulation"
_PLAIN = (f"fp32/{_OF}1", f"fp32/{_OF}3", f"fp32/{_OF}3/gpt", f"fp32/{_OF}3/no_sync", f"fp16-static/{_OF}2")
_GRADIENTS = (
    *_PLAIN,
    *(f"fp32/{_OF}3/{feature}" for feature in ("embedding", "small-buckets", "no-unused", "branch", "zeroed", "two-engines")),
    f"bf16/{_OF}3",
    "fp32/tensor_backward/accumulation2",
    f"fp32/{_OF}2/world3",
    f"fp32/{_OF}3/adamw",
)
_SHARDS = (*_GRADIENTS, f"fp32/{_OF}3/keep-gathered", f"fp32/{_OF}3/offload", f"fp32/{_OF}3/convolution")
_CLIPS = (
    *(f"{precision}/{_OF}3/{clip}" for precision in ("fp32", "fp16-dynamic") for clip in ("clip", "clip-below", "clip-inf")),
    f"fp32/{_OF}3/groups-clip",
    f"autocast-fp16/{_OF}3/clip",
)
_UPDATES = ("groups", "schedule", "momentum", "decay", "adamw", "resume", "resume-adamw", "gpt")
_SCALES = tuple(f"{precision}/{_OF}{count}" for precision in ("fp16-static", "fp16-dynamic", "autocast-fp16") for count in (1, 3))
_AUTOCAST = (f"autocast-bf16/{_OF}1", f"autocast-bf16/{_OF}3")
APPLICABLE: dict[str, tuple[str, ...]] = {
    "ddp_reducer": _GRADIENTS,
    "ddp_accumulation": _GRADIENTS,
    "clipping": (*_CLIPS, f"fp32/{_OF}3/groups"),
    "optimizers": (*_PLAIN[:2], *(f"fp32/{_OF}3/{feature}" for feature in _UPDATES), f"bf16/{_OF}3/adamw"),
    "scaling": (*_SCALES, *_AUTOCAST, *(f"{precision}/{_OF}3/{one}" for precision in ("fp16-dynamic", "autocast-fp16") for one in ("overflow", "scale-grows", "clip"))),
    "fsdp2_collectives": _SHARDS,
    "fsdp2_state": (*_SHARDS, f"fp32/{_OF}3/resume", f"fp32/{_OF}3/resume-adamw", f"fp16-dynamic/{_OF}3/overflow"),
    "controls": (*_GRADIENTS, *_CLIPS, *(f"fp32/{_OF}3/{feature}" for feature in _UPDATES)),
}
"""Cells that faults of a module can show in, after the stage; those that an engine has not are left out."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One cell under one fault."""

    case: str
    verdict: str
    kinds: tuple[str, ...] = ()
    cause: str = ""
    fired: int = 0
    """How often the fault changed numbers, over all ranks."""
    what: str = ""


class Harness:
    """The judge's bench, and ranks into which one fault after another is planted."""

    def __init__(self, room: Room, log: Path) -> None:
        self._room, self._log = room, log
        self._bench = Bench(room, environments.reference_of(sys.executable), 1)
        self._prepared: dict[str, Prepared] = {}
        self._pools: dict[tuple[str, int], Pool] = {}
        self._planted = log / "planted"
        path = filter(None, [str(HERE / "hook"), os.environ.get("PYTHONPATH", "")])
        os.environ.update(EQUIGRAD_PLANTED=f"@{self._planted}", EQUIGRAD_PLANTED_LOG=str(log), PYTHONPATH=os.pathsep.join(path))

    def outcomes(self, name: str, cells: Sequence[Planned], enough: int = 0) -> Iterator[Outcome]:
        """Every cell under the fault, or as many as it takes for so many red ones (0: all)."""
        self._planted.write_text(name)
        red = 0
        for cell in sorted(cells, key=lambda one: one.case.world):
            if not enough or red < enough:
                yield (outcome := self._outcome(planted_faults.FAULTS[name].engine(), cell))
                red += outcome.verdict == "red"

    def close(self) -> None:
        """Ends all processes."""
        for pool in self._pools.values():
            pool.stop()
        self._bench.stop()

    def _outcome(self, engine: str, cell: Planned) -> Outcome:
        for log in self._log.glob("*.jsonl"):
            log.unlink()
        judged, findings = self._judged(engine, cell), ()
        lines = [json.loads(line) for log in self._log.glob("*.jsonl") for line in log.read_text().splitlines()]
        findings = tuple(one.what for one in judged.findings[:1])
        cause = judged.cause or judged.text.strip().splitlines()[-1:] and judged.text.strip().splitlines()[-1] or ""
        kinds = tuple(judged.kind.split(" or ")) if judged.kind else ()
        return Outcome(cell.id, judged.verdict, kinds, cause, sum(line["fired"] for line in lines), *findings)

    def _judged(self, engine: str, cell: Planned) -> Judged:
        try:
            if cell.id not in self._prepared:
                self._prepared[cell.id] = self._bench.prepare(cell.case)
            prepared = self._prepared[cell.id]
            answers = self._pool(engine, cell.case.world).ask(prepared.path, prepared.digest, CELL_S)
            kinds = {one.kind for one in answers}
            if kinds == {"steps"}:
                return self._bench.judge(prepared, answers)
            kind = "crashed" if "failed" in kinds else "refused" if "refused" in kinds else "absent"
            told = next(one.answer for one in answers if one.kind in ("failed", "refused", "absent"))
            return Judged(kind, text=str(told.failed or told.refused or told.absent))
        except VoidError as error:
            return Judged("void", text=str(error))
        except Ended as ended:
            return Judged(ended.kind, text=ended.text)

    def _pool(self, engine: str, world: int) -> Pool:
        if (engine, world) not in self._pools:
            program = environments.program_of(environments.parse_target(engine), sys.executable)
            self._pools[engine, world] = Pool(self._room, program, world, START_S)
        return self._pools[engine, world]


def cells_of(fault: type[Fault], which: str) -> list[Planned]:
    """which: "applicable", "quick", "all", or patterns of ids."""
    engine = fault.engine()
    if which in ("all", "quick"):
        return cases.plan(engine, Axes(quick=which == "quick"))
    patterns = APPLICABLE[fault.__module__.rpartition(".")[2]] if which == "applicable" else tuple(which.split(","))
    stage = "zero0" if engine == "ddp" else "zero3"
    known = {cell.id: cell for cell in cases.plan(engine, Axes())}
    wanted = [f"{stage}/{pattern}" for pattern in patterns] if which == "applicable" else None
    if wanted is None:
        return cases.plan(engine, Axes(only=patterns))
    return [known[one] for one in wanted if one in known]


def run(names: Sequence[str], which: str, results: Path, enough: int) -> None:
    """Writes DIR/NAME.json for every fault; a file that is there is taken as done."""
    results.mkdir(parents=True, exist_ok=True)
    room = Room()
    try:
        with tempfile.TemporaryDirectory(prefix="equigrad-planted-") as log:
            harness = Harness(room, Path(log))
            for name in names:
                path = results / f"{name}.json"
                if path.exists():
                    continue
                begun = time.monotonic()
                cells = cells_of(planted_faults.FAULTS[name], which)
                outcomes = list(harness.outcomes(name, cells, enough))
                seconds = round(time.monotonic() - begun, 1)
                told: dict[str, Any] = {"fault": name, "seconds": seconds, "cells": [dataclasses.asdict(one) for one in outcomes]}
                path.write_text(json.dumps(told, indent=1))
                red = [one for one in outcomes if one.verdict == "red"]
                fired = sum(one.fired > 0 for one in outcomes)
                print(f"{name}: fired in {fired} of {len(outcomes)} cells, red in {len(red)}, {seconds} s", flush=True)
            harness.close()
    finally:
        room.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help="names, or parts of names; every one without any")
    parser.add_argument("--cells", default="applicable", help="applicable, quick, all, or patterns of the cells' ids")
    parser.add_argument("--enough", type=int, default=0, metavar="N", help="go on to the next fault after N red cells")
    parser.add_argument("--results", type=Path, default=Path("planted-results"))
    parser.add_argument("--table", type=Path, help="print the table of results in this folder, and run nothing")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    every = planted_faults.FAULTS
    names = [name for name in every if not given.faults or any(part in name for part in given.faults)]
    if given.list:
        print("\n".join(names))
    elif given.table:
        print(table(given.table, every), end="")
    else:
        run(names, given.cells, given.results, given.enough)
    return 0


if __name__ == "__main__":
    sys.exit(main())
