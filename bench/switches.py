"""The predicted effect of each switch of the Blackwell GEMM: ``python bench/switches.py [--size 4096]``.

One row for each configuration: level and switch, predicted time and useful TFLOPS on the virtual B200 (fast mode), and
the change against the same level without the switch. Nothing is measured.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.kernels.gemm.sm100 import LEVELS, Config, kernel_of, plan_gemm

CLUSTERS_OF_4 = 34  # that fit on a B200, by the sizes of its GPCs
SWITCHES: dict[str, tuple[int, dict[str, Any]]] = {
    "one tile a pair (as level 6)": (7, {"dual": False, "writers": 1}),
    "plain store tile": (8, {"swizzle": 0}),
    "one store block": (8, {"boxes": 1}),
    "tensor memory released late": (8, {"early": False}),
    "two stages on one barrier": (8, {"merge": 2}),
    "tensor cores at 90 %": (8, {"throttle": 90}),
    "clusters of 4 share B": (8, {"share": (2, 1)}),
    "clusters of 4 share A": (8, {"share": (1, 2)}),
    "waves not staggered": (10, {"stagger": 0}),
    "store boxes of 128 rows": (10, {"box": (128, 128)}),
    "256 × 256 a pair, two accumulators": (10, {"tile": (128, 256, 64), "stages": 6, "stagger": 0, "accumulators": 2}),
    "cluster launch control": (10, {"scheduler": "clc"}),
    "clusters of 4 share B, launch control": (10, {"share": (2, 1), "scheduler": "clc"}),
}


def predict(config: Config, size: int) -> ww.Profile:
    """Returns the profile of M = N = K = ``size``."""
    a, b = (np.zeros((size, size), ml_dtypes.bfloat16) for _ in range(2))
    found = plan_gemm(config, size, size, size, clusters=CLUSTERS_OF_4 if config.cluster == 4 else None)
    maps = [
        ww.TensorMap(x, box, swizzle=128, l2_promotion=found.l2_promotion)
        for x, box in ((a, found.a_box), (b, found.b_box))
    ]
    d = np.zeros((size, found.pitch), ml_dtypes.bfloat16)
    return ww.profile(kernel_of(config).trace(), found.grid, args=[*maps, d, *found.scalars], device="b200")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096, help="M = N = K")
    size = parser.parse_args().size
    plain = {level: predict(LEVELS[level], size) for level in sorted({level for level, _ in SWITCHES.values()})}
    print("| level | switch | us | TFLOPS | against the level |\n| --- | --- | --- | --- | --- |")
    for level, found in plain.items():
        print(f"| {level} | as it is | {found.time_us:.1f} | {found.tflops:.0f} | |")
    for name, (level, changes) in SWITCHES.items():
        found = predict(replace(LEVELS[level], **changes), size)
        change = found.tflops / plain[level].tflops - 1
        print(f"| {level} | {name} | {found.time_us:.1f} | {found.tflops:.0f} | {change:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
