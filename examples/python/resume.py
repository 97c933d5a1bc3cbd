"""Trains, and goes on where it was when it is killed: `torchrun --nproc-per-node 2 resume.py checkpoints`, again and again.

However often it is interrupted, the weights at the end are, bit for bit, those of a run that never was.
"""

import argparse
import hashlib

import torch

import equigrad

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 20}},
}


def digest(engine: equigrad.Engine) -> str:
    """Of every bit of the weights; collective."""
    bits = hashlib.sha256()
    for name, _ in engine.module.named_parameters():
        bits.update(bytes(engine.full_parameter(name).flatten().view(torch.uint8).tolist()))
    return bits.hexdigest()[:16]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", help="of the checkpoints")
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--save-every", type=int, default=5)
    given = arguments.parse_args()

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)
    )
    engine, _, _, _ = equigrad.initialize(model=model, config=CONFIG)
    torch.manual_seed(100 + engine.global_rank)  # dropout of its own; a load sets it to where it was
    path, kept = engine.load_checkpoint(given.folder)
    first = kept["step"] if kept else 0
    if engine.global_rank == 0:
        print(f"from {path or 'the beginning'}, step {first}", flush=True)

    for step in range(first, given.steps):
        for micro_batch in range(CONFIG["gradient_accumulation_steps"]):
            # The data of a step are known by its number, so their position is `step` alone.
            data = torch.Generator().manual_seed(10_000 * step + 100 * engine.global_rank + micro_batch)
            inputs = torch.randn(8, 8, generator=data)
            loss = (engine(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            engine.backward(loss)
            engine.step()
        if (step + 1) % given.save_every == 0:
            engine.save_checkpoint(given.folder, client_state={"step": step + 1})
            if engine.global_rank == 0:
                print(f"saved step {step + 1}", flush=True)

    engine.save_16bit_model(given.folder, "model.safetensors")
    weights = digest(engine)
    if engine.global_rank == 0:
        print(f"weights {weights}")


if __name__ == "__main__":
    main()
