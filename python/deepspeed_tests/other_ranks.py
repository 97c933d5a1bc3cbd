"""What DeepSpeed calls a DistributedFixture: a part of a test that runs before it, on a number of ranks of its own.

Rank 0 of a set has one process more, in which the plugin and the engine are imported and nothing is connected; it forks the
ranks of every such part. The other ranks of the set wait for what rank 0 tells: that all have ended, or how the first ended that
did not pass. pytest finds such classes no longer (8.4 and later), so they are registered here, by the name that tests ask for.

    python other_ranks.py     reads the path of a job a line, and answers a line of JSON: {"outcome", "reason", "reached"}
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pickle
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Outcome = dict[str, Any]  # "outcome": passed, skipped or failed; "reason"; "reached"
Share = Callable[[str, Callable[[], Outcome]], Outcome]  # by a name: rank 0's, on every rank


def register(collector: pytest.Module, found: type, share: Share) -> None:
    """Makes a DistributedFixture of a module a fixture of it."""

    def prepared(request: pytest.FixtureRequest) -> None:
        values = {}
        for name in inspect.getfullargspec(found.run).args[1:]:
            values[name] = request.getfixturevalue(name)
        ended = share(f"{request.node.nodeid}/{found.__name__}", lambda: _server().run(found, values))
        if ended["outcome"] == "skipped":
            pytest.skip(ended["reason"])
        if ended["outcome"] != "passed":
            pytest.fail(f"{found.__name__} on {found.world_size} ranks: {ended['reason']}", pytrace=False)

    holder = ModuleType(found.__name__)  # fixtures of an object are looked for in its type, of a module in itself
    setattr(holder, found.__name__, pytest.fixture(name=found.__name__)(prepared))
    collector.session._fixturemanager.parsefactories(holder, collector.nodeid)


class _Server:
    """The process that forks, as rank 0 sees it."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["OUTCOMES"]) / "other_ranks"
        self.folder.mkdir(exist_ok=True)
        self.jobs = 0
        variables = {**os.environ, "OUTCOMES": str(self.folder), "WORLD_SIZE": "1", "RANK": "0"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, found: type, values: dict[str, Any]) -> Outcome:
        self.jobs += 1
        job = self.folder / f"job{self.jobs}"
        job.write_bytes(pickle.dumps((inspect.getfile(found), found.__module__, found.__name__, values)))
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{job}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            return {"outcome": "failed", "reason": "the process that forks ended", "reached": False}
        return json.loads(answer)


_one: list[_Server] = []


def _server() -> _Server:
    if not _one:
        _one.append(_Server())
    return _one[0]


# ---- In the process that forks ---------------------------------------------------------------------------------------


def _read(job: Path) -> tuple[Any, dict[str, Any]]:
    """The part, of a module that is found where pytest has found it, and what it is given."""
    file, module, name, values = pickle.loads(job.read_bytes())
    folder = str(Path(file).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return getattr(importlib.import_module(module), name), values


def _rank(job: Path, rank: int, ranks: int, port: int) -> Outcome:
    import plugin

    own = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in own.items()})
    kind, reason = "passed", ""
    try:
        found, values = _read(job)
        plugin.begin(connected=found.init_distributed)
        found().run(**values)
    except pytest.skip.Exception as skipped:
        kind, reason = "skipped", str(skipped)
    except BaseException as error:  # noqa: BLE001  whatever a rank raises is what it answers
        traceback.print_exc()
        kind, reason = "failed", f"{type(error).__name__}: {error}"
    return {"outcome": kind, "reason": reason, "reached": plugin.was_reached()}


def remove_buffers(port: int | str, folder: Path = Path("/dev/shm")) -> None:
    """What DeepSpeed's reduction within a machine leaves of ranks that met at this port: 65 MiB a rank."""
    for path in folder.glob(f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_*"):
        path.unlink(missing_ok=True)


def _all_ranks(job: Path) -> Outcome:
    ranks = _read(job)[0].world_size
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            outcome = _rank(job, rank, ranks, port)
            job.with_suffix(f".rank{rank}").write_text(json.dumps(outcome))
            os._exit(0)  # of what is connected nothing is waited for
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    remove_buffers(port)
    files = [job.with_suffix(f".rank{rank}") for rank in range(ranks)]
    if not all(file.exists() for file in files):
        return {"outcome": "failed", "reason": f"its processes ended with {codes}", "reached": True}
    outcomes = [json.loads(file.read_text()) for file in files]
    worst = max(outcomes, key=lambda one: ["passed", "skipped", "failed"].index(one["outcome"]))
    return {**worst, "reached": any(one["reached"] for one in outcomes)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is no answer
    importlib.import_module("plugin")
    for line in sys.stdin:
        answers.write(json.dumps(_all_ranks(Path(line.strip()))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
