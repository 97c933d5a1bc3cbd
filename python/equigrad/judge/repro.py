"""Of a red cell, a script that shows the fault without the judge: the engine under test and plain torch, nothing else.

    script(subject, case, findings, sketch)     its text
    confirm(text, python, timeout_s)            run as a person would run it
    show(subject, case, findings, ...)          the smallest script that was run and shows it

A script trains a tiny model on small integers, for which the right numbers are exact, and compares with plain autograd.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from .board import Finding, Repro
from .on_rank.protocol import Case
from .repro_config import config_text
from .repro_program import (
    WEIGHTS,
    ReproError,
    Sketch,
    backwards,
    batch_names,
    batch_number,
    find_data,
    first_step,
    has_first,
    odd_part,
    overflow_of,
    reduced,
    rounding_of,
    sketches,
)
from .repro_text import WIDTH, imports_of, tidy

TITLES = {
    "plain": "plain PyTorch",
    "ddp": "torch.nn.parallel.DistributedDataParallel",
    "fsdp1": "torch.distributed.fsdp.FullyShardedDataParallel",
    "fsdp2": "torch.distributed.fsdp.fully_shard",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
    "accelerate-deepspeed": "Accelerate",
    "equigrad": "Equigrad",
}
"""The engines that have scripts."""
FAMILIES = {
    "deepspeed": "zero_loop",
    "equigrad": "zero_loop",
    "accelerate": "accelerate_loop",
    "accelerate-deepspeed": "accelerate_loop",
}
_GRACE_S = 20.0
_SMALL_BYTES = 4096
"""A bucket below this is meant to be smaller than some parameter; those of scripts have more than _TINY_BYTES."""
_TINY_BYTES = 16
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
_CASTS = {"bf16": ".bfloat16()", "fp16": ".half()", "fp64": ".double()", "fp32": ""}
_SHOWN = re.compile(r"^(?:\[[^]]*\]:)?rank \d+, .*: expected .*, got .*$", re.MULTILINE)


@dataclass(frozen=True)
class Subject:
    """What is accused: an engine in its version, and why in words."""

    engine: str
    """One of TITLES."""
    version: str
    torch: str
    cause: str = ""
    """A sentence; "" where none was found."""


@dataclass(frozen=True)
class Confirmed:
    """The script exited 1 and printed what it expected and got."""

    said: str


@dataclass(frozen=True)
class NotConfirmed:
    """The script did not show the fault."""

    why: str


Confirm = Callable[[str, float], "Confirmed | NotConfirmed"]
"""Runs a script, with a limit in seconds."""


def script(subject: Subject, case: Case, findings: Sequence[Finding], sketch: Sketch | None = None) -> str:
    """Its text. sketch: of sketches(case, findings), or the smallest. Raises ReproError where no script can be written."""
    if subject.engine not in TITLES:
        raise ReproError(f"[judge] expected an engine of {list(TITLES)}, got {subject.engine!r}. Others have no script.")
    findings = first_step(findings)
    case = reduced(case, findings[0])
    chosen = sketch or next(sketches(case, findings))
    overflow = overflow_of(case)
    if overflow and overflow[0] == case.steps - 1 and chosen.what in ("gradient", "norm", "loss"):
        raise ReproError(f"the {chosen.what} of a step with an infinite loss is not compared")
    if subject.engine == "accelerate-deepspeed" and case.options.get("engines", 1) != 1:
        raise ReproError("an Accelerator drives one engine of DeepSpeed's")
    if subject.engine == "accelerate-deepspeed" and chosen.what in ("gradient", "lr", "loss scale"):
        raise ReproError(f"the {chosen.what} cannot be read: accelerator.backward() makes DeepSpeed's step by itself")
    context = _context(subject, case, findings, chosen)
    texts = ((weights, _model_and_batch({**context, "weights": weights})) for weights in WEIGHTS)
    data = find_data(case, texts)
    context.update(weights=data.weights, exact=data.exact, rounding=rounding_of(case, chosen.what, data))
    context["model_and_batch"] = _rendered("model.py.jinja", context)
    body = tidy(_rendered("script.py.jinja", context))
    text = _header(subject, case) + imports_of(body) + "\n\n\n" + body
    try:
        compile(text, "repro.py", "exec")
    except SyntaxError as error:
        raise ReproError(f"[judge] expected a script, got a syntax error: {error}\n{text}") from error
    return text


def confirm(text: str, python: str, timeout_s: float) -> Confirmed | NotConfirmed:
    """Runs the script under torchrun, in a folder of its own, with that Python."""
    folder = tempfile.mkdtemp(prefix="equigrad-repro-")
    path = Path(folder) / "repro.py"
    path.write_text(text, encoding="utf-8")
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks_of(text))]
    try:
        return outcome_of(*_run([*torchrun, str(path)], folder, timeout_s), timeout_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def show(
    subject: Subject,
    case: Case,
    findings: Sequence[Finding],
    python: str,
    timeout_s: float,
    *,
    confirm: Confirm | None = None,
    tries: int = 4,
) -> Repro | None:
    """The smallest script that was run and shows the findings; where none does, the smallest, not confirmed. None: there is none.

    confirm: what runs a script, else confirm() of this module with `python`. tries: how many are run at most.
    """
    if not findings or subject.engine not in TITLES:
        return None
    ask = confirm or (lambda text, limit_s: _by_torchrun(text, python, limit_s))
    first, said = "", list[str]()
    for sketch in _spread(list(sketches(case, first_step(findings))), tries):
        try:
            text = script(subject, case, findings, sketch)
        except ReproError as error:
            said.append(str(error))
            continue
        first = first or text
        outcome = ask(text, timeout_s)
        if isinstance(outcome, Confirmed):
            return Repro(text, True, outcome.said)
        said.append(outcome.why)
    return Repro(first, False, "\n".join(dict.fromkeys(said))) if first else None


def _by_torchrun(text: str, python: str, timeout_s: float) -> Confirmed | NotConfirmed:
    return confirm(text, python, timeout_s)


def _spread(every: list[Sketch], count: int) -> list[Sketch]:
    """So many of them: the smallest, and the largest in any case."""
    return every if len(every) <= count else [*every[: count - 1], every[-1]]


def ranks_of(text: str) -> int:
    """On how many ranks a script is to be run, by its own first lines."""
    found = re.search(r"--nproc-per-node (\d+)", text)
    return int(found.group(1)) if found else 2


def outcome_of(code: int | None, said: str, timeout_s: float) -> Confirmed | NotConfirmed:
    """What a run showed, by its exit status (None: it did not end) and what it printed."""
    shown = _SHOWN.findall(said)
    if code is None:
        return NotConfirmed(f"the script did not end within {timeout_s:g} s")
    if code == 0:
        return NotConfirmed("the script found everything equal:\n" + "\n".join(sorted(shown)))
    own, torchruns, _ = said.partition("failed (exitcode:")  # after it comes torchrun's own traceback
    if not shown or "Traceback (most recent call last)" in own:
        lines = [line for line in own.splitlines() if line.strip()]
        lines = lines[:-1] if torchruns else lines
        return NotConfirmed(f"the script ended with {code}, not with a comparison:\n" + "\n".join(lines[-30:]))
    return Confirmed("\n".join(sorted(shown)))


def surroundings() -> dict[str, str]:
    """The environment that scripts are run in: this one, without what belongs to a launcher or to the judge."""
    left_out = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "EQUIGRAD_JUDGE_CHANNEL")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    environment = {name: value for name, value in kept.items() if not name.startswith("TORCHELASTIC")}
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def _run(command: list[str], folder: str, timeout_s: float) -> tuple[int | None, str]:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=surroundings(),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        said.seek(0)
        return code, said.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """It, torchrun's agent, and the ranks, which are in sessions of their own and go when the agent is asked to go."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _context(subject: Subject, case: Case, findings: Sequence[Finding], sketch: Sketch) -> dict[str, Any]:
    precision, names, overflow = case.precision, batch_names(case), overflow_of(case)
    casts_itself = subject.engine in ("deepspeed", "accelerate-deepspeed", "equigrad")
    sharded = subject.engine in ("fsdp1", "fsdp2")
    computes_low = sharded and precision.model in ("bf16", "fp16") and precision.accumulation in ("", "fp32")
    moduli = (3, 4, 2) if case.world * case.accumulation * backwards(case) <= 12 else (5, 4, 3)  # no batch of a step twice
    last = [f"{name} == {count - 1}" for name, count in (("micro", case.accumulation), ("k", backwards(case))) if count > 1]
    infinite = []
    if overflow:
        first = {"step": overflow[0], "rank": overflow[1], "micro": 0, "k": 0}
        infinite = [f"{name} == {value}" for name, value in first.items() if name in names]
    number, bucket_bytes = case.world * case.accumulation, int(case.options.get("bucket_bytes", 0))
    if 0 < bucket_bytes < _SMALL_BYTES:
        bucket_bytes = _TINY_BYTES
    times = f"{odd_part(case)}.0 * " if odd_part(case) > 1 else ""
    context = {
        "case": case,
        "engine": subject.engine,
        "family": FAMILIES.get(subject.engine, "torch_loop"),
        "options": case.options,
        "kind": sketch.kind,
        "features": sketch.features,
        "first": has_first(sketch),
        "what": sketch.what,
        "names": names,
        "number": batch_number(case),
        "times": times,
        "moduli": [f" % {one}" if one < case.steps * number * backwards(case) else "" for one in moduli],
        "two": case.options.get("engines", 1) == 2,
        "backwards": backwards(case),
        "looped": case.steps > 1,
        "updates": sketch.what != "gradient" or case.steps > 1,
        "last_backward": " and ".join(last),
        "infinite_at": " and ".join(infinite),
        "overflow": {"step": overflow[0], "rank": overflow[1]} if overflow else None,
        "resume": case.options.get("save_after"),
        "scale": precision.loss_scale,
        "autocast": _TYPES[precision.autocast] if precision.autocast else "",
        "communication": _TYPES[precision.communication] if precision.communication not in ("", precision.model) else "",
        "low": precision.model in ("bf16", "fp16"),
        "computes_low": _TYPES[precision.model] if computes_low else "",
        "reduces": _TYPES[precision.communication] if precision.communication else "",
        "wrapped_parts": _wrapped_parts(sketch),
        "to": "" if computes_low or casts_itself and precision.model != "fp64" else _CASTS[precision.model],
        "x": "x" + (_CASTS[precision.model] if sketch.kind != "embedding" and not computes_low else ""),
        "plain_x": "x.double()" if precision.model == "fp64" and sketch.kind != "embedding" else "x",
        "wide": "double" if precision.model == "fp64" else "float",
        "divided": f" / {case.accumulation}" if case.accumulation > 1 else "",
        "share": f"({case.accumulation} * world)" if case.accumulation > 1 else "world",
        "bucket_bytes": bucket_bytes,
        "barrier": subject.engine != "equigrad",
        "prepared_name": "engine" if subject.engine == "accelerate-deepspeed" else "model",
        "config": config_text(subject.engine, case, bucket_bytes // 4 if bucket_bytes else None),
        "grad": "(torch.zeros_like(p) if p.grad is None else p.grad)"
        if {"unused", "branch", "fork"} & sketch.features
        else "p.grad",
        "absent": bool({"unused", "branch", "fork"} & sketch.features),
        "literal": {one.what: one.want for one in findings if one.what in ("loss scale", "applied")},
        "offset": "save_after" in case.options or case.options.get("engines", 1) == 2,
        "weights": "",
        "exact": True,
        "rounding": None,
    }
    return context


def _wrapped_parts(sketch: Sketch) -> list[str]:
    """Of the model, what is sharded by itself: children that share no parameter with another one."""
    if sketch.kind == "linear":
        return []
    if sketch.kind == "layers":
        return ["[0]", "[1]"]
    names = {
        "embedding": ["middle"] if "tied" in sketch.features else ["embedding", "middle", "head"],
        "convolution": ["first", "second", "last"],
        "network": [
            *(["first"] if has_first(sketch) else []),
            *(["branch", "other"] if "fork" in sketch.features else []),
            *(name for name in ("branch", "wide") if name in sketch.features),
            "last",
        ],
    }[sketch.kind]
    return [f".{name}" for name in names] + ([".unused"] if "unused" in sketch.features else [])


def _model_and_batch(context: dict[str, Any]) -> str:
    return tidy(_rendered("model.py.jinja", context))


def _rendered(name: str, context: dict[str, Any]) -> str:
    return _environment().get_template(name).render(context)


@cache
def _environment() -> jinja2.Environment:
    folder = Path(__file__).parent / "templates" / "repro"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment


def _header(subject: Subject, case: Case) -> str:
    version = subject.version if subject.engine not in ("plain", "ddp", "fsdp1", "fsdp2") else ""
    named = " ".join(filter(None, (TITLES[subject.engine], version)))
    lines = textwrap.wrap(f"{named}, torch {subject.torch}: {subject.cause or 'not what plain autograd gives'}", WIDTH - 2)
    lines += [
        f"    torchrun --nproc-per-node {case.world} repro.py",
        "exits 1 where what it got is not what plain autograd gives, 0 where it is.",
    ]
    return "".join(f"# {line}\n" for line in lines)
