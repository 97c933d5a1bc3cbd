"""The import of DeepSpeed's checkpoints without DeepSpeed: files of twelve ranks, any Python's pickles, wrong files.

Checkpoints that DeepSpeed itself has written go on in python/peer_tests/test_import_deepspeed.py.
"""

from __future__ import annotations

import enum
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import equigrad
import ranks
from equigrad import _import_deepspeed


def of_twelve_ranks(folder: Path) -> Path:
    """What DeepSpeed writes at stage 2, by hand."""
    there = folder / "tag"
    there.mkdir(parents=True)
    (folder / "latest").write_text("tag")
    model = {
        "module": {"a": torch.zeros(3), "b": torch.zeros(2), "buffer": torch.ones(2)},
        "buffer_names": ["buffer"],
        "param_shapes": [{"a": torch.Size([3])}],
        "shared_params": {},
        "lr_scheduler": None,
        "skipped_steps": 0,
        "global_steps": 4,
        "dp_world_size": 12,
        "mp_world_size": 1,
        "ds_config": {"optimizer": {"type": "SGD"}},
    }
    torch.save(model, there / "mp_rank_00_model_states.pt")
    for rank in range(12):
        numbers = [[0.0], [1.0], [2.0]][rank] if rank < 3 else []
        group = {"lr": 0.1, "momentum": 0.9, "dampening": 0, "weight_decay": 0, "nesterov": False, "params": [0]}
        state = {
            "zero_stage": 2,
            "partition_count": 12,
            "single_partition_of_fp32_groups": [torch.tensor(numbers)],
            "base_optimizer_state": {
                "state": {0: {"momentum_buffer": torch.tensor(numbers or [7.0])}},
                "param_groups": [group],
            },
        }
        torch.save({"optimizer_state_dict": state}, there / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return folder


def read(folder: str) -> Any:
    model = nn.Module()
    model.a = nn.Parameter(torch.ones(3))
    model.b = nn.Parameter(torch.ones(2), requires_grad=False)
    model.register_buffer("buffer", torch.zeros(2))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.5}},
    }
    engine = equigrad.initialize(model=model, config=config)[0]
    engine.load_checkpoint(folder)
    state = equigrad.utils.safe_get_full_optimizer_state(model.a, "momentum_buffer")
    return model.a.tolist(), state.tolist(), model.b.tolist(), model.buffer.tolist(), engine.get_lr(), engine.global_steps


def test_files_are_taken_by_the_number_of_their_rank_and_padding_is_left_out(tmp_path: Path) -> None:
    equigrad.import_deepspeed(of_twelve_ranks(tmp_path / "theirs"), "tag", tmp_path / "ours", "mine")
    assert ranks.alone(read, str(tmp_path / "ours")) == ([0, 1, 2], [0, 1, 2], [0, 0], [1, 1], [0.1], 4)


def test_what_deepspeed_resumes_from_is_not_written_over(tmp_path: Path) -> None:
    theirs = of_twelve_ranks(tmp_path / "theirs")
    before = (theirs / "latest").read_bytes()
    with pytest.raises(equigrad.Error, match="expected another folder"):
        equigrad.import_deepspeed(theirs, None, tmp_path / "elsewhere" / ".." / "theirs")
    assert (theirs / "latest").read_bytes() == before
    equigrad.import_deepspeed(theirs, None, tmp_path / "ours")
    with pytest.raises(equigrad.Error, match="this engine's already"):
        equigrad.import_deepspeed(tmp_path / "ours", None, tmp_path / "again")
    with pytest.raises(equigrad.Error, match="the folder above the tag"):
        equigrad.import_deepspeed(theirs / "tag", None, tmp_path / "again")


class ZeroStageEnum(enum.IntEnum):
    """As DeepSpeed's, whose module has another name."""

    disabled, optimizer_states, gradients, weights = range(4)


ZeroStageEnum.__module__ = "deepspeed.runtime.zero.config"
BY_NAME = (getattr, (ZeroStageEnum, "gradients"))  # Python 3.11.2
BY_VALUE = (ZeroStageEnum, (2,))  # Python 3.11.7


@pytest.mark.parametrize("pickled", [BY_NAME, BY_VALUE])
def test_the_enumeration_of_stages_is_read_as_any_python_pickles_it(
    pickled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(ZeroStageEnum.__module__)
    module.ZeroStageEnum = ZeroStageEnum  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, ZeroStageEnum.__module__, module)
    monkeypatch.setattr(ZeroStageEnum, "__reduce_ex__", lambda *_: pickled)
    torch.save({"zero_stage": ZeroStageEnum.gradients}, tmp_path / "file")
    stage = _import_deepspeed._load(tmp_path / "file")["zero_stage"]
    assert type(stage) is int and stage == 2


class Harm:
    def __reduce__(self) -> Any:
        return (os.system, ("touch harmed",))


class Reaching:
    def __reduce__(self) -> Any:
        return (getattr, (int, "__subclasses__"))


def test_wrong_files_are_named(tmp_path: Path) -> None:
    whole = of_twelve_ranks(tmp_path / "theirs")

    def said(change: Any, tag: str | None = "tag") -> str:
        shutil.rmtree(tmp_path / "changed", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "changed")
        change(tmp_path / "changed" / "tag")
        with pytest.raises(equigrad.Error) as raised:
            equigrad.import_deepspeed(tmp_path / "changed", tag, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        return str(raised.value)

    def model(folder: Path, **values: Any) -> None:
        path = folder / "mp_rank_00_model_states.pt"
        torch.save({**torch.load(path, weights_only=True), **values}, path)

    state = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    assert "expected a folder" in said(lambda f: None, "other")
    assert 'expected a file "latest"' in said(lambda f: (f.parent / "latest").unlink(), None)
    assert "none of rank 7" in said(lambda f: (f / state.format(7)).unlink())
    assert "expected files of 12 ranks" in said(lambda f: (f / state.format(11)).unlink())
    assert "expected no model parallelism" in said(
        lambda f: (f / "zero_pp_rank_0_mp_rank_01_optim_states.pt").write_bytes(b"")
    )
    assert "without running code" in said(lambda f: model(f, epoch=Harm()))
    assert "system" in said(lambda f: model(f, epoch=Harm()))
    assert "without running code" in said(lambda f: model(f, epoch=Reaching()))
    assert "without running code" in said(lambda f: (f / state.format(2)).write_bytes(b"no pickle"))
    assert "param_shapes" in said(lambda f: model(f, param_shapes=None))
    assert 'up to "a"' in said(lambda f: model(f, param_shapes=[{"a": torch.Size([4])}]))
    assert "expected None, bool" in said(lambda f: model(f, epoch={1, 2}))
    assert not Path("harmed").exists()
    equigrad.import_deepspeed(whole, None, tmp_path / "out")
    with pytest.raises(equigrad.Error, match="expected no checkpoint"):
        equigrad.import_deepspeed(whole, None, tmp_path / "out")
