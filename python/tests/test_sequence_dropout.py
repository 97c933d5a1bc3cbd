"""Dropout on ranks of a sequence: other masks on each, though they have one seed; gradients are those of one process that draws the
same numbers, bit for bit; also where activations are computed again and where a run is resumed."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import dropout_models as models
import equigrad
import random_twin
import ranks
import sequence_twin
import twin
from equigrad import _core
from tensor_runs import whole

# On some processors MKL's products of matrices have other last bits where there are more of them in one call, as in the twin.
os.environ["MKL_CBWR"] = "COMPATIBLE"

STEPS, PASSES, LR, SEED, LENGTH = 2, 2, 0.05, 100, 16
Attend = Callable[..., torch.Tensor]


class Gpt(nn.Module):
    """attention(query, key, value, rate): of [batch, sequence, heads, width]."""

    def __init__(self, attention: Attend | None) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.tokens, self.places = nn.Embedding(models.VOCABULARY, models.WIDTH), nn.Embedding(LENGTH, models.WIDTH)
        self.norm, self.head = nn.LayerNorm(models.WIDTH), nn.Linear(models.WIDTH, models.VOCABULARY)
        self.query, self.key, self.value, self.output = (nn.Linear(models.WIDTH, models.WIDTH) for _ in range(4))
        self.dropout, self.attention, self.recomputes = nn.Dropout(0.25), attention, ""

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> SimpleNamespace:
        hidden = self.dropout(self.tokens(input_ids) + self.places(position_ids.expand(input_ids.shape[0], -1)))
        if self.recomputes:
            again = torch.utils.checkpoint.checkpoint
            hidden = again(self.attend, hidden, use_reentrant=self.recomputes == "reentrant")
        else:
            hidden = self.attend(hidden)
        return SimpleNamespace(logits=self.head(hidden))

    def attend(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        of = (one(normed).unflatten(2, (models.HEADS, -1)) for one in (self.query, self.key, self.value))
        assert self.attention is not None
        attended = self.attention(*of, 0.25 if self.training else 0.0)
        return hidden + self.dropout(self.output(attended.flatten(2)))


def local_attention(*given: Any) -> torch.Tensor:
    """[batch, sequence, heads, width]"""
    return models.attend(*(one.transpose(1, 2) for one in given[:3]), given[3]).transpose(1, 2)


def labels_of(step: int, data_rank: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels, some of which do not count."""
    tokens = models.tokens_of(step, data_rank, micro_batch, LENGTH)
    labels = tokens.clone()
    labels[:, : 3 + step + data_rank] = sequence_twin.IGNORED
    return tokens, labels


def configuration(stage: int, sequence: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": models.BATCH,
        "gradient_accumulation_steps": PASSES,
        "sequence_parallel_size": sequence,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "SGD", "params": {"lr": LR}},
    }


def engine_of(kind: str, sequence: int, stage: int, how: str) -> equigrad.Engine:
    if kind == "grid":
        return grid_engine(models.Own(), stage, how)
    if kind == "own":
        mesh = equigrad.parallel.mesh(sequence=sequence)
        model: Any = Gpt(equigrad.parallel.DistributedAttention(local_attention, mesh))
        model.recomputes = how if how in ("recomputed", "reentrant") else ""
    else:
        model = models.make(kind)
        if how in ("recomputed", "reentrant"):
            models.recompute(model, use_reentrant=how == "reentrant")
    return equigrad.initialize(model=model, config=configuration(stage, sequence))[0]


def played(kind: str, sequence: int, stage: int, how: str, folder: str = "") -> tuple[list, torch.Tensor]:
    engine = engine_of(kind, sequence, stage, how)
    torch.manual_seed(SEED + engine.data_parallel_rank)
    history = []
    for step in range(STEPS):
        if how == "resumed" and step == STEPS - 1:
            engine.save_checkpoint(folder)
            engine.destroy()
            engine = engine_of(kind, sequence, stage, how)
            torch.manual_seed(0)
            assert engine.load_checkpoint(folder)[0] is not None
        for k in range(PASSES):
            tokens, labels = labels_of(step, engine.data_parallel_rank, k)
            part = equigrad.parallel.split_batch({"input_ids": tokens, "labels": labels}, engine)
            logits = engine(part["input_ids"], position_ids=part["position_ids"]).logits
            engine.backward(equigrad.parallel.cross_entropy(logits, part["shift_labels"], engine))
            if k == PASSES - 1:
                read = equigrad.utils.safe_get_full_grad
                history.append({n: whole(engine, one, read(one)) for n, one in engine.module.named_parameters()})
            engine.step()
    return history, torch.get_rng_state()


def twin_of(kind: str, data: int, sequence: int, stage: int) -> tuple[list, torch.Tensor]:
    torch.set_num_threads(1)
    model: Any = Gpt(None) if kind == "own" else models.make("own" if kind == "grid" else kind)
    streams = random_twin.Sequence(sequence, 2 if kind == "grid" else 1)
    if kind in ("own", "grid"):
        put, local = (_own_attention if kind == "own" else _own_layers)(streams)
    else:
        put, local = _hugging_faces_attention(model)
    states, history = [], []
    for rank in range(data):
        torch.manual_seed(SEED + rank)
        states.append(torch.get_rng_state())
    for step in range(STEPS):
        by_rank: list[list] = [[] for _ in range(data * sequence)]
        for k in range(PASSES):
            for rank in range(data):
                torch.set_rng_state(states[rank])
                gradients = _gradients(model, streams, put, local, labels_of(step, rank, k))
                states[rank] = torch.get_rng_state()
                for at, one in enumerate(gradients):
                    by_rank[rank * sequence + at].append(one)
        history.append(twin.averaged(by_rank, stage, sequence))
        twin.sgd(model, history[-1], LR)
    return history, states[0]


def _gradients(
    model: nn.Module, streams: random_twin.Sequence, put: Any, local: Attend, batch: tuple[torch.Tensor, torch.Tensor]
) -> list:
    sequence = streams.streams.size
    tokens, places = batch[0].chunk(sequence, 1), torch.arange(LENGTH).unsqueeze(0).chunk(sequence, 1)
    shifted = torch.cat([batch[1][:, 1:], torch.full_like(batch[1][:, :1], sequence_twin.IGNORED)], 1)

    def logits_of(one: nn.Module, part: int) -> torch.Tensor:
        return streams.run(part, lambda: one(tokens[part], position_ids=places[part]).logits)

    with streams.dropping():
        attend, tensor = streams.by_heads(local), streams.groups[0].size
        return sequence_twin.gradients(model, sequence, attend, put, logits_of, shifted, tensor)[1]


def _own_attention(_: random_twin.Sequence) -> tuple[Any, Attend]:
    def put(model: Any, attend: Attend) -> None:
        def by_sequence(*given: Any) -> torch.Tensor:
            return attend(*(one.transpose(1, 2) for one in given[:3]), given[3]).transpose(1, 2)

        model.attention = by_sequence

    return put, models.attend


def _own_layers(streams: random_twin.Sequence) -> tuple[Any, Attend]:
    """Split over a tensor group, too."""
    parts = itertools.cycle(streams.groups)

    def put(model: Any, attend: Attend) -> None:
        models.split("own", model, next(parts))
        for layer in model.layers:
            layer.attend = attend

    return put, models.attend


def _hugging_faces_attention(model: Any) -> tuple[Any, Attend]:
    import transformers
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    meetings: dict[nn.Module, Attend] = {}

    def of_a_part(module: Any, query: Any, key: Any, value: Any, _: Any, **more: Any) -> tuple[torch.Tensor, None]:
        rate = more.get("dropout", 0.0)
        return meetings[module](query, key, value, rate, more["scaling"], module.is_causal).transpose(1, 2), None

    def local(query: Any, key: Any, value: Any, rate: float, scaling: float, is_causal: bool) -> torch.Tensor:
        seen = SimpleNamespace(num_key_value_groups=query.shape[1] // key.shape[1], is_causal=is_causal)
        return sdpa_attention_forward(seen, query, key, value, None, dropout=rate, scaling=scaling)[0].transpose(1, 2)

    def put(model: nn.Module, attend: Attend) -> None:
        meetings.update(dict.fromkeys(model.modules(), attend))

    transformers.AttentionInterface.register("dropping_part", of_a_part)
    model.config._attn_implementation = "dropping_part"
    model.config.use_cache = False
    return put, local


wanted = functools.cache(lambda *of: ranks.alone(twin_of, *of))


def assert_same(got: list[tuple[list, torch.Tensor]], want: tuple[list, torch.Tensor]) -> None:
    for rank, (history, _) in enumerate(got):
        for step, (gradients, wanted_ones) in enumerate(zip(history, want[0], strict=True)):
            assert gradients.keys() == wanted_ones.keys()
            for name, gradient in wanted_ones.items():
                twin.assert_same_bits(gradients[name], gradient, f"rank {rank}, step {step + 1}, gradient of {name}")
    twin.assert_same_bits(got[0][1], want[1], "torch's generator on rank 0")


KINDS = ["own", "Llama", "GPT2", "Bert"]
WAYS = [(1, 2, 2, ""), (1, 2, 2, "recomputed"), (1, 2, 1, "reentrant"), (2, 2, 3, "resumed")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("data", "sequence", "stage", "how"), WAYS)
def test_a_sequence_group_draws_as_one_process(
    kind: str, data: int, sequence: int, stage: int, how: str, tmp_path: Any
) -> None:
    models.require(kind)
    got = ranks.run(data * sequence, played, kind, sequence, stage, how, str(tmp_path))
    assert_same(got, wanted(kind, data, sequence, stage))


# ---- Planted faults --------------------------------------------------------------------------------------------------


def one_mask_for_all_parts() -> None:
    _core.enter_split_random = lambda *_: False


def not_put_back() -> None:
    _core.abandon_split_random = lambda _: False


def one_mask_on_a_tensor_group() -> None:
    own = _core.enter_split_random
    _core.enter_split_random = lambda *of: of[-1] == _core.RandomParts.Sequence and own(*of)


def played_planted(plant: Callable[[], None], kind: str) -> tuple[list, torch.Tensor]:
    plant()
    return played(kind, 2, 1, "")


@pytest.mark.parametrize(
    ("plant", "kind", "world"),
    [(one_mask_for_all_parts, "own", 2), (not_put_back, "own", 2), (one_mask_on_a_tensor_group, "grid", 4)],
)
def test_planted_faults_are_seen(plant: Any, kind: str, world: int) -> None:
    with pytest.raises(AssertionError, match="elements differ"):
        assert_same(ranks.run(world, played_planted, plant, kind), wanted(kind, 1, 2, 1))


def effects() -> dict[str, torch.Tensor]:
    engine = engine_of("own", 2, 1, "")
    tokens = models.tokens_of(0, 0, 0, LENGTH)
    part = equigrad.parallel.split_batch({"input_ids": tokens}, engine)
    states = {}

    def run(name: str, *given: Any) -> None:
        torch.manual_seed(SEED)
        try:
            engine(*given)
        except (RuntimeError, IndexError):
            states["raised"] = torch.ones(1)
        states[name] = torch.get_rng_state()

    torch.manual_seed(SEED)
    states["before"] = torch.get_rng_state()
    engine.eval()
    run("evaluated", part["input_ids"], part["position_ids"])
    engine.train()
    run("trained", part["input_ids"], part["position_ids"])
    hook = engine.module.norm.register_forward_pre_hook(lambda *_: torch.ones(1)[2])
    run("after an exception", part["input_ids"], part["position_ids"])
    engine.destroy()
    torch.manual_seed(SEED)
    with pytest.raises(IndexError):
        engine.module(part["input_ids"], part["position_ids"])
    states["destroyed"] = torch.get_rng_state()
    hook.remove()
    torch.manual_seed(SEED)
    engine.module.dropout(torch.ones(*part["input_ids"].shape, models.WIDTH))
    states["a mask"] = torch.get_rng_state()
    return states


def test_what_a_forward_pass_leaves_behind() -> None:
    for states in ranks.run(2, effects):
        assert "raised" in states
        assert torch.equal(states["evaluated"], states["before"])
        assert not torch.equal(states["trained"], states["before"]), "one number was drawn"
        assert torch.equal(states["after an exception"], states["trained"])
        assert torch.equal(states["destroyed"], states["a mask"]), "a model without its engine draws by itself"


# ---- Beside a tensor group -------------------------------------------------------------------------------------------


class Recorded(nn.Module):
    """The masks of what all tensor ranks have, and of what they have parts of."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.masks = module, []

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        mask = self.module(torch.ones_like(given))
        self.masks.append(mask.detach().clone())
        return given * mask


def grid_engine(model: models.Own, stage: int, how: str) -> equigrad.Engine:
    mesh = equigrad.parallel.mesh(sequence=2, tensor=2)
    for layer in model.layers:
        layer.attend = equigrad.parallel.DistributedAttention(models.attend, mesh, 1, 2)
        layer.recomputes = how if how in ("recomputed", "reentrant") else ""
    config = {**configuration(stage, 2), "tensor_parallel": {"autotp_size": 2}}
    return equigrad.initialize(model=model, config=config)[0]


def masks_of_a_grid(how: str) -> dict[str, list[torch.Tensor]]:
    model = models.Own()
    of_whole, of_parts = [model], []
    for layer in model.layers:
        layer.inner_dropout = Recorded(layer.inner_dropout)
        of_parts.append(layer.inner_dropout)
        of_whole.append(layer)
    for module in of_whole:
        module.dropout = Recorded(module.dropout)
    engine = grid_engine(model, 1, how)
    torch.manual_seed(SEED)
    tokens, labels = labels_of(0, 0, 0)
    part = equigrad.parallel.split_batch({"input_ids": tokens, "labels": labels}, engine)
    logits = engine(part["input_ids"]).logits
    engine.backward(equigrad.parallel.cross_entropy(logits, part["shift_labels"], engine))
    whole_masks = [mask for module in of_whole for mask in module.dropout.masks]
    return {"whole": whole_masks, "parts": [mask for module in of_parts for mask in module.masks]}


@pytest.mark.parametrize("how", ["", "recomputed", "reentrant"])
def test_a_tensor_group_within_a_sequence(how: str) -> None:
    """Rank = 2 x its place in the sequence + its place in the tensor group."""
    got = ranks.run(4, masks_of_a_grid, how)
    again = 1 if how == "" else 2
    assert [len(got[0][name]) for name in ("whole", "parts")] == [1 + 2 * 2 * again, 2 * again]
    for first, second in zip(got[0]["whole"], got[1]["whole"], strict=True):
        assert torch.equal(first, second), "a tensor group has it whole"
    for name, others in (("whole", (2, 3)), ("parts", (1, 2, 3))):
        for at, mask in enumerate(got[0][name]):
            assert all(not torch.equal(mask, got[rank][name][at]) for rank in others), name
    if how != "":  # layer by layer: all masks of the forward pass, then again
        for one in got:
            assert torch.equal(one["parts"][0], one["parts"][1]) and torch.equal(one["parts"][2], one["parts"][3])


@pytest.mark.parametrize("how", ["", "recomputed", "resumed"])
def test_a_tensor_group_within_a_sequence_draws_as_one_process(how: str, tmp_path: Any) -> None:
    got = ranks.run(4, played, "grid", 2, 1, how, str(tmp_path))
    assert_same(got, wanted("grid", 1, 2, 1))
