# DeepSpeed 0.19.8, torch 2.11.0+cu130: Every step: the gradient of every parameter is the last backward() of the step
# alone: those before it are lost or is the last backward() of each micro-batch alone or has of the last micro-batch the
# last backward() alone (680 wrong elements; the first: got -4, right is 0).
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


def batch(rank, k):  # small integers, others in every batch: all that follows is exact
    n = 2 * rank + k
    return torch.tensor([[1.0, n % 3 - 1.0, n]]), torch.tensor([[1.0, n % 2]])


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is compiled
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


deepspeed.init_distributed("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = make_model()
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.25), config=config)
for k in range(2):
    x, y = batch(rank, k)
    loss = (engine(x) * y).sum()
    engine.backward(loss)
engine.step()
got = {name: p.detach().float().clone() for name, p in engine.module.named_parameters()}

plain = make_model()  # one process
optimizer = torch.optim.SGD(plain.parameters(), lr=0.25)
for r in range(world):
    for k in range(2):
        x, y = batch(r, k)
        ((plain(x) * y).sum() / world).backward()
optimizer.step()
want = {name: p.detach() for name, p in plain.named_parameters()}
wrong = [name for name in want if not torch.equal(got[name], want[name])]
for name in wrong or want:
    print(f"rank {rank}, {name}: expected {want[name].tolist()}, got {got[name].tolist()}")
dist.barrier()
sys.exit(1 if wrong else 0)
