# DeepSpeed 0.19.8, torch 2.11.0+cu130: Every step: the gradient of every parameter is divided by the loss scale (32)
# once too often (442 wrong elements; the first: got -0.25, right is -8).
#     torchrun --nproc-per-node 2 repro.py
# exits 1 where what it got is not what plain autograd gives, 0 where it is.
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"  # deepspeed reads it when it is imported

import deepspeed
import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.first.weight.requires_grad_(False)
        self.last = torch.nn.Linear(3, 2)

    def forward(self, x):
        x = self.first(x)
        return self.last(x)


def make_model():
    model = Model()
    for parameter in model.parameters():
        parameter.data = (torch.arange(parameter.numel()) % 2 * 1.0).view_as(parameter)
    return model


def batch(rank, micro):  # small integers, others in every batch: all that follows is exact
    n = 3 * rank + micro
    return torch.tensor([[1.0, n % 3 - 1.0, n % 4]]), 3.0 * torch.tensor([[1.0, n % 2]])


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is compiled
deepspeed.get_accelerator().is_fp16_supported = lambda: True  # torch has fp16 on every CPU
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 3,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 0},
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 5, "loss_scale_window": 1000, "hysteresis": 1},
}


deepspeed.init_distributed("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = make_model()
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.25), config=config)
for micro in range(3):
    x, y = batch(rank, micro)
    loss = (engine(x.half()) * y).sum()
    engine.backward(loss)
    engine.step()
got = {name: p.detach().float().clone() for name, p in engine.module.named_parameters()}

plain = make_model()  # one process
optimizer = torch.optim.SGD(plain.parameters(), lr=0.25)
for r in range(world):
    for micro in range(3):
        x, y = batch(r, micro)
        ((plain(x) * y).sum() / (3 * world)).backward()
optimizer.step()
want = {name: p.detach() for name, p in plain.named_parameters()}
wrong = [name for name in want if not torch.equal(got[name], want[name])]
for name in wrong or want:
    print(f"rank {rank}, {name}: expected {want[name].tolist()}, got {got[name].tolist()}")
dist.barrier()
sys.exit(1 if wrong else 0)
