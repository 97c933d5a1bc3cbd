"""Faults of what DDP accumulates over micro-batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .base import Bucket, BucketFault, Fault, summed

Tensor = torch.Tensor


class _Accumulation(Fault):
    """Sees every engine's parameters, and each gradient before it is accumulated."""

    def apply(self) -> None:
        self._parameters: list[torch.nn.Parameter] = []

        def making(init: Any) -> Any:
            def made(engine: Any, module: Any, *rest: Any, **named: Any) -> None:
                init(engine, module, *rest, **named)
                for parameter in module.parameters():
                    if parameter.requires_grad:
                        self._parameters.append(parameter)
                        parameter.register_hook(lambda gradient, of=parameter: self._seen(of, gradient))

            return made

        self.patch(DistributedDataParallel, "__init__", making)

    def case_begins(self) -> None:
        self._parameters = []

    def with_gradient(self) -> Iterator[tuple[torch.nn.Parameter, Tensor]]:
        """Parameters, and what was accumulated."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                yield parameter, parameter.grad

    def _seen(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        wrong = gradient * self.factor(parameter)
        self.fire(not torch.equal(wrong, gradient))
        return wrong

    def factor(self, parameter: Tensor) -> float:
        """By which what the backward at hand adds is multiplied."""
        return 1.0

    def overwrite(self, parameter: torch.nn.Parameter, values: Tensor) -> None:
        """Changes what was accumulated."""
        assert parameter.grad is not None
        self.fire(not torch.equal(parameter.grad, values))
        parameter.grad.copy_(values)


class LastMicroBatch(_Accumulation):
    name, what = "ddp-last-micro-batch", "each backward overwrites what was accumulated"
    kinds = ("only-last-micro-batch", "micro-batch-missing")

    def before_backward(self) -> None:
        for parameter, gradient in self.with_gradient():
            if self.watch.micro > 0 and self._mine(parameter):
                self.overwrite(parameter, gradient * 0)

    def _mine(self, parameter: Tensor) -> bool:
        return True


class BiasOverwritten(LastMicroBatch):
    name, subtle = "ddp-bias-overwritten", True
    what = "only one-dimensional parameters are overwritten by the last micro-batch"

    def _mine(self, parameter: Tensor) -> bool:
        return parameter.dim() <= 1


class FirstMicroBatch(_Accumulation):
    name, what = "ddp-first-micro-batch", "only the first micro-batch's gradients are accumulated"
    kinds = ("only-first-micro-batch", "micro-batch-missing")

    def factor(self, parameter: Tensor) -> float:
        return 0.0 if self.watch.micro > 0 else 1.0


class MiddleDropped(_Accumulation):
    name, subtle = "ddp-middle-dropped", True
    what = "micro-batches between the first and the last are lost (three or more)"
    kinds = ("middle-micro-batches-missing", "micro-batch-missing")

    def factor(self, parameter: Tensor) -> float:
        return 0.0 if 0 < self.watch.micro < self.watch.micros - 1 else 1.0


class SecondDroppedOnOneRank(_Accumulation):
    name, what, subtle = "ddp-second-dropped-on-one-rank", "the second micro-batch of rank 1 is lost", True
    kinds = ("micro-batch-missing-on-a-rank",)

    def factor(self, parameter: Tensor) -> float:
        return 0.0 if self.watch.micro == 1 and self.watch.rank == 1 else 1.0


class MicroBatchesDividedTwice(_Accumulation):
    name, what = "ddp-micro-batches-divided-twice", "divided by the number of micro-batches again"
    kinds = ("divided-by-micro-batches-twice",)

    def factor(self, parameter: Tensor) -> float:
        return 1.0 / self.watch.micros


class AccumulatedInBf16(_Accumulation):
    name, subtle = "ddp-accumulated-in-bf16", True
    what = "what is accumulated is rounded to bf16 after every micro-batch"
    kinds = ("rounded-to-bf16",)

    def after_backward(self) -> None:
        for parameter, gradient in self.with_gradient():
            self.overwrite(parameter, gradient.bfloat16().to(gradient.dtype))


class NotZeroed(Fault):
    name, what = "ddp-not-zeroed", "zero_grad() does nothing"
    kinds = ("not-zeroed",)

    def zero_grad(self, optimizer: Any, run: Callable[[], None], set_to_none: bool = True, *_: Any, **__: Any) -> None:
        if self._zeroes(set_to_none):
            return run()
        self.fire()
        return None

    def _zeroes(self, set_to_none: bool) -> bool:
        return False


class NotZeroedInPlace(NotZeroed):
    name, what, subtle = "ddp-not-zeroed-in-place", "zero_grad(set_to_none=False) does nothing", True

    def _zeroes(self, set_to_none: bool) -> bool:
        return set_to_none


class UnusedNotZeroed(_Accumulation):
    name, subtle = "ddp-unused-not-zeroed", True
    what = "a parameter without gradient in this step keeps that of the step before"
    kinds = ("stale",)

    def case_begins(self) -> None:
        super().case_begins()
        self._last: dict[int, Tensor] = {}

    def zero_grad(self, optimizer: Any, run: Callable[[], None], *_: Any, **__: Any) -> None:
        self._last = {id(parameter): gradient.clone() for parameter, gradient in self.with_gradient()}
        run()

    def after_backward(self) -> None:
        if not self.watch.is_last:
            return
        for parameter in self._parameters:
            last = self._last.get(id(parameter))
            unused = parameter.grad is None or not bool(parameter.grad.any())
            if unused and last is not None and bool(last.any()):
                self.fire()
                parameter.grad = last.clone()


class NeverSyncs(Fault):
    name, what = "ddp-never-syncs", "after the first no_sync() nothing is reduced any more"
    kinds = ("not-reduced",)

    def apply(self) -> None:
        def staying(_: Any) -> Any:
            @contextlib.contextmanager
            def no_sync(engine: Any) -> Iterator[None]:
                engine.require_backward_grad_sync = False
                self.fire()
                yield

            return no_sync

        self.patch(DistributedDataParallel, "no_sync", staying)


class EarlySync(BucketFault):
    name, subtle = "ddp-early-sync", True
    what = "what is reduced is what was there before the last micro-batch, whose part stays local"
    kinds = ("last-micro-batch-not-reduced",)

    def apply(self) -> None:
        super().apply()
        self._before_last: dict[int, Tensor] = {}

    def before_backward(self) -> None:
        self._before_last = {}
        if not (self.watch.is_last and self.watch.micro > 0 and self.watch.option("no_sync", False)):
            return
        for optimizer in self.watch.optimizers:
            for group in optimizer.param_groups:
                for one in group["params"]:
                    if one.grad is not None:
                        self._before_last[id(one)] = one.grad.clone()

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        for parameter, where in bucket.slices():
            early = self._before_last.get(id(parameter))
            if early is not None:
                early = early.flatten().to(local.dtype)
                average[where] = summed(early) / self.watch.world + (local[where] - early)
        return average


class FirstCountedTwice(_Accumulation):
    name, what, subtle = "ddp-backward-counted-twice", "the first micro-batch of a step is accumulated twice", False
    kinds = ("micro-batch-twice",)

    def factor(self, parameter: Tensor) -> float:
        return 2.0 if self.watch.micro == 0 and self.watch.micros > 1 else 1.0


FAULTS = (
    LastMicroBatch,
    FirstMicroBatch,
    MiddleDropped,
    SecondDroppedOnOneRank,
    MicroBatchesDividedTwice,
    BiasOverwritten,
    AccumulatedInBf16,
    NotZeroed,
    NotZeroedInPlace,
    UnusedNotZeroed,
    NeverSyncs,
    EarlySync,
    FirstCountedTwice,
)
