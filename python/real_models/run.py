"""Trains every model of the zoo on the engine and by plain autograd in one process, and counts the bits that differ.

    python run.py --table docs/models.md          all of them, 2 and 3 ranks, stages 0-3, fp32, bf16, autocast
    python run.py Llama ResNet-18 --world 2       some

The twin uses nothing of the engine. Its sums are those of engine/comm/reduction.hpp and reference/sum.hpp: over ranks a
binary tree of neighbours in fp32; stages 0 and 1 add micro-batches first, stages 2 and 3 ranks first. Its update is SGD.
Exit code 0: every bit equal; 1: some differ, or a model failed; 2: usage.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import zoo

import equigrad
import equigrad.deepspeed
import ranks
import twin

ranks.TIMEOUT_S = 1800  # every stage of a model, on a machine that may do other work
STEPS, PASSES, LR = 2, 2, 0.05
PRECISIONS = ("fp32", "bf16", "autocast")
SAFE = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


class Counted(NamedTuple):
    compared: int
    differing: int
    first: str


def configuration(precision: str, stage: int) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if precision == "bf16":
        more = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    elif precision == "autocast":
        more = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": PASSES,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "SGD", "params": {"lr": LR}},
        **more,
    }


def loss_of(entry: zoo.Entry, model: torch.nn.Module, step: int, rank: int, micro_batch: int) -> torch.Tensor:
    seed = 1000 * step + 10 * rank + micro_batch
    torch.manual_seed(seed)  # what a model draws itself
    return entry.loss(model, torch.Generator().manual_seed(seed))


def hold_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def put_buffers(model: torch.nn.Module, held: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(held[name])


def safe_names(model: torch.nn.Module) -> set[str]:
    """Parameters that autocast sends in its own type: all of whose owners are of these classes."""
    owners: dict[int, list[bool]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(type(module) in SAFE)
    return {name for name, parameter in model.named_parameters() if all(owners[id(parameter)])}


class Twin:
    """One process that plays all ranks by plain autograd."""

    def __init__(self, entry: zoo.Entry, precision: str, world: int, ranks_first: bool) -> None:
        self.entry, self.precision, self.world, self.ranks_first = entry, precision, world, ranks_first
        self.model = entry.make().train()
        self.masters = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        if precision == "bf16":
            self.model.to(torch.bfloat16)
            self.masters = {name: p.detach().float() for name, p in self.model.named_parameters()}
        self.safe = safe_names(self.model) if precision == "autocast" else set()
        self.show()
        self.buffers = [hold_buffers(self.model) for _ in range(world)]

    def show(self) -> None:
        """The weights as the model sees them."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                master = self.masters[name]
                parameter.copy_(master.bfloat16().float() if name in self.safe else master)

    def local(self, step: int, rank: int, micro_batch: int) -> twin.Gradients:
        put_buffers(self.model, self.buffers[rank])
        self.model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "autocast"):
            loss = loss_of(self.entry, self.model, step, rank, micro_batch)
        loss.backward()
        self.buffers[rank] = hold_buffers(self.model)
        return {name: None if p.grad is None else p.grad.float() for name, p in self.model.named_parameters()}

    def average(self, name: str, given: list[list[torch.Tensor | None]]) -> torch.Tensor | None:
        """given[rank][micro_batch]."""
        like = next((g for row in given for g in row if g is not None), None)
        if like is None:
            return None

        def sent(value: torch.Tensor) -> torch.Tensor:
            return value.bfloat16().float() if name in self.safe else value

        rows = [[torch.zeros_like(like) if g is None else g for g in row] for row in given]
        if self.ranks_first:
            sums = [twin.tree([sent(rows[r][k]) for r in range(self.world)]) for k in range(PASSES)]
            total = sums[0]
            for value in sums[1:]:
                total = total + value
        else:
            windows = []
            for row in rows:
                window = row[0]
                for value in row[1:]:
                    window = window + value
                windows.append(sent(window))
            total = twin.tree(windows)
        return total * float(torch.tensor(1.0 / (self.world * PASSES), dtype=torch.float32))

    def train(self) -> tuple[list[twin.Gradients], dict[str, torch.Tensor]]:
        history = []
        rate = torch.tensor(LR, dtype=torch.float32)
        for step in range(STEPS):
            local = [[self.local(step, rank, k) for k in range(PASSES)] for rank in range(self.world)]
            names = list(self.masters)
            gradients = {name: self.average(name, [[one[name] for one in row] for row in local]) for name in names}
            for name, gradient in gradients.items():
                if gradient is not None:
                    self.masters[name] = self.masters[name] - gradient * rate
            self.show()
            history.append(gradients)
        return history, {name: p.detach().clone() for name, p in self.model.named_parameters()}


def play_twin(name: str, precision: str, world: int, ranks_first: bool) -> Any:
    return Twin(zoo.ZOO[name], precision, world, ranks_first).train()


def digest(tensors: list[torch.Tensor | None]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(b"none" if tensor is None else tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def play_engine(name: str, precision: str, stages: list[int]) -> Any:
    """By stage: rank 0's tensors, and the digest of every rank's."""
    entry = zoo.ZOO[name]
    results = {}
    for stage in stages:
        make = equigrad.deepspeed.initialize if precision == "bf16" else equigrad.initialize
        engine = make(model=entry.make().train(), config=configuration(precision, stage))[0]
        rank = engine.global_rank
        history = []
        for step in range(STEPS):
            for k in range(PASSES):
                loss = loss_of(entry, engine, step, rank, k)
                loss.backward() if k else engine.backward(loss)
                if k == PASSES - 1:
                    held = engine.module.named_parameters()
                    read = equigrad.utils.safe_get_full_grad
                    history.append({n: read(p) if p.requires_grad else None for n, p in held})
                engine.step()
        parameters = {n: engine.full_parameter(n) for n, _ in engine.module.named_parameters()}
        every = [g for step in history for g in step.values()] + list(parameters.values())
        results[stage] = (digest(every), (history, parameters) if rank == 0 else None)
        engine.destroy()
    return results


def compare(got: Any, want: Any) -> Counted:
    compared, differing, first = 0, 0, ""
    pairs = [
        (f"step {step + 1}, gradient of {name}", gradients.get(name), value)
        for step, (gradients, wanted) in enumerate(zip(got[0], want[0], strict=True))
        for name, value in wanted.items()
    ] + [(f"parameter {name}", got[1][name], value) for name, value in want[1].items()]
    for where, value, wanted in pairs:
        if wanted is None and value is None:
            continue
        if wanted is None or value is None or value.shape != wanted.shape:
            wrong = (wanted if wanted is not None else value).numel()
        else:
            both_nan = value.isnan() & wanted.isnan()
            wrong = int(((value.float() != wanted.float()) & ~both_nan).sum())
        compared += (wanted if wanted is not None else value).numel()
        differing += wrong
        if wrong and not first:
            first = f"{where}: {wrong} elements"
    return Counted(compared, differing, first)


def check(name: str, precision: str, world: int, stages: list[int]) -> Counted:
    """Every stage of one model; what failed is told as it was raised."""
    played = ranks.run(world, play_engine, name, precision, stages)
    twins: dict[bool, Any] = {}
    total, differing, first = 0, 0, ""
    for stage in stages:
        ranks_first = stage >= 2
        if ranks_first not in twins:
            twins[ranks_first] = ranks.alone(play_twin, name, precision, world, ranks_first)
        counted = compare(played[0][stage][1], twins[ranks_first])
        others = [rank for rank in range(world) if played[rank][stage][0] != played[0][stage][0]]
        if others and not first:
            first = f"stage {stage}: ranks {others} hold other bits than rank 0"
        total += counted.compared
        differing += counted.differing + len(others)
        if counted.first and not first:
            first = f"stage {stage}, {counted.first}"
    return Counted(total, differing, first)


def write_table(path: Path, rows: list[tuple[str, str, list[str]]], worlds: list[int], total: int, differing: int) -> None:
    import diffusers
    import timm
    import torch_geometric
    import torchvision
    import transformers

    libraries = (("transformers", transformers), ("torchvision", torchvision), ("timm", timm), ("diffusers", diffusers))
    versions = ", ".join(f"{name} {library.__version__}" for name, library in libraries)
    lines = [
        "# Models of other libraries",
        "",
        (
            f"Unmodified, small, random weights: {STEPS} steps of SGD with {PASSES} micro-batches, stages 0-3 on "
            f"{' and '.join(str(world) for world in worlds)} ranks, each by itself. A cell counts the elements of gradients and "
            "parameters that were compared with plain autograd in one process, and those that differ."
        ),
        "",
        (
            f"torch {torch.__version__}, {versions}, torch_geometric {torch_geometric.__version__}. All together: "
            f"{total:,} elements, **{differing:,} differing**. Made by `python python/real_models/run.py --table docs/models.md`."
        ),
        "",
        "| model | kind | " + " | ".join(PRECISIONS) + " |",
        "|---|---|" + "---|" * len(PRECISIONS),
    ]
    lines += [f"| {name} | {kind} | " + " | ".join(cells) + " |" for name, kind, cells in rows]
    path.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="*", help="of the zoo; all without any")
    parser.add_argument("--world", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--precision", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--table", type=Path, help="write the results there, as markdown")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in zoo.ZOO]
    if unknown:
        parser.error(f"expected models of the zoo, got {unknown[0]!r}. They are: {', '.join(zoo.ZOO)}")
    rows, total, differing, failed = [], 0, 0, 0
    torch.set_num_threads(1)
    for name in options.models or zoo.ZOO:
        cells = []
        zoo.ZOO[name].make()  # imported here, once, and not in every process that is forked
        for precision in options.precision:
            began = time.monotonic()
            try:
                every = [check(name, precision, world, options.stages) for world in options.world]
            except AssertionError as error:
                failed += 1
                cells.append(f"failed: {str(error).strip().splitlines()[-1][:120]}")
                print(f"{name:16} {precision:8} FAILED\n{error}", flush=True)
                continue
            compared, wrong = sum(one.compared for one in every), sum(one.differing for one in every)
            first = next((one.first for one in every if one.first), "")
            total += compared
            differing += wrong
            cells.append(f"{compared:,}: {wrong:,}" + (f" ({first})" if first else ""))
            print(
                f"{name:16} {precision:8} {compared:>12,} elements, {wrong} differ {first} "
                f"({time.monotonic() - began:.1f} s)",
                flush=True,
            )
        rows.append((name, zoo.ZOO[name].kind, cells))
    print(f"{total:,} elements, {differing:,} differ, {failed} failed")
    if options.table:
        write_table(options.table, rows, options.world, total, differing)
    return 0 if differing == 0 and failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
