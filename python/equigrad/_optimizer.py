"""What stands where DeepSpeed's users expect an optimizer: the engine updates, this shows with which rates."""

from __future__ import annotations

from typing import Any

import torch

from equigrad import _core
from equigrad.utils import z3_leaf_module


class ParameterGroup(dict):
    """A group as torch.optim shows it. "lr" is what the next update uses."""

    def __init__(self, core: _core.Engine, index: int, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._core = core
        self._index = index
        super().__setitem__("lr", core.get_lr()[index])

    def __getitem__(self, key: str) -> Any:
        return self._core.get_lr()[self._index] if key == "lr" else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  dict.get would not ask __getitem__

    def __setitem__(self, key: str, value: Any) -> None:
        raise _core.Error(
            f'[optimizer.param_groups] expected no assignment of "{key}", which the configuration sets. '
            'Give it under "optimizer" or in model_parameters, and rates that change under "scheduler".'
        )


class LossScaler:
    """What `optimizer.loss_scaler` and `loss_scale_config` show, as DeepSpeed's do. Nothing may be assigned."""

    scale_factor = 2.0

    def __init__(self, core: _core.Engine) -> None:
        self._core = core

    @property
    def cur_scale(self) -> float:
        """What a loss is multiplied by now; 1 where the precision needs no loss scale."""
        return self._core.loss_scale()

    loss_scale = cur_scale

    @property
    def cur_iter(self) -> int:
        """Boundaries so far, skipped ones included."""
        return self._core.counters().global_steps

    @property
    def scale_window(self) -> int:
        return self._core.config.loss_scale_window

    @property
    def min_scale(self) -> float:
        return self._core.config.min_loss_scale

    @property
    def dynamic_loss_scale(self) -> bool:
        return self._core.config.dynamic_loss_scale

    dynamic = dynamic_loss_scale


class Optimizer:
    """The engine's own optimizer, as `engine.optimizer`."""

    def __init__(self, core: _core.Engine, groups: list[dict[str, Any]], model: torch.nn.Module) -> None:
        self._core: _core.Engine | None = core
        leaves = [module for module in model.modules() if z3_leaf_module(module)]
        self.leaf_parameters = {leaf: list(leaf.parameters()) for leaf in leaves}
        self.param_groups = [ParameterGroup(core, index, values) for index, values in enumerate(groups)]

    @property
    def loss_scale(self) -> float:
        """What engine.scale() multiplies by now; 1 where the precision needs no loss scale."""
        return self._living("loss_scale").loss_scale()

    cur_scale = loss_scale

    @property
    def loss_scaler(self) -> LossScaler:
        return LossScaler(self._living("loss_scaler"))

    loss_scale_config = loss_scaler

    @property
    def dynamic_loss_scale(self) -> bool:
        return self._living("dynamic_loss_scale").config.dynamic_loss_scale

    def needs_scaler(self) -> bool:
        """Whether a loss must go through engine.scale() or engine.backward()."""
        return self._living("needs_scaler").config.scales_loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Empties the accumulation window."""
        self._living("zero_grad").zero_grad()

    def step(self, closure=None) -> None:
        raise _core.Error(
            "[optimizer.step] expected engine.step(), which reduces, clips and updates, got optimizer.step(). Call "
            "engine.step() once per micro-batch."
        )

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        """As engine.backward(loss), without the division by the accumulation steps in what it returns."""
        self._living("backward").backward(loss, retain_graph, True)

    def destroy(self) -> None:
        self._core = None
        self.param_groups = []

    def _living(self, where: str) -> _core.Engine:
        if self._core is None:
            raise _core.Error(f"[optimizer.{where}] expected an engine, got one that was destroyed. Make a new one.")
        return self._core
