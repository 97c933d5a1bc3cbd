"""Engines x cells -> Board. Processes are kept over cells; a red cell is confirmed before it is shown."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import re
import shutil
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from . import environments
from .board import WRONG, Board, Cell, Engine, Machine, Repro, Run
from .cases import Planned
from .environments import Target
from .judging import Bench, Judged, VoidError
from .on_rank import users_model
from .processes import Fault, Room
from .progress import Progress
from .ranks import Pool, RankAnswer
from .repro import Subject

TEXT_LINES = 80
"""Of what a crashed or refusing engine said, in a cell."""
NO_SCRIPT = "No script: those that show a fault without the judge are written for the CPU only."


@dataclass(frozen=True)
class Job:
    """One engine, the Python that it runs in, and the cells to judge it on."""

    target: Target
    python: str
    cells: Sequence[Planned]

    @property
    def key(self) -> str:
        """What the board's cells call it."""
        return self.target.text


@dataclass(frozen=True)
class Settings:
    """Of a run. Times are in seconds."""

    seed: int = 1
    timeout_s: float = 120.0
    start_s: float = 180.0
    fail_fast: bool = False
    confirm: bool = True
    command: str = ""
    shard: str = ""
    made_by: str = ""
    device: str = "cpu"
    notes: tuple[str, ...] = ()


class Interrupted(BaseException):
    """SIGINT or SIGTERM came."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass
class Outcome:
    """A board, and the number of the signal that cut it short (0: none did)."""

    board: Board
    signal: int = 0


def run(jobs: Sequence[Job], settings: Settings, progress: Progress) -> Outcome:
    """Judges every job's engine on its cells, one engine after the other. SIGINT and SIGTERM end it with what there is."""
    begun, started = time.monotonic(), datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    engines: list[Engine] = []
    cells: list[Cell] = []
    cut, partial = 0, ""
    with _signals():
        try:
            with _room() as room:
                for job in jobs:
                    partial = _judge_engine(_EngineRun(job, settings, progress, room), engines, cells) or partial
                    if partial:
                        break
        except Interrupted as interrupted:
            cut, partial = interrupted.number, f"interrupted by {interrupted}"
        finally:
            progress.finish()
    left = sum(len(job.cells) for job in jobs) - len(cells)
    board = Board(
        engines=tuple(engines),
        cases={cell.id: cell.axes for job in jobs for cell in job.cells},
        cells=tuple(cells),
        run=Run(
            seed=settings.seed,
            command=settings.command,
            started=started,
            seconds=round(time.monotonic() - begun, 3),
            machine=machine(),
            device=settings.device,
            made_by=settings.made_by,
            shard=settings.shard,
            partial=partial,
        ),
        not_run={partial: left} if left and partial else {},
        notes=settings.notes,
    )
    return Outcome(board, cut)


def _judge_engine(engine: _EngineRun, engines: list[Engine], cells: list[Cell]) -> str:
    """Appends what comes out, so that it is there when the run is cut short. Returns why the run is to end, or ""."""
    index = len(engines)
    engines.append(engine.about)
    try:
        for planned in engine.job.cells:
            cell = engine.cell(planned)
            engines[index] = engine.about
            cells.append(cell)
            if engine.settings.fail_fast and cell.verdict in WRONG:
                break
    except BaseException:
        engine.end()
        raise
    engine.close()
    if engine.settings.fail_fast and cells and cells[-1].verdict in WRONG:
        return f"ended at the first failure, {cells[-1].engine} on {cells[-1].case}"
    return ""


@dataclass
class _EngineRun:
    """One engine under judgement: its ranks, by their number, and the bench that judges them."""

    job: Job
    settings: Settings
    progress: Progress
    room: Room
    pools: dict[int, Pool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.program = environments.program_of(self.job.target, self.job.python, self.settings.device)
        self.bench = Bench(self.room, environments.reference_of(self.job.python, self.settings.device), self.settings.seed)
        self.about = Engine(self.job.key, self.job.target.adapter or self.job.key, self.job.target.version, "", "")

    def cell(self, planned: Planned) -> Cell:
        """What comes out of one cell; a red one has been confirmed."""
        self.progress.doing(self.job.key, planned.id)
        begun = time.monotonic()
        judged = self._judged(planned)
        if judged.verdict in ("red", "crashed", "hung") and self.settings.confirm:
            self.progress.doing(self.job.key, f"{planned.id}: {judged.verdict}, tried again by itself")
            judged = self._confirmed(planned, judged) if judged.verdict == "red" else self._again(planned, judged)
        seconds = round(time.monotonic() - begun, 3)
        self.progress.done(self.job.key, judged.verdict, seconds)
        if judged.verdict in WRONG:
            self.progress.say(f"{judged.verdict:8} {self.job.key} {planned.id}: {judged.cause or _first_line(judged.text)}")
        return Cell(
            engine=self.job.key,
            case=planned.id,
            verdict=judged.verdict,
            seconds=seconds,
            compared=judged.compared,
            exact=judged.exact,
            cause=judged.cause,
            kind=judged.kind,
            text=judged.text,
            findings=judged.findings,
            repro=judged.repro,
        )

    def close(self) -> None:
        """In peace."""
        for pool in self.pools.values():
            pool.stop()
        self.bench.stop()

    def end(self) -> None:
        """At once."""
        for pool in self.pools.values():
            pool.end()
        self.bench.end()

    def _pool(self, world: int) -> Pool:
        """Of that many ranks; those of another number end, for their memory."""
        for other in [one for one in self.pools if one != world]:
            self.pools.pop(other).stop()
        if world not in self.pools:
            self.pools[world] = Pool(self.room, self.program, world, self.settings.start_s)
        return self.pools[world]

    def _judged(self, planned: Planned) -> Judged:
        try:
            prepared = self.bench.prepare(planned.case)
            answers = self._pool(planned.case.world).ask(prepared.path, prepared.digest, self.settings.timeout_s)
            self._note(answers)
            try:
                return self._of_kinds(answers, planned.case.world) or self.bench.judge(prepared, answers)
            finally:
                for tensors in {one.tensors.parent for one in answers if one.tensors is not None}:
                    shutil.rmtree(tensors, ignore_errors=True)
        except VoidError as error:
            return Judged("void", text=str(error))
        except Fault as fault:
            if fault.kind == "protocol":  # what an adapter of ours says wrong is the judge's fault
                return Judged("void" if self.job.target.adapter else "crashed", text=fault.text)
            return Judged(fault.kind, kind=_kind(_first_line(fault.text)), text=fault.text)
        except Exception:  # noqa: BLE001  a fault of the judge's own is a cell of its own, and the others go on
            return Judged("void", text=_tail(traceback.format_exc()))

    def _of_kinds(self, answers: Sequence[RankAnswer], world: int) -> Judged | None:
        """The verdict where the ranks answered no steps."""
        said = {kind: [one for one in answers if one.kind == kind] for kind in ("failed", "refused", "absent", "steps")}
        if said["failed"]:
            one = said["failed"][0]
            text = f"rank {one.rank}: {_tail(str(one.answer.failed))}"
            return Judged("crashed", kind=_kind(_first_line(text)), text=text)
        if said["refused"] and not said["steps"]:
            return Judged("refused", text=_tail(str(said["refused"][0].answer.refused)))
        if len(said["absent"]) == world:
            return Judged("absent", text=str(said["absent"][0].answer.absent))
        if len(said["steps"]) == world:
            return None
        kinds = ", ".join(f"rank {one.rank}: {one.kind}" for one in answers)
        return Judged("crashed", text=f"the ranks do not agree about what they did ({kinds})")

    def _confirmed(self, planned: Planned, first: Judged) -> Judged:
        """The red cell with its script and what that showed; without a script, judged again in new processes."""
        repro = self._script(planned, first)
        if repro is not None and repro.confirmed:
            return dataclasses.replace(first, repro=repro)
        if repro is not None and not planned.case.model.name.startswith(users_model.PREFIX):
            text = f"[judge] expected the script to show what the judge saw, got: {repro.said}\n{first.cause}"
            return dataclasses.replace(first, verdict="void", text=text, repro=repro)
        self._pool(planned.case.world).stop()
        again = self._judged(planned)
        if again.verdict == "red":
            misses_one = self.job.target.adapter and self.settings.device != "cpu"
            return dataclasses.replace(first, text=NO_SCRIPT) if misses_one else first
        text = f"[judge] expected the cell to be red again in new processes, got {again.verdict}. {again.text}\n{first.cause}"
        return dataclasses.replace(first, verdict="void", text=text)

    def _script(self, planned: Planned, judged: Judged) -> Repro | None:
        """None where no script can be written: on another device than the CPU none can."""
        if self.settings.device != "cpu":
            return None
        subject = Subject(self.job.target.adapter, self.about.version, self.about.torch)
        try:
            return self.bench.repro(subject, planned.case, judged, self.job.python)
        except Exception:  # noqa: BLE001  then the cell is confirmed as that of an engine for which there are no scripts
            self.progress.say(f"judge: no script for {planned.id}: {_first_line(traceback.format_exc())}")
            return None

    def _again(self, planned: Planned, first: Judged) -> Judged:
        """What comes out in new processes of a cell whose processes are gone: what was left of other cells, or a machine that was
        too busy, is no fault of the engine's."""
        self._pool(planned.case.world).end()
        again = self._judged(planned)
        if again.verdict in ("crashed", "hung", "void"):
            return first
        if again.verdict == "red":
            again = self._confirmed(planned, again)
        note = f"In the processes of the cells before it, it {first.verdict}: {_first_line(first.text)}"
        return dataclasses.replace(again, text="\n".join(filter(None, (again.text, note))))

    def _note(self, answers: Sequence[RankAnswer]) -> None:
        """What the engine says of itself."""
        told = next((one.answer for one in answers if one.answer.version), None)
        if told is not None:
            python = platform.python_version() if not self.job.target.version else ""
            self.about = Engine(self.job.key, told.engine or self.about.name, told.version, told.torch, python)


def machine() -> Machine:
    """This one."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), name)
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        memory_bytes = 0
    return Machine(name, os.cpu_count() or 0, memory_bytes, f"{platform.system()} {platform.release()}")


@contextmanager
def _room() -> Iterator[Room]:
    room = Room()
    try:
        yield room
    finally:
        room.close()


@contextmanager
def _signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise Interrupted, once; a second one meanwhile is let pass."""

    def interrupt(number: int, _: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tail(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join(lines if len(lines) <= TEXT_LINES else ["...", *lines[-TEXT_LINES:]])


def _kind(line: str) -> str:
    """The same for two lines that say the same of other ranks, sizes and addresses."""
    return re.sub(r"0x[0-9a-f]+|\d+", "N", line)


def _first_line(text: str) -> str:
    """What a person needs of a text in one line: a traceback's last."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if any(line.startswith("Traceback") or "Traceback (" in line for line in lines) else lines[0]
