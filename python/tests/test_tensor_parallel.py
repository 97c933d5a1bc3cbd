"""Tensor groups in Python: a split model's gradients are its twin's, bit for bit, and the unsplit model's where sums are exact;
the norm counts what is whole once; planted faults are seen."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import equigrad
import ranks
import tensor_models as models
import twin
from equigrad import _core, _split_modules, deepspeed
from tensor_runs import (
    LOSSES,
    LR,
    PASSES,
    SPECS,
    STEPS,
    STEPS_OF,
    configuration,
    disturbed,
    trained,
    whole,
    without_optimizer,
)
from tensor_twin import Cut, Group


def play(kind: type, tensor: int, stage: int) -> dict[str, Any]:
    engine = equigrad.initialize(model=disturbed(kind()), config=configuration(tensor, stage))[0]
    return trained(engine, LOSSES[kind], STEPS_OF[kind])


def play_twin(kind: type, data: int, tensor: int, stage: int) -> Any:
    def make() -> torch.nn.Module:
        model = kind()
        if tensor > 1:
            models.split_decoder(model, Group(tensor))
        return model

    return twin.train(make, LOSSES[kind], data, stage, STEPS_OF[kind], PASSES, LR)


def assert_same(played: dict[str, Any], want: tuple[Any, Any]) -> None:
    for step, (got, wanted) in enumerate(zip(played["history"], want[0], strict=True)):
        assert set(got) == set(wanted)
        for name, value in wanted.items():
            if value is None or got[name] is None:
                assert value is None and got[name] is None, name
            else:
                twin.assert_same_bits(got[name], value, f"step {step + 1}, gradient of {name}")
    for name, value in want[1].items():
        twin.assert_same_bits(played["parameters"][name], value, name)


GRIDS = [(1, 2), (1, 4), (2, 2)]


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(("data", "tensor"), GRIDS)
def test_a_split_decoder_has_the_bits_of_its_twin(data: int, tensor: int, stage: int) -> None:
    played = ranks.run(data * tensor, play, models.Decoder, tensor, stage)
    assert len({one["digest"] for one in played}) == 1, "ranks differ"
    assert len({one["norm"] for one in played}) == 1, "norms differ"
    assert_same(played[0], ranks.alone(play_twin, models.Decoder, data, tensor, stage))


@pytest.mark.parametrize(("data", "tensor"), GRIDS)
def test_sums_that_are_exact_have_the_bits_of_the_unsplit_model(data: int, tensor: int) -> None:
    played = ranks.run(data * tensor, play, models.Lattice, tensor, 1)
    assert_same(played[0], ranks.alone(play_twin, models.Lattice, data, 1, 1))


# ---- Precisions, specs, the vocabulary -------------------------------------------------------------------------------


def play_bf16(section: dict[str, Any]) -> dict[str, Any]:
    config = configuration(2, 2, section, bf16={"enabled": True}, data_types={"grad_accum_dtype": "fp32"})
    engine = deepspeed.initialize(model=disturbed(models.Decoder()), config=config)[0]
    return trained(engine, models.decoder_loss, 1)


def twin_bf16() -> Any:
    model = models.Decoder().bfloat16()
    models.split_decoder(model, Group(2))
    passes = [twin.local_gradients(model, models.decoder_loss(model, 0, 0, k)) for k in range(PASSES)]
    in_fp32 = [{n: None if g is None else g.float() for n, g in one.items()} for one in passes]
    return twin.averaged([in_fp32], 2)


def test_in_bf16_every_sum_is_in_fp32_and_rounded_once() -> None:
    got, want = ranks.run(2, play_bf16, {})[0]["history"][0], ranks.alone(twin_bf16)
    for name, value in want.items():
        if value is not None:
            twin.assert_same_bits(got[name].float(), value, name)


def play_specs(stage: int) -> dict[str, Any]:
    section = {"partition_config": {"use_default_specs": False, "layer_specs": SPECS}}
    engine = equigrad.initialize(model=disturbed(models.Decoder()), config=configuration(2, stage, section))[0]
    held = engine.module.embed_tokens.weight
    assert held is engine.module.lm_head.weight and list(held.shape) == [models.VOCABULARY // 2, models.WIDTH]
    assert "lm_head  column" in engine.tensor_parallel_plan and "embed_tokens  vocabulary" in engine.tensor_parallel_plan
    return trained(engine, models.decoder_loss)


def twin_specs(stage: int) -> Any:
    def make() -> torch.nn.Module:
        model = models.Decoder()
        models.split_decoder(model, Group(2))
        Group(2).column(model.lm_head, Cut(0))
        return model

    return twin.train(make, models.decoder_loss, 1, stage, STEPS, PASSES, LR)


def test_specs_of_the_caller_and_a_split_vocabulary() -> None:
    assert_same(ranks.run(2, play_specs, 1)[0], ranks.alone(twin_specs, 1))


class WordScaledWordEmbedding(torch.nn.Embedding):
    """As those of transformers of such a name."""

    __module__ = "transformers.models.word.modeling_word"

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids) * 3.0


class Words(models.Lattice):
    def __init__(self) -> None:
        super().__init__()
        weight = self.embed.weight
        self.embed = WordScaledWordEmbedding(models.VOCABULARY, 8)
        self.embed.weight = weight


def play_scaled(partition: str, placement: str) -> dict[str, Any]:
    spec = {"patterns": ["embed.weight"], "partition_type": partition, "gather_output": partition == "column"}
    section = {"partition_config": {"use_default_specs": False, "layer_specs": [spec]}}
    engine = equigrad.initialize(model=disturbed(Words()), config=configuration(2, 1, section))[0]
    assert f"embed  {placement}" in engine.tensor_parallel_plan
    return trained(engine, models.lattice_loss, 1)


@pytest.mark.parametrize(("partition", "placement"), [("row", "vocabulary"), ("column", "column")])
def test_an_embedding_that_scales_what_it_looks_up(partition: str, placement: str) -> None:
    want = ranks.alone(twin.train, Words, models.lattice_loss, 1, 1, 1, PASSES, LR)
    assert_same(ranks.run(2, play_scaled, partition, placement)[0], want)


# ---- The norm --------------------------------------------------------------------------------------------------------


def norm_of(stage: int, mark_too: str = "") -> tuple[float, float]:
    """The engine's, and the exact one of the whole gradients."""
    split_model = equigrad._tensor_parallel.split_model

    def split_and_mark(model: torch.nn.Module, *others: Any) -> str:
        plan = split_model(model, *others)
        if mark_too:
            size = models.WIDTH
            _core.mark_split(model.get_parameter(mark_too), _core.Split(0, [2 * size], [2 * size]), 2)
        return plan

    equigrad._tensor_parallel.split_model = split_and_mark
    engine = equigrad.initialize(model=models.Decoder(), config=configuration(2, stage, gradient_accumulation_steps=1))[0]
    engine.backward(models.decoder_loss(engine, 0, engine.data_parallel_rank, 0))
    read = equigrad.utils.safe_get_full_grad
    gradients = {n: whole(engine, p, read(p)) for n, p in engine.module.named_parameters()}
    if mark_too:
        gradients[mark_too] = gradients[mark_too][: models.WIDTH]
    engine.step()
    squares = [float(x) ** 2 for g in gradients.values() if g is not None for x in g.flatten().tolist()]
    return engine.get_global_grad_norm(), math.sqrt(math.fsum(squares))


@pytest.mark.parametrize("stage", [0, 2])
def test_the_norm_counts_what_every_rank_has_once(stage: int) -> None:
    for got, want in ranks.run(4, norm_of, stage):
        assert got == want


# ---- Faults: each is seen --------------------------------------------------------------------------------------------


def bias_on_every_rank() -> None:
    def row_linear(part: Any, weight: Any, bias: Any, group: Any) -> Any:
        return _core.reduce_from(torch.nn.functional.linear(part, weight, bias), group)

    _core.row_linear = row_linear


def across_the_packing() -> None:
    own = _core.part_of

    def part_of(value: Any, split: Any, rank: int, size: int) -> Any:
        return own(value, _core.Split(split.dimension, [sum(split.segments)], split.shape), rank, size)

    _core.part_of = part_of


def by_the_size_of_the_group() -> None:
    own = equigrad._tensor_parallel.split_model

    def split_model(model: torch.nn.Module, config: Any, mesh: Any, *more: Any) -> str:
        plan = own(model, config, mesh, *more)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: gradient / mesh.tensor_size)
        return plan

    equigrad._tensor_parallel.split_model = split_model


def gathered_as_one() -> None:
    own = _core.gather_from
    _core.gather_from = lambda part, dimension, group, segments=(): own(part, dimension, group)


def no_plant() -> None:
    pass


def play_planted(plant: Any, kind: type) -> dict[str, Any]:
    plant()
    return play(kind, 2, 1)


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (bias_on_every_rank, models.Lattice),
        (bias_on_every_rank, models.Decoder),
        (across_the_packing, models.Decoder),
        (by_the_size_of_the_group, models.Lattice),
        (gathered_as_one, models.Decoder),
    ],
)
def test_planted_faults_differ_from_the_twin(plant: Any, kind: type) -> None:
    tensor = 1 if kind is models.Lattice else 2
    with pytest.raises(AssertionError, match="elements differ"):
        assert_same(ranks.run(2, play_planted, plant, kind)[0], ranks.alone(play_twin, kind, 1, tensor, 1))
    assert_same(ranks.run(2, play_planted, no_plant, kind)[0], ranks.alone(play_twin, kind, 1, tensor, 1))


def test_a_norm_that_counts_a_parameter_twice_is_another() -> None:
    for got, want in ranks.run(2, norm_of, 0, "norm.weight"):
        assert got > want


# ---- With the rest of the engine -------------------------------------------------------------------------------------


def with_client(stage: int, is_client: bool) -> dict[str, Any]:
    """SGD of the caller's, made of whole parameters, or the configured one; gradients are clipped. With this rate a product is exact."""
    model, rate = models.Decoder(), 2.0**-5
    config = configuration(2, stage, gradient_clipping=0.01, optimizer={"type": "SGD", "params": {"lr": rate}})
    given: dict[str, Any] = {}
    if is_client:
        given["optimizer"] = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
        config = without_optimizer(config)
    return trained(equigrad.initialize(model=model, config=config, **given)[0], models.decoder_loss)


@pytest.mark.parametrize("stage", [0, 2])
def test_an_optimizer_of_the_callers_holds_its_parameters(stage: int) -> None:
    configured, client = (ranks.run(4, with_client, stage, is_client) for is_client in (False, True))
    assert {one["digest"] for one in configured} == {one["digest"] for one in client} == {client[0]["digest"]}


def recomputed(is_recomputed: bool, use_reentrant: bool) -> str:
    model = models.Decoder()
    if is_recomputed:
        for layer in model.layers:
            own = layer.forward
            layer.forward = lambda x, own=own: torch.utils.checkpoint.checkpoint(own, x, use_reentrant=use_reentrant)
    engine = equigrad.initialize(model=model, config=configuration(2, 1))[0]
    return trained(engine, models.decoder_loss)["digest"]


def test_activations_that_are_computed_again_have_the_same_bits() -> None:
    plain, again, reentrant = (ranks.run(2, recomputed, *how) for how in ((False, False), (True, False), (True, True)))
    assert plain == again == reentrant


def head_alone() -> tuple[dict[str, Any], list[int]]:
    engine = equigrad.initialize(
        model=disturbed(models.Decoder()), config=configuration(2, 1, {"vocab_parallel_lm_head": True})
    )[0]
    return trained(engine, models.decoder_loss), list(engine.module.lm_head.weight.shape)


def test_a_split_head_gives_whole_logits() -> None:
    played, shape = ranks.run(2, head_alone)[0]
    assert shape == [models.VOCABULARY // 2, models.WIDTH]
    assert_same(played, ranks.alone(twin_specs, 1))


def loaded() -> list[tuple[int, list[int]]]:
    data = [(torch.tensor(float(at)),) for at in range(8)]
    engine, _, loader, _ = equigrad.initialize(
        model=models.Decoder(), config=configuration(2, gradient_accumulation_steps=1), training_data=data
    )
    seen = sorted(int(one) for (batch,) in loader for one in batch)
    return engine.train_batch_size(), seen


def test_the_loader_gives_a_tensor_group_the_same_samples() -> None:
    (size, first), second, third, fourth = ranks.run(4, loaded)
    assert size == 4 and second == (4, first) and third == fourth and sorted(first + third[1]) == list(range(8))


def test_a_forward_that_tells_places_from_names_gets_both_as_they_were_given() -> None:
    """As transformers' decorated ones, which take a keyword out and give it again."""

    class Decorated(torch.nn.Module):
        def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None, flag: bool | None = None) -> Any:
            return hidden, attention_mask, flag

    inner = Decorated.forward

    @functools.wraps(inner)
    def outer(self: Any, *inputs: Any, flag: bool | None = None, **keywords: Any) -> Any:
        return inner(self, *inputs, flag=flag, **keywords)

    Decorated.forward = outer  # type: ignore[method-assign]
    module = Decorated()
    _split_modules._cut_what_is_by_heads(module, heads=4, rank=1, size=2)
    hidden, mask = torch.ones(1), torch.arange(4.0).view(1, 4, 1, 1)
    for given, flag in ((module(hidden, attention_mask=mask, flag=True), True), (module(hidden, mask), None)):
        assert given[0] is hidden and given[2] is flag
        assert given[1].flatten().tolist() == [2.0, 3.0]
