"""Long arithmetic of lane code: one function for all instructions of a kernel that compute the same."""

from __future__ import annotations

import re

import numpy as np

from tests.vgpu.helpers import run, text
from warpwright import ptx
from warpwright.vgpu.jit.compile import emit
from warpwright.vgpu.program.decode import decode


def functions_of(body: str) -> tuple[int, int]:
    """Returns how many functions the lane code of a kernel has for arithmetic, and how many calls of them."""
    lane_code = emit(decode(ptx.parse(text(body, (np.zeros(1),))), "k"))[0]
    return len(re.findall(r"^define internal .*@outlined", lane_code, re.M)), lane_code.count(
        "call <32 x i32> @outlined"
    )


def test_equal_divisions_share_a_function() -> None:
    assert functions_of("div.u32 %r3, %t, %lane; div.u32 %r4, %lane, %t;") == (1, 2)


def test_other_modifiers_constants_and_repeated_registers_have_functions_of_their_own() -> None:
    assert functions_of("div.u32 %r3, %t, %lane; div.s32 %r4, %t, %lane;") == (2, 2)
    assert functions_of("div.u32 %r3, %t, 3; div.u32 %r4, %t, 5;") == (2, 2)
    assert functions_of("div.u32 %r3, %t, %lane; div.u32 %r4, %t, %t;") == (2, 2)


def test_short_arithmetic_is_inline() -> None:
    assert functions_of("add.u32 %r3, %t, %lane; mul.lo.u32 %r4, %t, %lane;") == (0, 0)


def test_a_guarded_call_leaves_the_other_lanes_unchanged() -> None:
    out = np.zeros(32, np.uint32)
    run(
        """mov.u32 %r3, 77; add.u32 %r4, %lane, 1; setp.lt.u32 %p0, %lane, 16;
        @%p0 div.u32 %r3, 1000, %r4; @%p0 rem.u32 %r3, %r3, %r4; st.global.u32 [%o], %r3;""",
        out,
    )
    numbers = np.arange(1, 33)
    np.testing.assert_array_equal(out, np.where(numbers <= 16, 1000 // numbers % numbers, 77))
