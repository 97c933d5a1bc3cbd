"""Seconds and bytes of a save and a load of the same training state, by Equigrad and by others, in turns.

    torchrun --nproc-per-node 2 perf/peers/checkpoints.py --folder SOMEWHERE [--write perf/results/checkpoints.md]

Of a GPT in fp32 with AdamW after one step, every rank saves and loads what its own engine or optimizer holds; all end on the
disk (fsync of every file, also where a library does not, and its time counts) and are read from the page cache. Equigrad
verifies digests. A library that is not installed is left out, and said so. Ratios are of medians in one run.
"""

import argparse
import importlib.util
import os
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpt import Gpt  # noqa: E402

SHAPE = {"layers": 8, "dim": 512, "heads": 8, "context": 64, "vocabulary": 4096}


def made():
    torch.manual_seed(0)
    model = Gpt(**SHAPE)
    with torch.no_grad():
        model.position.normal_(std=0.02)
    return model


def batch():
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randint(SHAPE["vocabulary"], (2, SHAPE["context"] + 1), generator=generator)


def files_below(folder):
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]


def sync(folder):
    for path in files_below(folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


class Equigrad:
    """ZeRO stage 2: each rank an equal part of masters and both averages; digests written and checked."""

    def __init__(self):
        import equigrad

        config = {
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": 2},
        }
        self.engine = equigrad.initialize(model=made(), config=config)[0]
        self.engine.backward(self.engine(batch()))
        self.engine.step()

    def save(self, folder):
        self.engine.save_checkpoint(folder, "a")

    def load(self, folder):
        self.engine.load_checkpoint(folder, "a")

    def load_unchecked(self, folder):
        self.engine.load_checkpoint(folder, "a", check_digests=False)

    def step(self):
        self.engine.backward(self.engine(batch()))
        self.engine.step()

    def begin(self, folder):
        self.engine.save_checkpoint(folder, "beside", asynchronous=True)


class Plain:
    """Of a model and an optimizer that every rank has whole; rank 0 writes, all ranks read."""

    def __init__(self):
        self.model = made()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.model(batch()).backward()
        self.optimizer.step()

    def tensors(self):
        names = {id(one): name for name, one in self.model.named_parameters()}
        found = {name: one.detach() for name, one in self.model.named_parameters()}
        for one, state in self.optimizer.state.items():
            for key, value in state.items():
                found[f"{key}.{names[id(one)]}"] = value
        return found


class TorchSave(Plain):
    """torch.save and torch.load(weights_only=True, mmap=True)."""

    def save(self, folder):
        if dist.get_rank() == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, os.path.join(folder, "all.pt"))
            sync(folder)

    def load(self, folder):
        read = torch.load(os.path.join(folder, "all.pt"), weights_only=True, mmap=True)
        self.model.load_state_dict(read["model"])
        self.optimizer.load_state_dict(read["optimizer"])
        with torch.no_grad():  # load_state_dict keeps the mapped tensors, which nobody has read yet
            for state in self.optimizer.state.values():
                for key, value in state.items():
                    state[key] = value.clone()


class Safetensors(Plain):
    """safetensors.torch: save_file, and every tensor of safe_open copied."""

    def save(self, folder):
        from safetensors.torch import save_file

        if dist.get_rank() == 0:
            save_file(self.tensors(), os.path.join(folder, "all.safetensors"))
            sync(folder)

    def load(self, folder):
        from safetensors import safe_open

        with safe_open(os.path.join(folder, "all.safetensors"), "pt") as file, torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(file.get_tensor(name))


class Dcp(Plain):
    """torch.distributed.checkpoint: every rank writes a part of what all have."""

    def save(self, folder):
        import torch.distributed.checkpoint as dcp

        dcp.save(self.tensors(), checkpoint_id=folder)
        if dist.get_rank() == 0:
            sync(folder)

    def load(self, folder):
        import torch.distributed.checkpoint as dcp

        dcp.load(self.tensors(), checkpoint_id=folder)


class DeepSpeed:
    """ZeRO stage 2 of DeepSpeed, its own save_checkpoint and load_checkpoint."""

    def __init__(self):
        import deepspeed

        model = made()
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
        }
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
        self.engine.backward(self.engine(batch()))
        self.engine.step()

    def save(self, folder):
        self.engine.save_checkpoint(folder, "a")
        dist.barrier()
        if dist.get_rank() == 0:
            sync(folder)

    def load(self, folder):
        self.engine.load_checkpoint(folder, "a")


NEEDED = {
    "Equigrad": "equigrad",
    "TorchSave": "torch",
    "Safetensors": "safetensors",
    "Dcp": "torch",
    "DeepSpeed": "deepspeed",
}


def timed(call):
    dist.barrier()
    begin = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - begin


def measure(ones, folder, repeats):
    seconds = {name: {"save": [], "load": [], "unchecked": []} for name in ones}
    size = {}
    for repeat in range(repeats + 1):  # the first is not counted
        for name, one in ones.items():
            place = os.path.join(folder, name)
            if dist.get_rank() == 0:
                shutil.rmtree(place, ignore_errors=True)
                os.makedirs(place)
            dist.barrier()
            taken = {"save": timed(lambda: one.save(place))}
            size[name] = sum(os.path.getsize(path) for path in files_below(place))
            taken["load"] = timed(lambda: one.load(place))
            if hasattr(one, "load_unchecked"):
                taken["unchecked"] = timed(lambda: one.load_unchecked(place))
            for what, value in taken.items():
                if repeat > 0:
                    seconds[name][what].append(value)
    return seconds, size


def measure_beside(one, folder, repeats):
    """Seconds of a step alone, of one that follows the beginning of an asynchronous save, and of that beginning."""
    seconds = {"alone": [], "beside": [], "begin": []}
    for _ in range(repeats + 1):
        seconds["alone"].append(timed(one.step))
        seconds["begin"].append(timed(lambda: one.begin(folder)))
        seconds["beside"].append(timed(one.step))
        one.engine.finish_checkpoint()
    return {what: statistics.median(all_[1:]) for what, all_ in seconds.items()}


def table(ones, seconds, size, repeats, missing, beside):
    median = {name: {what: statistics.median(all_) for what, all_ in by.items() if all_} for name, by in seconds.items()}
    best = {what: min(by[what] for by in median.values()) for what in ("save", "load")}
    parameters = sum(one.numel() for one in made().parameters())
    lines = [
        "# Checkpoints: seconds beside other savers",
        "",
        f"{parameters:,} parameters in fp32 with AdamW, {dist.get_world_size()} ranks, torch {torch.__version__}, "
        f"{repeats} repeats in turns in one run, medians. Every file is synced and its time counts; loads come from the page cache. Speed is",
        "beside the fastest, 1.00, of this run.",
        "`torchrun --nproc-per-node 2 perf/peers/checkpoints.py --folder ...`",
        "",
        "| | MB | save, s | GB/s | speed | load, s | GB/s | speed |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in ones.items():
        row = [f"{name}: {type(one).__doc__}", f"{size[name] / 1e6:.0f}"]
        for what in ("save", "load"):
            took = median[name][what]
            row += [f"{took:.3f}", f"{size[name] / took / 1e9:.2f}", f"{best[what] / took:.2f}"]
        lines.append("| " + " | ".join(row) + " |")
    if beside:
        checked, unchecked = (median["Equigrad"][what] for what in ("load", "unchecked"))
        lines += [
            "",
            f"Without digests of tensors (`check_digests=False`) Equigrad's load takes {unchecked:.3f} s: they are {1 - unchecked / checked:.0%} of it.",
            "",
            f"An asynchronous save of Equigrad's: the call, which copies this rank's part, {beside['begin']:.3f} s; a step",
            f"alone {beside['alone']:.3f} s, the step while it is written {beside['beside']:.3f} s, "
            f"{beside['beside'] / beside['alone']:.2f} of it.",
        ]
    if missing:
        lines += ["", "Not installed, so not measured: " + ", ".join(missing) + "."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="where checkpoints are written; what it has of these names goes")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", help="the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    missing = [name for name, package in NEEDED.items() if importlib.util.find_spec(package) is None]
    ones = {name: globals()[name]() for name in NEEDED if name not in missing}
    seconds, size = measure(ones, arguments.folder, arguments.repeats)
    beside = None
    if "Equigrad" in ones:
        beside = measure_beside(ones["Equigrad"], os.path.join(arguments.folder, "Equigrad"), arguments.repeats)
    if dist.get_rank() == 0:
        page = table(ones, seconds, size, arguments.repeats, missing, beside)
        print(page)
        if arguments.write:
            with open(arguments.write, "w") as file:
                file.write(page)
        for name in ones:
            shutil.rmtree(os.path.join(arguments.folder, name), ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
