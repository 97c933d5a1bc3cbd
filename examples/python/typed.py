"""A typed program: `mypy --strict typed.py` finds nothing in it."""

import torch

import equigrad

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
}


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    return loss


def batches(step: int, rank: int, micro_batch: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + 10 * rank + micro_batch))


def train(steps: int) -> float:
    with equigrad.zero.Init(config=CONFIG):
        model = make_model()
    engine, optimizer, _, _ = equigrad.initialize(model=model, config=CONFIG)
    first = next(engine.module.parameters())
    for step in range(steps):
        loss = loss_of(engine, batches(step, engine.global_rank, 0))
        engine.backward(loss)
        gradient: torch.Tensor | None = equigrad.utils.safe_get_full_grad(first)
        engine.step()
    rate: float = optimizer.param_groups[0]["lr"]
    print(f"lr {rate}, gradient of {tuple(first.shape)}: {gradient.norm() if gradient is not None else None}, loss {loss.item():.3f}")
    return loss.item()


if __name__ == "__main__":
    report: equigrad.CheckReport = equigrad.check(make_model, loss_of, batches, stages=[3])
    print(report.text if not report.held else f"{report.compared} elements, every bit equal")
    train(steps=100)
