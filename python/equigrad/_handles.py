"""From a parameter to the engine that holds it."""

from __future__ import annotations

import enum
import itertools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch

from equigrad import _core

if TYPE_CHECKING:
    from equigrad._engine import Engine

_ids = itertools.count()
# At a parameter that a tensor group splits, while zero.GatheredParameters has it whole.
OPEN_MARK = "_equigrad_whole"


class Handle(NamedTuple):
    """Kept at the parameter; it keeps no engine alive."""

    engine: weakref.ref[Engine]
    name: str
    is_trained: bool


class Marked(Protocol):
    """The attributes that the engine puts on a parameter. `ds_status` is a property of every parameter."""

    _equigrad: Handle
    _equigrad_gathered: bool
    ds_id: int
    ds_shape: torch.Size
    ds_numel: int
    ds_persist: bool
    comm_dtype: torch.dtype


def marked(parameter: torch.Tensor) -> Marked:
    """The parameter itself, with these attributes."""
    return cast(Marked, parameter)


class ZeroParamStatus(enum.Enum):
    """Whether a parameter holds its data here and now. INFLIGHT is DeepSpeed's, for a gather that has not arrived."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def is_here(parameter: torch.Tensor) -> bool:
    """Whether the parameter holds its data on this rank now: not while stage 3, or zero.Init, keeps its shards alone."""
    try:
        return parameter.numel() == 0 or parameter.untyped_storage().data_ptr() != 0
    except RuntimeError:  # what zero.Init has partitioned says so when its data is asked for
        return False


def _status(parameter: torch.nn.Parameter) -> Any:
    if "_equigrad" not in parameter.__dict__:
        if _core.early_shard(parameter) is not None:
            return ZeroParamStatus.NOT_AVAILABLE
        if "_equigrad_gathered" in parameter.__dict__:
            return ZeroParamStatus.AVAILABLE
        # Of a parameter that is none of ours, it is what somebody else may have set.
        try:
            return parameter.__dict__["ds_status"]
        except KeyError:
            raise AttributeError("ds_status") from None
    return ZeroParamStatus.AVAILABLE if is_here(parameter) else ZeroParamStatus.NOT_AVAILABLE


def _set_status(parameter: torch.nn.Parameter, value: Any) -> None:
    parameter.__dict__["ds_status"] = value


def _id(parameter: torch.nn.Parameter) -> Any:
    # What zero.Init has made has one before an engine holds it.
    if "ds_id" not in parameter.__dict__ and _core.early_shard(parameter) is not None:
        parameter.__dict__["ds_id"] = next(_ids)
    try:
        return parameter.__dict__["ds_id"]
    except KeyError:
        raise AttributeError("ds_id") from None


def _set_id(parameter: torch.nn.Parameter, value: Any) -> None:
    parameter.__dict__["ds_id"] = value


# It changes with every operator, so it is looked up when it is asked for.
_OF_EVERY_PARAMETER = {"ds_status": property(_status, _set_status), "ds_id": property(_id, _set_id)}
for _name, _property in _OF_EVERY_PARAMETER.items():
    setattr(torch.nn.Parameter, _name, _property)


def hold(engine: Engine, name: str, parameter: torch.nn.Parameter, persists: bool) -> None:
    """Marks a parameter as the engine's, with the attributes at which DeepSpeed's users look."""
    one = marked(parameter)
    one._equigrad = Handle(weakref.ref(engine), name, parameter.requires_grad)
    if not hasattr(parameter, "ds_id"):
        one.ds_id = next(_ids)
    one.ds_shape = parameter.shape
    one.ds_numel = parameter.numel()
    one.ds_persist = persists


def let_go(parameter: torch.nn.Parameter) -> None:
    for name in ("_equigrad", "ds_shape", "ds_numel", "ds_persist", "comm_dtype"):
        parameter.__dict__.pop(name, None)


def engine_of(parameter: torch.Tensor) -> tuple[Engine, str] | None:
    """(engine, name), or None where no living engine holds it."""
    handle: Handle | None = getattr(parameter, "_equigrad", None)
    engine = handle.engine() if handle is not None else None
    return None if handle is None or engine is None or engine._core is None else (engine, handle.name)


def is_frozen(parameter: torch.Tensor) -> bool:
    """Whether an engine holds it and does not train it."""
    return engine_of(parameter) is not None and not marked(parameter)._equigrad.is_trained


def core_of(parameter: torch.nn.Parameter, where: str) -> tuple[_core.Engine, str]:
    """As engine_of, with an error for a parameter that no engine holds."""
    found = engine_of(parameter)
    if found is None:
        kind = type(parameter).__name__
        raise _core.Error(
            f"[{where}] expected a parameter of an engine, got a {kind} of shape {list(getattr(parameter, 'shape', []))} "
            "that no engine holds. Give one of engine.module.parameters(), before engine.destroy()."
        )
    return found[0]._living(where), found[1]
