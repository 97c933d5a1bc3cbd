"""Faults to plant into an engine by lines before a script's own. The plain model of the script never meets them."""

from __future__ import annotations

_CALLS = '''
import os as _os
_calls = [int(_os.environ["RANK"])]
def _wrong(output):
    """Every second gradient of a rank is doubled and of the other sign; the ranks begin differently."""
    _calls[0] += 1
    factor = -2.0 if _calls[0] % 2 else 1.0
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient * factor)
def _plant(module):
    module.register_forward_hook(lambda module, inputs, output: _wrong(output))
    return module
'''
_GRADIENT = {
    "plain": """
import torch.distributed as _dist
_dist.all_reduce = lambda tensor, *args, **kwargs: tensor.mul_(1.5)
""",
    "ddp": """
import torch.nn.parallel as _parallel
class _Faulty(_parallel.DistributedDataParallel):
    def __init__(self, module, *args, **kwargs):
        super().__init__(_plant(module), *args, **kwargs)
_parallel.DistributedDataParallel = _Faulty
""",
    "fsdp1": """
import torch.distributed.fsdp as _fsdp
class _Faulty(_fsdp.FullyShardedDataParallel):
    def __init__(self, module, *args, **kwargs):
        super().__init__(_plant(module), *args, **kwargs)
_fsdp.FullyShardedDataParallel = _Faulty
""",
    "fsdp2": """
import torch.distributed.fsdp as _fsdp
_fully_shard = _fsdp.fully_shard
_fsdp.fully_shard = lambda module, *args, **kwargs: _fully_shard(_plant(module), *args, **kwargs)
""",
    "deepspeed": """
_os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed as _deepspeed
_initialize = _deepspeed.initialize
_deepspeed.initialize = lambda *args, model=None, **kwargs: _initialize(*args, model=_plant(model), **kwargs)
""",
    "accelerate": """
import accelerate as _accelerate
class _Faulty(_accelerate.Accelerator):
    def prepare(self, *args, **kwargs):
        import torch as _torch
        return super().prepare(*[_plant(one) if isinstance(one, _torch.nn.Module) else one for one in args], **kwargs)
_accelerate.Accelerator = _Faulty
""",
    "equigrad": """
import equigrad as _equigrad
_initialize = _equigrad.initialize
_equigrad.initialize = lambda *args, model=None, **kwargs: _initialize(*args, model=_plant(model), **kwargs)
""",
}
_GRADIENT["accelerate-deepspeed"] = '_os.environ["DS_ACCELERATOR"] = "cpu"\n' + _GRADIENT["accelerate"]
_RATE = """
import torch as _torch
_made = []
_init = _torch.optim.lr_scheduler.LambdaLR.__init__
def _first_is_wrong(self, optimizer, factor, *args, **kwargs):
    _made.append(self)
    _init(self, optimizer, (lambda step: 3.0) if len(_made) == 1 else factor, *args, **kwargs)
_torch.optim.lr_scheduler.LambdaLR.__init__ = _first_is_wrong
"""


def faulty(engine: str, what: str, text: str) -> str:
    """The script with a fault that what it compares must show."""
    fault = _RATE if what == "lr" else _CALLS + _GRADIENT[engine]
    return fault.lstrip() + "\n" + text
