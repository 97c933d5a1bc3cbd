"""What adapters of torch's two FSDPs share: which modules are wrapped, types, and torch.distributed.checkpoint."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from . import models
from .loop import DTYPES, Named
from .protocol import Absent, Case
from .torch_engine import TorchAdapter, TorchEngine

SHARDED = frozenset({"no_sync", "save_after", "set_to_none"})
"""Options of both."""
_LOW = ("bf16", "fp16")


def computes_low(case: Case) -> bool:
    """Whether fp32 shards are kept and computed with in a lower type; with 16-bit accumulation asked for, the shards are 16-bit."""
    precision = case.precision
    return precision.model in _LOW and precision.accumulation in ("", "fp32")


class ShardedAdapter(TorchAdapter):
    """Of fully_shard and FullyShardedDataParallel."""

    def check(self, case: Case) -> None:
        precision, scale = case.precision, case.precision.loss_scale
        if precision.accumulation not in ("", precision.model, "fp32" if precision.model in _LOW else precision.model):
            raise Absent(f"gradients are accumulated in fp32 or in the parameters' type, {precision.model}")
        if precision.accumulation == "fp32" and case.options.get("no_sync") and precision.communication != "fp32":
            raise Absent("without communication gradients are accumulated in the type they are sent in")
        if scale is not None and case.style == "loss_backward":
            raise Absent("GradScaler takes no loss.backward() without its scale()")
        if scale is not None and scale.dynamic and scale.hysteresis != 1:
            raise Absent("GradScaler has no hysteresis")
        known = case.model.name in models.BUILT_IN
        if case.world > 1 and known and models.describe(case.model.name, case.model.arguments).conditional:
            raise Absent("every rank must run the same modules: their forward and backward communicate")


def shards_of(module: nn.Module) -> list[nn.Module]:
    """The modules to be wrapped by themselves: children, and members of lists, that share no parameter with another one."""
    children: list[nn.Module] = []
    for child in module.children():
        children += list(child) if isinstance(child, nn.ModuleList) else [child]
    held = [{id(one) for one in child.parameters()} for child in children]
    return [
        child
        for index, child in enumerate(children)
        if held[index] and not any(held[index] & other for at, other in enumerate(held) if at != index)
    ]


class ShardedEngine(TorchEngine):
    """Parameters and gradients are in shards: they are gathered to be read, and saved by torch.distributed.checkpoint."""

    def values(self) -> tuple[Named, Named]:
        whole = self.whole()
        if not computes_low(self._case):
            return whole, {}
        low = DTYPES[self._case.precision.model]
        trained = {name for name, one in self._named.items() if one.requires_grad}
        return {name: one.to(low) for name, one in whole.items()}, {name: whole[name] for name in trained}

    def whole(self) -> Named:
        """Every parameter, gathered, in the type of its shards."""
        raise NotImplementedError

    def save(self, folder: str) -> None:
        """By torch.distributed.checkpoint; what only rank 0 need know, the schedule and the loss scale, beside it."""
        model, optimizer = get_state_dict(self.module, self._optimizer)
        save({"model": model, "optimizer": optimizer}, checkpoint_id=os.path.join(folder, "shards"))
        if distributed.get_rank() == 0:
            torch.save({name: part.state_dict() for name, part in self._others().items()}, os.path.join(folder, "others.pt"))
        distributed.barrier()

    def load(self, folder: str) -> None:
        model, optimizer = get_state_dict(self.module, self._optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        missing = DefaultLoadPlanner(allow_partial_load=True)  # states of parameters that were not used before the save
        load(state, checkpoint_id=os.path.join(folder, "shards"), planner=missing)
        set_state_dict(self.module, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        others = torch.load(os.path.join(folder, "others.pt"), weights_only=True)
        for name, part in self._others().items():
            part.load_state_dict(others[name])

    def _others(self) -> dict[str, Any]:
        return {name: part for name, part in self._parts().items() if name != "optimizer"}
