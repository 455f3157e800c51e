"""tcgen05.cp and tcgen05.shift (PTX ISA 9.1 sections 9.7.16.9.2 and 9.7.16.9.3).

With cta_group::2 each CTA of the pair copies from its own shared memory to its own tensor memory, and shifts its own.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError, ProtocolError, UnsupportedInstruction
from warpwright.layout import SmemDescriptor, operand_addresses, tmem_cp_map
from warpwright.layout.tmem import LANES
from warpwright.vgpu.engines.accumulator import check_columns
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.operand import CHUNK, check_reads

__all__ = ["SHIFTED_COLUMNS", "copied_bytes", "copy_to_tensor_memory", "group_of", "shift_down"]

SHIFTED_COLUMNS = 8
QUARTER = 32


def group_of(fabric: Fabric, op: Op, group: int) -> range:
    """The CTAs of a CTA group's instruction; raises ProtocolError if the cluster lacks the pair."""
    base = op.rank & ~1 if group == 2 else op.rank
    if base + group > fabric.ranks:
        raise fabric.failure(
            ProtocolError,
            op,
            f"cta_group::2 needs the pair of CTA {op.rank}, CTA {op.rank ^ 1}; the cluster has {fabric.ranks}; launch "
            "with an even cluster size or use cta_group::1",
        )
    return range(base, base + group)


def copy_to_tensor_memory(fabric: Fabric, op: Op) -> None:
    """Complete tcgen05.cp: rows of shared memory become lanes of tensor memory, 32 bits a column."""
    inst, address = op.inst, op["taddr"]
    if inst["dst_fmt"]:
        raise fabric.failure(
            UnsupportedInstruction,
            op,
            f"the virtual GPU does not decompress .{inst['src_fmt']} to .{inst['dst_fmt']}; copy bytes instead",
        )
    lanes, columns = tmem_cp_map(inst["shape"], inst["multicast"])
    allowed = tuple(range(QUARTER)) if inst["shape"] == "4x256b" else (0,)
    try:
        source = copied_bytes(op["desc"], lanes.shape[1], columns * 4 // CHUNK, fabric.shared_limit)
    except DescriptorError as error:
        raise fabric.failure(DescriptorError, op, str(error)) from None
    first, base = address & 0xFFFF, address >> 16 & 0xFFFF
    for rank in group_of(fabric, op, int(inst["group"][-1])):
        check_columns(fabric, op, rank, address, columns, allowed)
        rows = fabric.shared[rank][source].view(np.int32)
        for copy in lanes:
            fabric.tmem[rank, first : first + columns, base + copy] = rows


@lru_cache(maxsize=512)
def copied_bytes(descriptor: int, rows: int, chunks: int, limit: int) -> NDArray[np.int64]:
    """Offset of every byte of the rows that tcgen05.cp reads. Raises DescriptorError."""
    addresses = operand_addresses(SmemDescriptor.decode(descriptor), rows, chunks, CHUNK, "k")
    check_reads(descriptor, addresses, limit)
    return (addresses[:, :, None] + np.arange(CHUNK)).reshape(rows, -1)


def shift_down(fabric: Fabric, op: Op) -> None:
    """Complete tcgen05.shift.down: from the address on, each lane of a quarter receives 32 bytes of the next lane.

    The last lane of a quarter keeps its own, which tcgen05.cp.4x256b replaces.
    """
    address = op["taddr"]
    first, base = address & 0xFFFF, address >> 16 & 0xFFFF
    for rank in group_of(fabric, op, int(op.inst["group"][-1])):
        check_columns(fabric, op, rank, address, SHIFTED_COLUMNS, tuple(range(0, LANES, QUARTER)))
        for quarter in range(base, LANES, QUARTER):
            cells = fabric.tmem[rank, first : first + SHIFTED_COLUMNS, quarter : quarter + QUARTER]
            cells[:, :-1] = cells[:, 1:]
