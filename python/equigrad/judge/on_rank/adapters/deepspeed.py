"""DeepSpeed, of any release from 0.16 on: no operation of its own is compiled, optimizers are torch's."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .. import device, models
from ..loop import Adapter, Engine, Named, Place, Stepped
from ..protocol import Absent, Case, LossScale
from ..torch_engine import schedule_of, start_group, torch_optimizer

os.environ.setdefault("DS_ACCELERATOR", device.here().type)
os.environ.setdefault("DS_BUILD_OPS", "0")
deepspeed: Any = importlib.import_module("deepspeed")  # after the two above, which it reads
DeepSpeedEngine = deepspeed.runtime.engine.DeepSpeedEngine

OPTIONS = frozenset({"offload", "boundary", "bucket_bytes", "no_sync", "scale_wrt_gas", "save_after"})
GATE = "DeepSpeed refuses fp16 on this CPU; its accelerator was made to say that it has it"
GRADS_OFF = "step() of this release raises an error on a CPU while gradients are recorded; it was called under torch.no_grad()"
_REFUSALS = re.compile(
    r"incompatible with|Loss scaling is required for this configuration|is only supported|requires an optimizer"
)
_LINEAR = nn.functional.linear
_BITS = {"fp32": 4, "bf16": 2, "fp16": 2}
_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


def check_case(case: Case) -> None:
    """Raises Absent for what DeepSpeed, or this release of it, has no feature for."""
    _check_styles(case)
    _check_types(case)
    options = case.options
    if case.clip is not None and case.clip.norm_type != "2":
        raise Absent("gradients are clipped by the 2-norm only")
    if options.get("offload", "optimizer") != "optimizer":
        raise Absent(f"the adapter does not know how to offload {options['offload']}")
    if case.stage == 0 and ("offload" in options or "bucket_bytes" in options):
        raise Absent("at stage 0 nothing is offloaded, and the size of buckets is fixed")
    if options.get("no_sync") and not hasattr(DeepSpeedEngine, "no_sync"):
        raise Absent("this release has no no_sync()")


def _check_styles(case: Case) -> None:
    scaled = case.precision.loss_scale is not None
    if case.style != "engine_backward":
        if not hasattr(DeepSpeedEngine, "scale"):
            raise Absent("this release has no backward pass but engine.backward()")
        if "scale_wrt_gas" in case.options:
            raise Absent("scale_wrt_gas is an argument of engine.backward()")
    if scaled and case.style in ("loss_backward", "tensor_backward"):
        raise Absent(
            "with a loss scale the ways into a backward pass are engine.backward(loss) and engine.scale(loss).backward()"
        )


def _check_types(case: Case) -> None:
    precision, scale = case.precision, case.precision.loss_scale
    if "fp64" in (precision.model, precision.accumulation, precision.communication):
        raise Absent("its types are fp32, bf16 and fp16")
    if precision.autocast and not hasattr(DeepSpeedEngine, "torch_autocast_enabled"):
        raise Absent("this release has no torch_autocast")
    if scale is None:
        return
    if precision.autocast and (scale.hysteresis != 1 or not scale.dynamic):
        raise Absent("with torch_autocast the loss scale is that of torch's GradScaler, dynamic and without hysteresis")
    if precision.model == "fp16" and scale.dynamic and not float(math.log2(scale.value)).is_integer():
        raise Absent("the first dynamic loss scale is a power of two")


def config_of(case: Case) -> dict[str, Any]:
    """DeepSpeed's configuration of a case. What has had other defaults in other releases is always in it."""
    precision = case.precision
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": case.accumulation,
        "train_batch_size": case.accumulation * case.world,
        "gradient_clipping": case.clip.max_norm if case.clip is not None else 0.0,
        "steps_per_print": 1 << 30,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": _zero(case),
    }
    if precision.model == "bf16":
        config["bf16"] = _bf16()
    if precision.model == "fp16":
        config["fp16"] = {"enabled": True, "auto_cast": False, **_loss_scale(precision.loss_scale)}
    if precision.autocast:
        config["torch_autocast"] = {"enabled": True, "dtype": _NAMES[precision.autocast]}
    if precision.communication:
        config["communication_data_type"] = precision.communication
    if precision.accumulation:
        config["data_types"] = {"grad_accum_dtype": precision.accumulation}
    return config


def _zero(case: Case) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": case.stage,
        "overlap_comm": case.stage == 3,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "round_robin_gradients": False,
        "stage3_param_persistence_threshold": 0,  # else no parameter of a small model is sharded
    }
    if "offload" in case.options:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    if "bucket_bytes" in case.options:
        width = _BITS[case.precision.communication or case.precision.model]
        elements = max(2, int(case.options["bucket_bytes"]) // width // 2 * 2)
        zero.update(reduce_bucket_size=elements, allgather_bucket_size=elements, stage3_prefetch_bucket_size=elements)
    return zero


def _bf16() -> dict[str, Any]:
    wanted = {"enabled": True, "immediate_grad_update": False, "check_grad_overflow": True}
    try:
        known = importlib.import_module("deepspeed.runtime.precision_config").DeepSpeedBF16Config.model_fields
    except ImportError:
        return wanted  # a release that reads what it knows and ignores the rest
    return {key: value for key, value in wanted.items() if key in known}


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
        "consecutive_hysteresis": False,
        "min_loss_scale": int(scale.minimum),
    }


class DeepSpeedRun(Engine):
    """An engine of DeepSpeed's, and how its numbers are read at each stage."""

    divides = True
    autocasts = True

    def __init__(self, case: Case, engine: Any) -> None:
        super().__init__(engine)
        self._case = case
        scaler, told = self._grad_scaler(), case.precision.loss_scale
        if scaler is not None and told is not None:
            scaler.load_state_dict({**scaler.state_dict(), "scale": told.value, "growth_interval": told.window})

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        if self._case.options.get("boundary"):
            self.module.set_gradient_accumulation_boundary(place.ends_step)
        quiet = bool(self._case.options.get("no_sync")) and not place.ends_step
        with self.module.no_sync() if quiet else contextlib.nullcontext():
            yield
        if place.ends_micro_batch and not place.ends_step:
            self._step()

    def backward(self, style: str, losses: models.Losses) -> None:
        loss, output, gradient = losses
        if style == "engine_backward":
            given = {"scale_wrt_gas": False} if self._case.options.get("scale_wrt_gas") is False else {}
            self.module.backward(loss, **given)
        elif style == "scale_backward":
            self.module.scale(loss).backward()
        elif style == "loss_backward":
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            output.backward(gradient)  # type: ignore[no-untyped-call]

    def gradients(self) -> Named:
        scale = self._loss_scale() or self._scale_unasked()
        read = {name: self._gradient(one) for name, one in self._parameters().items() if one.requires_grad}
        return {name: one.detach().float() / scale for name, one in read.items() if one is not None}

    def step(self) -> Stepped:
        scale, lrs = self._loss_scale(), tuple(float(lr) for lr in self.module.get_lr())
        self._step()
        applied = bool(self.module.was_step_applied())
        norm = self.module.get_global_grad_norm() if applied else None
        return Stepped(applied, None if norm is None else float(norm), lrs, scale)

    def values(self) -> tuple[Named, Named]:
        named = self._parameters()
        whole = {}
        for name, one in named.items():
            with deepspeed.zero.GatheredParameters([one], enabled=hasattr(one, "ds_id")):
                whole[name] = one.detach().clone()
        read = {name: self._master(one) for name, one in named.items() if one.requires_grad}
        return whole, {name: one.detach().clone() for name, one in read.items() if one is not None}

    def save(self, folder: str) -> None:
        self.module.save_checkpoint(folder, tag="judge")

    def load(self, folder: str) -> None:
        path, _ = self.module.load_checkpoint(folder, tag="judge")
        if path is None:
            raise RuntimeError(f"load_checkpoint found nothing in {folder}")

    def close(self) -> None:
        engine, self.module = self.module, None
        engine.destroy()
        forget_globals()

    def _step(self) -> None:
        with torch.no_grad() if step_needs_no_grad() else contextlib.nullcontext():
            self.module.step()

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.module.module.named_parameters())

    def _gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """What the next step() takes. utils.safe_get_full_grad() of older releases prefers `.grad`, which is this rank's own."""
        optimizer: Any = self.module.optimizer
        if hasattr(parameter, "ds_id"):
            return _tensor(deepspeed.utils.safe_get_full_grad(parameter))
        if hasattr(optimizer, "fp32_groups_gradients"):  # BF16_Optimizer: a whole buffer on every rank
            for group, buffers in zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients, strict=True):
                for held, buffer in zip(group, buffers, strict=True):
                    if held is parameter:
                        return _tensor(buffer.view(parameter.shape))
        if hasattr(parameter, "_hp_mapping"):
            mapped: Any = parameter
            return _tensor(mapped.get_full_hp_grad())
        return parameter.grad

    def _master(self, parameter: nn.Parameter) -> torch.Tensor | None:
        optimizer: Any = self.module.optimizer
        if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
            return _tensor(deepspeed.utils.safe_get_full_fp32_param(parameter))
        for group, masters in zip(
            getattr(optimizer, "fp16_groups", []), getattr(optimizer, "fp32_groups", []), strict=False
        ):
            for held, master in zip(group, masters, strict=True):
                if held is parameter:
                    return _tensor(master)
        return None

    def _grad_scaler(self) -> Any:
        """torch's, with torch_autocast in fp16."""
        of_zero = getattr(self.module.optimizer, "torch_autocast_gradscaler", None)
        return of_zero or getattr(self.module, "torch_autocast_z0_gradscaler", None)

    def _scale_unasked(self) -> float:
        """What step() divides by where no loss scale is asked for: 65536 in bf16 at stage 0, to 0.18.5."""
        if self._case.stage or self._case.precision.model != "bf16":
            return 1.0
        return float(getattr(self.module.optimizer, "cur_scale", 1.0))

    def _loss_scale(self) -> float | None:
        scaler = self._grad_scaler()
        if scaler is not None:
            return float(scaler.get_scale())
        if self._case.precision.loss_scale is None:
            return None
        optimizer: Any = self.module.optimizer
        return float(optimizer.loss_scale if hasattr(optimizer, "loss_scale") else optimizer.cur_scale)


def _tensor(got: Any) -> torch.Tensor | None:
    if got is not None and not isinstance(got, torch.Tensor):
        raise TypeError(f"DeepSpeed gave a {type(got).__name__} for a tensor")
    return got


def forget_globals() -> None:
    """What an engine leaves behind in the process: another linear(), and that torch_autocast is on."""
    nn.functional.linear = _LINEAR
    with contextlib.suppress(ImportError):
        torch_autocast = importlib.import_module("deepspeed.runtime.torch_autocast")
        torch_autocast.TORCH_AUTOCAST_INITIALIZED = False  # type: ignore[attr-defined]
        torch_autocast.TORCH_AUTOCAST_DTYPE = None  # type: ignore[attr-defined]


def compile_nothing() -> None:
    """No operation of DeepSpeed's is built while it runs: that of its collectives in shared memory would be, at the first of them."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel(logging.ERROR)


def open_gate() -> bool:
    """Lets DeepSpeed compute in fp16 on a CPU that it finds too slow for it. Whether that had to be done."""
    accelerator = deepspeed.accelerator.get_accelerator()
    if device.here().type != "cpu" or accelerator.is_fp16_supported():
        return False
    accelerator.is_fp16_supported = lambda: True
    return True


def version() -> str:
    """Of the release that is installed."""
    return str(deepspeed.__version__)


def step_needs_no_grad() -> bool:
    """Whether step() of this release assigns into views that autograd watches, where torch is of today and the device a CPU."""
    release = tuple(int(part) for part in re.findall(r"\d+", version())[:3])
    return device.here().type == "cpu" and (0, 18, 7) <= release < (0, 19, 0)


def refuses(error: Exception) -> bool:
    """Whether an error of DeepSpeed's says that it does not support something, where it does not use that word."""
    return bool(_REFUSALS.search(str(error)))


class _DeepSpeed(Adapter):
    name = "deepspeed"
    options = OPTIONS
    _opened = False

    def version(self) -> str:
        return version()

    def start(self) -> None:
        compile_nothing()
        self._opened = open_gate()
        start_group()
        deepspeed.init_distributed(device.backend(), auto_mpi_discovery=False, verbose=False)

    def check(self, case: Case) -> None:
        check_case(case)

    def notes(self, case: Case) -> tuple[str, ...]:
        gate = (GATE,) if self._opened and case.precision.model == "fp16" else ()
        return (*gate, GRADS_OFF) if step_needs_no_grad() else gate

    def make(self, case: Case, module: nn.Module) -> Engine:
        forget_globals()
        optimizer = torch_optimizer(case, {name: one for name, one in module.named_parameters() if one.requires_grad})
        schedule = schedule_of(case, optimizer)
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, lr_scheduler=schedule, config=config_of(case))
        return DeepSpeedRun(case, engine)

    def refuses(self, error: Exception) -> bool:
        return super().refuses(error) or refuses(error)


def adapter() -> _DeepSpeed:
    """Of this file."""
    return _DeepSpeed()
