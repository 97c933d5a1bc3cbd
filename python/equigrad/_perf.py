"""The commands `equigrad_perf` and `equigrad bench`: how fast and how lean the engine is. The program lies beside this file."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def library_folders() -> list[Path]:
    """Of torch, and of CUDA's run-time library where a wheel beside it has that."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise SystemExit("equigrad_perf: [race] expected torch beside this package, got none. Install it: pip install torch")
    torch = Path(found.origin).parent
    return [torch / "lib", *sorted((torch.parent / "nvidia").glob("cu*/lib"))]


def environment(package: Path) -> dict[str, str]:
    """Of the program: this Python for the engine from Python, and for DDP, FSDP2 and DeepSpeed where it has DeepSpeed."""
    variables = {"EQUIGRAD_PERF_PYTHON": sys.executable}
    if importlib.util.find_spec("deepspeed") is not None:
        variables["EQUIGRAD_PERF_PEERS"] = sys.executable
    variables.update(os.environ)
    folders = [str(folder) for folder in library_folders()]
    if not (package.parent / "torch").exists():  # else the programs find them by themselves
        known = os.environ.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = ":".join([*folders, known] if known else folders)
    return variables


def program() -> Path:
    return Path(__file__).resolve().parent / "equigrad_perf"


def start(name: str, words: list[str]) -> None:
    """In place of this process; `name` is what its help and its errors call it."""
    path = program()
    if not path.exists():
        raise SystemExit(
            f"{name}: [race] expected a package that was built with the harness, got the engine alone. Install "
            "equigrad again where the headers of CLI11, Boost and zlib are "
            "(Debian, Ubuntu: libcli11-dev libboost-math-dev zlib1g-dev)."
        )
    os.execve(path, [name, *words], environment(path.parent))


def main() -> None:
    start("equigrad_perf", sys.argv[1:])


if __name__ == "__main__":
    main()
