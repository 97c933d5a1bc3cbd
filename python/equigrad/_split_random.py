"""Where the core's regions of random numbers (engine/parallel/split_random.hpp) begin and end in a model that ranks share.

On a tensor group: from the output of a column, which is a part, to the input of the row behind it. On a sequence group: while the
model runs. So dropout of what every rank has whole has one mask on all ranks, and dropout of parts another one on each.

Regions are entered in every mode of the model, for one in which nothing is drawn leaves no trace: a model without dropout, and
an evaluation, draw and leave what they would without. What a forward pass has entered it leaves, also by an exception.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from equigrad import _core
from equigrad._split_modules import gathers_output

_TENSOR, _SEQUENCE = _core.RandomParts.Tensor, _core.RandomParts.Sequence


class _Call:
    def __init__(self, module: torch.nn.Module, has_entered: bool) -> None:
        self.module, self.has_entered = module, has_entered


class _Calls(threading.local):
    """Forward passes that run in this thread, the innermost last."""

    def __init__(self) -> None:
        self.running: list[_Call] = []

    def end(self, module: torch.nn.Module) -> bool:
        """Whether it had entered a region."""
        if not self.running or self.running[-1].module is not module:
            return False  # another hook raised before its begin
        return self.running.pop().has_entered


# ---- A tensor group --------------------------------------------------------------------------------------------------

_calls = _Calls()


class _Places(NamedTuple):
    columns: list[str]  # that give parts
    rows: list[str]  # that take parts
    around: list[str]  # whose forward passes have both


def split_random(model: torch.nn.Module, plans: dict[str, _core.ModulePlan], group: _core.Communicator) -> None:
    """Gives a model that is split its regions."""
    modules = dict(model.named_modules())
    places = _places(modules, plans)
    for name in places.columns:
        modules[name].register_forward_hook(lambda _, __, part: _enter(part, group))
    for name in places.rows:
        modules[name].register_forward_pre_hook(_leaver(name))
    for name in places.around:
        modules[name].register_forward_pre_hook(_begin, prepend=True)
        modules[name].register_forward_hook(_end, always_call=True)


def _places(modules: dict[str, torch.nn.Module], plans: dict[str, _core.ModulePlan]) -> _Places:
    split = {name: plan for name, plan in plans.items() if plan.weight is not None}
    columns = [n for n, plan in split.items() if plan.placement == _core.Placement.Column and not gathers_output(plan)]
    rows = [n for n, plan in split.items() if plan.placement == _core.Placement.Row and not plan.takes_whole_input]

    def block(column: str) -> str:
        """The innermost module that is called and has a row, too."""
        name = column
        while name:
            name = name.rpartition(".")[0]
            is_called = type(modules[name]).forward is not torch.nn.Module.forward
            if is_called and any(row.startswith(f"{name}.") for row in rows):
                return name
        return name

    return _Places(columns, rows, sorted({block(name) for name in columns} | {""}))


def _leave_what_is_left() -> None:
    """Of a column that was called by itself."""
    if not _calls.running:
        _core.abandon_split_random(_TENSOR)


def _begin(module: torch.nn.Module, *_: Any) -> None:
    _leave_what_is_left()
    _calls.running.append(_Call(module, has_entered=False))


def _end(module: torch.nn.Module, *_: Any) -> None:
    if _calls.end(module):
        _core.abandon_split_random(_TENSOR)


def _enter(part: torch.Tensor, group: _core.Communicator) -> None:
    if _core.enter_split_random(group, part.device, _TENSOR) and _calls.running:
        _calls.running[-1].has_entered = True


def _leaver(name: str) -> Any:
    def leave(*_: Any) -> None:
        if _core.leave_split_random(_TENSOR) or not (_calls.running and _calls.running[-1].has_entered):
            return
        if _core.has_drawn_since_split_random(_TENSOR):
            raise _core.Error(
                f"[tensor_parallel] {name}: expected random numbers to be drawn between a column and the row behind it, got some after "
                "another row had been called: which of them are of parts is not known. Call its column after that row, leave the "
                'modules whole with specs of "skip", or draw nothing there (dropout 0).'
            )

    return leave


def watch_random(model: torch.nn.Module, group: _core.Communicator) -> list[RemovableHandle]:
    """That the ranks of a tensor group draw the same for what each of them has whole: at every forward pass in training, if the
    first of them drew anything for it. Collective over the group."""
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    watches: list[_core.RandomWatch] = []

    def begin(module: torch.nn.Module, *_: Any) -> None:
        _leave_what_is_left()
        watches[:] = [_core.RandomWatch(device)] if module.training else []

    def end(*_: Any) -> None:
        if watches and not watches.pop().check_same(group):
            for hook in hooks:
                hook.remove()

    hooks = [model.register_forward_pre_hook(begin, prepend=True), model.register_forward_hook(end)]
    return hooks


# ---- A sequence group ------------------------------------------------------------------------------------------------


def split_random_of_sequence(model: torch.nn.Module, group: _core.Communicator) -> list[RemovableHandle]:
    """All that it computes is of a part of the sequence, or of some heads."""
    calls = _Calls()
    device = next((one.device for one in model.parameters()), torch.device("cpu"))

    def begin(module: torch.nn.Module, *_: Any) -> None:
        _leave_what_is_left()
        calls.running.append(_Call(module, _core.enter_split_random(group, device, _SEQUENCE)))

    def end(module: torch.nn.Module, *_: Any) -> None:
        if calls.end(module):
            _core.abandon_split_random(_SEQUENCE)

    return [
        model.register_forward_pre_hook(begin, prepend=True),
        model.register_forward_hook(end, always_call=True),
    ]
