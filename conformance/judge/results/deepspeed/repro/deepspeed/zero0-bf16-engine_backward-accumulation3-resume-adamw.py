# DeepSpeed 0.19.8, torch 2.11.0+cu130: Step 1 alone: the update of the masters of every parameter is that of an
# optimizer that made a step with gradients of zero before the first (600 wrong elements; the first: got 1.00386143,
# right is 1.00683594).
#     torchrun --nproc-per-node 2 repro.py
# exits 1 where what it got is not what plain autograd gives, 0 where it is.
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"  # deepspeed reads it when it is imported

import deepspeed
import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR


def make_model():
    model = torch.nn.Linear(3, 2, bias=False)
    for parameter in model.parameters():
        parameter.data = (torch.arange(parameter.numel()) % 3 - 1.0).view_as(parameter)
    return model


def batch(rank, micro):  # small integers, others in every batch
    n = 3 * rank + micro
    return torch.tensor([[1.0, n % 3 - 1.0, n % 4]]), 3.0 * torch.tensor([[1.0, n % 2]])


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is compiled
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 3,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 0},
    "bf16": {"enabled": True},
}


deepspeed.init_distributed("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, weight_decay=0.125)
schedule = LambdaLR(optimizer, lambda step: [1.0, 0.5, 0.25][min(step, 2)])
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
for micro in range(3):
    x, y = batch(rank, micro)
    loss = (engine(x.bfloat16()) * y).sum()
    engine.backward(loss)
    engine.step()
got = {name: p.detach().float().clone() for name, p in engine.module.named_parameters()}

plain = make_model()  # one process
optimizer = torch.optim.AdamW(plain.parameters(), lr=0.25, weight_decay=0.125)
schedule = LambdaLR(optimizer, lambda step: [1.0, 0.5, 0.25][min(step, 2)])
for r in range(world):
    for micro in range(3):
        x, y = batch(r, micro)
        ((plain(x) * y).sum() / (3 * world)).backward()
optimizer.step()
schedule.step()
want = {name: p.detach() for name, p in plain.named_parameters()}
# AdamW rounds: 2**-6 has room for 4 roundings, of numbers up to 4
room = {"rtol": 0.0, "atol": 2**-6 * 4}
wrong = [name for name in want if not torch.allclose(got[name], want[name], **room)]
for name in wrong or want:
    print(f"rank {rank}, {name}: expected {want[name].tolist()}, got {got[name].tolist()}")
dist.barrier()
sys.exit(1 if wrong else 0)
