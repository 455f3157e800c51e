"""The PTX of tcgen05: descriptors, CTA groups, registers, and errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.lang.ops.emission import emit, opcodes
from warpwright.errors import KernelError
from warpwright.lang import b32, bf16, e4m3, f16, f32, mbarrier, smem, st, tcgen05, tmem
from warpwright.layout import InstrDescriptor, SmemDescriptor, operand_addresses, swizzle


def allocated_tile(shape=(128, 128), dtype=f32, cta_group=1):
    acc = tmem.tile(dtype, shape, cta_group=cta_group)
    tmem.alloc()
    tmem.open()
    return acc


def mma_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("tcgen05.mma")]


def constants(lines: list[str]) -> list[int]:
    """Returns the 64-bit constants of the shared-memory descriptors, in order."""
    return [int(line.split()[-1], 16) for line in lines if line.startswith("add.u64") and "0x" in line]


def test_mma_of_a_pair_has_the_descriptors_of_the_whole_pair() -> None:
    def body(a, x, n):
        tile_a, tile_b = smem.tile(bf16, (128, 64), swizzle=128), smem.tile(bf16, (64, 64), swizzle=128)
        acc = allocated_tile(cta_group=2)
        tcgen05.mma(acc, tile_a[:, 16:32], tile_b[:, 16:32], accumulate=n > 0, cta_group=2)

    lines = emit(body, cluster=2)
    idesc = InstrDescriptor("f16", "bf16", "bf16", "f32", 256, 128).encode()
    (mma,) = mma_lines(lines)
    assert mma.startswith("tcgen05.mma.cta_group::2.kind::f16 [%r")
    assert f"0x{idesc:08x}, %p" in mma
    found_a, found_b = (SmemDescriptor.decode(value) for value in constants(lines))
    assert found_a == SmemDescriptor(1024 + 32, 16, 1024, 128)
    assert found_b == SmemDescriptor(1024 + 16384 + 32, 16, 1024, 128)


@pytest.mark.parametrize("span", [32, 64, 128])
@pytest.mark.parametrize("dtype", [f16, e4m3])
def test_descriptor_of_a_slice_reaches_the_elements_that_tma_wrote(span, dtype) -> None:
    columns, step = span // dtype.nbytes, 32 // dtype.nbytes

    def body(a, x, n):
        tile = smem.tile(dtype, (128, columns), swizzle=span)
        acc = allocated_tile()
        for k in range(0, columns, step):
            tcgen05.mma(acc, tile[:, k : k + step], tile[:, k : k + step], accumulate=k > 0)

    found = sorted(set(constants(emit(body))))
    rows = np.arange(128)[:, None]  # the tile starts at row 8, the period of its swizzle
    for k, value in zip(range(0, columns, step), found, strict=True):
        descriptor = SmemDescriptor.decode(value)
        column = np.arange(k, k + step)[None, :]
        written = swizzle(8 * span + rows * span + column * dtype.nbytes, span)
        np.testing.assert_array_equal(operand_addresses(descriptor, 128, step, dtype.nbytes), written)


def test_first_overwrites_then_accumulates() -> None:
    def body(a, x, n):
        tile = smem.tile(f16, (128, 64), swizzle=128)
        acc = allocated_tile()
        for k in range(0, 64, 16):
            tcgen05.mma(acc, tile[:, k : k + 16], tile[:, k : k + 16], accumulate=k > 0)

    assert [line[-1] for line in mma_lines(emit(body))] == ["0", "1", "1", "1"]


def test_kind_follows_from_the_types() -> None:
    def body(a, x, n):
        tile, acc = smem.tile(e4m3, (128, 128), swizzle=128), allocated_tile(dtype=f32)
        tcgen05.mma(acc, tile[:, :32], tile[:, :32], accumulate=False)

    (mma,) = mma_lines(emit(body))
    assert ".kind::f8f6f4 " in mma and f"0x{0x08200010:08x}" in mma


def test_commit_is_an_arrival_of_the_tensor_core() -> None:
    def body(a, x, n):
        bar = mbarrier()
        tcgen05.commit(bar, cta_group=2, multicast=0b11)
        tcgen05.commit(bar, cta_group=2)

    lines = [line for line in emit(body, cluster=2) if "commit" in line]
    assert lines == [
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r0], %rs0",
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%r0]",
    ]


def test_load_gives_each_warp_its_quarter_and_the_type_of_the_tile() -> None:
    def body(a, x, n):
        acc = allocated_tile()
        values = tcgen05.ld(acc[:, 32:64])
        tcgen05.wait_ld()
        st(x, *values[:4])
        assert len(values) == 32 and values[0].type is f32

    lines = emit(body)
    load = next(line for line in lines if line.startswith("tcgen05.ld"))
    assert load.startswith("tcgen05.ld.sync.aligned.32x32b.x32.b32 {%f0, %f1,") and load.endswith("+32]")
    assert any(line.startswith("and.b32") and line.endswith(str(0x600000)) for line in lines)


@pytest.mark.parametrize(("shape", "registers"), [("32x32b", 16), ("16x64b", 8), ("16x128b", 8), ("16x256b", 8)])
def test_registers_of_every_shape(shape, registers) -> None:
    def body(a, x, n):
        acc = allocated_tile((128, 16))
        values = tcgen05.ld(acc, shape)
        tcgen05.wait_ld()
        tcgen05.st(acc, values, shape)
        tcgen05.wait_st()
        assert len(values) == registers

    found = [code for code in opcodes(emit(body)) if code.startswith(("tcgen05.ld", "tcgen05.st", "tcgen05.wait"))]
    repeat = 16 // {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8}[shape]
    assert found == [
        f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32",
        "tcgen05.wait::ld.sync.aligned",
        f"tcgen05.st.sync.aligned.{shape}.x{repeat}.b32",
        "tcgen05.wait::st.sync.aligned",
    ]


def test_the_second_half_of_a_quarter_begins_16_lanes_later() -> None:
    def body(a, x, n):
        acc = allocated_tile((128, 16))
        for half in (0, 1):
            tcgen05.ld(acc[:, 8:], "16x256b", half=half)

    loads = [line for line in emit(body) if line.startswith("tcgen05.ld")]
    assert [line.split("+")[1] for line in loads] == ["8]", f"{(16 << 16) + 8}]"]


def test_raw_addresses_copies_and_fences() -> None:
    def body(a, x, n):
        tcgen05.fence_before_thread_sync()
        tcgen05.fence_after_thread_sync()
        words = tcgen05.ld(n, "32x32b", num=2)
        assert [word.type for word in words] == [b32, b32]
        tcgen05.cp(n, x.address, "32x128b.warpx4")
        tcgen05.shift(n)
        tcgen05.relinquish_alloc_permit()

    assert emit(body)[0:3] == [
        "tcgen05.fence::before_thread_sync",
        "tcgen05.fence::after_thread_sync",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r0]",
    ]


def slices(rows_a=128, rows_b=128, dtype_a=bf16, dtype_b=bf16, k=16, span=128):
    a, b = (smem.tile(dtype, (rows, 64), swizzle=span) for dtype, rows in ((dtype_a, rows_a), (dtype_b, rows_b)))
    return a[:, :k], b[:, :k]


def mma(acc_shape=(128, 128), cta_group=1, **given):
    a, b = slices(**given)
    tcgen05.mma(allocated_tile(acc_shape, cta_group=cta_group), a, b, accumulate=False, cta_group=cta_group)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: mma(dtype_b=f16),
            "given a_type='bf16' and b_type='f16'; expected the same type with kind::f16",
        ),
        (
            lambda: mma(dtype_a=f32, dtype_b=f32, k=8, span=0),
            "given a of 8 columns of f32 with swizzle 0; expected 8 columns (32 bytes of K) of a swizzled tile: "
            "tile[:, k:k + 8]",
        ),
        (
            lambda: mma(k=32),
            "given a of 32 columns of bf16 with swizzle 128; expected 16 columns (32 bytes of K) of a swizzled tile: "
            "tile[:, k:k + 16]",
        ),
        (
            lambda: mma((64, 128), rows_a=64, rows_b=64, cta_group=1),
            "given d (64, 128) for a (64, 16) and b (64, 16) with cta_group=1; expected d of (64, 64): the rows of a, "
            "and 1 × the rows of b",
        ),
        (
            lambda: mma((32, 128), rows_a=32),
            "given M=32 for tcgen05.mma kind::f16 cta_group::1; expected one of 64, 128",
        ),
        (
            lambda: mma((128, 24), rows_b=12, cta_group=2),
            "given N=24 for tcgen05.mma kind::f16 cta_group::2; expected one of "
            "16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256",
        ),
        (
            lambda: (tcgen05.relinquish_alloc_permit(), tcgen05.commit(mbarrier(), cta_group=2)),
            "given cta_group=2 in a kernel that uses cta_group=1; expected one cta_group in every tcgen05 instruction "
            "of a kernel",
        ),
        (
            lambda: tcgen05.commit(mbarrier(), cta_group=4),
            "given cta_group=4; expected 1 or 2",
        ),
        (
            lambda: tcgen05.ld(allocated_tile((128, 48))),
            "given a tile of 48 columns to tcgen05.ld 32x32b; expected 1 columns times a power of two, "
            "at most 128 times",
        ),
        (
            lambda: tcgen05.ld(allocated_tile(), "8x8"),
            "given shape '8x8' to tcgen05.ld; expected one of 32x32b, 16x64b, 16x128b, 16x256b",
        ),
        (
            lambda: tcgen05.ld(allocated_tile(), half=1),
            "given tcgen05.ld of shape 32x32b with half=1; expected half=0 or 1, of a tile, with a shape of 16 lanes; "
            "add 16 << 16 to a raw address",
        ),
        (
            lambda: tcgen05.st(allocated_tile(), [], "16x64b", half=2),
            "given tcgen05.st of shape 16x64b with half=2; expected half=0 or 1, of a tile, with a shape of 16 lanes; "
            "add 16 << 16 to a raw address",
        ),
        (
            lambda: tcgen05.st(allocated_tile((128, 32)), []),
            "given 0 registers to tcgen05.st 32x32b.x32; expected 32",
        ),
    ],
)
def test_misuse_is_named(call, sentence) -> None:
    with pytest.raises(KernelError) as caught:
        emit(lambda a, x, n: call(), cluster=2)
    assert str(caught.value) == f"{caught.value.where}: {sentence}"


def test_hopper_has_no_tensor_memory() -> None:
    with pytest.raises(KernelError, match=r"tcgen05.commit needs sm_100a.*traced for sm_90a"):
        emit(lambda a, x, n: tcgen05.commit(mbarrier()), arch="sm_90a")


def test_descriptor_address_is_computed_once_for_all_slices() -> None:
    def body(a, x, n):
        mma_tile = smem.tile(bf16, (128, 64), swizzle=128)
        acc = allocated_tile()
        for k in range(0, 64, 16):
            tcgen05.mma(acc, mma_tile[:, k : k + 16], mma_tile[:, k : k + 16], accumulate=k > 0)

    assert opcodes(emit(body)).count("bfe.u32") == 1


def test_descriptor_of_a_transposed_tile_reaches_the_elements_that_tma_wrote() -> None:
    """B (128, 16) of a tile (64, 128) is two panels of 64 columns; the instruction descriptor says B is MN-major."""

    def body(a, x, n):
        tile_a, tile_b = smem.tile(bf16, (128, 64), swizzle=128), smem.tile(bf16, (64, 128), swizzle=128)
        tcgen05.mma(allocated_tile(), tile_a[:, 0:16], tile_b[16:32, :].T, accumulate=True)

    lines = emit(body)
    (mma,) = mma_lines(lines)
    assert f"0x{InstrDescriptor('f16', 'bf16', 'bf16', 'f32', 128, 128, b_major='mn').encode():08x}" in mma
    descriptor = SmemDescriptor.decode(constants(lines)[1])
    columns, k = np.arange(128)[:, None], np.arange(16)[None]
    linear = columns // 64 * 64 * 128 + (16 + k) * 128 + columns % 64 * 2
    found = operand_addresses(descriptor, 128, 16, 2, major="mn")
    assert np.array_equal(found, swizzle(1024 + 128 * 64 * 2 + linear, 128))


def test_a_in_tensor_memory_is_packed_two_to_a_column() -> None:
    def body(a, x, n):
        tile_b = smem.tile(f16, (64, 64), swizzle=128)
        weights, acc = tmem.tile(f32, (128, 32)), tmem.tile(f32, (128, 64))
        tmem.alloc()
        tmem.open()
        tcgen05.mma(acc, weights.packed(f16)[:, 16:32], tile_b[:, 0:16], accumulate=n > 0)

    (mma,) = mma_lines(emit(body))
    assert re.match(r"tcgen05.mma.cta_group::1.kind::f16 \[(%r\d+)\+32\], \[\1\+8\], %rd", mma)


@pytest.mark.parametrize(
    ("operands", "sentence"),
    [
        (
            lambda w, b: (w, b[:, 0:16]),
            "given a of 16 columns of tensor memory; expected 16 columns (32 bytes of K) of a packed tile: "
            "tile.packed(f16)[:, k:k + 16]",
        ),
        (
            lambda w, b: (w.packed(f16)[:, 0:16], b[0:32, :].T),
            "given b of 32 columns of f16 with swizzle 128; expected 16 columns (32 bytes of K) of a swizzled tile: "
            "tile[k:k + 16, :].T",
        ),
        (
            lambda w, b: (w.packed(f16)[:, 1:17], b[:, 0:16]),
            "given tile[:, 1:17] with 2 elements in each column; expected whole columns: multiples of 2",
        ),
    ],
)
def test_bad_operands_are_errors(operands, sentence) -> None:
    def body(a, x, n):
        tile_b, weights = smem.tile(f16, (64, 64), swizzle=128), tmem.tile(f16, (128, 16))
        acc = tmem.tile(f32, (128, 64))
        tmem.alloc()
        tmem.open()
        tcgen05.mma(acc, *operands(weights, tile_b), accumulate=True)

    with pytest.raises(KernelError) as error:
        emit(body)
    assert str(error.value).partition(": ")[2] == sentence
