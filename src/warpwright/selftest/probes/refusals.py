"""Probes of faults: launches that fault, beside similar launches that do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from warpwright.selftest.probes.cases import Case, threads_case
from warpwright.selftest.probes.copies import BARRIER

__all__ = ["STRICTER", "refused_accesses", "refused_barriers", "refused_copies"]

# Undefined in PTX and not detected by an H200: the virtual GPU raises an error.
STRICTER = {
    *("behind shared memory", "wait at none", "init of 2^20", "noComplete that completes"),
    *(f"{kind} {size} bytes" for kind in ("load", "store", "reduction") for size in (8, 24)),
}

TO_SHARED = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
TO_GLOBAL = "cp.async.bulk.global.shared::cta.bulk_group"


def refused(name: str, body: str, cluster: int = 1) -> Case:
    """One thread a CTA; %place is a global address and %n a shared one, both followed by 2048 bytes."""
    start = "    mov.u64 %place, %memory;\n    add.u32 %n, %base, 64;\n"
    memory = np.zeros((cluster, 4096), np.uint8)
    case = threads_case(name, start + body, None, 4, memory, dump=True, block=1, cluster=cluster)
    return replace(case, refused=True)


def refused_accesses() -> Iterator[Case]:
    """Which loads, stores and atomics fault: alignment, addresses out of bounds."""
    for name, body in (
        ("ld.global.u32 at 4", "ld.global.u32 %m, [%place+4]; st.global.u32 [%place], %m;"),
        ("ld.global.u32 at 2", "ld.global.u32 %m, [%place+2]; st.global.u32 [%place], %m;"),
        ("ld.shared.v4 at 16", "ld.shared.v4.u32 {%o0, %o1, %o2, %o3}, [%n+16];"),
        ("ld.shared.v4 at 8", "ld.shared.v4.u32 {%o0, %o1, %o2, %o3}, [%n+8];"),
        ("st.shared.v2 at 4", "st.shared.v2.u32 [%n+4], {%t, %t};"),
        ("atom.global.add.u64 at 4", "atom.global.add.u64 %wide, [%place+4], 1;"),
        ("atom.shared.add.u32 at 2", "atom.shared.add.u32 %m, [%n+2], 1;"),
        ("red.global.add.f32 at 2", "red.global.add.f32 [%place+2], 0f3f800000;"),
        ("ld.global of 0", "mov.u64 %place, 0; ld.global.u32 %o0, [%place];"),
        ("ld.shared behind its memory", "ld.shared.u32 %o0, [%n+100000];"),
        ("ld.shared behind all", "ld.shared.u32 %o0, [%n+262144];"),
        ("ldmatrix at 16", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%o0}, [%n+16];"),
        ("ldmatrix at 8", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%o0}, [%n+8];"),
        ("stmatrix at 8", "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%n+8], {%m};"),
        ("trap", "trap;"),
    ):
        case = refused(name, f"    mov.u32 %m, 0;\n    {body}\n")
        yield replace(case, block=32) if "matrix" in name else case


def refused_copies() -> Iterator[Case]:
    """Which copies fault: sizes and addresses that are no multiples of 16 bytes; misaligned addresses of cp.async."""
    for name, to, source, size in (
        ("16", "%n", "%place", 16),
        ("8 bytes", "%n", "%place", 8),
        ("24 bytes", "%n", "%place", 24),
        ("from 8", "%n", "%place+8", 16),
        ("to 8", "%n+8", "%place", 16),
    ):
        load = f"    mov.u32 %m, {size};\n    {TO_SHARED} [{to}], [{source}], %m, [%base];\n"
        yield refused(f"load {name}", BARRIER.format(expected=size) + load + "    nanosleep.u32 10000;\n")
        store = f"    mov.u32 %m, {size};\n    {TO_GLOBAL} [{source}], [{to}], %m;\n"
        finish = "    cp.async.bulk.commit_group;\n    cp.async.bulk.wait_group 0;\n"
        yield refused(f"store {name}", store + finish)
        reduction = f"    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [{source}], [{to}], %m;\n"
        yield refused(f"reduction {name}", f"    mov.u32 %m, {size};\n{reduction}{finish}")
    for name, place, size in (("16", "%place", 16), ("at 8", "%place+8", 16), ("8 bytes", "%place", 8)):
        prefetch = f"cp.async.bulk.prefetch.L2.global [{place}], %m;"
        yield refused(f"prefetch {name}", f"    mov.u32 %m, {size};\n    {prefetch}\n")
    for at in (0, 4, 8):
        body = f"    cp.async.ca.shared.global [%n+{at}], [%place], 8;\n    cp.async.wait_all;\n"
        yield refused(f"cp.async 8 to {at}", body)
        body = f"    cp.async.ca.shared.global [%n], [%place+{at}], 8;\n    cp.async.wait_all;\n"
        yield refused(f"cp.async 8 from {at}", body)
    for at in (0, 4, 8):
        st = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32"
        body = (
            f"    mapa.shared::cluster.u32 %n, %n, 1;\n    mapa.shared::cluster.u32 %m, %base, 1;\n    {st} [%n+{at}], "
        )
        body += "{%t, %t}, [%m];\n"
        yield refused(f"st.async v2 at {at}", BARRIER.format(expected=16) + body, cluster=2)


def refused_barriers() -> Iterator[Case]:
    """Which operations on mbarriers fault: misaligned addresses, memory without an mbarrier."""
    init = "    mbarrier.init.shared::cta.b64 [%base], 1;\n"
    for name, body in (
        ("init at 4", "    mbarrier.init.shared::cta.b64 [%base+4], 1;\n"),
        ("arrive at 4", f"{init}    mbarrier.arrive.shared::cta.b64 _, [%base+4];\n"),
        ("wait at 4", f"{init}    mbarrier.test_wait.parity.shared::cta.b64 %more, [%base+4], 0;\n"),
        ("arrive at none", "    mbarrier.arrive.shared::cta.b64 _, [%base];\n"),
        ("wait at none", "    mbarrier.test_wait.parity.shared::cta.b64 %more, [%base], 0;\n"),
        ("arrive behind all", "    mbarrier.arrive.shared::cta.b64 _, [%base+262144];\n"),
        ("2 of 1 arrivals", f"{init}    mbarrier.arrive.shared::cta.b64 _, [%base], 2;\n"),
        ("expect too many bytes", f"{init}    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%base], 1048576;\n"),
        ("init of 2^20", "    mov.u32 %m, 1048576;\n    mbarrier.init.shared::cta.b64 [%base], %m;\n"),
        ("noComplete that completes", f"{init}    mbarrier.arrive.noComplete.shared::cta.b64 %wide, [%base], 1;\n"),
    ):
        yield refused(name, body)
    away = "    mapa.shared::cluster.u32 %n, %base, 5;\n    mbarrier.arrive.shared::cluster.b64 _, [%n];\n"
    yield refused("arrive at CTA 5 of 2", init + away, cluster=2)
    load = "    mapa.shared::cluster.u32 %n, %base, 5;\n    ld.shared::cluster.u32 %o0, [%n];\n"
    yield refused("ld at CTA 5 of 2", load, cluster=2)
