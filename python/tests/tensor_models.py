"""Small transformers whose modules have the names of Hugging Face's, for tensor groups, and how their twins are cut."""

from __future__ import annotations

import re
from types import SimpleNamespace

import torch
from torch import nn

from tensor_twin import Cut, Group

# A part of INNER is a multiple of what torch computes at once (64): behind that it has other functions for exp and the like, so that
# activations of parts and of the whole would differ.
HEADS, KEYS, HEAD, WIDTH, INNER, VOCABULARY = 8, 4, 4, 24, 256, 16


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    """Grouped queries in one packed projection; its forward counts heads by its own attributes and by its configuration's."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.num_heads, self.num_key_value_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = nn.Linear(WIDTH, (self.num_heads + 2 * self.num_key_value_heads) * HEAD)
        self.q_norm, self.k_norm = RmsNorm(HEAD), RmsNorm(HEAD)
        self.o_proj = nn.Linear(self.num_heads * HEAD, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        sizes = [self.config.num_attention_heads * HEAD] + [self.num_key_value_heads * HEAD] * 2
        query, key, value = self.qkv_proj(hidden).split(sizes, -1)
        query = self.q_norm(query.reshape(batch, length, self.num_heads, HEAD)).transpose(1, 2)
        key = self.k_norm(key.reshape(batch, length, self.num_key_value_heads, HEAD)).transpose(1, 2)
        value = value.reshape(batch, length, self.num_key_value_heads, HEAD).transpose(1, 2)
        groups = self.num_heads // self.num_key_value_heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, self.num_heads * HEAD))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(WIDTH, 2 * INNER)
        self.down_proj = nn.Linear(INNER, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(hidden).chunk(2, -1)
        return self.down_proj(nn.functional.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.first_norm, self.second_norm = RmsNorm(WIDTH), RmsNorm(WIDTH)
        self.self_attn, self.mlp = Attention(config), Mlp()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.first_norm(hidden))
        return hidden + self.mlp(self.second_norm(hidden))


class Decoder(nn.Module):
    """Tied head; a frozen scale, and a linear that nothing uses."""

    def __init__(self, model_type: str = "phi3") -> None:
        super().__init__()
        torch.manual_seed(11)
        self.config = SimpleNamespace(model_type=model_type, num_attention_heads=HEADS, num_key_value_heads=KEYS)
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=3)
        self.layers = nn.ModuleList(Block(self.config) for _ in range(2))
        self.norm = RmsNorm(WIDTH)
        self.unused = nn.Linear(3, 5)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.scale = nn.Parameter(torch.ones(WIDTH), requires_grad=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed_tokens(tokens) * self.scale
        for layer in self.layers:
            hidden = layer(hidden)
        return self.lm_head(self.norm(hidden))


def split_decoder(model: nn.Module, group: Group) -> None:
    for name, module in model.named_modules():
        if name.endswith("qkv_proj"):
            group.column(module, Cut(0, (HEADS * HEAD, KEYS * HEAD, KEYS * HEAD)))
        elif name.endswith("gate_up_proj"):
            group.column(module, Cut(0, (INNER, INNER)))
        elif re.search(r"(o_proj|down_proj)$", name):
            group.row(module, Cut(1))
        elif re.search(r"[qk]_norm$", name):
            group.norm_of_heads(module)


def tokens(step: int, rank: int, micro_batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10_000 * step + 100 * rank + micro_batch)
    return torch.randint(0, VOCABULARY, (2, 6), generator=generator)


def decoder_loss(model: nn.Module, step: int, rank: int, micro_batch: int) -> torch.Tensor:
    batch = tokens(step, rank, micro_batch)
    return nn.functional.cross_entropy(model(batch).flatten(0, 1).float(), batch.flatten())


class Lattice(nn.Module):
    """Small whole numbers, so that every sum is exact in fp32 and a split model equals the unsplit one in every bit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"up_proj": nn.Linear(8, 16), "down_proj": nn.Linear(16, 8)}) for _ in range(2)
        )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -2, 2)
            parameter.data.round_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer["down_proj"](torch.relu(layer["up_proj"](hidden)))
        return hidden


def lattice_loss(model: nn.Module, step: int, rank: int, micro_batch: int) -> torch.Tensor:
    return model(tokens(step, rank, micro_batch)).sum()
