"""A pytest plugin: DeepSpeed's own tests, unmodified, in rank processes that run.py starts once for many tests.

DeepSpeed starts processes for every test. Here each rank's pytest runs the tests that $TESTS names, in that order, and begins each
as a fresh process would: seeds, default type and environment as they were. After each test the ranks compare how it ended; where
they differ, or some rank does not answer, run.py ends the set and goes on with a new one. ENGINE=deepspeed leaves DeepSpeed's engine
in its place. What a CPU needs is put in from outside: DDP without device_ids, and a flag that is agreed on as a tensor of the CPU.
So is a private method of DeepSpeed's engine that its checkpoint tests look at: whether a load without optimizer states calls it.
Here a load calls it where it asks the engine for them.
"""

from __future__ import annotations

import gc
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

os.environ.setdefault("DS_ACCELERATOR", "cpu")
torch.set_num_threads(1)

import deepspeed
import deepspeed.comm as dist
import other_ranks

ENGINE = os.environ.get("ENGINE", "equigrad")
if ENGINE == "equigrad":
    import equigrad.deepspeed

    equigrad.deepspeed.take_over(deepspeed)

_reached = False  # whether the test that runs now has called this engine


def was_reached() -> bool:
    return _reached


def _watch(module, name: str) -> None:
    call = getattr(module, name)

    def watched(*arguments, **keywords):
        global _reached
        _reached = True
        return call(*arguments, **keywords)

    setattr(module, name, watched)


if ENGINE == "equigrad":
    _watch(equigrad.deepspeed, "_initialize")
    _watch(equigrad._ranks, "config_text")
    _watch(equigrad.utils, "_mark")
    _load = equigrad._checkpoint.load

    def _load_that_asks(engine, *arguments, optimizer_states, module_only, **keywords):
        if optimizer_states and not module_only:
            engine._get_optimizer_ckpt_name()
        return _load(engine, *arguments, optimizer_states=optimizer_states, module_only=module_only, **keywords)

    equigrad._checkpoint.load = _load_that_asks
    equigrad.deepspeed.DeepSpeedEngine._get_optimizer_ckpt_name = lambda engine, *_: ""

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))
FOLDER = Path(os.environ["OUTCOMES"])
# The seed of torch in a process in which nobody has set one.
_SEED = torch.initial_seed()


# What an installation on a CPU has, and a checkout has not.
deepspeed.git_version_info.torch_info.setdefault("nccl_version", "0.0")
deepspeed.git_version_info.torch_info.setdefault("bf16_support", True)


class _OnCpu(torch.nn.parallel.DistributedDataParallel):
    def __init__(self, module, device_ids=None, output_device=None, **more):
        super().__init__(module, **more)


torch.nn.parallel.DistributedDataParallel = _OnCpu

import unit.common


def _reduce_boolean_flags(flag: bool, op=all) -> bool:
    if not dist.is_initialized():
        return flag
    flags = torch.zeros(dist.get_world_size(), dtype=torch.int)
    dist.all_gather_into_tensor(flags, torch.tensor([int(flag)], dtype=torch.int))
    return op(flags.tolist())


unit.common.reduce_boolean_flags = _reduce_boolean_flags


def pytest_addoption(parser):
    parser.addoption("--torch_ver", default=None)
    parser.addoption("--cuda_ver", default=None)


# ---- Which tests, and in how many processes --------------------------------------------------------------------------


def _world_sizes(item: pytest.Item) -> list[int]:
    """Of a test; [0] for one that needs no ranks."""
    if not getattr(item.cls, "is_dist_test", False):
        return [0]
    marker = next((one for one in getattr(item.function, "pytestmark", []) if one.name == "world_size"), None)
    parameters = getattr(item, "callspec", None)
    wanted = parameters.params.get("world_size") if parameters is not None else None
    if wanted is None:
        wanted = item.cls.world_size
    if marker is not None:
        wanted = marker.args[0]
    return list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]


_skipped_files: dict[str, str] = {}  # as a whole, by a condition of their own: none of their tests is collected


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped_files[report.nodeid] = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listing = os.environ.get("LISTING")
    if listing:
        rows = [
            {
                "test": item.nodeid,
                "world_sizes": _world_sizes(item),
                "connected": bool(getattr(item.cls, "init_distributed", False)),
                "environment": bool(getattr(item.cls, "set_dist_env", False)),
            }
            for item in items
        ]
        Path(listing).write_text(json.dumps({"tests": rows, "skipped": _skipped_files}))
        return
    by_id = {item.nodeid: item for item in items}
    items[:] = [by_id[one] for one in json.loads(Path(os.environ["TESTS"]).read_text())]


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    if isinstance(collector, pytest.Module) and getattr(obj, "is_dist_fixture", False) and isinstance(obj.world_size, int):
        other_ranks.register(collector, obj, _from_rank_0)


# ---- One test --------------------------------------------------------------------------------------------------------


@pytest.fixture
def tmp_path(request) -> Path:
    """One folder for all ranks, as DeepSpeed's tests have it."""
    folder = FOLDER / "tmp" / f"{abs(hash_of(request.node.nodeid)):x}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _class_tmpdir(self, request):
    """The same of a class: what its tests have on other ranks writes into it."""
    from _pytest._py.path import local

    folder = FOLDER / "tmp" / f"{abs(hash_of(request.node.nodeid)):x}"
    folder.mkdir(parents=True, exist_ok=True)
    return local(folder)


unit.common.DistributedTest.class_tmpdir = pytest.fixture(autouse=True, scope="class", name="class_tmpdir")(_class_tmpdir)


@pytest.fixture
def tmpdir(tmp_path):
    from _pytest._py.path import local

    return local(tmp_path)


def hash_of(text: str) -> int:
    import zlib

    return zlib.crc32(text.encode())


def begin(connected: bool) -> None:
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    numpy.random.seed(1)  # the same on every rank: some tests give ranks drawn values that are to be equal
    if connected and not dist.is_initialized():
        deepspeed.init_distributed(dist_backend="gloo")


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process(request):
    environment = dict(os.environ)
    begin(os.environ["CONNECTED"] == "1")
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    for name in set(os.environ) - set(environment):
        if not name.startswith("PYTEST"):
            del os.environ[name]
    os.environ.update({name: value for name, value in environment.items() if not name.startswith("PYTEST")})
    gc.collect()


class _Outcome:
    """Of the test that runs now."""

    def __init__(self) -> None:
        self.kind = "passed"
        self.reason = ""


_now = _Outcome()
_store = torch.distributed.FileStore(str(FOLDER / "agreement"), RANKS) if RANKS > 1 and "LISTING" not in os.environ else None


def _from_rank_0(name: str, make: Callable[[], other_ranks.Outcome]) -> other_ranks.Outcome:
    """What rank 0 makes, on every rank; whether it reached this engine counts for the test."""
    global _reached
    if _store is None:
        made = make()
    else:
        key = f"{os.environ['ROUND']}/made/{name}"
        if RANK == 0:
            _store.set(key, json.dumps(make()))
        made = json.loads(_store.get(key))
    _reached = _reached or made["reached"]
    return made


def _write(**event) -> None:
    with open(FOLDER / f"rank{RANK}.jsonl", "a") as file:
        file.write(json.dumps({**event, "at_s": time.time()}) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _now.kind = "failed"
        crash = getattr(report.longrepr, "reprcrash", None)
        _now.reason = crash.message if crash is not None else str(report.longrepr)
        with open(FOLDER / f"rank{RANK}.log", "a") as file:
            file.write(f"==== {report.nodeid} ({report.when})\n{report.longreprtext}\n")
    elif report.skipped and _now.kind == "passed":
        _now.kind = "skipped"
        _now.reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    global _now, _reached
    _now = _Outcome()
    _reached = False
    _write(test=item.nodeid, event="begin")
    result = yield
    _write(test=item.nodeid, event="end", outcome=_now.kind, reason=_now.reason[:2000], reached=_reached)
    if _store is not None:
        key = f"{os.environ['ROUND']}/{item.nodeid}"
        _store.set(f"{key}/{RANK}", _now.kind)
        kinds = {_store.get(f"{key}/{rank}") for rank in range(RANKS)}
        if len(kinds) > 1:  # what one rank left undone another may wait for
            os._exit(75)
    return result
