"""DeepSpeed's groups of a sequence, of torch.distributed, for programs that gather over them; and those of the engine beside them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from equigrad import _core, _ranks

_group: Any = None


def initialize_sequence_parallel(sequence_parallel_size: int) -> None:
    """Groups of neighbours. Collective."""
    global _group
    world_size = dist.get_world_size()
    if sequence_parallel_size < 2 or world_size % sequence_parallel_size != 0:
        raise _core.Error(
            f"[initialize_sequence_parallel] expected a size of at least 2 that divides the {world_size} ranks, got "
            f"{sequence_parallel_size}. Choose another size, or start other ranks."
        )
    for first in range(0, world_size, sequence_parallel_size):
        ranks = list(range(first, first + sequence_parallel_size))
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            _group = group


def get_sequence_parallel_group() -> Any:
    if _group is None:
        raise _core.Error(
            "[get_sequence_parallel_group] expected groups, got none. Call initialize_sequence_parallel(), or "
            "UlyssesSPAttentionHF.register_with_transformers(), before."
        )
    return _group


def get_sequence_parallel_world_size() -> int:
    return dist.get_world_size(get_sequence_parallel_group())


def get_sequence_parallel_rank() -> int:
    return dist.get_rank(get_sequence_parallel_group())


def get_sequence_data_parallel_group() -> Any:
    """Over which ZeRO shards: all ranks."""
    return dist.group.WORLD


def get_sequence_data_parallel_world_size() -> int:
    return dist.get_world_size()


def get_sequence_data_parallel_rank() -> int:
    return dist.get_rank()


get_model_parallel_rank = get_sequence_parallel_rank
get_model_parallel_world_size = get_sequence_parallel_world_size
get_model_parallel_group = get_sequence_parallel_group


def own_group(group: Any) -> _core.Communicator | None:
    """The engine's group of the same ranks; None of one rank."""
    ranks = dist.get_process_group_ranks(group)
    first = dist.get_rank() - dist.get_rank() % len(ranks)
    if ranks != list(range(first, first + len(ranks))) or dist.get_world_size() % len(ranks) != 0:
        raise _core.Error(
            f"[sequence_parallel] expected ranks that follow each other, of groups of one size, got {ranks}. Make the groups with "
            "initialize_sequence_parallel()."
        )
    device = torch.device("cuda") if torch.cuda.is_available() and dist.get_backend(group) == "nccl" else torch.device("cpu")
    return _ranks.mesh(device, 1800.0, len(ranks)).sequence
