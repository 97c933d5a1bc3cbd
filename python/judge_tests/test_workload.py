"""Workloads are what they claim to be: exact, telling, different everywhere, the same again, and quick to draw."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from simulated import Local, split_linear
from torch.nn import functional

from equigrad.judge import cases, workload
from equigrad.judge.balance import Limits, balanced, keeps
from equigrad.judge.balls import FORMATS
from equigrad.judge.lattice import Certificate, grid_of
from equigrad.judge.on_rank import models, reference
from equigrad.judge.on_rank.protocol import Case, Model, Optimizer, ProtocolError, batch_key, local_key

torch.set_num_threads(1)
BASE = Case("x", 2, Model("lattice-mlp"), 3, 3, cases.PRECISIONS["fp32"], cases.SGD, "", "")
MODELS = {
    "lattice-mlp": Model("lattice-mlp"),
    "branch": Model("lattice-mlp", {"branch": True}),
    "frozen": Model("lattice-mlp", {"frozen": True, "unused": False}),
    "lattice-embedding": Model("lattice-embedding"),
    "lattice-convolution": Model("lattice-convolution"),
    "lattice-pair": Model("lattice-pair"),
}
SIZES = list(itertools.product((1, 2, 4), (1, 2, 3, 4)))
COVERING = [
    (model, precision, *SIZES[(5 * i + 7 * j) % len(SIZES)], 2 + (i + j) % 2)
    for i, model in enumerate(MODELS)
    for j, precision in enumerate(cases.PRECISIONS)
    if (i + j) % 2 == 0 or model == "lattice-mlp"
]


def case_of(model: str, precision: str, world: int, accumulation: int, steps: int, **change: Any) -> Case:
    return dataclasses.replace(
        BASE,
        model=MODELS[model],
        precision=cases.PRECISIONS[precision],
        world=world,
        accumulation=accumulation,
        steps=steps,
        **change,
    )


@pytest.mark.parametrize(("model", "precision", "world", "accumulation", "steps"), COVERING)
def test_every_step_is_certified(model: str, precision: str, world: int, accumulation: int, steps: int) -> None:
    case = case_of(model, precision, world, accumulation, steps)
    drawn = workload.draw(case)
    assert drawn.certified == steps
    assert drawn.factor % 2 == 1
    numbers = [*drawn.weights.values(), *(one for one in drawn.batches.values() if one.is_floating_point())]
    assert all(one.dtype == torch.float32 and bool(one.isfinite().all()) for one in numbers)
    module = models.build(case.model).module
    assert set(drawn.weights) == {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16-dynamic", "autocast-bf16", "autocast-fp16", "fp64"])
@pytest.mark.parametrize("model", ["lattice-mlp", "branch", "lattice-embedding", "lattice-convolution"])
def test_what_is_certified_has_the_bits_of_fp64_by_several_kernels(
    model: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is held against torch's own 16-bit kernels, step by step along the weights of a right engine."""
    case, drawn = workload.write(case_of(model, precision, 2, 2, 2), tmp_path)
    scale = case.precision.loss_scale.value if case.precision.loss_scale else 1.0
    weights = {name: one.double() for name, one in drawn.weights.items()}
    for step in range(drawn.certified):
        _, named = reference.local(case, step, weights, scale)
        with monkeypatch.context() as patch:
            patch.setattr(functional, "linear", split_linear)
            _, split = reference.local(case, step, weights, scale)
        names = [name for name in named if not name.startswith("fp64/")]
        assert names and all(torch.equal(named[name], named["fp64/" + name]) for name in names)
        assert all(torch.equal(named[name], split[name]) for name in names)
        for name, weight in weights.items():
            parts = [named.get(local_key(r, m, name)) for r in range(2) for m in range(2)]
            mean = sum(one for one in parts if one is not None)
            weights[name] = weight - case.optimizer.lr * mean / 4


@pytest.mark.parametrize("style", ["loss_backward", "tensor_backward"])
def test_local_gradients_are_unscaled_by_what_they_were_scaled_by(style: str, tmp_path: Path) -> None:
    case, drawn = workload.write(case_of("lattice-mlp", "autocast-fp16", 2, 2, 1, style=style), tmp_path)
    _, scaled = reference.local(case, 0, {name: one.double() for name, one in drawn.weights.items()}, 32.0)
    names = [name for name in scaled if "/" in name and not name.startswith("fp64/")]
    assert names and all(torch.equal(scaled[name], scaled["fp64/" + name]) for name in names)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_stay_small_and_a_parameter_of_one_element_from_1_to_2(precision: str, seed: int, tmp_path: Path) -> None:
    """So long as other steps follow: else products grow, and a factor of 0 would hide what lies before it."""
    case, drawn = workload.write(case_of("lattice-mlp", precision, 2, 3, 3), tmp_path, seed)
    weights = {name: one.double() for name, one in drawn.weights.items()}
    for step in range(case.steps - 1):
        _, named = reference.local(case, step, weights)
        for name, weight in weights.items():
            parts = [named.get(local_key(r, m, name)) for r in range(2) for m in range(3)]
            weights[name] = weight - case.optimizer.lr * sum(one for one in parts if one is not None) / 6
        assert 1 <= float(weights["gain"].abs()) <= 2, step
        largest = 3.0 * (4 if precision == "fp32" else 1)
        assert all(float(one.abs().max()) <= largest for one in weights.values()), step


def test_data_differ_between_ranks_micro_batches_steps_and_backwards() -> None:
    case = case_of("lattice-mlp", "fp32", 3, 3, 2, options={"backwards": 2})
    drawn = workload.draw(case)
    places = itertools.product(range(2), range(3), range(3), range(2))
    whole = {
        tuple(drawn.batches[batch_key(*place, "input")].flatten().tolist())
        + tuple(drawn.batches[batch_key(*place, "gradient")].flatten().tolist())
        for place in places
    }
    assert len(whole) == 36
    assert set(drawn.batches) == {
        batch_key(*place, key)
        for place in itertools.product(range(2), range(3), range(3), range(2))
        for key in ("input", "gradient")
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_last_step_tells_of_every_micro_batch(precision: str, tmp_path: Path) -> None:
    case, drawn = workload.write(case_of("lattice-mlp", precision, 2, 3, 1), tmp_path)
    _, named = Local(case)(0, drawn.weights, 1.0)
    for name in ("first.weight", "second.weight", "wide.weight", "last.weight", "gain"):
        told = [bool((named[local_key(r, m, name)] != 0).any()) for r in range(2) for m in range(3)]
        assert sum(told) >= 2
    given = torch.stack([named[local_key(r, m, "last.weight")] for r in range(2) for m in range(3)])
    if precision == "fp32":  # a reduction in bf16 would lose digits
        assert float((given.bfloat16().double() != given).double().mean()) > 0.1
        assert sum(bool((given[i] != given[j]).any()) for i, j in itertools.combinations(range(6), 2)) == 15


def test_the_same_case_and_seed_give_the_same_numbers_and_others_do_not(tmp_path: Path) -> None:
    case = case_of("lattice-embedding", "fp32", 2, 2, 2)
    one = workload.draw(case, seed=3)
    workload._drawn.clear()
    again = workload.draw(dataclasses.replace(case, id="y", stage=3, style="loss_backward"), seed=3)
    assert one is not again and one.weights.keys() == again.weights.keys()
    assert all(torch.equal(one.batches[key], again.batches[key]) for key in one.batches)
    assert any(not torch.equal(one.batches[key], other) for key, other in workload.draw(case, seed=4).batches.items())
    assert workload.draw(case, seed=3) is again


def test_files_hold_the_workload_and_equal_ones_are_shared(tmp_path: Path) -> None:
    case = case_of("lattice-embedding", "bf16", 1, 3, 2)
    whole, drawn = workload.write(case, tmp_path)
    assert whole.model.factor == drawn.factor == 3
    other, _ = workload.write(dataclasses.replace(case, stage=2), tmp_path)
    assert (whole.weights, whole.batches) == (other.weights, other.batches)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_model_that_is_no_lattice_has_reals_and_a_users_model_has_data_of_the_user() -> None:
    drawn = workload.draw(dataclasses.replace(BASE, model=Model("gpt")))
    assert drawn.certified == 0 and drawn.factor == 1
    assert drawn.weights["tokens.weight"].std() > 0
    with pytest.raises(ProtocolError, match="expected a built-in model"):
        workload.draw(dataclasses.replace(BASE, model=Model("torch.nn:Linear")))


def test_steps_that_cannot_be_exact_are_not_certified() -> None:
    adamw = dataclasses.replace(BASE, optimizer=Optimizer("adamw", lr=2.0**-7, weight_decay=0.125))
    assert workload.draw(adamw).certified == 1
    decayed = dataclasses.replace(BASE, optimizer=Optimizer("sgd", lr=0.25, weight_decay=0.125))
    assert workload.draw(decayed).certified in (1, 2)


def test_where_nothing_can_be_certified_there_is_a_workload_all_the_same() -> None:
    """81 x 27 in bf16: more than its digits hold."""
    drawn = workload.draw(case_of("lattice-mlp", "bf16", 3, 4, 2))
    assert drawn.weights and len(drawn.batches) == 2 * 12 * 2


def test_a_certificate_is_broken_by_the_first_operator_that_may_round() -> None:
    form = FORMATS["bf16"]
    wide = torch.full((4, 70), 2.0, dtype=torch.float64)
    for held, run in (
        (True, lambda: torch.mm(wide[:, :64], torch.ones(64, 2, dtype=torch.float64))),
        (False, lambda: torch.mm(wide, 9 * torch.ones(70, 2, dtype=torch.float64))),
        (False, lambda: torch.mm(wide[:, :2], torch.tensor([[128.5], [-128.5]], dtype=torch.float64))),  # the total is 0
        (False, lambda: torch.tensor([257.0], dtype=torch.float64) * 1),
        (True, lambda: torch.tensor([258.0], dtype=torch.float64) * 1),
        (False, lambda: (torch.ones(300, dtype=torch.float64)).sum()),
        (True, lambda: functional.conv2d(torch.ones(1, 2, 4, 4).double(), torch.ones(3, 2, 3, 3).double())),
        (False, lambda: functional.conv2d(torch.ones(1, 2, 4, 4).double() * 17, torch.ones(3, 2, 3, 3).double())),
    ):
        with Certificate(form) as certificate:
            run()
        assert bool(certificate.broken) != held
    with Certificate(FORMATS["fp16"], scale=64.0) as certificate:
        torch.tensor([1000.0], dtype=torch.float64) * 2
    assert certificate.broken


def test_a_certificate_watches_backward_too() -> None:
    weight = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    with Certificate(FORMATS["bf16"]) as certificate:
        output = torch.full((3, 2), 4.0, dtype=torch.float64) @ weight
        assert not certificate.broken
        output.backward(torch.full((3, 2), 101.0, dtype=torch.float64))
    assert certificate.broken
    tokens = torch.zeros(9, dtype=torch.int64)
    table = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    with Certificate(FORMATS["bf16"]) as certificate:
        functional.embedding(tokens, table).backward(torch.full((9, 2), 31.0, dtype=torch.float64))
    assert "embedding" in certificate.broken


def test_the_grid_is_the_largest_power_of_two_that_all_are_multiples_of() -> None:
    assert grid_of(torch.tensor([3.0, 0.75, -6.0])) == 0.25
    assert grid_of(torch.tensor([48.0, 0.0])) == 16.0
    assert grid_of(torch.zeros(3)) == float("inf")


def test_a_balanced_choice_keeps_its_limits() -> None:
    random = numpy.random.default_rng(1)
    options = random.integers(-2, 3, (12, 3, 40)).astype(float)
    options[1] = options[0]
    limits = Limits(numpy.full(40, 25.0), numpy.ones(40), numpy.ones(40), 4.0, numpy.zeros(40, dtype=bool))
    chosen = balanced(options, numpy.arange(12) // 3, [(0, 1)], limits, random)
    total, size = (numpy.einsum("rk,rkp->p", one, other) for one, other in ((chosen, options), (abs(chosen), abs(options))))
    assert keeps(total, size, limits)
    assert (abs(chosen).sum(axis=1) <= 1).all() and abs(chosen).sum() >= 4
    assert not keeps(total, size + 30, limits)
