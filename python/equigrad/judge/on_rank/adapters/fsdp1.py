"""torch.distributed.fsdp.FullyShardedDataParallel."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from .. import device
from ..loop import DTYPES, Engine, Named, Place
from ..protocol import Absent, Case
from ..sharded_engine import SHARDED, ShardedAdapter, ShardedEngine, computes_low, shards_of
from ..torch_engine import in_type_of

_STRATEGIES = {0: ShardingStrategy.NO_SHARD, 2: ShardingStrategy.SHARD_GRAD_OP, 3: ShardingStrategy.FULL_SHARD}
_WRAPPED = "_fsdp_wrapped_module."


class _Fsdp1Engine(ShardedEngine):
    def __init__(self, case: Case, module: Any, named: dict[str, nn.Parameter]) -> None:
        super().__init__(case, module, named)
        scale = case.precision.loss_scale
        if scale is not None:
            self._scaler = ShardedGradScaler(self.device.type, init_scale=scale.value, growth_interval=scale.window)

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        quiet = bool(self._case.options.get("no_sync")) and not place.ends_step
        with self.module.no_sync() if quiet else contextlib.nullcontext():
            yield

    def gradients(self) -> Named:
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        with FullyShardedDataParallel.summon_full_params(self.module, with_grads=True):
            read = {_plain_name(name): one.grad for name, one in self.module.named_parameters()}
            return {name: one.clone() for name, one in read.items() if one is not None}

    def whole(self) -> Named:
        with FullyShardedDataParallel.summon_full_params(self.module, writeback=False):
            return {_plain_name(name): one.detach().clone() for name, one in self.module.named_parameters()}

    def _clip(self) -> float | None:
        clip = self._case.clip
        return None if clip is None else float(self.module.clip_grad_norm_(clip.max_norm, float(clip.norm_type)))


def _plain_name(name: str) -> str:
    return name.replace(_WRAPPED, "")


class _Fsdp1(ShardedAdapter):
    name = "fsdp1"
    options = SHARDED

    def check(self, case: Case) -> None:
        super().check(case)
        if case.stage not in _STRATEGIES:
            raise Absent("there is no strategy that shards optimizer states alone")

    def make(self, case: Case, module: nn.Module) -> Engine:
        precision, low = case.precision, computes_low(case)
        if not low:
            module = in_type_of(case, module)
        types = MixedPrecision(
            param_dtype=DTYPES[precision.model] if low else None,
            reduce_dtype=DTYPES[precision.communication] if precision.communication else None,
        )
        given: dict[str, Any] = {
            "sharding_strategy": _STRATEGIES[case.stage],
            "mixed_precision": types,
            "use_orig_params": True,  # gradients and groups of single parameters
            "device_id": device.here(),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of NO_SHARD
            for part in shards_of(module):
                _replace(module, part, FullyShardedDataParallel(part, **given))
            wrapped = FullyShardedDataParallel(module, **given)
        return _Fsdp1Engine(case, wrapped, {_plain_name(name): one for name, one in wrapped.named_parameters()})


def _replace(module: nn.Module, part: nn.Module, wrapped: nn.Module) -> None:
    for parent in module.modules():
        for name, child in parent.named_children():
            if child is part:
                setattr(parent, name, wrapped)
                return


def adapter() -> _Fsdp1:
    """Of this file."""
    return _Fsdp1()
