"""``TensorMap`` as the 128 bytes that the hardware reads, made by the driver (``cuTensorMapEncodeTiled``)."""

from __future__ import annotations

import functools
import struct

from warpwright.cuda.driver import driver
from warpwright.errors import LaunchError
from warpwright.tensormap import FILLS, INTERLEAVES, L2_PROMOTIONS, SWIZZLES, TensorMap

__all__ = ["encode", "encoded"]

Extents = tuple[int, ...]


def encode(tensor: TensorMap, pointer: int) -> bytes:
    """``tensor`` over the memory at ``pointer``, an address on the GPU."""
    return encoded(
        pointer,
        tensor.dtype.tma,
        tensor.dims,
        tensor.strides,
        tensor.box,
        tensor.elem_strides,
        tensor.swizzle,
        tensor.fill,
        tensor.interleave,
        tensor.l2_promotion,
    )


@functools.lru_cache(maxsize=4096)
def encoded(
    pointer: int,
    dtype: int | None,
    dims: Extents,
    strides: Extents,
    box: Extents,
    elem_strides: Extents | None = None,
    swizzle: int = 0,
    fill: str = "zero",
    interleave: str = "none",
    l2_promotion: int = 0,
) -> bytes:
    """128 bytes of a tensor map, everything innermost first and as in `TensorMap`; the last 4096 are kept.

    ``dtype`` is the driver's code of the element type, such as ``bf16.tma``.

    Raises LaunchError for what the driver refuses.
    """
    bindings = driver()
    status, encoded_map = bindings.cuTensorMapEncodeTiled(
        bindings.CUtensorMapDataType(dtype),
        len(dims),
        pointer,
        [bindings.cuuint64_t(n) for n in dims],
        [bindings.cuuint64_t(n) for n in strides or (0,)],  # rank 1 has none, but the driver refuses a null pointer
        [bindings.cuuint32_t(n) for n in box],
        [bindings.cuuint32_t(n) for n in elem_strides or (1,) * len(dims)],
        bindings.CUtensorMapInterleave(INTERLEAVES.index(interleave)),
        bindings.CUtensorMapSwizzle(SWIZZLES.index(swizzle)),
        bindings.CUtensorMapL2promotion(L2_PROMOTIONS.index(l2_promotion)),
        bindings.CUtensorMapFloatOOBfill(FILLS.index(fill)),
    )
    if status.value:
        raise LaunchError(_refusal(pointer, 32 if interleave == "32B" else 16, status.name))
    return struct.pack("<16Q", *map(int, encoded_map.opaque))


def _refusal(pointer: int, unit: int, status: str) -> str:
    if pointer % unit:
        return (
            f"given a tensor map over address {pointer:#x}; expected a multiple of {unit} bytes; "
            "pass an array that starts there, or a copy"
        )
    return f"the CUDA driver refuses the tensor map: {status}"
