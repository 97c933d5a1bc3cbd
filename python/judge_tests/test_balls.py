"""No honest computation leaves its ball, and balls are not much wider than what honest computations do."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
import torch

from equigrad.judge import balls
from equigrad.judge.balls import FORMATS, Ball, Format, add, coarsest, constant, div, hull, mean_of, mul, norm, sqrt, sub

NARROW = ("bf16", "fp16", "fp32")
DTYPES = {name: form.dtypes[0] for name, form in FORMATS.items()}
COUNT = 800


def numbers(form: Format, generator: torch.Generator, spread: float = 6.0, count: int = COUNT) -> torch.Tensor:
    """Of the format, of many sizes, with zeros and small whole numbers among them."""
    wild = torch.randn(count, generator=generator, dtype=torch.float64) * 2.0 ** (
        torch.rand(count, generator=generator, dtype=torch.float64) * 2 * spread - spread
    )
    whole = torch.randint(-5, 6, (count,), generator=generator).double()
    kind = torch.rand(count, generator=generator)
    return torch.where(kind < 0.7, wild, torch.where(kind < 0.95, whole, 0.0)).to(form.dtypes[0]).double()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div", "sqrt"])
def test_one_operation_of_the_format_lies_in_its_ball(name: str, operation: str) -> None:
    form, generator = FORMATS[name], torch.Generator().manual_seed(1)
    a, b = numbers(form, generator), numbers(form, generator)
    low_a, low_b = a.to(DTYPES[name]), b.to(DTYPES[name])
    if operation == "sqrt":
        ball, got, exact = sqrt(Ball.of(a.abs()), form), low_a.abs().sqrt(), a.abs().sqrt()
    else:
        ball = {"add": add, "sub": sub, "mul": mul, "div": div}[operation](Ball.of(a), Ball.of(b), form)
        got = getattr(low_a, f"__{ {'div': 'truediv'}.get(operation, operation) }__")(low_b)
        exact = getattr(a, f"__{ {'div': 'truediv'}.get(operation, operation) }__")(b)
    assert bool(ball.holds(got).all())
    assert bool(ball.holds(exact).all())  # an engine may compute in wider registers
    told = ball.rad.isfinite() & (exact.abs() > 1e-3) & exact.isfinite()
    roundings = 2 if operation == "sqrt" else 1
    assert bool((ball.rad[told] <= 1.02 * roundings * form.unit * exact[told].abs() + 2 * form.tiny).all())
    assert bool((got.double() == exact)[ball.exact].all())
    held = form.holds(exact) & exact.isfinite() & told
    assert operation == "sqrt" or float((ball.rad[held] == 0).double().mean()) > 0.99


def test_a_result_is_exact_where_it_is_one_number_and_only_there() -> None:
    form = FORMATS["fp32"]
    three = mul(Ball.of(1.5), Ball.of(2.0), form)
    assert float(three.mid) == 3.0 and float(three.rad) == 0.0
    assert float(add(Ball.of(1.0), Ball.of(2.0**-24), form).rad) > 0
    assert float(add(Ball.of(1.0), Ball.of(2.0**-23), form).rad) == 0
    assert float(mul(Ball.of(1 + 2.0**-23), Ball.of(1 + 2.0**-23), form).rad) > 0
    wide = FORMATS["fp64"]
    assert float(mul(Ball.of(1 + 2.0**-52), Ball.of(1 + 2.0**-52), wide).rad) > 0  # fp64 itself has rounded here
    assert float(add(Ball.of(1.0), Ball.of(2.0**-53), wide).rad) > 0
    assert float(div(Ball.of(1.0), Ball.of(3.0), wide).rad) > 0
    assert float(div(Ball.of(3.0), Ball.of(4.0), wide).rad) == 0
    assert float(sqrt(Ball.of(0.0), form).rad) == 0 and float(sqrt(Ball.of(2.0), form).rad) > 0


def test_zero_and_minus_zero_are_one_number() -> None:
    assert bool(Ball.of(0.0).holds(torch.tensor(-0.0)))


def test_what_may_overflow_is_not_known_and_what_is_not_finite_stays_so() -> None:
    form = FORMATS["fp16"]
    big = mul(Ball.of(300.0), Ball.of(300.0), form)
    assert math.isinf(float(big.rad)) and bool(big.holds(torch.tensor(math.inf))) and bool(big.holds(torch.tensor(90000.0)))
    assert math.isinf(float(add(Ball.of(65504.0), Ball.of(8.0), form).rad))
    assert math.isinf(float(add(big, Ball.of(1.0), form).rad))
    assert math.isinf(float(div(Ball.of(1.0), Ball.of(0.0), form).rad))
    lost = add(Ball.of(math.inf), Ball.of(1.0), FORMATS["fp32"])
    assert not bool(lost.holds(torch.tensor(1.0)))
    assert bool(lost.holds(torch.tensor(math.nan))) and bool(lost.holds(torch.tensor(math.inf)))
    assert not bool(Ball.of(1.0).holds(torch.tensor(math.nan)))
    assert not bool(add(Ball.of(1.0), Ball.of(0.1), form).holds(torch.tensor(math.inf)))


@pytest.mark.parametrize("name", NARROW)
def test_subnormal_results_lie_in_their_balls_also_when_flushed(name: str) -> None:
    form, dtype = FORMATS[name], DTYPES[name]
    small = torch.tensor([torch.finfo(dtype).tiny * part for part in (1.0, 0.7, 0.3, 1.9)], dtype=dtype)
    ball = mul(Ball.of(small), Ball.of(torch.full((4,), 0.3, dtype=dtype)), form)
    assert bool(ball.holds(small * torch.tensor(0.3, dtype=dtype)).all())
    if name != "fp16":  # no processor flushes those
        assert bool(ball.holds(torch.zeros(4)).all())
    assert float(ball.rad.max()) < 2 * torch.finfo(dtype).tiny


@pytest.mark.parametrize("name", NARROW)
def test_a_constant_may_be_rounded_or_not(name: str) -> None:
    for number in (0.9, 0.999, 1e-8, 0.25, -0.1):
        ball = constant(number, FORMATS[name])
        assert bool(ball.holds(torch.tensor(number, dtype=torch.float64)))
        assert bool(ball.holds(torch.tensor(number, dtype=DTYPES[name])))
    assert float(constant(0.25, FORMATS[name]).rad) == 0


def orders(terms: list[torch.Tensor], draw: random.Random) -> torch.Tensor:
    """Added up as a random tree, in their own type."""
    left = list(terms)
    while len(left) > 1:
        a, b = (left.pop(draw.randrange(len(left))) for _ in range(2))
        left.append(a + b)
    return left[0]


def averages(terms: list[torch.Tensor], world: int, gas: int, draw: random.Random) -> torch.Tensor:
    """What some honest engine may get: any order, the division anywhere, sums in the terms' type or in fp32."""
    dtype = terms[0].dtype
    divisor = world * gas
    if draw.random() < 0.5:
        terms = [one.float() if draw.random() < 0.8 and dtype != torch.float32 else one for one in terms]
        dtype = torch.promote_types(terms[0].dtype, torch.float32) if any(t.dtype == torch.float32 for t in terms) else dtype
        terms = [one.to(dtype) for one in terms]
    place = draw.choice(["before", "gas", "after", "parts", "divide", "fp32"])
    if place == "before":
        return orders([one * (1 / divisor) for one in terms], draw)
    if place == "gas":
        return orders([one / gas for one in terms], draw) * (1 / world)
    if place == "parts":
        return orders([one * (1 / world) for one in terms], draw) / gas
    if place == "divide":
        return orders(terms, draw) / divisor
    if place == "fp32":
        return orders(terms, draw).float() * (1 / divisor)
    return orders(terms, draw) * (1 / divisor)


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize(("world", "gas"), [(1, 1), (2, 1), (2, 2), (2, 3), (3, 3), (4, 4)])
def test_no_honest_average_leaves_its_ball(name: str, world: int, gas: int) -> None:
    form, generator, draw = FORMATS[name], torch.Generator().manual_seed(world * 10 + gas), random.Random(world * gas)
    terms = [numbers(form, generator, 4.0).to(DTYPES[name]) for _ in range(world * gas)]
    roundings = world * gas - 1 + (0 if name == "fp32" and not odd(world * gas) else 3) + (4 if odd(world * gas) else 0)
    ball = mean_of([Ball.of(one) for one in terms], world * gas, form, roundings)
    worst = torch.zeros(COUNT, dtype=torch.float64)
    for _ in range(25):
        got = averages(terms, world, gas, draw)
        assert bool(ball.holds(got).all())
        worst = torch.maximum(worst, (got.double() - ball.mid).abs())
    if world * gas > 1:
        told = (ball.rad > 0) & (ball.rad > 4 * form.tiny * roundings)
        seen = float((worst[told] / ball.rad[told]).max())
        assert seen > 0.1, f"the radius is {1 / seen:.0f} times what is seen"


def odd(divisor: int) -> bool:
    return divisor & (divisor - 1) != 0


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize(("world", "gas"), [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3), (4, 3), (4, 4)])
def test_on_the_lattice_every_honest_average_has_the_same_bits(name: str, world: int, gas: int) -> None:
    divisor, draw = world * gas, random.Random(7)
    factor = divisor // (divisor & -divisor)
    high = max(1, 2 ** (FORMATS[name].digits - 1) // (divisor * factor))
    generator = torch.Generator().manual_seed(3)
    terms = [
        (torch.randint(-high, high + 1, (COUNT,), generator=generator) * factor).to(DTYPES[name]) for _ in range(divisor)
    ]
    ball = mean_of([Ball.of(one) for one in terms], divisor, FORMATS[name], 30)
    assert float(ball.rad.max()) <= (0 if factor < 9 else 200 * 2.0**-24 * high)
    if factor < 9:
        assert bool((ball.mid == sum(one.double() for one in terms) / divisor).all())
    for _ in range(25):
        assert bool(ball.holds(averages(terms, world, gas, draw)).all())


def test_a_sum_that_may_be_rounded_in_some_order_is_not_called_exact() -> None:
    form = FORMATS["bf16"]
    cancels = [Ball.of(one) for one in (200.0, 57.0, -200.0)]  # 257 is no number of bf16
    assert float(mean_of(cancels, 1, form, 2).rad) > 0
    assert (
        float(mean_of([Ball.of(one) for one in (200.0, 55.0, -200.0)], 1, form, 2).rad) > 0
    )  # the sum of sizes is beyond 256
    assert float(mean_of([Ball.of(one) for one in (100.0, 56.0, -100.0)], 1, form, 2).rad) == 0
    thirds = [Ball.of(one) for one in (1.0, 1.0, 2.0)]
    assert float(mean_of(thirds, 3, FORMATS["fp32"], 6).rad) > 0


def test_a_scaled_sum_that_overflows_on_the_way_is_not_known() -> None:
    terms = [Ball.of(one) for one in (400.0, -300.0)]
    assert math.isinf(float(mean_of(terms, 2, FORMATS["fp16"], 4, scale=128.0).rad))
    assert math.isfinite(float(mean_of(terms, 2, FORMATS["fp16"], 4, scale=64.0).rad))


def test_reciprocals_that_are_called_exact_are_so_for_every_number() -> None:
    for name, odd_part in itertools.product(("bf16", "fp16", "fp32"), (3, 5, 7, 11, 13)):
        digits = FORMATS[name].digits
        count = 2**digits // odd_part
        halves = torch.arange(1, count + 1, dtype=torch.float64)
        if count > 400_000:
            halves = torch.cat([halves[:200_000], halves[-200_000:]])
        whole = (halves * odd_part).to(DTYPES[name])
        factor = torch.tensor(1 / odd_part, dtype=DTYPES[name])
        same = bool(((whole * factor).double() == halves).all())
        assert same or not balls._reciprocal_is_near(odd_part, digits), (name, odd_part)
    assert balls._reciprocal_is_near(3, 53) and Fraction(1 / 3) != Fraction(1, 3)
    for whole in range(1, 3000):
        assert (3 * whole) * (1 / 3) == whole


@pytest.mark.parametrize("name", ["bf16", "fp32"])
@pytest.mark.parametrize("kind", ["2", "inf"])
def test_no_honest_norm_leaves_its_ball(name: str, kind: str) -> None:
    form, generator, draw = FORMATS[name], torch.Generator().manual_seed(5), random.Random(5)
    parts = [numbers(form, generator, 3.0, count).to(DTYPES[name]) for count in (1, 7, 35, 400)]
    ball = norm([Ball.of(one) for one in parts], kind, form)
    power = float(kind)
    for _ in range(30):
        draw.shuffle(parts)
        each = [torch.linalg.vector_norm(one, power) for one in parts]
        found = [
            torch.linalg.vector_norm(torch.stack(each), power),
            torch.linalg.vector_norm(torch.cat(parts).float(), power),
        ]
        if kind == "2":
            found += [torch.stack([one.double() for one in each]).pow(2).sum().sqrt()]
            found += [orders(list(torch.cat(parts).float() ** 2), draw).sqrt()]
            found += [torch.stack([one.float() for one in each]).pow(2).sum().float().pow(0.5)]
        for one in found:
            assert bool(ball.holds(one)), (float(one), ball)
    assert float(ball.rad) <= float(ball.mid) * (300 if name == "fp32" else 8) * form.unit


def test_a_norm_of_whole_numbers_has_few_roundings() -> None:
    ball = norm([Ball.of(torch.randint(-3, 4, (1000,)).double()), Ball.of(torch.ones(10))], "2", FORMATS["fp32"])
    assert float(ball.rad) < 20 * 2.0**-24 * float(ball.mid)
    assert float(norm([Ball.of(torch.tensor([3.0, -4.0]))], "inf", FORMATS["fp32"]).rad) == 0
    assert math.isnan(float(norm([Ball.of(torch.tensor([3.0, math.nan]))], "2", FORMATS["fp32"]).mid))
    assert float(norm([Ball.of(torch.zeros(3))], "2", FORMATS["fp32"]).rad) == 0


def test_a_hull_holds_both_and_an_unknown_one_stays_unknown() -> None:
    both = hull(Ball.of(torch.tensor([1.0, 2.0])), Ball.of(torch.tensor([3.0, 2.0])))
    assert both.rad.tolist()[1] == 0 and bool(both.holds(torch.tensor([1.0, 2.0])).all())
    assert bool(both.holds(torch.tensor([3.0, 2.0])).all()) and not bool(both.holds(torch.tensor([3.1, 2.0])).all())
    unknown = Ball.of(torch.tensor(1.0)).widened(math.inf)
    assert math.isinf(float(hull(unknown, Ball.of(2.0)).rad))
    assert math.isinf(float(hull(Ball.of(math.nan), Ball.of(2.0)).rad))


def test_the_meet_of_formats_is_as_coarse_and_as_narrow_as_the_worst() -> None:
    meet = coarsest("bf16", "fp16", "", "fp32")
    assert (meet.digits, meet.largest, meet.tiny) == (8, 65504.0, 2.0**-25)
    assert coarsest("fp32", "") is FORMATS["fp32"]
    assert meet.holds(torch.tensor([257.0, 2.0**-30, 3.0], dtype=torch.float64)).tolist() == [False, False, True]


@pytest.mark.parametrize("name", NARROW)
def test_chains_of_operations_stay_in_their_balls_also_with_fused_steps(name: str) -> None:
    """p - lr * (m * a + g * b) / (sqrt(v) + e), each operation rounded, or any of them not."""
    form, dtype, generator, draw = FORMATS[name], DTYPES[name], torch.Generator().manual_seed(2), random.Random(2)
    p, m, g = (numbers(form, generator, 2.0) for _ in range(3))
    v = numbers(form, generator, 2.0).abs() + 0.25
    v = v.to(dtype).double()
    a, b, lr, e = 0.9, 0.1, 0.01, 1e-3
    balls_of = [constant(one, form) for one in (a, b, lr, e)]
    first = add(mul(balls_of[0], Ball.of(m), form), mul(balls_of[1], Ball.of(g), form), form)
    ratio = div(first, add(sqrt(Ball.of(v), form), balls_of[3], form), form)
    ball = sub(Ball.of(p), mul(balls_of[2], ratio, form), form)
    worst = torch.zeros(COUNT, dtype=torch.float64)
    for _ in range(30):

        def step(number: torch.Tensor) -> torch.Tensor:
            return number.to(dtype).double() if draw.random() < 0.7 else number

        top = step(step(a * m) + step(b * g))
        got = step(p - step(lr * step(top / step(step(v.sqrt()) + e))))
        assert bool(ball.holds(got).all())
        worst = torch.maximum(worst, (got - ball.mid).abs())
    assert float((worst / ball.rad.clamp(min=1e-300))[ball.rad > 0].max()) > 0.3
