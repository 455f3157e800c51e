"""Matrix operands of tcgen05.mma: from descriptors to float32 matrices (PTX ISA 9.1 sections 9.7.16.3 to 9.7.16.4).

A plan lists the 16-byte chunks of shared memory of the operands of several instructions, concatenated along K, in the
order of the matrix: rows of (K) for K-major operands, columns of K with all rows for MN-major ones. Plans depend on
descriptors and shapes only and are cached; chunk numbers count from the first CTA of the pair.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError
from warpwright.layout import ATOM_32B, SmemDescriptor, operand_addresses
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.tensor_core import TYPES, as_float
from warpwright.vgpu.program.memory_map import RESERVED_SHARED

__all__ = [
    "CHUNK",
    "K_BYTES",
    "Matrix",
    "Shape",
    "buffer",
    "check_reads",
    "gather",
    "plan",
    "reads",
]

CHUNK = 16
K_BYTES = 32
LINE = 64  # bytes of a cache line: vectors across two lines take twice the time
WIDENED = 8  # elements of a chunk of a 16-bit type
_ROUTINES = {"bf16": "widen_bf16", "f16": "widen_f16"}

IntArray = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """A matrix in shared memory: all rows (M or N), the number of CTAs that share them, element type, major-ness, and
    the target whose descriptor format applies."""

    rows: int
    ctas: int
    type: str
    major: str
    arch: str = "sm_100a"


@dataclass(slots=True, eq=False)
class Matrix:
    """A plan: ``count`` chunks, their numbers at the host address ``at``."""

    chunks: IntArray
    at: int
    count: int


@lru_cache(maxsize=4096)
def reads(descriptor: int, shape: Shape, limit: int) -> IntArray:
    """Chunk numbers that one instruction reads in each CTA, (rows, chunks of K) or (K, chunks of rows) by major-ness.

    Raises DescriptorError for a descriptor that the target does not define, and for reads outside shared memory.
    """
    desc = SmemDescriptor.decode(descriptor, shape.arch)
    size, rows = TYPES[shape.type], shape.rows // shape.ctas
    if (desc.swizzle == ATOM_32B) != (shape.type == "tf32" and shape.major == "mn"):
        raise DescriptorError(
            f"given swizzle {desc.swizzle!r} for a {shape.type} operand that is {shape.major.upper()}-major; expected "
            f"{ATOM_32B!r} for tf32 operands that are MN-major and another swizzle for all others"
        )
    if shape.major == "k":
        addresses = operand_addresses(desc, rows, K_BYTES // CHUNK, CHUNK, "k")
    else:
        if rows * size % CHUNK:
            raise DescriptorError(
                f"given {rows} rows of an MN-major {shape.type} operand; expected a multiple of {CHUNK // size}"
            )
        addresses = operand_addresses(desc, rows * size // CHUNK, K_BYTES // size, CHUNK, "mn").T
    check_reads(descriptor, addresses, limit)
    return addresses // CHUNK


def check_reads(descriptor: int, addresses: IntArray, limit: int) -> None:
    """Raises DescriptorError unless the chunks at ``addresses`` are in shared memory."""
    first, last = int(addresses.min()), int(addresses.max()) + CHUNK - 1
    if first < RESERVED_SHARED or last >= limit:
        raise DescriptorError(
            f"descriptor points outside shared memory: 0x{descriptor:016x} reads bytes {first} to {last}; expected "
            f"them within {RESERVED_SHARED} to {limit - 1}; mend the start address or the byte offsets"
        )


@lru_cache(maxsize=96)
def plan(operands: tuple[tuple[tuple[int, ...], Shape], ...], limit: int, stride: int) -> Matrix:
    """The chunks of matrices one after the other; each matrix has one descriptor an instruction, and a shape.

    ``limit``: one past the last byte of shared memory; ``stride``: bytes from one CTA's to the next. Raises
    DescriptorError as ``reads`` does.
    """
    parts = [_matrix(descriptors, shape, limit, stride // CHUNK) for descriptors, shape in operands]
    chunks = np.ascontiguousarray(np.concatenate(parts))
    return Matrix(chunks, chunks.ctypes.data, len(chunks))


def _matrix(descriptors: tuple[int, ...], shape: Shape, limit: int, stride: int) -> IntArray:
    one = [reads(descriptor, shape, limit) for descriptor in descriptors]
    along_k = np.concatenate(one, axis=1 if shape.major == "k" else 0)
    ctas = [along_k + cta * stride for cta in range(shape.ctas)]
    return np.concatenate(ctas, axis=0 if shape.major == "k" else 1).ravel()


class _Buffers(threading.local):
    """Buffers of a thread, by purpose; each grows to the largest request."""

    def __init__(self) -> None:
        self.arrays: dict[str, tuple[Floats, int]] = {}


_BUFFERS = _Buffers()


def buffer(purpose: str, count: int) -> tuple[Floats, int]:
    """At least ``count`` float32 values of this thread, and their host address, where a cache line begins."""
    cached = _BUFFERS.arrays.get(purpose)
    if cached is None or len(cached[0]) < count:
        raw = np.empty(count + LINE // 4, np.float32)
        array = raw[-raw.ctypes.data % LINE // 4 :][:count]
        cached = _BUFFERS.arrays[purpose] = array, array.ctypes.data
    return cached


def gather(matrix: Matrix, type: str, host: int, purpose: str) -> Floats:
    """The planned chunks as float32 values, in order, in a buffer of this thread. ``host``: address of the memory."""
    if type in _ROUTINES:
        values, to = buffer(purpose, matrix.count * WIDENED)
        function(_ROUTINES[type])(to, host, matrix.at, matrix.count)
        return values
    raw, to = buffer(f"{purpose} raw", matrix.count * (CHUNK // 4))
    order = _identity(matrix.count)
    function("copy_chunks")(to, order.ctypes.data, host, matrix.at, matrix.count)
    return as_float(raw[: matrix.count * (CHUNK // 4)].view(np.uint8), type)


@lru_cache(maxsize=64)
def _identity(count: int) -> IntArray:
    return np.arange(count, dtype=np.int64)
