"""Every mutant of a plan before its judges, until one of them sees it. What is done is kept, a line a mutant, and not done again."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from judging import SLACK_S, SLOWER, Command, Judge, Outcome, run
from planting import Plan
from sites import Site

CONTROL_LIMIT_S = 3600.0
CONTROL_EVERY = 25  # mutants: the program without one is judged again, by the first judge


class Records:
    """A file of JSON lines. Of one site the last line counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_key: dict[str, dict] = {}
        self.lock = threading.Lock()
        if path.exists():
            for line in path.read_text().splitlines():
                record = json.loads(line)
                self.by_key[record["site"]] = record

    def add(self, record: dict) -> None:
        with self.lock:
            self.by_key[record["site"]] = record
            with open(self.path, "a") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def settle(self) -> None:
        """One line a site."""
        rows = sorted(self.by_key.values(), key=lambda one: one["mutant"])
        self.path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows))


class Control:
    """The program without a mutant: it holds, takes its time, and comes to some mutants' places."""

    def __init__(self, path: Path, mutants: int, plan_key: str) -> None:
        self.path, self.mutants = path, mutants
        self.rows: dict[str, dict] = {}
        self.plan_key = plan_key
        if path.exists():
            given = json.loads(path.read_text())
            if given["plan"] == plan_key:
                self.rows = given["rows"]

    def of(self, command: Command) -> dict:
        if command.name not in self.rows:
            with tempfile.NamedTemporaryFile(prefix="reached") as file:
                file.write(bytes(self.mutants + 1))
                file.flush()
                outcome = run(command, 0, CONTROL_LIMIT_S, Path(file.name))
                reached = [number for number, byte in enumerate(Path(file.name).read_bytes()) if byte and number > 0]
            if outcome.kind != "held":
                raise SystemExit(
                    f"source_mutants: expected {command.name} to hold without a mutant, got: {outcome.kind}: {outcome.line}. "
                    f"Run it: {command.words}."
                )
            self.rows[command.name] = {"seconds": round(outcome.seconds, 2), "reached": reached}
            self.path.write_text(json.dumps({"plan": self.plan_key, "rows": self.rows}))
        return self.rows[command.name]


class Campaign:
    def __init__(self, plan: Plan, judges: list[Judge], records: Records, control: Control) -> None:
        self.plan, self.judges, self.records, self.control = plan, judges, records, control
        self.commands: dict[tuple[str, str], list[Command]] = {}
        self.began = time.monotonic()
        self.done = self.killed = 0
        self.lock = threading.Lock()
        self.problem = ""

    def told(self, text: str) -> None:
        print(text, flush=True)

    def prepare(self) -> None:
        """The program without a mutant before every judge of every room."""
        rooms = sorted({one.room for one in self.plan.sites.values()})
        for judge in self.judges:
            for room in rooms:
                commands = judge.commands(room)
                self.commands[judge.name, room] = commands
                for command in commands:
                    is_new = command.name not in self.control.rows
                    row = self.control.of(command)
                    if is_new:
                        self.told(
                            f"without a mutant: {command.name} held, {row['seconds']} s, reaches {len(row['reached'])}"
                        )

    def waiting(self) -> list[int]:
        wanted = [one.name for one in self.judges]
        left = []
        for number, site in self.plan.sites.items():
            record = self.records.by_key.get(site.key)
            if record is None or (record["killed_by"] is None and any(one not in record["judged"] for one in wanted)):
                left.append(number)
        return left

    def judge(self, judge: Judge, number: int, site: Site) -> Outcome:
        """By the quickest first, until one sees it."""
        seconds = 0.0
        reaches = False
        commands = self.commands[judge.name, site.room]
        for command in sorted(commands, key=lambda one: self.control.of(one)["seconds"]):
            row = self.control.of(command)
            if judge.skips_unreached and number not in row["reached"]:
                continue
            reaches = True
            outcome = run(command, number, SLACK_S + SLOWER * row["seconds"])
            seconds += outcome.seconds
            if outcome.kind != "held":
                return Outcome(outcome.kind, seconds, outcome.line, outcome.by)
        return Outcome("held" if reaches else "not reached", seconds)

    def one(self, number: int) -> None:
        if self.problem:
            return
        site = self.plan.sites[number]
        judged = dict(self.records.by_key.get(site.key, {}).get("judged", {}))
        killed: tuple[str, Outcome] | None = None
        for judge in self.judges:
            if judge.name in judged:
                continue
            outcome = self.judge(judge, number, site)
            judged[judge.name] = {"outcome": outcome.kind, "seconds": round(outcome.seconds, 1)}
            if outcome.kind not in ("held", "not reached"):
                killed = (judge.name, outcome)
                break
        self.records.add(self.record(number, site, judged, killed))
        with self.lock:
            self.done += 1
            self.killed += killed is not None
            if self.done % CONTROL_EVERY == 0:
                self.check_control()
        was_run = any(one["outcome"] != "not reached" for one in judged.values())
        self.tell(number, site, killed, was_run)

    def record(self, number: int, site: Site, judged: dict, killed: tuple[str, Outcome] | None) -> dict:
        by, outcome = killed if killed else (None, Outcome(""))
        return {
            "mutant": number,
            "site": site.key,
            "file": site.file,
            "line": site.line,
            "function": site.slip.function,
            "operator": site.slip.operator,
            "before": site.before,
            "after": site.after,
            "killed_by": by,
            "how": outcome.kind,
            "test": outcome.by if by != outcome.by else "",
            "first_line": outcome.line,
            "seconds": round(sum(one["seconds"] for one in judged.values()), 1),
            "judged": judged,
        }

    def check_control(self) -> None:
        room = next(iter(self.plan.sites.values())).room
        for command in self.commands[self.judges[0].name, room]:
            outcome = run(command, 0, CONTROL_LIMIT_S)
            if outcome.kind != "held":
                self.problem = f"without a mutant {command.name} {outcome.kind} in between: {outcome.line}"

    def tell(self, number: int, site: Site, killed: tuple[str, Outcome] | None, was_run: bool) -> None:
        with self.lock:
            left_s = (time.monotonic() - self.began) / self.done * (self.total - self.done)
            what = f"{killed[1].kind} by {killed[0]}" if killed else "SURVIVED" if was_run else "not reached"
            self.told(
                f"[{self.done} of {self.total}, {self.killed} killed, {left_s / 60:.0f} min left] {number} {site.key} "
                f"{site.file}:{site.line} {site.slip.operator}: {what}"
            )

    def run(self, jobs: int) -> None:
        self.prepare()
        waiting = self.waiting()
        self.total = len(waiting)
        self.began = time.monotonic()
        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(self.one, waiting))
            except KeyboardInterrupt:
                self.problem = "interrupted; what was judged is kept"
                pool.shutdown(wait=False, cancel_futures=True)
        self.records.settle()
        if self.problem:
            raise SystemExit(f"source_mutants: {self.problem}. Give the same command again to go on.")
