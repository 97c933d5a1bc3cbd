"""Splits unmodified models of transformers over a tensor group, trains them, and counts the bits that differ from one process.

    python tensor.py                        all of them, tensor 2 and 4, ZeRO 0, 1, 2, with 1 and 2 data ranks, in every precision
    python tensor.py Llama --tensor 2       some

The twin (python/tests/tensor_twin.py) is the unsplit model, with split layers computed part by part and added in the engine's
order; what is cut is written down here, for each model by itself. Exit code 0: every bit equal; 1: some differ, or a model failed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import run
import zoo

import equigrad
import equigrad.deepspeed
import ranks
from equigrad import _core
from tensor_twin import Cut, Group

OUT, IN = Cut(0), Cut(1)  # of a linear's weight


class Model(NamedTuple):
    """entry(heads of keys and values); section: of "tensor_parallel", beside the size; split: of the twin."""

    entry: Callable[[int], zoo.Entry]
    split: Callable[[torch.nn.Module, Group], None]
    section: dict[str, Any]


def by_names(columns: str, rows: str) -> Callable[[torch.nn.Module, Group], None]:
    def split(model: torch.nn.Module, group: Group) -> None:
        for name, module in model.named_modules():
            if re.search(rf"\.({columns})$", name):
                group.column(module, OUT)
            elif re.search(rf"\.({rows})$", name):
                group.row(module, IN)

    return split


_ATTENTION = by_names("[qkv]_proj", "o_proj")
_GATED = by_names("[qkv]_proj|gate_proj|up_proj", "o_proj|down_proj")


def _qwen3(model: torch.nn.Module, group: Group) -> None:
    _GATED(model, group)
    for name, module in model.named_modules():
        if re.search(r"self_attn\.[qk]_norm$", name):
            group.norm_of_heads(module)


def _phi3(model: torch.nn.Module, group: Group) -> None:
    config = model.config
    head = config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    by_names("none", "o_proj|down_proj")(model, group)
    for name, module in model.named_modules():
        if name.endswith(".qkv_proj"):
            group.column(module, Cut(0, (queries, keys, keys)))
        elif name.endswith(".gate_up_proj"):
            group.column(module, Cut(0, (config.intermediate_size,) * 2))


def _deepseek(columns: str, rows: str) -> Callable[[torch.nn.Module, Group], None]:
    def split(model: torch.nn.Module, group: Group) -> None:
        from transformers.models.deepseek_v2 import modeling_deepseek_v2

        by_names(columns, rows)(model, group)
        for module in model.modules():
            if type(module).__name__ == "DeepseekV2Attention":
                group.latent_attention(module, modeling_deepseek_v2)

    return split


def _gpt2(model: torch.nn.Module, group: Group) -> None:
    width = model.config.hidden_size
    for name, module in model.named_modules():
        if name.endswith(".c_attn"):
            group.column(module, Cut(1, (width, width, width)))
        elif name.endswith(".c_fc"):
            group.column(module, Cut(1))
        elif name.endswith(".c_proj"):
            group.row(module, Cut(0))


def _with_head(split: Callable[[torch.nn.Module, Group], None]) -> Callable[[torch.nn.Module, Group], None]:
    """The head too, and the loss of its parts."""

    def both(model: torch.nn.Module, group: Group) -> None:
        split(model, group)
        group.column(model.get_output_embeddings(), OUT)
        model.loss_function = group.causal_loss

    return both


# Parts of the inner size are multiples of what torch computes at once: behind that it has other functions for exp and the like, so
# that activations of parts and of the whole would differ.
_WIDE = {**zoo._LLAMA, "intermediate_size": 256}


def _entry(model: str, **options: Any) -> Callable[[int], zoo.Entry]:
    def make(keys: int) -> zoo.Entry:
        grouped = {**_WIDE, "num_key_value_heads": keys, "pad_token_id": 0}
        return zoo._hugging_face("decoder", model, zoo._causal, **{**grouped, **options})

    return make


def _without_keys(model: str, **options: Any) -> Callable[[int], zoo.Entry]:
    return lambda _: zoo._hugging_face("decoder", model, zoo._causal, **options)


_LATENT = {
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 4,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}


def _deepseek_entry(q_lora_rank: int | None) -> Callable[[int], zoo.Entry]:
    options = {**_WIDE, "num_key_value_heads": 4, "pad_token_id": 0, "q_lora_rank": q_lora_rank, **_LATENT}
    return _without_keys("DeepseekV2:ForCausalLM", **options)


_HEURISTICS: dict[str, Any] = {}
_HEAD = {"vocab_parallel_lm_head": True}
MODELS: dict[str, Model] = {
    "Llama": Model(_entry("Llama:ForCausalLM"), _GATED, _HEURISTICS),
    "Llama, preset": Model(_entry("Llama:ForCausalLM"), _GATED, {"preset_model": "LLaMA"}),
    "Qwen2": Model(_entry("Qwen2:ForCausalLM"), _GATED, {"preset_model": "qwen2"}),
    "Qwen3": Model(_entry("Qwen3:ForCausalLM", head_dim=8), _qwen3, _HEURISTICS),
    "Mixtral": Model(_entry("Mixtral:ForCausalLM", num_local_experts=4), _ATTENTION, {"preset_model": "mixtral"}),
    "Phi-3": Model(_entry("Phi3:ForCausalLM"), _phi3, {"preset_model": "phi3"}),
    "Bloom": Model(
        _without_keys(
            "Bloom:ForCausalLM",
            vocab_size=zoo.VOCABULARY,
            hidden_size=32,
            n_layer=2,
            n_head=4,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        by_names("query_key_value|dense_h_to_4h", "dense|dense_4h_to_h"),
        {"preset_model": "bloom"},
    ),
    "BERT": Model(
        _without_keys("Bert:ForMaskedLM", **zoo._BERT),
        by_names(r"query|key|value|intermediate\.dense", r"output\.dense"),
        _HEURISTICS,
    ),
    "GPT-NeoX": Model(
        _without_keys("GPTNeoX:ForCausalLM", **zoo._LLAMA),
        by_names("query_key_value|dense_h_to_4h", "dense|dense_4h_to_h"),
        _HEURISTICS,
    ),
    "DeepSeek-V2": Model(
        _deepseek_entry(None),
        _deepseek(r"q_proj|kv_b_proj|shared_experts\.(?:gate|up)_proj", r"o_proj|shared_experts\.down_proj"),
        {"preset_model": "deepseek_v2"},
    ),
    "DeepSeek-V2, latent queries": Model(
        _deepseek_entry(16),
        _deepseek("q_b_proj|kv_b_proj|gate_proj|up_proj", "o_proj|down_proj"),
        _HEURISTICS,
    ),
    "GPT-2": Model(
        _without_keys(
            "GPT2:LMHeadModel",
            vocab_size=zoo.VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        _gpt2,
        _HEURISTICS,
    ),
    "Llama, split head": Model(_entry("Llama:ForCausalLM"), _with_head(_GATED), _HEAD),
    "Qwen2, split head, tied": Model(_entry("Qwen2:ForCausalLM", tie_word_embeddings=True), _with_head(_GATED), _HEAD),
    "Gemma-2, split head, soft cap": Model(
        _entry(
            "Gemma2:ForCausalLM",
            head_dim=8,
            final_logit_softcapping=2.0,
            attn_logit_softcapping=None,
            tie_word_embeddings=False,
        ),
        _with_head(_GATED),
        _HEAD,
    ),
    "Gemma, split head, tied, embedding scaled": Model(_entry("Gemma:ForCausalLM", head_dim=8), _with_head(_GATED), _HEAD),
    "Cohere, split head, scaled": Model(_entry("Cohere:ForCausalLM", logit_scale=0.3), _with_head(_GATED), _HEAD),
    "GPT-NeoX, split head": Model(
        _without_keys("GPTNeoX:ForCausalLM", **zoo._LLAMA),
        _with_head(by_names("query_key_value|dense_h_to_4h", "dense|dense_4h_to_h")),
        _HEAD,
    ),
}


def entry_of(name: str, tensor: int) -> zoo.Entry:
    return MODELS[name].entry(max(2, tensor))


# ---- Both sides ------------------------------------------------------------------------------------------------------


def play_twin(name: str, precision: str, data: int, tensor: int, ranks_first: bool) -> Any:
    entry = entry_of(name, tensor)

    def make() -> torch.nn.Module:
        model = entry.make()
        MODELS[name].split(model, Group(tensor))
        return model

    return run.Twin(entry._replace(make=make), precision, data, ranks_first).train()


def whole_gradient(engine: equigrad.Engine, parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """Under its original packing. Collective."""
    part, split = equigrad.utils.safe_get_full_grad(parameter), _core.split_of(parameter)
    if part is None or split is None:
        return part
    return _core.gather_from(part, split.dimension, engine._mesh.tensor, split.segments)


def play_engine(name: str, precision: str, tensor: int, stages: list[int]) -> Any:
    """By stage: rank 0's tensors, and the digest of every rank's."""
    entry = entry_of(name, tensor)
    results = {}
    for stage in stages:
        make = equigrad.deepspeed.initialize if precision == "bf16" else equigrad.initialize
        model = entry.make().train()
        if os.environ["RANK"] != "0":  # rank 0's values count
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1)
        section = {"autotp_size": tensor, **MODELS[name].section}
        engine = make(model=model, config={**run.configuration(precision, stage), "tensor_parallel": section})[0]
        history = []
        for step in range(run.STEPS):
            for k in range(run.PASSES):
                loss = run.loss_of(entry, engine, step, engine.data_parallel_rank, k)
                loss.backward() if k else engine.backward(loss)
                if k == run.PASSES - 1:
                    history.append({n: whole_gradient(engine, p) for n, p in engine.module.named_parameters()})
                engine.step()
        parameters = {n: engine.full_parameter(n) for n, _ in engine.module.named_parameters()}
        every = [g for step in history for g in step.values()] + list(parameters.values())
        is_first = engine.global_rank == 0
        results[stage] = (run.digest(every), (history, parameters) if is_first else None)
        engine.destroy()
    return results


def check(name: str, precision: str, data: int, tensor: int, stages: list[int]) -> run.Counted:
    """Every stage of one model on data x tensor ranks."""
    played = ranks.run(data * tensor, play_engine, name, precision, tensor, stages)
    twins: dict[bool, Any] = {}
    total, differing, first = 0, 0, ""
    for stage in stages:
        ranks_first = stage >= 2
        if ranks_first not in twins:
            twins[ranks_first] = ranks.alone(play_twin, name, precision, data, tensor, ranks_first)
        counted = run.compare(played[0][stage][1], twins[ranks_first])
        others = [rank for rank in range(data * tensor) if played[rank][stage][0] != played[0][stage][0]]
        if others and not first:
            first = f"stage {stage}: ranks {others} hold other bits than rank 0"
        total += counted.compared
        differing += counted.differing + len(others)
        if counted.first and not first:
            first = f"stage {stage}, {counted.first}"
    return run.Counted(total, differing, first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="*", help="all without any")
    parser.add_argument("--tensor", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--data", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--precision", nargs="+", default=list(run.PRECISIONS), choices=run.PRECISIONS)
    parser.add_argument("--most-ranks", type=int, default=4, help="larger groups are left out")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"expected models of this table, got {unknown[0]!r}. They are: {', '.join(MODELS)}")
    total, differing, failed = 0, 0, 0
    torch.set_num_threads(1)
    for name in options.models or MODELS:
        entry_of(name, 2).make()  # imported here, once, and not in every process that is forked
        for precision in options.precision:
            for tensor in options.tensor:
                for data in options.data:
                    if data * tensor > options.most_ranks:
                        continue
                    began = time.monotonic()
                    case = f"{name:28} {precision:8} data {data} x tensor {tensor}"
                    try:
                        counted = check(name, precision, data, tensor, options.stages)
                    except AssertionError as error:
                        failed += 1
                        print(f"{case} FAILED\n{error}", flush=True)
                        continue
                    total += counted.compared
                    differing += counted.differing
                    took = time.monotonic() - began
                    print(
                        f"{case} {counted.compared:>12,} elements, {counted.differing} differ {counted.first} ({took:.1f} s)",
                        flush=True,
                    )
    print(f"{total:,} elements, {differing:,} differ, {failed} failed")
    return 0 if differing == 0 and failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
