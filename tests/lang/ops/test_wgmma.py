"""The PTX of wgmma: opcodes, descriptors, registers, advice of ptxas, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lang.ops.emission import emit, opcodes, text
from warpwright.errors import KernelError
from warpwright.lang import (
    Global,
    If,
    Ring,
    bar,
    bf16,
    e4m3,
    e5m2,
    f16,
    f16x2,
    f32,
    kernel,
    loop,
    role,
    s8,
    s32,
    setmaxnreg,
    shfl,
    smem,
    tf32,
    tid,
    tma,
    u8,
    u32,
    warp,
    wgmma,
)
from warpwright.layout import SmemDescriptor, operand_addresses, swizzle
from warpwright.ptx.ptxas import assemble


def lines_of(body) -> list[str]:
    return emit(body, arch="sm_90a")


def mma_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("wgmma.mma_async")]


def tails(lines: list[str]) -> list[str]:
    """Returns the operands after the descriptors: scale-d and the immediates."""
    return [line.rpartition("%rd")[2].partition(", ")[2] for line in mma_lines(lines)]


def descriptors(lines: list[str]) -> list[SmemDescriptor]:
    """Returns the descriptors relative to the start of shared memory, in order of their first use."""
    lows = {line.split()[1].rstrip(","): line.split()[-1] for line in lines if line.startswith("add.u32")}
    found = []
    for line in lines:
        if line.startswith("mov.b64") and "{%r" in line:
            low, high = line.partition("{")[2].rstrip("}").split(", ")
            found.append(SmemDescriptor.decode(int(high, 16) << 32 | int(lows[low], 16), "sm_90a"))
    return found


def test_one_group_of_mma() -> None:
    def body(a, x, n):
        tile_a, tile_b = smem.tile(bf16, (64, 64), swizzle=128), smem.tile(bf16, (8, 64), swizzle=128)
        acc = wgmma.accumulator(f32, (64, 8))
        wgmma.fence()
        for k in range(0, 64, 16):
            wgmma.mma(acc, tile_a[:, k : k + 16], tile_b[:, k : k + 16], accumulate=(n > 0) | (k > 0))
        wgmma.commit_group()
        wgmma.wait_group(1)

    lines = lines_of(body)
    assert [code for code in opcodes(lines) if code.startswith("wgmma")] == [
        "wgmma.fence.sync.aligned",
        *["wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"] * 4,
        "wgmma.commit_group.sync.aligned",
        "wgmma.wait_group.sync.aligned",
    ]
    assert {line.partition("{")[2].partition("}")[0] for line in mma_lines(lines)} == {"%f0, %f1, %f2, %f3"}
    assert tails(lines) == ["%p0, 1, 1, 0, 0", *["1, 1, 1, 0, 0"] * 3]
    assert sum(code == "bfe.u32" for code in opcodes(lines)) == 1


TYPES = [
    (f32, bf16, bf16, 256, "m64n256k16.f32.bf16.bf16", "0, 1, 1, 0, 0"),
    (f32, f16, f16, 40, "m64n40k16.f32.f16.f16", "0, 1, 1, 0, 0"),
    (f16, f16, f16, 16, "m64n16k16.f16.f16.f16", "0, 1, 1, 0, 0"),
    (f32, tf32, tf32, 8, "m64n8k8.f32.tf32.tf32", "0, 1, 1"),
    (f32, e4m3, e5m2, 24, "m64n24k32.f32.e4m3.e5m2", "0, 1, 1"),
    (f16, e5m2, e5m2, 8, "m64n8k32.f16.e5m2.e5m2", "0, 1, 1"),
    (s32, s8, u8, 48, "m64n48k32.s32.s8.u8", "0"),
]


@pytest.mark.parametrize(("d", "a", "b", "n", "opcode", "tail"), TYPES, ids=lambda value: getattr(value, "name", None))
def test_every_kind_of_mma_from_memory_and_from_registers(d, a, b, n, opcode, tail) -> None:
    k = 32 // a.nbytes

    def body(tensor, x, count):
        tile_a, tile_b = smem.tile(a, (64, 4 * k), swizzle=128), smem.tile(b, (n, 4 * k), swizzle=128)
        acc = wgmma.accumulator(d, (64, n))
        wgmma.fence()
        wgmma.mma(acc, tile_a[:, k : 2 * k], tile_b[:, :k], accumulate=False)
        wgmma.mma(acc, wgmma.left(a, [count] * 4), tile_b[:, :k], accumulate=False)
        assert len(acc.regs) == (n // 4 if d is f16 else n // 2)
        assert acc.regs[0].type is {f16: f16x2}.get(d, d)

    memory, registers = mma_lines(lines_of(body))
    assert memory.startswith(f"wgmma.mma_async.sync.aligned.{opcode} {{") and registers.startswith(memory[:40])
    assert "}, {%r0, %r0, %r0, %r0}, %rd" in registers
    assert memory.endswith(f", {tail}") and registers.endswith(
        f", {tail.removesuffix(', 0') if a.bits == 16 else tail}"
    )


def test_signs_saturation_and_a_run_time_predicate() -> None:
    def body(a, x, n):
        floats, bytes_ = smem.tile(f16, (64, 64), swizzle=128), smem.tile(s8, (64, 128), swizzle=128)
        sums, counts = wgmma.accumulator(f32, (64, 64)), wgmma.accumulator(s32, (64, 64))
        wgmma.fence()
        wgmma.mma(sums, floats[:, :16], floats[:, :16], accumulate=n == 0, negate_a=True)
        wgmma.mma(sums, floats[:, :16], floats[:, :16], accumulate=~(n == 0), negate_b=True)
        wgmma.mma(counts, bytes_[:, :32], bytes_[:, :32], accumulate=True, satfinite=True)

    lines = lines_of(body)
    assert tails(lines) == ["%p0, -1, 1, 0, 0", "%p1, 1, -1, 0, 0", "1"]
    assert "not.pred %p1, %p0" in lines
    assert ".s32.s8.s8.satfinite {" in mma_lines(lines)[2]


@pytest.mark.parametrize("span", [32, 64, 128])
@pytest.mark.parametrize("dtype", [bf16, e4m3])
def test_descriptor_of_rows_along_m_reaches_the_elements_that_tma_wrote(span, dtype) -> None:
    columns, step = span // dtype.nbytes, 32 // dtype.nbytes

    def body(a, x, n):
        tile, acc = smem.tile(dtype, (192, columns), swizzle=span), wgmma.accumulator(f32, (64, 64))
        for k in range(0, columns, step):
            part = tile[64:128, k : k + step]
            wgmma.mma(acc, part, part, accumulate=True)

    rows = np.arange(64, 128)[:, None]
    starts = range(0, columns, step)
    for k, descriptor in zip(starts, descriptors(lines_of(body)), strict=True):
        column = np.arange(k, k + step)[None, :]
        written = swizzle(rows * span + column * dtype.nbytes, span)
        np.testing.assert_array_equal(operand_addresses(descriptor, 64, step, dtype.nbytes), written)


@pytest.mark.parametrize("span", [32, 64, 128])
def test_descriptor_of_rows_along_k_reaches_the_elements_that_tma_wrote(span) -> None:
    panel = span // 2

    def body(a, x, n):
        tile, acc = smem.tile(f16, (48, 128), swizzle=span), wgmma.accumulator(f32, (64, 64))
        for k in range(0, 48, 16):
            wgmma.mma(acc, tile[k : k + 16, 64:].T, tile.T[64:, k : k + 16], accumulate=True)

    lines = lines_of(body)
    assert tails(lines) == ["1, 1, 1, 1, 1"] * 3
    column = np.arange(64, 128)[:, None]
    for k, descriptor in zip(range(0, 48, 16), descriptors(lines), strict=True):
        row = np.arange(k, k + 16)[None, :]
        written = swizzle(column // panel * (48 * span) + row * span + column % panel * 2, span)
        np.testing.assert_array_equal(operand_addresses(descriptor, 64, 16, 2, "mn"), written)


def test_a_transposed_tile_is_a_view() -> None:
    def body(a, x, n):
        tile = smem.tile(f16, (48, 128), swizzle=128)
        assert tile.T.shape == (128, 48) and tile.T.T is tile and tile.T.dtype is f16
        part = tile.T[64:128, 16:32]
        assert part.shape == (64, 16) and (part.tile.row, part.tile.column) == (16, 64)

    lines_of(body)


@kernel("sm_90a", threads=384)
def main_loop(a: tma.Map[bf16], b: tma.Map[bf16], d: Global[f32], tiles_k: u32, *, fixed: bool = True) -> None:
    """A producer and two consumer warpgroups: an output tile of 128 × 256, K in steps of 64."""
    tiles = {"a": smem.tile(bf16, (128, 64), swizzle=128), "b": smem.tile(bf16, (256, 64), swizzle=128)}
    ring = Ring(4, full=1, empty=2, **tiles)

    @role(warp=0, elect=True)
    def init() -> None:
        ring.init()

    bar.sync()

    @role(warps=range(4))
    def spare() -> None:
        if fixed:
            setmaxnreg.dec(40)

    @role(warp=0, elect=True)
    def load() -> None:
        slots = ring.producer()
        for k in loop(tiles_k):
            slot = next(slots)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            tma.load(slot.a, a[0, k * 64], slot.full)
            tma.load(slot.b, b[0, k * 64], slot.full)

    @role(warps=range(4, 12))
    def multiply() -> None:
        if fixed:
            setmaxnreg.inc(232)
        half = shfl.idx(warp.id // 4 - 1, 0)
        acc, slots = wgmma.accumulator(f32, (64, 256)), ring.consumer()
        for k in loop(tiles_k):
            slot = next(slots)
            slot.full.wait()
            base, start = slot.a.place.known()
            strip = slot.a[:64, :].placed(base + half * (64 * 128), start)
            wgmma.fence()
            for kk in range(0, 64, 16):
                wgmma.mma(acc, strip[:, kk : kk + 16], slot.b[:, kk : kk + 16], accumulate=(k > 0) | (kk > 0))
            wgmma.commit_group()
            wgmma.wait_group(0)
            with If(tid.x % 128 == 0):
                slot.empty.arrive()
        for v, register in enumerate(acc.regs):
            row, column = acc.at(v)
            d[(half * 64 + row) * 256 + column] = register


def test_ptxas_neither_serialises_nor_spills_a_main_loop() -> None:
    """ptxas gives no C75xx advice (serialised, waits inserted, setmaxnreg ignored), no spills, and 168 registers."""
    result = assemble(main_loop.ptx(), "sm_90a", "-v")
    assert result.ok
    assert "C75" not in result.log and "warning" not in result.log
    assert "0 bytes spill stores, 0 bytes spill loads" in result.log
    assert (
        "Used 168 registers" in result.log
    )  # 65536 / 384 rounded down to a multiple of 8, which setmaxnreg redistributes


def test_setmaxnreg_fixes_the_registers_at_launch() -> None:
    """Without the directive ptxas ignores setmaxnreg in a small CTA (advice C7508)."""
    assert ".reqntid 384, 1, 1\n.minnctapersm 1\n{" in main_loop.ptx()
    assert ".minnctapersm" not in main_loop.ptx(fixed=False)
    small = text(lambda a, x, n: setmaxnreg.dec(40), arch="sm_90a")
    assert assemble(small, "sm_90a").log == ""
    assert "C7508" in assemble(small.replace(".minnctapersm 1", ""), "sm_90a").log


def test_setmaxnreg_is_one_instruction() -> None:
    def body(a, x, n):
        setmaxnreg.dec(24)
        setmaxnreg.inc(256)

    assert lines_of(body) == ["setmaxnreg.dec.sync.aligned.u32 24", "setmaxnreg.inc.sync.aligned.u32 256"]


def multiply(d=f32, a=bf16, b=bf16, n=64, rows=64, k=None, span=128, trans=False, **options):
    step = k or 32 // a.nbytes
    tile_a, tile_b = smem.tile(a, (rows, 128), swizzle=span), smem.tile(b, (n, 128), swizzle=span)
    part = smem.tile(a, (step, 128), swizzle=span)[:, :64].T if trans else tile_a[:, :step]
    wgmma.mma(wgmma.accumulator(d, (64, 64)), part, tile_b[:, :step], accumulate=True, **options)


MISUSES = [
    (
        lambda n: wgmma.accumulator(f32, (64, 12)),
        "given a wgmma accumulator of f32 (64, 12); expected (64, n) with n a multiple of 8 up to 256",
    ),
    (
        lambda n: wgmma.accumulator(f32, (128, 128)),
        "given a wgmma accumulator of f32 (128, 128); expected (64, n) with n a multiple of 8 up to 256",
    ),
    (
        lambda n: wgmma.accumulator(s32, (64, 40)),
        "given a wgmma accumulator of s32 (64, 40); expected (64, n) with n 8, 16, 24, 32 or a multiple of 16 up to "
        "256",
    ),
    (
        lambda n: wgmma.accumulator(bf16, (64, 64)),
        "given a wgmma accumulator of bf16; expected f32, f16 or s32",
    ),
    (
        lambda n: wgmma.accumulator(f32, (64, 8)).at(4),
        "given element 4 of a fragment (64, 8); expected 0 to 3",
    ),
    (
        lambda n: multiply(b=f16),
        "given a of bf16, b of f16 and sums of f32 to wgmma.mma; expected for a of bf16: b of bf16, sums of f32",
    ),
    (
        lambda n: multiply(d=f16),
        "given a of bf16, b of bf16 and sums of f16 to wgmma.mma; expected for a of bf16: b of bf16, sums of f32",
    ),
    (
        lambda n: multiply(a=s8, b=u8),
        "given a of s8, b of u8 and sums of f32 to wgmma.mma; expected for a of s8: b of s8 or u8, sums of s32",
    ),
    (
        lambda n: multiply(a=f32, b=f32),
        "given a of f32 to wgmma.mma; expected one of f16, bf16, tf32, e4m3, e5m2, s8, u8",
    ),
    (
        lambda n: multiply(rows=128),
        "given a (128, 16) of bf16 to wgmma.mma with an accumulator (64, 64); expected (64, 16): K is 32 bytes, "
        "tile[:, kk : kk + 16]",
    ),
    (
        lambda n: multiply(n=128),
        "given b (128, 16) of bf16 to wgmma.mma with an accumulator (64, 64); expected (64, 16): K is 32 bytes, "
        "tile[:, kk : kk + 16]",
    ),
    (
        lambda n: multiply(k=64),
        "given a (64, 64) of bf16 to wgmma.mma with an accumulator (64, 64); expected (64, 16): K is 32 bytes, "
        "tile[:, kk : kk + 16]",
    ),
    (
        lambda n: multiply(span=0),
        "given a of a tile without a swizzle to wgmma.mma; expected smem.tile(…, swizzle=128), or 64 or 32 for "
        "narrower rows",
    ),
    (
        lambda n: multiply(a=e4m3, b=e4m3, trans=True),
        "given a transposed a of e4m3 to wgmma.mma; expected rows along M or N, K contiguous: only 16-bit types may be "
        "transposed",
    ),
    (
        lambda n: multiply(d=s32, a=s8, b=s8, negate_a=True),
        "given negate_a or negate_b for integers; expected floating-point matrices",
    ),
    (
        lambda n: multiply(satfinite=True),
        "given satfinite=True for sums of f32; expected an accumulator of s32",
    ),
    (
        lambda n: wgmma.left(f32, [n] * 4),
        "given A of f32 in registers; expected one of f16, bf16, tf32, e4m3, e5m2, s8, u8",
    ),
    (
        lambda n: wgmma.left(bf16, [n] * 2),
        "given 2 registers for A of wgmma in bf16; expected 4",
    ),
    (
        lambda n: wgmma.left(bf16, [0] * 4),
        "given 0 as a register of A of wgmma in bf16; expected a run-time value of 32 bits: pack narrower elements, "
        "as in pack(bf16x2, lo, hi)",
    ),
    (
        lambda n: wgmma.wait_group(8),
        "given wgmma.wait_group(8); expected a Python int from 0 to 7",
    ),
    (
        lambda n: setmaxnreg.inc(100),
        "given setmaxnreg.inc(100); expected a multiple of 8 registers from 24 to 256",
    ),
    (
        lambda n: setmaxnreg.dec(16),
        "given setmaxnreg.dec(16); expected a multiple of 8 registers from 24 to 256",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), MISUSES, ids=lambda value: value[:50] if isinstance(value, str) else "")
def test_misuse_is_named(call, sentence) -> None:
    with pytest.raises(KernelError) as caught:
        lines_of(lambda a, x, n: call(n))
    assert str(caught.value).endswith(f": {sentence}")


def test_another_target_is_an_error_that_names_hopper() -> None:
    with pytest.raises(KernelError) as caught:
        emit(lambda a, x, n: wgmma.fence(), arch="sm_100a")
    assert str(caught.value).endswith(
        ": wgmma.fence needs sm_90a; this kernel is traced for sm_100a: trace it for a target that has it, or write "
        "this step with instructions that sm_100a has"
    )
