"""Long sequences: every rank of a group has a part of every sequence, and of attention some heads (docs/parallel.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from equigrad import _core
from equigrad._split_logits import SplitLogits

IGNORED = -100  # a label that does not count, as torch has it

# What says who the ranks of a sequence are: an engine, a mesh, a group, or None, which is one rank.
Ranks = Any


def group_of(ranks: Ranks) -> _core.Communicator | None:
    """The sequence group: None of one rank."""
    if ranks is None or isinstance(ranks, _core.Communicator):
        return ranks
    mesh = ranks if isinstance(ranks, _core.Mesh) else getattr(ranks, "_mesh", None)
    if not isinstance(mesh, _core.Mesh):
        raise _core.Error(
            f"[parallel] expected an engine, a mesh or a group of it, got a {type(ranks).__name__}. Give the engine that "
            "initialize() returned, or equigrad.parallel.mesh(sequence=...)."
        )
    return mesh.sequence


class DistributedAttention(torch.nn.Module):
    """Attention over a sequence of which every rank has a part.

        attention = DistributedAttention(local_attention, mesh)
        output = attention(query, key, value, causal=True)      # parts of the sequence, all heads

    The local attention is called with whole sequences and some heads, and with what is given beside: its masks are those of
    the whole. Shapes, fewer key/value heads than ranks, and what is refused: engine/parallel/distributed_attention.hpp.
    """

    def __init__(
        self,
        local_attention: Callable[..., torch.Tensor],
        ranks: Ranks,
        scatter_dimension: int = 2,
        gather_dimension: int = 1,
    ) -> None:
        super().__init__()
        self.local_attention = local_attention
        self._group = group_of(ranks)
        self._dimensions = (scatter_dimension, gather_dimension)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any, **keywords: Any
    ) -> torch.Tensor:
        some = _core.scatter_heads(query, key, value, self._group, *self._dimensions)
        output = self.local_attention(*some, *more, **keywords)
        return _core.gather_heads(output, some[0], self._group, *self._dimensions)


def cross_entropy(logits: torch.Tensor, shift_labels: torch.Tensor, ranks: Ranks, ignored: int = IGNORED) -> torch.Tensor:
    """The mean over all tokens of the sequence that count, of this rank's logits [.., entries] and shifted labels [..]: its
    backward pass gives this rank's summand, and the engine adds those of the ranks."""
    if not isinstance(logits, SplitLogits):
        return _core.sequence_cross_entropy(logits, shift_labels, group_of(ranks), ignored)
    rows, targets = logits.reshape(-1, logits.shape[-1]), shift_labels.reshape(-1)
    total = torch.nn.functional.cross_entropy(rows, targets, ignore_index=ignored, reduction="sum")
    return mean(total, targets.ne(ignored).sum(), ranks)


def mean(sum_of_losses: torch.Tensor, valid_tokens: torch.Tensor | int, ranks: Ranks) -> torch.Tensor:
    """As cross_entropy, of any loss: this rank's sum, and of how many tokens it is."""
    return _core.sequence_mean(sum_of_losses, torch.as_tensor(valid_tokens), group_of(ranks))


def split_batch(batch: Mapping[str, Any], ranks: Ranks) -> dict[str, Any]:
    """This rank's part of a batch that all ranks of its sequence have: "input_ids" (or "inputs_embeds"), [batch, sequence, ..],
    and what has the same first two sizes are cut along the sequence.

    "shift_labels" are made of "labels" before the cut, so a part's last token has its target; "position_ids" are those of the
    whole sequence. "attention_mask" stays whole, for attention sees whole sequences. Other values stay what they are.
    Collective.
    """
    group = group_of(ranks)
    tokens = batch["input_ids"] if batch.get("input_ids") is not None else batch["inputs_embeds"]
    for name in ("input_ids", "inputs_embeds", "labels", "shift_labels"):
        if batch.get(name) is not None:
            _core.check_same(batch[name], group, name)
    whole = {key: value for key, value in batch.items() if value is not None}
    if "labels" in whole and "shift_labels" not in whole:
        whole["shift_labels"] = _core.next_tokens(whole["labels"], IGNORED)
    if "position_ids" not in whole:
        whole["position_ids"] = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)

    def part(name: str, value: Any) -> Any:
        if name == "position_ids":
            return _core.sequence_part(value, -1, group)
        is_by_token = isinstance(value, torch.Tensor) and value.shape[:2] == tokens.shape[:2]
        return _core.sequence_part(value, 1, group) if is_by_token and name != "attention_mask" else value

    return {name: part(name, value) for name, value in whole.items()}


class split_loader:
    """The batches of `loader`, which all ranks of a sequence draw alike, each as split_batch gives it."""

    def __init__(self, loader: Iterable[Mapping[str, Any]], ranks: Ranks) -> None:
        self._loader, self._ranks = loader, ranks

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (split_batch(batch, self._ranks) for batch in self._loader)
