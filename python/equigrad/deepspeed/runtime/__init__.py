"""DeepSpeed's place of torch_autocast and of sequence parallelism."""

from equigrad.deepspeed.runtime import sequence_parallel, torch_autocast

__all__ = ["sequence_parallel", "torch_autocast"]
