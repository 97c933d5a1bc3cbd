"""Checkpoints that DeepSpeed itself has written go on here, and what they go on to is compared with DeepSpeed's own continuation.

Of every case, saved at stages 1 to 3 and continued at stages 0 to 3: what was loaded, in bits; the first step's averaged gradients, in
bits where both engines add alike, and each within its bound of the mean of all summands otherwise; what the update then made of
each engine's gradients, within the bound of its own roundings (due.py), so that both are as near to each other as their bounds say;
rates, counters and loss scales of three steps. Mistakes of an import are planted (planted.py), and found.

Runs where DeepSpeed is: `ctest -R peers` makes that environment first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import due
import equigrad
import ranks
from deepspeed_jobs import (
    CASES,
    CLIENT_STATE,
    FROZEN,
    STATES,
    TAG,
    WORLD,
    Case,
    Job,
    continue_by_deepspeed,
    continue_here,
    save_by_deepspeed,
)
from planted import MISTAKES, Mistake

STAGES = (0, 1, 2, 3)
NUMBERS = ("rates", "steps", "scale")
Seen = dict[str, Any]


@dataclass(frozen=True, repr=False)  # a failure's report would print every tensor
class Continued:
    """By rank."""

    theirs: list[dict[Case, Seen]]
    ours: list[dict[Job, Seen]]
    averages: dict[Case, dict[str, due.Ball]]

    def findings(self, job: Job, change: Callable[[Seen], None] = lambda seen: None) -> list[str]:
        """All that is wrong with what this engine went on to. change: is made to rank 0's before."""
        theirs, ours = ([one[key] for one in ranks_of] for ranks_of, key in ((self.theirs, job.case), (self.ours, job)))
        if any("refused" in one for one in ours):
            return [f"refused: {one['refused']}" for one in ours]
        ours[0] = {**ours[0]}
        change(ours[0])
        found = [text for rank in range(WORLD) for text in of_the_load(theirs[rank], ours[rank])]
        found += of_the_step(theirs[0], ours[0], self.averages[job.case], job)
        return found + [text for rank in range(1, WORLD) for text in of_replicas(ours[rank], ours[0])]


def imported_wrong(mistake: Mistake, source: Path, out: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mistake.owner, mistake.name, mistake.wrong(getattr(mistake.owner, mistake.name)))
        equigrad.import_deepspeed(source, None, out)


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> Continued:
    theirs, ours = tmp_path_factory.mktemp("theirs"), tmp_path_factory.mktemp("ours")
    ranks.run(WORLD, save_by_deepspeed, str(theirs), CASES)
    by_deepspeed = ranks.run(WORLD, continue_by_deepspeed, str(theirs), CASES)
    for case in CASES:
        assert equigrad.import_deepspeed(theirs / str(case), None, ours / str(case)) == str(ours / str(case) / TAG)
    for name, mistake in MISTAKES.items():
        imported_wrong(mistake, theirs / str(mistake.case), ours / name)
    jobs = [Job(str(case), case, stage) for case in CASES for stage in STAGES]
    jobs += [Job(name, mistake.case, mistake.case.stage) for name, mistake in MISTAKES.items()]
    here = ranks.run(WORLD, continue_here, str(ours), jobs)
    torch.set_num_threads(1)
    given = {case: due.contributions(case, [seen[case]["saved"] for seen in by_deepspeed]) for case in CASES}
    return Continued(by_deepspeed, here, {case: due.averages(case, summands) for case, summands in given.items()})


def of_the_load(theirs: Seen, ours: Seen) -> list[str]:
    """What is wrong with what a rank has loaded, and with the numbers of its steps."""
    found = [f"loaded {key}: {ours['saved'][key]}" for key in NUMBERS if ours["saved"][key] != theirs["saved"][key]]
    for key in ("master", "buffer", *STATES):
        found += due.differing(f"loaded {key}", ours["saved"][key], theirs["saved"][key])
    if not bool((ours["frozen"] == FROZEN).all()):
        found.append(f"frozen: {ours['frozen'].tolist()}")
    if ours["client_state"] != CLIENT_STATE:
        found.append(f"client_state: {ours['client_state']}")
    if ours["numbers"] != theirs["numbers"]:
        found.append(f"numbers of the steps: {ours['numbers']}, not {theirs['numbers']}")
    return found


def of_the_step(theirs: Seen, ours: Seen, averages: dict[str, due.Ball], job: Job) -> list[str]:
    """What is wrong with the first step. DeepSpeed's gradients have the loss scale, a power of two, in them; this engine's have not."""
    scale = theirs["saved"]["scale"]
    found = due.beyond("gradient", {name: one * scale for name, one in ours["gradients"].items()}, averages)
    if due.adds_alike(job.case, job.stage):
        found += due.differing(
            "gradient", ours["gradients"], {name: one / scale for name, one in theirs["gradients"].items()}
        )
    for key, wanted in due.updated(job.case, theirs["saved"], ours["gradients"]).items():
        found += due.beyond(f"updated {key}", ours["after"][key], wanted)
    return found


def of_replicas(one: Seen, other: Seen) -> list[str]:
    """Every rank shows the same, whole, but for its buffers."""
    found = due.differing("another rank's gradient", one["gradients"], other["gradients"])
    for key in ("master", *STATES):
        found += due.differing(f"another rank's {key}", one["after"][key], other["after"][key])
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_deepspeed_itself_is_within_the_bounds(continued: Continued, case: Case) -> None:
    seen = continued.theirs[0][case]
    unscaled = {name: one / seen["saved"]["scale"] for name, one in seen["gradients"].items()}
    assert due.beyond("gradient", seen["gradients"], continued.averages[case]) == []
    for key, wanted in due.updated(case, seen["saved"], unscaled).items():
        assert due.beyond(f"updated {key}", seen["after"][key], wanted) == []
    assert of_replicas(continued.theirs[1][case], seen) == []


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_job_of_deepspeeds_goes_on_here(continued: Continued, case: Case, stage: int) -> None:
    job = Job(str(case), case, stage)
    assert continued.ours[0][job]["path"].endswith(f"/{case}/{TAG}")
    assert continued.findings(job) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_import_is_found(continued: Continued, name: str) -> None:
    mistake = MISTAKES[name]
    found = continued.findings(Job(name, mistake.case, mistake.case.stage))
    assert any(one.startswith(mistake.found) for one in found), found


def _times(factor: float) -> Callable[[Seen], None]:
    def change(seen: Seen) -> None:
        seen["gradients"] = {name: one * factor for name, one in seen["gradients"].items()}

    return change


def _last_bit(seen: Seen) -> None:
    bits = {name: one.view(torch.int32) for name, one in seen["gradients"].items()}
    seen["gradients"] = {name: (one + (one != 0)).view(torch.float32) for name, one in bits.items()}


def _moved(key: str, share: float) -> Callable[[Seen], None]:
    """By that share of itself."""

    def change(seen: Seen) -> None:
        seen["after"] = {**seen["after"], key: {name: one * (1 + share) for name, one in seen["after"][key].items()}}

    return change


ALIKE, OTHERWISE = (Case(1, "fp32"), 1), (Case(1, "fp32"), 3)
WRONG = {
    "averaged twice": (*OTHERWISE, _times(0.5), "gradient"),
    "averaged twice in 16 bits": (Case(3, "bf16"), 2, _times(0.5), "gradient"),
    "off by 2 to the -5 in 16 bits": (Case(2, "bf16"), 0, _times(1 + 2.0**-5), "gradient"),
    "off by 2 to the -21": (*OTHERWISE, _times(1 + 2.0**-21), "gradient"),
    "the last bit": (*ALIKE, _last_bit, "gradient"),
    "the last bit in 16 bits": (Case(1, "bf16"), 0, _last_bit, "gradient"),
    "a master": (*OTHERWISE, _moved("master", 2.0**-18), "updated master"),
    "an average": (*OTHERWISE, _moved("exp_avg", 2.0**-20), "updated exp_avg"),
    "an average of squares": (*OTHERWISE, _moved("exp_avg_sq", 2.0**-18), "updated exp_avg_sq"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_step_is_found(continued: Continued, name: str) -> None:
    case, stage, change, where = WRONG[name]
    found = continued.findings(Job(str(case), case, stage), change)
    assert any(one.startswith(where) for one in found), found
