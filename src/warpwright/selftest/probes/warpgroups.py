"""Probes of wgmma: fragments, every N, operands of either major-ness, descriptors, negation, special values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from warpwright.selftest.probes import texts
from warpwright.selftest.probes.cases import Array, Case, sums, threads_case
from warpwright.selftest.probes.warps import listed, values

__all__ = [
    "wgmma_bases",
    "wgmma_fragments",
    "wgmma_majors",
    "wgmma_offsets",
    "wgmma_signs",
    "wgmma_starts",
    "wgmma_sums",
    "wgmma_widths",
]

FORMS = (
    *(("k16", d, "f16", "f16") for d in ("f32", "f16")),
    *(("k16", "f32", "bf16", "bf16"), ("k8", "f32", "tf32", "tf32")),
    *(("k32", d, a, b) for d in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(("k32", "s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
)
BF16 = ("k16", "f32", "bf16", "bf16")
Form = tuple[str, str, str, str]
SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}


def descriptor(start: int, lbo: int, sbo: int, swizzle: int = 0, base: int = 0) -> int:
    """Returns the bits of a matrix descriptor; ``start`` is relative to the arena."""
    return start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | base << 49 | SWIZZLES[swizzle] << 62


A_PLAIN = descriptor(0, 128, 256)
B_PLAIN = descriptor(2048, 128, 256)


def by_warp(answer: Array) -> Array:
    return sums(answer.reshape(4, -1))


def product_case(
    rng: np.random.Generator,
    name: str,
    form: Form,
    n: int,
    a: int | None = A_PLAIN,
    b: int = B_PLAIN,
    *,
    image: Array | None = None,
    accumulate: int = 1,
    scales: Sequence[int] = (1, 1),
    trans: Sequence[int] = (0, 0),
    kind: str = "whole",
    keep: Callable[[Array], Array] = sums,
    modifier: str = "",
) -> Case:
    """One wgmma; ``a`` is None for A in registers. Words of a thread: descriptors, scale-d, A, D."""
    k, d_type, a_type, b_type = form
    count = n // 4 if d_type == "f16" else n // 2
    registers = 4 if a is None else 0
    parts = [np.tile(np.array([a or 0, b], np.uint64).view(np.uint32), (128, 1))]
    parts.append(np.full((128, 1), accumulate, np.uint32))
    if registers:
        parts.append(values(rng, a_type, (128, 4), kind))
    parts.append(values(rng, d_type, (128, count), kind))
    if image is None:
        rows = [values(rng, type, (size // 4,), kind) for type, size in ((a_type, 2048), (b_type, 32 * n))]
        image = np.concatenate(rows)
    immediates = [] if d_type == "s32" else [*scales, *(trans[-1:] if registers else trans)]
    if k != "k16":
        immediates = immediates[:2]
    left = listed("i", 4, 5) if registers else "%a"
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}{k}.{d_type}.{a_type}.{b_type}{modifier}"
    operands = ", ".join([listed("o", count), left, "%b", "%more", *map(str, immediates)])
    body = START + "".join(f"    mov.b32 %o{v}, %i{5 + registers + v};\n" for v in range(count))
    body += f"    wgmma.fence.sync.aligned;\n    {opcode} {operands};\n{END}"
    return threads_case(name, body, np.concatenate(parts, axis=1), count, image, block=128, keep=keep)


START = """    .reg .b64 %a, %b;
    shr.u32 %n, %base, 4;
    cvt.u64.u32 %wide, %n;
    mov.b64 %a, {%i0, %i1};
    mov.b64 %b, {%i2, %i3};
    add.u64 %a, %a, %wide;
    add.u64 %b, %b, %wide;
    setp.ne.u32 %more, %i4, 0;
"""
END = """    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
"""


def wgmma_fragments() -> Iterator[Case]:
    """The registers of D, and of A in registers, of every type: integers, whose sums are exact."""
    rng = np.random.default_rng(51)
    for form, n, a in product(FORMS, (8, 24), (A_PLAIN, None)):
        where = "shared" if a is not None else "registers"
        yield product_case(rng, f"{'.'.join(form)} n{n} {where}", form, n, a)


def wgmma_widths() -> Iterator[Case]:
    """wgmma of every N; integer types have fewer."""
    rng = np.random.default_rng(52)
    for n in range(8, 257, 8):
        yield product_case(rng, f"bf16 {n}", BF16, n, keep=by_warp)
    for n in (8, 16, 24, 32, 48, 112, 240, 256):
        yield product_case(rng, f"s8 {n}", ("k32", "s32", "s8", "s8"), n, keep=by_warp)
    for n in (16, 104, 256):
        yield product_case(rng, f"f16 {n}", ("k16", "f16", "f16", "f16"), n, keep=by_warp)


def wgmma_majors() -> Iterator[Case]:
    """Operands of either major-ness, swizzled or not; byte offsets that are multiples of the pattern and not."""
    rng = np.random.default_rng(53)
    image = values(rng, "bf16", (9216,), "whole")
    for mode, trans in product((0, 32, 64, 128), ((0, 1), (1, 0), (1, 1))):
        for lbo, sbo in ((2048, 1024), (1040, 400)) if mode == 0 else ((2048, 1024), (1152, 2432)):
            a, b = descriptor(0, lbo, sbo, mode), descriptor(4096, lbo, sbo, mode)
            name = f"{mode} trans {trans} offsets {lbo} {sbo}"
            yield product_case(rng, name, BF16, 64, a, b, image=image, trans=trans)
    for mode in (0, 32, 64, 128):
        b = descriptor(0, 2048, 1024, mode)
        yield product_case(rng, f"{mode} registers", BF16, 40, None, b, image=image, trans=(0, 1))
        wide = descriptor(0, 1024, 512, mode)
        yield product_case(rng, f"{mode} n256", BF16, 256, None, wide, image=image, trans=(0, 1), keep=by_warp)


def wgmma_offsets() -> Iterator[Case]:
    """K-major descriptors: the effect of each byte offset; LBO of a swizzled operand has none."""
    rng = np.random.default_rng(54)
    image = values(rng, "bf16", (8192,), "whole")
    for mode in (0, 32, 64, 128):
        for lbo, sbo in ((16, 1024), (0, 1024), (4096, 1024), (128, 0), (208, 1168), (1024, 1152)):
            a = descriptor(0, lbo, sbo, mode)
            yield product_case(rng, f"{mode} offsets {lbo} {sbo}", BF16, 8, a, descriptor(30720, 128, 256), image=image)


IDENTITY = 12288  # where the operand is that picks elements of the other one
IMAGE = np.zeros(IDENTITY // 2 + 1024, np.uint16)
IMAGE[: IDENTITY // 2] = 0x3000 + np.arange(IDENTITY // 2)  # bfloat16, no two the same
for _row in range(16):  # K-major, not swizzled: 8 rows of 16 bytes, K from 8 on 128 bytes further
    IMAGE[IDENTITY // 2 + _row // 8 * 128 + _row % 8 * 8 + _row // 8 * 64 + _row % 8] = 0x3F80
PICK = descriptor(IDENTITY, 128, 256)


def first_of_rows(answer: Array) -> Array:
    """Columns 0 and 8 of D as bfloat16: which chunk of 16 bytes each half of a K-major row is."""
    return (answer.reshape(4, 8, 4, 8)[:, :, 0, ::2] >> 16).astype(np.uint16)


def first_of_columns(answer: Array) -> Array:
    """Rows 0, 8, … of D as bfloat16: which chunk each eight rows of an MN-major column are."""
    return (answer.reshape(4, 8, 4, 8)[:, 0] >> 16).astype(np.uint16)


def first_lines(answer: Array) -> Array:
    """Rows 0 and 8 of D as bfloat16, for B."""
    return np.asarray(answer.reshape(4, 8, 4, -1)[0, 0] >> 16, np.uint16)


def wgmma_bases() -> Iterator[Case]:
    """Base offsets other than 0, with operands that start at and inside a repeat of the swizzle pattern."""
    rng = np.random.default_rng(55)
    for mode, start, base in product((128, 64, 32), STARTS, range(8)):
        a = descriptor(start, 16, 8 * mode, mode, base)
        yield base_case(rng, f"{mode} start {start} base {base}", a, PICK, (0, 0), first_of_rows)
    for mode, start, base in product((128, 64, 32), STARTS[::3], range(8)):
        a = descriptor(start, 2048, 1024, mode, base)
        yield base_case(rng, f"{mode} start {start} base {base} M-major", a, PICK, (1, 0), first_of_columns)
    for mode, start, base in product((128, 64, 32), (0, 384), range(8)):
        b = descriptor(start, 16, 8 * mode, mode, base)
        yield base_case(rng, f"{mode} start {start} base {base} B", PICK, b, (0, 0), first_lines, 64)


STARTS = (0, 32, 128, 160, 256, 384, 512, 640, 768, 896, 1152)


def base_case(
    rng: np.random.Generator,
    name: str,
    a: int,
    b: int,
    trans: tuple[int, int],
    keep: Callable[[Array], Array],
    n: int = 16,
) -> Case:
    return product_case(rng, name, BF16, n, a, b, image=IMAGE, accumulate=0, trans=trans, keep=keep)


def wgmma_signs() -> Iterator[Case]:
    """Negated operands, with an accumulator and without; sums beyond 32 bits; infinities and NaN."""
    rng = np.random.default_rng(56)
    for form in (FORMS[0], FORMS[1], BF16, ("k8", "f32", "tf32", "tf32"), ("k32", "f32", "e4m3", "e5m2")):
        for scales, accumulate in product(((1, -1), (-1, 1), (-1, -1)), (0, 1)):
            name = f"{'.'.join(form)} {scales} {accumulate}"
            yield product_case(rng, name, form, 8, scales=scales, accumulate=accumulate, kind="spread")
    for form, a in product(FORMS[:-4], (A_PLAIN, None)):
        name = f"{'.'.join(form)} special {'shared' if a is not None else 'registers'}"
        yield product_case(rng, name, form, 8, a, kind="special")
    for modifier in ("", ".satfinite"):
        form = ("k32", "s32", "u8", "s8")
        case = product_case(rng, f"s32{modifier}", form, 8, modifier=modifier)
        case.args[0][: 128 * 9].reshape(128, 9)[:, 5:] = np.array([0x7FFFFFFF, 0x80000000, 0x7FFFF000, 0], np.uint32)
        yield case


def wgmma_sums() -> Iterator[Case]:
    """The rounding of wgmma's accumulation, with and without an accumulator; integers are exact."""
    rng = np.random.default_rng(11)
    for form, dtype in {
        "k16.f32.f16.f16": np.float16,
        "k16.f16.f16.f16": np.float16,
        "k16.f32.bf16.bf16": ml_dtypes.bfloat16,
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
    image = rng.standard_normal(10240 // 2).astype(ml_dtypes.bfloat16)
    for mode, width in ((1, 128), (2, 64), (3, 32)):
        for start in (0, 32, 128, 256, 384, 896):
            d = np.zeros((128, 4), np.float32)
            text = texts.wgmma("m64n8k16.f32.bf16.bf16", 4, "0, 1, 1, 0, 0")
            bounds = mode << 62 | 1 << 16 | 8 * width >> 4 << 32
            args = [image, image.nbytes, d, bounds | start >> 4, bounds]
            yield Case(f"{width} start {start}", text, args, d, smem=1024 + image.nbytes)
