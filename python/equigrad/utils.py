"""One parameter's gradient, master weight and optimizer state, whole or this rank's slice; and leaf modules of stage 3.

The names are DeepSpeed's. What is whole is collective: every rank makes the call, or all get an error. A gradient is the
average over the ranks and the passes so far, unscaled, before clipping.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, Protocol, TypeVar, cast

import torch

from equigrad._handles import core_of, engine_of, is_frozen

_Wanted = TypeVar("_Wanted", bound="type | str")

__all__ = [
    "get_z3_leaf_modules",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "safe_update_full_grad_vectorized",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "set_z3_leaf_modules_by_name",
    "set_z3_leaf_modules_by_suffix",
    "unset_z3_leaf_modules",
    "unset_z3_leaf_modules_by_name",
    "unset_z3_leaf_modules_by_suffix",
    "z3_leaf_module",
    "z3_leaf_parameter",
]


class _Leaf(Protocol):
    _z3_leaf: bool


def safe_get_full_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """The whole gradient; None if no rank has used the parameter, it is frozen, or no engine holds it."""
    found = engine_of(param)
    return None if found is None or is_frozen(param) else found[0]._living("safe_get_full_grad").full_gradient(found[1])


def safe_set_full_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """The gradient so far becomes `value`; later passes of this window are added to it."""
    core, name = core_of(param, "safe_set_full_grad")
    core.set_full_gradient(name, value)


def safe_update_full_grad_vectorized(
    param_list: Iterable[torch.nn.Parameter], update_func: Callable[[torch.Tensor, torch.nn.Parameter], torch.Tensor]
) -> None:
    """Every gradient becomes what `update_func(gradient, parameter)` makes of it; without a gradient nothing is done."""
    for param in param_list:
        gradient = safe_get_full_grad(param)
        if gradient is not None:
            safe_set_full_grad(param, update_func(gradient, param))


def safe_get_full_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """The whole master weight; None if it is frozen."""
    if is_frozen(param):
        return None
    core, name = core_of(param, "safe_get_full_fp32_param")
    return core.full_master(name)


def safe_set_full_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets the master weight; the model's parameter follows at once."""
    core, name = core_of(param, "safe_set_full_fp32_param")
    core.set_full_master(name, value)


def safe_get_full_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """A whole state of the optimizer: "exp_avg", "exp_avg_sq", "momentum_buffer"; None if the parameter is frozen."""
    if is_frozen(param):
        return None
    core, name = core_of(param, "safe_get_full_optimizer_state")
    return core.full_optimizer_state(name, optim_state_key)


def safe_set_full_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str) -> None:
    core, name = core_of(param, "safe_set_full_optimizer_state")
    core.set_full_optimizer_state(name, optim_state_key, value)


def safe_get_local_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """This rank's slice of the gradient, flat; None if it is frozen. Collective, for its sum is."""
    if is_frozen(param):
        return None
    core, name = core_of(param, "safe_get_local_grad")
    return core.local_gradient(name)


def safe_set_local_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    core, name = core_of(param, "safe_set_local_grad")
    core.set_local_gradient(name, value)


def safe_get_local_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """This rank's slice of the master weight, flat; None if it is frozen."""
    if is_frozen(param):
        return None
    core, name = core_of(param, "safe_get_local_fp32_param")
    return core.local_master(name)


def safe_set_local_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    core, name = core_of(param, "safe_set_local_fp32_param")
    core.set_local_master(name, value)


def safe_get_local_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    if is_frozen(param):
        return None
    core, name = core_of(param, "safe_get_local_optimizer_state")
    return core.local_optimizer_state(name, optim_state_key)


def safe_set_local_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str) -> None:
    core, name = core_of(param, "safe_set_local_optimizer_state")
    core.set_local_optimizer_state(name, optim_state_key, value)


# ---- Leaf modules: their parameters come and go together at stage 3 --------------------------------------------------


def _type_name(module: torch.nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


def _mark(
    model: torch.nn.Module, leaf: bool, wanted: Iterable[_Wanted], matches: Callable[[_Wanted, str, torch.nn.Module], bool]
) -> tuple[list[torch.nn.Module], list[_Wanted]]:
    """(those that were marked, what matched none)"""
    found: list[torch.nn.Module] = []
    missing: list[_Wanted] = []
    for one in wanted:
        modules = [module for name, module in model.named_modules() if matches(one, name, module)]
        if not modules:
            missing.append(one)
        found += [module for module in modules if not any(module is before for before in found)]
    for module in found:
        set_z3_leaf_module(module, leaf)
    return found, missing


def _refuse(missing: Sequence[type | str], known: Iterable[str]) -> NoReturn:
    wanted = missing[0].__name__ if isinstance(missing[0], type) else str(missing[0])
    near = difflib.get_close_matches(wanted, sorted(set(known)), n=1, cutoff=0.0)
    raise ValueError(
        f"[leaf_modules] expected a module of the model, got {wanted!r}, which matches none. "
        + (f"The nearest is {near[0]!r}." if near else "Mark modules of a model that has some.")
    )


def _mark_classes(
    model: torch.nn.Module, classes: Iterable[type | str], leaf: bool, raise_if_not_found: bool
) -> list[torch.nn.Module]:
    def matches(wanted: type | str, _: str, module: torch.nn.Module) -> bool:
        if isinstance(wanted, type):
            return isinstance(module, wanted)
        return wanted in (type(module).__name__, type(module).__qualname__, _type_name(module))

    found, missing = _mark(model, leaf, classes, matches)
    if not found and missing and raise_if_not_found:
        _refuse(missing, (type(module).__name__ for module in model.modules()))
    return found


def _mark_names(
    model: torch.nn.Module, names: Iterable[str], leaf: bool, raise_if_not_found: bool
) -> tuple[list[torch.nn.Module], list[str]]:
    found, missing = _mark(model, leaf, names, lambda wanted, name, _: name == wanted)
    if missing and raise_if_not_found:
        _refuse(missing, (name for name, _ in model.named_modules()))
    return found, missing


def _mark_suffixes(
    model: torch.nn.Module, suffixes: Iterable[str], leaf: bool, raise_if_not_found: bool
) -> tuple[list[torch.nn.Module], list[str]]:
    def matches(wanted: str, name: str, _: torch.nn.Module) -> bool:
        return name == wanted or name.endswith("." + wanted)

    found, missing = _mark(model, leaf, suffixes, matches)
    if missing and raise_if_not_found:
        _refuse(missing, (name for name, _ in model.named_modules()))
    return found, missing


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Iterable[type | str], raise_if_not_found: bool = True
) -> list[torch.nn.Module]:
    """Marks modules of these classes, given as types or by their names. Before initialize()."""
    return _mark_classes(model, leaf_module_classes, True, raise_if_not_found)


def set_z3_leaf_modules_by_name(
    model: torch.nn.Module, module_names: Iterable[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[torch.nn.Module], list[str]]:
    """Marks modules of these names; returns them, and the names that match none."""
    return _mark_names(model, module_names, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(
    model: torch.nn.Module, module_name_suffixes: Iterable[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[torch.nn.Module], list[str]]:
    """Marks modules whose names end with one of these; returns them, and the suffixes that match none."""
    return _mark_suffixes(model, module_name_suffixes, flag, raise_if_not_found)


def unset_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Iterable[type | str], raise_if_not_found: bool = True
) -> list[torch.nn.Module]:
    return _mark_classes(model, leaf_module_classes, False, raise_if_not_found)


def unset_z3_leaf_modules_by_name(
    model: torch.nn.Module, module_names: Iterable[str], raise_if_not_found: bool = True
) -> tuple[list[torch.nn.Module], list[str]]:
    return _mark_names(model, module_names, False, raise_if_not_found)


def unset_z3_leaf_modules_by_suffix(
    model: torch.nn.Module, module_name_suffixes: Iterable[str], raise_if_not_found: bool = True
) -> tuple[list[torch.nn.Module], list[str]]:
    return _mark_suffixes(model, module_name_suffixes, False, raise_if_not_found)


def mark_configured_leaf_modules(model: torch.nn.Module, classes: list[str], names: list[str], suffixes: list[str]) -> None:
    """Those that the configuration names; the engine refuses a name that matches none."""
    _mark_classes(model, classes, True, False)
    _mark_names(model, names, True, False)
    _mark_suffixes(model, suffixes, True, False)


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Marks the model itself, or takes its mark away."""
    cast(_Leaf, model)._z3_leaf = flag


def z3_leaf_module(model: torch.nn.Module) -> bool:
    return bool(getattr(model, "_z3_leaf", False))


def z3_leaf_parameter(param: torch.nn.Parameter) -> bool:
    """Whether the parameter belongs to a leaf module of the engine that holds it."""
    found = engine_of(param)
    if found is None:
        return False
    modules = found[0].module.modules()
    return any(z3_leaf_module(leaf) and any(one is param for one in leaf.parameters()) for leaf in modules)


def get_z3_leaf_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if z3_leaf_module(module)]
