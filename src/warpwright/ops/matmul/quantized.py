"""`quantize` and `Quantized`: matrices with block scales, as cuBLAS and torch's scaled_mm take them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright import layout, types
from warpwright.arrays.libraries import memory_of
from warpwright.errors import UsageError, kind_of
from warpwright.kernels import quantization
from warpwright.kernels.gemm.formats import FORMATS, Format

__all__ = ["Quantized", "format_of", "quantize"]

Array = NDArray[Any]
FLOATS = ("bfloat16", "float16", "float32", "float64")
TILE_SHAPE = (32, 4, 4)


@dataclass(frozen=True, eq=False, slots=True)
class Quantized:
    """A matrix (rows, K) with block scales: what `quantize` returns and `matmul` takes.

    ``data``
        (rows, K) of float8_e4m3fn or float8_e5m2; of 4-bit formats (rows, K / 2) of uint8, two elements a byte, the one
        of even k in the low bits.
    ``scales``
        A byte for each row and block of 32 elements (float8_e8m0fnu), or 16 of nvfp4 (float8_e4m3fn), in tiles of 128
        rows by 4 blocks, rounded up: (rows / 128, blocks / 4, 32, 4, 4). This is the layout of cuBLAS and
        ``SwizzleType.SWIZZLE_32_4_4`` of torch. Scale factors of the padding are 0.
    ``format``
        "mxfp8", "mxfp8_e5m2", "mxfp4" or "nvfp4".
    ``global_scale``
        Of nvfp4: the factor of the whole matrix.
    ``transposed``
        Whether the matrix stands for its transpose: ``w.T`` is (K, rows), the right operand of `matmul`.

    Raises UsageError for arrays that do not fit together.
    """

    data: Array
    scales: Array
    format: str
    global_scale: float = 1.0
    transposed: bool = False

    def __post_init__(self) -> None:
        _check(self, format_of(self.format))

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, K), or (K, rows) if ``transposed``."""
        rows, k = self.data.shape[0], self.data.shape[1] * FORMATS[self.format].packed
        return (k, rows) if self.transposed else (rows, k)

    @property
    def T(self) -> Quantized:
        """The transpose; nothing is copied."""
        return replace(self, transposed=not self.transposed)

    def dequantize(self) -> Array:
        """Returns the matrix in float32."""
        format, (rows, width) = FORMATS[self.format], self.data.shape
        k = width * format.packed
        values: Array = self.data
        if format.packed == 2:
            codes = np.stack([self.data & 0xF, self.data >> 4], axis=-1).reshape(rows, k)
            values = codes.view(quantization.element_dtype(format))
        offsets = layout.scale_offsets(rows, k // format.block)
        scales = self.scales.reshape(-1)[offsets]
        exact = quantization.dequantize(quantization.Blocks(values, scales, self.global_scale), format)
        found: Array = exact.astype(np.float32)
        return found.T if self.transposed else found

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"Quantized({self.format}, {rows} × {columns})"


def quantize(x: Any, format: str = "mxfp8") -> Quantized:
    """Returns ``x`` (rows, K) with block scales along K: a scale factor for 32 elements, or 16 of nvfp4.

    ``x`` is an array of bfloat16, float16, float32 or float64 on the host. ``format`` is "mxfp8" (e4m3), "mxfp8_e5m2",
    "mxfp4" or "nvfp4" (e2m1). K is a multiple of 32. The product of activations (M, K) and weights (N, K) is
    ``ww.matmul(ww.quantize(x), ww.quantize(w).T)``.

    The scale factors are those of the OCP Microscaling Formats v1.0, section 6.3, and of NVIDIA's recipe for NVFP4:
    a power of two below amax over the largest element, or amax / 6 in e4m3 over a global scale of amax / 2688. Elements
    are rounded to nearest even and saturate. A block with NaN or infinity gets a scale factor of NaN.

    Raises UsageError for another format, shape or dtype, and for an array on a GPU.
    """
    chosen, array = format_of(format), memory_of(x)
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.name not in FLOATS:
        given = f"{array.dtype} of shape {array.shape}" if hasattr(array, "shape") else kind_of(x)
        raise UsageError(
            f"quantize: x is {given}; expected a matrix of bfloat16, float16, float32 or float64 on the host"
        )
    if array.shape[1] % chosen.step or 0 in array.shape:
        raise UsageError(
            f"quantize: x is {array.shape[0]} × {array.shape[1]}; expected at least one row, and columns in multiples "
            f"of {chosen.step}: pad K with zeros"
        )
    values, scales, global_scale = quantization.quantize(array, chosen)
    data = layout.pack_e2m1(values) if chosen.packed == 2 else values
    return Quantized(data, layout.scale_tiles(scales), format, global_scale)


def format_of(name: str) -> Format:
    """Returns the format called ``name``. Raises UsageError for an unknown one."""
    found = FORMATS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"given format {name!r}; expected one of {', '.join(map(repr, FORMATS))}")
    return found


def _check(given: Quantized, format: Format) -> None:
    """Raises UsageError unless data, scales and format fit together."""
    data, scales = given.data, given.scales
    wanted = types.u8.dtype if format.packed == 2 else format.dtype.dtype
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.dtype != wanted or not data.size:
        raise UsageError(f"Quantized: data is {_words(data)}; expected a matrix of {wanted} for {format.name}")
    rows, k = data.shape[0], data.shape[1] * format.packed
    if k % format.step:
        raise UsageError(f"Quantized: data has K={k}; expected a multiple of {format.step}: pad K with zeros")
    shape = -(-rows // 128), -(-k // format.block // 4), *TILE_SHAPE
    if not isinstance(scales, np.ndarray) or scales.shape != shape or scales.dtype != format.scale.dtype:
        raise UsageError(
            f"Quantized: scales are {_words(scales)}; expected {format.scale.dtype} of shape {shape}: "
            "warpwright.layout.scale_tiles(scales)"
        )


def _words(value: Any) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else kind_of(value)
