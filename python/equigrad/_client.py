"""An optimizer of the caller's, a torch.optim.Optimizer, on this rank's slices of the parameters.

Its param_groups hold one flat fp32 slice for every parameter, in the parameter's place: a view of the engine's masters, with the
gradient as `.grad` while `step()` runs, and None where no rank used the parameter. What the optimizer does to an element may depend
on nothing but that element, its gradient, its states and the group's hyper-parameters; then a slice gets the bits that it would get
inside its whole parameter. `check_element_wise` finds out on a probe, before the engine is made.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from equigrad import _core, _values

# (name, the model's parameter, begin, end, master)
Slice = tuple[str, torch.Tensor, int, int, torch.Tensor]

_PROBE_SHAPES = ((6, 5), (50, 41))
_PROBE_CUTS = (13, 777)
_PROBE_STEPS = 8


def class_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def make_optimizer(given: Any, parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """The optimizer that initialize() was given: an instance, or what a callable makes of the parameters."""
    made = given
    if not isinstance(given, torch.optim.Optimizer) and callable(given):
        made = given(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        what = "one" if made is given else "a callable that makes one"
        raise _core.Error(
            f"[initialize] expected {what} of torch.optim.Optimizer, got a {type(made).__name__}. Give an instance, a class, "
            "or a callable that takes the parameters."
        )
    if isinstance(made, torch.optim.LBFGS):
        raise _core.Error(
            "[initialize] expected an optimizer that updates every element by itself, got LBFGS, which needs whole gradients and a "
            "closure. Use SGD, Adam, AdamW, RMSprop or another that is element-wise."
        )
    return made


def settings_of(optimizer: torch.optim.Optimizer) -> list[str]:
    """What each group is set to, in words, for ranks to compare: "torch.optim.adamw.AdamW lr=0.001 betas=(0.9, 0.999)"."""

    def word(value: Any) -> str:
        return repr(value.tolist() if isinstance(value, torch.Tensor) else value)

    def is_plain(value: Any) -> bool:  # a function's words have its address
        if isinstance(value, (tuple, list)):
            return all(is_plain(one) for one in value)
        return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))

    return [
        " ".join([class_of(optimizer), *(f"{key}={word(group[key])}" for key in group if key != "params" and is_plain(group[key]))])
        for group in optimizer.param_groups
    ]


def check_element_wise(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Steps a probe, whole and cut in two, with the optimizer's own code and options: every bit must be the same."""
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _first_difference(optimizer, device)
    except _core.Error:
        raise
    except Exception as error:
        raise _core.Error(
            f"[initialize] expected an optimizer that steps over flat slices of parameters, got {type(optimizer).__name__}, "
            f"which raised {type(error).__name__} on a probe: {error}. It is not element-wise, and needs whole parameters."
        ) from error
    if found:
        raise _core.Error(
            f"[initialize] expected an optimizer that updates every element by itself, got {type(optimizer).__name__}, {found}. "
            "Its updates would depend on the number of ranks. Use one that is element-wise; on the CPU without fused=True."
        )


def _first_difference(optimizer: torch.optim.Optimizer, device: torch.device) -> str | None:
    generator = torch.Generator().manual_seed(1)
    count = len(optimizer.param_groups)
    starts = [[torch.randn(shape, generator=generator) * 0.25 for shape in _PROBE_SHAPES] for _ in range(count)]
    whole = [[start.clone().to(device).requires_grad_() for start in group] for group in starts]
    flat = [[start.clone().to(device).flatten() for start in group] for group in starts]
    first = [[one[:cut].detach().requires_grad_() for one, cut in zip(group, _PROBE_CUTS)] for group in flat]
    second = [[one[cut:].detach().requires_grad_() for one, cut in zip(group, _PROBE_CUTS)] for group in flat]
    parts = [slice(0, cut) for cut in _PROBE_CUTS], [slice(cut, None) for cut in _PROBE_CUTS]
    twins = [_twin(optimizer, whole, None), _twin(optimizer, first, parts[0]), _twin(optimizer, second, parts[1])]
    for step in range(1, _PROBE_STEPS + 1):
        for index in range(count):
            for at, cut in enumerate(_PROBE_CUTS):
                gradient = (torch.randn(_PROBE_SHAPES[at], generator=generator) * 10.0 ** (step % 4 - 2)).to(device)
                whole[index][at].grad = gradient
                first[index][at].grad = gradient.flatten()[:cut].clone()
                second[index][at].grad = gradient.flatten()[cut:].clone()
        for twin in twins:
            twin.step()
        for index in range(count):
            for at, one in enumerate(flat[index]):
                differing = (whole[index][at].detach().flatten().view(torch.int32) != one.view(torch.int32)).nonzero()
                if differing.numel():
                    return (
                        f"whose step {step} gives {differing.numel()} of {one.numel()} elements of a probe other bits when it is "
                        f"cut at element {_PROBE_CUTS[at]}"
                    )
    if all(torch.equal(one.cpu(), start.flatten()) for g, s in zip(flat, starts) for one, start in zip(g, s)):
        return "whose step leaves what its param_groups hold as it was"
    return None


def _twin(
    optimizer: torch.optim.Optimizer, parameters: list[list[torch.Tensor]], parts: list[slice] | None
) -> torch.optim.Optimizer:
    """One of the same class and options on probes, or on these parts of them, without hooks and what a scheduler has patched."""
    twin = object.__new__(type(optimizer))
    memo = {id(one): one for group in optimizer.param_groups for one in group["params"]}
    kept = {}
    for name, value in optimizer.__dict__.items():
        if name not in ("param_groups", "state", "step") and not name.startswith("_optimizer_"):
            kept[name] = _copied(value, memo)
    groups = []
    state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
    for group, probes in zip(optimizer.param_groups, parameters, strict=True):
        stepped: torch.Tensor | None
        stepped = next((one for one in group["params"] if one.numel() and optimizer.state.get(one)), None)
        for at, probe in enumerate(probes):
            if stepped is None:  # Adagrad has states before its first step, others have none
                break
            of_whole = _spread(optimizer.state[stepped], stepped.shape, _PROBE_SHAPES[at])
            state[probe] = {
                key: _part(value, parts[at])
                if parts and torch.is_tensor(value) and value.shape == _PROBE_SHAPES[at]
                else value
                for key, value in of_whole.items()
            }
        options = {key: _copied(value, memo) for key, value in group.items() if key != "params"}
        if "lr" in options:  # a rate of 0, as a warm-up begins with, would hide what an update depends on
            options["lr"] = torch.full_like(options["lr"], 0.01) if torch.is_tensor(options["lr"]) else 0.01
        groups.append({**options, "params": probes})
    torch.optim.Optimizer.__setstate__(twin, {**kept, "state": state, "param_groups": groups})
    return twin


def _part(value: torch.Tensor, part: slice) -> torch.Tensor:
    return value.flatten()[part].clone()


def _spread(state: dict[str, Any], shape: torch.Size, probe: tuple[int, ...]) -> dict[str, Any]:
    """The values of a state over one of the probe's shape."""
    values = {}
    for key, value in state.items():
        if torch.is_tensor(value) and value.shape == shape and key != "step":
            values[key] = value.detach().flatten()[torch.arange(math.prod(probe)) % value.numel()].view(probe)
        else:
            values[key] = copy.deepcopy(value)
    return values


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, dict(memo))
    except Exception:  # noqa: BLE001  what cannot be copied is shared
        return value


class Client:
    """The optimizer behind the engine's calls, one method each (engine/api/slice_optimizer.hpp)."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._masters: list[torch.Tensor] = []

    def own(self, slices: list[Slice]) -> None:
        of_parameter = {parameter: (name, begin, end, master) for name, parameter, begin, end, master in slices}
        states = {}
        for name, parameter, begin, end, master in slices:
            if self.optimizer.state.get(parameter):
                states[master] = _cut(name, self.optimizer.state[parameter], parameter.shape, begin, end)
        shared = {key: value for key, value in self.optimizer.state.items() if not torch.is_tensor(key)}
        self.optimizer.state.clear()
        self.optimizer.state.update({**shared, **states})
        for group in self.optimizer.param_groups:
            group["params"] = [of_parameter[one][3] for one in group["params"] if one in of_parameter]
        self._masters = [one[4] for one in slices]

    def step(self, gradients: list[torch.Tensor | None]) -> None:
        try:
            for master, gradient in zip(self._masters, gradients, strict=True):
                master.grad = gradient
            self.optimizer.step()
        finally:
            for master in self._masters:
                master.grad = None

    def lr(self) -> list[float]:
        return [float(group.get("lr", 0.0)) for group in self.optimizer.param_groups]

    def set_rates(self, lr: list[float], beta1: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, lr):
            if torch.is_tensor(group.get("lr")):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        for group, beta in zip(self.optimizer.param_groups, beta1):
            if "betas" in group:
                group["betas"] = (beta, *group["betas"][1:])

    def state_names(self, index: int) -> list[str]:
        master = self._masters[index]
        return [key for key, value in self._state(index).items() if torch.is_tensor(value) and value.shape == master.shape]

    def state(self, index: int, name: str) -> torch.Tensor:
        value: torch.Tensor = self._state(index)[name]
        return value

    def state_bytes(self) -> int:
        states = [self._state(index) for index in range(len(self._masters))]
        return sum(one.nbytes for state in states for one in state.values() if torch.is_tensor(one))

    def kind(self) -> str:
        return class_of(self.optimizer)

    def numbers(self, index: int) -> str:
        """What a checkpoint keeps of a slice beside states as large as it, as JSON."""
        large = self.state_names(index)
        rest = {key: value for key, value in self._state(index).items() if key not in large}
        where = "engine.save_checkpoint"
        return _values.text_of(_values.form_of(rest, "an optimizer's state", where)) if rest else ""

    def restore(self, index: int, states: dict[str, torch.Tensor], numbers: str) -> None:
        where = "engine.load_checkpoint"
        rest = _values.value_of(_values.form_from(numbers, where), where) if numbers else {}
        master = self._masters[index]
        group = next(one for one in self.optimizer.param_groups if any(p is master for p in one["params"]))
        if torch.is_tensor(rest.get("step")) and (group.get("capturable") or group.get("fused")):
            rest["step"] = rest["step"].to(master.device)  # where torch's own load_state_dict puts it
        self.optimizer.state.pop(master, None)
        if rest or states:
            self.optimizer.state[master] = {**rest, **{key: one.clone() for key, one in states.items()}}

    def _state(self, index: int) -> dict[str, Any]:
        state = self.optimizer.state.get(self._masters[index])
        return state if isinstance(state, dict) else {}


def _cut(name: str, state: dict[str, Any], shape: torch.Size, begin: int, end: int) -> dict[str, Any]:
    cut = {}
    for key, value in state.items():
        if torch.is_tensor(value) and value.shape == shape and key != "step":
            cut[key] = value.detach().reshape(-1)[begin:end].clone()
        elif not torch.is_tensor(value) or value.numel() == 1:
            cut[key] = copy.deepcopy(value)
        else:
            raise _core.Error(
                f'[initialize] expected states as large as their parameters, got "{key}" of "{name}" of shape '
                f"{list(value.shape)}, which cannot be cut into slices. Construct a new optimizer."
            )
    return cut


def check_scheduler(given: Any, client: torch.optim.Optimizer | None) -> None:
    """The lr_scheduler that initialize() was given is of the client's optimizer, or a callable that takes the engine's."""
    if callable(given):
        return
    if not callable(getattr(given, "step", None)):
        raise _core.Error(
            f"[initialize] expected an lr_scheduler with step(), or a callable that makes one, got a {type(given).__name__}."
        )
    of = getattr(given, "optimizer", client)
    if of is not client:
        raise _core.Error(
            f"[initialize] expected an lr_scheduler of the optimizer that initialize() is given, got a {type(given).__name__} of "
            f"another {type(of).__name__}. Construct it with that one, or give a callable that takes the optimizer."
        )
