"""The device of this process: that which the judge names in EQUIGRAD_JUDGE_DEVICE, the CPU where it names none."""

from __future__ import annotations

import functools
import os

import torch

from .protocol import DEVICE


@functools.cache
def here() -> torch.device:
    """Of models, batches and the engine. Of CUDA's it is made the process's own, with deterministic algorithms and without TF32.

    Raises RuntimeError where torch sees no such device. To be called before an engine is imported.
    """
    named = os.environ.get(DEVICE, "cpu")
    if named != "cuda":
        return torch.device(named)
    count = torch.cuda.device_count()
    if not count:
        raise RuntimeError(
            "[judge] expected a CUDA device, got none that torch sees. Look at nvidia-smi and CUDA_VISIBLE_DEVICES, or leave "
            "--device cuda out."
        )
    index = int(os.environ.get("LOCAL_RANK", "0")) % count
    os.environ["LOCAL_RANK"] = str(index)  # by which DeepSpeed and Accelerate choose a device
    torch.cuda.set_device(index)
    torch.use_deterministic_algorithms(True)
    # Else torch.empty() is full of NaN, which is not what an engine finds between its parameters elsewhere.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda", index)


def is_shared() -> bool:
    """Whether there are more ranks than CUDA devices. NCCL then connects none."""
    return here().type == "cuda" and torch.cuda.device_count() < int(os.environ.get("WORLD_SIZE", "1"))


def backend() -> str:
    """Of the process group. Tensors that an engine keeps on the CPU go over Gloo in any case."""
    return "cpu:gloo,cuda:nccl" if here().type == "cuda" and not is_shared() else "gloo"


def notes() -> tuple[str, ...]:
    """What a reader of an answer must know of it."""
    if not is_shared():
        return ()
    return (f"{os.environ['WORLD_SIZE']} ranks share {torch.cuda.device_count()} CUDA device(s), and speak over Gloo",)
