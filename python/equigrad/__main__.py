"""The command `equigrad`, as the C++ program has it: `equigrad run --model my_package.my_module:factory` and all others.

The factory gives (make_model, loss_fn, batches), as equigrad.check takes them; loss_fn may be None. `equigrad judge` is served in
Python (equigrad.judge), `equigrad bench` by the program equigrad_perf, all other commands by the harness in C++.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    if sys.argv[1:2] == ["judge"]:
        from equigrad.judge import command

        sys.exit(command.main(sys.argv[2:]))
    if sys.argv[1:2] == ["bench"]:
        from equigrad import _perf

        if _perf.program().exists():  # else the harness knows where that of the build is
            _perf.start("equigrad bench", sys.argv[2:])
    # A process that has not imported the engine: this one runs another, with its harness, and forks the ranks.
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **one, "TOKENIZERS_PARALLELISM": "false"}
    program = Path(__file__).with_name("_command_process.py")
    os.execve(sys.executable, [sys.executable, str(program), *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
