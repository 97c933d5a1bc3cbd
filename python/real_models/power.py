"""What a check on a stranger's model sees: bugs that engines have had, planted one by one under models of other libraries.

    PYTHONPATH=build/dev/python python python/real_models/power.py

It prints the table of docs/check.md, "What it sees". Of each model the cases are stages 0 to 3 in fp32 and under a loss scale, 2 ranks, 3 micro-batches. A
bug that does not act in any of them cannot show on that model.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

import torch
import transformers.models.llama.modeling_llama  # here, once: ranks are forked from this process
import torch.nn.functional as F
import transformers.models.t5.modeling_t5  # noqa: F401
import zoo


class Recurrent(torch.nn.Module):
    """Predicts the next vector of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(16, 8)


def recurrent_loss(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    series = torch.randn(3, 7, 8, generator=generator).to(model.head.weight.dtype)
    return F.mse_loss(model.head(model.lstm(series[:, :-1])[0]).float(), series[:, 1:].float())


class Encoder(torch.nn.Module):
    """Classifies a sequence by the mean of its places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(16, 5)


def encoder_loss(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    series = torch.randn(3, 6, 16, generator=generator).to(model.head.weight.dtype)
    labels = torch.randint(0, 5, (3,), generator=generator)
    return F.cross_entropy(model.head(model.layer(series).mean(1)).float(), labels)


def convolutions() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.Flatten(), nn.Linear(72, 10)
    )


def image_loss(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    images, labels = torch.randn(4, 3, 10, 10, generator=generator), torch.randint(0, 10, (4,), generator=generator)
    return F.cross_entropy(model(images.to(model[0].weight.dtype)).float(), labels)


MODELS = {
    "Llama, of transformers": (zoo.ZOO["Llama"].make, zoo.ZOO["Llama"].loss, "fp16"),
    "T5, of transformers": (zoo.ZOO["T5"].make, zoo.ZOO["T5"].loss, "fp16"),
    "LSTM, of torch.nn": (Recurrent, recurrent_loss, "fp16"),
    "transformer encoder layer, of torch.nn": (Encoder, encoder_loss, "fp16"),
    "convolutions with batch normalisation, of torch.nn": (convolutions, image_loss, "autocast-fp16"),
}


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
    for name, (model, loss, precision) in MODELS.items():

        def make(model=model, loss=loss) -> Subject:
            return Subject(model, loss, generator, 3)  # a batch is made of its generator, by the loss

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
