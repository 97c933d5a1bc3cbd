"""Checkpoints of tensor groups: a resumed run is the one that was never interrupted, other sizes begin where it was, and what is written
is the whole model in its packing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import equigrad
import ranks
import tensor_models as models
import twin
from equigrad import zero_to_fp32
from tensor_runs import SPECS, configuration, digest, errors_of, without_optimizer

ADAM = {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}
SHAPE = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}


def adam(tensor: int, stage: int, section: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {**configuration(tensor, stage, section, **more), "gradient_accumulation_steps": 1, "optimizer": ADAM}


def saved_tensors(folder: str, tag: str) -> dict[str, bytes]:
    """What a checkpoint has of the whole model, by a reader that is not the engine's."""
    checkpoint = zero_to_fp32._Checkpoint(Path(folder) / tag)
    return {
        name: b"".join(checkpoint.parts(entry)) for name, entry in checkpoint.tensors.items() if not name.startswith("rank")
    }


def parameters_of(engine: equigrad.Engine) -> dict[str, torch.Tensor]:
    return {name: engine.full_parameter(name) for name, _ in engine.module.named_parameters()}


# ---- A model with packed projections, a tied head, norms of split heads and a frozen parameter ------------------------


def train(engine: equigrad.Engine, steps: range) -> None:
    for step in steps:
        engine.backward(models.decoder_loss(engine, step, engine.data_parallel_rank, 0))
        engine.step()


def decoder_engine(model: torch.nn.Module, tensor: int, stage: int, more: dict[str, Any]) -> equigrad.Engine:
    """`more` of the configuration; "optimizer": None is an optimizer of the caller's."""
    config = {**adam(tensor, stage), **more}
    if config["optimizer"] is not None:
        return equigrad.initialize(model=model, config=config)[0]
    own = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.01)
    return equigrad.initialize(model=model, config=without_optimizer(config), optimizer=own)[0]


def begun(folder: str, tensor: int, stage: int, more: dict[str, Any]) -> Any:
    engine = decoder_engine(models.Decoder(), tensor, stage, more)
    train(engine, range(2))
    engine.save_checkpoint(folder, "here", client_state={"epoch": 3})
    saved = parameters_of(engine)
    train(engine, range(2, 4))
    engine.save_checkpoint(folder, "never", save_latest=False)
    return saved


def resumed(folder: str, tensor: int, stage: int, more: dict[str, Any]) -> Any:
    torch.manual_seed(5)
    model = models.Decoder()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    engine = decoder_engine(model, tensor, stage, more)
    train(engine, range(7, 8))
    path, client_state = engine.load_checkpoint(folder)
    assert path is not None and client_state == {"epoch": 3}
    loaded = parameters_of(engine)
    engine.save_checkpoint(folder, f"again{tensor}", save_latest=False)
    train(engine, range(2, 4))
    engine.save_checkpoint(folder, f"resumed{tensor}", save_latest=False)
    return loaded


def same_tensors(folder: str, one: str, other: str) -> None:
    a, b = saved_tensors(folder, one), saved_tensors(folder, other)
    assert list(a) == list(b)
    assert [name for name in a if a[name] != b[name]] == []


@pytest.mark.parametrize(
    ("world", "tensor", "stage", "more"),
    [
        (2, 2, 0, {}),
        (4, 2, 1, {"reduction": "exact"}),
        (4, 2, 2, {"bf16": {"enabled": True}}),
        (4, 4, 1, {"tensor_parallel": {"autotp_size": 4, "vocab_parallel_lm_head": True}}),
        (4, 2, 2, {"optimizer": None}),
    ],
)
def test_a_resumed_run_is_the_one_that_was_never_interrupted(
    world: int, tensor: int, stage: int, more: dict[str, Any], tmp_path: Path
) -> None:
    folder = str(tmp_path)
    want = ranks.run(world, begun, folder, tensor, stage, more)
    for of_rank, got in zip(want, ranks.run(world, resumed, folder, tensor, stage, more), strict=True):
        assert digest(list(got.values())) == digest(list(of_rank.values()))
    same_tensors(folder, "here", f"again{tensor}")
    same_tensors(folder, "never", f"resumed{tensor}")


def test_other_sizes_begin_where_it_was(tmp_path: Path) -> None:
    """Sums of parts round otherwise, so what follows is another run; what is loaded has every bit."""
    folder = str(tmp_path)
    want = ranks.run(2, begun, folder, 2, 1, {})[0]
    for world, tensor, stage in ((4, 4, 2), (4, 2, 2), (2, 1, 3), (1, 1, 0)):
        for got in ranks.run(world, resumed, folder, tensor, stage, {}):
            for name, value in want.items():
                twin.assert_same_bits(got[name], value, f"{name} of tensor {tensor}")
        same_tensors(folder, "here", f"again{tensor}")
    ranks.run(1, begun, folder, 1, 0, {})
    one = saved_tensors(folder, "here")
    assert len(one["master/layers.0.self_attn.qkv_proj.weight"]) == 4 * 64 * 24
    ranks.run(4, resumed, folder, 4, 0, {})
    same_tensors(folder, "here", "again4")


# ---- What cannot be saved or loaded, by name --------------------------------------------------------------------------


def otherwise_packed(folder: str) -> list[str]:
    engine = equigrad.initialize(model=models.Decoder(), config=adam(2, 0))[0]
    engine.save_checkpoint(folder)
    specs = [dict(one) for one in SPECS]
    specs[1]["shape"] = [[16, 16, 32], -1]
    section = {"partition_config": {"use_default_specs": False, "layer_specs": specs}}
    other = equigrad.initialize(model=models.Decoder(), config=adam(2, 0, section))[0]
    return errors_of(lambda: other.load_checkpoint(folder))


def not_the_engines(folder: str) -> list[str]:
    model = models.Decoder()
    some = [
        one for name, one in model.named_parameters() if "layers.0.mlp.down_proj.weight" not in name and one.requires_grad
    ]
    engine = equigrad.initialize(model=model, model_parameters=some, config=adam(2, 0))[0]
    return errors_of(lambda: engine.save_checkpoint(folder))


def test_what_cannot_be_resumed_is_refused_by_name(tmp_path: Path) -> None:
    for (said,) in ranks.run(2, otherwise_packed, str(tmp_path / "packed")):
        assert "self_attn.qkv_proj" in said and "packed as [16, 16, 32]" in said and "got [32, 16, 16]" in said, said
    for (said,) in ranks.run(2, not_the_engines, str(tmp_path / "some")):
        assert '"layers.0.mlp.down_proj.weight"' in said and "expected" in said and "got" in said, said


# ---- A model of Hugging Face ------------------------------------------------------------------------------------------


def llama_engine(tensor: int, stage: int, seed: int) -> equigrad.Engine:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=4, tie_word_embeddings=True))
    return equigrad.initialize(model=model, config=adam(tensor, stage))[0]


def llama_steps(engine: equigrad.Engine, steps: range) -> list[float]:
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + engine.data_parallel_rank)
        tokens = torch.randint(0, 64, (2, 9), generator=generator)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def llama_begun(folder: str) -> Any:
    engine = llama_engine(2, 1, seed=1)
    llama_steps(engine, range(2))
    engine.save_checkpoint(folder, "here")
    saved = parameters_of(engine)
    if engine.global_rank == 0:
        engine.module.config.save_pretrained(f"{folder}/export")
        engine.module.config.save_pretrained(f"{folder}/running")
    return saved, llama_steps(engine, range(2, 4)), parameters_of(engine)


def llama_resumed(folder: str, tensor: int, stage: int) -> Any:
    engine = llama_engine(tensor, stage, seed=9)
    engine.load_checkpoint(folder)
    engine.save_checkpoint(folder, f"again{tensor}", save_latest=False)
    if tensor == 4:
        engine.save_16bit_model(f"{folder}/running", "model.safetensors")
    loaded = parameters_of(engine)
    return loaded, llama_steps(engine, range(2, 4)), parameters_of(engine)


def test_a_llama_goes_on_as_tensor_2_and_4_and_1_and_from_pretrained_loads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assert transformers.LlamaForCausalLM  # imported once, and not by each rank
    folder = str(tmp_path)
    saved, _, after = ranks.run(4, llama_begun, folder)[0]
    for world, tensor, stage in ((4, 2, 1), (4, 4, 2), (1, 1, 0)):
        for loaded, losses_then, after_then in ranks.run(world, llama_resumed, folder, tensor, stage):
            assert list(loaded) == list(saved)
            for name, value in saved.items():
                twin.assert_same_bits(loaded[name], value, name)
            assert all(math.isfinite(loss) for loss in losses_then)
            for name, value in after.items() if tensor == 2 else ():
                twin.assert_same_bits(after_then[name], value, name)
        same_tensors(folder, "here", f"again{tensor}")
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(folder, f"{folder}/export", safe_serialization=True)
    for where in ("export", "running"):
        model, info = transformers.LlamaForCausalLM.from_pretrained(f"{folder}/{where}", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
        for name, parameter in model.named_parameters():
            twin.assert_same_bits(parameter.detach(), saved[name], name)
