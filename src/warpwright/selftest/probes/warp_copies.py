"""Probes of bulk operations that several lanes of a warp issue in one instruction: how often each happens, and with
whose operands.

The lanes of ``lanes`` issue; lane n has the operands of group n >> ``share``, so that 2 ** ``share`` lanes have equal
ones. A reduction counts in memory; a load counts on its mbarrier, which expects as many copies as lanes issue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from warpwright.layout.tensor_map import TensorMap
from warpwright.selftest.probes import texts
from warpwright.selftest.probes.cases import Case, numbered

__all__ = ["load_copies", "store_copies"]

ROW = 128  # bytes of a lane's copy
ISSUERS = {"all": 0xFFFFFFFF, "five": 0x00F80000, "mixed": 0x80010241}
SHARES = {"uniform": 5, "fours": 2, "own": 0}  # of 32 lanes 1, 8 and 32 different operands

SIGNATURE = (
    ".param .align 64 .b8 tensor[128], .param .u64 out, .param .u32 total, .param .u32 lanes, .param .u32 share, "
    ".param .u32 nbytes"
)
OPERANDS = """
    .reg .b32 %c, %lanes, %share, %source, %peer, %dst;
    .reg .b64 %memory;
    .reg .pred %issues;
    mov.b64 %map, tensor;
    cvta.param.u64 %map, %map;
    ld.param.u32 %lanes, [lanes];
    ld.param.u32 %share, [share];
    ld.param.u32 %nbytes, [nbytes];
    mov.u32 %rank, %cluster_ctarank;
    shr.u32 %c, %t, %share;
    shl.b32 %row, %c, 7;
    cvt.u64.u32 %wide, %row;
    add.u64 %memory, %out, %wide;
    add.u32 %word, %total, 16;
    mul.wide.u32 %wide, %rank, %word;
    add.u64 %out, %out, %wide;
    add.u32 %dst, %base, %row;
    add.u32 %source, %dst, 4096;
    mov.u32 %self, 0;
    shr.b32 %flag, %lanes, %t;
    and.b32 %flag, %flag, 1;
    setp.ne.u32 %issues, %flag, 0;
    xor.b32 %rank, %rank, 1;
    mapa.shared::cluster.u32 %peer, %dst, %rank;
    mapa.shared::cluster.u32 %rank, %bar, %rank;
    mov.b16 %mask, 3;
"""
MEET = "    barrier.cluster.arrive;\n    barrier.cluster.wait;\n"
EXPECT = "    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], %nbytes;\n" + MEET
COMMIT = "    @%issues cp.async.bulk.commit_group;\n    @%issues cp.async.bulk.wait_group 0;\n    bar.warp.sync -1;\n"

# What fills shared memory, and completes on the mbarrier.
LOADS = {
    "bulk load": "cp.async.bulk.shared::cluster.global{bytes} [%dst], [%memory], 128, [%bar]",
    "bulk multicast": "cp.async.bulk.shared::cluster.global{bytes}.multicast::cluster "
    "[%dst], [%memory], 128, [%bar], %mask",
    "bulk copy": "cp.async.bulk.shared::cluster.shared::cta{bytes} [%peer], [%source], 128, [%rank]",
    "bulk sum": "cp.reduce.async.bulk.shared::cluster.shared::cta{bytes}.add.u32 [%peer], [%source], 128, [%rank]",
    "tensor load": "cp.async.bulk.tensor.2d.shared::cluster.global.tile{bytes} [%dst], [%map, {{%self, %c}}], [%bar]",
    "tensor multicast": "cp.async.bulk.tensor.2d.shared::cluster.global.tile{bytes}.multicast::cluster "
    "[%dst], [%map, {{%self, %c}}], [%bar], %mask",
}
# What goes to global memory, in bulk groups.
STORES = {
    "bulk store": "cp.async.bulk.global.shared::cta.bulk_group [%memory], [%source], 128",
    "bulk sum": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%memory], [%source], 128",
    "tensor store": "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {%self, %c}], [%source]",
    "tensor sum": "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
    "[%map, {%self, %c}], [%source]",
}
# Hints: what they must not do is fault.
HINTS = {
    "bulk prefetch": "cp.async.bulk.prefetch.L2.global [%memory], 128",
    "tensor prefetch": "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map, {%self, %c}]",
}


def load_text(copy: str, peers: int) -> str:
    """Shared memory holds ``out``; after the copies it goes back, and whether ``nbytes`` arrived exactly."""
    issue = f"    @%issues {copy.format(bytes='.mbarrier::complete_tx::bytes')};\n"
    demands = ".explicitcluster\n" if peers > 1 else ""
    body = texts.START + OPERANDS + texts.TAKE + texts.READY + EXPECT + issue + texts.WAIT + MEET
    return texts.module("load", SIGNATURE, body + texts.DUMP + texts.DONE, demands)


def store_text(copy: str) -> str:
    """Shared memory from 4096 on holds the source; the copies go to the first 4096 bytes of the tensor."""
    issue = f"    fence.proxy.async;\n    bar.sync 0;\n    @%issues {copy};\n{COMMIT}"
    return texts.module("store", SIGNATURE, texts.START + OPERANDS + texts.TAKE + issue)


def shapes() -> Iterator[tuple[str, int, int]]:
    for who, lanes in ISSUERS.items():
        for how, share in SHARES.items():
            yield f"{who} {how}", lanes, share


def load_copies() -> Iterator[Case]:
    """Copies to shared memory by a whole warp: each lane that executes one issues its own."""
    for name, copy in LOADS.items():
        peers = 2 if "multicast" in name or "%peer" in copy else 1
        for shape, lanes, share in shapes():
            senders = 2 if "multicast" in name else 1  # whose copies arrive at an mbarrier
            nbytes = bin(lanes).count("1") * ROW * senders
            out, rows = numbered((peers, 2048 + 4), np.uint32), numbered((32, 32), np.uint32) * 7
            args: list[Any] = [TensorMap(rows, (1, 32)), out, 8192, lanes, share, nbytes]
            yield Case(f"{name} {shape}", load_text(copy, peers), args, out, 1024 + 8192, 32, peers)


def store_copies() -> Iterator[Case]:
    """Copies to global memory and prefetches by a whole warp: which lanes issue one store together."""
    for name, copy in (STORES | HINTS).items():
        for shape, lanes, share in shapes():
            rows = numbered((64, 32), np.uint32)
            args: list[Any] = [TensorMap(rows[:32], (1, 32)), rows, 8192, lanes, share, 0]
            yield Case(f"{name} {shape}", store_text(copy), args, rows, 1024 + 8192, 32)
