"""DeepSpeed's names for long sequences of transformers' models, over the engine's (equigrad.parallel)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from equigrad import Engine, NotSupportedError, _core, _sequence_parallel, _transformers_attention
from equigrad.deepspeed.runtime.sequence_parallel import parallel_state_sp

# The implementation of attention whose models initialize() attaches.
registered: str | None = None
# Attention of transformers' own, which knows nothing of other ranks; what else a model names is its user's.
_OF_TRANSFORMERS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def attach(engine: Engine) -> list[_transformers_attention.Attached]:
    """Losses stay the caller's, as with DeepSpeed: equigrad.parallel.cross_entropy is that of a whole sequence."""
    has = getattr(getattr(engine.module, "config", None), "_attn_implementation", None)
    if registered is None or has != registered:
        if engine._mesh.sequence is not None and has in _OF_TRANSFORMERS:
            raise NotSupportedError(
                f'[initialize] expected attention that sees whole sequences, got "{has}" of transformers, of which each rank of a sequence '
                f'would see its part alone. Call UlyssesSPAttentionHF.register_with_transformers(model, "{has}", ...) before, or take '
                "equigrad.initialize, which does it itself."
            )
        return []
    return _transformers_attention.attach(engine.module, engine._mesh.sequence, replaces_loss=False)


class UlyssesSPAttentionHF:
    @classmethod
    def register_with_transformers(
        cls,
        model_name_or_path: Any,
        core_attn_implementation: str,
        sequence_parallel_size: int,
        micro_batch_size: int,
        seq_length: int | None = None,
        seq_length_is_variable: bool = True,
        disable_in_eval: bool = False,
        max_length: int | None = None,
    ) -> Any:
        """Groups of a sequence, as an mpu for initialize(), which exchanges the attention of models that have
        core_attn_implementation; None for one rank. Sizes are seen at every call, so the arguments about them change nothing."""
        global registered
        if sequence_parallel_size == 1:
            return None
        if disable_in_eval:
            raise NotSupportedError(
                "[register_with_transformers] expected no disable_in_eval, got True. Evaluate with parts of sequences, as in "
                "training, or a model of its own."
            )
        config = getattr(model_name_or_path, "config", None)
        has = getattr(config, "_attn_implementation", None)
        if has is not None and has != core_attn_implementation:
            raise ValueError(
                f"core_attn_implementation='{core_attn_implementation}' does not match model config "
                f"attn_implementation='{has}'. Give the same."
            )
        parallel_state_sp.initialize_sequence_parallel(sequence_parallel_size)
        registered = core_attn_implementation
        return parallel_state_sp


class UlyssesSPDataLoaderAdapter:
    """Of the batches that the ranks of a sequence draw, each a batch of its own, this rank's part, one after the other; "labels" become
    "shift_labels", which were shifted before the cut."""

    def __init__(self, dl: Any, sp_rank: int, sp_group: Any, sp_world_size: int, device: Any) -> None:
        self.dl, self.sp_rank, self.sp_group, self.sp_world_size = dl, sp_rank, sp_group, sp_world_size
        self.device = device
        self.iter = iter(dl)
        self.micro_batches: deque[dict[str, Any]] = deque()

    def __len__(self) -> int:
        return len(self.dl) * self.sp_world_size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        if not self.micro_batches:
            self.refill()
        return self.micro_batches.popleft()

    def refill(self) -> None:
        try:
            batch = next(self.iter)
        except StopIteration:
            self.iter = iter(self.dl)
            raise
        if "position_ids" not in batch:
            raise ValueError(
                "expected position_ids in every batch, got none. Make them in the collator, for the whole sequence."
            )
        drawn: list[Any] = [None] * self.sp_world_size
        dist.all_gather_object(drawn, dict(batch), group=self.sp_group)
        self.micro_batches.extend(self._part(one) for one in drawn)

    def _part(self, batch: dict[str, Any]) -> dict[str, Any]:
        length = batch["input_ids"].shape[1]
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and value.shape[1] != length:
                raise ValueError(
                    f"expected {name} of the {length} positions of input_ids, got a shape of {list(value.shape)}"
                )
        if length % self.sp_world_size != 0:
            raise ValueError(f"expected a sequence that {self.sp_world_size} ranks divide, got {length} positions. Pad it.")
        labels = batch.pop("labels")
        batch["shift_labels"] = _core.next_tokens(labels, _sequence_parallel.IGNORED)
        part = length // self.sp_world_size
        mine = slice(part * self.sp_rank, part * (self.sp_rank + 1))
        return {
            name: value[:, mine].contiguous().cpu() if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
