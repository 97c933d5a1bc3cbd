"""DeepSpeed's names, one by one: what each gives, and what it says of wrong input."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import equigrad
import equigrad.deepspeed
import ranks
import twin


def configuration(stage: int = 0, **more) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
        **more,
    }


def small() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(17 * rank + step))


def make(stage: int = 0, model: torch.nn.Module | None = None, **more) -> equigrad.Engine:
    return equigrad.initialize(model=model or small(), config=configuration(stage, **more))[0]


def one_step(engine: equigrad.Engine, step: int = 0) -> float:
    loss = engine(batch(engine.global_rank, step)).square().mean()
    engine.backward(loss)
    engine.step()
    return loss.item()


# ---- What initialize takes and gives ---------------------------------------------------------------------------------


def counters() -> dict:
    engine, optimizer, loader, scheduler = equigrad.initialize(
        model=small(), config=configuration(gradient_accumulation_steps=2, gradient_clipping=1.0)
    )
    seen = [engine.is_gradient_accumulation_boundary()]
    losses = [one_step(engine, step) for step in range(4)]
    seen.append(engine.is_gradient_accumulation_boundary())
    return {
        "boundary": seen,
        "losses": losses,
        "steps": (engine.global_steps, engine.micro_steps, engine.skipped_steps, engine.global_samples),
        "sizes": (engine.train_batch_size(), engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()),
        "lr": engine.get_lr(),
        "group": dict(optimizer.param_groups[0])["lr"],
        "applied": engine.was_step_applied(),
        "norm": engine.get_global_grad_norm(),
        "none": (loader, scheduler),
        "scale": optimizer.loss_scale,
        "stage": engine.zero_optimization_stage(),
        "clip": engine.gradient_clipping(),
    }


def test_counters_and_getters() -> None:
    for seen in ranks.run(2, counters):
        assert seen["boundary"] == [False, False]
        assert seen["steps"] == (2, 4, 0, 16)
        assert seen["sizes"] == (8, 2, 2)
        assert seen["lr"] == [0.01] and seen["group"] == 0.01
        assert seen["applied"] is True and seen["norm"] > 0
        assert seen["none"] == (None, None)
        assert (seen["scale"], seen["stage"], seen["clip"]) == (1.0, 0, 1.0)


def forms_of_a_configuration(folder: str) -> list:
    path = f"{folder}/config.json"
    with open(path, "w") as file:
        json.dump(configuration(), file)
    given = [configuration(), json.dumps(configuration()), path]
    return [equigrad.initialize(model=small(), config=one)[0].train_batch_size() for one in given]


def test_a_configuration_is_a_dict_a_text_or_a_path(tmp_path) -> None:
    assert ranks.alone(forms_of_a_configuration, str(tmp_path)) == [2, 2, 2]


def refusals() -> list:
    model = small()
    wrong = [
        lambda: equigrad.initialize(config=configuration()),
        lambda: equigrad.initialize(model=model),
        lambda: equigrad.initialize(model=model, config={"train_batch_size": 2, "zero_optimisation": {"stage": 3}}),
        lambda: equigrad.initialize(model=model, config={"train_batch_size": {1, 2}}),
        lambda: equigrad.initialize(model=model, model_parameters=[], config=configuration()),
        lambda: equigrad.initialize(model=model, model_parameters=[torch.zeros(3)], config=configuration()),
        lambda: equigrad.initialize(
            model=model, model_parameters=[{"params": model.parameters(), "betas": (0, 0)}], config=configuration()
        ),
    ]
    told = []
    for call in wrong:
        try:
            call()
            told.append("was taken")
        except equigrad.Error as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


def test_wrong_input_is_refused_with_what_was_expected() -> None:
    told = ranks.alone(refusals)
    expected = ["model", "one configuration", "zero_optimization", "no JSON", "none", "none", "betas"]
    for text, word in zip(told, expected, strict=True):
        assert word in text and "expected" in text, text
    assert told[2].startswith("ConfigError")


def groups() -> tuple:
    model = small()
    engine, optimizer, _, _ = equigrad.initialize(
        model=model,
        model_parameters=[
            {"params": model[0].parameters(), "lr": 0.5},
            {"params": list(model[2].named_parameters()), "weight_decay": 0.0},
        ],
        config=configuration(1),
    )
    one_step(engine)
    return engine.get_lr(), [len(group["params"]) for group in optimizer.param_groups]


def test_parameter_groups_have_rates_of_their_own() -> None:
    assert ranks.run(2, groups) == [([0.5, 0.01], [2, 2])] * 2


# ---- Parameters by name ----------------------------------------------------------------------------------------------


def set_and_get(stage: int) -> dict:
    engine = make(stage)
    weight = engine.module[0].weight
    loss = engine(batch(engine.global_rank)).square().mean()
    engine.backward(loss)
    gradient = equigrad.utils.safe_get_full_grad(weight)
    equigrad.utils.safe_set_full_grad(weight, gradient * 2)
    doubled = equigrad.utils.safe_get_full_grad(weight)
    engine.step()
    master = equigrad.utils.safe_get_full_fp32_param(weight)
    state = equigrad.utils.safe_get_full_optimizer_state(weight, "exp_avg")
    local = equigrad.utils.safe_get_local_fp32_param(weight)
    equigrad.utils.safe_set_full_fp32_param(weight, torch.full_like(master, 0.25))
    return {
        "doubled": torch.equal(doubled, gradient * 2),
        "moment": torch.equal(state, gradient * 2 * (1 - 0.9)),
        "local": local.numel(),
        "set": engine.full_parameter("0.weight"),
        "unheld": equigrad.utils.safe_get_full_grad(torch.nn.Parameter(torch.zeros(2))),
    }


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_masters_and_states_are_read_and_written(stage: int) -> None:
    for seen in ranks.run(2, set_and_get, stage):
        assert seen["doubled"] and seen["unheld"] is None
        assert seen["local"] == (24 if stage == 0 else 12)
        assert torch.equal(seen["set"], torch.full((6, 4), 0.25))


def gathered(stage: int) -> list:
    engine = make(stage)
    parameters = list(engine.module.parameters())
    before = []
    with equigrad.zero.GatheredParameters(parameters, modifier_rank=0):
        before = [p.detach().clone() for p in parameters]
        if engine.global_rank == 0:
            with torch.no_grad():
                parameters[0].fill_(0.5)
    try:
        with equigrad.zero.GatheredParameters(parameters, modifier_rank=0):
            with torch.no_grad():
                parameters[0].fill_(7.0)
            raise KeyError("mine")
    except KeyError:
        pass
    return [before, engine.full_parameter("0.weight")]


@pytest.mark.parametrize("stage", [0, 3])
def test_gathered_parameters_are_whole_and_take_what_one_rank_wrote(stage: int) -> None:
    for before, after in ranks.run(2, gathered, stage):
        for got, want in zip(before, small().parameters(), strict=True):
            twin.assert_same_bits(got, want.detach(), "gathered")
        assert torch.equal(after, torch.full((6, 4), 0.5))


# ---- zero.Init -------------------------------------------------------------------------------------------------------


def made_partitioned() -> tuple:
    with equigrad.zero.Init(config_dict_or_path=configuration(3)):
        model = small()
    held = sum(equigrad.zero.is_here(p) for p in model.parameters())
    engine = make(3, model)
    whole = [engine.full_parameter(name) for name, _ in small().named_parameters()]
    return held, whole, one_step(engine)


def test_init_partitions_a_model_as_it_is_made() -> None:
    (held, whole, _), other = ranks.run(2, made_partitioned)
    assert held == 0
    for got, want in zip(whole, small().parameters(), strict=True):
        twin.assert_same_bits(got, want.detach(), "a parameter made within Init")
    assert other[0] == 0


# ---- Buffers, autocast, loaders, groups of torch.distributed ---------------------------------------------------------


def buffers() -> tuple:
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else int(__import__("os").environ["RANK"]))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model[1].running_mean.normal_()
    model.register_buffer("flags", torch.rand(5) > 0.5)
    make(2, model)
    return model[1].running_mean, model.flags


def test_rank_0_s_buffers_are_every_rank_s() -> None:
    first, second = ranks.run(2, buffers)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def autocast_types() -> list:
    engine = make(torch_autocast={"enabled": True, "dtype": "bfloat16"})
    seen = [engine.module(batch(0)).dtype, engine(batch(0)).dtype]
    try:
        engine.module(torch.zeros(1, 1))
    except RuntimeError:
        pass
    seen.append(torch.is_autocast_enabled("cpu"))
    engine.backward(engine.module(batch(0)).float().square().mean())
    engine.step()
    return [str(one) for one in seen]


def test_autocast_holds_however_the_model_is_called() -> None:
    assert ranks.alone(autocast_types) == ["torch.bfloat16", "torch.bfloat16", "False"]


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def loaded(workers: int) -> list:
    engine, _, loader, _ = equigrad.initialize(model=small(), training_data=Numbers(), config=configuration(3))
    if workers:
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, sampler=loader.sampler, num_workers=workers)
    seen = []
    for one in loader:
        engine.backward(engine(one).square().mean())
        engine.step()
        seen.append(one[:, 0].tolist())
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_training_data_is_split_over_the_ranks(workers: int) -> None:
    first, second = ranks.run(2, loaded, workers)
    assert [len(one) for one in first] == [2, 2]
    assert sorted(value for one in first + second for value in one) == [float(i) for i in range(8)]


def sizes_of_batches(drop: bool) -> list:
    settings = configuration(0, train_micro_batch_size_per_gpu=3, dataloader_drop_last=drop)
    engine, _, loader, _ = equigrad.initialize(model=small(), training_data=Numbers(), config=settings)
    assert engine.dataloader_drop_last() == drop
    return [len(one) for one in loader]


def test_a_last_batch_that_is_too_small_is_left_out_where_the_configuration_says_so() -> None:
    assert ranks.run(1, sizes_of_batches, False) == [[3, 3, 2]]
    assert ranks.run(1, sizes_of_batches, True) == [[3, 3]]


def in_a_group(file: str) -> tuple:
    import os

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    dist.init_process_group("gloo", store=dist.FileStore(file, world), rank=rank, world_size=world)
    engine = make(3)
    one_step(engine)
    dist.barrier()
    return engine.world_size, engine.global_rank


def test_an_existing_group_of_torch_distributed_gives_the_ranks(tmp_path) -> None:
    assert ranks.run(2, in_a_group, str(tmp_path / "store")) == [(2, 0), (2, 1)]


# ---- What an engine is not -------------------------------------------------------------------------------------------


def no_copies() -> list:
    engine = make(1)
    told = []
    for call in (lambda: copy.deepcopy(engine), lambda: pickle.dumps(engine), lambda: engine.optimizer.step()):
        try:
            call()
            told.append("was taken")
        except equigrad.Error as error:
            told.append(str(error))
    one_step(engine)
    engine.destroy()
    try:
        engine.step()
    except equigrad.Error as error:
        told.append(str(error))
    again = make(1, engine.module)
    one_step(again)
    return told


def test_copies_are_refused_and_the_end_is_told() -> None:
    told = ranks.alone(no_copies)
    for text, word in zip(told, ["deepcopy", "pickle", "engine.step", "destroyed"], strict=True):
        assert word in text and "expected" in text, text


def attributes() -> list:
    engine = make()
    engine.module.mine = 41
    engine.train(False)
    found = [engine.mine, engine.module.training]
    try:
        _ = engine.yours
    except AttributeError as error:
        found.append("yours" in str(error))
    return found


def test_attributes_are_forwarded_to_the_model() -> None:
    assert ranks.alone(attributes) == [41, False, True]


def drop_in() -> tuple:
    deepspeed = equigrad.deepspeed
    model = small()
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=configuration(2, bf16={"enabled": True}), mpu=None
    )
    dtype = model[0].weight.dtype
    master = deepspeed.utils.safe_get_full_fp32_param(model[0].weight)
    engine.backward(engine(batch(0).bfloat16()).float().square().mean())
    engine.step()
    return (
        str(dtype),
        torch.equal(master, small()[0].weight.detach().bfloat16().float()),
        isinstance(engine, deepspeed.DeepSpeedEngine),
    )


def test_the_drop_in_takes_masters_from_rounded_weights() -> None:
    assert ranks.run(2, drop_in) == [("torch.bfloat16", True, True)] * 2


# ---- Another torch ---------------------------------------------------------------------------------------------------


def test_another_torch_than_the_one_of_the_build_is_told_by_name() -> None:
    program = "import torch; torch.__version__ = '2.10.3+cpu'; import equigrad"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    want = (
        rf"ImportError: \[equigrad\] expected torch {re.escape(torch.__version__.split('+')[0])}, .* got torch 2\.10\.3\+cpu"
    )
    assert re.search(want, done.stderr), done.stderr
