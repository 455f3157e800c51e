"""Shared-memory matrix descriptors of wgmma and tcgen05 (PTX ISA 9.1 sections 9.7.15.5.1.2 and 9.7.16.4.1).

========  =====================================================  =====================================
bits      tcgen05 (version 1)                                    wgmma (version 0)
========  =====================================================  =====================================
0-13      start address >> 4                                     the same
16-29     LBO, leading dimension byte offset >> 4                the same
32-45     SBO, stride dimension byte offset >> 4                 the same
46-48     0b001                                                  0
49-51     base offset                                            the same
52        1: LBO is an absolute address (sm_103a)                0
61-63     swizzle: 0 none, 1 128B with 32B atoms, 2 128B,        62-63: 0 none, 1 128B, 2 64B, 3 32B
          4 64B, 6 32B
========  =====================================================  =====================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from warpwright.errors import DescriptorError
from warpwright.layout.swizzle import ATOM_32B, Mode, period, swizzle, width

__all__ = ["SmemDescriptor", "element_offsets", "operand_addresses"]

IntArray = np.ndarray[Any, np.dtype[np.int64]]

_CODES: dict[int, dict[Mode, int]] = {
    0: {0: 0, 128: 1, 64: 2, 32: 3},
    1: {0: 0, ATOM_32B: 1, 128: 2, 64: 4, 32: 6},
}
_USED_BITS = {
    0: 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62,
    1: 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 46 | 7 << 49 | 1 << 52 | 7 << 61,
}
_LIMIT = 1 << 18


@dataclass(frozen=True, slots=True)
class SmemDescriptor:
    """The matrix descriptor of an operand in shared memory.

    ``start``, ``lbo`` and ``sbo`` are in bytes; ``swizzle`` is 0, 32, 64, 128 or ``layout.ATOM_32B``; ``version`` is 1
    for tcgen05 and 0 for wgmma.
    """

    start: int
    lbo: int
    sbo: int
    swizzle: Mode
    base_offset: int = 0
    version: int = 1
    lbo_absolute: bool = False

    def encode(self) -> int:
        """Returns the 64-bit value. Raises DescriptorError as ``validate`` does."""
        self.validate()
        code = _CODES[self.version][self.swizzle]
        value = self.start >> 4 | self.lbo >> 4 << 16 | self.sbo >> 4 << 32 | self.base_offset << 49
        if self.version == 0:
            return value | code << 62
        return value | 1 << 46 | int(self.lbo_absolute) << 52 | code << 61

    @staticmethod
    def decode(value: int, arch: str = "sm_100a") -> SmemDescriptor:
        """Returns the fields of a 64-bit ``value``: a wgmma descriptor if ``arch`` is sm_90, else a tcgen05 descriptor.

        Raises DescriptorError for a wrong version, a reserved bit that is set, or an undefined swizzle code.
        """
        version = 0 if arch.startswith("sm_90") else 1
        _check_bits(value, version, arch)
        code = value >> 62 if version == 0 else value >> 61
        modes = {code: mode for mode, code in _CODES[version].items()}
        if code not in modes:
            raise DescriptorError(
                f"given descriptor 0x{value:016x} with swizzle code {code}; expected one of "
                f"{', '.join(f'{known} ({mode})' for known, mode in modes.items())} on {arch}; mend bits 61-63"
            )
        return SmemDescriptor(
            start=(value & 0x3FFF) << 4,
            lbo=(value >> 16 & 0x3FFF) << 4,
            sbo=(value >> 32 & 0x3FFF) << 4,
            swizzle=modes[code],
            base_offset=value >> 49 & 7,
            version=version,
            lbo_absolute=version == 1 and bool(value >> 52 & 1),
        )

    def validate(self) -> None:
        """Raises DescriptorError unless the hardware defines the value of every field."""
        if self.version not in _CODES:
            raise DescriptorError(f"given descriptor version {self.version}; expected 0 (wgmma) or 1 (tcgen05)")
        if self.swizzle not in _CODES[self.version]:
            known = ", ".join(map(repr, _CODES[self.version]))
            raise DescriptorError(
                f"given swizzle {self.swizzle!r} in a version {self.version} descriptor; expected {known}"
            )
        for name in ("start", "lbo", "sbo"):
            _check_offset(name, getattr(self, name))
        if not 0 <= self.base_offset < 8:
            raise DescriptorError(f"given base offset {self.base_offset}; expected 0 to 7")
        if self.lbo_absolute and self.version == 0:
            raise DescriptorError(
                "given an absolute LBO in a wgmma descriptor; expected version 1 (tcgen05 on sm_103a)"
            )


def _check_bits(value: int, version: int, arch: str) -> None:
    if not 0 <= value < 1 << 64:
        raise DescriptorError(f"given descriptor {value}; expected an unsigned 64-bit value")
    found = value >> 46 & 7
    if version == 1 and found != 1:
        raise DescriptorError(
            f"given descriptor 0x{value:016x} with version bits 46-48 = {found}; expected 1 on {arch}; "
            "set bit 46 and clear bits 47 and 48"
        )
    reserved = value & ~_USED_BITS[version]
    if reserved:
        bit = reserved.bit_length() - 1
        raise DescriptorError(
            f"given descriptor 0x{value:016x} with bit {bit} set; expected 0 on {arch}; "
            "mask each field to its 14 bits before shifting it into place"
        )


def _check_offset(name: str, value: int) -> None:
    if value % 16 or not 0 <= value < _LIMIT:
        raise DescriptorError(
            f"given {name}={value} bytes in a matrix descriptor; expected a multiple of 16 from 0 to {_LIMIT - 16}"
        )


def element_offsets(desc: SmemDescriptor, rows: int, k: int, elem_bytes: int, major: str = "k") -> IntArray:
    """Returns the byte offset of every operand element from the descriptor's start address, before the swizzle.

    ``rows`` is the extent in M (of A) or N (of B), ``k`` the extent in K, ``major`` is ``"k"`` or ``"mn"``. The result
    is a read-only int64 array of shape (rows, k). With ``elem_bytes`` = 16 the elements are the 16-byte chunks of a
    row. Raises DescriptorError for a combination that the descriptor does not define.

    Closed forms of the canonical layouts, PTX ISA 9.1 sections 9.7.15.5.1.2 and 9.7.16.3.
    """
    if major not in ("k", "mn"):
        raise DescriptorError(f"given major={major!r}; expected 'k' or 'mn'")
    if desc.lbo_absolute:
        raise DescriptorError("given a descriptor with an absolute LBO (bit 52); expected a relative one; clear bit 52")
    return _offsets(desc.lbo, desc.sbo, desc.swizzle, rows, k, elem_bytes, major)


@lru_cache(maxsize=256)
def _offsets(lbo: int, sbo: int, mode: Mode, rows: int, k: int, elem_bytes: int, major: str) -> IntArray:
    i = np.arange(rows, dtype=np.int64)[:, None]
    kk = np.arange(k, dtype=np.int64)[None, :]
    offsets = (
        _k_major(i, kk * elem_bytes, lbo, sbo, mode) if major == "k" else _mn_major(i * elem_bytes, kk, lbo, sbo, mode)
    )
    offsets = np.broadcast_to(offsets, (rows, k)).copy()
    offsets.flags.writeable = False
    return offsets


def _k_major(i: IntArray, k_bytes: IntArray, lbo: int, sbo: int, mode: Mode) -> IntArray:
    inside = (i // 8) * sbo + (i % 8) * width(mode)
    if mode == 0:
        return inside + (k_bytes // 16) * lbo + k_bytes % 16
    return inside + k_bytes


def _mn_major(i_bytes: IntArray, k: IntArray, lbo: int, sbo: int, mode: Mode) -> IntArray:
    if mode == 0:
        return (i_bytes // 16) * sbo + i_bytes % 16 + (k % 8) * 16 + (k // 8) * lbo
    row = width(mode)
    lines = 4 if mode == ATOM_32B else 8
    return (i_bytes // row) * lbo + i_bytes % row + (k % lines) * row + (k // lines) * sbo


def operand_addresses(desc: SmemDescriptor, rows: int, k: int, elem_bytes: int, major: str = "k") -> IntArray:
    """Returns the physical shared-memory address of every operand element, shape (rows, k), after the swizzle.

    The swizzle pattern starts ``base_offset`` × 128 bytes after a multiple of its period (measured on an H200). Without
    a swizzle the base offset has no meaning (PTX ISA 9.1 section 9.7.15.5.1; CuTe DSL's descriptors say so too, and
    Triton sets it there). Raises DescriptorError as ``element_offsets`` does, and for a tcgen05 descriptor with a
    nonzero base offset and a swizzle, which has not been measured.
    """
    offsets = element_offsets(desc, rows, k, elem_bytes, major)
    if desc.base_offset and desc.version == 0:
        shift = 128 * desc.base_offset
        return swizzle(desc.start + offsets - shift, desc.swizzle) + shift
    if desc.base_offset and desc.swizzle:
        raise DescriptorError(
            f"given base offset {desc.base_offset}; expected 0; start the swizzle pattern at a multiple of "
            f"{period(desc.swizzle)} bytes"
        )
    return swizzle(desc.start + offsets, desc.swizzle)
