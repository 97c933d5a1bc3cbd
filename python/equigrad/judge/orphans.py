"""A program that outlives the judge by a second: when its standard input ends, it ends what the judge started.

    python -I -S orphans.py FOLDER

It is started beside the ranks. However the judge ends (also by SIGKILL), the pipe to this program ends with it; then every process
whose EQUIGRAD_JUDGE_CHANNEL lies below FOLDER is killed, also one that has left its session, and FOLDER is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

CHANNEL = "EQUIGRAD_JUDGE_CHANNEL"


def processes_of(folder: str) -> list[int]:
    """The ids of all living processes whose channel lies below the folder; nothing where the system has no /proc."""
    mark = f"{CHANNEL}={folder.rstrip('/')}/".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # another user's, or gone
        if any(variable.startswith(mark) for variable in variables):
            found.append(int(entry.name))
    return [process for process in found if process != os.getpid()]


def kill_below(folder: str, patience_s: float = 5.0) -> list[int]:
    """Kills all processes of the folder, and waits until none is left. Returns those that are still there."""
    end = time.monotonic() + patience_s
    while True:
        left = processes_of(folder)
        if not left or time.monotonic() > end:
            return left
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.02)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = sys.argv[1]
    while sys.stdin.buffer.read(1 << 16):
        pass
    kill_below(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
