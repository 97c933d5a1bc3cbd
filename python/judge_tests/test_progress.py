"""What a person sees while a run goes on."""

from __future__ import annotations

import io

import pytest

from equigrad.judge import progress
from equigrad.judge.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: Terminal) -> str:
    """What is on the terminal's last line."""
    return stream.getvalue().rpartition("\r\033[K")[2]


def test_a_terminal_has_one_line_that_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    line = Progress({"ddp": 3}, stream=stream)
    line.doing("ddp", "zero0/fp32")
    line.done("ddp", "held", 2.0)
    line.doing("ddp", "zero0/bf16")
    assert shown(stream) == "judge: 1/3 cells: 1 held, 4 s left - ddp zero0/bf16"
    line.say("red ddp: twice")
    assert "\r\033[Kred ddp: twice\n" in stream.getvalue()
    assert shown(stream) == "judge: 1/3 cells: 1 held, 4 s left - ddp zero0/bf16"
    line.doing("ddp", "x" * 200)
    assert len(shown(stream)) == 59 and shown(stream).endswith("...")
    line.finish()
    assert shown(stream) == ""


def test_elsewhere_a_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    line = Progress({"ddp": 3}, stream=stream)
    line.doing("ddp", "a")
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    line.doing("ddp", "b")
    assert stream.getvalue() == "judge: 0/3 cells - ddp b\n"


def test_quiet_is_quiet() -> None:
    stream = Terminal()
    line = Progress({"ddp": 1}, quiet=True, stream=stream)
    line.doing("ddp", "a")
    line.say("b")
    line.finish()
    assert stream.getvalue() == ""


def test_the_time_left_is_that_of_usual_cells_of_each_engine() -> None:
    line = Progress({"ddp": 10, "deepspeed": 5}, stream=io.StringIO())
    assert line.left_s() is None
    for seconds in (60.0, 1.0, 1.0, 1.0):  # the first waits for processes
        line.done("ddp", "held", seconds)
    assert line.left_s() == pytest.approx(6 + 5)
    for seconds in (2.0, 2.0, 4.0):
        line.done("deepspeed", "red", seconds)
    assert line.left_s() == pytest.approx(6 + 2 * 8 / 3)


@pytest.mark.parametrize(("seconds", "text"), [(8.4, "8 s"), (99, "99 s"), (100, "2 min"), (7500, "2 h 5 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
