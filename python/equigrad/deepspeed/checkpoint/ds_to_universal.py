"""The step by which DeepSpeed makes a checkpoint that another number of ranks can load. Every checkpoint is one here.

    python -m equigrad.deepspeed.checkpoint.ds_to_universal --input_folder checkpoints/global_step100 --output_folder checkpoints/global_step100_universal

What is left of it is a copy of the tag, which a program that goes on with the converted folder finds there. `latest` stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

from equigrad import Error
from equigrad.zero_to_fp32 import CheckpointError, _Checkpoint

_WHERE = "ds_to_universal"


def main(args: Any = None) -> None:
    """args: a namespace with input_folder and output_folder; without one the command line. What else it has changes nothing."""
    given = _of_command_line() if args is None else args
    source, output = Path(given.input_folder), Path(given.output_folder)
    try:
        _Checkpoint(source)
    except CheckpointError as wrong:
        raise Error(f"[{_WHERE}] {wrong}") from None
    if output.exists():
        raise Error(f"[{_WHERE}] expected no {output}, got one. Remove it, or give another name.")
    beside = output.with_name(f"{output.name}.converting-{os.getpid()}")
    try:
        shutil.copytree(source, beside)
        beside.rename(output)
    except OSError as failed:
        shutil.rmtree(beside, ignore_errors=True)
        raise Error(
            f"[{_WHERE}] expected to copy {source} to {output}, got: {failed}. Give a folder that can be written."
        ) from None


def _of_command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=_WHERE, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input_folder", required=True, help="a tag of a folder with checkpoints")
    parser.add_argument("--output_folder", required=True, help="is made: a copy of it")
    for name in ("num_extract_workers", "num_merge_workers"):
        parser.add_argument(f"--{name}", type=int, help="accepted; nothing is converted")
    for name in ("keep_temp_folder", "no_strict", "inject_missing_state"):
        parser.add_argument(f"--{name}", action="store_true", help="accepted; nothing is converted")
    return parser.parse_args()


if __name__ == "__main__":
    main()
