"""No faults: other ways to the same numbers, up to their rounding. The judge must stay green."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.nn.parallel import DistributedDataParallel

from .base import Bucket, BucketFault, Fault, gathered, summed
from .clipping import ClipFault
from .fsdp2_collectives import ScatterFault
from .optimizers import StepFault

Tensor = torch.Tensor


class RightHook(BucketFault):
    name, what = "ddp-right-hook", "the average by a hook of its own: divided after the sum"

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return summed(local) / self.watch.world


class OtherOrder(BucketFault):
    name, what = "ddp-other-order", "ranks are gathered and added in the opposite order"

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        total = torch.zeros_like(local)
        for one in reversed(gathered(local)):
            total += one / self.watch.world
        return total.to(average.dtype)


class NoSyncSyncs(Fault):
    name, what = "ddp-no-sync-syncs", "no_sync() reduces after every micro-batch: the same sum in another order"

    def apply(self) -> None:
        def syncing(_: Any) -> Any:
            @contextlib.contextmanager
            def no_sync(engine: Any) -> Iterator[None]:
                self.fire()
                yield

            return no_sync

        self.patch(DistributedDataParallel, "no_sync", syncing)


class ReducedInFp64(BucketFault):
    name, what = "ddp-reduced-in-fp64", "buckets are added in fp64 and rounded once"

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return (summed(local.double()) / self.watch.world).to(average.dtype)


class Fsdp2OtherOrder(ScatterFault):
    name, what = "fsdp2-other-order", "ranks' parts are gathered and added in the opposite order"

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        total = torch.zeros_like(average)
        for one in reversed(parts):
            total += one
        return total


class Fsdp2NoSyncSyncs(Fault):
    name, what = "fsdp2-no-sync-syncs", "set_requires_gradient_sync(False) is not heeded"

    def apply(self) -> None:
        def setting(right: Any) -> Any:
            def set_sync(module: Any, wanted: bool, *rest: Any, **named: Any) -> None:
                self.fire(not wanted)
                right(module, True, *rest, **named)

            return set_sync

        self.patch(FSDPModule, "set_requires_gradient_sync", setting)


class GathersTwice(Fault):
    name, what = "fsdp2-gathers-twice", "weights are gathered twice"

    def apply(self) -> None:
        def gathering(gather: Any) -> Any:
            def twice(*rest: Any, **named: Any) -> Any:
                first = gather(*rest, **named)
                if first is not None and first.all_gather_work is not None:
                    first.all_gather_work.wait()
                self.fire()
                return gather(*rest, **named)

            return twice

        self.patch(_fsdp_param_group, "foreach_all_gather", gathering)


class ClipPerTensor(ClipFault):
    name, what = "ddp-clip-per-tensor", "the same clipping, tensor by tensor"


class SgdForeach(StepFault):
    name, what = "ddp-sgd-foreach", "the same update by the other implementation of torch"

    def step(self, optimizer: torch.optim.Optimizer, run: Callable[[], Any]) -> Any:
        with self.set(optimizer, "foreach", lambda group: True):
            return run()


FAULTS = (
    RightHook,
    OtherOrder,
    NoSyncSyncs,
    ReducedInFp64,
    Fsdp2OtherOrder,
    Fsdp2NoSyncSyncs,
    GathersTwice,
    ClipPerTensor,
    SgdForeach,
)
