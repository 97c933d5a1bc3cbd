"""DeepSpeed's place of sequence parallelism."""

from equigrad.deepspeed.runtime.sequence_parallel import parallel_state_sp, ulysses_sp

__all__ = ["parallel_state_sp", "ulysses_sp"]
