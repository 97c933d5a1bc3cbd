"""Whether a prediction of wrong numbers explains them, or only happens to be near.

A prediction is kept where every wrong element is as near to it as its own roundings allow, and where that is no accident: an
element tells log2(1 + |got - right| / step) bits, so many other numbers it might have been, where `step` is the wider of what
the roundings leave open (nothing where every element is met exactly) and of the grid that all numbers lie on (integer
lattices). Equal elements tell it once, and their repeats AGAIN_BITS at most. All together must tell LEAST_BITS; a number that
was fitted takes the bits of the element that tells most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LEAST_BITS = 14.0
"""Some 2^8 predictions are tried for what is wrong: one in 2^6 of what no fault explains gets an explanation by chance."""
AGAIN_BITS = 8.0
"""What elements tell at most that are wrong in a way that others were: any fault that depends on the right number alone repeats itself."""
_ZERO_BITS = 8.0


@dataclass(frozen=True)
class Wrong:
    """The wrong elements, flat: what was got and what is right, both finite."""

    got: torch.Tensor
    right: torch.Tensor
    grid: float
    """A power of two that all numbers are multiples of; that of fp64's last bit where they are not."""


@dataclass(frozen=True)
class Claim:
    """A cause, and the numbers that it predicts in the place of the wrong ones; NaN where it predicts nothing."""

    kind: str
    says: str
    values: torch.Tensor
    room: torch.Tensor
    """How far from the prediction the roundings of its own may leave what was got."""
    order: int = 0
    """Simple causes come first: smaller."""
    fitted: int = 0
    variant: str = ""
    """What must be the same wherever the kind explains anything: which rank is missing, say."""


@dataclass(frozen=True)
class Proof:
    """What a claim was found to explain."""

    claim: Claim
    claimed: int
    bits: float


def grid_of(*tensors: torch.Tensor) -> float:
    """The largest power of two (1 at most) that all finite numbers are multiples of."""
    least = 0
    for tensor in tensors:
        flat = tensor.detach().double().flatten()
        flat = flat[torch.isfinite(flat) & (flat != 0)]
        if flat.numel() == 0:
            continue
        mantissa, exponent = torch.frexp(flat)
        digits = (mantissa * 2.0**53).to(torch.int64)
        lowest = (digits & -digits).double()
        least = min(least, int((torch.log2(lowest) + exponent.double() - 53).min()))
    return float(2.0 ** max(least, -1000))


def prove(wrong: Wrong, claim: Claim, least: float = LEAST_BITS) -> Proof | None:
    """The proof that the claim explains all wrong elements but a few that it says nothing of; None: it does not."""
    known = torch.isfinite(claim.values)
    claimed = int(known.sum())
    if claimed == 0 or claimed * 8 < wrong.got.numel() * 7:
        return None
    got, right = wrong.got[known], wrong.right[known]
    left = (got - claim.values[known]).abs()
    if bool((left > claim.room[known]).any()):
        return None
    room = torch.zeros_like(left) if bool((left == 0).all()) else claim.room[known]
    step = torch.clamp(2 * room, min=wrong.grid)
    bits = torch.log2(1 + (got - right).abs() / step)
    zero = (got == 0) & (claim.values[known] == 0)
    bits = torch.where(zero, torch.clamp(bits, min=_ZERO_BITS), bits)
    telling = sorted(_once(got, right, bits), reverse=True)[claim.fitted :]
    every = sum(sorted(bits.tolist(), reverse=True)[claim.fitted :])
    total = min(every, sum(telling) + AGAIN_BITS)
    return Proof(claim, claimed, total) if total >= least else None


def _once(got: torch.Tensor, right: torch.Tensor, bits: torch.Tensor) -> list[float]:
    pairs = torch.stack([got, right], dim=1)
    distinct, of = torch.unique(pairs, dim=0, return_inverse=True)
    best = torch.zeros(distinct.shape[0], dtype=torch.float64)
    best.scatter_reduce_(0, of.flatten(), bits.double(), reduce="amax")
    return [float(one) for one in best]
