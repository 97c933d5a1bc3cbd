"""Checkpoints from Python: a run that was saved and loaded goes on with the bits of one that never stopped."""

from __future__ import annotations

import collections
import json
import math
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import equigrad
import equigrad.deepspeed
import models
import optimizers
import ranks
import twin
from equigrad import _values

STEPS, SAVED, PASSES = 5, 3, 2
PRECISIONS = ("fp32", "bf16", "fp16")
KEY = "stage3_gather_16bit_weights_on_model_save"


class Normed(models.Mixed):
    """With buffers that differ between ranks, one that is not kept, dropout, and a state that is no tensor."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        for parameter in self.parameters():
            parameter.data.add_(torch.randn(parameter.shape) * (0.0 if seed == 3 else 0.3))
        self.batch_norm = models.BatchNorm(8)
        self.dropout = nn.Dropout(0.25)
        self.seen = Seen()
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def forward(self, tokens: torch.Tensor, branch: bool = False) -> torch.Tensor:
        hidden = self.embedding(tokens) * self.scale
        hidden = self.batch_norm(self.seen(hidden).flatten(0, 1)).view(hidden.shape)
        hidden = hidden + self.second(nn.functional.gelu(self.norm(self.first(self.dropout(hidden)))))
        if branch:
            hidden = hidden + torch.tanh(self.branch(hidden))
        return self.head(hidden)


class Seen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return hidden * (1 + 0.01 * self.passes)

    def get_extra_state(self) -> dict[str, int]:
        return {"passes": self.passes}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]


def configuration(stage: int, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    types: dict[str, Any] = {} if precision == "fp32" else {precision: {"enabled": True}}
    if precision == "fp16":
        types["fp16"] |= {"initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 2}
    return {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": PASSES,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 150, KEY: True},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 10}},
        **types,
        **more,
    }


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def make(stage: int, precision: str = "fp32", seed: int = 3, **more: Any) -> equigrad.Engine:
    return equigrad.initialize(model=Normed(seed), config=configuration(stage, precision, **more))[0]


def train(engine: equigrad.Engine, first: int, steps: int) -> list[dict[str, torch.Tensor]]:
    """The clipped gradients of this rank's shards, by step. One step overflows in fp16."""
    seen: list[dict[str, torch.Tensor]] = []
    engine._core.on_step(
        lambda shards: seen.append({one.name: one.gradient.clone() for one in shards if one.gradient is not None})
    )
    for step in range(first, first + steps):
        for micro_batch in range(PASSES):
            loss = models.mixed_loss(engine, step, engine.global_rank, micro_batch)
            is_loud = step == 1 and engine.optimizer.needs_scaler()
            engine.backward(loss * 1e30 if is_loud else loss)
            engine.step()
    engine._core.on_step(None)
    return seen


def state_of(engine: equigrad.Engine) -> dict[str, Any]:
    """Everything that a user can see of it, on every rank."""
    held = dict(engine.module.named_parameters())
    trained = [name for name, p in held.items() if p.requires_grad]
    safe = equigrad.utils
    return {
        "parameters": {name: engine.full_parameter(name) for name in held},
        "masters": {name: safe.safe_get_full_fp32_param(held[name]) for name in trained},
        "buffers": {name: one.clone() for name, one in engine.module.named_buffers() if name != "passing"},
        "counters": (engine.global_steps, engine.micro_steps, engine.skipped_steps, engine.was_step_applied()),
        "rates": engine.get_lr(),
        "scale": engine.optimizer.loss_scale,
        "norm": engine.get_global_grad_norm(),
        "random": torch.get_rng_state(),
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in engine.optimizer.param_groups],
    }


def assert_same(got: Any, want: Any, what: str) -> None:
    if torch.is_tensor(want):
        twin.assert_same_bits(got, want, what)
    elif isinstance(want, dict):
        assert got.keys() == want.keys(), what
        for key in want:
            assert_same(got[key], want[key], f"{what}, {key}")
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), what
        for at, pair in enumerate(zip(got, want, strict=True)):
            assert_same(*pair, f"{what}[{at}]")
    else:
        assert repr(got) == repr(want), f"{what}: got {got}, want {want}"


# ---- It goes on ------------------------------------------------------------------------------------------------------


def never_stopped(folder: str) -> dict[tuple[int, str], Any]:
    """The history of runs without a save; and beside each one that saves, and goes on."""
    seen = {}
    for stage in range(4):
        for precision in PRECISIONS:
            of_both = []
            for saves in (False, True):
                engine = make(stage, precision)
                torch.manual_seed(100 + engine.global_rank)
                before = train(engine, 0, SAVED)
                if saves:
                    client_state = {"stage": stage, "rank": engine.global_rank}
                    assert engine.save_checkpoint(f"{folder}/{stage}-{precision}", client_state=client_state) is True
                of_both.append((before + train(engine, SAVED, STEPS - SAVED), state_of(engine)))
                engine.destroy()
            assert_same(of_both[1], of_both[0], f"a save changes nothing, stage {stage}, {precision}")
            seen[stage, precision] = of_both[0]
    return seen


def gone_on(folder: str) -> dict[tuple[int, str], Any]:
    seen = {}
    for stage in range(4):
        for precision in PRECISIONS:
            engine = make(stage, precision, seed=8)
            path, client_state = engine.load_checkpoint(f"{folder}/{stage}-{precision}")
            assert path == f"{folder}/{stage}-{precision}/global_step{SAVED}"
            assert client_state == {"stage": stage, "rank": 0}
            after = train(engine, SAVED, STEPS - SAVED)
            seen[stage, precision] = (after, state_of(engine))
            engine.destroy()
    return seen


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_run_that_was_interrupted_has_the_bits_of_one_that_was_not(world: int, tmp_path: Path) -> None:
    want = ranks.run(world, never_stopped, str(tmp_path))
    got = ranks.run(world, gone_on, str(tmp_path))
    for rank in range(world):
        for case, (history, end) in want[rank].items():
            after, state = got[rank][case]
            assert_same(after, history[-len(after) :], f"rank {rank}, {case}, gradients")
            assert_same(state, end, f"rank {rank}, {case}")
            assert case[1] != "fp16" or end["counters"][2] == 1, "one step was skipped"
    if world > 1:
        first, second = (want[rank][0, "fp32"][1]["buffers"] for rank in (0, 1))
        assert not torch.equal(first["batch_norm.running_mean"], second["batch_norm.running_mean"])


def asynchronously(folder: str) -> Any:
    engine = make(2, "bf16")
    torch.manual_seed(100 + engine.global_rank)
    train(engine, 0, SAVED)
    want = state_of(engine)
    engine.save_checkpoint(folder, "first", asynchronous=True)
    after = train(engine, SAVED, 1)
    engine.finish_checkpoint()
    is_there = os.path.exists(f"{folder}/first/manifest.json")
    other = make(2, "bf16", seed=8)
    other.load_checkpoint(folder)
    assert_same(state_of(other), want, "loaded")
    assert_same(train(other, SAVED, 1), after, "gradients")
    other.finish_checkpoint()
    return is_there


def test_training_goes_on_while_a_copy_is_written(tmp_path: Path) -> None:
    assert ranks.run(2, asynchronously, str(tmp_path)) == [True, True]


def saved_elsewhere(folder: str) -> Any:
    engine = make(2)
    torch.manual_seed(100 + engine.global_rank)
    train(engine, 0, SAVED)
    engine.save_checkpoint(folder, "there")
    held = dict(engine.module.named_parameters())
    states = {
        n: equigrad.utils.safe_get_full_optimizer_state(held[n], "exp_avg") for n in ("norm.weight", "embedding.weight")
    }
    return state_of(engine), states


def loaded_elsewhere(folder: str, stage: int) -> Any:
    engine = make(stage, seed=8)
    assert engine.load_checkpoint(Path(folder))[0] == f"{folder}/there"
    held = dict(engine.module.named_parameters())
    states = {
        n: equigrad.utils.safe_get_full_optimizer_state(held[n], "exp_avg") for n in ("norm.weight", "embedding.weight")
    }
    return state_of(engine), states


def test_other_ranks_and_stages_load_it(tmp_path: Path) -> None:
    want, want_states = ranks.run(2, saved_elsewhere, str(tmp_path))[0]
    for world, stage in ((1, 0), (3, 3), (1, 3), (3, 1)):
        for state, states in ranks.run(world, loaded_elsewhere, str(tmp_path), stage):
            what = f"{world} ranks at stage {stage}"
            for key in ("parameters", "masters", "counters", "rates", "groups"):
                assert_same(state[key], want[key], f"{what}, {key}")
            assert_same(state["buffers"], want["buffers"], f"{what}, rank 0's buffers")
            assert_same(states, want_states, f"{what}, states")


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python" / "resume.py"


def start(folder: Path, port: int) -> list[subprocess.Popen[str]]:
    """The example's two ranks."""
    launch = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(EXAMPLE), str(folder), "--steps", "24", "--save-every", "4"]
    return [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if rank == 0 else subprocess.DEVNULL,
            text=True,
            env={**os.environ, **launch, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]


def killed(folder: Path, at: str) -> str:
    """What rank 0 says until it says `at`; then both are killed, wherever they are."""
    said = ""
    with ranks.reserved_port() as port:
        processes = start(folder, port)
        assert processes[0].stdout is not None
        for line in processes[0].stdout:
            said += line
            if at and line.startswith(at):
                break
        for process in processes:
            if at:
                process.kill()
            process.wait(timeout=ranks.TIMEOUT_S)
    return said


def test_a_program_that_is_killed_goes_on(tmp_path: Path) -> None:
    whole = killed(tmp_path / "whole", "")
    assert "step 0\n" in whole and "saved step 24" in whole, whole
    first = killed(tmp_path / "killed", "saved step 8")
    second = killed(tmp_path / "killed", "saved step 16")
    third = killed(tmp_path / "killed", "")
    assert "from the beginning" in first and re.search(r"step (8|12)\n", second) and "saved step 4" not in second, second
    assert re.search(r"step (16|20)\n", third), third
    assert third.splitlines()[-1] == whole.splitlines()[-1], (third, whole)
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


# ---- Optimizers and schedulers of the caller's -----------------------------------------------------------------------

SCHEDULERS: dict[str, Any] = {
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.7),
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [1, 1, 4], 0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=20),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.8)], [2]
    ),
}
CYCLED = ("AdamW", "Adam", "momentum")  # OneCycleLR moves a momentum


def pairs() -> list[tuple[str, str]]:
    names = list(SCHEDULERS)
    found = [(kind, names[at % len(names)]) for at, kind in enumerate(optimizers.KINDS)]
    return [(kind, name if name != "one cycle" or kind in CYCLED else "exponential") for kind, name in found] + [
        ("AdamW", "one cycle"),
        ("momentum", "one cycle"),
    ]


def of_the_callers(kind: str, scheduler: str, stage: int, seed: int = 3) -> equigrad.Engine:
    model = Normed(seed)
    client = optimizers.KINDS[kind](optimizers.groups(model))
    config = without(configuration(stage), "optimizer", "scheduler")
    return equigrad.initialize(model=model, optimizer=client, lr_scheduler=SCHEDULERS[scheduler](client), config=config)[0]


def clients_never_stopped(folder: str) -> dict[Any, Any]:
    seen = {}
    for stage in (0, 2, 3):
        for pair in pairs():
            engine = of_the_callers(*pair, stage)
            torch.manual_seed(100 + engine.global_rank)
            before = train(engine, 0, SAVED)
            engine.save_checkpoint(f"{folder}/{stage}", " and ".join(pair))
            seen[stage, pair] = (before + train(engine, SAVED, STEPS - SAVED), state_of(engine))
            engine.destroy()
    return seen


def clients_gone_on(folder: str) -> dict[Any, Any]:
    seen = {}
    for stage in (0, 2, 3):
        for pair in pairs():
            engine = of_the_callers(*pair, stage, seed=8)
            engine.load_checkpoint(f"{folder}/{stage}", " and ".join(pair))
            seen[stage, pair] = (train(engine, SAVED, STEPS - SAVED), state_of(engine))
            engine.destroy()
    return seen


@pytest.mark.parametrize("world", [1, 2])
def test_the_callers_optimizers_and_schedulers_go_on(world: int, tmp_path: Path) -> None:
    want = ranks.run(world, clients_never_stopped, str(tmp_path))
    got = ranks.run(world, clients_gone_on, str(tmp_path))
    for rank in range(world):
        for case, (history, end) in want[rank].items():
            after, state = got[rank][case]
            assert_same(after, history[-len(after) :], f"rank {rank}, {case}, gradients")
            assert_same(state, end, f"rank {rank}, {case}")


def by_a_callable(folder: str, seed: int) -> Any:
    """A scheduler of torch's on the configured optimizer: what it assigned, the engine has not taken yet when it saves."""
    config = without(configuration(1), "scheduler")
    engine = equigrad.initialize(model=Normed(seed), lr_scheduler=SCHEDULERS["restarts"], config=config)[0]
    if seed == 3:
        train(engine, 0, SAVED)
        engine.save_checkpoint(folder)
    else:
        engine.load_checkpoint(folder)
    return train(engine, SAVED, 2), state_of(engine), engine.lr_scheduler.get_last_lr()


def test_a_scheduler_on_the_configured_optimizer_goes_on(tmp_path: Path) -> None:
    want, got = (ranks.alone(by_a_callable, str(tmp_path), seed) for seed in (3, 8))
    assert_same(got[:1] + got[2:], want[:1] + want[2:], "gradients and rates")
    assert want[2][0] < 0.01


# ---- client_state ----------------------------------------------------------------------------------------------------


def values() -> dict[str, Any]:
    return {
        "zeta": None,
        "alpha": [True, 1, -0.0, math.inf, 'ü\n"', b"\0\xff"],
        "tuple": (1, (2.5, "x"), [3]),
        "large": 2**64 + 1,
        "small": -(2**200),
        "uint64": 2**64 - 1,
        "third": 1 / 3,
        "least": 5e-324,
        7: {"nested": {(1, 2): "key"}},
        "$tuple": "not a tag",
        "unsorted": {"b": 1, "a": 2},
        "counter": collections.Counter("abca"),
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        "empty": {},
        "tensors": [
            torch.arange(6).view(2, 3).t(),
            torch.tensor(0.1, dtype=torch.bfloat16),
            torch.zeros(0, 3, dtype=torch.bool),
        ],
        "complex": torch.tensor([1 + 2j]),
        "python's": random.Random(5).getstate(),
    }


def same(got: Any, want: Any) -> bool:
    if type(got) is not type(want):
        return False
    if torch.is_tensor(want):
        return got.shape == want.shape and got.dtype == want.dtype and torch.equal(got, want)
    if isinstance(want, dict):
        return list(got) == list(want) and all(same(got[key], want[key]) for key in want)
    if isinstance(want, list | tuple):
        return len(got) == len(want) and all(map(same, got, want))
    return repr(got) == repr(want)


def kept_values(folder: str) -> dict[str, Any]:
    engine = make(1)
    engine.save_checkpoint(folder, "values", client_state=values())
    return engine.load_checkpoint(folder)[1]


def test_client_state_comes_back_as_it_was(tmp_path: Path) -> None:
    got = ranks.run(2, kept_values, str(tmp_path))
    assert all(same(one, values()) for one in got)
    assert math.copysign(1, got[0]["alpha"][2]) == -1


def test_what_numpy_has_comes_back(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    given = {"array": numpy.arange(6.0).reshape(2, 3).T, "scalar": numpy.float64(0.1), "int": numpy.int16(-3)}
    got = _values.value_of(json.loads(_values.text_of(_values.form_of(given, "client_state", "x"))), "x")
    assert got["array"].dtype == given["array"].dtype and (got["array"] == given["array"]).all()
    assert all(type(got[key]) is type(given[key]) and got[key] == given[key] for key in ("scalar", "int"))
    with pytest.raises(equigrad.Error, match=r'ndarray in client_state\["objects"\] of object'):
        _values.form_of({"objects": numpy.array([{}])}, "client_state", "x")


class Foreign(dict):
    pass


def test_what_has_no_form_is_refused_by_its_place() -> None:
    endless: list[Any] = []
    endless.append(endless)
    wrong = {
        r'a set in client_state\["a"\]': {"a": {1}},
        r'Foreign in client_state\["a"\]\[1\]': {"a": [0, Foreign()]},
        r'builtin_function_or_method in client_state\["a"\]\["f"\]\[7\]': {"a": {"f": {7: print}}},
        r"within itself": {"a": endless},
        r"a key of client_state": {frozenset(): 1},
        r"Parameter in client_state": {"a": nn.Parameter(torch.zeros(1))},
        r"no text of Unicode": {"a": "\ud800"},
        r"on meta": {"a": torch.zeros(1, device="meta")},
        r"torch.sparse_coo": {"a": torch.zeros(2).to_sparse()},
        r"have more than": {"a": torch.zeros(_values.LARGEST_BYTES + 1, dtype=torch.uint8)},
    }
    for words, given in wrong.items():
        with pytest.raises(equigrad.Error, match=words) as raised:
            _values.form_of(given, "client_state", "engine.save_checkpoint")
        assert str(raised.value).startswith("[engine.save_checkpoint] expected None, bool, int")
    for text in (
        '{"$unknown": 1}',
        '{"$tensor": "AAAA", "dtype": "float32", "shape": [2]}',
        '{"$int": 3}',
        '{"$float": "0x"}',
    ):
        with pytest.raises(equigrad.Error, match="expected values as this version writes them"):
            _values.value_of(json.loads(text), "engine.load_checkpoint")


# ---- What is refused -------------------------------------------------------------------------------------------------


def told(call: Any) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call()
    except (equigrad.Error, UserWarning) as error:
        return str(error)
    return "was taken"


def wrong_inputs(folder: str) -> dict[str, Any]:
    engine = make(2)
    rank = engine.global_rank
    train(engine, 0, 1)
    seen = {
        "set": told(lambda: engine.save_checkpoint(folder, "bad", client_state={"a": {1}})),
        "no dict": told(lambda: engine.save_checkpoint(folder, "bad", client_state=[1])),
        "no folder": told(lambda: engine.save_checkpoint("")),
        "empty tag": told(lambda: engine.save_checkpoint(folder, "")),
        "tag outside": told(lambda: engine.save_checkpoint(folder, "../bad")),
        "tags of ranks": told(lambda: engine.save_checkpoint(folder, f"bad{rank}")),
        "nothing written": sorted(os.listdir(folder)),
        "no latest": told(lambda: engine.load_checkpoint(folder)),
        "no such tag": told(lambda: engine.load_checkpoint(folder, "bad")),
        "custom": told(lambda: engine.load_checkpoint(folder, custom_load_fn=print)),
    }
    with warnings.catch_warnings(record=True):
        seen["nothing"] = engine.load_checkpoint(folder)
    engine.backward(models.mixed_loss(engine, 1, rank, 0))
    seen["in a window"] = told(lambda: engine.save_checkpoint(folder, "bad"))
    engine.zero_grad()
    engine.step()
    engine.backward(models.mixed_loss(engine, 1, rank, 0))
    engine.step()
    engine.backward(models.mixed_loss(engine, 1, rank, 1))
    engine.step()
    return seen


def test_wrong_inputs_are_named(tmp_path: Path) -> None:
    for seen in ranks.run(2, wrong_inputs, str(tmp_path)):
        words = {
            "set": 'a set in client_state["a"]',
            "no dict": "expected a dict as client_state, got a list",
            "no folder": "expected a folder, got ''",
            "empty tag": "expected a tag, got an empty one",
            "tag outside": "../bad",
            "tags of ranks": "bad1",
            "no latest": 'expected a file "latest" in',
            "no such tag": "bad",
            "custom": "expected no custom_load_fn",
            "in a window": "window",
        }
        for case, word in words.items():
            assert word in seen[case] and "expected" in seen[case], (case, seen[case])
        assert seen["nothing written"] == [] and seen["nothing"] == (None, None)


def misfits(folder: str) -> dict[str, str]:
    """A checkpoint of one kind of engine, loaded into others; none of it is written."""
    of_the_callers("Adam", "exponential", 1).save_checkpoint(folder, "Adam")
    make(1).save_checkpoint(folder, "configured")
    seen = {}
    cases = {
        ("Adam", "RMSprop"): lambda: of_the_callers("RMSprop", "exponential", 1, seed=8),
        ("Adam", "steps"): lambda: of_the_callers("Adam", "steps", 1, seed=8),
        ("Adam", "configured"): lambda: make(1, seed=8),
        ("configured", "Adam"): lambda: of_the_callers("Adam", "exponential", 1, seed=8),
    }
    for (tag, into), build in cases.items():
        engine = build()
        before = state_of(engine)
        seen[f"{tag} into {into}"] = told(lambda tag=tag, engine=engine: engine.load_checkpoint(folder, tag))
        assert_same(state_of(engine), before, f"{tag} into {into} is refused, and changes nothing")
        path, _ = engine.load_checkpoint(folder, tag, load_optimizer_states=False, load_lr_scheduler_states=False)
        assert path == f"{folder}/{tag}"
        engine.destroy()
    return seen


def test_states_of_another_kind_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    for seen in ranks.run(2, misfits, str(tmp_path)):
        assert (
            "expected states of torch.optim.rmsprop.RMSprop, got those of torch.optim.adam.Adam" in seen["Adam into RMSprop"]
        )
        assert "the state of a torch.optim.lr_scheduler.MultiStepLR" in seen["Adam into steps"]
        assert "expected states of the configured optimizer" in seen["Adam into configured"]
        assert "got those of the configured optimizer" in seen["configured into Adam"]
        assert all("load_" in text for text in seen.values())


def parts(folder: str) -> dict[str, Any]:
    engine = make(3)
    train(engine, 0, SAVED)
    engine.save_checkpoint(folder, "all", {"n": 1})
    engine.save_checkpoint(folder, "no frozen", save_latest=False, exclude_frozen_parameters=True)
    seen = {"saved": state_of(engine), "latest": (Path(folder) / "latest").read_text().split()[0]}
    cases = {
        "module only": {"load_module_only": True},
        "no optimizer": {"load_optimizer_states": False},
        "no scheduler": {"load_lr_scheduler_states": False},
    }
    for case, options in cases.items():
        other = make(3, seed=8)
        assert other.load_checkpoint(folder, **options)[1] == {"n": 1}
        held = dict(other.module.named_parameters())
        moment = equigrad.utils.safe_get_full_optimizer_state(held["norm.weight"], "exp_avg")
        seen[case] = (state_of(other), bool(moment.any()))
        other.destroy()
    other = make(3, seed=8)
    frozen = other.full_parameter("scale")
    seen["strict"] = told(lambda: other.load_checkpoint(folder, "no frozen"))
    other.load_checkpoint(folder, "no frozen", load_module_strict=False)
    seen["not strict"] = (state_of(other), frozen)
    return seen


def test_a_part_of_it_may_be_loaded(tmp_path: Path) -> None:
    for seen in ranks.run(2, parts, str(tmp_path)):
        saved = seen["saved"]
        assert seen["latest"] == "all"
        for case in ("module only", "no optimizer", "no scheduler"):
            state, has_moments = seen[case]
            for key in ("parameters", "masters", "buffers"):
                assert_same(state[key], saved[key], f"{case}, {key}")
            assert has_moments == (case == "no scheduler")
            assert (state["counters"] == saved["counters"]) == (case != "module only")
            assert (state["rates"] == saved["rates"]) == (case == "no optimizer"), case
        assert "scale" in seen["strict"]
        state, frozen = seen["not strict"]
        twin.assert_same_bits(state["parameters"]["scale"], frozen, "what was not saved")
        twin.assert_same_bits(state["parameters"]["first.weight"], saved["parameters"]["first.weight"], "what was")


# ---- The whole model -------------------------------------------------------------------------------------------------


def written_past(folder: str) -> list[torch.Tensor]:
    seen = []
    for stage in range(3):
        engine, other = make(stage, "bf16"), make(stage, "bf16", seed=4)
        train(engine, 0, 1)
        with torch.no_grad():
            engine.module.head.weight.add_(0.5)  # the next step takes it from its master
        engine.save_checkpoint(f"{folder}/{stage}")
        other.load_checkpoint(f"{folder}/{stage}", check_digests=stage == 1)
        for one in (engine, other):
            seen.append(one.module.head.weight.detach().clone())
            train(one, 1, 1)
            seen.append(one.module.head.weight.detach().clone())
    return seen


def test_a_parameter_that_was_written_past_the_engine_comes_back(tmp_path: Path) -> None:
    for seen in ranks.run(2, written_past, str(tmp_path)):
        for stage in range(3):
            before, after, before_again, after_again = seen[4 * stage : 4 * stage + 4]
            assert torch.equal(before, before_again) and torch.equal(after, after_again)
            assert not torch.equal(before, after)


def changed(folder: str) -> list[str]:
    engine = make(1)
    engine.save_checkpoint(folder, "a", client_state={"at": 3})
    if engine.global_rank == 0:
        for file in Path(folder, "a").glob("*.safetensors"):
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
    engine.save_checkpoint(folder, "b")  # no rank reads before the files are changed
    said = [told(lambda only=only: engine.load_checkpoint(folder, "a", load_module_only=only)) for only in (False, True)]
    _, client_state = engine.load_checkpoint(folder, "a", check_digests=False)
    return [*said, repr(client_state)]


def test_digests_are_checked_unless_nobody_wants_it(tmp_path: Path) -> None:
    for whole, module_only, client_state in ranks.run(2, changed, str(tmp_path)):
        assert "bytes that were saved" in whole and "bytes that were saved" in module_only
        assert client_state == "{'at': 3}"


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__")
    types = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64}
    found = {}
    for name, entry in header.items():
        begin, end = (8 + size + one for one in entry["data_offsets"])
        given = torch.frombuffer(bytearray(data[begin:end]), dtype=types[entry["dtype"]]) if end > begin else torch.zeros(0)
        found[name] = given.view(entry["shape"])
    assert size % 8 == 0 and max(e["data_offsets"][1] for e in header.values()) == len(data) - 8 - size
    return found, metadata


def exported(folder: str, stage: int) -> dict[str, Any]:
    engine = make(stage, "bf16")
    train(engine, 0, 1)
    saved = [
        engine.save_16bit_model(folder, "model.bin"),
        engine.save_fp16_model(folder),
        engine.save_16bit_model(folder, "trained.bin", exclude_frozen_parameters=True),
    ]
    del engine.module.seen  # whose state is no tensor
    engine.module.seen = nn.Identity()
    saved.append(engine.save_16bit_model(Path(folder) / "new", "model.safetensors"))
    whole = engine.module_state_dict()
    seen = {
        "saved": saved,
        "parameters": {n: engine.full_parameter(n) for n, _ in engine.module.named_parameters(remove_duplicate=False)},
        "buffers": dict(engine.module.named_buffers()),
        "state dict": {name: one.clone() for name, one in whole.items()},
        "tied": whole["head.weight"].data_ptr() == whole["embedding.weight"].data_ptr(),
        "trained": sorted(engine.module_state_dict(prefix="p.", exclude_frozen_parameters=True)),
        "wrong name": told(lambda: engine.save_16bit_model(folder, "a/b.bin")),
    }
    try:
        consolidated = engine._zero3_consolidated_16bit_state_dict()
        seen["consolidated"] = None if consolidated is None else dict(consolidated)
    except ValueError as error:
        seen["consolidated"] = str(error)
    return seen


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_whole_model_is_one_file(stage: int, tmp_path: Path) -> None:
    seen = ranks.run(2, exported, str(tmp_path), stage)
    first = seen[0]
    for one in seen:
        assert one["saved"] == [True] * 4 and one["tied"] and "expected the name of a file" in one["wrong name"]
    values = {**first["parameters"], **{n: b for n, b in first["buffers"].items() if n != "passing"}}
    bins = torch.load(tmp_path / "model.bin", weights_only=True)
    assert bins.pop("seen._extra_state") == {"passes": 2}
    assert_same(dict(bins), values, "model.bin")
    assert bins["head.weight"].data_ptr() == bins["embedding.weight"].data_ptr()
    assert torch.load(tmp_path / "pytorch_model.bin", weights_only=True).keys() == {*bins, "seen._extra_state"}
    assert torch.load(tmp_path / "trained.bin", weights_only=True).keys() == {*bins, "seen._extra_state"} - {"scale"}
    tensors, metadata = read_safetensors(tmp_path / "new" / "model.safetensors")
    assert metadata == {"format": "pt", "head.weight": "embedding.weight"}
    assert_same(tensors, {n: v for n, v in values.items() if n != "head.weight"}, "safetensors")
    for one in seen:
        assert_same({**one["state dict"], **first["buffers"]}, {**values, "passing": torch.zeros(2)}, "module_state_dict")
        assert one["trained"] == sorted(f"p.{name}" for name in values if name != "scale")
    if stage == 3:
        assert_same(first["consolidated"], values, "consolidated")
        assert seen[1]["consolidated"] is None
    else:
        assert "expected stage 3" in first["consolidated"]
    assert sorted(os.listdir(tmp_path)) == ["model.bin", "new", "pytorch_model.bin", "trained.bin"]


def not_gathered(folder: str) -> list[Any]:
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    seen = []
    for keys in ({}, {"gather_16bit_weights_on_model_save": True}, {"stage3_gather_fp16_weights_on_model_save": True}):
        engine = make(3, zero_optimization=zero | keys)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seen.append((engine.save_16bit_model(folder), engine.zero_gather_16bit_weights_on_model_save(), len(caught)))
        seen.append(sorted(os.listdir(folder)))
    seen.append(told(lambda: engine.save_16bit_model(f"{folder}/pytorch_model.bin")))
    seen.append(told(lambda: engine.save_16bit_model(folder, "model.safetensors")))
    train(engine, 0, 1)
    seen.append(sorted(os.listdir(folder)))
    return seen


def test_at_stage_3_it_needs_the_key(tmp_path: Path) -> None:
    for rank, seen in enumerate(ranks.run(2, not_gathered, str(tmp_path))):
        assert seen[:2] == [(False, False, 1), []]
        assert [seen[2], seen[4]] == [(True, True, 0)] * 2 and seen[3] == seen[5] == ["pytorch_model.bin"]
        word = "NotADirectoryError" if rank == 0 else "expected rank 0 to write the file"
        assert word in seen[6] or (rank == 0 and "FileExistsError" in seen[6])
        assert 'a dict in "seen._extra_state"' in seen[7]
        assert seen[8] == ["pytorch_model.bin"]


def given_back(stage: int) -> dict[str, Any]:
    wanted = Normed(8)
    wanted.seen.passes = 5
    state = {name: one.clone() if torch.is_tensor(one) else one for name, one in wanted.state_dict().items()}
    state["batch_norm.running_mean"].fill_(3.0)
    engine = make(stage, "bf16")
    train(engine, 0, 1)
    engine.load_module_state_dict({"module": state})
    seen = {"now": state_of(engine), "passes": engine.module.seen.passes}
    part = {"norm.weight": torch.full((24,), 2.0), "foreign": torch.zeros(1)}
    seen["strict"] = told(lambda: engine.load_module_state_dict({"module": part}))
    seen["shape"] = told(lambda: engine.load_module_state_dict({"module": {"norm.weight": torch.zeros(3)}}, strict=False))
    seen["no module"] = told(lambda: engine.load_module_state_dict(part))
    engine.load_module_state_dict({"module": part}, strict=False)
    seen["part"] = state_of(engine)

    def custom(src: dict[str, torch.Tensor], dst: nn.Module) -> None:
        with torch.no_grad():
            dst.second.bias.copy_(src["bias"])
            dst.scale.copy_(src["bias"])
            dst.batch_norm.running_var.fill_(7.0)

    engine.load_module_state_dict({"module": {"bias": torch.full((8,), 0.5)}}, custom_load_fn=custom)
    seen["custom"] = state_of(engine)
    train(engine, 1, 1)
    return seen


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_state_dict_is_loaded_and_masters_follow(stage: int) -> None:
    wanted = Normed(8)
    for seen in ranks.run(2, given_back, stage):
        for name, p in wanted.named_parameters():
            rounded = p.detach().to(torch.bfloat16)
            twin.assert_same_bits(seen["now"]["parameters"][name], rounded, name)
            if p.requires_grad:
                twin.assert_same_bits(seen["now"]["masters"][name], p.detach(), f"master of {name}")
        assert seen["passes"] == 5 and (seen["now"]["buffers"]["batch_norm.running_mean"] == 3).all()
        assert 'got none for "batch_norm.bias"' in seen["strict"] and '"foreign" too' in seen["strict"]
        assert 'expected "norm.weight" of shape [24], got [3]' in seen["shape"]
        assert 'expected a dict with a state dict under "module"' in seen["no module"]
        assert (seen["part"]["masters"]["norm.weight"] == 2).all()
        custom = seen["custom"]
        assert (custom["masters"]["second.bias"] == 0.5).all() and (custom["parameters"]["second.bias"] == 0.5).all()
        assert (custom["parameters"]["scale"] == 0.5).all() and (custom["buffers"]["batch_norm.running_var"] == 7).all()


# ---- As others call it -----------------------------------------------------------------------------------------------


def with_a_longer_passing(folder: str) -> list[int]:
    make(1).save_checkpoint(folder, "tag")
    model = Normed(seed=4)
    model.passing = torch.ones(5)  # as a cache that is made anew
    engine = equigrad.initialize(model=model, config=configuration(1))[0]
    engine.load_checkpoint(folder, "tag")
    return [int(one) for one in model.passing]


def test_a_buffer_that_is_not_persistent_is_neither_saved_nor_loaded(tmp_path: Path) -> None:
    assert ranks.run(1, with_a_longer_passing, str(tmp_path)) == [[1] * 5]
    assert "passing" not in (tmp_path / "tag" / "manifest.json").read_text()


def as_trainer_calls_it(folder: str) -> dict[str, Any]:
    """What transformers' Trainer and Accelerate do with DeepSpeed's engine."""
    config = without(configuration(3, "bf16"), "scheduler")
    engine = equigrad.deepspeed.initialize(model=Normed(), lr_scheduler=SCHEDULERS["steps"], config=config)[0]
    train(engine, 0, SAVED)
    zero3 = engine.zero_gather_16bit_weights_on_model_save()
    state_dict = engine._zero3_consolidated_16bit_state_dict() if zero3 else None
    engine.save_checkpoint(f"{folder}/checkpoint-3", exclude_frozen_parameters=True)  # Trainer
    engine.save_checkpoint(folder, "pytorch_model")  # Accelerate's save_state
    want = state_of(engine), train(engine, SAVED, 1)
    seen = {"keys": None if state_dict is None else sorted(state_dict), "folders": sorted(os.listdir(folder))}
    other = equigrad.deepspeed.initialize(model=Normed(8), lr_scheduler=SCHEDULERS["steps"], config=config)[0]
    is_there = any(name.startswith("global_step") for name in os.listdir(f"{folder}/checkpoint-3"))
    path, _ = other.load_checkpoint(
        f"{folder}/checkpoint-3", load_module_strict=False, load_optimizer_states=True, load_lr_scheduler_states=True
    )
    assert is_there and path is not None
    other.load_checkpoint(folder, "pytorch_model")
    assert_same((state_of(other), train(other, SAVED, 1)), want, "Accelerate's load_state")
    assert other.get_lr() == engine.get_lr() and other.lr_scheduler.get_last_lr() == engine.lr_scheduler.get_last_lr()
    return seen


def test_it_serves_trainer_and_accelerate(tmp_path: Path) -> None:
    first, second = ranks.run(2, as_trainer_calls_it, str(tmp_path))
    assert first["keys"] == sorted(Normed().state_dict()) and second["keys"] is None
    assert {"checkpoint-3", "pytorch_model", "latest"} <= set(first["folders"])


def unmanaged(folder: str, seed: int) -> Any:
    config = configuration(2, managed_gradient_accumulation=False, gradient_accumulation_steps=1)
    engine = equigrad.deepspeed.initialize(model=Normed(seed), config=config)[0]
    if seed == 3:
        for step in range(2):
            for micro_batch in range(step + 1):
                engine.backward(models.mixed_loss(engine, step, engine.global_rank, micro_batch))
            engine.step()
        engine.save_checkpoint(folder)
    else:
        engine.load_checkpoint(folder)
    return engine.global_samples, engine.global_steps


def test_samples_are_counted_on(tmp_path: Path) -> None:
    assert ranks.alone(unmanaged, str(tmp_path), 3) == ranks.alone(unmanaged, str(tmp_path), 8) == (9, 2)


def of_hugging_face(folder: str, stage: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=1, tie_word_embeddings=True))
    config = without(configuration(stage, "bf16"), "scheduler")
    engine = equigrad.initialize(model=model, config=config)[0]
    tokens = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(engine.global_rank))
    for _ in range(PASSES):
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    for name in ("pytorch_model.bin", "model.safetensors"):
        engine.save_16bit_model(f"{folder}/{name[:5]}", name)
    if engine.global_rank == 0:
        for name in ("pytor", "model"):
            model.config.save_pretrained(f"{folder}/{name}")
    return {name: engine.full_parameter(name) for name, _ in model.named_parameters()}


@pytest.mark.parametrize("stage", [2, 3])
def test_hugging_face_loads_what_was_exported(stage: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    want = ranks.run(2, of_hugging_face, str(tmp_path), stage)[0]
    for name in ("model", "pytor"):
        model, info = transformers.LlamaForCausalLM.from_pretrained(
            tmp_path / name, dtype=torch.bfloat16, output_loading_info=True
        )
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
        assert_same({n: p.detach() for n, p in model.named_parameters()}, want, name)
