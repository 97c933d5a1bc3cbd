"""An adapter that lies is found out, whatever it lies about: the judge believes no answer, it compares it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from equigrad.judge import cases, environments
from equigrad.judge.judging import Bench, Judged
from equigrad.judge.processes import Fault, Program, Room
from equigrad.judge.ranks import Pool

LIAR = Path(__file__).with_name("cheating_adapter.py")
RED = {
    "the-same-numbers": "",
    "tensors-of-the-case-before": "",
    "the-first-step-again": "",
    "losses-of-rank-0": "loss",
    "losses-of-zero": "loss",
    "no-tensors": "parameter",
    "gradients-only": "parameter",
    "one-parameter-less": "parameter",
    "one-gradient-less": "gradient",
    "gradients-of-one-rank-only": "gradient",
    "weights-as-they-were": "parameter",
    "flat-tensors": "",
    "not-a-number": "",
    "infinite": "gradient",
    "rounded": "gradient",
    "each-rank-alone": "gradient",
}
"""What is compared and found wrong, and (where it is one thing) which."""
CRASHED = ("no-losses", "no-rates", "a-step-too-few", "a-step-too-many")


@dataclass
class Seat:
    """Where adapters are judged: a bench, and two cases, that differ in their momentum, and so in all of their numbers."""

    room: Room
    bench: Bench

    def judged(self, cheats: Sequence[str], limit_s: float = 240.0) -> list[Judged | Fault]:
        """One verdict for each case; the i-th cheat is that of the i-th case."""
        program = Program("liar", (sys.executable, str(LIAR)), {"CHEATS": json.dumps(list(cheats))})
        pool = Pool(self.room, program, world=2)
        try:
            return [self._judged(pool, index, limit_s) for index in range(len(cheats))]
        finally:
            pool.stop()

    def _judged(self, pool: Pool, index: int, limit_s: float) -> Judged | Fault:
        planned = next(one for one in cases.plan("", cases.Axes()) if one.id == "zero0/fp32/engine_backward/accumulation2")
        momentum = 0.5 * (index % 2)
        case = dataclasses.replace(planned.case, optimizer=dataclasses.replace(cases.SGD, momentum=momentum))
        prepared = self.bench.prepare(case)
        try:
            answers = pool.ask(prepared.path, prepared.digest, limit_s)
        except Fault as fault:
            return fault
        if any(answer.kind != "steps" for answer in answers):
            return Judged(answers[0].kind)
        return self.bench.judge(prepared, answers)


@pytest.fixture(scope="module")
def seat() -> Iterator[Seat]:
    room = Room()
    bench = Bench(room, environments.reference_of(sys.executable), seed=1)
    yield Seat(room, bench)
    bench.stop()
    room.close()


def test_who_lies_in_numbers_is_red(seat: Seat) -> None:
    """Each lie after an honest case, in the same processes; the honest ones hold."""
    lies = [*RED, *CRASHED]
    verdicts = seat.judged([cheat for lie in lies for cheat in ("honest", lie)])
    honest, lying = verdicts[::2], dict(zip(lies, verdicts[1::2], strict=True))
    assert [one.verdict if isinstance(one, Judged) else one.text for one in honest] == ["held"] * len(lies)
    assert all(isinstance(one, Judged) and one.compared > 1000 for one in honest)
    for lie, got in lying.items():
        assert isinstance(got, Judged), (lie, got)
        assert got.verdict == ("red" if lie in RED else "crashed"), (lie, got)
        if lie in RED:
            assert got.findings[0].what.startswith(RED[lie]), (lie, got.findings[0])
        else:
            assert got.text.startswith("rank 0: [judge] expected "), got.text


def test_the_bytes_of_another_case_are_found_out(seat: Seat) -> None:
    honest, lying = seat.judged(["honest", "the-same-bytes"])
    assert isinstance(honest, Judged)
    assert honest.verdict == "held"
    assert isinstance(lying, Fault)
    assert lying.kind == "protocol"
    assert "the very bytes" in lying.text


def test_who_sleeps_is_found_out(seat: Seat) -> None:
    (asleep,) = seat.judged(["sleep"], limit_s=20.0)
    assert isinstance(asleep, Fault)
    assert asleep.kind == "hung"
    assert "sleep" in asleep.text, "it says where it stands"


def test_who_has_nothing_passes_nothing(seat: Seat) -> None:
    (nothing,) = seat.judged(["always-absent"])
    assert isinstance(nothing, Judged)
    assert nothing.verdict == "absent"
