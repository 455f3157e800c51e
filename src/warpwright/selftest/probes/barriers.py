"""Probes of mbarriers: tokens, pending counts, mbarriers of other CTAs, and arrivals of cp.async."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from warpwright.selftest.probes import texts
from warpwright.selftest.probes.cases import Case, threads_case

__all__ = ["cluster_addresses", "copy_arrivals", "mbarrier_phases", "parities", "remote_arrivals", "tokens"]

ARRIVE = """    @%first mbarrier.arrive.shared::cta.b64 _, [%base];
    bar.warp.sync -1;
"""
INIT = """    mbarrier.init.shared::cta.b64 [%base], {count};
"""


def tokens() -> Iterator[Case]:
    """Waits by token, of the current and of the preceding phase, and by either parity."""
    for count, script in (
        (1, "arrive; arrive; arrive"),
        (2, "arrive; arrive; arrive; arrive 1; noComplete 1; arrive"),
        (3, "noComplete 1; noComplete 1; arrive; noComplete 2; arrive"),
        (1, "arrive.expect_tx 16; complete_tx 16; arrive.expect_tx 32; complete_tx 32"),
        (2, "arrive_drop; arrive; arrive; arrive"),
        (4, "arrive_drop.noComplete 2; arrive 2; arrive 2"),
        (2, "arrive_drop.expect_tx 8; arrive; complete_tx 8; arrive; arrive"),
        (1048575, "noComplete 1048574; arrive; noComplete 524288; arrive 524287"),
        (1, "complete_tx 4096; arrive.expect_tx 4096; complete_tx 16; expect_tx 16; arrive"),
        (2, "expect_tx 64; complete_tx 128; arrive; expect_tx 64; arrive"),
        (1, "complete_tx 1048575; expect_tx 1048575; arrive"),
        (1, "expect_tx 1048575; arrive; complete_tx 1048575; arrive"),
        (2, "complete_tx 524288; expect_tx 1048575; arrive; complete_tx 524287; arrive"),
        (1, "arrive; reinit 3; arrive; arrive 2; arrive"),
        (2, "arrive; reinit 2; arrive; arrive"),
    ):
        yield token_case(count, script.split("; "))


def token_case(count: int, steps: Sequence[str]) -> Case:
    """After each step: bits of ``test_wait`` for parity 0 and 1 and for the last two tokens' states, which are of the
    current phase or the one before; and the pending count in the last token of a ``noComplete``."""
    body = "    .reg .b64 %token<9>;\n" + INIT.format(count=count)
    held: list[int] = []
    for number, step in enumerate(steps):
        name, *operand = step.split()
        last = f", {operand[0]}" if operand else ""
        body += f"    mov.u32 %o{2 * number + 1}, 0xffffffff;\n"
        if name == "reinit":
            body += f"    mbarrier.inval.shared::cta.b64 [%base];\n{INIT.format(count=operand[0])}"
            held = []
        elif name in ("expect_tx", "complete_tx"):
            body += f"    mbarrier.{name}.relaxed.cta.shared::cta.b64 [%base]{last};\n"
        else:
            opcode = name if name.startswith("arrive") else f"arrive.{name}"
            body += f"    mbarrier.{opcode}.shared::cta.b64 %token{number}, [%base]{last};\n"
            held.append(number)
        if name.endswith("noComplete"):
            body += f"    mbarrier.pending_count.b64 %o{2 * number + 1}, %token{number};\n"
        body += f"    mov.u32 %o{2 * number}, 0;\n"
        waits = [("parity.", parity) for parity in ("0", "1")] + [("", f"%token{n}") for n in held[-2:]]
        for bit, (form, operand_text) in enumerate(waits):
            body += f"    mbarrier.test_wait.{form}shared::cta.b64 %more, [%base], {operand_text};\n"
            body += f"    @%more or.b32 %o{2 * number}, %o{2 * number}, {1 << bit};\n"
    return threads_case(f"{count}: {'; '.join(steps)}", body, None, 2 * len(steps), np.zeros(16, np.uint8), block=1)


def remote_arrivals() -> Iterator[Case]:
    """Operations on the mbarrier of another CTA: ``"1>0 arrive"`` is CTA 1's arrive on CTA 0's mbarrier."""
    for ranks, count, script in (
        (2, 1, "0>1 arrive; 1>0 arrive; 0>0 arrive; 0>1 arrive"),
        (2, 3, "0>1 arrive 2; 1>1 arrive; 1>0 arrive 3; 0>1 arrive 3"),
        (4, 2, "3>1 arrive; 2>1 arrive; 0>2 arrive; 1>3 arrive 2; 3>2 arrive"),
        (2, 1, "0>1 expect_tx 48; 1>1 arrive; 0>1 complete_tx 32; 1>1 complete_tx 16"),
        (2, 1, "0>1 arrive.expect_tx 64; 1>1 complete_tx 64; 1>0 arrive.expect_tx 16; 1>0 complete_tx 16"),
        (2, 2, "0>1 complete_tx 128; 0>1 arrive.expect_tx 128; 1>1 arrive; 1>0 arrive_drop; 0>0 arrive; 1>0 arrive"),
        (8, 7, "7>0 arrive; 6>0 arrive 2; 5>0 arrive; 4>0 arrive; 3>0 arrive; 2>0 arrive; 0>7 arrive 7"),
    ):
        yield remote_case(ranks, count, script.split("; "))


def remote_case(ranks: int, count: int, steps: Sequence[str]) -> Case:
    """After each step, in every CTA: bits of the parities that its own barrier has completed."""
    meet = "    barrier.cluster.arrive;\n    barrier.cluster.wait;\n"
    body = f"    .reg .b32 %rank;\n    mov.u32 %rank, %cluster_ctarank;\n{INIT.format(count=count)}"
    body += f"    fence.mbarrier_init.release.cluster;\n{meet}"
    for number, step in enumerate(steps):
        pair, name, *operand = step.split()
        who, target = pair.split(">")
        last = f", {operand[0]}" if operand else ""
        order, sink = (".relaxed.cluster", "") if name in ("expect_tx", "complete_tx") else (".release.cluster", "_, ")
        body += f"    setp.eq.u32 %first, %rank, {who};\n    mapa.shared::cluster.u32 %n, %base, {target};\n"
        body += f"    @%first mbarrier.{name}{order}.shared::cluster.b64 {sink}[%n]{last};\n{meet}"
        body += f"    mov.u32 %o{number}, 0;\n"
        for parity in (0, 1):
            body += f"    mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 %more, [%base], {parity};\n"
            body += f"    @%more or.b32 %o{number}, %o{number}, {1 << parity};\n"
        body += meet
    memory = np.zeros((ranks, 16), np.uint8)
    name = f"{ranks} {count}: {'; '.join(steps)}"
    return threads_case(name, body, None, len(steps), memory, block=1, cluster=ranks)


def cluster_addresses() -> Iterator[Case]:
    """mapa, getctarank, isspacep and cvta: shared addresses of other CTAs, as differences from the own address."""
    body = """    .reg .b64 %own, %theirs;
    mapa.shared::cluster.u32 %n, %base, %i0;
    sub.u32 %o0, %n, %base;
    getctarank.shared::cluster.u32 %o1, %n;
    getctarank.shared::cluster.u32 %o2, %base;
    cvt.u64.u32 %own, %base;
    cvta.shared.u64 %own, %own;
    mapa.u64 %theirs, %own, %i0;
    getctarank.u64 %o3, %theirs;
    cvta.to.shared::cluster.u64 %theirs, %theirs;
    cvt.u32.u64 %m, %theirs;
    sub.u32 %o4, %m, %n;
    mapa.u64 %theirs, %own, %i0;
    isspacep.shared::cta %more, %theirs;
    selp.u32 %o5, 1, 0, %more;
    isspacep.shared::cluster %more, %theirs;
    selp.u32 %o6, 1, 0, %more;
    isspacep.shared %more, %own;
    selp.u32 %o7, 1, 0, %more;
    isspacep.global %more, %given;
    selp.u32 %o8, 1, 0, %more;
    isspacep.global %more, %theirs;
    selp.u32 %o9, 1, 0, %more;
    ld.shared::cluster.u32 %o10, [%n+4];
    ld.u32 %o11, [%theirs+8];
    mapa.shared::cluster.u32 %m, %n, %i1;
    sub.u32 %o12, %m, %base;
"""
    for ranks in (2, 4, 8):
        given = np.array([[(rank + 1 + rank // 2) % ranks, (rank + 2) % ranks] for rank in range(ranks)], np.uint32)
        memory = np.arange(ranks * 4, dtype=np.uint32) + 1000
        yield threads_case(f"{ranks}", body, given, 13, memory, block=1, cluster=ranks)


LANE_COPIES = """    shl.b32 %m, %t, 4;
    cvt.u64.u32 %wide, %m;
    add.u64 %place, %given, %wide;
    add.u32 %n, %base, %m;
    @%first mbarrier.init.shared::cta.b64 [%base], {count};
    bar.sync 0;
    cp.async.ca.shared.global [%n+1024], [%given], 8;
    cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [%base];
{arrive}
    mov.u32 %m, 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %more, [%base], 0;
    @%more bra DONE;
    add.u32 %m, %m, 1;
    setp.lt.u32 %more, %m, 1000;
    @%more bra WAIT;
DONE:
    mbarrier.test_wait.parity.shared::cta.b64 %more, [%base], 0;
    selp.u32 %o0, 1, 0, %more;
    ld.shared.v2.u32 {{%o1, %o2}}, [%n+1024];
"""


def copy_arrivals() -> Iterator[Case]:
    """cp.async.mbarrier.arrive: with .noinc the arrival is one of those that init counts, else it adds its own."""
    given = np.arange(64, dtype=np.uint32).reshape(32, 2) + 7
    one = "    mbarrier.arrive.shared::cta.b64 _, [%base];"
    for name, noinc, count, arrive in (
        ("noinc", ".noinc", 32, ""),
        ("own", "", 32, one),
        ("noinc and one", ".noinc", 64, one),
    ):
        body = LANE_COPIES.format(noinc=noinc, count=count, arrive=arrive)
        yield threads_case(name, body, given, 3, np.zeros(2048, np.uint8))


def parities() -> Iterator[Case]:
    """Parities of a wait other than 0 and 1, and completed phases: each thread asks with a parity of its own."""
    asked = np.array([0, 1, 2, 3, 4, 5, 6, 7, 255, 256, 0x7FFFFFFE, 0x7FFFFFFF, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1])
    for ends in range(4):
        body = f"    @%first mbarrier.init.shared::cta.b64 [%base], 1;\n    bar.warp.sync -1;\n{ARRIVE * ends}"
        body += "    mbarrier.test_wait.parity.shared::cta.b64 %more, [%base], %i0;\n    selp.u32 %o0, 1, 0, %more;\n"
        yield threads_case(f"{ends} phases", body, np.resize(asked, (32, 1)).astype(np.uint32), 1, block=32)


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
