"""Faults that are planted into DDP and FSDP2, by patches of torch in the rank's own process."""

from __future__ import annotations

from . import clipping, controls, ddp_accumulation, ddp_reducer, fsdp2_collectives, fsdp2_state, optimizers, scaling
from .base import Fault, Watch

_MODULES = (ddp_reducer, ddp_accumulation, clipping, optimizers, scaling, fsdp2_collectives, fsdp2_state, controls)
FAULTS: dict[str, type[Fault]] = {fault.name: fault for module in _MODULES for fault in module.FAULTS}
"""By name, in the order of inventions.md, controls last."""


def plant(name: str) -> None:
    """Plants a fault into this process, and keeps a record of what it changed in every case. `@PATH`: that which the file names
    when a case begins, none where it is empty; the one before is taken out."""
    watch = Watch(lambda of, wanted: FAULTS[wanted](of) if wanted else Fault(of), name)
    watch.install()
