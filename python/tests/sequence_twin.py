"""What the ranks of a sequence must give, from plain autograd in one process: threads, one for each part, meet in attention.

Each part of the sequence runs through its own copy of the model; attention is that of the whole sequence, by the heads of each
rank; a key/value head that several ranks have gets their gradients added in fp32 in a tree; the loss is the sum of the parts'
sums in the same tree, by the number of all that count. One backward pass goes through all parts. Nothing of the engine is used.
Where heads are split over tensor ranks too, each of these has some, of which each rank of a sequence has some.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch

import twin

IGNORED = -100
Attend = Callable[..., torch.Tensor]


class Repeated(torch.autograd.Function):
    """Heads at dimension 1, each `copies` times."""

    @staticmethod
    def forward(ctx: Any, heads: torch.Tensor, copies: int) -> torch.Tensor:
        ctx.copies = copies
        return heads.repeat_interleave(copies, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows = gradient.unflatten(1, (-1, ctx.copies)).float().unbind(2)
        return twin.tree(list(rows)).to(gradient.dtype), None


class Meeting:
    """Attention of the parts: meeting(part, query, key, value, *more), all [batch, heads, sequence, width]."""

    def __init__(self, ranks: int, local: Attend, tensor: int = 1) -> None:
        self._ranks, self._local, self._tensor = ranks, local, tensor
        self._given: list[Any] = [None] * ranks
        self._results: tuple[torch.Tensor, ...] = ()
        self._barrier = threading.Barrier(ranks, timeout=60)

    def __call__(self, part: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any) -> torch.Tensor:
        self._given[part] = (query, key, value)
        self._barrier.wait()
        if part == 0:
            whole = [torch.cat(pieces, 2) for pieces in zip(*self._given, strict=True)]
            self._results = self._by_heads(*whole, *more).chunk(self._ranks, 2)
        self._barrier.wait()
        return self._results[part]

    def abort(self) -> None:
        self._barrier.abort()

    def _by_heads(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any) -> torch.Tensor:
        copies = max(self._ranks * self._tensor // key.shape[1], 1)
        if copies > 1:
            key, value = Repeated.apply(key, copies), Repeated.apply(value, copies)
        some = zip(*(of.chunk(self._ranks * self._tensor, 1) for of in (query, key, value)), strict=True)
        return torch.cat([self._local(*one, *more) for one in some], 1)


def sum_of_losses(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="sum")


def gradients(
    model: torch.nn.Module,
    ranks: int,
    local: Attend,
    put: Callable[[torch.nn.Module, Attend], Any],
    logits_of: Callable[[torch.nn.Module, int], torch.Tensor],
    shift_labels: torch.Tensor,
    tensor: int = 1,
    total_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = sum_of_losses,
) -> tuple[torch.Tensor, list[twin.Gradients]]:
    """The loss of the whole sequence, and what each rank adds to the gradient.

    put(model, attend): gives a copy of the model its attention. logits_of(model, part): of that part. total_of(rows, targets): the
    sum of their losses.
    """
    meeting = Meeting(ranks, local, tensor)
    parts = [copy.deepcopy(model) for _ in range(ranks)]
    labels = shift_labels.chunk(ranks, 1)
    sums: list[Any] = [None] * ranks

    def run(part: int) -> None:
        try:
            logits = logits_of(parts[part], part).float()
            rows, targets = logits.reshape(-1, logits.shape[-1]), labels[part].reshape(-1)
            sums[part] = total_of(rows, targets)
        except BaseException:
            meeting.abort()
            raise

    threads = [threading.Thread(target=run, args=(part,)) for part in range(ranks)]
    for part, thread in enumerate(threads):
        put(parts[part], lambda *some, part=part: meeting(part, *some))
        thread.start()
    for thread in threads:
        thread.join()
    loss = twin.tree(sums) / int((shift_labels != IGNORED).sum())
    loss.backward()
    return loss.detach(), [{name: one.grad for name, one in part.named_parameters()} for part in parts]
