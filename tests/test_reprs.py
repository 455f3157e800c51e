"""The ``repr`` of what a user gets to see is one short line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.arrays.device import DeviceArray
from warpwright.lang import Global, f32, kernel, printf, tid, tma


@kernel("sm_90a", threads=32)
def shift(x: Global[f32], m: tma.Map[f32]):
    printf("a long text of several words\n")
    x[tid.x + 1] = x[tid.x]


ARRAY = np.zeros((8, 32), np.float32)
ARGS = [np.zeros(33, np.float32), ww.TensorMap(ARRAY, (8, 32))]
MODULE = ww.load_ptx(shift.ptx())
MATRIX = np.zeros((64, 64), np.float16)
CALL = ww.launches(ww.matmul, MATRIX, MATRIX, device="h200", level=1)
VERDICT = ww.check(shift, 2, args=ARGS, device="h200")
SHOWN: list[tuple[Any, str]] = [
    (shift, "<kernel shift(x, m) for sm_90a>"),
    (shift[2, 32], "Launcher(kernel=<kernel shift(x, m) for sm_90a>, grid=2, block=32)"),
    (shift.trace(), "Traced(shift(x, m) for sm_90a, threads=(32, 1, 1), cluster=(1, 1, 1))"),
    (MODULE, "PtxModule(this PTX: ['shift'])"),
    (MODULE["shift"], "Entry(shift(x, m) for sm_90a)"),
    (VERDICT, "Verdict('shift' on h200: findings (race, grid-race))"),
    (
        ww.launch(shift, 1, args=ARGS, device="h200"),
        "LaunchResult(printed='a long text ...veral words\\n')",
    ),
    (ARGS[1], "TensorMap(f32, dims=(32, 8), strides=(128,), box=(32, 8), swizzle=0)"),
    (
        DeviceArray(4096, (2, 3), (12, 4), np.dtype(np.float32), 1, ARRAY),
        "DeviceArray(float32, shape=(2, 3), strides=(12, 4), at 0x1000 of cuda:1)",
    ),
    (ww.device("h200"), "Device('h200')"),
    (CALL, "Call(gemm_one_loop on h200)"),
]


@pytest.mark.parametrize(("value", "expected"), SHOWN, ids=lambda value: type(value).__name__)
def test_a_repr_is_one_line(value: Any, expected: str) -> None:
    assert repr(value) == expected


def test_the_repr_of_a_profile_has_its_time_and_that_of_a_finding_its_line() -> None:
    profile = ww.profile(shift, 2, args=ARGS, device="h200")
    assert repr(profile) == f"Profile('shift' on h200, grid=(2, 1, 1): {profile.time_us:.2f} µs)"
    assert repr(VERDICT.findings[0]) == f"Finding('race' at {VERDICT.findings[0].steps[0].where})"
    assert repr(next(iter(CALL))).startswith("Launch(Traced(")
