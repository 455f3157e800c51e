"""Swizzles as functions of absolute shared-memory addresses (PTX ISA 9.1 section 5.5.7).

A swizzle exchanges 16-byte chunks inside a repeating pattern by XORing low address bits with higher ones. The masks do
not overlap, so the same function goes both ways. A mode is its width in bytes, 0 for none, or one of the wider atoms
``ATOM_32B`` and ``ATOM_64B`` of the 128-byte swizzle.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from warpwright.errors import UsageError

__all__ = ["ATOM_32B", "ATOM_64B", "MODES", "Mode", "period", "swizzle", "width"]

ATOM_32B = "128B_ATOM_32B"
ATOM_64B = "128B_ATOM_64B"

Mode = int | str

# mode: (width of a row in bytes, right shift of the source bits, mask of the target bits, period in bytes)
MODES: dict[Mode, tuple[int, int, int, int]] = {
    0: (16, 3, 0x00, 16),
    32: (32, 3, 0x10, 256),
    64: (64, 3, 0x30, 512),
    128: (128, 3, 0x70, 1024),
    ATOM_32B: (128, 2, 0x60, 512),
    ATOM_64B: (128, 1, 0x40, 256),
}

Address = TypeVar("Address", int, "np.ndarray[Any, np.dtype[np.int64]]")


def swizzle(address: Address, mode: Mode) -> Address:
    """The physical address of an un-swizzled byte ``address`` (an int or an int array), and the other way round.

    Raises UsageError for an unknown ``mode``.
    """
    _, shift, mask, _ = _mode(mode)
    return address ^ ((address >> shift) & mask)


def width(mode: Mode) -> int:
    """Bytes of a row that the pattern is made of: 32, 64 or 128, and 16 without swizzle."""
    return _mode(mode)[0]


def period(mode: Mode) -> int:
    """Bytes after which the pattern repeats: the alignment at which it starts with an identity row."""
    return _mode(mode)[3]


def _mode(mode: Mode) -> tuple[int, int, int, int]:
    found = MODES.get(mode)
    if found is None:
        raise UsageError(f"given swizzle {mode!r}; expected one of {', '.join(map(repr, MODES))}")
    return found
