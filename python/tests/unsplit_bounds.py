"""How far a model that ranks share may be from the unsplit one in fp64: bounds of each phase of its pass, on that phase's own inputs.

A pass is a chain. Its links are the linears, whose inputs and outputs, forward and backward, are recorded on the ranks and put
together; and all that lies between two of them, which is no sum of parts. The unsplit model is run with its linears forced: each
gives what the ranks' gave, forward and backward. So every phase begins with the ranks' own numbers, errors do not add up, and no
bound grows with the depth:

    between linears    what the unsplit model gives, bit for bit (a norm, rotary places, attention by heads, an activation)
    parts              of linears, norms, embeddings in the shapes of a rank, beside fp64, by gamma of their number of additions
    a sum of T parts   the exact sum of these, within gamma of the tree's height and one rounding to their type
    a quantity         beside the unsplit model's own in fp64: what its parts and their sum may add

    u: fp32 2^-24, bf16 2^-8;  gamma(n) = n u / (1 - n u);  16-bit products are added in fp32 and rounded once

Nothing of the engine is used: what is cut, and how, is written down here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
TINY = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133}
_PAD = 1 + 2.0**-40  # what fp64 rounds away where bounds and exact values are computed
COLUMNS, ROWS = r"\.(q|k|v|gate|up)_proj$", r"\.(o|down)_proj$"


def gamma(roundings: int, unit: float) -> float:
    return roundings * unit / (1 - roundings * unit)


def half_step(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What rounding to the type, to nearest, changes at most: half the distance of its numbers there."""
    exponent = torch.frexp(numbers.abs())[1] - 1
    return torch.maximum(UNIT[dtype] * torch.exp2(exponent.double()), torch.tensor(TINY[dtype] / 2, dtype=torch.float64))


def height(parts: int) -> int:
    return (parts - 1).bit_length()


# ---- What was compared ------------------------------------------------------------------------------------------------


class Worst(NamedTuple):
    margin: float  # error / bound: 1 is the edge
    where: str


@dataclass
class Lane:
    """Comparisons of one kind."""

    compared: int = 0
    beyond: int = 0
    worst: Worst = field(default_factory=lambda: Worst(0.0, ""))
    first: str = ""
    seen: list[tuple[float, str]] = field(default_factory=list)
    """Of each tensor, the share by which all of it may be changed until a bound is broken, and where."""

    def add(self, where: str, got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> None:
        got, exact = got.double(), exact.double()
        assert got.shape == exact.shape == bound.shape and got.numel(), where
        bound = bound * _PAD
        error = (got - exact).abs()
        broken = ~(error <= bound)  # also what is no number
        self.compared += got.numel()
        self.beyond += int(broken.sum())
        margin = torch.where(error == 0, 0.0, error / bound).nan_to_num(math.inf).max().item()
        if margin > self.worst.margin:
            self.worst = Worst(margin, where)
        if broken.any() and not self.first:
            self.first = (
                f"{where}: {int(broken.sum())} of {got.numel()} elements beyond the bound, by up to {margin:.3g} of it"
            )
        to_break = (bound + error) / exact.abs()
        least = to_break[exact != 0]
        if least.numel():
            self.seen.append((least.min().item(), where))

    def bits(self, where: str, got: torch.Tensor, want: torch.Tensor) -> None:
        self.add(where, got, want, torch.zeros(want.shape, dtype=torch.float64))


@dataclass
class Lanes:
    between: Lane = field(default_factory=Lane)
    parts: Lane = field(default_factory=Lane)
    sums: Lane = field(default_factory=Lane)
    unsplit: Lane = field(default_factory=Lane)

    def named(self) -> dict[str, Lane]:
        return dict(vars(self))

    @property
    def first(self) -> str:
        return next((f"{name}: {lane.first}" for name, lane in self.named().items() if lane.first), "")


# ---- What the ranks' linears were given and gave -----------------------------------------------------------------------


class Linear(NamedTuple):
    """[batch, tokens, features], of a rank or whole; a gradient is that of this module's use alone."""

    given: torch.Tensor
    gave: torch.Tensor
    gave_gradient: torch.Tensor
    given_gradient: torch.Tensor


def record(model: torch.nn.Module) -> Callable[[], dict[str, Linear]]:
    """From now on, of every linear's next pass; what was recorded."""
    held: dict[str, dict[str, torch.Tensor]] = {}

    def watch(name: str, module: torch.nn.Module) -> None:
        kept = held.setdefault(name, {})

        def before(_: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            alias = inputs[0].view_as(inputs[0])
            kept["given"] = alias.detach().clone()
            alias.register_hook(lambda gradient: kept.update(given_gradient=gradient.clone()))
            return (alias,)

        def after(_: Any, __: Any, output: torch.Tensor) -> None:
            kept["gave"] = output.detach().clone()
            output.register_hook(lambda gradient: kept.update(gave_gradient=gradient.clone()))

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            watch(name, module)
    return lambda: {name: Linear(**kept) for name, kept in held.items()}


class Shape(NamedTuple):
    """Of the ranks: T that share the weights, or S that share a sequence."""

    tensor: int = 1
    sequence: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.sequence


def _along(name: str, shape: Shape) -> tuple[int | None, int | None]:
    """The dimensions of a linear's input and output along which ranks have parts."""
    if shape.sequence > 1:
        return 1, 1
    if re.search(COLUMNS, name):
        return None, -1
    return (-1, None) if re.search(ROWS, name) else (None, None)


def _joined(lane: Lane, where: str, of_ranks: list[torch.Tensor], along: int | None) -> torch.Tensor:
    if along is not None:
        return torch.cat(of_ranks, along)
    for rank, other in enumerate(of_ranks[1:], 1):
        lane.bits(f"{where} on rank {rank}", other, of_ranks[0])
    return of_ranks[0]


def joined(lane: Lane, of_ranks: list[dict[str, Linear]], shape: Shape) -> dict[str, Linear]:
    """The whole of what ranks have parts of; what each has is one."""
    whole = {}
    for name in of_ranks[0]:
        given, gave = _along(name, shape)
        along = (given, gave, gave, given)
        pieces = zip(*(one[name] for one in of_ranks), along, Linear._fields, strict=True)
        whole[name] = Linear(*(_joined(lane, f"{name}, {what}", list(some), at) for *some, at, what in pieces))
    return whole


# ---- The unsplit model, forced -----------------------------------------------------------------------------------------


class _Forced(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, given: torch.Tensor, name: str, told: Linear, lane: Lane) -> torch.Tensor:
        lane.bits(f"input of {name}", given, told.given)
        context.name, context.told, context.lane = name, told, lane
        return told.gave.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        context.lane.bits(f"gradient of the output of {context.name}", gradient, context.told.gave_gradient)
        return context.told.given_gradient.clone(), None, None, None


class Used(NamedTuple):
    """A module without a matrix: what it was given, and the gradient of what it gave."""

    module: torch.nn.Module
    given: torch.Tensor
    gradient: torch.Tensor


def forced(
    model: torch.nn.Module, told: dict[str, Linear], loss_of: Callable[[torch.nn.Module], torch.Tensor], lane: Lane
) -> tuple[torch.Tensor, dict[str, Used]]:
    """The loss, and of norms and embeddings what came to them. Their parameters' gradients are in the model."""
    held: dict[str, dict[str, Any]] = {}

    def watch(name: str, module: torch.nn.Module) -> None:
        def after(_: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            held[name] = {"module": module, "given": inputs[0].detach()}
            output.register_hook(lambda gradient: held[name].update(gradient=gradient.clone()))

        module.register_forward_hook(after)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.forward = lambda given, name=name: _Forced.apply(given, name, told[name], lane)
        elif next(module.parameters(recurse=False), None) is not None:
            watch(name, module)
    loss = loss_of(model)
    loss.backward()
    return loss.detach(), {name: Used(**kept) for name, kept in held.items()}


# ---- Parts and their sums ------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A summand as a rank has it, the same in fp64, and how far these may be from one another."""

    got: torch.Tensor
    exact: torch.Tensor
    bound: torch.Tensor


def product(got: torch.Tensor, exact: torch.Tensor, absolute: torch.Tensor, roundings: int) -> Part:
    """roundings: of a term, in fp32; beside them one to the type of what was got, where that is narrower."""
    bound = gamma(roundings, UNIT[torch.float32]) * absolute + TINY[torch.float32] * roundings
    if got.dtype != torch.float32:
        bound = bound + half_step(exact.abs() + bound, got.dtype)
    return Part(got.double(), exact, bound)


def check_sum(lanes: Lanes, where: str, got: torch.Tensor, parts: list[Part], after: int = 0) -> None:
    """after: roundings in the type of what was got that follow, of the whole."""
    for at, part in enumerate(parts):
        lanes.parts.add(f"{where}, part {at}", part.got, part.exact, part.bound)
    exact = torch.stack([part.got for part in parts]).sum(0)
    size = torch.stack([part.got.abs() for part in parts]).sum(0)
    share = gamma(height(len(parts)) + (after if got.dtype == torch.float32 else 0), UNIT[torch.float32])
    bound = share * size
    if got.dtype != torch.float32 and (len(parts) > 1 or after):
        bound = bound + half_step(exact.abs() + bound, got.dtype) * (1 + after)
    lanes.sums.add(where, got, exact, bound)
    lanes.unsplit.add(
        where,
        got,
        torch.stack([part.exact for part in parts]).sum(0),
        bound + torch.stack([part.bound for part in parts]).sum(0),
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten(0, -2).double()


class _Cut(NamedTuple):
    """What one rank has of a linear, by slices of the whole."""

    told: Linear
    weight: torch.Tensor
    bias: torch.Tensor | None


def _cuts(name: str, told: Linear, module: torch.nn.Linear, shape: Shape) -> list[_Cut]:
    given, gave = _along(name, shape)
    count = 1 if given is None and gave is None else shape.ranks

    def parts(tensor: torch.Tensor, along: int | None) -> list[torch.Tensor]:
        return [tensor] * count if along is None else [one.contiguous() for one in tensor.chunk(count, along)]

    pieces = zip(*(parts(one, along) for one, along in zip(told, (given, gave, gave, given), strict=True)), strict=True)
    by_weight = 0 if gave == -1 else 1 if given == -1 else None
    weights = parts(module.weight.detach(), by_weight)
    bias = module.bias.detach() if module.bias is not None else None
    biases = [None] * count if bias is None else parts(bias, 0 if gave == -1 else None)
    return [_Cut(Linear(*some), weight, one) for some, weight, one in zip(pieces, weights, biases, strict=True)]


def check_linear(
    lanes: Lanes, name: str, told: Linear, module: torch.nn.Linear, shape: Shape, gradient: Callable[[str], torch.Tensor]
) -> None:
    """Its output and its input's gradient, and the gradients of its weight and bias, of the whole."""
    outputs, inputs, weights, biases = [], [], [], []
    for cut in _cuts(name, told, module, shape):
        given, weight = cut.told.given.detach().requires_grad_(), cut.weight.clone().requires_grad_()
        bias = None if cut.bias is None else cut.bias.clone().requires_grad_()
        out = F.linear(given, weight, bias)
        asked = [given, weight] if bias is None else [given, weight, bias]
        got = torch.autograd.grad(out, asked, cut.told.gave_gradient)
        x, w, dy = _flat(cut.told.given), cut.weight.double(), _flat(cut.told.gave_gradient)
        b = torch.zeros(w.shape[0], dtype=torch.float64) if cut.bias is None else cut.bias.double()
        exact, absolute = x @ w.t() + b, x.abs() @ w.abs().t() + b.abs()
        outputs.append(product(out.detach(), exact.view(out.shape), absolute.view(out.shape), w.shape[1] + 1))
        exact, absolute = dy @ w, dy.abs() @ w.abs()
        inputs.append(product(got[0], exact.view(given.shape), absolute.view(given.shape), w.shape[0]))
        weights.append(product(got[1], dy.t() @ x, dy.t().abs() @ x.abs(), x.shape[0]))
        if bias is not None:
            biases.append(product(got[2], dy.sum(0), dy.abs().sum(0), x.shape[0]))
    given_along, gave_along = _along(name, shape)
    _check(lanes, f"output of {name}", told.gave, outputs, gave_along, is_sum=given_along == -1)
    _check(lanes, f"gradient of the input of {name}", told.given_gradient, inputs, given_along, is_sum=gave_along == -1)
    of_weight = 0 if gave_along == -1 else 1 if given_along == -1 else None
    _check(lanes, f"gradient of {name}.weight", gradient(f"{name}.weight"), weights, of_weight, is_sum=gave_along == 1)
    if biases:
        at = 0 if gave_along == -1 else None
        _check(lanes, f"gradient of {name}.bias", gradient(f"{name}.bias"), biases, at, is_sum=gave_along == 1)


def _check(lanes: Lanes, where: str, got: torch.Tensor, parts: list[Part], along: int | None, is_sum: bool) -> None:
    """Of parts a quantity is the sum, or they lie behind one another along a dimension."""
    if is_sum or len(parts) == 1:
        check_sum(lanes, where, got, parts)
        return
    pieces = got.chunk(len(parts), along) if along is not None else [got] * len(parts)
    for at, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
        check_sum(lanes, f"{where}, rank {at}", piece, [part])


# ---- Parameters without a matrix -----------------------------------------------------------------------------------------


def _norm_part(module: Any, given: torch.Tensor, gradient: torch.Tensor) -> Part:
    weight = module.weight.detach().clone().requires_grad_()
    got = torch.func.functional_call(module, {"weight": weight}, (given,))
    (got,) = torch.autograd.grad(got, weight, gradient)
    x, dy = _flat(given), _flat(gradient)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon)
    rows, narrow = x.shape[0], got.dtype != torch.float32
    # Normed: the mean of the squares, eps, a root that may miss by an ulp, a product; then dy times it, and the sum of rows.
    roundings = (x.shape[1] + 8) + 1 + rows
    part = product(got, (dy * normed).sum(0), (dy * normed).abs().sum(0), roundings)
    more = gamma(2, UNIT[got.dtype]) if narrow else 0.0  # normed, and each product
    return part._replace(bound=part.bound + more * (dy * normed).abs().sum(0))


def _embedding_part(module: Any, given: torch.Tensor, gradient: torch.Tensor) -> Part:
    weight = module.weight.detach().clone().requires_grad_()
    (got,) = torch.autograd.grad(F.embedding(given, weight), weight, gradient)
    rows, dy = given.flatten(), _flat(gradient)
    exact, absolute = (torch.zeros(weight.shape, dtype=torch.float64).index_add_(0, rows, one) for one in (dy, dy.abs()))
    uses = torch.bincount(rows, minlength=weight.shape[0])
    share = torch.tensor([gamma(int(count), UNIT[got.dtype]) for count in uses], dtype=torch.float64).unsqueeze(1)
    return Part(got.double(), exact, share * absolute + TINY[got.dtype])


def check_used(lanes: Lanes, name: str, used: Used, shape: Shape, got: torch.Tensor) -> None:
    make = _embedding_part if isinstance(used.module, torch.nn.Embedding) else _norm_part
    pieces = zip(used.given.chunk(shape.sequence, 1), used.gradient.chunk(shape.sequence, 1), strict=True)
    parts = [make(used.module, given.contiguous(), gradient.contiguous()) for given, gradient in pieces]
    check_sum(lanes, f"gradient of {name}.weight", got, parts)


def check_loss(
    lanes: Lanes, loss: torch.Tensor, of_forced: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, shape: Shape
) -> None:
    """labels: shifted. Of whole sequences that of the forced model; else a sum of sums, by how many labels count."""
    if shape.sequence == 1:
        lanes.between.bits("loss", loss, of_forced)
        return
    parts, count = [], int((labels != -100).sum())
    for some, targets in zip(logits.float().chunk(shape.sequence, 1), labels.chunk(shape.sequence, 1), strict=True):
        rows, of = some.flatten(0, 1), targets.flatten()
        exact = F.cross_entropy(rows.double(), of, reduction="sum")
        # Of a label: log of a sum of exp, of which each is off by an ulp at most, from the largest; then the sum of labels.
        kept = rows[of != -100].double()
        size = kept.abs().amax(1) * 3 + math.log(kept.shape[1]) + 1
        part = product(F.cross_entropy(rows, of, reduction="sum"), exact, size.sum(), rows.shape[1] + 6 + rows.shape[0])
        parts.append(Part(*(one / count for one in part)))
    check_sum(lanes, "loss", loss, parts, after=1)


def check_pass(
    model: torch.nn.Module,
    of_ranks: list[Any],
    shape: Shape,
    loss_of: Callable[[torch.nn.Module], torch.Tensor],
    labels: torch.Tensor,
) -> Lanes:
    """model: unsplit, in the ranks' precision, with their values. of_ranks: (loss, linears, whole gradients by name) of each."""
    lanes = Lanes()
    told = joined(lanes.between, [one[1] for one in of_ranks], shape)
    gradients = joined_gradients(lanes.between, [one[2] for one in of_ranks])
    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    for name, module in linears.items():
        check_linear(lanes, name, told[name], module, shape, gradients.__getitem__)
    of_forced, used = forced(model, told, loss_of, lanes.between)
    for name, one in used.items():
        check_used(lanes, name, one, shape, gradients[f"{name}.weight"])
    check_loss(lanes, of_ranks[0][0], of_forced, told["lm_head"].gave, labels, shape)
    compared = {
        f"{name}.{of}"
        for name, module in {**linears, **{n: u.module for n, u in used.items()}}.items()
        for of, _ in module.named_parameters(recurse=False)
    }
    assert compared == set(gradients) == {name for name, _ in model.named_parameters()}, "every parameter"
    return lanes


def joined_gradients(lane: Lane, of_ranks: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: _joined(lane, f"gradient of {name}", [one[name] for one in of_ranks], None) for name in of_ranks[0]}


# ---- End to end: three parties -------------------------------------------------------------------------------------------


class Ratio(NamedTuple):
    """Errors beside the unsplit model in fp64, of one parameter's gradient: as lengths, and the largest of an element."""

    split: float
    unsplit: float
    largest_split: float
    largest_unsplit: float
    room: float
    """What the largest may be at most (room_of)."""

    @property
    def of_lengths(self) -> float:
        return self.split / self.unsplit if self.unsplit else math.inf if self.split else 1.0


def room_of(errors: torch.Tensor, least_factor: float, chance: float) -> float:
    """An error of the unsplit run, in every element smaller than 1/k of what another run's may be, has a chance of (1/k)^n, of n
    elements that are comparable; k is taken so that this is `chance`."""
    largest = errors.max().item()
    comparable = int((errors >= largest / 8).sum())
    return largest * max(least_factor, float(chance ** (-1 / comparable))) if largest else 0.0


def ratios(
    split: dict[str, torch.Tensor],
    unsplit: dict[str, torch.Tensor],
    exact: dict[str, torch.Tensor],
    room: Callable[[torch.Tensor], float],
) -> dict[str, Ratio]:
    result = {}
    for name, truth in exact.items():
        errors = [(one[name].double() - truth).abs() for one in (split, unsplit)]
        lengths = [one.square().sum().sqrt().item() for one in errors]
        result[name] = Ratio(*lengths, *(one.max().item() for one in errors), room(errors[1]))
    return result
