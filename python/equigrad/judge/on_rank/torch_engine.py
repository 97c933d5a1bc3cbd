"""What adapters of torch's own wrappers share: an optimizer of torch.optim, its schedule, clipping, and GradScaler."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed, nn

from . import device
from .loop import DTYPES, Adapter, Engine, Named, Stepped
from .protocol import Absent, Case

_REFUSALS = ("Attempting to unscale FP16 gradients", "Expected to have finished reduction in the prior iteration")
"""How begins what torch raises for a use that it does not have, where its text does not say "support"."""


class TorchAdapter(Adapter):
    """Of a wrapper that comes with torch."""

    def version(self) -> str:
        return torch.__version__

    def start(self) -> None:
        start_group()

    def check(self, case: Case) -> None:
        check_torch_case(case)

    def refuses(self, error: Exception) -> bool:
        return super().refuses(error) or str(error).startswith(_REFUSALS)


def start_group() -> None:
    """The process group of torchrun's environment, once per process."""
    if not distributed.is_initialized():
        distributed.init_process_group(device.backend())


def check_torch_case(case: Case) -> None:
    """Raises Absent for what torch.optim and GradScaler have not."""
    precision, scale = case.precision, case.precision.loss_scale
    if precision.accumulation not in ("", precision.model):
        raise Absent(f"gradients are accumulated in the parameters' type, {precision.model}")
    if scale is not None and case.style == "loss_backward":
        raise Absent("GradScaler takes no loss.backward() without its scale()")
    if scale is not None and scale.dynamic and scale.hysteresis != 1:
        raise Absent("GradScaler has no hysteresis")


def torch_optimizer(case: Case, named: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    """The case's optimizer over these parameters, in the case's groups."""
    wanted = case.optimizer
    groups: list[dict[str, Any]] = [
        {
            "params": [named[name] for name in group.parameters if name in named],
            "lr": group.lr,
            "weight_decay": group.weight_decay,
        }
        for group in case.groups
    ]
    everything = groups or [{"params": [one for one in named.values() if one.requires_grad]}]
    if wanted.name == "adamw":
        return torch.optim.AdamW(everything, wanted.lr, wanted.betas, wanted.eps, wanted.weight_decay)
    return torch.optim.SGD(everything, wanted.lr, wanted.momentum, weight_decay=wanted.weight_decay)


def schedule_of(case: Case, optimizer: torch.optim.Optimizer, calls: int = 1) -> torch.optim.lr_scheduler.LambdaLR | None:
    """The case's schedule, for a caller who calls its step() that many times per applied step."""
    factors = case.schedule
    if not factors:
        return None
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factors[min(step // calls, len(factors) - 1)])


class TorchEngine(Engine):
    """Gradients in `.grad` of whole parameters that every rank has, stepped by torch.optim."""

    def __init__(self, case: Case, module: Any, named: dict[str, nn.Parameter]) -> None:
        """module: what is called; named: the parameters by the plain model's names."""
        super().__init__(module)
        self._case = case
        self._named = named
        self._optimizer = torch_optimizer(case, named)
        self._schedule = schedule_of(case, self._optimizer)
        scale = case.precision.loss_scale
        self._scaler = (
            torch.amp.GradScaler(  # type: ignore[attr-defined]
                self.device.type, init_scale=scale.value, growth_interval=scale.window
            )
            if scale
            else None
        )
        self._stepped = False
        self._optimizer.register_step_post_hook(self._note_step)

    def scale(self, value: torch.Tensor) -> torch.Tensor:
        return value if self._scaler is None else self._scaler.scale(value)

    def gradients(self) -> Named:
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        return {name: one.grad for name, one in self._named.items() if one.grad is not None}

    def step(self) -> Stepped:
        norm = self._clip()
        lrs = tuple(float(group["lr"]) for group in self._optimizer.param_groups)
        scale, self._stepped = None, False
        if self._scaler is None:
            self._optimizer.step()
        else:
            scale = float(self._scaler.get_scale())
            self._scaler.step(self._optimizer)
            told = self._case.precision.loss_scale
            self._scaler.update(None if told is None or told.dynamic else scale)
        if self._schedule is not None and self._stepped:
            self._schedule.step()
        self._optimizer.zero_grad(set_to_none=bool(self._case.options.get("set_to_none", True)))
        return Stepped(self._stepped, norm, lrs, scale)

    def values(self) -> tuple[Named, Named]:
        return {name: one.detach() for name, one in self._named.items()}, {}

    def save(self, folder: str) -> None:
        if not distributed.is_initialized() or distributed.get_rank() == 0:
            parts = {name: part.state_dict() for name, part in self._parts().items()}
            torch.save({"values": self.values()[0], **parts}, os.path.join(folder, "state.pt"))
        if distributed.is_initialized():
            distributed.barrier()

    def load(self, folder: str) -> None:
        state = torch.load(os.path.join(folder, "state.pt"), map_location=self.device, weights_only=True)
        with torch.no_grad():
            for name, one in self._named.items():
                one.copy_(state["values"][name])
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def close(self) -> None:
        self.module = None
        self._named = {}

    def _clip(self) -> float | None:
        clip = self._case.clip
        if clip is None:
            return None
        return float(nn.utils.clip_grad_norm_(self._named.values(), clip.max_norm, float(clip.norm_type)))

    def _note_step(self, *_: Any) -> None:
        self._stepped = True

    def _parts(self) -> dict[str, Any]:
        parts = {"optimizer": self._optimizer, "schedule": self._schedule, "scaler": self._scaler}
        return {name: part for name, part in parts.items() if part is not None}


def in_type_of(case: Case, module: nn.Module) -> nn.Module:
    """The module in the case's type of parameters."""
    return module.to(DTYPES[case.precision.model])
