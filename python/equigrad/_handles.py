"""From a parameter to the engine that holds it."""

from __future__ import annotations

import itertools
import weakref
from typing import NamedTuple

import torch

from equigrad import _core

_ids = itertools.count()


class Handle(NamedTuple):
    """Kept at the parameter; it keeps no engine alive."""

    engine: weakref.ref
    name: str


def hold(engine, name: str, parameter: torch.nn.Parameter) -> None:
    """Marks a parameter as the engine's, with the attributes at which DeepSpeed's users look."""
    parameter._equigrad = Handle(weakref.ref(engine), name)
    if not hasattr(parameter, "ds_id"):
        parameter.ds_id = next(_ids)
    parameter.ds_shape = parameter.shape
    parameter.ds_numel = parameter.numel()


def let_go(parameter: torch.nn.Parameter) -> None:
    if hasattr(parameter, "_equigrad"):
        del parameter._equigrad


def engine_of(parameter: torch.nn.Parameter):
    """(engine, name), or None where no living engine holds it."""
    handle = getattr(parameter, "_equigrad", None)
    engine = handle.engine() if handle is not None else None
    return None if engine is None or engine._core is None else (engine, handle.name)


def core_of(parameter: torch.nn.Parameter, where: str) -> tuple[_core.Engine, str]:
    """As engine_of, with an error for a parameter that no engine holds."""
    found = engine_of(parameter)
    if found is None:
        kind = type(parameter).__name__
        raise _core.Error(
            f"[{where}] expected a parameter of an engine, got a {kind} of shape {list(getattr(parameter, 'shape', []))} "
            "that no engine holds. Give one of engine.module.parameters(), before engine.destroy()."
        )
    return found[0]._core, found[1]
