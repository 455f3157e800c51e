"""tcgen05.mma: every layout, type and modifier against float64, with operands written element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vgpu.engines.fabric import MAP_AT, MBAR, Cluster, operation
from tests.vgpu.engines.operands import DTYPES, cells, operand_strides, small_integers, wide, write_operand
from warpwright.layout import ATOM_32B, InstrDescriptor, SmemDescriptor
from warpwright.layout.tensor_map import TensorMap
from warpwright.vgpu.engines import copy, tensor

A_AT, B_AT = 4096, 32768
COLUMN = 64


def matrices(kind: str, a: str, b: str, m: int, n: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    random, k = np.random.default_rng(seed), InstrDescriptor(kind, a, b, "f32", m, n).k
    return small_integers(random, (m, k), a), small_integers(random, (n, k), b)


def place_shares(
    cluster: Cluster, at: int, matrix: NDArray[Any], group: int, major: str = "k", mode: int | str = 128
) -> int:
    """Write each CTA's share of the rows to its own shared memory, at the same offset."""
    rows = len(matrix) // group
    lbo, sbo, _ = operand_strides(rows, matrix.dtype.itemsize, matrix.shape[1], major, mode)
    shares = enumerate(matrix.reshape(group, rows, -1))
    descriptors = [write_operand(cluster, rank, at, share, major, mode, lbo, sbo) for rank, share in shares]
    return descriptors[0]


def exact(matrix: NDArray[Any]) -> NDArray[np.float64]:
    return matrix.astype(np.float32).astype(np.float64)


def result(cluster: Cluster, m: int, group: int, n: int, dtype: Any = np.float32, **layout: bool) -> NDArray[Any]:
    found = cluster.tmem[cells(m, group, n, COLUMN, **layout)]
    values = found.astype(np.uint16).view(np.float16) if dtype is np.float16 else found.view(dtype)
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)


def multiply(
    cluster: Cluster, a: NDArray[Any], b: NDArray[Any], desc: InstrDescriptor, group: int, *, enable: int = 0,
    modes: tuple[int | str, int | str] = (128, 128), suffix: str = "", tail: tuple[int, ...] = (), lane: int = 0,
    masks: tuple[int, ...] = (), ws: str = "",
) -> None:  # fmt: skip
    words = (
        lane << 16 | COLUMN,
        place_shares(cluster, A_AT, a, group, desc.a_major, modes[0]),
        place_shares(cluster, B_AT, b, group, desc.b_major, modes[1]),
        desc.encode(),
        *masks,
        enable,
        *tail,
    )
    tensor.complete(cluster, [operation(f"tcgen05.mma{ws}.cta_group::{group}.kind::{desc.kind}{suffix}", *words)])


SHAPES = [(128, 1, 64), (64, 1, 24), (256, 2, 48), (128, 2, 32)]


@pytest.mark.parametrize(("m", "group", "n"), SHAPES)
@pytest.mark.parametrize("mode", [0, 32, 64, 128])
@pytest.mark.parametrize(("a_major", "b_major"), [("k", "k"), ("mn", "k"), ("k", "mn"), ("mn", "mn")])
def test_mma_reads_every_layout_swizzle_and_major(
    m: int, group: int, n: int, mode: int, a_major: str, b_major: str
) -> None:
    cluster = Cluster(group)
    a, b = matrices("f16", "bf16", "bf16", m, n)
    before = cluster.tmem.copy()
    desc = InstrDescriptor("f16", "bf16", "bf16", "f32", m, n, a_major, b_major)
    multiply(
        cluster, a, b, desc, group, modes=(mode, mode if n // group * 2 % (mode or 16) == 0 or b_major == "k" else 0)
    )
    np.testing.assert_array_equal(result(cluster, m, group, n), exact(a) @ exact(b).T)
    before[cells(m, group, n, COLUMN)] = cluster.tmem[cells(m, group, n, COLUMN)]
    np.testing.assert_array_equal(cluster.tmem, before)


@pytest.mark.parametrize(
    ("kind", "a_type", "b_type", "d_type"),
    [
        ("f16", "f16", "f16", "f32"), ("f16", "f16", "f16", "f16"), ("tf32", "tf32", "tf32", "f32"),
        ("f8f6f4", "e4m3", "e4m3", "f32"), ("f8f6f4", "e5m2", "e4m3", "f32"), ("f8f6f4", "e4m3", "e5m2", "f16"),
        ("i8", "u8", "s8", "s32"), ("i8", "s8", "s8", "s32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("major", ["k", "mn"])
def test_mma_multiplies_every_type(kind: str, a_type: str, b_type: str, d_type: str, major: str) -> None:
    cluster = Cluster(2)
    a, b = matrices(kind, a_type, b_type, 256, 64)
    mode = ATOM_32B if kind == "tf32" and major == "mn" else 32
    desc = InstrDescriptor(kind, a_type, b_type, d_type, 256, 64, major, major)
    multiply(cluster, a, b, desc, 2, modes=(mode, mode))
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d_type]
    np.testing.assert_array_equal(result(cluster, 256, 2, 64, dtype), exact(a) @ exact(b).T)


@pytest.mark.parametrize("type", ["f16", "bf16"])
def test_mma_sums_wide_data_in_single_precision(type: str) -> None:
    cluster, random = Cluster(), np.random.default_rng(9)
    a, b = wide(random, (128, 16), type), wide(random, (96, 16), type)
    d = random.normal(size=(128, 96)).astype(np.float32)
    cluster.tmem[cells(128, 1, 96, COLUMN)] = d.view(np.int32)
    multiply(cluster, a, b, InstrDescriptor("f16", type, type, "f32", 128, 96), 1, enable=1)
    expected = exact(a) @ exact(b).T + d
    bound = 2.0**-20 * (np.abs(exact(a)) @ np.abs(exact(b)).T + np.abs(d))
    assert (np.abs(result(cluster, 128, 1, 96) - expected) <= bound).all()


def test_mma_keeps_subnormal_products() -> None:
    cluster = Cluster()
    a, b = np.zeros((128, 16), DTYPES["bf16"]), np.zeros((8, 16), DTYPES["bf16"])
    a[:, 3], b[:, 3] = 2.0**-130, 2.0**10
    multiply(cluster, a, b, InstrDescriptor("f16", "bf16", "bf16", "f32", 128, 8), 1)
    np.testing.assert_array_equal(result(cluster, 128, 1, 8), 2.0**-120)


def test_tf32_ignores_the_low_13_bits() -> None:
    cluster = Cluster()
    a, b = np.full((128, 8), 1 + 2.0**-10 + 2.0**-11, np.float32), np.eye(8, dtype=np.float32)
    multiply(cluster, a, b, InstrDescriptor("tf32", "tf32", "tf32", "f32", 128, 8), 1, modes=(32, 32))
    np.testing.assert_array_equal(result(cluster, 128, 1, 8), 1 + 2.0**-10)


def test_f16_accumulators_are_rounded_once_an_instruction() -> None:
    cluster, random = Cluster(), np.random.default_rng(2)
    a, b = random.normal(size=(128, 16)).astype(np.float16), random.normal(size=(16, 16)).astype(np.float16)
    desc = InstrDescriptor("f16", "f16", "f16", "f16", 128, 16)
    words = place_shares(cluster, A_AT, a, 1), place_shares(cluster, B_AT, b, 1), desc.encode()
    ops = [operation("tcgen05.mma.cta_group::1.kind::f16", COLUMN, *words, enable) for enable in (0, 1, 1)]
    tensor.complete(cluster, ops)
    once, expected = exact(a) @ exact(b).T, np.zeros((128, 16))
    for _ in range(3):
        expected = (once + expected).astype(np.float16).astype(np.float64)
    assert (np.abs(result(cluster, 128, 1, 16, np.float16) - expected) <= 2.0**-10 * np.abs(expected) + 2.0**-20).all()
    assert (cluster.tmem[cells(128, 1, 16, COLUMN)] >> 16 == 0).all()


@pytest.mark.parametrize(("saturate", "expected"), [(True, 2**31 - 1), (False, 32 * 255 * 127 - 2**31 - 1)])
def test_integer_sums_wrap_or_clamp(saturate: bool, expected: int) -> None:
    cluster = Cluster()
    a, b = np.full((128, 32), 255, np.uint8), np.full((16, 32), 127, np.int8)
    cluster.tmem[cells(128, 1, 16, COLUMN)] = 2**31 - 1
    desc = InstrDescriptor("i8", "u8", "s8", "s32", 128, 16, saturate=saturate)
    multiply(cluster, a, b, desc, 1, enable=1, modes=(32, 32))
    np.testing.assert_array_equal(result(cluster, 128, 1, 16, np.int32), expected)


def test_many_integer_products_stay_exact() -> None:
    cluster = Cluster()
    a, b = np.full((128, 32), 255, np.uint8), np.full((16, 32), 255, np.uint8)
    b[:, 0] = 254
    desc = InstrDescriptor("i8", "u8", "u8", "s32", 128, 16)
    words = place_shares(cluster, A_AT, a, 1, mode=32), place_shares(cluster, B_AT, b, 1, mode=32), desc.encode()
    ops = [operation("tcgen05.mma.cta_group::1.kind::i8", COLUMN, *words, i > 0) for i in range(50)]
    tensor.complete(cluster, ops)
    np.testing.assert_array_equal(result(cluster, 128, 1, 16, np.int32), 50 * (31 * 255 * 255 + 255 * 254))


@pytest.mark.parametrize(("negate_a", "negate_b", "sign"), [(True, False, -1), (False, True, -1), (True, True, 1)])
def test_mma_negates_operands(negate_a: bool, negate_b: bool, sign: int) -> None:
    cluster = Cluster()
    a, b = matrices("f16", "f16", "f16", 128, 16)
    cluster.tmem[cells(128, 1, 16, COLUMN)] = np.float32(7).view(np.int32)
    desc = InstrDescriptor("f16", "f16", "f16", "f32", 128, 16, negate_a=negate_a, negate_b=negate_b)
    multiply(cluster, a, b, desc, 1, enable=1)
    np.testing.assert_array_equal(result(cluster, 128, 1, 16), 7 + sign * (exact(a) @ exact(b).T))


@pytest.mark.parametrize(("d_type", "dtype", "bits"), [("f32", np.float32, np.int32), ("f16", np.float16, np.uint16)])
@pytest.mark.parametrize("enable", [0, 1])
def test_the_accumulator_is_scaled_before_the_sum(d_type: str, dtype: Any, bits: Any, enable: int) -> None:
    cluster = Cluster()
    a, b = matrices("f16", "f16", "f16", 128, 16)
    cluster.tmem[cells(128, 1, 16, COLUMN)] = dtype(48).view(bits)
    multiply(cluster, a, b, InstrDescriptor("f16", "f16", "f16", d_type, 128, 16), 1, enable=enable, tail=(4,))
    np.testing.assert_array_equal(result(cluster, 128, 1, 16, dtype), 3 * enable + exact(a) @ exact(b).T)


@pytest.mark.parametrize("group", [1, 2])
def test_masked_lanes_keep_their_values(group: int) -> None:
    cluster = Cluster(group)
    m = 128 * group
    a, b = matrices("f16", "f16", "f16", m, 16)
    masks = (0x8000_0001, 0, 0xFFFF_FFFF, 0x10, 1, 2, 4, 8)[: 4 * group]
    before = cluster.tmem.copy()
    multiply(cluster, a, b, InstrDescriptor("f16", "f16", "f16", "f32", m, 16), group, masks=masks)
    off = np.array([masks[4 * (row // 128) + row % 128 // 32] >> row % 32 & 1 for row in range(m)], bool)
    where = cells(m, group, 16, COLUMN)
    np.testing.assert_array_equal(result(cluster, m, group, 16)[~off], (exact(a) @ exact(b).T)[~off])
    np.testing.assert_array_equal(cluster.tmem[where][off], before[where][off])


@pytest.mark.parametrize("m", [32, 64, 128])
def test_ws_has_its_own_accumulator_layouts(m: int) -> None:
    cluster = Cluster()
    a, b = matrices("f16", "bf16", "bf16", m, 64)
    multiply(cluster, a, b, InstrDescriptor("f16", "bf16", "bf16", "f32", m, 64), 1, ws=".ws")
    np.testing.assert_array_equal(result(cluster, m, 1, 64, ws=True), exact(a) @ exact(b).T)


def test_m_64_writes_16_lane_groups_from_lane_16() -> None:
    cluster = Cluster()
    a, b = matrices("f16", "bf16", "bf16", 64, 16)
    multiply(cluster, a, b, InstrDescriptor("f16", "bf16", "bf16", "f32", 64, 16), 1, lane=16)
    np.testing.assert_array_equal(result(cluster, 64, 1, 16, upper=True), exact(a) @ exact(b).T)


@pytest.mark.parametrize(("m", "group"), [(128, 1), (64, 1), (256, 2), (128, 2)])
@pytest.mark.parametrize(("kind", "type"), [("f16", "bf16"), ("f16", "f16"), ("tf32", "tf32"), ("f8f6f4", "e4m3")])
def test_mma_reads_a_from_tensor_memory(m: int, group: int, kind: str, type: str) -> None:
    cluster = Cluster(group)
    a, b = matrices(kind, type, type, m, 32)
    packed = np.ascontiguousarray(a).view(np.int32)
    cta, _, lane = cells(m, group, 32, 300)
    if (m, group) == (128, 2):
        lane = lane % 64
    for c in range(8):
        cluster.tmem[cta[:, 0], 300 + c, lane[:, 0]] = packed[:, c]
    desc = InstrDescriptor(kind, type, type, "f32", m, 32)
    words = COLUMN, 300, place_shares(cluster, B_AT, b, group), desc.encode(), 0
    tensor.complete(cluster, [operation(f"tcgen05.mma.cta_group::{group}.kind::{kind}", *words, a_in_tmem=True)])
    np.testing.assert_array_equal(result(cluster, m, group, 32), exact(a) @ exact(b).T)


def test_mma_reads_a_from_lane_16_of_tensor_memory() -> None:
    cluster = Cluster()
    a, b = matrices("f16", "f16", "f16", 64, 16)
    cta, _, lane = cells(64, 1, 16, 0, upper=True)
    for c in range(8):
        cluster.tmem[cta[:, 0], 300 + c, lane[:, 0]] = a.view(np.int32)[:, c]
    idesc = InstrDescriptor("f16", "f16", "f16", "f32", 64, 16).encode()
    words = COLUMN, 16 << 16 | 300, place_shares(cluster, B_AT, b, 1), idesc, 0
    tensor.complete(cluster, [operation("tcgen05.mma.cta_group::1.kind::f16", *words, a_in_tmem=True)])
    np.testing.assert_array_equal(result(cluster, 64, 1, 16), exact(a) @ exact(b).T)


@pytest.mark.parametrize("mode", [32, 64, 128])
@pytest.mark.parametrize("group", [1, 2])
def test_mma_reads_k_slices_of_a_swizzled_tile(mode: int, group: int) -> None:
    """K-slices of a swizzled tile, with the descriptor advanced by 32 bytes for each, as in every GEMM."""
    cluster, random, k = Cluster(group), np.random.default_rng(mode), mode // 2
    m, n = 128 * group, 64
    a, b = small_integers(random, (m, k), "bf16"), small_integers(random, (n, k), "bf16")
    load = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
    for at, matrix in ((A_AT, a), (B_AT, b)):
        rows = len(matrix) // group
        cluster.bind(TensorMap(matrix, (rows, k), swizzle=mode))
        for rank in range(group):
            words = rank << 24 | at, MAP_AT, 0, rank * rows, rank << 24 | MBAR
            copy.complete(cluster, [operation(load, *words, rank=rank)])
    idesc = InstrDescriptor("f16", "bf16", "bf16", "f32", m, n).encode()
    start = [SmemDescriptor(at, 16, 8 * mode, mode).encode() for at in (A_AT, B_AT)]
    opcode = f"tcgen05.mma.cta_group::{group}.kind::f16"
    ops = [operation(opcode, COLUMN, start[0] + 2 * s, start[1] + 2 * s, idesc, s > 0) for s in range(k // 16)]
    tensor.complete(cluster, ops)
    np.testing.assert_array_equal(result(cluster, m, group, n), exact(a) @ exact(b).T)
