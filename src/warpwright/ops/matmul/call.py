"""Whole operations on arrays: each chooses the device, the kernel and its configuration, and launches it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from warpwright.arrays.device import DeviceArray, device_array, dtype_named, overlap, place, reach
from warpwright.arrays.libraries import OTHER, Library, View, common_library
from warpwright.errors import PrecisionWarning, UsageError
from warpwright.gpu import Device
from warpwright.ops.matmul.bound_call import ROW_BYTES, Repeat, again, alike, keep
from warpwright.ops.matmul.epilogue import NONE, Extras, checked
from warpwright.ops.matmul.plan import (
    DEFAULT_LEVEL,
    FLOAT8,
    Family,
    Operand,
    family_of,
    geometry,
    mappable,
    prepared,
    round_up,
)
from warpwright.run.devices import resolve

__all__ = ["DEFAULT_LEVEL", "matmul"]

Array = Any
Shape = tuple[int, ...]
Given = tuple[Any, Any, Any]  # bias, scale_a, scale_b

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)
FLOAT32 = np.dtype(np.float32)
DTYPES = (BFLOAT16, FLOAT16, FLOAT32)


def matmul(
    a: Array,
    b: Array,
    *,
    bias: Array | None = None,
    activation: str | None = None,
    scale_a: Array | float | None = None,
    scale_b: Array | float | None = None,
    out: Array | None = None,
    out_dtype: Any = None,
    device: Device | str | None = None,
    level: int | None = None,
) -> Array:
    """``a @ b`` on tensor cores: ``a`` (…, M, K) times ``b`` (…, K, N) gives (…, M, N), accumulated in float32.

    ``a`` and ``b`` are arrays of one library, NumPy, torch or CuPy, and so is the result; what is on a GPU is used
    there, on the library's current stream, without waiting. Arrays of other libraries on a GPU (DLPack,
    ``__cuda_array_interface__``) are taken as matrices, with ``out``. Leading dimensions broadcast as in
    ``np.matmul``; on Hopper those that lie at one stride in each of ``a``, ``b`` and the result, as in dense arrays,
    are one launch (where only ``a`` has some they join M), else each product is a launch of its own.

    ``a`` and ``b`` have one dtype: bfloat16 (ml_dtypes), float16, or float32, which is rounded to bfloat16 with a
    PrecisionWarning; on Hopper also float8_e4m3fn and float8_e5m2, mixed too. There the tensor core sums up 128
    products in 14 bits, and these sums are added up in float32. ``out_dtype`` is bfloat16, float16 or float32; without
    it, the dtype of ``out`` or the inputs, and bfloat16 for float8.

    The result is ``activation(scale_a * scale_b * (a @ b) + bias)``, computed in float32 and rounded once. A scale is
    a number or an array of one float32 element; one on the GPU is read there, without waiting. ``bias`` (N,) is
    bfloat16, float16 or float32. ``activation`` is "relu", "gelu" (the exact one, with erf) or "silu". On Hopper all of
    it belongs to the kernel; on Blackwell NumPy does it, so only for arrays of the host.
    ``out`` is an array for the result, which overlaps neither input; it is returned.
    ``device`` is a name or Device (default: the GPU that holds the arrays, else a real GPU if there is one, else
    ``b200``). ``level`` is the rung of the GEMM ladder: on Blackwell 1 to 10 (default 10), on Hopper 1 to 8 (default:
    the fastest known for these extents).

    On Hopper an operand is used as it is where its rows or its columns are dense and begin at multiples of 16 bytes:
    all four layouts. On Blackwell, and for float8, the kernel reads both along K, so a transposed view ``w.T`` of a
    row-major ``w`` is used as it is, and a row-major ``b`` is copied first. Every other operand is copied, as is a
    result whose rows cannot begin at multiples of 16 bytes, and a bias of an odd number of elements.
    M = 0 or N = 0 gives an empty result, K = 0 sums of zero; NaN and infinity propagate as in IEEE arithmetic.

    Raises UsageError for arrays of two libraries, places or dtypes, and for extents that do not fit together.
    """
    done = again(a, b, out, bias, scale_a, scale_b, activation, out_dtype, device, level)
    if done is not None:
        return done
    given = bias, scale_a, scale_b
    call = _checked(a, b, out, given, activation, out_dtype, device, level)
    d = call.library.empty(call.shape, call.dtype, a) if out is None else out
    if 0 in call.shape:
        return d
    if call.a.shape[-1] == 0:
        a, b = _of_zeros(call, a, b)
    products = list(_products(call, a, b, d))
    for product in products:
        _multiply(call, *product)
    if call.a.shape[-1] and isinstance(call.a, DeviceArray):
        _remember(call, (a, b, out, *given), (activation, out_dtype, device, level), d, products)
    return d


@dataclass(frozen=True, slots=True)
class Call:
    """A call that can be done: the memory of its operands, the shape and dtype of D, where and how it runs, and what
    follows the sums."""

    library: Library
    a: View
    b: View
    shape: Shape
    dtype: np.dtype[Any]
    device: Device
    family: Family
    level: int | None
    extras: Extras = NONE


def _of_zeros(call: Call, a: Array, b: Array) -> tuple[Array, Array]:
    """Operands of zeros, for a sum over nothing."""
    dtype = BFLOAT16 if call.a.dtype == FLOAT32 else call.a.dtype
    (m, n), k = call.shape[-2:], ROW_BYTES
    shapes = (*call.a.shape[:-2], m, k), (*call.b.shape[:-2], k, n)
    return call.library.zeros(shapes[0], dtype, a), call.library.zeros(shapes[1], dtype, b)


def _products(call: Call, a: Array, b: Array, d: Array) -> Iterator[tuple[Array, Array, Array]]:
    """The products (M, K), (K, N), (M, N) that ``a @ b`` is made of; with a batch in front where one launch does it."""
    if call.library is OTHER:
        yield call.a, call.b, device_array(d)
        return
    views, leading = [call.library.view(array) for array in (a, b, d)], call.shape[:-2]
    steps = [_leading_strides(view, leading) for view in views]
    if a.shape[:-2] == leading and not any(steps[1]) and _joins(views[0]) and _joins(views[2]):
        yield a.reshape(-1, a.shape[-1]), b[(0,) * (b.ndim - 2)], d.reshape(-1, d.shape[-1])
        return
    outer = _first_joined(leading, steps) if call.family.batches else len(leading)
    for index in np.ndindex(*leading[:outer]):
        yield (
            _at(a, index, steps[0], len(leading)),
            _at(b, index, steps[1], len(leading)),
            _at(d, index, steps[2], len(leading)),
        )


def _leading_strides(view: View, leading: Shape) -> Shape:
    """Strides along the ``leading`` dimensions of the result, 0 where there is nothing to step along."""
    own = len(view.shape) - 2
    steps = [step if extent > 1 else 0 for extent, step in zip(view.shape[:own], view.strides[:own], strict=True)]
    return (0,) * (len(leading) - own) + tuple(steps)


def _joins(view: View) -> bool:
    """Whether all rows of all matrices lie at one stride."""
    return _first_joined(view.shape[:-1], [view.strides[:-1]]) == 0


def _first_joined(extents: Shape, steps: Sequence[Shape]) -> int:
    """The first dimension from which on all are one, at one stride in each array; its strides are ``steps``."""
    used = [axis for axis, extent in enumerate(extents) if extent > 1]
    for outer, inner in zip(used[-2::-1], used[:0:-1], strict=True):
        if any(own[outer] != own[inner] * extents[inner] for own in steps):
            return outer + 1
    return 0


def _at(array: Array, index: Shape, steps: Shape, leading: int) -> Array:
    """What ``array`` has at ``index`` of the leading dimensions: a matrix, or a batch where it steps along the rest."""
    missing, rest = leading - (array.ndim - 2), slice(len(index), None)
    whole = index if any(steps[rest]) else index + (0,) * (leading - len(index))
    own = [min(i, extent - 1) for i, extent in zip(whole[missing:], array.shape[:-2], strict=False)]
    found = array[tuple(own)]
    return found if found.ndim == 2 else found.reshape(-1, *found.shape[-2:])


def _multiply(call: Call, a: Array, b: Array, d: Array) -> None:
    """One product; operands that the kernel cannot read and results that it cannot write go through a copy."""
    left, right = _operand(call, "a", a), _operand(call, "b", b.swapaxes(-1, -2))
    (*lead, n), target, staged = d.shape, call.library.view(d), None
    if not _writable(call.family, target):
        step = ROW_BYTES // call.dtype.itemsize
        staged = call.library.empty((*lead, -(-n // step) * step), call.dtype, d)
        target = call.library.view(staged)
    stream = call.library.stream(a)() if isinstance(target, DeviceArray) else 0
    scratch = None if call.library is OTHER else partial(_scratch, call.library, d)
    call.family.multiply(left, right, target, call.level, call.device, stream, call.extras, scratch)
    if staged is not None:
        d[...] = staged[..., :n]


def _scratch(library: Library, like: Array, shape: Shape) -> View:
    return library.view(library.empty(shape, FLOAT32, like))


def _operand(call: Call, name: str, matrix: Array) -> Operand:
    """(…, rows, K) as the kernel reads it: in place where it can."""
    view = call.library.view(matrix)
    found = _in_place(view, call.family)
    if found is not None:
        return found
    if call.library is OTHER:
        at = f"at {view.pointer:#x} with strides of {view.strides} bytes" if isinstance(view, DeviceArray) else ""
        raise UsageError(
            f"matmul: {name} lies {at}; expected {8 * view.itemsize}-bit elements whose "
            f"{'rows or columns' if len(call.family.majors[view.dtype]) > 1 else 'K extent'} are dense and begin at "
            "multiples of 16 bytes; pass a copy"
        )
    return _copied(call, matrix, view)


def _in_place(view: View, family: Family) -> Operand | None:
    for major in family.majors.get(view.dtype, ()):
        stored = view if major == "k" else view.swapaxes(-1, -2)
        if mappable(stored):
            return Operand(stored, major)
    return None


def _copied(call: Call, matrix: Array, view: View) -> Operand:
    """A dense copy along the axis that was the denser one, padded with zeros to rows of whole 16 bytes."""
    dtype = BFLOAT16 if view.dtype == FLOAT32 else view.dtype
    denser = "mn" if abs(view.strides[-2]) < abs(view.strides[-1]) else "k"
    major = denser if denser in call.family.majors[dtype] else "k"
    source = matrix if major == "k" else matrix.swapaxes(-1, -2)
    *lead, columns = source.shape
    copy = call.library.zeros((*lead, round_up(columns, dtype.itemsize)), dtype, matrix)
    with np.errstate(over="ignore"):
        copy[..., :columns] = source
    return Operand(call.library.view(copy), major)


def _writable(family: Family, d: View) -> bool:
    return mappable(d) and (family.gaps or (_dense(d) and d.shape[-1] * d.itemsize % ROW_BYTES == 0))


def _dense(view: View) -> bool:
    return view.dense if isinstance(view, DeviceArray) else view.flags.c_contiguous


def _remember(
    call: Call, given: tuple[Array, ...], options: tuple[Any, ...], d: Array, products: Sequence[tuple[Array, ...]]
) -> None:
    """Keep the launches of a call on a GPU whose ``products`` were all read and written in place."""
    library, view, arrays = call.library, call.library.view, (*given[:2], d)
    fits = [alike(library, value) for value in given]
    if any(fit is None and value is not None for fit, value in zip(fits, given, strict=True)):
        return
    starts, nbytes = list(map(library.pointer, arrays)), [reach(geometry(view(array))) for array in arrays]
    offsets = tuple(
        tuple(library.pointer(matrix) - start for matrix, start in zip(product, starts, strict=True))
        for product in products
    )
    inside = all(
        # outside lies what is a copy: joining leading dimensions may need one
        0 <= to < size and to % ROW_BYTES == 0
        for each in offsets
        for to, size in zip(each, nbytes, strict=True)
    )
    a, b, target = (view(matrix) for matrix in products[0])
    left, right, extras = _in_place(a, call.family), _in_place(b.swapaxes(-1, -2), call.family), call.extras
    if not inside or left is None or right is None or not mappable(target) or not call.family.gaps:
        return
    if isinstance(extras.bias, DeviceArray) and extras.bias.pointer != library.pointer(given[3]):
        return  # a copy
    layouts, majors = (geometry(left.view), geometry(right.view), geometry(target)), (left.major, right.major)
    run = prepared(*layouts, majors, call.level, call.device.name, extras.epilogue, extras.columns, True)
    like, (size_a, size_b, size_d) = given[0], nbytes
    lender = library.lender(FLOAT32.itemsize * prod(run.scratch), like) if run.scratch else None
    made = library.stream(like), library.maker(call.shape, call.dtype, like), lender
    sizes = size_a, size_b, size_d, 0 if extras.bias is None else extras.bias.size * extras.bias.itemsize
    keep(given, options, Repeat(tuple(fits), run, library.pointer, *made, sizes, offsets))


def _checked(
    a: Array,
    b: Array,
    out: Array | None,
    given: Given,
    activation: str | None,
    out_dtype: Any,
    device: Any,
    level: int | None,
) -> Call:
    bias, scale_a, scale_b = given
    library = common_library("matmul", {"a": a, "b": b, "out": out, "bias": bias}, ("out", "bias"))
    view_a, view_b = library.view(a), library.view(b)
    for name, view in (("a", view_a), ("b", view_b)):
        _check_operand(name, view, library)
    _check_pair(view_a, view_b, library)
    shape = (*_leading(view_a, view_b), view_a.shape[-2], view_b.shape[-1])
    default = BFLOAT16 if view_a.dtype in FLOAT8 else view_a.dtype
    dtype = _output_dtype(out_dtype, default if out is None else library.view(out).dtype)
    if out is not None:
        _check_out(library.view(out), shape, dtype, view_a, view_b)
    target = _place(view_a, view_b, device)
    family = family_of(target)
    _check_float8(view_a, family, target, level)
    extras = checked(library, view_a, shape[-1], bias, activation, scale_a, scale_b, out)
    if view_a.dtype == FLOAT32:
        warnings.warn(
            "matmul rounds float32 inputs to bfloat16 (8 significant bits); "
            f"pass {library.rounding} to say so yourself",
            PrecisionWarning,
            stacklevel=3,
        )
    return Call(library, view_a, view_b, shape, dtype, target, family, level, extras)


def _check_float8(a: View, family: Family, target: Device, level: int | None) -> None:
    if a.dtype in FLOAT8 and a.dtype not in family.majors:
        raise UsageError(
            f"matmul: a is {a.dtype}, which the kernels for {target.name} ({target.spec.arch}) do not multiply; "
            "expected bfloat16, float16 or float32, or device='h200'"
        )
    if a.dtype in FLOAT8 and level is not None:
        raise UsageError(f"matmul: level={level} for {a.dtype}; the ladder is one of 16-bit types: leave level= out")


def _check_operand(name: str, view: View, library: Library) -> None:
    if len(view.shape) < 2:
        raise UsageError(f"matmul: {name} has shape {view.shape}; expected a matrix, two dimensions or more")
    if len(view.shape) > 2 and library is OTHER:
        raise UsageError(f"matmul: {name} has shape {view.shape}; expected two dimensions of an array of its library")
    if view.dtype not in (*DTYPES, *FLOAT8):
        raise UsageError(
            f"matmul: {name} is {view.dtype}; expected bfloat16, float16, float32 or float8: {name}{library.rounding}"
        )


def _check_pair(a: View, b: View, library: Library) -> None:
    if a.dtype != b.dtype and not (a.dtype in FLOAT8 and b.dtype in FLOAT8):
        convert = "b.to(a.dtype)" if library.name == "torch" else "b.astype(a.dtype)"
        raise UsageError(f"matmul: a is {a.dtype} and b is {b.dtype}; expected one dtype: {convert}")
    if a.shape[-1] != b.shape[-2]:
        raise UsageError(
            f"matmul: a is {_extents(a.shape)} and b is {_extents(b.shape)}; expected the columns of a to be the rows "
            "of b (for weights stored as N × K pass w.T)"
        )


def _leading(a: View, b: View) -> Shape:
    try:
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise UsageError(
            f"matmul: a is {_extents(a.shape)} and b is {_extents(b.shape)}; expected leading dimensions that are "
            "equal, 1 or absent"
        ) from None


def _output_dtype(given: Any, default: np.dtype[Any]) -> np.dtype[Any]:
    try:
        words = str(given)
        dtype = default if given is None else dtype_named(words[6:]) if words[:6] == "torch." else np.dtype(given)
    except (TypeError, UsageError):
        dtype = None
    if dtype not in DTYPES:
        shown = f"out_dtype={given!r}" if given is not None else f"out is {default}"
        raise UsageError(f"matmul: {shown}; expected ml_dtypes.bfloat16, np.float16 or np.float32")
    return dtype


def _check_out(out: View, shape: Shape, dtype: np.dtype[Any], a: View, b: View) -> None:
    if (out.shape, out.dtype) != (shape, dtype):
        raise UsageError(f"matmul: out is {_extents(out.shape)} of {out.dtype}; expected {_extents(shape)} of {dtype}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise UsageError("matmul: out is read-only; expected an array that can be written")
    if place(out) != place(a):
        raise UsageError(f"matmul: a is on {place(a)} and out on {place(out)}; expected all on one device")
    for name, operand in (("a", a), ("b", b)):
        if overlap(out, operand):
            raise UsageError(f"matmul: out overlaps {name}; expected memory of its own: leave out= out")


def _place(a: View, b: View, device: Device | str | None) -> Device:
    """The device that multiplies: the GPU that holds the operands, or for host memory the one that is asked for."""
    if place(a) != place(b):
        raise UsageError(f"matmul: a is on {place(a)} and b on {place(b)}; expected both on one device")
    if not isinstance(a, DeviceArray):
        return resolve(device)
    if isinstance(device, str) and device in ("cuda", place(a)):
        return resolve(place(a))
    if device is not None and (device if isinstance(device, str) else device.name) != place(a):
        raise UsageError(
            f"matmul: a is on {place(a)} and device={device!r}; expected that GPU: leave device= out, "
            "or pass copies on the host"
        )
    return resolve(place(a) if device is None else device)


def _extents(shape: Shape) -> str:
    return " × ".join(map(str, shape))
