"""How a loss scale goes on from step to step, by each of the rules that documents give."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .on_rank.protocol import LossScale, Precision

_LEAST, _MOST = 2.0**-126, 2.0**127


@dataclass(frozen=True)
class ScaleRule:
    """The scale of the next step by one rule, and what that depends on.

    "static"     never changes
    "torch"      torch.amp.GradScaler: halved by an overflow, doubled after `window` steps in a row without one; it has neither
                 hysteresis nor a minimum
    "deepspeed"  DeepSpeed's DynamicLossScaler: `hysteresis` - 1 overflows are let pass before one halves the scale, never below
                 `minimum`; doubled where the steps since the last overflow are a multiple of `window`, which is first so after
                 `window` + 1 steps; growth gives the hysteresis back
    """

    name: str
    setting: LossScale
    scale: float
    good: int = 0
    """Steps since the last overflow or growth."""
    steps: int = 0
    last_overflow: int = -1
    left: int = 1
    """Of the hysteresis."""

    def after(self, overflow: bool) -> ScaleRule:
        """The rule after a step."""
        if self.name == "torch":
            return self._after_torch(overflow)
        if self.name == "deepspeed":
            return self._after_deepspeed(overflow)
        return self

    def _after_torch(self, overflow: bool) -> ScaleRule:
        if overflow:
            return replace(self, scale=max(self.scale / 2, _LEAST), good=0)
        if self.good + 1 == self.setting.window:
            return replace(self, scale=min(self.scale * 2, _MOST), good=0)
        return replace(self, good=self.good + 1)

    def _after_deepspeed(self, overflow: bool) -> ScaleRule:
        steps = self.steps + 1
        if overflow:
            if self.setting.hysteresis > 1 and self.left > 1:
                return replace(self, steps=steps, last_overflow=self.steps, left=self.left - 1)
            return replace(self, scale=max(self.scale / 2, self.setting.minimum), steps=steps, last_overflow=self.steps)
        stable = self.steps - self.last_overflow - 1
        if stable > 0 and stable % self.setting.window == 0:
            return replace(self, scale=min(self.scale * 2, _MOST), steps=steps, left=self.setting.hysteresis)
        return replace(self, steps=steps)


_RULES = {
    **dict.fromkeys(("plain", "ddp", "fsdp1", "fsdp2", "accelerate"), "torch"),
    **dict.fromkeys(("deepspeed", "accelerate-deepspeed", "equigrad"), "deepspeed"),
}
"""By the name of an engine whose documents give one."""


def rule_of(engine: str, precision: Precision) -> str:
    """The rule that an engine documents; "" for one that is not known. Under autocast DeepSpeed has torch's GradScaler."""
    rule = _RULES.get(engine, "")
    if precision.autocast and rule == "deepspeed":
        return "" if engine == "equigrad" else "torch"
    return rule


def rules(setting: LossScale | None, named: str = "") -> tuple[ScaleRule, ...]:
    """All rules that may hold for a setting, before the first step; named: that one alone, where it may."""
    every = _every(setting)
    return tuple(one for one in every if one.name == named) or every


def _every(setting: LossScale | None) -> tuple[ScaleRule, ...]:
    if setting is None:
        return (ScaleRule("static", LossScale(False, 1.0), 1.0),)
    if not setting.dynamic:
        return (ScaleRule("static", setting, setting.value),)
    deepspeed = ScaleRule("deepspeed", setting, setting.value, left=setting.hysteresis)
    if setting.hysteresis > 1:
        return (deepspeed,)
    return (ScaleRule("torch", setting, setting.value), deepspeed)


def largest(setting: LossScale | None, steps: int) -> float:
    """The largest scale that any rule comes to within so many steps."""
    if setting is None:
        return 1.0
    most = setting.value
    for rule in rules(setting):
        for _ in range(steps - 1):
            rule = rule.after(False)
        most = max(most, rule.scale)
    return most
