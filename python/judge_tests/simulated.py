"""Engines in one process, with real kernels and every choice that an honest engine has: orders, factors, types, optimizers.

Faults are planted by putting another function in the place of one of a Simulated engine's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from equigrad.judge import truth, workload
from equigrad.judge.on_rank import reference
from equigrad.judge.on_rank.loop import DTYPES
from equigrad.judge.on_rank.protocol import Case, StepAnswer, local_key, tensor_key
from equigrad.judge.scales import rules

Tensors = dict[str, torch.Tensor]


class Local:
    """Local gradients by plain autograd, each computed once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.known: dict[Any, Any] = {}

    def __call__(self, step: int, parameters: Tensors, scale: float) -> Any:
        values = b"".join(one.detach().double().numpy().tobytes() for one in parameters.values())
        key = (step, scale, hash(values))
        if key not in self.known:
            self.known[key] = reference.local(self.case, step, parameters, scale)
        return self.known[key]


def split_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As DeepSpeed's stage 3 computes it: a product, and the bias added to what was rounded."""
    output = input.matmul(weight.t())
    return output if bias is None else output + bias


@dataclass
class Choices:
    """Of an honest engine. factors: what is multiplied by each micro-batch's gradient, by each rank's sum, and by the total;
    their product is 1 / (world x accumulation)."""

    factors: str = "after"
    order: int = 0
    """0: as they come; else the seed of a shuffled order, added up as a tree."""
    ranks_first: bool = False
    """Reduces each micro-batch, and adds the results."""
    accumulation: str = ""
    communication: str = ""
    masters: str = ""
    """ "", "hidden" or "shown"; of "weights" or "rounded", after a colon."""
    kernel: str = "single"
    """Of torch.optim: "single", "foreach", "fused"; or "deepspeed"."""
    clip: str = "torch"
    rule: str = "torch"
    unused: str = "absent"
    """ "absent", "zero" (a step with a gradient of zeros) or "hidden" (no gradient is shown)."""
    linear: Callable[..., torch.Tensor] | None = None
    shows_gradient: bool = True


@dataclass
class Simulated:
    """An engine that trains a case."""

    case: Case
    weights: Tensors
    local: Local
    choices: Choices = field(default_factory=Choices)

    def __post_init__(self) -> None:
        case, kind = self.case, DTYPES[self.case.precision.model]
        self.kind = kind
        keeps, _, of = self.choices.masters.partition(":")
        self.keeps = keeps
        held = {name: one.to(kind) for name, one in self.weights.items()}
        start = {name: one.to(kind).float() if of == "rounded" else one.float() for name, one in self.weights.items()}
        self.values = {name: torch.nn.Parameter((start[name] if keeps else held[name]).clone()) for name in self.weights}
        self.frozen = truth.Setting.of(case, self.weights).frozen
        self.groups = [(group.parameters, group.lr, group.weight_decay) for group in case.groups] or [
            (tuple(self.weights), case.optimizer.lr, case.optimizer.weight_decay)
        ]
        self.optimizer = self.make_optimizer()
        scale = case.precision.loss_scale
        self.rule = next((rule for rule in rules(scale) if rule.name == self.choices.rule), rules(scale)[0])
        self.applied = 0
        self.before: Tensors = {}
        self.moments: dict[str, list[torch.Tensor]] = {}
        self.counts: dict[str, int] = {}

    def make_optimizer(self) -> torch.optim.Optimizer | None:
        wanted, kernel = self.case.optimizer, self.choices.kernel
        if kernel == "deepspeed":
            return None
        how = {"single": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[kernel]
        groups = [
            {"params": [self.values[name] for name in names if name not in self.frozen], "lr": lr, "weight_decay": decay}
            for names, lr, decay in self.groups
        ]
        if wanted.name == "adamw":
            return torch.optim.AdamW(groups, wanted.lr, wanted.betas, wanted.eps, wanted.weight_decay, **how)
        return torch.optim.SGD(groups, wanted.lr, wanted.momentum, weight_decay=wanted.weight_decay, **how)

    def run(self) -> list[truth.RankSteps]:
        """What its ranks answer."""
        ranks = [truth.RankSteps([], {}) for _ in range(self.case.world)]
        for step in range(self.case.steps):
            self.step(step, ranks)
        return ranks

    def step(self, step: int, ranks: list[truth.RankSteps]) -> None:
        case, scale = self.case, self.loss_scale(step)
        losses, contributions = self.backward(step, scale)
        means = {name: self.mean(step, name, contributions, scale) for name in self.weights}
        read = {name: self.unscaled(one, scale) for name, one in means.items() if one is not None}
        overflow = case.precision.loss_scale is not None and not all(bool(one.isfinite().all()) for one in read.values())
        used = {name: one.clone() for name, one in read.items()}
        norm = self.norm(used) if not overflow else None
        rates = [self.rate(step, index) for index in range(len(self.groups))]
        if case.clip is not None and not overflow:
            self.clip(used, norm)
        if not overflow or self.steps_anyway(step):
            self.update(step, used, rates)
            self.applied += 1
        self.rule = self.rule.after(overflow)
        for rank, answer in enumerate(ranks):
            said = None if case.precision.loss_scale is None else scale
            self.say(step, rank, answer, (losses[rank], not overflow, norm, tuple(rates), said), read)
        self.before = used

    def say(self, step: int, rank: int, answer: truth.RankSteps, numbers: tuple[Any, ...], read: Tensors) -> None:
        losses, applied, norm, rates, scale = numbers
        steps: Any = answer.steps
        steps.append(StepAnswer(tuple(losses), applied, None if norm is None else float(norm), rates, scale))
        for name in self.weights:
            if self.choices.shows_gradient and name in read:
                answer.tensors[tensor_key(step, "gradient", name)] = self.wide(read[name])
            answer.tensors[tensor_key(step, "parameter", name)] = self.wide(self.parameter(step, name))
            if self.keeps == "shown":
                answer.tensors[tensor_key(step, "master", name)] = self.wide(self.values[name].detach())

    def wide(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(torch.float64 if tensor.dtype == torch.float64 else torch.float32, copy=True)

    def loss_scale(self, step: int) -> float:
        return self.rule.scale

    def rate(self, step: int, group: int) -> float:
        schedule = self.case.schedule
        return self.groups[group][1] * (schedule[min(self.applied, len(schedule) - 1)] if schedule else 1.0)

    def parameter(self, step: int, name: str) -> torch.Tensor:
        return self.values[name].detach().to(self.kind)

    def parameters(self) -> Tensors:
        return {name: one.detach().to(self.kind) for name, one in self.values.items()}

    def backward(self, step: int, scale: float) -> tuple[list[list[float]], dict[tuple[int, int], Tensors]]:
        """Losses by rank, and scaled gradients in the model's type by (rank, micro-batch)."""
        case = self.case
        if self.choices.linear is None:
            losses, named = self.local(step, self.parameters(), scale)
        else:
            with mock.patch.object(functional, "linear", self.choices.linear):
                losses, named = reference.local(case, step, self.parameters(), scale)
        places = itertools.product(range(case.world), range(case.accumulation))
        found: dict[tuple[int, int], Tensors] = {}
        for rank, micro in places:
            prefix = local_key(rank, micro, "")
            found[rank, micro] = {
                name: (named[prefix + name] * scale).to(self.kind) for name in self.weights if prefix + name in named
            }
        by_rank = [[one for m in range(case.accumulation) for one in losses[f"r{r}.m{m}"]] for r in range(case.world)]
        return by_rank, found

    def mean(self, step: int, name: str, by_place: dict[tuple[int, int], Tensors], scale: float) -> torch.Tensor | None:
        """Averaged, scaled; None where no rank has a gradient."""
        case = self.case
        if not any(name in one for one in by_place.values()):
            return (
                torch.zeros_like(self.values[name], dtype=self.kind)
                if self.choices.unused == "zero" and name not in self.frozen
                else None
            )
        zero = torch.zeros_like(self.values[name].detach(), dtype=self.kind)
        rows = [
            [
                self.contribution(step, rank, micro, name, by_place[rank, micro].get(name, zero))
                for micro in range(case.accumulation)
            ]
            for rank in range(case.world)
        ]
        return self.combine(step, name, rows)

    def contribution(self, step: int, rank: int, micro: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient

    def combine(self, step: int, name: str, rows: list[list[torch.Tensor]]) -> torch.Tensor:
        case, choices = self.case, self.choices
        accumulates = DTYPES[choices.accumulation or case.precision.model]
        travels = DTYPES[choices.communication or case.precision.model]
        each, rank_sum, total = self.factors()
        rows = [[times(one.to(accumulates), each) for one in row] for row in rows]
        if choices.ranks_first:
            columns = [self.added([times(one.to(travels), rank_sum) for one in column]) for column in zip(*rows)]
            return times(self.added([one.to(accumulates) for one in columns]), total)
        sums = [times(self.added(row).to(travels), rank_sum) for row in rows]
        return times(self.added(sums), total)

    def factors(self) -> tuple[Any, Any, Any]:
        """Multipliers, or ("/", divisor)."""
        gas, world = self.case.accumulation, self.case.world
        return {
            "after": (1.0, 1.0, 1 / (gas * world)),
            "before": (1 / (gas * world), 1.0, 1.0),
            "around": (1 / gas, 1.0, 1 / world),
            "each": (("/", gas), ("/", world), 1.0),
            "late": (1.0, ("/", gas), ("/", world)),
            "parts": (1.0, 1 / world, ("/", gas)),
        }[self.choices.factors]

    def added(self, terms: list[torch.Tensor]) -> torch.Tensor:
        """In the order chosen."""
        terms = list(terms)
        if not self.choices.order:
            total = terms[0].clone()
            for one in terms[1:]:
                total = total + one
            return total
        draw = random.Random(self.choices.order)
        while len(terms) > 1:
            a, b = (terms.pop(draw.randrange(len(terms))) for _ in range(2))
            terms.append(a + b)
        return terms[0]

    def unscaled(self, mean: torch.Tensor, scale: float) -> torch.Tensor:
        if scale == 1.0 and not self.keeps:
            return mean
        return self.wide(mean) / scale

    def norm(self, gradients: Tensors) -> torch.Tensor:
        kind = float(self.case.clip.norm_type) if self.case.clip else 2.0
        found = [one for one in gradients.values()]
        if self.choices.clip == "deepspeed":
            if kind == 2.0:
                return torch.stack([one.double().norm(2).float() for one in found]).pow(2).sum().float().pow(0.5)
            return torch.stack([one.abs().max().float() for one in found]).max()
        norms = [torch.linalg.vector_norm(one, kind) for one in found]
        return torch.linalg.vector_norm(torch.stack(norms), kind)

    def clip(self, gradients: Tensors, norm: Any) -> None:
        clip: Any = self.case.clip
        for one in gradients.values():
            if self.choices.clip == "deepspeed":
                one.mul_(1.0 / torch.clamp((norm + 1e-6) / clip.max_norm, min=1.0))
            else:
                one.mul_(torch.clamp(clip.max_norm / (norm + 1e-6), max=1.0))

    def steps_anyway(self, step: int) -> bool:
        return False

    def update(self, step: int, gradients: Tensors, rates: list[float]) -> None:
        for name, one in self.values.items():
            one.grad = gradients[name].to(one.dtype) if name in gradients else None
        if self.optimizer is None:
            self.update_as_deepspeed(rates)
            return
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate
        self.optimizer.step()

    def update_as_deepspeed(self, rates: list[float]) -> None:
        """csrc/adam/cpu_adam_impl.cpp, in fp32."""
        wanted = self.case.optimizer
        one = torch.tensor(1.0)
        b1, b2 = (torch.tensor(beta, dtype=torch.float32) for beta in wanted.betas)
        for (names, _, decay), rate in zip(self.groups, rates):
            for name in names:
                value = self.values[name]
                if value.grad is None:
                    continue
                grad, lr = value.grad.float(), torch.tensor(rate, dtype=torch.float32)
                m, v = self.moments.setdefault(name, [torch.zeros_like(grad), torch.zeros_like(grad)])
                self.counts[name] = steps = self.counts.get(name, 0) + 1
                m.copy_(grad * (one - b1) + m * b1)
                v.copy_(grad * grad * (one - b2) + v * b2)
                root = v.sqrt() * (one / (one - b2**steps).sqrt()) + wanted.eps
                parameter = value.data.float()
                parameter += (-lr * decay) * parameter
                value.data.copy_((m / root) * (-lr / (one - b1**steps)) + parameter)


def times(tensor: torch.Tensor, factor: Any) -> torch.Tensor:
    """By a number, or divided by one."""
    if isinstance(factor, tuple):
        return tensor / factor[1]
    return tensor if factor == 1.0 else tensor * factor


@dataclass
class Prepared:
    """A case with its files, and what is right."""

    case: Case
    setting: truth.Setting
    local: Local

    def engine(self, **choices: Any) -> Simulated:
        return Simulated(self.case, self.setting.weights, self.local, Choices(**choices))

    def verdict(self, engine: Simulated) -> truth.Verdict:
        return truth.judge(self.setting, engine.run(), self.local)


def prepared(case: Case, folder: Path, seed: int = 1) -> Prepared:
    whole, drawn = workload.write(case, folder, seed)
    return Prepared(whole, truth.Setting.of(whole, drawn.weights, drawn.certified), Local(whole))
