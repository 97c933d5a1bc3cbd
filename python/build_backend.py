"""scikit-build-core, with the torch that is there.

A build needs torch's headers and libraries, of the version that will run. Where the environment that pip installs into has it,
pip's isolated environment takes that one; else torch is a requirement of the build, as it is of the package.
"""

from __future__ import annotations

from scikit_build_core.build import *

from torch_requirement import present, requirement


def _requires(others: list[str]) -> list[str]:
    return others if present() else [*others, requirement()]


def get_requires_for_build_wheel(config_settings=None):
    from scikit_build_core import build

    return _requires(build.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings=None):
    from scikit_build_core import build

    return _requires(build.get_requires_for_build_editable(config_settings))
