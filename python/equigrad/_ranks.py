"""The ranks of this process: those of torch.distributed where it is initialized, else those that the launcher's variables name."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from equigrad import _core

# A configuration as it is given: a dict, JSON text, or a path.
Config = str | os.PathLike[str] | dict[str, Any]

# What the ranks are connected by, and for which group of torch.distributed (None: the launcher's variables).
_connected: tuple[object, _core.Communicator] | None = None
# For the same group, by (sequence, tensor).
_meshes: dict[tuple[int, int], _core.Mesh] = {}
_connections = 0


def _group() -> object | None:
    return dist.distributed_c10d._get_default_group() if dist.is_available() and dist.is_initialized() else None


# Keys of "zero_optimization" that DeepSpeed takes without their "stage3_" too.
_WITHOUT_STAGE3 = (
    "gather_16bit_weights_on_model_save",
    "max_live_parameters",
    "max_reuse_distance",
    "model_persistence_threshold",
    "module_granularity_threshold",
    "param_persistence_threshold",
    "prefetch_bucket_size",
    "use_all_reduce_for_fetch_params",
)


def _with_full_names(config: dict[str, Any]) -> dict[str, Any]:
    zero = config.get("zero_optimization")
    if not isinstance(zero, dict):
        return config
    return {**config, "zero_optimization": {f"stage3_{key}" if key in _WITHOUT_STAGE3 else key: zero[key] for key in zero}}


def config_text(given: Iterable[Config | None], where: str) -> str:
    """JSON text, or a path, of the one configuration that was given."""
    present = [one for one in given if one is not None]
    if len(present) != 1:
        raise _core.Error(
            f"[{where}] expected one configuration, got {len(present)}. Give config=: a dict, JSON text, or a path."
        )
    if not isinstance(present[0], dict):
        return os.fspath(present[0])
    config = present[0]
    if config.get("steps_per_print") == float("inf"):  # how accelerate says never
        config = {**config, "steps_per_print": "inf"}
    _require_finite(config, "", where)
    try:
        return json.dumps(_with_full_names(config), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _core.Error(
            f"[{where}] expected a configuration of numbers, texts, lists and dicts, got one that is no JSON: {error}."
        ) from error


def _require_finite(value: Any, path: str, where: str) -> None:
    if isinstance(value, dict):
        for key, one in value.items():
            _require_finite(one, f"{path}.{key}" if path else str(key), where)
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            _require_finite(one, f"{path}[{index}]", where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _core.Error(f"[{where}] {path}: expected a number that is finite, got {value}. JSON has no other.")


def config_without(text_or_path: str, keys: Iterable[str]) -> str:
    """JSON text without these keys of its top level; a text that is no JSON object as it is, for the engine to refuse."""
    config = config_object(text_or_path)
    return (
        text_or_path if config is None else json.dumps({key: value for key, value in config.items() if key not in set(keys)})
    )


def with_some_optimizer(text_or_path: str) -> str:
    """The configuration, naming an optimizer where it names none: zero.Init needs none. What is no JSON object stays as it is."""
    config = config_object(text_or_path)
    if config is None or "optimizer" in config:
        return text_or_path
    return json.dumps({**config, "optimizer": {"type": "SGD"}})


# A text, which is kept, or a comment.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


def config_object(text_or_path: str) -> dict[str, Any] | None:
    """What a JSON text, or the file at a path, says, which may have comments; None for what is no JSON object."""
    try:
        text = text_or_path if text_or_path.lstrip().startswith("{") else Path(text_or_path).read_text()
        config = json.loads(_COMMENT.sub(lambda found: found[1] or " ", text))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def world_size() -> int:
    """Of the ranks that `communicator` would connect."""
    return dist.get_world_size() if _group() is not None else _core.read_launch_environment().world_size


def communicator(device: torch.device, timeout_s: float) -> _core.Communicator:
    """The same for every engine of a process, until torch.distributed has another default group."""
    global _connected
    group = _group()
    if _connected is None or _connected[0] is not group:
        _connected = (group, _connect(device, timeout_s, group))
        _meshes.clear()
    return _connected[1]


def connected(device: torch.device) -> _core.Communicator:
    """What `communicator` has connected before."""
    return _connected[1] if _connected is not None else communicator(device, 1800.0)


def mesh(device: torch.device, timeout_s: float, sequence: int = 1, tensor: int = 1) -> _core.Mesh:
    """The ranks in a grid of data x sequence x tensor: for each of these sizes the same for every engine of a process, as
    `communicator`, which is the mesh of data alone."""
    ranks = communicator(device, timeout_s)
    sizes = (sequence, tensor)
    if sizes not in _meshes:
        _meshes[sizes] = _core.Mesh(ranks) if sizes == (1, 1) else _connect_mesh(device, timeout_s, _group(), sequence, tensor)
    return _meshes[sizes]


def _connect(device: torch.device, timeout_s: float, group: object | None) -> _core.Communicator:
    cuda = device.type == "cuda"
    if group is None:
        return _core.connect(_core.read_launch_environment(), cuda, timeout_s)
    return _core.connect_at(_store(), dist.get_rank(), dist.get_world_size(), _index(device), timeout_s)


def _connect_mesh(device: torch.device, timeout_s: float, group: object | None, sequence: int, tensor: int) -> _core.Mesh:
    if group is None:
        return _core.connect_mesh(_core.read_launch_environment(), sequence, tensor, device.type == "cuda", timeout_s)
    world_size = dist.get_world_size()
    return _core.connect_mesh_at(_store(), dist.get_rank(), world_size, sequence, tensor, _index(device), timeout_s)


def _store() -> Any:
    """Where the ranks of torch.distributed meet for one more connection."""
    global _connections
    _connections += 1
    from torch._C._distributed_c10d import PrefixStore  # there where torch.distributed is

    return PrefixStore(f"equigrad/python/{_connections}", dist.distributed_c10d._get_default_store())


def _index(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return device.index if device.index is not None else torch.cuda.current_device()


def init_distributed(
    dist_backend: str | None = None,
    timeout: timedelta | None = None,
    rank: int = -1,
    world_size: int = -1,
    **_: Any,
) -> None:
    """Initializes torch.distributed, if it is not yet, from the launcher's variables (DeepSpeed: init_distributed).

    The engine needs no call of it: without torch.distributed it connects the ranks itself.
    """
    if dist.is_initialized():
        return
    launch = _core.read_launch_environment()
    options: dict[str, Any]
    if launch.world_size == 1 and "MASTER_ADDR" not in os.environ:
        from torch._C._distributed_c10d import HashStore

        options = {"store": HashStore(), "rank": 0, "world_size": 1}
    else:
        options = {
            "rank": launch.rank if rank < 0 else rank,
            "world_size": launch.world_size if world_size < 0 else world_size,
        }
    if timeout is not None:
        options["timeout"] = timeout
    backend = dist_backend or ("nccl" if torch.cuda.is_available() else "gloo")
    dist.init_process_group(backend, **options)
