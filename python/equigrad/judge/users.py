"""Weights and batches of a person's own model (`--model package.module:factory`), in the place of workload.py's.

Its numbers are rounded as any model's, so what is right is a ball: how wide, local_gradients.py measures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .environments import UsageError
from .local_gradients import Tensors
from .on_rank import tensors, users_model
from .on_rank.protocol import Case, Model, ProtocolError, batch_key, to_json
from .workload import Workload


def model_of(target: str, seed: int) -> Model:
    """The case's model for "package.module:factory", tried once. Raises UsageError where it is not as equigrad.check takes it."""
    name = users_model.PREFIX + target
    try:
        first, second = users_model.make(name, seed), users_model.make(name, seed)
        _, arguments = users_model.flattened(_batch(name, (0, 0, 0), (1, 1)))
    except ProtocolError as error:
        raise UsageError(str(error)) from error
    except Exception as error:  # a person's code may raise anything
        raise UsageError(f"[judge] expected {target} to make a model and a batch, got {type(error).__name__}: {error}. Mend it.") from error
    others = dict(second.named_parameters())
    for parameter, one in first.named_parameters():
        if parameter not in others or not torch.equal(one, others[parameter]):
            raise UsageError(
                f"[judge] expected make_model to make the same model under the same seed, got another {parameter}. Draw from torch's, "
                "numpy's or random's generator only."
            )
    return Model(name, {**arguments, "seed": seed})


def write(case: Case, folder: Path) -> tuple[Case, Workload]:
    """The case with files of the model's weights and of its batches. Raises ProtocolError where batches differ in their structure."""
    module = users_model.make(case.model.name, int(case.model.arguments["seed"]))
    weights = {name: one.detach().float() for name, one in module.named_parameters()}
    batches: Tensors = {}
    backwards = int(case.options.get("backwards", 1))
    for step in range(case.steps):
        for rank in range(case.world):
            for micro in range(case.accumulation * backwards):
                batch = _batch(case.model.name, (step, rank, micro), (case.world, case.accumulation * backwards))
                named, arguments = users_model.flattened(batch)
                _check_structure(case.model.arguments, arguments)
                for key, one in named.items():
                    batches[batch_key(step, rank, micro // backwards, micro % backwards, key)] = one.detach().clone()
    stem = hashlib.sha256(json.dumps([to_json(case.model), case.steps, case.world, case.accumulation, backwards]).encode()).hexdigest()[:24]
    paths = {kind: folder / f"{stem}-{kind}.safetensors" for kind in ("weights", "batches")}
    for kind, named in (("weights", weights), ("batches", batches)):
        if not paths[kind].exists():
            tensors.write(paths[kind], named)
    whole = replace(case, weights=str(paths["weights"]), batches=str(paths["batches"]))
    return whole, Workload(weights, batches, 1, 0)


def _batch(name: str, at: tuple[int, int, int], sizes: tuple[int, int]) -> Any:
    """Of (step, rank, micro-batch), where there are `sizes` (ranks, micro-batches)."""
    given: Callable[[int, int, int], Any] | Any = users_model.factory_of(name)[2]
    if callable(given):
        return given(*at)
    world, count = sizes
    if len(given) < world * count:
        raise ProtocolError(
            f"[judge] expected at least {world * count} batches for {world} ranks with {count} micro-batches, got {len(given)}. Give more, "
            "or a function batches(step, rank, micro_batch)."
        )
    return given[(at[0] * world * count + at[1] * count + at[2]) % len(given)]


def _check_structure(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    if any(first[key] != other[key] for key in other):
        raise ProtocolError("[judge] expected batches of one structure, got others. Give every batch the same keys and plain values.")
