"""A sequence on several ranks: gradients of every parameter are those of one process, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equigrad
import ranks
import sequence_twin
import twin

VOCABULARY, LENGTH, BATCH, WIDTH, HEADS = 64, 32, 2, 64, 8
STEPS, PASSES, LR = 2, 2, 0.1


def configuration(stage: int, sequence: int, **more) -> dict:
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": PASSES,
        "sequence_parallel_size": sequence,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "SGD", "params": {"lr": LR}},
        **more,
    }


def batch_of(step: int, data_rank: int, micro_batch: int, **more: Any) -> dict[str, Any]:
    """Labels that count are few, and lie unevenly: in one batch none in the second half."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * data_rank + micro_batch)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
    labels = tokens.clone()
    labels[:, : 3 + step + data_rank] = sequence_twin.IGNORED
    labels[1, LENGTH // 4 :] = sequence_twin.IGNORED
    if micro_batch == 1:
        labels[:, LENGTH // 2 :] = sequence_twin.IGNORED
    return {"input_ids": tokens, "labels": labels, **more}


def shifted(labels: torch.Tensor) -> torch.Tensor:
    return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], sequence_twin.IGNORED)], 1)


# ---- A model of the caller's, which calls DistributedAttention -------------------------------------------------------


def local_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """[batch, sequence, heads, width]"""
    laid_out = (one.transpose(1, 2) for one in (query, key, value))
    is_grouped = query.shape[2] != key.shape[2]
    output = torch.nn.functional.scaled_dot_product_attention(*laid_out, is_causal=True, enable_gqa=is_grouped)
    return output.transpose(1, 2)


class Gpt(torch.nn.Module):
    def __init__(self, key_value_heads: int, attention: Any) -> None:
        super().__init__()
        torch.manual_seed(7)
        some = WIDTH // HEADS * key_value_heads
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.norm, self.last_norm = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.query, self.key = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, some)
        self.value, self.output = torch.nn.Linear(WIDTH, some), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.act, self.down = torch.nn.Linear(WIDTH, 128), torch.nn.GELU(), torch.nn.Linear(128, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.attention = attention

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.places(places.expand(tokens.shape[0], -1))
        normed = self.norm(hidden)
        of = (one(normed).unflatten(2, (-1, WIDTH // HEADS)) for one in (self.query, self.key, self.value))
        hidden = hidden + self.output(self.attention(*of).flatten(2))
        hidden = hidden + self.down(self.act(self.up(self.last_norm(hidden))))
        return self.head(hidden)


def train_own(stage: int, sequence: int, key_value_heads: int) -> tuple[list, list]:
    mesh = equigrad.parallel.mesh(sequence=sequence)
    model = Gpt(key_value_heads, equigrad.parallel.DistributedAttention(local_attention, mesh))
    engine, *_ = equigrad.initialize(model=model, config=configuration(stage, sequence))

    def loss_of(batch: dict[str, Any]) -> torch.Tensor:
        part = equigrad.parallel.split_batch(batch, engine)
        logits = engine(part["input_ids"], part["position_ids"])
        return equigrad.parallel.cross_entropy(logits, part["shift_labels"], engine)

    return steps(engine, sequence, loss_of)


def steps(engine: equigrad.Engine, sequence: int, loss_of: Any, make_batch: Any = batch_of) -> tuple[list, list]:
    """The losses, and the averaged gradients of every step."""
    losses, history = [], []
    for step in range(STEPS):
        for micro_batch in range(PASSES):
            loss = loss_of(make_batch(step, engine.global_rank // sequence, micro_batch))
            losses.append(loss.detach().clone())
            engine.backward(loss)
            if engine.is_gradient_accumulation_boundary():
                held = engine.module.named_parameters()
                history.append({name: equigrad.utils.safe_get_full_grad(one) for name, one in held})
            engine.step()
    return losses, history


def twin_of(
    make_model: Any, gradients: Any, stage: int, data: int, sequence: int, make_batch: Any = batch_of
) -> tuple[list, list]:
    """gradients(model, batch): the loss, and what each rank of the sequence adds."""
    torch.set_num_threads(1)
    model = make_model()
    losses, history = [], []
    for step in range(STEPS):
        by_rank: list[list] = [[] for _ in range(data * sequence)]
        for micro_batch in range(PASSES):
            for data_rank in range(data):
                loss, parts = gradients(model, make_batch(step, data_rank, micro_batch))
                losses.append(loss)
                for at, part in enumerate(parts):
                    by_rank[data_rank * sequence + at].append(part)
        history.append(twin.averaged(by_rank, stage, sequence))
        twin.sgd(model, history[-1], LR)
    return losses, history


def heads_first(attend: Any) -> Any:
    return lambda *some: attend(*(one.transpose(1, 2) for one in some)).transpose(1, 2)


def twin_of_own(stage: int, data: int, sequence: int, key_value_heads: int) -> tuple[list, list]:
    def put(model: torch.nn.Module, attend: Any) -> None:
        model.attention = heads_first(attend)

    def gradients(model: torch.nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, list]:
        tokens, places = batch["input_ids"].chunk(sequence, 1), torch.arange(LENGTH).chunk(sequence)
        return sequence_twin.gradients(
            model,
            sequence,
            heads_first(local_attention),
            put,
            lambda one, part: one(tokens[part], places[part].unsqueeze(0)),
            shifted(batch["labels"]),
        )

    return twin_of(lambda: Gpt(key_value_heads, None), gradients, stage, data, sequence)


def expect_the_same(got: list[tuple[list, list]], want: tuple[list, list], sequence: int) -> None:
    data = len(got) // sequence
    for rank, (losses, history) in enumerate(got):
        for at, loss in enumerate(losses):
            twin.assert_same_bits(loss, want[0][at * data + rank // sequence], f"rank {rank}, loss {at}")
        assert len(history) == STEPS
        for step, gradients in enumerate(history):
            assert gradients.keys() == want[1][step].keys()
            for name, gradient in gradients.items():
                twin.assert_same_bits(gradient, want[1][step][name], f"rank {rank}, step {step}, gradient of {name}")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("data", "sequence", "key_value_heads"), [(1, 2, 4), (2, 2, 1), (1, 4, 2)])
def test_gradients_are_those_of_one_process(data: int, sequence: int, key_value_heads: int, stage: int) -> None:
    want = ranks.alone(twin_of_own, stage, data, sequence, key_value_heads)
    expect_the_same(ranks.run(data * sequence, train_own, stage, sequence, key_value_heads), want, sequence)


# ---- Models of transformers, their code as it is ----------------------------------------------------------------------


def make_hugging_face(kind: str, key_value_heads: int, implementation: str) -> torch.nn.Module:
    import transformers

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": key_value_heads,
        "max_position_embeddings": LENGTH,
        "attn_implementation": implementation,
        **({"sliding_window": 12} if kind == "Mistral" else {}),
    }
    torch.manual_seed(11)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
    return model.train()


def padded(step: int, data_rank: int, micro_batch: int) -> dict[str, Any]:
    """Keys that later tokens, which count, would see: across the cuts, and within the first part."""
    batch = batch_of(step, data_rank, micro_batch)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, LENGTH // 4 - 2 : LENGTH // 4 + 1] = mask[0, LENGTH // 2 - 3 : LENGTH // 2 + 2] = mask[1, 1:4] = 0
    return {**batch, "attention_mask": mask, "labels": batch["labels"].masked_fill(mask == 0, sequence_twin.IGNORED)}


def packed(step: int, data_rank: int, micro_batch: int) -> dict[str, Any]:
    """Two documents, the second of which begins in one part and ends in another."""
    first = LENGTH // 2 - 3
    places = torch.cat([torch.arange(first), torch.arange(LENGTH - first)]).expand(BATCH, -1)
    return batch_of(step, data_rank, micro_batch, position_ids=places)


BATCHES = {"plain": batch_of, "padded": padded, "packed": packed}


def train_hugging_face(
    stage: int, sequence: int, kind: str, key_value_heads: int, implementation: str, batches: str
) -> tuple[list, list]:
    model = make_hugging_face(kind, key_value_heads, implementation)
    engine, *_ = equigrad.initialize(model=model, config=configuration(stage, sequence))

    def loss_of(batch: dict[str, Any]) -> torch.Tensor:
        return engine(**equigrad.parallel.split_batch(batch, engine)).loss

    return steps(engine, sequence, loss_of, BATCHES[batches])


def twin_of_hugging_face(
    stage: int, data: int, sequence: int, kind: str, key_value_heads: int, implementation: str, batches: str
) -> tuple[list, list]:
    from types import SimpleNamespace

    import transformers
    from transformers import masking_utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import eager_attention_forward

    inner = eager_attention_forward if implementation == "eager" else ALL_ATTENTION_FUNCTIONS[implementation]
    masks: dict[int, Any] = {}  # of the whole model, by layer
    meetings: dict[torch.nn.Module, Any] = {}
    seen = SimpleNamespace(num_key_value_groups=HEADS // max(key_value_heads, sequence), is_causal=True, training=True)

    def of_the_whole(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        masks[module.layer_idx] = mask
        return inner(module, query, key, value, mask, **kwargs)

    def of_a_part(module: Any, query: Any, key: Any, value: Any, _: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        return meetings[module](query, key, value, masks[module.layer_idx], kwargs["scaling"]).transpose(1, 2), None

    def local(query: Any, key: Any, value: Any, mask: Any, scaling: float) -> torch.Tensor:
        return inner(seen, query, key, value, mask, scaling=scaling)[0].transpose(1, 2)

    transformers.AttentionInterface.register("whole", of_the_whole)
    transformers.AttentionMaskInterface.register("whole", masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[implementation])
    transformers.AttentionInterface.register("part", of_a_part)

    def put(model: torch.nn.Module, attend: Any) -> None:
        meetings.update(dict.fromkeys(model.modules(), attend))

    def gradients(model: torch.nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, list]:
        model.config._attn_implementation = "whole"
        with torch.no_grad():
            model(**{name: value for name, value in batch.items() if name != "labels"}, use_cache=False)
        model.config._attn_implementation = "part"
        tokens = batch["input_ids"].chunk(sequence, 1)
        places = batch.get("position_ids", torch.arange(LENGTH).unsqueeze(0)).chunk(sequence, 1)
        return sequence_twin.gradients(
            model,
            sequence,
            local,
            put,
            lambda one, part: one(input_ids=tokens[part], position_ids=places[part], use_cache=False).logits,
            shifted(batch["labels"]),
        )

    def make_model() -> torch.nn.Module:
        return make_hugging_face(kind, key_value_heads, "whole")

    return twin_of(make_model, gradients, stage, data, sequence, BATCHES[batches])


def check_hugging_face(data: int, sequence: int, stage: int, *of: Any) -> None:
    transformers = pytest.importorskip("transformers")
    getattr(transformers, f"{of[0]}ForCausalLM")  # imported once, and not by each rank
    want = ranks.alone(twin_of_hugging_face, stage, data, sequence, *of)
    expect_the_same(ranks.run(data * sequence, train_hugging_face, stage, sequence, *of), want, sequence)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("data", [1, 2])
def test_llama(data: int, stage: int) -> None:
    check_hugging_face(data, 2, stage, "Llama", 4, "sdpa", "plain")


@pytest.mark.parametrize(("kind", "key_value_heads"), [("Llama", 1), ("Qwen2", 2), ("Mistral", 4)])
@pytest.mark.parametrize("batches", ["plain", "padded", "packed"])
def test_models_with_fewer_heads_masks_and_documents(kind: str, key_value_heads: int, batches: str) -> None:
    check_hugging_face(1, 4, 3, kind, key_value_heads, "sdpa", batches)


@pytest.mark.parametrize("batches", ["plain", "padded", "packed"])
def test_eager_attention(batches: str) -> None:
    check_hugging_face(1, 2, 2, "Llama", 1, "eager", batches)


# ---- What else a model of transformers may do, and what is refused -----------------------------------------------------


def one_step(variant: str) -> tuple[torch.Tensor, dict]:
    """The loss of a padded batch, and what is left in the ranks' own gradients."""
    model = make_hugging_face("Llama", 4, "sdpa")
    if variant == "checkpointing":
        model.gradient_checkpointing_enable()
    engine, *_ = equigrad.initialize(model=model, config=configuration(2, 2, gradient_accumulation_steps=1))
    part = equigrad.parallel.split_batch(padded(0, 0, 0), engine)
    if variant == "cut mask":
        part["attention_mask"] = part["attention_mask"].chunk(2, 1)[engine.global_rank]
    elif variant == "no positions":
        del part["position_ids"]
    if variant == "positional":
        loss = engine(
            part["input_ids"], part["attention_mask"], shift_labels=part["shift_labels"], labels=part["labels"]
        ).loss
    else:
        loss = engine(**part).loss
    engine.backward(loss)
    gradients = {name: equigrad.utils.safe_get_full_grad(one) for name, one in model.named_parameters()}
    engine.destroy()
    whole = make_hugging_face("Llama", 4, "sdpa")
    given = {**padded(0, 0, 0), "use_cache": False}
    assert torch.equal(model(**given).loss, whole(**given).loss), "after destroy() it is the model that it was"
    return loss.detach(), gradients


def test_ways_to_call_a_model() -> None:
    transformers = pytest.importorskip("transformers")
    assert transformers.LlamaForCausalLM
    want_loss, want = ranks.run(2, one_step, "plain")[0]
    for variant in ("checkpointing", "cut mask", "no positions", "positional"):
        for loss, gradients in ranks.run(2, one_step, variant):
            twin.assert_same_bits(loss, want_loss, variant)
            for name, gradient in gradients.items():
                twin.assert_same_bits(gradient, want[name], f"{variant}: {name}")


def refusals() -> dict[str, str]:
    import transformers

    said = {}

    def refused(name: str, call: Any) -> None:
        with pytest.raises(equigrad.Error) as error:
            call()
        said[name] = str(error.value)

    def engine_of(model: torch.nn.Module) -> equigrad.Engine:
        return equigrad.initialize(model=model, config=configuration(1, 2))[0]

    engine = engine_of(make_hugging_face("Llama", 4, "sdpa"))
    batch = batch_of(0, 0, 0)
    part = equigrad.parallel.split_batch(batch, engine)
    refused("labels alone", lambda: engine(input_ids=part["input_ids"], labels=part["labels"]))
    refused("cache", lambda: engine(**part, cache=transformers.DynamicCache()))
    refused("mask", lambda: engine(**{**part, "attention_mask": torch.ones(BATCH, LENGTH - 2)}))
    refused("mask of a part", lambda: engine(**{**part, "attention_mask": torch.zeros(BATCH, 1, 16, 16)}))
    odd = {"input_ids": batch["input_ids"][:, 1:]}
    refused("odd", lambda: equigrad.parallel.split_batch(odd, engine))
    other = {"input_ids": batch["input_ids"] + engine.global_rank}
    refused("other", lambda: equigrad.parallel.split_batch(other, engine))
    refused("no ranks", lambda: equigrad.parallel.split_batch(batch, "engine"))
    sizes = {"vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3}
    heads = engine_of(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, intermediate_size=64)))
    refused("heads", lambda: heads(**part))
    small = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4}
    refused("two sequences", lambda: engine_of(transformers.T5ForConditionalGeneration(transformers.T5Config(**small))))
    return said


def test_what_is_refused() -> None:
    transformers = pytest.importorskip("transformers")
    assert transformers.LlamaForCausalLM and transformers.T5ForConditionalGeneration
    for said in ranks.run(2, refusals):
        assert "expected shift_labels" in said["labels alone"]
        assert "expected no cache of keys and values" in said["cache"]
        assert "attention_mask of the whole sequence of 32, or of this rank's part of 16, got [2, 30]" in said["mask"]
        assert "a mask of the whole sequence of 32, got one of [2, 1, 16, 16]" in said["mask of a part"]
        assert "got 31 positions. Pad it to 32" in said["odd"]
        assert "expected the same input_ids on all 2 ranks of a sequence, got others on rank 1" in said["other"]
        assert "expected an engine, a mesh or a group" in said["no ranks"]
        assert "got 3 query heads and 3 key/value heads on 2 ranks" in said["heads"]
        assert "got an encoder and a decoder, of T5ForConditionalGeneration" in said["two sequences"]


# ---- DeepSpeed's names ----------------------------------------------------------------------------------------------------


def train_drop_in(stage: int) -> tuple[list, list]:
    """The first passes' batches; a loader of which each rank draws its own, and both compute all."""
    from equigrad import deepspeed

    deepspeed.init_distributed("gloo")
    ulysses = deepspeed.runtime.sequence_parallel.ulysses_sp
    model = make_hugging_face("Llama", 4, "sdpa")
    mpu = ulysses.UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", 2, BATCH)
    settings = configuration(stage, 2)
    del settings["sequence_parallel_size"]  # mpu says it
    engine, *_ = deepspeed.initialize(model=model, config=settings, mpu=mpu)
    group, rank = mpu.get_sequence_parallel_group(), mpu.get_sequence_parallel_rank()
    places = torch.arange(LENGTH).unsqueeze(0).expand(BATCH, -1)
    # Of steps x passes = 4 batches rank 0 draws the first and the third.
    drawn = [batch_of(at, 0, rank, position_ids=places) for at in range(STEPS)]
    loader = iter(ulysses.UlyssesSPDataLoaderAdapter(drawn, rank, group, 2, engine.device))

    def loss_of(_: Any) -> torch.Tensor:
        batch = next(loader)
        labels = batch.pop("shift_labels")
        return equigrad.parallel.cross_entropy(engine(**batch).logits, labels, engine)

    return steps(engine, 2, loss_of)


@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeeds_names(stage: int) -> None:
    transformers = pytest.importorskip("transformers")
    assert transformers.LlamaForCausalLM
    want = ranks.alone(twin_of_hugging_face, stage, 1, 2, "Llama", 4, "sdpa", "plain")
    expect_the_same(ranks.run(2, train_drop_in, stage), want, 2)


def said_without_registration(kinds: list[str]) -> list[str]:
    """What initialize() says of models whose configuration names these kinds of attention, as transformers' models do."""
    from types import SimpleNamespace

    from equigrad import deepspeed

    deepspeed.init_distributed("gloo")
    said = []
    for kind in kinds:
        model = torch.nn.Linear(2, 2)
        model.config = SimpleNamespace(_attn_implementation=kind)  # type: ignore[assignment]
        try:
            deepspeed.initialize(model=model, config=configuration(1, 2))
            said.append("")
        except equigrad.Error as error:
            said.append(str(error))
    torch.distributed.barrier()  # rank 0 serves the store of groups that another one may still make
    return said


def test_attention_that_nobody_registered_is_refused() -> None:
    for refused, taken in ranks.run(2, said_without_registration, ["sdpa", "the user's own"]):
        assert 'got "sdpa" of transformers' in refused and "register_with_transformers(model" in refused
        assert taken == ""


def train_deepspeeds_attention() -> tuple[list, list]:
    from equigrad import deepspeed

    deepspeed.init_distributed("gloo")
    attention = deepspeed.sequence.layer.DistributedAttention(local_attention, torch.distributed.group.WORLD)
    model = Gpt(4, lambda *some: attention(*some, 0))
    engine, *_ = deepspeed.initialize(model=model, config=configuration(2, 2))

    def loss_of(batch: dict[str, Any]) -> torch.Tensor:
        part = equigrad.parallel.split_batch(batch, engine)
        logits = engine(part["input_ids"], part["position_ids"])
        return equigrad.parallel.cross_entropy(logits, part["shift_labels"], engine)

    return steps(engine, 2, loss_of)


def test_deepspeeds_attention() -> None:
    expect_the_same(ranks.run(2, train_deepspeeds_attention), ranks.alone(twin_of_own, 2, 1, 2, 4), 2)
