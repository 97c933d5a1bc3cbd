"""Plain PyTorch: one process; or several that add their gradients by all_reduce, by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import distributed, nn

from ..loop import Adapter, Engine, Place
from ..protocol import Absent, Case
from ..torch_engine import TorchAdapter, TorchEngine, in_type_of


class _PlainEngine(TorchEngine):
    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        yield
        if place.ends_step and distributed.get_world_size() > 1:
            for parameter in self._named.values():
                if parameter.requires_grad:
                    self._average(parameter)

    @staticmethod
    def _average(parameter: nn.Parameter) -> None:
        """A parameter that some ranks did not use counts as zeros there; one that no rank used stays without gradient."""
        used = torch.tensor(float(parameter.grad is not None), device=parameter.device)
        distributed.all_reduce(used)
        if used.item() == 0:
            return
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        distributed.all_reduce(parameter.grad)
        parameter.grad.div_(distributed.get_world_size())


class _Plain(TorchAdapter):
    name = "plain"
    options = frozenset({"no_sync", "save_after", "set_to_none"})

    def check(self, case: Case) -> None:
        super().check(case)
        if case.stage:
            raise Absent("nothing is sharded")
        if case.precision.communication not in ("", case.precision.model):
            raise Absent("gradients are added in their own type")
        if case.options.get("no_sync") is False:
            raise Absent("gradients are added once per step")

    def make(self, case: Case, module: nn.Module) -> Engine:
        module = in_type_of(case, module)
        return _PlainEngine(case, module, dict(module.named_parameters()))


def adapter() -> Adapter:
    """Of this file."""
    return _Plain()
