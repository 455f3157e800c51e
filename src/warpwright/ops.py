"""Whole operations on arrays: each chooses the device, the kernel and its configuration, and launches it."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright import types
from warpwright.devices import resolve
from warpwright.errors import PrecisionWarning, UsageError
from warpwright.gpu import Device
from warpwright.kernels import gemm
from warpwright.launch import launch
from warpwright.tensormap import TensorMap

__all__ = ["matmul"]

Array = NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)
FLOAT32 = np.dtype(np.float32)
DEFAULT_LEVEL = 3
ROW_ALIGNMENT = 8  # elements: a row of a tensor map is a multiple of 16 bytes


def matmul(
    a: Array, b: Array, *, out_dtype: Any = None, device: Device | str | None = None, level: int | None = None
) -> Array:
    """``a @ b`` on tensor cores: ``a`` (M, K) times ``b`` (K, N) gives (M, N), accumulated in float32.

    ``a`` and ``b`` have one dtype: bfloat16 (ml_dtypes), float16, or float32, which is rounded to bfloat16 with a
    PrecisionWarning. ``out_dtype`` is bfloat16, float16 or float32; without it, the dtype of the inputs.
    ``device`` is a name or Device (default: a real GPU if there is one, else ``b200``). ``level`` is the rung of the
    GEMM ladder: on Blackwell 1 to 3 (default 3), on Hopper 1 to 8 (default: the fastest known for these extents).

    On Hopper an operand is used as it is where its rows or its columns are dense and of a multiple of 8 elements. On
    Blackwell the kernel reads both along K, so a transposed view ``w.T`` of a row-major ``w`` is used as it is, and a
    row-major ``b`` is copied first. Every other operand is copied, its K padded with zeros to a multiple of 8.
    M = 0 or N = 0 gives an empty result, K = 0 zeros; NaN and infinity propagate as in IEEE arithmetic.

    Raises UsageError for anything but two matrices of one such dtype whose inner extents agree.
    """
    _check_operands(a, b)
    dtype = _output_dtype(a.dtype if out_dtype is None else out_dtype)
    target = resolve(device)
    product = PRODUCTS.get(target.spec.arch)
    if product is None:
        raise UsageError(
            f"matmul has no kernel for {target.spec.name} ({target.spec.arch}); expected device='b200', 'gb200', "
            "'h200' or 'cuda'"
        )
    m, k = a.shape
    n = b.shape[1]
    if 0 in (m, n, k):
        return np.zeros((m, n), dtype)
    return product(a, b.T, dtype, level, target)


def _blackwell(a: Array, b: Array, dtype: np.dtype[Any], level: int | None, device: Device) -> Array:
    """A·Bᵀ of ``a`` (M, K) and ``b`` (N, K) on sm_100a, by one launch."""
    config, n = gemm.config_of(DEFAULT_LEVEL if level is None else level), b.shape[0]
    a, b = _along_k(a), _along_k(b)
    plan = gemm.plan(config, a.shape[0], n, a.shape[1], out_bytes=dtype.itemsize)
    d = np.empty((a.shape[0], plan.pitch), dtype)
    kernel = gemm.kernel_of(config).trace(dtype=types.of_dtype(a.dtype), out=types.of_dtype(dtype))
    launch(kernel, plan.grid, args=[a, b, d, *plan.scalars], device=device)
    return np.ascontiguousarray(d[:, :n])


def _hopper(a: Array, b: Array, dtype: np.dtype[Any], level: int | None, device: Device) -> Array:
    """A·Bᵀ of ``a`` (M, K) and ``b`` (N, K) on sm_90a, by one launch; each as it lies in memory where that can be."""
    (m, k), n = a.shape, b.shape[0]
    config = gemm.choose(m, n, k) if level is None else gemm.hopper_config(level)
    (a, major_a), (b, major_b) = _as_stored(a), _as_stored(b)
    majors = (major_a, major_b)
    kernel = gemm.hopper_kernel(config).trace(majors=majors, dtype=types.of_dtype(a.dtype), out=types.of_dtype(dtype))
    padded = -(-k // ROW_ALIGNMENT) * ROW_ALIGNMENT  # beyond an operand's own end its tensor map reads zeros
    plan = gemm.hopper_plan(config, m, n, padded, sms=device.spec.sms, majors=majors, out_bytes=dtype.itemsize)
    d = np.empty((m, plan.pitch), dtype)
    maps = [
        TensorMap(array, kernel.maps[name].box, swizzle=kernel.maps[name].swizzle, l2_promotion=gemm.L2_PROMOTION)
        for name, array in (("a", a), ("b", b), ("d", d))
    ]
    launch(kernel, plan.grid, args=[*maps, *plan.scalars], device=device)
    return np.ascontiguousarray(d[:, :n])


PRODUCTS = {"sm_100a": _blackwell, "sm_90a": _hopper}


def _as_stored(operand: Array) -> tuple[Array, str]:
    """``operand`` (rows, K) with its major: itself ("k") or its transpose ("mn") where that is dense, else a copy."""
    if operand.dtype != FLOAT32:
        for stored, major in ((operand, "k"), (operand.T, "mn")):
            if stored.flags.c_contiguous and stored.shape[1] % ROW_ALIGNMENT == 0:
                return stored, major
    return _along_k(operand), "k"


def _along_k(operand: Array) -> Array:
    """``operand`` (rows, K) as dense 16-bit rows of a multiple of 8 elements: itself where it already is that."""
    dtype = BFLOAT16 if operand.dtype == FLOAT32 else operand.dtype
    rows, k = operand.shape
    if k % ROW_ALIGNMENT == 0:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(operand, dtype)
    padded = np.zeros((rows, -(-k // ROW_ALIGNMENT) * ROW_ALIGNMENT), dtype)
    with np.errstate(over="ignore"):
        padded[:, :k] = operand
    return padded


def _check_operands(a: Any, b: Any) -> None:
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, np.ndarray):
            raise UsageError(
                f"matmul: {name} is a {type(operand).__name__}; expected a NumPy array: np.asarray({name})"
            )
        if operand.ndim != 2:
            raise UsageError(f"matmul: {name} has shape {operand.shape}; expected a matrix, two dimensions")
        if operand.dtype not in (BFLOAT16, FLOAT16, FLOAT32):
            raise UsageError(
                f"matmul: {name} is {operand.dtype}; expected bfloat16, float16 or float32: "
                f"{name}.astype(ml_dtypes.bfloat16)"
            )
    if a.dtype != b.dtype:
        raise UsageError(f"matmul: a is {a.dtype} and b is {b.dtype}; expected one dtype: b.astype(a.dtype)")
    if a.shape[1] != b.shape[0]:
        raise UsageError(
            f"matmul: a is {_extents(a)} and b is {_extents(b)}; expected the columns of a to be the rows of b "
            "(for weights stored as N × K pass w.T)"
        )
    if a.dtype == FLOAT32:
        warnings.warn(
            "matmul rounds float32 inputs to bfloat16 (8 significant bits); "
            "pass .astype(ml_dtypes.bfloat16) to say so yourself",
            PrecisionWarning,
            stacklevel=3,
        )


def _output_dtype(given: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] | None = np.dtype(given)
    except TypeError:
        dtype = None
    if dtype is None or dtype not in (BFLOAT16, FLOAT16, FLOAT32):
        raise UsageError(f"matmul: out_dtype={given!r}; expected ml_dtypes.bfloat16, np.float16 or np.float32")
    return dtype


def _extents(operand: Array) -> str:
    return " × ".join(map(str, operand.shape))
