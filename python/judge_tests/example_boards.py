"""Boards to write and to compare: the cells are those of a plan, what engines did to them is made up here."""

from __future__ import annotations

from dataclasses import replace

from equigrad.judge.board import Board, Cell, Engine, Finding, Known, Machine, Repro, Run
from equigrad.judge.cases import Axes, Planned, plan

SCRIPT = '''"""The second of three micro-batches is lost: torchrun --nproc-per-node 2 repro.py"""
import deepspeed
import torch

model = torch.nn.Linear(4, 3, bias=False)
config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 3, "zero_optimization": {"stage": 2}}
engine, *_ = deepspeed.initialize(model=model, config=config)
for micro_batch in range(3):
    engine.backward(engine(torch.full((1, 4), 2.0**micro_batch)).sum())
    engine.step()
assert "<&>" not in "escaped"
'''
ODD = 'a & b < c > "d" \x00\x1b[31m ]]> {{ 7 * 7 }} `code` | pipe\nsecond line, 100%'
FINDING = Finding(
    step=0,
    what="gradient",
    got=0.333333343,
    want=0.5,
    radius=0.0,
    name="blocks.1.mlp.fc2.weight",
    rank=1,
    element=(12, 40),
    wrong=3072,
    of=36864,
)
KNOWN = Known("https://github.com/deepspeedai/DeepSpeed/pull/7967", "micro-batches lost with offload, mended in 0.19.0")
LOST = "Only the first and the last micro-batch are in the gradient: those between are lost on every rank."


def green(cells: list[Planned] | None = None, engines: tuple[str, ...] = ("ddp", "plain")) -> Board:
    """Every cell held."""
    return board({name: {} for name in engines}, cells)


def board(wrong: dict[str, dict[str, Cell]], cells: list[Planned] | None = None) -> Board:
    """`wrong`: by engine, the cells that did not hold, by id; the others held."""
    planned = {key: cells or _some(key.split("=")[0]) for key in wrong}
    return Board(
        engines=tuple(engine(key) for key in wrong),
        cases={one.id: one.axes for key in wrong for one in planned[key]},
        cells=tuple(wrong[key].get(one.id, held(key, one.id)) for key in wrong for one in planned[key]),
        run=Run(
            7,
            "equigrad judge " + " ".join(wrong),
            "2026-01-02T03:04:05Z",
            93.0625,
            Machine("CPU <x> & co", 2, 2**34, "Linux"),
            "0.1.0",
        ),
    )


def engine(key: str) -> Engine:
    """By its key."""
    name, _, version = key.partition("==")
    return Engine(key, name, version or "2.11.0", "2.11.0", "3.11.7")


def held(key: str, case: str) -> Cell:
    """A cell that held."""
    return Cell(key, case, "held", 0.125, 1000, 800)


def red(key: str, case: str, cause: str = LOST, kind: str = "micro-batch-missing") -> Cell:
    """A cell that did not."""
    return Cell(key, case, "red", 0.25, 1000, 800, cause, kind, findings=(FINDING, replace(FINDING, step=1, radius=1e-9)))


def mixed() -> Board:
    """All verdicts: what a page has to show."""
    return board(
        {
            "plain": {},
            "ddp": {},
            "fsdp2": {},
            "deepspeed==0.18.2": _deepspeed("deepspeed==0.18.2"),
            "deepspeed==0.19.8": _newer(),
        }
    )


def _some(adapter: str = "deepspeed") -> list[Planned]:
    precisions = ("fp32", "fp16-static", "fp16-dynamic", "fp32-communicate-bf16", "fp64")
    styles = ("engine_backward", "loss_backward")
    cells = plan(adapter, Axes(precisions=precisions, styles=styles, accumulations=(1, 3)))
    features = ("", "clip", "offload", "offload-adamw", "two-engines", "branch", "gpt", "world1", "overflow")
    return [one for one in cells if one.axes["feature"] in features]


def _deepspeed(key: str) -> dict[str, Cell]:
    script = Repro(SCRIPT, True, "got 0.333, want 0.5\n", "repro/one.py")
    found: dict[str, Cell] = {}
    for one in _some():
        stage, feature = one.axes["stage"], one.axes["feature"]
        if feature.startswith("offload") and stage == "2":
            found[one.id] = replace(red(key, one.id), repro=script, known=(KNOWN,))
        elif one.axes["precision"] == "fp16-static" and stage == "0":
            found[one.id] = red(
                key,
                one.id,
                "Every gradient is multiplied by 1/16: the loss scale is divided out of a loss that was never scaled.",
                "loss-scale-taken-out-twice",
            )
        elif feature == "two-engines":
            found[one.id] = Cell(
                key, one.id, "hung", 60.0, text="rank 1 of 2 did not answer in 60 s; it was in step 0, backward"
            )
        elif feature == "branch" and stage == "3":
            found[one.id] = Cell(
                key, one.id, "crashed", 3.0, text="Traceback (most recent call last):\n  File ...\nRuntimeError: " + ODD
            )
        elif one.axes["precision"] == "fp64":
            found[one.id] = Cell(key, one.id, "refused", 0.1, text="ValueError: Type torch.float64 is not supported.")
        elif one.axes["precision"].startswith("fp32-comm"):
            found[one.id] = Cell(key, one.id, "absent", text="no such option")
        elif feature == "gpt":
            found[one.id] = Cell(key, one.id, "void", 0.5, text="nothing was compared")
    return found


def _newer() -> dict[str, Cell]:
    key = "deepspeed==0.19.8"
    old = _deepspeed("")
    same = {name: replace(cell, engine=key) for name, cell in old.items() if cell.kind != "micro-batch-missing"}
    third = next(one.id for one in _some() if one.axes["feature"] == "clip")
    return {
        **same,
        third: red(key, third, "Clipped by the norm of one rank, not by that of all: " + ODD, "clip-by-last-norm"),
    }


CELLS = plan("ddp", Axes(quick=True))
