"""What a training program has around the engine: torch.compile, checkpointing, torch.func, data loaders' workers, threads, the
garbage collector. Bits are those of the same program at stage 2, which adds up in stage 3's order.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import equigrad
import ranks
import twin


class Net(torch.nn.Module):
    """With a layer norm: what torch.compile makes of it is no operator. Its first layer is frozen."""

    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.first = torch.nn.Linear(8, 12)
        self.second = torch.nn.Linear(12, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.second(self.inner(torch.tanh(self.frozen(x))))

    def inner(self, x):
        return torch.nn.functional.gelu(self.first(self.norm(x)))


class Checkpointed(Net):
    reentrant = False

    def forward(self, x):
        return self.second(checkpoint(self.inner, torch.tanh(self.frozen(x)).requires_grad_(), use_reentrant=self.reentrant))


class Reentrant(Checkpointed):
    reentrant = True


class PerSample(Net):
    """Every sample by torch.func: vmap over functional_call."""

    def forward(self, x):
        parameters = dict(self.named_parameters())
        one = torch.func.vmap(lambda sample: torch.func.functional_call(self.body(), parameters_of(parameters), (sample,)))
        return one(torch.tanh(self.frozen(x)))

    def body(self):
        return torch.nn.Sequential(self.norm, self.first, torch.nn.GELU(), self.second)


def parameters_of(parameters: dict) -> dict:
    places = {"norm": "0", "first": "1", "second": "3"}
    split = {name: name.split(".") for name in parameters}
    return {f"{places[at]}.{what}": parameters[name] for name, (at, what) in split.items() if at in places}


def configuration(stage: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }


def engine_of(kind: type, stage: int) -> equigrad.Engine:
    torch.manual_seed(5)
    return equigrad.initialize(model=kind(), config=configuration(stage))[0]


def batch(rank: int, number: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * number + rank))


def train(engine: equigrad.Engine, model, passes: int = 4) -> list[torch.Tensor]:
    """Losses, and the gradients at every boundary."""
    seen = []
    for number in range(passes):
        loss = model(batch(engine.global_rank, number)).square().mean()
        seen.append(loss.detach())
        engine.backward(loss)
        if engine.is_gradient_accumulation_boundary():
            used = [p for p in engine.module.parameters() if p.requires_grad]
            seen += [equigrad.utils.safe_get_full_grad(p) for p in used]
        engine.step()
    return seen


def compiled(stage: int, how: str, backend: str) -> list[torch.Tensor]:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    engine = engine_of(Net, stage)
    if how == "module":
        model = torch.compile(engine.module, backend=backend)
    elif how == "in place":
        engine.module.compile(backend=backend)
        model = engine
    else:
        model = torch.compile(lambda x: engine.module(x) * 2, backend=backend)
    seen = train(engine, model)
    with torch.no_grad():
        seen.append(model(batch(engine.global_rank, 100)))
    engine.module.requires_grad_(False)
    seen.append(model(batch(engine.global_rank, 101)))
    return seen


def assert_equal(got: list, want: list) -> None:
    for rank, (mine, other) in enumerate(zip(got, want, strict=True)):
        assert len(mine) == len(other)
        for place, (a, b) in enumerate(zip(mine, other, strict=True)):
            twin.assert_same_bits(a, b, f"rank {rank}, number {place}")


# Inductor needs half a minute where its cache is cold.
@pytest.mark.parametrize(("how", "backend"), [("in place", "inductor"), ("module", "aot_eager"), ("function", "aot_eager")])
def test_what_torch_compile_makes_reads_whole_parameters(how: str, backend: str) -> None:
    assert_equal(ranks.run(2, compiled, 3, how, backend), ranks.run(2, compiled, 2, how, backend))


class Scaled(torch.autograd.Function):
    """autograd.Function.apply holds the interpreter's lock where its inputs are gathered."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class OfCustomFunctions(Net):
    def inner(self, x):
        return super().inner(Scaled.apply(x, self.norm.weight))


class OfProducts(Net):
    def inner(self, x):
        return super().inner(x * self.norm.weight)


def test_a_custom_function_may_take_a_partitioned_parameter() -> None:
    assert_equal(ranks.run(2, plain, 3, OfCustomFunctions), ranks.run(2, plain, 2, OfCustomFunctions))
    assert_equal(ranks.run(2, plain, 3, OfCustomFunctions), ranks.run(2, plain, 3, OfProducts))


def in_two_threads(has_run: Path) -> bool:
    """Rank 0 is in a custom function that waits for rank 1, which waits for another thread of rank 0's."""
    engine = engine_of(OfCustomFunctions, 3)
    begins = threading.Event()

    def run_later() -> None:
        begins.wait()
        time.sleep(0.3)
        has_run.touch()

    other = threading.Thread(target=run_later)
    if engine.global_rank == 0:
        other.start()
    deadline = time.monotonic() + 20
    while engine.global_rank == 1 and not has_run.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    held = has_run.exists() or engine.global_rank == 0
    begins.set()
    Scaled.apply(torch.ones(4, 8), engine.module.norm.weight)
    if engine.global_rank == 0:
        other.join()
    return held


def test_other_threads_run_while_a_custom_function_waits_for_a_rank(tmp_path: Path) -> None:
    assert ranks.run(2, in_two_threads, tmp_path / "has run") == [True, True]


def plain(stage: int, kind: type) -> list[torch.Tensor]:
    engine = engine_of(kind, stage)
    return train(engine, engine)


@pytest.mark.parametrize("kind", [Checkpointed, Reentrant, PerSample])
def test_checkpoints_and_functions_are_those_of_the_plain_model(kind: type) -> None:
    got = ranks.run(2, plain, 3, kind)
    # The matrix products of vmap are others.
    assert_equal(got, ranks.run(2, plain, 2, kind if kind is PerSample else Net))


def with_workers(stage: int) -> list[torch.Tensor]:
    engine = engine_of(Net, stage)
    rank = engine.global_rank
    data = TensorDataset(torch.cat([batch(rank, number) for number in range(4)]))
    seen = []
    for (x,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"):
        loss = engine(x).square().mean()
        seen.append(loss.detach())
        engine.backward(loss)
        engine.step()
    return seen


def losses(stage: int) -> list[torch.Tensor]:
    engine = engine_of(Net, stage)
    return [one for one in train(engine, engine) if one.dim() == 0]


@pytest.mark.parametrize("stage", [0, 3])
def test_workers_forked_after_the_engine_load_its_data(stage: int) -> None:
    assert_equal(ranks.run(2, with_workers, stage), ranks.run(2, losses, stage))


def two_in_threads() -> list[torch.Tensor]:
    """One rank: engines of several ranks must be called in one order."""
    engines = [engine_of(Net, 3), engine_of(Net, 2)]
    seen: list = [None, None]

    def work(index: int) -> None:
        seen[index] = train(engines[index], engines[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen[0] + seen[1]


def test_two_engines_train_in_two_threads() -> None:
    alone = ranks.run(1, plain, 0, Net)
    assert_equal(ranks.run(1, two_in_threads), [alone[0] + alone[0]])


def collected(first: str) -> list[torch.Tensor]:
    engine = engine_of(Net, 3)
    model, optimizer = engine.module, engine.optimizer
    seen = train(engine, engine)
    gone = weakref.ref(engine)
    if first == "engine":
        del engine
        gc.collect()
        assert gone() is None
        del model, optimizer
    elif first == "model":
        del model
        gc.collect()
        seen += train(engine, engine)
        del engine, optimizer
    else:
        loss = engine(batch(0, 7)).mean()  # a graph that outlives its engine
        engine.destroy()
        del engine, model, optimizer
        gc.collect()
        del loss
    gc.collect()
    again = engine_of(Net, 3)
    return seen[-1:] + train(again, again)


@pytest.mark.parametrize("first", ["engine", "model", "graph"])
def test_garbage_is_collected_in_any_order(first: str) -> None:
    want = ranks.run(2, plain, 3, Net)
    for rank, seen in enumerate(ranks.run(2, collected, first)):
        assert_equal([seen[1:]], [want[rank]])
