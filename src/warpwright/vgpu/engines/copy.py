"""The copy engine: bulk copies and reductions, tensor or linear, and the asynchronous stores of single values.

PTX ISA 9.1 sections 9.7.9.12, 9.7.9.25.4, 9.7.9.27.1 and 9.7.13.7. Data are complete before the bytes are counted on
the mbarrier. A load counts the bytes of the full box whatever part of it lies outside the tensor; L2 policies have no
effect. f16, bf16 and f32 elements outside a tensor whose fill is NaN read as a quiet NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright import isa
from warpwright.errors import MemoryFault, ProtocolError
from warpwright.types import of_name
from warpwright.vgpu.engines import launch_control
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.place import barrier, check_inside, locate, selected
from warpwright.vgpu.engines.reduce import GLOBAL_LOCK, combine, dtype_of
from warpwright.vgpu.engines.tensor_copy import copy_box, reduce_box

__all__ = ["complete"]

UNIT = 16


def complete(fabric: Fabric, ops: list[Op]) -> None:
    """Complete queued copies in the order of the list.

    Raises what ``fabric.failure`` makes of MemoryFault (places outside memory or misaligned), ProtocolError (mbarriers,
    tensor maps, sizes) and UnsupportedInstruction.
    """
    for op in ops:
        _ENGINES[op.inst.name](fabric, op)


class _Form(NamedTuple):
    """Words of a linear copy; ``mask`` and ``bytes`` are 0 where the opcode has no such operand."""

    to_global: bool
    from_global: bool
    own: bool
    mask: int
    bytes: int
    op: str
    type: str


@cache
def _form(opcode: str) -> _Form:
    match = isa.match(opcode)
    assert match is not None
    copy = match.form.name == "cp.async.bulk"
    return _Form(
        to_global=match["dst"] == "global",
        from_global=match["src"] == "global",
        own=match["dst"] == "shared::cta",
        mask=4 if copy and match["multicast"] else 0,
        bytes=(4 if match["hint"] else 3) if "cp_mask" in opcode.split(".") else 0,
        op="" if copy else match["op"],
        type="" if copy else match["type"],
    )


def _linear(fabric: Fabric, op: Op) -> None:
    form, (to, source, size) = _form(op.inst.opcode), op.words[:3]
    size &= 0xFFFFFFFF
    _check_units(fabric, op, to, source, size)
    data = fabric.global_memory(op, source, size) if form.from_global else _own(fabric, op, source, size)
    if form.to_global:
        return _put(fabric, op, form, fabric.global_memory(op, to, size), data)
    rank, offset = locate(fabric, op, to, "destination")
    mbar_rank, mbar = barrier(fabric, op, op.words[3])
    _check_ranks(fabric, op, form, rank, mbar_rank)
    for each in selected(fabric, op, op.words[form.mask]) if form.mask else (rank,):
        check_inside(fabric, op, "destination", each, offset, size)
        _put(fabric, op, form, fabric.shared[each][offset : offset + size], data)
        fabric.complete_tx(op, each, mbar, size)
    return None


def _put(fabric: Fabric, op: Op, form: _Form, target: NDArray[np.uint8], data: NDArray[np.uint8]) -> None:
    if not fabric.computes:
        return
    if form.op:
        dtype = dtype_of(form.type)
        cells = target.view(dtype)
        with GLOBAL_LOCK:
            cells[:] = combine(form.op, cells, data.view(dtype))
    elif form.bytes:
        kept = np.array([op.words[form.bytes] >> i & 1 for i in range(UNIT)], bool)
        target.reshape(-1, UNIT)[:, kept] = data.reshape(-1, UNIT)[:, kept]
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


def _check_ranks(fabric: Fabric, op: Op, form: _Form, rank: int, mbar_rank: int) -> None:
    if mbar_rank != rank:
        raise fabric.failure(
            ProtocolError,
            op,
            f"the mbarrier is in CTA {mbar_rank} and the destination in CTA {rank}; expected both in one CTA; "
            "map the mbarrier to the destination's CTA with mapa",
        )
    if form.own and rank != op.rank:
        raise fabric.failure(
            MemoryFault,
            op,
            f"the destination is shared memory of CTA {rank}; expected that of CTA {op.rank}, which .shared::cta "
            "names; use .shared::cluster",
        )
    if not form.from_global and rank == op.rank:
        raise fabric.failure(
            ProtocolError,
            op,
            f"the destination is shared memory of CTA {rank}, which issued the copy; expected another CTA of the "
            "cluster; map the destination with mapa",
        )


def _own(fabric: Fabric, op: Op, address: int, size: int) -> NDArray[np.uint8]:
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


def _value(fabric: Fabric, op: Op) -> None:
    """st.async and red.async."""
    type = of_name(op.inst["type"])
    values = _values(op.words[1:-1], type.nbytes)
    rank, offset = locate(fabric, op, op.words[0], "destination")
    mbar_rank, mbar = barrier(fabric, op, op.words[-1])
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


def _values(words: list[int], nbytes: int) -> NDArray[Any]:
    """Register values as the memory they become, in the low bytes of each word."""
    raw = b"".join((word & (1 << 64) - 1).to_bytes(8, "little")[:nbytes] for word in words)
    return np.frombuffer(raw, np.uint8)


_ENGINES: dict[str, Callable[[Fabric, Op], None]] = {
    "cp.async.bulk": _linear,
    "cp.reduce.async.bulk": _linear,
    "cp.async.bulk.tensor": copy_box,
    "cp.reduce.async.bulk.tensor": reduce_box,
    "st.async": _value,
    "red.async": _value,
    "clusterlaunchcontrol.try_cancel.async": launch_control.complete,
}
