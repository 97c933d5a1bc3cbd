"""Several hosts: network namespaces with addresses of their own, joined by a wire, under torchrun and without it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks import reserved_port

TRAIN = """
import json, sys
import torch, equigrad

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
engine, _, _, _ = equigrad.initialize(model=model, config={
    "train_micro_batch_size_per_gpu": 4,
    "communication_timeout_s": 15,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})
seen = []
for step in range(int(sys.argv[1])):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + engine.global_rank))
    loss = engine(x).square().mean()
    engine.backward(loss)
    engine.step()
    seen.append((loss.item().hex(), engine.get_global_grad_norm().hex()))
    if step == 3:
        print("trains", flush=True)
print(json.dumps({"rank": engine.global_rank, "seen": seen}), flush=True)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    names = [f"equigrad-{os.getpid()}-{index}" for index in (1, 2)]
    try:
        try:
            make_hosts(names)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces need root, iproute2 and no chroot: {getattr(error, 'stderr', error)}")
        yield names
    finally:
        for name in names if shutil.which("ip") else []:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def make_hosts(names: list[str]) -> None:
    for name in names:
        ip("netns", "add", name)
    ip("link", "add", "wire", "netns", names[0], "type", "veth", "peer", "name", "wire", "netns", names[1])
    for index, name in enumerate(names, 1):
        ip("-n", name, "addr", "add", f"10.77.0.{index}/24", "dev", "wire")
        ip("-n", name, "link", "set", "wire", "up")
        ip("-n", name, "link", "set", "lo", "up")


def start(host: str | None, command: list, environment: dict | None = None) -> subprocess.Popen:
    prefix = ["ip", "netns", "exec", host] if host else []
    # Hosts that are namespaces of one machine could share memory, which others cannot.
    apart = {"EQUIGRAD_SHARED_MEMORY": "0"} if host else {}
    kept = {"env": {**os.environ, "OMP_NUM_THREADS": "1", **apart, **(environment or {})}, "text": True}
    return subprocess.Popen(
        [*prefix, sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kept
    )


def answers(text: str) -> list[dict]:
    """What ranks said: torchrun may put two of them on one line."""
    return [json.loads(one) for one in re.findall(r"\{\"rank[^{}]*\}", text)]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(TRAIN)
    return path


def test_two_hosts_with_two_ranks_each_are_four_ranks(hosts: list[str], program: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", 2]

    def on(index: int) -> list:
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29511", "--rdzv-id", "test"]
        host = ["--nnodes", 2, "--local-addr", f"10.77.0.{index}", "--rdzv-conf", f"is_host={str(index == 1).lower()}"]
        return [*torchrun, *rendezvous, *host, program, 3]

    running = [start(host, on(index)) for index, host in enumerate(hosts, 1)]
    seen = []
    for one in running:
        out, error = one.communicate(timeout=120)
        assert one.returncode == 0, error
        seen += answers(out)
    alone = start(None, ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 4, program, 3])
    out, error = alone.communicate(timeout=120)
    assert alone.returncode == 0, error
    want = sorted(answers(out), key=lambda one: one["rank"])
    assert len(want) == 4
    assert sorted(seen, key=lambda one: one["rank"]) == want


RESUME = """
import hashlib, sys
import torch, equigrad

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5))
engine, _, _, _ = equigrad.initialize(model=model, config={
    "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "bf16": {"enabled": sys.argv[2] == "bf16"},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})

def digest():
    return hashlib.sha256(b"".join(one.detach().float().numpy().tobytes() for one in model.parameters())).hexdigest()

def train():
    loss = engine(torch.randn(4, 8).to(next(model.parameters()).dtype)).square().mean()
    engine.backward(loss)
    engine.step()

train()
engine.save_checkpoint(sys.argv[1], "a")
saved = digest()
train()
assert digest() != saved
engine.load_checkpoint(sys.argv[1], "a")
assert digest() == saved
train()
print(digest())
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ranks_of_one_host_and_of_two_load_the_same(tmp_path: Path, precision: str) -> None:
    rename = "import os, sys, socket; socket.sethostname('other'); os.execv(sys.argv[1], sys.argv[1:])"
    other = ["unshare", "--uts", sys.executable, "-c", rename]
    if subprocess.run([*other, sys.executable, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip("a host's name of one's own needs root and util-linux")
    program = tmp_path / "resume.py"
    program.write_text(RESUME)
    after = []
    for is_elsewhere in (False, True):
        with reserved_port() as port:
            ranks = []
            for rank in range(2):
                prefix = other if rank and is_elsewhere else []
                environment = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                command = [*prefix, sys.executable, str(program), str(tmp_path / f"saved{is_elsewhere}"), precision]
                kept = {"env": {**os.environ, "OMP_NUM_THREADS": "1", **environment}, "text": True}
                ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kept))
            for one in ranks:
                out, error = one.communicate(timeout=120)
                assert one.returncode == 0, error
                after.append(out)
    assert len(set(after)) == 1


def ranks_on(hosts: list[str], program: Path) -> list[subprocess.Popen]:
    environment = {"WORLD_SIZE": "3", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29512"}
    places = [hosts[0], hosts[0], hosts[1]]
    running = [start(host, [program, 100_000], {**environment, "RANK": str(rank)}) for rank, host in enumerate(places)]
    assert running[0].stdout.readline() == "trains\n", running[0].stderr.read()
    return running


@pytest.mark.parametrize("lost_by", ["its process", "its wire"])
def test_a_host_that_is_lost_is_named(hosts: list[str], program: Path, lost_by: str) -> None:
    running = ranks_on(hosts, program)
    began = time.monotonic()
    if lost_by == "its wire":
        ip("-n", hosts[1], "link", "set", "wire", "down")
    else:
        running[2].kill()
    try:
        for rank in (0, 1):
            _, error = running[rank].communicate(timeout=90)
            assert running[rank].returncode == 1
            assert "equigrad.CommunicationError" in error, error
            assert re.search(r"rank 2\b", error.splitlines()[-1]), error
        assert time.monotonic() - began < 60
    finally:
        for one in running:
            one.kill()
            one.communicate()
