"""What a script's engine is configured with: only what its case asks for."""

from __future__ import annotations

import json
import math
from typing import Any

from .on_rank.protocol import Case
from .repro_text import WIDTH

_MODES = {"bf16": "bf16", "fp16": "fp16"}
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def config_text(engine: str, case: Case, bucket: int | None) -> str:
    """The configuration of DeepSpeed or Equigrad, as Python. bucket: elements, None for the default."""
    config = equigrad_config(case, bucket) if engine == "equigrad" else deepspeed_config(case, bucket)
    return "\n".join(["{", *(line for key, value in config.items() for line in _lines(key, value)), "}"])


def _lines(key: str, value: Any) -> list[str]:
    """Of one key; a long value has a line for each of its own."""
    line = f"    {_literal(key)}: {_literal(value)},"
    if len(line) <= WIDTH or not isinstance(value, dict):
        return [line]
    inside = [f"        {_literal(name)}: {_literal(one)}," for name, one in value.items()]
    return [f"    {_literal(key)}: {{", *inside, "    },"]


def _literal(value: Any) -> str:
    """As Python, with double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def deepspeed_config(case: Case, bucket: int | None) -> dict[str, Any]:
    """Clipping is always in it: what it is without a word of it has changed between releases."""
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
    if case.accumulation > 1:
        config["gradient_accumulation_steps"] = case.accumulation
    config["gradient_clipping"] = case.clip.max_norm if case.clip else 0.0
    zero: dict[str, Any] = {"stage": case.stage}
    if bucket is not None:
        zero.update(reduce_bucket_size=bucket, allgather_bucket_size=bucket)
    if case.stage == 3:
        zero["stage3_param_persistence_threshold"] = 0  # else no parameter of a tiny model is sharded
        zero.update({"stage3_prefetch_bucket_size": bucket} if bucket is not None else {})
    if "offload" in case.options:
        zero["offload_optimizer"] = {"device": "cpu"}
    config["zero_optimization"] = zero
    if case.stage:
        config["zero_allow_untested_optimizer"] = True
    if "offload" in case.options:
        config["zero_force_ds_cpu_optimizer"] = False
    config.update(_precision(case))
    return config


def equigrad_config(case: Case, bucket: int | None) -> dict[str, Any]:
    """Its optimizer is the configuration's own."""
    given, like = case.optimizer, deepspeed_config(case, bucket)
    values: dict[str, Any] = {"lr": given.lr, "weight_decay": given.weight_decay}
    values |= {"momentum": given.momentum} if given.name == "sgd" else {"betas": list(given.betas), "eps": given.eps}
    if case.clip is not None and case.clip.norm_type == "inf":
        like["gradient_norm_type"] = "inf"
    for name in ("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"):
        like.pop(name, None)
    if "torch_autocast" in like:
        like["torch_autocast"]["dtype"] = case.precision.autocast
    return {**like, "optimizer": {"type": "SGD" if given.name == "sgd" else "AdamW", "params": values}}


def _precision(case: Case) -> dict[str, Any]:
    precision, config = case.precision, dict[str, Any]()
    if precision.model in _MODES:
        config[_MODES[precision.model]] = {"enabled": True, **_loss_scale(case)}
    if precision.autocast:
        config["torch_autocast"] = {"enabled": True, "dtype": _TYPES[precision.autocast]}
    if precision.accumulation:
        config["data_types"] = {"grad_accum_dtype": precision.accumulation}
    if precision.communication:
        config["communication_data_type"] = precision.communication
    return config


def _loss_scale(case: Case) -> dict[str, Any]:
    scale = case.precision.loss_scale
    if scale is None:
        return {}
    if not scale.dynamic:
        return {"loss_scale": scale.value}
    config: dict[str, Any] = {"loss_scale": 0, "initial_scale_power": int(math.log2(scale.value))}
    config.update(loss_scale_window=scale.window, hysteresis=scale.hysteresis)
    if scale.minimum != 1.0:
        config["min_loss_scale"] = scale.minimum
    return config
