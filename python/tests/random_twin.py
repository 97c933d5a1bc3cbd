"""Random numbers of ranks that share a model, in one process: dropout of parts draws, part by part, from a stream for each rank.

A stream is seeded with a mix of one number of the default generator and the rank, as engine/parallel/split_random.hpp says; where
a stream begins and ends is said by the tests' models. Nothing of the engine is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

import tensor_twin
from tensor_twin import Cut, Joined, Parts

Call = Callable[[], Any]
TENSOR, SEQUENCE = 0x9D3A6B << 40, 0x9D3A6C << 40
_WORD, _HALF = (1 << 64) - 1, (1 << 32) - 1
_dropout, _attention = F.dropout, F.scaled_dot_product_attention
_lock = threading.RLock()  # of the default generator, in whose place each stream draws


def seed(drawn: int, rank: int, kind: int) -> int:
    mixed = drawn
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> shift) * factor & _WORD
    mixed ^= mixed >> 31
    low = (mixed + rank) & _HALF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        low = (low ^ low >> shift) * factor & _HALF
    return kind | mixed & 0xFF << 32 | low ^ low >> 16


class Streams:
    """One for each of `size` ranks, while they are open; behind them the default generator has given one number, or none at all if
    none of them has. within: where the default generator is another stream."""

    def __init__(self, size: int, kind: int, within: Callable[[Call], Any] = lambda call: call()) -> None:
        self.size, self._kind, self._within = size, kind, within
        self._states: list[torch.Tensor] = []

    @property
    def are_open(self) -> bool:
        return bool(self._states)

    def open(self) -> None:
        with _lock:
            if not self.are_open:
                self._within(self._open)

    def _open(self) -> None:
        self._before, self._has_given = torch.get_rng_state(), False
        drawn = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) & _WORD
        self._behind = torch.get_rng_state()
        for rank in range(self.size):
            torch.manual_seed(seed(drawn, rank, self._kind))
            self._states.append(torch.get_rng_state())
        torch.set_rng_state(self._before)

    def close(self) -> None:
        with _lock:
            if self.are_open:
                self._states.clear()
                self._within(lambda: torch.set_rng_state(self._behind if self._has_given else self._before))

    def of(self, rank: int, call: Call) -> Any:
        with _lock:
            torch.set_rng_state(self._states[rank])
            result = call()
            self._has_given |= not torch.equal(self._states[rank], torch.get_rng_state())
            self._states[rank] = torch.get_rng_state()
            return result


@contextmanager
def _in_the_place_of_torchs(dropout: Callable[..., Any], attention: Callable[..., Any]) -> Iterator[None]:
    F.dropout, F.scaled_dot_product_attention = dropout, attention
    try:
        yield
    finally:
        F.dropout, F.scaled_dot_product_attention = _dropout, _attention


# ---- A tensor group --------------------------------------------------------------------------------------------------


class Group(tensor_twin.Group):
    """Its columns open the streams, and its rows close them. What is between has heads at dimension 1 of four, or is cut along the
    last."""

    def __init__(self, size: int, within: Callable[[Call], Any] = lambda call: call()) -> None:
        super().__init__(size)
        self.streams = Streams(size, TENSOR, within)

    def column(self, module: torch.nn.Module, cut: Cut) -> None:
        super().column(module, cut)
        own = module.forward

        def forward(whole: torch.Tensor) -> torch.Tensor:
            part = own(whole)
            self.streams.open()
            return part

        module.forward = forward

    def row(self, module: torch.nn.Module, cut: Cut) -> None:
        super().row(module, cut)
        own = module.forward

        def forward(part: torch.Tensor) -> torch.Tensor:
            self.streams.close()
            return own(part)

        module.forward = forward

    def by_rank(self, call: Callable[..., torch.Tensor], *wholes: torch.Tensor) -> torch.Tensor:
        cut = Cut(1 if wholes[0].dim() == 4 else -1)
        parts = zip(*(Parts.apply(whole, cut, self.size) for whole in wholes), strict=True)
        every = [self.streams.of(rank, lambda own=own: call(*own)) for rank, own in enumerate(parts)]
        return Joined.apply(cut, *every)

    def dropping(self) -> Any:
        """While it is entered torch's dropout and attention draw from the streams that are open."""

        def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
            if not self.streams.are_open or not training or p == 0:
                return _dropout(input, p, training, inplace)
            return self.by_rank(lambda part: _dropout(part, p, training), input)

        def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **more: Any) -> Any:
            if not self.streams.are_open or dropout_p == 0:
                return _attention(query, key, value, attn_mask, dropout_p, **more)
            return self.by_rank(lambda *heads: _attention(*heads, attn_mask, dropout_p, **more), query, key, value)

        return _in_the_place_of_torchs(dropout, attention)


# ---- A sequence group ------------------------------------------------------------------------------------------------


class Sequence:
    """Each part runs in a thread of its own (sequence_twin.py), and draws from its stream; of a model that a tensor group has, too,
    from the streams of that part's group while they are open."""

    def __init__(self, ranks: int, tensor: int = 1) -> None:
        self.streams = Streams(ranks, SEQUENCE)
        self.groups = [Group(tensor, lambda call, part=part: self.streams.of(part, call)) for part in range(ranks)]
        self._here = threading.local()  # part: whose stream; rank: in its tensor group, of attention
        self._calls = 0

    def run(self, part: int, call: Call, rank: int | None = None) -> Any:
        before = self._here.__dict__.copy()
        self._here.part, self._here.rank = part, rank
        try:
            return call()
        finally:
            self._here.__dict__.clear()
            self._here.__dict__.update(before)

    def by_heads(self, local: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Of attention, which one thread computes for all ranks, one after the other: sequence ranks within tensor ranks."""
        parts, size = self.streams.size, self.groups[0].size

        def attend(*given: Any) -> torch.Tensor:
            at, self._calls = self._calls % (parts * size), self._calls + 1
            return self.run(at % parts, lambda: local(*given), at // parts)

        return attend

    @contextmanager
    def dropping(self) -> Iterator[None]:
        def drawn(call: Callable[..., torch.Tensor], *wholes: torch.Tensor) -> torch.Tensor:
            group, rank = self.groups[self._here.part], self._here.rank
            if not group.streams.are_open:
                return self.streams.of(self._here.part, lambda: call(*wholes))
            return group.by_rank(call, *wholes) if rank is None else group.streams.of(rank, lambda: call(*wholes))

        def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
            return drawn(lambda part: _dropout(part, p, training), input)

        def attention(query: Any, key: Any, value: Any, *more: Any, **named: Any) -> Any:
            return drawn(lambda *heads: _attention(*heads, *more, **named), query, key, value)

        self.streams.open()
        try:
            with _in_the_place_of_torchs(dropout, attention):
                yield
        finally:
            self.streams.close()
