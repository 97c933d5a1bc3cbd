"""Whether a computation is exact in a format, whatever the order of its additions: proven operator by operator.

Each number is a multiple of its tensor's grid, a power of two. A sum of products, in any order and in any parts, stays on the
product of the grids; where the sum of absolute values is at most 2 ** digits grid steps, no part of it is ever rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .balls import Format

_aten = torch.ops.aten


class Certificate(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no annotations
    """Watches operators on fp64 tensors; `broken` names the first one that a format would have rounded."""

    def __init__(self, form: Format, scale: float = 1.0) -> None:
        """scale: all numbers may be on the way multiplied by a number from 1 to this one, a power of two."""
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.broken = ""
        self._form = form
        self._scale = scale

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.broken:
            sums = _SUMS.get(func.overloadpacket)
            held = self._sums_are_held(sums(func, args, kwargs or {})) if sums else self._numbers_are_held(out)
            self.broken = "" if held else str(func)
        return out

    def _numbers_are_held(self, out: Any) -> bool:
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                largest = float(one.abs().max()) if one.numel() else 0.0
                if largest * self._scale > self._form.largest or not bool(self._form.holds(one.double()).all()):
                    return False
        return True

    def _sums_are_held(self, sums: Iterable[tuple[torch.Tensor | None, float]]) -> bool:
        """sums: of absolute values, each with its grid."""
        for size, grid in sums:
            largest = float(size.max()) if size is not None and size.numel() else 0.0
            if largest > grid * 2.0**self._form.digits or largest * self._scale > self._form.largest:
                return False
            if largest > 0 and grid < 2 * self._form.tiny:
                return False
        return True


def grid_of(numbers: torch.Tensor) -> float:
    """The largest power of two that all are multiples of; inf where all are 0."""
    numbers = numbers[numbers != 0]
    if numbers.numel() == 0:
        return math.inf
    mantissa, exponent = torch.frexp(numbers.double())
    digits = (mantissa * 2.0**53).to(torch.int64)
    return float(torch.ldexp((digits & -digits).double(), exponent - 53).min())


def _product_grid(*grids: float) -> float:
    return math.inf if math.inf in grids else math.prod(grids)


def _of_products(func: Any, args: Any, kwargs: Any) -> list[tuple[torch.Tensor | None, float]]:
    return [(func(args[0].abs(), args[1].abs()), _product_grid(grid_of(args[0]), grid_of(args[1])))]


def _of_products_and_bias(func: Any, args: Any, kwargs: Any) -> list[tuple[torch.Tensor | None, float]]:
    grid = min(grid_of(args[0]), _product_grid(grid_of(args[1]), grid_of(args[2])))
    return [(func(*(one.abs() for one in args[:3]), **kwargs), grid)]


def _of_sum(func: Any, args: Any, kwargs: Any) -> list[tuple[torch.Tensor | None, float]]:
    return [(func(args[0].abs(), *args[1:], **kwargs), grid_of(args[0]))]


def _of_convolution(func: Any, args: Any, kwargs: Any) -> list[tuple[torch.Tensor | None, float]]:
    tensors = [None if one is None else one.abs() for one in args[:3]]
    grid = _product_grid(grid_of(args[0]), grid_of(args[1]))
    return [(func(*tensors, *args[3:], **kwargs), grid if args[2] is None else min(grid, grid_of(args[2])))]


def _of_convolution_backward(func: Any, args: Any, kwargs: Any) -> list[tuple[torch.Tensor | None, float]]:
    gradient, into, weight = (grid_of(one) for one in args[:3])
    sizes = func(*(one.abs() for one in args[:3]), *args[3:], **kwargs)
    return list(zip(sizes, (_product_grid(gradient, weight), _product_grid(gradient, into), gradient)))


_SUMS: dict[Any, Callable[[Any, Any, Any], list[tuple[torch.Tensor | None, float]]]] = {
    _aten.mm: _of_products,
    _aten.bmm: _of_products,
    _aten.addmm: _of_products_and_bias,
    _aten.sum: _of_sum,
    _aten.convolution: _of_convolution,
    _aten.convolution_backward: _of_convolution_backward,
    _aten.embedding_dense_backward: _of_sum,
}
