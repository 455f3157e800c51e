"""Tensor maps: the view that a tensor copy has of an array (PTX ISA 9.1 section 5.5, ``cuTensorMapEncodeTiled`` and
``cuTensorMapEncodeIm2col``).

The constructor takes shapes in the order of the array's axes. The attributes are in the order of
``cp.async.bulk.tensor`` coordinates: innermost dimension first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import memory_of
from warpwright.errors import UsageError
from warpwright.layout.swizzle import ATOM_32B, ATOM_64B, Mode, width
from warpwright.types import PACKED, PADDED, Scalar, bf16, f16, f32, f64, of_dtype, tf32

__all__ = ["FILLS", "INTERLEAVES", "L2_PROMOTIONS", "RAGGED_ROWS", "SWIZZLES", "TensorMap", "ragged"]

SWIZZLES: dict[Mode, int] = {0: 0, 32: 1, 64: 2, 128: 3, ATOM_32B: 4, ATOM_64B: 6}  # with the driver's numbers
FILLS = ("zero", "nan")
INTERLEAVES = ("none", "16B", "32B")
L2_PROMOTIONS = (0, 64, 128, 256)
RAGGED_ROWS = 1 << 30
ADDRESS_SPACE = 1 << 64  # address arithmetic is modulo this

Array = np.ndarray | DeviceArray

_FLOATS = (f16, bf16, f32, f64, tf32)


class TensorMap:
    """A tensor map over an array in global memory, as a kernel argument.

    ``array``
        An array of NumPy, torch, CuPy or DLPack, of 1 to 5 dimensions with a dense last axis: a launch copies one of
        the host to the device and back, and uses one on a GPU in place.
    ``box``
        The shape that one copy moves, in the order of the array's axes: ``(rows, cols)``.
    ``swizzle``
        0, 32, 64 or 128 bytes, or ``"128B_ATOM_32B"`` or ``"128B_ATOM_64B"``: 128 bytes that keep 32 or 64 together
        (sm_100 and later).
    ``element_strides``
        In axis order; n copies every n-th element.
    ``fill``
        The value of elements outside the array: ``"zero"`` or ``"nan"``.
    ``dims``, ``strides``
        A view of the array's memory that replaces its shape: innermost first, ``strides`` in bytes and without the
        innermost.
    ``dtype``
        The element type, if it is not the type of the array's dtype. A tensor map has no float8: use bytes. Over an
        array of bytes it may be ``b4x16``, ``b4x16_p64`` or ``b6x16_p32`` of `warpwright.types`, packed values of 4 or
        6 bits: ``box`` and ``dims`` count the values.
    ``wraps``
        Allows ``dims`` and ``strides`` to reach beyond the array, because address arithmetic is modulo 2^64. Every box
        that a kernel copies must still lie inside the array. `ragged` uses this.
    ``corners``
        Makes a map of im2col mode (PTX ISA 9.1 section 5.5.4) over an array of images (N, W, C), (N, H, W, C) or
        (N, D, H, W, C): the lower and the upper corner of the box in which pixels are counted, each in axis order
        without N and C, as distances from the first and the last pixel. ``box`` is then (pixels, channels): one copy
        moves so many pixels, one after the other along W, then H, D and N, each with so many channels.

    Attributes, innermost dimension first: ``dims`` (elements), ``strides`` (bytes, one fewer than ``dims``), ``box``,
    ``elem_strides``, ``corners`` (() in tile mode); and ``dtype`` (a scalar type), ``swizzle``, ``fill``,
    ``interleave``, ``l2_promotion``, ``wraps``, ``array``.

    Raises UsageError for every combination that ``cuTensorMapEncodeTiled`` or ``cuTensorMapEncodeIm2col`` (driver API
    13.0) refuses.
    """

    def __init__(
        self,
        array: Any,
        box: Sequence[int],
        *,
        swizzle: Mode = 0,
        element_strides: Sequence[int] | None = None,
        fill: str = "zero",
        interleave: str = "none",
        l2_promotion: int = 0,
        dims: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        dtype: type[Scalar] | None = None,
        wraps: bool = False,
        corners: Sequence[Sequence[int]] = (),
    ) -> None:
        self.array: Any = _array(array)
        self.dtype = dtype or of_dtype(self.array.dtype)
        geometry = (dims, strides or ()) if dims is not None else _array_geometry(self.array, strides)
        if dims is None and self.dtype in PACKED:
            geometry = (geometry[0][0] * 8 // self.dtype.bits, *geometry[0][1:]), geometry[1]
        self.dims = _integers("dims", geometry[0])
        self.strides = _integers("strides", geometry[1])
        self.box = _integers("box", box)[::-1]
        self.corners = tuple(_integers("corners", corner)[::-1] for corner in corners)
        steps = element_strides or (1,) * len(self.dims if corners else self.box)
        self.elem_strides = _integers("element_strides", steps)[::-1]
        self.swizzle = swizzle
        self.fill = fill
        self.interleave = interleave
        self.l2_promotion = l2_promotion
        self.wraps = wraps
        _check(self)

    @property
    def rank(self) -> int:
        """Number of dimensions, 1 to 5."""
        return len(self.dims)

    @property
    def box_elements(self) -> tuple[int, ...]:
        """Elements that one copy moves in each dimension, innermost first: ``ceil(box / elem_strides)``; in im2col mode
        channels and pixels."""
        if self.corners:
            return self.box
        steps = (1, *self.elem_strides[1:]) if self.interleave == "none" else self.elem_strides
        return tuple(-(-extent // step) for extent, step in zip(self.box, steps, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes that one load writes and completes on its mbarrier; a box partly outside the array counts fully."""
        return prod(self.box_elements) * self.dtype.bits // 8

    def __repr__(self) -> str:
        return (
            f"TensorMap({self.dtype.name}, dims={self.dims}, strides={self.strides}, box={self.box}, "
            f"swizzle={self.swizzle})"
        )


def ragged(array: Any, box: Sequence[int], *, swizzle: int = 0) -> TensorMap:
    """Returns a tensor map over variable-length sequences that are packed along the rows of ``array``.

    ``array`` is (rows, columns) or (heads, rows, columns). Rows beyond the end of a sequence are out of bounds: a load
    reads zeros there, a store skips them. ``box`` is (1, 1, …, rows, columns). With R = ``RAGGED_ROWS``, the box at
    ``row`` of a sequence of ``length`` rows that ends before row ``stop`` of the array has the coordinates
    ``[R, stop, …, R - length + row, column]``, in array order.

    The row dimension has R entries and the sequence occupies the last ``length`` of them, so that every later row is
    out of bounds. The second coordinate, ``stop``, has the stride of a row too. The first coordinate, R, subtracts R
    rows modulo 2^64: its stride is 2^64 / R minus one row.

    Raises UsageError as TensorMap does, and for more than R rows.
    """
    view = TensorMap(array, box[2:])
    _require(view.dims[1] <= RAGGED_ROWS, f"{view.dims[1]} rows", f"at most {RAGGED_ROWS}", "pass fewer")
    row, *outer = view.strides
    dims = view.dims[0], RAGGED_ROWS, *view.dims[2:], view.dims[1] + 1, RAGGED_ROWS + 1
    return TensorMap(
        array,
        box,
        swizzle=swizzle,
        dims=dims,
        strides=(row, *outer, row, ADDRESS_SPACE // RAGGED_ROWS - row),
        wraps=True,
    )


def _integers(name: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(index(value) for value in values)
    except TypeError:
        raise UsageError(f"given {name}={values!r}; expected a sequence of integers, one per dimension") from None


def _array(given: Any) -> Array:
    found = given if isinstance(given, Array) else memory_of(given)
    if not isinstance(found, Array):
        raise UsageError(
            f"given a {type(given).__name__}; expected an array of NumPy, torch, CuPy or DLPack: np.asarray(x)"
        )
    return found


def _array_geometry(array: Array, strides: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns ``dims`` and ``strides`` of an array, whose last axis must be dense.

    The stride of an axis with one element addresses nothing; it is rounded up to a multiple of 16 bytes, so that a
    tensor map can cover one row of any length.
    """
    if strides is not None:
        raise UsageError("given strides without dims; expected both or neither; give dims too, innermost first")
    if array.size and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        raise UsageError(
            f"given an array whose last axis has stride {array.strides[-1]} bytes; expected a dense last axis, "
            f"{array.itemsize} bytes; pass its transpose or np.ascontiguousarray(array)"
        )
    outer = zip(array.shape[:-1], array.strides[:-1], strict=True)
    usable = [-(-stride // 16) * 16 if extent == 1 else stride for extent, stride in outer]
    return array.shape[::-1], tuple(reversed(usable))


def _check(tensor: TensorMap) -> None:
    """Raises UsageError for a violated rule of ``cuTensorMapEncodeTiled`` or ``Im2col`` (driver API 13.0)."""
    _check_choices(tensor)
    _check_type(tensor)
    _check_rank(tensor)
    for axis, dim in enumerate(tensor.dims):
        _require(1 <= dim <= 2**32, f"dimension {axis} of {dim} elements", "1 to 2^32", "pass a non-empty array")
    _check_strides(tensor)
    if not tensor.wraps:
        _check_extent(tensor)
    _check_box(tensor)
    if tensor.interleave == "none":
        _check_row(tensor)


def _require(holds: bool, given: str, expected: str, mend: str) -> None:
    if not holds:
        raise UsageError(f"given {given}; expected {expected}; {mend}")


def _check_choices(tensor: TensorMap) -> None:
    choices = (
        ("swizzle", tensor.swizzle, SWIZZLES),
        ("fill", tensor.fill, FILLS),
        ("interleave", tensor.interleave, INTERLEAVES),
        ("l2_promotion", tensor.l2_promotion, L2_PROMOTIONS),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            raise UsageError(f"given {name}={value!r}; expected one of {', '.join(map(repr, allowed))}")
    if tensor.interleave == "32B" and tensor.swizzle != 32:
        raise UsageError(f"given swizzle={tensor.swizzle} with interleave='32B'; expected swizzle=32; set swizzle=32")


def _check_type(tensor: TensorMap) -> None:
    scalar = tensor.dtype
    _require(
        scalar.tma is not None,
        f"element type {scalar.name}",
        "an element type of tensor maps (8 to 64 bits, float8 as bytes, or a packed type of 4 or 6 bits)",
        "view the array as unsigned integers of the same size",
    )
    if scalar in PACKED:
        _check_packed(tensor)
    _require(
        max(scalar.nbytes, 1) == tensor.array.itemsize,
        f"dtype={scalar.name} ({scalar.nbytes} bytes) for an array of {tensor.array.dtype} ({tensor.array.itemsize})",
        "an element type of the same size",
        "view the array in that type first",
    )
    _require(
        tensor.fill == "zero" or scalar in _FLOATS,
        f"fill='nan' for elements of type {scalar.name}",
        f"one of {', '.join(known.name for known in _FLOATS)}",
        "use fill='zero'",
    )


def _check_packed(tensor: TensorMap) -> None:
    """Checks what packed types ask for besides (PTX ISA 9.1 section 9.7.9.27.1.1, and the driver's text)."""
    padded, name = tensor.dtype in PADDED, tensor.dtype.name
    unit = 128 if padded else 2
    _require(tensor.dims[0] % unit == 0, f"{tensor.dims[0]} values of {name}", f"a multiple of {unit}", "pad the rows")
    if padded:
        _require(
            tensor.box[0] == 128, f"an innermost box of {tensor.box[0]} values of {name}", "128", "copy boxes of 128"
        )
        _require(
            width(tensor.swizzle) in (16, 128),
            f"swizzle={tensor.swizzle!r} for {name}",
            "0 or a swizzle of 128 bytes",
            "use swizzle=128",
        )


def _check_rank(tensor: TensorMap) -> None:
    rank = tensor.rank
    _require(1 <= rank <= 5, f"{rank} dimensions", "1 to 5", "reshape the array")
    _require(
        rank >= 3 or tensor.interleave == "none",
        f"{rank} dimensions with interleave={tensor.interleave!r}",
        "at least 3",
        "use interleave='none'",
    )
    if tensor.corners:
        _check_corners(tensor)
    for name, values, count in (
        ("box", tensor.box, 2 if tensor.corners else rank),
        ("element_strides", tensor.elem_strides, rank),
        ("strides", tensor.strides, rank - 1),
    ):
        _require(
            len(values) == count,
            f"{len(values)} entries in {name} for {rank} dimensions",
            str(count),
            "pass one entry per dimension",
        )


def _check_corners(tensor: TensorMap) -> None:
    rank, corners = tensor.rank, tensor.corners
    _require(rank >= 3, f"{rank} dimensions with corners", "3 to 5", "add the axis of images or channels")
    _require(
        len(corners) == 2 and all(len(corner) == rank - 2 for corner in corners),
        f"corners={tuple(corner[::-1] for corner in corners)} for {rank} dimensions",
        f"two corners of {rank - 2} entries",
        "leave out the axes of images and channels",
    )
    bits = 16 // (rank - 2)
    for axis, (lower, upper) in enumerate(zip(*corners, strict=True), start=1):
        for corner in (lower, upper):
            _require(
                -(1 << bits - 1) <= corner < 1 << bits - 1,
                f"a corner of {corner} pixels in dimension {axis} (innermost is 0)",
                f"{-(1 << bits - 1)} to {(1 << bits - 1) - 1} for {rank} dimensions",
                "copy a part of the image",
            )
        _require(
            lower <= tensor.dims[axis] - 1 + upper,
            f"corners {lower} and {upper} in dimension {axis} (innermost is 0) of {tensor.dims[axis]} pixels",
            "a box of at least one pixel",
            "count the upper corner from the last pixel",
        )


def _check_strides(tensor: TensorMap) -> None:
    unit = 32 if tensor.interleave == "32B" or tensor.dtype in PADDED else 16
    for axis, stride in enumerate(tensor.strides, start=1):
        _require(
            stride % unit == 0,
            f"a stride of {stride} bytes in dimension {axis} (innermost is 0)",
            f"a multiple of {unit}",
            f"pad the rows of the array to a multiple of {unit} bytes",
        )
        _require(
            0 <= stride < 2**40,
            f"a stride of {stride} bytes in dimension {axis} (innermost is 0)",
            "0 to 2^40 - 1",
            "pass a copy with ascending addresses",
        )


def _check_extent(tensor: TensorMap) -> None:
    """Raises UsageError for a view that reaches beyond the array's memory."""
    array = tensor.array
    memory = (
        sum((extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    )
    reach = sum((dim - 1) * stride for dim, stride in zip(tensor.dims[1:], tensor.strides, strict=True) if dim > 1)
    reach += tensor.dims[0] * tensor.dtype.bits // 8
    _require(
        reach <= memory,
        f"dims={tensor.dims} and strides={tensor.strides}, which reach {reach} bytes",
        f"a view inside the array's {memory} bytes",
        "pass the array that owns the memory",
    )


def _check_box(tensor: TensorMap) -> None:
    for axis, extent in enumerate(tensor.box):
        most = 1024 if tensor.corners and axis else 256
        _require(
            1 <= extent <= most,
            f"a box of {extent} elements in dimension {axis} (innermost is 0)",
            f"1 to {most}",
            "copy several boxes",
        )
    for axis, step in enumerate(tensor.elem_strides):
        _require(
            1 <= step <= 8,
            f"element stride {step} in dimension {axis} (innermost is 0)",
            "1 to 8",
            "pass a strided view of the array",
        )


def _check_row(tensor: TensorMap) -> None:
    """Checks the innermost dimension of the box, in bytes."""
    inner, span = tensor.box[0] * tensor.dtype.bits // 8, width(tensor.swizzle)
    _require(
        inner % 16 == 0,
        f"an innermost box of {tensor.box[0]} {tensor.dtype.name} ({inner} bytes)",
        "a multiple of 16 bytes",
        f"use a multiple of {128 // tensor.dtype.bits} elements",
    )
    _require(
        tensor.swizzle == 0 or inner <= span,
        f"an innermost box of {tensor.box[0]} {tensor.dtype.name} ({inner} bytes) with swizzle={tensor.swizzle}",
        f"at most {span} bytes",
        f"use at most {span * 8 // tensor.dtype.bits} elements or a wider swizzle",
    )
