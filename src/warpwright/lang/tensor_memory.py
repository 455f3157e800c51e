"""Tiles of tensor memory: 128 lanes × 512 columns of 32 bits in each SM (PTX ISA 9.1 section 9.7.16).

`ops.tmem` claims, allocates and frees the columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr
from warpwright.lang.trace import addr, current
from warpwright.ptx import nodes
from warpwright.types import Scalar

__all__ = ["COLUMNS", "COLUMN_BITS", "LANES", "Claim", "Columns", "TmemTile", "kernel_columns"]

COLUMNS = 512
LANES = 128
MIN_COLUMNS = 32
COLUMN_BITS = 32
CTA_GROUPS = (1, 2)


@dataclass(eq=False)
class Claim:
    """The columns of one tile, or of all its stages in a ring; ``tmem.alloc`` sets ``column``, the first of them."""

    space: Columns
    width: int
    stages: int = 1
    column: int = 0

    def repeat(self, stages: int) -> None:
        """Claim the columns ``stages`` times. Raises KernelError if they do not fit, or after ``tmem.alloc``."""
        self.space.check_claimable()
        self.stages = stages
        self.space.check_size()


@dataclass
class Columns:
    """The tensor memory of one kernel while it is traced.

    ``slot`` is the shared-memory offset where ``tmem.alloc`` writes the address, ``address`` the register that
    ``tmem.open`` read it into.
    """

    cta_group: int
    claims: list[Claim] = field(default_factory=list)
    slot: int | None = None
    address: Expr | None = None

    @property
    def claimed(self) -> int:
        """The number of columns claimed."""
        return sum(claim.width * claim.stages for claim in self.claims)

    @property
    def allocated(self) -> int:
        """The number of columns to allocate: the next power of two, at least 32."""
        return max(MIN_COLUMNS, 1 << (self.claimed - 1).bit_length())

    @property
    def base(self) -> Expr:
        """The address of the allocation (u32). Raises KernelError before ``tmem.open``."""
        if self.address is None:
            raise misuse("given a tmem.tile before tmem.open(); expected tmem.alloc(), a barrier, then tmem.open()")
        return self.address

    def check_claimable(self) -> None:
        """Raise KernelError after ``tmem.alloc``, which fixes the columns."""
        if self.slot is not None:
            raise misuse("given a tmem.tile after tmem.alloc(); expected every tile before it: move the tile up")

    def check_size(self) -> None:
        """Raise KernelError if the claims exceed the 512 columns."""
        if self.claimed > COLUMNS:
            raise misuse(
                f"given tiles of {self.claimed} columns of tensor memory; expected at most {COLUMNS}: "
                "use fewer stages or columns"
            )

    def place_claims(self) -> None:
        """Assign columns to the claims, side by side in order."""
        column = 0
        for claim in self.claims:
            claim.column = column
            column += claim.width * claim.stages


@dataclass(frozen=True, eq=False, slots=True)
class TmemTile:
    """A matrix in tensor memory: ``shape`` (lanes, columns) in this CTA, one element of ``dtype`` in each column.

    ``tile[:, 32:64]`` is a range of its columns. ``left`` is the first column of a slice within the whole tile,
    ``shift`` a run-time number of columns added to it (a stage of a ring). A `packed` tile has ``density`` elements in
    each column.
    """

    dtype: type[Scalar]
    shape: tuple[int, int]
    cta_group: int
    claim: Claim
    left: int = 0
    shift: Expr | None = None
    density: int = 1

    def __getitem__(self, index: tuple[slice, slice]) -> TmemTile:
        """Returns a range of columns, all lanes: ``tile[:, start:stop]``. Raises KernelError for another index."""
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
                f"given tile[:, {start}:{stop}] with {self.density} elements in each column; expected whole columns: "
                f"multiples of {self.density}"
            )
        return replace(self, shape=(self.shape[0], stop - start), left=self.left + start // self.density)

    def packed(self, dtype: type[Scalar]) -> TmemTile:
        """Returns the same columns as a matrix of ``dtype`` with 32 bits of K in each column: A of ``tcgen05.mma``.

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
        base = self.claim.space.base
        return base if self.shift is None else base + self.shift

    @property
    def address(self) -> Expr:
        """The tile's address, u32: lane << 16 | column."""
        return self.base + self.column

    @property
    def operand(self) -> nodes.Address:
        """The address operand ``[base + column]``."""
        return addr(self.base, self.column)

    def at_shift(self, shift: Expr) -> TmemTile:
        """Returns the same tile ``shift`` columns further right."""
        return replace(self, shift=shift)


def kernel_columns(cta_group: int) -> Columns:
    """Returns the tensor memory of the kernel, created at the first call.

    Raises KernelError if ``cta_group`` is not 1 or 2, or differs from the kernel's other tcgen05 instructions.
    """
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
