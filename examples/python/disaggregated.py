"""Trains an encoder of images on some ranks, and a language model that captions them on the others:

    torchrun --nproc-per-node 3 disaggregated.py FOLDER --encoders 1
    python disaggregated.py FOLDER --encoders 1 --writers 2 --ray        (where Ray is installed)

FOLDER has the test images of Fashion-MNIST. Each side has its engine, its stage and its number of ranks; features go over a
bridge, their gradients come back. At the end captions are written of images that nobody was trained on.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import equigrad

NAMES = (
    "a T-shirt",
    "trousers",
    "a pullover",
    "a dress",
    "a coat",
    "a sandal",
    "a shirt",
    "a sneaker",
    "a bag",
    "an ankle boot",
)
TRAINED, SHOWN = 8_000, 500  # images; those behind the first are not trained on
PLACES, WIDTH, HEADS, BYTES, TEXT = 4, 32, 2, 256, 27
BATCH, MICRO_BATCHES = 12, 2


class Album:
    """Images [N, 1, 28, 28] and captions [N, TEXT], bytes with zeros behind the full stop."""

    def __init__(self, folder: str) -> None:
        def read(name: str, header: int) -> torch.Tensor:
            content = gzip.decompress((Path(folder) / name).read_bytes())
            return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8)

        self.pixels = read("t10k-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28)
        self.labels = read("t10k-labels-idx1-ubyte.gz", 8).long()
        texts = [f"a picture of {name}.".encode().ljust(TEXT, b"\0") for name in NAMES]
        self.captions = torch.tensor([list(text) for text in texts])

    def batch(self, number: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """These rows of a batch; every image comes once before any comes again."""
        places = (number * BATCH + torch.arange(rows.start, rows.stop)) % TRAINED * 3_001 % TRAINED
        return self._of(places)

    def unseen(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        return self._of(TRAINED + torch.arange(rows.start, rows.stop))

    def _of(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pixels[places].float() / 256, self.captions[self.labels[places]]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.coarse = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16 * 7 * 7, PLACES * WIDTH)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = nn.functional.gelu(self.coarse(nn.functional.gelu(self.fine(images))))
        return torch.tanh(self.head(seen.flatten(1))).view(-1, PLACES, WIDTH)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        mixed = torch.softmax(scores + mask, -1) @ v
        y = x + self.mix(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return y + self.down(nn.functional.gelu(self.up(self.mlp_norm(y))))


class Captioner(nn.Module):
    """A byte-level GPT; the features, projected, stand before the text."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Linear(WIDTH, WIDTH)
        self.token = nn.Embedding(BYTES, WIDTH)
        length = PLACES + TEXT - 1
        self.position = nn.Parameter(torch.randn(length, WIDTH) * 0.1)
        self.block0, self.block1 = Block(), Block()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, BYTES, bias=False)
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1))

    def forward(self, features: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x = torch.cat((self.look(features), self.token(text[:, :-1])), 1)
        length = x.shape[1]
        x = x + self.position[:length]
        mask = self.mask[:length, :length]
        x = self.block1(self.block0(x, mask), mask)
        return self.head(self.norm(x[:, PLACES - 1 :]))

    @torch.no_grad()
    def write(self, features: torch.Tensor) -> torch.Tensor:
        text = torch.zeros(len(features), TEXT, dtype=torch.long)
        for i in range(TEXT):
            text[:, i] = self(features, text[:, : i + 1])[:, i].argmax(-1)
        return text


def config(stage: int, clipping: float, ranks: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": BATCH // ranks,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "gradient_clipping": clipping,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.01}},
    }


def digest(engine: equigrad.Engine, model: nn.Module) -> str:
    """Of all parameters' bytes (FNV-1a): runs with equal bits have equal ones. Collective."""
    value = 0xCBF29CE484222325
    for parameter in model.parameters():
        for byte in bytes(
            equigrad.utils.safe_get_full_fp32_param(parameter).contiguous().view(-1).view(torch.uint8).tolist()
        ):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def encode(sides: equigrad.Sides, album: Album, steps: int) -> list[str]:
    torch.manual_seed(2)
    model = Encoder()
    engine, _, _, _ = equigrad.initialize(model=model, config=config(2, 0.05, sides.producer.data))
    bridge = sides.bridge(BATCH, (PLACES, WIDTH))
    for step in range(steps):
        sent: deque[torch.Tensor] = deque()
        for i in range(MICRO_BATCHES):  # all of a window are sent before the first gradient is back
            images, _ = album.batch(step * MICRO_BATCHES + i, bridge.rows)
            sent.append(engine(images))
            bridge.send(sent[-1])
        for output in sent:
            output.backward(bridge.receive_gradient())
            engine.step()
    said = [f"encoder {digest(engine, model)}"]
    unseen = sides.bridge(SHOWN, (PLACES, WIDTH), gradients=False)
    with torch.no_grad():
        unseen.send(engine(album.unseen(unseen.rows)[0]))
    unseen.finish()
    return said


def write(sides: equigrad.Sides, album: Album, steps: int) -> list[str]:
    torch.manual_seed(3)
    model = Captioner()
    engine, _, _, _ = equigrad.initialize(model=model, config=config(3, 0.5, sides.consumer.data))
    bridge = sides.bridge(BATCH, (PLACES, WIDTH))
    said = []
    for number in range(steps * MICRO_BATCHES):
        embeddings = bridge.receive()
        _, text = album.batch(number, bridge.rows)
        wanted = text.masked_fill(text == 0, -100)  # which is left out
        loss = nn.functional.cross_entropy(engine(embeddings, text).flatten(0, 1), wanted.flatten())
        engine.backward(loss)
        bridge.send_gradient(embeddings.grad)
        engine.step()
        if number % 100 == 0:
            said.append(f"loss {loss.item():.4f}")
    said.append(f"captioner {digest(engine, model)}")
    unseen = sides.bridge(SHOWN, (PLACES, WIDTH), gradients=False)
    wanted = album.unseen(unseen.rows)[1]
    written = model.write(unseen.receive())
    right = ((written == wanted) | (wanted == 0)).all(1).sum()  # behind the full stop nothing counts
    dist.all_reduce(right)
    return [*said, f"{right.item()} of {SHOWN} captions of unseen images are right"]


def train(sides: equigrad.Sides, folder: str, steps: int) -> list[str]:
    torch.set_num_threads(1)  # sums inside torch's operators may depend on their number
    return (encode if sides.is_producer else write)(sides, Album(folder), steps)


def with_ray(folder: str, encoders: int, writers: int, steps: int) -> list[list[str]]:
    """What each rank says; the ranks are actors of Ray, which meet where the first of them serves a store."""
    import ray

    @ray.remote(num_cpus=0)
    class Rank:
        def serve(self, world_size: int) -> tuple[str, int]:
            host = ray.util.get_node_ip_address()
            self.store = dist.TCPStore(host, 0, world_size, is_master=True, wait_for_workers=False)
            return host, self.store.port

        def train(self, rank: int, where: tuple[str, int]) -> list[str]:
            import disaggregated  # this file: what a worker runs, it imports

            store = self.store if rank == 0 else dist.TCPStore(*where, encoders + writers, wait_for_workers=False)
            sides = equigrad.Sides(encoders, writers, store=store, rank=rank)
            return disaggregated.train(sides, folder, steps)

    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    ray.init(include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    ranks = [Rank.remote() for _ in range(encoders + writers)]
    where = ray.get(ranks[0].serve.remote(len(ranks)))
    said = ray.get([rank.train.remote(number, where) for number, rank in enumerate(ranks)])
    ray.shutdown()
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--encoders", type=int, default=1, help="ranks with the encoder")
    parser.add_argument("--writers", type=int, default=2, help="ranks with the language model")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ray", action="store_true", help="start the ranks with Ray")
    args = parser.parse_args()
    if args.ray:
        said = with_ray(args.folder, args.encoders, args.writers, args.steps)
        print(*said[0], *said[args.encoders], sep="\n")
        return
    sides = equigrad.Sides(args.encoders, args.writers)
    said_here = train(sides, args.folder, args.steps)
    if dist.get_rank() == 0:  # of its side
        print("\n".join(said_here), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
