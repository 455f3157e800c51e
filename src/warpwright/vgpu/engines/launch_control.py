"""Cluster launch control: the response to a request for a cluster that has not started (PTX ISA 9.1, 9.7.13.17).

PTX leaves the 16 bytes open. Here they are the grid coordinates of the cluster's first CTA and a word that is 1 if a
cluster was cancelled; if none was, the coordinates are all ones, so that a kernel that uses them fails visibly.
"""

from __future__ import annotations

import struct

import numpy as np

from warpwright.errors import MemoryFault, ProtocolError
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.place import barrier, check_inside, locate

__all__ = ["GRANTED", "RESPONSE_BYTES", "complete"]

RESPONSE_BYTES = 16
GRANTED = 1
NOWHERE = 0xFFFF_FFFF


def complete(fabric: Fabric, op: Op) -> None:
    """Answer a request: store 16 bytes to shared memory, then complete_tx at the mbarrier, in each destination CTA."""
    rank, offset = locate(fabric, op, op["addr"], "response")
    mbar_rank, mbar = barrier(fabric, op, op["mbar"])
    if rank != op.rank or mbar_rank != op.rank:
        raise fabric.failure(
            ProtocolError,
            op,
            f"the response is in CTA {rank} and the mbarrier in CTA {mbar_rank}; expected both in CTA {op.rank}, which "
            ".shared::cta names; let that CTA ask, or use .multicast::cluster::all",
        )
    if offset % RESPONSE_BYTES:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the response is at offset {offset} of shared memory; expected a multiple of {RESPONSE_BYTES} bytes; "
            "align the buffer",
        )
    found = fabric.take_over()
    words = (NOWHERE, NOWHERE, NOWHERE, 0) if found is None else (*found, GRANTED)
    data = np.frombuffer(struct.pack("<4I", *words), np.uint8)
    for each in range(fabric.ranks) if op.inst["multicast"] else (rank,):
        check_inside(fabric, op, "response", each, offset, RESPONSE_BYTES)
        fabric.shared[each, offset : offset + RESPONSE_BYTES] = data
        fabric.complete_tx(op, each, mbar, RESPONSE_BYTES)
