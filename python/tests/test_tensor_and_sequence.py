"""Sequence x tensor on one engine: a model of transformers as it is, some heads of each layer on a tensor rank and a part of
each sequence on a sequence rank, has the bits of one process, which computes all parts and adds them in the engine's order."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import equigrad
import ranks
import sequence_twin
import test_sequence_parallel as sequences
import twin
from tensor_runs import whole
from tensor_twin import Cut, Group

SEQUENCE, TENSOR = 2, 2
COLUMNS, ROWS = r"\.(q|k|v|gate|up)_proj$", r"\.(o|down)_proj$"


def configuration(stage: int, has_split_head: bool = False) -> dict[str, Any]:
    section = {"autotp_size": TENSOR, "vocab_parallel_lm_head": has_split_head}
    return sequences.configuration(stage, SEQUENCE, tensor_parallel=section)


def train(
    stage: int, kind: str, key_value_heads: int, implementation: str, batches: str, has_split_head: bool = False
) -> Any:
    model = sequences.make_hugging_face(kind, key_value_heads, implementation)
    engine, *_ = equigrad.initialize(model=model, config=configuration(stage, has_split_head))
    losses, history, norms = [], [], []
    for step in range(sequences.STEPS):
        for micro_batch in range(sequences.PASSES):
            batch = sequences.BATCHES[batches](step, engine.data_parallel_rank, micro_batch)
            loss = engine(**equigrad.parallel.split_batch(batch, engine)).loss
            losses.append(loss.detach().clone())
            engine.backward(loss)
            if engine.is_gradient_accumulation_boundary():
                read = equigrad.utils.safe_get_full_grad
                history.append({name: whole(engine, one, read(one)) for name, one in model.named_parameters()})
            engine.step()
        norms.append(engine.get_global_grad_norm())
    return losses, history, norms, {name: engine.full_parameter(name) for name, _ in model.named_parameters()}


def split(model: torch.nn.Module, has_split_head: bool) -> None:
    group = Group(TENSOR)
    for name, module in model.named_modules():
        if re.search(COLUMNS, name) or (has_split_head and name == "lm_head"):
            group.column(module, Cut(0))
        elif re.search(ROWS, name):
            group.row(module, Cut(1))


def play_twin(
    data: int, stage: int, kind: str, key_value_heads: int, implementation: str, batches: str, has_split_head: bool = False
) -> Any:
    import transformers
    from transformers import masking_utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import eager_attention_forward

    inner = eager_attention_forward if implementation == "eager" else ALL_ATTENTION_FUNCTIONS[implementation]
    masks: dict[int, Any] = {}  # of the whole model, by layer
    meetings: dict[torch.nn.Module, Any] = {}
    taken = max(key_value_heads, SEQUENCE * TENSOR)
    seen = SimpleNamespace(num_key_value_groups=sequences.HEADS // taken, is_causal=True, training=True)

    def of_the_whole(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
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
        split(model, has_split_head)
        meetings.update(dict.fromkeys(model.modules(), attend))

    def gradients(model: torch.nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, list]:
        model.config._attn_implementation = "whole"
        with torch.no_grad():
            model(**{name: value for name, value in batch.items() if name != "labels"}, use_cache=False)
        model.config._attn_implementation = "part"
        tokens = batch["input_ids"].chunk(SEQUENCE, 1)
        places = batch.get("position_ids", torch.arange(sequences.LENGTH).unsqueeze(0)).chunk(SEQUENCE, 1)
        return sequence_twin.gradients(
            model,
            SEQUENCE,
            local,
            put,
            lambda one, part: one(input_ids=tokens[part], position_ids=places[part], use_cache=False).logits,
            sequences.shifted(batch["labels"]),
            TENSOR,
            Group(TENSOR).loss if has_split_head else sequence_twin.sum_of_losses,
        )

    models = []

    def make_model() -> torch.nn.Module:
        models.append(sequences.make_hugging_face(kind, key_value_heads, "whole"))
        return models[0]

    losses, history = sequences.twin_of(make_model, gradients, stage, data, SEQUENCE, sequences.BATCHES[batches])
    return losses, history, {name: one.detach() for name, one in models[0].named_parameters()}


def expect_the_same(played: list[Any], want: Any, data: int) -> None:
    for rank, (losses, history, norms, parameters) in enumerate(played):
        assert norms == played[0][2], "norms differ"
        for at, loss in enumerate(losses):
            twin.assert_same_bits(loss, want[0][at * data + rank // (SEQUENCE * TENSOR)], f"rank {rank}, loss {at}")
        for step, gradients in enumerate(history):
            assert gradients.keys() == want[1][step].keys()
            for name, gradient in gradients.items():
                twin.assert_same_bits(gradient, want[1][step][name], f"rank {rank}, step {step}, gradient of {name}")
            values = torch.cat([one.flatten().double() for one in want[1][step].values()]).tolist()
            assert norms[step] == math.sqrt(math.fsum(one * one for one in values)), "what is whole is counted once"
        for name, value in parameters.items():
            twin.assert_same_bits(value, want[2][name], f"rank {rank}, {name}")


def check(stage: int, *of: Any, data: int = 1) -> None:
    transformers = pytest.importorskip("transformers")
    getattr(transformers, f"{of[0]}ForCausalLM")  # imported once, and not by each rank
    played = ranks.run(data * SEQUENCE * TENSOR, train, stage, *of)
    expect_the_same(played, ranks.alone(play_twin, data, stage, *of), data)


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("key_value_heads", [4, 2])
def test_llama(key_value_heads: int, stage: int) -> None:
    check(stage, "Llama", key_value_heads, "sdpa", "plain")


@pytest.mark.parametrize(("kind", "implementation", "batches"), [("Qwen2", "sdpa", "padded"), ("Llama", "eager", "packed")])
def test_masks_and_documents(kind: str, implementation: str, batches: str) -> None:
    check(2, kind, 4, implementation, batches)


@pytest.mark.parametrize(("kind", "batches", "stage"), [("Llama", "plain", 0), ("Qwen2", "padded", 2)])
def test_a_split_head_has_a_loss_of_parts_over_the_whole_sequence(kind: str, batches: str, stage: int) -> None:
    check(stage, kind, 4, "sdpa", batches, True)


@pytest.mark.parametrize("stage", [1, 2])
def test_several_data_ranks_beside_both(stage: int) -> None:
    check(stage, "Llama", 2, "sdpa", "plain", data=2)


def pass_and_step(engine: equigrad.Engine, step: int) -> None:
    for micro_batch in range(sequences.PASSES):
        engine.backward(engine(**equigrad.parallel.split_batch(sequences.batch_of(step, 0, micro_batch), engine)).loss)
        engine.step()


def resume(folder: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The parameters after a second step, of the engine itself, and of another one that loaded the first step."""
    after = []
    for is_resumed in (False, True):
        model = sequences.make_hugging_face("Llama", 4, "sdpa")
        engine, *_ = equigrad.initialize(model=model, config=configuration(2))
        if is_resumed:
            engine.load_checkpoint(folder)
        else:
            pass_and_step(engine, 0)
            engine.save_checkpoint(folder)
        pass_and_step(engine, 1)
        after.append({name: engine.full_parameter(name) for name, _ in model.named_parameters()})
        engine.destroy()
    return after[0], after[1]


def test_it_is_saved_and_resumed(tmp_path: Any) -> None:
    assert pytest.importorskip("transformers").LlamaForCausalLM  # imported once, and not by each rank
    for want, got in ranks.run(SEQUENCE * TENSOR, resume, str(tmp_path)):
        for name, value in want.items():
            twin.assert_same_bits(got[name], value, name)


def refused() -> str:
    with pytest.raises(equigrad.ConfigError) as said:
        equigrad.initialize(model=sequences.make_hugging_face("Llama", 4, "sdpa"), config=configuration(3))
    return str(said.value)


def test_pages_are_refused_by_name() -> None:
    assert pytest.importorskip("transformers").LlamaForCausalLM  # imported once, and not by each rank
    assert "tensor_parallel.autotp_size: expected ZeRO stage 0, 1 or 2" in ranks.run(SEQUENCE * TENSOR, refused)[0]
