"""The channel to the ranks: who does not answer as the protocol says is found out, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from equigrad.judge import orphans
from equigrad.judge.processes import Fault, Program, Room
from equigrad.judge.ranks import Pool

SERVE = """
import json, os, socket, subprocess, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
connection = socket.socket(socket.AF_UNIX)
lines = connection.makefile("rb")

def hello(protocol=1, rank=rank):
    connection.connect(os.environ["EQUIGRAD_JUDGE_CHANNEL"])
    send({"hello": {"protocol": protocol, "rank": rank, "engine": "e", "version": "1", "torch": "2"}})

def send(line):
    connection.sendall(json.dumps(line).encode() + b"\\n")

def receive():
    line = lines.readline()
    return json.loads(line) if line else {"do": "stop"}

def answer(line, text, number=None):
    path = os.path.join(line["folder"], f"rank{rank}.safetensors")
    open(path, "w").write(text)
    steps = {"steps": [{"losses": [1.0]}], "engine": "e", "version": "1", "torch": "2", "notes": []}
    send({"number": line["number"] if number is None else number, "answer": steps, "tensors": path})

def serve(handle):
    hello()
    while (line := receive())["do"] != "stop":
        handle(line)
"""


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.close()
    assert not made.folder.exists()
    assert orphans.processes_of(str(made.folder)) == []


def program(tmp_path: Path, body: str) -> Program:
    path = tmp_path / "program.py"
    path.write_text(SERVE + textwrap.dedent(body))
    return Program("e", (sys.executable, "-S", str(path)))


@contextmanager
def pool_of(room: Room, tmp_path: Path, body: str, world: int = 2, start_s: float = 60.0) -> Iterator[Pool]:
    pool = Pool(room, program(tmp_path, body), world, start_s)
    yield pool
    pool.stop()


def ask(pool: Pool, tmp_path: Path, batches: str = "b", limit_s: float = 60.0) -> list[str]:
    answers = pool.ask(tmp_path / "case.json", batches, limit_s)
    return [answer.kind for answer in answers]


GOOD = "serve(lambda line: answer(line, f'{rank} of {line}'))"


def test_processes_are_kept_over_cases(room: Room, tmp_path: Path) -> None:
    with pool_of(room, tmp_path, GOOD, world=3) as pool:
        assert ask(pool, tmp_path) == ["steps"] * 3
        first = pool.pids
        assert ask(pool, tmp_path) == ["steps"] * 3
        assert pool.pids == first and pool.starts == 1
        assert pool.hello["engine"] == "e"


def test_every_rank_gets_the_environment_of_torchrun(room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "7")
    monkeypatch.setenv("RANK", "9")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMP_NUM_THREADS")
    body = f"serve(lambda line: answer(line, str([os.environ.get(name) for name in {names!r}])))"
    with pool_of(room, tmp_path, body) as pool:
        answers = pool.ask(tmp_path / "case.json", "b", 60)
        said = [eval(answer.tensors.read_text()) for answer in answers if answer.tensors]
    ports = {one.pop(4) for one in said}
    assert len(ports) == 1 and ports != {None}
    assert said == [[str(rank), str(rank), "2", "127.0.0.1", None, "1"] for rank in range(2)]


OLD = """
open("old", "w").write("x")
serve(lambda line: send({"number": line["number"], "answer": {"steps": [{"losses": [1.0]}]}, "tensors": "old"}))
"""
FAULTY = {
    "another version": ("hello(protocol=2); receive()", "protocol", "protocol 1, got protocol 2"),
    "no hello": ("connection.connect(os.environ['EQUIGRAD_JUDGE_CHANNEL']); send({'hi': 1}); receive()", "protocol", "as the first"),
    "a rank twice": ("hello(rank=0); receive()", "protocol", "two processes said that they are rank 0"),
    "a rank that is none": ("hello(rank=5); receive()", "protocol", "a rank below 2, got rank 5"),
    "ends before hello": ("if rank == 1: sys.exit('no such engine')\nhello(); receive()", "crashed", "no such engine"),
    "never says hello": ("if rank == 1: time.sleep(60)\nhello(); receive()", "hung", "rank 1 of 2 gave no answer within 10 s"),
    "another case's number": ("serve(lambda line: answer(line, 'x', line['number'] + rank))", "protocol", "of rank 1"),
    "no JSON": ("serve(lambda line: connection.sendall(b'half a line\\n'))", "protocol", "one line of JSON, got half a line"),
    "two lines": ("serve(lambda line: connection.sendall(b'{}\\n{}\\n'))", "protocol", "more than one line"),
    "nothing in it": ("serve(lambda line: send({'number': line['number'], 'answer': {}}))", "protocol", "0 steps and []"),
    "dies": ("serve(lambda line: os._exit(7) if rank else answer(line, 'x'))", "crashed", "rank 1 of 2 ended while it worked"),
    "is killed": ("serve(lambda line: os.kill(os.getpid(), 11) if rank else None)", "crashed", "SIGSEGV"),
    "hangs": ("serve(lambda line: time.sleep(60) if rank else answer(line, 'x'))", "hung", "rank 1 of 2 gave no answer within 2 s"),
    "drips before hello": (
        "connection.connect(os.environ['EQUIGRAD_JUDGE_CHANNEL'])\nfor _ in range(1200): connection.sendall(b' '), time.sleep(0.05)",
        "protocol",
        "as the first, got nothing in time",
    ),
    "no file": (
        "serve(lambda line: send({'number': line['number'], 'answer': {'steps': [{'losses': [1.0]}]}, 'tensors': '/nowhere'}))",
        "protocol",
        "got /nowhere",
    ),
    "an old file": (
        OLD,
        "protocol",
        "tensors in a file of",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_rank_that_does_not_answer_is_found_out(
    name: str, room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    body, kind, text = FAULTY[name]
    limit_s = 2.0 if kind == "hung" else 60.0
    with pool_of(room, tmp_path, body, start_s=10.0 if name in ("never says hello", "drips before hello") else 60.0) as pool:
        begin = time.monotonic()
        with pytest.raises(Fault) as caught:
            ask(pool, tmp_path, limit_s=limit_s)
        assert caught.value.kind == kind
        assert time.monotonic() - begin < 50, "who drips goes on for 60 s"
        assert text in caught.value.text
        assert orphans.processes_of(str(room.folder)) == []


def test_a_hang_says_where_it_stands(room: Room, tmp_path: Path) -> None:
    body = "def wait_for_nobody(line): time.sleep(60)\nserve(wait_for_nobody)"
    with pool_of(room, tmp_path, body) as pool, pytest.raises(Fault, match="in wait_for_nobody"):
        ask(pool, tmp_path, limit_s=5.0)


def test_the_same_bytes_for_other_batches_are_found_out(room: Room, tmp_path: Path) -> None:
    with pool_of(room, tmp_path, "serve(lambda line: answer(line, 'always this'))") as pool:
        assert ask(pool, tmp_path, "b") == ["steps"] * 2
        assert ask(pool, tmp_path, "b") == ["steps"] * 2  # the same batches, in another case
        with pytest.raises(Fault, match="the very bytes"):
            ask(pool, tmp_path, "c")


def test_a_new_group_follows_a_fault(room: Room, tmp_path: Path) -> None:
    body = """
    def handle(line):
        if line["number"] == 2: os._exit(1)
        answer(line, f"{rank} of {line}")
    serve(handle)
    """
    with pool_of(room, tmp_path, body) as pool:
        assert ask(pool, tmp_path) == ["steps"] * 2
        with pytest.raises(Fault):
            ask(pool, tmp_path)
        assert ask(pool, tmp_path) == ["steps"] * 2
        assert pool.starts == 2


def test_who_waits_for_a_rank_that_failed_is_not_waited_for(room: Room, tmp_path: Path) -> None:
    body = """
    def handle(line):
        if rank: time.sleep(60)
        send({"number": line["number"], "answer": {"failed": "Traceback"}})
    serve(handle)
    """
    with pool_of(room, tmp_path, body) as pool:
        begin = time.monotonic()
        assert ask(pool, tmp_path, limit_s=60) == ["failed"]
        assert time.monotonic() - begin < 30
        assert orphans.processes_of(str(room.folder)) == []


def test_after_a_failure_the_processes_are_new(room: Room, tmp_path: Path) -> None:
    body = "serve(lambda line: send({'number': line['number'], 'answer': {'failed': 'Traceback'}}))"
    with pool_of(room, tmp_path, body) as pool:
        assert ask(pool, tmp_path) == ask(pool, tmp_path) == ["failed"] * 2
        assert pool.starts == 2


def test_children_of_a_rank_end_with_it(room: Room, tmp_path: Path) -> None:
    body = """
    def handle(line):
        subprocess.Popen(["sleep", "100"])
        subprocess.Popen(["setsid", "sleep", "100"])
        answer(line, f"{rank} of {line}")
    serve(handle)
    """
    with pool_of(room, tmp_path, body) as pool:
        ask(pool, tmp_path)
        time.sleep(0.2)
        assert len(orphans.processes_of(str(room.folder))) == 6
        pool.end()
        assert orphans.processes_of(str(room.folder)) == []


def test_nothing_is_left_of_a_judge_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SERVE + "subprocess.Popen(['setsid', 'sleep', '100'])\nserve(lambda line: time.sleep(100))")
    judge = tmp_path / "judge.py"
    here = Path(__file__).with_name("conftest.py")
    judge.write_text(
        f"exec(open({str(here)!r}).read(), {{'__file__': {str(here)!r}}})\n"
        "import sys, pathlib\n"
        "from equigrad.judge.processes import Program, Room\n"
        "from equigrad.judge.ranks import Pool\n"
        "room = Room(); print(room.folder, flush=True)\n"
        f"pool = Pool(room, Program('e', (sys.executable, '-S', {str(tmp_path / 'program.py')!r})), 2)\n"
        "pool.hello; print('started', flush=True)\n"
        "pool.ask(pathlib.Path('case.json'), 'b', 100)\n"
    )
    process = subprocess.Popen([sys.executable, str(judge)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = process.stdout.readline().strip()
    assert process.stdout.readline() == "started\n"
    assert len(orphans.processes_of(folder)) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 10
    while (orphans.processes_of(folder) or Path(folder).exists()) and time.monotonic() < end:
        time.sleep(0.05)
    assert orphans.processes_of(folder) == []
    assert not Path(folder).exists()


def test_a_crash_says_what_was_said_last(room: Room, tmp_path: Path) -> None:
    body = """
    def deep(line, depth):
        if depth: return deep(line, depth - 1)
        print("  what():  messages of other sizes", file=sys.stderr, flush=True)
        os.abort()
    serve(lambda line: deep(line, 90))
    """
    with pool_of(room, tmp_path, body, world=1) as pool, pytest.raises(Fault) as caught:
        ask(pool, tmp_path)
    first, *log = caught.value.text.splitlines()
    assert first.endswith("signal SIGABRT, messages of other sizes")
    assert "  what():  messages of other sizes" in log and sum("in deep" in line for line in log) > 20
    assert len(log) < 70
