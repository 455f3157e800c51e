"""Probes of tensor copies: swizzles, boxes over edges, strides, fills, multicasts, stores and reductions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from warpwright.layout.tensor_map import TensorMap
from warpwright.selftest.probes import texts
from warpwright.selftest.probes.cases import Array, Case, numbered
from warpwright.types import of_name, tf32

__all__ = [
    "bulk_reductions",
    "corners",
    "edge_reductions",
    "edges",
    "fills",
    "hints",
    "multicasts",
    "reductions",
    "refused_boxes",
    "steps",
    "stores",
    "swizzles",
]

bf16 = ml_dtypes.bfloat16


def load_case(name: str, array: Array, box: tuple[int, ...], at: tuple[int, ...], offset: int = 0, **map: Any) -> Case:
    """Returns the case of a box at ``at`` (array order), loaded to ``offset``."""
    tensor = TensorMap(array, box, **map)
    wide = max(1, int(tensor.swizzle) // (tensor.box[0] * tensor.dtype.nbytes))  # room for rows as wide as the pattern
    total = -(-(offset + wide * tensor.nbytes) // 1024) * 1024
    out = np.zeros(total // 4 + 1, np.uint32)
    args = [tensor, out, total, offset, tensor.nbytes, *reversed(at)]
    return Case(name, texts.load(array.ndim), args, out, smem=1024 + total)


def store_case(
    name: str,
    array: Array,
    box: tuple[int, ...],
    at: tuple[int, ...],
    values: Array,
    op: str = "",
    **map: Any,
) -> Case:
    tensor = TensorMap(array, box, **map)
    arena = np.resize(values.reshape(-1).view(np.uint8), -(-max(values.nbytes, tensor.nbytes) // 1024) * 1024)
    args = [tensor, arena, arena.size, 0, *reversed(at)]
    return Case(name, texts.store(array.ndim, op), args, array, smem=1024 + arena.size)


def swizzles() -> Iterator[Case]:
    """The addresses of a row's chunks, also for rows narrower than the pattern and boxes that start inside it."""
    for mode in (0, 32, 64, 128):
        for inner in sorted({16, 32, 64, mode} - {0}):
            for offset in (0, 128, 256, 384, 512, 640, 896, 1152):
                if mode == 0 or inner <= mode:
                    array = numbered((24, inner // 2), np.uint16)
                    name = f"{mode} inner {inner} offset {offset}"
                    yield load_case(name, array, array.shape, (0, 0), offset, swizzle=mode)


def edges() -> Iterator[Case]:
    """Boxes partly and wholly out of bounds: the values they read, and that their full bytes complete.

    The innermost coordinate is always a multiple of 16 bytes: the H200 raises an illegal instruction for another.
    """
    array = numbered((5, 12), np.float32)[:, :10]
    for row in (-100, -4, -1, 0, 3, 5):
        for column in (-8, -4, 0, 4, 8, 12):
            yield load_case(f"2d {row} {column}", array, (4, 4), (row, column))
            yield load_case(f"2d swizzled {row} {column}", array, (4, 8), (row, column), swizzle=32)
    for first in (0, -8, 16, 24, -16, 2**31 - 8, -(2**31)):
        yield load_case(f"1d {(first,)}", numbered((20,), np.uint16), (16,), (first,))
    for cube in ((0, 0, 0), (-1, 2, 16), (2, -1, -16), (2, 4, 16), (3, 0, 0)):
        yield load_case(f"3d {cube}", numbered((3, 5, 32), np.uint8)[:, :, :25], (2, 3, 32), cube)
    for at in ((0, 0, 0, 0, 0), (-1, 1, 1, -1, 4), (1, 2, -1, 2, -4)):
        yield load_case(f"5d {at}", numbered((2, 3, 2, 3, 8), np.float32)[..., :6], (2, 2, 3, 2, 8), at)


def corners() -> Iterator[Case]:
    """Boxes past either end of each dimension in turn, of 1 to 8 bytes an element; strides with gaps."""
    for dtype in (np.uint8, np.uint16, np.uint32, np.float64, np.int64):
        wide = 16 // np.dtype(dtype).itemsize
        array = numbered((3, 2, 3, 4 * wide), dtype)[:, :, :, : 3 * wide - 1]
        for axis, end in enumerate(array.shape):
            unit = wide if axis == 3 else 1
            for place in (-unit, -(-end // unit - 1) * unit):
                at = tuple(place if n == axis else 0 for n in range(4))
                yield load_case(f"4d {np.dtype(dtype).name} {at}", array, (2, 2, 2, 2 * wide), at)
    array = numbered((4, 3, 64), np.uint16)
    for mode, at in ((128, (-1, 1, 32)), (64, (3, -1, -16)), (32, (1, 2, 56))):
        yield load_case(f"3d swizzle {mode} {at}", array, (2, 3, mode // 2), at, 128, swizzle=mode)


def hints() -> Iterator[Case]:
    """Prefetches, cache policies and other spellings do not change the result of a copy."""
    array = numbered((8, 32), np.uint16)
    copy = "%first cp.async.bulk.tensor.2d.shared::cluster"
    ahead = "%first prefetch.tensormap [%map];\n    @%first cp.async.bulk.prefetch.tensor.2d.L2.global.tile "
    ahead += "[%map, {%c0, %c1}];"
    policy = "createpolicy.fractional.L2::evict_last.b64 %list, 0.5;\n    @"
    for name, old, new in (
        ("prefetch", copy, f"{ahead}\n    @{copy}"),
        ("shared::cta", copy, copy.replace("cluster", "cta")),
        ("policy", f"@{copy}", policy + copy),
    ):
        case = load_case(name, array, (4, 32), (1, 8), swizzle=64)
        text = case.text.replace(old, new)
        hinted = text.replace("complete_tx::bytes [%to]", "complete_tx::bytes.L2::cache_hint [%to]").replace(
            "}], [%bar];", "}], [%bar], %list;"
        )
        yield replace(case, text=hinted if name == "policy" else text)


def edge_reductions() -> Iterator[Case]:
    """Reductions of boxes over an edge, swizzled, with element strides and on a dimension of stride 0."""
    for at in ((0, 0), (3, 4), (4, 8), (5, 0), (0, 12)):
        values = numbered((4, 8), np.float32)
        array = np.full((5, 12), 0.5, np.float32)[:, :10]
        yield store_case(f"add {at}", array, (4, 8), at, values, "add")
    for mode, inner in ((32, 32), (64, 64), (128, 128), (128, 32)):
        values = numbered((16, mode // 2), np.uint16).view(np.uint32)
        target = numbered((16, inner // 4), np.uint32)
        yield store_case(f"max swizzle {mode} inner {inner}", target, target.shape, (0, 0), values, "max", swizzle=mode)
    values = numbered((4, 8), np.uint32)
    target = numbered((12, 8), np.uint32)
    yield store_case("or every second", target, (7, 8), (1, 4), values, "or", element_strides=(2, 1))
    once = numbered((1, 8), np.uint32)
    yield store_case("add stride 0", once, (4, 8), (0, 0), values, "add", dims=(8, 4), strides=(0,))


def refused_boxes() -> Iterator[Case]:
    """Which boxes fault: a start that is no multiple of 16 bytes, a negative coordinate of a store, too large a box."""
    array = numbered((8, 32), np.uint16)
    for name, at, offset in (
        ("aligned", (0, 8), 0),
        ("coordinate of 2 bytes", (0, 1), 0),
        ("coordinate of 8 bytes", (0, 4), 0),
        ("coordinate of -8 bytes", (0, -4), 0),
        ("to 64 bytes", (0, 0), 64),
        ("to 16 bytes", (0, 0), 16),
        ("behind shared memory", (0, 0), 256 * 1024),
    ):
        case = load_case(name, array, (4, 32), at)
        case.args[3] = offset
        yield replace(case, refused=True)
    for op in ("", "add"):
        for at in ((0, 0), (-1, 0), (0, -8), (0, 4)):
            case = store_case(f"{op or 'store'} {at}", array.copy(), (4, 32), at, numbered((4, 32), np.uint16), op)
            if op:
                target = numbered((8, 32), np.uint32)
                case = store_case(f"{op} {at}", target, (4, 32), at, numbered((4, 32), np.uint32), op)
            yield replace(case, refused=True)
    wrong = load_case("2d of 3 dimensions", numbered((2, 8, 32), np.uint16), (1, 4, 32), (0, 0, 0))
    yield replace(wrong, text=texts.load(2), args=wrong.args[:-1], refused=True)


def steps() -> Iterator[Case]:
    """Element strides: every n-th element is copied and counted; the innermost stride has no effect."""
    array = numbered((20, 16), np.float32)
    for stride in ((2, 1), (3, 1), (8, 1), (1, 2), (2, 3)):
        for at in ((0, 0), (-1, -4), (1, 4), (-5, 0), (15, 8)):
            yield load_case(f"{stride} at {at}", array, (9, 8), at, element_strides=stride)


def fills() -> Iterator[Case]:
    """The NaN of elements out of bounds; float32 read as tf32."""
    for dtype in (np.float16, bf16, np.float32, np.float64):
        array = numbered((4, 16), dtype)
        yield load_case(np.dtype(dtype).name, array, (4, 16), (2, 8), fill="nan")
    array = numbered((4, 16), np.float32)
    yield load_case("tf32", array, (4, 16), (2, 8), fill="nan", dtype=tf32)
    words = np.random.default_rng(3).integers(0, 2**32, (64, 16), np.uint32)
    words[8:16] = words[8:16] & 0xFFFFE000 | 0x1000  # halfway between two neighbours
    words[16] = (0, 1, 0x80000000, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7F7FFFFF, 0x1000, 0x3000, *range(7))
    words[17] |= 0x7F800000
    yield load_case("tf32 values", words.view(np.float32), (64, 16), (0, 0), dtype=tf32)


def stores() -> Iterator[Case]:
    """Stores skip elements out of bounds, undo the swizzle, and skip elements by their strides.

    No coordinate is negative: the H200 raises an illegal instruction for a store or reduction with one.
    """
    for row, column in ((0, 0), (3, 4), (4, 8), (5, 0), (0, 12)):
        values = numbered((4, 8), np.float32)
        yield store_case(f"{row} {column}", np.full((5, 12), -1, np.float32)[:, :10], (4, 8), (row, column), values)
    for mode in (32, 64, 128):
        values = numbered((16, mode // 2), np.uint16)
        yield store_case(
            f"swizzle {mode}", np.zeros((16, mode // 2), np.uint16), values.shape, (0, 0), values, swizzle=mode
        )
    for mode, inner in ((32, 16), (64, 16), (64, 32), (128, 32), (128, 64)):
        values = numbered((16, mode // 2), np.uint16)
        narrow = np.zeros((16, inner // 2), np.uint16)
        yield store_case(f"swizzle {mode} inner {inner}", narrow, narrow.shape, (0, 0), values, swizzle=mode)
    for at in ((0, 0), (1, 4), (9, 0)):
        values = numbered((4, 8), np.float32)
        array = np.zeros((12, 8), np.float32)
        yield store_case(f"every second at {at}", array, (7, 8), at, values, element_strides=(2, 1))


def reductions() -> Iterator[Case]:
    """Each operation of cp.reduce.async.bulk.tensor on each element type, floats with special values."""
    rng = np.random.default_rng(7)
    for op, names in {
        "add": ("uint32", "int32", "uint64", "float32", "float16", "bfloat16"),
        "min": ("uint32", "int32", "uint64", "int64", "float16", "bfloat16"),
        "max": ("uint32", "int32", "uint64", "int64", "float16", "bfloat16"),
        "inc": ("uint32",),
        "dec": ("uint32",),
        "and": ("uint32", "uint64"),
        "or": ("uint32", "uint64"),
        "xor": ("uint32", "uint64"),
    }.items():
        for name in names:
            dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
            old, new = (operands(rng, dtype) for _ in range(2))
            yield store_case(f"{op} {name}", old, (16, 32), (1, 0), new, op)


def bulk_reductions() -> Iterator[Case]:
    """Each operation of cp.reduce.async.bulk on each type, floats with special values."""
    rng = np.random.default_rng(8)
    for op in (
        *("add.f32", "add.f64", "add.noftz.f16", "add.noftz.bf16", "min.f16", "max.f16", "min.bf16", "max.bf16"),
        *("add.u32", "add.s32", "add.u64", "min.s32", "max.u32", "min.s64", "max.u64", "inc.u32", "dec.u32"),
        *("and.b32", "or.b64", "xor.b32"),
    ):
        dtype = np.dtype(of_name(op.rpartition(".")[2]).dtype)
        old, new = (operands(rng, dtype) for _ in range(2))
        yield Case(op, texts.bulk_reduce(op), [old, new, new.nbytes], old, smem=1024 + new.nbytes)


def operands(rng: np.random.Generator, dtype: np.dtype[Any]) -> Array:
    """Returns (16, 32) values: of every magnitude, pairs of small values, and the special values of floats."""
    if dtype.kind in "iu":
        wide = rng.integers(0, 2**63, (16, 32), np.uint64) >> rng.integers(0, 60, (16, 32), np.uint64)
        return np.asarray(wide, dtype)
    raw: Array = rng.integers(0, 256, (16, 32 * dtype.itemsize), np.uint8).view(dtype).copy()
    with np.errstate(invalid="ignore"):
        raw[~np.isfinite(raw)] = dtype.type(1.5)
    raw[8:] = rng.standard_normal((8, 32)).astype(dtype)
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    tiny = info.smallest_subnormal
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, info.max], dtype)
    raw[4:8] = rng.choice(special, (4, 32))
    return raw


def multicasts() -> Iterator[Case]:
    """The CTAs that receive the bytes, the address, and the bytes that complete in each."""
    for size, masks in (
        (2, (0b11, 0b11)),
        (2, (0b10, 0b01)),
        (4, (0b1111, 0, 0b0101, 0b0010)),
        (4, (0b1000, 0b1111, 0b0110, 0)),
        (8, (0xFF, 0, 0x81, 0, 0, 0x7E, 0, 0x0F)),
    ):
        array = numbered((size, 64), np.uint16)
        row, total = 128, 128 * size
        sent = np.array(masks, np.uint16)
        expected = np.array([row * sum(mask >> rank & 1 for mask in masks) for rank in range(size)], np.uint32)
        out = np.zeros((size, total // 4 + 1), np.uint32)
        args = [TensorMap(array, (1, 64)), out, total, row, sent, expected]
        yield Case(f"{size} {masks}", texts.multicast(), args, out, smem=1024 + total, cluster=size)
