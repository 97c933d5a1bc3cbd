"""A small decoder with the names and the norms of a Llama, for tests where transformers is not installed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, INNER, HEAD, HEADS, KEYS, VOCABULARY, IGNORED = 64, 256, 8, 8, 4, 256, -100


def shifted(labels: torch.Tensor) -> torch.Tensor:
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Of whole sequences: [batch, sequence, heads, width]."""
    groups = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(groups, 2), value.repeat_interleave(groups, 2)
    heads_first = (one.transpose(1, 2) for one in (query, key, value))
    return F.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


class OwnRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        wide = given.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(given.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, KEYS * HEAD) for _ in range(2))
        self.o_proj = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, given: torch.Tensor, attend: Callable[..., torch.Tensor]) -> torch.Tensor:
        of = (one(given).unflatten(-1, (-1, HEAD)) for one in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attend(*of).flatten(2))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(given)) * self.up_proj(given))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = OwnRMSNorm(), OwnRMSNorm()
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, hidden: torch.Tensor, attend: Callable[..., torch.Tensor]) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), attend)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Own(nn.Module):
    """attend and loss_of are those of one rank, until ranks of a sequence put theirs in their places."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.attend: Callable[..., torch.Tensor] = attention
        self.loss_of: Callable[..., torch.Tensor] = cross_entropy
        self.embed_tokens, self.embed_places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(length, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.lm_head = OwnRMSNorm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor | None = None,
        shift_labels: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **_: Any,
    ) -> SimpleNamespace:
        places = torch.arange(input_ids.shape[1]).unsqueeze(0) if position_ids is None else position_ids
        hidden = self.embed_tokens(input_ids) + self.embed_places(places.expand_as(input_ids))
        for layer in self.layers:
            hidden = layer(hidden, self.attend)
        logits = self.lm_head(self.norm(hidden))
        if labels is None:
            return SimpleNamespace(loss=None, logits=logits)
        targets = shifted(labels) if shift_labels is None else shift_labels
        return SimpleNamespace(loss=self.loss_of(logits, targets), logits=logits)
