"""What a step does to parameters, in balls: the norm, clipping, SGD and AdamW, as their documents give them.

Each function holds every formula that documents give for the same mathematics, in any order of its operations:

    clipping   torch: g * min(1, max / (norm + 1e-6)); DeepSpeed: g * (1 / (max(1, (norm / S + 1e-6) / max) * S)); without the 1e-6
    decay      AdamW: p * (1 - lr * wd) first (torch), or lr * wd * p taken away together with the update (DeepSpeed's kernels)
    moments    beta * m + (1 - beta) * g (DeepSpeed), or m + (1 - beta) * (g - m) (torch's lerp)
    betas      in fp64 (torch), or rounded to fp32 before 1 - beta and beta ** t are taken (DeepSpeed's kernels)
    root       sqrt(v) / sqrt(1 - beta2 ** t) + eps, or sqrt(v / (1 - beta2 ** t)) + eps
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .balls import FORMATS, Ball, Format, add, constant, div, hull, mul, norm, rounded, sqrt, sub, within
from .on_rank.protocol import Clip, Optimizer

_EPSILON = 1e-6


@dataclass(frozen=True)
class Rates:
    """What of a group's settings a step uses: lr times the schedule's factor."""

    lr: float
    weight_decay: float

    def lr_in(self, form: Format) -> Ball:
        """The learning rate as a kernel has it; in fp64, a product that may be off by a bit."""
        ball = constant(self.lr, form)
        mantissa = math.frexp(self.lr)[0]
        return ball if mantissa in (0.5, -0.5, 0.0) else ball.widened(abs(self.lr) * 2.0**-52)


@dataclass(frozen=True)
class State:
    """What an optimizer keeps of one parameter. None: nothing yet."""

    first: Ball | None = None
    """SGD's momentum, AdamW's average of gradients."""
    second: Ball | None = None
    steps: int = 0


def clip_factor(size: Ball, clip: Clip, form: Format) -> Ball:
    """What gradients of that norm are multiplied by: 1 where the norm is surely below the threshold. form: that of the norm, at
    the finest fp32."""
    form = FORMATS["fp32"] if form.digits > 24 else form
    if not math.isfinite(float(size.mid)):
        return size
    slack = Ball(
        torch.tensor(_EPSILON / 2, dtype=torch.float64),
        torch.tensor(_EPSILON / 2 * (1 + 2 * form.unit), dtype=torch.float64),
    )
    factor = div(constant(clip.max_norm, FORMATS["fp32"]), add(size, slack, form), form)
    factor = rounded(factor, form, 3)
    low, high = factor.low.clamp(min=0.0, max=1.0), factor.high.clamp(min=0.0, max=1.0)
    return (
        Ball.between(low, high) if bool(factor.rad.isfinite()) else Ball.between(torch.zeros_like(low), torch.ones_like(low))
    )


def clipped(gradient: Ball, factor: Ball, form: Format) -> Ball:
    """The gradient times the factor, which may have been taken as one divided by another. By an infinite norm finite elements
    become 0 or NaN."""
    if bool((factor.mid == 1) & (factor.rad == 0)):
        return gradient
    if not bool(factor.mid.isfinite()):
        return gradient.widened(math.inf)
    return rounded(mul(gradient, factor, form), form, 1)


def norm_of(gradients: Sequence[Ball], clip: Clip | None, form: Format) -> Ball:
    """The norm of all gradients together: of the type that the clipping has, else 2."""
    return norm(gradients, clip.norm_type if clip else "2", form)


def update(
    optimizer: Optimizer, value: Ball, state: State, gradient: Ball, rates: Rates, form: Format
) -> tuple[Ball, State]:
    """The value after the step, and the state. form: what the arithmetic is rounded to, at the coarsest."""
    if optimizer.name == "sgd":
        return _sgd(optimizer, value, state, gradient, rates, form)
    exact = _adamw(optimizer, value, state, gradient, rates, form, False)
    if form.digits > 24:
        return exact
    narrow = _adamw(optimizer, value, state, gradient, rates, form, True)
    return hull(exact[0], narrow[0]), _joined(exact[1], narrow[1])


def _joined(a: State, b: State) -> State:
    assert a.first is not None and b.first is not None and a.second is not None and b.second is not None
    return replace(a, first=hull(a.first, b.first), second=hull(a.second, b.second))


def _scalar(form: Format) -> Format:
    """What a kernel for the format keeps numbers of the configuration in, at the coarsest."""
    return form if form.digits >= 24 else FORMATS["fp32"]


def _sgd(optimizer: Optimizer, value: Ball, state: State, gradient: Ball, rates: Rates, form: Format) -> tuple[Ball, State]:
    scalar = _scalar(form)
    direction = gradient
    if rates.weight_decay:
        direction = add(gradient, mul(constant(rates.weight_decay, scalar), value, form), form)
    if optimizer.momentum:
        if state.first is not None:
            direction = add(mul(constant(optimizer.momentum, scalar), state.first, form), direction, form)
        state = State(direction, None, state.steps + 1)
    return sub(value, mul(rates.lr_in(scalar), direction, form), form), state


def _adamw(
    optimizer: Optimizer, value: Ball, state: State, gradient: Ball, rates: Rates, form: Format, narrow: bool
) -> tuple[Ball, State]:
    """narrow: betas are rounded to fp32 first."""
    scalar = _scalar(form)
    betas = [float(torch.tensor(beta, dtype=torch.float32)) if narrow else beta for beta in optimizer.betas]
    steps = state.steps + 1
    first = _average(state.first, gradient, betas[0], form)
    second = _average(state.second, mul(gradient, gradient, form), betas[1], form)
    lost = FORMATS["fp32"].unit if narrow and steps > 1 else 2.0**-50
    corrections = [1 - beta**steps for beta in betas]
    rest = [Ball.of(one).widened(lost * (1 + steps * beta**steps)) for one, beta in zip(corrections, betas)]
    root = rounded(div(sqrt(second, form), sqrt(rest[1], scalar), form), form, 1)
    below = add(root, constant(optimizer.eps, scalar), form)
    ratio = rounded(div(rounded(div(first, rest[0], scalar), form, 1), below, form), form, 1)
    ratio = _bounded(ratio, gradient, steps, betas, optimizer.eps, form)
    change = rounded(mul(rates.lr_in(scalar), ratio, form), form, 1)
    if rates.weight_decay:
        loss = mul(mul(rates.lr_in(scalar), constant(rates.weight_decay, scalar), scalar), value, form)
        change = add(rounded(loss, form, 1), change, form)
        spare = (value.mid.abs() + value.rad) * (form.unit + scalar.unit)
        return sub(value, change, form).widened(spare), State(first, second, steps)
    return sub(value, change, form), State(first, second, steps)


def _average(before: Ball | None, new: Ball, beta: float, form: Format) -> Ball:
    """beta * before + (1 - beta) * new, by that or by lerp."""
    scalar = _scalar(form)
    weight = constant(1 - beta, scalar)
    part = rounded(mul(weight, new, form), form, 1)
    if before is None:
        return part
    kept = mul(constant(beta, scalar), before, form)
    size = (before.mid.abs() + before.rad + new.mid.abs() + new.rad) * (1 - beta)
    return add(kept, part, form).widened(size * form.gamma(4) + size.sign() * form.tiny)


def _bounded(ratio: Ball, gradient: Ball, steps: int, betas: Sequence[float], eps: float, form: Format) -> Ball:
    """What is known of |m| / sqrt(v) whatever the gradients were (Cauchy and Schwarz), and of the first step's, g / (|g| + eps)."""
    if eps < 1e-10 or form.digits < 24 and form.largest < 1e30:
        return ratio
    spare = (steps + 16) * 16 * form.unit
    if steps == 1:
        low, high = gradient.low, gradient.high
        low, high = low / (low.abs() + eps), high / (high.abs() + eps)
        return within(ratio, low.nan_to_num(-1.0) - spare, high.nan_to_num(1.0) + spare)
    weights = [((1 - betas[0]) * betas[0] ** i) ** 2 / ((1 - betas[1]) * betas[1] ** i) for i in range(steps)]
    most = math.sqrt(sum(weights)) * math.sqrt(1 - betas[1] ** steps) / (1 - betas[0] ** steps) * (1 + spare) + spare
    return within(ratio, -most, most)
