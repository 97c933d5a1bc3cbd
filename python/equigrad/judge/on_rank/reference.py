"""Local gradients by plain autograd in one process, on the device of the ranks: what every rank's every micro-batch gives before
anything is averaged."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch

from . import device, models
from .loop import DTYPES, Named, Place, autocast, batch_of, load_weights, overflows, places, read_batches, seed_of
from .protocol import Case, local_key

Losses = dict[str, list[float]]
"""By "r{rank}.m{micro}", one per backward; the set in fp64 has "fp64/" before it."""


def local(case: Case, step: int, parameters: Named, scale: float = 1.0) -> tuple[Losses, Named]:
    """Losses and gradients of all ranks and micro-batches of one step, twice: as the case's precision computes them, and in fp64.

    parameters: by name, the values at this step; rounded to the model's type before both. scale: the loss scale, by which the
    loss is multiplied and the gradient, in fp64, divided again. The gradient of a micro-batch is the sum over its backwards, each
    added as autograd adds to `.grad`. A parameter that a micro-batch does not use is absent. With the factor, not divided by the
    accumulation. With several backwards, what the last of them added stands by itself under "last/".
    """
    torch.manual_seed(0)
    built = models.build(case.model)
    built.module.to(DTYPES[case.precision.model])  # before the values: those of an fp64 model do not fit into fp32
    load_weights(built.module, parameters)
    built.module.to(device.here())
    if case.options.get("activation_checkpointing"):
        models.checkpoint_activations(built.module)
    low = built
    exact = models.Built(copy.deepcopy(low.module).to(torch.float64), built.loss)
    losses: Losses = {}
    named: Named = {}
    for rank in range(case.world):
        batches = read_batches(case, rank)
        for micro in _micro_batches(case, step):
            for one, in_fp64 in ((low, False), (exact, True)):
                got, gradients, before = _micro_batch(case, one, (batches, rank), micro, 1.0 if in_fp64 else scale)
                losses[local_key(rank, micro[0].micro, "", in_fp64).rstrip("/")] = got
                for name, gradient in gradients.items():
                    named[local_key(rank, micro[0].micro, name, in_fp64)] = gradient
                    if in_fp64 and len(micro) > 1:
                        named["last/" + local_key(rank, micro[0].micro, name)] = gradient - before.get(name, 0.0)
    return losses, named


def _micro_batches(case: Case, step: int) -> Iterator[list[Place]]:
    """The places of each micro-batch."""
    every = list(places(case, step))
    for micro in range(case.accumulation):
        yield [one for one in every if one.micro == micro]


def _micro_batch(
    case: Case, built: models.Built, of: tuple[Named, int], micro: list[Place], scale: float
) -> tuple[list[float], Named, Named]:
    """Losses of a micro-batch's backwards, and its gradients in fp64, unscaled: all, and before the last backward. of: the batches
    and the rank."""
    dtype = next(built.module.parameters()).dtype
    exact = dtype == torch.float64
    rank = of[1]
    built.module.zero_grad(set_to_none=True)
    losses: list[float] = []
    before: Named = {}
    for place in micro:
        before = _gradients(built, scale) if place is micro[-1] else before
        torch.manual_seed(seed_of(place, rank))
        batch = batch_of(of[0], place, rank, dtype)
        if exact:
            batch = {key: one.double() if one.is_floating_point() else one for key, one in batch.items()}
            loss, output, gradient = built.loss(built.module, batch, case.model.factor)
        else:
            with autocast(case.precision):
                loss, output, gradient = built.loss(built.module, batch, case.model.factor)
        if overflows(case, place, rank):
            loss, gradient = loss * float("inf"), gradient * float("inf")
        losses.append(float(loss.detach()))
        if case.style == "tensor_backward":
            torch.autograd.backward(output, gradient * scale)
        else:
            torch.autograd.backward(loss * scale)
    return losses, _gradients(built, scale), before


def _gradients(built: models.Built, scale: float) -> Named:
    gradients = {name: one.grad for name, one in built.module.named_parameters() if one.grad is not None}
    return {name: one.double() / scale for name, one in gradients.items()}
