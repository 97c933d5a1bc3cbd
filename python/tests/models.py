"""Small models for tests: what they compute depends on step, rank and micro-batch."""

from __future__ import annotations

import torch
from torch import nn


class Mixed(nn.Module):
    """Tied, frozen and unused parameters, a normalization, and a branch that only some ranks take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(17, 8)
        self.first = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(24)
        self.second = nn.Linear(24, 8)
        self.branch = nn.Linear(8, 8)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(8, 17, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, tokens: torch.Tensor, branch: bool = False) -> torch.Tensor:
        hidden = self.embedding(tokens) * self.scale
        hidden = hidden + self.second(torch.nn.functional.gelu(self.norm(self.first(hidden))))
        if branch:
            hidden = hidden + torch.tanh(self.branch(hidden))
        return self.head(hidden)


class BatchNorm(nn.BatchNorm1d):
    """Runs in any type, and what it gives depends on its buffers."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.float()
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(rows.mean(0).to(self.running_mean.dtype), 0.125)
            self.running_var.lerp_(rows.var(0).to(self.running_var.dtype), 0.125)
        normed = (rows - self.running_mean) / (self.running_var + self.eps).sqrt()
        return (normed * self.weight.float() + self.bias.float() + 0.01 * self.num_batches_tracked).to(hidden.dtype)


def tokens(step: int, rank: int, micro_batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10_000 * step + 100 * rank + micro_batch)
    return torch.randint(0, 17, (3, 5), generator=generator)


def mixed_loss(model: nn.Module, step: int, rank: int, micro_batch: int) -> torch.Tensor:
    batch = tokens(step, rank, micro_batch)
    logits = model(batch, branch=rank == 1 and micro_batch == 0)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.flatten())
