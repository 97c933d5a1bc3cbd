"""A person's model as equigrad.check takes it: a factory of (make_model, loss_fn, batches), named "check:package.module:factory".

The judge calls `batches` and writes their tensors; a rank puts them together again and calls `loss_fn` on the engine.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from .protocol import Model, ProtocolError

PREFIX = "check:"
Factory = tuple[Callable[[], nn.Module], Callable[[Any, Any], Any] | None, Any]


def factory_of(name: str) -> Factory:
    """What the factory of "check:package.module:factory" gives. Raises ProtocolError where there is none, or it gives anything else."""
    target = name.removeprefix(PREFIX)
    where, _, what = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        given = getattr(importlib.import_module(where), what)()
    except (ImportError, AttributeError) as error:
        raise ProtocolError(
            f"[judge] expected {target} to be a module and its factory, got: {error}. Call the judge where the module can be imported "
            "from (the current folder, PYTHONPATH)."
        ) from error
    if not (isinstance(given, tuple) and len(given) == 3 and callable(given[0])):
        raise ProtocolError(
            f"[judge] expected {target}() to give (make_model, loss_fn, batches), got a {type(given).__name__}. They are those of "
            "equigrad.check."
        )
    return given


def make(name: str, seed: int) -> nn.Module:
    """The model in fp32, with every generator seeded. Raises ProtocolError where make_model gives none."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
    module = factory_of(name)[0]()
    if not isinstance(module, nn.Module):
        raise ProtocolError(f"[judge] expected a torch.nn.Module of make_model, got {type(module).__name__}. Give a function that makes it.")
    return module


def flattened(batch: Any) -> tuple[dict[str, torch.Tensor], dict[str, bool | int | float | str]]:
    """The tensors of a batch by their place, and what the model's arguments need to put them together again."""
    if hasattr(batch, "keys") and not isinstance(batch, dict):
        batch = {key: batch[key] for key in batch.keys()}  # noqa: SIM118  any kind of mapping
    leaves, structure = _pytree.tree_flatten(batch)
    tensors = {str(index): leaf for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    others = {str(index): leaf for index, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
    try:
        told = json.dumps(others, sort_keys=True)
    except TypeError as error:
        raise ProtocolError(f"[judge] expected batches of tensors and plain values, got: {error}. Give these.") from error
    return tensors, {"structure": str(_pytree.treespec_dumps(structure)), "others": told}


def loss_of(model: Model) -> Callable[[Any, Mapping[str, torch.Tensor]], Any]:
    """From (module or engine, batch by place) to what the person's loss_fn gives."""
    loss_fn = factory_of(model.name)[1] or _of_model
    structure = _pytree.treespec_loads(str(model.arguments["structure"]))
    others = json.loads(str(model.arguments["others"]))

    def loss(module: Any, batch: Mapping[str, torch.Tensor]) -> Any:
        leaves = [batch[str(index)] if str(index) in batch else others[str(index)] for index in range(structure.num_leaves)]
        outcome = loss_fn(module, _pytree.tree_unflatten(leaves, structure))
        return getattr(outcome, "loss", outcome)

    return loss


def _of_model(module: Any, batch: Any) -> Any:
    if isinstance(batch, dict):
        return module(**batch)
    return module(*batch) if isinstance(batch, (list, tuple)) else module(batch)
