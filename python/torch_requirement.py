"""Which torch the package is built for, and requires: the one of the environment that pip installs into, if it is one of those
that were run; else the first of them. The dynamic metadata of pyproject.toml, and build_backend.py, ask here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_BUILD = Path(__file__).resolve().parents[1] / "targets.cmake"
SERIES = re.search(r"^set\(EQUIGRAD_TORCH_RUN ([\d. ]+)\)", _BUILD.read_text(), re.MULTILINE).group(1).split()


def present() -> str | None:
    """The series of the torch that is there; None without any, or with another."""
    # -E: without the variables by which pip hides the environment.
    look = "import importlib.metadata as m; print(m.version('torch'))"
    found = subprocess.run([sys.executable, "-E", "-c", look], capture_output=True, text=True, check=False)
    series = ".".join(found.stdout.split(".")[:2])
    return series if found.returncode == 0 and series in SERIES else None


def requirement() -> str:
    return f"torch=={present() or SERIES[0]}.*"


def dynamic_metadata(field: str, settings: dict[str, object] | None = None) -> list[str]:
    if field != "dependencies" or settings:
        raise RuntimeError(f"expected the field dependencies without settings, got {field} with {settings}")
    return [requirement(), "cloudpickle>=3", "jinja2>=3", "numpy>=1.26"]
