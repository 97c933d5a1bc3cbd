"""Ranks for tests: forked processes, each with what it returned or the exception that it raised."""

from __future__ import annotations

import io
import os
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

TIMEOUT_S = 300


class RankFailed(AssertionError):
    """A rank raised; the text is its traceback."""


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that nobody else gets meanwhile, and at which a server that names it may listen."""
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield holder.getsockname()[1]


def _rank(connection: Connection, environment: dict[str, str], call: Callable, args: tuple) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        outcome: tuple[bool, Any] = (True, call(*args))
    except BaseException:  # noqa: BLE001  whatever a rank raises is what it answers
        outcome = (False, traceback.format_exc())
    buffer = io.BytesIO()
    torch.save(outcome, buffer)
    connection.send_bytes(buffer.getvalue())
    connection.close()


def outcomes(world: int, call: Callable, *args: Any) -> list[tuple[bool, Any]]:
    """(True, result) or (False, traceback) of call(*args) on each rank, in the environment that torchrun makes."""
    with reserved_port() as port:
        return _outcomes(world, port, call, args)


def _outcomes(world: int, port: int, call: Callable, args: tuple) -> list[tuple[bool, Any]]:
    forks = get_context("fork")
    started = []
    for rank in range(world):
        mine, other = forks.Pipe()
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        process = forks.Process(target=_rank, args=(other, environment, call, args))
        process.start()
        other.close()
        started.append((process, mine))
    results: list[tuple[bool, Any]] = []
    for rank, (process, connection) in enumerate(started):
        try:
            if not connection.poll(TIMEOUT_S):
                raise EOFError
            results.append(torch.load(io.BytesIO(connection.recv_bytes()), weights_only=False))
        except EOFError:
            process.kill()
            results.append((False, f"rank {rank} gave no answer within {TIMEOUT_S} s, or died"))
        process.join()
    return results


def run(world: int, call: Callable, *args: Any) -> list[Any]:
    """The results of all ranks, or RankFailed with every traceback."""
    results = outcomes(world, call, *args)
    failed = [f"rank {rank}:\n{text}" for rank, (held, text) in enumerate(results) if not held]
    if failed:
        raise RankFailed("\n".join(failed))
    return [result for _, result in results]


def alone(call: Callable, *args: Any) -> Any:
    """As run, in one process of its own without a launcher's variables."""
    return run(1, call, *args)[0]


def scratch() -> str:
    return tempfile.mkdtemp(prefix="equigrad-python-")
