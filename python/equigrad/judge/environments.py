"""From what a person names (`ddp`, `deepspeed==0.18.1`, `python my_adapter.py`) to what is started for it.

A version makes a virtual environment of its own below the user's cache, on demand and once. It shares the torch at hand by a .pth
file: all versions run the same kernels, and the environment is small.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .processes import DEVICES, Program

ADAPTERS = {
    "plain": "plain PyTorch, gradients averaged by hand",
    "ddp": "torch.nn.parallel.DistributedDataParallel",
    "fsdp1": "torch.distributed.fsdp.FullyShardedDataParallel",
    "fsdp2": "torch.distributed.fsdp.fully_shard",
    "deepspeed": "DeepSpeed",
    "accelerate": "Hugging Face Accelerate",
    "accelerate-deepspeed": "Hugging Face Accelerate with DeepSpeed as its plugin",
    "equigrad": "Equigrad's own engine",
}
PACKAGES = {"deepspeed": "deepspeed", "accelerate": "accelerate"}
"""Adapters whose engine is a package of its own, which can be had in another version."""
NEEDED = {**{name: (package,) for name, package in PACKAGES.items()}, "accelerate-deepspeed": ("accelerate", "deepspeed")}
"""What an adapter imports beside torch."""
ON_RANK = Path(__file__).with_name("on_rank")
INSTALL_S = 1200
ASK_S = 300
"""For a Python to say what it has."""


class UsageError(Exception):
    """Something that a person gave is not as it should be. Its text says what was expected, what was got, and the remedy."""


class DeviceError(Exception):
    """The machine has not the device that was asked for."""


@dataclass(frozen=True)
class Target:
    """What is to be judged. `text`: as the person named it; adapter: of ADAPTERS, or "" for a command."""

    text: str
    adapter: str
    version: str = ""
    command: tuple[str, ...] = ()


def parse_target(text: str) -> Target:
    """Of an ENGINE, an ENGINE==VERSION or a COMMAND. Raises UsageError; nothing is started."""
    name, equal, version = text.partition("==")
    if name in ADAPTERS:
        if equal and not version:
            raise UsageError(f"[judge] expected a version after {name}==, got none. Write it, like {name}==0.18.1.")
        if version and name not in PACKAGES:
            own = "this package" if name == "equigrad" else "torch"
            raise UsageError(
                f"[judge] expected a version of {' or '.join(PACKAGES)}, got {text}: {name}'s version is that of {own}. Give "
                "--python PATH of an environment that has it."
            )
        return Target(text, name, version)
    return _command(text)


def _command(text: str) -> Target:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"[judge] expected a command, got {text!r}: {error}. Close its quotation marks.") from error
    if words[:1] == ("python",) and not shutil.which("python"):
        words = (sys.executable, *words[1:])  # a bare Debian has python3 only
    if words and shutil.which(words[0]):
        for word in words[1:2]:
            if word.endswith(".py") and not Path(word).is_file():
                raise UsageError(f"[judge] expected a program at {word}, got no such file. Correct the path.")
        return Target(text, "", "", words)
    close = get_close_matches(text.partition("==")[0], ADAPTERS, 1)
    meant = f" Did you mean {close[0]}?" if close else f" The engines are {', '.join(ADAPTERS)}; a command is a program on PATH, with its arguments in quotation marks."
    if words and Path(words[0]).is_file():
        meant = f" That file is not executable: write `python {text}`, or make it so."
    raise UsageError(f"[judge] expected an engine or a command, got {text!r}.{meant}")


def program_of(target: Target, python: str, device: str = "cpu") -> Program:
    """What is started for the target on each rank, in that Python."""
    if not target.adapter:
        return Program(target.text, target.command, device=device)
    environment = {}
    if target.adapter == "equigrad":
        package = str(Path(__file__).resolve().parents[2])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH", "")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return Program(target.text, (python, str(ON_RANK), target.adapter), environment, device)


def reference_of(python: str, device: str = "cpu") -> Program:
    """The process of plain autograd, in that Python."""
    return Program("reference", (python, str(ON_RANK), "--reference"), device=device)


def python_of(target: Target, python: str, say: Callable[[str], None]) -> str:
    """The Python for the target: the given one, or that of an environment with the version that the target names.

    Raises UsageError where it cannot be had. `say` is told what takes time.
    """
    if not target.version:
        return python
    requirement = f"{PACKAGES[target.adapter]}=={target.version}"
    site, torch_version = torch_of(python)
    tag = hashlib.sha256(f"{site}\n{os.path.realpath(python)}".encode()).hexdigest()[:8]
    folder = _cache() / f"{PACKAGES[target.adapter]}-{target.version}-torch-{torch_version.split('+')[0]}-{tag}"
    own = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        mark = folder / ".complete"
        wanted = f"{site}\n{requirement}\n"
        if mark.exists() and mark.read_text() == wanted and own.exists():
            return str(own)
        say(f"making an environment with {requirement} beside torch {torch_version}, in {folder}")
        try:
            _make(folder, python, site, torch_version, requirement)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        mark.write_text(wanted)
    return str(own)


def torch_of(python: str) -> tuple[str, str]:
    """The folder that a Python's torch lies in, and its version. Raises UsageError where it has none. Nothing of it is imported."""
    code = (
        "import importlib.metadata as m, importlib.util as u, os; "
        "print(os.path.dirname(os.path.dirname(u.find_spec('torch').origin))); print(m.version('torch'))"
    )
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"[judge] expected a Python at {python}, got: {error}. Give --python PATH.") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(
            f"[judge] expected a Python with torch, got {python}: {last}. Install torch there, or give --python PATH of one that has it."
        )
    site, version = done.stdout.split("\n")[-3:-1]
    return site, version


def devices_of(python: str) -> list[str]:
    """The CUDA devices that a Python's torch sees, by name. Raises DeviceError where it sees none, UsageError without a torch."""
    torch_of(python)
    code = "import torch; print(*map(torch.cuda.get_device_name, range(torch.cuda.device_count())), sep='\\n')"
    variables = {**os.environ, **DEVICES["cuda"]}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=ASK_S, check=False, env=variables)
    names = done.stdout.split("\n")[:-1] if done.returncode == 0 else []
    if not any(names):
        said = f": {done.stderr.strip().splitlines()[-1]}" if done.returncode and done.stderr.strip() else ""
        raise DeviceError(
            f"[judge] expected a CUDA device, got none that torch of {python} sees{said}. Look at nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or leave --device cuda out."
        )
    return names


def version_of(python: str, package: str) -> str:
    """Of a package that a Python has; "" where it has none. Asked without importing it."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=ASK_S, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def check_engine(target: Target, python: str) -> None:
    """Raises UsageError where that Python has not what the target's adapter imports."""
    if not target.adapter:
        return
    missing = [package for package in NEEDED.get(target.adapter, ()) if not version_of(python, package)]
    if missing:
        own = f"name a version ({target.adapter}==...) for an environment of its own, " if target.adapter in PACKAGES else ""
        raise UsageError(
            f"[judge] expected {' and '.join(missing)} in {python}, got a Python without it. Install it there, {own}or give --python "
            "PATH of one that has it."
        )
    wanted = "torch" if target.adapter != "equigrad" else "equigrad"
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({wanted!r}) is None)"
    variables = {**os.environ, **program_of(target, python).environment}
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, timeout=ASK_S, check=False, env=variables)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"[judge] expected a Python at {python}, got: {error}. Give --python PATH.") from error
    if done.returncode != 0:
        raise UsageError(f"[judge] expected {wanted} in {python}, got a Python without it. Give --python PATH of one that has it.")


def own_version() -> str:
    """Of Equigrad; "" where the judge runs from the tree."""
    return str(getattr(sys.modules.get("equigrad"), "__version__", ""))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "equigrad" / "judge"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, python: str, site: str, torch_version: str, requirement: str) -> None:
    own = str(folder / "bin" / "python")
    lent = bool(version_of(python, "pip"))  # a pip of its own is most of an environment's making
    made = [python, "-m", "venv", "--clear", *(["--without-pip"] if lent else []), str(folder)]
    _run(made, "Install Python's venv module (Debian: python3-venv).")
    asked = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    purelib = Path(_run([own, "-c", asked], "See that this Python works.").strip())
    (purelib / "torch_at_hand.pth").write_text(f"{site}\n")
    constraint = folder / "constraint.txt"
    constraint.write_text(f"torch=={torch_version}\n")
    pip = [python, "-m", "pip", "--python", own] if lent else [own, "-m", "pip"]
    options = ["--disable-pip-version-check", "--no-input", "--quiet", "-c", str(constraint)]
    remedy = "See that the version exists and that this machine reaches a package index, or give --python PATH of an environment that has it."
    _run([*pip, "install", *options, requirement], remedy, {"DS_BUILD_OPS": "0"})


def _run(command: list[str], remedy: str, environment: dict[str, str] | None = None) -> str:
    # What is set for this judge's own modules is none of the new environment's.
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False, env={**variables, **(environment or {})}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"[judge] expected `{shlex.join(command)}` to work, got: {error}. {remedy}") from error
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        raise UsageError(f"[judge] expected `{shlex.join(command)}` to work, got exit code {done.returncode}. {remedy}\n{said}")
    return done.stdout
