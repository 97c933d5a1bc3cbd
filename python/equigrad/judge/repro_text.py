"""What is done to a script's text when its templates have been filled: empty lines, long lines, imports."""

from __future__ import annotations

import re

WIDTH = 120
_STANDARD = ("contextlib", "copy", "os", "sys", "tempfile")
_OTHERS = (
    (r"", "import torch"),
    (r"\bdist\.", "import torch.distributed as dist"),
    (r"\bdcp\.", "import torch.distributed.checkpoint as dcp"),
    (r"\bdefault_hooks\.", "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"),
    (r"\bget_state_dict\(", "from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict"),
    (r"\bFullyShardedDataParallel\b", "from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy"),
    (r"\bMixedPrecision\(", "from torch.distributed.fsdp import MixedPrecision"),
    (r"\bMixedPrecisionPolicy\(", "from torch.distributed.fsdp import MixedPrecisionPolicy"),
    (r"\bCPUOffloadPolicy\(", "from torch.distributed.fsdp import CPUOffloadPolicy"),
    (r"\bfully_shard\(", "from torch.distributed.fsdp import fully_shard"),
    (r"\bLambdaLR\(", "from torch.optim.lr_scheduler import LambdaLR"),
    (r"\bShardedGradScaler\(", "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler"),
    (r"\bDistributedDataParallel\(", "from torch.nn.parallel import DistributedDataParallel"),
    (r"\bAccelerator\(", "from accelerate import Accelerator"),
    (r"\bDDPCommunicationHookType\.", "from accelerate.utils import DDPCommunicationHookType"),
    (r"\bDeepSpeedPlugin\(", "from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs"),
    (r"\bDistributedDataParallelKwargs\(", "from accelerate.utils import DistributedDataParallelKwargs"),
    (r"\bGradientAccumulationPlugin\(", "from accelerate.utils import GradientAccumulationPlugin"),
    (r"\bdeepspeed\.", "import deepspeed"),
    (r"\bequigrad\.", "import equigrad"),
    (r"\bcheckpoint\(", "from torch.utils.checkpoint import checkpoint"),
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def tidy(text: str) -> str:
    """Empty lines go, a lone ~ becomes one, and lines that are too long are broken."""
    lines = [line.rstrip() for line in text.splitlines()]
    kept = ["" if line.strip() == "~" else broken(line) for line in lines if line]
    return "\n".join(kept).strip("\n") + "\n"


def imports_of(body: str) -> str:
    """What a script's body needs, with what must come before it."""
    first = [f"import {name}" for name in _STANDARD if re.search(rf"\b{name}\.", body)]
    later = sorted({line for pattern, line in _OTHERS if re.search(pattern, body)}, key=_sorting)
    if "import deepspeed" in later:
        first = sorted({*first, "import os"}) + [
            "",
            'os.environ["DS_ACCELERATOR"] = "cpu"  # deepspeed reads it when it is imported',
        ]
    return "\n".join([*first, "", *later])


def broken(line: str) -> str:
    """A line that is too long, with what is in its last bracket on lines of their own; else the line."""
    code = line.partition("  # ")[0]
    if len(line) <= WIDTH or not code.endswith((")", "]", "}")):
        return line
    begin = _opening(code)
    if begin < 0:
        return line
    pad = " " * (len(line) - len(line.lstrip()))
    parts = _parts(code[begin + 1 : -1])
    comma = "" if any(part.startswith("for ") for part in parts) else ","
    inner = [broken(f"{pad}    {part}{comma}") for part in parts]
    return "\n".join([code[: begin + 1], *inner, f"{pad}{code[-1]}{line[len(code) :]}"])


def _opening(code: str) -> int:
    """Where the bracket that the last character closes is opened."""
    depth = 0
    for at in range(len(code) - 1, -1, -1):
        if code[at] in ")]}":
            depth += 1
        elif code[at] in _CLOSING:
            depth -= 1
            if depth == 0:
                return at
    return -1


def _parts(inner: str) -> list[str]:
    """What stands between commas outside of all brackets; of a comprehension, its clauses."""
    parts, depth, begun, clauses = [], 0, 0, False
    for at, sign in enumerate(inner):
        depth += (sign in _CLOSING) - (sign in ")]}")
        if depth == 0 and inner.startswith((" for ", " if "), at) and (clauses or inner.startswith(" for ", at)):
            parts.append(inner[begun:at].strip())
            begun, clauses = at, True
        elif depth == 0 and sign == "," and not clauses:
            parts.append(inner[begun:at].strip())
            begun = at + 1
    return [*parts, inner[begun:].strip()]


def _sorting(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line
