"""Faults for simulated engines: each takes an engine and spoils one of its functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from simulated import Simulated

from equigrad.judge.on_rank.protocol import local_key

Fault = Callable[[Simulated], None]
FAULTS: dict[str, tuple[str, Fault, dict[str, Any]]] = {}
"""By name: the kind of case that shows it, the fault, and the choices of the engine."""


def fault(kind: str, **choices: Any) -> Callable[[Fault], Fault]:
    """Registers a fault under its function's name."""

    def register(plant: Fault) -> Fault:
        FAULTS[plant.__name__] = (kind, plant, choices)
        return plant

    return register


def after(engine: Simulated, name: str, change: Callable[..., Any]) -> None:
    """change(result, *arguments) takes the place of what the function gives."""
    right = getattr(engine, name)
    setattr(engine, name, lambda *arguments: change(right(*arguments), *arguments))


@fault("plain")
def summed_over_ranks(engine: Simulated) -> None:
    after(engine, "combine", lambda mean, *_: mean * engine.case.world)


@fault("plain")
def divided_twice_by_accumulation(engine: Simulated) -> None:
    after(engine, "combine", lambda mean, *_: mean / engine.case.accumulation)


@fault("plain")
def middle_micro_batch_dropped(engine: Simulated) -> None:
    after(engine, "contribution", lambda one, step, rank, micro, name, _: one * 0 if micro == 1 else one)


@fault("plain")
def only_the_last_micro_batch(engine: Simulated) -> None:
    after(engine, "contribution", lambda one, step, rank, micro, name, _: one * (micro == engine.case.accumulation - 1))


@fault("plain")
def a_micro_batch_doubled_in_the_last_step(engine: Simulated) -> None:
    after(engine, "contribution", lambda one, step, rank, micro, *_: one * (2 if (step, rank, micro) == (2, 1, 0) else 1))


@fault("plain")
def a_rank_lost(engine: Simulated) -> None:
    after(engine, "contribution", lambda one, step, rank, *_: one * (rank != 1))


@fault("plain")
def a_rank_lost_for_one_small_parameter(engine: Simulated) -> None:
    after(engine, "contribution", lambda one, step, rank, micro, name, _: one * (rank != 1 or name != "first.bias"))


@fault("plain")
def not_zeroed_between_steps(engine: Simulated) -> None:
    after(engine, "mean", lambda mean, step, name, *_: mean + engine.before[name] if mean is not None and step else mean)


@fault("plain")
def gradient_of_the_step_before(engine: Simulated) -> None:
    after(engine, "mean", lambda mean, step, name, *_: engine.before[name] if mean is not None and step == 2 else mean)


@fault("plain")
def one_element_shifted(engine: Simulated) -> None:
    after(
        engine,
        "combine",
        lambda mean, step, name, _: mean.flatten().roll(1).reshape(mean.shape) if name == "wide.weight" else mean,
    )


@fault("plain")
def last_element_lost(engine: Simulated) -> None:
    def spoil(mean: torch.Tensor, step: int, name: str, _: Any) -> torch.Tensor:
        if name == "last.weight":
            mean.flatten()[-1] += 1
        return mean

    after(engine, "combine", spoil)


@fault("plain")
def bucket_forgotten(engine: Simulated) -> None:
    after(engine, "combine", lambda mean, step, name, _: mean * 0 if name.startswith("last") else mean)


@fault("plain")
def tied_parameter_doubled(engine: Simulated) -> None:
    after(engine, "combine", lambda mean, step, name, _: mean * 2 if name == "second.weight" else mean)


@fault("plain")
def reduced_in_bf16(engine: Simulated) -> None:
    engine.choices.communication = "bf16"


@fault("plain")
def accumulated_in_bf16(engine: Simulated) -> None:
    engine.choices.accumulation = "bf16"


@fault("fp64")
def reduced_in_fp32(engine: Simulated) -> None:
    engine.choices.communication = "fp32"


@fault("plain")
def forward_in_bf16(engine: Simulated) -> None:
    def rough(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        output = (input.bfloat16() @ weight.bfloat16().t()).to(input.dtype)
        return output if bias is None else output + bias

    engine.choices.linear = rough


@fault("plain")
def unused_parameter_moved(engine: Simulated) -> None:
    after(engine, "parameter", lambda one, step, name: one + 2.0**-10 if name == "unused.weight" else one)


@fault("frozen")
def frozen_parameter_decayed(engine: Simulated) -> None:
    after(engine, "parameter", lambda one, step, name: one * 0.5 if name == "second.weight" else one)


@fault("plain")
def step_not_applied(engine: Simulated) -> None:
    engine.update = lambda *_: None  # type: ignore[method-assign]


@fault("plain")
def last_step_not_applied(engine: Simulated) -> None:
    right = engine.update
    engine.update = lambda step, *rest: None if step == 2 else right(step, *rest)  # type: ignore[method-assign]


@fault("plain")
def half_of_a_parameter_not_updated(engine: Simulated) -> None:
    start = engine.values["wide.weight"].detach().clone()

    def spoil(one: torch.Tensor, step: int, name: str) -> torch.Tensor:
        return torch.cat([one[:66], start[66:]]) if name == "wide.weight" else one

    after(engine, "parameter", spoil)


@fault("plain")
def one_element_is_nan(engine: Simulated) -> None:
    def spoil(one: torch.Tensor, step: int, name: str) -> torch.Tensor:
        if name == "gain" and step == 1:
            return one * torch.nan
        return one

    after(engine, "parameter", spoil)


@fault("plain")
def a_rank_keeps_old_parameters(engine: Simulated) -> None:
    right = engine.say

    def spoil(step: int, rank: int, answer: Any, *rest: Any) -> None:
        right(step, rank, answer, *rest)
        if rank == 1 and step == 2:
            for name in engine.weights:
                answer.tensors[f"step2/parameter/{name}"] = answer.tensors[f"step1/parameter/{name}"]

    engine.say = spoil  # type: ignore[method-assign]


@fault("plain")
def a_rank_has_its_own_gradient(engine: Simulated) -> None:
    right = engine.say

    def spoil(step: int, rank: int, answer: Any, *rest: Any) -> None:
        right(step, rank, answer, *rest)
        if rank == 1:
            answer.tensors[f"step{step}/gradient/last.bias"] = answer.tensors[f"step{step}/gradient/last.bias"] + 1

    engine.say = spoil  # type: ignore[method-assign]


@fault("plain")
def a_gradient_is_missing(engine: Simulated) -> None:
    right = engine.say

    def spoil(step: int, rank: int, answer: Any, *rest: Any) -> None:
        right(step, rank, answer, *rest)
        del answer.tensors[f"step{step}/gradient/last.bias"]

    engine.say = spoil  # type: ignore[method-assign]


@fault("plain")
def losses_in_another_order(engine: Simulated) -> None:
    after(engine, "backward", lambda found, *_: ([row[::-1] for row in found[0]], found[1]))


@fault("plain")
def losses_of_another_rank(engine: Simulated) -> None:
    after(engine, "backward", lambda found, *_: (found[0][::-1], found[1]))


@fault("clip")
def clip_skipped(engine: Simulated) -> None:
    engine.clip = lambda *_: None  # type: ignore[method-assign]


@fault("clip")
def norm_squared(engine: Simulated) -> None:
    after(engine, "norm", lambda norm, *_: norm**2)


@fault("clip")
def norm_without_the_largest_parameter(engine: Simulated) -> None:
    right = engine.norm
    engine.norm = lambda found: right({n: g for n, g in found.items() if n != "wide.weight"})  # type: ignore[method-assign]


@fault("clip")
def norm_of_a_replica_counted_twice(engine: Simulated) -> None:
    after(engine, "norm", lambda norm, *_: norm * 2**0.5)


@fault("clip")
def clipped_by_the_square_of_the_norm_that_is_reported_right(engine: Simulated) -> None:
    right = engine.clip
    engine.clip = lambda found, norm: right(found, norm**2)  # type: ignore[method-assign]


@fault("clip", shows_gradient=False)
def clipped_twice(engine: Simulated) -> None:
    right = engine.clip
    engine.clip = lambda found, norm: (right(found, norm), right(found, norm))  # type: ignore[method-assign]


@fault("clip-inf")
def norm_2_for_inf(engine: Simulated) -> None:
    engine.norm = lambda found: torch.linalg.vector_norm(torch.cat([g.flatten() for g in found.values()]))  # type: ignore[method-assign]


@fault("clip-below")
def clipped_below_the_threshold(engine: Simulated) -> None:
    engine.clip = lambda found, norm: [one.mul_(1 - 2.0**-20) for one in found.values()]  # type: ignore[method-assign]


@fault("clip-scaled")
def clipped_before_unscaling(engine: Simulated) -> None:
    right = engine.clip
    engine.clip = lambda found, norm: right(found, norm * engine.rule.scale)  # type: ignore[method-assign]


@fault("groups")
def rate_of_the_first_group(engine: Simulated) -> None:
    right = engine.update
    engine.update = lambda step, found, rates: right(step, found, [rates[0]] * 2)  # type: ignore[method-assign]


@fault("groups")
def decay_of_a_group_forgotten(engine: Simulated) -> None:
    assert engine.optimizer is not None
    engine.optimizer.param_groups[1]["weight_decay"] = 0.0


@fault("schedule")
def schedule_a_step_late(engine: Simulated) -> None:
    after(engine, "rate", lambda rate, step, group: engine.groups[group][1] if step < 2 else rate * 2)


@fault("plain")
def rate_that_is_said_is_wrong(engine: Simulated) -> None:
    right = engine.say
    engine.say = lambda s, r, a, n, read: right(s, r, a, (*n[:3], tuple(x * 2 for x in n[3]), n[4]), read)  # type: ignore[method-assign]


@fault("momentum")
def momentum_lost(engine: Simulated) -> None:
    right = engine.update

    def spoil(step: int, *rest: Any) -> None:
        if step == 2 and engine.optimizer is not None:
            engine.optimizer.state.clear()
        right(step, *rest)

    engine.update = spoil  # type: ignore[method-assign]


@fault("momentum")
def momentum_damped(engine: Simulated) -> None:
    assert engine.optimizer is not None
    engine.optimizer.param_groups[0]["dampening"] = 0.5


@fault("adamw")
def adam_state_lost(engine: Simulated) -> None:
    momentum_lost(engine)


@fault("adamw")
def decay_is_not_decoupled(engine: Simulated) -> None:
    assert engine.optimizer is not None
    engine.optimizer.param_groups[0]["decoupled_weight_decay"] = False
    engine.optimizer.param_groups[0]["weight_decay"] = 0.5


@fault("adamw")
def decay_forgotten(engine: Simulated) -> None:
    assert engine.optimizer is not None
    engine.optimizer.param_groups[0]["weight_decay"] = 0.0


@fault("adamw")
def steps_not_counted(engine: Simulated) -> None:
    right = engine.update

    def spoil(*rest: Any) -> None:
        right(*rest)
        for state in engine.optimizer.state.values():  # type: ignore[union-attr]
            state["step"].zero_()

    engine.update = spoil  # type: ignore[method-assign]


@fault("adamw")
def betas_swapped(engine: Simulated) -> None:
    assert engine.optimizer is not None
    engine.optimizer.param_groups[0]["betas"] = (0.999, 0.9)


@fault("adamw", kernel="deepspeed")
def a_micro_batch_dropped_beside_adam(engine: Simulated) -> None:
    after(engine, "contribution", lambda one, step, rank, micro, *_: one * (micro != 1 or step == 0))


@fault("scaled")
def scale_not_divided_out(engine: Simulated) -> None:
    after(engine, "unscaled", lambda one, mean, scale: one * scale)


@fault("scaled")
def scale_divided_out_twice(engine: Simulated) -> None:
    after(engine, "unscaled", lambda one, mean, scale: one / scale)


@fault("grows")
def unscaled_by_the_scale_that_has_grown(engine: Simulated) -> None:
    right = engine.update

    def spoil(step: int, found: Any, rates: Any) -> None:
        grown = engine.rule.after(False).scale / engine.rule.scale
        right(step, {name: one / grown for name, one in found.items()}, rates)

    engine.update = spoil  # type: ignore[method-assign]


@fault("grows-each")
def unscaled_by_the_scale_that_grows_each_step(engine: Simulated) -> None:
    unscaled_by_the_scale_that_has_grown(engine)


@fault("grows")
def scale_never_grows(engine: Simulated) -> None:
    first = engine.rule.scale
    engine.loss_scale = lambda step: first  # type: ignore[method-assign]


@fault("overflow")
def made_in_spite_of_overflow(engine: Simulated) -> None:
    engine.steps_anyway = lambda step: True  # type: ignore[method-assign]


@fault("overflow")
def scale_not_halved(engine: Simulated) -> None:
    first = engine.rule.scale
    engine.loss_scale = lambda step: first  # type: ignore[method-assign]


@fault("overflow")
def step_after_an_overflow_is_skipped_too(engine: Simulated) -> None:
    right = engine.update
    engine.update = lambda step, *rest: None if step == 2 else right(step, *rest)  # type: ignore[method-assign]


@fault("overflow")
def only_the_rank_that_overflowed_skips(engine: Simulated) -> None:
    right = engine.say

    def spoil(step: int, rank: int, answer: Any, *rest: Any) -> None:
        right(step, rank, answer, *rest)
        if rank == 0 and step == 1:
            for name in ("last.bias", "wide.weight"):
                answer.tensors[f"step1/parameter/{name}"] = answer.tensors[f"step1/parameter/{name}"] + 0.25

    engine.say = spoil  # type: ignore[method-assign]


@fault("overflow")
def an_overflow_that_is_not_said(engine: Simulated) -> None:
    right = engine.say
    engine.say = lambda s, r, a, n, read: right(s, r, a, (n[0], True, *n[2:]), read)  # type: ignore[method-assign]


@fault("overflow")
def schedule_goes_on_in_a_skipped_step(engine: Simulated) -> None:
    after(engine, "rate", lambda rate, step, group: engine.groups[group][1] * engine.case.schedule[step])


@fault("hysteresis")
def hysteresis_ignored(engine: Simulated) -> None:
    after(engine, "loss_scale", lambda scale, step: scale / 2 if step == 2 else scale)


@fault("masters", masters="shown:weights")
def cut_instead_of_rounded(engine: Simulated) -> None:
    def spoil(one: torch.Tensor, step: int, name: str) -> torch.Tensor:
        bits = engine.values[name].detach().view(torch.int32)
        return (bits & ~0xFFFF).view(torch.float32).to(torch.bfloat16)

    after(engine, "parameter", spoil)


@fault("masters", masters="shown:weights")
def masters_updated_in_bf16(engine: Simulated) -> None:
    right = engine.update

    def spoil(*rest: Any) -> None:
        right(*rest)
        for one in engine.values.values():
            one.data.copy_(one.data.bfloat16().float())

    engine.update = spoil  # type: ignore[method-assign]


@fault("branch")
def a_branch_averaged_over_who_took_it(engine: Simulated) -> None:
    after(engine, "combine", lambda mean, step, name, _: mean * 2 if name.startswith("branch") else mean)


def branches_added(engine: Simulated, as_of: int) -> None:
    """Each micro-batch's branches of all ranks become that of the branch which one rank takes."""
    right = engine.mean

    def mixed(step: int, name: str, by_place: dict[tuple[int, int], dict[str, torch.Tensor]], scale: float) -> torch.Tensor | None:
        branch, _, part = name.partition(".")
        other = {"branch": f"other.{part}", "other": f"branch.{part}"}.get(branch)
        if other is None:
            return right(step, name, by_place, scale)
        spoilt = {
            (rank, micro): {name: found.get(name, found.get(other))} if name in by_place[as_of, micro] else {}
            for (rank, micro), found in by_place.items()
        }
        return right(step, name, spoilt, scale)  # type: ignore[arg-type]

    engine.mean = mixed  # type: ignore[method-assign]


@fault("fork")
def branches_added_as_rank_0_takes_them(engine: Simulated) -> None:
    branches_added(engine, 0)


@fault("fork")
def branches_added_as_rank_1_takes_them(engine: Simulated) -> None:
    branches_added(engine, 1)


@fault("gpt")
def a_rank_lost_in_a_rounded_model(engine: Simulated) -> None:
    a_rank_lost(engine)


@fault("gpt")
def a_gradient_in_a_rounded_model_off_by_a_thousandth(engine: Simulated) -> None:
    after(engine, "combine", lambda mean, step, name, _: mean * 1.001 if name == "blocks.0.up.weight" else mean)


def last_backward_of(engine: Simulated, step: int, rank: int, micro: int, name: str) -> torch.Tensor | None:
    _, named = engine.local(step, engine.parameters(), 1.0)
    found: torch.Tensor | None = named.get(f"last/{local_key(rank, micro, name)}")
    return found


@fault("backwards")
def the_last_backward_of_the_step_alone(engine: Simulated) -> None:
    def kept(one: torch.Tensor, step: int, rank: int, micro: int, name: str, _: Any) -> torch.Tensor:
        last = last_backward_of(engine, step, rank, micro, name)
        return one * 0 if last is None or micro < engine.case.accumulation - 1 else last.to(one.dtype)

    after(engine, "contribution", kept)


@fault("backwards")
def the_last_backward_of_each_micro_batch_lost(engine: Simulated) -> None:
    def kept(one: torch.Tensor, step: int, rank: int, micro: int, name: str, _: Any) -> torch.Tensor:
        last = last_backward_of(engine, step, rank, micro, name)
        return one if last is None else one - last.to(one.dtype)

    after(engine, "contribution", kept)


def step_before_training(engine: Simulated) -> None:
    for name, one in engine.values.items():
        one.grad = None if name in engine.frozen else torch.zeros_like(one)
    assert engine.optimizer is not None
    engine.optimizer.step()


@fault("adamw-bf16", masters="hidden:rounded")
def a_step_before_training(engine: Simulated) -> None:
    step_before_training(engine)


@fault("adamw-bf16", masters="shown:rounded")
def a_step_of_masters_before_training(engine: Simulated) -> None:
    step_before_training(engine)


@fault("decay", masters="hidden:rounded")
def a_decay_before_training(engine: Simulated) -> None:
    step_before_training(engine)
