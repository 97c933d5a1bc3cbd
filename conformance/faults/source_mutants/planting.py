"""Planting: a sample of sites written into a tree's sources, behind the switch, and the tree as it was afterwards.

The tree is a clean git checkout that nobody else uses: its files are changed where they are, so that only they are compiled anew,
and `git checkout` brings them back. A slip that does not compile behind a switch is none: the next one of its line takes its place.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from schemata import SWITCH, File, Overlap
from sites import Commands, Site, draw


def git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(tree), *words], check=True, capture_output=True, text=True).stdout


class Plan:
    """The sample: which sites, by mutant number, and what was dropped on the way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sites: dict[int, Site] = {}
        self.about: dict = {}

    def load(self) -> Plan:
        if not self.path.exists():
            raise SystemExit(f"source_mutants: expected {self.path}. Plant a sample first: plant --count N.")
        given = json.loads(self.path.read_text())
        self.sites = {int(number): Site.of_json(one) for number, one in given["sites"].items()}
        self.about = given["about"]
        return self

    def save(self) -> None:
        sites = {number: one.to_json() for number, one in self.sites.items()}
        self.path.write_text(json.dumps({"about": self.about, "sites": sites}, indent=1))


class Planter:
    def __init__(self, commands: Commands, by: dict[str, str], told: Callable[[str], None], jobs: int) -> None:
        self.commands, self.by, self.told, self.jobs = commands, by, told, jobs
        self.tree = commands.tree
        self.originals: dict[str, bytes] = {}

    def check_clean(self) -> None:
        changed = git(self.tree, "status", "--porcelain", "--", "engine").split("\n")[0]
        if changed:
            raise SystemExit(
                f"source_mutants: expected a clean git checkout, got in {self.tree}: {changed}. Commit it in a clone of its "
                "own, or, if mutants are still planted there, take them out: restore."
            )

    def source(self, path: str) -> bytes:
        if path not in self.originals:
            self.originals[path] = (self.tree / path).read_bytes()
        return self.originals[path]

    def choose(self, sites: list[Site], count: int, seed: int) -> tuple[dict[int, Site], list[Site], int]:
        """A sample that compiles, the slips of its lines that do not, and how many lines it took."""
        lines = draw(sites, seed)
        chosen: dict[int, Site] = {}
        left: dict[int, list[Site]] = {}
        dropped: list[Site] = []
        number = lines_taken = 0
        while len(chosen) < count:
            fresh = set()
            while len(chosen) < count:
                line = next(lines, None)
                if line is None:
                    raise SystemExit(f"source_mutants: expected a sample of {count}, got {len(chosen)}: there are no more.")
                number += 1
                lines_taken += 1
                chosen[number], left[number] = line[0], line[1:]
                fresh.add(chosen[number].file)
            while fresh:
                wrong = self.wrong_of(fresh, chosen)
                fresh = {chosen[one].file for one in wrong}
                for one in wrong:
                    dropped.append(chosen.pop(one))
                    if left[one]:
                        chosen[one] = left[one].pop(0)
        return {place: chosen[one] for place, one in enumerate(sorted(chosen), 1)}, dropped, lines_taken

    def wrong_of(self, files: set[str], chosen: dict[int, Site]) -> list[int]:
        done = 0

        def one(path: str) -> list[int]:
            nonlocal done
            found = self.wrong(path, {number: site for number, site in chosen.items() if site.file == path})
            done += 1
            self.told(f"{done} of {len(files)} files checked")
            return found

        with ThreadPoolExecutor(self.jobs) as pool:
            return [number for found in pool.map(one, sorted(files)) for number in found]

    def wrong(self, path: str, sites: dict[int, Site]) -> list[int]:
        """Those of one file that do not compile, alone or beside the others."""
        if not sites or self.compiles(path, sites):
            return []
        if len(sites) == 1:
            return list(sites)
        numbers = sorted(sites)
        halves = (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :])
        found = [one for half in halves for one in self.wrong(path, {number: sites[number] for number in half})]
        kept = {number: site for number, site in sites.items() if number not in found}
        while kept and not self.compiles(path, kept):
            found.append(max(kept))
            del kept[max(kept)]
        return found

    def compiles(self, path: str, sites: dict[int, Site]) -> bool:
        """As if the file held these, without writing to the tree."""
        try:
            text = File(path, self.source(path), {number: one.slip for number, one in sites.items()}).text()
        except Overlap:
            return False
        overlay = self.commands.build / "source-mutants" / "overlay" / path.replace("/", "_")
        overlay.parent.mkdir(parents=True, exist_ok=True)
        overlay.write_text(text)
        place = self.tree / path
        roots = [{"type": "file", "name": str(place), "external-contents": str(overlay)}]
        description = overlay.with_suffix(".yaml")
        description.write_text(json.dumps({"version": 0, "roots": roots}))
        command = [*self.commands.reading(self.by[path]), "-fsyntax-only", "-ivfsoverlay", str(description)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=self.commands.build)
        return done.returncode == 0

    def write(self, sites: dict[int, Site]) -> list[str]:
        files = sorted({one.file for one in sites.values()})
        for path in files:
            slips = {number: one.slip for number, one in sites.items() if one.file == path}
            (self.tree / path).write_text(File(path, self.source(path), slips).text())
        return files


def restore(tree: Path) -> list[str]:
    """Takes out what was planted, and nothing else."""
    files = [one for one in git(tree, "diff", "--name-only", "--", "engine").split("\n") if one]
    planted = [one for one in files if (tree / one).read_text().startswith(SWITCH[:40])]
    if planted:
        git(tree, "checkout", "--", *planted)
    return planted


def build(folder: Path, targets: list[str], jobs: int, log: Path) -> float:
    began = time.monotonic()
    with open(log, "w") as output:
        done = subprocess.run(["ninja", "-C", str(folder), f"-j{jobs}", *targets], check=False, stdout=output, stderr=output)
    if done.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        wrong = next((one for one in lines if " error: " in one or "FAILED" in one), lines[-1] if lines else "no output")
        raise SystemExit(f"source_mutants: the tree does not build: {wrong}. All of it: {log}.")
    return time.monotonic() - began
