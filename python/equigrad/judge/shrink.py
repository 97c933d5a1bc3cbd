"""From a red case to the smallest one that is still red: what does not matter is taken away, one thing at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from .on_rank.protocol import Case, Model, Optimizer

IsRed = Callable[[Case], bool]
"""Whether a case without weights and batches is red in the same way. An error counts as not red."""


def shrink(case: Case, is_red: IsRed, tries: int = 40) -> Case:
    """The smallest red case that was found in so many tries; the case itself where nothing can go.

    Every candidate that was red is the next one to be shrunk, so the result is red whatever the number of tries was.
    """
    known: set[str] = {_key(case)}
    smallest, left, changed = case, tries, True
    while changed and left > 0:
        changed = False
        for candidate in simpler(smallest):
            if _key(candidate) in known or left == 0:
                continue
            known.add(_key(candidate))
            left -= 1
            if _asked(is_red, candidate):
                smallest, changed = candidate, True
                break
    return smallest


def simpler(case: Case) -> Iterator[Case]:
    """Cases that have one thing less, those that lose most first."""
    bare = dataclasses.replace(case, id=case.id, weights="", batches="", model=dataclasses.replace(case.model, factor=1))
    for one in (_plainest(bare), *_counts(bare), *_features(bare), *_options(bare), *_types(bare), *_models(bare)):
        if one is not None and one != bare:
            yield one


def _plainest(case: Case) -> Case:
    """All at once: where the fault is in none of these, one try is enough."""
    return dataclasses.replace(
        case,
        steps=1,
        accumulation=1,
        options={},
        clip=None,
        groups=(),
        schedule=(),
        optimizer=Optimizer("sgd", case.optimizer.lr if case.optimizer.name == "sgd" else 0.25),
        style="engine_backward",
    )


def _counts(case: Case) -> Iterator[Case]:
    for steps in range(1, case.steps):
        yield dataclasses.replace(case, steps=steps)
    for count in range(1, case.accumulation):
        yield dataclasses.replace(case, accumulation=count)
    if case.world > 2:
        yield dataclasses.replace(case, world=2)


def _features(case: Case) -> Iterator[Case]:
    yield dataclasses.replace(case, clip=None)
    yield dataclasses.replace(case, groups=())
    yield dataclasses.replace(case, schedule=())
    if case.optimizer.name == "adamw":
        yield dataclasses.replace(case, optimizer=Optimizer("sgd", 0.25))
    yield dataclasses.replace(case, optimizer=dataclasses.replace(case.optimizer, momentum=0.0))
    yield dataclasses.replace(case, optimizer=dataclasses.replace(case.optimizer, weight_decay=0.0))
    yield dataclasses.replace(case, style="engine_backward")


def _options(case: Case) -> Iterator[Case]:
    for name in case.options:
        if name == "engines" and case.model.name == "lattice-pair":
            continue  # goes with its model
        yield dataclasses.replace(case, options={one: value for one, value in case.options.items() if one != name})


def _types(case: Case) -> Iterator[Case]:
    precision = case.precision
    for change in ({"communication": ""}, {"accumulation": ""}, {"autocast": "", "loss_scale": None}):
        yield dataclasses.replace(case, precision=dataclasses.replace(precision, **change))
    if precision.loss_scale is not None and precision.loss_scale.dynamic:
        still = dataclasses.replace(precision.loss_scale, dynamic=False)
        yield dataclasses.replace(case, precision=dataclasses.replace(precision, loss_scale=still))
    if precision.model != "fp32":
        plain = dataclasses.replace(precision, model="fp32", loss_scale=None)
        yield dataclasses.replace(case, precision=plain)


def _models(case: Case) -> Iterator[Case]:
    if case.groups:
        return  # they name the model's parameters
    if case.model.name in ("lattice-embedding", "lattice-convolution", "lattice-pair"):
        options = {name: value for name, value in case.options.items() if name != "engines"}
        yield dataclasses.replace(case, model=Model("lattice-mlp"), options=options)
    if case.model.name == "lattice-mlp":
        given = case.model.arguments
        for name, value in (("unused", False), ("gain", False), ("wide", 7), ("branch", False), ("fork", False), ("frozen", False)):
            if given.get(name, {"unused": True, "gain": True, "wide": 131}.get(name, False)) != value:
                yield dataclasses.replace(case, model=Model("lattice-mlp", {**given, name: value}))


def _asked(is_red: IsRed, case: Case) -> bool:
    try:
        return is_red(case)
    except Exception:  # noqa: BLE001  a case that cannot be tried is no smaller one
        return False


def _key(case: Case) -> str:
    return repr(dataclasses.replace(case, id="", weights="", batches="", model=dataclasses.replace(case.model, factor=1)))
