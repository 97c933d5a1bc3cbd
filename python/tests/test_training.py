"""The engine from Python against plain autograd, bit for bit: stages, ranks, ways into a backward pass."""

from __future__ import annotations

import pytest
import torch

import equigrad
import models
import ranks
import twin

STEPS, PASSES, LR = 3, 2, 0.1


def configuration(stage: int, **more) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": PASSES,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "SGD", "params": {"lr": LR}},
        **more,
    }


def backward(engine: equigrad.Engine, loss: torch.Tensor, way: str) -> None:
    if way == "backward":
        engine.backward(loss)
    elif way == "scale":
        engine.scale(loss).backward()
    elif way == "loss":
        loss.backward()
    else:
        loss.backward(torch.ones_like(loss))


def train(stage: int, way: str) -> tuple[list, dict]:
    engine, _, _, _ = equigrad.initialize(model=models.Mixed(), config=configuration(stage))
    history = []
    for step in range(STEPS):
        for micro_batch in range(PASSES):
            backward(engine, models.mixed_loss(engine, step, engine.global_rank, micro_batch), way)
            if engine.is_gradient_accumulation_boundary():
                held = engine.module.named_parameters()
                history.append({name: equigrad.utils.safe_get_full_grad(p) for name, p in held if p.requires_grad})
            engine.step()
    return history, {name: engine.full_parameter(name) for name, _ in engine.module.named_parameters()}


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("way", ["backward", "scale", "loss", "gradient"])
def test_gradients_are_equal(world: int, stage: int, way: str) -> None:
    want_history, want_parameters = ranks.alone(twin.train, models.Mixed, models.mixed_loss, world, stage, STEPS, PASSES, LR)
    for rank, (history, parameters) in enumerate(ranks.run(world, train, stage, way)):
        assert len(history) == STEPS
        for step, gradients in enumerate(history):
            for name, got in gradients.items():
                want = want_history[step][name]
                assert (got is None) == (want is None), f"rank {rank}, step {step}, {name}"
                if want is not None:
                    twin.assert_same_bits(got, want, f"rank {rank}, step {step}, gradient of {name}")
        for name, got in parameters.items():
            twin.assert_same_bits(got, want_parameters[name], f"rank {rank}, parameter {name}")
