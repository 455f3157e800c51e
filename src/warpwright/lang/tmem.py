"""Tensor memory: 128 lanes × 512 columns of 32 bits in each SM, allocated in columns (PTX ISA 9.1 section 9.7.16).

The protocol, every step visible in the kernel:

1. ``acc = tmem.tile(f32, (128, 128), cta_group=2)`` claims columns; nothing is emitted.
2. one whole warp (with ``cta_group=2`` one in each CTA): ``tmem.alloc()``, which has the hardware write the address of
   all claimed columns to shared memory, and ``tcgen05.relinquish_alloc_permit(cta_group=2)``.
3. ``tcgen05.fence_before_thread_sync()``, a CTA barrier (for a pair a cluster barrier),
   ``tcgen05.fence_after_thread_sync()``.
4. every thread: ``tmem.open()`` reads the address. From here on the tiles may be used.
5. after the last reader, behind another barrier, the same warp: ``tmem.dealloc()``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from warpwright.lang.context import current, misuse
from warpwright.lang.expr import Expr
from warpwright.lang.trace import addr
from warpwright.ptx import nodes
from warpwright.types import Scalar, u32

__all__ = ["COLUMNS", "Claim", "Columns", "TmemTile", "alloc", "dealloc", "open", "space_of", "tile"]

COLUMNS = 512
LANES = 128
LEAST_COLUMNS = 32
COLUMN_BITS = 32
CTA_GROUPS = (1, 2)


@dataclass(eq=False)
class Claim:
    """The columns of one tile, or of all its stages in a ring; ``column``, the first, is known after `alloc`."""

    space: Columns
    width: int
    stages: int = 1
    column: int = 0

    def repeat(self, stages: int) -> None:
        """Claim the columns ``stages`` times over. KernelError where they do not fit, or after `alloc`."""
        self.space.check_open()
        self.stages = stages
        self.space.check_size()


@dataclass
class Columns:
    """The tensor memory of one kernel while it is traced: what is claimed, where alloc writes, what `open` read."""

    cta_group: int
    claims: list[Claim] = field(default_factory=list)
    slot: int | None = None
    base: Expr | None = None

    @property
    def used(self) -> int:
        """The number of columns claimed."""
        return sum(claim.width * claim.stages for claim in self.claims)

    @property
    def allocated(self) -> int:
        """The number of columns to allocate: the next power of two, at least 32."""
        return max(LEAST_COLUMNS, 1 << (self.used - 1).bit_length())

    def check_open(self) -> None:
        """Raise KernelError once `alloc` has settled the columns."""
        if self.slot is not None:
            raise misuse("given a tmem.tile after tmem.alloc(); expected every tile before it: move the tile up")

    def check_size(self) -> None:
        """Raise KernelError for more columns than there are."""
        if self.used > COLUMNS:
            raise misuse(
                f"given tiles of {self.used} columns of tensor memory; expected at most {COLUMNS}: "
                "use fewer stages or columns"
            )

    def settle(self) -> None:
        """Give every claim its columns, one after the other."""
        column = 0
        for claim in self.claims:
            claim.column = column
            column += claim.width * claim.stages


@dataclass(frozen=True, eq=False, slots=True)
class TmemTile:
    """A matrix in tensor memory: ``shape`` (lanes, columns) in this CTA, one element of ``dtype`` to a column.

    ``left`` is the column where a slice starts in its whole tile; ``shift`` a run-time number of columns on top (a
    stage of a ring). ``tile[:, 32:64]`` is a range of its columns. A `packed` tile has ``density`` elements a column.
    """

    dtype: type[Scalar]
    shape: tuple[int, int]
    cta_group: int
    claim: Claim
    left: int = 0
    shift: Expr | None = None
    density: int = 1

    def __getitem__(self, index: tuple[slice, slice]) -> TmemTile:
        """A range of columns, all lanes: ``tile[:, start:stop]``. KernelError for anything else."""
        lanes, columns = index if isinstance(index, tuple) and len(index) == 2 else (None, None)
        if lanes != slice(None) or not isinstance(columns, slice) or columns.step not in (None, 1):
            raise misuse(f"given tile[{index!r}] of tensor memory; expected tile[:, start:stop], a range of columns")
        start, stop, _ = columns.indices(self.shape[1])
        if stop <= start:
            raise misuse(
                f"given tile[:, {columns.start}:{columns.stop}]; expected at least one of {self.shape[1]} columns"
            )
        if start % self.density or stop % self.density:
            raise misuse(
                f"given tile[:, {start}:{stop}] of {self.density} elements a column; expected whole columns: "
                f"multiples of {self.density}"
            )
        return replace(self, shape=(self.shape[0], stop - start), left=self.left + start // self.density)

    def packed(self, dtype: type[Scalar]) -> TmemTile:
        """The same columns as a matrix of ``dtype``, 32 bits of neighbours along K to a column: A of an `mma`.

        PTX ISA 9.1 section 9.7.16.10.5 (matrix A in tensor memory).
        """
        density = COLUMN_BITS // dtype.bits
        return replace(self, dtype=dtype, shape=(self.shape[0], self.shape[1] * density), density=density)

    @property
    def column(self) -> int:
        """The first column within the allocation, without the run-time shift."""
        return self.claim.column + self.left

    @property
    def base(self) -> Expr:
        """The address of the allocation (plus the run-time shift), u32: lane << 16 | column."""
        base = _opened(self.claim.space)
        return base if self.shift is None else base + self.shift

    @property
    def address(self) -> Expr:
        """The tile's address, u32: lane << 16 | column."""
        return self.base + self.column

    @property
    def operand(self) -> nodes.Address:
        """``[base + column]`` as PTX writes it."""
        return addr(self.base, self.column)

    def at_shift(self, shift: Expr) -> TmemTile:
        """The same tile ``shift`` columns further on."""
        return replace(self, shift=shift)


def tile(dtype: type[Scalar], shape: tuple[int, int], *, cta_group: int = 1) -> TmemTile:
    """Claim columns for a (lanes, columns) matrix of ``dtype`` (32-bit or 16-bit, one element a column) in each CTA.

    With ``cta_group=2`` it is this CTA's half, 128 lanes of a pair's 256 rows. Raises KernelError for more than 128
    lanes or 512 columns, for a tile after `alloc`, and for a kernel that mixes cta_groups.
    """
    space = space_of(cta_group)
    if not (1 <= shape[0] <= LANES and 1 <= shape[1] <= COLUMNS) or dtype.bits > COLUMN_BITS:
        raise misuse(
            f"given a tmem.tile of {dtype.name} {shape}; expected at most {LANES} lanes × {COLUMNS} columns of 32 bits"
        )
    space.check_open()
    claim = Claim(space, shape[1])
    space.claims.append(claim)
    space.check_size()
    return TmemTile(dtype, shape, cta_group, claim)


def space_of(cta_group: int) -> Columns:
    """The kernel's tensor memory; KernelError where ``cta_group`` is not 1 or 2, or not the kernel's own."""
    if cta_group not in CTA_GROUPS:
        raise misuse(f"given cta_group={cta_group}; expected 1 or 2")
    trace = current()
    if trace.tensor_memory is None:
        trace.tensor_memory = Columns(cta_group)
    space: Columns = trace.tensor_memory
    if space.cta_group != cta_group:
        raise misuse(
            f"given cta_group={cta_group} in a kernel that uses cta_group={space.cta_group}; "
            "expected one cta_group in every tcgen05 instruction of a kernel"
        )
    if math.prod(trace.cluster) % cta_group:
        raise misuse(
            f"given cta_group={cta_group} in clusters of {math.prod(trace.cluster)}; expected CTA pairs: "
            "@kernel(…, cluster=2), or another even number"
        )
    return space


def alloc() -> None:
    """Allocate all claimed columns (a power of two, at least 32); the address goes to shared memory.

    Issued by one whole warp; with cta_group 2 by one in each CTA of the pair, both alive.
    Completes by itself, when the columns are free.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.7.1 (tcgen05.alloc).
    """
    from warpwright.lang.ops import tcgen05

    space = _columns()
    if space.slot is not None:
        raise misuse("given a second tmem.alloc(); expected one, after the last tmem.tile")
    trace = current()
    space.settle()
    space.slot = trace.allocate(4, 4, "tmem address")
    tcgen05.alloc(addr(trace.smem_at(0), space.slot), space.allocated, cta_group=space.cta_group)


def open() -> None:
    """Read the address that `alloc` left in shared memory, in every thread, behind the barrier.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.9.8 (ld.shared.b32).
    """
    space = _columns()
    if space.slot is None:
        raise misuse("given tmem.open() without tmem.alloc(); expected one warp to allocate first")
    trace = current()
    space.base = trace.result("ld.shared.u32", u32, addr(trace.smem_at(0), space.slot))


def dealloc() -> None:
    """Give the columns back; nobody may touch them any more.

    Issued by one whole warp; with cta_group 2 by one in each CTA of the pair.
    Completes by itself.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.7.1 (tcgen05.dealloc).
    """
    from warpwright.lang.ops import tcgen05

    space = _columns()
    tcgen05.dealloc(_opened(space), space.allocated, cta_group=space.cta_group)


def _columns() -> Columns:
    space: Any = current().tensor_memory
    if space is None:
        raise misuse("given tensor memory without a tile; expected tmem.tile(dtype, (lanes, columns)) first")
    columns: Columns = space
    return columns


def _opened(space: Columns) -> Expr:
    if space.base is None:
        raise misuse("given a tmem.tile before tmem.open(); expected tmem.alloc(), a barrier, then tmem.open()")
    return space.base
