"""What a DeepSpeed configuration sets, as axes: it is not varied, and what it does not set still is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .environments import UsageError
from .on_rank.protocol import Case, Clip, LossScale, Optimizer, Precision

_TYPES = {
    "fp32": "fp32",
    "float32": "fp32",
    "torch.float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "bfp16": "bf16",
    "torch.bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "torch.float16": "fp16",
}
_READ = {
    "train_batch_size": (),
    "train_micro_batch_size_per_gpu": (),
    "gradient_accumulation_steps": (),
    "gradient_clipping": (),
    "communication_data_type": (),
    "zero_optimization": ("stage", "offload_optimizer", "reduce_bucket_size"),
    "bf16": ("enabled",),
    "fp16": (
        "enabled",
        "loss_scale",
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "min_loss_scale",
    ),
    "torch_autocast": ("enabled", "dtype"),
    "data_types": ("grad_accum_dtype",),
    "optimizer": ("type", "params"),
}
_LARGEST_BUCKET_BYTES = 1 << 28


@dataclass(frozen=True)
class Fixed:
    """What is the same in every cell; None for what is not set. `left_out`: keys of the file that cells do not have."""

    stage: int | None = None
    precision: Precision | None = None
    accumulation: int | None = None
    change: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Case: clip, optimizer."""
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def applied(self, case: Case) -> Case:
        """The case with what is fixed."""
        return replace(case, **self.change, options={**case.options, **self.options})


def read(path: str) -> Fixed:
    """Of a file. Raises UsageError for one that is no configuration, or sets what cannot be."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"[judge] expected a DeepSpeed configuration in {path}, got: {error}. Give a file of JSON.") from error
    if not isinstance(config, dict):
        raise UsageError(f"[judge] expected an object of JSON in {path}, got {type(config).__name__}. Give a DeepSpeed configuration.")
    return _Reader(path, config).fixed()


class _Reader:
    """Reads one file; its errors name the key."""

    def __init__(self, path: str, config: Mapping[str, Any]) -> None:
        self._path = path
        self._config = config

    def fixed(self) -> Fixed:
        """All of it."""
        change: dict[str, Any] = {}
        options: dict[str, bool | int | float | str] = {}
        if "gradient_clipping" in self._config:
            most = float(self._number("gradient_clipping", 0.0))
            change["clip"] = Clip(most, "2") if most > 0 else None
        if "optimizer" in self._config:
            change["optimizer"] = self._optimizer()
        zero = self._block("zero_optimization")
        if self._block("zero_optimization.offload_optimizer").get("device", "none") != "none":
            options["offload"] = "optimizer"
        precision = self._precision()
        if "reduce_bucket_size" in zero:
            width = 4 if precision is None or precision.model == "fp32" else 2
            elements = self._number("zero_optimization.reduce_bucket_size", 0)
            options["bucket_bytes"] = int(min(elements * width, _LARGEST_BUCKET_BYTES))
        stage = int(self._number("zero_optimization.stage", 0)) if "zero_optimization" in self._config else None
        return Fixed(stage, precision, self._accumulation(), change, options, tuple(self._left_out()))

    def _precision(self) -> Precision | None:
        on = [name for name in ("bf16", "fp16", "torch_autocast") if self._block(name).get("enabled", False) is True]
        known = [name for name in ("bf16", "fp16", "torch_autocast", "data_types", "communication_data_type") if name in self._config]
        if not known:
            return None
        if "bf16" in on and "fp16" in on:
            raise self._unexpected("bf16 or fp16 to be enabled", "both", "Take one away")
        model = "bf16" if "bf16" in on else "fp16" if "fp16" in on else "fp32"
        autocast = self._type("torch_autocast.dtype", "bf16") if "torch_autocast" in on else ""
        scaled = model == "fp16" or autocast == "fp16"
        return Precision(
            model,
            autocast,
            self._type("data_types.grad_accum_dtype", ""),
            self._type("communication_data_type", ""),
            self._loss_scale() if scaled else None,
        )

    def _loss_scale(self) -> LossScale:
        static = float(self._number("fp16.loss_scale", 0))
        if static > 0:
            return LossScale(False, static)
        return LossScale(
            True,
            2.0 ** float(self._number("fp16.initial_scale_power", 16)),
            int(self._number("fp16.loss_scale_window", 1000)),
            int(self._number("fp16.hysteresis", 2)),
            float(self._number("fp16.min_loss_scale", 1)),
        )

    def _optimizer(self) -> Optimizer:
        name = str(self._block("optimizer").get("type", ""))
        given = self._block("optimizer.params")
        kinds = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}
        if name.lower() not in kinds:
            raise self._unexpected("optimizer.type of AdamW, Adam and SGD", name or "none", "Others are not judged")
        if name.lower() == "adam" and not given.get("adam_w_mode", True) and given.get("weight_decay", 0.0):
            raise self._unexpected("optimizer.params.adam_w_mode to be true", "false with a weight decay", "Set weight_decay to 0")
        betas = given.get("betas", (0.9, 0.999))
        return Optimizer(
            kinds[name.lower()],
            float(self._number("optimizer.params.lr", 1e-3)),
            float(self._number("optimizer.params.momentum", 0.0)),
            float(self._number("optimizer.params.weight_decay", 0.0)),
            (float(betas[0]), float(betas[1])),
            float(self._number("optimizer.params.eps", 1e-8)),
        )

    def _accumulation(self) -> int | None:
        if "gradient_accumulation_steps" not in self._config:
            return None
        count = int(self._number("gradient_accumulation_steps", 1))
        if count < 1:
            raise self._unexpected("gradient_accumulation_steps of at least 1", count, "Correct it")
        return count

    def _left_out(self) -> list[str]:
        found = []
        for name, value in self._config.items():
            if name not in _READ:
                found.append(name)
            elif isinstance(value, dict) and _READ[name]:
                found += [f"{name}.{inner}" for inner in value if inner not in _READ[name]]
        if self._block("zero_optimization.offload_optimizer").get("device") == "nvme":
            found.append("zero_optimization.offload_optimizer.device nvme (judged as cpu)")
        return found

    def _block(self, path: str) -> Mapping[str, Any]:
        value: Any = self._config
        for part in path.split("."):
            value = value.get(part, {}) if isinstance(value, dict) else {}
        if path == "zero_optimization" and isinstance(value, bool):
            return {"stage": int(value)}  # as DeepSpeed's first releases had it
        if not isinstance(value, dict):
            raise self._unexpected(f"an object as {path}", value, "Correct it")
        return value

    def _number(self, path: str, default: float) -> float:
        block, _, name = path.rpartition(".")
        value = (self._block(block) if block else self._config).get(name, default)
        if value == "auto":
            raise self._unexpected(f"a number as {path}", '"auto"', "That is a placeholder of Hugging Face's Trainer: give a number")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._unexpected(f"a number as {path}", repr(value), "Correct it")
        return value

    def _type(self, path: str, default: str) -> str:
        block, _, name = path.rpartition(".")
        value = (self._block(block) if block else self._config).get(name)
        if value is None:
            return default
        if value not in _TYPES:
            raise self._unexpected(f"{path} of {', '.join(_TYPES)}", repr(value), "Correct it")
        return _TYPES[value]

    def _unexpected(self, expected: str, got: object, remedy: str) -> UsageError:
        return UsageError(f"[judge] {self._path}: expected {expected}, got {got}. {remedy}.")
