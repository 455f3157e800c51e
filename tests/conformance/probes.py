"""The probes: launches of short kernels, their data, and the argument that has the answer.

The answers of an H200 (driver 580, CUDA 13.0) are stored in ``golden/``; `test_probes` compares the virtual H200 with
them on any machine, and ``tests/gpu`` a real one. ``python -m tests.conformance.record`` records them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from tests.conformance import (
    arithmetic,
    atomics,
    barriers,
    copies,
    pixels,
    refusals,
    texts,
    warp_copies,
    warpgroups,
    warps,
)
from tests.conformance.cases import Case, Probe, numbered
from warpwright.errors import DeviceError
from warpwright.types import of_name, tf32

__all__ = ["FAULTS", "GOLDEN", "PROBES", "REFUSALS", "Probe", "answer", "answers", "golden", "store"]

GOLDEN = Path(__file__).parent / "golden"
GOES_ON, FAULTS = 0, 1
bf16 = ml_dtypes.bfloat16


def load_case(
    name: str, array: np.ndarray, box: tuple[int, ...], at: tuple[int, ...], offset: int = 0, **map: Any
) -> Case:
    """Returns the case of a box at ``at`` (array order), loaded to ``offset``."""
    tensor = ww.TensorMap(array, box, **map)
    wide = max(1, tensor.swizzle // (tensor.box[0] * tensor.dtype.nbytes))  # room for rows as wide as the pattern
    total = -(-(offset + wide * tensor.nbytes) // 1024) * 1024
    out = np.zeros(total // 4 + 1, np.uint32)
    args = [tensor, out, total, offset, tensor.nbytes, *reversed(at)]
    return Case(name, texts.load(array.ndim), args, out, smem=1024 + total)


def store_case(
    name: str,
    array: np.ndarray,
    box: tuple[int, ...],
    at: tuple[int, ...],
    values: np.ndarray,
    op: str = "",
    **map: Any,
) -> Case:
    tensor = ww.TensorMap(array, box, **map)
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
    for at in ((0,), (-8,), (16,), (24,), (-16,), (2**31 - 8,), (-(2**31),)):
        yield load_case(f"1d {at}", numbered((20,), np.uint16), (16,), at)
    for at in ((0, 0, 0), (-1, 2, 16), (2, -1, -16), (2, 4, 16), (3, 0, 0)):
        yield load_case(f"3d {at}", numbered((3, 5, 32), np.uint8)[:, :, :25], (2, 3, 32), at)
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
    """Boxes with a start that is no multiple of 16 bytes, a store at a negative coordinate, or too large a box."""
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
    """Each operation on each element type, floats with special values."""
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
    """Bulk reductions."""
    rng = np.random.default_rng(8)
    for op in (
        *("add.f32", "add.f64", "add.noftz.f16", "add.noftz.bf16", "min.f16", "max.f16", "min.bf16", "max.bf16"),
        *("add.u32", "add.s32", "add.u64", "min.s32", "max.u32", "min.s64", "max.u64", "inc.u32", "dec.u32"),
        *("and.b32", "or.b64", "xor.b32"),
    ):
        dtype = of_name(op.rpartition(".")[2]).dtype
        old, new = (operands(rng, dtype) for _ in range(2))
        yield Case(op, texts.bulk_reduce(op), [old, new, new.nbytes], old, smem=1024 + new.nbytes)


def operands(rng: np.random.Generator, dtype: np.dtype[Any]) -> np.ndarray:
    """Returns (16, 32) values: of every magnitude, pairs of small values, and the special values of floats."""
    if dtype.kind in "iu":
        wide = rng.integers(0, 2**63, (16, 32), np.uint64) >> rng.integers(0, 60, (16, 32), np.uint64)
        return wide.astype(dtype)
    raw = rng.integers(0, 256, (16, 32 * dtype.itemsize), np.uint8).view(dtype).copy()
    with np.errstate(invalid="ignore"):
        raw[~np.isfinite(raw)] = dtype.type(1.5)
    raw[8:] = rng.standard_normal((8, 32)).astype(dtype)
    tiny = ml_dtypes.finfo(dtype).smallest_subnormal
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, ml_dtypes.finfo(dtype).max], dtype)
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
        args = [ww.TensorMap(array, (1, 64)), out, total, row, sent, expected]
        yield Case(f"{size} {masks}", texts.multicast(), args, out, smem=1024 + total, cluster=size)


def mbarrier_phases() -> Iterator[Case]:
    """The end of a phase, and the result of a wait for either parity."""
    for count, script in (
        (1, "arrive; arrive; arrive"),
        (3, "arrive; arrive 2; arrive 3; pending 1; pending 1; arrive"),
        (1, "arrive.expect_tx 64; complete_tx 32; complete_tx 32; arrive"),
        (2, "expect_tx 16; arrive; complete_tx 16; arrive"),
        (2, "complete_tx 16; arrive; expect_tx 16; arrive"),
        (1, "complete_tx 48; arrive.expect_tx 48; arrive"),
        (1, "expect_tx 0; arrive.expect_tx 0; complete_tx 0; arrive"),
        (1, "expect_tx 1048575; complete_tx 1048574; arrive; complete_tx 1; arrive"),
        (3, "arrive_drop; arrive 2; arrive; arrive; arrive 2"),
        (3, "arrive_drop 2; arrive; arrive; arrive"),
        (1048575, "pending 1048574; arrive; pending 4; arrive 1048571"),
        (4, "arrive 4; init 2; arrive; arrive; init 1; arrive"),
        (2, "arrive_drop.expect_tx 8; complete_tx 8; arrive; arrive"),
    ):
        steps = script.split("; ")
        out = np.zeros((len(steps) + 1, 2), np.uint32)
        yield Case(f"{count}: {script}", texts.phases(count, steps), [out], out, block=1)


def elections() -> Iterator[Case]:
    """The lane that elect.sync chooses."""
    for mask in (0xFFFFFFFF, 0x80000000, 0x00010001, 0xFFFFFFFE, 0x0F0F0F00, 0xAAAAAAAA):
        out = np.zeros(32, np.uint32)
        yield Case(f"{mask:#x}", texts.elected(), [out, mask], out, block=32)


def shared_addresses() -> Iterator[Case]:
    """The addresses of static and dynamic shared memory, and the sizes in special registers."""
    for smem in (0, 4, 1000, 40000, 200000):
        out = np.zeros(5, np.uint32)
        yield Case(f"{smem}", texts.addresses(), [out], out, smem=smem, block=1)


def wgmma_sums() -> Iterator[Case]:
    """The rounding of wgmma's accumulation, with and without an accumulator; integers are exact."""
    rng = np.random.default_rng(11)
    for form, dtype in {
        "k16.f32.f16.f16": np.float16,
        "k16.f16.f16.f16": np.float16,
        "k16.f32.bf16.bf16": bf16,
        "k8.f32.tf32.tf32": np.float32,
        "k32.f32.e4m3.e4m3": ml_dtypes.float8_e4m3fn,
        "k32.f32.e5m2.e5m2": ml_dtypes.float8_e5m2,
        "k32.f16.e4m3.e4m3": ml_dtypes.float8_e4m3fn,
        "k32.s32.s8.s8": np.int8,
    }.items():
        for accumulate in (0, 1):
            yield sum_case(rng, form, np.dtype(dtype), accumulate)


def sum_case(rng: np.random.Generator, form: str, dtype: np.dtype[Any], accumulate: int) -> Case:
    """A (64 rows of 32 bytes) and B (8 rows) of widely spread magnitudes, K-major, not swizzled."""
    count, d_type = 72 * 32 // dtype.itemsize, form.split(".")[1]
    spread = rng.standard_normal(count) * 2.0 ** rng.integers(-4, 5, count)
    values = rng.integers(-128, 128, count) if d_type == "s32" else spread
    image = np.zeros(3072, np.uint8)
    image[: 72 * 32] = values.astype(dtype).view(np.uint8)
    kind = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d_type]
    d = (rng.standard_normal(512) * 50).astype(kind).reshape(128, 4)
    scales = {"s32": ""}.get(d_type, ", 1, 1") + (", 0, 0" if form.startswith("k16") else "")
    text = texts.wgmma(f"m64n8{form}", d.nbytes // 512, f"{accumulate}{scales}")
    bounds = 128 >> 4 << 16 | 256 >> 4 << 32
    args = [image, image.size, d, bounds, bounds | 2048 >> 4]
    return Case(f"{form} {accumulate}", text, args, d, smem=1024 + image.size)


def wgmma_starts() -> Iterator[Case]:
    """Operands that start inside their swizzle pattern: the pattern is that of absolute addresses."""
    rng = np.random.default_rng(12)
    image = rng.standard_normal(10240 // 2).astype(bf16)
    for mode, width in ((1, 128), (2, 64), (3, 32)):
        for start in (0, 32, 128, 256, 384, 896):
            d = np.zeros((128, 4), np.float32)
            text = texts.wgmma("m64n8k16.f32.bf16.bf16", 4, "0, 1, 1, 0, 0")
            bounds = mode << 62 | 1 << 16 | 8 * width >> 4 << 32
            args = [image, image.nbytes, d, bounds | start >> 4, bounds]
            yield Case(f"{width} start {start}", text, args, d, smem=1024 + image.nbytes)


PROBES = [
    Probe("wgmma_sums", wgmma_sums),
    Probe("wgmma_starts", wgmma_starts),
    Probe("swizzles", swizzles),
    Probe("edges", edges),
    Probe("corners", corners),
    Probe("steps", steps),
    Probe("fills", fills),
    Probe("hints", hints),
    Probe("multicasts", multicasts),
    Probe("mbarrier_phases", mbarrier_phases),
    Probe("elections", elections),
    Probe("shared_addresses", shared_addresses),
    Probe("reductions", reductions),
    Probe("bulk_reductions", bulk_reductions),
    Probe("edge_reductions", edge_reductions),
    Probe("stores", stores),
    *warps.PROBES,
    *warpgroups.PROBES,
    *barriers.PROBES,
    *copies.PROBES,
    *warp_copies.PROBES,
    *pixels.PROBES,
    *atomics.PROBES,
    *arithmetic.PROBES,
]
REFUSALS = [
    Probe("refused_boxes", refused_boxes),
    *refusals.PROBES,
    *pixels.REFUSALS,
]  # a fault ends a process's use of a real GPU


def answers(probe: Probe, device: Any) -> dict[str, np.ndarray]:
    """Returns the answers of ``device`` as bytes, which distinguish NaN patterns."""
    return {case.name: answer(case, device) for case in probe.cases()}


def answer(case: Case, device: Any) -> np.ndarray:
    module = ww.load_ptx(case.text)
    (name,) = module
    grid, shape = case.grid or case.cluster, {"block": case.block, "cluster": case.cluster, "smem": case.smem}
    try:
        ww.launch(module[name], grid, args=case.args, device=device, **shape)
    except DeviceError:
        if not case.refused:
            raise
        return np.array([FAULTS], np.uint8)
    kept = np.array([GOES_ON], np.uint8) if case.refused else case.keep(case.answer)
    return np.ascontiguousarray(kept).view(np.uint8).reshape(-1)


def golden(probe: Probe, folder: Path = GOLDEN) -> dict[str, np.ndarray]:
    """Returns the stored answers of the H200."""
    with np.load(folder / f"{probe.name}.npz") as stored:
        ends = np.cumsum(stored["sizes"])
        return dict(zip(stored["names"].tolist(), np.split(stored["data"], ends[:-1]), strict=True))


def store(path: Path, found: dict[str, np.ndarray]) -> None:
    """Write all answers as one array, a third of the size of separate arrays."""
    parts = list(found.values())
    data = np.concatenate([*parts, np.zeros(0, np.uint8)])
    np.savez_compressed(path, names=np.array(list(found)), sizes=np.array([part.size for part in parts]), data=data)
