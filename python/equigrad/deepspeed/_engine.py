"""DeepSpeedEngine: the engine, and what a program of DeepSpeed's calls besides; what DeepSpeed asserts is an AssertionError too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

import equigrad
from equigrad import Engine, Error, NotSupportedError, _deepspeed_api


class UsageError(Error, AssertionError):
    """A call that the engine's state, or DeepSpeed's contract, does not allow."""


class ConfigError(equigrad.ConfigError, AssertionError, ValueError):
    """A configuration that is refused: DeepSpeed raises AssertionError for some keys and ValueError for others."""

    def __init__(self, refused: equigrad.ConfigError) -> None:
        super().__init__(str(refused))
        self.problems = refused.problems


class CheckpointError(UsageError, ValueError):
    """A save or a load that is refused: DeepSpeed raises ValueError for a folder that is none, and asserts that ranks agree."""


def _with_its_errors(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, with an equigrad.Error of no other kind as a CheckpointError."""

    @wraps(call)
    def called(*arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except Error as refused:
            if type(refused) is not Error:
                raise
            raise CheckpointError(str(refused)) from None

    return called


class DeepSpeedEngine(Engine):
    """What `equigrad.deepspeed.initialize` returns first."""

    pipeline_parallelism = False
    splits_sequences = False  # as there, register_with_transformers() says which models
    # Whether no_sync() or coalesce_grad_reduction() is open.
    inside_no_sync_ctxt = False
    # Whether the engine counts the passes of a step; if not, every step() is a boundary.
    is_managed = True
    # Where it does not: calls of backward() since the last step(), and those that were stepped.
    passes, passes_stepped = 0, 0
    axes: Any = None  # of its mesh, equigrad.deepspeed.utils.groups.Axes

    @property
    def mp_world_size(self) -> int:
        """Ranks that share the model."""
        return self._mesh.tensor_size

    @property
    def checkpoint_mp_rank(self) -> int:
        return int(self.axes.tensor.rank)

    @property
    def data_parallel_group(self) -> Any:
        """Of torch.distributed; None where that is not initialized."""
        return self.axes.data.group

    @property
    def seq_parallel_group(self) -> Any:
        """Of torch.distributed; None where a sequence has one rank."""
        return self.axes.sequence.group

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next step() acts; False where the caller owns the boundary, as DeepSpeed says it outside of step()."""
        return self.is_managed and super().is_gradient_accumulation_boundary()

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        if not self.is_managed:
            raise UsageError(
                "[engine.set_gradient_accumulation_boundary] expected managed_gradient_accumulation, got false in the configuration. "
                "set_gradient_accumulation_boundary() is not supported with managed_gradient_accumulation=False: every step() acts."
            )
        super().set_gradient_accumulation_boundary(is_boundary)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """As Engine.backward; a loss that is no scalar is an AssertionError."""
        _check_scalar(loss, "backward", "output.backward(gradient)")
        given = super().backward(loss, retain_graph, scale_wrt_gas)
        self.passes += 1
        return given

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """As Engine.scale, of a scalar loss alone: equigrad.Engine.scale takes an output of any shape."""
        _check_scalar(
            loss, "scale", "equigrad.initialize(...), whose engine.scale(output).backward(gradient) takes any shape"
        )
        return super().scale(loss)

    def step(self, lr_kwargs: dict[str, float] | None = None) -> None:
        if self.inside_no_sync_ctxt:
            raise UsageError(
                "[engine.step] expected a step after the scope of no_sync or coalesce_grad_reduction, got one within. "
                "It is illegal to call Engine.step() inside no_sync context manager: leave the scope first."
            )
        super().step(lr_kwargs)
        self.passes_stepped += self.passes
        self.passes = 0

    save_checkpoint = _with_its_errors(Engine.save_checkpoint)
    load_checkpoint = _with_its_errors(Engine.load_checkpoint)

    @property
    def sparse_tensor_module_names(self) -> set[str]:
        """None: gradients of embeddings are dense here."""
        return set()

    @property
    def global_samples(self) -> int:
        """Samples of all ranks in what was stepped; where the caller owns the boundary, of calls of backward()."""
        if self.is_managed:
            return super().global_samples
        return self.passes_stepped * self.train_micro_batch_size_per_gpu() * self.dp_world_size

    def __getattr__(self, name: str) -> Any:
        # As with DeepSpeed's, before an attribute of the model's.
        return _deepspeed_api.attribute(self, name) if _deepspeed_api.knows(name) else super().__getattr__(name)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Passes add up within; step() is an error there. Stages 0 and 1."""
        stage = self.zero_optimization_stage()
        if stage >= 2:
            raise UsageError(
                f"[engine.no_sync] expected ZeRO stage 0 or 1, got ZeRO stage {stage}. The no_sync context manager is incompatible with "
                f"gradient partitioning logic of ZeRO stage {stage}: leave it out, or lower the stage."
            )
        with self._own_scope("no_sync"), super().no_sync():
            yield

    @contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """The passes within are of one step, which comes after it. Stages 1 to 3.

        The engine reduces when it would have without: the gradient is the same, and no communication is saved.
        """
        stage = self.zero_optimization_stage()
        if stage == 0:
            raise NotSupportedError(
                "[engine.coalesce_grad_reduction] expected ZeRO stage 1, 2 or 3, got stage 0. Use no_sync() there."
            )
        if not self.is_managed:
            raise UsageError(
                "[engine.coalesce_grad_reduction] expected managed_gradient_accumulation, got false in the configuration. "
                "coalesce_grad_reduction is not supported with managed_gradient_accumulation=False: call step() once, after the passes."
            )
        if self.pipeline_parallelism:
            raise NotSupportedError(
                "[engine.coalesce_grad_reduction] expected no pipeline parallelism, got it. Leave the scope out."
            )
        with self._own_scope("coalesce_grad_reduction"):
            yield

    @contextmanager
    def _own_scope(self, name: str) -> Iterator[None]:
        if self.inside_no_sync_ctxt:
            raise UsageError(
                f"[engine.{name}] expected no open no_sync or coalesce_grad_reduction, got one nested within another. "
                "A no_sync context manager reentry is unsupported: leave the outer scope first."
            )
        self.inside_no_sync_ctxt = True
        try:
            yield
        finally:
            self.inside_no_sync_ctxt = False


def _check_scalar(tensor: torch.Tensor, where: str, instead: str) -> None:
    if tensor.numel() != 1 or tensor.grad_fn is None:
        graph = "" if tensor.grad_fn is not None else " without a graph"
        raise UsageError(
            f"[engine.{where}] expected a scalar tensor, a loss that was computed from parameters, got one of shape "
            f"{list(tensor.shape)}{graph}. Use {instead}."
        )
