"""torch.nn.parallel.DistributedDataParallel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from .. import models
from ..loop import Adapter, Engine, Place
from ..protocol import Absent, Case
from ..torch_engine import TorchAdapter, TorchEngine, in_type_of

_HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}


class _DdpEngine(TorchEngine):
    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        quiet = bool(self._case.options.get("no_sync")) and not place.ends_step
        with self.module.no_sync() if quiet else contextlib.nullcontext():
            yield


class _Ddp(TorchAdapter):
    name = "ddp"
    options = frozenset(
        {"no_sync", "save_after", "set_to_none", "bucket_bytes", "static_graph", "find_unused", "gradient_as_bucket_view"}
    )

    def check(self, case: Case) -> None:
        super().check(case)
        if case.stage:
            raise Absent("nothing is sharded")
        if case.precision.communication not in ("", case.precision.model, *_HOOKS):
            raise Absent(f"no communication hook reduces in {case.precision.communication}")

    def make(self, case: Case, module: nn.Module) -> Engine:
        module = in_type_of(case, module)
        given = case.options
        wrapped = DistributedDataParallel(
            module,
            bucket_cap_mb=int(given.get("bucket_bytes", 25 << 20)) / (1 << 20),
            find_unused_parameters=bool(given.get("find_unused", leaves_unused(case))),
            static_graph=bool(given.get("static_graph", False)),
            gradient_as_bucket_view=bool(given.get("gradient_as_bucket_view", False)),
        )
        communication = case.precision.communication
        if communication not in ("", case.precision.model):
            wrapped.register_comm_hook(None, _HOOKS[communication])
        return _DdpEngine(case, wrapped, dict(module.named_parameters()))


def leaves_unused(case: Case) -> bool:
    """Whether a forward of this model may leave parameters out, so far as this is known."""
    if case.model.name not in models.BUILT_IN:
        return False
    described = models.describe(case.model.name, case.model.arguments)
    return bool(described.unused or described.conditional)


def adapter() -> Adapter:
    """Of this file."""
    return _Ddp()
