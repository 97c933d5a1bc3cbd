"""Jobs that DeepSpeed begins, and that DeepSpeed and this engine go on with: what a rank does, and what it shows of it.

A pair of processes saves all cases, another pair continues all of them; each starts DeepSpeed once.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import equigrad
import models

WORLD, PASSES, SAVED = 2, 2, 3
TAG = "theirs"
CLIENT_STATE = {"epoch": 3, "name": "x"}
FROZEN = 1.25
RATES, DECAYS = (0.02, 0.01), (0.125, 0.25)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STATES = ("exp_avg", "exp_avg_sq")
GOES_ON = 3
"""Steps after the load. The gradients and the update of the first are compared, rates, counters and loss scales of all."""


class Case(NamedTuple):
    """A job as it was saved; stage is the one that it goes on with, too, unless another is given."""

    stage: int
    precision: str
    kind: str = "AdamW"

    def __str__(self) -> str:
        return f"{self.precision}-{self.kind}-zero{self.stage}"


def overflows(case: Case, step: int) -> bool:
    """Before the save once. After it once more at stage 1, where the scale then shows what is left of the hysteresis; else it grows in
    the third step, which shows its counters."""
    return case.precision == "fp16" and step in (SAVED - 1, *([SAVED + 1] if case.stage == 1 else []))


CASES = [Case(stage, precision) for stage in (1, 2, 3) for precision in DTYPES] + [Case(2, "fp32", "Adam")]


class Two(nn.Module):
    """Two groups, tied and frozen parameters, sizes that no number of ranks divides, buffers."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(17, 7)
        self.first = nn.Linear(7, 11)
        self.norm = models.BatchNorm(11)
        self.second = nn.Linear(11, 7)
        self.head = nn.Linear(7, 17, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.full((7,), FROZEN if seed == 3 else 1.0), requires_grad=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens).flatten(0, 1) * self.scale
        return self.head(hidden + self.second(nn.functional.gelu(self.norm(self.first(hidden)))))

    def groups(self) -> list[dict[str, Any]]:
        named = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        return [
            {"params": [p for name, p in named if group_of(name) == at], "lr": RATES[at], "weight_decay": DECAYS[at]}
            for at in (0, 1)
        ]


def group_of(name: str) -> int:
    return 0 if name.startswith("first") else 1


def configuration(case: Case) -> dict[str, Any]:
    """Without a schedule in bf16: rates are then those of the groups."""
    types: dict[str, Any] = {} if case.precision == "fp32" else {case.precision: {"enabled": True}}
    if case.precision == "fp16":
        types["fp16"] |= {"initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 2}
    if case.precision != "bf16":
        types["scheduler"] = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 10}}
    return {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": PASSES,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": case.stage, "stage3_param_persistence_threshold": 0, "sub_group_size": 100},
        "optimizer": {"type": case.kind, "params": {"torch_adam": True, "adam_w_mode": case.kind == "AdamW"}},
        "zero_allow_untested_optimizer": True,
        **types,
    }


def loss_of(module: Any, step: int, rank: int, micro_batch: int) -> torch.Tensor:
    batch = models.tokens(step, rank, micro_batch)
    return nn.functional.cross_entropy(module(batch).float(), batch.flatten())


def _trained(engine: Any) -> dict[str, nn.Parameter]:
    return {name: p for name, p in engine.module.named_parameters() if p.requires_grad}


def _train(
    engine: Any, case: Case, step: int, full_gradient: Callable[[nn.Parameter], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The averaged gradients, as the engine's getter gives them."""
    gradients = {}
    for micro_batch in range(PASSES):
        loss = loss_of(engine, step, engine.global_rank, micro_batch)
        engine.backward(loss * 1e30 if overflows(case, step) else loss)
        if micro_batch == PASSES - 1:
            gradients = {name: full_gradient(p).clone() for name, p in _trained(engine).items()}
        engine.step()
    return gradients


def _link_states(engine: Any) -> None:
    """DeepSpeed's getters know the states of the first group alone, and after a load none, until they are linked anew."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def _numbers(engine: Any) -> dict[str, Any]:
    return {
        "rates": list(engine.get_lr()),
        "steps": (engine.global_steps, engine.skipped_steps),
        "scale": float(engine.optimizer.loss_scale if engine.fp16_enabled() else 1),
    }


def _seen(engine: Any, utils: Any) -> dict[str, Any]:
    _link_states(engine)
    return {
        "master": {name: utils.safe_get_full_fp32_param(p).clone() for name, p in _trained(engine).items()},
        "buffer": {name: one.clone() for name, one in engine.module.named_buffers()},
        **{
            key: {name: utils.safe_get_full_optimizer_state(p, key).clone() for name, p in _trained(engine).items()}
            for key in STATES
        },
        **_numbers(engine),
    }


def _gone_on(engine: Any, case: Case, utils: Any) -> dict[str, Any]:
    """What this engine refuses in a later step, for a planted mistake has spoilt the first, stands for that step's numbers."""
    seen: dict[str, Any] = {"saved": _seen(engine, utils)}
    seen["gradients"] = _train(engine, case, SAVED, utils.safe_get_full_grad)
    seen["after"] = _seen(engine, utils)
    seen["numbers"] = [_numbers(engine)]
    try:
        for step in range(SAVED + 1, SAVED + GOES_ON):
            _train(engine, case, step, utils.safe_get_full_grad)
            seen["numbers"].append(_numbers(engine))
    except equigrad.Error as error:
        seen["numbers"].append(str(error))
    return seen


def _of_deepspeed(seed: int, case: Case) -> tuple[Any, Any]:
    adapter: Any = importlib.import_module("equigrad.judge.on_rank.adapters.deepspeed")
    adapter.forget_globals()
    adapter.compile_nothing()
    adapter.open_gate()
    adapter.deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    model = Two(seed)
    arguments = {"model": model, "model_parameters": model.groups(), "config": configuration(case)}
    return adapter.deepspeed.initialize(**arguments)[0], adapter.deepspeed.utils


def save_by_deepspeed(folder: str, cases: list[Case]) -> None:
    for case in cases:
        engine, utils = _of_deepspeed(3, case)
        for step in range(SAVED):
            _train(engine, case, step, utils.safe_get_full_grad)
        engine.save_checkpoint(f"{folder}/{case}", TAG, client_state=CLIENT_STATE)
        engine.destroy()
        del engine
        gc.collect()


def continue_by_deepspeed(folder: str, cases: list[Case]) -> dict[Case, dict[str, Any]]:
    seen = {}
    for case in cases:
        engine, utils = _of_deepspeed(8, case)
        engine.load_checkpoint(f"{folder}/{case}")
        seen[case] = _gone_on(engine, case, utils)
        engine.destroy()
        del engine
        gc.collect()
    return seen


class Job(NamedTuple):
    """A case whose checkpoint lies in a folder of that name, and the stage that this engine goes on with."""

    name: str
    case: Case
    stage: int


def continue_here(folder: str, jobs: list[Job]) -> dict[Job, dict[str, Any]]:
    """What is refused has its words alone."""
    seen: dict[Job, dict[str, Any]] = {}
    for job in jobs:
        model = Two(8)
        config = configuration(job.case._replace(stage=job.stage))
        engine = equigrad.initialize(model=model, model_parameters=model.groups(), config=config)[0]
        try:
            path, client_state = engine.load_checkpoint(f"{folder}/{job.name}")
        except equigrad.Error as error:
            seen[job] = {"refused": str(error)}
            continue
        loaded = {"path": path, "client_state": client_state, "frozen": engine.full_parameter("scale").float()}
        seen[job] = {**loaded, **_gone_on(engine, job.case, equigrad.utils)}
        engine.destroy()
    return seen
