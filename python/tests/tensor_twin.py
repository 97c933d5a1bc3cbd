"""A tensor group in one process: an unsplit model whose split layers are computed part by part and added in the engine's order.

Of T parts a sum is ((0 + 1) + (2 + 3)) in fp32, rounded once to the parts' type, as engine/parallel/regions.hpp says. What is cut,
and how, is written down in the tests, not taken from the engine's plan; what a part is, by indices along the dimension. Nothing of
the engine is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import twin


def tree(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    parts = list(parts)
    return twin.tree([part.float() for part in parts]).to(parts[0].dtype)


class Cut(NamedTuple):
    """Of a parameter: along a dimension, segment by segment; no segments: as one."""

    dimension: int
    segments: tuple[int, ...] = ()


def indices(cut: Cut, size: int, length: int) -> list[torch.Tensor]:
    """What each of `size` ranks has of `length` indices."""
    segments = cut.segments or (length,)
    assert sum(segments) == length and all(segment % size == 0 for segment in segments), (cut, size, length)
    starts = [sum(segments[:at]) for at in range(len(segments))]
    by_segment = [torch.arange(start, start + one).chunk(size) for start, one in zip(starts, segments, strict=True)]
    return [torch.cat([chunks[rank] for chunks in by_segment]) for rank in range(size)]


def part(whole: torch.Tensor, cut: Cut, rank: int, size: int) -> torch.Tensor:
    """Dense, its dimensions in memory in the order of the whole's: what is added along them is added in that order."""
    own = indices(cut, size, whole.size(cut.dimension))[rank]
    like = torch.empty_like(whole.narrow(cut.dimension, 0, len(own)))
    return like.copy_(whole.index_select(cut.dimension, own))


def joined(parts: list[torch.Tensor], cut: Cut) -> torch.Tensor:
    size = len(parts)
    order = torch.cat(indices(cut, size, size * parts[0].size(cut.dimension)))
    whole = torch.cat(parts, cut.dimension)
    return torch.empty_like(whole).index_copy_(cut.dimension, order, whole)


class Parts(torch.autograd.Function):
    """The parts of a whole; their gradients put together, without a sum."""

    @staticmethod
    def forward(context: Any, whole: torch.Tensor, cut: Cut, size: int) -> tuple[torch.Tensor, ...]:
        context.cut = cut
        return tuple(part(whole, cut, rank, size) for rank in range(size))

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return joined(list(gradients), context.cut), None, None


class Joined(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, cut: Cut, *parts: torch.Tensor) -> torch.Tensor:
        context.cut, context.size = cut, len(parts)
        return joined(list(parts), cut)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return None, *(part(gradient, context.cut, rank, context.size) for rank in range(context.size))


class Copies(torch.autograd.Function):
    """One for each rank; their gradients are added in the tree."""

    @staticmethod
    def forward(context: Any, whole: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
        return tuple(whole.clone() for _ in range(size))

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return tree(gradients), None


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, *parts: torch.Tensor) -> torch.Tensor:
        context.size = len(parts)
        return tree(parts)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return (gradient,) * context.size


class LossOfParts(torch.autograd.Function):
    """-log softmax of each row's target, of logits [rows, entries] in fp32, whose parts' exponentials are added in the tree; 0 of
    one that is ignored."""

    @staticmethod
    def forward(context: Any, logits: torch.Tensor, targets: torch.Tensor, size: int, ignored: int) -> torch.Tensor:
        largest = logits.max(1).values
        parts = [(one - largest[:, None]).exp() for one in logits.chunk(size, 1)]
        total = tree([one.sum(1) for one in parts])
        counts = targets != ignored
        row, entry = torch.arange(len(targets)), torch.where(counts, targets, 0)
        context.save_for_backward(torch.cat(parts, 1) / total[:, None], row, entry, counts)
        return torch.where(counts, total.log() - (logits[row, entry] - largest), 0.0)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        softmax, row, entry, counts = context.saved_tensors
        softmax = softmax.clone()
        softmax[row, entry] -= 1
        return softmax * torch.where(counts, gradient, 0.0)[:, None], None, None, None


class Group:
    """`size` ranks; a fault may be planted where a test says."""

    def __init__(self, size: int) -> None:
        self.size = size

    # -- Layers: what takes the place of a module's forward ------------------------------------------------------------

    def column(self, module: torch.nn.Module, cut: Cut) -> None:
        """`cut` of its weight; of Conv1D along dimension 1."""
        is_conv1d = type(module).__name__ == "Conv1D"
        outputs = Cut(-1, cut.segments)

        def forward(whole: torch.Tensor) -> torch.Tensor:
            weights = Parts.apply(module.weight, cut, self.size)
            none = (None,) * self.size
            biases = none if module.bias is None else Parts.apply(module.bias, Cut(0, cut.segments), self.size)
            given = zip(Copies.apply(whole, self.size), weights, biases, strict=True)
            return Joined.apply(outputs, *(F.linear(x, w.t() if is_conv1d else w, b) for x, w, b in given))

        module.forward = forward

    def row(self, module: torch.nn.Module, cut: Cut) -> None:
        is_conv1d = type(module).__name__ == "Conv1D"

        def forward(whole: torch.Tensor) -> torch.Tensor:
            weights = Parts.apply(module.weight, cut, self.size)
            given = zip(Parts.apply(whole, Cut(-1, cut.segments), self.size), weights, strict=True)
            total = Sum.apply(*(F.linear(x, w.t() if is_conv1d else w) for x, w in given))
            return total if module.bias is None else total + module.bias.to(total.dtype)

        module.forward = forward

    def loss(self, rows: torch.Tensor, targets: torch.Tensor, ignored: int = -100) -> torch.Tensor:
        """The sum over rows."""
        return LossOfParts.apply(rows, targets, self.size, ignored).sum()

    def causal_loss(
        self, logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, num_items_in_batch: Any = None, **_: Any
    ) -> torch.Tensor:
        """What takes the place of transformers' loss of a causal language model."""
        targets = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        total = self.loss(logits.float().reshape(-1, vocab_size), targets)
        return total / (int((targets != -100).sum()) if num_items_in_batch is None else num_items_in_batch)

    def norm_of_heads(self, module: torch.nn.Module, dimension: int = -2) -> None:
        """One weight for every head, whose dimension is cut: each rank has a gradient of its heads."""
        own = module.forward

        def forward(whole: torch.Tensor) -> torch.Tensor:
            outputs = []
            weight = module.weight
            for copy, heads in zip(
                Copies.apply(weight, self.size), Parts.apply(whole, Cut(dimension), self.size), strict=True
            ):
                del module._parameters["weight"]
                module.weight = copy
                outputs.append(own(heads))
                del module.weight
                module.register_parameter("weight", weight)
            return Joined.apply(Cut(dimension), *outputs)

        module.forward = forward

    def latent_attention(self, module: torch.nn.Module, modeling: Any) -> None:
        """DeepSeek-V2's: the key that all heads share is rotated and expanded by each rank for its own."""
        rotated, expanded = getattr(modeling.apply_rotary_emb, "own", modeling.apply_rotary_emb), module.expand_kv

        def apply_rotary_emb(queries: torch.Tensor, key: torch.Tensor, places: torch.Tensor) -> Any:
            by_rank = [rotated(queries, copy, places) for copy in Copies.apply(key, self.size)]
            return by_rank[0][0], torch.cat([key for _, key in by_rank], 1)

        def expand_kv(latent: torch.Tensor, keys: torch.Tensor) -> Any:
            each = module.num_heads // self.size
            own = keys.unsqueeze(2).expand(-1, -1, each, -1, -1).flatten(1, 2)
            return expanded(latent, own)

        apply_rotary_emb.own = rotated
        modeling.apply_rotary_emb = apply_rotary_emb
        module.expand_kv = expand_kv
