"""Chooses which gradient each row of a batch gives, and its sign, so that sums and weights stay small, and yet all is told.

All are multiples of what a row may give; the more they cancel, the less weights move, while each single one stays plain to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import numpy.typing

Matrix = numpy.typing.NDArray[numpy.float64]
Numbers = numpy.typing.NDArray[numpy.int64]
PASSES = 3
_BROKEN = 1e6
_SILENT_ROW = 30.0
_SILENT_MICRO_BATCH = 1e3
_TOLD = 0.03
_ALONE = 3.0
_FAR = 0.5


@dataclass(frozen=True)
class Limits:
    """Per element: what the sum of absolute values may be at most, and how the weight moves."""

    sums: Matrix
    weights: Matrix
    """Before the step."""
    moves: Matrix
    """By how much a sum of 1 moves the weight; 0 where that does not matter."""
    largest: float
    """Of weights after the step."""
    alone: numpy.typing.NDArray[numpy.bool_]
    """Parameters of one element: their size stays from 1 to 2."""


def balanced(
    options: Matrix, cells: Numbers, twins: Sequence[tuple[int, int]], limits: Limits, random: numpy.random.Generator
) -> Matrix:
    """options: [row, option, element], what each gives with sign +. cells: the micro-batch of each row. twins: pairs of rows with
    the same options, which begin with opposite ones.

    [row, option]: 0, 1 or -1, at most one of them not 0 in a row, and in each micro-batch some, where that can be.
    """
    rows, count, width = options.shape
    none = 2 * count
    signed = numpy.concatenate([options, -options, numpy.zeros((rows, 1, width))], axis=1)
    absolute = abs(signed)
    empty = ~(options != 0).any(axis=2)
    chosen = numpy.full(rows, none)
    total, size = numpy.zeros(width), numpy.zeros(width)
    for one, twin in twins:
        for option in random.permutation(numpy.flatnonzero(~empty[one] & ~empty[twin])):
            first, second = random.permutation([option, option + count])
            after = total + signed[one, first] + signed[twin, second], size + absolute[one, option] + absolute[twin, option]
            if keeps(*after, limits):
                chosen[one], chosen[twin] = first, second
                total, size = after
                break
    for _ in range(PASSES):
        before = chosen.copy()
        for row in random.permutation(rows):
            total -= signed[row, chosen[row]]
            size -= absolute[row, chosen[row]]
            cost = _cost(total + signed[row], size + absolute[row], limits)
            alone = not any(chosen[other] != none for other in numpy.flatnonzero(cells == cells[row]) if other != row)
            cost[none] += _SILENT_ROW + (_SILENT_MICRO_BATCH if alone else 0.0)
            cost[:none] += numpy.where(numpy.tile(empty[row], 2), 2 * _SILENT_MICRO_BATCH, 0.0)
            chosen[row] = int(cost.argmin())
            total += signed[row, chosen[row]]
            size += absolute[row, chosen[row]]
        if (before == chosen).all():
            break
    made = numpy.zeros((rows, count))
    kept = chosen != none
    made[kept, chosen[kept] % count] = numpy.where(chosen[kept] < count, 1.0, -1.0)
    return made


def keeps(total: Matrix, size: Matrix, limits: Limits) -> bool:
    """Whether the limits hold."""
    return bool(_excess(total[None], size[None], limits)[0] == 0)


def _cost(total: Matrix, size: Matrix, limits: Limits) -> Matrix:
    moved = abs(total * limits.moves)
    far = numpy.maximum(moved - 1, 0)
    cost: Matrix = _FAR * (far * far).sum(axis=1) + _ALONE * (moved * limits.alone).sum(axis=1)
    cost += _BROKEN * _excess(total, size, limits) - _TOLD * (total != 0).sum(axis=1)
    return cost


def _excess(total: Matrix, size: Matrix, limits: Limits) -> Matrix:
    after = limits.weights - total * limits.moves
    over = numpy.maximum(size / limits.sums - 1, 0)
    over += numpy.maximum(abs(after) - numpy.maximum(limits.largest, abs(limits.weights)), 0)
    over += limits.alone & ((abs(after) < 1) | (abs(after) > 2)) & (limits.moves != 0)
    excess: Matrix = over.sum(axis=1)
    return excess
