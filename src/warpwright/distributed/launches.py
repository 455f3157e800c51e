"""Kernels of a workspace on its GPU: their tensor maps over dense arrays, and arguments by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

from warpwright import cuda, ptx
from warpwright.arrays.device import DeviceArray, dense_strides
from warpwright.kernels.gemm.sm90 import L2_PROMOTION
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.layout.tensor_map import TensorMap

__all__ = ["DTYPES", "dense_map", "launch_at", "strided_map"]

DTYPES = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16), torch.float16: np.dtype(np.float16)}
Grid = tuple[int, int, int]


def strided_map(
    traced: Traced, name: str, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
) -> bytes:
    """Returns the tensor map of a parameter over an array at ``pointer``; ``strides`` are in bytes."""
    use, array = traced.maps[name], DeviceArray(pointer, shape, strides, dtype, None, None)
    return cuda.encode(TensorMap(array, use.box, swizzle=use.swizzle, l2_promotion=L2_PROMOTION), pointer)


def dense_map(traced: Traced, name: str, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Returns the tensor map of a parameter over a dense array at ``pointer``."""
    return strided_map(traced, name, pointer, shape, dense_strides(shape, dtype.itemsize), dtype)


def launch_at(
    gpu: cuda.Device, kernel: Kernel, grid: Grid, values: Mapping[str, Any], stream: int, **config: Any
) -> cuda.Launch:
    """Returns a launch of a kernel with arguments by name."""
    traced = kernel.trace(**config)
    sizes = traced.threads, traced.cluster, traced.smem_bytes
    function = gpu.function(ptx.load_once(traced.ptx), traced.entry, *sizes)
    return function.at(grid, [values[name] for name, _ in traced.params], stream)
