"""Faults of the optimizer's step and of the schedule, in either engine."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .base import Fault

Optimizer = torch.optim.Optimizer


class StepFault(Fault):
    """Something other than optimizer.step()."""

    def optimizer_made(self, optimizer: Optimizer) -> None:
        run = optimizer.step

        def step(_: Optimizer, *rest: Any, **named: Any) -> Any:
            with torch.no_grad():
                return self.step(optimizer, lambda: run(*rest, **named))

        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]  schedulers look for __func__

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        """run() is the real step."""
        raise NotImplementedError

    @contextlib.contextmanager
    def set(self, optimizer: Optimizer, name: str, value: Callable[[dict[str, Any]], Any]) -> Iterator[None]:
        """For as long as it lasts, another setting in every group."""
        before = [group[name] for group in optimizer.param_groups]
        values = [value(group) for group in optimizer.param_groups]
        for group, one in zip(optimizer.param_groups, values):
            self.fire(group[name] != one)
            group[name] = one
        try:
            yield
        finally:
            for group, one in zip(optimizer.param_groups, before):
                group[name] = one

    @contextlib.contextmanager
    def without_gradients(self, optimizer: Optimizer) -> Iterator[None]:
        """A step in which nothing has a gradient: it does nothing."""
        kept = [(one, one.grad) for one in parameters(optimizer)]
        for one, gradient in kept:
            self.fire(gradient is not None)
            one.grad = None
        try:
            yield
        finally:
            for one, gradient in kept:
                one.grad = gradient


def parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """Of all groups, in order."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The rank's own part of a DTensor; a plain tensor as it is."""
    part: Callable[[], torch.Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


class StepSkipped(StepFault):
    name, what, subtle = "ddp-step-skipped", "the second step does nothing", True
    kinds = ("not-updated",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        if self.watch.step != 1:
            return run()
        with self.without_gradients(optimizer):
            return run()


class StepTwice(StepFault):
    name, what = "ddp-step-twice", "every step is made twice"
    kinds = ("updated-twice",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        self.fire()
        run()
        return run()


class Group0Lr(StepFault):
    name, what, subtle = "ddp-group-0-lr", "group 0's learning rate for all groups", True
    kinds = ("lr-of-another-group",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        lr = optimizer.param_groups[0]["lr"]
        with self.set(optimizer, "lr", lambda group: lr):
            return run()


class Fsdp2Group0Lr(Group0Lr):
    name = "fsdp2-group-0-lr"


class NoDecay(StepFault):
    name, what = "ddp-no-decay", "weight decay is dropped"
    kinds = ("no-weight-decay",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        with self.set(optimizer, "weight_decay", lambda group: 0.0):
            return run()


class DecayOfGroup0(StepFault):
    name, what, subtle = "ddp-decay-of-group-0", "group 0's weight decay for all groups", True
    kinds = ("decay-of-another-group",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        decay = optimizer.param_groups[0]["weight_decay"]
        with self.set(optimizer, "weight_decay", lambda group: decay):
            return run()


class AdamwL2(StepFault):
    name, what = "ddp-adamw-l2", "AdamW adds the decay to the gradient"
    kinds = ("decay-to-gradient",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        if not isinstance(optimizer, torch.optim.AdamW):
            return run()
        kept = [(one, one.grad) for one in parameters(optimizer) if one.grad is not None]
        for group in optimizer.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.grad = one.grad + group["weight_decay"] * one
        try:
            with self.set(optimizer, "weight_decay", lambda group: 0.0):
                return run()
        finally:
            for one, gradient in kept:
                one.grad = gradient


class AdamStepTwice(StepFault):
    name, what, subtle = "ddp-adam-step-twice", "the step counter grows by two", True
    kinds = ("step-counter",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        result = run()
        for state in optimizer.state.values():
            if "step" in state:
                state["step"] += 1
                self.fire()
        return result


class AdamNoBiasCorrection(StepFault):
    name, what = "ddp-adam-no-bias-correction", "the step counter stands at a million"
    kinds = ("step-counter",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        if isinstance(optimizer, torch.optim.AdamW):
            for one in parameters(optimizer):
                state = optimizer.state[one]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(one), torch.zeros_like(one)
                state["step"] = torch.tensor(1e6)
                self.fire(one.grad is not None)
        return run()


class MomentumLost(StepFault):
    name, what, subtle = "ddp-momentum-lost", "the momentum begins anew in every step", True
    kinds = ("state-lost", "no-momentum")

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        for state in optimizer.state.values():
            if state.get("momentum_buffer") is not None:
                state["momentum_buffer"] = None
                self.fire()
        return run()


class MomentumNesterov(StepFault):
    name, what = "ddp-momentum-nesterov", "Nesterov's rule instead of the plain one"
    kinds = ("nesterov",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        if not isinstance(optimizer, torch.optim.SGD) or not optimizer.param_groups[0]["momentum"]:
            return run()
        with self.set(optimizer, "nesterov", lambda group: True):
            return run()


class TailNotUpdated(StepFault):
    name, what, subtle = "ddp-tail-not-updated", "the last element of every parameter is not updated", True
    kinds = ("not-updated",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        tails = [(one, one.flatten()[-1].clone()) for one in parameters(optimizer) if one.numel()]
        result = run()
        for one, tail in tails:
            self.fire(bool(one.view(-1)[-1] != tail))
            one.view(-1)[-1] = tail
        return result


class LastParameterNotUpdated(StepFault):
    name, what, subtle = "ddp-last-parameter-not-updated", "the last parameter is left out of the optimizer", True
    kinds = ("not-updated",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        with_gradient = [one for one in parameters(optimizer) if one.grad is not None]
        if not with_gradient:
            return run()
        kept, with_gradient[-1].grad = with_gradient[-1].grad, None
        self.fire()
        try:
            return run()
        finally:
            with_gradient[-1].grad = kept


class LastBiasNotUpdated(LastParameterNotUpdated):
    name = "fsdp2-last-bias-not-updated"


class ScheduleTwice(StepFault):
    name, what = "ddp-schedule-twice", "the schedule's factor is applied twice"
    kinds = ("schedule-twice",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        if "initial_lr" not in optimizer.param_groups[0]:
            return run()
        with self.set(optimizer, "lr", lambda group: group["lr"] * group["lr"] / group["initial_lr"]):
            return run()


class ScheduleLate(StepFault):
    name, what, subtle = "ddp-schedule-late", "the learning rate of the step before is used", True
    kinds = ("lr-of-last-step",)

    def case_begins(self) -> None:
        self._last: dict[tuple[int, int], float] = {}

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        def last(group: dict[str, Any]) -> float:
            key = (id(optimizer), id(group))
            before = self._last.get(key, group["lr"])
            self._last[key] = group["lr"]
            return before

        with self.set(optimizer, "lr", last):
            return run()


class ScheduleGroup0Only(StepFault):
    name, what, subtle = "ddp-schedule-group-0-only", "only the first group follows the schedule", True
    kinds = ("no-schedule",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        first = optimizer.param_groups[0]
        with self.set(optimizer, "lr", lambda group: group["lr"] if group is first else group.get("initial_lr", group["lr"])):
            return run()


class MomentsLostAtResume(Fault):
    name, what, subtle = "ddp-moments-lost-at-resume", "the optimizer's state is not loaded", True
    kinds = ("state-lost", "no-momentum", "step-counter")

    def apply(self) -> None:
        def loading(load: Any) -> Any:
            def loaded(optimizer: Any, *rest: Any, **named: Any) -> None:
                load(optimizer, *rest, **named)
                self.fire(any(any(v is not None for v in state.values()) for state in optimizer.state.values()))
                optimizer.state.clear()

            return loaded

        self.patch(Optimizer, "load_state_dict", loading)


class WeightsRounded(StepFault):
    name, what, subtle = "ddp-weights-rounded", "weights are rounded to bf16 after the update", True
    kinds = ("rounded-to-bf16",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        result = run()
        for one in parameters(optimizer):
            rounded = one.bfloat16().to(one.dtype)
            self.fire(not torch.equal(rounded, one))
            one.copy_(rounded)
        return result


class StepSkippedOnOneRank(StepFault):
    name, what, subtle = "fsdp2-step-skipped-on-one-rank", "rank 1 does not update its shards in the second step", True
    kinds = ("not-updated",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        if self.watch.step != 1 or self.watch.rank != 1:
            return run()
        with self.without_gradients(optimizer):
            return run()


class SecondMomentStale(StepFault):
    name, subtle = "fsdp2-adam-second-moment-stale", True
    what = "the second moment is not updated after the first step"
    kinds = ("second-moment-stale",)

    def step(self, optimizer: Optimizer, run: Callable[[], Any]) -> Any:
        kept = [(state, state["exp_avg_sq"].clone()) for state in optimizer.state.values() if "exp_avg_sq" in state]
        result = run()
        for state, value in kept:
            self.fire(not torch.equal(local(state["exp_avg_sq"]), local(value)))
            state["exp_avg_sq"].copy_(value)
        return result


FAULTS = (
    StepSkipped,
    StepTwice,
    Group0Lr,
    NoDecay,
    DecayOfGroup0,
    AdamwL2,
    AdamStepTwice,
    AdamNoBiasCorrection,
    MomentumLost,
    MomentumNesterov,
    TailNotUpdated,
    LastParameterNotUpdated,
    ScheduleTwice,
    ScheduleLate,
    ScheduleGroup0Only,
    MomentsLostAtResume,
    WeightsRounded,
    StepSkippedOnOneRank,
    SecondMomentStale,
    Fsdp2Group0Lr,
    LastBiasNotUpdated,
)
