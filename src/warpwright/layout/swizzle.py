"""Swizzles as functions of absolute shared-memory addresses (PTX ISA 9.1 section 5.5.7).

A swizzle permutes the 16-byte chunks of a repeating pattern: it XORs low address bits with higher address bits. The
two bit fields do not overlap, so a swizzle is its own inverse. A mode is the width in bytes (0 for no swizzle), or one
of the wider atoms ``ATOM_32B`` and ``ATOM_64B`` of the 128-byte swizzle.
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
    """Returns the physical address of an un-swizzled byte ``address`` (an int or an int array), and vice versa.

    Raises UsageError for an unknown ``mode``.
    """
    _, shift, mask, _ = _mode(mode)
    return address ^ ((address >> shift) & mask)


def width(mode: Mode) -> int:
    """Returns the bytes of a row of the pattern: 32, 64 or 128, and 16 without swizzle."""
    return _mode(mode)[0]


def period(mode: Mode) -> int:
    """Returns the period of the pattern in bytes: at multiples of the period, the first row is the identity."""
    return _mode(mode)[3]


def _mode(mode: Mode) -> tuple[int, int, int, int]:
    found = MODES.get(mode)
    if found is None:
        raise UsageError(f"given swizzle {mode!r}; expected one of {', '.join(map(repr, MODES))}")
    return found
