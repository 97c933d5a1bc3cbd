"""The drop-in's checkpoints, where DeepSpeed's users look for them: names, errors of its kinds, keys, the step to a universal one."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import equigrad
import ranks
from equigrad import deepspeed
from equigrad.deepspeed.checkpoint import ds_to_universal

KEYS = {"tag_validation": "WARN", "load_universal": True}


def make(stage: int = 2, **more: Any) -> deepspeed.DeepSpeedEngine:
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    zero = {
        "stage": stage,
        "stage3_param_persistence_threshold": 0,
        "elastic_checkpoint": True,
        "pipeline_loading_checkpoint": True,
    }
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "checkpoint": KEYS,
    }
    return deepspeed.initialize(model=model, config=config, **more)[0]


def train(engine: deepspeed.DeepSpeedEngine, first: int, last: int) -> None:
    """The same batch on every rank, so that the number of ranks changes nothing."""
    for step in range(first, last):
        batch = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
        engine.backward(engine(batch).square().mean())
        engine.step()


def weights(engine: deepspeed.DeepSpeedEngine) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in engine.module_state_dict().items()}


def raised(call: Any) -> BaseException | None:
    try:
        call()
    except equigrad.Error as error:
        return error
    return None


# ---- Errors ------------------------------------------------------------------------------------------------------------


def refusals(folder: str) -> list[tuple[list[str], str]]:
    engine = make()
    rank = engine.global_rank
    calls = [
        lambda: engine.save_checkpoint(""),
        lambda: engine.save_checkpoint(None),
        lambda: engine.load_checkpoint(None),
        lambda: engine.save_checkpoint(folder, tag=f"tag-{rank}"),
        lambda: engine.load_checkpoint(folder, tag="nowhere"),
    ]
    errors = [raised(call) for call in calls]
    train(engine, 0, 2)  # the engine goes on
    return [([kind.__name__ for kind in type(error).__mro__], str(error)) for error in errors]


def test_a_refused_checkpoint_is_of_the_kinds_that_deepspeed_raises(tmp_path: Path) -> None:
    for errors in ranks.run(2, refusals, str(tmp_path)):
        for kinds, text in errors:
            assert {"ValueError", "AssertionError", "Error", "CheckpointError"} <= set(kinds), text
            assert "expected " in text and ", got " in text, text
        assert "got ''" in errors[0][1] and "got None" in errors[1][1]
        assert "tag-0" in errors[3][1] or "tag-1" in errors[3][1], errors[3][1]
    assert not list(tmp_path.iterdir())


def test_a_tag_validation_that_is_none_is_an_error_of_deepspeeds_name() -> None:
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "checkpoint": {"tag_validation": "foo"},
    }
    with pytest.raises(
        deepspeed.DeepSpeedConfigError, match='tag_validation: expected "Ignore", "Warn" or "Fail", got "foo"'
    ):
        deepspeed.initialize(model=torch.nn.Linear(2, 2), config=config)


# ---- Names -------------------------------------------------------------------------------------------------------------


def named() -> dict[str, Any]:
    configured = make()
    adam = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())
    model = torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(model.parameters())
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
    own = deepspeed.initialize(model=model, optimizer=adam, config=config)[0]
    return {
        "sparse": configured.sparse_tensor_module_names,
        "configured": getattr(configured.optimizer, "optimizer", "none"),
        "of the caller": own.optimizer.optimizer is own.optimizer.client,
        "elastic": configured.zero_elastic_checkpoint(),
        "universal": configured.load_universal_checkpoint(),
    }


def test_names_of_deepspeeds_engine_are_there() -> None:
    (seen,) = ranks.run(1, named)
    assert seen == {"sparse": set(), "configured": "none", "of the caller": True, "elastic": True, "universal": True}


def test_what_programs_import_beside_the_engine_is_put_in_its_place() -> None:
    """In an empty package of DeepSpeed's modules."""
    names = [
        "",
        ".runtime.zero.partition_parameters",
        ".runtime.zero",
        ".runtime.base_optimizer",
        ".runtime.engine",
        ".runtime.config",
        ".runtime.torch_autocast",
        ".runtime",
        ".module_inject.layers",
        ".module_inject",
        ".utils.groups",
        ".utils.tensor_fragment",
        ".utils.z3_leaf_module",
        ".utils.zero_to_fp32",
        ".utils",
        ".checkpoint.ds_to_universal",
        ".checkpoint",
    ]
    modules = {f"stands_for_deepspeed{name}": types.ModuleType(f"stands_for_deepspeed{name}") for name in names}
    sys.modules.update(modules)
    try:
        deepspeed.take_over(modules["stands_for_deepspeed"])
    finally:
        for name in modules:
            del sys.modules[name]
    script = modules["stands_for_deepspeed.utils.zero_to_fp32"]
    for name in (
        "get_fp32_state_dict_from_zero_checkpoint",
        "convert_zero_checkpoint_to_fp32_state_dict",
        "load_state_dict_from_zero_checkpoint",
    ):
        assert getattr(script, name) is getattr(equigrad.zero_to_fp32, name)
    assert modules["stands_for_deepspeed.checkpoint.ds_to_universal"].main is ds_to_universal.main
    for module in ("", ".runtime.config"):
        assert modules[f"stands_for_deepspeed{module}"].DeepSpeedConfigError is deepspeed.ConfigError


def with_experts(group: str) -> str:
    """As deepspeed.moe marks them."""
    model = torch.nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.allreduce, parameter.group_name = False, group
    config = {"train_batch_size": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    error = raised(lambda: deepspeed.initialize(model=model, config=config))
    assert error is None or isinstance(error, AssertionError)
    return str(error)


def test_a_rank_with_experts_of_its_own_is_refused() -> None:
    (told,) = ranks.run(1, with_experts, "ep_size_2")
    assert 'got "weight" of group "ep_size_2"' in told and "ep_size=1" in told
    assert ranks.run(1, with_experts, "ep_size_1") == ["None"]  # every rank has all of them


# ---- The step to a universal checkpoint ----------------------------------------------------------------------------------


def saved(folder: str, steps: int) -> dict[str, torch.Tensor]:
    engine = make(1)
    train(engine, 0, 3)
    engine.save_checkpoint(folder, tag="three")
    train(engine, 3, steps)
    return weights(engine)


def gone_on(folder: str, stage: int, steps: int) -> dict[str, torch.Tensor]:
    engine = make(stage)
    path, _ = engine.load_checkpoint(folder, tag="three_universal")
    assert path == f"{folder}/three_universal"
    train(engine, 3, steps)
    return weights(engine)


def test_a_converted_tag_is_loaded_by_another_number_of_ranks(tmp_path: Path) -> None:
    want = ranks.run(2, saved, str(tmp_path), 5)[0]
    for given in ("three", "nothing"):
        args = SimpleNamespace(input_folder=tmp_path / given, output_folder=tmp_path / f"{given}_universal")
        if given == "three":
            ds_to_universal.main(args)
        with pytest.raises(equigrad.Error, match="ds_to_universal"):  # it is there already; or there is nothing to convert
            ds_to_universal.main(args)
    assert sorted(one.name for one in tmp_path.iterdir() if one.is_dir()) == ["three", "three_universal"]
    for world, stage in ((1, 0), (4, 3)):
        for have in ranks.run(world, gone_on, str(tmp_path), stage, 5):
            for name, value in want.items():
                assert torch.equal(have[name], value), f"{name} on {world} ranks at stage {stage}"


def test_what_is_no_whole_checkpoint_is_not_converted(tmp_path: Path) -> None:
    ranks.run(1, saved, str(tmp_path), 3)
    (file,) = (tmp_path / "three").glob("rank-*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    args = SimpleNamespace(input_folder=tmp_path / "three", output_folder=tmp_path / "other")
    with pytest.raises(equigrad.Error, match=r"\[ds_to_universal\] expected .* bytes in .*, got "):
        ds_to_universal.main(args)
    assert not (tmp_path / "other").exists()
