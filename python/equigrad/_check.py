"""check(): whether an engine computes the gradients of your model right."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from equigrad import _core, _ranks

_PROCESS = Path(__file__).with_name("_check_process.py")


@dataclass(frozen=True)
class CheckReport:
    """What came out. It is true where every case held: `assert equigrad.check(...)`."""

    held: bool
    compared: int
    """Elements, over all cases and lanes."""
    notes: list[str]
    """What was not compared, and what is worth to know."""
    text: str
    """As `equigrad run` says it: verdict, causes, files, replays."""
    run: dict[str, Any] = field(repr=False)
    """The whole run, as in run.json (docs/failures.md)."""

    def __bool__(self) -> bool:
        return self.held

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<CheckReport held={self.held} compared={self.compared}>\n{self.text}"


def check(
    make_model: Callable[[], Any],
    loss_fn: Callable[[Any, Any], Any] | None = None,
    batches: Callable[[int, int, int], Any] | Sequence[Any] | None = None,
    *,
    config: _ranks.Config | None = None,
    ranks: Sequence[int] = (2,),
    stages: Sequence[int] | None = None,
    precisions: Sequence[str] | None = None,
    styles: Sequence[str] | None = None,
    accumulation: Sequence[int] = (2,),
    clips: Sequence[str] = ("clip-above",),
    optimizers: Sequence[str] = ("adamw",),
    steps: int = 3,
    seed: int = 1,
    report: str | os.PathLike[str] | None = None,
    name: str = "model",
    timeout_scale: float = 1.0,
    slots: int = 0,
    device: str = "cpu",
    only: str = "",
    fault: str = "",
    progress: bool | None = None,
) -> CheckReport:
    """Trains your model on forked ranks, and compares every gradient with plain autograd, bit by bit.

    make_model: a function without arguments that makes the model, in fp32: any torch.nn.Module, the same one in every call
        (torch's generator, random and numpy are seeded before it).
    loss_fn: loss_fn(model, batch) gives a loss, or (output, gradient) for output.backward(gradient). Without it the model is
        called with the batch, and its output, or the output's `.loss`, is the loss.
    batches: batches(step, rank, micro_batch), or a list that is walked through; tensors in any structure. Ranks and
        micro-batches must differ: equal ones hide what is lost, doubled or another rank's.
    config: a DeepSpeed configuration (dict, JSON text or path): its stage, precision, optimizer, clipping and accumulation.
        Without it these come from the lists below.
    stages: of ZeRO; without it 0 to 3, or that of the configuration.
    precisions: "fp32" (without a configuration the default), "bf16", "fp16", "autocast-bf16", ...: `equigrad list` has all.
    styles: "engine_backward", "scale_backward", "loss_backward", "tensor_backward"; without it all that the loss allows.
    accumulation, clips, optimizers: not read with a configuration. clips: "clip-off", "clip-below", "clip-above",
        "clip-above-inf"; optimizers: "adamw", "sgd".
    device: "cpu", or "cuda", where models, batches, engines and plain autograd's passes are; CUDA_VISIBLE_DEVICES says which.
    report: a folder for index.html, run.json, junit.xml and the failures.
    only: the case to run again, by its name; the text of a failure says it.
    fault: planted into every case, to see the check fail.
    progress: on stderr; None: where that is a terminal.

    The functions go to a process of their own, by cloudpickle. Raises Error for a model or options that cannot be checked. A
    difference is no error: look at `held`, or assert the report.
    """
    if isinstance(make_model, torch.nn.Module) or not callable(make_model):
        raise _core.Error(
            f"[check] expected make_model to be a function that makes the model, got a {type(make_model).__name__}. Write "
            "lambda: MyModel(), or a def: every rank calls it."
        )
    if batches is None:
        raise _core.Error("[check] expected batches, got None. Give a list, or a function batches(step, rank, micro_batch).")
    options = {
        "ranks": _listed("ranks", ranks),
        "stages": _listed("stages", stages),
        "precisions": _listed("precisions", precisions),
        "styles": _listed("styles", styles),
        "accumulation": _listed("accumulation", accumulation),
        "clips": _listed("clips", clips),
        "optimizers": _listed("optimizers", optimizers),
        "config": "" if config is None else _ranks.config_text([config], "check"),
        "steps": steps,
        "seed": seed,
        "report": "" if report is None else os.path.abspath(os.fspath(report)),
        "name": name,
        "timeout_scale": timeout_scale,
        "slots": slots,
        "device": device,
        "fault": fault,
        "command": shlex.join(sys.orig_argv),
        "filters": [only] if only else [],
        "progress": sys.stderr.isatty() if progress is None else progress,
    }
    answer = _in_process(_pickled((make_model, loss_fn, batches)), options)
    return CheckReport(answer["held"], answer["compared"], answer["notes"], answer["text"], json.loads(answer["run"]))


def _listed(name: str, values: Any) -> list[Any]:
    """A text is a sequence, too, of its letters: it is refused."""
    if values is None:
        return []
    if isinstance(values, (str, int)):
        raise _core.Error(f"[check] expected a list for {name}, got {values!r}. Write {name}=[{values!r}].")
    return list(values)


def _pickled(functions: tuple[Any, ...]) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]  # here: `import equigrad` is fast

    by_value = [module for module in map(_module_of, functions) if module is not None and not _is_importable(module)]
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = cloudpickle.dumps(functions)
        return pickled
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise _core.Error(
            f"[check] expected functions that cloudpickle takes to another process, got: {error}. Make the model, open files "
            "and read data within make_model and batches, not around them."
        ) from error
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _module_of(function: Any) -> Any:
    return sys.modules.get(getattr(function, "__module__", None) or "")


def _is_importable(module: Any) -> bool:
    if module.__name__ == "__main__":
        return True  # cloudpickle takes it by value anyhow
    try:
        found = importlib.util.find_spec(module.__name__)
    except (ImportError, ValueError):
        return False
    return found is not None and bool(found.origin == getattr(module, "__file__", found.origin))


def _in_process(functions: bytes, options: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="equigrad-check-") as folder:
        task, result = Path(folder, "task"), Path(folder, "result")
        task.write_bytes(pickle.dumps({"path": sys.path, "functions": functions, "options": options}))
        # One thread: who forks ranks must have started no other, and numpy's libraries start theirs when they are loaded.
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        process = subprocess.Popen(
            [sys.executable, _PROCESS, task, result], env={**os.environ, **one, "TOKENIZERS_PARALLELISM": "false"}
        )
        try:
            process.wait()
        except BaseException:  # Ctrl-C has reached it too: it ends with what it has
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if not result.exists():
            how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
            raise _core.Error(
                f"[check] expected the process of the check to answer, got its end by {how}. See what it wrote."
            )
        answer: dict[str, Any] = json.loads(result.read_text())
    if "error" in answer:
        raise _core.Error(answer["error"])
    return answer
