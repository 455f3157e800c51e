"""Allocation of tensor memory, in columns (PTX ISA 9.1 section 9.7.16.7). The protocol:

1. ``acc = tmem.tile(f32, (128, 128), cta_group=2)`` claims columns and emits nothing.
2. One whole warp (with ``cta_group=2`` one in each CTA) calls ``tmem.alloc()``, which makes the hardware write the
   address of all claimed columns to shared memory, and ``tcgen05.relinquish_alloc_permit(cta_group=2)``.
3. All threads: ``tcgen05.fence_before_thread_sync()``, a CTA barrier (for a CTA pair a cluster barrier),
   ``tcgen05.fence_after_thread_sync()``.
4. Every thread calls ``tmem.open()``, which reads the address. From here on the tiles may be used.
5. After the last reader and another barrier, the warp of step 2 calls ``tmem.dealloc()``.
"""

from __future__ import annotations

from warpwright.lang.context import misuse
from warpwright.lang.ops import tcgen05
from warpwright.lang.tensor_memory import COLUMN_BITS, COLUMNS, LANES, Claim, Columns, TmemTile, kernel_columns
from warpwright.lang.trace import addr, current
from warpwright.layout import SCALE_TILE
from warpwright.types import Scalar, u32

__all__ = ["TmemTile", "alloc", "dealloc", "open", "scales", "tile"]


def tile(dtype: type[Scalar], shape: tuple[int, int], *, cta_group: int = 1) -> TmemTile:
    """Claim columns for a (lanes, columns) matrix of ``dtype`` (at most 32 bits, one element a column) in each CTA.

    With ``cta_group=2`` the tile is this CTA's half, 128 lanes of the pair's 256 rows. Raises KernelError for more than
    128 lanes or 512 columns, for a tile after `alloc`, and for a kernel that mixes cta_groups.
    """
    space = kernel_columns(cta_group)
    if not (1 <= shape[0] <= LANES and 1 <= shape[1] <= COLUMNS) or dtype.bits > COLUMN_BITS:
        raise misuse(
            f"given a tmem.tile of {dtype.name} {shape}; expected at most {LANES} lanes × {COLUMNS} columns of 32 bits"
        )
    space.check_claimable()
    claim = Claim(space, shape[1])
    space.claims.append(claim)
    space.check_size()
    return TmemTile(dtype, shape, cta_group, claim)


def scales(dtype: type[Scalar], rows: int, *, cta_group: int = 1) -> TmemTile:
    """Claim columns for 4 scale factors, ue8m0 or ue4m3, of each of ``rows`` rows of A or B: 4 columns for 128 rows.

    With ``cta_group=2`` each CTA has those of its own rows of A, and of all rows of B. Raises KernelError for another
    type, and as `tile` does.
    """
    if dtype.name not in ("ue4m3", "ue8m0"):
        raise misuse(f"given tmem.scales of {dtype.name}; expected ue8m0 or ue4m3")
    height, width = SCALE_TILE
    return tile(dtype, (LANES, -(-rows // height) * width), cta_group=cta_group).packed(dtype)


def alloc() -> None:
    """Allocate all claimed columns (a power of two, at least 32); the hardware writes the address to shared memory.

    Issued by one whole warp; with cta_group 2 by one in each CTA of the pair, both alive.
    Completes by itself, when the columns are free.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.7.1 (tcgen05.alloc).
    """
    space = _claimed_columns()
    if space.slot is not None:
        raise misuse("given a second tmem.alloc(); expected one, after the last tmem.tile")
    trace = current()
    space.place_claims()
    space.slot = trace.allocate(4, 4, "tmem address")
    tcgen05.alloc(addr(trace.smem_at(0), space.slot), space.allocated, cta_group=space.cta_group)


def open() -> None:
    """Read the address that `alloc` wrote to shared memory, after the barrier.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.9.8 (ld.shared.b32).
    """
    space = _claimed_columns()
    if space.slot is None:
        raise misuse("given tmem.open() without tmem.alloc(); expected one warp to allocate first")
    trace = current()
    space.address = trace.result("ld.shared.u32", u32, addr(trace.smem_at(0), space.slot))


def dealloc() -> None:
    """Free all columns, after the last thread has used them.

    Issued by one whole warp; with cta_group 2 by one in each CTA of the pair.
    Completes by itself.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.7.1 (tcgen05.dealloc).
    """
    space = _claimed_columns()
    tcgen05.dealloc(space.base, space.allocated, cta_group=space.cta_group)


def _claimed_columns() -> Columns:
    space: Columns | None = current().tensor_memory
    if space is None:
        raise misuse("given tensor memory without a tile; expected tmem.tile(dtype, (lanes, columns)) first")
    return space
