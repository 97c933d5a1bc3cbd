"""Two groups of ranks over a bridge: what arrives, what is refused, and the example as torchrun and Ray start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import equigrad
from ranks import outcomes, reserved_port

EXAMPLE = Path(__file__).parents[2] / "examples/python/disaggregated.py"
IMAGES = os.environ.get("EQUIGRAD_IMAGES", "")  # the folder of Fashion-MNIST
with_images = pytest.mark.skipif(not IMAGES, reason="no images are there")


def results(world: int, call, *args) -> list:
    said = outcomes(world, call, *args)
    assert all(ok for ok, _ in said), [text for ok, text in said if not ok]
    return [result for _, result in said]


def whole(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))


def one_pass(producers, consumers):
    sides = equigrad.Sides(producers, consumers)
    side = sides.producer if sides.is_producer else sides.consumer
    assert dist.get_world_size() == side.end - side.first  # torch.distributed is the side's
    rows = 8
    bridge = sides.bridge(rows, (3,), in_flight=2)
    if sides.is_producer:
        weight = torch.ones(3, requires_grad=True)
        output = whole(rows, 1)[bridge.rows] * weight
        bridge.send(output)
        gradient = bridge.receive_gradient()
        output.backward(gradient)
        assert weight.grad is not None
        return gradient
    embeddings = bridge.receive()
    assert embeddings.is_leaf and embeddings.requires_grad
    assert torch.equal(embeddings.detach(), whole(rows, 1)[bridge.rows])
    (embeddings * whole(rows, 2)[bridge.rows]).sum().backward()
    bridge.send_gradient(embeddings.grad)
    bridge.finish()
    return None


@pytest.mark.parametrize("producers, consumers", [(1, 1), (2, 1), (1, 2), (1, (1, 2)), ((1, 2), 1)])
def test_rows_go_over_and_gradients_come_back(producers, consumers):
    count, replicas = producers if isinstance(producers, tuple) else (producers, 1)
    others, copies = consumers if isinstance(consumers, tuple) else (consumers, 1)
    said = results(count * replicas + others * copies, one_pass, producers, consumers)
    gradients = torch.cat([said[place * replicas] for place in range(count)])
    assert torch.equal(gradients, whole(8, 2) * (count / others))


def refused():
    sides = equigrad.Sides(1, 1)
    bridge = sides.bridge(4, (3,), torch.bfloat16)
    with pytest.raises(equigrad.Error, match=r"BFloat16 \[4, 3\], got Float \[4, 3\] as message 0"):
        bridge.send(whole(4, 1)) if sides.is_producer else bridge.receive()
    with pytest.raises(equigrad.Error, match="expected a rank of the"):
        bridge.receive() if sides.is_producer else bridge.send(whole(4, 1))


def test_another_type_is_an_error_on_both_sides():
    results(2, refused)


def lost():
    sides = equigrad.Sides(1, 1, timeout_s=20)
    bridge = sides.bridge(4, (3,))
    if sides.is_producer:
        bridge.send(whole(4, 1))
        started = time.monotonic()
        with pytest.raises(equigrad.CommunicationError, match="rank 1") as caught:
            bridge.receive_gradient()
        assert caught.value.lost_rank == 1
        assert time.monotonic() - started < 60
    else:
        bridge.receive()
        os._exit(0)


def test_a_lost_rank_is_an_error_of_the_other_side():
    (ok, said), (answered, _) = outcomes(2, lost)
    assert ok, said
    assert not answered  # it went without a word


def wrong():
    with pytest.raises(equigrad.Error, match=r"\[Sides\] expected 2 ranks, as many as both sides have, got 1"):
        equigrad.Sides(1, 1)
    with pytest.raises(equigrad.Error, match="at least one data rank"):
        equigrad.Sides(0, 1)
    with pytest.raises(equigrad.Error, match="expected a store and a rank, or neither"):
        equigrad.Sides(1, 1, rank=0)


def test_sides_that_cannot_be_are_errors():
    results(1, wrong)


def torchrun(encoders: int, writers: int, steps: int, through: tuple[str, ...] = ()) -> str:
    with reserved_port() as port:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(encoders + writers)]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(port), *through, str(EXAMPLE), IMAGES]
        command += ["--encoders", str(encoders), "--writers", str(writers), "--steps", str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digests(said: str) -> list[str]:
    return sorted(re.findall(r"^(?:encoder|captioner) [0-9a-f]{16}$", said, re.MULTILINE))


def of_the_cpp_example(encoders: int, writers: int, steps: int) -> str:
    with reserved_port() as port:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(encoders + writers)}
        ranks = [
            subprocess.Popen(
                [os.environ["EQUIGRAD_DISAGGREGATED"], IMAGES, str(encoders), str(steps)],
                env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(encoders + writers)
        ]
        return "".join(rank.communicate(timeout=300)[0] for rank in ranks)


# Whose bits are those of the reference in one process (conformance/vision/tests/disaggregated_example_test.cpp).
@with_images
@pytest.mark.skipif("EQUIGRAD_DISAGGREGATED" not in os.environ, reason="the example in C++ is not built")
@pytest.mark.parametrize("encoders, writers", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_the_example_has_the_bits_of_the_one_in_cpp(encoders, writers):
    said = torchrun(encoders, writers, 3, (str(Path(__file__).parent / "as_in_cpp.py"),))
    assert len(digests(said)) == 2
    assert digests(said) == digests(of_the_cpp_example(encoders, writers, 3))


@with_images
def test_the_example_learns_to_caption_what_it_has_not_seen():
    said = torchrun(1, 2, 300)
    found = re.search(r"(\d+) of 500 captions of unseen images are right", said)
    assert found is not None, said
    assert int(found[1]) >= 350, said


@with_images
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_the_example_has_the_same_bits_under_ray():
    command = [sys.executable, str(EXAMPLE), IMAGES, "--encoders", "1", "--writers", "2", "--steps", "3", "--ray"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert len(digests(done.stdout)) == 2
    assert digests(done.stdout) == digests(torchrun(1, 2, 3))
