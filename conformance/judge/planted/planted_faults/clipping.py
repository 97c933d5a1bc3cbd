"""Faults of norms and clipping, of DDP's gradients (whole on every rank) and of FSDP2's (in shards)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import distributed

from .base import Fault, tied

Tensor = torch.Tensor


def local(tensor: Tensor) -> Tensor:
    """The rank's own part of a DTensor; a plain tensor as it is."""
    part: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


class ClipFault(Fault):
    """Something other than torch.nn.utils.clip_grad_norm_."""

    def apply(self) -> None:
        def clipping(right: Any) -> Any:
            def clip(parameters: Any, max_norm: float, norm_type: float = 2.0, *rest: Any, **named: Any) -> Tensor:
                given = [one for one in _several(parameters) if one.grad is not None]
                with torch.no_grad():
                    return self.clip(given, float(max_norm), float(norm_type), lambda: right(given, max_norm, norm_type))

            return clip

        self.patch(torch.nn.utils, "clip_grad_norm_", clipping)

    def clip(self, given: Sequence[Tensor], most: float, p: float, right: Callable[[], Tensor]) -> Tensor:
        """Instead of the right one. given: parameters with gradients; p: the type of the norm."""
        norm = self.norm(given, p)
        coefficient = self.coefficient(norm, most)
        self.fire()
        for one in self.clipped(given):
            local(one.grad).mul_(coefficient)  # type: ignore[arg-type]
        return norm

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        return norm_of([one.grad for one in given], p)  # type: ignore[misc]

    def coefficient(self, norm: Tensor, most: float) -> Tensor:
        return torch.clamp(most / (norm + 1e-6), max=1.0)

    def clipped(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        return given


def _several(parameters: Any) -> list[Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def norm_of(gradients: Iterable[Tensor], p: float) -> Tensor:
    """Over whole tensors, or over DTensors, whose shards' norms are put together."""
    parts = [torch.linalg.vector_norm(one, p) for one in gradients]
    wholes = [whole() if (whole := getattr(one, "full_tensor", None)) else one for one in parts]
    return torch.linalg.vector_norm(torch.stack(wholes), p)


class NormTimesRootRanks(ClipFault):
    name, what = "ddp-norm-times-root-ranks", "squares are summed over the ranks, which all have the whole gradient"
    kinds = ("norm-times-root-ranks",)

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        right = super().norm(given, p)
        return right * math.sqrt(self.watch.world) if p == 2 else right


class NormWithoutOneDimension(ClipFault):
    name, what = "ddp-norm-without-one-dimension", "one-dimensional parameters are left out of the norm"
    kinds = ("norm-of-some",)

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        return super().norm([one for one in given if one.dim() > 1] or given, p)


class NormFirstGroup(ClipFault):
    name, what, subtle = "ddp-norm-first-group", "only the first parameter group is in the norm", True
    kinds = ("norm-of-some",)

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        first = {id(one) for one in self.watch.optimizers[-1].param_groups[0]["params"]}
        return super().norm([one for one in given if id(one) in first] or given, p)


class NormTiedTwice(ClipFault):
    name, what, subtle = "ddp-norm-tied-twice", "a tied weight is counted twice", True
    kinds = ("norm-counts-twice",)

    def apply(self) -> None:
        super().apply()
        self._twice: set[int] = set()

        def making(init: Any) -> Any:
            def made(engine: Any, module: Any, *rest: Any, **named: Any) -> None:
                init(engine, module, *rest, **named)
                self._twice = tied(module)

            return made

        self.patch(torch.nn.parallel.DistributedDataParallel, "__init__", making)

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        return super().norm([*given, *(one for one in given if id(one) in self._twice)], p)


class InfNormAs2(ClipFault):
    name, what, subtle = "ddp-inf-norm-as-2", "the infinity norm is computed as the Euclidean one", True
    kinds = ("norm-of-another-type",)

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        return super().norm(given, 2.0)


class ClipSkipped(ClipFault):
    name, what = "ddp-clip-skipped", "the norm is computed, nothing is clipped"
    kinds = ("clip-skipped",)

    def coefficient(self, norm: Tensor, most: float) -> Tensor:
        return torch.ones_like(norm)


class ClipMaxForMin(ClipFault):
    name, what = "ddp-clip-max-for-min", "max(1, c) for min(1, c)"
    kinds = ("clip-max-for-min", "clip-skipped")

    def coefficient(self, norm: Tensor, most: float) -> Tensor:
        return torch.clamp(most / (norm + 1e-6), min=1.0)


class ClipInverted(ClipFault):
    name, what = "ddp-clip-inverted", "multiplied by norm / max"
    kinds = ("clip-inverted",)

    def coefficient(self, norm: Tensor, most: float) -> Tensor:
        return (norm + 1e-6) / most


class ClipMissesLast(ClipFault):
    name, what, subtle = "ddp-clip-misses-last", "the last parameter is not clipped", True
    kinds = ("clip-skipped",)

    def clipped(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        return given[:-1]


class ClipStaleNorm(ClipFault):
    name, what, subtle = "ddp-clip-stale-norm", "clipped by the norm of the step before", True
    kinds = ("clip-by-last-norm",)

    def case_begins(self) -> None:
        self._last: Tensor | None = None

    def coefficient(self, norm: Tensor, most: float) -> Tensor:
        last, self._last = self._last, norm.clone()
        return super().coefficient(norm if last is None else last, most)


class NormAfterClip(ClipFault):
    name, what = "ddp-norm-after-clip", "the norm reported is that of the clipped gradient"
    kinds = ("norm-after-clip",)

    def clip(self, given: Sequence[Tensor], most: float, p: float, right: Callable[[], Tensor]) -> Tensor:
        right()
        self.fire()
        return self.norm(given, p)


class ClipBeforeUnscale(ClipFault):
    name, what = "ddp-clip-before-unscale", "clipped while the loss scale is still in it"
    kinds = ("norm-of-scaled-gradient", "clip-before-unscale")

    def apply(self) -> None:
        super().apply()
        self._scaler: Any = None

        def making(init: Any) -> Any:
            def made(scaler: Any, *rest: Any, **named: Any) -> None:
                init(scaler, *rest, **named)
                self._scaler = scaler

            return made

        self.patch(torch.amp.GradScaler, "__init__", making)

    def case_begins(self) -> None:
        self._scaler = None

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        return super().norm(given, p) * (1.0 if self._scaler is None else self._scaler.get_scale())


class ClipEps(ClipFault):
    name, what, subtle = "ddp-clip-eps", "max / (norm + 0.01)", True
    kinds = ("clipped-by-another-factor",)

    def coefficient(self, norm: Tensor, most: float) -> Tensor:
        return torch.clamp(most / (norm + 1e-2), max=1.0)


class NormOfOneRank(ClipFault):
    name, what = "fsdp2-norm-of-one-rank", "every rank takes the norm of its own shards"
    kinds = ("norm-of-own-shard",)

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        return norm_of([local(one.grad) for one in given], p)  # type: ignore[arg-type]


class NormSumOfShards(NormOfOneRank):
    name, what = "fsdp2-norm-sum-of-shards", "shards' norms are added, not their squares"
    kinds = ("norm-sum-of-shards",)

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        own = super().norm(given, p)
        distributed.all_reduce(own)
        return own


class PaddingInNorm(ClipFault):
    name, what, subtle = "fsdp2-padding-in-norm", "the padding of shards is counted, with what lies there", True
    kinds = ("norm-with-padding",)

    def norm(self, given: Sequence[Tensor], p: float) -> Tensor:
        padding = [
            whole[-1]
            for one in given
            if (whole := one.grad.full_tensor()).dim() and whole.shape[0] % self.watch.world  # type: ignore[union-attr]
        ]
        return norm_of([*(one.grad for one in given), *padding], p)  # type: ignore[misc]


class ClipSkippedOnOneRank(ClipFault):
    name, what, subtle = "fsdp2-clip-skipped-on-one-rank", "rank 1 does not clip its shards", True
    kinds = ("clip-skipped",)

    def clipped(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        return [] if self.watch.rank == 1 else given


FAULTS = (
    NormTimesRootRanks,
    NormWithoutOneDimension,
    NormFirstGroup,
    NormTiedTwice,
    InfNormAs2,
    ClipSkipped,
    ClipMaxForMin,
    ClipInverted,
    ClipMissesLast,
    ClipStaleNorm,
    NormAfterClip,
    ClipBeforeUnscale,
    ClipEps,
    NormOfOneRank,
    NormSumOfShards,
    PaddingInNorm,
    ClipSkippedOnOneRank,
)
