"""An adapter that lies: the example's, whose answers are changed. CHEATS names, by the number of the case, how.

It keeps to the channel's rules: test_ranks.py has those who do not.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples/judge/hand_written_ddp.py"))
Line = dict[str, Any]
Tensors = dict[str, torch.Tensor]


class Liar:
    """One rank of it."""

    def __init__(self, rank: int, cheats: list[str]) -> None:
        self.rank = rank
        self.cheats = cheats
        self.before: tuple[list[Line], Tensors] = ([], {})
        self.bytes = b""

    def answer(self, line: Line) -> Line:
        cheat = self.cheats[line["number"] - 1].replace("-", "_")
        case = json.loads(Path(line["case"]).read_text())
        trained = EXAMPLE["train"](case, self.rank)
        steps, tensors = getattr(self, cheat)(case, *trained)
        if cheat == "honest":
            self.before = trained
        path = Path(line["folder"]) / f"rank{self.rank}.safetensors"
        if cheat == "the_same_bytes":
            path.write_bytes(self.bytes)
        else:
            EXAMPLE["write"](str(path), tensors)
        self.bytes = path.read_bytes()
        answer = {"steps": steps} if isinstance(steps, list) else steps
        return {"number": line["number"], "answer": {**answer, **EXAMPLE["ABOUT"]}, "tensors": str(path)}

    def honest(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, tensors

    def the_same_bytes(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return self.before[0], self.before[1]

    def the_same_numbers(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return self.before[0], {**self.before[1], "another": torch.ones(1)}

    def tensors_of_the_case_before(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, {**self.before[1], "another": torch.ones(1)}

    def the_first_step_again(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        again = {
            f"step{step}{name[5:]}": one for name, one in tensors.items() if name[4] == "0" for step in range(len(steps))
        }
        return [steps[0]] * len(steps), again

    def losses_of_rank_0(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        shared = [steps]
        distributed.broadcast_object_list(shared, 0)
        return shared[0], tensors

    def losses_of_zero(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return [{**step, "losses": [0.0] * len(step["losses"])} for step in steps], tensors

    def no_losses(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return [{**step, "losses": []} for step in steps], tensors

    def no_rates(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return [{**step, "lrs": []} for step in steps], tensors

    def a_step_too_few(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps[:-1], tensors

    def a_step_too_many(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return [*steps, steps[-1]], tensors

    def no_tensors(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, {}

    def gradients_only(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, {name: one for name, one in tensors.items() if "/gradient/" in name}

    def one_parameter_less(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, {name: one for name, one in tensors.items() if name != "step0/parameter/last.bias"}

    def one_gradient_less(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, {name: one for name, one in tensors.items() if name != "step0/gradient/last.weight"}

    def gradients_of_one_rank_only(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, {name: one for name, one in tensors.items() if "/gradient/" not in name or self.rank == 0}

    def weights_as_they_were(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        weights = EXAMPLE["read"](case["weights"])
        return steps, {f"step{step}/parameter/{name}": one for step in range(len(steps)) for name, one in weights.items()}

    def flat_tensors(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, {name: one.flatten() for name, one in tensors.items()}

    def not_a_number(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, {name: one * float("nan") for name, one in tensors.items()}

    def infinite(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return steps, {name: one + float("inf") if "/gradient/" in name else one for name, one in tensors.items()}

    def rounded(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        """One element, by its last bit."""
        one = tensors["step0/gradient/last.weight"]
        place = one.abs().argmax()
        one.view(-1)[place] = torch.nextafter(one.view(-1)[place], torch.tensor(float("inf")))
        return steps, tensors

    def each_rank_alone(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        names = EXAMPLE["train"].__globals__
        names["average"], average = (lambda model, world: None), names["average"]
        try:
            return EXAMPLE["train"](case, self.rank)
        finally:
            names["average"] = average

    def always_absent(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        return {"absent": "no such feature"}, {}

    def sleep(self, case: Line, steps: Any, tensors: Tensors) -> Any:
        time.sleep(600)


def main() -> None:
    distributed.init_process_group("gloo")
    channel, rank = socket.socket(socket.AF_UNIX), distributed.get_rank()
    channel.connect(os.environ["EQUIGRAD_JUDGE_CHANNEL"])
    hello = {"protocol": 1, "rank": rank, **EXAMPLE["ABOUT"]}
    channel.sendall(json.dumps({"hello": hello}).encode() + b"\n")
    liar = Liar(rank, json.loads(os.environ["CHEATS"]))
    for line in map(json.loads, channel.makefile("rb")):
        if line["do"] == "stop":
            break
        channel.sendall(json.dumps(liar.answer(line)).encode() + b"\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
