"""TMA: bulk copies between global and shared memory, issued by one thread (PTX ISA 9.1 sections 9.7.9.25 to 27).

A tensor map is a parameter with the annotation ``tma.Map[bf16]`` (``tma.Map[Scalar]``: any element type).
The annotation ``tma.PeerMaps[bf16]`` is a tensor map of every rank of a node: ``a[r][row, col]``.
``a[row, col]`` is the box that starts there, in array order; the instruction gets the coordinates innermost first.
A box may reach outside the array: a load writes zeros there and counts their bytes, a store skips them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value, operand
from warpwright.lang.ops.mbarrier import RemoteBarrier, mbarrier
from warpwright.lang.params import Box, Map, PeerMaps
from warpwright.lang.smem import Tile
from warpwright.lang.trace import addr, current
from warpwright.ptx import nodes
from warpwright.types import Scalar, b16, s32, u32, u64

__all__ = [
    "Box", "Map", "MapUse", "PeerMaps", "commit_group", "copy", "load", "policy", "prefetch", "prefetch_map", "reduce",
    "store", "wait_group",
]  # fmt: skip

Barrier = mbarrier | RemoteBarrier | Expr
Destination = Tile | Expr
BULK_STEP = ROW_BYTES = 16  # bytes: of a bulk copy a multiple, of a row of a box at least
POLICIES = ("evict_first", "evict_last", "evict_normal", "evict_unchanged")
REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


@dataclass(frozen=True, slots=True)
class MapUse:
    """The box, swizzle and element type of one tensor-map parameter, recorded by the trace: the host encodes the map.

    ``box`` is in array order (rows, columns), ``swizzle`` 0, 32, 64 or 128 bytes, ``dtype`` the element type.
    """

    box: tuple[int, ...]
    swizzle: int
    dtype: type[Scalar]

    @staticmethod
    def any(shape: Sequence[int], nbytes: int, dtype: type[Scalar]) -> MapUse:
        """Returns the use of a map that no instruction reads, over an array of ``shape`` with elements of ``nbytes``:
        any box will do."""
        return MapUse((1,) * (len(shape) - 1) + (-(-ROW_BYTES // nbytes),), 0, dtype)


def load(
    tile: Destination,
    source: Box,
    barrier: Barrier,
    *,
    cta_group: int | None = None,
    multicast: int | Expr | None = None,
    cache_hint: Expr | int | None = None,
) -> None:
    """Start the copy of the box at ``source`` into ``tile``; the bytes count at ``barrier`` when they arrive.

    ``tile`` is a shared-memory tile of the map's box, or a raw u32 shared::cluster address. ``source`` may have more
    coordinates than the tile has dimensions; the first ones select, for example, one matrix of a batch. With
    ``cta_group=2`` the barrier may be in the peer CTA (``full.at(LEADER)``). ``multicast`` is the 16-bit mask of the
    CTAs that receive the box, each at the same offsets and with its own byte count. ``cache_hint`` is an L2 `policy`,
    u64.

    Raises KernelError if the tile does not fit the map: element type, number of dimensions, or a second box.

    Issued by one thread.
    Completes by the bytes counted at the mbarrier: wait on it, no fence.
    Targets: sm_90 and later; cta_group sm_100a.
    PTX ISA 9.1 section 9.7.9.27.1.2 (cp.async.bulk.tensor).
    """
    if cta_group not in (None, 1, 2):
        raise misuse(f"given cta_group={cta_group}; expected 1 or 2")
    _record_map(source, tile)
    opcode = f"cp.async.bulk.tensor.{len(source.index)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    tail: list[Any] = []
    if multicast is not None:
        opcode += ".multicast::cluster"
        tail.append(operand(multicast, b16) if isinstance(multicast, Expr) else mask(multicast))
    if cta_group is not None:
        opcode += f".cta_group::{cta_group}"
    if cache_hint is not None:
        opcode += ".L2::cache_hint"
        tail.append(_policy(cache_hint))
    current().emit(opcode, _tile_operand(tile), _box_operand(source), _barrier_operand(barrier), *tail)


def store(destination: Box, tile: Destination, *, cache_hint: Expr | int | None = None) -> None:
    """Start the copy of ``tile`` to the box at ``destination``; the same thread then commits and waits for the group.

    Before it, each thread that wrote the tile executes ``fence.proxy_async``, and the CTA synchronises.
    Raises KernelError if the tile does not fit the map.

    Issued by one thread.
    Completes by the bulk group that this thread commits.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.9.27.1.2 (cp.async.bulk.tensor).
    """
    _record_map(destination, tile)
    opcode = f"cp.async.bulk.tensor.{len(destination.index)}d.global.shared::cta.tile.bulk_group"
    tail = () if cache_hint is None else (_policy(cache_hint),)
    current().emit(opcode + (".L2::cache_hint" if tail else ""), _box_operand(destination), _tile_operand(tile), *tail)


def reduce(destination: Box, tile: Destination, op: str = "add", *, cache_hint: Expr | int | None = None) -> None:
    """Start the reduction of ``tile`` into the box at ``destination``: add, min, max, inc, dec, and, or, xor.

    Each element is one atomic operation; the order between CTAs, and so a sum of floats, may differ from run to run.
    The protocol is that of `store`. Raises KernelError for another operation, and if the tile does not fit the map.

    Issued by one thread.
    Completes by the bulk group that this thread commits.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.9.27.1.3 (cp.reduce.async.bulk.tensor).
    """
    if op not in REDUCTIONS:
        raise misuse(f"given op={op!r} to tma.reduce; expected one of {', '.join(REDUCTIONS)}")
    _record_map(destination, tile)
    opcode = f"cp.reduce.async.bulk.tensor.{len(destination.index)}d.global.shared::cta.{op}.tile.bulk_group"
    tail = () if cache_hint is None else (_policy(cache_hint),)
    current().emit(opcode + (".L2::cache_hint" if tail else ""), _box_operand(destination), _tile_operand(tile), *tail)


def policy(priority: str) -> Expr:
    """Returns an L2 cache policy (u64) for ``cache_hint``: evict_first, evict_last, evict_normal or evict_unchanged.

    Raises KernelError for another priority.

    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.9.18 (createpolicy).
    """
    if priority not in POLICIES:
        raise misuse(f"given tma.policy({priority!r}); expected one of {', '.join(POLICIES)}")
    return current().pure(f"createpolicy.fractional.L2::{priority}.b64", u64)


def prefetch(source: Box) -> None:
    """Prefetch the box at ``source`` into L2, as a hint.

    Issued by one thread.
    Completes by itself, unobserved.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.9.27.1.4 (cp.async.bulk.prefetch.tensor).
    """
    current().emit(f"cp.async.bulk.prefetch.tensor.{len(source.index)}d.L2.global.tile", _box_operand(source))


def prefetch_map(map: Map[Any]) -> None:
    """Prefetch the tensor map itself into its cache, as a hint.

    Issued by one thread.
    Completes by itself, unobserved.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.9.15 (prefetch.tensormap).
    """
    current().emit("prefetch.tensormap", addr(map.address))


def copy(destination: Expr, source: Expr, nbytes: Value, barrier: Barrier | None = None) -> None:
    """Start the copy of ``nbytes`` contiguous bytes; addresses and size are multiples of 16.

    From global (u64) to shared memory (u32) ``barrier`` counts the bytes; the other way the copy joins a bulk group.
    From shared memory to that of another CTA of the cluster (both u32, the destination by ``cluster.map``) the barrier
    is one of that CTA's. Raises KernelError for other pairs of addresses.

    Issued by one thread.
    Completes by the mbarrier, or by the bulk group that this thread commits.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.9.25.4.1 (cp.async.bulk).
    """
    if not isinstance(nbytes, Expr) and (nbytes <= 0 or nbytes % BULK_STEP):
        raise misuse(f"given {nbytes} bytes to tma.copy; expected a positive multiple of {BULK_STEP}")
    size = operand(nbytes, u32)
    if (destination.type, source.type) == (u32, u64) and barrier is not None:
        opcode = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        current().emit(opcode, addr(destination), addr(source), size, _barrier_operand(barrier))
    elif (destination.type, source.type) == (u64, u32) and barrier is None:
        current().emit("cp.async.bulk.global.shared::cta.bulk_group", addr(destination), addr(source), size)
    elif (destination.type, source.type) == (u32, u32) and isinstance(barrier, RemoteBarrier):
        opcode = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        current().emit(opcode, addr(destination), addr(source), size, barrier.operand)
    else:
        raise misuse(
            f"given tma.copy to {destination.type.name} from {source.type.name} "
            f"{'with' if barrier is not None else 'without'} a barrier; expected shared (u32) from global (u64) with a "
            "barrier, global from shared without one, or another CTA's shared memory with that CTA's barrier"
        )


def commit_group() -> None:
    """Close this thread's bulk group: the stores that it issued since the previous group.

    Issued by the thread that issued the stores.
    Completes by itself; the group by `wait_group`.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.9.27.2.1 (cp.async.bulk.commit_group).
    """
    current().emit("cp.async.bulk.commit_group")


def wait_group(pending: int = 0, *, read: bool = False) -> None:
    """Wait until at most ``pending`` of this thread's newest bulk groups are incomplete.

    With ``read`` the wait ends when the groups have read their shared memory, which may then be overwritten; without
    it, when the data is in global memory.

    Issued by the thread that committed the groups.
    Completes by the groups.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.9.27.2.2 (cp.async.bulk.wait_group).
    """
    if pending < 0:
        raise misuse(f"given tma.wait_group({pending}); expected 0 or more groups")
    current().emit(f"cp.async.bulk.wait_group{'.read' if read else ''}", pending)


def mask(ranks: int) -> Expr:
    """Returns a 16-bit mask of CTA ranks in a register, bit i for rank i. Raises KernelError for another mask."""
    if not 1 <= ranks < 1 << 16:
        raise misuse(f"given multicast={ranks:#b}; expected a mask of ranks 0 to 15 with at least one bit set")
    return current().pure("mov.b16", b16, ranks)


def _box_operand(box: Box) -> nodes.Address:
    """Returns the operand ``[map, {col, row}]``, innermost coordinate first."""
    return addr(box.map.address, 0, tuple(_coordinate(value) for value in box.coordinates))


def _coordinate(value: Value) -> Any:
    if isinstance(value, Expr) and value.type is u32:
        return value
    return operand(value, s32)


def _policy(hint: Expr | int) -> Any:
    return operand(hint, u64) if isinstance(hint, Expr) else current().pure("mov.b64", u64, hint)


def _tile_operand(tile: Destination) -> nodes.Address:
    return tile.operand if isinstance(tile, Tile) else addr(tile)


def _barrier_operand(barrier: Barrier) -> nodes.Address:
    return addr(barrier) if isinstance(barrier, Expr) else barrier.operand


def _record_map(box: Box, tile: Destination) -> None:
    """Record box, swizzle and element type for the host; with a raw address the caller chooses the box."""
    if isinstance(tile, Expr):
        return
    name, dtype = box.map.name, box.map.dtype
    if dtype not in (Scalar, tile.dtype):
        raise misuse(
            f"given a tile of {tile.dtype.name} for tensor map {name} of {dtype.name}; expected one element type"
        )
    width = tile.shape[-1] * tile.dtype.nbytes
    if tile.swizzle and width > tile.span:
        raise misuse(
            f"given rows of {width} bytes with swizzle {tile.swizzle} to tensor map {name}; expected at most "
            f"{tile.span}: copy a panel at a time, tile[:, c:c + {tile.span // tile.dtype.nbytes}]"
        )
    more = len(box.index) - len(tile.shape)
    if more < 0:
        raise misuse(
            f"given {len(box.index)} coordinates of tensor map {name} for a tile of shape {tile.shape}; "
            "expected at least one coordinate for each dimension"
        )
    use = MapUse((1,) * more + tuple(tile.shape), tile.swizzle, tile.dtype)
    known = current().maps.setdefault(name, use)
    if known != use:
        raise misuse(
            f"given a box of {use.box} with swizzle {use.swizzle} for tensor map {name}, which already has a box of "
            f"{known.box} with swizzle {known.swizzle}; expected one box for each map: pass a second map"
        )
