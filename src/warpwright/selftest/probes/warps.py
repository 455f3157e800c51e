"""Probes of warp-level instructions: ldmatrix, stmatrix, mma.sync, shuffles and votes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from warpwright.selftest.probes import texts
from warpwright.selftest.probes.cases import Array, Case, numbered, threads_case

__all__ = [
    "barrier_votes",
    "double_products",
    "elections",
    "lane_exchanges",
    "listed",
    "matrix_loads",
    "matrix_stores",
    "no_ops",
    "shared_addresses",
    "special_registers",
    "special_values",
    "values",
    "warp_products",
]

TYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "f32": np.float32,
    "s32": np.int32,
    "f64": np.float64,
}


def listed(prefix: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%{prefix}{n}" for n in range(first, first + count)) + "}"


def values(rng: np.random.Generator, type: str, shape: tuple[int, ...], kind: str) -> Array:
    """32-bit words full of values of a type: ``"spread"`` in magnitude, ``"whole"`` small numbers whose sums are
    exact, ``"special"`` ones, or ``"zero"``."""
    dtype = np.dtype(TYPES[type])
    count = int(np.prod(shape)) * 4 // dtype.itemsize
    if kind == "zero":
        made = np.zeros(count)
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        made = rng.integers(info.min, info.max, count, dtype, endpoint=True)
    elif kind == "whole":
        made = rng.integers(-7, 8, count)
    else:
        made = rng.standard_normal(count) * 2.0 ** rng.integers(-6, 5, count)
    result = made.astype(dtype)
    if kind == "special" and dtype.kind not in "iu":
        chosen = rng.random(count) < 0.02
        result[chosen] = rng.choice(special_values(dtype), int(chosen.sum()))
    return result.view(np.uint32).reshape(shape)


def special_values(dtype: np.dtype[Any]) -> Array:
    """Returns zeros, infinities, NaN, the minimum and maximum magnitudes."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    extremes = [info.smallest_subnormal, -info.smallest_subnormal, info.smallest_normal, info.max, -info.max]
    unbounded = [] if dtype.name == "float8_e4m3fn" else [np.inf, -np.inf]
    return np.array([0.0, -0.0, np.nan, *unbounded, *map(float, extremes)], dtype)


def row_offsets(rng: np.random.Generator, used: int) -> Array:
    """Returns the offset of a distinct 16-byte row for each lane; lanes from ``used`` on have an invalid address."""
    rows = rng.permutation(64)[:32].astype(np.uint32) * 16
    rows[used:] = 0x00F0_0003
    return rows[:, None]


def matrix_loads() -> Iterator[Case]:
    """ldmatrix: the lane that addresses each register's row; unused addresses are ignored."""
    rng = np.random.default_rng(21)
    image = numbered((512,), np.uint16)
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            load = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {listed('o', count)}, [%n];\n"
            body = f"    add.u32 %n, %base, %i0;\n    {load}"
            yield threads_case(f"x{count}{trans}", body, row_offsets(rng, 8 * count), count, image)


def matrix_stores() -> Iterator[Case]:
    """stmatrix, and movmatrix."""
    rng = np.random.default_rng(22)
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            store = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%n], {listed('i', count, 1)};\n"
            body = f"    add.u32 %n, %base, %i0;\n    {store}"
            words = numbered((64 * count,), np.uint16).view(np.uint32).reshape(32, count)
            given = np.concatenate([row_offsets(rng, 8 * count), words], axis=1)
            yield threads_case(f"x{count}{trans}", body, given, 0, np.zeros(1024, np.uint8), dump=True)
    words = numbered((64,), np.uint16).view(np.uint32)[:, None]
    yield threads_case("movmatrix", "    movmatrix.sync.aligned.m8n8.trans.b16 %o0, %i0;\n", words, 1)


# shape, modifier, types of D, A, B
MMA = (
    *((shape, "", d, "f16", "f16") for shape in ("m16n8k8", "m16n8k16") for d in ("f32", "f16")),
    *((shape, "", "f32", "bf16", "bf16") for shape in ("m16n8k8", "m16n8k16")),
    *((shape, "", "f32", "tf32", "tf32") for shape in ("m16n8k4", "m16n8k8")),
    *(("m16n8k32", "", d, a, b) for d in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(("m16n8k16", "", d, a, a) for d in ("f32", "f16") for a in ("e4m3", "e5m2")),
    *((shape, "", "s32", a, b) for shape in ("m16n8k16", "m16n8k32") for a in ("s8", "u8") for b in ("s8", "u8")),
    ("m16n8k32", ".satfinite", "s32", "s8", "u8"),
)


def warp_products() -> Iterator[Case]:
    """mma.sync: layouts (integers), rounding (spread magnitudes), infinities and NaN, with C and without."""
    rng = np.random.default_rng(23)
    for form in MMA:
        kinds = ("spread", "extreme") if form[2] == "s32" else ("whole", "spread", "zero", "special")
        for kind in kinds:
            yield product_case(rng, form, kind)


def product_case(rng: np.random.Generator, form: tuple[str, str, str, str, str], kind: str) -> Case:
    shape, modifier, d, a, b = form
    bits = {"s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "tf32": 32}.get(a, 16)
    a_count = int(shape[5:].partition("k")[2]) * bits // 64
    b_count, d_count = a_count // 2, 2 if d == "f16" else 4
    operands = "spread" if kind == "zero" else kind
    parts = [values(rng, type, (32, n), operands) for type, n in ((a, a_count), (b, b_count))]
    parts.append(values(rng, d, (32, d_count), kind))
    if kind == "extreme":  # sums beyond 32 bits
        parts[2] = np.resize(np.array([0x7FFFFFFF, 0x80000000, 0x7FFF0000, 0], np.uint32), (32, d_count))
    opcode = f"mma.sync.aligned.{shape}.row.col{modifier}.{d}.{a}.{b}.{d}"
    places = (("i", a_count, 0), ("i", b_count, a_count), ("i", d_count, a_count + b_count))
    body = f"    {opcode} {listed('o', d_count)}, {', '.join(listed(*place) for place in places)};\n"
    return threads_case(
        f"{shape}{modifier} {d} {a} {b} {kind}", body, np.concatenate(parts, axis=1), d_count, version="8.7"
    )


def double_products() -> Iterator[Case]:
    """The layout and the rounding of mma.sync of f64."""
    rng = np.random.default_rng(24)
    for shape, a, b, d in (("m8n8k4", 1, 1, 2), ("m16n8k4", 2, 1, 4), ("m16n8k8", 4, 2, 4), ("m16n8k16", 8, 4, 4)):
        count = a + b + d
        body = f"    .reg .f64 %x<{count}>, %d<{d}>;\n"
        body += "".join(f"    mov.b64 %x{n}, {{%i{2 * n}, %i{2 * n + 1}}};\n" for n in range(count))
        operands = ", ".join(listed("x", size, first) for size, first in ((a, 0), (b, a), (d, a + b)))
        body += f"    mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64 {listed('d', d)}, {operands};\n"
        body += "".join(f"    mov.b64 {{%o{2 * n}, %o{2 * n + 1}}}, %d{n};\n" for n in range(d))
        for kind in ("whole", "spread", "special"):
            yield threads_case(f"{shape} {kind}", body, values(rng, "f64", (32, 2 * count), kind), 2 * d)


def lane_exchanges() -> Iterator[Case]:
    """shfl with every mode, clamp and segment; vote, match, redux over parts of a warp."""
    rng = np.random.default_rng(25)
    words = rng.integers(0, 2**32, (32, 2), np.uint32)
    for mode in ("up", "down", "bfly", "idx"):
        clamps = (0, 0x1800, 0x1C04) if mode == "up" else (31, 0x181F, 0x1C03)
        for clamp in clamps:
            body = ""
            for n, by in enumerate((0, 1, 5, 17, 33)):
                body += f"    shfl.sync.{mode}.b32 %o{2 * n}|%more, %i0, {by}, {clamp}, 0xffffffff;\n"
                body += f"    selp.u32 %o{2 * n + 1}, 1, 0, %more;\n"
            yield threads_case(f"shfl {mode} {clamp:#x}", body, words, 10)
    few = words % np.array([4, 3], np.uint32)
    for mask in (0xFFFFFFFF, 0x0000FF0F, 0x80000001, 0x00000100):
        yield threads_case(f"votes {mask:#x}", for_lanes(mask, VOTES), few, 6)
    reductions = ("add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32")
    for mask in (0xFFFFFFFF, 0x0000FF0F, 0x80000001):
        body = "".join(f"    redux.sync.{op} %o{n}, %i0, MASK;\n" for n, op in enumerate(reductions))
        yield threads_case(f"redux {mask:#x}", for_lanes(mask, body), words, len(reductions))


VOTES = """    setp.eq.u32 %first, %i0, 1;
    vote.sync.ballot.b32 %o0, %first, MASK;
    vote.sync.any.pred %more, %first, MASK;
    selp.u32 %o1, 1, 0, %more;
    vote.sync.all.pred %more, %first, MASK;
    selp.u32 %o2, 1, 0, %more;
    vote.sync.uni.pred %more, %first, MASK;
    selp.u32 %o3, 1, 0, %more;
    match.any.sync.b32 %o4, %i0, MASK;
    match.all.sync.b32 %o5|%more, %i1, MASK;
"""


def for_lanes(mask: int, body: str) -> str:
    """Returns ``body`` for the lanes of a mask, named MASK in it."""
    enter = """    mov.u32 %m, %laneid;
    shl.b32 %m, 1, %m;
    and.b32 %m, %m, MASK;
    setp.eq.u32 %more, %m, 0;
    @%more bra SKIPPED;
"""
    return (enter + body + "SKIPPED:\n").replace("MASK", f"{mask:#x}")


def special_registers() -> Iterator[Case]:
    """Thread, CTA and cluster indices in clusters of several shapes; lane masks."""
    names = [f"{name}.{axis}" for name in ("ctaid", "nctaid", "clusterid", "nclusterid") for axis in "xyz"]
    names += [f"{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid") for axis in "xyz"]
    names += ["cluster_ctarank", "cluster_nctarank", "laneid", "ntid.x", "tid.x"]
    names += [f"lanemask_{name}" for name in ("eq", "le", "lt", "ge", "gt")]
    body = "".join(f"    mov.u32 %o{n}, %{name};\n" for n, name in enumerate(names))
    body += f"    mov.pred %more, %is_explicit_cluster;\n    selp.u32 %o{len(names)}, 1, 0, %more;\n"
    for cluster in ((1, 1, 1), (2, 1, 1), (1, 2, 2), (2, 2, 2), (4, 1, 2), (1, 1, 8)):
        grid = (2 * cluster[0], 3 * cluster[1], cluster[2])
        yield threads_case(f"{cluster}", body, None, len(names) + 1, cluster=cluster, grid=grid)


def barrier_votes() -> Iterator[Case]:
    """bar.red of all threads and of some warps."""
    rng = np.random.default_rng(27)
    body = """    setp.ne.u32 %more, %i0, 0;
    bar.red.popc.u32 %o0, 0, %more;
    bar.red.and.pred %first, 1, %more;
    selp.u32 %o1, 1, 0, %first;
    bar.red.or.pred %first, 2, !%more;
    selp.u32 %o2, 1, 0, %first;
    setp.lt.u32 %first, %t, 64;
    @!%first bra OTHERS;
    bar.red.popc.u32 %o3, 3, 64, %more;
    bar.red.and.pred %first, 4, 64, %more;
    selp.u32 %o4, 1, 0, %first;
OTHERS:
"""
    for name, given in (("some", rng.integers(0, 2, 96)), ("none", np.zeros(96)), ("all", np.ones(96))):
        yield threads_case(name, body, given.astype(np.uint32)[:, None], 5, block=96)


def no_ops() -> Iterator[Case]:
    """Instructions that must not change a result: setmaxnreg, griddepcontrol, prefetches, nanosleep."""
    rng = np.random.default_rng(26)
    words = rng.integers(0, 2**32, (384, 2), np.uint32)
    body = """    add.u32 %o0, %i0, %i1;
    griddepcontrol.launch_dependents;
    griddepcontrol.wait;
    prefetch.global.L2 [%given];
    ld.param.u64 %place, [given];
    cp.async.bulk.prefetch.L2.global [%place], 16;
    nanosleep.u32 20;
    setp.lt.u32 %more, %t, 128;
    @%more bra LESS;
    setmaxnreg.inc.sync.aligned.u32 208;
    bra BOTH;
LESS:
    setmaxnreg.dec.sync.aligned.u32 40;
BOTH:
    griddepcontrol.wait;
    xor.b32 %o1, %i0, %i1;
"""
    demands = ".maxntid 384\n.minnctapersm 1\n"
    yield threads_case("three warpgroups", body, words, 2, block=384, demands=demands)


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
