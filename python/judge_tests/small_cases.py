"""Cases with sparse small integers as weights and batches, for tests of what runs beside an engine."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import torch

from equigrad.judge.on_rank import models, protocol, tensors
from equigrad.judge.on_rank.protocol import Case, Clip, Group, LossScale, Model, Optimizer, Precision, batch_key

SCHEMA = json.loads((Path(protocol.__file__).parents[1] / "protocol.schema.json").read_text())
DOCUMENT = (Path(__file__).parents[2] / "docs/judge-protocol.md").read_text()
SGD = Optimizer("sgd", lr=1.0)


def small_case(
    folder: Path, model: Model | None = None, world: int = 1, steps: int = 1, seed: int = 0, **fields: Any
) -> Case:
    """A case whose files lie in that folder, which is made. fields: of Case."""
    folder.mkdir(parents=True, exist_ok=True)
    case = Case(
        id=folder.name,
        world=world,
        model=model or Model("lattice-mlp"),
        steps=steps,
        weights=str(folder / "weights"),
        batches=str(folder / "batches"),
        **{"accumulation": 2, "precision": Precision("fp32"), "optimizer": SGD, **fields},
    )
    generator = torch.Generator().manual_seed(seed)
    tensors.write(case.weights, weights_of(case.model, generator))
    batches: dict[str, torch.Tensor] = {}
    counts = (case.steps, case.world, case.accumulation, int(case.options.get("backwards", 1)))
    for step, rank, micro, backward in itertools.product(*map(range, counts)):
        for one in models.describe(case.model.name, case.model.arguments).inputs:
            batches[batch_key(step, rank, micro, backward, one.key)] = _input(one, generator, rank + micro // 2 + step)
    tensors.write(case.batches, batches)
    return case


def weights_of(model: Model, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Of -1, 0 and 1, a third of them not 0, but a gain is 1; reals where the model is no lattice."""
    lattice = models.describe(model.name, model.arguments).lattice
    named = models.build(model).module.named_parameters()
    return {
        name: (torch.ones(1) if name.endswith("gain") else _sparse(tuple(one.shape), 1, 0.45, generator))
        if lattice
        else torch.randn(one.shape, generator=generator) / 4
        for name, one in named
    }


def _sparse(shape: tuple[int, ...], high: int, part: float, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.randint(-high, high + 1, shape, generator=generator)
    return (drawn * (torch.rand(shape, generator=generator) < part)).float()


def _input(one: models.Input, generator: torch.Generator, which: int) -> torch.Tensor:
    if one.kind == "tokens":
        return torch.randint(0, one.high, one.shape, generator=generator)
    if one.kind == "flag":
        return torch.tensor(which % 2)
    return _sparse(one.shape, one.high, 0.4 if one.kind == "gradient" else 1.0, generator)


def full_case() -> Case:
    """With a value of its own in every field."""
    return Case(
        id="a/b",
        world=2,
        model=Model("lattice-mlp", {"wide": 5, "unused": False}, factor=3),
        steps=4,
        accumulation=3,
        precision=Precision("fp16", "", "fp32", "bf16", LossScale(True, 16.0, 2, 3, 0.5)),
        optimizer=Optimizer("adamw", 0.5, 0.25, 0.125, (0.5, 0.75), 1e-3),
        weights="/w",
        batches="/b",
        stage=2,
        style="tensor_backward",
        groups=(Group(("first.weight",), 0.5, 0.25),),
        schedule=(1.0, 0.5),
        clip=Clip(2.0, "inf"),
        options={"overflow": "1:0", "bucket_bytes": 7, "no_sync": True},
    )


def is_valid(part: str, value: Any) -> bool:
    """By a part of the schema."""
    return bool(jsonschema.Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{part}"}]}).is_valid(value))
