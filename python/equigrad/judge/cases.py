"""The cells: what is tried, by axes. Every cell is a Case with an id to read and to filter by.

    zero2/bf16/loss_backward/accumulation3          a cell of the full cross of stage, precision, style and accumulation
    zero2/bf16/engine_backward/accumulation3/clip   a feature, at every stage and its precisions

Two ranks, where the feature does not say otherwise. Three micro-batches are in most cells: faults that drop or double one in the
middle do not show with two.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from .configured import Fixed
from .environments import UsageError
from .on_rank.protocol import STYLES, Case, Clip, Group, LossScale, Model, Optimizer, Precision

STAGES: dict[str, tuple[int, ...]] = {
    "plain": (0,),
    "ddp": (0,),
    "fsdp1": (0, 2, 3),
    "fsdp2": (2, 3),
    "accelerate": (0, 2, 3),
    "accelerate-deepspeed": (0, 1, 2, 3),
    "deepspeed": (0, 1, 2, 3),
    "equigrad": (0, 1, 2, 3),
    "": (0, 1, 2, 3),
}
"""Of ZeRO, by adapter ("": a command). Whoever shards gradients and optimizer but keeps parameters after forward is at 2."""

_STATIC = LossScale(dynamic=False, value=16.0)
_DYNAMIC = LossScale(dynamic=True, value=32.0)
PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("fp32"),
    "bf16": Precision("bf16"),
    "bf16-accumulate-fp32": Precision("bf16", accumulation="fp32"),
    "bf16-communicate-fp32": Precision("bf16", communication="fp32"),
    "fp16-static": Precision("fp16", loss_scale=_STATIC),
    "fp16-dynamic": Precision("fp16", loss_scale=_DYNAMIC),
    "autocast-bf16": Precision("fp32", autocast="bf16"),
    "autocast-fp16": Precision("fp32", autocast="fp16", loss_scale=_DYNAMIC),
    "fp32-communicate-bf16": Precision("fp32", communication="bf16"),
    "fp64": Precision("fp64"),
}
ACCUMULATIONS = (1, 2, 3)
_OF_FEATURES = ("fp32", "bf16", "fp16-dynamic")
_SCALED = ("fp16-dynamic", "autocast-fp16")
_TORCH = ("plain", "ddp", "fsdp1", "fsdp2", "accelerate")

SGD = Optimizer("sgd", lr=0.25)
MLP = Model("lattice-mlp")


@dataclass(frozen=True)
class Feature:
    """What a cell tries beside the axes. `change`: fields of Case; options are added to those that are there."""

    about: str
    change: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    precisions: tuple[str, ...] = _OF_FEATURES
    engines: tuple[str, ...] = ()
    """Of STAGES, for a feature that is those engines' own; () is all."""
    stages: tuple[int, ...] = ()
    """() is all of the engine."""


def _model(name: str = "lattice-mlp", **arguments: bool | int) -> dict[str, Any]:
    return {"model": Model(name, dict(arguments))}


FEATURES: dict[str, Feature] = {
    "clip": Feature(
        "clipping by the 2-norm, above the threshold", {"clip": Clip(1.0, "2")}, precisions=(*_OF_FEATURES, "autocast-fp16")
    ),
    "clip-below": Feature("clipping by the 2-norm, below the threshold: nothing changes", {"clip": Clip(2.0**20, "2")}),
    "clip-inf": Feature("clipping by the largest element", {"clip": Clip(0.5, "inf")}),
    "groups-clip": Feature("two groups of parameters under one clip", {"groups": ("even", "odd"), "clip": Clip(1.0, "2")}),
    "groups": Feature("two groups of parameters, each with its learning rate and decay", {"groups": ("even", "odd")}),
    "schedule": Feature("a learning rate that changes with every step", {"schedule": (1.0, 0.5, 0.25)}),
    "momentum": Feature("SGD with momentum", {"optimizer": dataclasses.replace(SGD, momentum=0.5)}),
    "decay": Feature("SGD with weight decay", {"optimizer": dataclasses.replace(SGD, weight_decay=0.125)}),
    "adamw": Feature("AdamW with weight decay", {"optimizer": Optimizer("adamw", lr=2.0**-7, weight_decay=0.125)}),
    "offload": Feature("the optimizer's state in the host's memory", options={"offload": "optimizer"}, stages=(1, 2, 3)),
    "offload-adamw": Feature(
        "AdamW, its state in the host's memory",
        {"optimizer": Optimizer("adamw", lr=2.0**-7, weight_decay=0.125)},
        {"offload": "optimizer"},
        stages=(1, 2, 3),
    ),
    "small-buckets": Feature("buckets smaller than the largest parameter", options={"bucket_bytes": 256}),
    "one-bucket": Feature("one bucket for everything", options={"bucket_bytes": 1 << 26}),
    "no-unused": Feature("every parameter is used", _model(unused=False)),
    "branch": Feature("a branch that some ranks and micro-batches do not take", _model(branch=True)),
    "fork": Feature("one of two branches of one shape; which of them differs between ranks", _model(fork=True)),
    "frozen": Feature("a tied parameter that takes no gradient", _model(frozen=True)),
    "embedding": Feature("an embedding whose weight is also the head's", _model("lattice-embedding")),
    "convolution": Feature("convolutions", _model("lattice-convolution")),
    "gpt": Feature("a small GPT, whose numbers are rounded as any model's", _model("gpt")),
    "two-engines": Feature("two engines under one loss", _model("lattice-pair"), {"engines": 2}),
    "two-models": Feature("two models under one loss, in one engine", _model("lattice-pair")),
    "checkpointing": Feature("activations computed again in backward", options={"activation_checkpointing": True}),
    "no_sync": Feature("micro-batches before the last run without communication", options={"no_sync": True}),
    "caller-divides": Feature("the caller divides the loss by the accumulation himself", options={"scale_wrt_gas": False}),
    "two-backwards": Feature("two backward() per micro-batch", options={"backwards": 2}),
    "two-backwards-once": Feature("two backward(), then a step, without accumulation", {"accumulation": 1}, {"backwards": 2}),
    "two-backwards-told": Feature(
        "two backward(), then a step; the engine is told which of them is the last",
        {"accumulation": 1},
        {"backwards": 2, "boundary": True},
        precisions=("fp32", "bf16"),
        engines=("deepspeed",),
    ),
    "two-backwards-told-offload": Feature(
        "the same, with the optimizer's state in the host's memory",
        {"accumulation": 1},
        {"backwards": 2, "boundary": True, "offload": "optimizer"},
        precisions=("fp32", "bf16"),
        engines=("deepspeed",),
        stages=(1, 2, 3),
    ),
    "record": Feature(
        "a forward that returns an object of a class of the user's", options={"record": True}, engines=("deepspeed",)
    ),
    "module-id": Feature(
        "a module with an attribute `id` of its own, which it computes with", options={"module_id": True}, engines=("deepspeed",)
    ),
    "resume": Feature(
        "saved after the first step and resumed in a new engine",
        {"optimizer": dataclasses.replace(SGD, momentum=0.5)},
        {"save_after": 0},
    ),
    "resume-adamw": Feature(
        "AdamW, saved after the first step and resumed in a new engine",
        {"optimizer": Optimizer("adamw", lr=2.0**-7, weight_decay=0.125), "schedule": (1.0, 0.5, 0.25)},
        {"save_after": 0},
    ),
    "overflow": Feature(
        "one rank's loss is infinite in the second step", options={"overflow": "1:1"}, precisions=_SCALED
    ),
    "scale-grows": Feature(
        "the loss scale doubles after a good step",
        {"precision.loss_scale": dataclasses.replace(_DYNAMIC, value=4.0, window=1)},
        precisions=_SCALED,
    ),
    "hysteresis": Feature(
        "an overflow that the loss scale forgives once",
        {"precision.loss_scale": dataclasses.replace(_DYNAMIC, hysteresis=2)},
        {"overflow": "1:1"},
        precisions=("fp16-dynamic",),
    ),
    "world1": Feature("one rank", {"world": 1}),
    "world3": Feature("three ranks", {"world": 3, "accumulation": 2}),
    "world4": Feature("four ranks", {"world": 4, "accumulation": 4}),
    "static-graph": Feature("a static graph", {**_model(unused=False)}, {"static_graph": True}, engines=("ddp", "accelerate")),
    "find-unused": Feature("a search for unused parameters", options={"find_unused": True}, engines=("ddp", "accelerate")),
    "bucket-views": Feature("gradients that are views of buckets", options={"gradient_as_bucket_view": True}, engines=("ddp",)),
    "keep-gathered": Feature(
        "parameters stay gathered after forward", options={"reshard_after_forward": False}, engines=("fsdp2",), stages=(3,)
    ),
    "zeroed": Feature("gradients are zeroed, not taken away", options={"set_to_none": False}, engines=_TORCH),
}
_STYLE_OF_FEATURES, _ACCUMULATION_OF_FEATURES = "engine_backward", 3


@dataclass(frozen=True)
class Planned:
    """A cell: its case, still without weights and batches, and its value on every axis."""

    case: Case
    axes: dict[str, str]

    @property
    def id(self) -> str:
        return self.case.id


@dataclass(frozen=True)
class Axes:
    """What a person asked for; None: all that the engine has."""

    stages: tuple[int, ...] | None = None
    precisions: tuple[str, ...] | None = None
    styles: tuple[str, ...] | None = None
    accumulations: tuple[int, ...] | None = None
    worlds: tuple[int, ...] | None = None
    only: tuple[str, ...] = ()
    """Patterns of ids, see matches(); a cell must match one of them, and none that begins with "!"."""
    quick: bool = False
    fixed: Fixed = field(default_factory=Fixed)
    model: Model | None = None
    """A person's, in the place of the built-in ones."""


def plan(adapter: str, axes: Axes) -> list[Planned]:
    """The cells of an engine in the order they are run in: processes are kept, and what was computed is used again soon."""
    cells = {cell.id: cell for cell in (*_cross(adapter, axes), *_features(adapter, axes))}
    chosen = [cell for cell in cells.values() if _wanted(cell, axes)]
    if axes.quick:
        chosen = covering(chosen)
    return sorted(chosen, key=_turn)


def worlds() -> tuple[int, ...]:
    """All numbers of ranks that some cell has."""
    return tuple(sorted({2, *(feature.change.get("world", 2) for feature in FEATURES.values())}))


def accumulations() -> tuple[int, ...]:
    """All numbers of micro-batches that some cell has."""
    return tuple(sorted({*ACCUMULATIONS, *(feature.change.get("accumulation", 1) for feature in FEATURES.values())}))


def shard(cells: Sequence[Planned], index: int, count: int) -> list[Planned]:
    """Every count-th cell, from the index-th (1 is the first); together all shards are all cells."""
    return list(cells[index - 1 :: count])


def matches(name: str, pattern: str) -> bool:
    """Whether an id has the pattern's parts in their order: `zero2/clip` matches zero2/bf16/loss_backward/accumulation3/clip.

    A part may have * ? and [...]; without them it matches a whole part of the id.
    """
    parts = iter(name.split("/"))
    return all(any(fnmatch.fnmatchcase(part, wanted) for part in parts) for wanted in pattern.strip("/").split("/"))


def check_patterns(patterns: Iterable[str], ids: Sequence[str]) -> None:
    """Raises UsageError for a pattern that matches nothing."""
    known = sorted({part for name in ids for part in name.split("/")})
    for pattern in patterns:
        if any(matches(name, pattern.removeprefix("!")) for name in ids):
            continue
        hints = []
        for part in pattern.removeprefix("!").strip("/").split("/"):
            if not any(fnmatch.fnmatchcase(one, part) for one in known):
                hints += get_close_matches(part, known, 1)
        meant = f"Did you mean {', '.join(hints)}?" if hints else "`equigrad judge ENGINE --list` prints all ids."
        raise UsageError(f"[judge] expected a pattern that matches a case, got {pattern!r}, which matches none of {len(ids)}. {meant}")


def covering(cells: Sequence[Planned]) -> list[Planned]:
    """A small selection that has every pair of values of two axes of the cross, and every feature."""
    wanted = {cell.id: _pairs(cell) for cell in cells}
    left = set().union(*wanted.values()) if wanted else set()
    chosen: list[Planned] = []
    rest = list(cells)
    while left:
        seen = Counter(value for cell in chosen if cell.axes["feature"] for value in _spread(cell))
        best = max(rest, key=lambda cell: (len(wanted[cell.id] & left), -sum(seen[value] for value in _spread(cell))))
        rest.remove(best)
        chosen.append(best)
        left -= wanted[best.id]
    return [cell for cell in cells if cell in chosen]


def _spread(cell: Planned) -> tuple[tuple[str, str], ...]:
    """What features are tried at in turn."""
    return (("stage", cell.axes["stage"]), ("precision", cell.axes["precision"]))


def _turn(cell: Planned) -> tuple[int, int, str, int]:
    precision = [*PRECISIONS, cell.axes["precision"]].index(cell.axes["precision"])
    return cell.case.world, precision, cell.axes["feature"], cell.case.accumulation


def _pairs(cell: Planned) -> set[tuple[str, ...]]:
    if cell.axes["feature"]:
        return {("feature", cell.axes["feature"])}
    values = [(axis, cell.axes[axis]) for axis in ("stage", "precision", "style", "accumulation")]
    return {(*one, *other) for one, other in itertools.combinations(values, 2)}


def _wanted(cell: Planned, axes: Axes) -> bool:
    if axes.worlds is not None and cell.case.world not in axes.worlds:
        return False
    asked = [pattern for pattern in axes.only if not pattern.startswith("!")]
    refused = [pattern[1:] for pattern in axes.only if pattern.startswith("!")]
    if asked and not any(matches(cell.id, pattern) for pattern in asked):
        return False
    return not any(matches(cell.id, pattern) for pattern in refused)


def _stages(adapter: str, axes: Axes) -> list[int]:
    return [
        stage
        for stage in STAGES[adapter]
        if axes.stages is None or stage in axes.stages
        if axes.fixed.stage is None or stage == axes.fixed.stage
    ]


def _precisions(axes: Axes) -> dict[str, Precision]:
    if axes.fixed.precision is not None:
        names = [name for name, one in PRECISIONS.items() if one == axes.fixed.precision]
        return {(names or ["config"])[0]: axes.fixed.precision}
    return {name: one for name, one in PRECISIONS.items() if axes.precisions is None or name in axes.precisions}


def _counts(axes: Axes, wanted: Sequence[int]) -> list[int]:
    if axes.fixed.accumulation is not None:
        return [axes.fixed.accumulation]
    return [count for count in wanted if axes.accumulations is None or count in axes.accumulations]


def _cross(adapter: str, axes: Axes) -> Iterable[Planned]:
    styles = axes.styles or STYLES
    counts = _counts(axes, axes.accumulations or ACCUMULATIONS)
    for stage, precision, style, count in itertools.product(_stages(adapter, axes), _precisions(axes), styles, counts):
        yield _Cell(stage, precision, style, count).planned(axes)


def _features(adapter: str, axes: Axes) -> Iterable[Planned]:
    style = (axes.styles or (_STYLE_OF_FEATURES,))[0]
    for name, feature in FEATURES.items():
        if (feature.engines and adapter and adapter not in feature.engines) or _is_fixed(feature, axes):
            continue
        for count in _counts(axes, [feature.change.get("accumulation", _ACCUMULATION_OF_FEATURES)]):
            for stage, (precision, types) in itertools.product(_stages(adapter, axes), _precisions(axes).items()):
                if _has_precision(feature, precision, types) and stage in (feature.stages or (stage,)):
                    yield _Cell(stage, precision, style, count, name).planned(axes)


def _is_fixed(feature: Feature, axes: Axes) -> bool:
    """Whether what the feature changes is not to be changed."""
    fixed = axes.fixed
    names = {*fixed.change, *(["accumulation"] if fixed.accumulation else []), *(["precision.loss_scale"] if fixed.precision else [])}
    if "optimizer" in fixed.change:
        names.add("groups")
    if axes.model is not None:
        names.add("model")
    if "world" in feature.change:
        names.discard("accumulation")
    return bool(names & set(feature.change) or set(fixed.options) & set(feature.options))


def _has_precision(feature: Feature, name: str, types: Precision) -> bool:
    if name in feature.precisions:
        return True
    scaled = types.loss_scale is not None and types.loss_scale.dynamic
    return name not in PRECISIONS and (scaled or not set(feature.precisions) <= set(_SCALED))


@dataclass(frozen=True)
class _Cell:
    """A cell's place on the axes."""

    stage: int
    precision: str
    style: str
    count: int
    feature: str = ""

    def planned(self, axes: Axes) -> Planned:
        """With its case."""
        feature = FEATURES[self.feature] if self.feature else Feature("")
        change = {name: value for name, value in feature.change.items() if name != "accumulation"}
        types = _precisions(axes)[self.precision]
        scale = change.pop("precision.loss_scale", types.loss_scale)
        model = axes.model or change.get("model", MLP)
        if "groups" in change:
            change["groups"] = _two_groups(model, SGD.lr)
        case = Case(
            id="/".join(filter(None, (f"zero{self.stage}", self.precision, self.style, f"accumulation{self.count}", self.feature))),
            world=2,
            model=model,
            steps=3,
            accumulation=self.count,
            precision=dataclasses.replace(types, loss_scale=scale),
            optimizer=SGD,
            weights="",
            batches="",
            stage=self.stage,
            style=self.style,
            options=dict(feature.options),
        )
        case = axes.fixed.applied(dataclasses.replace(case, **change))
        return Planned(case, {**self._axes(), "world": str(case.world), "feature": self.feature})

    def _axes(self) -> dict[str, str]:
        return {
            "stage": str(self.stage),
            "precision": self.precision,
            "style": self.style,
            "accumulation": str(self.count),
        }


def _two_groups(model: Model, lr: float) -> tuple[Group, ...]:
    """Every second parameter in a group of its own, with half the learning rate and a decay."""
    names = _names(model.name, tuple(sorted(model.arguments.items())))
    return (Group(names[::2], lr, 0.0), Group(names[1::2], lr / 2, 0.125))


@functools.cache
def _names(model: str, arguments: tuple[tuple[str, Any], ...]) -> tuple[str, ...]:
    from .on_rank import models  # here: it imports torch

    return tuple(name for name, _ in models.build(Model(model, dict(arguments))).module.named_parameters())
