"""Every script of an engine, run: green as it is, red with a fault in the engine. A command of its own, for it takes long.

    python repro_sweep.py ENGINE [--only PATTERN ...] [--all] [--limit N] [--no-faults] [--keep FOLDER]

Scripts for each cell that the engine has; without --all for a selection with every pair of values of two axes, and every feature. Exits 1 where a script was not green, or not
red with a fault. An engine's own red cells are named too: look into them by hand.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
_TREE = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))
with contextlib.suppress(ImportError):
    import equigrad

    equigrad.__path__.insert(0, str(_TREE / "equigrad"))  # the judge of this tree, the engine of the built package
import conftest  # noqa: F401  the judge of the tree, where no package is built

# isort: split
import repro_faults
import repro_forks
import torch

from equigrad.judge import cases, repro, repro_program
from equigrad.judge.board import Finding
from equigrad.judge.on_rank import adapters, loop
from equigrad.judge.on_rank import scripts as forks
from equigrad.judge.on_rank.protocol import Absent, Case
from equigrad.judge.repro_runner import modules_of


def cells(engine: str, only: tuple[str, ...], every: bool) -> list[Case]:
    """Those that the adapter has."""
    adapter, had = adapters.make(engine), []
    for planned in cases.plan(engine, cases.Axes(only=only)):
        with contextlib.suppress(Absent):
            loop._check(adapter, planned.case)
            had.append(planned)
    return [one.case for one in (had if every else cases.covering(had))]


def scripts(engine: str, case: Case) -> Iterator[tuple[repro.Sketch, str]]:
    """The smallest that compares parameters, the largest that compares gradients, and one for each number that the case has."""
    step = int(case.options.get("save_after", 0)) + 1 if case.steps > 1 else 0
    plain = case.precision.model == "fp32" and not case.options
    kinds = {"gradient": True, "loss": plain, "norm": case.clip is not None, "lr": bool(case.schedule)}
    for kind in [kind for kind, has in kinds.items() if has]:
        found = [Finding(step, kind, got=1.0, want=2.0, radius=0.0, name="first.weight")]
        every = list(repro_program.sketches(case, found))
        chosen = {every[0]: None} if kind != "gradient" else dict.fromkeys((every[0], every[-1]))
        for sketch in chosen:
            try:
                yield sketch, repro.script(repro.Subject(engine, "", torch.__version__), case, found, sketch)
            except repro.ReproError as error:
                yield sketch, f"#no: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--limit", type=int, default=1 << 30)
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--keep", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    forks.load(modules_of(given.engine))
    counts: collections.Counter[str] = collections.Counter()
    seen: set[str] = set()
    for case in cells(given.engine, tuple(given.only), given.all):
        for sketch, text in scripts(given.engine, case):
            if text in seen or len(seen) >= given.limit:
                continue
            seen.add(text)
            said = _tried(given, case, sketch, text)
            counts[said.split(":")[0]] += 1
            print(f"{said}  {case.id}  {sketch.what} {sketch.kind} {','.join(sorted(sketch.features))}", flush=True)
    print(dict(counts))
    return 0 if set(counts) <= {"right", "refused", "no script"} else 1


def _tried(given: argparse.Namespace, case: Case, sketch: repro.Sketch, text: str) -> str:
    if text.startswith("#no:"):
        return f"no script:{text[4:]}"
    ran = repro_forks.run(text, case.world)
    if not ran.green:
        said = "RED" if ran.red else "refused" if _refused(given.engine, ran.said) else "BROKE"
        _keep(given, case, sketch, text, ran.said)
        last = [line for line in ran.said.splitlines() if line.strip()]
        return f"{said}: {next((one for one in last if ': expected' in one), last[-1] if last else '')[:200]}"
    if not given.no_faults and not (given.engine == "plain" and case.world == 1):
        wrong = repro_forks.run(repro_faults.faulty(given.engine, sketch.what, text), case.world)
        if not wrong.red:
            _keep(given, case, sketch, text, wrong.said)
            return "FAULT NOT SEEN" if wrong.green else "FAULT BROKE"
    return "right"


def _refused(engine: str, said: str) -> bool:
    errors = [line.partition("Error: ")[2] for line in said.splitlines() if "Error: " in line]
    return any(adapters.make(engine).refuses(RuntimeError(error)) for error in errors)


def _keep(given: argparse.Namespace, case: Case, sketch: repro.Sketch, text: str, said: str) -> None:
    if given.keep:
        folder = Path(given.keep)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{given.engine}-{case.id.replace('/', '-')}-{sketch.what.replace(' ', '_')}-{sketch.kind}.py"
        (folder / name).write_text(text + '\nr"""\n' + said.replace('"""', "") + '\n"""\n', encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
