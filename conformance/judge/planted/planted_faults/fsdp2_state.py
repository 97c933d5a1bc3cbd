"""Faults of what FSDP2 accumulates, and of its optimizer's state. They patch private names of torch, of the pinned version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.checkpoint import state_dict as checkpoints
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.distributed.tensor import DTensor

from .base import Fault
from .optimizers import parameters

Tensor = torch.Tensor


class Lost(Fault):
    """Of gradients before they are reduced."""

    def apply(self) -> None:
        self._params: list[Any] = []

        def making(init: Any) -> Any:
            def made(one: Any, *rest: Any, **named: Any) -> None:
                init(one, *rest, **named)
                self._params.append(one)

            return made

        self.patch(_fsdp_param.FSDPParam, "__init__", making)

    def case_begins(self) -> None:
        self._params = []


class ModuleNotReduced(Lost):
    name, what = "fsdp2-module-not-reduced", "a module's backward hook is lost: its parameters have no gradient"
    kinds = ("no-gradient",)

    def apply(self) -> None:
        super().apply()

        def reducing(post: Any) -> Any:
            def post_backward(group: Any, *rest: Any) -> None:
                if group.fsdp_params and group.fsdp_params[0] is self._params[0]:
                    for one in group.fsdp_params:
                        if hasattr(one, "_unsharded_param") and one._unsharded_param.grad is not None:
                            one._unsharded_param.grad = None
                            self.fire()
                        one.unsharded_accumulated_grad = None
                post(group, *rest)

            return post_backward

        self.patch(_fsdp_param_group.FSDPParamGroup, "post_backward", reducing)


class Overwrites(Fault):
    name, what = "fsdp2-overwrites", "a reduced gradient replaces the one that was accumulated"
    kinds = ("only-last-micro-batch", "micro-batch-missing")

    def apply(self) -> None:
        def reducing(reduce: Any) -> Any:
            def reduced(fsdp_params: Any, *rest: Any, **named: Any) -> Any:
                for one in fsdp_params:
                    self.fire(one.sharded_param.grad is not None)
                    one.sharded_param.grad = None
                return reduce(fsdp_params, *rest, **named)

            return reduced

        self.patch(_fsdp_param_group, "foreach_reduce", reducing)


class NeverSyncs(Fault):
    name, what = "fsdp2-never-syncs", "set_requires_gradient_sync(True) does nothing after the first False"
    kinds = ("no-gradient", "not-updated")

    def apply(self) -> None:
        def setting(right: Any) -> Any:
            def set_sync(module: Any, wanted: bool, *rest: Any, **named: Any) -> None:
                module._planted = getattr(module, "_planted", False) or not wanted
                self.fire(module._planted and wanted)
                right(module, wanted and not module._planted, *rest, **named)

            return set_sync

        self.patch(FSDPModule, "set_requires_gradient_sync", setting)


class AccumulatedLost(Lost):
    name, what = "fsdp2-accumulated-lost", "what was accumulated without communication is lost at the next reduction"
    kinds = ("only-last-micro-batch", "micro-batch-missing")

    def before_backward(self) -> None:
        if not (self.watch.is_last and self.watch.micro > 0):
            return
        for one in self._params:
            whole = getattr(one, "_unsharded_param", None)
            if whole is not None and whole.grad is not None:
                whole.grad = None
                self.fire()
            if one.unsharded_accumulated_grad is not None:
                one.unsharded_accumulated_grad = None
                self.fire()


class ThirdMicroBatchLost(Lost):
    name, what, subtle = "fsdp2-third-micro-batch-lost", "the third micro-batch is lost", True
    kinds = ("micro-batch-missing", "only-last-micro-batch")

    def apply(self) -> None:
        super().apply()

        def unsharding(init: Any) -> Any:
            def unsharded(one: Any) -> None:
                init(one)
                if not getattr(one, "_planted", False) and one._unsharded_param.requires_grad:
                    one._planted = True
                    one._unsharded_param.register_hook(self._seen)

            return unsharded

        self.patch(_fsdp_param.FSDPParam, "init_unsharded_param", unsharding)

    def _seen(self, gradient: Tensor) -> Tensor:
        if self.watch.micro != 2:
            return gradient
        self.fire(bool(gradient.any()))
        return gradient * 0


class NotZeroed(Fault):
    name, what = "fsdp2-not-zeroed", "zero_grad() does nothing"
    kinds = ("not-zeroed",)

    def zero_grad(self, optimizer: Any, run: Callable[[], None], *_: Any, **__: Any) -> None:
        self.fire()


class StateShardsSwapped(Fault):
    name, subtle = "fsdp2-state-shards-swapped-at-resume", True
    what = "the optimizer's state goes to the wrong rank when it is loaded"
    kinds = ("state-shards-swapped",)

    def apply(self) -> None:
        def setting(right: Any) -> Any:
            def set_state(model: Any, optimizers: Any, *rest: Any, **named: Any) -> Any:
                result = right(model, optimizers, *rest, **named)
                for state in optimizers.state.values():
                    for value in state.values():
                        if isinstance(value, DTensor) and value.dim() and value.shape[0] >= self.watch.world:
                            self._swap(value.to_local(), -(-value.shape[0] // self.watch.world))
                return result

            return set_state

        self.patch(checkpoints, "set_state_dict", setting)

    def _swap(self, local: Tensor, rows: int) -> None:
        padded = torch.cat([local, local.new_zeros(rows - local.shape[0], *local.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.watch.world)]
        distributed.all_gather(parts, padded)
        theirs = parts[(self.watch.rank + 1) % self.watch.world][: local.shape[0]]
        self.fire(not torch.equal(theirs, local))
        local.copy_(theirs)


class OverflowOnOneRank(Fault):
    name, what, subtle = "fsdp2-overflow-on-one-rank", "only the rank whose shard is infinite skips the step", True
    kinds = ("applied-in-spite-of-overflow",)

    def apply(self) -> None:
        dispatcher: Any = DTensor._op_dispatcher
        operation = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
        self._handlers = dispatcher._custom_op_handlers
        self._right = self._handlers[operation]

        def handler(call: Any, given: Any, named: Any) -> None:
            info = dispatcher.unwrap_to_op_info(call, given, named)
            local = torch.utils._pytree.tree_unflatten(list(info.local_args), info.args_tree_spec)
            call(*local, **info.local_kwargs)
            flag = given[1].clone()
            distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
            self.fire(bool(flag != given[1]))

        self._handlers[operation] = handler

    def remove(self) -> None:
        self._handlers[torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default] = self._right


class OffloadCopyLate(Fault):
    name, what, subtle = "fsdp2-offload-copy-late", "offloaded gradients arrive a step late", True
    kinds = ("stale", "zeros")

    def apply(self) -> None:
        self._offloads = False

        def making(init: Any) -> Any:
            def made(one: Any, *rest: Any, **named: Any) -> None:
                init(one, *rest, **named)
                self._offloads = self._offloads or one.offload_to_cpu

            return made

        self.patch(_fsdp_param.FSDPParam, "__init__", making)

    def case_begins(self) -> None:
        self._offloads = False
        self._last: dict[int, Tensor] = {}

    def after_backward(self) -> None:
        if not (self._offloads and self.watch.is_last):
            return
        for optimizer in self.watch.optimizers:
            for one in parameters(optimizer):
                if one.grad is not None:
                    local = one.grad.to_local()  # type: ignore[attr-defined]
                    kept = local.clone()
                    local.copy_(self._last.get(id(one), local * 0))
                    self.fire(not torch.equal(local, kept))
                    self._last[id(one)] = kept


FAULTS = (
    ModuleNotReduced,
    Overwrites,
    NeverSyncs,
    AccumulatedLost,
    ThirdMicroBatchLost,
    NotZeroed,
    StateShardsSwapped,
    OverflowOnOneRank,
    OffloadCopyLate,
)
