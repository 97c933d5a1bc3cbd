"""Hugging Face Accelerate with DeepSpeed as its plugin."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from .. import device, models
from ..loop import Adapter, Engine, Place, Stepped
from ..protocol import Absent, Case
from ..torch_engine import schedule_of, start_group, torch_optimizer
from . import deepspeed as plain
from .accelerate import Accumulation, accelerate, check_style, forget_state, utils


class _Run(plain.DeepSpeedRun):
    """accelerator.backward() makes the step at the last micro-batch: that is put off until the gradients are read."""

    def __init__(self, case: Case, accelerator: Any, module: nn.Module) -> None:
        optimizer = torch_optimizer(case, {name: one for name, one in module.named_parameters() if one.requires_grad})
        schedule = schedule_of(case, optimizer, calls=accelerator.num_processes)  # it steps once for every process
        given = [module, optimizer] if schedule is None else [module, optimizer, schedule]
        engine, self._optimizer, *rest = accelerator.prepare(*given)
        self._schedule = rest[0] if rest else None
        self._accelerator = accelerator
        self._accumulation = Accumulation(accelerator, engine)
        super().__init__(case, engine)

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        with self._accumulation.at(place):
            if place.ends_step:
                self.module.step = _nothing
            yield
            if place.ends_micro_batch and not place.ends_step:
                self._finish()

    def backward(self, style: str, losses: models.Losses) -> None:
        given = {"scale_wrt_gas": False} if self._case.options.get("scale_wrt_gas") is False else {}
        self._accelerator.backward(losses[0], **given)

    def step(self) -> Stepped:
        del self.module.step  # the class has the engine's own
        stepped = super().step()
        self._finish()
        return stepped

    def save(self, folder: str) -> None:
        self._accelerator.save_state(folder)
        self._accelerator.wait_for_everyone()

    def load(self, folder: str) -> None:
        self._accelerator.load_state(folder)

    def _finish(self) -> None:
        """What Accelerate's loop does after every micro-batch; the optimizer's two are empty over DeepSpeed."""
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
        self._optimizer.zero_grad()


def _nothing() -> None:
    """Instead of an engine's step()."""


class _AccelerateDeepSpeed(Adapter):
    name = "accelerate-deepspeed"
    options = plain.OPTIONS
    _opened = False

    def version(self) -> str:
        return f"{accelerate.__version__} over DeepSpeed {plain.version()}"

    def start(self) -> None:
        plain.compile_nothing()
        self._opened = plain.open_gate()
        start_group()

    def check(self, case: Case) -> None:
        check_style(case)
        plain.check_case(case)
        if case.options.get("no_sync") and case.stage > 1:
            raise Absent("below stage 2 alone it leaves out communication, as accumulate() does by itself")
        if int(case.options.get("backwards", 1)) > 1:
            raise Absent("accelerator.backward() makes DeepSpeed's step by itself")
        if int(case.options.get("engines", 1)) > 1:
            raise Absent("an Accelerator drives one engine of DeepSpeed's")

    def notes(self, case: Case) -> tuple[str, ...]:
        return (plain.GATE,) if self._opened and case.precision.model == "fp16" else ()

    def make(self, case: Case, module: nn.Module) -> Engine:
        plain.forget_globals()
        forget_state()
        low = case.precision.model if case.precision.model in ("bf16", "fp16") else "no"
        accelerator = accelerate.Accelerator(
            mixed_precision=low,
            gradient_accumulation_plugin=utils.GradientAccumulationPlugin(num_steps=case.accumulation),
            deepspeed_plugin=utils.DeepSpeedPlugin(hf_ds_config=plain.config_of(case)),
            kwargs_handlers=[utils.InitProcessGroupKwargs(backend=device.backend())],
        )
        return _Run(case, accelerator, module)

    def refuses(self, error: Exception) -> bool:
        return super().refuses(error) or plain.refuses(error)


def adapter() -> _AccelerateDeepSpeed:
    """Of this file."""
    return _AccelerateDeepSpeed()
