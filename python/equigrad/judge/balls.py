"""Numbers with a bound of their rounding: what an honest computation may give, whatever order and kernels it chose.

A Ball is a middle and a radius per element, both fp64. An operation's result holds every number that the exact operation gives for
numbers of its operands, rounded to nearest in a format or not rounded at all (fused multiply-add, wider registers), and what fp64
itself rounds away here. The radius is 0 exactly where the result is one number in every such computation: there, bits are compared.

A middle that is not finite stands for "inf or NaN, whichever". An infinite radius stands for "not known": a result that may
overflow in the format, or a division by what may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

_U64 = 2.0**-53
_PAD = 1 + 2.0**-44
"""Radii are computed in fp64 by some tens of operations on numbers that are not negative; this makes up for their rounding."""


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, or the meet of several: coarse and narrow as the worst of them."""

    name: str
    digits: int
    """Of the significand, the leading one included."""
    tiny: float
    """What a rounding may change a number by, however small it is: half the least subnormal number of fp16; the least normal
    one of the others, since processors may be told to flush what is smaller."""
    largest: float
    dtypes: tuple[torch.dtype, ...]

    @property
    def unit(self) -> float:
        """The unit roundoff: a number is rounded by at most this share of it."""
        return float(2.0**-self.digits)

    def holds(self, numbers: Tensor) -> Tensor:
        """Per element: whether the format (each one of a meet) has this very number."""
        held = (numbers == 0) | (numbers.abs() >= self.tiny)
        for dtype in self.dtypes:
            held &= numbers.to(dtype).to(torch.float64) == numbers
        return held

    def gamma(self, roundings: float) -> float:
        """The share of its size by which that many roundings may change a product, or each term of a sum."""
        share = roundings * self.unit
        return math.inf if share >= 1 else share / (1 - share)


FORMATS = {
    "fp64": Format("fp64", 53, 2.0**-1022, torch.finfo(torch.float64).max, (torch.float64,)),
    "fp32": Format("fp32", 24, 2.0**-126, torch.finfo(torch.float32).max, (torch.float32,)),
    "bf16": Format("bf16", 8, 2.0**-126, torch.finfo(torch.bfloat16).max, (torch.bfloat16,)),
    "fp16": Format("fp16", 11, 2.0**-25, torch.finfo(torch.float16).max, (torch.float16,)),
}
_NAMES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def format_of(dtype: torch.dtype) -> Format:
    """The format of a floating dtype. Raises KeyError for another one."""
    return FORMATS[_NAMES[dtype]]


@lru_cache
def coarsest(*names: str) -> Format:
    """The meet of formats: what a number keeps that may be rounded in any of them. Empty names are left out."""
    formats = [FORMATS[name] for name in sorted({name for name in names if name})]
    if len(formats) == 1:
        return formats[0]
    return Format(
        "/".join(one.name for one in formats),
        min(one.digits for one in formats),
        max(one.tiny for one in formats),
        min(one.largest for one in formats),
        tuple(dtype for one in formats for dtype in one.dtypes),
    )


@dataclass(frozen=True)
class Ball:
    """Per element: all numbers within rad of mid. Both fp64, of one shape; rad is not negative and not NaN."""

    mid: Tensor
    rad: Tensor

    @staticmethod
    def of(numbers: Tensor | float) -> Ball:
        """Balls of radius 0 about numbers of any floating dtype."""
        mid = torch.as_tensor(numbers, dtype=torch.float64).detach()
        return Ball(mid, torch.zeros_like(mid))

    @staticmethod
    def between(low: Tensor, high: Tensor) -> Ball:
        """The least ball that holds both."""
        mid = low + (high - low) / 2
        rad = torch.where(low == high, 0.0, torch.maximum(high - mid, mid - low) * _PAD)
        open_ended = low.isinf() | high.isinf()
        return _sound(torch.where(open_ended, 0.0, mid), torch.where(open_ended, math.inf, rad))

    @property
    def low(self) -> Tensor:
        return self.mid - self.rad

    @property
    def high(self) -> Tensor:
        return self.mid + self.rad

    @property
    def exact(self) -> Tensor:
        """Per element: whether it is one number."""
        return (self.rad == 0) & self.mid.isfinite()

    def holds(self, got: Tensor) -> Tensor:
        """Per element: whether what was got may have come of an honest computation. +0 and -0 are one number."""
        got = got.to(torch.float64)
        near = torch.where(self.mid.isfinite(), (got - self.mid).abs() <= self.rad, ~got.isfinite())
        return near | self.rad.isinf()

    def widened(self, by: Tensor | float) -> Ball:
        """With that much added to each radius."""
        return _sound(self.mid, self.rad + by)

    def __neg__(self) -> Ball:
        return Ball(-self.mid, self.rad)

    def __getitem__(self, index: Tensor) -> Ball:
        return Ball(self.mid[index], self.rad[index])


def constant(number: float, form: Format) -> Ball:
    """A number of a configuration, which an engine may hold in the format or in fp64."""
    ball = Ball.of(number)
    return ball if bool(form.holds(ball.mid)) else ball.widened(abs(number) * (form.unit + _U64) + form.tiny)


def rounded(ball: Ball, form: Format, roundings: float = 1, exact: Tensor | None = None) -> Ball:
    """The ball after so many roundings in the format; where exact, none of them changes anything."""
    size = ball.mid.abs() + ball.rad
    rad = (ball.rad + form.gamma(roundings) * size + roundings * form.tiny) * _PAD
    keeps = size == 0
    if exact is not None:
        keeps |= exact & (ball.rad == 0)
    rad = torch.where(keeps, ball.rad, rad)
    return _sound(ball.mid, torch.where(size + rad > form.largest, math.inf, rad))


def add(a: Ball, b: Ball, form: Format) -> Ball:
    """a + b, rounded once."""
    mid = a.mid + b.mid
    shifted = mid - a.mid
    lost = (a.mid - (mid - shifted)) + (b.mid - shifted)
    rad = a.rad + b.rad
    exact = (rad == 0) & (lost == 0) & form.holds(mid)
    return rounded(_widened_by_fp64(mid, rad, exact), form, 1, exact)


def sub(a: Ball, b: Ball, form: Format) -> Ball:
    """a - b, rounded once."""
    return add(a, -b, form)


def mul(a: Ball, b: Ball, form: Format) -> Ball:
    """a * b, rounded once."""
    mid = a.mid * b.mid
    rad = a.mid.abs() * b.rad + b.mid.abs() * a.rad + a.rad * b.rad
    exact = (rad == 0) & _is_product(mid, a.mid, b.mid) & form.holds(mid)
    return rounded(_widened_by_fp64(mid, rad, exact), form, 1, exact)


def div(a: Ball, b: Ball, form: Format) -> Ball:
    """a / b, rounded once; not known where b may be 0."""
    least = b.mid.abs() - b.rad
    mid = torch.where(least > 0, a.mid / b.mid, 0.0)
    mid = torch.where(a.mid.isfinite() & b.mid.isfinite(), mid, math.nan)
    rad = torch.where(least > 0, (mid.abs() * b.rad + a.rad) / least, math.inf)
    exact = (rad == 0) & _is_product(a.mid, mid, b.mid) & form.holds(mid)
    return rounded(_widened_by_fp64(mid, rad, exact), form, 1, exact)


def sqrt(a: Ball, form: Format) -> Ball:
    """The square root. What of a is below 0 is an error of rounding, and taken as 0. Two roundings: vector libraries leave out the
    last half bit (torch's on x86 is off by 0.63 of it), and owe nothing to perfect squares."""
    mid = a.mid.clamp(min=0).sqrt()
    low, high = a.low.clamp(min=0).sqrt(), a.high.clamp(min=0).sqrt()
    rad = torch.where(a.rad == 0, 0.0, torch.maximum(high - mid, mid - low) + 2 * _U64 * high)
    return rounded(_widened_by_fp64(mid, rad, mid == 0), form, 2)


def hull(a: Ball, b: Ball) -> Ball:
    """The least ball that holds both: where documents allow two formulas, or anything between."""
    finite_a, finite_b = a.mid.isfinite(), b.mid.isfinite()
    joined = Ball.between(torch.minimum(a.low, b.low), torch.maximum(a.high, b.high))
    same = (a.mid == b.mid) & (a.rad == b.rad) | ~(finite_a | finite_b)
    mid = torch.where(same, a.mid, torch.where(finite_a & finite_b, joined.mid, 0.0))
    return Ball(mid, torch.where(same, a.rad, torch.where(finite_a & finite_b, joined.rad, math.inf)))


def within(ball: Ball, least: Tensor | float, most: Tensor | float) -> Ball:
    """What of a ball is no less and no more than that, where it is known by other means; elsewhere unchanged."""
    floor, ceiling = torch.as_tensor(least, dtype=torch.float64), torch.as_tensor(most, dtype=torch.float64)
    low, high = ball.low.clamp(min=floor, max=ceiling), ball.high.clamp(min=floor, max=ceiling)
    cut = (low != ball.low) | (high != ball.high)
    part = Ball.between(low, high)
    return Ball(torch.where(cut, part.mid, ball.mid), torch.where(cut, part.rad, ball.rad))


def mean_of(
    contributions: Sequence[Ball], divisor: int, form: Format, roundings: float, scale: float = 1.0, again: tuple[int, int] = (1, 1)
) -> Ball:
    """The sum of all, divided: in any order, the division anywhere (before, between or after the additions, in parts).

    divisor: ranks x micro-batches. form: the coarsest format on the way. roundings: how many of them, of any kind, a term may go
    through. scale: the contributions are on the way multiplied by a number of up to this size. again: an odd number by which some of
    them may be divided beside, and a power of two by which others may be when they are added to those that are not: where what was
    averaged before is averaged with the next once more.
    One number where every partial sum is in the format, before and after the division, and the division cannot be seen.
    """
    terms = torch.stack([one.mid for one in contributions])
    spread = torch.stack([one.rad for one in contributions]).sum(0)
    size = terms.abs().sum(0)
    odd = divisor // (divisor & -divisor)
    parts = terms / odd
    on_grid = _sums_are_held(terms, parts / again[0], size * again[1], divisor // odd, odd * again[0], form) & (spread == 0)
    mid = parts.sum(0) / (divisor // odd)
    own = (len(contributions) + 3) * _U64 * size / divisor
    loose = (spread + form.gamma(roundings) * (size + spread)) / divisor + roundings * form.tiny + own
    tight = _error_of_reciprocals(size, divisor, odd, form, len(contributions))
    rad = torch.where(on_grid & (size * scale <= form.largest), tight, loose)
    rad = torch.where((size == 0) & (spread == 0), 0.0, rad * _PAD)
    rad = torch.where((size + spread) * scale * (1 + form.gamma(roundings)) > form.largest, math.inf, rad)
    return _sound(mid, rad)


def norm(parts: Sequence[Ball], kind: str, form: Format, tensors: int = 0) -> Ball:
    """The norm of all elements together: kind "inf", or "2" as squares added in fp32 or finer in any order, by tensors or at once.

    form: what each tensor's norm, and the whole, are rounded to.
    """
    flat = [one for one in parts if one.mid.numel()]
    if not flat:
        return Ball.of(0.0)
    mid = torch.cat([one.mid.flatten() for one in flat])
    rad = torch.cat([one.rad.flatten() for one in flat])
    if not bool(mid.isfinite().all()):
        return Ball.of(math.nan)
    most, least = mid.abs() + rad, (mid.abs() - rad).clamp(min=0)
    if kind == "inf":
        low, high = least.max(), most.max()
        exact = (low == high) & form.holds(high)
        return rounded(Ball.between(low, high), form, 2, exact)
    wide = FORMATS["fp64"] if form.digits > 24 else FORMATS["fp32"]
    additions = (tensors or len(flat)) if _squares_are_held(mid, rad, wide) else mid.numel()
    if float(most.max()) == 0:
        return Ball.of(0.0)
    slack = wide.gamma(additions + 8) / 2 + (mid.numel() + 8) * _U64
    vanished = math.sqrt(wide.tiny * mid.numel())
    low = (least * least).sum().sqrt() * (1 - slack) - vanished
    high = (most * most).sum().sqrt() * (1 + slack) + vanished
    ball = rounded(Ball.between(low.clamp(min=0), high), form, 5)
    return ball if float(high) ** 2 < wide.largest else ball.widened(math.inf)


def _sound(mid: Tensor, rad: Tensor) -> Ball:
    """A middle that is not finite says all; a radius that came out as NaN is not known."""
    rad = torch.nan_to_num(rad, nan=math.inf, posinf=math.inf)
    return Ball(mid, torch.where(mid.isfinite(), rad, 0.0))


def _widened_by_fp64(mid: Tensor, rad: Tensor, exact: Tensor) -> Ball:
    return _sound(mid, torch.where(exact, rad, rad * _PAD + 2 * _U64 * mid.abs()))


def _is_product(product: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Per element: whether it is a * b to the last bit (Dekker); False too where fp64 cannot tell."""
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    told = (product.abs() > 2.0**-900) | (a == 0) | (b == 0)
    return (a * b == product) & (lost == 0) & told


def _upper_half(a: Tensor) -> Tensor:
    shifted = a * (2.0**27 + 1)
    return shifted - (shifted - a)


def _lowest_bit(numbers: Tensor) -> Tensor:
    """The largest power of two that each is a multiple of; inf for 0, 0 for what is not finite."""
    mantissa, exponent = torch.frexp(numbers.nan_to_num(0.0, 0.0, 0.0))
    digits = (mantissa * 2.0**53).to(torch.int64)
    bit = torch.ldexp((digits & -digits).to(torch.float64), exponent - 53)
    bit = torch.where(numbers == 0, math.inf, bit)
    return torch.where(numbers.isfinite(), bit, 0.0)


def _sums_are_held(terms: Tensor, parts: Tensor, size: Tensor, power: int, odd: int, form: Format) -> Tensor:
    """Per element: whether all partial sums, before and after the division, are multiples of one number that the format counts."""
    grid = _lowest_bit(parts).amin(0)
    grid = torch.where(grid.isinf(), 1.0, grid)
    whole = _is_product(terms, parts, torch.tensor(float(odd), dtype=torch.float64)).all(0)
    room = 2.0**form.digits * (1 if form.digits <= 48 else 1 - 2.0**-40)
    return whole & (size <= grid * room) & (grid / power >= 2 * form.tiny)


def _error_of_reciprocals(size: Tensor, divisor: int, odd: int, form: Format, terms: int) -> Tensor:
    """What multiplying by 1/divisor may add to sums that are exact: nothing for a power of two, and for a prime whose reciprocal
    rounds well; a composite one may be applied as a product of reciprocals, itself rounded."""
    if odd == 1 or (_is_prime(odd) and all(_reciprocal_is_near(odd, digits) for digits in {form.digits, 24})):
        return torch.zeros_like(size)
    loose = (
        form
        if form.digits >= 24 or any(not _reciprocal_is_near(part, form.digits) for part in _primes(odd))
        else FORMATS["fp32"]
    )
    return loose.gamma(terms + 6) * size / divisor


def _reciprocal_is_near(odd: int, digits: int) -> bool:
    """Whether fl(1/odd) is so near that odd * h * fl(1/odd) rounds to h for every h of the format."""
    scale = 1 << (digits + odd.bit_length() - 1)
    nearest = Fraction(round(Fraction(scale, odd)), scale)
    return abs(nearest * odd - 1) <= Fraction(1, 1 << (digits + 1))


def _primes(odd: int) -> list[int]:
    for part in range(3, math.isqrt(odd) + 1, 2):
        if odd % part == 0:
            return [part, *_primes(odd // part)]
    return [odd] if odd > 1 else []


def _is_prime(odd: int) -> bool:
    return _primes(odd) == [odd]


def _squares_are_held(mid: Tensor, rad: Tensor, form: Format) -> bool:
    """Whether the squares of all add up exactly in the format, in any order."""
    if bool((rad != 0).any()):
        return False
    grid = float(_lowest_bit(mid).min())
    total = float((mid * mid).sum())
    return math.isinf(grid) or (grid > 2.0**-60 and total <= grid * grid * 2.0 ** min(form.digits, 48))
