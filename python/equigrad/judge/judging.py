"""One cell on the bench: its case with weights and batches, the verdict on what the ranks answered, its cause, and its script."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import repro, truth, users, workload
from .board import Finding, Repro
from .causes import cause_of
from .local_gradients import LocalGradients, Losses, Tensors, from_process
from .on_rank import tensors, users_model
from .on_rank.protocol import Case, Precision, ProtocolError, misfit, to_json, write_case
from .processes import Fault, Program, Room
from .ranks import RankAnswer, Reference
from .repro import Subject
from .repro_runner import Runner
from .scales import rule_of
from .seen import Cause

FINDINGS = 40
"""Kept of a cell; the first are what its cause explains."""
REPRO_S = 120.0
_OF_LOCAL_GRADIENTS = ("backwards", "activation_checkpointing", "overflow")
"""Options on which local gradients depend."""
_CACHED = 512


class VoidError(Exception):
    """The judge cannot judge this cell, and that is its own fault."""


@dataclass(frozen=True)
class Judged:
    """What came out of a cell; see board.Cell."""

    verdict: str
    compared: int = 0
    exact: int = 0
    cause: str = ""
    kind: str = ""
    text: str = ""
    findings: tuple[Finding, ...] = ()
    repro: Repro | None = None


@dataclass(frozen=True)
class Prepared:
    """A case with its files. digest: of its batches, which make its answers its own."""

    case: Case
    path: Path
    digest: str
    setting: truth.Setting


def told(findings: Sequence[Finding], cause: Cause | None) -> tuple[Finding, ...]:
    """Those that a cell shows, first what its cause speaks of: a norm that is wrong because gradients are is no example of them."""
    if cause is None:
        return tuple(findings[:FINDINGS])
    return tuple(sorted(findings, key=lambda one: (one.step, one.what) != (cause.step, cause.what))[:FINDINGS])


class Bench:
    """Prepares cases and judges answers, with the reference in the Python of the engine under test."""

    def __init__(self, room: Room, program: Program, seed: int) -> None:
        self._folder = room.new("bench")
        self._reference = Reference(room, program)
        self._seed = seed
        self._known: OrderedDict[str, tuple[Losses, Tensors]] = OrderedDict()
        self._count = 0
        self._runner: Runner | None = None

    def prepare(self, case: Case) -> Prepared:
        """Raises VoidError where no workload can be made."""
        try:
            whole, drawn = self._with_files(case)
        except ProtocolError as error:
            raise VoidError(str(error)) from error
        self._count += 1
        path = self._folder / f"case{self._count}.json"
        write_case(whole, str(path))
        setting = truth.Setting.of(whole, drawn.weights, drawn.certified)
        return Prepared(whole, path, whole.batches, setting)

    def judge(self, prepared: Prepared, answers: Sequence[RankAnswer]) -> Judged:
        """The verdict on steps that all ranks answered. Raises VoidError where it cannot be judged, Fault where a file is damaged."""
        ranks = []
        for answer in answers:
            if wrong := misfit(prepared.case, answer.answer):
                return Judged("crashed", text=f"rank {answer.rank}: {wrong}")
            ranks.append(truth.RankSteps(answer.answer.steps, _tensors_of(answer)))
        rule = rule_of(answers[0].answer.engine, prepared.case.precision)
        verdict = truth.judge(dataclasses.replace(prepared.setting, scale_rule=rule), ranks, self._local(prepared))
        if verdict.compared == 0:
            raise VoidError("[judge] expected numbers to compare, got none from this engine. See what its adapter answers.")
        if not verdict.findings:
            return Judged("held", verdict.compared, verdict.exact, text="\n".join(verdict.notes))
        cause = cause_of(verdict.seen)
        return Judged(
            "red",
            verdict.compared,
            verdict.exact,
            cause.sentence if cause else "No known fault explains it.",
            " or ".join(cause.kinds) if cause else "unknown",
            findings=told(verdict.findings, cause),
        )

    def repro(self, subject: Subject, case: Case, judged: Judged, python: str) -> Repro | None:
        """A script that shows the fault without the judge, run; None where there can be none."""
        accused = dataclasses.replace(subject, cause=judged.cause)
        if self._runner is None:
            self._runner = Runner(python, subject.engine)
        return repro.show(accused, case, judged.findings, python, REPRO_S, confirm=self._runner.confirm)

    def stop(self) -> None:
        """In peace."""
        self._reference.stop()
        self._close_runner()

    def end(self) -> None:
        """At once."""
        self._reference.end()
        self._close_runner()

    def _close_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._runner = None

    def _with_files(self, case: Case) -> tuple[Case, workload.Workload]:
        if case.model.name.startswith(users_model.PREFIX):
            return users.write(case, self._folder)
        return workload.write(case, self._folder, self._seed)

    def _local(self, prepared: Prepared) -> LocalGradients:
        """What plain autograd gives, computed once for all cells that it is the same for."""
        case = prepared.case

        def ask(step: int, parameters: Path, scale: float) -> dict[str, Any]:
            try:
                line = self._reference.local(prepared.path, step, parameters, scale)
            except Fault as fault:
                raise VoidError(f"[judge] expected local gradients from plain autograd, got: {fault.text}") from fault
            if "error" in line:
                raise VoidError(f"[judge] expected local gradients from plain autograd, got an error:\n{line['error']}")
            return line

        compute = from_process(ask, self._folder)

        def local(step: int, parameters: Tensors, scale: float) -> tuple[Losses, Tensors]:
            key = _key(case, step, parameters, scale)
            if key not in self._known:
                self._known[key] = compute(step, parameters, scale)
                if len(self._known) > _CACHED:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            return self._known[key]

        return local


def _tensors_of(answer: RankAnswer) -> Tensors:
    try:
        return tensors.read(answer.tensors) if answer.tensors else {}
    except (tensors.TensorFileError, OSError) as error:
        raise Fault("protocol", answer.rank, f"rank {answer.rank}: {error}") from error


def _key(case: Case, step: int, parameters: Tensors, scale: float) -> str:
    """Of all that local gradients depend on."""
    plain = dataclasses.replace(
        case,
        id="",
        weights="",
        steps=0,
        stage=0,
        style="tensor_backward" if case.style == "tensor_backward" else "",
        groups=(),
        schedule=(),
        clip=None,
        precision=Precision(case.precision.model, case.precision.autocast),
        options={name: value for name, value in case.options.items() if name in _OF_LOCAL_GRADIENTS},
    )
    told = {**to_json(plain), "optimizer": "", "step": step, "scale": scale}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for name in sorted(parameters):
        one = parameters[name].detach().contiguous()
        digest.update(f"{name} {one.dtype} {tuple(one.shape)} ".encode())
        digest.update(one.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
