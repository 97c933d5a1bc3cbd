"""What a person sees while a run goes on: one line that is written over on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections import Counter
from typing import TextIO

EVERY_S = 30.0
"""Between two lines where there is no terminal."""
_ORDER = ("red", "crashed", "hung", "void", "refused", "absent", "held")


class Progress:
    """Counts of verdicts, and the time that is left by the pace of each engine."""

    def __init__(self, planned: dict[str, int], quiet: bool = False, stream: TextIO | None = None) -> None:
        """planned: cells by engine, in the order of the run."""
        self._planned = planned
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._terminal = self._stream.isatty() and not quiet
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, list[float]] = {engine: [] for engine in planned}
        self._shown = time.monotonic()
        self._line = ""

    def doing(self, engine: str, what: str) -> None:
        """Before a cell, or before what else takes time."""
        done, total = sum(self._counts.values()), sum(self._planned.values())
        counts = ", ".join(f"{self._counts[one]} {one}" for one in _ORDER if self._counts[one])
        left = self.left_s()
        time_left = f", {duration(left)} left" if left is not None else ""
        self._show(f"judge: {done}/{total} cells{': ' + counts if counts else ''}{time_left} - {engine} {what}")

    def done(self, engine: str, verdict: str, seconds: float) -> None:
        """After a cell."""
        self._counts[verdict] += 1
        self._seconds[engine].append(seconds)

    def say(self, text: str) -> None:
        """A line of its own, which stays."""
        if self._quiet:
            return
        self._clear()
        print(text, file=self._stream, flush=True)
        if self._terminal and self._line:
            self._write(self._line)

    def finish(self) -> None:
        """The line is gone."""
        self._clear()
        self._line = ""

    def left_s(self) -> float | None:
        """Of the whole run, by the pace of an engine's cells; None before anything is known of an engine that is to come."""
        total = 0.0
        everything = [one for seconds in self._seconds.values() for one in seconds]
        for engine, planned in self._planned.items():
            known = self._seconds[engine] or everything
            if not known:
                return None
            total += (planned - len(self._seconds[engine])) * _pace(known)
        return total

    def _show(self, line: str) -> None:
        if self._quiet:
            return
        self._line = line
        if self._terminal:
            self._write(line)
        elif time.monotonic() - self._shown > EVERY_S:
            self._shown = time.monotonic()
            print(line, file=self._stream, flush=True)

    def _write(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        shown = line if len(line) <= width else line[: width - 3] + "..."
        self._stream.write(f"\r\033[K{shown}")
        self._stream.flush()

    def _clear(self) -> None:
        if self._terminal:
            self._stream.write("\r\033[K")
            self._stream.flush()


def _pace(seconds: list[float]) -> float:
    """Of a cell, without those that waited for processes to start."""
    middle = statistics.median(seconds)
    usual = [one for one in seconds if one <= 4 * middle]
    return sum(usual) / len(usual)


def duration(seconds: float) -> str:
    """For a person: `8 s`, `4 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
