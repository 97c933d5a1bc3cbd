"""Trains a small network on 1 or more ranks: `python train.py`, or `torchrun --nproc-per-node 2 train.py`."""

import torch

import equigrad

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
}


def main() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    engine, _, _, _ = equigrad.initialize(model=model, config=CONFIG)
    torch.manual_seed(100 + engine.global_rank)  # every rank has samples of its own
    for micro_batch in range(1, 201):
        inputs = torch.randn(16, 8)
        loss = (engine(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        engine.backward(loss)  # or loss.backward(), or engine.scale(loss).backward()
        engine.step()
        if micro_batch % 100 == 0 and engine.global_rank == 0:
            print(f"micro-batch {micro_batch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
