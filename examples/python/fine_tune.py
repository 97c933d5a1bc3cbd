"""Fine-tunes an unmodified Hugging Face model: `torchrun --nproc-per-node 2 fine_tune.py` (pip install transformers)."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import equigrad

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
}
TEXT = b"Distribution must not change a bit; precision may change only what its rounding explains. " * 40


def batch(rank: int, step: int) -> torch.Tensor:
    """Four pieces of the text, others for each rank and step."""
    generator = torch.Generator().manual_seed(1_000 * step + rank)
    starts = torch.randint(0, len(TEXT) - 33, (4,), generator=generator)
    return torch.tensor([list(TEXT[start : start + 32]) for start in starts.tolist()])


def main() -> None:
    torch.manual_seed(1)
    # Or from_pretrained(...) of a model that you have.
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
        )
    )
    engine, _, _, _ = equigrad.initialize(model=model, config=CONFIG)
    first = None
    for micro_batch in range(60):
        tokens = batch(engine.global_rank, micro_batch)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        first = first if first is not None else loss.item()
    if engine.global_rank == 0:
        print(f"loss {first:.3f} -> {loss.item():.3f}")


if __name__ == "__main__":
    main()
