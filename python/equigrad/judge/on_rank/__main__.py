"""`python .../judge/on_rank ENGINE` serves cases with that engine's adapter; `python .../judge/on_rank --reference` the reference."""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _imported() -> None:
    """Makes this folder the package `on_rank`, and leaves nothing of the judge's on sys.path: its names would hide a user's."""
    sys.path[:] = [one for one in sys.path if os.path.abspath(one or ".") != _HERE or one == ""]
    sys.path.insert(0, os.path.dirname(_HERE))
    import on_rank.serve  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

    sys.path.pop(0)


if __name__ == "__main__":
    _imported()
    from on_rank.serve import main  # type: ignore[import-not-found,unused-ignore]

    sys.exit(main(sys.argv[1:]))
