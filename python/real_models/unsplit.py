"""How far models of transformers that ranks share are from the unsplit ones in fp64, on real text, and which faults are seen.

    python unsplit.py             Llama and Qwen2, tensor 2 and 4, sequence 2, fp32 and bf16: bounds, phase by phase, and three parties
    python unsplit.py --plants    what the planted faults of python/tests/test_unsplit_bounds.py break, and by how little a sum may be off

Bounds are those of python/tests/unsplit_bounds.py. Exit code 0: all held, or every plant was seen; 1: not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import test_unsplit_bounds as models
from unsplit_bounds import Lanes, Ratio, Shape


def of_all(ratios: dict[str, Ratio]) -> float:
    """The length of the error of all gradients / that of the unsplit run."""
    split, unsplit = (sum(getattr(one, of) ** 2 for one in ratios.values()) for of in ("split", "unsplit"))
    return float((split / unsplit) ** 0.5)


def row(kind: str, precision: str, shape: Shape, lanes: Lanes, ratios: dict[str, Ratio]) -> str:
    by_parameter = [one.of_lengths for one in ratios.values()]
    seen = sorted(share for share, _ in lanes.unsplit.seen)
    compared = " | ".join(f"{lane.compared:,}" for lane in lanes.named().values())
    beyond = sum(lane.beyond for lane in lanes.named().values()) + sum(
        one.largest_split > one.room for one in ratios.values()
    )
    axis = f"tensor {shape.tensor}" if shape.tensor > 1 else f"sequence {shape.sequence}"
    return (
        f"| {kind} | {precision} | {axis} | {compared} | {beyond} | {seen[len(seen) // 2]:.1e}, {seen[-1]:.1e} | "
        f"{of_all(ratios):.2f} ({min(by_parameter):.2f} to {max(by_parameter):.2f}) |"
    )


def table() -> bool:
    print(
        "| model | precision | ranks | between, bits | parts | sums | beside fp64 | beyond | seen: median, worst | error / unsplit's |"
    )
    print("|:--|:--|:--|--:|--:|--:|--:|--:|--:|--:|")
    held = True
    for kind in ("Llama", "Qwen2"):
        for precision in models.TYPES:
            for shape in models.SHAPES:
                lanes, ratios = models.judged(kind, precision, shape)
                held &= lanes.first == "" and all(one.largest_split <= one.room for one in ratios.values())
                print(row(kind, precision, shape, lanes, ratios), flush=True)
    return held


def seen_in(plant: str, precision: str, shape: Shape) -> bool:
    lanes, ratios = models.judged("Llama", precision, shape, plant)
    beyond = " | ".join(f"{lane.beyond:,}" for lane in lanes.named().values())
    wide = sum(one.largest_split > one.room for one in ratios.values())
    ranks = f"tensor {shape.tensor}" if shape.tensor > 1 else f"sequence {shape.sequence}"
    print(f"| {plant} | {precision} | {ranks} | {beyond} | {wide} of {len(ratios)} |", flush=True)
    return lanes.first != ""


def plants() -> bool:
    print("| planted | precision | ranks | between, bits | parts | sums | beside fp64 | end to end: parameters |")
    print("|:--|:--|:--|--:|--:|--:|--:|--:|")
    seen = min([seen_in(*planted) for planted in models.PLANTED])
    for precision, least in (("fp32", 23), ("bf16", 8)):
        for k in range(2, least + 1, 3):
            seen &= seen_in(f"parts x (1 + 2^-{k})", precision, Shape(tensor=2))
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--plants", action="store_true", help="faults instead")
    return 0 if (plants if parser.parse_args().plants else table)() else 1


if __name__ == "__main__":
    sys.exit(main())
