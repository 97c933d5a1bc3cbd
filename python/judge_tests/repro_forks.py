"""Scripts run quickly: torch and the engine are imported once, and every rank of every script is a fork."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from equigrad.judge.on_rank import scripts

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Ran:
    """How a script ended: None is not at all."""

    code: int | None
    said: str

    @property
    def green(self) -> bool:
        """It compared, and all was equal."""
        return self.code == 0 and ": expected " in self.said

    @property
    def red(self) -> bool:
        """It compared, and something was not equal."""
        return self.code == 1 and ": expected " in self.said and "Traceback" not in self.said


def run(text: str, ranks: int, timeout_s: float = TIMEOUT_S) -> Ran:
    """The script on that many ranks, each a fork of this process."""
    with tempfile.TemporaryDirectory(prefix="repro-") as folder:
        path = Path(folder) / "repro.py"
        path.write_text(text, encoding="utf-8")
        code = scripts.run(path, ranks, timeout_s)
        return Ran(code, scripts.said_by(path))
