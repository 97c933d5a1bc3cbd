"""The judge of the built package where there is one (PYTHONPATH), else that of the tree, which needs nothing compiled."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

if importlib.util.find_spec("equigrad") is None:
    package = types.ModuleType("equigrad")
    package.__path__ = [str(Path(__file__).parents[1] / "equigrad")]
    sys.modules["equigrad"] = package
