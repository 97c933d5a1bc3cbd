"""Unmodified models of other people's libraries, small, with random weights, and a loss of each on made-up batches.

A batch depends on its generator only. Dropout is off where it is an option, or drawn from the generator that the caller sets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

VOCABULARY = 200


class Entry(NamedTuple):
    kind: str
    make: Callable[[], torch.nn.Module]
    loss: Callable[[torch.nn.Module, torch.Generator], torch.Tensor]


def _tokens(generator: torch.Generator, length: int = 16) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, length), generator=generator)


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def _causal(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    tokens = _tokens(generator)
    return model(input_ids=tokens, labels=tokens).loss


def _seq2seq(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    return model(input_ids=_tokens(generator), labels=_tokens(generator, 9)).loss


def _images(size: int, classes: int = 10) -> Callable[[torch.nn.Module, torch.Generator], torch.Tensor]:
    def loss(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
        pixels = torch.randn(2, 3, size, size, generator=generator).to(_dtype(model))
        labels = torch.randint(0, classes, (2,), generator=generator)
        out = model(pixels)
        logits = out.logits if hasattr(out, "logits") else out
        return F.cross_entropy(logits.float(), labels)

    return loss


def _speech(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    features = torch.randn(2, 16, 40, generator=generator).to(_dtype(model))
    return model(input_features=features, labels=_tokens(generator, 9)).loss


def _waves(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    waves = torch.randn(2, 400, generator=generator).to(_dtype(model))
    return model(waves).last_hidden_state.float().square().mean()


def _contrast(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    pixels = torch.randn(2, 3, 32, 32, generator=generator).to(_dtype(model))
    return model(input_ids=_tokens(generator, 8), pixel_values=pixels, return_loss=True).loss


def _diffusion(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    noisy = torch.randn(2, 3, 16, 16, generator=generator).to(_dtype(model))
    times = torch.randint(0, 1000, (2,), generator=generator)
    target = torch.randn(2, 3, 16, 16, generator=generator)
    return (model(noisy, times).sample.float() - target).square().mean()


def _transformed_diffusion(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    noisy = torch.randn(2, 4, 8, 8, generator=generator).to(_dtype(model))
    times = torch.randint(0, 1000, (2,), generator=generator)
    labels = torch.randint(0, 10, (2,), generator=generator)
    return model(noisy, timestep=times, class_labels=labels).sample.float().square().mean()


def _graph(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    nodes = torch.randn(12, 8, generator=generator).to(_dtype(model))
    edges = torch.randint(0, 12, (2, 40), generator=generator)
    return F.cross_entropy(model(nodes, edges).float(), torch.randint(0, 4, (12,), generator=generator))


def _hugging_face(kind: str, model: str, loss: Callable, **options: object) -> Entry:
    """Of transformers: `model` without Config is the class; options are its configuration's."""

    def make() -> torch.nn.Module:
        import transformers

        torch.manual_seed(1)
        name, _, head = model.partition(":")
        config = getattr(transformers, f"{name}Config")(**options)
        return getattr(transformers, name + head)(config)

    return Entry(kind, make, loss)


_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GROUPED = {**_LLAMA, "num_key_value_heads": 2, "pad_token_id": 0}
_BERT = {
    **_LLAMA,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 10,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def _torchvision(kind: str, name: str, size: int) -> Entry:
    def make() -> torch.nn.Module:
        import torchvision

        torch.manual_seed(1)
        return getattr(torchvision.models, name)(num_classes=10)

    return Entry(kind, make, _images(size))


def _timm(kind: str, name: str, size: int = 32, **options: object) -> Entry:
    def make() -> torch.nn.Module:
        import timm

        torch.manual_seed(1)
        return timm.create_model(name, num_classes=10, **options)

    return Entry(kind, make, _images(size))


def _unet() -> torch.nn.Module:
    import diffusers

    torch.manual_seed(1)
    return diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    )


def _dit() -> torch.nn.Module:
    import diffusers

    torch.manual_seed(1)
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )


def _gnn(name: str) -> Entry:
    def make() -> torch.nn.Module:
        import torch_geometric

        torch.manual_seed(1)
        return getattr(torch_geometric.nn, name)(in_channels=8, hidden_channels=16, num_layers=2, out_channels=4)

    return Entry("graph network", make, _graph)


ZOO: dict[str, Entry] = {
    "Llama": _hugging_face("decoder", "Llama:ForCausalLM", _causal, **_GROUPED),
    "GPT-2": _hugging_face(
        "decoder",
        "GPT2:LMHeadModel",
        _causal,
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "Qwen2": _hugging_face("decoder", "Qwen2:ForCausalLM", _causal, **_GROUPED),
    "Gemma": _hugging_face("decoder", "Gemma:ForCausalLM", _causal, **_GROUPED, head_dim=8),
    "Phi": _hugging_face("decoder", "Phi:ForCausalLM", _causal, **_GROUPED),
    "BERT": _hugging_face("encoder", "Bert:ForMaskedLM", _causal, **_BERT),
    "RoBERTa": _hugging_face("encoder", "Roberta:ForMaskedLM", _causal, **_BERT),
    "DistilBERT": _hugging_face(
        "encoder",
        "DistilBert:ForMaskedLM",
        _causal,
        vocab_size=VOCABULARY,
        dim=32,
        hidden_dim=64,
        n_layers=2,
        n_heads=4,
        dropout=0.0,
        attention_dropout=0.0,
    ),
    "T5": _hugging_face(
        "encoder-decoder",
        "T5:ForConditionalGeneration",
        _seq2seq,
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
    ),
    "BART": _hugging_face(
        "encoder-decoder",
        "Bart:ForConditionalGeneration",
        _seq2seq,
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        dropout=0.0,
    ),
    "Mixtral": _hugging_face("mixture of experts", "Mixtral:ForCausalLM", _causal, **_GROUPED, num_local_experts=4),
    "Qwen2-MoE": _hugging_face(
        "mixture of experts",
        "Qwen2Moe:ForCausalLM",
        _causal,
        **_GROUPED,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
    ),
    "ViT": _hugging_face("vision", "ViT:ForImageClassification", _images(32), **_VIT),
    "CLIP": Entry(
        "vision and text",
        lambda: _clip(),
        _contrast,
    ),
    "Whisper": _hugging_face(
        "speech",
        "Whisper:ForConditionalGeneration",
        _speech,
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
    ),
    "Wav2Vec2": _hugging_face(
        "speech",
        "Wav2Vec2:Model",
        _waves,
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(16, 16),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
    ),
    "Mamba": _hugging_face(
        "state space",
        "Mamba:ForCausalLM",
        _causal,
        vocab_size=VOCABULARY,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=2,
        expand=2,
        conv_kernel=4,
        time_step_rank=4,
    ),
    "diffusion U-Net": Entry("diffusion", _unet, _diffusion),
    "DiT": Entry("diffusion", _dit, _transformed_diffusion),
    "ResNet-18": _torchvision("vision", "resnet18", 64),
    "MobileNetV3": _torchvision("vision", "mobilenet_v3_small", 32),
    "ConvNeXt": _timm("vision", "convnext_atto"),
    # Of images of 32, the last batch norms are over two values, and gradients of 1e12 end the second step.
    "EfficientNet": _timm("vision", "efficientnet_b0", size=64),
    "MLP-Mixer": _timm("vision", "mixer_s32_224", img_size=32),
    "GCN": _gnn("GCN"),
    "GAT": _gnn("GAT"),
}


def _clip() -> torch.nn.Module:
    import transformers

    torch.manual_seed(1)
    text = {**_LLAMA, "projection_dim": 16, "eos_token_id": 2, "max_position_embeddings": 16}
    vision = {key: _VIT[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    return transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config=text, vision_config={**vision, "image_size": 32, "patch_size": 8}, projection_dim=16
        )
    )
