"""Built-in models are what they are described as, and exact where they are to be; the reference is plain autograd."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from small_cases import DOCUMENT, small_case

from equigrad.judge.on_rank import loop, models, reference, tensors
from equigrad.judge.on_rank.protocol import (
    Model,
    Precision,
    ProtocolError,
    local_key,
)

LATTICES = [
    Model("lattice-mlp"),
    Model("lattice-mlp", {"branch": True, "gain": False, "unused": False, "wide": 5}),
    Model("lattice-mlp", {"frozen": True}),
    Model("lattice-embedding"),
    Model("lattice-embedding", {"tied": False}),
    Model("lattice-convolution"),
    Model("lattice-pair"),
]
ALL_MODELS = [*LATTICES, Model("gpt")]


def id_of(model: Any) -> str:
    return "-".join([model.name, *model.arguments]) if isinstance(model, Model) else str(model)


@pytest.mark.parametrize("model", ALL_MODELS, ids=id_of)
def test_a_model_is_as_it_is_described(model: Model, tmp_path: Path) -> None:
    case = small_case(tmp_path, model, accumulation=4)
    described = models.describe(model.name, model.arguments)
    _, named = reference.local(case, 0, tensors.read(case.weights))
    names = {name for name, _ in models.build(model).module.named_parameters()}
    got = [{name for name in names if local_key(0, micro, name) in named} for micro in range(4)]
    always, sometimes = set.intersection(*got), set.union(*got)
    assert names - sometimes == {*described.unused, *described.frozen}
    assert sometimes - always == set(described.conditional)
    assert set(described.tied) <= names


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("model", LATTICES, ids=id_of)
def test_small_integers_are_exact(model: Model, precision: str, tmp_path: Path) -> None:
    case = small_case(tmp_path, model, world=2, precision=Precision(precision))
    losses, named = reference.local(case, 0, tensors.read(case.weights))
    low = {name: one for name, one in named.items() if not name.startswith("fp64/")}
    assert any(bool(one.any()) for one in low.values())
    for name, one in low.items():
        assert torch.equal(one, named[f"fp64/{name}"]), name
    assert all(one == losses[f"fp64/{place}"] for place, one in losses.items() if not place.startswith("fp64/"))


@pytest.mark.parametrize("model", ALL_MODELS, ids=id_of)
def test_styles_and_checkpointing_give_the_same_gradients(model: Model, tmp_path: Path) -> None:
    case = small_case(tmp_path, dataclasses.replace(model, factor=3))
    values = tensors.read(case.weights)
    _, want = reference.local(case, 0, values)
    for change in ({"style": "tensor_backward"}, {"options": {"activation_checkpointing": True}}):
        _, got = reference.local(dataclasses.replace(case, **change), 0, values)
        assert set(got) == set(want)
        assert all(torch.equal(one, want[name]) for name, one in got.items()), change


@pytest.mark.parametrize("model", ALL_MODELS, ids=id_of)
def test_activations_are_computed_again_where_they_are_to_be(model: Model, tmp_path: Path) -> None:
    case = small_case(tmp_path, model)
    built = loop.plain_module(case)
    called: list[str] = []
    for name, layer in built.module.named_modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda *_, name=name: called.append(name))
    batch = loop.batch_of(loop.read_batches(case, 0), loop.Place(0, 0, 0, True, True), 0, torch.float32)
    for checkpointed in (False, True):
        if checkpointed:
            assert models.checkpoint_activations(built.module)
        called.clear()
        loss = built.loss(built.module, batch, 1)[0]
        forward = len(called)
        loss.backward()  # type: ignore[no-untyped-call]
        assert (len(called) > forward) == checkpointed


def test_a_model_without_checkpointing_says_so() -> None:
    assert not models.checkpoint_activations(torch.nn.Linear(2, 2))


def test_the_document_has_every_parameter_and_its_shape() -> None:
    text = DOCUMENT.split("## Models")[1].split("## Call styles")[0]
    sizes = {"wide": 131}
    stated = {}
    for names, shapes in re.findall(r"\| ((?:`[\w.]+`(?:, )?)+) \| ((?:\([\w, ]+\)(?:, )?)+) \|", text):
        for name, shape in zip(re.findall(r"`([\w.]+)`", names), re.findall(r"\(([\w, ]+)\)", shapes), strict=True):
            stated[name] = tuple(sizes.get(one) or int(one) for one in shape.split(", "))
    module = models.LatticeMlp(fork=True)
    assert stated == {name: tuple(one.shape) for name, one in module.named_parameters()}
    for model in ("lattice-embedding", "lattice-convolution"):
        part = text.split(f"**`{model}`**")[1].split("```")[0]
        stated = {
            name: tuple(map(int, shape.split(", "))) for name, shape in re.findall(r"`(\w+\.\w+)` \(([\d, ]+)\)", part)
        }
        module = models.make(model, {"tied": False} if model == "lattice-embedding" else {})
        assert stated == {name: tuple(one.shape) for name, one in module.named_parameters()}


@pytest.mark.parametrize("model", ALL_MODELS, ids=id_of)
def test_a_loss_is_in_fp32_at_least(model: Model, tmp_path: Path) -> None:
    case = small_case(tmp_path, model)
    place = loop.Place(0, 0, 0, True, True)
    for name, want in (("bf16", torch.float32), ("fp16", torch.float32), ("fp32", torch.float32), ("fp64", torch.float64)):
        dtype = loop.DTYPES[name]
        built = loop.plain_module(case)
        batch = loop.batch_of(loop.read_batches(case, 0), place, 0, dtype)
        loss, output, gradient = built.loss(built.module.to(dtype), batch, 1)
        assert (loss.dtype, output.dtype, gradient.dtype) == (want, dtype, dtype)


def test_models_that_are_not_there_are_refused() -> None:
    for model in (Model("mlp"), Model("lattice-mlp", {"deep": 3})):
        with pytest.raises(ProtocolError, match=r"^\[judge\] expected "):
            models.build(model)


def test_the_reference_is_autograd(tmp_path: Path) -> None:
    """Against a computation by hand of the whole model, with its factor and scale."""
    case = small_case(tmp_path, Model("lattice-mlp", factor=3), world=2, seed=6)  # where the kink of every layer decides
    values = tensors.read(case.weights)
    batches = {name: one * 3 if name.endswith("input") else one for name, one in tensors.read(case.batches).items()}
    tensors.write(case.batches, batches)  # so large that some units are at 6 and above
    losses, named = reference.local(case, 0, values, scale=8.0)
    for rank in range(2):
        for micro in range(2):
            leaves = {name: one.double().requires_grad_() for name, one in values.items()}
            out = batches[f"s0.r{rank}.m{micro}.b0.input"].double()
            for layer in ("first", "second", "second", "wide"):
                out = out @ leaves[f"{layer}.weight"].t() + leaves.get(f"{layer}.bias", torch.zeros(1))
                out = out.clamp(0, 6) * ((out > 0) & (out < 6)) + 6.0 * (out >= 6).double()
            out = (out @ leaves["last.weight"].t() + leaves["last.bias"]) * leaves["gain"]
            loss = (out * batches[f"s0.r{rank}.m{micro}.b0.gradient"]).sum() * 3
            loss.backward()
            assert losses[f"r{rank}.m{micro}"] == losses[f"fp64/r{rank}.m{micro}"] == [loss.item()]
            for name, leaf in leaves.items():
                got = named.get(local_key(rank, micro, name))
                assert (got is None) == (leaf.grad is None)
                if got is not None and leaf.grad is not None:
                    assert torch.equal(got, leaf.grad), name


def test_the_reference_adds_backwards_and_overflows_where_the_case_does(tmp_path: Path) -> None:
    case = small_case(tmp_path, world=2, options={"backwards": 2, "overflow": "0:1"})
    losses, named = reference.local(case, 0, tensors.read(case.weights))
    assert len(losses["r0.m0"]) == 2
    infinite = {place for place, some in losses.items() if not all(map(math.isfinite, some))}
    assert infinite <= {"r1.m0", "fp64/r1.m0"}
    bad = {name.split("/")[-2] for name, one in named.items() if not one.isfinite().all()}
    assert bad == {"r1.m0"}
    alone = small_case(tmp_path / "alone", world=2, accumulation=4)
    batches = tensors.read(case.batches)
    flat = {
        f"s0.r{r}.m{m}.b0.{key}": batches[f"s0.r{r}.m{m // 2}.b{m % 2}.{key}"]
        for r in range(2)
        for m in range(4)
        for key in ("input", "gradient")
    }
    tensors.write(alone.batches, flat)
    _, parts = reference.local(alone, 0, tensors.read(case.weights))
    for name in ("first.weight", "gain"):
        assert torch.equal(named[local_key(0, 1, name)], parts[local_key(0, 2, name)] + parts[local_key(0, 3, name)])


def test_the_reference_has_the_rounding_of_the_precision(tmp_path: Path) -> None:
    case = small_case(tmp_path, Model("gpt"), precision=Precision("bf16"))
    cast = dataclasses.replace(case, precision=Precision("fp32", autocast="bf16"))
    values = tensors.read(case.weights)
    for one in (case, cast):
        _, named = reference.local(one, 0, values)
        low, exact = named[local_key(0, 0, "norm.weight")], named[local_key(0, 0, "norm.weight", exact=True)]
        far = ((low - exact).norm() / exact.norm()).item()
        assert 2**-12 < far < 2**-4, far
