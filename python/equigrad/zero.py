"""zero.GatheredParameters: whole parameters for code of one's own, at every stage."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from equigrad import _core
from equigrad._handles import engine_of

__all__ = ["GatheredParameters"]


class GatheredParameters:
    """While it is open the tensors hold their data on every rank, and one rank may write them.

        with equigrad.zero.GatheredParameters(model.head.weight, modifier_rank=0):
            if rank == 0:
                model.head.weight.data.fill_(0.5)

    params: a parameter, or several. Those that no engine holds are whole anyway.
    modifier_rank: whose values become every rank's; without it nothing may be written. Collective.
    """

    def __init__(self, params: torch.nn.Parameter | Iterable[torch.nn.Parameter], modifier_rank: int | None = None, fwd_module=None, enabled: bool = True) -> None:
        given = [params] if isinstance(params, torch.Tensor) else list(params)
        self._parameters = given if enabled else []
        self._modifier_rank = modifier_rank
        self._open: list[_core.Gathered] = []

    def __enter__(self) -> None:
        by_engine: dict[int, tuple] = {}
        for parameter in self._parameters:
            found = engine_of(parameter)
            if found is not None:
                by_engine.setdefault(id(found[0]), (found[0], []))[1].append(parameter)
        for engine, parameters in by_engine.values():
            self._open.append(engine._core.gather(parameters, self._modifier_rank))

    def __exit__(self, kind, value, trace) -> None:
        opened, self._open = self._open, []
        for gathered in reversed(opened):
            if kind is None:
                gathered.end()
            else:
                gathered.abandon()
