"""Shared-memory matrix descriptors."""

# ruff: noqa: E501 - one sentence a line

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpwright.errors import DescriptorError
from warpwright.layout import (
    ATOM_32B,
    SmemDescriptor,
    element_offsets,
    operand_addresses,
    swizzle,
)

OFFSETS = st.integers(0, 2**14 - 1).map(lambda value: value * 16)


@given(
    start=OFFSETS,
    lbo=OFFSETS,
    sbo=OFFSETS,
    base=st.integers(0, 7),
    swizzled=st.sampled_from([(1, 0), (1, 32), (1, 64), (1, 128), (1, ATOM_32B), (0, 0), (0, 32), (0, 64), (0, 128)]),
)
def test_decode_inverts_encode(start: int, lbo: int, sbo: int, base: int, swizzled: tuple[int, int]) -> None:
    version, mode = swizzled
    descriptor = SmemDescriptor(start, lbo, sbo, mode, base, version)
    assert SmemDescriptor.decode(descriptor.encode(), "sm_100a" if version else "sm_90a") == descriptor


def test_the_canonical_k_major_descriptor() -> None:
    address = 0x4C00
    value = SmemDescriptor(address, lbo=16, sbo=1024, swizzle=128).encode()
    assert value == address >> 4 | 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61
    hopper = SmemDescriptor(address, lbo=16, sbo=1024, swizzle=128, version=0).encode()
    assert hopper == address >> 4 | 1 << 16 | 64 << 32 | 1 << 62


def _tma_tile(rows: int, start: int) -> np.ndarray:
    """Address of every 16-bit element of a (rows, 64) tile that a tensor copy wrote with a 128-byte swizzle."""
    linear = start + np.arange(rows)[:, None] * 128 + np.arange(64)[None, :] * 2
    return swizzle(linear, 128)


@pytest.mark.parametrize("k_step", range(4))
def test_k_steps_inside_the_atom_read_what_the_copy_wrote(k_step: int) -> None:
    start = 5 * 1024
    descriptor = SmemDescriptor(start + 32 * k_step, lbo=16, sbo=1024, swizzle=128)
    tile = _tma_tile(128, start)[:, 16 * k_step : 16 * k_step + 16]
    assert np.array_equal(operand_addresses(descriptor, 128, 16, 2), tile)


@pytest.mark.parametrize("mode", [32, 64, 128])
@pytest.mark.parametrize("elem_bytes", [1, 2, 4])
def test_k_major_rows_of_a_swizzled_tile(mode: int, elem_bytes: int) -> None:
    k = 32 // elem_bytes
    descriptor = SmemDescriptor(2048, lbo=16, sbo=8 * mode, swizzle=mode)
    linear = 2048 + np.arange(64)[:, None] * mode + np.arange(k)[None, :] * elem_bytes
    assert np.array_equal(operand_addresses(descriptor, 64, k, elem_bytes), swizzle(linear, mode))


@pytest.mark.parametrize("mode", [32, 64, 128])
def test_mn_major_columns_of_a_swizzled_tile(mode: int) -> None:
    """The tile is (K, MN) row-major in blocks of one swizzle width: LBO between blocks, SBO between 8-row groups."""
    k, width = 16, mode // 2
    block = k * mode
    descriptor = SmemDescriptor(4096, lbo=block, sbo=8 * mode, swizzle=mode)
    i, kk = np.arange(4 * width)[:, None], np.arange(k)[None, :]
    linear = 4096 + (i // width) * block + kk * mode + (i % width) * 2
    assert np.array_equal(operand_addresses(descriptor, 4 * width, k, 2, "mn"), swizzle(linear, mode))


def test_core_matrices_without_swizzle() -> None:
    descriptor = SmemDescriptor(0, lbo=128, sbo=256, swizzle=0)
    offsets = element_offsets(descriptor, 16, 16, 2)
    assert offsets[0, :9].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 128]
    assert offsets[:9, 0].tolist() == [0, 16, 32, 48, 64, 80, 96, 112, 256]
    turned = element_offsets(descriptor, 16, 16, 2, "mn")
    assert turned[:9, 0].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 256]
    assert turned[0, :9].tolist() == [0, 16, 32, 48, 64, 80, 96, 112, 128]


def test_mn_major_32_byte_atoms() -> None:
    descriptor = SmemDescriptor(0, lbo=4096, sbo=512, swizzle=ATOM_32B)
    offsets = element_offsets(descriptor, 64, 8, 4, "mn")
    assert (offsets[31, 0], offsets[32, 0], offsets[0, 3], offsets[0, 4]) == (124, 4096, 384, 512)


@given(
    mode=st.sampled_from([0, 32, 64, 128]),
    major=st.sampled_from(["k", "mn"]),
    rows=st.sampled_from([128, 256]),
    elem_bytes=st.sampled_from([1, 2, 4]),
)
def test_packed_operands_use_each_byte_once(mode: int, major: str, rows: int, elem_bytes: int) -> None:
    """A densely packed operand is a permutation of the bytes of its memory."""
    k = 32 // elem_bytes
    addresses = operand_addresses(_tight(mode, major, rows, k, elem_bytes), rows, k, elem_bytes, major)
    if mode and major == "k":
        assert np.unique(addresses).size == rows * k
    else:
        assert sorted(addresses.ravel().tolist()) == list(range(1024, 1024 + rows * 32, elem_bytes))


def _tight(mode: int, major: str, rows: int, k: int, elem_bytes: int) -> SmemDescriptor:
    if major == "k":
        return SmemDescriptor(1024, lbo=128, sbo=8 * mode or 256, swizzle=mode)
    if mode == 0:
        return SmemDescriptor(1024, lbo=rows * elem_bytes * 8, sbo=128, swizzle=0)
    return SmemDescriptor(1024, lbo=k * mode, sbo=8 * mode, swizzle=mode)


def test_the_highest_address_is_the_end_of_the_tile() -> None:
    descriptor = SmemDescriptor(1024, lbo=16, sbo=1024, swizzle=128)
    assert operand_addresses(descriptor, 128, 64, 2).max() + 2 == 1024 + 128 * 128
    assert operand_addresses(descriptor, 8, 16, 2).max() >= 1024 + 7 * 128


GOOD = SmemDescriptor(1024, 16, 1024, 128).encode()
REFUSED_VALUES = [
    (GOOD ^ 1 << 46, "sm_100a", "given descriptor 0x4000004000010040 with version bits 46-48 = 0; expected 1 on sm_100a; set bit 46 and clear bits 47 and 48"),
    (GOOD | 1 << 55, "sm_100a", "given descriptor 0x4080404000010040 with bit 55 set; expected 0 on sm_100a; mask each field to its 14 bits before shifting it into place"),
    (GOOD | 1 << 14, "sm_100a", "given descriptor 0x4000404000014040 with bit 14 set; expected 0 on sm_100a; mask each field to its 14 bits before shifting it into place"),
    (GOOD, "sm_90a", "given descriptor 0x4000404000010040 with bit 46 set; expected 0 on sm_90a; mask each field to its 14 bits before shifting it into place"),
    (GOOD | 7 << 61, "sm_100a", "given descriptor 0xe000404000010040 with swizzle code 7; expected one of 0 (0), 1 (128B_ATOM_32B), 2 (128), 4 (64), 6 (32) on sm_100a; mend bits 61-63"),
    (1 << 64, "sm_100a", "given descriptor 18446744073709551616; expected an unsigned 64-bit value"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "arch", "message"), REFUSED_VALUES)
def test_values_that_the_hardware_does_not_define(value: int, arch: str, message: str) -> None:
    with pytest.raises(DescriptorError) as caught:
        SmemDescriptor.decode(value, arch)
    assert str(caught.value) == message


@pytest.mark.parametrize("code", [3, 5, 7])
def test_codes_that_do_not_exist_on_blackwell(code: int) -> None:
    with pytest.raises(DescriptorError, match=f"with swizzle code {code};"):
        SmemDescriptor.decode(GOOD & ~(7 << 61) | code << 61)


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        (SmemDescriptor(1032, 16, 1024, 128), "given start=1032 bytes in a matrix descriptor; expected a multiple of 16 from 0 to 262128"),
        (SmemDescriptor(0, 16, 1 << 18, 128), "given sbo=262144 bytes in a matrix descriptor; expected a multiple of 16 from 0 to 262128"),
        (SmemDescriptor(0, 16, 16, ATOM_32B, version=0), "given swizzle '128B_ATOM_32B' in a version 0 descriptor; expected 0, 128, 64, 32"),
        (SmemDescriptor(0, 16, 16, 128, base_offset=8), "given base offset 8; expected 0 to 7"),
        (SmemDescriptor(0, 16, 16, 128, version=2), "given descriptor version 2; expected 0 (wgmma) or 1 (tcgen05)"),
        (SmemDescriptor(0, 16, 16, 128, version=0, lbo_absolute=True), "given an absolute LBO in a wgmma descriptor; expected version 1 (tcgen05 on sm_103a)"),
    ],
)  # fmt: skip
def test_fields_out_of_range(descriptor: SmemDescriptor, message: str) -> None:
    with pytest.raises(DescriptorError) as caught:
        descriptor.encode()
    assert str(caught.value) == message


def test_a_base_offset_shifts_the_pattern_of_wgmma() -> None:
    """A pattern that starts 128 bytes after a multiple of its period: row 1 has the layout of row 0 of an aligned one."""
    shifted = operand_addresses(SmemDescriptor(128, 16, 1024, 128, base_offset=1, version=0), 64, 16, 2)
    plain = operand_addresses(SmemDescriptor(0, 16, 1024, 128, version=0), 64, 16, 2)
    assert np.array_equal(shifted, plain + 128)


@pytest.mark.parametrize("version", [0, 1])
def test_a_base_offset_without_a_swizzle_has_no_meaning(version: int) -> None:
    found, plain = (
        operand_addresses(SmemDescriptor(4096, 128, 256, 0, base_offset=offset, version=version), 64, 16, 2)
        for offset in (5, 0)
    )
    assert np.array_equal(found, plain)


def test_a_base_offset_of_tcgen05_has_no_known_addresses() -> None:
    with pytest.raises(DescriptorError) as caught:
        operand_addresses(SmemDescriptor(128, 16, 1024, 128, base_offset=1), 8, 16, 2)
    assert str(caught.value) == "given base offset 1; expected 0; start the swizzle pattern at a multiple of 1024 bytes"
