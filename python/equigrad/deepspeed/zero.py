"""As equigrad.zero; Init takes DeepSpeed's arguments."""

from __future__ import annotations

from typing import Any

import equigrad
from equigrad import Error, _ranks
from equigrad.zero import GatheredParameters, ZeroParamStatus, is_here

__all__ = ["GatheredParameters", "Init", "ZeroParamStatus", "is_here"]


class Init(equigrad.zero.Init):
    """As equigrad.zero.Init. Arguments that choose where, or by which ranks, parameters are kept are refused."""

    def __init__(
        self,
        module: Any = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: _ranks.Config | None = None,
        config: _ranks.Config | None = None,
        enabled: bool = True,
        **more: Any,
    ) -> None:
        """mem_efficient_linear and pin_memory have no effect: no function of torch's is replaced, and no copy is pinned.

        Without any configuration it partitions, as DeepSpeed's does.
        """
        given = {"module": module, "data_parallel_group": data_parallel_group, "remote_device": remote_device, **more}
        for name, value in given.items():
            if enabled and value not in (None, False, "none"):
                raise Error(
                    f'[zero.Init] expected no "{name}", got a {type(value).__name__}. Drop it: initialize() partitions a module that '
                    "is made already, and the configuration says the rest."
                )
        if config is None and config_dict_or_path is None:
            config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
        super().__init__(config_dict_or_path, config, enabled)
