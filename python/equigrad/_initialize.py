"""initialize(): from a model and a configuration to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from equigrad import _client, _core, _ranks, _tensor_parallel, _transformers_attention, utils
from equigrad._engine import Engine
from equigrad._handles import marked
from equigrad._optimizer import Optimizer
from equigrad._split_modules import whole_type

_GROUP_KEYS = ("params", "lr", "weight_decay", "name")


def initialize(
    args: Any = None,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    model_parameters: Iterable[Any] | None = None,
    training_data: Dataset[Any] | None = None,
    lr_scheduler: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    config: _ranks.Config | None = None,
    config_params: _ranks.Config | None = None,
    *,
    mpu: Any = None,
    mesh_device: Any = None,
    engine_class: type[Engine] = Engine,
) -> tuple[Engine, Optimizer, DataLoader[Any] | None, Any]:
    """Makes an engine that trains `model`. Returns (engine, optimizer, dataloader, lr_scheduler).

    model: any unmodified torch.nn.Module, in fp32 (the engine makes 16-bit copies itself) or in the type it is to compute
        in. Rank 0's parameters and buffers become every rank's.
    model_parameters: which parameters to train, or groups of them as torch.optim takes them, with "lr" and "weight_decay"
        of their own; without it all that require a gradient.
    optimizer: instead of the configured one, a torch.optim.Optimizer whose param_groups hold the parameters to train, or a
        callable that makes one of model_parameters. It steps over this rank's flat slices, so it must be element-wise; that is
        checked.
    lr_scheduler: one of torch.optim.lr_scheduler on that optimizer, or a callable that takes the optimizer. engine.step()
        steps it after every update.
    config: a DeepSpeed configuration: a dict, JSON text, or the path of a file. `args.deepspeed_config` is read without it.
    mpu, mesh_device: who says how large the tensor group is, where the configuration does not: an object of Megatron's functions
        (get_tensor_model_parallel_world_size, ...), or a torch DeviceMesh with a dimension "tp". Their groups must be those of
        the engine: neighbours (docs/parallel.md).
    engine_class: what to make, the engine or a class derived from it.
    training_data: a data set, whose samples are split over the ranks by the returned loader, in micro-batches.

    Raises ConfigError with every problem at once, Error for a model that can't be trained, CommunicationError for ranks that
    do not come.
    """
    if model is None:
        raise _core.Error("[initialize] expected a model, got None. Give model=, any torch.nn.Module.")
    text = _ranks.config_text((config, config_params, getattr(args, "deepspeed_config", None)), "initialize")
    text = _tensor_parallel.merged(text, model, mpu, mesh_device)
    load = _core.load_config if optimizer is None else _core.load_config_for_client
    checked = load(text, _ranks.world_size())
    if lr_scheduler is not None and checked.has_scheduler:
        raise _core.Error(
            '[initialize] expected one scheduler, got lr_scheduler and "scheduler" in the configuration. Drop one of them.'
        )
    utils.mark_configured_leaf_modules(model, *checked.leaf_modules)
    for name, module in model.named_modules():
        if utils.z3_leaf_module(module):
            checked.add_leaf_module(name)
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    mesh = _ranks.mesh(device, checked.communication_timeout_s, checked.sequence_parallel_size, checked.tensor_parallel_size)
    _tensor_parallel.check_groups(model, mesh, mpu, mesh_device)
    plan = ""
    if checked.tensor_parallel_size > 1:
        _tensor_parallel.check_optimizer(optimizer)
        plan = _tensor_parallel.split_model(model, checked, mesh, _tensor_parallel.splits_nothing(text))
    client = None
    if optimizer is not None:
        if model_parameters is None:
            model_parameters = [one for one in model.parameters() if one.requires_grad]
        client = _client.make_optimizer(optimizer, model_parameters)
        groups = _groups(model, [{"params": group["params"]} for group in client.param_groups], "the optimizer's groups")
    else:
        groups = _groups(model, model_parameters)
    frozen = _frozen_elsewhere(model, groups)
    if client is not None:
        _client.check_element_wise(client, device)
    if lr_scheduler is not None:
        _client.check_scheduler(lr_scheduler, client)
    broadcast_buffers(model, mesh.world)
    settings = [""] * len(groups) if client is None else _client.settings_of(client)
    core = _core.initialize(
        [
            _core.ParameterGroup(group["named"] + more, group["values"].get("lr"), group["values"].get("weight_decay"), words)
            for group, more, words in zip(groups, [frozen] + [[]] * (len(groups) - 1), settings, strict=True)
        ],
        module_entries(model),
        checked,
        mesh,
        None if client is None else _client.Client(client),
    )
    names = {name: tensor for group in groups for name, tensor, _ in group["named"]}
    names |= {name: tensor for name, tensor, _ in frozen}
    shown = [{**group["values"], "params": _once(tensor for _, tensor, _ in group["named"])} for group in groups]
    engine = engine_class(model, core, mesh, shown, names, client)
    engine.tensor_parallel_plan = plan
    if engine_class.splits_sequences:
        engine.attached_attention = _transformers_attention.attach(model, mesh.sequence)
    engine._given_config = _ranks.config_object(text) or {}
    engine._settings = _core.settings(text, mesh.world.world_size, client is not None)
    if lr_scheduler is not None:
        stepped = engine.optimizer if client is None else client
        engine.lr_scheduler = lr_scheduler(stepped) if callable(lr_scheduler) else lr_scheduler
    if checked.autocast:
        _show_communication_types(model, checked)
    if training_data is not None:
        engine.training_dataloader = _loader(training_data, collate_fn, checked, engine)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _type_names(model: torch.nn.Module) -> dict[str, str]:
    """By a module's name: torch.nn.Linear for torch's own, else where its class is defined."""
    names = {}
    for name, module in model.named_modules():
        kind = whole_type(module)
        own = getattr(torch.nn, kind.__name__, None) is kind
        names[name] = f"torch.nn.{kind.__name__}" if own else f"{kind.__module__}.{kind.__qualname__}"
    return names


def _show_communication_types(model: torch.nn.Module, config: _core.EngineConfig) -> None:
    """DeepSpeed's name for the type in which torch_autocast sends a parameter: its `comm_dtype`."""
    types = _type_names(model)
    for name, module in model.named_modules():
        if types[name] in config.lower_precision_safe_modules:
            for parameter in module.parameters(recurse=False):
                marked(parameter).comm_dtype = getattr(torch, config.autocast_dtype)


def named_parameters(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter, str]]:
    types = _type_names(model)
    named = []
    # A tied parameter comes under every name, so that it belongs to every module that shares it.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        named.append((name, parameter, types[name.rpartition(".")[0]]))
    return named


def module_entries(model: torch.nn.Module) -> list[tuple[str, str, list[torch.Tensor]]]:
    types = _type_names(model)
    return [(name, types[name], list(module.parameters(recurse=False))) for name, module in model.named_modules()]


def _once(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """A tied parameter comes under every name."""
    return list({id(one): one for one in tensors}.values())


def _groups(
    model: torch.nn.Module, model_parameters: Iterable[Any] | None, where: str = "model_parameters"
) -> list[dict[str, Any]]:
    named = named_parameters(model)
    if model_parameters is None:
        return [{"named": named, "values": {}}]
    given = list(model_parameters)
    if not given:
        raise _core.Error("[initialize] expected parameters in model_parameters, got none. Was an iterator used twice?")
    if not isinstance(given[0], dict):
        given = [{"params": given}]
    by_id: dict[int, list[tuple[str, torch.nn.Parameter, str]]] = {}
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
                    f"[initialize] expected parameters of the model in {where}, got a tensor of shape "
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
    return [one for one in named_parameters(model) if not one[1].requires_grad and id(one[1]) not in taken]


def broadcast_buffers(model: torch.nn.Module, ranks: _core.Communicator) -> None:
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


def _loader(
    data: Dataset[Any], collate_fn: Callable[[list[Any]], Any] | None, config: _core.EngineConfig, engine: Engine
) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(
        data, num_replicas=engine.dp_world_size, rank=engine.data_parallel_rank
    )
    return DataLoader(
        data,
        batch_size=config.train_micro_batch_size_per_gpu,
        sampler=sampler,
        collate_fn=collate_fn,
        drop_last=config.dataloader_drop_last,
    )
