"""Runs scripts quickly: torch and the engine are imported once, then every rank of every script is a fork of this process.

    python scripts.py MODULE ...

Reads lines of JSON `{"script": PATH, "ranks": N, "timeout_s": S}`, answers each with `{"code": C, "said": PATH}`: the largest exit
status of the ranks, null where the script did not end in time; the file of what all of them wrote.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

RAISED = 98
"""The exit status of a rank whose script raised."""
KILLED = 99
"""That of a rank which a signal ended."""
_GRACE_S = 5.0


def load(modules: Sequence[str]) -> None:
    """Imports what forks are to have. One that is missing is left out: the script will say so."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "deepspeed" in sys.modules:  # scripts say so too, but too late for what is looked up once per process
        getattr(importlib.import_module("deepspeed.ops"), "__compatible_ops__")["deepspeed_shm_comm"] = False  # noqa: B009


def run(path: Path, ranks: int, timeout_s: float) -> int | None:
    """The script on that many ranks; what rank R wrote is in rank<R>.txt beside it. None: it did not end in time."""
    forks = multiprocessing.get_context("fork")
    with _port() as port:
        running = [forks.Process(target=_rank, args=(path, rank, ranks, port)) for rank in range(ranks)]
        for one in running:
            one.start()
        ends = time.monotonic() + timeout_s
        for one in running:
            one.join(max(0.0, ends - time.monotonic()))
            if one.exitcode not in (None, 0, 1):
                ends = min(ends, time.monotonic() + _GRACE_S)  # the others may wait for it for ever
        hung = all(one.exitcode in (None, 0, 1) for one in running) and any(one.is_alive() for one in running)
        for one in running:
            if one.is_alive() and one.pid is not None:
                os.kill(one.pid, signal.SIGKILL)
                one.join()
    return None if hung else max(KILLED if one.exitcode is None or one.exitcode < 0 else one.exitcode for one in running)


def _rank(path: Path, rank: int, ranks: int, port: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with open(path.with_name(f"rank{rank}.txt"), "w", encoding="utf-8") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    sys.argv = [str(path)]
    os.chdir(path.parent)
    try:
        runpy.run_path(str(path), run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else RAISED
    except BaseException:  # noqa: BLE001  whatever it raises is how the script ended
        traceback.print_exc()
        code = RAISED
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def _port() -> Iterator[int]:
    """One that nobody else gets meanwhile, and at which a server that names it may listen."""
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield int(holder.getsockname()[1])


def said_by(path: Path) -> str:
    """What all ranks of a script wrote, in their order."""
    parts = sorted(path.parent.glob("rank*.txt"), key=lambda one: int(one.stem.removeprefix("rank")))
    return "".join(one.read_text(encoding="utf-8", errors="replace") for one in parts)


def main() -> None:
    """Serves until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    load(sys.argv[1:])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        path = Path(asked["script"])
        code = run(path, int(asked["ranks"]), float(asked["timeout_s"]))
        everything = path.with_name("said.txt")
        everything.write_text(said_by(path), encoding="utf-8")
        print(json.dumps({"code": code, "said": str(everything)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
