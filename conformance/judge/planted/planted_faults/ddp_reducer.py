"""Faults of DDP's reducer."""

from __future__ import annotations

import torch

from .base import Bucket, BucketFault, gathered, summed, tied

Tensor = torch.Tensor


class DividedTwice(BucketFault):
    name, what = "ddp-divided-twice", "the average is divided by the number of ranks again"
    kinds = ("divided-by-ranks-twice",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return average / self.watch.world


class NotDivided(BucketFault):
    name, what = "ddp-not-divided", "the sum over ranks is never divided"
    kinds = ("not-divided-by-ranks",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return average * self.watch.world


class OneRankNotDivided(BucketFault):
    name, what = "ddp-one-rank-not-divided", "rank 1 does not divide its part before it sends it"
    kinds = ("rank-not-divided", "rank-counted-twice")

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return summed(local if self.watch.rank == 1 else local / self.watch.world)


class BucketForgotten(BucketFault):
    name, what = "ddp-bucket-forgotten", "the first bucket of a backward is not reduced"
    kinds = ("not-reduced",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return local if bucket.index == 0 else average


class BucketForgottenLater(BucketFault):
    name, what, subtle = "ddp-bucket-forgotten-later", "the last bucket is not reduced in the second step, once", True
    kinds = ("not-reduced",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return local if bucket.is_last and self.watch.step == 1 else average


class RankDropped(BucketFault):
    name, what = "ddp-rank-dropped", "the last rank sends zeros"
    kinds = ("rank-missing", "only-one-rank")

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return summed(local * 0 if self.watch.rank == self.watch.world - 1 else local) / self.watch.world


class RankTwice(BucketFault):
    name, what = "ddp-rank-twice", "rank 0 is added twice"
    kinds = ("rank-counted-twice", "rank-not-divided")

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return summed(local * 2 if self.watch.rank == 0 else local) / self.watch.world


class NotWaited(BucketFault):
    name, what = "ddp-not-waited", "the bucket is read before the sum has come: own part, divided"
    kinds = ("only-own-part",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return local / self.watch.world


class ReduceToOne(BucketFault):
    name, what = "ddp-reduce-to-one", "only rank 0 gets the sum, the others keep their own part"
    kinds = ("only-own-part",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return average if self.watch.rank == 0 else local / self.watch.world


class Bf16(BucketFault):
    name, what, subtle = "ddp-bf16", "buckets are sent and added in bf16", True
    kinds = ("rounded-to-bf16",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return summed((local / self.watch.world).bfloat16()).to(average.dtype)


class Fp16LastBucket(BucketFault):
    name, what, subtle = "ddp-fp16-last-bucket", "the last bucket is sent in fp16", True
    kinds = ("rounded-to-fp16",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return summed((local / self.watch.world).half()).to(average.dtype) if bucket.is_last else average


class LastElementLocal(BucketFault):
    name, what, subtle = "ddp-last-element-local", "the last element of a bucket is not reduced", True
    kinds = ("not-reduced",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        average[-1] = local[-1]
        return average


class LargeStale(BucketFault):
    name, subtle = "ddp-large-stale", True
    what = "a parameter larger than the bucket gets its gradient of the step before"
    kinds = ("stale",)

    def case_begins(self) -> None:
        super().case_begins()
        self._last: dict[tuple[int, int], Tensor] = {}

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        for parameter, where in bucket.slices():
            if parameter.numel() * parameter.element_size() <= bucket.engine.bucket_bytes_cap:
                continue
            key = (id(parameter), self.watch.step)
            self._last[key] = average[where].clone()
            average[where] = self._last.get((key[0], key[1] - 1), average[where])
        return average


class Rolled(BucketFault):
    name, what = "ddp-rolled", "a bucket comes back shifted by one element"
    kinds = ("shifted", "of-another-parameter")

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return torch.roll(average, 1)


class NeighboursSwapped(BucketFault):
    name, subtle = "ddp-neighbours-swapped", True
    what = "two parameters of one size in a bucket get each other's gradient"
    kinds = ("of-another-parameter",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        swapped, by_size = average.clone(), {}
        for _, where in bucket.slices():
            size = where.stop - where.start
            if size > 1 and size in by_size:
                other = by_size.pop(size)
                swapped[where], swapped[other] = average[other], average[where]
            else:
                by_size[size] = where
        return swapped


class ScalarSkipped(BucketFault):
    name, what, subtle = "ddp-scalar-skipped", "parameters of one element are not reduced", True
    kinds = ("not-reduced",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        for parameter, where in bucket.slices():
            if parameter.numel() == 1:
                average[where] = local[where]
        return average


class TiedTwice(BucketFault):
    name, what = "ddp-tied-twice", "a tied weight is averaged, then added up over the ranks again"
    kinds = ("not-divided-by-ranks", "added-twice")

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        several = tied(bucket.engine.module)
        for parameter, where in bucket.slices():
            if id(parameter) in several:
                average[where] *= self.watch.world
        return average


class UnusedSkipped(BucketFault):
    name, what, subtle = "ddp-unused-skipped", "a parameter whose gradient is zero on rank 0 is not reduced", True
    kinds = ("not-reduced", "last-micro-batch-not-reduced", "rank-missing", "only-one-rank")

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        for _, where in bucket.slices():
            used = gathered(local[where].abs().max().reshape(1))
            if float(used[0]) == 0:
                average[where] = local[where]
        return average


class StaticFirstOnly(BucketFault):
    name, what, subtle = "ddp-static-first-only", "nothing is reduced after the first step", True
    kinds = ("not-reduced",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return local if self.watch.step > 0 else average


class SecondEngineLocal(BucketFault):
    name, what, subtle = "ddp-second-engine-local", "the second engine of a process never reduces", True
    kinds = ("not-reduced",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return local if bucket.engine_number > 0 else average


class TensorBackwardLocal(BucketFault):
    name, what, subtle = "ddp-tensor-backward-local", "a backward from an output's gradient is not reduced", True
    kinds = ("not-reduced",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        return local if self.watch.from_output else average


class BufferReused(BucketFault):
    name, what = "ddp-buffer-reused", "the first bucket's buffer takes the second bucket's numbers while in flight"
    kinds = ("of-another-parameter", "shifted")

    def future(self, bucket: Bucket, local: Tensor, average: Tensor) -> torch.futures.Future[Tensor]:
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        if bucket.index == 0 and not bucket.is_last:
            self._flying = (done, average)
            return done
        if bucket.index == 1:
            first, theirs = self._flying
            right = theirs.clone()
            length = min(theirs.numel(), average.numel())
            theirs[:length] = average[:length].to(theirs.dtype)
            self.fire(not torch.equal(right, theirs))
            first.set_result(theirs)
        done.set_result(average)
        return done


class HookLost(BucketFault):
    name, what, subtle = "ddp-hook-lost", "the hook of one bias is lost: its gradient stays local", True
    kinds = ("not-reduced",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        biases = [one for one in bucket.engine.module.parameters() if one.dim() == 1 and one.numel() > 1]
        for parameter, where in bucket.slices():
            if biases and parameter is biases[0]:
                average[where] = local[where]
        return average


class BiasZeroed(BucketFault):
    name, what = "ddp-bias-zeroed", "the gradient of one-dimensional parameters is lost in the bucket"
    kinds = ("zeros",)

    def wrong(self, bucket: Bucket, local: Tensor, average: Tensor) -> Tensor:
        for parameter, where in bucket.slices():
            if parameter.dim() <= 1:
                average[where] = 0
        return average


FAULTS = (
    DividedTwice,
    NotDivided,
    OneRankNotDivided,
    BucketForgotten,
    BucketForgottenLater,
    RankDropped,
    RankTwice,
    NotWaited,
    ReduceToOne,
    Bf16,
    Fp16LastBucket,
    LastElementLocal,
    LargeStale,
    Rolled,
    NeighboursSwapped,
    ScalarSkipped,
    TiedTwice,
    UnusedSkipped,
    StaticFirstOnly,
    SecondEngineLocal,
    TensorBackwardLocal,
    BufferReused,
    HookLost,
    BiasZeroed,
)
