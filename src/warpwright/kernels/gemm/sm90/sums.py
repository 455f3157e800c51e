"""Sums of a warp in memory, in the order of its registers: 16 bytes a thread, the threads of the warp side by side."""

from __future__ import annotations

from typing import Any

from warpwright.kernels.tiles import PACKED, pack_neighbours
from warpwright.lang import Expr, Pointer, f32, ld, st, unpack, warp
from warpwright.lang.fragment import Fragment
from warpwright.types import Scalar

__all__ = ["add_sums", "scale_sums", "store_sums", "sums_offset"]

CHUNK_BYTES = 16
LANES = 32


def store_sums(acc: Fragment, there: Pointer[Any]) -> None:
    """Store the sums of this warp to an entry, rounded to its type."""
    count = CHUNK_BYTES // there.dtype.nbytes
    for i in range(0, len(acc.regs), count):
        words = pack_neighbours(acc.regs[i : i + count], there.dtype)
        st((there + i * LANES).cast(words[0].type), *words)


def add_sums(acc: Fragment, there: Pointer[Any]) -> None:
    """Add to ``acc`` an entry, the sums of another warp in this place of its warpgroup."""
    count = CHUNK_BYTES // there.dtype.nbytes
    word = PACKED.get(there.dtype, there.dtype)
    for i in range(0, len(acc.regs), count):
        words = ld((there + i * LANES).cast(word), vec=CHUNK_BYTES // word.nbytes)
        for register, value in zip(acc.regs[i : i + count], _floats(words, there.dtype), strict=True):
            register.set(register + value)


def _floats(words: list[Any], dtype: type[Scalar]) -> list[Any]:
    """Returns the elements of loaded words in float32."""
    if dtype not in PACKED:
        return words
    return [half.to(f32) for word in words for half in unpack(word, dtype)]


def sums_offset(acc: Fragment, number: Any, dtype: type[Scalar]) -> Any:
    """Returns the offset of this thread's first sums in entry ``number`` of warps' sums."""
    return number * (len(acc.regs) * LANES) + warp.lane * (CHUNK_BYTES // dtype.nbytes)


def scale_sums(sums: list[Fragment], scale: Expr) -> None:
    """Multiply all sums by a factor."""
    for register in (register for acc in sums for register in acc.regs):
        register.set(register * scale)
