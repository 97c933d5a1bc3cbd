"""Two groups of ranks that train together: one makes activations, the other goes on with them.

    sides = equigrad.Sides(producers=1, consumers=2)     # the ranks of torchrun, in this order
    bridge = sides.bridge(rows=24, row_sizes=(4, 32))

    if sides.is_producer:                                 else:
        output = encoder(images)                              embeddings = bridge.receive()
        bridge.send(output)                                   engine.backward(loss_of(embeddings))
        output.backward(bridge.receive_gradient())            bridge.send_gradient(embeddings.grad)
        engine.step()                                         engine.step()

Either side is a torch.distributed of its own, so everything else in it, engines first, sees its ranks alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from equigrad import _core


class Sides:
    """Ranks 0, 1, .. of a launch are producers, those behind them consumers; this process is one of them.

    A side is its number of data ranks, or (data ranks, replicas): neighbours that hold the same rows, as the ranks of a
    tensor group do. Made before anything else that uses torch.distributed, by all ranks.

    The ranks are the launcher's (torchrun, mpirun, Slurm), or, where another one starts them (Ray), those that `store`, where
    all of them meet, and `rank` say.
    """

    def __init__(
        self,
        producers: int | tuple[int, int],
        consumers: int | tuple[int, int],
        *,
        store: Any = None,
        rank: int | None = None,
        timeout_s: float = 1800.0,
    ) -> None:
        self.producer = _side(0, producers)
        self.consumer = _side(self.producer.end, consumers)
        if (store is None) != (rank is None):
            raise _core.Error("[Sides] expected a store and a rank, or neither, got one of them. Give both.")
        if dist.is_initialized():
            raise _core.Error(
                "[Sides] expected to initialize torch.distributed, which is that of a side, got one that is initialized. "
                "Make Sides first."
            )
        if store is None:
            store, rank = _meeting(self.consumer.end, timeout_s)
        assert rank is not None
        world_size = self.consumer.end
        if not 0 <= rank < world_size:
            raise _core.Error(f"[Sides] expected a rank of {world_size}, got {rank}. Count the ranks of both sides.")
        self.is_producer = rank < self.producer.end
        side = self.producer if self.is_producer else self.consumer
        name = "producer" if self.is_producer else "consumer"
        from torch._C._distributed_c10d import PrefixStore  # there where torch.distributed is

        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore(f"equigrad/sides/{name}", store),
            rank=rank - side.first,
            world_size=side.end - side.first,
            timeout=timedelta(seconds=timeout_s),
        )
        self._world = _core.connect_at(PrefixStore("equigrad/sides/world", store), rank, world_size, None, timeout_s)

    def bridge(
        self,
        rows: int,
        row_sizes: Sequence[int],
        dtype: torch.dtype = torch.float32,
        *,
        gradients: bool = True,
        in_flight: int = 8,
        gradient_factor: float | None = None,
    ) -> _core.Bridge:
        """For batches of `rows` rows over all ranks of a side, each of `row_sizes`. Both sides make it alike.

        `gradients` False: nothing comes back. `in_flight`: messages without a gradient, at most. Gradients are multiplied by
        producer's / consumer's data ranks, over which engines average, or by `gradient_factor`.
        """
        return _core.Bridge(
            self._world, self.producer, self.consumer, rows, list(row_sizes), dtype, gradients, in_flight, gradient_factor
        )


def _side(first: int, size: int | tuple[int, int]) -> _core.Side:
    data, replicas = (size, 1) if isinstance(size, int) else size
    if data < 1 or replicas < 1:
        raise _core.Error(
            f"[Sides] expected a side of at least one data rank with at least one replica, got {size}. Give counts."
        )
    return _core.Side(first, data, replicas)


def _meeting(expected: int, timeout_s: float) -> tuple[Any, int]:
    """Where the ranks of a launcher meet, and which one this is."""
    launch = _core.read_launch_environment()
    if launch.world_size != expected:
        raise _core.Error(
            f"[Sides] expected {expected} ranks, as many as both sides have, got {launch.world_size} from {launch.source}. "
            f"Start as many, or give other sizes."
        )
    store, rank, _ = next(rendezvous("env://", launch.rank, launch.world_size, timeout=timedelta(seconds=timeout_s)))
    return store, rank
