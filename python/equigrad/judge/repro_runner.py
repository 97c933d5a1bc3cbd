"""Runs scripts of one engine in seconds: its Python, torch and the engine are started once, every script is a fork (on_rank/scripts.py).

with Runner(python, "deepspeed") as runner:
    repro.show(subject, case, findings, python, timeout_s, confirm=runner.confirm)
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from .repro import Confirmed, NotConfirmed, outcome_of, ranks_of, surroundings

_PROGRAM = Path(__file__).with_name("on_rank") / "scripts.py"
_TORCH = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "torch.nn.parallel")
_OF_DEEPSPEED = ("deepspeed", "torch._inductor.compile_fx", "deepspeed.runtime.zero.muon.muon_optimizer")
_OF_ENGINES: dict[str, tuple[str, ...]] = {
    "deepspeed": _OF_DEEPSPEED,
    "accelerate": ("accelerate", "accelerate.utils"),
    "accelerate-deepspeed": (*_OF_DEEPSPEED, "accelerate", "accelerate.utils"),
    "equigrad": ("equigrad",),
}
START_S = 300.0


def modules_of(engine: str) -> tuple[str, ...]:
    """What its scripts import, sooner or later."""
    return (*_TORCH, *_OF_ENGINES.get(engine, ()))


class Runner:
    """The process is started when it is first needed."""

    def __init__(self, python: str, engine: str) -> None:
        self._command = [python, str(_PROGRAM), *modules_of(engine)]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.mkdtemp(prefix="equigrad-repro-")
        self._count = 0

    def confirm(self, text: str, timeout_s: float) -> Confirmed | NotConfirmed:
        """As repro.confirm(), without torchrun."""
        self._count += 1
        folder = Path(self._folder) / str(self._count)
        folder.mkdir()
        path = folder / "repro.py"
        path.write_text(text, encoding="utf-8")
        try:
            answer = self._asked({"script": str(path), "ranks": ranks_of(text), "timeout_s": timeout_s}, timeout_s + 30)
            said = Path(answer["said"]).read_text(encoding="utf-8")
            return outcome_of(answer["code"], said, timeout_s)
        except (OSError, ValueError) as error:
            self._end()
            return NotConfirmed(f"the process that runs scripts has ended: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Ends the process, and takes away what it wrote."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _asked(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                env={**surroundings(), "DS_ACCELERATOR": "cpu"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._answer(START_S)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        """The next line. Raises OSError where none comes in time, ValueError where it is no JSON."""
        assert self._process is not None and self._process.stdout is not None
        output, line, ends = self._process.stdout, b"", time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, ends - time.monotonic())):
                    raise TimeoutError(f"no answer within {timeout_s:g} s")
                part = os.read(output.fileno(), 65536)
                if not part:
                    raise EOFError(f"exit status {self._process.wait()}")
                line += part
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> None:
        if self._process is None:
            return
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._process = None
