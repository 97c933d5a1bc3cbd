"""Ranks that share what data parallelism gives to each: parts of a sequence, of a model (docs/parallel.md).

engine, *_ = equigrad.initialize(model=model, config={..., "sequence_parallel_size": 2})
for batch in equigrad.parallel.split_loader(batches, engine):
    engine.backward(engine(**batch).loss)
    engine.step()
"""

from __future__ import annotations

import torch

from equigrad import _core, _ranks
from equigrad._sequence_parallel import DistributedAttention, cross_entropy, mean, split_batch, split_loader
from equigrad._split_logits import part_of_logits, whole_logits
from equigrad._transformers_attention import ATTENTION, register_with_transformers


def mesh(sequence: int = 1, tensor: int = 1, device: torch.device | str = "cpu", timeout_s: float = 1800.0) -> _core.Mesh:
    """The ranks in a grid, for models that are made for it; initialize() with the same sizes takes the same."""
    return _ranks.mesh(torch.device(device), timeout_s, sequence, tensor)


__all__ = [
    "ATTENTION",
    "DistributedAttention",
    "cross_entropy",
    "mean",
    "mesh",
    "part_of_logits",
    "register_with_transformers",
    "split_batch",
    "split_loader",
    "whole_logits",
]
