"""DeepSpeed's place of ds_to_universal."""

from equigrad.deepspeed.checkpoint import ds_to_universal

__all__ = ["ds_to_universal"]
