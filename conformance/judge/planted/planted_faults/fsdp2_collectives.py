"""Faults of FSDP2's reduce-scatter and all-gather. They patch private names of torch, of the version that the tests pin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group

from .base import Fault

Tensor = torch.Tensor
Group = _fsdp_param_group.FSDPParamGroup


class ScatterFault(Fault):
    """Something other than the average comes back from a reduce-scatter."""

    def apply(self) -> None:
        def reducing(right: Any) -> Any:
            def reduce(comm: Any, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
                sent = input_tensor.clone()
                work = right(comm, output_tensor, input_tensor, group, op, async_op)
                if work is not None:
                    work.wait()
                parts = [torch.empty_like(sent) for _ in range(group.size())]
                distributed.all_gather(parts, sent, group=group)
                chunks = [one.view(group.size(), -1) for one in parts]
                divisor = group.size() if op == distributed.ReduceOp.AVG else 1
                wrong = self.wrong([one[group.rank()] / divisor for one in chunks], output_tensor.clone(), chunks)
                self.fire(not torch.equal(wrong, output_tensor))
                output_tensor.copy_(wrong)
                return work

            return reduce

        self.patch(_fsdp_collectives.DefaultReduceScatter, "__call__", reducing)

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        """parts: of every rank, what it adds to this rank's shards; chunks: of every rank, what it sent to all ranks."""
        raise NotImplementedError


class DividedTwice(ScatterFault):
    name, what = "fsdp2-divided-twice", "the average is divided by the number of ranks again"
    kinds = ("divided-by-ranks-twice",)

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        return average / self.watch.world


class NotDivided(ScatterFault):
    name, what = "fsdp2-not-divided", "summed, not averaged"
    kinds = ("not-divided-by-ranks",)

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        return average * self.watch.world


class RankDropped(ScatterFault):
    name, what = "fsdp2-rank-dropped", "the last rank's contribution is zeros"
    kinds = ("rank-missing", "only-one-rank")

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts[:-1])).sum(0)


class OwnPartOnly(ScatterFault):
    name, what = "fsdp2-own-part-only", "each shard holds the part of its own rank, divided"
    kinds = ("only-own-part",)

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        return parts[self.watch.rank]


class Bf16(ScatterFault):
    name, what, subtle = "fsdp2-bf16", "reduced in bf16", True
    kinds = ("rounded-to-bf16",)

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        total = torch.zeros_like(average, dtype=torch.bfloat16)
        for one in parts:
            total += one.bfloat16()
        return total.to(average.dtype)


class ShardsSwapped(ScatterFault):
    name, what = "fsdp2-shards-swapped", "ranks get each other's shard of the gradient"
    kinds = ("shards-swapped",)

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        share = parts[0].abs().sum() / chunks[0][self.watch.rank].abs().sum()
        other = (self.watch.rank + 1) % self.watch.world
        return torch.stack([one[other] for one in chunks]).sum(0) * (1.0 / self.watch.world if float(share) < 0.9 else 1.0)


class ShardEndLost(ScatterFault):
    name, what, subtle = "fsdp2-shard-end-lost", "the last element of rank 0's shard is lost", True
    kinds = ("zeros",)

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        if self.watch.rank == 0:
            average[-1] = 0
        return average


class ShardEndLocal(ScatterFault):
    name, what, subtle = "fsdp2-shard-end-local", "the last row of rank 0's shard is not reduced", True
    kinds = ("only-own-part", "rank-missing", "only-one-rank")

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        if self.watch.rank == 0:
            average[-5:] = parts[0][-5:]
        return average


class ShiftedByPadding(ScatterFault):
    name, what = "fsdp2-shifted-by-padding", "gradients are read one element too early in the reduced buffer"
    kinds = ("shifted", "of-another-parameter")

    def wrong(self, parts: Sequence[Tensor], average: Tensor, chunks: Sequence[Tensor]) -> Tensor:
        return torch.roll(average, 1)


class GatherFault(Fault):
    """Something other than the weights comes back from an all-gather."""

    def apply(self) -> None:
        def waiting(wait: Any) -> Any:
            def waited(group: Group) -> None:
                result = group._all_gather_result
                if result is None or result.all_gather_output is None or not result.all_gather_input_split_sizes:
                    return wait(group)
                if result.all_gather_work is not None:
                    result.all_gather_work.wait()
                with torch.no_grad():
                    right = result.all_gather_output.clone()
                    result.all_gather_output.copy_(self.wrong(group, right.clone()))
                    self.fire(not torch.equal(right, result.all_gather_output))
                wait(group)
                with torch.no_grad():
                    self.unsharded(group)
                return None

            return waited

        self.patch(Group, "wait_for_unshard", waiting)

    def case_begins(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._numbers: dict[int, int] = {}

    def number(self, group: Group) -> int:
        """Of the group, in the order of their first gather."""
        return self._numbers.setdefault(id(group), len(self._numbers))

    def last(self, group: Group, values: Tensor) -> Tensor:
        """What was gathered in the step before; `values`, which are kept, in the first one."""
        step = self.watch.step
        self._kept[id(group), step] = values.clone()
        return self._kept.get((id(group), step - 1), values)

    def wrong(self, group: Group, right: Tensor) -> Tensor:
        """Instead of what was gathered, flat: [rank][that rank's shards]."""
        return right

    def unsharded(self, group: Group) -> None:
        """After parameters were made of it."""


class GatherStale(GatherFault):
    name, what, subtle = "fsdp2-gather-stale", "from the second step on the forward reads the weights of the step before", True
    kinds = ("old-weights",)

    def wrong(self, group: Group, right: Tensor) -> Tensor:
        return self.last(group, right)


class GatherStaleOneModule(GatherStale):
    name, what = "fsdp2-gather-stale-one-module", "as above, in one module only"

    def wrong(self, group: Group, right: Tensor) -> Tensor:
        return self.last(group, right) if self.number(group) == 1 else right


class GatherShardsSwapped(GatherFault):
    name, what = "fsdp2-gather-shards-swapped", "the forward's weights have their shards in the wrong order"
    kinds = ("weights-shards-swapped",)

    def wrong(self, group: Group, right: Tensor) -> Tensor:
        return right.view(self.watch.world, -1).flip(0).reshape(-1)


class GatherPadding(GatherFault):
    name, subtle = "fsdp2-gather-padding", True
    what = "the padding of an odd parameter is taken for its row: the last row is stale"
    kinds = ("old-weights",)

    def case_begins(self) -> None:
        super().case_begins()
        self._rows: dict[tuple[int, int], Tensor] = {}

    def unsharded(self, group: Group) -> None:
        for one in group.fsdp_params:
            whole = one._unsharded_param
            if not whole.dim() or whole.shape[0] % self.watch.world == 0:
                continue
            self._rows[id(one), self.watch.step] = whole[-1].detach().clone()
            last = self._rows.get((id(one), self.watch.step - 1))
            if last is not None:
                self.fire(not torch.equal(whole[-1], last))
                with torch.autograd._unsafe_preserve_version_counter(whole):
                    whole.data[-1] = last


class NotReshardedStale(GatherStale):
    name = "fsdp2-not-resharded-stale"
    what = "with reshard_after_forward=False weights are not gathered again after a step"

    def wrong(self, group: Group, right: Tensor) -> Tensor:
        return right if group._reshard_after_forward else self.last(group, right)


FAULTS = (
    DividedTwice,
    NotDivided,
    RankDropped,
    OwnPartOnly,
    Bf16,
    ShardsSwapped,
    ShardEndLost,
    ShardEndLocal,
    ShiftedByPadding,
    GatherStale,
    GatherStaleOneModule,
    GatherShardsSwapped,
    GatherPadding,
    NotReshardedStale,
)
