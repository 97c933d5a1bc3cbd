"""What torch_autocast of the configuration means for a parameter, under DeepSpeed's names.

The configuration decides, when the engine is made: nothing here changes the type in which a gradient is sent.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from equigrad import _core
from equigrad._engine import Engine

__all__ = [
    "PARAM_COMM_DTYPE_ATTR_NAME",
    "get_all_comm_dtypes",
    "get_autocast_dtype",
    "get_comm_dtype",
    "get_default_autocast_lower_precision_modules",
    "has_autocast_dtype",
    "has_comm_dtype",
    "init_autocast_params",
    "is_autocast_initialized",
    "sort_dtypes",
]

PARAM_COMM_DTYPE_ATTR_NAME = "comm_dtype"


# Of the drop-in's engines, in the order in which they were made.
_engines: list[weakref.ref[Engine]] = []


def remember(engine: Engine) -> None:
    _engines[:] = [one for one in _engines if one() is not None]
    _engines.append(weakref.ref(engine))


def init_autocast_params(
    engine: Engine, dtype: torch.dtype, torch_autocast_lower_precision_safe_modules: Iterable[str] | None = None
) -> None:
    """Refuses another type, or other modules, than the engine was made with; by itself it changes nothing."""
    config = engine._living("init_autocast_params").config
    have = f"torch.{config.autocast_dtype}" if config.autocast else "no torch_autocast"
    if str(dtype) != have:
        raise _core.Error(
            f"[init_autocast_params] expected the type of the configuration, {have}, got {dtype}. Set "
            '"torch_autocast": {"enabled": true, "dtype": ...} before initialize().'
        )
    wanted = _full_names(torch_autocast_lower_precision_safe_modules)
    if sorted(wanted) != sorted(config.lower_precision_safe_modules):
        raise _core.Error(
            f"[init_autocast_params] expected the modules that the engine was made with, {config.lower_precision_safe_modules}, got "
            f'{wanted}. Set "torch_autocast": {{"lower_precision_safe_modules": [...]}} before initialize().'
        )


def is_autocast_initialized() -> bool:
    """Whether this process has an engine with torch_autocast."""
    return get_autocast_dtype() is not None


def get_autocast_dtype() -> torch.dtype | None:
    """The type of torch_autocast of the engine that was made last with it; None without any."""
    for made in reversed(_engines):
        engine = made()
        config = None if engine is None or engine._core is None else engine._core.config
        if config is not None and config.autocast:
            dtype: torch.dtype = getattr(torch, config.autocast_dtype)
            return dtype
    return None


def get_default_autocast_lower_precision_modules() -> list[str]:
    """Types of modules whose parameters are sent in torch_autocast's type unless the configuration names others."""
    return _full_names(None)


def _full_names(modules: Iterable[str] | None) -> list[str]:
    """As the configuration reads them: torch.nn.Linear for Linear and for torch.nn.modules.linear.Linear."""
    section: dict[str, Any] = {"enabled": True}
    if modules is not None:
        section["lower_precision_safe_modules"] = list(modules)
    config = {"train_batch_size": 1, "torch_autocast": section, "optimizer": {"type": "SGD", "params": {"lr": 1}}}
    return _core.load_config(json.dumps(config), 1).lower_precision_safe_modules


def has_comm_dtype(param: torch.nn.Parameter) -> bool:
    """Whether the parameter belongs to a module that torch_autocast sends in its own type."""
    return hasattr(param, PARAM_COMM_DTYPE_ATTR_NAME)


has_autocast_dtype = has_comm_dtype


def get_comm_dtype(param: torch.nn.Parameter) -> torch.dtype:
    """The type in which the parameter's gradient is sent."""
    dtype: torch.dtype = getattr(param, PARAM_COMM_DTYPE_ATTR_NAME, param.dtype)
    return dtype


def get_all_comm_dtypes(params: Iterable[torch.nn.Parameter]) -> set[torch.dtype]:
    return {get_comm_dtype(one) for one in params}


def sort_dtypes(dtypes: Iterable[torch.dtype]) -> list[torch.dtype]:
    return sorted(dtypes, key=str)
