"""The process of a check, whose ranks are forked from it: the harness in place of the engine, then the caller's functions.

Run as a program, so that nothing of the package is imported before. argv: the task's file, the result's file.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def load_harness() -> ModuleType:
    """equigrad._harness, which is equigrad._core from now on."""
    import importlib.util
    from pathlib import Path

    import torch  # noqa: F401  before the harness, which needs its libraries

    found = importlib.util.find_spec("equigrad")
    binary = sorted(Path(found.origin).parent.glob("_harness*.so")) if found is not None and found.origin else []
    if not binary:
        raise RuntimeError(
            "[check] expected a package that was built with the harness, got the engine alone. Install equigrad again where "
            "the headers of CLI11, Boost and zlib are (Debian, Ubuntu: libcli11-dev libboost-math-dev zlib1g-dev)."
        )
    harness = load_file("equigrad._harness", str(binary[0]))
    sys.modules["equigrad._core"] = harness
    return harness


def load_file(name: str, path: str) -> ModuleType:
    """The module of a file, which is not looked for by its name."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected a module of Python's in {path}, got none")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(task: dict[str, Any]) -> dict[str, Any]:
    import pickle

    sys.path[:] = task["path"]
    harness = load_harness()
    from equigrad._subject import Subject

    harness.watch_interrupts()
    options = task["options"]
    make_model, loss_fn, batches = pickle.loads(task["functions"])
    accumulation = max(options["accumulation"])
    if options["config"]:
        accumulation = harness.load_config(options["config"], options["ranks"][0]).gradient_accumulation_steps
    answer: dict[str, Any] = harness.check(lambda: Subject(make_model, loss_fn, batches, accumulation), options)
    return answer


def main() -> None:
    import json
    import os
    import pickle

    with open(sys.argv[1], "rb") as file:
        task = pickle.load(file)
    try:
        answer = run(task)
    except Exception as error:  # noqa: BLE001  the caller's functions raise what they like
        answer = {"error": str(error)}
        if not answer["error"].startswith("["):  # not the engine's own, which says all
            import traceback

            answer["error"] = "[check] expected functions that run in another process, got:\n" + traceback.format_exc()
    with open(sys.argv[2] + ".part", "w") as file:
        json.dump(answer, file)
    os.replace(sys.argv[2] + ".part", sys.argv[2])


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules are the package's
    main()
