"""A Python error anywhere within a call reaches its caller with its traceback; the other ranks learn whose it was."""

from __future__ import annotations

import os
import re
import traceback

import pytest
import torch

import equigrad
import models
import ranks
import twin
from equigrad import _client

WORLD = 2


class Mine(Exception):
    pass


def raise_mine(*_):
    raise Mine("from the test")


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise_mine()


def configuration(stage: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 3,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }


def other_on_rank_1(what: str) -> str:
    config, model = configuration(1), models.Mixed()
    own = None
    if what == "own optimizer":
        del config["optimizer"]
        own = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.5 if os.environ["RANK"] == "1" else 0.75))
    elif os.environ["RANK"] == "1":
        if what == "rate":
            config["optimizer"]["params"]["lr"] = 0.2
        else:
            model.first.weight.requires_grad_(False)
    try:
        equigrad.initialize(model=model, config=config, optimizer=own)
    except equigrad.Error as error:
        return str(error)
    return ""


def test_what_one_rank_was_given_otherwise_is_named_on_all() -> None:
    """Replicas would part without an error, and every loss curve look fine."""
    for said in ranks.run(WORLD, other_on_rank_1, "rate"):
        assert "expected one configuration on all ranks, got optimizer.params.lr 0.1 on rank 0 and" in said
        assert "optimizer.params.lr 0.2 on rank 1" in said
    for said in ranks.run(WORLD, other_on_rank_1, "frozen"):
        assert "expected one model and optimizer on all ranks" in said and 'parameter "first.weight"' in said and "frozen on rank 1" in said
    for said in ranks.run(WORLD, other_on_rank_1, "own optimizer"):
        assert re.search(r"AdamW lr=0.1 betas=\(0.9, 0.75\).* on rank 0 and .*AdamW lr=0.1 betas=\(0.9, 0.5\).* on rank 1", said), said


def test_settings_have_every_digit_of_a_rate_that_is_a_tensor() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    words = [_client.settings_of(torch.optim.AdamW([weight], lr=torch.tensor(rate)))[0] for rate in (0.001, 0.00100001)]
    assert words[0] != words[1] and "tensor(" not in words[0], words
    own = torch.optim.AdamW([weight], lr=0.1)
    own.param_groups[0]["schedule"] = lambda step: 1.0  # whose words have an address
    assert "schedule" not in _client.settings_of(own)[0]


def no_loss() -> list[str]:
    said = []
    engine = equigrad.initialize(model=models.Mixed(), config=configuration(1))[0]
    for loss in (None, {"loss": 1}):
        try:
            engine.backward(loss)
        except equigrad.Error as error:
            said.append(str(error))
    return said


def test_a_loss_that_is_none_is_told_from_labels_that_were_forgotten() -> None:
    first, second = ranks.alone(no_loss)
    assert first.startswith("[engine.backward] expected a loss, a tensor of one element, got None. A model of transformers gives")
    assert "got a dict." in second


def in_backward(engine: equigrad.Engine) -> None:
    engine.backward(Raising.apply(models.mixed_loss(engine, 0, 0, 1)))


def in_hook(engine: equigrad.Engine) -> None:
    loss = models.mixed_loss(engine, 0, 0, 1)
    hook = engine.module.first.weight.register_hook(raise_mine)
    try:
        engine.backward(loss)
    finally:
        hook.remove()


def in_observer(engine: equigrad.Engine) -> None:
    engine._core.on_step(raise_mine)
    engine.backward(models.mixed_loss(engine, 0, 0, 1))
    try:
        engine.step()
    finally:
        engine._core.on_step(None)


def in_forward(engine: equigrad.Engine) -> None:
    hook = engine.module.second.register_forward_hook(raise_mine)
    try:
        engine.backward(models.mixed_loss(engine, 0, 0, 1))
    finally:
        hook.remove()


PLACES = {"backward": in_backward, "hook": in_hook, "observer": in_observer, "forward": in_forward}


def train_one_step(engine: equigrad.Engine) -> dict:
    engine.backward(models.mixed_loss(engine, 0, engine.global_rank, 1))
    gradients = {
        name: equigrad.utils.safe_get_full_grad(p) for name, p in engine.module.named_parameters() if p.requires_grad
    }
    engine.step()
    return gradients


def fail_then_train(stage: int, place: str) -> dict:
    engine, _, _, _ = equigrad.initialize(model=models.Mixed(), config=configuration(stage))
    outcome = {"error": ""}
    if engine.global_rank == 1:
        try:
            PLACES[place](engine)
        except Mine as error:
            outcome["error"] = "".join(traceback.format_exception(error))
    else:
        try:
            if place == "observer":
                engine._core.on_step(lambda shards: None)
            engine.backward(models.mixed_loss(engine, 0, 0, 1))
            if place == "observer":
                engine.step()
        except equigrad.Error as error:
            outcome["error"] = str(error)
        engine._core.on_step(None)
    engine.zero_grad()
    outcome["gradients"] = train_one_step(engine)
    return outcome


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("place", ["backward", "hook", "observer"])
def test_other_ranks_learn_of_it_and_training_goes_on(stage: int, place: str) -> None:
    want, _ = ranks.alone(
        twin.train, models.Mixed, lambda m, s, r, k: models.mixed_loss(m, s, r, 1), WORLD, stage, 1, 1, 0.1
    )
    healthy, failed = ranks.run(WORLD, fail_then_train, stage, place)
    assert "in raise_mine" in failed["error"], failed
    assert "Mine: from the test" in failed["error"]
    # At stages 0 and 1 a pass asks no other rank, so it fails where it failed; all else is told.
    asks = stage >= 2 or place == "observer"
    assert ("rank 1" in healthy["error"]) == asks, healthy
    for outcome in (healthy, failed):
        for name, got in outcome["gradients"].items():
            assert (got is None) == (want[0][name] is None), name
            if got is not None:
                twin.assert_same_bits(got, want[0][name], f"stage {stage}, {name}")
