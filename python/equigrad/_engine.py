"""Engine: the model, and what trains it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, SupportsIndex

import torch
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from equigrad import _checkpoint, _core, _deepspeed_api, _export
from equigrad._first_step import FirstStep
from equigrad._handles import hold, let_go
from equigrad._optimizer import Optimizer, Scheduler
from equigrad._split_random import split_random_of_sequence, watch_random
from equigrad._transformers_attention import Attached

# Calls that need the parameters as they train.
_READ_PARAMETERS = frozenset(
    ("backward", "forward", "full_parameter", "load_checkpoint", "load_module_state_dict", "save_checkpoint", "state_dict", "step")
)


class Engine(torch.nn.Module):
    """What `equigrad.initialize` returns first. Attributes that it has not are the model's, then DeepSpeed's
    (docs/deepspeed-api.md): those are answered, or refused with the remedy.

    The four ways into a backward pass give the same bits: `engine.backward(loss)`, `engine.scale(loss).backward()`,
    `loss.backward()` where no loss scale is needed, and `output.backward(gradient)`. Call `step()` once per micro-batch:
    it acts at the accumulation boundary.
    """

    module: torch.nn.Module
    # Whether models of transformers get attention and loss of a sequence that is split, where it has several ranks.
    splits_sequences = True

    def __init__(
        self,
        model: torch.nn.Module,
        core: _core.Engine,
        ranks: _core.Mesh,
        groups: list[dict[str, Any]],
        names: dict[str, torch.nn.Parameter],
        client: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__()
        self.module = model
        self._core: _core.Engine | None = core
        self._mesh = ranks
        self._ranks = ranks.world
        self.tensor_parallel_plan = ""  # of a model that is split, a line for each module
        self._parameters_held = names
        self.optimizer = Optimizer(core, groups, model, client)
        self.lr_scheduler: Any = Scheduler(core) if core.config.has_scheduler else None
        self._given_config: dict[str, Any] = {}
        self._settings: dict[str, str] = {}  # the configuration as it holds: by the path of a key, the value as JSON
        self.training_dataloader: DataLoader[Any] | None = None
        self.attached_attention: list[Attached] = []
        self._acted = False  # whether the last step() was at a boundary
        self._open_wholes = 0  # scopes in which parameters that a tensor group splits are whole
        self._autocast_hooks: tuple[RemovableHandle, ...] = self._watch_forward() if core.config.autocast else ()
        group = ranks.tensor
        self._first_step = None if group is None else FirstStep(model, group, self._ranks.rank - group.rank)
        self._random_hooks = [] if group is None else watch_random(model, group)
        if ranks.sequence is not None:
            self._random_hooks += split_random_of_sequence(model, ranks.sequence)  # around the others
        for name, parameter in names.items():
            hold(self, name, parameter, parameter.numel() <= core.config.persistent_numel)

    # ---- Passes --------------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The model's forward pass. An error of a gather at stage 3 is raised here."""
        core = self._living("forward")
        if core.config.progressive_layer_drop:
            kwargs.update(core.layer_drop())
        return core.forward(lambda: self.module(*inputs, **kwargs))

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Runs the backward pass of a scalar loss; returns loss / accumulation steps (the loss, if not scale_wrt_gas)."""
        core = self._living("backward")
        if not isinstance(loss, torch.Tensor):
            got = "None" if loss is None else f"a {type(loss).__name__}"
            raise _core.Error(
                f"[engine.backward] expected a loss, a tensor of one element, got {got}. A model of transformers gives one "
                "as output.loss, if it is called with labels."
            )
        return core.backward(loss, retain_graph, scale_wrt_gas)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The tensor to call backward() on; of the same value where the precision needs no loss scale."""
        return self._living("scale").scale(loss)

    def share_loss_scale(self, other: Engine) -> None:
        """Engines under one loss need one scale: from now on this engine uses the other's."""
        self._living("share_loss_scale").share_loss_scale(other._living("share_loss_scale"))

    # ---- Steps ---------------------------------------------------------------------------------------------------

    def step(self, lr_kwargs: dict[str, float] | None = None) -> None:
        """Once per micro-batch. At the boundary: reduce, average, check, clip, update, publish, and the scheduler's step,
        to which lr_kwargs go."""
        core = self._living("step")
        if self._first_step is not None:
            first, self._first_step = self._first_step, None
            first.end()
        self._acted = boundary = core.is_gradient_accumulation_boundary()
        if boundary:
            self.optimizer.push()
        is_configured = self.lr_scheduler is None or core.config.has_scheduler
        core.step((lr_kwargs or {}) if is_configured else {})
        if not boundary or not core.was_step_applied():
            return
        self.optimizer.pull()
        if not is_configured:
            self.lr_scheduler.step(**(lr_kwargs or {}))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Empties the accumulation window; the boundary comes where it would have come."""
        self._living("zero_grad").zero_grad()

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next step() acts."""
        return self._living("is_gradient_accumulation_boundary").is_gradient_accumulation_boundary()

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Holds until it is set again; None gives the decision back to the count of micro-batches."""
        self._living("set_gradient_accumulation_boundary").set_gradient_accumulation_boundary(is_boundary)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Passes add up within; step() is an error there. Stages 0 and 1."""
        with self._living("no_sync").no_sync():
            yield

    # ---- What holds now ------------------------------------------------------------------------------------------

    def get_lr(self) -> list[float]:
        """Of the next update, by parameter group."""
        self._living("get_lr")
        return [float(group.get("lr", 0.0)) for group in self.optimizer.param_groups]

    def set_lr(self, lr: float | list[float]) -> None:
        """Of the next update and of those after it, for every group or by group; a scheduler's next step overrides it.
        Collective."""
        core = self._living("set_lr")
        groups = self.optimizer.param_groups
        rates = [float(one) for one in lr] if isinstance(lr, (list, tuple)) else [float(lr)] * len(groups)
        core.set_lr(rates)
        if core.hyper_parameters():
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def get_global_grad_norm(self) -> float | None:
        """Of the averaged gradient before clipping, at the last boundary; NaN if it was not finite."""
        return self._living("get_global_grad_norm").get_global_grad_norm()

    def was_step_applied(self) -> bool:
        """Whether the last step() was at a boundary and updated the parameters."""
        return self._living("was_step_applied").was_step_applied() and self._acted

    @property
    def global_steps(self) -> int:
        """Boundaries reached, skipped ones included."""
        return self._living("global_steps").counters().global_steps

    @property
    def skipped_steps(self) -> int:
        """Boundaries skipped for a gradient that was not finite."""
        return self._living("skipped_steps").counters().skipped_steps

    @property
    def micro_steps(self) -> int:
        """Calls of step()."""
        return self._living("micro_steps").counters().micro_steps

    @property
    def global_samples(self) -> int:
        """Samples of all ranks in the micro-batches that were stepped."""
        return self.micro_steps * self.train_micro_batch_size_per_gpu() * self.dp_world_size

    @property
    def device(self) -> torch.device:
        return next(iter(self._parameters_held.values())).device

    @property
    def global_rank(self) -> int:
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        return self._ranks.world_size

    @property
    def dp_world_size(self) -> int:
        """Ranks with samples of their own."""
        return self._mesh.data_size

    @property
    def data_parallel_rank(self) -> int:
        """This rank's place among those with samples of their own."""
        return self._ranks.rank // (self._mesh.sequence_size * self._mesh.tensor_size)

    def bytes_held(self) -> dict[str, tuple[int, int]]:
        """Bytes of this rank by category, now and at the peak; activations are not in it."""
        return self._living("bytes_held").bytes_held()

    # ---- The configuration ---------------------------------------------------------------------------------------

    def train_batch_size(self) -> int:
        return self._living("train_batch_size").config.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._living("train_micro_batch_size_per_gpu").config.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        return self._living("gradient_accumulation_steps").config.gradient_accumulation_steps

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Between windows: other accumulation steps for the same micro-batch size."""
        self._living("set_train_batch_size").set_train_batch_size(train_batch_size)

    def gradient_clipping(self) -> float:
        return self._living("gradient_clipping").config.gradient_clipping

    def zero_optimization_stage(self) -> int:
        return self._living("zero_optimization_stage").config.stage

    def zero_optimization(self) -> bool:
        return self.zero_optimization_stage() > 0

    def compile(
        self,
        backend: str | Callable[..., Any] = "inductor",
        compile_kwargs: dict[str, Any] | None = None,
        schedule: Any = None,
        compiled_autograd_enabled: bool = False,
    ) -> None:
        """torch.compile of the model, in place. A second call changes nothing, as with DeepSpeed."""
        given = {"schedule": schedule, "compiled_autograd_enabled": compiled_autograd_enabled}
        for name, value in given.items():
            if value:
                raise _deepspeed_api.NotSupportedError(
                    f"[engine.compile] expected no {name}, got {value!r}. Leave it out: the model is compiled, and backward as "
                    "torch.compile makes it."
                )
        if self.module._compiled_call_impl is None:
            self.module.compile(**{**(compile_kwargs or {}), "backend": backend})

    # ---- Checkpoints ---------------------------------------------------------------------------------------------

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: Any = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
        asynchronous: bool = False,
    ) -> bool:
        """Everything that the next step depends on, into SAVE_DIR/TAG; True. At a boundary, on every rank.

        tag: without one "global_step" and their number. save_latest: SAVE_DIR/latest names the tag afterwards.
        client_state: rank 0's is kept; what it may hold is in docs/python.md. Nothing is pickled.
        asynchronous: returns when a copy is made in host memory, and writes it while training goes on; finish_checkpoint() ends it.
        """
        _checkpoint.save(self, save_dir, tag, client_state, save_latest, exclude_frozen_parameters, asynchronous)
        return True

    def finish_checkpoint(self) -> None:
        """Ends an asynchronous save, which counts from here on. The next save and the next load do it too; an engine that is
        destroyed before gives the save up. Collective."""
        self._living("finish_checkpoint").finish_checkpoint()

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Callable[..., Any] | None = None,
        *,
        check_digests: bool = True,
    ) -> tuple[str, dict[str, Any]] | tuple[None, None]:
        """(LOAD_DIR/TAG, client_state): the run goes on as if it had not been interrupted. Collective.

        Without a tag the one that LOAD_DIR/latest names; (None, None) and a warning where there is no such file. An error on any rank
        is one on all, and changes nothing. check_digests=False loads tensors without looking whether a byte of them has changed.
        """
        if custom_load_fn is not None:
            raise _deepspeed_api.NotSupportedError(
                "[engine.load_checkpoint] expected no custom_load_fn: values are read into the engine's shards. Leave it out; "
                "load_module_state_dict() takes one, with a state dict."
            )
        return _checkpoint.load(
            self,
            load_dir,
            tag,
            module_strict=load_module_strict,
            optimizer_states=load_optimizer_states,
            lr_scheduler_states=load_lr_scheduler_states,
            module_only=load_module_only,
            check_digests=check_digests,
        )

    def save_16bit_model(
        self, save_dir: str | os.PathLike[str], save_filename: str = "pytorch_model.bin", exclude_frozen_parameters: bool = False
    ) -> bool:
        """The model's state dict, whole, as it computes, into one file: safetensors by its name, else torch.save's. Collective.

        At stage 3 it needs "stage3_gather_16bit_weights_on_model_save", as with DeepSpeed: without it nothing is saved, and it
        returns False.
        """
        return _export.save_16bit_model(self, save_dir, save_filename, exclude_frozen_parameters)

    def save_fp16_model(self, save_dir: str | os.PathLike[str], save_filename: str = "pytorch_model.bin") -> bool:
        """The old name of save_16bit_model."""
        return self.save_16bit_model(save_dir, save_filename)

    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """The model's; at stage 3 of copies of whole parameters on the CPU, on every rank. Collective there."""
        return _export.module_state_dict(self, destination, prefix, keep_vars, exclude_frozen_parameters)

    def load_module_state_dict(
        self,
        checkpoint: dict[str, Any],
        strict: bool = True,
        custom_load_fn: Callable[..., Any] | None = None,
        fetch_z3_params: bool = False,
        z3_params_to_fetch: Any = None,
        allowed_missing_keys: Iterable[str] | None = None,
    ) -> None:
        """checkpoint["module"], a state dict of whole tensors, into the model and the engine's masters. Collective, the same on
        every rank. The z3 arguments change nothing: parameters are gathered where they must be."""
        _export.load_module_state_dict(self, checkpoint, strict, custom_load_fn, allowed_missing_keys)

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any] | None:
        # Of DeepSpeed's inside, and called by Accelerate: the whole state dict on rank 0, None elsewhere.
        return _export.zero3_state_dict(self, exclude_frozen_parameters)

    # ---- Its end -------------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Gives the parameters back to the model, at stage 3 without their data: read full_parameter() before."""
        for hook in (*self._autocast_hooks, *self._random_hooks):
            hook.remove()
        if self._first_step is not None:
            self._first_step.let_go()
        for one in self.attached_attention:
            one.detach()
        for parameter in self._parameters_held.values():
            let_go(parameter)
        self.optimizer.destroy()
        self._core = None

    def full_parameter(self, name: str) -> torch.Tensor:
        """The whole parameter as the model sees it, a copy. Collective."""
        return self._living("full_parameter").full_parameter(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__.get("_modules", {}).get("module")
            if model is not None and hasattr(model, name):
                return getattr(model, name)
            if _deepspeed_api.knows(name):
                return _deepspeed_api.attribute(self, name)
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "communication_data_type":  # DeepSpeed's may be assigned to
            raise _deepspeed_api.NotSupportedError(
                f"[engine.{name}] expected no assignment, got {value!r}. The configuration decides it before initialize()."
            )
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise _core.Error(
            "[engine.deepcopy] expected no copy of an engine, which is one place among the ranks. Copy the model before "
            "initialize(), and make an engine of its own for it."
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise _core.Error(
            "[engine.pickle] expected no pickling of an engine, whose parameters lie on several ranks. Call "
            "engine.save_checkpoint(), or engine.save_16bit_model(), on every rank."
        )

    def _watch_forward(self) -> tuple[RemovableHandle, ...]:
        # torch_autocast holds while the model runs, whoever calls it. A model may run within its own forward.
        guards: list[_core.Guard] = []

        def begin(*_: Any) -> None:
            guards.append(self._living("forward").autocast())

        def end(*_: Any) -> None:
            guards.pop().close()

        return (
            self.module.register_forward_pre_hook(begin),
            self.module.register_forward_hook(end, always_call=True),
        )

    def _living(self, where: str) -> _core.Engine:
        if self._core is None:
            raise _core.Error(f"[engine.{where}] expected an engine, got one that was destroyed. Make a new one.")
        if self._open_wholes and where in _READ_PARAMETERS:
            raise _core.Error(
                f"[engine.{where}] expected no scope of zero.GatheredParameters, got {self._open_wholes} that are open, in which split "
                "parameters are whole. End them first."
            )
        return self._core
