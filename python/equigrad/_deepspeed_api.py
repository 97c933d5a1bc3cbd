"""The methods of DeepSpeed's engine that are no methods of this one: what they answer here, or why they are refused.

`Engine.__getattr__` looks here, so that no such call is an AttributeError: what only reads the configuration is answered, and
what the engine cannot do raises NotSupportedError with the remedy. docs/deepspeed-api.md is made of these tables.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from equigrad._core import Error

if TYPE_CHECKING:
    from equigrad._engine import Engine


class NotSupportedError(Error, NotImplementedError):
    """A call of DeepSpeed's that this engine does not support. The text says what to do instead."""


class MissingAttributeError(NotSupportedError, AttributeError):
    """An attribute of DeepSpeed's engine that this engine does not have: hasattr() is false. The text says what there is instead."""


class Answer(NamedTuple):
    words: str
    of: Callable[[Engine], Any]
    is_property: bool = False


# ---- What is answered ------------------------------------------------------------------------------------------------


def _setting(engine: Engine, path: str, otherwise: Any = None) -> Any:
    """The value of a key of the configuration, as it holds here; `otherwise` for a key without effect that was not given."""
    text = engine._settings.get(path)
    return otherwise if text is None else json.loads(text)


def _section(engine: Engine, path: str) -> dict[str, Any]:
    inside = [key for key in engine._settings if key.startswith(path + ".") and "." not in key[len(path) + 1 :]]
    return {key[len(path) + 1 :]: _setting(engine, key) for key in inside}


def _key(path: str, old: str | None = None) -> Answer:
    """`old`: the name in whose place `path` is, if that one was given."""
    return Answer(
        f"`{path}` of the configuration",
        lambda engine: _setting(engine, path if old is None or path in engine._settings else old),
    )


def _idle(path: str, default: Any) -> Answer:
    """Of a key without effect."""
    return Answer(
        f"what the configuration says of `{path}`, which has no effect here; without it `{default!r}`",
        lambda engine: _setting(engine, path, default),
    )


def _always(value: Any, because: str) -> Answer:
    return Answer(f"`{value!r}`: {because}", lambda engine: value)


def _refused_key(path: str, value: Any = False) -> Answer:
    return _always(value, f'"{path}" is refused in the configuration')


def _tensor_rank(engine: Engine) -> int:
    group = engine._mesh.tensor
    return 0 if group is None else group.rank


def _offload(engine: Engine, what: str) -> dict[str, Any] | None:
    section = _section(engine, f"zero_optimization.{what}")
    is_on = section.get("device") == "cpu" or (what == "offload_optimizer" and _setting(engine, "zero_optimization.cpu_offload"))
    return {**section, "device": "cpu"} if is_on else None


def _by_group(engine: Engine, key: str) -> list[Any]:
    return [group.get(key, 0.0) for group in engine.optimizer.param_groups]


def _momentum(engine: Engine) -> list[Any]:
    return [group.get("betas", group.get("momentum", 0.0)) for group in engine.optimizer.param_groups]


def _optimizer_name(engine: Engine) -> str:
    client = engine.optimizer.client
    return str(_setting(engine, "optimizer.type")) if client is None else type(client).__name__


def _optimizer_params(engine: Engine) -> dict[str, Any] | None:
    return _section(engine, "optimizer.params") if engine.optimizer.client is None else None


def _scheduler_params(engine: Engine) -> dict[str, Any] | None:
    return _section(engine, "scheduler.params") if engine._living("scheduler_params").config.has_scheduler else None


def _layer_drop(engine: Engine) -> dict[str, Any] | bool:
    section = _section(engine, "progressive_layer_drop")
    is_on = section.pop("enabled")
    return section if is_on else False


def _theta(engine: Engine) -> float | None:
    core = engine._living("get_pld_theta")
    return float(core.layer_drop()["pld_theta"]) if core.config.progressive_layer_drop else None


def _dtype(name: str | None) -> torch.dtype | None:
    found: torch.dtype | None = None if name is None else getattr(torch, name)
    return found


def _autocast_dtype(engine: Engine) -> torch.dtype | None:
    config = engine._living("torch_autocast_dtype").config
    return _dtype(config.autocast_dtype) if config.autocast else None


def _data_types(engine: Engine) -> tuple[torch.dtype | None, torch.dtype | None]:
    config = engine._living("get_data_types").config
    return _dtype(config.compute_dtype), _dtype(config.accumulate_dtype)


def _loss_scale_args(engine: Engine) -> dict[str, Any]:
    names = {
        "scale_window": "loss_scale_window",
        "delayed_shift": "hysteresis",
        "consecutive_hysteresis": "consecutive_hysteresis",
        "min_scale": "min_loss_scale",
    }
    first = {"init_scale": 2 ** _setting(engine, "fp16.initial_scale_power")}
    return first | {name: _setting(engine, f"fp16.{key}") for name, key in names.items()}


_NO_DEEPCOMPILE = "DeepCompile is not supported"

ANSWERED: dict[str, Answer] = {
    # the batch and the ranks
    "get_batch_info": Answer(
        "the three numbers themselves",
        lambda e: (e.train_batch_size(), e.train_micro_batch_size_per_gpu(), e.gradient_accumulation_steps()),
    ),
    "get_data_parallel_rank": Answer("the rank among those with samples of their own", lambda e: e.data_parallel_rank),
    "get_tensor_parallel_rank": Answer("the rank in the tensor group", lambda e: _tensor_rank(e)),
    "get_model_parallel_rank": Answer("the rank in the tensor group", lambda e: _tensor_rank(e)),
    "get_sequence_parallel_group": Answer(
        "of torch.distributed, on the drop-in's engine; `None` where a sequence has one rank",
        lambda e: getattr(e, "seq_parallel_group", None),
    ),
    "is_first_weights_partition_group": Answer("whether the stage is 3", lambda e: e.zero_optimization_stage() == 3),
    "autotp_size": _key("tensor_parallel.autotp_size"),
    "elasticity_enabled": _refused_key("elasticity"),
    "is_elastic_model_parallel_supported": _refused_key("elasticity"),
    "managed_gradient_accumulation": _key("managed_gradient_accumulation"),
    "dataloader_drop_last": _key("dataloader_drop_last"),
    "is_map_style_dataset": Answer(
        "the same", lambda e: lambda obj: hasattr(obj, "__getitem__") and hasattr(obj, "__len__"), is_property=True
    ),
    "is_iterable_style_dataset": Answer(
        "the same", lambda e: lambda obj: isinstance(obj, torch.utils.data.IterableDataset), is_property=True
    ),
    # gradients
    "sparse_gradients_enabled": _always(
        False, '"sparse_gradients" is refused, and so is a sparse gradient: build embeddings with `sparse=False`'
    ),
    "postscale_gradients": Answer("not `prescale_gradients`", lambda e: not _setting(e, "prescale_gradients")),
    "gradient_predivide_factor": _key("gradient_predivide_factor"),
    "communication_data_type": Answer(
        "the `torch.dtype` that the configuration names, else None: each gradient is sent in the type it has; nothing may be assigned",
        lambda e: _dtype(e._living("communication_data_type").config.communication_dtype),
        is_property=True,
    ),
    "get_data_types": Answer("those of parameters and of added-up gradients", _data_types),
    # optimizer, schedule, loss scale
    "optimizer_name": Answer("the class of the caller's optimizer, else `optimizer.type`", _optimizer_name),
    "optimizer_params": Answer("every parameter of the configured optimizer, with the value that holds", _optimizer_params),
    "optimizer_legacy_fusion": _refused_key("optimizer.legacy_fusion"),
    "scheduler_name": _key("scheduler.type"),
    "scheduler_params": Answer("every parameter of the configured scheduler, with the value that holds", _scheduler_params),
    "get_type": Answer("the same", lambda e: _by_group(e, "type")),
    "get_mom": Answer("by group, betas where there are some, else the momentum", _momentum),
    "zero_allow_untested_optimizer": _idle("zero_allow_untested_optimizer", False),
    "zero_force_ds_cpu_optimizer": _idle("zero_force_ds_cpu_optimizer", True),
    "loss_scale": _key("fp16.loss_scale"),
    "dynamic_loss_scale": Answer(
        "whether the loss scale changes by itself: false where there is none",
        lambda e: e._living("dynamic_loss_scale").config.dynamic_loss_scale,
    ),
    "initial_dynamic_scale": Answer("the same", lambda e: 2 ** _setting(e, "fp16.initial_scale_power")),
    "dynamic_loss_scale_args": Answer("the same", _loss_scale_args),
    # precision
    "fp16_enabled": Answer("the same", lambda e: e._living("fp16_enabled").config.compute_dtype == "float16"),
    "bfloat16_enabled": Answer("the same", lambda e: e._living("bfloat16_enabled").config.compute_dtype == "bfloat16"),
    "fp16_auto_cast": _key("fp16.auto_cast"),
    "fp16_master_weights_and_gradients": _key("fp16.fp16_master_weights_and_grads"),
    "bf16_master_weights_and_gradients": _key("bf16.bf16_master_weights_and_grads", "bfloat16.bf16_master_weights_and_grads"),
    "bf16_optimizer_states": _key("bf16.bf16_optimizer_states", "bfloat16.bf16_optimizer_states"),
    "amp_enabled": _key("amp.enabled"),
    "amp_params": Answer("every key of `amp`, with the value that holds", lambda e: _section(e, "amp")),
    "torch_autocast_enabled": Answer("the same", lambda e: e._living("torch_autocast_enabled").config.autocast),
    "torch_autocast_dtype": Answer("the same; None without torch_autocast", _autocast_dtype),
    "torch_autocast_lower_precision_safe_modules": Answer(
        "their full names", lambda e: e._living("torch_autocast").config.lower_precision_safe_modules
    ),
    # ZeRO
    "zero_optimization_partition_gradients": Answer("the same", lambda e: e.zero_optimization_stage() >= 2),
    "zero_optimization_partition_weights": Answer("the same", lambda e: e.zero_optimization_stage() == 3),
    "zero_overlap_comm": _key("zero_optimization.overlap_comm"),
    "zero_reduce_bucket_size": _key("zero_optimization.reduce_bucket_size"),
    "zero_allgather_bucket_size": _key("zero_optimization.allgather_bucket_size"),
    "zero_prefetch_bucket_size": _key("zero_optimization.stage3_prefetch_bucket_size"),
    "zero_param_persistence_threshold": _key("zero_optimization.stage3_param_persistence_threshold"),
    "zero_max_live_parameters": _key("zero_optimization.stage3_max_live_parameters"),
    "zero_max_reuse_distance": _key("zero_optimization.stage3_max_reuse_distance"),
    "zero_offload_optimizer": Answer("the section as a dict; None if it is off", lambda e: _offload(e, "offload_optimizer")),
    "zero_offload_param": Answer("the section as a dict; None if it is off", lambda e: _offload(e, "offload_param")),
    "zero_cpu_offload": Answer("the same", lambda e: _offload(e, "offload_optimizer") is not None),
    "zero_use_cpu_optimizer": Answer("the same", lambda e: _offload(e, "offload_optimizer") is not None),
    "zero_partial_offload": _key("zero_optimization.offload_optimizer.ratio"),
    "zero_nvme_offload_optimizer": _always(False, "there is no offloading to a disk"),
    "super_offload": _refused_key("zero_optimization.offload_optimizer.super_offload"),
    "cpuadam_cores_perc": _idle("zero_optimization.offload_optimizer.cpuadam_cores_perc", 0.9),
    "zero_sub_group_size": _idle("zero_optimization.sub_group_size", 1_000_000_000),
    "zero_contiguous_gradients": _idle("zero_optimization.contiguous_gradients", True),
    "zero_reduce_scatter": _idle("zero_optimization.reduce_scatter", True),
    "zero_multi_rank_bucket_allreduce": _idle("zero_optimization.use_multi_rank_bucket_allreduce", True),
    "zero_allgather_partitions": _idle("zero_optimization.allgather_partitions", True),
    "zero_allgather_sequential": _idle("zero_optimization.stage3_allgather_sequential", False),
    "zero_round_robin_gradients": _idle("zero_optimization.round_robin_gradients", False),
    "zero_load_from_fp32_weights": _idle("zero_optimization.load_from_fp32_weights", True),
    "zero_gather_16bit_weights_on_model_save": _key("zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    "zero_log_trace_cache_warnings": _idle("zero_optimization.log_trace_cache_warnings", False),
    "empty_partition_cache": _always(
        None, "between steps a rank holds its shards, and parameters small enough to persist; nothing else could be released"
    ),
    "zero_grad_hooks": _always(True, "gradients are always taken as they become ready"),
    "is_sanity_checks_enabled": _always(True, "the checks are always on"),
    "zero_ignore_unused_parameters": _always(True, "unused parameters are left untouched"),
    "zero_legacy_stage1": _refused_key("zero_optimization.legacy_stage1"),
    "zero_elastic_checkpoint": _idle("zero_optimization.elastic_checkpoint", False),
    "zero_save_muon_momentum_buffer_in_memory": _refused_key("zero_optimization.save_muon_momentum_buffer_in_memory"),
    "zero_module_granularity_threshold": _refused_key("zero_optimization.stage3_module_granularity_threshold", 0),
    "zero_model_persistence_threshold": _refused_key("zero_optimization.stage3_model_persistence_threshold", sys.maxsize),
    "zero_hpz_partition_size": _refused_key("zero_optimization.zero_hpz_partition_size", 1),
    "zero_quantized_weights": _refused_key("zero_optimization.zero_quantized_weights"),
    "zero_quantized_nontrainable_weights": _refused_key("zero_optimization.zero_quantized_nontrainable_weights"),
    "zero_quantized_gradients": _refused_key("zero_optimization.zero_quantized_gradients"),
    "zeropp_loco_param": _refused_key("zero_optimization.zeropp_loco_param", None),
    "zenflow_config": _refused_key("zero_optimization.zenflow", None),
    "mics_shard_size": _refused_key("zero_optimization.mics_shard_size", -1),
    # features
    "pld_enabled": _key("progressive_layer_drop.enabled"),
    "pld_theta": _key("progressive_layer_drop.theta"),
    "pld_gamma": _key("progressive_layer_drop.gamma"),
    "pld_params": Answer("`theta` and `gamma`; False if it is off", _layer_drop),
    "get_pld_theta": Answer("that of the last forward pass; None if it is off", _theta),
    "flops_profiler_enabled": _key("flops_profiler.enabled"),
    "flops_profiler_recompute_fwd_factor": _key("flops_profiler.recompute_fwd_factor"),
    "flops_profiler_profile_step": _key("flops_profiler.profile_step"),
    "flops_profiler_module_depth": _key("flops_profiler.module_depth"),
    "flops_profiler_top_modules": _key("flops_profiler.top_modules"),
    "flops_profiler_detailed": _key("flops_profiler.detailed"),
    "flops_profiler_output_file": _key("flops_profiler.output_file"),
    "eigenvalue_enabled": _refused_key("eigenvalue"),
    "curriculum_enabled_legacy": _refused_key("curriculum_learning"),
    "curriculum_learning_enabled": _refused_key("data_efficiency"),
    "data_efficiency_enabled": _refused_key("data_efficiency"),
    "data_sampling_enabled": _refused_key("data_efficiency"),
    "random_ltd_enabled": _refused_key("data_efficiency"),
    "autotuning_enabled": _refused_key("autotuning"),
    "graph_harvesting": _refused_key("graph_harvesting"),
    "checkpoint_serialization_enabled": _always(False, "nothing is pickled: a checkpoint is safetensors and JSON"),
    "checkpoint_writer_enabled": _always(False, "there is one writer"),
    "checkpoint_tag_validation_enabled": _always(True, "ranks with different tags get an error"),
    "checkpoint_tag_validation_fail": _always(True, "ranks with different tags get an error"),
    "load_universal_checkpoint": _idle("checkpoint.load_universal", False),
    "use_node_local_storage": _always(False, "all ranks write into one folder that they share"),
    "is_deepcompile_enabled": _always(False, _NO_DEEPCOMPILE),
    "is_deepcompile_active": _always(False, _NO_DEEPCOMPILE),
    "compile_zero_optimization_stage": _always(False, _NO_DEEPCOMPILE),
    "compile_autosp": _always(False, _NO_DEEPCOMPILE),
    "compile_autotp": _always(False, _NO_DEEPCOMPILE),
    "uses_parallelization_pass_only": _always(False, _NO_DEEPCOMPILE),
    "is_compiled": Answer(
        "whether compile() was called", lambda e: e.module._compiled_call_impl is not None, is_property=True
    ),
    # what DeepSpeed prints
    "steps_per_print": _idle("steps_per_print", None),
    "wall_clock_breakdown": _idle("wall_clock_breakdown", False),
    "memory_breakdown": _idle("memory_breakdown", False),
    "dump_state": _idle("dump_state", False),
    "log_level": _idle("log_level", None),
    "aio_config": _idle("aio", {}),
}

# ---- Attributes ------------------------------------------------------------------------------------------------------


def _local_rank(engine: Engine) -> int:
    return int(os.environ.get("LOCAL_RANK", engine.global_rank))


def _sequence_size(engine: Engine) -> int:
    group = engine._mesh.sequence
    return 1 if group is None else group.world_size


def _client(engine: Engine) -> Any:
    return engine.optimizer.client


# Of instances of DeepSpeed's engine, which no class shows.
ATTRIBUTES: dict[str, Answer] = {
    "local_rank": Answer("`LOCAL_RANK`, or the rank", _local_rank),
    "config": Answer("the configuration as it was given, as a dict", lambda e: e._given_config),
    "client_optimizer": Answer("the optimizer that initialize() was given, or None", _client),
    "basic_optimizer": Answer("the optimizer that initialize() was given, or None", _client),
    "param_names": Answer("the name of each parameter", lambda e: {value: name for name, value in e.module.named_parameters()}),
    "dist_backend": Answer("`gloo` or `nccl`", lambda e: "gloo" if e.device.type == "cpu" else "nccl"),
    "gradient_average": Answer("`True`: gradients are averages", lambda e: True),
    "sequence_parallel_size": Answer("the same", _sequence_size),
    "seq_dp_world_size": Answer(
        "ranks that add up gradients of a parameter", lambda e: e.dp_world_size * _sequence_size(e)
    ),
    "has_moe_layers": Answer("`False`: there is no expert parallelism", lambda e: False),
    "num_experts": Answer("`[]`: there is no expert parallelism", lambda e: []),
    "moe_layers": Answer("`[]`: there is no expert parallelism", lambda e: []),
    "gate_modules": Answer("`[]`: there is no expert parallelism", lambda e: []),
    "zenflow": Answer("`False`: it is refused in the configuration", lambda e: False),
    "optimized_linear_lora_enabled": Answer("`False`: there are no optimized linear layers", lambda e: False),
    "optimized_linear_base_weight_sharding": Answer("`False`: there are no optimized linear layers", lambda e: False),
}

_TIMERS = "No timers are kept. Use torch.profiler; every phase has a span."
_INSIDE = "It is inside of DeepSpeed's engine. Open an issue that says what it is needed for."
# Attributes that are not here, and what there is instead.
MISSING: dict[str, str] = {
    "client_lr_scheduler": "engine.lr_scheduler is the scheduler that runs.",
    "training_data": "engine.training_dataloader is made of it.",
    "collate_fn": "engine.training_dataloader has it.",
    "mpu": "Sizes and places are get_data_parallel_rank() and its like; equigrad.parallel has groups.",
    "monitor": "Monitors are refused in the configuration. Log get_global_grad_norm(), get_lr() and the loss yourself.",
    "losses": "engine.backward() returns the loss divided by the number of micro-batches.",
    "scale_wrt_gas": "engine.backward(loss, scale_wrt_gas=...) takes it, call by call.",
    "checkpoint_engine": "engine.save_checkpoint() and load_checkpoint() are all there is.",
    "save_zero_checkpoint": "engine.save_checkpoint() writes shards on every rank.",
    "save_non_zero_checkpoint": "engine.save_checkpoint() writes shards on every rank.",
    "timers": _TIMERS,
    "tput_timer": _TIMERS,
    "engine_timers": _TIMERS,
    "engine_timers_cache": _TIMERS,
    "flatten": "Parameters stay the tensors that they are; no flat one holds them.",
    "unflatten": "Parameters stay the tensors that they are; no flat one holds them.",
    "dont_change_device": _INSIDE,
    "all_to_all_group": _INSIDE,
    "local_all_to_all_group": _INSIDE,
    "seq_data_parallel_group": _INSIDE,
    "expert_parallel_group": "There is no expert parallelism.",
    "expert_data_parallel_group": "There is no expert parallelism.",
    "enable_backward_allreduce": "no_sync() leaves reductions out, at stages 0 and 1.",
    "warn_unscaled_loss": "A backward pass of a loss that needs a scale and has none is an error.",
    "loaded_checkpoint_mp_world_size": "`equigrad checkpoint inspect` says what wrote a checkpoint.",
    "loaded_checkpoint_dp_world_size": "`equigrad checkpoint inspect` says what wrote a checkpoint.",
    "use_ds_comm": _INSIDE,
    "mesh_device": _INSIDE,
    "module_forward_pre_hook": _INSIDE,
    "module_forward_post_hook": _INSIDE,
    "torch_autocast_z0_gradscaler": "engine.cur_scale is the loss scale.",
}


# ---- What is refused -------------------------------------------------------------------------------------------------

_REDUCE = (
    "engine.step() reduces at the accumulation boundary, in the engine's own order. set_gradient_accumulation_boundary() moves the "
    "boundary, and no_sync() leaves reductions out."
)
_SPARSE = 'Gradients are dense here, and a sparse one is an error. Build embeddings with sparse=False, and drop "sparse_gradients".'
_DATA = "Give initialize() training_data= and collate_fn=, or use a torch.utils.data.DataLoader with a DistributedSampler."
_EFFICIENCY = '"data_efficiency" and "curriculum_learning" are refused in the configuration. Choose and cut samples in the data loader.'
_EIGENVALUE = '"eigenvalue" is refused in the configuration. In C++ call equigrad::profile::eigenvalue.'
_AUTOTUNING = '"autotuning" is refused in the configuration. Drop the call.'
_COMPILE = "DeepCompile is not supported. engine.compile() is, and so is torch.compile of the model or of a part of it."
_OFFLOAD = (
    'Set "offload_optimizer": {"device": "cpu"} (stages 1-3) or "offload_param": {"device": "cpu"} (stage 3): what is offloaded stays '
    "on the CPU between its uses."
)

REFUSED: dict[str, str] = {
    "load_moe_state_dict": "There is no expert parallelism: every rank's model has all experts, and load_checkpoint() loads them.",
    "allreduce_gradients": _REDUCE,
    "allreduce_bucket": _REDUCE,
    "allreduce_and_copy": _REDUCE,
    "allreduce_no_retain": _REDUCE,
    "buffered_allreduce_fallback": _REDUCE,
    "all_gather_scalar": "Use torch.distributed.all_gather_object, after init_distributed().",
    "sparse_allreduce": _SPARSE,
    "sparse_allreduce_bucket": _SPARSE,
    "sparse_allreduce_no_retain": _SPARSE,
    "sparse_all_gather": _SPARSE,
    "clip_fp32_gradients": (
        'engine.step() clips, to "gradient_clipping" of the configuration; utils.safe_set_full_grad(parameter, value) changes a '
        "gradient before it."
    ),
    "coalesce_grad_reduction": (
        "equigrad.deepspeed.initialize() makes an engine that has it; it changes no bit and saves no communication. Leave it out."
    ),
    "set_train_micro_batch_size": (
        'Make an engine with another "train_micro_batch_size_per_gpu"; set_train_batch_size() changes the accumulation steps.'
    ),
    "deepspeed_io": _DATA,
    "set_data_post_process_func": _DATA,
    "set_custom_curriculum_learning_schedule": _EFFICIENCY,
    "curriculum_params_legacy": _EFFICIENCY,
    "curriculum_learning_config": _EFFICIENCY,
    "data_efficiency_config": _EFFICIENCY,
    "data_sampling_config": _EFFICIENCY,
    "random_ltd_config": _EFFICIENCY,
    "random_ltd_initialize": _EFFICIENCY,
    "eigenvalue_verbose": _EIGENVALUE,
    "eigenvalue_max_iter": _EIGENVALUE,
    "eigenvalue_tol": _EIGENVALUE,
    "eigenvalue_stability": _EIGENVALUE,
    "eigenvalue_gas_boundary_resolution": _EIGENVALUE,
    "eigenvalue_layer_name": _EIGENVALUE,
    "eigenvalue_layer_num": _EIGENVALUE,
    "autotuning_start_profile_step": _AUTOTUNING,
    "autotuning_end_profile_step": _AUTOTUNING,
    "autotuning_metric_path": _AUTOTUNING,
    "autotuning_model_info_path": _AUTOTUNING,
    "autotuning_metric": _AUTOTUNING,
    "autotuning_profile_model_info": _AUTOTUNING,
    "quantize_training": '"quantize_training" is refused in the configuration. Quantize the model before initialize().',
    "tensor_parallel_config": "It is an object of DeepSpeed's. Read autotp_size() and tensor_parallel_plan.",
    "swap_tensor_config": "Nothing is offloaded to a disk. " + _OFFLOAD,
    "offload_states": _OFFLOAD,
    "reload_states": _OFFLOAD,
    "get_autosp_backend": _COMPILE,
    "get_autotp_backend": _COMPILE,
    "get_deepcompile_backend": _COMPILE,
    "get_deepspeed_compile_backend": _COMPILE,
    "get_compile_time": _COMPILE,
    "register_compile_pass": _COMPILE,
    "get_wall_clock_timers": _TIMERS,
    "print_forward_breakdown": _TIMERS,
}

# ---- Methods that the engine has, and that differ --------------------------------------------------------------------

DIFFERENT: dict[str, str] = {
    "backward": "a pass that throws counts nowhere; in the drop-in a loss that is no scalar is an AssertionError",
    "coalesce_grad_reduction": "the drop-in's; changes no bit and saves no communication",
    "compile": "compiles the model in place; a `schedule` and compiled autograd are refused",
    "destroy": "gives the parameters back to the model, at stage 3 without their data",
    "forward": "an error of a gather at stage 3 is raised here",
    "get_global_grad_norm": "NaN where the gradient was not finite",
    "gradient_clipping": "0, off, where the configuration names none",
    "load_checkpoint": "safetensors, with digests that are checked (check_digests=False: not those of tensors); any number of ranks "
    "and any stage; custom_load_fn is refused",
    "load_module_state_dict": "masters follow; the same state dict on every rank; custom_load_fn runs on rank 0",
    "module_state_dict": "at stage 3 whole copies on the CPU of every rank, where DeepSpeed's are empty; collective there",
    "save_16bit_model": "safetensors by the name of the file; written beside it, and renamed",
    "save_checkpoint": "at a boundary; client_state holds values, of which none is pickled; rank 0's is kept; `asynchronous` is more",
    "set_gradient_accumulation_boundary": "None gives the decision back to the count of passes",
    "set_train_batch_size": "between two windows of accumulation",
    "zero_grad": "empties the accumulation window",
}


# ---- Looking -----------------------------------------------------------------------------------------------------------


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise NotSupportedError(f"[engine.{name}] expected a call that this engine supports, got {name}(). {REFUSED[name]}")


def knows(name: str) -> bool:
    """Whether a table has the name: of what no class here has."""
    return name in ANSWERED or name in REFUSED or name in ATTRIBUTES or name in MISSING


def attribute(engine: Engine, name: str) -> Any:
    """What `engine.name` is, of a name that is known here."""
    if name in REFUSED:
        return partial(_refuse, name)
    if name in MISSING:
        raise MissingAttributeError(f"[engine.{name}] expected an attribute that this engine has, got {name}. {MISSING[name]}")
    if name in ATTRIBUTES:
        return ATTRIBUTES[name].of(engine)
    answer = ANSWERED[name]
    return answer.of(engine) if answer.is_property else partial(answer.of, engine)
