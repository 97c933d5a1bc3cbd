"""pytest: the fixtures `equigrad_check`, which is equigrad.check as a test, and `equigrad_judge`, which is `equigrad judge`.

    def test_gradients(equigrad_check):
        equigrad_check(make_model, loss_fn, batches, ranks=[2, 3])

    def test_my_engine(equigrad_judge):
        equigrad_judge("python my_adapter.py", quick=True, baseline="judge-baseline.json")

A report that did not hold fails the test with its text; pages and failures lie in the test's folder (tmp_path), which the
failure names.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import equigrad
    from equigrad.judge.board import Board


@pytest.fixture
def equigrad_check(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., equigrad.CheckReport]:
    """equigrad.check, which fails the test where a gradient differs. Returns the CheckReport."""
    import equigrad  # here: other tests of the session need no torch

    def run(*functions: Any, **options: Any) -> equigrad.CheckReport:
        __tracebackhide__ = True
        options.setdefault("report", tmp_path / "equigrad-report")
        report = equigrad.check(*functions, **options)
        if not report.held:
            pytest.fail(f"{report.text}\n# the report: {options['report']}/index.html", pytrace=False)
        for note in report.notes:
            request.node.add_report_section("call", "equigrad", note)
        return report

    return run


@pytest.fixture
def equigrad_judge(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Board]:
    """`equigrad judge ENGINE... --OPTION VALUE...`, which fails the test where its exit code is not 0. Returns the Board.

    Options are keywords: quick=True is --quick, only=["zero2/clip", "!gpt"] is given twice, stages=[1, 2] is --stages 1,2.
    """
    from equigrad.judge import board, command

    def run(*engines: str, **options: Any) -> Board:
        __tracebackhide__ = True
        options.setdefault("report", tmp_path / "judge-report")
        words = [word for name, value in options.items() for word in _option(name, value)]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = command.main([*engines, *words])
        if code > 128:
            raise KeyboardInterrupt
        if code:
            pytest.fail(said.getvalue(), pytrace=False)
        request.node.add_report_section("call", "equigrad judge", said.getvalue())
        return board.read(Path(options["report"], "board.json"))

    return run


def _option(name: str, value: object) -> list[str]:
    """Words of a command line. Several patterns are an option each; other lists are one value with commas."""
    word = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [word] if value else []
    if isinstance(value, Iterable) and not isinstance(value, str):
        values = [str(one) for one in value]
        return [part for one in values for part in (word, one)] if name == "only" else [word, ",".join(values)]
    return [word, str(value)]
