"""The arguments and the expected results of every foreign kernel: one row a kernel.

The function of a row takes a random generator and returns the arguments and, by argument index, their expected
contents. Arrays that a kernel only writes start as zeros. On an H200 (driver 580) every sm_90a file but wmma gave these
results, also after a round trip through our parser and printer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.random import Generator

import tests.foreign.references as ref
from warpwright.layout.tensor_map import TensorMap

__all__ = ["CASES", "TRITON", "Case", "Expect"]

bf16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Expect:
    """An array within tolerances (none: equal); ``view`` normalises a result whose order is undefined."""

    value: Any
    rtol: Any = 0.0
    atol: Any = 0.0
    view: Callable[[np.ndarray], np.ndarray] = np.asarray


Run = tuple[list[Any], dict[int, Expect]]


@dataclass(frozen=True)
class Case:
    file: str
    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...] | None
    make: Callable[[Generator], Run]
    smem: int = 0
    archs: tuple[str, ...] = ("sm_90a", "sm_100a", "sm_120a")


def vector_add(rng: Generator) -> Run:
    a, b = rng.standard_normal((2, 1000), dtype=np.float32)
    return [a, b, np.zeros(1000, np.float32), 1000], {2: Expect(a + b)}


def saxpy4(rng: Generator) -> Run:
    x, y = rng.standard_normal((2, 4 * 700), dtype=np.float32)
    return [1.7, x, y, 700], {2: Expect(ref.fma(np.float32(1.7), x, y))}


def transpose(rng: Generator) -> Run:
    matrix = rng.standard_normal((70, 45), dtype=np.float32)
    return [matrix, np.zeros((45, 70), np.float32), 70, 45], {1: Expect(matrix.T)}


def warp_sum(rng: Generator) -> Run:
    values = rng.integers(-1000, 1000, 256, np.int32)
    return [values, np.zeros(8, np.int32)], {1: Expect(values.reshape(8, 32).sum(1))}


def block_sum(rng: Generator) -> Run:
    values = rng.integers(-1000, 1000, 4 * 128 - 37, np.int32)
    padded = np.pad(values, (0, 37)).reshape(4, 128)
    return [values, np.zeros(4, np.int32), values.size], {1: Expect(padded.sum(1))}


def grid_sum(rng: Generator) -> Run:
    values = rng.integers(-1000, 1000, 5001, np.int32)
    return [values, np.array([17], np.int32), values.size], {1: Expect([values.sum() + 17])}


def warp_argmax(rng: Generator) -> Run:
    values = rng.integers(-9, 9, 128).astype(np.float32)
    rows = values.reshape(4, 32)
    args = [values, np.zeros(4, np.float32), np.zeros(4, np.int32)]
    return args, {1: Expect(rows.max(1)), 2: Expect(rows.argmax(1))}


def atomics_global(rng: Generator) -> Run:
    values = rng.integers(-(1 << 31), 1 << 31, 384, np.int64).astype(np.int32)
    ints, words = np.array([5, -5, 9, -9], np.int32), np.array([2**32 - 1, 0, 77, 42, 42], np.uint32)
    wide = np.array([1, 1], np.uint64)
    return [values, ints, words, wide], ref.atomics_global(values, ints, words, wide, Expect)


def atomics_float(rng: Generator) -> Run:
    values = (rng.integers(-32, 32, 384) / 4).astype(np.float32)
    args = [values, np.array([0.5], np.float32), np.array([0.25]), np.array([-100], np.float32)]
    return args, {1: Expect([values.sum() + 0.5]), 2: Expect([values.sum() + 0.25]), 3: Expect([values.max()])}


def atomics_shared(rng: Generator) -> Run:
    args = [np.zeros((3, 96), np.int32), np.zeros((3, 3), np.int32)]
    tickets = Expect(np.tile(np.arange(96), (3, 1)), view=lambda found: np.sort(found, axis=1))
    return args, {0: tickets, 1: Expect(np.tile([96, 95, 7], (3, 1)))}


def histogram(rng: Generator) -> Run:
    values = rng.integers(0, 1 << rng.integers(1, 32, 1500), dtype=np.int64).astype(np.uint32)
    values[:3] = 0, 1, 0xFFFFFFFF
    bins = np.full(64, 3, np.uint32)
    return [values, bins, values.size], {1: Expect(bins + np.bincount(ref.halvings(values), minlength=64))}


def tma_tile(rng: Generator) -> Run:
    """The last boxes cross both edges: loads fill them with zeros, stores clip them."""
    source = rng.standard_normal((100, 80), dtype=np.float32)
    maps = [TensorMap(array, box=(64, 32)) for array in (source, np.zeros_like(source))]
    return [*maps, 1.5], {1: Expect(source * np.float32(1.5))}


def bulk_copy(rng: Generator) -> Run:
    source = rng.integers(0, 1 << 30, (5, 1024), np.int32)
    return [source, np.zeros_like(source), 5], {1: Expect(source + np.arange(5)[:, None])}


def cluster_shift(rng: Generator) -> Run:
    source = rng.integers(0, 1 << 30, (2, 4, 128), np.int32)
    return [source, np.zeros_like(source)], {1: Expect(np.roll(source, -1, axis=1))}


def cluster_total(rng: Generator) -> Run:
    source = rng.integers(-1000, 1000, (3, 2 * 96), np.int32)
    return [source, np.zeros(3, np.int32)], {1: Expect(source.sum(1))}


def matmul(rng: Generator) -> Run:
    a, b = rng.standard_normal((37, 50), dtype=np.float32), rng.standard_normal((50, 45), dtype=np.float32)
    bound = 50 * ref.EPS32 * (np.abs(a) @ np.abs(b))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return [a, b, np.zeros((37, 45), np.float32), 37, 45, 50], {2: Expect(exact, atol=bound)}


def half_relu(rng: Generator) -> Run:
    x, y = rng.standard_normal((2, 2 * 300)).astype(np.float16)
    x[:4] = np.inf, np.nan, 6e-8, 65504
    exact = x.astype(np.float64) * np.float64(np.float16(0.37)) + y.astype(np.float64)
    return [x, y, np.zeros_like(x), 0.37, 300], {2: Expect(np.fmax(exact.astype(np.float16), 0))}


def bfloat_scale(rng: Generator) -> Run:
    x = rng.standard_normal(500).astype(bf16)
    exact = ref.fma(x.astype(np.float32), np.float32(0.7), np.float32(-0.1))
    return [x, np.zeros_like(x), 0.7, -0.1, 500], {1: Expect(exact.astype(bf16).astype(np.float32), view=ref.widen)}


def bfloat_fma(rng: Generator) -> Run:
    x, y = (rng.standard_normal((2, 2 * 250)) * 8).astype(bf16)
    exact = x.astype(np.float64) * y.astype(np.float64) - y.astype(np.float64)
    return [x, y, np.zeros_like(x), 250], {2: Expect(ref.to_bf16(exact), view=ref.widen)}


def half_round(rng: Generator) -> Run:
    x = (rng.standard_normal(300) * 50).astype(np.float16)
    x[:4] = 0.5, 1.5, 2.5, -0.5
    nearest = np.rint(x).astype(np.int32)
    back = np.where(x > 1, nearest.astype(np.float16), np.abs(x))
    args = [x, np.zeros(300, np.int32), np.zeros(300, np.int32), np.zeros_like(x), 300]
    return args, {1: Expect(nearest), 2: Expect(np.floor(x).astype(np.int32)), 3: Expect(back)}


def calls(rng: Generator) -> Run:
    a, b = rng.integers(0, 1000, (2, 200), np.int32)
    b[:5] = 0
    args = [a, b, np.zeros((200, 3), np.int32), np.zeros(200), 200]
    return args, {2: Expect(ref.calls(a, b)), 3: Expect(a / np.where(b == 0, 1, b))}


def dispatch(rng: Generator) -> Run:
    programs = rng.integers(0, 12, (100, 24), np.uint8)
    return [programs, np.zeros(200, np.uint32), 24, 100], {1: Expect(ref.dispatch(programs))}


def indexed_branch(rng: Generator) -> Run:
    which = rng.integers(0, 3, 128, np.uint32)
    thread = np.arange(128)
    return [which, np.zeros(128, np.int32)], {1: Expect(np.choose(which, [2 * thread, -thread, thread]))}


def local_array(rng: Generator) -> Run:
    values, pick = rng.integers(-1000, 1000, (90, 16), np.int32), rng.integers(0, 99, 90, np.int32)
    ordered, rows = np.sort(values, axis=1), np.arange(90)
    first, last = ordered[rows, pick & 15], ordered[rows, 15 - (pick & 15)]
    expected = np.stack([first, last - ordered[:, 0]], axis=1)
    return [values, pick, np.zeros((90, 2), np.int32), 90], {2: Expect(expected)}


def words(rng: Generator) -> np.ndarray:
    """Returns two columns of 32-bit words of every magnitude; the first rows are all pairs of corner cases."""
    corners = np.array([0, 1, 2, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 31, 32, 0xDEADBEEF])
    grid = np.stack(np.meshgrid(corners, corners), -1).reshape(-1, 2)
    return np.concatenate([grid, rng.integers(0, 1 << rng.integers(1, 33, (200, 2)))]).astype(np.uint32)


def integer(rng: Generator) -> Run:
    x, y = np.ascontiguousarray(words(rng).T).view(np.int32)
    return [x, y, np.zeros((x.size, 16), np.int64), x.size], {2: Expect(ref.rows(ref.integer, x, y, np.int64))}


def bits(rng: Generator) -> Run:
    x, y = np.ascontiguousarray(words(rng).T)
    return [x, y, np.zeros((x.size, 12), np.uint32), x.size], {2: Expect(ref.rows(ref.bits, x, y, np.uint32))}


def float_math(rng: Generator) -> Run:
    x = (rng.standard_normal(400) * 3).astype(np.float32)
    x[:10] = 0, -0.0, np.inf, -np.inf, np.nan, 1e5, -12345.678, 1e-30, 3.1415927, 1e9
    y = np.exp(rng.standard_normal(400) * 3).astype(np.float32)
    y[10:14] = 1, 1e-40, 3e38, 0.99999994
    value, rtol, atol = ref.float_math(x, y)
    return [x, y, np.zeros((400, 12), np.float32), 400], {2: Expect(value, rtol, atol)}


def float_math_fast(rng: Generator) -> Run:
    """The approximate instructions keep the error bounds that PTX ISA 9.7.3 states for each."""
    x = rng.uniform(-3, 3, 400).astype(np.float32)
    y = np.exp(rng.standard_normal(400)).astype(np.float32)
    value, _, _ = ref.float_math(x, y)
    rtol = np.full(12, 2e-5)
    rtol[7] = 2**-10.9
    return [x, y, np.zeros((400, 12), np.float32), 400], {2: Expect(value, rtol, 2e-6)}


def double_math(rng: Generator) -> Run:
    x, y = rng.standard_normal(200) * 5, np.exp(rng.standard_normal(200) * 5)
    y[:4] = 1e-300, 1e300, 5e-324, 1.5
    value, rtol = ref.double_math(x, y)
    return [x, y, np.zeros((200, 4)), 200], {2: Expect(value, rtol)}


def float_convert(rng: Generator) -> Run:
    x = (rng.standard_normal(300) * 10.0 ** rng.integers(-8, 12, 300)).astype(np.float32)
    x[:9] = 0.5, -0.5, 2.5, np.nan, np.inf, -np.inf, 2147483648.0, -2147483648.0, 4294967296.0
    ints, floats = ref.float_convert(x)
    args = [x, np.zeros((300, 6), np.int32), np.zeros((300, 4), np.float32), 300]
    return args, {1: Expect(ints), 2: Expect(floats)}


def warp_ops(rng: Generator) -> Run:
    values = rng.integers(0, 100, (4, 32), np.int32)
    values[1] = 41
    values[2] &= ~1
    return [values, np.zeros((4, 32, 10), np.uint32)], {1: Expect(np.stack([ref.warp_ops(warp) for warp in values]))}


def barriers(rng: Generator) -> Run:
    values = rng.integers(0, 100, (3, 128), np.int32)
    values[0], values[1] = np.minimum(values[0], 90), np.maximum(values[1], 99)
    return [values, np.zeros_like(values)], {1: Expect(np.stack([ref.barriers(block) for block in values]))}


def async_copy(rng: Generator) -> Run:
    values = rng.integers(-1000, 1000, (5, 64, 4), np.int32)
    expected = (values[:, ::-1] * [1, 2, 3, 4]).sum((0, 2))
    return [values, np.zeros(64, np.int32), 5], {1: Expect(expected)}


def mma_matmul(rng: Generator) -> Run:
    a, b = (rng.standard_normal((rows, 80)).astype(bf16) for rows in (64, 96))
    wide = a.astype(np.float64), b.astype(np.float64)
    bound = 80 * ref.EPS32 * (np.abs(wide[0]) @ np.abs(wide[1]).T)
    return [a, b, np.zeros((64, 96), np.float32), 96, 80], {2: Expect(wide[0] @ wide[1].T, atol=bound)}


def mma_types(rng: Generator) -> Run:
    a, b = rng.integers(-128, 128, (16, 32)).astype(np.int8), rng.integers(0, 256, (8, 32)).astype(np.uint8)
    x, y = rng.standard_normal((2, 8, 4))
    h = rng.integers(0, 1 << 16, (8, 8)).astype(np.uint16)
    args = [a, b, np.zeros((16, 8), np.int32), x, y, np.zeros((8, 8)), h, np.zeros((8, 8), np.uint16)]
    products = a.astype(np.int64) @ b.astype(np.int64).T
    return args, {2: Expect(products), 5: Expect(x @ y.T, atol=1e-14), 7: Expect(h.T)}


def wmma_matmul(rng: Generator) -> Run:
    a, b = rng.standard_normal((64, 96)).astype(np.float16), rng.standard_normal((96, 96)).astype(np.float16)
    c = rng.standard_normal((64, 96)).astype(np.float32)
    expected = 2 * a.astype(np.float64) @ b.astype(np.float64).T + c
    return [a, b, c, np.zeros((64, 96), np.float32), 96, 96], {3: Expect(expected, atol=2e-5)}


def wmma_types(rng: Generator) -> Run:
    a, b = rng.standard_normal((32, 16)).astype(bf16), rng.standard_normal((16, 8)).astype(bf16)
    e, f = (rng.integers(-99, 99, shape).astype(np.float32) for shape in ((16, 8), (8, 16)))
    h, i = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((8, 16), (32, 16)))
    o, p = rng.standard_normal((2, 8, 4))
    args = [a, b, np.zeros((8, 32), np.float32), e, f, np.zeros((16, 16), np.float32), h, i,
            np.zeros((32, 8), np.int32), o, p, np.zeros((8, 8))]  # fmt: skip
    bytes_ = 1 + i.astype(np.int64) @ h.astype(np.int64).T
    wide = 1 + a.astype(np.float64) @ b.astype(np.float64)
    return args, {2: Expect(wide.T, atol=1e-5), 5: Expect((1 + e @ f).T), 8: Expect(bytes_),
                  11: Expect((1 + o @ p.T).T, atol=1e-14)}  # fmt: skip


CASES = [
    Case("vector_add", "vector_add", (8,), (128,), vector_add),
    Case("vector_add", "saxpy4", (3,), (96,), saxpy4),
    Case("transpose", "transpose", (2, 3), (32, 8), transpose),
    Case("reduce", "warp_sum", (2,), (128,), warp_sum),
    Case("reduce", "block_sum", (4,), (128,), block_sum, smem=4 * 128),
    Case("reduce", "grid_sum", (5,), (256,), grid_sum),
    Case("reduce", "warp_argmax", (2,), (64,), warp_argmax),
    Case("atomics", "atomics_global", (3,), (128,), atomics_global),
    Case("atomics", "atomics_float", (3,), (128,), atomics_float),
    Case("atomics", "atomics_shared", (3,), (96,), atomics_shared),
    Case("histogram", "histogram", (4,), (128,), histogram),
    Case("tma_copy", "tma_tile", (3, 2), (128,), tma_tile),
    Case("tma_copy", "bulk_copy", (1,), (128,), bulk_copy),
    Case("cluster_exchange", "cluster_shift", (8,), (128,), cluster_shift),
    Case("cluster_exchange", "cluster_total", (6,), (96,), cluster_total),
    Case("matmul", "matmul", (3, 3), (16, 16), matmul),
    Case("tensor_cores", "mma_matmul", (3, 2), (128,), mma_matmul),
    Case("tensor_cores", "mma_types", (1,), (32,), mma_types),
    Case("wmma", "wmma_matmul", (3, 2), (128,), wmma_matmul),
    Case("wmma", "wmma_types", (1,), (32,), wmma_types),
    Case("half_math", "half_relu", (3,), (128,), half_relu),
    Case("half_math", "bfloat_scale", (4,), (128,), bfloat_scale),
    Case("half_math", "bfloat_fma", (2,), (128,), bfloat_fma),
    Case("half_math", "half_round", (3,), (128,), half_round),
    Case("calls", "calls", (2,), (128,), calls),
    Case("dispatch", "dispatch", (2,), (64,), dispatch),
    Case("dispatch", "indexed_branch", (2,), (64,), indexed_branch),
    Case("local_array", "local_array", (2,), (64,), local_array),
    Case("integer", "integer", (3,), (128,), integer),
    Case("integer", "bits", (3,), (128,), bits),
    Case("float_math", "float_math", (4,), (128,), float_math),
    Case("float_math", "double_math", (2,), (128,), double_math),
    Case("float_math", "float_convert", (3,), (128,), float_convert),
    Case("float_math_fast", "float_math", (4,), (128,), float_math_fast),
    Case("warp_ops", "warp_ops", (2,), (64,), warp_ops),
    Case("barriers", "barriers", (3,), (128,), barriers),
    Case("async_copy", "async_copy", (1,), (64,), async_copy),
]


def scratch() -> list[np.ndarray]:
    """Returns the two scratch buffers that are the last arguments of every Triton kernel; these kernels ignore them."""
    return [np.zeros(16, np.uint8), np.zeros(16, np.uint8)]


def triton_vector_add(rng: Generator) -> Run:
    x, y = rng.standard_normal((2, 2500), dtype=np.float32)
    return [x, y, np.zeros(2500, np.float32), 2500, *scratch()], {2: Expect(x + y)}


def triton_softmax(rng: Generator) -> Run:
    x = (rng.standard_normal((3, 800)) * 4).astype(np.float32)
    weights = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True)
    return [x, np.zeros_like(x), 800, 800, *scratch()], {1: Expect(expected, rtol=2e-6, atol=1e-12)}


def triton_histogram(rng: Generator) -> Run:
    values = rng.integers(0, 40, 1300, np.int32)
    return [values, np.zeros(40, np.int32), 1300, *scratch()], {1: Expect(np.bincount(values, minlength=40))}


def triton_matmul(rng: Generator) -> Run:
    """tcgen05, wgmma or mma.sync: three k-blocks of 128x64, the tile written through a tensor map."""
    m, n, k = 128, 256, 192
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    args: list[Any] = []
    for array in (a, b, np.zeros((m, n), np.float16)):
        args += [TensorMap(array, box=(128, 64), swizzle=128), *array.shape, array.shape[1], 1]
    return [*args, m, n, k, *scratch()], {10: Expect(exact, rtol=2**-11, atol=1e-5)}


TRITON = [
    Case("triton_vector_add", "vector_add", (3,), None, triton_vector_add),
    Case("triton_softmax", "softmax", (3,), None, triton_softmax, smem=16),
    Case("triton_histogram", "histogram", (3,), None, triton_histogram),
    Case("triton_matmul", "matmul", (1, 2), None, triton_matmul, smem=98352),
]
