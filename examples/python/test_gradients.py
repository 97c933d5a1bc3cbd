"""Is every gradient of your model right on several ranks, at every stage of ZeRO? `pytest test_gradients.py`.

The fixture comes with the package. What fails says where, and what it looks like.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def make_model():
    # Small: the same layers, fewer and narrower.
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=101, n_positions=16, use_cache=False))


def batches(step, rank, micro_batch):
    """Another batch for every rank and micro-batch: equal ones would hide what is lost or doubled."""
    generator = torch.Generator().manual_seed(10_000 * step + 100 * rank + micro_batch)
    tokens = torch.randint(0, 101, (2, 12), generator=generator)
    return {"input_ids": tokens, "labels": tokens}


def test_gradients_are_equal(equigrad_check):
    equigrad_check(make_model, batches=batches, ranks=[2, 3], precisions=["fp32", "bf16"], styles=["engine_backward"])


def test_my_configuration(equigrad_check):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 5_000},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    }
    equigrad_check(make_model, batches=batches, config=config)
