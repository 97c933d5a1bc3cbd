"""Seconds of a step and bytes of a rank where ranks share a model, by Equigrad and by others, in turns, over several lives.

    python perf/peers/parallel.py --ranks 2 [--tensor 2 | --sequence 2] [--stage 1] [--lives 7] [--write PAGE.md]

A Llama of transformers in fp32 with AdamW, random weights, as it is. With more ranks than --tensor or --sequence the others are data
ranks. Every contestant takes the same steps on the same tokens; the loss of the second says so. A contestant whose package is not
installed, or that cannot do what is asked, is left out by name.

How memory lies stays with a process as long as it lives, so every life starts all processes anew (torchrun), with another contestant
first. A life's ratio is the median over its rounds of the two times of one round; the page has the median of lives and its 95 % interval
by order statistics, as perf/race/medians.hpp has it: of 6 lives or 7 from the least to the largest. Exit code 1: a life failed, or too few.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "use_cache": False,
    "attn_implementation": "sdpa",
}
MICRO_BATCH, LENGTH, LR = 2, 128, 1e-3
CONFIDENCE = 0.95


def made():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def tokens(data_rank):
    generator = torch.Generator().manual_seed(data_rank)
    return torch.randint(SHAPE["vocab_size"], (MICRO_BATCH, LENGTH), generator=generator)


class Equigrad:
    """its AutoTP, or its Ulysses; ZeRO over the data ranks."""

    def __init__(self, sizes, stage):
        import equigrad

        config = {
            "train_micro_batch_size_per_gpu": MICRO_BATCH,
            "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": 0.01}},
            "zero_optimization": {"stage": stage},
        }
        if sizes["tensor"] > 1:
            config["tensor_parallel"] = {"autotp_size": sizes["tensor"]}
        if sizes["sequence"] > 1:
            config["sequence_parallel_size"] = sizes["sequence"]
        self.engine = equigrad.initialize(model=made(), config=config)[0]
        batch = tokens(self.engine.data_parallel_rank)
        self.batch = {"input_ids": batch, "labels": batch}
        if sizes["sequence"] > 1:
            self.batch = next(iter(equigrad.parallel.split_loader([self.batch], self.engine)))

    def step(self):
        loss = self.engine(**self.batch).loss
        self.engine.backward(loss)
        self.engine.step()
        return loss

    def held_bytes(self):
        return {kind: now for kind, (now, _) in self.engine.bytes_held().items()}


class DeepSpeed:
    """its AutoTP, or its Ulysses; ZeRO over the data ranks."""

    def __init__(self, sizes, stage):
        import deepspeed

        config = {
            "train_micro_batch_size_per_gpu": MICRO_BATCH,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        }
        self.model, self.group, more = made(), None, {}
        batch = tokens(dist.get_rank() // (sizes["tensor"] * sizes["sequence"]))
        self.batch = {"input_ids": batch, "labels": batch}
        if sizes["tensor"] > 1:
            config["tensor_parallel"] = {"autotp_size": sizes["tensor"]}
        if sizes["sequence"] > 1:
            config["sequence_parallel_size"] = sizes["sequence"]
            more["mpu"] = self.with_sequences(sizes["sequence"])
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, fused=True)
        self.engine = deepspeed.initialize(model=self.model, optimizer=optimizer, config=config, **more)[0]

    def with_sequences(self, size):
        import deepspeed
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

        deepspeed.init_distributed("gloo")
        own = dict(ALL_ATTENTION_FUNCTIONS)["sdpa"]
        groups = UlyssesSPAttentionHF.register_with_transformers(
            self.model, "sdpa", size, MICRO_BATCH, seq_length=LENGTH, seq_length_is_variable=False
        )
        # It has put itself in the place of "sdpa" for every model: here for this one alone.
        AttentionInterface.register("sdpa_of_deepspeed", ALL_ATTENTION_FUNCTIONS["sdpa"])
        AttentionMaskInterface.register("sdpa_of_deepspeed", sdpa_mask)
        ALL_ATTENTION_FUNCTIONS["sdpa"] = own
        self.model.set_attn_implementation("sdpa_of_deepspeed")
        self.group = groups.get_sequence_parallel_group()
        batch, rank = self.batch["input_ids"], dist.get_rank(self.group)
        after = torch.nn.functional.pad(batch[:, 1:], (0, 1), value=-100)
        places = torch.arange(LENGTH).expand_as(batch)
        whole = {"input_ids": batch, "position_ids": places, "shift_labels": after}
        self.batch = {name: one.chunk(size, 1)[rank].contiguous() for name, one in whole.items()}
        return groups

    def loss_of_batch(self):
        """As its tutorial has it: the mean over the tokens of the whole sequence."""
        out = self.engine(**self.batch)
        if self.group is None:
            return out.loss
        from torch.distributed.nn.functional import all_gather

        counted = (self.batch["shift_labels"] != -100).sum()
        labels = {"labels": None, "shift_labels": self.batch["shift_labels"]}
        mean = self.model.loss_function(out.logits, vocab_size=SHAPE["vocab_size"], **labels)
        weights = torch.stack(all_gather(counted, group=self.group))
        return (torch.stack(all_gather(mean, group=self.group)) * weights).sum() / weights.sum()

    def step(self):
        loss = self.loss_of_batch()
        self.engine.backward(loss)
        self.engine.step()
        return loss


class Torch:
    """torch.distributed.tensor.parallel, with fully_shard (FSDP2) over the data ranks."""

    def __init__(self, sizes, stage):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        if sizes["sequence"] > 1:
            raise NotImplementedError("it has no attention of sequence groups for a model as it is")
        data = dist.get_world_size() // sizes["tensor"]
        mesh = init_device_mesh("cpu", (data, sizes["tensor"]), mesh_dim_names=("data", "tensor"))
        self.model = made()
        plan = {f"self_attn.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
        plan |= {f"mlp.{name}": ColwiseParallel() for name in ("gate_proj", "up_proj")}
        plan |= {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
        for layer in self.model.model.layers:
            parallelize_module(layer, mesh["tensor"], plan)
        if data > 1:
            for layer in self.model.model.layers:
                fully_shard(layer, mesh=mesh["data"], reshard_after_forward=stage == 3)
            fully_shard(self.model, mesh=mesh["data"], reshard_after_forward=stage == 3)
        # The fused update takes no plain tensors beside distributed ones.
        every = list(self.model.parameters())
        groups = [[one for one in every if isinstance(one, DTensor) == is_split] for is_split in (False, True)]
        self.optimizer = torch.optim.AdamW([{"params": one} for one in groups if one], lr=LR, fused=True)
        self.batch = tokens(mesh["data"].get_local_rank())

    def step(self):
        loss = self.model(input_ids=self.batch, labels=self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


HEAD = """# Ranks that share a model: a step and bytes beside others

A Llama of transformers in fp32 with AdamW (torch's fused one for the others), random weights, Gloo, one thread a rank. Lower is
better. Gradients are compared in `python/real_models/tensor.py`; here the loss of the second step says that contestants train one
model on the same tokens. Every life starts all processes anew; a ratio is the median of lives, of each the median over its rounds, with
a 95 % interval by order statistics of lives.
`python perf/peers/parallel.py --ranks 2 --tensor 2 --write PAGE.md`
"""

NEEDED = {"Equigrad": "equigrad", "DeepSpeed": "deepspeed", "Torch": "torch"}


def contestants(sizes, stage, first):
    """Those that are there, from the first on in turn, and for the others why not."""
    ones, missing = {}, {}
    names = list(NEEDED)
    for name in names[first % len(names) :] + names[: first % len(names)]:
        if importlib.util.find_spec(NEEDED[name]) is None:
            missing[name] = "not installed"
            continue
        try:
            ones[name] = globals()[name](sizes, stage)
        except NotImplementedError as error:
            missing[name] = str(error)
    return ones, missing


def losses_of(ones):
    """Of the second step: who has other data, another model or another update has another."""
    found = {}
    for name, one in ones.items():
        one.step()
        loss = one.step().detach().clone().double()
        dist.all_reduce(loss)
        found[name] = loss.item() / dist.get_world_size()
    return found


def timed(call):
    dist.barrier()
    begin = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - begin


def measure(ones, repeats):
    """By contestant the seconds of every round."""
    seconds = {name: [] for name in ones}
    for _ in range(repeats):
        for name, one in ones.items():
            seconds[name].append(timed(one.step))
    return seconds


def check_bytes(one, sizes, stage):
    """Of a rank between steps: fp32 parameters cut by tensor ranks; masters and two averages cut by the other ranks, too."""
    numel = sum(one.numel() // (sizes["tensor"] if "_proj." in name else 1) for name, one in made().named_parameters())
    shards = dist.get_world_size() // sizes["tensor"] if stage > 0 else 1
    expected = 4 * (numel // shards if stage == 3 else numel) + 12 * (numel // shards)
    held = one.held_bytes()["total"]
    if held != expected:
        raise SystemExit(f"[parallel] expected {expected:,} bytes between steps, got {one.held_bytes()}")
    return held


def live(arguments):
    """One life, on one of its ranks: the first writes what it was to a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sizes = {"tensor": arguments.tensor, "sequence": arguments.sequence}
    ones, missing = contestants(sizes, arguments.stage, arguments.first)
    losses = losses_of(ones)
    seconds = measure(ones, arguments.rounds)
    held = check_bytes(ones["Equigrad"], sizes, arguments.stage) if "Equigrad" in ones else None
    if dist.get_rank() == 0:
        with open(arguments.life, "w") as file:
            json.dump({"seconds": seconds, "losses": losses, "missing": missing, "held": held}, file)
    dist.barrier()
    dist.destroy_process_group()


# ---- Of several lives --------------------------------------------------------------------------------------------------


def lead(arguments):
    """All lives, one after the other; None where one failed."""
    lives = []
    given = ["--tensor", "--sequence", "--stage", "--rounds"]
    settings = [f"{name}={getattr(arguments, name[2:])}" for name in given]
    with tempfile.TemporaryDirectory() as folder:
        for first in range(arguments.lives):
            path = os.path.join(folder, f"{first}.json")
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.ranks}"]
            command = [*torchrun, os.path.abspath(__file__), *settings, f"--life={path}", f"--first={first}"]
            if subprocess.run(command, check=False).returncode != 0:
                print(f"[parallel] expected life {first + 1} to end well, it did not. See what its ranks printed above.")
                return None
            with open(path) as file:
                lives.append(json.load(file))
            medians = {name: f"{1e3 * statistics.median(all_):.1f} ms" for name, all_ in lives[-1]["seconds"].items()}
            print(f"life {first + 1} of {arguments.lives}: {medians}", flush=True)
    return lives


def rank_of_bound(count):
    """The largest k with 2 P(Binomial(count, 1/2) < k) <= 1 - CONFIDENCE; 0 where there is none."""
    below, k = 0.0, 0
    while k < count // 2:
        below += math.comb(count, k) / 2.0**count
        if 2 * below > 1 - CONFIDENCE:
            break
        k += 1
    return k


def median_interval(values):
    """The median, and what holds it: x(k) .. x(n + 1 - k) of values in order."""
    k = rank_of_bound(len(values))
    if k == 0:
        raise SystemExit(
            f"[parallel] expected lives enough for an interval of {CONFIDENCE:.0%}, got {len(values)}. Take 6 or more."
        )
    ordered = sorted(values)
    return statistics.median(ordered), ordered[k - 1], ordered[-k]


def ratio_of(life, name, other):
    """The median over rounds of the two times of one round."""
    return statistics.median(a / b for a, b in zip(life["seconds"][name], life["seconds"][other], strict=True))


def milliseconds(lives, name):
    return median_interval([1e3 * statistics.median(life["seconds"][name]) for life in lives])


def row(lives, name, other):
    step = "{:.1f} [{:.1f}, {:.1f}]".format(*milliseconds(lives, name))
    ratio = (
        ""
        if other is None
        else "{:.2f} [{:.2f}, {:.2f}]".format(*median_interval([ratio_of(life, name, other) for life in lives]))
    )
    return f"| {name}: {globals()[name].__doc__} | {lives[0]['losses'][name]:.4f} | {step} | {ratio} |"


def table(arguments, lives):
    data = arguments.ranks // (arguments.sequence * arguments.tensor)
    names = [name for name in NEEDED if name in lives[0]["seconds"]]
    others = {name: milliseconds(lives, name)[0] for name in names if name != "Equigrad"}
    fastest = min(others, key=others.get, default=None)
    count, lived = sum(one.numel() for one in made().parameters()), f"{len(lives)} lives of {arguments.rounds} rounds"
    lines = [
        f"## Data {data} x sequence {arguments.sequence} x tensor {arguments.tensor}, ZeRO stage {arguments.stage}",
        "",
        f"{count:,} parameters, {MICRO_BATCH} x {LENGTH} tokens a data rank, torch {torch.__version__}, {lived}.",
        "",
        "| | second step's loss | step, ms | of the fastest other |",
        "|---|--:|--:|--:|",
        *(row(lives, name, fastest) for name in names),
    ]
    if lives[0]["held"]:
        lines += ["", f"Equigrad holds {lives[0]['held']:,} bytes a rank between steps, which is the formula's count."]
    if lives[0]["missing"]:
        lines += ["", "Not measured: " + "; ".join(f"{name}, {why}" for name, why in lives[0]["missing"].items()) + "."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=1)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--lives", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=15, help="of a life")
    parser.add_argument("--write", help="the page, to which a section is added")
    parser.add_argument("--life", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.life:
        live(arguments)
        return 0
    median_interval([1.0] * arguments.lives)  # enough of them
    lives = lead(arguments)
    if lives is None:
        return 1
    page = table(arguments, lives)
    print(page)
    if arguments.write:
        begins = not os.path.exists(arguments.write)
        with open(arguments.write, "a") as file:
            file.write((HEAD if begins else "") + "\n" + page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
