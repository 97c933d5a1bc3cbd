"""A pytest plugin: DeepSpeed's own tests, unmodified, in the rank processes that run pytest.

DeepSpeed starts processes for every test; here each of W processes, started once with torchrun's variables, runs all of them.
ENGINE=deepspeed leaves DeepSpeed's engine in its place. What a CPU needs is put in from outside: DDP without device_ids, and a
flag that is agreed on as a tensor of the CPU.
"""

from __future__ import annotations

import gc
import os

import pytest
import torch

os.environ.setdefault("DS_ACCELERATOR", "cpu")
torch.set_num_threads(1)

import deepspeed
import deepspeed.comm as dist

if os.environ.get("ENGINE", "equigrad") == "equigrad":
    import equigrad.deepspeed

    equigrad.deepspeed.take_over(deepspeed)


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


@pytest.fixture(autouse=True)
def _ranks(request):
    world = int(os.environ["WORLD_SIZE"])
    marker = request.node.get_closest_marker("world_size")
    wanted = marker.args[0] if marker is not None else getattr(request.cls, "world_size", None)
    if wanted is not None and wanted != world and not (isinstance(wanted, (list, tuple)) and world in wanted):
        pytest.skip(f"wants {wanted} ranks")
    deepspeed.init_distributed(dist_backend="gloo")
    yield
    gc.collect()
    if world > 1:
        dist.barrier()
