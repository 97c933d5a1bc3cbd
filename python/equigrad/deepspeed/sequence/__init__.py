"""DeepSpeed's place of attention over a split sequence."""

from equigrad.deepspeed.sequence import layer

__all__ = ["layer"]
