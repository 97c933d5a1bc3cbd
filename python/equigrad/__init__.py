"""ZeRO training whose gradients are equal, bit for bit, to those of one device.

    engine, optimizer, dataloader, scheduler = equigrad.initialize(
        model=model, config="ds_config.json")
    for batch in batches:
        engine.backward(engine(**batch).loss)
        engine.step()

The names and the configuration are DeepSpeed's; start it alone or under torchrun, mpirun or Slurm.
`import equigrad.deepspeed as deepspeed` is the drop-in for a program that was written for DeepSpeed.
"""

import torch as _torch  # before _core, which needs its libraries

from equigrad import _built_for

if _torch.__version__.split("+")[0] != _built_for.torch_version:
    raise ImportError(
        f"[equigrad] expected torch {_built_for.torch_version}, for which this package was built, got torch "
        f"{_torch.__version__}. Install that version, or build equigrad again with this one."
    )

from equigrad import _core, parallel, utils, zero
from equigrad._check import CheckReport, check
from equigrad._core import CommunicationError, ConfigError, Error
from equigrad._deepspeed_api import NotSupportedError
from equigrad._engine import Engine
from equigrad._import_deepspeed import import_deepspeed
from equigrad._initialize import initialize
from equigrad._ranks import init_distributed
from equigrad._sides import Sides

__version__ = _core.version
__all__ = [
    "CheckReport",
    "CommunicationError",
    "ConfigError",
    "Engine",
    "Error",
    "NotSupportedError",
    "Sides",
    "check",
    "import_deepspeed",
    "init_distributed",
    "initialize",
    "parallel",
    "utils",
    "zero",
]
