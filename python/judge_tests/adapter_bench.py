"""Adapters on small cases, with real ranks, against plain autograd in fp64: a bench that knows nothing of the judge's verdicts.

Weights and batches are small integers. Everything is compared within a few units of the coarsest type on the way, which a wrong
factor, a missing rank or a stale value exceeds by far: what is exact is the business of the judge's truth, not of this.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from small_cases import small_case

from equigrad.judge.on_rank import models, reference, tensors
from equigrad.judge.on_rank.protocol import Case, Model, Optimizer, local_key, tensor_key, write_case
from equigrad.judge.processes import Program, Room
from equigrad.judge.ranks import Pool, RankAnswer

ON_RANK = Path(tensors.__file__).parent
SGD = Optimizer("sgd", lr=2.0**-10)
UNITS = {"fp64": 2.0**-22, "fp32": 2.0**-16, "bf16": 2.0**-6, "fp16": 2.0**-9}
Named = dict[str, torch.Tensor]


class Bench:
    """The ranks of one adapter, by their number."""

    def __init__(self, room: Room, engine: str, python: str = sys.executable) -> None:
        self.room = room
        self._program = Program(engine, (python, str(ON_RANK), engine))
        self._pools: dict[int, Pool] = {}
        self.engine = engine

    def ask(self, case: Case, limit_s: float = 400.0) -> list[RankAnswer]:
        """The answers of all ranks to a case that has weights and batches."""
        path = self.room.new("asked") / "case.json"
        write_case(case, str(path))
        pool = self._pools.setdefault(case.world, Pool(self.room, self._program, case.world))
        return pool.ask(path, hashlib.sha256(Path(case.batches).read_bytes()).hexdigest() + case.id, limit_s)

    def stop(self) -> None:
        for pool in self._pools.values():
            pool.stop()


@contextmanager
def bench(engine: str, python: str = sys.executable) -> Iterator[Bench]:
    room = Room()
    try:
        one = Bench(room, engine, python)
        yield one
        one.stop()
    finally:
        room.close()


def case_of(room: Room, name: str, **fields: Any) -> Case:
    """A case on small integers, others for every rank, micro-batch and step. fields: of Case; lr is small unless given.

    The loss is multiplied by the odd part of what it is divided by, so that an average over three is exact.
    """
    given = {
        "model": Model("lattice-mlp"),
        "world": 2,
        "steps": 3,
        "accumulation": 3,
        "optimizer": SGD,
        "style": "engine_backward",
    }
    given |= fields
    count = given["world"] * given["accumulation"]
    model = dataclasses.replace(given.pop("model"), factor=count // (count & -count))
    for seed in range(zlib.crc32(name.encode()), 1 << 40):
        case = small_case(room.new("case"), model=model, seed=seed, **given)
        if _reaches_all(case):
            return dataclasses.replace(case, id=name)
    raise AssertionError("no seed was left")


def _reaches_all(case: Case) -> bool:
    """Whether in the first step every rank gives every parameter that is used a gradient that is not all zeros."""
    _, local = reference.local(case, 0, tensors.read(case.weights))
    used = {name.partition("/")[2] for name in local if not name.startswith("fp64/")}
    for name, rank in itertools.product(used, range(case.world)):
        parts = [local[key] for micro in range(case.accumulation) if (key := local_key(rank, micro, name)) in local]
        if not parts or not bool(torch.stack(parts).any()):
            return False
    return True


def differences(case: Case, answers: list[RankAnswer]) -> list[str]:
    """What is not as plain autograd says; each line has a step, a kind and a parameter."""
    named = [tensors.read(answer.tensors) for answer in answers if answer.tensors is not None]
    if len(named) != case.world:
        return [json.dumps([dataclasses.asdict(answer.answer) for answer in answers])[:2000]]
    found = _of_replicas(named)
    twin = _Twin(case)
    for step in range(case.steps):
        found += twin.step(step, answers[0], named[0])
    return found


def _of_replicas(named: list[Named]) -> list[str]:
    first = named[0]
    lines = []
    for rank, other in enumerate(named):
        if set(other) != set(first):
            lines.append(f"rank {rank} has other tensors: {sorted(set(other) ^ set(first))[:4]}")
            continue
        lines += [f"rank {rank} has other values: {name}" for name in first if not _same(first[name], other[name])]
    return lines


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one.nan_to_num(1e30), other.nan_to_num(1e30)))


class _Twin:
    """The training by hand, each step from what the engine said the step before gave."""

    def __init__(self, case: Case) -> None:
        self.case = case
        module = models.build(case.model).module
        self.trained = [name for name, one in module.named_parameters() if one.requires_grad]
        self.parameters = tensors.read(case.weights)
        self.masters: Named = {name: one.double() for name, one in self.parameters.items()}
        self.state: dict[str, Named] = {"first": {}, "second": {}}
        self.applied = 0
        precision = case.precision
        types = (precision.model, precision.autocast, precision.accumulation, precision.communication)
        self.unit = max(UNITS[one] for one in types if one)

    def step(self, step: int, answer: RankAnswer, named: Named) -> list[str]:
        said = answer.answer.steps[step]
        _, local = reference.local(self.case, step, self.parameters, said.loss_scale or 1.0)
        want, size = self._averaged(local)
        found = self._compare(step, "gradient", want, named, size)
        finite = all(bool(one.isfinite().all()) for one in want.values())
        if said.applied is not None and said.applied != finite:
            found.append(f"step {step}: applied {said.applied}, want {finite}")
        before = self.masters
        if finite:
            found += self._norm(step, said.norm, want)
            self._update(want)
            self.applied += 1
        kind = "master" if any(name.startswith(f"step{step}/master/") for name in named) else "parameter"
        used = {name: one for name, one in self.masters.items() if name in want}  # others may be decayed, or left alone
        sizes = {name: one.abs() + before[name].abs() + size.get(name, 0.0) for name, one in self.masters.items()}
        found += self._compare(step, kind, used, named, sizes)
        got = {name: named[key] for name in self.parameters if (key := tensor_key(step, "parameter", name)) in named}
        if set(got) != set(self.parameters):
            found.append(f"step {step}: parameters missing: {sorted(set(self.parameters) - set(got))}")
        self.parameters = {**self.parameters, **got}
        masters = {name: named[key] for name in self.parameters if (key := tensor_key(step, "master", name)) in named}
        self.masters = {name: one.double() for name, one in {**self.parameters, **masters}.items()}
        return found

    def _averaged(self, local: Named) -> tuple[Named, Named]:
        """The averages, and the sums of absolute values, over all that has gone in."""
        want, size = {}, {}
        for name in self.trained:
            every = [
                local[key].double()
                for rank, micro in itertools.product(range(self.case.world), range(self.case.accumulation))
                if (key := local_key(rank, micro, name)) in local
            ]
            if every:
                count = self.case.world * self.case.accumulation
                want[name] = torch.stack(every).sum(0) / count
                size[name] = torch.stack(every).abs().sum(0) + 1
        return want, size

    def _compare(self, step: int, kind: str, want: Named, named: Named, size: Mapping[str, torch.Tensor]) -> list[str]:
        found = []
        for name in self.trained:
            got = named.get(tensor_key(step, kind, name))
            if name not in want:
                if kind == "gradient" and got is not None and bool(got.abs().max() > 0):
                    found.append(f"step {step}: {kind} {name}: got {got.flatten()[:3].tolist()}, want none")
            elif got is None:
                found.append(f"step {step}: {kind} {name}: got none")
            elif not _near(got.double(), want[name], self.unit * size[name]):
                worst = int((got.double() - want[name]).abs().nan_to_num(1e30).argmax())
                pair = got.flatten()[worst].item(), want[name].flatten()[worst].item()
                found.append(f"step {step}: {kind} {name}[{worst}]: got {pair[0]}, want {pair[1]}")
        return found

    def _norm(self, step: int, got: float | None, want: Named) -> list[str]:
        clip = self.case.clip
        order = float(clip.norm_type) if clip is not None else 2.0
        norm = float(torch.linalg.vector_norm(torch.cat([one.flatten() for one in want.values()]), order))
        if clip is not None:
            factor = min(1.0, clip.max_norm / (norm + 1e-6))
            for name in want:
                want[name] = want[name] * factor
        if got is None or abs(got - norm) <= 4 * self.unit * norm + 1e-6:
            return []
        return [f"step {step}: norm: got {got}, want {norm}"]

    def _update(self, gradients: Named) -> None:
        wanted = self.case.optimizer
        factor = self.case.schedule[min(self.applied, len(self.case.schedule) - 1)] if self.case.schedule else 1.0
        for name in self.trained:
            group = next((one for one in self.case.groups if name in one.parameters), None)
            lr = (group.lr if group else wanted.lr) * factor
            decay = group.weight_decay if group else wanted.weight_decay
            if name not in gradients:  # engines differ here: an unused parameter may be decayed
                continue
            if wanted.name == "sgd":
                self._sgd(name, gradients[name], lr, decay)
            else:
                self._adamw(name, gradients[name], lr, decay)

    def _sgd(self, name: str, gradient: torch.Tensor, lr: float, decay: float) -> None:
        gradient = gradient + decay * self.masters[name]
        before = self.state["first"].get(name)
        step = gradient if before is None else self.case.optimizer.momentum * before + gradient
        self.state["first"][name] = step
        self.masters = {**self.masters, name: self.masters[name] - lr * step}

    def _adamw(self, name: str, gradient: torch.Tensor, lr: float, decay: float) -> None:
        one, two = self.case.optimizer.betas
        first = one * self.state["first"].get(name, 0.0) + (1 - one) * gradient
        second = two * self.state["second"].get(name, 0.0) + (1 - two) * gradient**2
        self.state["first"][name], self.state["second"][name] = first, second
        count = self.applied + 1
        root = (second / (1 - two**count)).sqrt() + self.case.optimizer.eps
        moved = self.masters[name] * (1 - lr * decay) - lr * (first / (1 - one**count)) / root
        self.masters = {**self.masters, name: moved}


def _near(got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor) -> bool:
    unequal = (got - want).abs() > bound
    both = (got == want) | (got.isnan() & ~want.isfinite()) | (~got.isfinite() & want.isnan())
    return got.shape == want.shape and not bool((unequal & ~both).any()) and bool((got.isfinite() | ~want.isfinite()).all())


def told(answers: list[RankAnswer]) -> dict[str, Any]:
    """What kind of answer it is, and its text."""
    answer = answers[0].answer
    text = answer.absent or answer.refused or answer.failed or ""
    return {"kind": answers[0].kind, "text": text}
