"""zero.GatheredParameters of an engine whose tensor group splits parameters: while it is open they have the data and the shape of the
whole, in its packing, on every rank; what the modifier rank wrote is cut again.

Only the bits that were written replace masters. Until the end the engine's own parameters are away, so its calls, and the modules that
have parts of these parameters, refuse to run.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

import torch

from equigrad import _core
from equigrad._handles import OPEN_MARK, engine_of, is_frozen
from equigrad._tensor_parallel import own_part, whole_of

if TYPE_CHECKING:
    from equigrad._engine import Engine

_WHERE = "zero.GatheredParameters"


class _Opened(NamedTuple):
    parameter: torch.Tensor
    part: torch.Tensor
    before: torch.Tensor  # a copy of the whole's bits

    def is_written(self) -> bool:
        return not _bits(self.parameter.data).equal(self.before)


class WholeParameters:
    """Collective: all ranks of the engine give the same parameters and the same modifier rank."""

    def __init__(self, engine: Engine, parameters: list[torch.Tensor], modifier_rank: int | None) -> None:
        world = engine._ranks.world_size
        if modifier_rank is not None and not 0 <= modifier_rank < world:
            raise _core.Error(
                f"[{_WHERE}] expected a modifier rank from 0 to {world - 1}, got {modifier_rank}. Give none to read only."
            )
        for parameter in parameters:
            if OPEN_MARK in parameter.__dict__:
                raise _core.Error(
                    f"[{_WHERE}] expected a parameter that no scope holds, got one of another. End that one first."
                )
        self._engine, self._modifier_rank = engine, modifier_rank
        unique = {id(one): one for one in parameters}.values()
        asked = repr((modifier_rank, [self._name_of(one) for one in unique]))
        by_rank = self._said_by_all(torch.tensor([zlib.crc32(asked.encode())]))
        if any(said != by_rank[0] for said in by_rank):
            raise _core.Error(
                f"[{_WHERE}] expected the same parameters and modifier rank on every rank, got others on some. Make the same call on "
                "every rank."
            )
        wholes = [whole_of(one, engine._mesh.tensor).clone() for one in unique]
        self._opened = []
        for parameter, whole in zip(unique, wholes, strict=True):
            self._opened.append(_Opened(parameter, parameter.data, _bits(whole).clone()))
            parameter.data = whole
            parameter.__dict__[OPEN_MARK] = True
        engine._open_wholes += 1

    def end(self) -> None:
        wrote = torch.tensor([one.is_written() for one in self._opened], dtype=torch.int64)
        wholes = [one.parameter.data for one in self._opened]
        self.abandon()
        by_rank = self._said_by_all(wrote)
        others = [rank for rank, said in enumerate(by_rank) if rank != self._modifier_rank and said.any()]
        if others:
            may = (
                "no writes without modifier_rank"
                if self._modifier_rank is None
                else f"writes on rank {self._modifier_rank} only"
            )
            index = int(by_rank[others[0]].nonzero()[0])
            raise _core.Error(
                f'[{_WHERE}] expected {may}, got a write to "{self._name_of(self._opened[index].parameter)}" on rank {others[0]}. '
                "Nothing was kept; give modifier_rank=, and write there."
            )
        if self._modifier_rank is None:
            return
        for one, whole, is_written in zip(self._opened, wholes, by_rank[self._modifier_rank].tolist(), strict=True):
            if is_written:
                values = whole.contiguous()
                self._engine._ranks.broadcast(values.flatten(), self._modifier_rank)
                self._take(one, values)

    def abandon(self) -> None:
        """Parts are as they were."""
        for one in self._opened:
            one.parameter.data = one.part
            del one.parameter.__dict__[OPEN_MARK]
        self._engine._open_wholes -= 1

    def _said_by_all(self, mine: torch.Tensor) -> list[torch.Tensor]:
        ranks = self._engine._ranks
        said = [mine.clone() if rank == ranks.rank else torch.empty_like(mine) for rank in range(ranks.world_size)]
        for rank, words in enumerate(said):
            ranks.broadcast(words, rank)
        return said

    def _take(self, one: _Opened, whole: torch.Tensor) -> None:
        """Where no bit was written the master keeps those that the model's type has no room for."""
        now = own_part(whole, one.parameter, self._engine._mesh.tensor).contiguous()
        if is_frozen(one.parameter):
            one.part.copy_(now)
            return
        core, name = self._engine._living("gather"), self._name_of(one.parameter)
        master = core.full_master(name)  # of this rank's part
        is_same = _bits(now).eq(_bits(one.part)).to(master.device)
        core.set_full_master(name, torch.where(is_same, master, now.to(master)))

    def _name_of(self, parameter: torch.Tensor) -> str:
        found = engine_of(parameter)
        return "" if found is None else found[1]


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.detach().contiguous().view({8: torch.int64, 4: torch.int32, 2: torch.int16}[values.element_size()])
