"""What a check on a stranger's model sees: bugs that engines have had, planted one by one under models of other libraries.

    PYTHONPATH=build/dev/python python python/real_models/power.py

It prints rows of the table of docs/check.md, "What it sees": those of Llama and T5 are there. Of each model
the cases are stages 0 to 3 in fp32 and under a loss scale, 2 ranks, 3 micro-batches. A bug that does not act in any of them
cannot show on that model.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

import torch
import transformers.models.llama.modeling_llama  # here, once: ranks are forked from this process
import transformers.models.t5.modeling_t5
import transformers.models.vit.modeling_vit  # noqa: F401
import zoo

MODELS = {"Llama": "fp16", "T5": "fp16", "ViT": "autocast-fp16"}


def harness():
    path = Path(importlib.util.find_spec("equigrad").origin).with_name("_check_process.py")
    spec = importlib.util.spec_from_file_location("check_process", path)
    process = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(process)
    return process.load_harness()


def generator(step: int, rank: int, micro_batch: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 * step + 10 * rank + micro_batch)


def main() -> None:
    core = harness()
    from equigrad._subject import Subject

    faults = core.historical_faults()
    print("| model | beside fp32 | bugs planted | that act here | caught |\n|---|---|---|---|---|", flush=True)
    others = []
    for name, precision in MODELS.items():
        entry = zoo.ZOO[name]

        def make(entry=entry) -> Subject:
            return Subject(entry.make, entry.loss, generator, 3)  # a batch is made of its generator, by the zoo's loss

        plants = core.plant_faults(make, ["fp32", precision], ["", *faults])
        _, caught, ended, message = plants.pop("")
        assert not (caught or ended), message
        can_show = {fault: plant for fault, plant in plants.items() if plant[0] or plant[2]}
        seen = [fault for fault, (_, caught, _, _) in can_show.items() if caught]
        print(f"| {name} | {precision} | {len(faults)} | {len(can_show)} | {len(seen)} |", flush=True)
        for fault in sorted(set(can_show) - set(seen)):
            first = next(
                (line.strip() for line in can_show[fault][3].splitlines() if "expected" in line), "nothing was said"
            )
            others.append(f"- {name}, `{fault}`: {first}")
    print("\nNot caught by a comparison:\n\n" + ("\n".join(others) or "none"))


if __name__ == "__main__":
    main()
