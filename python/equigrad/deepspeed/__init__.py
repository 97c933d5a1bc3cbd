"""The drop-in for a program that was written for DeepSpeed: `import equigrad.deepspeed as deepspeed`.

What differs from `import equigrad`: a model is converted to the type that the configuration computes in before the engine
takes it, as DeepSpeed does, so master weights start from the rounded values; `optimizer=` and `lr_scheduler=` take the place
of those that the configuration names; and names of DeepSpeed's that the engine has no need of are here too
(`add_config_arguments`, `comm`, `DeepSpeedEngine`).
"""

from __future__ import annotations

import argparse
import json
from typing import Any, NoReturn, cast

import torch
import torch.distributed as comm

import equigrad
from equigrad import (
    CommunicationError,
    Error,
    NotSupportedError,
    _core,
    _ranks,
    _tensor_parallel,
    init_distributed,
    zero_to_fp32,
)
from equigrad._optimizer import Optimizer
from equigrad._tensor_parallel import set_autotp_mode, tp_model_init
from equigrad.deepspeed import checkpoint, runtime, sequence, utils, zero
from equigrad.deepspeed._engine import CheckpointError, ConfigError, DeepSpeedEngine, UsageError

__all__ = [
    "CheckpointError",
    "CommunicationError",
    "ConfigError",
    "DeepSpeedConfigError",
    "DeepSpeedEngine",
    "Error",
    "NotSupportedError",
    "UsageError",
    "add_config_arguments",
    "checkpoint",
    "comm",
    "init_distributed",
    "init_inference",
    "initialize",
    "runtime",
    "sequence",
    "set_autotp_mode",
    "take_over",
    "tp_model_init",
    "utils",
    "zero",
]

__version__ = equigrad.__version__
DeepSpeedConfigError = ConfigError  # its name there


# What DeepSpeed's module utils.zero_to_fp32 has for programs.
_OF_THE_SCRIPT = (
    "get_fp32_state_dict_from_zero_checkpoint",
    "convert_zero_checkpoint_to_fp32_state_dict",
    "load_state_dict_from_zero_checkpoint",
)
# What an argument takes the place of in the configuration.
_OVERRIDDEN = (("optimizer", "optimizer"), ("lr_scheduler", "scheduler"))


def initialize(
    args: Any = None, model: torch.nn.Module | None = None, *positional: Any, **keywords: Any
) -> tuple[DeepSpeedEngine, Any, Any, Any]:
    """As `equigrad.initialize`, of a model converted to bf16 or fp16 first where the configuration asks for it."""
    try:
        return _initialize(args, model, *positional, **keywords)
    except equigrad.ConfigError as refused:
        raise ConfigError(refused) from None


def _initialize(
    args: Any, model: torch.nn.Module | None, *positional: Any, **keywords: Any
) -> tuple[DeepSpeedEngine, Any, Any, Any]:
    if isinstance(model, torch.nn.Module):
        _check_is_whole(model)
    given = [keywords.get(name) for name in ("config", "config_params")] + [getattr(args, "deepspeed_config", None)]
    is_managed = True
    named = dict(zip(("optimizer", "model_parameters", "training_data", "lr_scheduler"), positional)) | keywords
    if model is not None and any(one is not None for one in given):
        text = _ranks.config_text(given, "initialize")
        overridden = [key for name, key in _OVERRIDDEN if named.get(name) is not None]
        of_sequences = _sequences_of(keywords)
        if overridden or of_sequences:
            keywords.pop("config_params", None)
            for who, size in of_sequences:
                text = _with_sequence(text, size, who)
            keywords["config"] = text = _ranks.config_without(text, overridden)
            args = None
        is_managed = _is_managed(text)
        text = _tensor_parallel.merged(text, model, keywords.get("mpu"), keywords.get("mesh_device"))
        load = _core.load_config if named.get("optimizer") is None else _core.load_config_for_client
        config = load(text, _ranks.world_size())
        dtype = getattr(torch, config.compute_dtype)
        if dtype is not torch.float32 and not _is_partitioned(model):
            model.to(dtype)
    for name in ("mpu", "mesh_param"):  # None is what DeepSpeed has without tensor or sequence parallelism
        if keywords.get(name) is None:
            keywords.pop(name, None)
    keywords.pop("distributed_port", None)  # of DeepSpeed's own connection; the engine reads MASTER_PORT
    made = equigrad.initialize(args, model, *positional, **keywords, engine_class=DeepSpeedEngine)
    engine = cast(DeepSpeedEngine, made[0])
    engine.is_managed = is_managed
    engine.axes = utils.groups.remember(engine._mesh)
    engine.attached_attention = runtime.sequence_parallel.ulysses_sp.attach(engine)
    runtime.torch_autocast.remember(engine)
    return engine, *made[1:]


def _sequences_of(keywords: dict[str, Any]) -> list[tuple[str, int]]:
    """Which arguments say how many ranks a sequence has, which are taken out: an mpu of sequences, whose "model parallel" group is
    theirs, and mesh_param, (data, sequence)."""
    found = []
    mpu, mesh = keywords.get("mpu"), keywords.get("mesh_param")
    said = getattr(mpu, "get_sequence_parallel_world_size", None)
    if said is not None and not hasattr(mpu, "get_tensor_model_parallel_world_size"):
        found.append(("mpu", int(said())))
        del keywords["mpu"]
    if isinstance(mesh, (list, tuple)) and len(mesh) == 2:
        found.append(("mesh_param", int(mesh[1])))
        del keywords["mesh_param"]
    return found


def _with_sequence(text: str, size: int, who: str) -> str:
    config = _ranks.config_object(text)
    if config is None:
        return text
    key = "sequence_parallel_size"
    if config.get(key, size) != size:
        raise UsageError(
            f'[initialize] expected one size of a sequence, got {size} by {who} and {config[key]} by "{key}". Give the same.'
        )
    return json.dumps({**config, key: size})


def _check_is_whole(model: torch.nn.Module) -> None:
    """That every rank holds the whole model: neither a part of its layers, nor some of its experts."""
    if any(one.__name__ == "PipelineModule" for one in type(model).__mro__):
        raise UsageError(
            "[initialize] expected a module that every rank holds whole, got a PipelineModule. This engine is not supported with "
            "pipeline parallelism: give a torch.nn.Module, torch.nn.Sequential for one."
        )
    for name, parameter in model.named_parameters():
        group = getattr(parameter, "group_name", "")  # of an expert, as deepspeed.moe marks it
        if getattr(parameter, "allreduce", True) is False and group != "ep_size_1":
            raise UsageError(
                f'[initialize] expected a module that every rank holds whole, got "{name}" of group "{group}", of which other ranks have '
                "other experts. This engine is not supported with expert parallelism: give MoE ep_size=1."
            )


def _is_managed(text: str) -> bool:
    """Whether the engine counts the passes of a step. DeepSpeed refuses overlap_comm without, at stages 0 and 1."""
    keys = _ranks.config_object(text) or {}
    zero_keys = keys.get("zero_optimization")
    if keys.get("managed_gradient_accumulation", True) is not False:
        return True
    if isinstance(zero_keys, dict) and zero_keys.get("overlap_comm") and zero_keys.get("stage", 0) < 2:
        raise UsageError(
            "[initialize] expected managed_gradient_accumulation without overlap_comm at stages 0 and 1, got both. DeepSpeed supports "
            "overlap_comm only with ZeRO stage 2 there: leave it out; equigrad.initialize takes it, and it changes nothing."
        )
    return False


def init_inference(*_: Any, **__: Any) -> NoReturn:
    """DeepSpeed's engine of inference, which splits a model by another API than that of training."""
    raise NotSupportedError(
        "[init_inference] expected a model to train, got a call for an engine of inference. Train with initialize() and "
        '"tensor_parallel"; for inference call the model itself, or give what engine.save_16bit_model() wrote to another program.'
    )


def take_over(package: Any) -> None:
    """Puts this engine in the place of DeepSpeed's own, in the imported package `deepspeed`.

    For programs, and tests, that say `import deepspeed` and cannot be edited. To be called before they are imported: a
    name that they have imported stays what it was.
    """
    from importlib import import_module

    def put(module: str, **names: Any) -> None:
        there = import_module(f"{package.__name__}.{module}" if module else package.__name__)
        for name, value in names.items():
            setattr(there, name, value)

    put("", initialize=initialize, DeepSpeedEngine=DeepSpeedEngine, DeepSpeedConfigError=ConfigError)
    put("", set_autotp_mode=set_autotp_mode, tp_model_init=tp_model_init)
    put("module_inject.layers", set_autotp_mode=set_autotp_mode)
    put("runtime.config", DeepSpeedConfigError=ConfigError)
    put(
        "runtime.zero.partition_parameters",
        Init=zero.Init,
        GatheredParameters=zero.GatheredParameters,
        ZeroParamStatus=zero.ZeroParamStatus,
    )
    put("runtime.zero", Init=zero.Init, GatheredParameters=zero.GatheredParameters)
    put("runtime.base_optimizer", ZeROOptimizer=Optimizer)
    put("runtime.engine", DeepSpeedEngine=DeepSpeedEngine)
    helpers = {name: getattr(runtime.torch_autocast, name) for name in runtime.torch_autocast.__all__}
    put("runtime.torch_autocast", **helpers)
    _take_over_sequences(put)
    put("utils.zero_to_fp32", **{name: getattr(zero_to_fp32, name) for name in _OF_THE_SCRIPT})
    put("checkpoint.ds_to_universal", main=checkpoint.ds_to_universal.main)
    for module in ("utils", "utils.tensor_fragment", "utils.z3_leaf_module"):
        put(module, **{name: getattr(equigrad.utils, name) for name in equigrad.utils.__all__})
    there = import_module(f"{package.__name__}.utils.groups")
    for name in utils.groups.__all__:
        put("utils.groups", **{name: utils.groups.or_theirs(getattr(utils.groups, name), getattr(there, name, None))})


def _take_over_sequences(put: Any) -> None:
    there, state = runtime.sequence_parallel.ulysses_sp, runtime.sequence_parallel.parallel_state_sp
    functions = {name: getattr(state, name) for name in dir(state) if name.startswith(("get_", "initialize_"))}
    try:
        put("runtime.sequence_parallel.parallel_state_sp", **functions)
        put("sequence.layer", DistributedAttention=sequence.layer.DistributedAttention)
        put(
            "runtime.sequence_parallel.ulysses_sp",
            UlyssesSPAttentionHF=there.UlyssesSPAttentionHF,
            UlyssesSPDataLoaderAdapter=there.UlyssesSPDataLoaderAdapter,
        )
    except ImportError:
        pass  # DeepSpeed's modules of sequences need packages that it does not install (einops)


def _is_partitioned(model: torch.nn.Module) -> bool:
    """Whether zero.Init made it: its parameters have no data to convert."""
    return not all(zero.is_here(p) for p in model.parameters())


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config, which `initialize(args=...)` reads."""
    group = parser.add_argument_group("DeepSpeed", "configuration")
    group.add_argument("--deepspeed", default=False, action="store_true", help="accepted; initialize() decides")
    group.add_argument("--deepspeed_config", default=None, type=str, help="path of the configuration")
    return parser
