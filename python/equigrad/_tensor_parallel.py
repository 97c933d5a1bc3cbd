"""Tensor parallelism: sizes from all who may say them, the mesh, and a whole model cut for this rank by the core's plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from equigrad import _core, _ranks
from equigrad._split_logits import keep_parts
from equigrad._split_modules import count_own_heads, gathers_output, kind_of, share_keys, split_module, sum_gradients
from equigrad._split_random import split_random

_WHERE = "initialize"
_SECTION = "tensor_parallel"
_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# What Megatron, and layers of DeepSpeed's, set at a parameter of which every rank has a part.
_MARKS_OF_PARTS = ("tensor_model_parallel", "model_parallel")
# What tp_model_init has said, at the model.
_RECORD = "_equigrad_tensor_parallel"


# ---- Who says how large the group is ---------------------------------------------------------------------------------


class SizeError(_core.Error, ValueError):
    """Who says how ranks are grouped disagree: DeepSpeed raises ValueError."""


def set_autotp_mode(training: bool = False) -> None:
    """DeepSpeed's switch of its older way to start, which initialize() sets anew; nothing depends on it here, where models are
    trained."""


def tp_model_init(
    model: torch.nn.Module,
    tp_size: int,
    dtype: torch.dtype,
    config: Any = None,
    tp_group: Any = None,
) -> torch.nn.Module:
    """DeepSpeed's older way to say the size of the tensor group. What it is given is kept at the model, which stays whole until
    initialize(), and must agree with the configuration there. Returns the model.

    config: more of the section "tensor_parallel". tp_group: of torch.distributed; ranks of the mesh's tensor group, or an error.
    """
    where = "tp_model_init"
    if dtype not in _DTYPES:
        raise _core.Error(f"[{where}] expected float32, bfloat16 or float16, got {dtype}. Give one of them.")
    if tp_size < 1:
        raise _core.Error(
            f"[{where}] expected a tp_size of at least 1, got {tp_size}. Give the number of ranks of a tensor group."
        )
    said = {} if config is None else _section_of(_ranks.config_text([config], where))
    record = _agreed({"autotp_size": tp_size, "dtype": _DTYPES[dtype]}, said, "its arguments", "its config")
    before = model.__dict__.get(_RECORD)
    if before is not None:
        record = _agreed(before[0], record, "the first tp_model_init", "the second")
    model.__dict__[_RECORD] = (record, tp_group)
    return model


def _section_of(text: str) -> dict[str, Any]:
    config = _ranks.config_object(text) or {}
    section = config.get(_SECTION, config if "autotp_size" in config else {})
    return dict(section) if isinstance(section, dict) else {}


def _agreed(one: dict[str, Any], other: dict[str, Any], of_one: str, of_other: str) -> dict[str, Any]:
    """Both; an error that shows what they say where they disagree."""
    for key in sorted(set(one) & set(other)):
        if one[key] != other[key] and not (key == "autotp_size" and other[key] == 0):
            raise SizeError(
                f"[{_SECTION}.{key}] expected one value, got {json.dumps(one[key])} by {of_one} and {json.dumps(other[key])} by {of_other}. "
                "Say the same in both, or in one of them."
            )
    return {**other, **one}


def merged(text: str, model: torch.nn.Module, mpu: Any, mesh_device: Any) -> str:
    """The configuration with what tp_model_init, mpu and a DeviceMesh say of tensor parallelism; unchanged if they say nothing."""
    record, group = model.__dict__.get(_RECORD, ({}, None))
    sizes = _given_sizes(mpu, mesh_device)
    if not record and not sizes:
        return text
    if group is not None and mpu is not None:
        raise SizeError(
            f"[{_WHERE}] expected one source of groups, got two: tp_model_init provided tp_group, and initialize() has mpu. Give one."
        )
    config = _ranks.config_object(text)
    if config is None or not isinstance(config.get(_SECTION, {}), dict):
        return text  # the core says what is wrong with it
    section = config.get(_SECTION, {})
    if record:
        section = _agreed(record, section, "tp_model_init", "the configuration")
    for who, size in sizes:
        if size > 1 and _SECTION not in config and not record:
            raise _core.Error(
                f'[{_WHERE}] expected "{_SECTION}": {{"autotp_size": {size}}} in the configuration beside {who} with {size} ranks of a '
                "tensor group, got none. Add it, and give a whole model, which the engine cuts."
            )
        if size > 1 or section.get("autotp_size", 0) > 1:
            section = _agreed({"autotp_size": size}, section, who, "the configuration")
    return json.dumps({**config, _SECTION: section}) if section else text


def _given_sizes(mpu: Any, mesh_device: Any) -> list[tuple[str, int]]:
    sizes = []
    if mpu is not None:
        sizes.append(("mpu", int(_of_mpu(mpu, "world_size", 1))))
    if mesh_device is not None:
        sizes.append(("mesh_device", _size_of_dimension(mesh_device)))
    return sizes


def _of_mpu(mpu: Any, what: str, otherwise: Any = None) -> Any:
    """What Megatron's newer and older names, and DeepSpeed's, say of the tensor group."""
    for name in (f"get_tensor_model_parallel_{what}", f"get_slice_parallel_{what}", f"get_model_parallel_{what}"):
        call: Callable[[], Any] | None = getattr(mpu, name, None)
        if call is not None:
            return call()
    return otherwise


def _dimension_of(mesh_device: Any) -> str:
    names = mesh_device.mesh_dim_names or ()
    found = [name for name in ("tp", "tensor", "tensor_parallel") if name in names]
    if not found:
        raise _core.Error(
            f'[{_WHERE}] expected a dimension "tp" of mesh_device, got {list(names)}. Name it: init_device_mesh(device, (data, tensor), '
            'mesh_dim_names=("dp", "tp")).'
        )
    return found[0]


def _size_of_dimension(mesh_device: Any) -> int:
    return int(mesh_device[_dimension_of(mesh_device)].size())


def check_groups(model: torch.nn.Module, mesh: _core.Mesh, mpu: Any, mesh_device: Any) -> None:
    """That what the caller has of groups is where this rank's mesh has them (engine/comm/mesh.hpp)."""
    rank, world, size = mesh.world.rank, mesh.world.world_size, mesh.tensor_size
    own = list(range(rank - rank % size, rank - rank % size + size))
    peers = list(range(rank % size, world, size))
    given: list[tuple[str, Any, list[int]]] = [("tp_group", model.__dict__.get(_RECORD, ({}, None))[1], own)]
    if mpu is not None:
        given.append(("mpu's tensor group", _of_mpu(mpu, "group"), own))
        data = getattr(mpu, "get_data_parallel_group", None)
        given.append(("mpu's data group", data() if data is not None else None, peers))
        place = _of_mpu(mpu, "rank", rank % size)
        _check_ranks("mpu's rank in its tensor group", [place], [rank % size], rank)
    if mesh_device is not None:
        given.append(("mesh_device", mesh_device[_dimension_of(mesh_device)].get_group(), own))
    for who, group, expected in given:
        if isinstance(group, dist.ProcessGroup):
            _check_ranks(who, dist.get_process_group_ranks(group), expected, rank)


def _check_ranks(who: str, got: list[int], expected: list[int], rank: int) -> None:
    if list(got) != expected:
        raise _core.Error(
            f"[{_WHERE}] expected {who} to be {expected} on rank {rank}, got {list(got)}. Ranks of a tensor group are neighbours: rank = "
            "data x tensor size + place in the tensor group. Make the groups so, or leave them to the engine."
        )


# ---- Cutting a model -------------------------------------------------------------------------------------------------


def splits_nothing(text: str) -> bool:
    """Whether the configuration says of every module that it stays whole: specs of "skip", and no defaults."""
    specs = ((_ranks.config_object(text) or {}).get(_SECTION) or {}).get("partition_config") or {}
    layers = specs.get("layer_specs") or []
    return specs.get("use_default_specs") is False and bool(layers) and all(one.get("partition_type") == "skip" for one in layers)


def split_model(model: torch.nn.Module, config: _core.EngineConfig, mesh: _core.Mesh, may_be_whole: bool = False) -> str:
    """Makes `model`, which every rank has whole, this rank's part of rank 0's. Names, parameters and their order stay. Returns a
    line for each module: where it is, and by which rule. may_be_whole: nothing to split is no error."""
    group = mesh.tensor
    assert group is not None
    modules = {name: module for name, module in model.named_modules() if name}
    _check_can_be_cut(model, modules)
    candidates = [_candidate(name, module) for name, module in modules.items() if _weight_of(module) is not None]
    facts = _facts_of(model)
    plans, described = _core.plan_tensor_parallel(config, *facts, candidates)
    if not may_be_whole and not any(plan.weight is not None for plan in plans.values()):
        raise _core.Error(
            f'[{_SECTION}] expected modules to split, got none in a {type(model).__name__} of the type "{facts[0]}". Name its family at '
            '"preset_model", write specs in "partition_config", or drop "tensor_parallel".'
        )
    for parameter in model.parameters():
        _take_first_ranks(parameter, mesh.world)
    cut: set[int] = set()
    for name, plan in plans.items():
        if plan.weight is not None:
            _cut(modules[name], plan, group, cut)
            split_module(name, modules[name], plan, group)
            if plan.reason == "vocab_parallel_lm_head":
                keep_parts(model, name, group, plan.weight.shape[plan.weight.dimension])
        elif plan.sums_gradient:
            sum_gradients(modules[name], group)
    for name in sorted({one.rpartition(".")[0] for one, plan in plans.items() if _is_split_within(plan)}):
        if name:
            count_own_heads(name, modules[name], group.rank, group.world_size)
    _share_keys_of_latents(modules, plans, group)
    split_random(model, plans, group)
    return described


def check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, torch.optim.Optimizer) and optimizer.state:
        raise _core.Error(
            f"[{_WHERE}] expected an optimizer that has not stepped, got one with states of whole parameters, which initialize() cuts. Give "
            "a new one, or a callable that makes it."
        )


def _weight_of(module: torch.nn.Module) -> torch.nn.Parameter | None:
    return module._parameters.get("weight")


def _candidate(name: str, module: torch.nn.Module) -> tuple[str, _core.ModuleKind, list[int], bool, int]:
    weight = _weight_of(module)
    assert weight is not None
    return name, kind_of(module), list(weight.shape), module._parameters.get("bias") is not None, id(weight)


def _facts_of(model: torch.nn.Module) -> tuple[str, int, int, list[tuple[str, str]]]:
    config = getattr(model, "config", None)
    counts = [getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")]
    if counts[1] is None:
        counts[1] = getattr(config, "num_kv_heads", None)
    heads, key_value_heads = (count if isinstance(count, int) else 0 for count in counts)
    return str(getattr(config, "model_type", None) or ""), heads, key_value_heads, _plan_of(model)


def _plan_of(model: torch.nn.Module) -> list[tuple[str, str]]:
    """What a model of transformers says of itself: its configuration, its class, and the model, which may have been given another."""
    said = [
        getattr(getattr(model, "config", None), "base_model_tp_plan", None),
        getattr(type(model), "_tp_plan", None),
        model.__dict__.get("_tp_plan"),
    ]
    merged: dict[str, str] = {}
    for one in said:
        merged.update({str(pattern): str(style) for pattern, style in one.items()} if isinstance(one, dict) else {})
    return list(merged.items())


def _check_can_be_cut(model: torch.nn.Module, modules: dict[str, torch.nn.Module]) -> None:
    for name, module in modules.items():
        if "_equigrad_how" in module.__dict__:
            raise _core.Error(
                f'[{_WHERE}] expected a whole model, got one whose "{name}" was split for another engine. Make the model anew.'
            )
    for name, parameter in model.named_parameters():
        if any(getattr(parameter, mark, False) is True for mark in _MARKS_OF_PARTS):
            raise _core.Error(
                f'[{_WHERE}] expected a whole model, got one whose "{name}" is marked as a part that another library has cut. Give the '
                "model before it is cut: the engine cuts it."
            )
    config = getattr(model, "config", None)
    if getattr(config, "pretraining_tp", 1) > 1 and getattr(config, "slow_but_exact", False):
        raise _core.Error(
            f"[{_SECTION}] expected a model that calls its linears, got slow_but_exact, for which it takes parts of their weights "
            "itself. Set slow_but_exact=False."
        )


def _take_first_ranks(parameter: torch.nn.Parameter, ranks: _core.Communicator) -> None:
    with torch.no_grad():
        if parameter.numel() > 0:
            values = parameter.detach().contiguous()
            ranks.broadcast(values, 0)
            parameter.copy_(values)


def _cut(module: torch.nn.Module, plan: _core.ModulePlan, group: _core.Communicator, done: set[int]) -> None:
    assert plan.weight is not None
    splits = {"weight": plan.weight}
    if plan.placement == _core.Placement.Column and module._parameters.get("bias") is not None:
        splits["bias"] = _core.bias_split(plan.weight)
    for name, split in splits.items():
        parameter = module._parameters[name]
        assert parameter is not None
        if id(parameter) in done:
            continue
        done.add(id(parameter))
        parameter.grad = None
        parameter.data = _core.part_of(parameter.detach(), split, group.rank, group.world_size)
        _core.mark_split(parameter, split, group.world_size)


def _is_split_within(plan: _core.ModulePlan) -> bool:
    """Whether what is beside the module has a part of its activations."""
    return plan.weight is not None and not gathers_output(plan) and not plan.takes_whole_input


def _share_keys_of_latents(
    modules: dict[str, torch.nn.Module], plans: dict[str, _core.ModulePlan], group: _core.Communicator
) -> None:
    for name, module in modules.items():
        beside = name.removesuffix("kv_a_proj_with_mqa")
        heads = plans.get(beside + "kv_b_proj")
        if beside != name and heads is not None and heads.weight is not None and plans[name].weight is None:
            share_keys(module, heads.weight.shape[1], group)


# ---- Whole tensors ---------------------------------------------------------------------------------------------------


def whole_shape(parameter: torch.Tensor) -> list[int]:
    split = _core.split_of(parameter)
    return list(parameter.shape) if split is None else split.shape


def whole_of(parameter: torch.Tensor, group: _core.Communicator | None) -> torch.Tensor:
    """Of the parts that all ranks of the group have; what is whole as it is."""
    split = _core.split_of(parameter)
    if split is None or group is None:
        return parameter.detach()
    return _core.gather_from(parameter.detach(), split.dimension, group, split.segments)


def own_part(whole: torch.Tensor, parameter: torch.Tensor, group: _core.Communicator | None) -> torch.Tensor:
    split = _core.split_of(parameter)
    return whole if split is None or group is None else _core.part_of(whole, split, group.rank, group.world_size)
