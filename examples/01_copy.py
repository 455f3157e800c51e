"""01: the smallest kernel. Every thread copies one element; the run-time `If` keeps the last CTA inside the arrays."""

from __future__ import annotations

import numpy as np

import warpwright as ww
from warpwright.lang import Global, If, ctaid, f32, kernel, ntid, tid, u32


@kernel("sm_100a", threads=256)
def copy(source: Global[f32], target: Global[f32], count: u32) -> None:
    i = ctaid.x * ntid.x + tid.x
    with If(i < count):
        target[i] = source[i]


def main() -> None:
    source = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    target = np.zeros_like(source)
    ww.launch(copy, grid=4, args=[source, target, source.size])
    assert np.array_equal(target, source)
    print(f"verified: {source.size} elements copied by 4 CTAs of 256 threads")


if __name__ == "__main__":
    main()
