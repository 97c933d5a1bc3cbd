"""Faults of the loss scale, and of autocast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .base import Fault
from .optimizers import local, parameters


class ScalerFault(Fault):
    """Something that torch.amp.GradScaler does wrong."""

    def apply(self) -> None:
        def unscaling(unscale: Any) -> Any:
            def unscaled(scaler: Any, optimizer: Any) -> None:
                unscale(scaler, optimizer)
                with torch.no_grad():
                    self.unscaled(scaler, optimizer, scaler._per_optimizer_states[id(optimizer)])

            return unscaled

        self.patch(torch.amp.GradScaler, "unscale_", unscaling)

    def unscaled(self, scaler: Any, optimizer: Any, state: dict[str, Any]) -> None:
        """After the gradients were unscaled. state: with `found_inf_per_device`."""

    def times(self, optimizer: Any, factor: float) -> None:
        """Multiplies all gradients."""
        for one in parameters(optimizer):
            if one.grad is not None:
                local(one.grad).mul_(factor)
                self.fire(factor != 1)

    def found(self, state: dict[str, Any]) -> Iterator[torch.Tensor]:
        """The flags of an infinity, by device."""
        for flag in state["found_inf_per_device"].values():
            yield local(flag)


class ScaleLeftIn(ScalerFault):
    name, what = "ddp-scale-left-in", "unscale_() does nothing"
    kinds = ("loss-scale-left-in",)

    def unscaled(self, scaler: Any, optimizer: Any, state: dict[str, Any]) -> None:
        self.times(optimizer, scaler.get_scale())


class UnscaledTwice(ScalerFault):
    name, what = "ddp-unscaled-twice", "divided by the loss scale twice"
    kinds = ("loss-scale-taken-out-twice",)

    def unscaled(self, scaler: Any, optimizer: Any, state: dict[str, Any]) -> None:
        self.times(optimizer, 1 / scaler.get_scale())


class ScaleOfNextStep(ScalerFault):
    name, what, subtle = "ddp-scale-of-next-step", "divided by the scale that the next step will have", True
    kinds = ("loss-scale-of-next-step", "another-loss-scale")

    def unscaled(self, scaler: Any, optimizer: Any, state: dict[str, Any]) -> None:
        grows = scaler._get_growth_tracker() + 1 == scaler.get_growth_interval()
        if grows and not any(float(flag) for flag in self.found(state)):
            self.times(optimizer, 1 / scaler.get_growth_factor())


class OverflowOnOneRank(ScalerFault):
    name, what, subtle = "ddp-overflow-on-one-rank", "rank 0 does not see the infinity and steps", True
    kinds = ("applied-in-spite-of-overflow",)

    def unscaled(self, scaler: Any, optimizer: Any, state: dict[str, Any]) -> None:
        for flag in self.found(state):
            if self.watch.rank == 0:
                self.fire(bool(flag))
                flag.zero_()


class OverflowZeroed(ScalerFault):
    name, what, subtle = "ddp-overflow-zeroed", "infinities become zeros and the step is made", True
    kinds = ("applied-in-spite-of-overflow", "applied-said-wrong")  # where nothing but infinities was left

    def unscaled(self, scaler: Any, optimizer: Any, state: dict[str, Any]) -> None:
        for one in parameters(optimizer):
            if one.grad is not None:
                torch.nan_to_num_(local(one.grad), nan=0.0, posinf=0.0, neginf=0.0)
        for flag in self.found(state):
            self.fire(bool(flag))
            flag.zero_()


class ScaleNotShrunk(Fault):
    name, what, subtle = "ddp-scale-not-shrunk", "an overflow leaves the scale as it was", True
    kinds = ("scale-not-shrunk", "scale-unchanged")

    def apply(self) -> None:
        def updating(update: Any) -> Any:
            def updated(scaler: Any, *rest: Any) -> None:
                factor, before = scaler._backoff_factor, scaler.get_scale()
                update(scaler, *rest)
                if scaler.get_scale() < before:
                    self.fire()
                    scaler._scale.fill_(before)
                scaler._backoff_factor = factor

            return updated

        self.patch(torch.amp.GradScaler, "update", updating)


class ScaleGrowsLate(Fault):
    name, what, subtle = "ddp-scale-grows-late", "the window of growth is one step too long", True
    kinds = ("scale-unchanged", "scale-half")

    def apply(self) -> None:
        def making(init: Any) -> Any:
            def made(scaler: Any, *rest: Any, **named: Any) -> None:
                init(scaler, *rest, **named)
                scaler._growth_interval += 1
                self.fire()

            return made

        self.patch(torch.amp.GradScaler, "__init__", making)


class AutocastCacheStale(Fault):
    name, what, subtle = "ddp-autocast-cache-stale", "weights cast for autocast are kept over the step", True
    kinds = ("old-weights",)

    def apply(self) -> None:
        self._clear = torch.clear_autocast_cache

        def clearing(_: Any) -> Any:
            return lambda: self.fire()

        self.patch(torch, "clear_autocast_cache", clearing)

    def case_begins(self) -> None:
        self._clear()


FAULTS = (
    ScaleLeftIn,
    UnscaledTwice,
    ScaleOfNextStep,
    OverflowOnOneRank,
    OverflowZeroed,
    ScaleNotShrunk,
    ScaleGrowsLate,
    AutocastCacheStale,
)
