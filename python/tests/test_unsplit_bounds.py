"""Models that ranks share, of transformers and one of our own, on real text: gradients within computed bounds of the unsplit model
in fp64, phase by phase, and no further from it than the unsplit run in the same precision; planted faults break a bound."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import equigrad
import ranks
import unsplit_bounds
import unsplit_models
from equigrad import _core
from equigrad.judge.local_gradients import CHANCE, LEAST_FACTOR
from tensor_runs import whole
from unsplit_bounds import Lanes, Linear, Ratio, Shape
from unsplit_models import IGNORED, Own, shifted

TEXT = Path(__file__).parents[2] / "reference" / "data" / "plays_slice.txt"
BATCH, LENGTH, HEADS = 2, 64, 8
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Ranks = list[tuple[torch.Tensor, dict[str, Linear], dict[str, torch.Tensor]]]


def of_transformers(kind: str) -> torch.nn.Module:
    import transformers

    sizes = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 4,
        "max_position_embeddings": LENGTH,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
    }
    model: torch.nn.Module = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
    return model


def make(kind: str) -> torch.nn.Module:
    """Own, or of transformers."""
    torch.manual_seed(11)
    model = Own(LENGTH) if kind == "Own" else of_transformers(kind)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # neither ones nor zeros
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.train()


def batch() -> dict[str, torch.Tensor]:
    """Bytes of plays; what is said counts, and not who says it: unevenly along the sequence."""
    held = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8)
    tokens = torch.stack([held[at : at + LENGTH] for at in (4_000, 90_000)]).long()
    labels = tokens.masked_fill(tokens < ord("a"), IGNORED)
    labels[0, : LENGTH // 3] = IGNORED
    return {"input_ids": tokens, "labels": labels}


def configuration(shape: Shape, precision: str, **more: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": 1 if shape.tensor > 1 else 2},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "tensor_parallel": {"autotp_size": shape.tensor},
        "sequence_parallel_size": shape.sequence,
    }
    if precision == "bf16":
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return {**config, **more}


def play(kind: str, precision: str, shape: Shape, plant: str) -> Any:
    """Of this rank: the loss, what its linears were given and gave, and whole gradients."""
    model = make(kind).to(TYPES[precision])
    if isinstance(model, Own) and shape.sequence > 1:
        mesh = equigrad.parallel.mesh(sequence=shape.sequence)
        model.attend = equigrad.parallel.DistributedAttention(unsplit_models.attention, mesh)
        model.loss_of = lambda logits, targets: equigrad.parallel.cross_entropy(logits, targets, mesh)
    more = PLANTS[plant](model, shape) if plant else None
    engine = equigrad.initialize(model=model, config=configuration(shape, precision, **(more or {})))[0]
    recorded = unsplit_bounds.record(engine.module)
    given = batch() if shape.sequence == 1 else equigrad.parallel.split_batch(batch(), engine)
    loss = engine(**given).loss
    engine.backward(loss)
    read = equigrad.utils.safe_get_full_grad
    gradients = {name: whole(engine, one, read(one)) for name, one in engine.module.named_parameters()}
    return loss.detach(), recorded(), gradients


def whole_loss(model: torch.nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(**batch(), use_cache=False).loss
    return loss


def gradients_of(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    loss.backward()
    return {name: one.grad for name, one in model.named_parameters()}


def in_fp64(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """transformers computes norms and losses in fp32, whatever the model's type: here in fp64."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = lambda x, of=module: (
                of.weight * x * torch.rsqrt(x.square().mean(-1, True) + of.variance_epsilon)
            )
    given = batch()
    logits = model(input_ids=given["input_ids"], use_cache=False).logits
    assert logits.dtype == torch.float64
    return gradients_of(
        model, F.cross_entropy(logits.flatten(0, 1), shifted(given["labels"]).flatten(), ignore_index=IGNORED)
    )


def judge(of_ranks: Ranks, kind: str, precision: str, shape: Shape) -> tuple[Lanes, dict[str, Ratio]]:
    model = make(kind).to(TYPES[precision])
    lanes = unsplit_bounds.check_pass(copy.deepcopy(model), of_ranks, shape, whole_loss, shifted(batch()["labels"]))
    plain = copy.deepcopy(model)
    found = unsplit_bounds.ratios(
        of_ranks[0][2],
        gradients_of(plain, whole_loss(plain)),
        in_fp64(model),
        lambda errors: unsplit_bounds.room_of(errors, LEAST_FACTOR, CHANCE),
    )
    return lanes, found


def judged(kind: str, precision: str, shape: Shape, plant: str = "") -> tuple[Lanes, dict[str, Ratio]]:
    if kind != "Own":
        transformers = pytest.importorskip("transformers")
        getattr(transformers, f"{kind}ForCausalLM")  # imported once, and not by each rank
    of_ranks = ranks.run(shape.ranks, play, kind, precision, shape, plant)
    result: tuple[Lanes, dict[str, Ratio]] = ranks.alone(judge, of_ranks, kind, precision, shape)
    return result


SHAPES = [Shape(tensor=2), Shape(tensor=4), Shape(sequence=2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["Own", "Llama", "Qwen2"])
def test_gradients_are_within_bounds_of_the_unsplit_model(kind: str, precision: str, shape: Shape) -> None:
    lanes, ratios = judged(kind, precision, shape)
    assert lanes.first == ""
    assert all(lane.compared > 0 for lane in lanes.named().values())
    for name, ratio in ratios.items():
        assert ratio.largest_split <= ratio.room, (name, ratio)


# ---- Planted faults ------------------------------------------------------------------------------------------------------

Plant = Callable[[torch.nn.Module, Shape], dict[str, Any] | None]


def change_parts(change: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
    """Of row-parallel layers, before they are added."""

    def row_linear(given: Any, weight: Any, bias: Any, group: Any) -> torch.Tensor:
        assert bias is None
        return _core.reduce_from(change(F.linear(given, weight), group), group)

    _core.row_linear = row_linear


def add_a_part_twice(_: torch.nn.Module, __: Shape) -> None:
    change_parts(lambda part, group: part * 2 if group.rank == 0 else part)


def divide_by_tensor_ranks(model: torch.nn.Module, shape: Shape) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient / shape.tensor)


def average_means(_: torch.nn.Module, shape: Shape) -> None:
    def mean_of_means(logits: Any, targets: Any, group: Any, ignored: int) -> torch.Tensor:
        mean = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), ignore_index=ignored)
        return _core.reduce_from(mean, group) / shape.sequence

    _core.sequence_cross_entropy = mean_of_means


def round_sums_of_two(_: torch.nn.Module, shape: Shape) -> None:
    """((0 + 1) + (2 + 3)) of bf16, each sum rounded to it."""

    def row_linear(given: Any, weight: Any, bias: Any, group: Any) -> torch.Tensor:
        every = _core.gather_from(F.linear(given, weight).unsqueeze(0), 0, group)
        assert every.shape[0] == shape.tensor == 4
        return (every[0] + every[1]) + (every[2] + every[3])

    _core.row_linear = row_linear


def round_parts(_: torch.nn.Module, __: Shape) -> None:
    change_parts(lambda part, _: part.bfloat16().to(part.dtype))


def sum_in_bf16(_: torch.nn.Module, __: Shape) -> dict[str, Any]:
    return {"data_types": {"grad_accum_dtype": "bf16"}}


def scale_sums(by: float) -> Plant:
    def plant(_: torch.nn.Module, __: Shape) -> None:
        change_parts(lambda part, _: part * by)

    return plant


PLANTS: dict[str, Plant] = {
    "a part added twice": add_a_part_twice,
    "1/tensor": divide_by_tensor_ranks,
    "mean of means": average_means,
    "sums of two rounded": round_sums_of_two,
    "parts rounded": round_parts,
    "sum in bf16": sum_in_bf16,
    **{f"parts x (1 + 2^-{k})": scale_sums(1 + 2.0**-k) for k in range(1, 24)},
}


PLANTED = [
    ("a part added twice", "fp32", Shape(tensor=2)),
    ("a part added twice", "bf16", Shape(tensor=4)),
    ("1/tensor", "bf16", Shape(tensor=2)),
    ("mean of means", "fp32", Shape(sequence=2)),
    ("mean of means", "bf16", Shape(sequence=2)),
    ("sums of two rounded", "bf16", Shape(tensor=4)),
    ("parts rounded", "fp32", Shape(tensor=2)),
    ("sum in bf16", "bf16", Shape(sequence=2)),
    ("parts x (1 + 2^-23)", "fp32", Shape(tensor=2)),
    ("parts x (1 + 2^-8)", "bf16", Shape(tensor=2)),
]


@pytest.mark.parametrize(("plant", "precision", "shape"), PLANTED, ids=str)
def test_a_planted_fault_breaks_a_bound(plant: str, precision: str, shape: Shape) -> None:
    assert judged("Own", precision, shape, plant)[0].first != ""
