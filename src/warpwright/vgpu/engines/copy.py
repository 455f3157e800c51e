"""The copy engine: bulk copies and reductions, tensor or linear, and the asynchronous stores of single values.

PTX ISA 9.1 sections 9.7.9.12, 9.7.9.25.4, 9.7.9.27.1 and 9.7.13.7. Data are complete before complete_tx on the
mbarrier. A load counts the bytes of the full box, inside the tensor or outside; L2 policies have no effect. f16, bf16
and f32 elements outside a tensor with NaN fill read as a quiet NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import MemoryFault, ProtocolError
from warpwright.types import of_name
from warpwright.vgpu.engines import launch_control
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.place import barrier, check_inside, ctas_of, locate
from warpwright.vgpu.engines.reduce import combine, dtype_of
from warpwright.vgpu.engines.tensor_copy import copy_box, reduce_box

__all__ = ["ENGINES", "complete"]

UNIT = 16


def complete(fabric: Fabric, ops: list[Op]) -> None:
    """Complete queued copies in the order of the list.

    Raises, through ``fabric.failure``, MemoryFault (addresses outside memory or misaligned), ProtocolError (mbarriers,
    tensor maps, sizes) and UnsupportedInstruction.
    """
    for op in ops:
        ENGINES[op.inst.name](fabric, op)


def _linear(fabric: Fabric, op: Op) -> None:
    inst, to, source, size = op.inst, op["dst_mem"], op["src_mem"], op["size"] & 0xFFFFFFFF
    _check_units(fabric, op, to, source, size)
    data = fabric.global_memory(op, source, size) if inst["src"] == "global" else _own_shared(fabric, op, source, size)
    if inst["dst"] == "global":
        return _store(fabric, op, fabric.global_memory(op, to, size), data)
    rank, offset = locate(fabric, op, to, "destination")
    mbar_rank, mbar = barrier(fabric, op, op["mbar"])
    _check_ranks(fabric, op, rank, mbar_rank)
    for each in ctas_of(fabric, op, op["mask"]) if "mask" in op else (rank,):
        check_inside(fabric, op, "destination", each, offset, size)
        _store(fabric, op, fabric.shared[each][offset : offset + size], data)
        fabric.complete_tx(op, each, mbar, size)
    return None


def _store(fabric: Fabric, op: Op, target: NDArray[np.uint8], data: NDArray[np.uint8]) -> None:
    if not fabric.computes:
        return
    if op.inst.name == "cp.reduce.async.bulk":
        dtype = dtype_of(op.inst["type"])
        cells = target.view(dtype)
        with fabric.global_lock:
            cells[:] = combine(op.inst["op"], cells, data.view(dtype))
    elif "byte_mask" in op:
        selected = np.array([op["byte_mask"] >> i & 1 for i in range(UNIT)], bool)
        target.reshape(-1, UNIT)[:, selected] = data.reshape(-1, UNIT)[:, selected]
    else:
        target[:] = data


def _check_units(fabric: Fabric, op: Op, to: int, source: int, size: int) -> None:
    for what, value in (("size", size), ("destination address", to), ("source address", source)):
        if value % UNIT:
            raise fabric.failure(
                MemoryFault,
                op,
                f"the {what} is {value}; expected a multiple of {UNIT} bytes; pad or align the data",
            )


def _check_ranks(fabric: Fabric, op: Op, rank: int, mbar_rank: int) -> None:
    if mbar_rank != rank:
        raise fabric.failure(
            ProtocolError,
            op,
            f"the mbarrier is in CTA {mbar_rank} and the destination in CTA {rank}; expected both in one CTA; "
            "map the mbarrier to the destination's CTA with mapa",
        )
    if op.inst["dst"] == "shared::cta" and rank != op.rank:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the destination is shared memory of CTA {rank}; expected that of CTA {op.rank}, which .shared::cta "
            "names; use .shared::cluster",
        )
    if op.inst["src"] != "global" and rank == op.rank:
        raise fabric.failure(
            ProtocolError,
            op,
            f"the destination is shared memory of CTA {rank}, which issued the copy; expected another CTA of the "
            "cluster; map the destination with mapa",
        )


def _own_shared(fabric: Fabric, op: Op, address: int, size: int) -> NDArray[np.uint8]:
    rank, offset = locate(fabric, op, address, "source")
    if rank != op.rank:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the source is shared memory of CTA {rank}; expected that of CTA {op.rank}, which .shared::cta names",
        )
    check_inside(fabric, op, "source", rank, offset, size)
    data: NDArray[np.uint8] = fabric.shared[rank, offset : offset + size]
    return data


def _store_async(fabric: Fabric, op: Op) -> None:
    """Complete st.async and red.async."""
    type = of_name(op.inst["type"])
    values = _bytes_of(op.vector("b"), type.nbytes)
    rank, offset = locate(fabric, op, op["a"], "destination")
    mbar_rank, mbar = barrier(fabric, op, op["mbar"])
    check_inside(fabric, op, "destination", rank, offset, values.nbytes)
    if offset % values.nbytes:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the destination is at offset {offset} of shared memory; expected a multiple of {values.nbytes} bytes",
        )
    if mbar_rank != rank:
        raise fabric.failure(
            ProtocolError,
            op,
            f"the mbarrier is in CTA {mbar_rank} and the destination in CTA {rank}; expected both in one CTA; "
            "map both with mapa to the same rank",
        )
    cells = fabric.shared[rank][offset : offset + values.nbytes]
    if op.inst.name == "red.async":
        target = cells.view(dtype_of(type.name))
        target[:] = combine(op.inst["op"], target, values.view(dtype_of(type.name)))
    else:
        cells[:] = values.view(np.uint8)
    fabric.complete_tx(op, rank, mbar, values.nbytes)


def _bytes_of(registers: list[int], nbytes: int) -> NDArray[Any]:
    """Register values as bytes: the low ``nbytes`` of each word."""
    raw = b"".join((word & (1 << 64) - 1).to_bytes(8, "little")[:nbytes] for word in registers)
    return np.frombuffer(raw, np.uint8)


ENGINES: dict[str, Callable[[Fabric, Op], None]] = {
    "cp.async.bulk": _linear,
    "cp.reduce.async.bulk": _linear,
    "cp.async.bulk.tensor": copy_box,
    "cp.reduce.async.bulk.tensor": reduce_box,
    "st.async": _store_async,
    "red.async": _store_async,
    "clusterlaunchcontrol.try_cancel.async": launch_control.complete,
}
