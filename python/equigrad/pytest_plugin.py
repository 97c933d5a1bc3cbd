"""pytest: the fixture `equigrad_check`, which is equigrad.check as a test.

    def test_gradients(equigrad_check):
        equigrad_check(make_model, loss_fn, batches, ranks=[2, 3])

A report that did not hold fails the test with its text; pages and failures lie in the test's folder (tmp_path), which the
failure names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import equigrad


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
