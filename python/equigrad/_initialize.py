"""initialize(): from a model and a configuration to an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from equigrad import _core, _ranks, utils
from equigrad._engine import Engine
from equigrad._optimizer import Optimizer

_GROUP_KEYS = ("params", "lr", "weight_decay", "name")


def initialize(
    args: Any = None,
    model: torch.nn.Module | None = None,
    optimizer: Any = None,
    model_parameters: Iterable | None = None,
    training_data: Dataset | None = None,
    lr_scheduler: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable | None = None,
    config: str | os.PathLike | dict | None = None,
    config_params: str | os.PathLike | dict | None = None,
    *,
    engine_class: type[Engine] = Engine,
) -> tuple[Engine, Optimizer, DataLoader | None, Any]:
    """Makes an engine that trains `model`. Returns (engine, optimizer, dataloader, lr_scheduler).

    model: any unmodified torch.nn.Module, in fp32 (the engine makes 16-bit copies itself) or in the type it is to compute
        in. Rank 0's parameters and buffers become every rank's.
    model_parameters: which parameters to train, or groups of them as torch.optim takes them, with "lr" and "weight_decay"
        of their own; without it all that require a gradient.
    config: a DeepSpeed configuration: a dict, JSON text, or the path of a file. `args.deepspeed_config` is read without it.
    engine_class: what to make, the engine or a class derived from it.
    training_data: a data set, whose samples are split over the ranks by the returned loader, in micro-batches.

    Raises ConfigError with every problem at once, Error for a model that can't be trained, CommunicationError for ranks that
    do not come.
    """
    if model is None:
        raise _core.Error("[initialize] expected a model, got None. Give model=, any torch.nn.Module.")
    for name, given in (("optimizer", optimizer), ("lr_scheduler", lr_scheduler)):
        if given is not None:
            raise _core.Error(
                f"[initialize] expected no {name}, got a {type(given).__name__}. Name it in the configuration: "
                f'"{"scheduler" if name == "lr_scheduler" else name}".'
            )
    text = _ranks.config_text((config, config_params, getattr(args, "deepspeed_config", None)), "initialize")
    checked = _core.load_config(text, _ranks.world_size())
    utils.mark_configured_leaf_modules(model, *checked.leaf_modules)
    for name, module in model.named_modules():
        if utils.z3_leaf_module(module):
            checked.add_leaf_module(name)
    groups = _groups(model, model_parameters)
    frozen = _frozen_elsewhere(model, groups)
    device = _device(groups)
    ranks = _ranks.communicator(device, checked.communication_timeout_s)
    _broadcast_buffers(model, ranks)
    core = _core.initialize(
        [
            _core.ParameterGroup(group["named"] + more, group["values"].get("lr"), group["values"].get("weight_decay"))
            for group, more in zip(groups, [frozen] + [[]] * (len(groups) - 1), strict=True)
        ],
        _modules(model),
        checked,
        ranks,
    )
    names = {name: tensor for group in groups for name, tensor, _ in group["named"]}
    names |= {name: tensor for name, tensor, _ in frozen}
    shown = [{**group["values"], "params": [tensor for _, tensor, _ in group["named"]]} for group in groups]
    engine = engine_class(model, core, ranks, shown, names)
    if checked.autocast:
        _show_communication_types(model, checked)
    if training_data is not None:
        engine.training_dataloader = _loader(training_data, collate_fn, checked, ranks)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _type_names(model: torch.nn.Module) -> dict[str, str]:
    """By a module's name: torch.nn.Linear for torch's own, else where its class is defined."""
    names = {}
    for name, module in model.named_modules():
        kind = type(module)
        own = getattr(torch.nn, kind.__name__, None) is kind
        names[name] = f"torch.nn.{kind.__name__}" if own else f"{kind.__module__}.{kind.__qualname__}"
    return names


def _show_communication_types(model: torch.nn.Module, config: _core.EngineConfig) -> None:
    """DeepSpeed's name for the type in which torch_autocast sends a parameter: its `comm_dtype`."""
    types = _type_names(model)
    for name, module in model.named_modules():
        if types[name] in config.lower_precision_safe_modules:
            for parameter in module.parameters(recurse=False):
                parameter.comm_dtype = getattr(torch, config.autocast_dtype)


def _named(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter, str]]:
    types = _type_names(model)
    named = []
    # A tied parameter comes under every name, so that it belongs to every module that shares it.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        named.append((name, parameter, types[name.rpartition(".")[0]]))
    return named


def _modules(model: torch.nn.Module) -> list[tuple[str, str, list[torch.Tensor]]]:
    types = _type_names(model)
    return [(name, types[name], list(module.parameters(recurse=False))) for name, module in model.named_modules()]


def _groups(model: torch.nn.Module, model_parameters: Iterable | None) -> list[dict[str, Any]]:
    named = _named(model)
    if model_parameters is None:
        return [{"named": named, "values": {}}]
    given = list(model_parameters)
    if not given:
        raise _core.Error("[initialize] expected parameters in model_parameters, got none. Was an iterator used twice?")
    if not isinstance(given[0], dict):
        given = [{"params": given}]
    by_id: dict[int, list] = {}
    for one in named:
        by_id.setdefault(id(one[1]), []).append(one)
    groups = []
    for group in given:
        other = sorted(set(group) - set(_GROUP_KEYS))
        if other:
            raise _core.Error(
                f'[initialize] expected "params", "lr" and "weight_decay" in a parameter group, got "{other[0]}". Set it '
                'under "optimizer" in the configuration, for all groups.'
            )
        parameters = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        for at, parameter in enumerate(parameters):
            if isinstance(parameter, tuple):
                parameters[at] = parameter = parameter[1]
            if id(parameter) not in by_id:
                raise _core.Error(
                    f"[initialize] expected parameters of the model in model_parameters, got a tensor of shape "
                    f"{list(parameter.shape)} that is none. Give model.parameters(), or some of them."
                )
        groups.append(
            {
                "named": [one for parameter in parameters for one in by_id[id(parameter)]],
                "values": {key: value for key, value in group.items() if key != "params"},
            }
        )
    return groups


def _frozen_elsewhere(model: torch.nn.Module, groups: list[dict[str, Any]]) -> list[tuple[str, torch.nn.Parameter, str]]:
    """Frozen parameters in no group: the engine holds them too, for at stage 3 they are partitioned."""
    taken = {id(tensor) for group in groups for _, tensor, _ in group["named"]}
    return [one for one in _named(model) if not one[1].requires_grad and id(one[1]) not in taken]


def _device(groups: list[dict[str, Any]]) -> torch.device:
    for group in groups:
        for _, tensor, _ in group["named"]:
            return tensor.device
    return torch.device("cpu")


def _broadcast_buffers(model: torch.nn.Module, ranks: _core.Communicator) -> None:
    if ranks.world_size == 1:
        return
    with torch.no_grad():
        for buffer in model.buffers():
            if buffer.numel() == 0:
                continue
            values = buffer.detach().contiguous()
            carried = values.to(torch.uint8) if values.dtype == torch.bool else values
            ranks.broadcast(carried, 0)
            buffer.copy_(carried)


def _loader(data: Dataset, collate_fn: Callable | None, config: _core.EngineConfig, ranks: _core.Communicator) -> DataLoader:
    sampler = DistributedSampler(data, num_replicas=ranks.world_size, rank=ranks.rank)
    return DataLoader(data, batch_size=config.train_micro_batch_size_per_gpu, sampler=sampler, collate_fn=collate_fn)
