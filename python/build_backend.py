"""scikit-build-core, with the torch that is there.

A build needs torch's headers and libraries, of the version that will run. Where the environment that pip installs into has it,
pip's isolated environment takes that one; else torch is a requirement of the build, as it is of the package.
"""

from __future__ import annotations

import subprocess
import sys

from scikit_build_core.build import *

_TORCH = "torch==2.11.*"


def _present() -> bool:
    # -E: without the variables by which pip hides the environment.
    look = "import importlib.metadata as m; print(m.version('torch'))"
    found = subprocess.run([sys.executable, "-E", "-c", look], capture_output=True, text=True, check=False)
    return found.returncode == 0 and found.stdout.startswith("2.11.")


def _requires(others: list[str]) -> list[str]:
    return others if _present() else [*others, _TORCH]


def get_requires_for_build_wheel(config_settings=None):
    from scikit_build_core import build

    return _requires(build.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings=None):
    from scikit_build_core import build

    return _requires(build.get_requires_for_build_editable(config_settings))
