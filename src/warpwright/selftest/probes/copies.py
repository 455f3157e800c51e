"""Probes of copies without tensor maps: bulk copies and reductions between CTAs, st.async, cp.async."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from warpwright.selftest.probes.cases import Array, Case, numbered, threads_case

__all__ = ["BARRIER", "async_stores", "bulk_copies", "lane_copies", "remote_accesses", "remote_copies"]

# The mbarrier is at %base, data from %base + 64 on; the wait times out, so that a wrong count gives an answer too.
BARRIER = """    @%first mbarrier.init.shared::cta.b64 [%base], 1;
    @%first fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], {expected};
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
WAIT = """    mov.u32 %m, 0;
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %more, [%base], 0;
    @%more bra WAITED;
    add.u32 %m, %m, 1;
    setp.lt.u32 %more, %m, 1000;
    @%more bra WAIT;
WAITED:
    mbarrier.test_wait.parity.shared::cta.b64 %more, [%base], 0;
    selp.u32 %o0, 1, 0, %more;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    @%first st.shared.v2.u32 [%base], {%o0, %o0};
    bar.sync 0;
"""


def bulk_copies() -> Iterator[Case]:
    """Bulk copies of global memory to the shared memory of one CTA or of several."""
    to_shared = "cp.async.bulk.shared::{space}.global.mbarrier::complete_tx::bytes [%n], [%memory], {size}, [%base]"
    for space in ("cta", "cluster"):
        for size, at, source in ((16, 64, 0), (48, 80, 16), (512, 128, 32)):
            copy = f"    @%first {to_shared.format(space=space, size=size)};\n{WAIT}"
            places = f"    add.u32 %n, %base, {at};\n    add.u64 %memory, %memory, {source};\n"
            body = f"{BARRIER.format(expected=size)}{places}{copy}    sub.u64 %memory, %memory, {source};\n"
            yield copy_case(f"{space} {size} to {at} from {source}", body, 1)
    for ranks, mask, sender in ((2, 0b11, 0), (4, 0b1010, 2), (4, 0b0100, 2), (8, 0xA5, 7)):
        body = "    .reg .b16 %mask;\n    .reg .b32 %rank;\n    mov.u32 %rank, %cluster_ctarank;\n"
        body += f"    mov.b16 %mask, {mask};\n    shl.b32 %n, 1, %rank;\n    and.b32 %n, %n, {mask};\n"
        body += "    setp.ne.u32 %more, %n, 0;\n    selp.u32 %word, 96, 0, %more;\n" + BARRIER.format(expected="%word")
        body += f"    setp.eq.and.u32 %more, %rank, {sender}, %first;\n    add.u32 %n, %base, 160;\n"
        multicast = to_shared.format(space="cluster", size=96).replace("bytes ", "bytes.multicast::cluster ")
        body += f"    @%more {multicast}, %mask;\n{WAIT}"
        yield copy_case(f"multicast {ranks} {mask:#x} from {sender}", body, ranks)


def copy_case(name: str, body: str, ranks: int) -> Case:
    """One thread a CTA copies out of the global memory that the arena was filled from."""
    memory = numbered((ranks, 512), np.uint16)
    return threads_case(name, body, None, 4, memory, dump=True, block=1, cluster=ranks)


TO_NEXT = """    .reg .b32 %rank, %ranks, %bar;
    mov.u32 %rank, %cluster_ctarank;
    mov.u32 %ranks, %cluster_nctarank;
    add.u32 %n, %rank, 1;
    rem.u32 %n, %n, %ranks;
    mapa.shared::cluster.u32 %bar, %base, %n;
"""


def remote_copies() -> Iterator[Case]:
    """Copies and reductions from shared memory to the next CTA of the cluster, completed on its mbarrier."""
    rng = np.random.default_rng(41)
    names = ["", *(f"{op}.u32" for op in ("add", "inc", "dec", "min", "max"))]
    names += ["add.s32", "min.s32", "max.s32", "add.u64", "and.b32", "or.b32", "xor.b32"]
    for op in names:
        form = "cp.reduce.async.bulk" if op else "cp.async.bulk"
        copy = f"{form}.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{'.' if op else ''}{op}"
        body = TO_NEXT + BARRIER.format(expected=128)
        body += f"    add.u32 %n, %bar, 512;\n    add.u32 %m, %base, 64;\n    @%first {copy} [%n], [%m], 128, [%bar];\n"
        memory = rng.integers(0, 2**32, (3, 256), np.uint32) >> rng.integers(0, 31, (3, 256)).astype(np.uint32)
        yield threads_case(op or "copy", body + WAIT, None, 1, memory, dump=True, block=1, cluster=3)


def async_stores() -> Iterator[Case]:
    """st.async of every type and vector, red.async of every operation, to the next CTA."""
    rng = np.random.default_rng(42)
    for type in ("b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
        for vector in ("", ".v2", ".v4"):
            if vector != ".v4" or type.endswith("32"):
                yield async_case(rng, f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.{type}")
    red = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
    for op in ("inc.u32", "dec.u32", "min.u32", "max.u32", "add.u32", "min.s32", "max.s32", "add.s32", "and.b32"):
        yield async_case(rng, f"{red}.{op}")
    for op in ("or.b32", "xor.b32", "add.u64"):
        yield async_case(rng, f"{red}.{op}")


def async_case(rng: np.random.Generator, opcode: str) -> Case:
    """32 threads of each of 2 CTAs store to addresses 16 bytes apart."""
    type = opcode.rpartition(".")[2]
    wide = type.endswith("64")
    count = int(opcode.partition(".v")[2][:1] or 1) if ".v" in opcode else 1
    nbytes = 32 * count * (8 if wide else 4)
    body = f"    .reg .b64 %d<{count}>;\n{TO_NEXT}" + BARRIER.format(expected=nbytes)
    body += "    shl.b32 %n, %t, 4;\n    add.u32 %n, %n, %bar;\n"
    if wide:
        body += "".join(f"    mov.b64 %d{n}, {{%i{2 * n}, %i{2 * n + 1}}};\n" for n in range(count))
    names = [f"%{'d' if wide else 'i'}{n}" for n in range(count)]
    value = f"{{{', '.join(names)}}}" if count > 1 else names[0]
    body += f"    {opcode} [%n+64], {value}, [%bar];\n"
    given = rng.integers(0, 2**32, (64, 4), np.uint32) >> rng.integers(0, 31, (64, 4)).astype(np.uint32)
    memory = rng.integers(0, 2**32, (2, 144), np.uint32) >> rng.integers(0, 31, (2, 144)).astype(np.uint32)
    return threads_case(short(opcode), body + WAIT, given, 1, memory, dump=True, block=32, cluster=2)


def short(opcode: str) -> str:
    words: list[Any] = opcode.replace("mbarrier::complete_tx::bytes", "").split(".")
    return ".".join(word for word in words if word and "::" not in word)


def remote_accesses() -> Iterator[Case]:
    """st, atom and red on the shared memory of the other CTAs: all threads of all CTAs add to the same addresses."""
    body = """    .reg .b32 %rank, %ranks;
    mov.u32 %rank, %cluster_ctarank;
    mov.u32 %ranks, %cluster_nctarank;
    add.u32 %m, %rank, 1;
    rem.u32 %m, %m, %ranks;
    mapa.shared::cluster.u32 %n, %base, %m;
    shl.b32 %m, %t, 2;
    add.u32 %m, %n, %m;
    st.shared::cluster.u32 [%m+512], %i0;
    atom.shared::cluster.exch.b32 %o0, [%m+640], %i1;
    atom.shared::cluster.max.u32 %o1, [%m+768], %i0;
    mov.u32 %m, 0;
    red.shared::cluster.add.u32 [%n], %i0;
    mapa.shared::cluster.u32 %m, %base, 0;
    red.relaxed.cluster.shared::cluster.add.u32 [%m+4], %i0;
    red.release.cluster.shared::cluster.xor.b32 [%m+8], %i1;
"""
    rng = np.random.default_rng(43)
    for ranks in (2, 4):
        given = rng.integers(0, 2**32, (32 * ranks, 2), np.uint32)
        memory = rng.integers(0, 2**32, (ranks, 256), np.uint32)
        yield threads_case(f"{ranks}", body, given, 2, memory, dump=True, cluster=ranks)


def lane_copies() -> Iterator[Case]:
    """cp.async of every size, with fewer source bytes than its size, and with the source ignored."""
    given = numbered((32 * 8,), np.uint16)
    for form, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        for taken in sorted({0, 1, size // 2, size - 1, size}):
            copy = f"cp.async.{form}.shared.global [%n], [%given], {size}, {taken};"
            yield lane_case(f"{form} {size} of {taken}", copy, given)
        yield lane_case(f"{form} {size}", f"cp.async.{form}.shared.global [%n], [%given], {size};", given)
        ignore = f"setp.lt.u32 %more, %t, 9;\n    cp.async.{form}.shared.global [%n], [%given], {size}, %more;"
        yield lane_case(f"{form} {size} ignored", ignore, given)


def lane_case(name: str, copy: str, given: Array) -> Case:
    body = f"    shl.b32 %n, %t, 4;\n    add.u32 %n, %n, %base;\n    {copy}\n"
    body += "    cp.async.commit_group;\n    cp.async.wait_group 0;\n    bar.sync 0;\n"
    return threads_case(name, body, given, 0, np.full(512, 0xEE, np.uint8), dump=True)
