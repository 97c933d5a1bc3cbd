"""Mistakes of an import: what each changes in equigrad/_import_deepspeed.py, the case that shows it, and what is then found first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from deepspeed_jobs import Case
from equigrad import _import_deepspeed

_Tensors, _Source = _import_deepspeed._Tensors, _import_deepspeed._Source


class Mistake(NamedTuple):
    """`name` of `owner` becomes what `wrong` makes of it."""

    owner: Any
    name: str
    wrong: Callable[[Any], Any]
    case: Case
    found: str


def _changed(**values: Any) -> Callable[[Any], Any]:
    """Of a method that gives a dict: with these values, or what they give for those that they are called with."""

    def wrong(right: Any) -> Any:
        return lambda self, *args: {
            **right(self, *args),
            **{key: one(right(self, *args)) if callable(one) else one for key, one in values.items()},
        }

    return wrong


def _by_size_without_padding(self: Any, state: str | None) -> Iterator[tuple[str, torch.Tensor]]:
    """As if a parameter's parts were of numel / world elements, without what fills up the last one."""
    world, count, offset = self.source.world_size, len(self.source.optim[0]["fp32_flat_groups"]), 0
    ranks = [torch.cat([self._flat_of(state, rank, at).flatten() for at in range(count)]) for rank in range(world)]
    flat = torch.cat(ranks)
    for group in self.groups:
        for name, shape in group.shapes.items():
            yield name, flat[offset : offset + math.prod(shape)].view(shape)
            offset += math.prod(shape)


def _exchanged(right: Any) -> Any:
    others = {"exp_avg": "exp_avg_sq", "exp_avg_sq": "exp_avg"}
    return lambda self, state: right(self, others.get(state, state))


def _of_the_model(right: Any) -> Any:
    """Masters are the parameters that the model computes with."""

    def wrong(self: Any, state: str | None) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in right(self, state):
            yield name, self.source.model["module"][name].float() if state is None else one

    return wrong


def _without_first_rates(right: Any) -> Any:
    """The first group has the second one's rate."""
    return lambda self, given: {**right(self, given), "lr": right(self, self.groups[1].options)["lr"]}


def _buffers_of_one(right: Any) -> Any:
    def wrong(self: Any) -> Iterator[tuple[str, torch.Tensor]]:
        given = list(right(self))
        first = {name.removeprefix("rank0/"): one for name, one in given if name.startswith("rank0/buffer/")}
        for name, one in given:
            yield name, first.get(name.removeprefix("rank1/"), one)

    return wrong


ONE, TWO, THREE = Case(1, "fp32"), Case(2, "fp32"), Case(3, "fp32")
BF16, FP16, FP16_LATER = Case(2, "bf16"), Case(2, "fp16"), Case(1, "fp16")
MISTAKES = {
    "ranks in another order": Mistake(
        _import_deepspeed, "_by_rank", lambda right: lambda *args: right(*args)[::-1], ONE, "loaded master"
    ),
    "padding taken for elements": Mistake(
        _Tensors, "_of_stage_3", lambda _: _by_size_without_padding, THREE, "loaded master"
    ),
    "averages exchanged": Mistake(_Tensors, "_trained", _exchanged, TWO, "loaded exp_avg"),
    "masters of the model's type": Mistake(_Tensors, "_trained", _of_the_model, BF16, "loaded master"),
    "updates not counted": Mistake(_Tensors, "_steps_of", lambda _: lambda *args: 0, TWO, "updated master"),
    "one update too many": Mistake(
        _Tensors, "_steps_of", lambda right: lambda *args: right(*args) + 1, FP16, "updated master"
    ),
    "rate of another group": Mistake(_Tensors, "_options", _without_first_rates, BF16, "loaded rates"),
    "decay dropped": Mistake(_Tensors, "_options", _changed(weight_decay=0.0), THREE, "updated master"),
    "betas in the other order": Mistake(
        _Tensors, "_options", _changed(beta1=lambda one: one["beta2"], beta2=lambda one: one["beta1"]), ONE, "updated master"
    ),
    "Adam taken for AdamW": Mistake(_Tensors, "_kind", lambda _: lambda self: "adamw", Case(2, "fp32", "Adam"), "refused"),
    "scale not taken": Mistake(_Tensors, "_loss_scale", _changed(scale=128.0), FP16, "loaded scale"),
    "hysteresis not taken": Mistake(_Tensors, "_loss_scale", _changed(hysteresis_left=2), FP16_LATER, "numbers"),
    "overflow forgotten": Mistake(_Tensors, "_loss_scale", _changed(last_overflow=-1), FP16, "numbers"),
    "a step too many": Mistake(_Tensors, "_loss_scale", _changed(steps=lambda one: one["steps"] + 1), FP16, "numbers"),
    "schedule begun anew": Mistake(_Tensors, "engine", _changed(schedule={"last_batch_iteration": 0}), TWO, "numbers"),
    "counters begun anew": Mistake(
        _Tensors, "engine", _changed(counters={"micro_steps": 0, "global_steps": 0, "skipped_steps": 0}), ONE, "loaded steps"
    ),
    "buffers of rank 0": Mistake(_Tensors, "all", _buffers_of_one, THREE, "loaded buffer"),
    "frozen ones begun anew": Mistake(
        _Tensors,
        "_frozen",
        lambda right: lambda self: {name: torch.ones_like(one) for name, one in right(self).items()},
        TWO,
        "frozen",
    ),
    "the caller's state dropped": Mistake(_Source, "client_state", lambda _: lambda self: None, ONE, "client_state"),
}
