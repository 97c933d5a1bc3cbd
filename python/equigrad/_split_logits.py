"""Logits of a split head: while a model of transformers computes its loss from labels, each rank has some entries of the
vocabulary, and no rank has all of them.

The head gives a SplitLogits, which says the shape of the whole. What a model does with it element by element, or to its leading
dimensions, is done to the part; its cross_entropy of torch is the core's, over the parts. Whatever else the model does gets the
whole, which the ranks gather there: they run one forward pass. After the pass a rank may be alone with its output, so there
all else is refused. Without labels, and in a compiled model, a head gives whole logits (docs/parallel.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from equigrad import _core

_WHERE = "tensor_parallel.vocab_parallel_lm_head"


class Passes:
    """The forward passes of the models around one head that run now, and whether one of them was given labels."""

    def __init__(self, group: _core.Communicator, entries: int) -> None:
        self.group, self.entries = group, entries
        self._running: list[tuple[torch.nn.Module, bool]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Passes:
        memo[id(self)] = copied = Passes(self.group, self.entries)
        return copied

    @property
    def have_labels(self) -> bool:
        return any(has_labels for _, has_labels in self._running)

    def begin(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or model._compiled_call_impl is not None:
            self._running.append((model, False))  # a compiler would take the whole's shape for the part's
            return
        try:
            given = inspect.signature(type(model).forward).bind_partial(model, *args, **kwargs).arguments
        except TypeError:
            given = {}  # the call says so itself
        self._running.append((model, given.get("labels") is not None))

    def end(self, model: torch.nn.Module, *_: Any) -> None:
        if self._running and self._running[-1][0] is model:  # not: another hook raised before begin()
            self._running.pop()


def keep_parts(model: torch.nn.Module, name: str, group: _core.Communicator, entries: int) -> None:
    """Makes the split head `name`, of all ranks' `entries`, give parts where a model around it computes its loss from labels."""
    passes = Passes(group, entries)
    for around, module in model.named_modules():
        is_around = around == "" or name.startswith(f"{around}.")
        if is_around and _takes_labels(module):
            module.register_forward_pre_hook(passes.begin, with_kwargs=True)
            module.register_forward_hook(passes.end, always_call=True)
    model.get_submodule(name).__dict__["_equigrad_passes"] = passes


def _takes_labels(module: torch.nn.Module) -> bool:
    """As the models of transformers do, of which none is needed here."""
    return hasattr(type(module), "loss_function") and "labels" in inspect.signature(type(module).forward).parameters


class SplitLogits(torch.Tensor):
    """[.., entries], of which this rank has a part."""

    _equigrad_passes: Passes

    @staticmethod
    def of(part: torch.Tensor, passes: Passes) -> SplitLogits:
        logits = part.as_subclass(SplitLogits)
        logits._equigrad_passes = passes
        return logits

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], _: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        own = args[0] if args and isinstance(args[0], SplitLogits) else None
        if own is not None:
            if function in _ANSWERED:
                return _ANSWERED[function](own, *args[1:], **kwargs)
            if function in _BY_PART:
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **kwargs)
            result = _of_part(own, function, args[1:], kwargs)
            if result is not None:
                return result
        if function is torch.nn.functional.cross_entropy:
            losses = _cross_entropy(*args, **kwargs)
            if losses is not None:
                return losses
        _check_whole(function, args, kwargs)
        return function(*tree_map(_whole, args), **tree_map(_whole, kwargs))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        width = part_of_logits(self).shape[-1]
        first = self._equigrad_passes.group.rank * width
        return f"SplitLogits({list(self.shape)}, of which this rank has the entries {first} to {first + width - 1})"


def whole_logits(logits: torch.Tensor) -> torch.Tensor:
    """All entries of what a model gave as `output.logits` beside its loss; what is whole as it is. All ranks of a tensor group
    call it."""
    if not isinstance(logits, SplitLogits):
        return logits
    return _core.gather_from(part_of_logits(logits), -1, logits._equigrad_passes.group)


def part_of_logits(logits: torch.Tensor) -> torch.Tensor:
    """The entries that this rank has, rank x their number being the first; of what is whole, all."""
    with torch._C.DisableTorchFunctionSubclass():
        return logits.as_subclass(torch.Tensor)


def _whole(value: Any) -> Any:
    return whole_logits(value) if isinstance(value, SplitLogits) else value


# ---- What needs no whole ---------------------------------------------------------------------------------------------


def _named(names: str) -> frozenset[Any]:
    """torch's functions and a tensor's methods of these names."""
    return frozenset(getattr(of, name) for name in names.split() for of in (torch, torch.Tensor) if hasattr(of, name))


def _read(names: str) -> frozenset[Any]:
    return frozenset(getattr(torch.Tensor, name).__get__ for name in names.split())


def _whole_shape(logits: SplitLogits) -> torch.Size:
    return torch.Size((*part_of_logits(logits).shape[:-1], logits._equigrad_passes.entries))


def _whole_size(logits: SplitLogits, dim: int | None = None) -> Any:
    return _whole_shape(logits) if dim is None else _whole_shape(logits)[dim]


def _whole_numel(logits: SplitLogits) -> int:
    return _whole_shape(logits).numel()


_ANSWERED: dict[Any, Callable[..., Any]] = {
    torch.Tensor.shape.__get__: _whole_shape,  # type: ignore[attr-defined]
    torch.Tensor.size: _whole_size,
    torch.Tensor.numel: _whole_numel,
    torch.Tensor.nelement: _whole_numel,
    torch.numel: _whole_numel,
    torch.Tensor.__len__: lambda logits: _whole_shape(logits)[0],
}
_BY_PART = _named("dim is_floating_point is_complex is_contiguous get_device") | _read(
    "dtype device ndim requires_grad is_leaf grad grad_fn layout is_cuda is_cpu is_meta is_sparse is_quantized"
)
# Element by element, beside numbers only.
_BY_ELEMENT = _named(
    "to float double half bfloat16 contiguous clone detach cpu cuda neg __neg__ tanh tanh_ mul mul_ __mul__ __rmul__ __imul__ "
    "div div_ true_divide __div__ __truediv__ __itruediv__"
)


def _of_part(logits: SplitLogits, function: Any, more: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """None: it needs the whole."""
    given = (*more, *kwargs.values())
    part = part_of_logits(logits)
    if function in _BY_ELEMENT and all(_is_number(one) for one in given):
        with torch._C.DisableTorchFunctionSubclass():
            return SplitLogits.of(function(part, *more, **kwargs), logits._equigrad_passes)
    if kwargs:
        return None
    sizes = None
    if function in (torch.Tensor.view, torch.Tensor.reshape, torch.reshape):
        sizes = _sizes_of(logits, more)
    elif function is torch.Tensor.__getitem__ and _leaves_entries(more[0], part.dim()):
        return SplitLogits.of(part[more[0]], logits._equigrad_passes)
    if sizes is None:
        return None
    return SplitLogits.of(function(part, (*sizes[:-1], part.shape[-1])), logits._equigrad_passes)


def _is_number(value: Any) -> bool:
    """Or no value at all, such as a type. One that is trained is none: its gradient needs all entries."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and not value.requires_grad
    return not isinstance(value, (list, tuple, dict))


def _sizes_of(logits: SplitLogits, more: tuple[Any, ...]) -> list[int] | None:
    """Sizes of a view whose rows are the whole's; None of another one."""
    given = more[0] if len(more) == 1 and isinstance(more[0], (list, tuple)) else more
    if not given or not all(isinstance(one, int) for one in given):
        return None
    sizes, entries = list(given), logits._equigrad_passes.entries
    known = 1
    for size in sizes:
        known *= 1 if size == -1 else size
    if sizes.count(-1) == 1 and known > 0:
        sizes[sizes.index(-1)] = logits.numel() // known
    return sizes if sizes[-1] == entries and -1 not in sizes else None


def _leaves_entries(index: Any, dimensions: int) -> bool:
    """Whether it takes all entries of each row, in their order."""
    items = index if isinstance(index, tuple) else (index,)
    if not all(one is Ellipsis or isinstance(one, slice) or type(one) is int for one in items):
        return False
    before = items[: items.index(Ellipsis)] if Ellipsis in items else items
    behind = items[len(before) + 1 :] or before[dimensions - 1 :]
    return len(behind) == 0 or behind[-1] == slice(None)


def _cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    """torch's, over the parts, in fp32; None: of what it asks, the parts alone know too little."""
    is_plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    if not isinstance(input, SplitLogits) or not is_plain or reduction not in ("mean", "sum", "none"):
        return None
    if input.dim() != 2 or target.dim() != 1 or target.is_floating_point():
        return None
    part = part_of_logits(input)
    losses = _core.cross_entropy_by_row(part, target, input._equigrad_passes.group, ignore_index)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / target.ne(ignore_index).sum()


# ---- What needs the whole --------------------------------------------------------------------------------------------

_WITH_EFFECT = ("__setitem__", "__set__", "__delete__", "backward", "register_hook", "retain_grad", "set_")


def _check_whole(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An effect on the whole would be one on a copy; and after the forward pass other ranks may not be here."""
    name = str(getattr(function, "__name__", function))
    attribute = str(getattr(getattr(function, "__self__", None), "__name__", name))
    is_in_place = name.endswith("_") and not name.endswith("__")
    has_effect = is_in_place or name in _WITH_EFFECT or name.startswith("register_") or kwargs.get("out") is not None
    has_effect = has_effect or attribute == "data"
    found: list[SplitLogits] = []
    tree_map(lambda one: found.append(one) if isinstance(one, SplitLogits) else None, (args, kwargs))
    if has_effect or not all(one._equigrad_passes.have_labels for one in found):
        raise _core.Error(
            f"[{_WHERE}] expected whole logits for {attribute}, got logits beside a loss, of which each rank of the tensor group has some "
            "entries. Take equigrad.parallel.whole_logits(output.logits), on all of them; or leave out labels, and compute the loss "
            "of whole logits; or set vocab_parallel_lm_head to false."
        )
