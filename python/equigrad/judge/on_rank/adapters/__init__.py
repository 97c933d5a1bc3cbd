"""Adapters by the name of their engine; each is imported when it is asked for, for it imports its engine."""

from __future__ import annotations

import importlib

from ..loop import Adapter
from ..protocol import ProtocolError

NAMES = ("plain", "ddp", "fsdp1", "fsdp2", "deepspeed", "accelerate", "accelerate-deepspeed", "equigrad")
"""Module adapters/NAME.py (- is _ there) holds a function `adapter()` that makes its Adapter."""


def make(name: str) -> Adapter:
    """Raises ProtocolError for another name, ImportError where the engine is not installed."""
    if name not in NAMES:
        raise ProtocolError(f"[judge] expected an engine of {list(NAMES)}, got {name!r}. Choose one, or give a COMMAND.")
    made: Adapter = importlib.import_module(f".{name.replace('-', '_')}", __name__).adapter()
    return made
