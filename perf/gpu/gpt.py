"""A GPT in bf16 on one device: the engine's stages 0 to 3 beside plain PyTorch, DDP and FSDP2, one rank, in turns.

    python perf/gpu/gpt.py [--device cuda] [--layers 24 --dim 2048 ...] [--write FILE.json]

Masters and states are fp32 for all: the engine's bf16 mode; for the others bf16 parameters whose AdamW has fp32 masters (a copy that
is updated by torch's fused AdamW, as mixed-precision recipes do). A contestant is made, takes turns of `steps`, and is thrown away
before the next one, since a device has room for one. Written: milliseconds of a step (median), the device's peak, the engine's own
forecast of what it holds, and the loss after the last step, which says that all train one model.
"""

import argparse
import gc
import json
import os
import pathlib
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import gpt  # noqa: E402

LR, DECAY = 1e-4, 0.01


def made(options):
    torch.manual_seed(0)
    with torch.device(options.device):
        model = gpt.Gpt(options.layers, options.dim, options.heads, options.context, options.vocabulary)
    model.mask = model.mask.to(options.device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02) if parameter.dim() > 1 else None
        nn.init.normal_(model.position, 0, 0.02)
    return model


class Masters:
    """fp32 masters of parameters that become bf16, updated by torch's fused AdamW."""

    def __init__(self, model):
        self.masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
        model.to(torch.bfloat16)
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.masters, lr=LR, weight_decay=DECAY, fused=True)

    def step(self):
        for master, parameter in zip(self.masters, self.parameters):
            master.grad = parameter.grad.float()
            parameter.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters):
                parameter.copy_(master)
                master.grad = None


class Plain:
    def __init__(self, options):
        model = made(options)
        self.masters = Masters(model)
        self.model = self.wrapped(model)

    def wrapped(self, model):
        return model

    def step(self, tokens):
        loss = self.model(tokens)
        loss.backward()
        self.masters.step()
        return loss


class Ddp(Plain):
    def wrapped(self, model):
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


class Fsdp2(Plain):
    """fully_shard of every block and of the whole; it has fp32 parameters and casts them, so they are the masters."""

    def __init__(self, options):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        model = made(options)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)

    def step(self, tokens):
        loss = self.model(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Equigrad:
    def __init__(self, options, stage):
        import equigrad

        config = {
            "train_micro_batch_size_per_gpu": options.batch,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": DECAY}},
            "zero_optimization": {"stage": stage},
        }
        self.engine = equigrad.initialize(model=made(options), config=config)[0]

    def step(self, tokens):
        loss = self.engine(tokens)
        self.engine.backward(loss)
        self.engine.step()
        return loss


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measured(make, options):
    on_cuda = options.device == "cuda"
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    contestant = make()
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(options.vocabulary, (options.batch, options.context + 1), generator=generator).to(options.device)
              for _ in range(options.steps + 2)]
    times = []
    for batch in tokens:
        synchronize(options.device)
        start = time.perf_counter()
        loss = contestant.step(batch)
        synchronize(options.device)
        times.append(time.perf_counter() - start)
    row = {"milliseconds": 1e3 * statistics.median(times[2:]), "loss": loss.item()}
    if on_cuda:
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
    return row


def join_alone(device):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    dist.init_process_group("nccl" if device == "cuda" else "gloo")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--write", help="JSON, written anew after every contestant")
    options = parser.parse_args()
    join_alone(options.device)
    contestants = {"plain": lambda: Plain(options)}
    contestants |= {f"equigrad stage {stage}": lambda stage=stage: Equigrad(options, stage) for stage in range(4)}
    contestants |= {"ddp": lambda: Ddp(options), "fsdp2": lambda: Fsdp2(options)}
    settings = {key: value for key, value in vars(options).items() if key != "write"}
    with torch.device("meta"):
        numel = sum(p.numel() for p in gpt.Gpt(*(settings[k] for k in ("layers", "dim", "heads", "context", "vocabulary"))).parameters())
    page = {"parameters": numel, "torch": torch.__version__, "settings": settings, "rows": {}}
    for name, make in contestants.items():
        try:
            page["rows"][name] = measured(make, options)
        except (RuntimeError, ImportError) as error:  # what it says is a result: the others go on
            page["rows"][name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        gc.collect()
        print(name, page["rows"][name], flush=True)
        if options.write:
            pathlib.Path(options.write).write_text(json.dumps(page, indent=1) + "\n")
    dist.destroy_process_group()
    failed = [name for name, row in page["rows"].items() if "error" in row]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
