"""Judges: commands that hold for the engine as it is, and the time and the outcome of one of them over one mutant."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SLACK_S, SLOWER = 30.0, 6.0  # a mutant may take so long beside the time of the program without one
TELLING = [r"Failure$|FAILED|Error|terminate called|expected"]


@dataclass
class Outcome:
    kind: str  # held, failed, crashed, timed out, not reached
    seconds: float = 0.0
    line: str = ""  # of the output, what was wrong
    by: str = ""  # which test


@dataclass
class Command:
    """What is run once: of a judge that is a set of tests, one test."""

    name: str
    words: list[str] | str
    environment: dict[str, str] = field(default_factory=dict)
    folder: str | None = None
    codes: dict[str, str] = field(default_factory=dict)
    telling: list[str] = field(default_factory=lambda: TELLING)  # the first line of the output that has each of these


def end_all(token: str) -> None:
    """Every process that has the run's token, its ranks included."""
    word = f"EQUIGRAD_MUTANT_RUN={token}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if word in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue


def telling_line(output: str, patterns: list[str]) -> str:
    lines = [one.strip() for one in output.splitlines() if one.strip()]
    found = [next((one for one in lines if re.search(pattern, one)), "") for pattern in patterns]
    told = " | ".join(one[:200] for one in found if one)
    return told or (lines[-1][:200] if lines else "")


def kind_of(code: int, output: str, codes: dict[str, str]) -> str:
    if code == 0:
        return "held"
    if code < 0 or "SegFault" in output or "Segmentation fault" in output:
        return "crashed"
    return codes.get(str(code), "failed")


def run(command: Command, mutant: int, limit_s: float, reached: Path | None = None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="sm") as scratch:
        token = Path(scratch).name
        environment = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            **command.environment,
            "EQUIGRAD_MUTANT": str(mutant),
            "EQUIGRAD_MUTANT_RUN": token,
            "TMPDIR": scratch,
        }
        if reached is not None:
            environment["EQUIGRAD_MUTANT_REACHED"] = str(reached)
        words = command.words.replace("{scratch}", scratch) if isinstance(command.words, str) else command.words
        output = Path(scratch) / "output"
        began = time.monotonic()
        with open(output, "wb") as file:
            process = subprocess.Popen(
                words,
                shell=isinstance(words, str),
                env=environment,
                cwd=command.folder or scratch,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_all(token)
                process.wait()
        seconds = time.monotonic() - began
        text = output.read_bytes()[:2_000_000].decode(errors="replace")
        if code is None:
            return Outcome("timed out", seconds, f"not ended after {limit_s:.0f} s", command.name)
        kind = kind_of(code, text, command.codes)
        return Outcome(kind, seconds, "" if kind == "held" else telling_line(text, command.telling), command.name)


class Judge:
    def __init__(self, row: dict, build: Path) -> None:
        self.name: str = row["name"]
        self.row, self.build = row, build
        self.skips_unreached: bool = row.get("skip not reached", True)

    @staticmethod
    def table(build: Path, names: list[str], file: Path) -> list[Judge]:
        rows = {one["name"]: one for one in json.loads(file.read_text())}
        unknown = [one for one in names if one not in rows]
        if unknown:
            raise SystemExit(f"source_mutants: expected judges of {list(rows)}, got {unknown[0]}. {file} has the table.")
        return [Judge(rows[one], build) for one in names]

    def targets(self, rooms: list[str], every: list[str]) -> list[str]:
        patterns = [one.format(room=room) for one in self.row["targets"] for room in rooms]
        return sorted(
            {one for pattern in patterns for one in ([pattern] if pattern == "all" else fnmatch.filter(every, pattern))}
        )

    def commands(self, room: str) -> list[Command]:
        if "command" in self.row:
            text = self.row["command"].replace("{build}", str(self.build)).replace("{room}", room)
            return [Command(self.name, text, codes=self.row.get("codes", {}), telling=self.row.get("telling", TELLING))]
        wanted = re.compile(self.row["tests"].replace("{room}", room))
        unwanted = re.compile(self.row.get("except", "$^"))
        return [one for one in self.tests() if wanted.search(one.name) and not unwanted.search(one.name)]

    def tests(self) -> list[Command]:
        shown = subprocess.run(
            ["ctest", "--test-dir", str(self.build), "--show-only=json-v1"], check=True, capture_output=True, text=True
        )
        commands = []
        for one in json.loads(shown.stdout)["tests"]:
            properties = {row["name"]: row["value"] for row in one.get("properties", [])}
            if "command" in one:
                environment = dict(word.split("=", 1) for word in properties.get("ENVIRONMENT", []))
                commands.append(Command(one["name"], one["command"], environment, properties.get("WORKING_DIRECTORY")))
        return commands
