# DeepSpeed 0.19.8, torch 2.11.0+cu130: Step 1: the norm is that of the gradient with the loss scale (32) still in it
# (got 689.301095, right is 21.5406592).
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


def batch(rank, micro):  # small integers, others in every batch: all that follows is exact
    n = 2 * rank + micro
    return torch.tensor([[1.0, n % 3 - 1.0, n]]), torch.tensor([[1.0, n % 2]])


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is compiled
deepspeed.get_accelerator().is_fp16_supported = lambda: True  # torch has fp16 on every CPU
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
    "torch_autocast": {"enabled": True, "dtype": "float16"},
}


deepspeed.init_distributed("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = make_model()
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.25), config=config)
scaler = engine.optimizer.torch_autocast_gradscaler
scaler.load_state_dict({**scaler.state_dict(), "scale": 32.0})
for micro in range(2):
    x, y = batch(rank, micro)
    loss = (engine(x) * y).sum()
    engine.scale(loss).backward()
    engine.step()
got = {"norm": torch.tensor(float(engine.get_global_grad_norm()))}

plain = make_model()  # one process
optimizer = torch.optim.SGD(plain.parameters(), lr=0.25)
for r in range(world):
    for micro in range(2):
        x, y = batch(r, micro)
        ((plain(x) * y).sum() / (2 * world)).backward()
norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), float("inf"))  # clips nothing
optimizer.step()
want = {"norm": norm}
# the norm rounds: 2**-9 has room for 4 roundings
room = {"rtol": 2**-9, "atol": 0.0}
wrong = [name for name in want if not torch.allclose(got[name], want[name], **room)]
for name in wrong or want:
    print(f"rank {rank}, {name}: expected {want[name].tolist()}, got {got[name].tolist()}")
dist.barrier()
sys.exit(1 if wrong else 0)
