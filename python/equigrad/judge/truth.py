"""What every step of a case must give, and the verdict on what an engine gave.

Each step is judged on the engine's own inputs: local gradients at the parameters that it reported after the step before. The
optimizer's state, and masters that an engine keeps to itself, are carried from step to step in balls. An element is right iff it
lies in its ball (balls.py); a radius of 0 compares bits. No tolerance is set by hand.

Average or sum over ranks is not a matter of choice: gradients are averaged over ranks and micro-batches. Where documents allow
several behaviours each is followed as a history of its own, per parameter, and what an engine showed rules histories out:

    matter                           what documents allow
    1e-6 of clipping                 with it (torch, DeepSpeed) or without it
    norm that is reported            of the averaged, unscaled gradient before clipping (all)
    parameter that no rank used      left alone, state and step count included (torch: gradient None); or a step with a gradient of
                                     zeros, which momentum and decay move (torch: gradient 0; DeepSpeed; flat shards). Its gradient
                                     is absent or 0. A frozen one is left alone always
    16-bit model                     updated in its own type; or an fp32 master from the weights as they were given; or from the
                                     weights rounded to 16 bits (DeepSpeed). Parameters are masters rounded to nearest, bit for bit
    moments, root, decay of AdamW    see updates.py
    dynamic loss scale               that of the engine, see scales.py; of one that is not known, torch's rule or DeepSpeed's
    overflow with a loss scale       every rank skips: parameters, masters, state and schedule stay (torch, DeepSpeed, Equigrad)
    overflow without a loss scale    skipped as above (DeepSpeed's bf16, Equigrad), or made with numbers that are not finite (torch)
    sum that may overflow in fp16    either; the engine's own word counts
    learning rate                    in fp64 or rounded to fp32; the schedule goes on with applied steps
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from .balls import Ball, Format, coarsest, mean_of
from .board import Finding
from .histories import Averages, Histories, beginnings, follow
from .local_gradients import (
    LocalGradients,
    Locals,
    Tensors,
    allowing_for_signs,
    averaged_again,
    format_of_gradients,
    format_of_parameters,
    local_balls,
)
from .on_rank import models
from .on_rank.protocol import Case, StepAnswer, tensor_key
from .scales import ScaleRule, rules
from .seen import CaseSeen, Number, StepSeen
from .updates import Rates, norm_of


@dataclass(frozen=True)
class RankSteps:
    """What one rank answered: its steps, and its tensors by the names of protocol.tensor_key."""

    steps: Sequence[StepAnswer]
    tensors: Tensors


@dataclass(frozen=True)
class Verdict:
    """Of one case. It held where there are no findings and something was compared."""

    findings: tuple[Finding, ...]
    compared: int
    """Numbers, over all ranks."""
    exact: int
    """Those of them that had to be right to the last bit."""
    seen: CaseSeen
    notes: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return not self.findings and self.compared > 0


@dataclass(frozen=True)
class Setting:
    """A case, and what is known of it beside: its frozen parameters; how many steps were certified to be exact when it was drawn;
    the kinds of its parameters, for the words of a cause."""

    case: Case
    weights: Tensors
    frozen: frozenset[str] = frozenset()
    certified: int = 0
    kinds: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scale_rule: str = ""
    """Of scales.py, where it is known which one the engine has."""

    @staticmethod
    def of(case: Case, weights: Tensors, certified: int = 0) -> Setting:
        """With what the case's model says of itself. weights: of its parameters."""
        if case.model.name in models.BUILT_IN:
            about = models.describe(case.model.name, case.model.arguments)
            kinds = {"tied": about.tied, "unused": about.unused, "conditional": about.conditional, "frozen": about.frozen}
            return Setting(
                case, weights, frozenset(about.frozen), certified, {word: names for word, names in kinds.items() if names}
            )
        module = models.build(case.model).module
        frozen = tuple(name for name, one in module.named_parameters() if not one.requires_grad)
        return Setting(case, weights, frozenset(frozen), certified, {"frozen": frozen} if frozen else {})


@dataclass(frozen=True)
class _Wanted:
    """What a step should leave."""

    parameters: dict[str, Ball]
    masters: dict[str, Ball]
    """Of parameters whose masters the engine shows."""


@dataclass(frozen=True)
class _Progress:
    """Between two steps."""

    parameters: Tensors
    histories: Histories
    scales: tuple[ScaleRule, ...]
    applied: int = 0


@dataclass
class _Tally:
    """What was compared in a step, and what was wrong."""

    step: int
    findings: list[Finding] = field(default_factory=list)
    compared: int = 0
    exact: int = 0

    def tensor(self, what: str, name: str, ball: Ball, got: Sequence[torch.Tensor | None]) -> None:
        """One tensor of all ranks against its ball."""
        for rank, one in enumerate(got):
            if one is None:
                self.findings.append(
                    Finding(
                        self.step,
                        what,
                        float("nan"),
                        _worst(ball.mid),
                        0.0,
                        name,
                        rank,
                        (),
                        ball.mid.numel(),
                        ball.mid.numel(),
                    )
                )
                continue
            if one.shape != ball.mid.shape:
                self.findings.append(
                    Finding(
                        self.step,
                        what,
                        float(one.numel()),
                        float(ball.mid.numel()),
                        0.0,
                        name,
                        rank,
                        (),
                        one.numel(),
                        one.numel(),
                    )
                )
                continue
            self.compared += int(ball.rad.isfinite().sum())
            self.exact += int((ball.rad == 0).sum())
            first = rank == 0 or got[0] is None or not torch.equal(one, got[0])
            wrong = ~ball.holds(one)
            if first and bool(wrong.any()):
                everywhere = all(other is not None and torch.equal(one, other) for other in got)
                self._add(what, name, -1 if everywhere and len(got) > 1 else rank, ball, one, wrong)

    def number(self, what: str, ball: Ball, got: float | None, rank: int) -> None:
        """One number of one rank; None is not compared."""
        if got is None or bool(ball.rad.isinf()):
            return
        self.compared += 1
        self.exact += int(ball.rad == 0)
        if not bool(ball.holds(torch.tensor(got, dtype=torch.float64))):
            self.findings.append(Finding(self.step, what, got, float(ball.mid), float(ball.rad), rank=rank))

    def replicas(self, what: str, name: str, got: Sequence[torch.Tensor | None]) -> None:
        """All ranks must have one another's bits; +0 and -0 are one number."""
        for rank, one in enumerate(got[1:], 1):
            if one is None or got[0] is None or one.shape != got[0].shape:
                continue
            wrong = ~((one == got[0]) | (one.isnan() & got[0].isnan()))
            if bool(wrong.any()):
                self._add(f"replicas of the {what}", name, rank, Ball.of(got[0]), one, wrong)

    def _add(self, what: str, name: str, rank: int, ball: Ball, got: torch.Tensor, wrong: torch.Tensor) -> None:
        beyond = torch.where(wrong, ((got.double() - ball.mid).abs() - ball.rad).nan_to_num(torch.inf), -1.0)
        element = tuple(int(one) for one in torch.unravel_index(beyond.argmax(), wrong.shape)) if wrong.dim() else ()
        was, right, radius = (float(one[element]) for one in (got, ball.mid, ball.rad))
        counts = int(wrong.sum()), wrong.numel()
        self.findings.append(Finding(self.step, what, was, right, radius, name, rank, element, *counts))


def judge(setting: Setting, ranks: Sequence[RankSteps], local: LocalGradients) -> Verdict:
    """The verdict on what the ranks of an engine answered to a case."""
    case = setting.case
    held = {name: one.to(format_of_parameters(case).dtypes[0]) for name, one in setting.weights.items()}
    progress = _Progress(held, beginnings(case, setting.weights), rules(case.precision.loss_scale, setting.scale_rule))
    tallies, seen = [], []
    for step in range(case.steps):
        tally, look, progress = _Step(setting, ranks, step, progress).judged(local)
        tallies.append(tally)
        seen.append(look)
    return Verdict(
        tuple(finding for tally in tallies for finding in tally.findings),
        sum(tally.compared for tally in tallies),
        sum(tally.exact for tally in tallies),
        CaseSeen(case, seen, lambda step, at: _contributions(local_balls(case, local(step, at, 1.0))), dict(setting.kinds)),
    )


class _Step:
    """One step of a case, and what the ranks say of it."""

    def __init__(self, setting: Setting, ranks: Sequence[RankSteps], step: int, before: _Progress) -> None:
        self.setting = setting
        self.case = setting.case
        self.ranks = ranks
        self.step = step
        self.before = before
        self.answers = [rank.steps[step] for rank in ranks]

    def judged(self, local: LocalGradients) -> tuple[_Tally, StepSeen, _Progress]:
        """What comes out; where rounding may explain what looks wrong, it is judged again with all that it may have done."""
        scales, scale = self._scale()
        at = (self.step, self.before.parameters, scale)
        known = local_balls(self.case, local(*at))
        outcome = self._outcome(known, scales, scale)
        if outcome[0].findings and not (known.certain and self.step < self.setting.certified):
            outcome = self._outcome(allowing_for_signs(self.case, local, at, known), scales, scale)
        return outcome

    def _scale(self) -> tuple[tuple[ScaleRule, ...], float]:
        """The rules that agree with what rank 0 says, or all; the scale of this step."""
        said = self.answers[0].loss_scale
        agreeing = tuple(rule for rule in self.before.scales if said is None or rule.scale == said)
        chosen = agreeing or self.before.scales
        return chosen, chosen[0].scale

    def _outcome(self, known: Locals, scales: tuple[ScaleRule, ...], scale: float) -> tuple[_Tally, StepSeen, _Progress]:
        """Tries what may have been done about an overflow, and takes what explains the most."""
        averages = self._averages(known, scale)
        tries = []
        for applied in self._may_be_applied(known, averages):
            tries.append(self._try(known, averages, scales, applied))
            if not tries[-1][0].findings:
                break
        return min(tries, key=lambda one: len(one[0].findings))

    def _may_be_applied(self, known: Locals, averages: Averages) -> list[bool]:
        if known.overflow:
            return [False] if self.case.precision.loss_scale is not None else [False, True]
        unsure = any(bool(ball.rad.isinf().any()) for ball in averages.gradients.values())
        return [True, False] if unsure else [True]

    def _averages(self, known: Locals, scale: float) -> Averages:
        """The averaged gradients of used parameters, and their norm."""
        case = self.case
        form = format_of_gradients(case)
        divisor = case.world * case.accumulation
        backwards = int(case.options.get("backwards", 1))
        roundings = divisor - 1 + backwards - 1
        if form.digits < 24 or _odd(divisor):
            roundings += 3
        if _odd(divisor) or _odd_scale(scale):
            roundings += 4
        again = averaged_again(case)
        roundings += 2 * case.accumulation * backwards * (again[0] > 1)
        means = {name: mean_of(known.of(name), divisor, form, roundings, scale, again) for name in known.names}
        rough = form if form.digits < 24 else coarsest("fp32")  # DeepSpeed's norm is in fp32 at the finest
        norm, fine_norm = (norm_of(list(means.values()), case.clip, one) for one in (rough, coarsest("fp32")))
        return Averages(means, form, norm, fine_norm)

    def _try(
        self, known: Locals, averages: Averages, scales: tuple[ScaleRule, ...], applied: bool
    ) -> tuple[_Tally, StepSeen, _Progress]:
        tally = _Tally(self.step)
        self._numbers(tally, known, averages, scales, applied)
        overflow = known.overflow or not applied
        if not overflow:
            self._gradients(tally, averages)
        after, wanted = self._parameters(tally, averages, applied)
        progress = replace(after, scales=tuple(rule.after(overflow) for rule in scales))
        return tally, self._look(known, averages, scales[0].scale, applied, overflow, wanted), progress

    def _rates(self) -> list[Rates]:
        """Of each group, as used in this step."""
        case = self.case
        factor = case.schedule[min(self.before.applied, len(case.schedule) - 1)] if case.schedule else 1.0
        groups = [(one.lr, one.weight_decay) for one in case.groups] or [(case.optimizer.lr, case.optimizer.weight_decay)]
        return [Rates(lr * factor, decay) for lr, decay in groups]

    def _numbers(
        self, tally: _Tally, known: Locals, averages: Averages, scales: tuple[ScaleRule, ...], applied: bool
    ) -> None:
        rates = self._rates()
        for rank, answer in enumerate(self.answers):
            expected = sum(ball.mid.numel() for ball in known.losses[rank])
            tally.number("count of losses", Ball.of(float(expected)), float(len(answer.losses)), rank)
            for micro, ball in enumerate(known.losses[rank]):
                width = ball.mid.numel()
                for index, got in enumerate(answer.losses[micro * width : (micro + 1) * width]):
                    tally.number("loss", ball[torch.tensor(index)], got, rank)
            for rate, got in zip(rates, answer.lrs or ()):
                tally.number("lr", Ball.of(rate.lr).widened(abs(rate.lr) * 2.0**-23), got, rank)
            if self.case.precision.loss_scale is not None:
                tally.number("loss scale", Ball.of(scales[0].scale), answer.loss_scale, rank)
            if answer.applied is not None:
                tally.number("applied", Ball.of(float(applied)), float(answer.applied), rank)
            if applied and not known.overflow:
                tally.number("norm", averages.norm, answer.norm, rank)

    def _got(self, kind: str, name: str) -> list[torch.Tensor | None]:
        return [rank.tensors.get(tensor_key(self.step, kind, name)) for rank in self.ranks]

    def _shows(self, kind: str) -> bool:
        """Whether some rank has tensors of this kind."""
        return any(one is not None for name in self.setting.weights for one in self._got(kind, name))

    def _gradients(self, tally: _Tally, averages: Averages) -> None:
        if not self._shows("gradient"):
            return
        for name, weight in self.setting.weights.items():
            got = self._got("gradient", name)
            if name in averages.gradients:
                tally.tensor("gradient", name, _as_read(averages.gradients[name], averages.form, got), got)
            else:
                zero = Ball.of(torch.zeros(weight.shape))
                tally.tensor("gradient", name, zero, [one for one in got if one is not None])
            tally.replicas("gradient", name, got)

    def _parameters(self, tally: _Tally, averages: Averages, applied: bool) -> tuple[_Progress, _Wanted]:
        """What comes of all parameters: the state before the next step, and what each should be."""
        before = self.before
        wanted, wanted_masters = dict[str, Ball](), dict[str, Ball]()
        histories: Histories = {}
        every = self._rates()
        rates = dict.fromkeys(self.setting.weights, every[0])
        rates.update({name: rate for group, rate in zip(self.case.groups, every) for name in group.parameters})
        still = self.setting.frozen if applied else set(self.setting.weights)
        all_following = follow(self.case, before.histories, averages, rates, still)
        for name in self.setting.weights:
            got, masters = self._got("parameter", name), self._got("master", name)
            following = all_following[name]
            if masters[0] is not None:
                following = [one for one in following if one.before.hidden] or following
            misses = [one.misses(got[0], masters[0]) for one in following]
            best = [one for one, missed in zip(following, misses) if missed == min(misses)]
            wanted[name] = best[0].parameter_given(masters[0])
            histories[name] = tuple(one.after(got[0], masters[0]) for one in (best if min(misses) == 0 else best[:1]))
            tally.tensor("parameter", name, wanted[name], got)
            tally.replicas("parameter", name, got)
            if masters[0] is not None:
                wanted_masters[name] = best[0].master_given()
                tally.tensor("master", name, wanted_masters[name], masters)
                tally.replicas("master", name, masters)
        now = {name: _or(self._got("parameter", name)[0], before.parameters[name]) for name in self.setting.weights}
        progress = _Progress(now, histories, before.scales, before.applied + int(applied))
        return progress, _Wanted(wanted, wanted_masters)

    def _look(
        self, known: Locals, averages: Averages, scale: float, applied: bool, overflow: bool, wanted: _Wanted
    ) -> StepSeen:
        """For whoever looks for causes."""
        names = list(self.setting.weights)
        shown = not overflow and self._shows("gradient")
        norm = Number(float(averages.norm.mid), float(averages.norm.rad)) if applied and not overflow else None
        return StepSeen(
            contributions=_contributions(known),
            last_backwards=known.last,
            right_gradient={name: ball.mid for name, ball in averages.gradients.items()},
            gradient_room={name: ball.rad for name, ball in averages.gradients.items()},
            gradient=[self._named(rank, "gradient", names) for rank in self.ranks] if shown else (),
            before=self.before.parameters,
            right_parameters={name: ball.mid for name, ball in wanted.parameters.items()},
            parameter_room={name: ball.rad for name, ball in wanted.parameters.items()},
            right_masters={name: ball.mid for name, ball in wanted.masters.items()},
            master_room={name: ball.rad for name, ball in wanted.masters.items()},
            masters=[self._named(rank, "master", names) for rank in self.ranks] if wanted.masters else (),
            parameters=[self._named(rank, "parameter", names) for rank in self.ranks],
            answers=self.answers,
            applied=applied,
            norm=norm,
            lrs=tuple(rate.lr for rate in self._rates()),
            loss_scale=scale,
            losses=[
                [Number(float(one.mid), float(one.rad)) for ball in rank for one in _each(ball)] for rank in known.losses
            ],
        )

    def _named(self, rank: RankSteps, kind: str, names: Sequence[str]) -> Tensors:
        found = {name: rank.tensors.get(tensor_key(self.step, kind, name)) for name in names}
        return {name: one for name, one in found.items() if one is not None}


def _contributions(known: Locals) -> list[list[Tensors]]:
    return [[{name: ball.mid for name, ball in micro.items()} for micro in rank] for rank in known.gradients]


def _each(ball: Ball) -> list[Ball]:
    return [ball[torch.tensor(index)] for index in range(ball.mid.numel())]


def _or(got: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    return other if got is None or got.shape != other.shape else got


def _odd(divisor: int) -> bool:
    return divisor & (divisor - 1) != 0


def _odd_scale(scale: float) -> bool:
    return float(torch.frexp(torch.tensor(scale, dtype=torch.float64))[0]) != 0.5


def _worst(numbers: torch.Tensor) -> float:
    return float(numbers.abs().max()) if numbers.numel() else 0.0


def _as_read(ball: Ball, form: Format, got: Sequence[torch.Tensor | None]) -> Ball:
    """With the rounding of a type that is coarser than the gradient's own."""
    narrow = any(one is not None and one.dtype == torch.float32 for one in got) and form.digits > 24
    return ball.widened(ball.mid.abs() * 2.0**-24) if narrow else ball
