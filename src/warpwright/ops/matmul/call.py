"""`matmul`: GEMM on arrays, by the kernel that suits device, extents and dtype."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from warpwright.arrays.device import DeviceArray, dtype_of_name, reach
from warpwright.arrays.libraries import OTHER, Library, View, check_writable, location, overlap, views_of
from warpwright.errors import PrecisionWarning, UsageError
from warpwright.gpu import Device
from warpwright.kernels.gemm import sm100, sm120
from warpwright.kernels.gemm.formats import FORMATS
from warpwright.kernels.gemm.sm100.scaled import Config as ScaledConfig
from warpwright.kernels.reference import finished
from warpwright.ops import binding
from warpwright.ops.binding import MAP_BYTES, as_strided, geometry, mappable
from warpwright.ops.matmul import epilogue, measurements, plan, scaled
from warpwright.ops.matmul.bound_call import BoundCall
from warpwright.ops.matmul.plan import FLOAT8, PLAIN, Family, Level, round_up
from warpwright.ops.matmul.quantized import Quantized
from warpwright.ops.memo import MEMO
from warpwright.run.devices import check_device, resolve

__all__ = ["describe", "matmul", "memo_options"]

Array = Any
Shape = tuple[int, ...]
Matrices = dict[str, View]  # a (…, M, K), b (…, N, K) and d (…, M, N)

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
    out_format: str | None = None,
    device: Device | str | None = None,
    level: Level | ScaledConfig | None = None,
) -> Array:
    """``a @ b`` on tensor cores: ``a`` (…, M, K) times ``b`` (…, K, N) gives (…, M, N), accumulated in float32.

    ``a`` and ``b`` are arrays of one library, NumPy, torch, CuPy or, on the CPU, JAX, and so is the result; arrays on a
    GPU are used there, on the library's current stream, without waiting. Arrays of other libraries on a GPU (DLPack,
    ``__cuda_array_interface__``) must be matrices, with ``out``. Leading dimensions broadcast as in ``np.matmul``. If
    they have one stride in each of ``a``, ``b`` and the result, as in dense arrays, they are one launch (if only ``a``
    has any they join M), else every pair of matrices is a launch of its own.

    ``a`` and ``b`` have one dtype: bfloat16 (ml_dtypes), float16, or float32, which is rounded to bfloat16 with a
    PrecisionWarning, or float8_e4m3fn and float8_e5m2, mixed too. Hopper's tensor core sums 128 products of float8 in
    14 bits, and the kernel adds these sums in float32. ``out_dtype`` is bfloat16, float16 or float32; the default is
    the dtype of ``out`` or the inputs, and bfloat16 for float8.

    Or both are `Quantized`, matrices with block scales: ``matmul(quantize(x), quantize(w).T)`` of x (M, K), w (N, K).
    They need a Blackwell GPU, so far virtual; the result is bfloat16 unless ``out`` or ``out_dtype`` say otherwise, and
    ``level`` is a level of their own ladder, 1 to 7 on sm_100a and 1 to 5 on sm_120a. With ``out_format``, "mxfp8",
    "mxfp8_e5m2" or "mxfp4", the kernel quantizes the result on sm_100a: `Quantized`, with the bits of `quantize` of
    the float32 result and with blocks along N, so that it is the left operand of the next product.

    The result is ``activation(scale_a * scale_b * (a @ b) + bias)``, computed in float32 and rounded once. A scale is
    a number or an array of one float32 element; a scale on the GPU is read there, without waiting. ``bias`` (N,) is
    bfloat16, float16 or float32. ``activation`` is "relu", "gelu" (the exact one, with erf) or "silu". The kernel
    computes all of it; for a level of the Blackwell ladder NumPy does, which takes arrays on the host only.
    ``out`` is an array for the result, which overlaps neither input; it is returned.
    ``device`` is a name or Device (default: the GPU that holds the arrays, else a real GPU if there is one, else
    ``b200``). ``level`` is the level of the GEMM ladder: on Blackwell 1 to 10, on Hopper 1 to 8 (default: the
    fastest known configuration for these extents), or a configuration of one's own, such as
    ``dataclasses.replace(warpwright.kernels.gemm.sm100.LEVELS[3], stages=4)``.

    An operand is used in place if its rows or its columns are dense and begin at multiples of 16 bytes: all four
    layouts. Levels of the Blackwell ladder, and Hopper for float8, read both along K, so a transposed view ``w.T`` of
    a row-major ``w`` is used in place, and a row-major ``b`` is copied first. Every other operand is copied, as is a
    result whose rows cannot begin at multiples of 16 bytes, and a bias of an odd number of elements.
    If M = 0 or N = 0 the result is empty; if K = 0 the sums are zero; NaN and infinity propagate as in IEEE arithmetic.

    Raises UsageError for arrays of two libraries, devices or dtypes, and for extents that do not fit together.
    """
    given: tuple[Array, ...] = (a, b)
    options = memo_options(activation, out_dtype, out_format, device, level)
    if bias is not None or scale_a is not None or scale_b is not None:
        given = (a, b, bias, scale_a, scale_b)
    if out is not None:
        given = (*given, out)
    bound = MEMO.get(given, options)
    if bound is not None:
        d = bound(a, b, out, bias, scale_a, scale_b)
        if d is not None:
            return d
    keywords: dict[str, Any] = {"bias": bias, "activation": activation, "scale_a": scale_a, "scale_b": scale_b}
    results: dict[str, Any] = {"out": out, "out_dtype": out_dtype, "out_format": out_format}
    call = describe(a, b, **keywords, **results, device=device, level=level)
    return call.run(given, options)


def memo_options(
    activation: str | None,
    out_dtype: Any,
    out_format: str | None = None,
    device: Device | str | None = None,
    level: Any = None,
) -> tuple[Any, ...]:
    """Returns the options by which the memo knows a call of `matmul`, also one that torch's operator makes again."""
    return "matmul", activation, out_dtype, out_format, device, level


def describe(
    a: Array,
    b: Array,
    *,
    bias: Array | None,
    activation: str | None,
    scale_a: Array | float | None,
    scale_b: Array | float | None,
    out: Array | None,
    out_dtype: Any,
    out_format: str | None,
    device: Device | str | None,
    level: Level | ScaledConfig | None,
) -> binding.Call:
    """Returns the call of `matmul` with these arguments, which has started nothing yet."""
    if isinstance(a, Quantized) or isinstance(b, Quantized):
        extras = bias, activation, scale_a, scale_b
        return _describe_quantized(a, b, extras, (out, out_dtype, out_format), device, level)
    if out_format is not None:
        raise UsageError(f"matmul: out_format={out_format!r} for arrays; expected operands of ww.quantize")
    if isinstance(level, ScaledConfig):
        raise UsageError(
            "matmul: given a Config of kernels.gemm.sm100.scaled as level= for arrays; expected operands of ww.quantize"
        )
    library, views = views_of("matmul", {"a": a, "b": b, "out": out, "bias": bias}, ("out", "bias"))
    for name in "ab":
        _check_operand(name, views[name], library)
    _check_pair(views["a"], views["b"], library)
    shape = (*_leading(views["a"], views["b"]), views["a"].shape[-2], views["b"].shape[-1])
    default = BFLOAT16 if views["a"].dtype in FLOAT8 else views["a"].dtype
    dtype = _output_dtype(out_dtype, default if out is None else views["out"].dtype)
    if out is not None:
        _check_out(views["out"], shape, dtype, views["a"], views["b"])
    target = _device_for(views["a"], views["b"], device)
    family = plan.family_of(target.spec, level)
    _check_float8(views["a"], family, target, level)
    args = epilogue.NONE
    if not (bias is None and activation is None and scale_a is None and scale_b is None):
        args = epilogue.check_epilogue(library, views["a"], shape[-1], bias, activation, scale_a, scale_b, out)
    if views["a"].dtype == FLOAT32:
        warnings.warn(
            "matmul rounds float32 inputs to bfloat16 (8 significant bits); "
            f"pass {library.rounding} to say so yourself",
            PrecisionWarning,
            stacklevel=3,
        )
    d = library.empty(shape, dtype, a) if out is None else out
    call = binding.Call(target, library, d)
    if 0 not in shape:
        _prepare(call, library, family, args, level, (a, b, d))
        if isinstance(views["a"], DeviceArray) and library is not OTHER:
            call.entry = functools.partial(_entry, call, library, (a, b, d, bias))
    return call


def _describe_quantized(
    a: Any,
    b: Any,
    extras: tuple[Any, Any, Any, Any],
    results: tuple[Array | None, Any, str | None],
    device: Device | str | None,
    level: Any,
) -> binding.Call:
    """Returns the call for operands with block scales; ``extras`` are bias, activation and scales, ``results`` an
    array, a dtype and a format for the result."""
    scaled.check_pair(a, b)
    out, out_dtype, name = results
    arrays = {"a": a.data, "b": b.data, "out": out, "bias": extras[0]}
    library, views = views_of("matmul", arrays, ("out", "bias"))
    shape, target = (a.shape[0], b.shape[1]), resolve(device)
    scaled.check_target(a, target)
    config = scaled.config_for(level, a, shape[1], target.spec.sms, target.spec.arch)
    output = scaled.output_format(name, a, config, shape)
    dtype = _output_dtype(out_dtype, BFLOAT16 if out is None else views["out"].dtype)
    if output is not None and (out is not None or out_dtype is not None):
        raise UsageError("matmul: given out or out_dtype for a quantized result; expected out_format alone")
    if out is not None:
        _check_out(views["out"], shape, dtype, views["a"], views["b"])
    args = epilogue.check_epilogue(library, views["a"], shape[1], *extras, out)
    args = scaled.with_global_scales(args, a, b)
    written: View
    if output is not None and isinstance(config, ScaledConfig):
        config, d = replace(config, quantizes=True), scaled.empty_result(shape, output)
        call, written, factors = binding.Call(target, library, d), d.data, d.scales.view(np.uint8)
    else:
        d = library.empty(shape, dtype, a.data) if out is None else out
        call, written, factors = binding.Call(target, library, d), library.view(d), None
        if not mappable(written):
            written = _stage(call, library, args, d, plain=True)
    layouts = geometry(views["a"]), geometry(views["b"]), geometry(written)
    board, formats = (target.spec.sms, target.spec.arch), (FORMATS[a.format], FORMATS[b.format])
    chosen = scaled.plan_scaled(config, formats, *layouts, *board, args.epilogue, args.columns, output)
    values: dict[str, Any] = {"a": views["a"], "b": views["b"], "d": written, "sfd": factors}
    values |= {"sfa": scaled.scale_lines(a), "sfb": scaled.scale_lines(b)}
    values |= {"bias": args.bias, "scale_a": None, "scale_b": None, "alpha": args.alpha}
    call.steps.append((chosen, values))
    return call


def _prepare(
    call: binding.Call,
    library: Library,
    family: Family,
    args: epilogue.EpilogueArgs,
    level: Level | None,
    arrays: tuple[Array, Array, Array],
) -> None:
    """Set the steps of ``call``: one plan, and for each launch its matrices or batches."""
    a, b, d = arrays
    view_a, view_b, view_d = map(library.view, arrays)
    if len(view_d.shape) > 2 and _joins(view_a, view_b, view_d):
        rows = prod(d.shape[:-1])
        a, b, d = a.reshape(rows, a.shape[-1]), b[(0,) * (b.ndim - 2)], d.reshape(rows, d.shape[-1])
        view_a, view_b, view_d = map(library.view, (a, b, d))
    right = view_b.swapaxes(-1, -2)
    inner = view_a.shape[-1]
    left_in_place = binding.in_place(view_a, family.majors.get(view_a.dtype, ())) if inner else None
    right_in_place = binding.in_place(right, family.majors.get(right.dtype, ())) if inner else None
    writable = mappable(view_d)
    left, major_a = left_in_place or _copy_operand(library, family, "a", a, view_a)
    right, major_b = right_in_place or _copy_operand(library, family, "b", b.swapaxes(-1, -2), right)
    n = view_d.shape[-1]
    dense = view_d.strides[-2] == n * view_d.itemsize or view_d.shape[-2] == 1
    writable &= family.gaps or (dense and n * view_d.itemsize % MAP_BYTES == 0)
    plain = family.epilogue or args.epilogue == PLAIN
    target = view_d if writable and plain else _stage(call, library, args, d, plain)
    views = {"a": left, "b": right, "d": target}
    steps = [views] if len(target.shape) == 2 else list(_steps(views, family.batches))
    first, spec, on_gpu = steps[0], call.device.spec, isinstance(target, DeviceArray)
    layouts = geometry(first["a"]), geometry(first["b"]), geometry(first["d"])
    tuned = measurements.choices(spec.name, left.itemsize) if level is None else ()
    how = args.epilogue if family.epilogue else PLAIN, args.columns, tuned, library is not OTHER
    chosen = plan.choose(*layouts, (major_a, major_b), level, spec.arch, spec.sms, *how)
    values: dict[str, Any] = {"bias": args.bias, "scale_a": args.scale_a, "scale_b": args.scale_b, "alpha": args.alpha}
    values[plan.SCRATCH] = None
    for name, shape in chosen.scratch.items():
        values[name] = library.view(library.empty(shape, FLOAT32, d)) if on_gpu else np.empty(shape, FLOAT32)
        if not on_gpu and len(chosen.launches) > 1:
            steps = [_stage_sum(call, matrices) for matrices in steps]
    call.stream = library.stream(a)() if on_gpu else 0
    for matrices in steps:
        call.steps.append((chosen, {**matrices, **values}))


def _joins(a: View, b: View, d: View) -> bool:
    """Returns whether leading dimensions join M: only A has any, and all rows of A and D have one stride."""
    leading = tuple(d.shape[:-2])
    if tuple(a.shape[:-2]) != leading or any(_leading_strides(b, leading)):
        return False
    return not any(_first_joined(view.shape[:-1], [view.strides[:-1]]) for view in (a, d))


def _copy_operand(library: Library, family: Family, name: str, array: Array, view: View) -> tuple[View, str]:
    """Returns a dense copy of (…, rows, K), and its major: rows along the denser axis, padded with zeros to whole 16
    bytes. For a sum over nothing the copy is zeros."""
    dtype = BFLOAT16 if view.dtype == FLOAT32 else view.dtype
    if view.shape[-1] == 0:
        return library.view(library.zeros((*view.shape[:-1], MAP_BYTES), dtype, array)), "k"
    if library is OTHER:
        at = f"at {view.pointer:#x} with strides of {view.strides} bytes" if isinstance(view, DeviceArray) else ""
        raise UsageError(
            f"matmul: {name} is {at}; expected {8 * view.itemsize}-bit elements whose "
            f"{'rows or columns' if len(family.majors[view.dtype]) > 1 else 'K extent'} are dense and begin at "
            "multiples of 16 bytes; pass a copy"
        )
    denser = "mn" if abs(view.strides[-2]) < abs(view.strides[-1]) else "k"
    major = denser if denser in family.majors[dtype] else "k"
    source = array[tuple(slice(None) if step else slice(1) for step in view.strides[:-2])]  # one row of a broadcast
    source = source if major == "k" else source.swapaxes(-1, -2)
    *lead, columns = source.shape
    copy = library.zeros((*lead, round_up(columns, dtype.itemsize)), dtype, array)
    with np.errstate(over="ignore"):
        copy[..., :columns] = source
    return library.view(copy), major


def _stage(call: binding.Call, library: Library, args: epilogue.EpilogueArgs, d: Array, plain: bool) -> View:
    """Returns an array that kernels write in place of D, and that is copied to D after the last launch."""
    view = library.view(d)
    if not plain:
        return _stage_epilogue(call, args, view)
    *lead, n = view.shape
    staged = library.empty((*lead, round_up(n, view.itemsize)), view.dtype, d)
    call.finish.append(lambda: d.__setitem__(..., staged[..., :n]))
    return library.view(staged)


def _stage_epilogue(call: binding.Call, args: epilogue.EpilogueArgs, d: View) -> View:
    """Returns an array for the sums, to which NumPy applies the epilogue after the last launch."""
    if isinstance(d, DeviceArray):
        raise UsageError(
            f"matmul: given scales, a bias or an activation for {call.device.name} ({call.device.spec.arch}), whose "
            "kernels end with the sums; expected none of them: apply them to the result"
        )
    *lead, n = d.shape
    sums = np.empty((*lead, round_up(n, FLOAT32.itemsize)), FLOAT32)
    bias = args.bias[:n] if isinstance(args.bias, np.ndarray) else None

    def finish() -> None:
        with np.errstate(over="ignore"):
            d[...] = finished(sums[..., :n], args.alpha, bias, args.epilogue.activation)

    call.finish.append(finish)
    return sums


def _stage_sum(call: binding.Call, views: Matrices) -> Matrices:
    """Returns ``views`` with another array of the host for D, whose rows begin at whole 16 bytes."""
    d = views["d"]
    assert isinstance(d, np.ndarray)
    m, n = d.shape
    staged = np.empty((m, round_up(n)), d.dtype)
    call.finish.append(lambda: d.__setitem__(..., staged[:, :n]))
    return {**views, "d": staged}


def _steps(views: Matrices, batches: bool) -> Iterator[Matrices]:
    """Returns the matrices of each launch; with ``batches``, trailing dimensions of one stride are one launch."""
    leading = tuple(views["d"].shape[:-2])
    strides = {name: _leading_strides(view, leading) for name, view in views.items()}
    outer = _first_joined(leading, list(strides.values())) if batches else len(leading)
    for index in np.ndindex(*leading[:outer]):
        yield {name: _part(view, index, strides[name]) for name, view in views.items()}


def _leading_strides(view: View, leading: Shape) -> Shape:
    """Returns the strides along the ``leading`` dimensions of the result, 0 where the array is broadcast."""
    own = len(view.shape) - 2
    steps = [step if extent > 1 else 0 for extent, step in zip(view.shape[:own], view.strides[:own], strict=True)]
    return (0,) * (len(leading) - own) + tuple(steps)


def _first_joined(extents: Shape, steps: Sequence[Shape]) -> int:
    """Returns the first of the trailing dimensions that have one common stride in each array; ``steps`` are the
    strides."""
    used = [axis for axis, extent in enumerate(extents) if extent > 1]
    for outer, inner in zip(used[-2::-1], used[:0:-1], strict=True):
        if any(own[outer] != own[inner] * extents[inner] for own in steps):
            return outer + 1
    return 0


def _part(view: View, index: Shape, strides: Shape) -> View:
    """Returns what one launch reads: at ``index`` of the first leading dimensions, the matrices of all others as one
    batch of three dimensions; the one matrix where the strides of all others are 0."""
    rest = strides[len(index) :]
    whole = index if any(rest) else index + (0,) * len(rest)
    own = len(view.shape) - 2
    at = [min(i, extent - 1) for i, extent in zip(whole[len(strides) - own :], view.shape[:own], strict=False)]
    found: View = view[tuple(at)]
    if not any(rest):
        return found
    step = next(step for step in reversed(rest) if step)
    return as_strided(found, (prod(found.shape[:-2]), *found.shape[-2:]), (step, *found.strides[-2:]))


def _entry(call: binding.Call, library: Library, given: tuple[Array, Array, Array, Array]) -> BoundCall | None:
    """Returns the call bound to the GPU; None if an array is copied."""
    (chosen, values), (*arrays, bias), like = call.steps[0], given, given[0]
    starts, nbytes = [library.pointer(x) for x in arrays], [reach(geometry(library.view(x))) for x in arrays]
    offsets = tuple(
        tuple(views[name].pointer - start for name, start in zip("abd", starts, strict=True)) for _, views in call.steps
    )
    inside = all(
        0 <= to < size and to % MAP_BYTES == 0 for each in offsets for to, size in zip(each, nbytes, strict=True)
    )
    if not inside or (bias is not None and values["bias"].pointer != library.pointer(bias)):
        return None
    size = prod(chosen.scratch.get(plan.SCRATCH, (0,))) * FLOAT32.itemsize
    bias_bytes = 0 if bias is None else reach(geometry(values["bias"]))
    d = library.view(arrays[2])
    return BoundCall(
        bound=binding.bind(chosen, binding.layouts_of(values), call.device),
        pointer=library.pointer,
        stream=library.stream(like),
        new_result=library.maker(tuple(d.shape), d.dtype, like),
        allocator=library.allocator(size, like) if size else None,
        nbytes=(nbytes[0], nbytes[1], nbytes[2], bias_bytes),
        offsets=offsets,
    )


def _check_float8(a: View, family: Family, target: Device, level: Level | None) -> None:
    if a.dtype in FLOAT8 and a.dtype not in family.majors:
        raise UsageError(
            f"matmul: a is {a.dtype}, which the kernels for {target.name} ({target.spec.arch}) do not multiply; "
            "expected bfloat16, float16 or float32, or device='h200'"
        )
    if a.dtype in FLOAT8 and level is not None and not isinstance(level, sm100.Tiling | sm120.Config):
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
        dtype = default if given is None else dtype_of_name(words[6:]) if words[:6] == "torch." else np.dtype(given)
    except (TypeError, UsageError):
        dtype = None
    if dtype not in DTYPES:
        shown = f"out_dtype={given!r}" if given is not None else f"out is {default}"
        raise UsageError(f"matmul: {shown}; expected ml_dtypes.bfloat16, np.float16 or np.float32")
    return dtype


def _check_out(out: View, shape: Shape, dtype: np.dtype[Any], a: View, b: View) -> None:
    if (out.shape, out.dtype) != (shape, dtype):
        raise UsageError(f"matmul: out is {_extents(out.shape)} of {out.dtype}; expected {_extents(shape)} of {dtype}")
    check_writable("matmul", out)
    if location(out) != location(a):
        raise UsageError(f"matmul: a is on {location(a)} and out on {location(out)}; expected all on one device")
    for name, operand in (("a", a), ("b", b)):
        if overlap(out, operand):
            raise UsageError(f"matmul: out overlaps {name}; expected memory of its own: leave out= out")


def _device_for(a: View, b: View, device: Device | str | None) -> Device:
    """Returns the device that computes: the GPU that holds the operands, or for host arrays the requested one."""
    if location(a) != location(b):
        raise UsageError(f"matmul: a is on {location(a)} and b on {location(b)}; expected both on one device")
    if not isinstance(a, DeviceArray):
        return resolve(device)
    if isinstance(device, str) and device in ("cuda", location(a)):
        return resolve(location(a))
    if device is not None and (device if isinstance(device, str) else check_device(device).name) != location(a):
        raise UsageError(
            f"matmul: a is on {location(a)} and device={device!r}; expected that GPU: leave device= out, "
            "or pass copies on the host"
        )
    return resolve(location(a) if device is None else device)


def _extents(shape: Shape) -> str:
    return " × ".join(map(str, shape))
