"""Runs of an engine with a tensor group, for tests: what it is configured with, and what it has afterwards, whole."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import torch

import equigrad
import tensor_models as models
from equigrad import _core

STEPS, PASSES, LR = 2, 2, 0.05
LOSSES = {models.Decoder: models.decoder_loss, models.Lattice: models.lattice_loss}
STEPS_OF = {models.Decoder: STEPS, models.Lattice: 1}  # an update is no whole number


def configuration(tensor: int, stage: int = 0, section: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": PASSES,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "SGD", "params": {"lr": LR}},
        "tensor_parallel": {"autotp_size": tensor, **(section or {})},
        **more,
    }


def whole(engine: equigrad.Engine, parameter: torch.nn.Parameter, value: torch.Tensor | None) -> torch.Tensor | None:
    """Of this rank's part. Collective."""
    split = _core.split_of(parameter)
    if value is None or split is None:
        return value
    return _core.gather_from(value, split.dimension, engine._mesh.tensor, split.segments)


def digest(tensors: list[torch.Tensor | None]) -> str:
    every = [b"none" if one is None else one.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for one in tensors]
    return hashlib.sha256(b"|".join(every)).hexdigest()


def trained(engine: equigrad.Engine, loss_of: Any, steps: int = STEPS) -> dict[str, Any]:
    history = []
    for step in range(steps):
        for k in range(PASSES):
            loss = loss_of(engine, step, engine.data_parallel_rank, k)
            loss.backward() if k else engine.backward(loss)
            if k == PASSES - 1:
                read = equigrad.utils.safe_get_full_grad
                history.append({n: whole(engine, p, read(p)) for n, p in engine.module.named_parameters()})
            engine.step()
    parameters = {n: engine.full_parameter(n) for n, _ in engine.module.named_parameters()}
    every = [g for step in history for g in step.values()] + list(parameters.values())
    return {"history": history, "parameters": parameters, "digest": digest(every), "norm": engine.get_global_grad_norm()}


def disturbed(model: torch.nn.Module) -> torch.nn.Module:
    """Other values on other ranks: rank 0's count."""
    if os.environ["RANK"] != "0":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    return model


def errors_of(*calls: Any) -> list[str]:
    said = []
    for call in calls:
        try:
            call()
            said.append("")
        except equigrad.Error as error:
            said.append(str(error))
    return said


def without_optimizer(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "optimizer"}


SPECS = [
    {"patterns": [".*o_proj.weight", ".*down_proj.weight"], "partition_type": "row"},
    {"patterns": [".*qkv_proj.weight"], "partition_type": "column", "shape": [[32, 16, 16], -1], "partition_dim": 0},
    {"patterns": [".*gate_up_proj.weight"], "partition_type": "column", "shape": [2, -1], "model_types": ["PHI3"]},
    {"patterns": [".*gate_up_proj.weight"], "partition_type": "skip", "model_types": ["llama"]},
    {"patterns": ["embed_tokens.weight"], "partition_type": "row"},
]
