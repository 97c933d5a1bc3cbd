"""Equigrad's own engine, from Python, with the optimizers that its configuration has."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterator
from typing import Any

from torch import nn

from .. import device, models
from ..loop import DTYPES, Adapter, Engine, Named, Place, Stepped
from ..protocol import Absent, Case, LossScale
from ..torch_engine import schedule_of

equigrad: Any = importlib.import_module("equigrad")
_LOW = ("bf16", "fp16")
_SCALER = 65536.0
"""Where the loss scale of torch_autocast begins, as torch's GradScaler does."""


class _EquigradEngine(Engine):
    divides = True
    autocasts = True

    def __init__(self, case: Case, engine: Any) -> None:
        super().__init__(engine)
        self._case = case
        self._named = dict(engine.module.named_parameters())

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        quiet = bool(self._case.options.get("no_sync")) and not place.ends_step
        with self.module.no_sync() if quiet else contextlib.nullcontext():
            yield
        if place.ends_micro_batch and not place.ends_step:
            self.module.step()

    def backward(self, style: str, losses: models.Losses) -> None:
        loss, output, gradient = losses
        if style == "engine_backward":
            self.module.backward(loss, scale_wrt_gas=self._case.options.get("scale_wrt_gas") is not False)
        elif style == "scale_backward":
            self.module.scale(loss).backward()
        elif style == "loss_backward":
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            output.backward(gradient)  # type: ignore[no-untyped-call]

    def gradients(self) -> Named:
        read = {name: equigrad.utils.safe_get_full_grad(one) for name, one in self._named.items()}
        return {name: one for name, one in read.items() if one is not None}

    def step(self) -> Stepped:
        lrs = tuple(float(lr) for lr in self.module.get_lr())
        scaled = self._case.precision.loss_scale is not None
        scale = float(self.module.optimizer.loss_scaler.cur_scale) if scaled else None
        self.module.step()
        applied = bool(self.module.was_step_applied())
        norm = self.module.get_global_grad_norm() if applied else None
        return Stepped(applied, None if norm is None else float(norm), lrs, scale)

    def values(self) -> tuple[Named, Named]:
        whole = {name: self.module.full_parameter(name) for name in self._named}
        if self._case.precision.model not in _LOW:
            return whole, {}
        read = {name: equigrad.utils.safe_get_full_fp32_param(one) for name, one in self._named.items()}
        return whole, {name: one for name, one in read.items() if one is not None}

    def save(self, folder: str) -> None:
        self.module.save_checkpoint(folder, tag="judge")

    def load(self, folder: str) -> None:
        self.module.load_checkpoint(folder, tag="judge")

    def close(self) -> None:
        engine, self.module = self.module, None
        engine.destroy()


def config_of(case: Case) -> dict[str, Any]:
    """The configuration of a case."""
    wanted, precision = case.optimizer, case.precision
    values: dict[str, Any] = {"lr": wanted.lr, "weight_decay": wanted.weight_decay}
    values |= {"momentum": wanted.momentum} if wanted.name == "sgd" else {"betas": list(wanted.betas), "eps": wanted.eps}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": case.accumulation,
        "optimizer": {"type": "SGD" if wanted.name == "sgd" else "AdamW", "params": values},
        "zero_optimization": _zero(case),
    }
    if case.clip is not None:
        config["gradient_clipping"] = case.clip.max_norm
        config["gradient_norm_type"] = "inf" if case.clip.norm_type == "inf" else 2
    if precision.model == "bf16":
        config["bf16"] = {"enabled": True}
    if precision.model == "fp16":
        config["fp16"] = {"enabled": True, **_loss_scale(precision.loss_scale)}
    if precision.autocast:
        config["torch_autocast"] = {"enabled": True, "dtype": precision.autocast}
    if precision.communication:
        config["communication_data_type"] = precision.communication
    if precision.accumulation:
        config["data_types"] = {"grad_accum_dtype": precision.accumulation}
    return config


def _zero(case: Case) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": case.stage, "stage3_param_persistence_threshold": 0}
    if "offload" in case.options:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    if "bucket_bytes" in case.options:
        width = DTYPES[case.precision.communication or case.precision.model].itemsize
        elements = max(1, int(case.options["bucket_bytes"]) // width)
        zero.update(reduce_bucket_size=elements, allgather_bucket_size=elements, stage3_prefetch_bucket_size=elements)
    return zero


def _loss_scale(scale: LossScale | None) -> dict[str, Any]:
    if scale is None:
        return {"loss_scale": 1.0}
    if not scale.dynamic:
        return {"loss_scale": scale.value}
    return {
        "loss_scale": 0,
        "initial_scale_power": int(math.log2(scale.value)),
        "loss_scale_window": scale.window,
        "hysteresis": scale.hysteresis,
        "min_loss_scale": scale.minimum,
    }


def _groups(case: Case, module: nn.Module) -> list[dict[str, Any]] | None:
    named = dict(module.named_parameters())
    groups = [
        {"params": [named[name] for name in one.parameters], "lr": one.lr, "weight_decay": one.weight_decay}
        for one in case.groups
    ]
    return groups or None


class _Equigrad(Adapter):
    name = "equigrad"
    options = frozenset({"offload", "bucket_bytes", "no_sync", "scale_wrt_gas", "save_after"})

    def version(self) -> str:
        return str(equigrad.__version__)

    def start(self) -> None:
        """The engine connects the ranks by itself."""

    def check(self, case: Case) -> None:
        scale = case.precision.loss_scale
        if device.is_shared():
            raise Absent("its ranks speak over NCCL, which takes one device a rank; here are fewer devices")
        if case.options.get("offload", "optimizer") != "optimizer":
            raise Absent(f"the adapter does not know how to offload {case.options['offload']}")
        if "scale_wrt_gas" in case.options and case.style != "engine_backward":
            raise Absent("scale_wrt_gas is an argument of engine.backward()")
        if scale is not None and case.precision.autocast and scale.value != _SCALER:
            raise Absent(f"with torch_autocast the loss scale begins at {_SCALER:.0f}, as that of torch's GradScaler")
        if scale is not None and scale.dynamic and not float(math.log2(scale.value)).is_integer():
            raise Absent("the first dynamic loss scale is a power of two")

    def make(self, case: Case, module: nn.Module) -> Engine:
        if case.precision.model == "fp64":
            module = module.double()
        engine, *_ = equigrad.initialize(
            model=module,
            model_parameters=_groups(case, module),
            lr_scheduler=(lambda optimizer: schedule_of(case, optimizer)) if case.schedule else None,
            config=config_of(case),
        )
        return _EquigradEngine(case, engine)

    def refuses(self, error: Exception) -> bool:
        named = isinstance(error, equigrad.Error) and not isinstance(error, equigrad.CommunicationError)
        return named or super().refuses(error)


def adapter() -> _Equigrad:
    """Of this file."""
    return _Equigrad()
