"""The product in machine code: the order of its sums, the tiles of other hosts, and what products share."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vgpu.engines.fabric import Cluster, operation
from tests.vgpu.engines.operands import DTYPES
from tests.vgpu.engines.test_tensor import MMA, descriptor
from warpwright.layout import InstrDescriptor
from warpwright.vgpu.engines import product, tensor
from warpwright.vgpu.engines.mma import form_of_op, read_descriptor
from warpwright.vgpu.jit.product import B_PANEL, BLOCK_K, LARGEST_PANEL, PLAN, Tile, text, tile_of
from warpwright.vgpu.jit.runtime import Engine, function

TILES = (Tile(16, 2, 8), Tile(8, 2, 4), Tile(4, 2, 8))
POINTER = ctypes.c_void_p
B = 1024 * 20  # its place in shared memory
M, N, K = 64, 24, BLOCK_K + 32


def by_order(c: NDArray[np.float32], a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    """Returns C (n, m) + B (n, k) times A (m, k), one element of K after the other: products of 16 bits are exact."""
    sums, left, right = c.copy(), a.astype(np.float32), b.astype(np.float32)
    for k in range(a.shape[1]):
        sums += right[:, k : k + 1] * left[:, k]
    return sums


def aligned(count: int) -> NDArray[np.float32]:
    raw = np.zeros(count + 16, np.float32)
    return raw[-raw.ctypes.data % 64 // 4 :][:count]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_every_tile_adds_in_the_order_of_k(tile: Tile, order: str, kind: str) -> None:
    engine, random = Engine(text(tile), 2), np.random.default_rng(5)
    multiply, pack = (
        ctypes.CFUNCTYPE(None, *[POINTER] * count)(engine.address(name))
        for name, count in (("product", 7), (f"pack_{order}_{kind}", 6))
    )
    a, b = (random.standard_normal((rows, K)).astype(DTYPES[kind]) for rows in (M, N))
    packed = []
    for matrix, panel in ((a, tile.panel), (b, B_PANEL)):
        stored = np.ascontiguousarray(matrix if order == "rows" else matrix.T)
        chunks, found = np.arange(matrix.size // 8), aligned(matrix.size)
        pack(found.ctypes.data, stored.ctypes.data, chunks.ctypes.data, len(matrix), K, panel)
        packed.append(found)
    old = random.standard_normal((N, M)).astype(np.float32)
    sums = old.copy()
    multiply(sums.ctypes.data, 4 * M, *(each.ctypes.data for each in packed), M, N, K)
    np.testing.assert_array_equal(sums, by_order(old, a, b))


def test_the_tile_follows_the_registers_of_the_host() -> None:
    features = "+avx512f,+avx2,+sse2", "-avx512f,+avx2,+sse2", "+neon"
    assert [tile_of(each) for each in features] == list(TILES)
    assert max(tile.panel for tile in TILES) == LARGEST_PANEL
    assert not any(LARGEST_PANEL % tile.panel for tile in TILES)


def fill(seed: int = 3, same: bool = False) -> Cluster:
    """Fill shared memory with normal bf16, in both CTAs with the ``same``, and tensor memory with normal float32."""
    cluster, random = Cluster(2, limit=32 * 1024), np.random.default_rng(seed)
    for rank in range(2):
        cluster.shared[rank] = random.standard_normal(16 * 1024).astype(DTYPES["bf16"]).view(np.uint8)
        cluster.tmem[rank] = random.standard_normal((512, 128)).astype(np.float32).view(np.int32)
    if same:
        cluster.shared[1], cluster.tmem[1] = cluster.shared[0], cluster.tmem[0]
    return cluster


def run(cluster: Cluster, *ops: Any) -> NDArray[np.int32]:
    tensor.complete(cluster, list(ops))
    return cluster.tmem.copy()


def mma(k: int = 0, *, column: int = 0, m: int = 256, a: int = 2048, add: bool = True) -> Any:
    idesc = InstrDescriptor("f16", "bf16", "bf16", "f32", m, 32).encode()
    return operation(MMA.format(2), column, descriptor(a + 32 * k), descriptor(B + 32 * k), idesc, add)


def test_instructions_together_give_the_bits_of_instructions_alone() -> None:
    ops = [mma(k, add=k > 0) for k in range(4)]
    together, alone = fill(), fill()
    run(together, *ops)
    for op in ops:
        run(alone, op)
    np.testing.assert_array_equal(together.tmem, alone.tmem)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Returns the list of the operands that products pack: "a" or "b", and rows."""
    called: list[tuple[str, int]] = []

    def follow(name: str) -> Any:
        routine = function(name)

        def record(plan_at: int, *words: int) -> None:
            plan = (ctypes.c_int64 * len(PLAN)).from_address(plan_at)
            called.append(("a", routine(plan_at, *words)))
            called.extend([("b", plan[PLAN.index("rows_b")])] if words[-1] else [])

        return record

    monkeypatch.setattr(product, "function", follow)
    return called


@pytest.mark.parametrize("m", [256, 128])  # 1 and 2 rectangles of tensor memory in each CTA
@pytest.mark.parametrize("add", [True, False], ids=["add", "start"])
@pytest.mark.parametrize("differs", ["nothing", "A", "sums"])
def test_a_pair_with_the_same_rows_and_sums_is_multiplied_once(
    differs: str, add: bool, m: int, packed: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, expected = fill(same=True), fill(same=True)
    for cluster in (found, expected):
        if differs == "A":
            end = 2048 + 64 * m
            cluster.shared[1, end - 24 : end] ^= 1  # the last of its rows
        if differs == "sums":
            cluster.tmem[1, 15, 127] ^= 1
    ops = [mma(k, m=m, add=add or k > 0) for k in range(4)]
    run(found, *ops)
    prepare = product.prepare

    def prepare_apart(*arguments: Any) -> product.Product:
        apart = prepare(*arguments)
        apart.plan[PLAN.index("paired")] = 0
        return apart

    monkeypatch.setattr(product, "prepare", prepare_apart)
    run(expected, *ops)
    np.testing.assert_array_equal(found.tmem, expected.tmem)
    once = differs == "nothing" or (differs == "sums" and not add)
    assert packed == [("a", m // 2 if once else m), ("b", 32), ("a", m), ("b", 32)]


def test_products_with_one_b_pack_it_once_until_memory_changes(packed: list[tuple[str, int]]) -> None:
    cluster, other = fill(), fill(seed=4)
    ops = [mma(column=column, a=2048 + 32 * column, add=False) for column in (0, 64)]
    batch = tensor.complete(cluster, ops)
    assert batch is not None
    assert packed == [("a", 256), ("b", 32), ("a", 256)]
    cluster.shared[:], cluster.tells_updates = other.shared, False
    batch.repeat(cluster, np.arange(2))
    assert packed == [("a", 256), ("b", 32), ("a", 256)] * 2
    for op in ops:
        run(other, op)
    for column in (0, 64):
        np.testing.assert_array_equal(*(each.tmem[:, column : column + 32] for each in (cluster, other)))


def test_b_is_not_packed_again_for_the_next_product() -> None:
    cluster, last = fill(), product.Packed()
    idesc = InstrDescriptor("f16", "bf16", "bf16", "f32", 256, 32)
    whole = read_descriptor(form_of_op(mma()), idesc.encode(), 0)
    prepared = product.prepare(
        cluster, (0, 0, whole.layout), (whole.a, whole.b), [(descriptor(2048), descriptor(B))], 16
    )
    product.add(cluster, prepared, 0, last, accumulate=False)
    before = cluster.tmem.copy()
    cluster.shared[:, B:] = 0
    product.add(cluster, prepared, 0, last, accumulate=False)
    np.testing.assert_array_equal(cluster.tmem, before)
    product.add(cluster, prepared, 0, product.Packed(), accumulate=False)
    assert not cluster.tmem[:2, :32].any()
