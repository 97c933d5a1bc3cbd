"""DeepSpeed's place of torch_autocast."""

from equigrad.deepspeed.runtime import torch_autocast

__all__ = ["torch_autocast"]
