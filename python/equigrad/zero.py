"""zero.Init: a model is made without any rank ever holding all of it. zero.GatheredParameters: whole parameters, at every stage."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from equigrad import _core, _ranks
from equigrad._handles import ZeroParamStatus, engine_of, is_here, marked
from equigrad._whole_parameters import WholeParameters

if TYPE_CHECKING:
    from equigrad._engine import Engine

__all__ = ["GatheredParameters", "Init", "ZeroParamStatus", "is_here"]


class Init:
    """Modules made within are partitioned as they are made; `equigrad.initialize` with the same configuration takes them over.

        with equigrad.zero.Init(config_dict_or_path="ds_config.json"):
            model = Gpt(options)

    The bits are those of ordinary construction on rank 0. Below stage 3 it does nothing, and within another Init. Collective:
    every rank makes the same model. `config` and `config_dict_or_path` are the same: a dict, JSON text, or a path; it need not
    name an optimizer.
    """

    _depth = 0  # of Inits within each other

    def __init__(
        self,
        config_dict_or_path: _ranks.Config | None = None,
        config: _ranks.Config | None = None,
        enabled: bool = True,
    ) -> None:
        self._init: _core.Init | None = None
        self._text = None
        if enabled:
            self._text = _ranks.with_some_optimizer(_ranks.config_text((config_dict_or_path, config), "zero.Init"))

    def __enter__(self) -> None:
        Init._depth += 1
        if self._text is not None and Init._depth == 1:
            checked = _core.load_config(self._text, _ranks.world_size())
            device = torch.get_default_device()
            self._init = _core.Init(self._text, _ranks.communicator(device, checked.communication_timeout_s))

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        Init._depth -= 1
        init, self._init = self._init, None
        if init is not None:
            init.finish() if kind is None else init.abandon()


class GatheredParameters:
    """While it is open the tensors hold their data on every rank, and one rank may write them.

        with equigrad.zero.GatheredParameters(model.head.weight, modifier_rank=0):
            if rank == 0:
                model.head.weight.data.fill_(0.5)

    params: a parameter, or several: of an engine, or of zero.Init before there is one. All others are whole anyway.
    modifier_rank: whose values become every rank's; without it nothing may be written. Collective. Of a tensor group parameters have
    the shape and the packing of the whole while it is open, and the model does not run.
    """

    def __init__(
        self,
        params: torch.Tensor | Iterable[torch.Tensor],
        modifier_rank: int | None = None,
        fwd_module: torch.nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given = [params] if isinstance(params, torch.Tensor) else list(params)
        self._parameters = given if enabled else []
        self._modifier_rank = modifier_rank
        self._open: list[_core.Gathered | _Early | WholeParameters] = []

    def __enter__(self) -> None:
        by_engine: dict[int, tuple[Engine, list[torch.Tensor]]] = {}
        for parameter in self._parameters:
            found = engine_of(parameter)
            if found is None and (early := _core.early_shard(parameter)) is not None:
                self._open.append(_Early(parameter, early, self._modifier_rank))
            if found is not None:
                by_engine.setdefault(id(found[0]), (found[0], []))[1].append(parameter)
        for engine, parameters in by_engine.values():
            if engine._mesh.tensor is not None:
                self._open.append(WholeParameters(engine, parameters, self._modifier_rank))
            else:
                self._open.append(engine._living("gather").gather(parameters, self._modifier_rank))

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        opened, self._open = self._open, []
        for gathered in reversed(opened):
            gathered.end() if kind is None else gathered.abandon()


class _Early:
    """One parameter of zero.Init, whole while this is open, before there is an engine."""

    def __init__(self, parameter: torch.Tensor, early: _core.EarlyShard, modifier_rank: int | None) -> None:
        self._parameter = parameter
        self._early = early
        self._modifier_rank = modifier_rank
        self._ranks = _ranks.connected(parameter.device)
        shards = torch.empty(self._ranks.world_size, early.shard.numel(), dtype=parameter.dtype, device=parameter.device)
        for rank, shard in enumerate(shards):
            if rank == self._ranks.rank:
                shard.copy_(early.shard)
            self._ranks.broadcast(shard, rank)
        _core.give_back(parameter, shards.flatten()[: parameter.numel()].clone())
        marked(parameter)._equigrad_gathered = True
        self._before = self._mark()

    def _mark(self) -> tuple[int, int]:
        """Another one after an operator of torch's in place, or a write through .data that changes the sum of the words."""
        values = self._parameter.detach().as_strided((self._parameter.numel(),), (1,))
        whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[values.element_size()]
        return self._parameter._version, int(values.view(whole).sum(dtype=torch.int64))

    def _refuse_writes(self) -> None:
        """On every rank, where some rank has written and no rank may."""
        wrote = torch.zeros(self._ranks.world_size, dtype=torch.int64)
        wrote[self._ranks.rank] = self._mark() != self._before
        for rank in range(len(wrote)):
            self._ranks.broadcast(wrote[rank : rank + 1], rank)
        if wrote.any():
            raise _core.Error(
                f"[zero.GatheredParameters] expected nothing to be written without modifier_rank, got an in-place modification of a "
                f"parameter of shape {list(self._parameter.shape)} on rank {int(wrote.nonzero()[0])}. Give modifier_rank=, the rank "
                "whose values become every rank's."
            )

    def end(self) -> None:
        if self._modifier_rank is None:
            try:
                self._refuse_writes()
            finally:
                self.abandon()
            return
        values = self._parameter.detach().as_strided((self._parameter.numel(),), (1,))
        self._ranks.broadcast(values, self._modifier_rank)
        shard = torch.zeros_like(self._early.shard)
        own = values[self._ranks.rank * shard.numel() :][: shard.numel()]
        shard[: own.numel()] = own
        self._early = self._early.with_values(shard)
        self.abandon()

    def abandon(self) -> None:
        self._parameter.__dict__.pop("_equigrad_gathered", None)
        _core.keep_early_shard(self._parameter, self._early)
