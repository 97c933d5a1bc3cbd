"""One rank of a peer: does what the controller (perf/race/) says over a socket, a JSON line at a time.

    start      model, weights, batches, the peer's own set-up   -> parameters, base_bytes, versions
    gradients  the first step's averaged gradients into a file   (the next thing after start, or never)
    block      a barrier, one step to warm up, `steps` timed     -> seconds, cpu_seconds, growth_bytes
    counts     one step, its collectives and bytes sent          -> collectives, wire_bytes

perf/worker/ is the engine's; both speak the same.
"""
import argparse
import importlib
import json
import os
import socket
import struct
import sys
import time
import traceback

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import gpt  # noqa: E402
import tensor_file  # noqa: E402

TCP_INFO_BYTES_SENT = 200  # struct tcp_info, linux/tcp.h
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def status_bytes(key):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"expected {key} in /proc/self/status")


def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def sent_bytes(skip):
    """What this process's TCP connections have sent, as the kernel counts it."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) == skip or not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            if len(info) >= TCP_INFO_BYTES_SENT + 8:
                total += struct.unpack_from("<Q", info, TCP_INFO_BYTES_SENT)[0]
        except OSError:
            pass
        finally:
            connection.close()
    return total


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)


class Plain:
    """Forward, backward, AdamW; no communication."""

    def __init__(self, model, request):
        self.accumulation = request["accumulation"]
        self.model = self.wrap(model, request)
        self.optimizer = optimizer_of(self.model)

    def wrap(self, model, request):
        return model

    def sync(self, last):
        pass

    def backward(self, batches):
        for index, batch in enumerate(batches):
            self.sync(index + 1 == len(batches))
            (self.model(batch) / self.accumulation).backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gradients(self):
        return {name: p.grad for name, p in self.model.named_parameters()}


class Ddp(Plain):
    def wrap(self, model, request):
        return torch.nn.parallel.DistributedDataParallel(model)

    def sync(self, last):
        self.model.require_backward_grad_sync = last

    def gradients(self):
        return {name: p.grad for name, p in self.model.module.named_parameters()}


class Fsdp2(Plain):
    def wrap(self, model, request):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        settings = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
        if request["bf16"]:
            settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for block in getattr(model, "blocks", []):
            fully_shard(block, **settings)
        fully_shard(model, **settings)
        return model

    def gradients(self):
        return {name: p.grad.full_tensor() for name, p in self.model.named_parameters()}


class DeepSpeed:
    def __init__(self, model, request):
        import deepspeed
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        config = {"train_micro_batch_size_per_gpu": request["batch"],
                  "gradient_accumulation_steps": request["accumulation"],
                  "zero_optimization": {"stage": request["stage"]},
                  "steps_per_print": 10 ** 9}
        config["zero_optimization"].update(request.get("zero", {}))
        if request["bf16"]:
            config["bf16"] = {"enabled": True}
        self.stage = request["stage"]
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer_of(model), config=config)[0]

    def backward(self, batches):
        for index, batch in enumerate(batches):
            if index:
                self.engine.step()
            self.engine.backward(self.engine(batch))

    def update(self):
        self.engine.step()

    def gradients(self):
        from deepspeed.utils import safe_get_full_grad
        named = self.engine.module.named_parameters()
        return {name: p.grad if self.stage == 0 else safe_get_full_grad(p) for name, p in named}


class Equigrad(DeepSpeed):
    """The engine from Python; perf/worker/ is the same one from C++."""

    def __init__(self, model, request):
        import equigrad
        self.engine = equigrad.initialize(model=model, config=request["config"])[0]

    def gradients(self):
        from equigrad.utils import safe_get_full_grad
        return {name: safe_get_full_grad(p) for name, p in self.engine.module.named_parameters()}


class Worker:
    def __init__(self, arguments):
        self.arguments = arguments
        self.step_index = 0
        dist.init_process_group("gloo", init_method=f"file://{arguments.rendezvous}", rank=arguments.rank,
                                world_size=arguments.world)
        os.environ.update(RANK=str(arguments.rank), LOCAL_RANK=str(arguments.rank),
                          WORLD_SIZE=str(arguments.world))

    def start(self, request):
        peer = request["peer"]
        sys.path[:0] = [request["package"]] if "package" in request else []
        # A peer's code is no part of what training takes.
        modules = {"deepspeed": "deepspeed", "fsdp2": "torch.distributed.fsdp", "equigrad": "equigrad"}
        importlib.import_module(modules.get(peer, "torch"))
        self.tokens = tensor_file.read(request["batches"])[f"rank{self.arguments.rank}"]  # [count, ...]
        self.accumulation = request["accumulation"]
        dist.barrier()
        forget_peak()
        self.base_bytes = status_bytes("VmRSS")
        model = gpt.make(request["model"])
        if request.get("unfused"):
            gpt.unfuse(model)
        weights = tensor_file.read(request["weights"])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights.pop(name))
        if weights:
            raise RuntimeError(f"expected no other weights, got {sorted(weights)}")
        del weights
        parameters = sum(p.numel() for p in model.parameters())
        if request["bf16"] and peer in ("plain", "ddp"):
            model.to(torch.bfloat16)
        peers = {"plain": Plain, "ddp": Ddp, "fsdp2": Fsdp2, "deepspeed": DeepSpeed, "equigrad": Equigrad}
        self.peer = peers[peer](model, request)
        forget_peak()  # the file's bytes lay beside the model
        versions = {"torch": torch.__version__}
        if peer == "deepspeed":
            versions["deepspeed"] = sys.modules["deepspeed"].__version__
        return {"parameters": parameters, "base_bytes": self.base_bytes, "versions": versions}

    def batches(self):
        count = self.tokens.shape[0]
        first = self.step_index * self.accumulation
        self.step_index += 1
        return [self.tokens[(first + i) % count] for i in range(self.accumulation)]

    def step(self):
        self.peer.backward(self.batches())
        self.peer.update()

    def gradients(self, request):
        self.peer.backward(self.batches())
        found = {name: gradient.float().clone() for name, gradient in self.peer.gradients().items()}
        if self.arguments.rank == 0:
            tensor_file.write(request["path"], found)
        elif request.get("every_rank"):
            tensor_file.write(f"{request['path']}.{self.arguments.rank}", found)
        self.peer.update()
        return {}

    def block(self, request):
        dist.barrier()
        for _ in range(request["warm"]):
            self.step()
        seconds, cpu = [], time.process_time()
        for _ in range(request["steps"]):
            begin = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - begin)
        return {"seconds": seconds, "cpu_seconds": time.process_time() - cpu,
                "growth_bytes": status_bytes("VmHWM") - self.base_bytes}

    def counts(self, request):
        from torch.profiler import ProfilerActivity, profile
        dist.barrier()
        sent = sent_bytes(self.arguments.channel)
        self.step()
        dist.barrier()
        sent = sent_bytes(self.arguments.channel) - sent
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            self.step()
        collectives = {}
        for event in profiler.events():
            if event.name.startswith("c10d::"):
                collectives[event.name[6:].strip("_")] = collectives.get(event.name[6:].strip("_"), 0) + 1
        return {"wire_bytes": sent, "collectives": collectives}

    def serve(self, request):
        return {"start": self.start, "gradients": self.gradients, "block": self.block,
                "counts": self.counts}[request["do"]](request)


def main():
    parser = argparse.ArgumentParser()
    for name in ("channel", "rank", "world"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--rendezvous", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    channel = socket.socket(fileno=arguments.channel)
    lines = channel.makefile("r")
    worker = None
    for line in lines:
        try:
            worker = worker or Worker(arguments)
            answer = {"ok": worker.serve(json.loads(line))}
        except Exception:  # the controller is to hear of every one
            answer = {"error": traceback.format_exc()}
        channel.sendall((json.dumps(answer) + "\n").encode())
    os._exit(0)


main()
