"""The ranks of an engine under test and the reference process: started once, kept over cases, spoken with over a Unix socket.

Whoever does not answer a case as the protocol says is found out by name: a rank that ends, hangs, says no line of JSON, speaks
another version, answers another case's number, or hands in again the bytes of a case with other batches. Then the whole group is
ended, and the next case starts a new one.
"""

from __future__ import annotations

import hashlib
import json
import select
import selectors
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import lines, orphans
from .lines import Line
from .on_rank.protocol import Answer
from .processes import Fault, Place, Process, Program, Room, crash_of, hang_of

LINE_BYTES = 64 << 20
"""The longest line that is read."""
PATIENCE_S = 5.0
"""What the other ranks get to answer after one of them has refused or failed."""
START_S = 180.0


class Connection:
    """The judge's end of one rank's socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._buffer = bytearray()

    def send(self, line: Mapping[str, Any]) -> None:
        self.socket.settimeout(PATIENCE_S)
        self.socket.sendall(json.dumps(line).encode() + b"\n")

    def receive(self) -> bytes | None:
        """A whole line where there is one by now. Raises EOFError where the other side is gone, ValueError for too long a line."""
        self.socket.settimeout(PATIENCE_S)
        more = self.socket.recv(1 << 20)
        if not more:
            raise EOFError
        end = more.find(b"\n")
        if end < 0:
            self._buffer += more
            if len(self._buffer) > LINE_BYTES:
                raise ValueError(f"a line of more than {LINE_BYTES} bytes")
            return None
        if end + 1 < len(more):
            raise ValueError(f"more than one line: {lines.said(more[end + 1 :])}")
        line = bytes(self._buffer) + more[:end]
        self._buffer.clear()
        return line


class Group:
    """`world` processes of one program that answer together. Raises Fault where one cannot be started or says no hello."""

    def __init__(self, room: Room, program: Program, world: int, start_s: float = START_S) -> None:
        self.program = program
        self.world = world
        self.hellos: list[Line] = []
        self._folder = room.new("group")
        self._port = _Port()
        self._processes: list[Process] = []
        self._connections: list[Connection] = []
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(self._folder / "channel"))
                listener.listen(world)
                for rank in range(world):
                    place = Place(rank, world, self._port.number, self._folder / "channel")
                    self._processes.append(Process(program, place))
                self._greet(listener, start_s)
        except BaseException:
            self.end()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def ask(self, requests: Sequence[Mapping[str, Any]], limit_s: float, doing: str) -> list[Line | None]:
        """The answers to one request per rank, in the order of ranks.

        None for a rank that still had not answered PATIENCE_S after another had refused or failed. Raises Fault; then, as after
        a None, the group is over.
        """
        try:
            for process, connection, request in zip(self._processes, self._connections, requests, strict=True):
                try:
                    connection.send(request)
                except OSError as error:
                    raise crash_of(process, self.world, doing) from error
            answers = self._collect(limit_s, doing)
        except BaseException:
            self.end()
            raise
        if None in answers:
            self.end()
        return answers

    def log(self, rank: int) -> str:
        """The end of what a rank wrote."""
        return self._processes[rank].log()

    def stop(self) -> None:
        """Asks all to end, gives them a moment, and ends what is left."""
        try:
            for connection in self._connections:
                connection.send({"do": "stop"})
        except OSError:
            pass
        end = time.monotonic() + PATIENCE_S
        for process in self._processes:
            process.wait(end - time.monotonic())
        self.end()

    def end(self) -> None:
        """Kills the group and all that it has started."""
        for connection in self._connections:
            connection.socket.close()
        for process in self._processes:
            process.kill()
        orphans.kill_below(str(self._folder))
        self._port.close()

    def _greet(self, listener: socket.socket, start_s: float) -> None:
        """Takes the connections and the hellos of all ranks, in whatever order they come."""
        end = time.monotonic() + start_s
        by_rank: dict[int, Connection] = {}
        while len(by_rank) < self.world:
            missing = [process for process in self._processes if process.rank not in by_rank]
            if time.monotonic() > end:
                raise hang_of(missing, self.world, "it was started", start_s)
            listener.settimeout(0.1)
            try:
                connection = Connection(listener.accept()[0])
            except TimeoutError:
                for process in missing:
                    if process.ended():
                        raise crash_of(process, self.world, "it was started") from None
                continue
            hello = self._hello(connection, end)
            if hello["rank"] in by_rank:
                raise Fault("protocol", hello["rank"], f"two processes said that they are rank {hello['rank']}.")
            by_rank[hello["rank"]] = connection
            self.hellos.append(hello)
        self._connections = [by_rank[rank] for rank in range(self.world)]
        self.hellos.sort(key=lambda hello: int(hello["rank"]))

    def _hello(self, connection: Connection, end: float) -> Line:
        line = None
        try:
            while line is None:
                left = end - time.monotonic()
                if left <= 0 or not select.select([connection.socket], [], [], left)[0]:
                    raise TimeoutError("nothing in time")  # it connects before it imports its engine
                line = connection.receive()
        except (EOFError, OSError, ValueError) as error:
            raise lines.fault(-1, 'a line {"hello": {"protocol": 1, "rank": ...}} as the first', error) from error
        return lines.read_hello(line, self.world)

    def _collect(self, limit_s: float, doing: str) -> list[Line | None]:
        answers: dict[int, Line] = {}
        end, patient = time.monotonic() + limit_s, False
        with selectors.DefaultSelector() as selector:
            for rank, connection in enumerate(self._connections):
                selector.register(connection.socket, selectors.EVENT_READ, rank)
            while len(answers) < self.world:
                ready = selector.select(max(0.0, min(0.2, end - time.monotonic())))
                for key, _ in ready:
                    line = self._line(key.data, doing)
                    if line is not None:
                        answers[key.data] = line
                        selector.unregister(key.fileobj)
                if not patient and any(_is_the_end(answer) for answer in answers.values()):
                    end, patient = min(end, time.monotonic() + PATIENCE_S), True
                if ready and time.monotonic() <= end:
                    continue
                silent = [process for process in self._processes if process.rank not in answers]
                for process in silent:
                    if process.ended():  # and its socket is held open by what it started
                        raise crash_of(process, self.world, doing)
                if time.monotonic() > end:
                    if patient:
                        break
                    raise hang_of(silent, self.world, doing, limit_s)
        return [answers.get(rank) for rank in range(self.world)]

    def _line(self, rank: int, doing: str) -> Line | None:
        try:
            line = self._connections[rank].receive()
        except (EOFError, OSError) as error:
            raise crash_of(self._processes[rank], self.world, doing) from error
        except ValueError as error:
            raise lines.fault(rank, "one line of JSON", error) from error
        return None if line is None else lines.read_line(line, rank)


class _Port:
    """A port that nobody else gets while this lives, and at which who names it may listen."""

    def __init__(self) -> None:
        self._holder = socket.socket()
        self._holder.bind(("", 0))
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.number: int = self._holder.getsockname()[1]

    def close(self) -> None:
        """Gives it back, with the shared memory that a killed DeepSpeed has left under the port's name."""
        self._holder.close()
        for left in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{self.number}_*"):
            left.unlink(missing_ok=True)


def _is_the_end(answer: Line) -> bool:
    """Whether the others may wait in vain for who gave this answer."""
    inner = answer.get("answer")
    return "error" in answer or (isinstance(inner, dict) and ("failed" in inner or "refused" in inner))


def _digest_of(path: Path, rank: int) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    except OSError as error:
        raise lines.fault(rank, "a file of tensors that can be read", error) from error
    return digest.hexdigest()


@dataclass(frozen=True)
class RankAnswer:
    """Of one rank to one case, with the file of its tensors where it has steps."""

    rank: int
    answer: Answer
    tensors: Path | None = None

    @property
    def kind(self) -> str:
        """ "steps", "absent", "refused" or "failed"."""
        said = [kind for kind in ("absent", "refused", "failed") if getattr(self.answer, kind) is not None]
        return said[0] if said else "steps"


@dataclass
class Pool:
    """The ranks of one engine at one number of ranks: started when the first case comes, and anew after a Fault."""

    room: Room
    program: Program
    world: int
    start_s: float = START_S
    starts: int = 0
    _group: Group | None = None
    _number: int = 0
    _handed_in: dict[str, str] = field(default_factory=dict)

    @property
    def hello(self) -> Line:
        """Of rank 0: engine, version, torch."""
        return dict(self._running().hellos[0])

    @property
    def pids(self) -> list[int]:
        return [] if self._group is None else self._group.pids

    def ask(self, case: Path, batches: str, limit_s: float) -> list[RankAnswer]:
        """What the ranks answer to a case; `batches`: a digest of what makes its answers its own.

        Raises Fault; the next case then gets new processes, as it does after a rank has failed.
        """
        group = self._running()
        self._number += 1
        folder = self.room.new(f"case{self._number}")  # of all ranks: a checkpoint is written by all and read by all
        request = {"do": "case", "number": self._number, "case": str(case), "folder": str(folder)}
        try:
            given = group.ask([request] * self.world, limit_s, "it worked at the case")
            answers = [
                self._answer(rank, line, folder, batches)
                for rank, line in enumerate(given)
                if line is not None
            ]
        except BaseException:
            self.end()
            raise
        kinds = {answer.kind for answer in answers}
        if len(answers) < self.world or len(kinds) > 1 or "failed" in kinds:
            self.end()
        return answers

    def stop(self) -> None:
        """Ends the ranks in peace."""
        if self._group is not None:
            self._group.stop()
        self._group = None

    def end(self) -> None:
        """Ends the ranks at once."""
        if self._group is not None:
            self._group.end()
        self._group = None

    def _running(self) -> Group:
        if self._group is None:
            self.starts += 1
            self._group = Group(self.room, self.program, self.world, self.start_s)
        return self._group

    def _answer(self, rank: int, line: Line, folder: Path, batches: str) -> RankAnswer:
        answer = lines.read_answer(line, rank, self._number)
        if not answer.steps:
            return RankAnswer(rank, answer)
        tensors = lines.read_tensors_path(line, rank, folder)
        digest = f"{rank}:{_digest_of(tensors, rank)}"
        if self._handed_in.setdefault(digest, batches) != batches:
            raise lines.fault(rank, "this case's tensors", "the very bytes that it handed in for a case with other batches")
        return RankAnswer(rank, answer, tensors)


@dataclass
class Reference:
    """The process that computes local gradients in the Python of the engine under test, without ever importing an engine."""

    room: Room
    program: Program
    limit_s: float = 120.0
    calls: int = 0
    _folder: Path | None = None
    _group: Group | None = None

    def local(self, case: Path, step: int, parameters: Path, scale: float) -> Line:
        """The line that it answers: "tensors" is the file of gradients, or "error" what went wrong. Raises Fault: the harness is at fault then."""
        if self._group is None:
            self._group = Group(self.room, self.program, 1)
        self.calls += 1
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self.room.new(f"local{self.calls}")
        request = {
            "do": "local",
            "number": self.calls,
            "case": str(case),
            "step": step,
            "parameters": str(parameters),
            "scale": scale,
            "folder": str(self._folder),
        }
        try:
            line = self._group.ask([request], self.limit_s, "the reference computed local gradients")[0]
        except BaseException:
            self._group = None
            raise
        if line is None or line.get("number") != self.calls or not ("tensors" in line or "error" in line):
            self.end()
            raise Fault("crashed", 0, f"the reference answered {lines.said(json.dumps(line))}")
        return line

    def stop(self) -> None:
        if self._group is not None:
            self._group.stop()
        self._group = None

    def end(self) -> None:
        if self._group is not None:
            self._group.end()
        self._group = None
