"""What a model may do beside its arithmetic changes no number; an engine that meddles with it is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_cases import small_case
from torch import nn

from equigrad.judge.on_rank import loop
from equigrad.judge.on_rank.loop import Engine, Named, Stepped
from equigrad.judge.on_rank.protocol import Answer, Case


class _Plain(Engine):
    def gradients(self) -> Named:
        return {name: one.grad.clone() for name, one in self.module.named_parameters() if one.grad is not None}

    def step(self) -> Stepped:
        return Stepped()

    def values(self) -> tuple[Named, Named]:
        return dict(self.module.named_parameters()), {}


class _Adapter(loop.Adapter):
    """One process and no optimizer; with `numbers` it counts modules as DeepSpeed did to 0.16.3."""

    name = "plain"

    def __init__(self, numbers: bool = False) -> None:
        self._numbers = numbers

    def version(self) -> str:
        return "0"

    def start(self) -> None:
        pass

    def make(self, case: Case, module: nn.Module) -> Engine:
        if self._numbers:
            for number, one in enumerate(module.modules()):
                one.id = number  # type: ignore[assignment]
        return _Plain(module)


def _trained(folder: Path, adapter: _Adapter, **options: bool) -> tuple[Answer, Named]:
    return loop.run_case(adapter, small_case(folder, options=dict(options)), 0, str(folder))


@pytest.mark.parametrize("option", ["record", "module_id"])
def test_numbers_stay_as_they_are(tmp_path: Path, option: str) -> None:
    _, bare = _trained(tmp_path / "bare", _Adapter())
    answer, dressed = _trained(tmp_path / "dressed", _Adapter(), **{option: True})
    assert answer.failed is None and len(answer.steps) == 1
    assert bare.keys() == dressed.keys() and all(torch.equal(bare[name], dressed[name]) for name in bare)


def test_an_engine_that_writes_into_modules_is_seen(tmp_path: Path) -> None:
    _, right = _trained(tmp_path / "right", _Adapter(), module_id=True)
    _, wrong = _trained(tmp_path / "wrong", _Adapter(numbers=True), module_id=True)
    differing = [name for name in right if "/gradient/" in name and not torch.equal(right[name], wrong[name])]
    assert differing
