"""What the first step after an import must give, from the files' own numbers: plain autograd, and bounds of rounding per element.

A summand of an averaged gradient is one micro-batch's gradient on one rank, as plain autograd has it in the model's type; the mean of
all is known in fp64, and how far an engine may be from it follows from the type that it adds in and the additions on a summand's way:
gamma times the average of absolute values (equigrad/judge/balls.py). An update may be as far from the exact one as its own roundings,
whatever order of them the optimizer's documents allow (equigrad/judge/updates.py). No number here is set by hand; where a sum is
exact in its type the bound is 0, and bits are compared.
"""

from __future__ import annotations

from typing import Any

import torch

import twin
from deepspeed_jobs import DECAYS, DTYPES, PASSES, SAVED, STATES, WORLD, Case, Two, group_of, loss_of
from equigrad.judge.balls import FORMATS, Ball, add, constant, mean_of, mul
from equigrad.judge.on_rank.protocol import Optimizer
from equigrad.judge.updates import Rates, State, update

Tensors = dict[str, torch.Tensor]
FP32 = FORMATS["fp32"]


def contributions(case: Case, saved: list[dict[str, Any]]) -> list[list[Tensors]]:
    """[rank][micro-batch]: gradients of the scaled loss at what was saved. saved: by rank, what an engine showed after it was loaded."""
    return [_of_rank(case, rank, seen) for rank, seen in enumerate(saved)]


def _of_rank(case: Case, rank: int, seen: dict[str, Any]) -> list[Tensors]:
    module = Two()
    for p in module.parameters():
        p.data = p.data.to(DTYPES[case.precision])
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(seen["master"].get(name, p))
        for name, one in module.named_buffers():  # in fp32 whatever the model's type
            one.copy_(seen["buffer"][name])
    given = []
    for micro_batch in range(PASSES):
        gradients = twin.local_gradients(module, loss_of(module, SAVED, rank, micro_batch) * seen["scale"])
        given.append({name: one for name, one in gradients.items() if one is not None})
    return given


def averages(case: Case, given: list[list[Tensors]]) -> dict[str, Ball]:
    """The averaged gradients, with the loss scale. Both engines add in the model's type: a summand goes through an addition for each
    other pass, and for each other rank, of which one in 16 bits is one in fp32, and then a rounding. All divisions are by powers of two."""
    assert WORLD * PASSES & (WORLD * PASSES - 1) == 0
    form = FORMATS[case.precision]
    roundings = (PASSES - 1 + WORLD - 1) * (1.0 if form is FP32 else 1.0 + FP32.unit / form.unit)
    return {
        name: mean_of([Ball.of(micro[name]) for rank in given for micro in rank], WORLD * PASSES, form, roundings)
        for name in given[0][0]
    }


def adds_alike(case: Case, stage: int) -> bool:
    """Whether DeepSpeed at the case's stage and this engine at that one add in the same order, and round in the same places: at stages 0
    and 1 passes first, else ranks first. In 16 bits this engine's stages 2 and 3 round later than DeepSpeed's."""
    passes_first = case.stage == 1
    return passes_first == (stage < 2) and (passes_first or case.precision == "fp32")


def updated(case: Case, saved: dict[str, Any], gradients: Tensors) -> dict[str, dict[str, Ball]]:
    """Masters and states after a step with those very gradients, without the loss scale; by what they are, and name."""
    due: dict[str, dict[str, Ball]] = {key: {} for key in ("master", *STATES)}
    for group in (0, 1):
        names = [name for name in gradients if group_of(name) == group]
        master, direction = (_flat(one, names) for one in (saved["master"], gradients))
        rates = Rates(saved["rates"][group], DECAYS[group])
        if case.kind == "Adam":  # its decay is a part of the gradient
            direction = add(direction, mul(constant(rates.weight_decay, FP32), master, FP32), FP32)
            rates = Rates(rates.lr, 0.0)
        state = State(*(_flat(saved[key], names) for key in STATES), SAVED - saved["steps"][1])
        value, state = update(Optimizer("adamw", rates.lr), master, state, direction, rates, FP32)
        assert state.first is not None and state.second is not None
        for key, ball in zip(due, (value, state.first, state.second), strict=True):
            due[key] |= _by_name(ball, gradients, names)
    return due


def _flat(tensors: Tensors, names: list[str]) -> Ball:
    return Ball.of(torch.cat([tensors[name].flatten() for name in names]))


def _by_name(flat: Ball, like: Tensors, names: list[str]) -> dict[str, Ball]:
    sizes = [like[name].numel() for name in names]
    parts = zip(names, flat.mid.split(sizes), flat.rad.split(sizes), strict=True)
    return {name: Ball(mid.view_as(like[name]), rad.view_as(like[name])) for name, mid, rad in parts}


def differing(what: str, got: Tensors, want: Tensors) -> list[str]:
    """Each tensor that has other bits."""
    assert got.keys() == want.keys(), f"{what}: {sorted(got)}, not {sorted(want)}"
    return [f"{what} {name}: other bits" for name in want if not twin.same_bits(got[name].float(), want[name].float())]


def beyond(what: str, got: Tensors, balls: dict[str, Ball]) -> list[str]:
    """Each tensor with elements beyond their bounds, or with none: what follows from infinite gradients is bounded by nothing."""
    assert got.keys() == balls.keys(), f"{what}: {sorted(got)}, not {sorted(balls)}"
    found = []
    for name, ball in balls.items():
        if not bool(ball.mid.isfinite().all()) or not bool(ball.rad.isfinite().all()):
            found.append(f"{what} {name}: no bound is known")
            continue
        wrong = int((~ball.holds(got[name])).sum())
        if wrong:
            found.append(
                f"{what} {name}: {wrong} of {ball.mid.numel()} elements beyond the bound, {share(got[name], ball):.3g} of it"
            )
    return found


def share(got: torch.Tensor, ball: Ball) -> float:
    """The largest error, as a share of its bound."""
    errors = (got.double() - ball.mid).abs()
    return float(torch.where(errors == 0, 0.0, errors / ball.rad).max())
