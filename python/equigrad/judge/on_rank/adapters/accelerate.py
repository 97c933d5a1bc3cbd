"""Hugging Face Accelerate, over DistributedDataParallel."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from .. import device, models
from ..loop import Adapter, Engine, Named, Place, Stepped
from ..protocol import Absent, Case
from ..torch_engine import in_type_of, schedule_of, start_group, torch_optimizer
from .ddp import leaves_unused

accelerate: Any = importlib.import_module("accelerate")
utils: Any = importlib.import_module("accelerate.utils")
_HOOKS = {"bf16": utils.DDPCommunicationHookType.BF16, "fp16": utils.DDPCommunicationHookType.FP16}


def check_style(case: Case) -> None:
    """Raises Absent for what is not Accelerate's way into a backward pass."""
    if case.style != "engine_backward":
        raise Absent("its way into a backward pass is accelerator.backward(loss)")


def forget_state() -> None:
    """What an Accelerator leaves behind in the process: its settings, which the next one would have to share."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


class Accumulation:
    """accelerator.accumulate() around each micro-batch, over all its backwards, as Accelerate's documentation has it."""

    def __init__(self, accelerator: Any, module: Any) -> None:
        self._accelerator = accelerator
        self._module = module
        self._open = contextlib.ExitStack()

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Around one backward."""
        if place.backward == 0:
            self._open.enter_context(self._accelerator.accumulate(self._module))
        yield
        if place.ends_micro_batch:
            self._open.close()


class _AccelerateEngine(Engine):
    divides = True
    autocasts = True

    def __init__(self, case: Case, accelerator: Any, module: nn.Module) -> None:
        self._case = case
        self._accelerator = accelerator
        self._named = dict(module.named_parameters())
        optimizer = torch_optimizer(case, self._named)
        schedule = schedule_of(case, optimizer, calls=accelerator.num_processes)  # it steps once for every process
        given = [module, optimizer] if schedule is None else [module, optimizer, schedule]
        prepared, self._optimizer, *rest = accelerator.prepare(*given)
        self._schedule = rest[0] if rest else None
        super().__init__(prepared)
        self._accumulation = Accumulation(accelerator, prepared)

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        with self._accumulation.at(place):
            yield
            if place.ends_micro_batch and not place.ends_step:
                self._finish()

    def backward(self, style: str, losses: models.Losses) -> None:
        self._accelerator.backward(losses[0])

    def gradients(self) -> Named:
        return {name: one.grad for name, one in self._named.items() if one.grad is not None}

    def step(self) -> Stepped:
        clip, norm = self._case.clip, None
        if clip is not None:
            norm = float(self._accelerator.clip_grad_norm_(self.module.parameters(), clip.max_norm, float(clip.norm_type)))
        lrs = tuple(float(group["lr"]) for group in self._optimizer.param_groups)
        self._finish()
        return Stepped(not self._accelerator.optimizer_step_was_skipped, norm, lrs, None)

    def values(self) -> tuple[Named, Named]:
        return {name: one.detach() for name, one in self._named.items()}, {}

    def save(self, folder: str) -> None:
        self._accelerator.save_state(folder)
        self._accelerator.wait_for_everyone()

    def load(self, folder: str) -> None:
        self._accelerator.load_state(folder)

    def close(self) -> None:
        self.module = None
        self._named = {}

    def _finish(self) -> None:
        """What Accelerate's loop does after every micro-batch; it acts at the last one."""
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
        self._optimizer.zero_grad(set_to_none=bool(self._case.options.get("set_to_none", True)))


class _Accelerate(Adapter):
    name = "accelerate"
    options = frozenset(
        {"no_sync", "save_after", "set_to_none", "bucket_bytes", "static_graph", "find_unused", "gradient_as_bucket_view"}
    )
    _case: Case | None = None

    def version(self) -> str:
        return str(accelerate.__version__)

    def start(self) -> None:
        start_group()

    def check(self, case: Case) -> None:
        check_style(case)
        precision = case.precision
        if case.stage:
            raise Absent(
                "it makes FSDP on accelerators only, and there the adapter drives it over DDP; on the CPU it takes the plugin "
                "and trains with DDP"
            )
        if "fp16" in (precision.model, precision.autocast):
            raise Absent(
                "it scales losses on accelerators only, and there the adapter sets no scale; on the CPU it takes "
                'mixed_precision="fp16" and trains in fp32'
            )
        if precision.accumulation not in ("", precision.model):
            raise Absent(f"gradients are accumulated in the parameters' type, {precision.model}")
        if precision.communication not in ("", precision.model, *_HOOKS):
            raise Absent(f"no communication hook reduces in {precision.communication}")

    def make(self, case: Case, module: nn.Module) -> Engine:
        if case is not self._case:  # several engines of a case share one state
            forget_state()
        self._case = case
        precision, given = case.precision, case.options
        sent = precision.communication if precision.communication != precision.model else ""
        wrapper = utils.DistributedDataParallelKwargs(
            bucket_cap_mb=int(given.get("bucket_bytes", 25 << 20)) / (1 << 20),
            find_unused_parameters=bool(given.get("find_unused", leaves_unused(case))),
            static_graph=bool(given.get("static_graph", False)),
            gradient_as_bucket_view=bool(given.get("gradient_as_bucket_view", False)),
            comm_hook=_HOOKS.get(sent, utils.DDPCommunicationHookType.NO),
        )
        every = given.get("no_sync") is False
        accelerator = accelerate.Accelerator(
            cpu=device.here().type == "cpu",
            mixed_precision="bf16" if precision.autocast else "no",
            gradient_accumulation_plugin=utils.GradientAccumulationPlugin(
                num_steps=case.accumulation, sync_each_batch=every
            ),
            kwargs_handlers=[wrapper],
        )
        return _AccelerateEngine(case, accelerator, in_type_of(case, module))


def adapter() -> _Accelerate:
    """Of this file."""
    return _Accelerate()
