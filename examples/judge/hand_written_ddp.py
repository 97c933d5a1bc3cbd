"""An engine of one's own, and the adapter by which `equigrad judge "python examples/judge/hand_written_ddp.py"` judges it.

The engine is `average`: data parallelism by hand. All else speaks the protocol (docs/judge-protocol.md), with torch alone.
"""

import ctypes
import json
import os
import socket
import traceback

import torch
from torch import distributed, nn
from torch.nn.functional import relu6

TYPES = {"F32": torch.float32, "I64": torch.int64}
ABOUT = {"engine": "by hand", "version": "1", "torch": torch.__version__}
FP32 = {"model": "fp32", "autocast": "", "accumulation": "", "communication": "", "loss_scale": None}


def average(model: nn.Module, world: int) -> None:
    """The engine: every gradient becomes the mean over all ranks."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= world


class Mlp(nn.Module):
    """The protocol's lattice-mlp."""

    def __init__(self, wide: int = 131) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 7), nn.Linear(7, 7, bias=False), nn.Linear(7, 7, bias=False)
        self.third.weight = self.second.weight
        self.wide, self.last = nn.Linear(7, wide), nn.Linear(wide, 3)
        self.gain, self.unused = nn.Parameter(torch.ones(1)), nn.Linear(3, 5)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second, self.third, self.wide):
            value = relu6(layer(value))
        return self.last(value) * self.gain


def read(path: str) -> dict:
    """The tensors of a safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    begin, tensors = 8 + int.from_bytes(data[:8], "little"), {}
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, last = (begin + offset for offset in entry["data_offsets"])
            tensors[name] = torch.frombuffer(bytearray(data[first:last]), dtype=TYPES[entry["dtype"]]).reshape(
                entry["shape"]
            )
    return tensors


def write(path: str, tensors: dict) -> None:
    """Tensors of fp32."""
    header, parts, end = {}, [], 0
    for name, tensor in tensors.items():
        parts.append(ctypes.string_at(tensor.contiguous().data_ptr(), 4 * tensor.numel()))
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [end, end := end + len(parts[-1])]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def lacks(case: dict) -> str:
    """Why a case is nothing for this engine, or ""."""
    if case["model"]["name"] != "lattice-mlp" or set(case["model"]["arguments"]) - {"wide"}:
        return f"model {case['model']}"
    if case["stage"] or case["groups"] or case["schedule"] or case["options"] or case["optimizer"]["name"] != "sgd":
        return "stages, groups, schedules, options, AdamW"
    return "" if case["precision"] == FP32 else f"precision {case['precision']}"


def train(case: dict, rank: int) -> tuple[list, dict]:
    """What every step gave, and its tensors."""
    model, weights, batches = Mlp(**case["model"]["arguments"]), read(case["weights"]), read(case["batches"])
    model.load_state_dict({**weights, "third.weight": weights["second.weight"]})
    told, clip, count, factor = case["optimizer"], case["clip"], case["accumulation"], case["model"]["factor"]
    optimizer = torch.optim.SGD(model.parameters(), told["lr"], told["momentum"], weight_decay=told["weight_decay"])
    steps, tensors = [], {}
    for step in range(case["steps"]):
        losses = []
        for micro in range(count):
            key = f"s{step}.r{rank}.m{micro}.b0."
            output, gradient = model(batches[key + "input"]), batches[key + "gradient"]
            loss = (output * gradient).sum() * factor
            losses.append(loss.item())
            if case["style"] == "tensor_backward":
                output.backward(gradient * factor / count)
            else:
                (loss / count).backward()
        average(model, case["world"])
        named = list(model.named_parameters())
        tensors |= {f"step{step}/gradient/{name}": one.grad.clone() for name, one in named if one.grad is not None}
        norm = (
            nn.utils.clip_grad_norm_(model.parameters(), clip["max_norm"], float(clip["norm_type"])).item() if clip else None
        )
        optimizer.step()
        optimizer.zero_grad()
        tensors |= {f"step{step}/parameter/{name}": one.detach().clone() for name, one in named}
        steps.append({"losses": losses, "applied": True, "norm": norm, "lrs": [told["lr"]]})
    return steps, tensors


def answer(line: dict, rank: int) -> dict:
    """The line that answers a case."""
    with open(line["case"], encoding="utf-8") as file:
        case = json.load(file)
    if reason := lacks(case):
        return {"number": line["number"], "answer": {"absent": reason}}
    path = os.path.join(line["folder"], f"rank{rank}.safetensors")
    try:
        steps, tensors = train(case, rank)
        write(path, tensors)
    except Exception:  # noqa: BLE001  the judge shows it, and goes on
        return {"number": line["number"], "answer": {"failed": traceback.format_exc()}}
    return {"number": line["number"], "answer": {"steps": steps, **ABOUT}, "tensors": path}


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    channel, rank = socket.socket(socket.AF_UNIX), distributed.get_rank()
    channel.connect(os.environ["EQUIGRAD_JUDGE_CHANNEL"])
    channel.sendall(json.dumps({"hello": {"protocol": 1, "rank": rank, **ABOUT}}).encode() + b"\n")
    for line in map(json.loads, channel.makefile("rb")):
        if line["do"] == "stop":
            break
        channel.sendall(json.dumps(answer(line, rank)).encode() + b"\n")
    distributed.destroy_process_group()
