"""DeepSpeed's DistributedAttention, over the engine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from equigrad import NotSupportedError, parallel
from equigrad.deepspeed.runtime.sequence_parallel.parallel_state_sp import own_group


class DistributedAttention(torch.nn.Module):
    """sequence_process_group: of torch.distributed, ranks that follow each other. Queries, keys and values are [batch, sequence, heads,
    width] with batch_dim_idx 0, [sequence, batch, heads, width] with 1, which decides where the sequence is. num_kv_heads is seen."""

    def __init__(
        self,
        local_attention: Callable[..., torch.Tensor],
        sequence_process_group: Any,
        scatter_idx: int = 2,
        gather_idx: int = 0,
        sp_stream: Any = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        if scatter_idx != 2 or gather_idx not in (0, 1):
            raise NotSupportedError(
                f"[DistributedAttention] expected scatter_idx 2 and gather_idx 0 or 1, got {scatter_idx} and {gather_idx}. "
                "equigrad.parallel.DistributedAttention takes any dimensions."
            )
        self.local_attn = local_attention
        self.spg = sequence_process_group
        group = own_group(sequence_process_group)
        self._by_batch_dimension = [parallel.DistributedAttention(local_attention, group, 2, 1 - at) for at in (0, 1)]

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        batch_dim_idx: int,
        rotary_pos_emb: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        if rotary_pos_emb is not None:
            raise NotSupportedError(
                "[DistributedAttention] expected no rotary_pos_emb, got one. Turn queries and keys before, by the positions of "
                "this rank's part, or in the local attention."
            )
        output: torch.Tensor = self._by_batch_dimension[batch_dim_idx](query, key, value, *args, **kwargs)
        return output
