"""The process of a rank, or of the reference: connects to the judge's socket and answers its lines."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from typing import Any

import torch
from torch import distributed

from . import adapters, device, tensors
from .loop import run_case
from .protocol import CHANNEL, PROTOCOL, Channel, Hello, read_case, to_json
from .reference import local


def main(arguments: list[str]) -> int:
    """ENGINE or --reference. The exit code."""
    if len(arguments) != 1 or CHANNEL not in os.environ:
        print(
            f"[judge] expected ENGINE or --reference, and {CHANNEL} set, got {arguments}. `equigrad judge` starts this.",
            file=sys.stderr,
        )
        return 2
    torch.set_num_threads(1)
    device.here()
    channel = Channel.connect(os.environ[CHANNEL])
    try:
        return _serve_reference(channel) if arguments[0] == "--reference" else _serve(channel, arguments[0])
    finally:
        channel.close()


def _serve(channel: Channel, engine: str) -> int:
    adapter = adapters.make(engine)
    rank = int(os.environ.get("RANK", "0"))
    hello = Hello(PROTOCOL, rank, adapter.name, adapter.version(), torch.__version__)
    adapter.start()
    channel.send({"hello": to_json(hello)})
    frozen = False
    while (line := channel.receive()) is not None and line.get("do") != "stop":
        path = os.path.join(line["folder"], f"rank{rank}.safetensors")
        answer, named = run_case(adapter, read_case(line["case"]), rank, line["folder"])
        tensors.write(path, named)
        channel.send({"number": line["number"], "answer": to_json(answer), "tensors": path})
        if answer.steps and not frozen:
            gc.freeze()  # what the first case has imported; else each collection after a case walks through it
            frozen = True
    if distributed.is_initialized():
        distributed.destroy_process_group()
    return 0


def _serve_reference(channel: Channel) -> int:
    hello = Hello(PROTOCOL, 0, "reference", torch.__version__, torch.__version__)
    channel.send({"hello": to_json(hello)})
    while (line := channel.receive()) is not None and line.get("do") != "stop":
        channel.send(_reference_answer(line))
    return 0


def _reference_answer(line: dict[str, Any]) -> dict[str, Any]:
    try:
        parameters = tensors.read(line["parameters"])
        losses, named = local(read_case(line["case"]), int(line["step"]), parameters, float(line.get("scale") or 1.0))
        path = os.path.join(line["folder"], f"local{line['step']}.safetensors")
        tensors.write(path, named)
    except Exception:  # noqa: BLE001  a user's model may raise anything
        return {"number": line["number"], "error": traceback.format_exc()}
    return {"number": line["number"], "losses": to_json(losses), "tensors": path}
