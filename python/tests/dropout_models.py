"""Small models with dropout of parts and of what all ranks have, for tensor groups: one of its own, and some of transformers."""

from __future__ import annotations

import functools
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # what torch.utils.checkpoint imports: once, and not in each rank
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from random_twin import Group
from tensor_twin import Cut

# Parts of INNER are multiples of what torch computes at once (tensor_models.py).
HEADS, WIDTH, INNER, VOCABULARY, LENGTH, BATCH = 4, 32, 256, 16, 6, 2


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rate: float) -> torch.Tensor:
    """[batch, heads, length, width]"""
    return F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_attention_heads=HEADS)
        self.num_heads, self.attention_rate, self.recomputes = HEADS, 0.25, ""
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up_proj, self.down_proj = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.attend: Any = attend
        self.act, self.inner_dropout, self.dropout = nn.ReLU(), nn.Dropout(0.5), nn.Dropout(0.25)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.recomputes:
            return self.compute(hidden)
        return torch.utils.checkpoint.checkpoint(self.compute, hidden, use_reentrant=self.recomputes == "reentrant")

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        by_head = (
            one(normed).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        rate = self.attention_rate if self.training else 0.0
        attended = self.attend(*by_head, rate)
        hidden = hidden + self.dropout(self.o_proj(attended.transpose(1, 2).flatten(2)))
        inner = self.inner_dropout(self.act(self.up_proj(self.mlp_norm(hidden))))
        return hidden + self.dropout(self.down_proj(inner))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.config = SimpleNamespace(model_type="own", num_attention_heads=HEADS)
        self.embed_tokens, self.dropout = nn.Embedding(VOCABULARY, WIDTH), nn.Dropout(0.25)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        hidden = self.dropout(self.embed_tokens(input_ids))
        for layer in self.layers:
            hidden = layer(hidden)
        return SimpleNamespace(logits=self.head(self.norm(hidden)))

    def set_rates(self, of_whole: float, of_parts: float) -> None:
        for module in (self, *self.layers):
            module.dropout.p = of_whole
        for layer in self.layers:
            layer.attention_rate = layer.inner_dropout.p = of_parts


_HUGGING_FACE: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": (
        "LlamaForCausalLM",
        {
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "num_key_value_heads": 2,
            "attention_dropout": 0.25,
        },
    ),
    "GPT2": (
        "GPT2LMHeadModel",
        {
            "n_embd": WIDTH,
            "n_inner": INNER,
            "n_layer": 2,
            "n_head": HEADS,
            "n_positions": 64,
            "attn_pdrop": 0.25,
            "resid_pdrop": 0.25,
            "embd_pdrop": 0.25,
        },
    ),
    "Bert": (
        "BertForMaskedLM",
        {
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "attention_probs_dropout_prob": 0.25,
            "hidden_dropout_prob": 0.25,
        },
    ),
}
KINDS = ["own", "Llama", "GPT2", "GPT2 eager", "Bert"]


def require(kind: str) -> None:
    """Imports it once, and not in each rank."""
    if kind != "own":
        getattr(pytest.importorskip("transformers"), _HUGGING_FACE[kind.split()[0]][0])


def make(kind: str) -> nn.Module:
    if kind == "own":
        return Own()
    import transformers

    family, _, attention = kind.partition(" ")
    name, sizes = _HUGGING_FACE[family]
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        attn_implementation=attention or "sdpa",
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        **sizes,
    )
    torch.manual_seed(11)
    model: nn.Module = getattr(transformers, name)(config)
    return model.train()


def recompute(model: Any, use_reentrant: bool) -> None:
    if not isinstance(model, Own):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
        return
    for layer in model.layers:
        layer.recomputes = "reentrant" if use_reentrant else "recomputed"


_COLUMNS = r"\.([qkv]_proj|up_proj|gate_proj|query|key|value|intermediate\.dense)$"
_ROWS = r"\.(o_proj|down_proj|output\.dense)$"


def split(kind: str, model: nn.Module, group: Group) -> None:
    for name, module in model.named_modules():
        if kind.startswith("GPT2"):
            if name.endswith(".c_attn"):
                group.column(module, Cut(1, (WIDTH,) * 3))
            elif name.endswith(".c_fc"):
                group.column(module, Cut(1))
            elif name.endswith(".c_proj"):
                group.row(module, Cut(0))
        elif re.search(_COLUMNS, name):
            group.column(module, Cut(0))
        elif re.search(_ROWS, name):
            group.row(module, Cut(1))


def tokens_of(step: int, data_rank: int, micro_batch: int, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10_000 * step + 100 * data_rank + micro_batch)
    return torch.randint(1, VOCABULARY, (BATCH, length), generator=generator)


@functools.cache
def _takes_cache(kind: str) -> bool:
    return kind.split()[0] in ("Llama", "GPT2")


def loss_of(kind: str, model: Any, step: int, data_rank: int, micro_batch: int) -> torch.Tensor:
    tokens = tokens_of(step, data_rank, micro_batch)
    more = {"use_cache": False} if _takes_cache(kind) else {}
    logits = model(input_ids=tokens, **more).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
