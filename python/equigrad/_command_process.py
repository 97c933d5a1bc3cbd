"""The process of the command `equigrad`. Run as a program, so that nothing of the package is imported before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def subject_maker(harness: ModuleType, target: str) -> Callable[[], Any]:
    """Of my_package.my_module:factory."""
    import importlib

    from equigrad._subject import Subject

    module_name, _, factory_name = target.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError) as error:
        raise harness.Error(
            f"[model] expected {target} to be MODULE:FACTORY, such as my_module:factory without .py, got: {error}. "
            "Call it where the module can be imported from (the current folder, PYTHONPATH)."
        ) from error
    given = factory()
    if not (isinstance(given, tuple) and len(given) == 3):
        raise harness.Error(
            f"[model] expected {target}() to give (make_model, loss_fn, batches), got a {type(given).__name__}. They are those of "
            "equigrad.check."
        )
    micro_batches = 4 if "--full" in sys.argv else 2  # at most, in the cases of `run --model`
    return lambda: Subject(*given, micro_batches)


def main() -> int:
    import os

    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.getcwd()  # it was the folder of this file, whose modules are the package's
    import importlib.util

    spec = importlib.util.spec_from_file_location("equigrad_check_process", os.path.join(folder, "_check_process.py"))
    assert spec is not None and spec.loader is not None  # a file beside this one
    process = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(process)
    if importlib.util.find_spec("equigrad") is None:
        sys.path.append(os.path.dirname(folder))
    harness: ModuleType = process.load_harness()
    code: int = harness.run_cli(["equigrad", *sys.argv[1:]], lambda target: subject_maker(harness, target))
    return code


if __name__ == "__main__":
    sys.exit(main())
