"""The program that a script shows: a red cell cut down to what it needs, on a tiny model whose numbers are certified exact."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from .board import Finding
from .on_rank import models
from .on_rank.loop import DTYPES
from .on_rank.protocol import Case, Model
from .repro_rooms import Rooms

FEATURES = ("tied", "frozen", "branch", "fork", "wide", "gain", "unused", "checkpointing")
"""What the tiny network may have beside its layers."""
WHATS = ("parameter", "gradient", "norm", "loss", "lr", "loss scale", "applied")
"""What can be compared."""
WEIGHTS = (" % 3 - 1.0", " % 2 * 1.0", " % 2 + 1.0", " % 4 // 3 * 1.0", " % 7 // 6 * 1.0", " % 4 % 3 - 1.0")
"""What may follow torch.arange(n) to make the weights."""
_DIGITS = {"fp64": 53, "fp32": 24, "fp16": 11, "bf16": 8}
_LARGEST_FP16 = 65504.0


class ReproError(Exception):
    """A cell that no script can be written for. Its text says why."""


@dataclass(frozen=True)
class Sketch:
    """The model of a script, and what is compared."""

    kind: str
    """"linear" (one weight), "layers" (two, with biases), "network" (with features), "embedding", "convolution"."""
    features: frozenset[str]
    what: str
    """One of WHATS."""


@dataclass(frozen=True)
class Rounding:
    """How far from the expected number a right engine may be, where it must round."""

    relative: str
    absolute: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Data:
    """How weights and batches are filled."""

    weights: str
    """Of WEIGHTS."""
    exact: bool
    """Whether no number is rounded, but by clipping and AdamW."""
    clips: bool = False
    """Whether a norm is above its threshold."""
    room: float = 0.0
    """How far a right engine's parameters may be from plain torch's."""
    norm_room: float = 0.0
    """How far its norm, relative."""


def sketches(case: Case, findings: Sequence[Finding]) -> Iterator[Sketch]:
    """From the smallest that may show the findings of a step to one that has all that the case's model has; none twice. What the cell
    itself tries comes first."""
    seen: set[Sketch] = set()
    needed = {"checkpointing"} if case.options.get("activation_checkpointing") else set()
    asked = needed | _asked(case)
    own = asked | _of_parameters(case, [one.name for one in findings if one.name])
    rounds = (needed, asked, own) if asked == needed else (asked, own, needed)
    for features in (*rounds, own | _all(case)):
        for what in whats(findings):
            for kind in _kinds(case, features):
                sketch = Sketch(kind, frozenset(features), what)
                if sketch not in seen:
                    seen.add(sketch)
                    yield sketch


def has_first(sketch: Sketch) -> bool:
    """Whether a network begins with a layer of its own: where its features would leave nothing but the last one."""
    return not sketch.features & {"tied", "wide"} and bool(sketch.features & {"checkpointing", "frozen"})


def first_step(findings: Sequence[Finding]) -> list[Finding]:
    """Those of the first step that has any."""
    step = min(one.step for one in findings)
    return [one for one in findings if one.step == step]


def whats(findings: Sequence[Finding]) -> list[str]:
    """What is to be compared, the plainest first: nobody doubts how parameters are read."""
    found = {one.what.removeprefix("replicas of the ") for one in findings}
    found = {"parameter" if one == "master" else one for one in found}
    if "gradient" in found:
        found.add("parameter")
    return [one for one in WHATS if one in found]


def _kinds(case: Case, features: set[str]) -> list[str]:
    own = {"lattice-embedding": ["embedding"], "lattice-convolution": ["convolution"]}.get(case.model.name, [])
    if features - {"tied"} or (features and not own):
        return ["network"]
    plain = ["layers"] if case.groups else ["linear", "layers"]
    return own if features else plain + own


def _asked(case: Case) -> set[str]:
    """Features that the case's model has because the cell tries them."""
    return {name for name in ("frozen", "branch", "fork") if case.model.arguments.get(name)}


def _all(case: Case) -> set[str]:
    if case.model.name not in ("lattice-mlp", "lattice-pair"):
        return {"tied"} if case.model.name == "lattice-embedding" and case.model.arguments.get("tied", True) else set()
    given = case.model.arguments
    features = {"tied"} | ({"gain"} if given.get("gain", True) else set())
    features |= {"wide"} if int(given.get("wide", 131)) > 7 else set()
    if given.get("unused", True) and not (case.optimizer.weight_decay or case.groups):
        features.add("unused")  # with decay it is open whether a parameter without gradient decays
    return features


def _of_parameters(case: Case, names: Sequence[str]) -> set[str]:
    """Features of the parameters that were found wrong, where every one of them has some."""
    if case.model.name not in models.BUILT_IN:
        return set()
    described = models.describe(case.model.name, case.model.arguments)
    classes = {
        "tied": described.tied,
        "unused": described.unused,
        "fork" if case.model.arguments.get("fork") else "branch": described.conditional,
        "frozen": described.frozen,
    }
    features: set[str] = set()
    for name in names:
        of_one = {feature for feature, members in classes.items() if name in members}
        of_one |= {feature for feature in ("gain", "wide") if feature in name.split(".")}
        if not of_one:
            return set()
        features |= of_one
    return features


def reduced(case: Case, finding: Finding) -> Case:
    """The case up to the step of the finding, which is judged on its own inputs."""
    steps = min(case.steps, finding.step + 1)
    if case.optimizer.name == "adamw":  # an update that is seen beside the roundings of 16 bits
        case = replace(case, optimizer=replace(case.optimizer, lr=0.25))
    saved = case.options.get("save_after")
    if saved is not None and steps <= int(saved) + 1:
        options = {name: value for name, value in case.options.items() if name != "save_after"}
        return replace(case, steps=steps, options=options)  # wrong before it was saved
    return replace(case, steps=steps)


def backwards(case: Case) -> int:
    """Per micro-batch."""
    return int(case.options.get("backwards", 1))


def overflow_of(case: Case) -> tuple[int, int] | None:
    """(step, rank) of the infinite loss, where a step has one."""
    at = str(case.options.get("overflow", ""))
    if not at:
        return None
    step, _, rank = at.partition(":")
    return (int(step), int(rank)) if int(step) < case.steps else None


def batch_names(case: Case) -> list[str]:
    """Arguments of batch()."""
    counts = {"step": case.steps, "rank": 2, "micro": case.accumulation, "k": backwards(case)}
    return [name for name, count in counts.items() if count > 1]


def batch_number(case: Case) -> str:
    """Of its arguments, an expression that is another number for every batch."""
    counts = {"step": case.steps, "rank": case.world, "micro": case.accumulation, "k": backwards(case)}
    weight, terms = 1, []
    for name, count in reversed(counts.items()):
        if name in batch_names(case):
            terms.append(name if weight == 1 else f"{weight} * {name}")
        weight *= count
    return " + ".join(reversed(terms))


def odd_part(case: Case) -> int:
    """Of the number of batches of a step: what data are multiplied by, so that the average is exact."""
    number = case.world * case.accumulation
    while number % 2 == 0:
        number //= 2
    return number


def rounding_of(case: Case, what: str, data: Data) -> Rounding | None:
    """None where the bits must be equal. Raises ReproError where nothing tells how far they may be apart."""
    rounds = ["the norm"] if what == "norm" else ["clipping"] if case.clip and data.clips and what == "parameter" else []
    if case.optimizer.name == "adamw" and (what == "parameter" or (case.steps > 1 and what == "loss")):
        rounds.append("AdamW")
    if what in ("gradient", "lr", "applied", "loss scale") or (data.exact and not rounds):
        return None
    room = data.norm_room if what == "norm" else data.room
    if what == "loss" or not 0 < room < math.inf:
        raise ReproError(f"how far a right {what} may be off after such a step is not known")
    unit = f"2**{math.ceil(math.log2(room))}"
    said = f"{' and '.join(rounds)} {'round' if len(rounds) > 1 else 'rounds'}" if rounds else "the updates are rounded"
    why = f"{said}: by none of the ways that documents give is a right engine farther off than {unit}"
    return Rounding(unit, "0.0", (why,)) if what == "norm" else Rounding("0.0", unit, (why,))


def find_data(case: Case, source: Iterable[tuple[str, str]]) -> Data:
    """The first weights that make everything exact; where none do, those of the first that overflow nothing.

    source: weights, and the text of make_model() and batch() of a script that has them.
    """
    usable: Data | None = None
    for weights, text in source:
        told, clips, *rooms = _certified(_plain_of(case), text)
        if told == "exact":
            return Data(weights, True, clips, *rooms)
        if told == "rounded" and usable is None:
            usable = Data(weights, False, clips, *rooms)
    if usable is None:
        raise ReproError(f"no tiny data were found on which {case.id} is exact, in range, and tells all batches apart")
    return usable


def _plain_of(case: Case) -> Case:
    """The case without what does not change a number."""
    kept = {name: value for name, value in case.options.items() if name in ("backwards", "engines", "overflow")}
    return replace(case, id="", stage=0, style="", weights="", batches="", options=kept, model=Model(""))


_KNOWN: dict[tuple[str, str], tuple[str, bool, float, float]] = {}


def _certified(case: Case, text: str) -> tuple[str, bool, float, float]:
    """What a certificate tells, whether something is clipped, and the rooms of parameters and norm; computed once for all engines."""
    key = (repr(case), text)
    if key not in _KNOWN:
        certificate = _Certificate(case, text)
        told, rooms = certificate.told(), certificate.rooms
        _KNOWN[key] = (told, certificate.clips, *((rooms.parameter, rooms.norm) if rooms else (0.0, 0.0)))
    return _KNOWN[key]


class _Certificate:
    """Runs a script's model and data in one process: in fp64, and in the case's types."""

    def __init__(self, case: Case, text: str) -> None:
        self._case = case
        self.clips = False
        self.rooms: Rooms | None = None
        self._space: dict[str, Any] = {"torch": torch, "checkpoint": torch.utils.checkpoint.checkpoint}
        exec(text, self._space)  # noqa: S102  our own template
        precision = case.precision
        types = [precision.model, precision.autocast, precision.accumulation, precision.communication]
        self._digits = min(_DIGITS[one] for one in types if one)
        self._scale = precision.loss_scale.value if precision.loss_scale else 1.0

    def told(self) -> str:
        """ "exact"; "rounded": only updates are, and no gradient depends on them; "" where a number is out of range, or batches cannot
        be told apart, or more is rounded."""
        whole = self._models()
        exact = True
        optimizer = self._optimizer(whole)
        for step in range(self._case.steps):
            overflow = overflow_of(self._case)
            if overflow and overflow[0] == step:
                continue
            wide, low = self._gradients(whole, step, torch.float64), self._gradients(whole, step, None)
            if not self._in_range(wide) or not self._distinct(wide) or not self._is_exact(wide, low):
                return ""
            if not exact and not torch.equal(wide, self._gradients(_moved(whole), step, torch.float64)):
                return ""
            exact = self._update(whole, wide, optimizer) and exact
        return "exact" if exact else "rounded"

    def _models(self) -> nn.Module:
        two = self._case.options.get("engines", 1) == 2
        made = [self._space["make_model"](float(k)) for k in range(2)] if two else [self._space["make_model"]()]
        return nn.ModuleList(made).double()

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        given, every = self._case.optimizer, list(model.parameters())
        if given.name == "adamw":
            return torch.optim.AdamW(every, given.lr, given.betas, given.eps, given.weight_decay)
        groups: list[dict[str, Any]] = [{"params": every}]
        if self._case.groups:
            groups = [
                {"params": every[at::2], "lr": one.lr, "weight_decay": one.weight_decay}
                for at, one in enumerate(self._case.groups)
            ]
        return torch.optim.SGD(groups, given.lr, given.momentum, weight_decay=given.weight_decay)

    def _places(self, step: int) -> Iterator[dict[str, int]]:
        for rank in range(self._case.world):
            for micro in range(self._case.accumulation):
                for k in range(backwards(self._case)):
                    yield {"step": step, "rank": rank, "micro": micro, "k": k}

    def _gradients(self, whole: nn.Module, step: int, dtype: torch.dtype | None) -> torch.Tensor:
        """[batch, element] in fp64; dtype None: computed in the case's types, scaled, and unscaled in fp64."""
        case, rows = self._case, []
        scale = self._scale if dtype is None else 1.0
        model = copy.deepcopy(whole).to(dtype or DTYPES[case.precision.model])
        names = batch_names(case)
        kind = next(model.parameters()).dtype
        for place in self._places(step):
            model.zero_grad()
            x, y = self._space["batch"](**{name: place[name] for name in names})
            x = x.to(kind) if x.is_floating_point() else x
            autocast = case.precision.autocast if dtype is None else ""
            with torch.autocast("cpu", DTYPES[autocast or "bf16"], enabled=bool(autocast)):
                output = sum(one(x) for one in model.children())
                loss = (output * y).sum() / case.accumulation * scale
            loss.backward()
            rows.append(torch.cat([_flat(one) for one in model.parameters()]) / scale)
        return torch.stack(rows)

    def _in_range(self, rows: torch.Tensor) -> bool:
        """Whether even the sum that nobody has divided fits fp16, where that is used."""
        precision = self._case.precision
        if "fp16" not in (precision.model, precision.autocast, precision.communication):
            return bool(torch.isfinite(rows).all())
        largest = float((rows.abs().sum(0) * self._case.accumulation).max()) * self._scale
        return largest <= _LARGEST_FP16 / 2

    def _distinct(self, rows: torch.Tensor) -> bool:
        """Whether no batch gives nothing, and no two the same."""
        used = rows[:, (rows != 0).any(0)]
        return bool((used != 0).any(1).all()) and int(torch.unique(used, dim=0).shape[0]) == rows.shape[0]

    def _is_exact(self, wide: torch.Tensor, low: torch.Tensor) -> bool:
        """Whether every batch's gradient is exact, and every partial sum of the average in any order."""
        if not torch.equal(wide, low):
            return False
        terms = wide / self._case.world
        grid = _grid(terms)
        return bool((terms.abs().sum(0) / grid <= 2.0**self._digits).all())

    def _update(self, whole: nn.Module, rows: torch.Tensor, optimizer: torch.optim.Optimizer) -> bool:
        """One step; whether it is exact in the parameters' type."""
        mean, at = rows.sum(0) / self._case.world, 0
        means: dict[str, torch.Tensor] = {}
        for name, one in whole.named_parameters():
            if one.requires_grad:
                means[name] = mean[at : at + one.numel()].view_as(one)
                one.grad = means[name].clone()
            at += one.numel()
        if self._case.clip:
            norm = nn.utils.clip_grad_norm_(whole.parameters(), self._case.clip.max_norm, float(self._case.clip.norm_type))
            self.clips = self.clips or float(norm) >= self._case.clip.max_norm
        for group in optimizer.param_groups:
            group["scheduled"] = group.get("scheduled", group["lr"])
            factors = self._case.schedule or (1.0,)
            group["lr"] = group["scheduled"] * factors[min(int(group.get("at", 0)), len(factors) - 1)]
            group["at"] = int(group.get("at", 0)) + 1
        if self.rooms is None:
            self.rooms = Rooms(self._case, {name: one.detach().clone() for name, one in whole.named_parameters()})
        self.rooms.step(means, [float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        kind = DTYPES[self._case.precision.model]
        low = [one.detach().to(kind).double() for one in whole.parameters()]
        same = all(torch.equal(one, other) for one, other in zip(low, whole.parameters(), strict=True))
        with torch.no_grad():
            for one, other in zip(whole.parameters(), low, strict=True):
                one.copy_(other)
        return same and not self.clips and self._case.optimizer.name != "adamw"


def _moved(model: nn.Module) -> nn.Module:
    """With other weights, nearby."""
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for one in moved.parameters():
            one.mul_(1 + 2.0**-6).add_(2.0**-7)
    return moved


def _flat(parameter: nn.Parameter) -> torch.Tensor:
    grad = parameter.grad
    return (torch.zeros_like(parameter) if grad is None else grad).double().flatten()


def _grid(terms: torch.Tensor) -> float:
    """The largest power of two that all of them are multiples of."""
    flat = terms[terms != 0]
    if flat.numel() == 0:
        return 1.0
    mantissa, exponent = torch.frexp(flat)
    digits = (mantissa * 2.0**53).to(torch.int64)
    lowest = torch.log2((digits & -digits).double()) + exponent.double() - 53
    return float(2.0 ** math.floor(float(lowest.min())))
