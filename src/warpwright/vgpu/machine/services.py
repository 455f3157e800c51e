"""Services that the machine performs while lanes wait: tensor memory allocation, printf, malloc, changes of a
tensor map."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import (
    AssertionFault,
    DeviceError,
    MemoryFault,
    ProtocolError,
    UsageError,
)
from warpwright.layout.tensor_map_bytes import MAP_BYTES, replace
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.engines.place import check_inside, locate
from warpwright.vgpu.jit.state import LOCAL_WINDOW, RANK_SHIFT, SHARED_WINDOW, WAIT_SERVICE
from warpwright.vgpu.machine import faults, heap
from warpwright.vgpu.machine.fabric import ClusterFabric
from warpwright.vgpu.program.program import Symbol

__all__ = ["SERVICES", "TensorMemory"]

_COLUMNS = (32, 64, 128, 256, 512)


class TensorMemory:
    """Allocation of tensor memory in every CTA of a cluster (PTX ISA 9.1 section 9.7.16.7.1)."""

    def __init__(self, cluster: ClusterFabric) -> None:
        self.cluster = cluster
        self.relinquished = [False] * cluster.ranks
        self.waiting: dict[int, Op] = {}
        self.granted: dict[int, Op] = {}

    def alloc(self, op: Op) -> bool:
        """tcgen05.alloc: first fit. Both CTAs of a pair get the same columns, once both have asked. Returns False if
        the CTA must wait."""
        columns = op["ncols"] & 0xFFFF_FFFF
        if columns not in _COLUMNS:
            raise self.cluster.failure(ProtocolError, op, f"{columns} columns; expected 32, 64, 128, 256 or 512.")
        if self.relinquished[op.rank]:
            raise self.cluster.failure(
                ProtocolError, op, "the CTA has relinquished its permit to allocate; allocate before."
            )
        self._check_peer(op, columns)
        self.waiting[op.rank] = op
        return self._retry(op)

    def _pair(self, op: Op) -> list[int]:
        return [op.rank] if op.inst["group"].endswith("1") else sorted((op.rank, op.rank ^ 1))

    def _check_peer(self, op: Op, columns: int) -> None:
        """Raises ProtocolError unless both CTAs of a pair exist and ask for the same number of columns."""
        other = self._pair(op)[0] if self._pair(op)[0] != op.rank else self._pair(op)[-1]
        if other >= self.cluster.ranks:
            ranks = self.cluster.ranks
            text = f"cta_group::2 takes pairs of CTAs; the cluster has {ranks}: launch clusters of an even size."
            raise self.cluster.failure(ProtocolError, op, text)
        asked = self.waiting.get(other) if other != op.rank else None
        if asked and asked["ncols"] != op["ncols"]:
            text = f"{columns} columns; the other CTA of the pair asks for {asked['ncols']}: ask for the same in both."
            raise self.cluster.failure(ProtocolError, op, text)

    def _retry(self, op: Op) -> bool:
        ranks = self._pair(op)
        if any(rank not in self.waiting for rank in ranks):
            return False
        width = op["ncols"] // 32
        taken = int(np.bitwise_or.reduce(self.cluster.tmem_masks[ranks]))
        for start in range(0, 17 - width, width):
            bits = ((1 << width) - 1) << start
            if not taken & bits:
                self._grant(ranks, bits, 32 * start, op)
                return True
        return False

    def _grant(self, ranks: list[int], bits: int, column: int, op: Op) -> None:
        for rank in ranks:
            asked = self.granted[rank] = self.waiting.pop(rank)
            self.cluster.tmem_masks[rank] |= np.uint64(bits)
            where = _shared(self.cluster, asked, asked["dst"], 4)
            where[:] = np.frombuffer(struct.pack("<I", column), np.uint8)
            if rank != op.rank:
                self.cluster.release(rank * self.cluster.per_cta + asked.warp, WAIT_SERVICE)

    def dealloc(self, op: Op) -> bool:
        column, columns = op["taddr"] & 0xFFFF, op["ncols"] & 0xFFFF_FFFF
        bits = ((1 << columns // 32) - 1) << column // 32
        allocated = int(self.cluster.tmem_masks[op.rank])
        if columns not in _COLUMNS or allocated & bits != bits or column % 32:
            last = column + columns - 1
            text = f"columns {column} to {last} are not allocated here; give the address and count of an alloc."
            raise self.cluster.failure(ProtocolError, op, text)
        self.cluster.tmem_masks[op.rank] = allocated & ~bits
        for waiting in list(self.waiting.values()):
            if self._retry(waiting):
                self.cluster.release(waiting.rank * self.cluster.per_cta + waiting.warp, WAIT_SERVICE)
        return True

    def relinquish(self, op: Op) -> bool:
        self.relinquished[op.rank] = True
        return True

    def wanted(self, rank: int) -> str:
        """Returns what a waiting CTA asks for and what is free, in words."""
        op = self.waiting.get(rank)
        free = 512 - 32 * int(self.cluster.tmem_masks[rank]).bit_count()
        return f"{op['ncols'] if op else 0} columns of tensor memory ({free} are free)"

    def check_freed(self) -> None:
        """Raises ProtocolError if a CTA ends with tensor memory allocated."""
        for rank in np.flatnonzero(self.cluster.tmem_masks).tolist():
            columns = 32 * int(self.cluster.tmem_masks[rank]).bit_count()
            text = f"exits with {columns} columns of tensor memory allocated; free them with tcgen05.dealloc."
            raise faults.at_exit(ProtocolError, self.cluster, self.granted[rank], "allocates", text)


def _shared(cluster: ClusterFabric, op: Op, address: int, nbytes: int) -> NDArray[np.uint8]:
    address = address - SHARED_WINDOW if address >= SHARED_WINDOW else address
    rank, offset = address >> RANK_SHIFT, address & 0xFF_FFFF
    if rank >= cluster.ranks or not 1024 <= offset <= cluster.shared_limit - nbytes:
        raise cluster.failure(MemoryFault, op, f"address 0x{address:x} is outside shared memory.")
    return cluster.shared[rank, offset : offset + nbytes]


def _memory(cluster: ClusterFabric, op: Op, address: int) -> NDArray[np.uint8]:
    """Returns the bytes from a generic address to the end of the memory that contains it."""
    if address >> 32 == LOCAL_WINDOW >> 32:
        return _local(cluster, op, address & 0xFFFF_FFFF)
    if address >> 32 == SHARED_WINDOW >> 32:
        rank, offset = (address & 0xFFFF_FFFF) >> RANK_SHIFT, address & 0xFF_FFFF
        return cluster.shared[rank, offset : cluster.shared_limit]
    return cluster.launch.memory.view(address)


def _local(cluster: ClusterFabric, op: Op, offset: int) -> NDArray[np.uint8]:
    size = cluster.launch.kernel.program.local_bytes
    start = ((op.rank * cluster.per_cta + op.warp) * 32 + op.lane) * size
    return cluster.local[start + offset : start + size]


def _text(cluster: ClusterFabric, op: Op, address: int) -> str:
    raw = bytes(_memory(cluster, op, address))
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _argument(cluster: ClusterFabric, op: Op, name: str) -> int:
    """Returns a 64-bit argument of a call, whose operand is a variable in local memory."""
    operand = op.inst.operand(name)
    assert isinstance(operand, Symbol)
    return int.from_bytes(bytes(_local(cluster, op, operand.value)[:8]), "little")


def _vprintf(cluster: ClusterFabric, op: Op) -> bool:
    """``vprintf(format, arguments)``: varargs packed with their natural alignment (CUDA C++ calling convention)."""
    launch = cluster.launch
    if launch.print_room <= 0:
        return True
    text = _text(cluster, op, _argument(cluster, op, "format"))
    data = _memory(cluster, op, _argument(cluster, op, "arguments"))
    try:
        line = format_printf(text, bytes(data[:1024]), lambda at: _text(cluster, op, at))
    except ValueError as error:
        raise cluster.failure(DeviceError, op, str(error)) from None
    launch.print_room -= len(line)
    launch.printed.append((cluster.number, line))
    return True


MOST_WIDTH = 4096
_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|j|z|t)?([diouxXcsfFeEgGaAp%])")


def format_printf(text: str, data: bytes, string_at: Callable[[int], str]) -> str:
    """Returns text formatted as C's printf does, with the arguments in packed bytes.

    Raises ValueError for a precision of ``*``, which an H200 does not read (it takes later arguments for others), and
    for a width or a precision above `MOST_WIDTH`, which could fill the memory of the host.
    """
    at = 0

    def take(size: int, code: str) -> int | float:
        nonlocal at
        at = -(-at // size) * size
        value = struct.unpack_from("<" + code, data.ljust(at + size, b"\0"), at)[0]
        at += size
        return value  # type: ignore[no-any-return]

    def convert(found: re.Match[str]) -> str:
        flags, width, precision, length, kind = found.groups()
        if kind == "%":
            return "%"
        if kind in "ouxX":  # C: signs are for signed conversions
            flags = flags.translate({ord("+"): "", ord(" "): ""})
        if precision == "*":
            raise ValueError("printf with a precision of *, which CUDA's printf does not read; expected digits: %.2f.")
        width = str(take(4, "i")) if width == "*" else width or ""
        for part in (width, precision or ""):
            if part and abs(int(part)) > MOST_WIDTH:
                raise ValueError(f"printf with a width or precision of {part}; expected at most {MOST_WIDTH}.")
        spec = f"%{flags}{width}{'.' + precision if precision else ''}"
        if kind in "fFeEgGaA":
            value = float(take(8, "d"))
            return _hexadecimal(value, kind, f"%{flags}{width}s") if kind in "aA" else (spec + kind) % value
        if kind == "s":
            return (spec + "s") % string_at(int(take(8, "Q")))
        if kind == "c":
            return (spec + "c") % (int(take(4, "i")) & 0xFF)
        if kind == "p":
            return (spec + "s") % f"0x{int(take(8, 'Q')):x}"
        wide = length in ("l", "ll", "j", "z", "t")
        code = ("q" if wide else "i") if kind in "di" else ("Q" if wide else "I")
        number = int(take(8 if wide else 4, code))
        return ((spec if number else spec.replace("#", "")) + kind) % number  # C: zero has no 0x

    return _CONVERSION.sub(convert, text)


def _hexadecimal(value: float, kind: str, spec: str) -> str:
    """Returns a float as ``%a`` of C does: no trailing zeros."""
    text = re.sub(r"\.?0*p", "p", value.hex())
    return spec % (text.upper() if kind == "A" else text)


def _assertfail(cluster: ClusterFabric, op: Op) -> bool:
    message, file = (_text(cluster, op, _argument(cluster, op, name)) for name in ("message", "file"))
    raise cluster.failure(AssertionFault, op, f"assertion `{message}` failed in {file}.")


def _malloc(cluster: ClusterFabric, op: Op) -> bool:
    result = op.inst.operand("d")
    assert isinstance(result, Symbol)
    address = heap.allocate(cluster, op, _argument(cluster, op, "size"))
    _local(cluster, op, result.value)[:8] = np.frombuffer(struct.pack("<Q", address), np.uint8)
    return True


def _free(cluster: ClusterFabric, op: Op) -> bool:
    heap.free(cluster, op, _argument(cluster, op, "address"))
    return True


def _replace_field(cluster: ClusterFabric, op: Op) -> bool:
    """tensormap.replace: change one field of the tensor map at an address (PTX ISA 9.1 section 9.7.9.28)."""
    place = _map_bytes(cluster, op, op["addr"], op.inst["space"])
    value = op["new_val"] & ((1 << 64 if op.inst["type"] == "b64" else 1 << 32) - 1)
    try:
        changed = replace(place.tobytes(), op.inst["field"], value, op.get("ord"))
    except UsageError as error:
        raise cluster.failure(ProtocolError, op, f"{error}.") from None
    place[:] = np.frombuffer(changed, np.uint8)
    return True


def _map_bytes(cluster: ClusterFabric, op: Op, address: int, space: str) -> NDArray[np.uint8]:
    """Returns the 128 bytes of a tensor map in global memory or in the CTA's own shared memory."""
    if not space.startswith("shared") and address >> 32 != SHARED_WINDOW >> 32:
        return cluster.global_memory(op, address, MAP_BYTES)
    rank, offset = locate(cluster, op, address, "tensor map")
    check_inside(cluster, op, "tensor map", rank, offset, MAP_BYTES)
    place: NDArray[np.uint8] = cluster.shared[rank, offset : offset + MAP_BYTES]
    return place


def _publish_map(cluster: ClusterFabric, op: Op) -> bool:
    """tensormap.cp_fenceproxy: copy a tensor map from shared to global memory (PTX ISA 9.1 section 9.7.13.16)."""
    nbytes = op["size"]
    if nbytes != MAP_BYTES:
        raise cluster.failure(ProtocolError, op, f"{nbytes} bytes; expected {MAP_BYTES}, a tensor map.")
    _map_bytes(cluster, op, op["dst_mem"], "global")[:] = _map_bytes(cluster, op, op["src_mem"], "shared::cta")
    return True


SERVICES: dict[str, Callable[[ClusterFabric, Op], bool]] = {
    "call.vprintf": _vprintf,
    "call.__assertfail": _assertfail,
    "call.malloc": _malloc,
    "call.free": _free,
    "tensormap.replace": _replace_field,
    "tensormap.cp_fenceproxy": _publish_map,
}
