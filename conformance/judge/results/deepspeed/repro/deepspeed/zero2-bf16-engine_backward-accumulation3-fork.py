# DeepSpeed 0.19.8, torch 2.11.0+cu130: Step 3: no known fault explains the gradient of branch.bias, branch.weight,
# other.bias and other.weight (conditional) (6 wrong elements; the first: got 4, right is 8).
#     torchrun --nproc-per-node 2 repro.py
# exits 1 where what it got is not what plain autograd gives, 0 where it is.
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"  # deepspeed reads it when it is imported

import deepspeed
import torch
import torch.distributed as dist


def make_model():
    model = torch.nn.Linear(3, 2, bias=False)
    for parameter in model.parameters():
        parameter.data = (torch.arange(parameter.numel()) % 3 - 1.0).view_as(parameter)
    return model


def batch(step, rank, micro):  # small integers, others in every batch: all that follows is exact
    n = 6 * step + 3 * rank + micro
    return torch.tensor([[1.0, n % 3 - 1.0, n % 4]]), 3.0 * torch.tensor([[1.0, n % 2]])


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is compiled
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 3,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": True},
}


deepspeed.init_distributed("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = make_model()
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.25), config=config)
for step in range(3):
    for micro in range(3):
        x, y = batch(step, rank, micro)
        loss = (engine(x.bfloat16()) * y).sum()
        engine.backward(loss)
        engine.step()
got = {name: p.detach().float().clone() for name, p in engine.module.named_parameters()}

plain = make_model()  # one process
optimizer = torch.optim.SGD(plain.parameters(), lr=0.25)
for step in range(3):
    for r in range(world):
        for micro in range(3):
            x, y = batch(step, r, micro)
            ((plain(x) * y).sum() / (3 * world)).backward()
    optimizer.step()
    optimizer.zero_grad()
want = {name: p.detach() for name, p in plain.named_parameters()}
wrong = [name for name in want if not torch.equal(got[name], want[name])]
for name in wrong or want:
    print(f"rank {rank}, {name}: expected {want[name].tolist()}, got {got[name].tolist()}")
dist.barrier()
sys.exit(1 if wrong else 0)
