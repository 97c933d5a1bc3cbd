"""Scripts that show a red cell: green on a right engine, red on a faulty one, and nothing of ours in them. repro_sweep.py runs all."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import repro_faults
import repro_forks
import torch

from equigrad.judge import cases, repro, repro_program
from equigrad.judge.board import Finding
from equigrad.judge.on_rank import scripts as forks
from equigrad.judge.on_rank.protocol import Case, Clip, Optimizer
from equigrad.judge.repro_rooms import Rooms
from equigrad.judge.repro_runner import Runner, modules_of
from equigrad.judge.shrink import shrink, simpler

HERE = Path(__file__).parent
WRONG = Finding(0, "gradient", got=1.0, want=2.0, radius=0.0, name="first.weight")
LATER = dataclasses.replace(WRONG, step=1)


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def case_of(engine: str, pattern: str) -> Case:
    found = cases.plan(engine, cases.Axes(only=(pattern,)))
    assert found, f"no cell of {engine} matches {pattern}"
    return found[0].case


def text_of(engine: str, pattern: str, finding: Finding = LATER, last: bool = False) -> tuple[str, int]:
    """The smallest script of a cell, or the largest, and its number of ranks."""
    case = case_of(engine, pattern)
    every = list(repro_program.sketches(case, [finding]))
    sketch = every[-1] if last else every[0]
    return repro.script(repro.Subject(engine, "1.2.3", torch.__version__, "a cause"), case, [finding], sketch), case.world


def every_text(engine: str) -> Iterator[tuple[str, str]]:
    """(cell, script) of a selection of cells, for one of them each the smallest and the largest."""
    subject = repro.Subject(engine, "1.2.3", torch.__version__, "a cause")
    for planned in cases.covering(cases.plan(engine, cases.Axes())):
        every = list(repro_program.sketches(planned.case, [LATER]))
        for sketch in (every[0], every[-1]):
            try:
                yield planned.id, repro.script(subject, planned.case, [LATER], sketch)
            except repro.ReproError:
                continue


# ---------------------------------------------------------------- what a script is


@pytest.fixture(scope="module")
def texts() -> dict[str, list[tuple[str, str]]]:
    return {engine: list(every_text(engine)) for engine in repro.TITLES}


@pytest.mark.parametrize("engine", repro.TITLES)
def test_a_script_stands_alone(engine: str, texts: dict[str, list[tuple[str, str]]]) -> None:
    assert len(texts[engine]) > 20
    allowed = {"torch", "contextlib", "copy", "os", "sys", "tempfile", engine.partition("-")[0]}
    allowed |= {"deepspeed", "accelerate"} if engine == "accelerate-deepspeed" else set()
    for cell, text in texts[engine]:
        tree = ast.parse(text)
        imported = {one.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
        imported |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert imported <= allowed, cell
        assert "judge" not in text, cell
        assert engine == "equigrad" or "equigrad" not in text, cell
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert "open" not in called, cell
        assert max(map(len, text.splitlines())) <= 120, cell
        assert "{{" not in text and "{%" not in text, cell
        world = 3 if "world3" in cell else 4 if "world4" in cell else 1 if "world1" in cell else 2
        assert f"#     torchrun --nproc-per-node {world} repro.py" in text.splitlines()[:4], cell
        assert torch.__version__ in text.splitlines()[0], cell


def test_a_plain_cell_is_about_thirty_lines(texts: dict[str, list[tuple[str, str]]]) -> None:
    for engine in repro.TITLES:
        text, _ = text_of(engine, f"zero{cases.STAGES.get(engine, (0,))[-1]}/fp32/engine_backward/accumulation1", WRONG)
        code = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert len(code) <= 50, f"{engine}\n{text}"


def test_nothing_is_left_over_in_scripts(texts: dict[str, list[tuple[str, str]]], tmp_path: Path) -> None:
    """No name that is imported or assigned and never used, none that is used and never defined."""
    if not has("ruff") and not Path(sys.executable).with_name("ruff").is_file():
        pytest.skip("expected ruff, got none")
    for engine, of_engine in texts.items():
        for number, (_, text) in enumerate(of_engine):
            (tmp_path / f"{engine}-{number}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9,W6", "--no-cache", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout[:3000]


@pytest.mark.parametrize("pattern", ["zero0/fp32/engine_backward/accumulation1", "zero0/bf16/engine_backward/accumulation2"])
def test_only_what_the_cell_needs(pattern: str) -> None:
    text, _ = text_of("ddp", pattern, WRONG)
    for word in ("GradScaler", "autocast", "no_sync", "clip", "checkpoint", "LambdaLR", "for step", "momentum", "float64"):
        assert word not in text, word
    assert ("for micro" in text) == ("accumulation2" in pattern)
    assert ("bfloat16" in text) == ("bf16" in pattern)


def test_an_engine_without_scripts_is_refused() -> None:
    with pytest.raises(repro.ReproError, match=r"expected an engine of .*, got 'mine'"):
        repro.script(repro.Subject("mine", "", ""), case_of("ddp", "zero0/fp32/accumulation1"), [WRONG])
    assert repro.show(repro.Subject("mine", "", ""), case_of("ddp", "zero0/fp32/accumulation1"), [WRONG], "", 1) is None


# ---------------------------------------------------------------- the numbers in it


def test_sketches_grow_and_have_what_was_found_wrong() -> None:
    case = case_of("ddp", "zero0/fp32/engine_backward/accumulation3")
    tied = dataclasses.replace(WRONG, what="parameter", name="second.weight")
    every = list(repro_program.sketches(case, [tied]))
    assert every[0].kind == "linear" and not every[0].features
    assert any(one.features == {"tied"} for one in every)
    assert every[-1].features >= {"tied", "gain", "wide"}
    assert len(set(every)) == len(every)
    other = dataclasses.replace(tied, name="last.weight")
    assert not any(one.features == {"tied"} for one in repro_program.sketches(case, [tied, other]))


def test_what_is_compared_follows_the_findings() -> None:
    of = {
        what: dataclasses.replace(WRONG, what=what) for what in ("master", "replicas of the gradient", "norm", "loss scale")
    }
    assert repro_program.whats([of["master"]]) == ["parameter"]
    assert repro_program.whats([of["replicas of the gradient"]]) == ["parameter", "gradient"]
    assert repro_program.whats([of["norm"], of["loss scale"]]) == ["norm", "loss scale"]


def test_the_case_ends_where_it_is_wrong() -> None:
    case = case_of("ddp", "resume")
    assert case.steps == 3
    saved = repro_program.reduced(case, LATER)
    assert (saved.steps, saved.options.get("save_after")) == (2, 0)
    before = repro_program.reduced(case, WRONG)
    assert (before.steps, before.options.get("save_after")) == (1, None)


SMALLEST = """def make_model():
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[{}, 2.0]])
    return model
def batch(rank):
    return torch.tensor([[1.0, rank]]), torch.tensor([[2.0]])
"""
"""Of a script's data; the first weight is open."""


def test_numbers_that_are_rounded_are_not_called_exact() -> None:
    """A weight of thirds, data of which one batch is the other's copy, and a sum that fp16 has no room for."""
    case = case_of("ddp", "zero0/fp32/engine_backward/accumulation1")
    good = SMALLEST.format("1.0")
    one = repro_program.reduced(case, WRONG)
    assert repro_program.find_data(one, [("", good)]).exact
    for wrong in (good.replace("[[1.0,", "[[1.0 / 3.0,"), good.replace("rank]]", "3.0]]")):
        with pytest.raises(repro.ReproError, match="is exact, in range, and tells all batches apart"):
            repro_program.find_data(one, [("", wrong)])
    scaled = repro_program.reduced(case_of("ddp", "autocast-fp16/engine_backward/accumulation1"), WRONG)
    assert repro_program.find_data(scaled, [("", good)]).exact
    with pytest.raises(repro.ReproError, match="in range"):
        repro_program.find_data(scaled, [("", good.replace("[[2.0]]", "[[2000.0]]"))])


def test_bits_are_compared_where_nothing_is_rounded() -> None:
    assert "torch.equal" in text_of("ddp", "zero0/fp32/engine_backward/accumulation3", WRONG)[0]
    assert "torch.equal" in text_of("ddp", "zero0/fp32/clip-below", WRONG)[0]
    assert "allclose" in text_of("ddp", "zero0/fp32/adamw", WRONG)[0]
    assert "allclose" in text_of("ddp", "zero0/fp32/clip", WRONG)[0]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16-dynamic"])
def test_the_room_holds_right_engines_and_not_one_that_stepped_before(precision: str, masters: bool, steps: int) -> None:
    """torch's AdamW in the model's type, and on masters in fp32; a step counter that is one ahead is outside."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16-dynamic": torch.float16}[precision]
    weights, means = torch.tensor([[-1.0, 0.0, 2.0]]).double(), torch.tensor([[3.0, -8.0, 24.0]]).double()
    case = dataclasses.replace(case_of("deepspeed", f"zero0/{precision}/adamw"), optimizer=Optimizer("adamw", 0.25, weight_decay=0.125))
    rooms = Rooms(case, {"weight": weights})
    for _ in range(steps):
        rooms.step({"weight": means}, [0.25])

    def stepped(kind: torch.dtype, before: int, foreach: bool) -> torch.Tensor:
        one = torch.nn.Parameter(weights.to(kind, copy=True))
        optimizer = torch.optim.AdamW([one], 0.25, weight_decay=0.125, foreach=foreach)
        for gradient in [means * 0] * before + [means] * steps:
            one.grad = gradient.to(kind)
            optimizer.step()
        return one.detach().to(dtype).float()

    plain = stepped(torch.float32, 0, False) if precision == "fp32" else stepped(torch.float64, 0, False).float()
    kind = torch.float32 if masters else dtype
    for foreach in (False, True):
        assert float((stepped(kind, 0, foreach) - plain).abs().max()) <= rooms.parameter
    apart = float((stepped(kind, 1, False) - plain).abs().max())
    assert not apart <= rooms.parameter  # fp16 makes NaN of a first gradient of 0: outside, too


def test_the_room_of_a_norm_is_relative() -> None:
    case, found = case_of("ddp", "zero0/fp32/clip"), []
    for factor in (1.0, 1024.0):
        rooms = Rooms(case, {"weight": torch.ones(1, 3).double()})
        rooms.step({"weight": torch.tensor([[3.0, -8.0, 24.0]]).double() * factor}, [0.25])
        found.append(rooms.norm)
    assert 0 < found[0] == found[1]


def test_a_room_is_widened_to_a_power_of_two() -> None:
    case = case_of("ddp", "zero0/fp32/adamw")
    rounding = repro_program.rounding_of(case, "parameter", repro_program.Data("", False, False, 0.003, 0.0))
    assert rounding is not None and rounding.absolute == "2**-8"


def test_what_is_certified_of_a_case_is_not_said_of_another() -> None:
    case = repro_program.reduced(case_of("ddp", "zero0/fp32/engine_backward/accumulation1"), WRONG)
    never, always, not_here = (
        repro_program.find_data(dataclasses.replace(case, clip=clip), [("", SMALLEST.format("1.0"))])
        for clip in (None, Clip(2.0**-10, "2"), Clip(2.0**20, "2"))
    )
    assert (never.clips, always.clips, not_here.clips) == (False, True, False)
    assert always.room > never.room == not_here.room  # what clipping rounds has its place


# ---------------------------------------------------------------- run on right and on faulty engines

TRIED = [
    ("plain", "fp32/momentum"),
    ("plain", "resume"),
    ("ddp", "fp32/tensor_backward/accumulation3"),
    ("ddp", "bf16/engine_backward/accumulation2"),
    ("ddp", "autocast-bf16/engine_backward/accumulation2"),
    ("ddp", "fp32/clip-inf"),
    ("ddp", "fp32/groups"),
    ("ddp", "fp32/schedule"),
    ("ddp", "fp32/resume-adamw"),
    ("ddp", "fp32/two-engines"),
    ("ddp", "fp32/two-backwards"),
    ("ddp", "fp32/checkpointing"),
    ("ddp", "fp32/branch"),
    ("ddp", "fp32/world3"),
    ("fsdp2", "zero3/bf16/engine_backward/accumulation3"),
    ("fsdp2", "zero3/fp32/no_sync"),
    ("fsdp1", "zero2/fp32/engine_backward/accumulation3"),
]


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    torch.set_num_threads(1)
    forks.load(modules_of("ddp"))


@pytest.mark.parametrize(("engine", "pattern"), TRIED)
def test_green_on_a_right_engine_red_on_a_faulty_one(engine: str, pattern: str) -> None:
    text, world = text_of(engine, pattern)
    right = repro_forks.run(text, world)
    assert right.green, f"{text}\n{right.said}"
    wrong = repro_forks.run(repro_faults.faulty(engine, "parameter", text), world)
    assert wrong.red, f"{text}\n{wrong.said}"


@pytest.mark.parametrize("what", ["gradient", "norm", "loss", "lr"])
def test_each_thing_that_is_compared_is_seen_wrong(what: str) -> None:
    case = case_of("ddp", "fp32/clip")
    if what == "loss":  # of weights that clipping has rounded nothing is known
        case = dataclasses.replace(case, clip=None)
    case = dataclasses.replace(case, schedule=(1.0, 0.5, 0.25))
    found = dataclasses.replace(LATER, what=what)
    sketch = next(one for one in repro_program.sketches(case, [found]) if one.what == what)
    text = repro.script(repro.Subject("ddp", "", torch.__version__), case, [found], sketch)
    assert repro_forks.run(text, 2).green
    assert repro_forks.run(repro_faults.faulty("ddp", what, text), 2).red


# ---------------------------------------------------------------- confirmed, or why not

HEADER = "#     torchrun --nproc-per-node 1 repro.py\nimport sys\n"
SHOWS = 'print("rank 0, weight: expected [1.0], got [2.0]")\n'


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (SHOWS + "sys.exit(0)", "found everything equal"),
        (SHOWS + "raise ValueError('of the engine')", "of the engine"),
        ("sys.exit(1)", "not with a comparison"),
        ("import time\ntime.sleep(60)", "did not end within 2 s"),
        ("import os\nos.abort()", "not with a comparison"),
    ],
)
def test_a_script_that_shows_nothing_is_not_confirmed(body: str, why: str) -> None:
    runner = Runner(sys.executable, "none")
    try:
        outcome = runner.confirm(HEADER + body, 2 if "sleep" in body else 30)
        assert isinstance(outcome, repro.NotConfirmed) and why in outcome.why
        assert isinstance(runner.confirm(HEADER + SHOWS + "sys.exit(1)", 20), repro.Confirmed)
    finally:
        runner.close()


def test_torchrun_says_the_same() -> None:
    """One rank raises after the other has compared: nobody knows what that shows."""
    shown = repro.confirm(HEADER + SHOWS + "sys.exit(1)", sys.executable, 60)
    assert shown == repro.Confirmed("rank 0, weight: expected [1.0], got [2.0]")
    raised = repro.confirm(HEADER + SHOWS + "raise ValueError('of the engine')", sys.executable, 60)
    assert isinstance(raised, repro.NotConfirmed) and "of the engine" in raised.why


def test_the_smallest_script_that_shows_it_is_taken() -> None:
    """Of a fault in tied weights alone, that with a tied weight; with no fault the smallest, not confirmed."""
    case = case_of("ddp", "fp32/engine_backward/accumulation1")
    tried: list[str] = []

    def ask(text: str, _: float) -> repro.Confirmed | repro.NotConfirmed:
        tried.append(text)
        return repro.Confirmed("red") if "self.third.weight = self.second.weight" in text else repro.NotConfirmed("equal")

    subject, found = repro.Subject("ddp", "", torch.__version__), [dataclasses.replace(WRONG, name="second.weight")]
    shown = repro.show(subject, case, found, "", 1, confirm=ask, tries=8)
    assert shown is not None and shown.confirmed and "self.wide" not in shown.script and len(tried) > 1
    never = repro.show(subject, case, found, "", 1, confirm=lambda *_: repro.NotConfirmed("equal"), tries=2)
    assert never is not None and never.confirmed is False and never.said == "equal" and never.script == tried[0]


@pytest.mark.skipif(not has("deepspeed"), reason="expected DeepSpeed, got none")
def test_a_true_fault_of_deepspeed_by_hand_and_by_template() -> None:
    """Loss scale at stage 0: fp16 is red, in the script by hand and in the one that is made; fp32 is green."""
    runner = Runner(sys.executable, "deepspeed")
    try:
        by_hand = runner.confirm((HERE / "repro_by_hand.py").read_text(encoding="utf-8"), 60)
        made = runner.confirm(text_of("deepspeed", "zero0/fp16-static/engine_backward/accumulation1", WRONG)[0], 60)
        plain = runner.confirm(text_of("deepspeed", "zero0/fp32/engine_backward/accumulation1", WRONG)[0], 60)
    finally:
        runner.close()
    assert isinstance(by_hand, repro.Confirmed), by_hand
    assert isinstance(made, repro.Confirmed), made
    assert isinstance(plain, repro.NotConfirmed) and "everything equal" in plain.why


# ---------------------------------------------------------------- the smallest case


def test_all_that_does_not_matter_goes() -> None:
    case = dataclasses.replace(
        case_of("ddp", "fp32/clip"), options={"no_sync": True, "bucket_bytes": 256}, optimizer=Optimizer("adamw", 0.5)
    )
    asked: list[Case] = []

    def is_red(one: Case) -> bool:
        asked.append(one)
        return one.accumulation >= 2 and one.options.get("no_sync") is True

    small = shrink(case, is_red)
    assert (small.accumulation, small.steps, small.clip, small.options) == (2, 1, None, {"no_sync": True})
    assert small.optimizer.name == "sgd" and is_red(small)
    assert len(asked) <= 41


def test_a_case_that_cannot_be_smaller_is_left_alone() -> None:
    case = case_of("ddp", "fp32/clip")
    assert shrink(case, lambda _: False) == case
    assert shrink(case, lambda _: 1 / 0 > 0) == case
    assert shrink(case, lambda _: True, tries=0) == case


def test_every_candidate_has_something_less() -> None:
    for planned in cases.covering(cases.plan("ddp", cases.Axes())):
        for one in simpler(planned.case):
            assert one != planned.case and one.stage == planned.case.stage and one.model.factor == 1
