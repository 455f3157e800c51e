"""mma.sync of sm_120a with block scales and of 4-bit and 6-bit types, against float64 and MMA-Sim's model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vgpu.engines.block_scales import random_codes, scaled, values
from tests.vgpu.engines.rounding import scaled_sums, steps
from tests.vgpu.machine.test_mma_sync import c_place, fragments
from tests.vgpu.machine.warp_text import run_warp

# kind, scale vector, types of A and B, type of scale factors, elements of a block
CASES = [
    ("mxf8f6f4", ".scale_vec::1X", "e4m3", "e5m2", "ue8m0", 32),
    ("mxf8f6f4", "", "e2m1", "e3m2", "ue8m0", 32),
    ("mxf8f6f4", ".scale_vec::1X", "e2m3", "e4m3", "ue8m0", 32),
    ("mxf4", "", "e2m1", "e2m1", "ue8m0", 32),
    ("mxf4nvf4", ".scale_vec::2X", "e2m1", "e2m1", "ue8m0", 32),
    ("mxf4nvf4", ".scale_vec::4X", "e2m1", "e2m1", "ue4m3", 16),
]
Case = tuple[str, str, str, str, str, int]


def container(codes: NDArray[np.uint8], type: str, packed: bool) -> NDArray[np.uint8]:
    """Returns the bytes of registers: two 4-bit elements, or one element in the central four or the low six bits."""
    if packed:
        return codes[:, ::2] | codes[:, 1::2] << 4
    return codes << 2 | 0x41 if type == "e2m1" else codes


def factors_of(codes: NDArray[np.uint8], first: int, thread: int) -> NDArray[np.uint32]:
    """Returns the register of each lane, (32, 1), with the scale factors of 16 rows of A, in two lanes of each quad, or
    of 8 columns of B, in one lane; all other bytes are noise."""
    data = np.random.default_rng(9).integers(0, 256, (32, 4)).astype(np.uint8)
    for row, factors in enumerate(codes):
        lane = 4 * (row % 8) + (2 * thread + row // 8 if len(codes) == 16 else thread)
        data[lane, first : first + len(factors)] = factors
    return data.view(np.uint32)


def multiply(
    opcode: str, parts: tuple[NDArray[np.uint32], ...], tail: str, before: str = "", **options: Any
) -> NDArray[np.float32]:
    """Runs an instruction on registers of A, B and C and more registers; ``tail`` names those from %r10 on, and
    ``before`` is text before it."""
    line = (
        f"{before} {opcode} {{%o0, %o1, %o2, %o3}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {{%r6, %r7, %r8, %r9}}{tail};"
    )
    found = run_warp(line, np.concatenate(parts, axis=1), 4, target="sm_120a", **options).view(np.float32)
    out = np.empty((16, 8), np.float32)
    for lane in range(32):
        for i in range(4):
            out[c_place(i, lane // 4, lane % 4)] = found[lane, i]
    return out


class Problem:
    """Operands of one instruction of a case."""

    def __init__(self, case: Case) -> None:
        self.kind, self.vector, self.a_type, self.b_type, self.scale_type, block = self.case = case
        random, self.k = np.random.default_rng(len(self.kind + self.vector)), 32 if case[0] == "mxf8f6f4" else 64
        self.a, self.b = random_codes(random, (16, self.k), self.a_type), random_codes(random, (8, self.k), self.b_type)
        low, high = (120, 136) if self.scale_type == "ue8m0" else (0, 0x7F)
        count = self.k // block
        self.sa, self.sb = (random.integers(low, high, (rows, count)).astype(np.uint8) for rows in (16, 8))
        self.c = (random.normal(size=(16, 8)) * 2.0 ** random.integers(-40, 12, (16, 8))).astype(np.float32)

    def run(self, selectors: tuple[int, int, int, int] = (0, 0, 0, 0), names: str = "", **options: Any) -> Any:
        """Returns D. ``selectors``: byte and thread of A, byte and thread of B; ``names``: their names in the text."""
        packed = self.k == 64
        a, b = container(self.a, self.a_type, packed), container(self.b, self.b_type, packed)
        factors = factors_of(self.sa, *selectors[:2]), factors_of(self.sb, *selectors[2:])
        types = f"f32.{self.a_type}.{self.b_type}.f32.{self.scale_type}"
        opcode = f"mma.sync.aligned.m16n8k{self.k}.row.col.kind::{self.kind}.block_scale{self.vector}.{types}"
        tail = ", {{%r10}}, {{{}, {}}}, %r11, {{{}, {}}}".format(*(names.split() or selectors))
        return multiply(opcode, (*fragments(a, b, self.c, "f32"), *factors), tail, **options)

    def exact(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns D in float64, and the sums of magnitudes."""
        a = scaled(self.a, self.a_type, self.sa, self.scale_type)
        b = scaled(self.b, self.b_type, self.sb, self.scale_type)
        return a @ b.T + self.c, np.abs(a) @ np.abs(b).T + np.abs(self.c)


def check(problem: Problem, found: NDArray[np.float32]) -> None:
    """One rounding to float32 of a sum in double precision."""
    exact, size = problem.exact()
    assert (np.abs(found - exact) <= 2.0**-24 * np.abs(exact) + 2.0**-45 * size).all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_products_are_scaled_by_block(case: Case) -> None:
    problem = Problem(case)
    check(problem, problem.run())


@pytest.mark.parametrize(
    ("case", "selectors"), [(0, (3, 1, 2, 3)), (0, (1, 0, 0, 2)), (3, (2, 1, 2, 1)), (5, (0, 1, 0, 3))]
)
def test_selectors_name_the_bytes_and_the_lanes(case: int, selectors: tuple[int, int, int, int]) -> None:
    problem = Problem(CASES[case])
    check(problem, problem.run(selectors))
    moves = ".reg .b16 %h<4>; " + " ".join(f"mov.u16 %h{i}, {value};" for i, value in enumerate(selectors))
    check(problem, problem.run(selectors, "%h0 %h1 %h2 %h3", before=moves))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_hardware_sums_equal_the_model(case: Case) -> None:
    problem = Problem(case)
    operands = values(problem.a, case[2]), values(problem.b, case[3])
    expected = scaled_sums(operands, problem.c, (problem.sa, problem.sb), case)
    np.testing.assert_array_equal(problem.run(numerics="hardware"), expected)


@pytest.mark.parametrize("numerics", ["exact", "hardware"])
@pytest.mark.parametrize(("case", "nan"), [(0, 255), (5, 127)])
def test_a_scale_factor_of_nan_spoils_its_row(case: int, nan: int, numerics: str) -> None:
    problem = Problem(CASES[case])
    problem.sa[5, 0] = nan
    assert (np.isnan(problem.run(numerics=numerics)) == (np.arange(16) == 5)[:, None]).all()


@pytest.mark.parametrize(("a_type", "b_type"), [("e2m1", "e3m2"), ("e2m3", "e5m2"), ("e4m3", "e2m1")])
def test_narrow_types_without_scale_factors(a_type: str, b_type: str) -> None:
    random = np.random.default_rng(2)
    a, b = random_codes(random, (16, 32), a_type), random_codes(random, (8, 32), b_type)
    c = random.normal(size=(16, 8)).astype(np.float32)
    parts = fragments(container(a, a_type, False), container(b, b_type, False), c, "f32")
    opcode = f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a_type}.{b_type}.f32"
    left, right = values(a, a_type), values(b, b_type)
    exact = left @ right.T + c
    assert (np.abs(multiply(opcode, parts, "") - exact) <= 2.0**-24 * np.abs(exact) + 2.0**-30).all()
    modelled = steps(left, right, c, 32, (a_type, b_type, "f32"), 25)
    np.testing.assert_array_equal(multiply(opcode, parts, "", numerics="hardware"), modelled)
