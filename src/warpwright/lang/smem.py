"""Shared memory of a CTA: `tile` for TMA and matrix operands, `array` and `scalar` for ordinary loads and stores.

All shared memory is one dynamic allocation, whose size the traced kernel knows. A tile is aligned to the period of its
swizzle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value, check_type, is_number
from warpwright.lang.pointer import Pointer, Shared
from warpwright.lang.trace import addr, current
from warpwright.ptx import nodes
from warpwright.types import Scalar, u32

__all__ = ["Place", "Tile", "Transposed", "array", "scalar", "tile"]

SWIZZLES = {0: 128, 32: 256, 64: 512, 128: 1024}
ATOM_ROWS = 8
CHUNK = 16
Index = Any


@dataclass(eq=False)
class Place:
    """The memory of a tile: shared address ``base`` (None: the start of shared memory) plus ``offset`` bytes."""

    nbytes: int
    align: int
    base: Expr | None = None
    offset: int | None = None

    def known(self) -> tuple[Expr, int]:
        """Returns base register and byte offset; the first call allocates the bytes."""
        trace = current()
        if self.offset is None:
            self.offset = trace.allocate(self.nbytes, self.align, "tile")
        return (trace.smem_at(0) if self.base is None else self.base), self.offset


@dataclass(frozen=True, eq=False)
class Tile:
    """A matrix in shared memory: ``shape`` (rows, columns) of ``dtype``, rows dense, 16-byte chunks swizzled as by TMA.

    Rows wider than the swizzle span are stored as panels of that span, one panel after the other. ``tile[:, 16:32]`` is
    a slice for a matrix operand; ``row`` and ``column`` are its first element in the whole tile of ``rows`` rows.
    The first use allocates the memory, so a tile may also serve as the pattern of a ring's stages (`placed`).
    """

    dtype: type[Scalar]
    shape: tuple[int, ...]
    swizzle: int
    rows: int
    span: int
    place: Place
    row: int = 0
    column: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the tile or slice, as TMA counts them."""
        return math.prod(self.shape) * self.dtype.nbytes

    @property
    def align(self) -> int:
        """The alignment of the whole tile in bytes: 1024, 512, 256 for swizzles of 128, 64, 32 bytes, else 128."""
        return SWIZZLES[self.swizzle]

    @property
    def T(self) -> Transposed:
        """The same memory as a matrix (columns, rows), for a matrix operand whose K runs along the rows."""
        return Transposed(self)

    @property
    def offset(self) -> int:
        """The byte offset of the slice in the whole tile before swizzling: the start of a matrix descriptor."""
        return int(_linear(self, self.row, self.column))

    @property
    def address(self) -> Expr:
        """The shared-space address of the first element (u32)."""
        base, start = self.place.known()
        if self.place.base is None:
            return current().smem_at(start + self.offset)
        return base + (start + self.offset)

    @property
    def operand(self) -> nodes.Address:
        """The address operand ``[base + offset]``."""
        base, start = self.place.known()
        return addr(base, start + self.offset)

    def placed(self, base: Expr | None, offset: int) -> Tile:
        """Returns the same tile at shared address ``base + offset``, which must keep the tile's alignment."""
        if offset % self.align:
            raise misuse(
                f"given offset {offset} for a tile of swizzle {self.swizzle}; expected a multiple of {self.align}"
            )
        return replace(self, place=Place(self.place.nbytes, self.align, base, offset))

    def __getitem__(self, index: tuple[slice, slice]) -> Tile:
        if not isinstance(index, tuple) or len(index) != 2 or len(self.shape) != 2:
            raise misuse(f"given tile[{index!r}]; expected tile[rows, columns] with slices, or tile.at(row, column)")
        (top, bottom), (left, right) = (_bounds(part, size) for part, size in zip(index, self.shape, strict=True))
        part = replace(self, shape=(bottom - top, right - left), row=self.row + top, column=self.column + left)
        _check_slice(part)
        return part

    def at(self, *index: Value) -> Pointer[Any]:
        """Returns the swizzled address of element ``index`` (row, column), for `ld` and `st` of up to 16 aligned bytes.

        Raises KernelError for another number of indices or a constant outside the tile.
        """
        if len(index) != len(self.shape):
            raise misuse(f"given {len(index)} indices for a tile of shape {self.shape}; expected {len(self.shape)}")
        for axis, (value, size) in enumerate(zip(index, self.shape, strict=True)):
            if is_number(value) and not 0 <= value < size:
                raise misuse(
                    f"given index {value} on axis {axis} of a tile of shape {self.shape}; expected 0 to {size - 1}"
                )
        row: Any = 0
        for value, size in zip(index[:-1], self.shape[:-1], strict=True):
            row = row * size + _u32(value)
        linear = _linear(self, row + self.row, _u32(index[-1]) + self.column)
        base, start = self.place.known()
        return _pointer(self.dtype, base, start, _swizzle(linear, self.swizzle))


@dataclass(frozen=True, eq=False)
class Transposed:
    """A tile as its transpose (columns, rows), for matrix operands only: ``tile.T``, sliced ``tile[k:k + 16, :].T``."""

    tile: Tile

    @property
    def dtype(self) -> type[Scalar]:
        """The element type."""
        return self.tile.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The tile's shape, last axis first."""
        return self.tile.shape[::-1]

    @property
    def T(self) -> Tile:
        """The tile itself."""
        return self.tile

    def __getitem__(self, index: tuple[slice, slice]) -> Transposed:
        return self.tile[index[::-1] if isinstance(index, tuple) else index].T


def _u32(value: Value) -> Any:
    return value.to(u32) if isinstance(value, Expr) and value.type is not u32 else value


def _linear(tile: Tile, row: Any, column: Any) -> Any:
    """Returns the byte offset of an element in its whole tile before swizzling; ints stay ints."""
    nbytes = tile.dtype.nbytes
    if is_number(row) and is_number(column):
        panel, inner = divmod(column * nbytes, tile.span)
        return panel * tile.rows * tile.span + row * tile.span + inner
    if tile.place.nbytes == tile.rows * tile.span:
        return row * tile.span + column * nbytes
    panel = (column * nbytes) // tile.span
    return panel * (tile.rows * tile.span) + row * tile.span + (column * nbytes) % tile.span


def _swizzle(linear: Any, mode: int) -> Any:
    """Returns ``linear`` with its 16-byte chunk number XORed with its row in the atom: bits 4.. ^ bits 7.. ."""
    return linear ^ ((linear >> 3) & (mode - CHUNK)) if mode else linear


def _pointer(dtype: type[Scalar], base: Expr, start: int, linear: Any) -> Pointer[Any]:
    if is_number(linear):
        return Shared(dtype, base, start + linear)
    return Shared(dtype, base + linear, start)


def _bounds(part: Index, size: int) -> tuple[int, int]:
    ends = (part.start, part.stop, part.step) if isinstance(part, slice) else None
    if ends is None or part.step not in (None, 1) or any(isinstance(end, Expr) for end in ends):
        raise misuse(f"given {part!r} as a slice of a tile; expected start:stop of Python ints: unroll with range()")
    start, stop, _ = part.indices(size)
    if stop <= start:
        raise misuse(f"given slice {part.start}:{part.stop} of {size}; expected at least one row or column")
    return start, stop


def _check_slice(part: Tile) -> None:
    """Raise KernelError unless the slice starts at an atom and a 16-byte chunk and fills panels or stays in one."""
    if part.swizzle and part.row % ATOM_ROWS:
        raise misuse(f"given a slice from row {part.row} of a swizzled tile; expected a multiple of {ATOM_ROWS} rows")
    left, width = part.column * part.dtype.nbytes, part.shape[1] * part.dtype.nbytes
    if left % CHUNK:
        raise misuse(
            f"given a slice from column {part.column}; expected a multiple of {CHUNK // part.dtype.nbytes} columns"
        )
    inside = left // part.span == (left + width - 1) // part.span
    if not inside and (left % part.span or width % part.span):
        columns = part.span // part.dtype.nbytes
        raise misuse(
            f"given columns {part.column}:{part.column + part.shape[1]} across two panels; "
            f"expected a slice inside one panel of {columns} columns, or whole panels"
        )


def tile(dtype: type[Scalar], shape: tuple[int, ...], *, swizzle: int = 0) -> Tile:
    """Returns a tile of ``shape`` elements, last axis contiguous, with a ``swizzle`` of 0, 32, 64 or 128 bytes.

    Raises KernelError for another swizzle, and for rows that are no multiple of the swizzle span (or of 16 bytes).
    """
    current()
    check_type("smem.tile", dtype)
    if swizzle not in SWIZZLES:
        raise misuse(f"given swizzle={swizzle}; expected 0, 32, 64 or 128 bytes")
    width = shape[-1] * dtype.nbytes
    step = swizzle or CHUNK
    if not all(isinstance(size, int) and size > 0 for size in shape) or width % step:
        raise misuse(
            f"given smem.tile({dtype.name}, {shape}, swizzle={swizzle}); expected positive sizes and rows of "
            f"a multiple of {step} bytes: the last size a multiple of {step // dtype.nbytes}"
        )
    nbytes = math.prod(shape) * dtype.nbytes
    return Tile(dtype, tuple(shape), swizzle, math.prod(shape[:-1]), swizzle or width, Place(nbytes, SWIZZLES[swizzle]))


def array(dtype: type[Scalar], count: int, *, align: int = 16) -> Shared[Any]:
    """Returns a pointer to ``count`` elements of ``dtype`` in shared memory: ``s[i]`` loads, ``s[i] = v`` stores."""
    check_type("smem.array", dtype)
    trace = current()
    offset = trace.allocate(count * dtype.nbytes, max(align, dtype.nbytes), "array")
    return Shared(dtype, trace.smem_at(0), offset)


def scalar(dtype: type[Scalar]) -> Shared[Any]:
    """Returns a pointer to one element of ``dtype`` in shared memory: ``s[0]``."""
    return array(dtype, 1, align=dtype.nbytes)
