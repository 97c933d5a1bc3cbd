"""torch.distributed.fsdp.fully_shard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..loop import DTYPES, Engine, Named, Place
from ..protocol import Absent, Case
from ..sharded_engine import SHARDED, ShardedAdapter, ShardedEngine, computes_low, shards_of
from ..torch_engine import in_type_of

try:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
except ImportError:  # before torch 2.6
    from torch.distributed._composable.fsdp import (  # type: ignore[attr-defined]
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        fully_shard,
    )


class _Fsdp2Engine(ShardedEngine):
    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        if self._case.options.get("no_sync"):
            self.module.set_requires_gradient_sync(place.ends_step)
        yield

    def gradients(self) -> Named:
        return {name: _whole(one) for name, one in super().gradients().items()}

    def whole(self) -> Named:
        return {name: _whole(one.detach()) for name, one in self._named.items()}

    def _clip(self) -> float | None:
        clip = self._case.clip
        if clip is None:
            return None
        norm = nn.utils.clip_grad_norm_(self._named.values(), clip.max_norm, float(clip.norm_type))
        return float(_whole(norm))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor, gathered."""
    gather: Any = getattr(tensor, "full_tensor", None)
    whole: torch.Tensor = gather() if gather is not None else tensor
    return whole


class _Fsdp2(ShardedAdapter):
    name = "fsdp2"
    options = SHARDED | {"offload", "reshard_after_forward"}

    def check(self, case: Case) -> None:
        super().check(case)
        if case.stage not in (2, 3):
            raise Absent(
                "gradients and optimizer states are sharded always: stage 2, or 3 where parameters are given up after forward"
            )
        if case.options.get("offload", "optimizer") != "optimizer":
            raise Absent("the offload policy is that of optimizer, gradients and parameters together")

    def make(self, case: Case, module: nn.Module) -> Engine:
        precision, low = case.precision, computes_low(case)
        policy = MixedPrecisionPolicy(
            param_dtype=DTYPES[precision.model] if low else None,
            reduce_dtype=DTYPES[precision.communication] if precision.communication else None,
        )
        given: dict[str, Any] = {
            "mp_policy": policy,
            "reshard_after_forward": bool(case.options.get("reshard_after_forward", case.stage == 3)),
        }
        if "offload" in case.options:
            given["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
        if not low:
            module = in_type_of(case, module)
        for part in shards_of(module):
            fully_shard(part, **given)
        fully_shard(module, **given)
        return _Fsdp2Engine(case, module, dict(module.named_parameters()))


def adapter() -> _Fsdp2:
    """Of this file."""
    return _Fsdp2()
