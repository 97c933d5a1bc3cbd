"""Weights and batches of a case: an integer lattice, on which right engines have no choice but to give the same bits.

Weights, inputs and the gradients of outputs are small numbers on a coarse grid, drawn so that forward, backward, every sum over
ranks and micro-batches in any order, and the step are exact in the case's coarsest format. lattice.py proves it; what cannot be
proven is drawn again. Where ranks x micro-batches is no power of two the loss is multiplied by its odd part (`factor`), and by that of
the ranks once more for each pass that follows, so that the division is exact wherever and as often as it is done. Gradients of outputs are so large that learning rate x gradient is whole, and weights
stay whole numbers; their signs are chosen so that they stay small. Every micro-batch has data of its own.

From the first step that cannot be exact on (AdamW, active clipping, decay in 16 bits), biases lie off the grid of the weights, so
that no unit is at the kink of its relu where rounding would decide.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import torch
from torch.func import functional_call, grad, vmap

from . import scales
from .balance import Limits, Matrix, Numbers, balanced, keeps
from .balls import FORMATS, Ball, Format, coarsest
from .lattice import Certificate, grid_of
from .local_gradients import Tensors, averaged_again, format_of_gradients
from .on_rank import models, tensors
from .on_rank.protocol import Case, ProtocolError, batch_key
from .updates import Rates, State, clip_factor, norm_of, update

TRIES = 24
"""Of a workload, before what is certified is taken as it is; a third of them where all steps tell something."""
DRAWS = 3
"""Of a step's data."""
_LARGEST_WEIGHT = 3.0
_ALONE = 1
"""Rows without a twin."""
_MOVED = 0.35
_TOLD = 0.3
"""The share of micro-batches that are to tell something of each parameter in each step."""
_CACHED = 256


@dataclass(frozen=True)
class Workload:
    """What all ranks of a case start from."""

    weights: Tensors
    """By parameter, fp32."""
    batches: Tensors
    """By protocol.batch_key."""
    factor: int
    """What the loss is multiplied by: the odd part of ranks x micro-batches."""
    certified: int
    """So many steps, from the first, are exact in any order of additions."""


_drawn: OrderedDict[str, Workload] = OrderedDict()


def draw(case: Case, seed: int = 0) -> Workload:
    """The workload of a case with a built-in model; the same for the same case and seed.

    Raises ProtocolError for a model of the user's: its batches are the user's too.
    """
    if case.model.name not in models.BUILT_IN:
        raise ProtocolError(
            f"[judge] expected a built-in model, got {case.model.name!r}. Give weights and batches of your own."
        )
    key = _key(case, seed)
    if key not in _drawn:
        about = models.describe(case.model.name, case.model.arguments)
        generator = torch.Generator().manual_seed(int(key[:12], 16))
        _drawn[key] = _Lattice(case, about, generator).drawn() if about.lattice else _reals(case, about, generator)
        if len(_drawn) > _CACHED:
            _drawn.popitem(last=False)
    _drawn.move_to_end(key)
    return _drawn[key]


def write(case: Case, folder: Path, seed: int = 0) -> tuple[Case, Workload]:
    """The case with files of weights and batches in the folder, and its factor; equal workloads share a file."""
    workload = draw(case, seed)
    stem = _key(case, seed)[:24]
    paths = {kind: folder / f"{stem}-{kind}.safetensors" for kind in ("weights", "batches")}
    for kind, named in (("weights", workload.weights), ("batches", workload.batches)):
        if not paths[kind].exists():
            tensors.write(paths[kind], named)
    model = replace(case.model, factor=workload.factor)
    return replace(case, model=model, weights=str(paths["weights"]), batches=str(paths["batches"])), workload


def _key(case: Case, seed: int) -> str:
    """Of all that the numbers depend on."""
    told = dataclasses.asdict(replace(case, id="", weights="", batches="", stage=0, style="", options={}))
    told["backwards"] = case.options.get("backwards", 1)
    told["model"]["factor"] = 1
    told["precision"] = [one.name for one in (_inner(case), format_of_gradients(case))]
    told["scale"] = scales.largest(case.precision.loss_scale, case.steps)
    return hashlib.sha256(json.dumps([told, seed], sort_keys=True).encode()).hexdigest()


def _inner(case: Case) -> Format:
    """What the forward and backward of the model are rounded to, at the coarsest."""
    return coarsest(case.precision.model, case.precision.autocast)


def _reals(case: Case, about: models.Description, generator: torch.Generator) -> Workload:
    """For a model that is no lattice: its own initial weights, and random data."""
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(0, 2**31, (1,), generator=generator)))
        module = models.build(case.model).module
    weights = {name: one.detach().float() for name, one in module.named_parameters()}
    batches = {
        batch_key(step, *cell, one.key): _random(one, generator)
        for step in range(case.steps)
        for cell in _cells(case)
        for one in about.inputs
    }
    return Workload(weights, batches, 1, 0)


def _random(one: models.Input, generator: torch.Generator) -> torch.Tensor:
    if one.kind == "tokens":
        return torch.randint(0, one.high, one.shape, generator=generator)
    if one.kind == "flag":
        return torch.randint(0, 2, one.shape, generator=generator)
    if one.kind == "reals":
        return torch.randn(one.shape, generator=generator)
    return torch.randint(-one.high, one.high + 1, one.shape, generator=generator).float()


def _cells(case: Case) -> list[tuple[int, int, int]]:
    """(rank, micro-batch, backward) of all that have a batch in a step."""
    backwards = int(case.options.get("backwards", 1))
    return [(r, m, b) for r in range(case.world) for m in range(case.accumulation) for b in range(backwards)]


@dataclass
class _Rows:
    """One step's data, row by row: what the forward takes, the flag of each row's cell, and the gradient of its output."""

    inputs: Tensors
    flags: torch.Tensor
    gradient: torch.Tensor
    twins: Sequence[tuple[int, int]]
    """Rows with almost the same inputs."""

    def split(self) -> list[tuple[int, torch.Tensor]]:
        """The flags that occur, and which rows have them."""
        return [(int(flag), (self.flags == flag).nonzero().flatten()) for flag in torch.unique(self.flags)]


@dataclass(frozen=True)
class _Chosen:
    """One step's data, and what comes of it."""

    rows: _Rows
    mean: Tensors
    """The mean gradient, by parameter."""
    keeps: bool
    """Sums and weights are as small as they must be to be exact."""
    told: float
    """How much it tells, from 0 to 1."""


class _Lattice:
    """Draws one workload."""

    def __init__(self, case: Case, about: models.Description, generator: torch.Generator) -> None:
        self.case = case
        self.about = about
        self.generator = generator
        self.module = models.build(case.model).module.double()
        self.trained = [name for name, one in self.module.named_parameters() if one.requires_grad]
        divisor = case.world * case.accumulation
        self.power = divisor & -divisor
        self.factor = divisor // self.power * averaged_again(case)[0]
        self.inner = _inner(case)
        self.sums = format_of_gradients(case)
        self.random = numpy.random.default_rng(int(torch.randint(0, 2**31, (1,), generator=generator)))
        self.hoped = self._hoped()
        """How many steps can be exact."""
        self.scale = scales.largest(case.precision.loss_scale, case.steps)

    def drawn(self) -> Workload:
        """The workload with the most certified steps of some tries; one that is not certified where none is."""
        best: tuple[Workload, float] | None = None
        for attempt in range(TRIES):
            found = self._try(strict=True)
            if found is not None and (best is None or found[1] > best[1]):
                best = found
            if best is not None and (best[1] >= _TOLD or (3 * attempt >= TRIES and best[1] > 0)):
                break
        last = best or self._try(strict=False)
        assert last is not None
        return last[0]

    def _hoped(self) -> int:
        optimizer, case = self.case.optimizer, self.case
        if optimizer.name != "sgd" or (case.clip is not None and case.clip.max_norm < 2.0**12):
            return 1
        decays = optimizer.weight_decay or any(group.weight_decay for group in case.groups)
        if decays:
            return 1  # weights that are a little less than whole numbers give gradients of many digits
        if optimizer.momentum:
            return min(case.steps, 3 if self.inner.digits >= 24 else 2)
        return case.steps

    def _try(self, strict: bool) -> tuple[Workload, float] | None:
        """A workload, and the least of what its steps tell. strict: None where a step that can be exact is not."""
        first = weights = self._weights()
        told = 1.0
        state: dict[str, State] = {}
        batches: Tensors = {}
        certified = 0
        for step in range(self.case.steps):
            chosen = self._best_of(weights, step, state)
            if step < self.hoped:
                exact = chosen.keeps and self._certified(weights, chosen.rows)
                certified += int(exact and certified == step)
                if strict and not exact:
                    return None
            told = min(told, chosen.told)
            self._keep(batches, step, chosen.rows)
            weights = self._after(step, weights, chosen.mean, state)
        return Workload({name: one.float() for name, one in first.items()}, batches, self.factor, certified), told

    def _best_of(self, weights: Tensors, step: int, state: dict[str, State]) -> _Chosen:
        """The first of some draws of a step's data that keeps the limits and tells enough; else the best one."""
        best: _Chosen | None = None
        for _ in range(DRAWS):
            one = self._chosen(self._inputs(step), weights, step)
            if step < self.case.steps - 1:
                after = self._after(step, weights, one.mean, dict(state))
                one = replace(one, told=min(one.told, self._alive(after, step + 1)))
            if best is None or (one.keeps, one.told) > (best.keeps, best.told):
                best = one
            if best.keeps and best.told >= _TOLD:
                break
        assert best is not None
        return best

    def _alive(self, weights: Tensors, step: int) -> float:
        """The share of parameters that some row gives a gradient: with large weights no unit may be between 0 and 6."""
        rows = self._inputs(step)
        options = self._gradients(weights, rows, self._units(rows, step)).flatten(0, 1)
        parts = torch.split(options, [weights[name].numel() for name in self.trained], dim=1)
        used = [bool((part != 0).any()) for name, part in zip(self.trained, parts) if name not in self.about.unused]
        return sum(used) / len(used)

    def _size(self, step: int) -> float:
        """What gradients of outputs are multiples of: so that learning rate x mean is whole, where it fits. Small where a step that
        cannot be exact follows: weights that are thrown far off leave units that no gradient passes."""
        case = self.case
        if case.optimizer.name != "sgd" or self.hoped - 1 <= step < case.steps - 1 or step >= self.hoped:
            return 1.0
        lr = min([group.lr for group in case.groups] or [case.optimizer.lr])
        if case.schedule:
            lr *= case.schedule[min(step, len(case.schedule) - 1)]
        mantissa, exponent = math.frexp(lr)
        if mantissa != 0.5:
            return 1.0
        size = self.power * 2.0 ** (1 - exponent)
        while size > 1 and size * self.factor * self.scale * 24 > self.sums.largest:
            size /= 2
        return size

    def _weights(self) -> Tensors:
        """Small whole numbers, sparse, so that sums stay small; where rounding will come in, biases lie off their grid."""
        off = self.hoped < self.case.steps
        weights: Tensors = {}
        biases = 0
        for name, one in self.module.named_parameters():
            if one.numel() == 1:
                weights[name] = torch.ones(one.shape, dtype=torch.float64)
            elif one.dim() == 1:
                biases += 1
                whole = self._choice(one.shape, (-1, 0, 1), (0.2, 0.4, 0.4))
                weights[name] = whole + (2.0**-biases if off and biases <= 2 else 0.0)
            else:
                weights[name] = self._sparse(one.shape)
        return weights

    def _sparse(self, shape: torch.Size) -> torch.Tensor:
        """One number per output where few inputs are summed, an eighth of all where there are many; mostly positive."""
        rows, columns = shape[0], math.prod(shape[1:])
        chance = 0.12 if columns > 8 else 0.0
        kept = torch.rand(rows, columns, generator=self.generator) < chance
        kept[torch.arange(rows), torch.randint(0, columns, (rows,), generator=self.generator)] = True
        return (self._choice((rows, columns), (-1, 1), (0.25, 0.75)) * kept).reshape(shape)

    def _choice(self, shape: Sequence[int], numbers: Sequence[int], chances: Sequence[float]) -> torch.Tensor:
        drawn = torch.multinomial(torch.tensor(chances), math.prod(shape), True, generator=self.generator)
        return torch.tensor(numbers, dtype=torch.float64)[drawn].reshape(tuple(shape))

    def _inputs(self, step: int) -> _Rows:
        """Without gradients yet. While weights must stay small, most rows have a twin in another micro-batch, whose gradient is
        then nearly the opposite one."""
        cells = len(_cells(self.case))
        inputs: Tensors = {}
        flags = torch.zeros(0, dtype=torch.int64)
        count = 0
        for one in self.about.inputs:
            if one.kind == "flag":
                flags = torch.randint(0, 2, (cells,), generator=self.generator)
                flags[0], flags[-1] = (1, 0) if cells > 1 else (1, 1)
            elif one.kind == "tokens":
                inputs[one.key] = torch.randint(
                    0, one.high, (cells * one.shape[0], *one.shape[1:]), generator=self.generator
                )
            elif one.kind == "integers":
                numbers, chances = (0, -1, 1, 2), (0.35, 0.2, 0.35, 0.1)
                inputs[one.key] = self._choice((cells * one.shape[0], *one.shape[1:]), numbers, chances)
            count = one.shape[0] if one.shape else count
        twins = self._twins(cells, count) if step < self.hoped - 1 else []
        for row, twin in twins:
            for key, drawn in inputs.items():
                drawn[twin] = self._like(key, drawn[row])
        of_rows = flags.repeat_interleave(count) if flags.numel() else torch.zeros(cells * count, dtype=torch.int64)
        return _Rows(inputs, of_rows, torch.zeros(0), twins)

    def _like(self, key: str, numbers: torch.Tensor) -> torch.Tensor:
        """The same, or with one number changed: then gradients of opposite sign leave a little of each parameter's."""
        flat = numbers.clone().flatten()
        if int(torch.randint(0, 4, (1,), generator=self.generator)):
            spot = int(torch.randint(0, flat.numel(), (1,), generator=self.generator))
            high = next(one.high for one in self.about.inputs if one.key == key)
            if flat.is_floating_point():
                flat[spot] += -1.0 if flat[spot] > 0 else 1.0
            else:
                flat[spot] = torch.randint(0, high, (1,), generator=self.generator)
        return flat.reshape(numbers.shape)

    def _twins(self, cells: int, count: int) -> list[tuple[int, int]]:
        """Pairs of rows, of two micro-batches where there are several; some rows are left over."""
        left = torch.randperm(cells * count, generator=self.generator).tolist()[_ALONE:]
        pairs = []
        while left:
            one = left.pop()
            twin = next((row for row in left if row // count != one // count or cells == 1), None)
            if twin is not None:
                left.remove(twin)
                pairs.append((one, twin))
        return pairs

    def _forward(self, weights: Tensors, inputs: Tensors, flag: int) -> torch.Tensor:
        flags = {one.key: torch.tensor(flag) for one in self.about.inputs if one.kind == "flag"}
        output: torch.Tensor = functional_call(self.module, weights, (), {**inputs, **flags})
        return output

    def _chosen(self, rows: _Rows, weights: Tensors, step: int) -> _Chosen:
        """Chooses the gradients of the outputs of a step's data."""
        case, size = self.case, self._size(step)
        units = self._units(rows, step)
        options = self._gradients(weights, rows, units).numpy()
        limits = self._limits(weights, options, size, step)
        count = rows.flags.numel()
        cells = numpy.arange(count) // (count // len(_cells(case)))
        chosen = balanced(options, cells, rows.twins, limits, self.random)
        total, absolute = (numpy.einsum("rk,rkp->p", of(chosen), of(options)) for of in (numpy.asarray, numpy.abs))
        rows.gradient = torch.einsum("rk,rk...->r...", torch.from_numpy(chosen), units) * size
        mean = torch.from_numpy(total) * (size * self.factor / (case.world * case.accumulation))
        within = keeps(total, absolute, limits)
        told = self._told(numpy.einsum("rk,rkp->rp", chosen, options), cells, weights, mean, step)
        return _Chosen(rows, self._named(mean, weights), within, told)

    def _units(self, rows: _Rows, step: int) -> torch.Tensor:
        """[row, option, ...]: gradients of an output to choose from. While weights must stay small, one element each; in the last
        step that can be exact all of them, with as many digits as a type of half the width would lose."""
        shape = next(one.shape[1:] for one in self.about.inputs if one.kind == "gradient")
        count, width = rows.flags.numel(), math.prod(shape)
        options = min(width, 4)
        bits = {53: 27, 24: 10}.get(min(self.sums.digits, self.inner.digits), 0)
        if step != self.hoped - 1 or not bits:
            spots = torch.stack([torch.randperm(width, generator=self.generator)[:options] for _ in range(count)])
            for one, twin in rows.twins:
                spots[twin] = spots[one]
            units = torch.nn.functional.one_hot(spots, width).to(torch.float64)
        else:
            units = self._choice((count, options, width), (-1, 1, 0), (0.4, 0.4, 0.2))
            digits = torch.randint(2 ** (bits - 1), 2**bits, units.shape, generator=self.generator) | 1
            units = units * digits / 2.0 ** (bits - 1)
        return units.reshape(count, options, *shape)

    def _told(self, given: Matrix, cells: Numbers, weights: Tensors, mean: torch.Tensor, step: int) -> float:
        """How much a step tells: while weights must stay small, the share of parameters whose mean gradient is not 0, or 1 where
        that is most of them; else the least share, over parameters, of micro-batches that give it a gradient."""
        shares, begin = [], 0
        for name in self.trained:
            part = slice(begin, begin + weights[name].numel())
            begin = part.stop
            if name not in self.about.unused:
                telling = set(cells[(given[:, part] != 0).any(axis=1)])
                shares.append(len(telling) / (int(cells[-1]) + 1) if bool((mean[part] != 0).any()) else 0.0)
        if step >= self.hoped - 1:
            return min(shares)
        moved = sum(share > 0 for share in shares) / len(shares)
        return 1.0 if moved >= _MOVED else moved * _TOLD

    def _gradients(self, weights: Tensors, rows: _Rows, units: torch.Tensor) -> torch.Tensor:
        """[row, option, element]: what each row's output gives for each of its gradients."""
        trained = {name: weights[name] for name in self.trained}
        fixed = {name: one for name, one in weights.items() if name not in trained}
        out = torch.zeros(*units.shape[:2], sum(one.numel() for one in trained.values()), dtype=torch.float64)

        for flag, which in rows.split():

            def of_one(named: Tensors, inputs: Tensors, unit: torch.Tensor, flag: int = flag) -> torch.Tensor:
                output = self._forward({**fixed, **named}, {key: one[None] for key, one in inputs.items()}, flag)
                return (output[0] * unit).sum()

            of_rows = vmap(vmap(grad(of_one), in_dims=(None, None, 0)), in_dims=(None, 0, 0))
            found = of_rows(trained, {key: one[which] for key, one in rows.inputs.items()}, units[which])
            out[which] = torch.cat([found[name].flatten(2) for name in self.trained], dim=2)
        return out

    def _limits(self, weights: Tensors, options: Matrix, size: float, step: int) -> Limits:
        """In units of what a row gives for a gradient of 1."""
        flat = torch.cat([weights[name].flatten() for name in self.trained]).numpy()
        grids, alone, moves = numpy.empty(flat.size), numpy.zeros(flat.size, dtype=bool), numpy.empty(flat.size)
        rates, begin = self._rates(step), 0
        for name in self.trained:
            part = slice(begin, begin + weights[name].numel())
            grid = grid_of(torch.from_numpy(options[..., part]))
            grids[part] = 1.0 if math.isinf(grid) else grid
            alone[part] = weights[name].numel() == 1
            moves[part] = rates[name].lr * size * self.factor / (self.case.world * self.case.accumulation)
            if step == self.case.steps - 1:
                moves[part] = 0.0
            begin = part.stop
        most = numpy.full(flat.size, self.sums.largest / (size * self.factor * self.scale))
        if step < self.hoped:  # later sums are rounded whatever is chosen, and must tell something all the same
            most = numpy.minimum(grids * 2.0**self.sums.digits / (self.factor * averaged_again(self.case)[1]), most)
        return Limits(most, flat, moves, _LARGEST_WEIGHT * (4 if self.inner.digits >= 24 else 1), alone)

    def _certified(self, weights: Tensors, rows: _Rows) -> bool:
        """Whether forward and backward of all rows are exact in the precision of the model."""
        leaves = {name: one.clone().requires_grad_(name in self.trained) for name, one in weights.items()}
        for flag, which in rows.split():
            with Certificate(self.inner, self.scale) as certificate:
                output = self._forward(leaves, {key: one[which] for key, one in rows.inputs.items()}, flag)
                output.backward(rows.gradient[which] * self.factor)  # type: ignore[no-untyped-call]
            if certificate.broken:
                return False
        gradients = [one.grad for one in leaves.values() if one.grad is not None]
        return all(bool(self.inner.holds(one).all()) for one in (*weights.values(), *gradients))

    def _rates(self, step: int) -> dict[str, Rates]:
        """Of all parameters, at that step."""
        case = self.case
        factor = case.schedule[min(step, len(case.schedule) - 1)] if case.schedule else 1.0
        rates = {name: Rates(case.optimizer.lr * factor, case.optimizer.weight_decay) for name in self.trained}
        rates.update({name: Rates(one.lr * factor, one.weight_decay) for one in case.groups for name in one.parameters})
        return rates

    def _after(self, step: int, weights: Tensors, mean: Tensors, state: dict[str, State]) -> Tensors:
        """The weights after the step, as a right engine has them; the optimizer's state is changed."""
        case, form, after = self.case, FORMATS["fp64"], dict(weights)
        if case.clip is not None:
            factor = clip_factor(norm_of([Ball.of(one) for one in mean.values()], case.clip, form), case.clip, form)
            mean = {name: one * float(factor.mid) for name, one in mean.items()}
        for name, rates in self._rates(step).items():
            if name in mean:
                balls = Ball.of(weights[name]), state.get(name, State()), Ball.of(mean[name])
                ball, state[name] = update(case.optimizer, *balls, rates, form)
                after[name] = ball.mid
        return after

    def _named(self, flat: torch.Tensor, weights: Tensors) -> Tensors:
        """By parameter; those that no forward uses are left out."""
        parts = torch.split(flat, [weights[name].numel() for name in self.trained])
        unused = set(self.about.unused)
        return {name: part.reshape(weights[name].shape) for name, part in zip(self.trained, parts) if name not in unused}

    def _keep(self, batches: Tensors, step: int, rows: _Rows) -> None:
        """Cuts the rows into the batches of cells."""
        cells = _cells(self.case)
        count = rows.flags.numel() // len(cells)
        for index, cell in enumerate(cells):
            part = slice(index * count, (index + 1) * count)
            for one in self.about.inputs:
                if one.kind == "flag":
                    tensor = rows.flags[index * count].clone()
                elif one.kind == "gradient":
                    tensor = rows.gradient[part].float()
                else:
                    tensor = rows.inputs[one.key][part]
                    tensor = tensor.float() if tensor.is_floating_point() else tensor
                batches[batch_key(step, *cell, one.key)] = tensor
