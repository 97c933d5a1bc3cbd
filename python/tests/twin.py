"""What the engine must give, from plain autograd in one process: sums in its documented order, updates of single operations.

The order is that of engine/comm/reduction.hpp: over ranks a binary tree of neighbours; stages 0 and 1 add micro-batches
first, stages 2 and 3 ranks first. Nothing of the engine is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Gradients = dict[str, torch.Tensor | None]


def local_gradients(model: torch.nn.Module, loss: torch.Tensor) -> Gradients:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def tree(values: list[torch.Tensor]) -> torch.Tensor:
    while len(values) > 1:
        pairs = [values[i] + values[i + 1] for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def _sequence(values: list[torch.Tensor]) -> torch.Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def averaged(by_rank: list[list[Gradients]], stage: int, sequence: int = 1) -> Gradients:
    """by_rank[rank][micro_batch]: the average in fp32; None where no rank used the parameter. Those of the `sequence` ranks of a
    sequence are added, and not averaged."""
    world, passes = len(by_rank), len(by_rank[0])
    factor = float(torch.tensor(1.0 / (world // sequence * passes), dtype=torch.float32))
    result: Gradients = {}
    for name in by_rank[0][0]:
        given = [[by_rank[rank][k][name] for k in range(passes)] for rank in range(world)]
        like = next((g for row in given for g in row if g is not None), None)
        if like is None:
            result[name] = None
            continue
        rows = [[torch.zeros_like(like) if g is None else g for g in row] for row in given]
        if stage < 2:
            total = tree([_sequence(row) for row in rows])
        else:
            total = _sequence([tree([rows[rank][k] for rank in range(world)]) for k in range(passes)])
        result[name] = total * factor
    return result


def sgd(model: torch.nn.Module, gradients: Gradients, lr: float) -> None:
    rate = torch.tensor(lr, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if gradients[name] is not None:
                parameter.copy_(parameter - gradients[name] * rate)


def train(
    make_model: Callable[[], torch.nn.Module],
    loss_of: Callable[[torch.nn.Module, int, int, int], torch.Tensor],
    world: int,
    stage: int,
    steps: int,
    passes: int,
    lr: float,
) -> tuple[list[Gradients], dict[str, torch.Tensor]]:
    """loss_of(model, step, rank, micro_batch). The averaged gradients of every step, and the parameters at the end."""
    torch.set_num_threads(1)
    model = make_model()
    history = []
    for step in range(steps):
        by_rank = [[local_gradients(model, loss_of(model, step, rank, k)) for k in range(passes)] for rank in range(world)]
        history.append(averaged(by_rank, stage))
        sgd(model, history[-1], lr)
    return history, {name: p.detach().clone() for name, p in model.named_parameters()}


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    return (
        got.shape == want.shape
        and got.dtype == want.dtype
        and bytes(got.detach().contiguous().view(-1).view(torch.uint8).flatten().tolist())
        == bytes(want.detach().contiguous().view(-1).view(torch.uint8).flatten().tolist())
    )


def assert_same_bits(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    if not same_bits(got, want):
        differing = int((got != want).sum()) if got.shape == want.shape else math.prod(got.shape)
        raise AssertionError(
            f"{what}: {differing} of {want.numel()} elements differ, got {got.flatten()[:4]}, want {want.flatten()[:4]}"
        )
