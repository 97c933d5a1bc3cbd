"""`python .../judge/on_rank ENGINE` serves cases with that engine's adapter; `python .../judge/on_rank --reference` the reference."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def _serve() -> Any:
    """Module `serve` of this folder as package `on_rank`. Nothing of the judge's stays on sys.path: it would hide a user's names."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != here]
    sys.path.insert(0, os.path.dirname(here))
    try:
        return importlib.import_module("on_rank.serve")
    finally:
        sys.path.pop(0)


if __name__ == "__main__":
    sys.exit(_serve().main(sys.argv[1:]))
