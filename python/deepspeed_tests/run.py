"""DeepSpeed's own tests on equigrad.deepspeed and on DeepSpeed, and the table of both: docs/deepspeed-tests.md.

    PYTHONPATH=build/release/python python python/deepspeed_tests/run.py --write docs/deepspeed-tests.md

The tests and the DeepSpeed beside which they run are one commit of its repository, kept in the user's cache. Needs DeepSpeed's
requirements, pytest and transformers in the environment. A test that fails runs once more in a set of processes of its own, with either engine.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import other_ranks
import pytest
import table
import torch

REPOSITORY = "https://github.com/deepspeedai/DeepSpeed"
COMMIT = "edaa7221267243c7be7fb49c5d5f5c4fb97b4641"
HERE = Path(__file__).resolve().parent
# A set whose ranks do not end a test together is ended this long after the first of them has.
APART_S = 20.0
# What DeepSpeed compiles on a CPU where it is first used: as it connects, and for its optimizers.
BUILD = "import sys; from deepspeed.accelerator import get_accelerator as one; [one().create_op_builder(of).load() for of in sys.argv[1:]]"
BUILDERS = {"equigrad": ["ShareMemCommBuilder"], "deepspeed": ["ShareMemCommBuilder", "FusedAdamBuilder", "CPUAdamBuilder"]}


def cache_of_user() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "equigrad"


def fetch() -> Path:
    """The repository at COMMIT in the user's cache; git checks the hash of every object of it."""
    cache = cache_of_user() / f"deepspeed-{COMMIT[:12]}"
    git = ["git", "-C", str(cache)]
    if not (cache / ".git").exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run([*git, "init", "-q"], check=True)
    ask = [*git, "rev-parse", "-q", "--verify", "HEAD"]
    have = subprocess.run(ask, check=False, capture_output=True, text=True).stdout.strip()
    if have != COMMIT:
        subprocess.run([*git, "fetch", "-q", "--depth", "1", REPOSITORY, COMMIT], check=True)
        subprocess.run([*git, "checkout", "-q", "--force", "--detach", COMMIT], check=True)
        have = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    if have != COMMIT:
        raise SystemExit(f"expected commit {COMMIT} of {REPOSITORY}, got {have}. Remove {cache} and run this again.")
    subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "deepspeed", "tests"], check=True)
    return cache


def own_commit() -> str:
    """Of the checkout that holds this file, "-dirty" behind it where what runs has changes; "unknown" without git."""
    git = ["git", "-C", str(HERE.parent.parent)]
    done = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], check=False, capture_output=True, text=True)
    if done.returncode:
        return "unknown"
    what = ["engine", "python/binding", "python/equigrad"]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *what], check=False)
    return done.stdout.strip() + ("-dirty" if changed.returncode else "")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Tests:
    """Runs tests of the repository with one of the two engines."""

    def __init__(self, repository: Path, engine: str, limit_s: float) -> None:
        self.repository = repository
        self.engine = engine
        self.limit_s = limit_s
        self.rounds = 0
        self.extensions = cache_of_user() / f"deepspeed-{COMMIT[:12]}-extensions"

    def build(self) -> None:
        """What DeepSpeed would compile within the first test. A process that is ended while it builds, or loads what is built,
        leaves a lock for which torch waits for ever; none is left here."""
        self.extensions.mkdir(parents=True, exist_ok=True)
        with open(self.extensions / "in-use", "w") as own, tempfile.TemporaryDirectory() as name:
            fcntl.flock(own, fcntl.LOCK_EX)
            for lock in self.extensions.glob("*/lock"):
                lock.unlink(missing_ok=True)
            if self.rounds == 0:
                builders = BUILDERS[self.engine]
                subprocess.run([sys.executable, "-c", BUILD, *builders], check=True, env=self.environment(Path(name)))

    def environment(self, folder: Path) -> dict[str, str]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
        variables = {name: value for name, value in os.environ.items() if name not in names}
        path = [str(HERE), str(self.repository / "tests"), str(self.repository)]
        path += [str(Path(one).resolve()) for one in os.environ.get("PYTHONPATH", "").split(":") if one]
        return {
            **variables,
            "ENGINE": self.engine,
            "OUTCOMES": str(folder),
            "PYTHONPATH": ":".join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "TORCH_EXTENSIONS_DIR": str(self.extensions),
            "CONNECTED": "0",
            "HF_HUB_OFFLINE": "1",  # nothing is asked of a hub
        }

    def command(self, folder: Path, files: list[str]) -> list[str]:
        (folder / "pytest.ini").write_text("[pytest]\n")
        options = ["-c", str(folder / "pytest.ini"), "--rootdir", str(self.repository / "tests"), "--noconftest"]
        options += ["-p", "plugin", "-p", "no:cacheprovider", "-q", "--tb=short"]
        return [sys.executable, "-m", "pytest", *options, *files]

    def list(self, wanted: list[str]) -> dict:
        """Of every test: its name, how many ranks it wants, what it finds when it begins; and which files have none, and why."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            environment = {**self.environment(folder), "LISTING": str(folder / "listing.json")}
            done = subprocess.run(
                [*self.command(folder, wanted), "--collect-only"],
                check=False,  # it is told below
                env=environment,
                cwd=self.repository / "tests",
                capture_output=True,
                text=True,
            )
            listing = folder / "listing.json"
            if done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED) or not listing.exists():
                raise SystemExit(f"a file could not be collected:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
            return json.loads(listing.read_text())

    def run(
        self, tests: list[str], ranks: int, connected: bool, environment: bool, log: Path, tell: Callable[[dict], None]
    ) -> None:
        """Tells of outcomes by test, set by set: {"outcome", "reason", "seconds", "reached"}."""
        left = tests[:]
        while left:
            self.build()
            with tempfile.TemporaryDirectory() as name:
                ended = self.one_set(left, ranks, connected, environment, Path(name), log)
            if not ended:
                raise SystemExit(f"{left[0]}: the processes ended before a test began. Read {log}.")
            tell(ended)
            left = [one for one in left if one not in ended]

    def one_set(
        self, tests: list[str], ranks: int, connected: bool, environment: bool, folder: Path, log: Path
    ) -> dict[str, dict]:
        self.rounds += 1
        (folder / "tests.json").write_text(json.dumps(tests))
        port = str(free_port())
        processes = []
        for rank in range(max(ranks, 1)):
            own = {
                **self.environment(folder),
                "TESTS": str(folder / "tests.json"),
                "ROUND": str(self.rounds),
                "CONNECTED": "1" if connected and ranks else "0",
            }
            if ranks and environment:
                own |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks)}
                own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            files = sorted({one.partition("::")[0] for one in tests})
            with open(folder / f"output{rank}", "w") as output:
                processes.append(
                    subprocess.Popen(
                        self.command(folder, files),
                        env=own,
                        cwd=self.repository / "tests",
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        try:
            late = self.watch(processes, folder)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            other_ranks.remove_buffers(port)
        with open(log, "a") as file:
            for rank, process in enumerate(processes):
                file.write(f"######## set of {ranks}, rank {rank}, exit {process.returncode}\n")
                file.write((folder / f"output{rank}").read_text(errors="replace")[-20000:])
                details = folder / f"rank{rank}.log"
                file.write(details.read_text() if details.exists() else "")
        return self.read(folder, [process.returncode for process in processes], late)

    def watch(self, processes: list[subprocess.Popen], folder: Path) -> bool:
        """Waits for the set. Whether it has to be ended: a test over its limit, or ranks that do not end one together."""
        while any(process.poll() is None for process in processes):
            time.sleep(0.2)
            now = time.time()
            last = [events(folder, rank)[-1:] for rank in range(len(processes))]
            seen = [one[0] for one in last if one]
            if any(one["event"] == "begin" and now - one["at_s"] > self.limit_s for one in seen):
                return True
            ends = [one["at_s"] for one in seen if one["event"] == "end"]
            if ends and len(ends) < len(processes) and now - min(ends) > APART_S:
                return True
            codes = [process.poll() for process in processes]
            if any(code is not None for code in codes) and any(code is None for code in codes):
                deadline = time.time() + APART_S
                while any(process.poll() is None for process in processes) and time.time() < deadline:
                    time.sleep(0.2)
                return any(process.poll() is None for process in processes)
        return False

    def read(self, folder: Path, codes: list[int], late: bool) -> dict[str, dict]:
        by_test: dict[str, list[dict]] = {}
        begun: dict[str, float] = {}
        for rank in range(len(codes)):
            for event in events(folder, rank):
                if event["event"] == "begin":
                    begun.setdefault(event["test"], event["at_s"])
                    by_test.setdefault(event["test"], [])
                else:
                    by_test[event["test"]].append({**event, "rank": rank})
        outcomes = {}
        for test, ends in by_test.items():
            kinds = {one["outcome"] for one in ends}
            failed = next((one for one in ends if one["outcome"] == "failed"), None)
            if failed is not None:
                kind, reason = "failed", failed["reason"]
            elif len(ends) < len(codes):
                crash = next((code for code in codes if code < 0 and code != -signal.SIGKILL), None)
                kind = "hung" if late and crash is None else "crashed"
                reason = f"not ended after {self.limit_s:g} s" if kind == "hung" else f"the process ended with {codes}"
            else:
                kind = "skipped" if kinds == {"skipped"} else "passed" if kinds == {"passed"} else "failed"
                reason = ends[0]["reason"] if kind != "failed" else f"the ranks ended with {sorted(kinds)}"
            reached = any(one["reached"] for one in ends) or not ends
            seconds = max((one["at_s"] for one in ends), default=begun[test]) - begun[test]
            outcomes[test] = {"outcome": kind, "reason": reason, "seconds": round(seconds, 2), "reached": reached}
        return outcomes


def events(folder: Path, rank: int) -> list[dict]:
    path = folder / f"rank{rank}.jsonl"
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def run_engine(tests: Tests, given: argparse.Namespace, known: dict[str, dict[str, dict]]) -> None:
    """Puts outcomes into `known`, by file and test, and saves; of a test of several world sizes the worst."""
    sets: dict[tuple[int, bool, bool], list[str]] = {}
    listing = given.outcomes.with_suffix(".listing.json")  # the same for both engines, and long to make
    if not listing.exists() or json.loads(listing.read_text())["files"] != given.files:
        listing.write_text(json.dumps({"files": given.files, **tests.list(given.files)}))
    listed = json.loads(listing.read_text())
    given.skipped.update(listed["skipped"])
    given.listed.update(Counter(row["test"].partition("::")[0] for row in listed["tests"]))
    given.save()
    for row in listed["tests"]:
        if any(one in row["test"] for one in given.only):
            for size in [one for one in row["world_sizes"] if one in given.ranks]:
                sets.setdefault((size, row["connected"], row["environment"]), []).append(row["test"])
    log = given.outcomes.with_suffix(f".{tests.engine}.log")
    made = {"commit": own_commit()} if tests.engine == "equigrad" else {}
    worst = ["skipped", "passed", "failed", "crashed", "hung"]
    fresh: set[str] = set()
    for (size, connected, environment), names in sorted(sets.items(), key=lambda one: -len(one[1])):

        def tell(outcomes: dict[str, dict], size: int = size, more: dict | None = None) -> None:
            for name, outcome in outcomes.items():
                of_file = known.setdefault(name.partition("::")[0], {})
                before = of_file.get(name) if name in fresh and more is None else None
                if before is None or worst.index(outcome["outcome"]) >= worst.index(before["outcome"]):
                    of_file[name] = {**outcome, "ranks": size, **made, **(more or {})}
                fresh.add(name)
            given.save()

        tests.run(names, size, connected, environment, log, tell)
        if not given.no_retry:
            for name in names:
                before = known[name.partition("::")[0]][name]
                if before["outcome"] in ("failed", "crashed") and before["ranks"] == size:
                    tests.run(
                        [name],
                        size,
                        connected,
                        environment,
                        log,
                        lambda ended, size=size: tell(ended, size, {"alone": True}),
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="of DeepSpeed's tests/, all that the table has by default")
    parser.add_argument("--repository", type=Path, help="a checkout of the commit, instead of one in the cache")
    parser.add_argument("--engine", choices=["equigrad", "deepspeed"], action="append")
    parser.add_argument("--only", nargs="*", default=[""], help="tests whose name contains one of these")
    parser.add_argument("--limit-s", type=float, default=120.0, help="of one test, after which it has hung")
    parser.add_argument(
        "--ranks", type=int, nargs="*", default=[0, 1, 2, 3, 4], help="tests of so many ranks; 0: that need none"
    )
    parser.add_argument("--no-retry", action="store_true")
    parser.add_argument("--outcomes", type=Path, default=Path("deepspeed-tests.json"), help="kept, and added to")
    parser.add_argument("--write", type=Path, help="the page to write from all outcomes that are known")
    given = parser.parse_args()
    repository = given.repository or fetch()
    given.files = given.files or [line for line in (HERE / "files.txt").read_text().split() if line]
    known = json.loads(given.outcomes.read_text()) if given.outcomes.exists() else {}
    given.skipped = known.setdefault("skipped files", {})
    given.listed = known.setdefault("listed", {})
    given.save = lambda: given.outcomes.write_text(json.dumps(known, indent=1, sort_keys=True))
    for engine in given.engine or ["deepspeed", "equigrad"]:
        run_engine(Tests(repository, engine, given.limit_s), given, known.setdefault(engine, {}))
        kinds = [one["outcome"] for of_file in known[engine].values() for one in of_file.values()]
        print(engine, {kind: kinds.count(kind) for kind in sorted(set(kinds))}, flush=True)
    if given.write is not None:
        given.write.write_text(table.write(known, COMMIT, torch.__version__.split("+")[0]))


if __name__ == "__main__":
    main()
