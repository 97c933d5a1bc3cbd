"""Mutants from source: slips sampled uniformly from the engine's rooms, each before a list of judges. README.md says how.

python3 conformance/faults/source_mutants sites|plant|slips|run|report|restore --tree DIR [options]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import report
import slips
from campaign import Campaign, Control, Records
from judging import HERE, Judge
from planting import Plan, Planter, build, git, restore
from sites import Commands, Reader, Site


def progress(text: str) -> None:
    print(f"\r{text:<70}" if sys.stdout.isatty() else text, end="" if sys.stdout.isatty() else "\n", flush=True)


class Work:
    """The folders and files of one measurement."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.tree: Path = given.tree.resolve()
        self.build: Path = (given.build or self.tree / "build" / "dev").resolve()
        self.state: Path = (given.state or self.build / "source-mutants").resolve()
        self.state.mkdir(parents=True, exist_ok=True)
        self.jobs: int = given.jobs
        self.plan = Plan(self.state / "plan.json")

    def sites(self) -> tuple[Commands, list[Site], dict[str, str]]:
        commands = Commands(self.tree, self.build)
        sites, by = Reader(commands, self.state / "sites").read(progress, self.jobs)
        return commands, sites, by

    def key(self) -> str:
        return hashlib.sha256(self.plan.path.read_bytes()).hexdigest()


def counts(sites: list[Site]) -> dict:
    return {
        "sites": len(sites),
        "lines": len({(one.file, one.line) for one in sites}),
        "by operator": dict(Counter(one.slip.operator for one in sites).most_common()),
        "by room": dict(Counter(one.room for one in sites).most_common()),
    }


def show_sites(work: Work, given: argparse.Namespace) -> None:
    _, sites, _ = work.sites()
    for one in sites:
        if given.list:
            print(f"{one.key} {one.file}:{one.line} {one.slip.operator}: {one.before} -> {one.after}")
    print(json.dumps(counts(sites), indent=1))


def plant(work: Work, given: argparse.Namespace) -> None:
    commands = Commands(work.tree, work.build)
    planter = Planter(commands, {}, progress, work.jobs)
    planter.check_clean()
    _, sites, planter.by = work.sites()
    sites = [one for one in sites if one.key not in given.drop]
    chosen, dropped, lines = planter.choose(sites, given.count, given.seed)
    work.plan.sites = chosen
    work.plan.about = {
        "seed": given.seed,
        "count": given.count,
        "commit": git(work.tree, "rev-parse", "--short", "HEAD").strip(),
        **counts(sites),
        "lines drawn": lines,
        "do not compile behind a switch": [f"{one.file}:{one.line} {one.before} -> {one.after}" for one in dropped],
    }
    work.plan.save()
    files = planter.write(chosen)
    print(
        f"{len(chosen)} mutants in {len(files)} files of {work.tree}; {len(dropped)} slips did not compile behind a switch"
    )


def plant_slips(work: Work, given: argparse.Namespace) -> None:
    slips.plant(work.tree, given.patch, work.plan)
    print(f"{len(work.plan.sites)} slips in {work.tree}; git reset --hard takes them out")


def judges_of(work: Work, given: argparse.Namespace) -> list[Judge]:
    return Judge.table(work.build, given.judges, given.table)


def run(work: Work, given: argparse.Namespace) -> None:
    plan = work.plan.load()
    judges = judges_of(work, given)
    rooms = sorted({one.room for one in plan.sites.values()})
    shown = subprocess.run(
        ["ninja", "-C", str(work.build), "-t", "targets", "all"], check=True, capture_output=True, text=True
    )
    every = [one.partition(":")[0] for one in shown.stdout.splitlines()]
    targets = sorted({target for judge in judges for target in judge.targets(rooms, every)})
    print(f"building {len(targets)} targets; the log is {work.state / 'build.log'}", flush=True)
    print(f"built in {build(work.build, targets, work.jobs, work.state / 'build.log'):.0f} s", flush=True)
    records = Records(given.records or work.state / "records.jsonl")
    records.path.with_suffix(".json").write_text(json.dumps(plan.about, indent=1) + "\n")
    control = Control(work.state / "control.json", max(plan.sites), work.key())
    Campaign(plan, judges, records, control).run(given.at_once)


def write_report(given: argparse.Namespace) -> None:
    rows = list(Records(given.records).by_key.values())
    about = json.loads(given.records.with_suffix(".json").read_text())
    examined = json.loads(given.examined.read_text())
    text = slips.page(rows, examined) if "patch" in about else report.write(rows, examined, about)
    given.write.write_text(text) if given.write else print(text)


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = words.add_subparsers(required=True)

    def command(name: str, function, about: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=about)
        one.set_defaults(function=function)
        one.add_argument("--tree", type=Path, required=True, help="a clean git checkout, built, that nobody else uses")
        one.add_argument("--build", type=Path, help="its build folder (default: build/dev in it)")
        one.add_argument(
            "--state", type=Path, help="where the plan and the records lie (default: source-mutants in the build folder)"
        )
        one.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files read and compiled at once")
        return one

    one = command("sites", show_sites, "what could be mutated: counts")
    one.add_argument("--list", action="store_true", help="every site too")
    one = command("plant", plant, "draw a sample and write it into the tree")
    one.add_argument("--count", type=int, required=True, help="mutants")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--drop", nargs="*", default=[], help="keys of sites that are not drawn")
    one = command("slips", plant_slips, "plant the slips of a patch instead of a sample")
    one.add_argument("--patch", type=Path, required=True, help="one of conformance/faults/slips")
    one = command("run", run, "build, and judge every mutant")
    one.add_argument("--judges", nargs="+", default=["covering", "room tests"])
    one.add_argument("--table", type=Path, default=HERE / "judges.json", help="of judges")
    one.add_argument(
        "--records", type=Path, help="JSON lines, read and added to (default: records.jsonl in the state folder)"
    )
    one.add_argument("--at-once", type=int, default=1, help="mutants judged at the same time")
    one = commands.add_parser("report", help="the page of outcomes")
    one.set_defaults(function=write_report)
    one.add_argument(
        "--records", type=Path, required=True, help="of run; what is beside it with the suffix .json belongs to it"
    )
    one.add_argument("--examined", type=Path, default=HERE / "examined.json", help="what a person found about survivors")
    one.add_argument("--write", type=Path, help="the page (default: to the terminal)")
    command("restore", lambda work, given: print(*restore(work.tree), sep="\n"), "take the mutants out of the tree")
    return words


def main() -> None:
    given = parser().parse_args()
    given.function(*([Work(given), given] if "tree" in given else [given]))


if __name__ == "__main__":
    main()
