"""What a checkpoint keeps of Python's, beside the engine's own: the model's buffers, the caller's optimizer and scheduler, client_state.

The engine writes and reads the files (engine/checkpoint/); what is here goes through them: buffers as tensors by rank, all else as
JSON in the manifest (_values.py), of rank 0:

    {"$python": 1, "client_state": ..., "groups": [...], "lr_scheduler": {"class": ..., "state": ...}, "extra_state": {...},
     "passes_stepped": ...}
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import torch

from equigrad import _core, _values
from equigrad._client import class_of
from equigrad._core import Error

if TYPE_CHECKING:
    from equigrad._engine import Engine

_FORM = 1


def buffers(engine: Engine) -> list[tuple[str, torch.Tensor]]:
    """What the model's state_dict has and the engine does not hold: persistent buffers, and parameters that are not trained here."""
    held = {id(one) for one in engine._parameters_held.values()}
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for prefix, module in engine.module.named_modules():
        own = [
            (name, one)
            for name, one in module.named_buffers(recurse=False)
            if name not in module._non_persistent_buffers_set
        ]
        own += [
            (name, _whole_on_this_rank(f"{prefix}.{name}".lstrip("."), one))
            for name, one in module.named_parameters(recurse=False)
            if id(one) not in held
        ]
        for name, one in own:
            found.setdefault(one.data_ptr() if one.numel() else id(one), (f"{prefix}.{name}".lstrip("."), one))
    return list(found.values())


def _whole_on_this_rank(name: str, parameter: torch.nn.Parameter) -> torch.Tensor:
    if _core.split_of(parameter) is not None:
        raise Error(
            f'[engine.checkpoint] expected the engine to hold every parameter that the tensor group splits, got "{name}", which requires '
            "gradients and is in no group of the optimizer. Give it to the optimizer, or set requires_grad_(False) before initialize()."
        )
    return parameter.detach()


def save(
    engine: Engine,
    save_dir: str | os.PathLike[str],
    tag: Any,
    client_state: dict[str, Any] | None,
    save_latest: bool,
    exclude_frozen_parameters: bool,
    asynchronous: bool,
) -> None:
    where = "engine.save_checkpoint"
    core = engine._living("save_checkpoint")
    options = _core.SaveOptions(
        client_state=_text_of(engine, {} if client_state is None else client_state, where),
        save_latest=save_latest,
        exclude_frozen_parameters=exclude_frozen_parameters,
        buffers=buffers(engine),
        asynchronous=asynchronous,
    )
    core.save_checkpoint(_folder(save_dir, where), _tag(tag, where), options)


def load(
    engine: Engine,
    load_dir: str | os.PathLike[str],
    tag: Any,
    *,
    module_strict: bool,
    optimizer_states: bool,
    lr_scheduler_states: bool,
    module_only: bool,
    check_digests: bool,
) -> tuple[str, dict[str, Any]] | tuple[None, None]:
    where = "engine.load_checkpoint"
    core = engine._living("load_checkpoint")
    saved = _Saved(engine, optimizer_states and not module_only, lr_scheduler_states and not module_only, where)
    options = _core.LoadOptions(
        module_strict=module_strict,
        optimizer_states=optimizer_states,
        lr_scheduler_states=lr_scheduler_states,
        module_only=module_only,
        buffers=buffers(engine),
        check=saved.check,
        check_digests=check_digests,
    )
    folder = _folder(load_dir, where)
    loaded = core.load_checkpoint(folder, _tag(tag, where), options)
    if loaded is None:
        warnings.warn(
            f'[{where}] expected a file "latest" in {folder}, which names a tag, got none: nothing is loaded. Give tag=, or the folder '
            "that save_checkpoint() was given.",
            stacklevel=3,
        )
        return None, None
    if not module_only:
        engine._acted = True  # a save is at a boundary
    saved.apply(with_counters=not module_only)
    return loaded.path, saved.client_state


def _folder(given: str | os.PathLike[str], where: str) -> str:
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        raise Error(f"[{where}] expected a folder, got {given!r}. Give its path.")
    return os.fspath(given)


def _tag(given: Any, where: str) -> str:
    """As the engine takes it, "" for none."""
    if given is None:
        return ""
    if not str(given):
        raise Error(f"[{where}] expected a tag, got an empty one. Give a name, or leave it out.")
    return str(given)


def _own_scheduler(engine: Engine) -> Any:
    """The caller's; None where there is none, or the configured one, whose position the engine keeps."""
    return None if engine._living("lr_scheduler").config.has_scheduler else engine.lr_scheduler


def _with_extra_state(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    base = torch.nn.Module.get_extra_state
    return {name: module for name, module in model.named_modules() if type(module).get_extra_state is not base}


def _text_of(engine: Engine, client_state: dict[str, Any], where: str) -> str:
    if not isinstance(client_state, dict):
        raise Error(f"[{where}] expected a dict as client_state, got a {type(client_state).__name__}. Give dict(...).")
    groups = [{key: one for key, one in group.items() if key != "params"} for group in engine.optimizer.param_groups]
    scheduler = _own_scheduler(engine)
    form: dict[str, Any] = {
        "$python": _FORM,
        "client_state": _values.form_of(client_state, "client_state", where),
        "groups": _values.form_of(groups, "optimizer.param_groups", where),
        "extra_state": {
            name: _values.form_of(module.get_extra_state(), f'the extra state of module "{name}"', where)
            for name, module in _with_extra_state(engine.module).items()
        },
        "passes_stepped": getattr(engine, "passes_stepped", 0),
    }
    if scheduler is not None:
        if not callable(getattr(scheduler, "state_dict", None)):
            raise Error(
                f"[{where}] expected an lr_scheduler with state_dict() and load_state_dict(), got a {class_of(scheduler)}. Give it both."
            )
        state = _values.form_of(scheduler.state_dict(), "lr_scheduler.state_dict()", where)
        form["lr_scheduler"] = {"class": class_of(scheduler), "state": state}
    return _values.text_of(form)


class _Saved:
    """What was saved of Python's: checked before the engine writes anything, applied after it has."""

    def __init__(self, engine: Engine, optimizer_states: bool, lr_scheduler_states: bool, where: str) -> None:
        self.engine = engine
        self.optimizer_states = optimizer_states
        self.lr_scheduler_states = lr_scheduler_states
        self.where = where
        self.client_state: dict[str, Any] = {}
        self.groups: list[dict[str, Any]] | None = None
        self.scheduler: Any = None
        self.extra_state: dict[str, Any] = {}
        self.passes_stepped = 0

    def check(self, text: str) -> None:
        form = _values.form_from(text, self.where)
        if not isinstance(form, dict) or "$python" not in form:  # of an engine of C++
            self.client_state = form if isinstance(form, dict) else {} if form is None else {"client_state": form}
            self._check_scheduler(None)
            return
        if form["$python"] != _FORM:
            raise Error(
                f"[{self.where}] expected Python's values in form {_FORM}, got form {form['$python']}. Load it with the version that saved it."
            )
        self.client_state = _values.value_of(form["client_state"], self.where)
        self.extra_state = {key: _values.value_of(one, self.where) for key, one in form["extra_state"].items()}
        self.passes_stepped = form["passes_stepped"]
        if self.optimizer_states:
            self.groups = _values.value_of(form["groups"], self.where)
        self._check_scheduler(form.get("lr_scheduler"))

    def _check_scheduler(self, form: dict[str, Any] | None) -> None:
        scheduler = _own_scheduler(self.engine)
        if not self.lr_scheduler_states or (scheduler is None and form is None):
            return
        remedy = "Give initialize() one like that which saved, or load_lr_scheduler_states=False."
        got = "none" if form is None else f"that of a {form['class'] or 'scheduler of another engine'}"
        # What was imported does not say of which class it is.
        if scheduler is None or form is None or form["class"] not in (None, class_of(scheduler)):
            want = "no state of an lr_scheduler" if scheduler is None else f"the state of a {class_of(scheduler)}"
            raise Error(f"[{self.where}] expected {want}, got {got}. {remedy}")
        self.scheduler = _values.value_of(form["state"], self.where)

    def apply(self, with_counters: bool) -> None:
        engine = self.engine
        if self.optimizer_states:
            engine.optimizer.restore(self.groups)
        has_scheduler = engine._living("load_checkpoint").config.has_scheduler
        if has_scheduler and self.optimizer_states != self.lr_scheduler_states:
            engine.optimizer.restore(None)  # the rates are the schedule's: where it was, or where it stays
        if self.scheduler is not None:
            engine.lr_scheduler.load_state_dict(self.scheduler)
        for name, module in _with_extra_state(engine.module).items():
            if name in self.extra_state:
                module.set_extra_state(self.extra_state[name])
        if with_counters and hasattr(engine, "passes_stepped"):
            engine.passes, engine.passes_stepped = 0, self.passes_stepped
