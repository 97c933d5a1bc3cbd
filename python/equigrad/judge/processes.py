"""Processes that the judge starts: where they lie, their environment, how they end, and that none is left behind."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import orphans
from .on_rank.protocol import DEVICE

LOG_LINES = 60
"""Of what a process wrote, in a text for a person."""
_DIED = "Fatal Python error:"
LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
LAUNCHERS_BEGIN = ("TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_", "SLURM_")
DEVICES = {
    "cpu": {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", DEVICE: "cpu"},
    "cuda": {"DS_ACCELERATOR": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", DEVICE: "cuda"},
}
"""What a process may be judged on, and its environment there."""


class Fault(Exception):
    """What a rank did instead of answering.

    kind: "crashed" (its process ended), "hung" (it gave no answer in time) or "protocol" (it answered what is no answer).
    """

    def __init__(self, kind: str, rank: int, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.rank = rank
        self.text = text


class Room:
    """A folder for sockets, cases and answers, and a watcher that ends what the judge leaves behind, however the judge ends."""

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(base) > 50:  # a socket's path has at most 107 bytes
            base = "/tmp"
        self.folder = Path(tempfile.mkdtemp(prefix="equigrad-judge-", dir=base)).resolve()
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", orphans.__file__, str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != orphans.CHANNEL},
        )
        self._count = 0

    def new(self, name: str) -> Path:
        """A new folder in the room."""
        self._count += 1
        made = self.folder / f"{self._count}-{name}"
        made.mkdir()
        return made

    def close(self) -> None:
        """Ends every process of the room, and removes the folder."""
        orphans.kill_below(str(self.folder))
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()
        self._watcher.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class Program:
    """What is started once per rank. `engine`: as the person named it; `device`: of DEVICES."""

    engine: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"


@dataclass(frozen=True)
class Place:
    """Of one process among those of its group. The port is the group's own; `channel` is the socket that it connects to."""

    rank: int
    world: int
    port: int
    channel: Path


def environment_of(program: Program, place: Place) -> dict[str, str]:
    """What torchrun sets, one thread, the program's device and no other, and nothing of another launcher."""
    kept = {
        name: value for name, value in os.environ.items() if name not in LAUNCHERS and not name.startswith(LAUNCHERS_BEGIN)
    }
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    quiet = {
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONFAULTHANDLER": "1",  # SIGABRT makes a Python write where it stands
        "PYTHONUNBUFFERED": "1",
    }
    if os.path.exists("/sys/class/net/lo"):
        kept.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host whose own name cannot be looked up has no other
    launcher = {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_WORLD_SIZE": str(place.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(place.port),
    }
    own = {**DEVICES[program.device], **program.environment, **launcher, orphans.CHANNEL: str(place.channel)}
    return {**kept, **one, **quiet, **own}


class Process:
    """One started process, with the file of what it writes. Raises Fault where it cannot be started."""

    def __init__(self, program: Program, place: Place) -> None:
        self.rank = place.rank
        self._log = place.channel.with_name(f"rank{place.rank}.log")
        try:
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    program.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=environment_of(program, place),
                )
        except OSError as error:
            raise Fault("crashed", place.rank, f"{program.command[0]} could not be started: {error}") from error
        if hasattr(resource, "prlimit"):
            try:
                resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))
            except OSError:
                pass  # it has ended already

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> str:
        """How it ended, in words; empty while it lives."""
        code = self._process.poll()
        if code is None:
            return ""
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def log(self, lines: int = LOG_LINES) -> str:
        """The end of what it wrote on its standard output and error."""
        try:
            text = self._log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(_telling(text.rstrip().splitlines(), lines))

    def ask_where_it_stands(self) -> None:
        """It ends, and a Python writes the stacks of its threads before."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGABRT)

    def kill(self) -> None:
        """With all that is still in its session's group."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self._process.wait()


def crash_of(process: Process, world: int, doing: str) -> Fault:
    """The Fault of a process that is gone, with what it wrote."""
    process.wait(2.0)
    how = process.ended() or "its connection closed"
    log = process.log()
    said = _last_words(log)
    head = f"rank {process.rank} of {world} ended while {doing}: {how}{', ' if said else ''}{said}"
    return Fault("crashed", process.rank, f"{head}\n{log}".rstrip())


def hang_of(silent: Sequence[Process], world: int, doing: str, limit_s: float) -> Fault:
    """The Fault of processes that gave no answer, with where each of them stood."""
    for process in silent:
        process.ask_where_it_stands()
    end = time.monotonic() + 2.0
    for process in silent:
        process.wait(end - time.monotonic())
    ranks = [str(process.rank) for process in silent]
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"
    logs = "\n".join(f"rank {process.rank} wrote:\n{process.log(LOG_LINES // 2)}" for process in silent)
    head = f"{who} of {world} gave no answer within {limit_s:.0f} s while {doing}"
    return Fault("hung", silent[0].rank, f"{head}\n{logs}".rstrip())


def _telling(log: list[str], count: int) -> list[str]:
    """The end of a log; where Python wrote how it died, what was said before that, and the innermost frames."""
    log = [line for line in log if not line.startswith("Extension modules:")]
    died = next((index for index, line in enumerate(log) if line.startswith(_DIED)), None)
    if died is None or len(log) - died < count:
        return log[-count:]
    before = min(died, count // 3)
    return [*log[died - before : died + count - before], "..."]


def _last_words(log: str) -> str:
    """What a process said before it died: C++'s `what()`, or the last line of a traceback."""
    lines = [line.strip() for line in log.partition(_DIED)[0].splitlines() if line.strip()]
    told = [line.partition("what():")[2].strip() for line in lines if "what():" in line]
    if told:
        return told[-1]
    return lines[-1] if any(line.startswith("Traceback") for line in lines) else ""
