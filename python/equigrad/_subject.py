"""A model as the check has it on one rank: its tensors under their names, and any pass of any rank."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from equigrad import _core, _initialize, utils


# Models of this process.
_made: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class Subject:
    def __init__(
        self,
        make_model: Callable[[], Any],
        loss_fn: Callable[[Any, Any], Any] | None,
        batches: Callable[[int, int, int], Any] | Sequence[Any],
        accumulation: int,
    ) -> None:
        seed_all(torch.initial_seed())
        model = make_model()
        if not isinstance(model, torch.nn.Module):
            raise _core.Error(
                f"[check] expected a torch.nn.Module of make_model, got {_kind(model)}. Give a function that makes the model."
            )
        if model in _made:
            raise _core.Error(
                "[check] expected a new model of every call of make_model, got one object twice, which a run would train further. "
                "Make it within the function."
            )
        _made.add(model)
        self._model = model
        self._loss_fn = loss_of_model if loss_fn is None else loss_fn
        self._batches = batches
        self._accumulation = accumulation
        self._device = torch.device("cpu")

    def move_to(self, device: str) -> None:
        """The model, and the batches of its passes."""
        self._device = torch.device(device)
        self._model.to(self._device)

    def parameters(self) -> list[tuple[str, torch.nn.Parameter, str]]:
        return _initialize.named_parameters(self._model)

    def modules(self) -> list[tuple[str, str, list[torch.Tensor]]]:
        return _initialize.module_entries(self._model)

    def leaf_modules(self) -> list[str]:
        return [name for name, module in self._model.named_modules() if utils.z3_leaf_module(module)]

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        return list(self._model.named_buffers())

    def forward(
        self, step: int, rank: int, micro_batch: int, world: int, dtype: torch.dtype, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        batch = self._batch(step, rank, micro_batch, world)
        seed_all(seed)
        return _output(self._loss_fn(self._model, cast(batch, dtype, self._device)))

    def _batch(self, step: int, rank: int, micro_batch: int, world: int) -> Any:
        if callable(self._batches):
            return self._batches(step, rank, micro_batch)
        per_step = world * self._accumulation
        if len(self._batches) < per_step:
            raise _core.Error(
                f"[check] expected at least {per_step} batches for {world} ranks with {self._accumulation} micro-batches, got "
                f"{len(self._batches)}. Give more, or a function batches(step, rank, micro_batch)."
            )
        return self._batches[(step * per_step + rank * self._accumulation + micro_batch) % len(self._batches)]


def seed_all(seed: int) -> None:
    """Torch's generator has been set by who calls; these are others that models draw from."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def cast(batch: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A batch of the same structure on the device of the parameters, whose floats have their dtype."""
    return _pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype), batch
    )


def loss_of_model(model: torch.nn.Module, batch: Any) -> Any:
    """model(**batch) of a dict, model(*batch) of a list or tuple, else model(batch); its `.loss`, if it has one."""
    if hasattr(batch, "keys"):
        return model(**batch)
    return model(*batch) if isinstance(batch, (list, tuple)) else model(batch)


def _output(given: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    given = getattr(given, "loss", given)
    if isinstance(given, torch.Tensor):
        return given, None
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(one, torch.Tensor) for one in given):
        return given[0], given[1]
    raise _core.Error(
        f"[check] expected a loss, an output that has `.loss`, or (output, gradient), got {_kind(given)}. Return the loss of "
        "the batch from loss_fn(model, batch); without one the output's `.loss` is taken, which transformers gives where the batch has "
        '"labels".'
    )


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
