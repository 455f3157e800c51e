"""Probes of tcgen05: loads and stores of tensor memory, products of every layout and type, copies, CTA pairs.

A CTA has 128 threads. Tensor memory is filled from the words of the threads, one operation runs, and the words of all
lanes are the answer. Accumulators are columns 0 to 63, an A in tensor memory begins at column 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from warpwright.layout import ATOM_32B, InstrDescriptor, SmemDescriptor
from warpwright.layout.swizzle import Mode
from warpwright.selftest.probes.cases import Array, Case, numbered, sums, threads_case
from warpwright.selftest.probes.warps import TYPES, listed, values

__all__ = [
    "tensor_addresses",
    "tensor_integers",
    "tensor_layouts",
    "tensor_loads",
    "tensor_modifiers",
    "tensor_pairs",
    "tensor_shifts",
    "tensor_smem_copies",
    "tensor_starts",
    "tensor_stores",
    "tensor_sums",
    "tensor_types",
    "tensor_weights",
]

THREADS, A_COLUMN = 128, 64
A_BYTES, B_BYTES = 16 << 10, 8 << 10
REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}  # for each num of a shape
OFFSETS: dict[Mode, tuple[int, int]] = {0: (128, 256), 32: (16, 256), 64: (16, 512), 128: (16, 1024)}  # LBO, SBO
BF16 = InstrDescriptor("f16", "bf16", "bf16", "f32", 128, 32)

OPEN = """    .reg .b32 %tmem, %own, %bar, %rank;
    .reg .b64 %a, %b;
    .reg .pred %ready, %leader;
    .shared .align 8 .b64 full;
    .shared .align 4 .b32 place;
    mov.u32 %m, place;
    setp.ge.u32 %more, %t, 32;
    @%more bra ALLOCATED;
    tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%m], 128;
    tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
ALLOCATED:
    mov.u32 %bar, full;
    @%first mbarrier.init.shared::cta.b64 [%bar], 1;
    @%first fence.mbarrier_init.release.cluster;
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    tcgen05.fence::after_thread_sync;
    ld.shared.b32 %tmem, [%m];
    shr.u32 %own, %t, 5;
    shl.b32 %own, %own, 21;
    add.u32 %own, %own, %tmem;
    mov.u32 %rank, %cluster_ctarank;
    setp.eq.and.u32 %leader, %rank, 0, %first;
"""
SYNC = """    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    tcgen05.fence::after_thread_sync;
"""
WAIT = """TENSOR_WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %ready, [%bar], 0;
    @!%ready bra TENSOR_WAIT;
    tcgen05.fence::after_thread_sync;
"""
CLOSE = """    setp.ge.u32 %more, %t, 32;
    @%more bra FREED;
    tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %tmem, 128;
FREED:
"""
DESCRIPTORS = """    shr.u32 %n, %base, 4;
    cvt.u64.u32 %wide, %n;
    mov.b64 %a, {%i0, %i1};
    mov.b64 %b, {%i2, %i3};
    add.u64 %a, %a, %wide;
    add.u64 %b, %b, %wide;
    setp.ne.u32 %more, %i5, 0;
"""
GIVEN = (
    6  # words of a thread before those of tensor memory: the descriptors of A, B and the instruction, enable-input-d
)


def store(columns: int, first: int, at: int = 0) -> str:
    """Stores words %i of each thread to columns of its lane."""
    name = f"tcgen05.st.sync.aligned.32x32b.x{columns}.b32"
    return f"    {name} [%own+{at}], {listed('i', columns, first)};\n    tcgen05.wait::st.sync.aligned;\n"


def load(columns: int) -> str:
    """Loads columns of each lane to words %o of its thread."""
    name = f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32"
    return f"    {name} {listed('o', columns)}, [%own];\n    tcgen05.wait::ld.sync.aligned;\n"


def commit(group: int) -> str:
    name = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    both = "    mov.u32 %n, 3;\n    cvt.u16.u32 %mask, %n;\n"
    if group == 1:
        return f"    @%leader {name}.b64 [%bar];\n{WAIT}"
    return f"    .reg .b16 %mask;\n{both}    @%leader {name}.multicast::cluster.b64 [%bar], %mask;\n{WAIT}"


def body(*parts: str, group: int = 1) -> str:
    """Returns the text that allocates tensor memory, runs ``parts`` and frees it."""
    return OPEN.format(group=group) + "".join(parts) + SYNC + CLOSE.format(group=group)


def words(*shape: int) -> Array:
    """Returns a distinct word for each thread and column."""
    return np.arange(1, np.prod(shape) + 1, dtype=np.uint32).reshape(shape) * np.uint32(0x00010003)


def tensor_loads() -> Iterator[Case]:
    """The lanes and columns that each shape of tcgen05.ld reads, with and without .pack::16b."""
    for shape, count, pack, lane in product(REGISTERS, (1, 2, 4, 8), ("", ".pack::16b"), (0, 16)):
        if lane and shape == "32x32b":
            continue
        registers = listed("o", count * REGISTERS[shape])
        split = ", 8" if shape == "16x32bx2" else ""
        read = f"    add.u32 %own, %own, {lane << 16};\n"
        read += f"    tcgen05.ld.sync.aligned.{shape}.x{count}{pack}.b32 {registers}, [%own]{split};\n"
        text = body(store(64, 0), SYNC, read, "    tcgen05.wait::ld.sync.aligned;\n")
        name = f"{shape} x{count}{pack} lane {lane}"
        yield threads_case(name, text, words(THREADS, 64), count * REGISTERS[shape], block=THREADS, version="8.8")


def tensor_stores() -> Iterator[Case]:
    """The lanes and columns that each shape of tcgen05.st writes, with and without .unpack::16b."""
    for shape, count, unpack, lane in product(REGISTERS, (1, 2, 4, 8), ("", ".unpack::16b"), (0, 16)):
        if lane and shape == "32x32b":
            continue
        registers = listed("i", count * REGISTERS[shape])
        split = "8, " if shape == "16x32bx2" else ""
        write = f"    add.u32 %n, %own, {lane << 16};\n"
        write += f"    tcgen05.st.sync.aligned.{shape}.x{count}{unpack}.b32 [%n], {split}{registers};\n"
        text = body(store(64, 0), SYNC, write, "    tcgen05.wait::st.sync.aligned;\n", SYNC, load(64))
        given = words(THREADS, 64)
        yield threads_case(f"{shape} x{count}{unpack} lane {lane}", text, given, 64, block=THREADS, version="8.8")


def tensor_addresses() -> Iterator[Case]:
    """Addresses of tensor memory: the columns of allocations in a row, and a load whose lane is 0 in all warps."""
    for sizes in ((32, 32), (64, 32, 32), (256, 128, 64, 32), (512,)):
        lines = "    .shared .align 4 .b32 place;\n    mov.u32 %m, place;\n"
        for number, size in enumerate(sizes):
            lines += f"    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%m], {size};\n    bar.sync 0;\n"
            lines += f"    ld.shared.b32 %o{number}, [%m];\n    bar.sync 0;\n"
        for number, size in enumerate(sizes):
            lines += f"    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %o{number}, {size};\n"
        yield threads_case(f"columns {sizes}", lines, None, len(sizes), version="8.8")
    read = f"    tcgen05.ld.sync.aligned.32x32b.x4.b32 {listed('o', 4)}, [%tmem];\n    tcgen05.wait::ld.sync.aligned;\n"
    yield threads_case("lane 0", body(store(4, 0), SYNC, read), words(THREADS, 4), 4, block=THREADS, version="8.8")


def product_case(
    rng: np.random.Generator,
    name: str,
    desc: InstrDescriptor,
    a: SmemDescriptor | None,
    b: SmemDescriptor,
    *,
    enable: int = 1,
    modifier: str = "",
    before: str = "",
    after: str = "",
    kind: str = "whole",
    group: int = 1,
) -> Case:
    """One tcgen05.mma; ``a`` is None for A in tensor memory. ``before`` and ``after`` are operands beside
    enable-input-d, ``modifier`` follows the opcode."""
    ctas, columns = group, max(32, 1 << (desc.n - 1).bit_length())
    head = (a.encode() if a else 0, b.encode(), desc.encode() | enable << 32)
    d = values(rng, {"s32": "s32", "f16": "f16"}.get(desc.d_type, "f32"), (ctas * THREADS, columns), "whole")
    parts = [np.tile(np.array(head, np.uint64).view(np.uint32), (ctas * THREADS, 1)), d]
    parts.append(operand(rng, desc.a_type, ctas * THREADS * 32, kind).reshape(ctas * THREADS, 8))
    memory = [operand(rng, kept, size, kind) for _ in range(ctas) for kept, size in operands_of(desc)]
    left = "%a" if a else f"[%tmem+{A_COLUMN}]"
    opcode = f"tcgen05.mma{modifier or f'.cta_group::{group}.kind::{desc.kind}'}"
    issue = f"    @%leader {opcode} [%tmem], {left}, %b, %i4, {before}%more{after};\n"
    fill = store(columns, GIVEN) + store(8, GIVEN + columns, A_COLUMN)
    text = body(fill, SYNC, DESCRIPTORS, issue, commit(group), load(columns), group=group)
    given = np.concatenate(parts, axis=1)
    shape: dict[str, Any] = {"block": THREADS, "cluster": ctas, "keep": sums, "version": "8.8"}
    return threads_case(name, text, given, columns, np.concatenate(memory), **shape)


def operands_of(desc: InstrDescriptor) -> tuple[tuple[str, int], tuple[str, int]]:
    return (desc.a_type, A_BYTES), (desc.b_type, B_BYTES)


def operand(rng: np.random.Generator, type: str, size: int, kind: str) -> Array:
    """Returns words of values of a type; of types without 8 or more bits random bytes."""
    if type in TYPES:
        return values(rng, type, (size // 4,), kind)
    return rng.integers(0, 2**32, size // 4, np.uint32)


def operand_at(start: int, mode: Mode = 128, major: str = "k") -> SmemDescriptor:
    """Returns the descriptor of an operand; of an MN-major one the offsets are those of two atoms and of 8 rows."""
    lbo, sbo = OFFSETS[mode] if major == "k" or not mode else (2048, 1024)
    return SmemDescriptor(start, lbo, sbo, mode)


A_PLAIN, B_PLAIN = operand_at(0), operand_at(A_BYTES)


def tensor_layouts() -> Iterator[Case]:
    """Operands of either major-ness, swizzled or not, and where each shape puts D."""
    rng = np.random.default_rng(71)
    for mode, a_major, b_major, (m, n) in product(OFFSETS, ("k", "mn"), ("k", "mn"), ((128, 32), (64, 64))):
        desc = replace(BF16, m=m, n=n, a_major=a_major, b_major=b_major)
        a, b = operand_at(0, mode, a_major), operand_at(A_BYTES, mode, b_major)
        yield product_case(rng, f"{mode} {a_major} {b_major} {m}x{n}", desc, a, b)
    for n in (8, 16, 24, 40):
        yield product_case(rng, f"n {n}", replace(BF16, n=n), A_PLAIN, B_PLAIN)


def tensor_types() -> Iterator[Case]:
    """Every type, A in shared memory and in tensor memory: integers, whose sums are exact."""
    rng = np.random.default_rng(72)
    small = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
    forms = [("f16", "f16", "f16", d) for d in ("f32", "f16")] + [("tf32", "tf32", "tf32", "f32")]
    forms += [("f8f6f4", a, b, "f32") for a, b in product(small, small)] + [("f8f6f4", "e4m3", "e5m2", "f16")]
    for form, a in product(forms, (A_PLAIN, None)):
        where = "shared" if a else "tensor"
        yield product_case(rng, f"{'.'.join(form)} {where}", InstrDescriptor(*form, 128, 32), a, B_PLAIN)
    desc = InstrDescriptor("tf32", "tf32", "tf32", "f32", 128, 32, "mn", "mn")
    a, b = (SmemDescriptor(start, 2048, 512, ATOM_32B) for start in (0, A_BYTES))
    yield product_case(rng, "tf32 mn", desc, a, b)


def tensor_integers() -> Iterator[Case]:
    """Integer products, with and without saturation."""
    rng = np.random.default_rng(73)
    for a, b, saturate in product(("s8", "u8"), ("s8", "u8"), (False, True)):
        desc = InstrDescriptor("i8", a, b, "s32", 128, 32, saturate=saturate)
        yield product_case(rng, f"{a}.{b}{'.saturate' * saturate}", desc, A_PLAIN, B_PLAIN)


def tensor_sums() -> Iterator[Case]:
    """The rounding of sums: spread magnitudes, infinities and NaN, with an accumulator and without."""
    rng = np.random.default_rng(74)
    forms = [("f16", "f16", "f16", d) for d in ("f32", "f16")] + [("f16", "bf16", "bf16", "f32")]
    forms += [("tf32", "tf32", "tf32", "f32")]
    forms += [("f8f6f4", "e4m3", "e4m3", "f32"), ("f8f6f4", "e5m2", "e5m2", "f32"), ("f8f6f4", "e4m3", "e4m3", "f16")]
    for form, kind, enable in product(forms, ("spread", "special"), (0, 1)):
        desc = InstrDescriptor(*form, 128, 32)
        name = f"{'.'.join(form)} {kind} {enable}"
        yield product_case(rng, name, desc, A_PLAIN, B_PLAIN, enable=enable, kind=kind)


def tensor_starts() -> Iterator[Case]:
    """Operands that start inside their swizzle pattern, and base offsets."""
    rng = np.random.default_rng(75)
    for mode, start in product((128, 64, 32), (32, 64, 96, 128, 256, 1024)):
        yield product_case(rng, f"{mode} start {start}", BF16, operand_at(start, mode), B_PLAIN)
    for base, start in product((1, 3, 7), (0, 128, 1024)):
        a = replace(A_PLAIN, start=start, base_offset=base)
        yield product_case(rng, f"base {base} start {start}", BF16, a, B_PLAIN)


def tensor_modifiers() -> Iterator[Case]:
    """Negated operands, a scaled accumulator, lanes that are not written, a shifted A, and collectors."""
    rng = np.random.default_rng(76)
    for a, b in ((True, False), (False, True), (True, True)):
        yield product_case(rng, f"negate {a} {b}", replace(BF16, negate_a=a, negate_b=b), A_PLAIN, B_PLAIN)
    for scale in (1, 4, 15):
        yield product_case(rng, f"scale {scale}", BF16, A_PLAIN, B_PLAIN, after=f", {scale}")
    masks = listed("o", 4)  # every word of them is 0xEEEEEEEE
    yield product_case(rng, "lanes", BF16, A_PLAIN, B_PLAIN, before=f"{masks}, ")
    for name in ("collector::a::fill", "collector::a::discard"):
        yield product_case(rng, name, BF16, A_PLAIN, B_PLAIN, modifier=f".cta_group::1.kind::f16.{name}")
    shift = ".cta_group::1.kind::f16.ashift"
    yield product_case(rng, "ashift", BF16, None, B_PLAIN, modifier=shift)


def tensor_weights() -> Iterator[Case]:
    """tcgen05.mma.ws: where each shape puts D."""
    rng = np.random.default_rng(77)
    for m, a in product((32, 64, 128), (A_PLAIN, None)):
        desc = replace(BF16, m=m, n=64)
        name = f"{m}x64 {'shared' if a else 'tensor'}"
        yield product_case(rng, name, desc, a, B_PLAIN, modifier=".ws.cta_group::1.kind::f16")


def tensor_pairs() -> Iterator[Case]:
    """Products of two CTAs: which rows of A and of B each CTA gives, and where each has its part of D."""
    rng = np.random.default_rng(78)
    for m, n, kind in product((128, 256), (32, 64), ("whole", "spread")):
        desc = replace(BF16, m=m, n=n)
        yield product_case(rng, f"{m}x{n} {kind}", desc, A_PLAIN, B_PLAIN, group=2, kind=kind)


def tensor_smem_copies() -> Iterator[Case]:
    """tcgen05.cp: the lanes and columns of each shape, with 4-bit and 6-bit elements unpacked to bytes."""
    shapes = ("128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4")
    for shape, unpack, mode in product(shapes, ("", ".b8x16.b6x16_p32", ".b8x16.b4x16_p64"), (0, 128)):
        if unpack and mode:
            continue
        memory = numbered((A_BYTES // 4,), np.uint32)
        issue = f"    @%leader tcgen05.cp.cta_group::1.{shape}{unpack} [%tmem], %a;\n"
        head = np.array([operand_at(0, mode).encode(), 0, 0], np.uint64).view(np.uint32)
        given = np.concatenate([np.tile(head, (THREADS, 1)), words(THREADS, 16)], axis=1)
        text = body(store(16, GIVEN), SYNC, DESCRIPTORS, issue, commit(1), load(16))
        yield threads_case(f"{shape}{unpack} {mode}", text, given, 16, memory, block=THREADS, version="8.8")


def tensor_shifts() -> Iterator[Case]:
    """tcgen05.shift: the rows and columns that move."""
    for lane, column in ((0, 0), (32, 0), (64, 8)):
        issue = f"    add.u32 %n, %tmem, {lane << 16 | column};\n    @%leader tcgen05.shift.cta_group::1.down [%n];\n"
        text = body(store(32, 0), SYNC, issue, commit(1), load(32))
        name = f"lane {lane} column {column}"
        yield threads_case(name, text, words(THREADS, 32), 32, block=THREADS, version="8.8")
