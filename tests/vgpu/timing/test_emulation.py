"""mma.sync in time: instructions between them, and those that ptxas adds where tensor cores lack 8-bit floats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text
from warpwright import ptx, targets
from warpwright.kernels.gemm import sm120
from warpwright.lang import Global, If, b32, bf16, cvt, e4m3, f32, fma, kernel, loop, mma, tid, var
from warpwright.vgpu.program.decode import decode
from warpwright.vgpu.timing import steps
from warpwright.vgpu.timing.emulation import count_emulation

E4M3 = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"
A = "{%r0, %r1, %r2, %r3}"


def multiply(b: int, d: int, name: str = E4M3) -> str:
    sums = "{" + ", ".join(f"%f{d + i}" for i in range(4)) + "}"
    return f"{name} {sums}, {A}, {{%r{b}, %r{b + 1}}}, {sums};"


def counts(body: str) -> list[tuple[int, int]]:
    return list(count_emulation(decode(ptx.parse(text(body)), "k")).values())


def test_a_register_is_converted_once_until_it_is_written() -> None:
    body = multiply(4, 0) + multiply(6, 4) + multiply(4, 8) + "mov.u32 %r0, 1;" + multiply(4, 12)
    assert counts(body) == [(12, 4), (4, 4), (0, 4), (2, 4)]


def test_behind_a_label_registers_are_converted_again() -> None:
    assert counts(f"{multiply(4, 0)} NEXT: {multiply(4, 4)}") == [(12, 4), (12, 4)]


def test_16_bit_floats_are_not_converted() -> None:
    assert counts(multiply(4, 0, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")) == []


def test_the_counts_are_those_of_ptxas_for_a_block_of_k() -> None:
    """SASS of ptxas 13.0 for sm_90a has 224 F2FP and 320 FADD for the 80 MMAs of 128 bytes of K."""
    kernel = sm120.kernel_of(sm120.LEVELS[8]).trace("sm_90a", dtype=e4m3, b_dtype=e4m3)
    found = count_emulation(decode(ptx.parse(kernel.ptx), kernel.entry)).values()
    assert (len(found), *map(sum, zip(*found, strict=True))) == (80, 224, 320)


@pytest.mark.parametrize(("device", "slower"), [("h200", True), ("rtx5090", False)])
def test_the_time_has_them_where_tensor_cores_lack_the_type(
    monkeypatch: pytest.MonkeyPatch, device: str, slower: bool
) -> None:
    a, b = (np.zeros((128, 256), ml_dtypes.float8_e4m3fn) for _ in range(2))
    (launch,) = ww.launches(ww.matmul, a, b.T, level=sm120.LEVELS[1], device=device)
    with_emulation = ww.profile(launch.kernel, launch.grid, args=launch.args, device=device).cycles
    monkeypatch.setattr(steps, "count_emulation", lambda program: {})
    without = ww.profile(launch.kernel, launch.grid, args=launch.args, device=device).cycles
    assert with_emulation > 1.2 * without if slower else with_emulation == without


@kernel(threads=512)
def multiply_and_add(out: Global[f32], *, steps=0):
    words = [(tid.x + i).bitcast(b32) for i in range(6)]
    sums, values = [mma.accumulator(f32) for _ in range(8)], [var(f32, 1.0) for _ in range(8)]
    for _ in loop(32):
        for each in sums:
            mma.sync(each, mma.left(bf16, words[:4]), mma.right(bf16, words[4:]))
            for value in values[:steps]:
                value.set(fma(value, 0.5, 1.0))
    with If(sum((each.regs[0] for each in sums), sum(values, cvt(0.0, f32))) == 12345.0):
        out[0] = 1.0


@pytest.mark.parametrize(("device", "least", "most"), [("h200", 8.2, 8.6), ("rtx5090", 0.0, 1.0)])
def test_instructions_between_mma_sync_delay_it(device: str, least: float, most: float) -> None:
    """Four warps a scheduler: on an H200 eight FMA after each mma.sync add 8.4 cycles."""
    cycles = []
    for count in (0, 8):
        traced = multiply_and_add.trace(targets.device(device).arch, steps=count)
        cycles.append(ww.profile(traced, 1, args=[np.zeros(1, np.float32)], device=device).cycles)
    assert least <= (cycles[1] - cycles[0]) / (32 * 8 * 4) <= most
