"""DeepSpeed's questions about the ranks of the engine that was made last: sizes, places, and groups of torch.distributed.

The groups are made by initialize() where torch.distributed is initialized and a model or a sequence has several ranks. The engine
communicates over its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

from equigrad import _core
from equigrad.deepspeed._engine import UsageError
from equigrad.deepspeed.runtime.sequence_parallel import parallel_state_sp

__all__ = [
    "_get_sequence_parallel_group",
    "_get_sequence_parallel_rank",
    "_get_sequence_parallel_world_size",
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_model_parallel_group",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
    "get_tensor_model_parallel_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_src_rank",
    "get_tensor_model_parallel_world_size",
]


class Axis(NamedTuple):
    """Of the mesh, as this rank sees it."""

    size: int
    rank: int
    first: int  # the rank of the world that is its rank 0
    group: Any  # of torch.distributed; None where none was made


class Axes(NamedTuple):
    data: Axis
    sequence: Axis
    tensor: Axis


_last: Axes | None = None
# By torch's default group and the sizes of a sequence and of a tensor group, for data, sequence and tensor.
_made: dict[tuple[Any, int, int], list[Any]] = {}


def remember(mesh: _core.Mesh) -> Axes:
    """The axes of an engine's mesh, which are those of the last from now on. Collective where groups are made."""
    global _last
    rank, tensor, sequence = mesh.world.rank, mesh.tensor_size, mesh.sequence_size
    grid = [(mesh.data_size, sequence * tensor), (sequence, tensor), (tensor, 1)]  # sizes, and how far neighbours are apart
    groups = _groups_of(grid, mesh.world.world_size, sequence, tensor)
    axes = []
    for (size, stride), group in zip(grid, groups, strict=True):
        place = rank // stride % size
        axes.append(Axis(size, place, rank - place * stride, group))
    _last = Axes(*axes)
    return _last


def _groups_of(grid: list[tuple[int, int]], world_size: int, sequence: int, tensor: int) -> list[Any]:
    if not (dist.is_available() and dist.is_initialized()):
        return [None, None, None]
    everybody = dist.distributed_c10d._get_default_group()
    if sequence * tensor == 1:
        return [everybody, None, None]
    key = (everybody, sequence, tensor)
    if key not in _made:
        for old in [one for one in _made if one[0] is not everybody]:
            del _made[old]
        data, *shared = grid
        _made[key] = [_group(*data, world_size)]
        _made[key] += [_group(size, stride, world_size) if size > 1 else None for size, stride in shared]
    return _made[key]


def _group(size: int, stride: int, world_size: int) -> Any:
    """This rank's of `size` ranks, each `stride` behind the one before. Every rank makes every group."""
    own = None
    for first in (one for one in range(world_size) if one // stride % size == 0):
        ranks = [first + place * stride for place in range(size)]
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            own = group
    return own


def or_theirs(own: Callable[[], Any], theirs: Callable[[], Any] | None) -> Callable[[], Any]:
    """The question as it stands in DeepSpeed's own module: what that says as long as there is no engine."""

    def asked() -> Any:
        return own() if _last is not None or theirs is None else theirs()

    return asked


def _axes(asked: str) -> Axes:
    if _last is None:
        raise UsageError(f"[{asked}] expected an engine, got none yet. Call initialize() before.")
    return _last


def _group_of(axis: Axis, what: str, asked: str) -> Any:
    if axis.group is None:
        raise UsageError(
            f"[{asked}] expected {what} of torch.distributed, got none, of {axis.size} ranks. Initialize torch.distributed before the "
            "engine, and configure several ranks."
        )
    return axis.group


def get_tensor_model_parallel_group() -> Any:
    asked = "get_tensor_model_parallel_group"
    return _group_of(_axes(asked).tensor, "a tensor group", asked)


def get_tensor_model_parallel_world_size() -> int:
    return _axes("get_tensor_model_parallel_world_size").tensor.size


def get_tensor_model_parallel_rank() -> int:
    return _axes("get_tensor_model_parallel_rank").tensor.rank


def get_tensor_model_parallel_src_rank() -> int:
    """The rank of the world that is rank 0 of this rank's tensor group."""
    return _axes("get_tensor_model_parallel_src_rank").tensor.first


get_model_parallel_group = get_tensor_model_parallel_group
get_model_parallel_world_size = get_tensor_model_parallel_world_size
get_model_parallel_rank = get_tensor_model_parallel_rank


def get_data_parallel_group() -> Any:
    """Ranks with other samples: of a tensor group, or a sequence, one each."""
    asked = "get_data_parallel_group"
    return _group_of(_axes(asked).data, "a data group", asked)


def get_data_parallel_world_size() -> int:
    return _axes("get_data_parallel_world_size").data.size


def get_data_parallel_rank() -> int:
    return _axes("get_data_parallel_rank").data.rank


def _sequence_of_an_engine() -> Axis | None:
    return _last.sequence if _last is not None and _last.sequence.group is not None else None


def _get_sequence_parallel_group() -> Any:
    axis = _sequence_of_an_engine()
    return parallel_state_sp.get_sequence_parallel_group() if axis is None else axis.group


def _get_sequence_parallel_world_size() -> int:
    """1 where no sequence has several ranks, as DeepSpeed says it."""
    axis = _sequence_of_an_engine()
    return 1 if axis is None else axis.size


def _get_sequence_parallel_rank() -> int:
    axis = _sequence_of_an_engine()
    return 0 if axis is None else axis.rank
