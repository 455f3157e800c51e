"""Block scales of tcgen05.mma (PTX ISA 9.1 section 9.7.16.10.7).

Each row of A and of B has one scale factor for each block of 16 or 32 elements of K, a byte in tensor memory: A's of a
CTA's own rows, B's of all N rows in each CTA. The descriptor's scale factor IDs select the first byte of a cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError, ProtocolError
from warpwright.layout import InstrDescriptor, scale_columns, tmem_scale_map
from warpwright.vgpu.engines import hardware
from warpwright.vgpu.engines.accumulator import check_columns
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.jit.tensor_core import Model, byte_values

__all__ = ["NAMES", "SCALE_IDS", "Scales", "multiply_scaled", "place_of", "round_scaled", "scales_of"]

Floats = NDArray[np.float32]

NAMES = ("scale_a", "scale_b")
SCALE_IDS = 3 << 4 | 3 << 29  # bits of an instruction descriptor
_ID_SHIFTS = {"scale_a": 29, "scale_b": 4}
_ADDRESS = 0x3FFF_FFFF  # CUTLASS's addresses of scale factors have the scale factor ID in bits 30 and 31
_MODERATE = 2.0**-30, 2.0**30  # scaled products of these scale factors neither overflow nor underflow in float32


@dataclass(frozen=True, slots=True)
class Scales:
    """The scale factors of an MMA: elements of a block, type, scale factors of a row, and the rows of A and of B in
    each CTA of the group."""

    block: int
    type: str
    count: int
    rows: tuple[int, int]
    group: int


def scales_of(desc: InstrDescriptor, block: int, group: int) -> Scales | None:
    """The scale factors of an instruction with blocks of ``block`` elements, None without. Raises DescriptorError."""
    if not block:
        return None
    if desc.scale_type == "ue4m3" and block != 16:
        raise DescriptorError(
            "given scale factors of type ue4m3 with blocks of 32; expected ue8m0, or blocks of 16: write "
            "kind::mxf4nvf4.block_scale.block16"
        )
    return Scales(block, desc.scale_type, desc.k // block, (desc.m // group, desc.n), group)


def place_of(op: Op, name: str, scales: Scales) -> tuple[int, int]:
    """The address of the scale factors of A or B, and their columns."""
    return op[name] & _ADDRESS, scale_columns(scales.rows[NAMES.index(name)])


def multiply_scaled(
    fabric: Fabric, ops: list[Op], base: int, scales: Scales, a: Floats, b: Floats, out: Floats
) -> None:
    """The transposed product, (N, M), of scaled A (M, K) and B (N, K), K of all operations."""
    rows = scales.rows[0]
    for cta in range(scales.group):
        part = slice(cta * rows, (cta + 1) * rows)
        left, right = (_read_all(fabric, ops, base + cta, scales, name) for name in NAMES)
        exact = np.float32 if _moderate(left) and _moderate(right) else np.float64
        out[:, part] = _apply(b, right, scales.block, exact) @ _apply(a[part], left, scales.block, exact).T


def round_scaled(
    fabric: Fabric, ops: list[Op], base: int, scales: Scales, a: Floats, b: Floats, sums: Floats, model: Model
) -> None:
    """Add the scaled products of each operation to ``sums`` (M, N) in place, rounded as tensor cores do."""
    rows, k = scales.rows[0], scales.block * scales.count
    for cta in range(scales.group):
        part = slice(cta * rows, (cta + 1) * rows)
        left, right = (_read_all(fabric, ops, base + cta, scales, name) for name in NAMES)
        hardware.accumulate_scaled(sums[part], a[part], b, (left, right), k, model)


def _moderate(scales: Floats) -> bool:
    low, high = _MODERATE
    return bool(((scales >= low) & (scales <= high) | (scales == 0)).all())


def _apply(matrix: Floats, scales: Floats, block: int, dtype: type[np.floating]) -> NDArray[np.floating]:
    scaled = matrix.reshape(*scales.shape, block).astype(dtype) * scales[:, :, None].astype(dtype)
    return scaled.reshape(matrix.shape)


def _read_all(fabric: Fabric, ops: list[Op], rank: int, scales: Scales, name: str) -> Floats:
    """The scale factors of A or B in a CTA, (rows, blocks of all operations)."""
    codes = np.concatenate([_read(fabric, op, rank, scales, name) for op in ops], axis=1)
    values: Floats = byte_values(scales.type)[codes]
    return values


def _read(fabric: Fabric, op: Op, rank: int, scales: Scales, name: str) -> NDArray[np.uint8]:
    address, columns = place_of(op, name, scales)
    check_columns(fabric, op, rank, address, columns)
    first = _first_byte(fabric, op, scales, name)
    lanes, column = tmem_scale_map(scales.rows[NAMES.index(name)])
    cells = fabric.tmem[rank, (address & 0xFFFF) + column, lanes]
    codes: NDArray[np.uint8] = cells.view(np.uint8).reshape(*lanes.shape, 4)[:, :, first : first + scales.count]
    for quarter in range(1, 4):
        if not np.array_equal(codes[0], codes[quarter]):
            raise fabric.failure(
                ProtocolError,
                op,
                f"the scale factors of {name[-1].upper()} at tensor memory column {address & 0xFFFF} of CTA {rank} "
                f"differ between lanes 0..31 and lanes {32 * quarter}..{32 * quarter + 31}; expected four copies; copy "
                "them with tcgen05.cp.32x128b.warpx4",
            )
    found: NDArray[np.uint8] = codes[0]
    return found


def _first_byte(fabric: Fabric, op: Op, scales: Scales, name: str) -> int:
    found = op["idesc"] >> _ID_SHIFTS[name] & 3
    if found % scales.count:
        legal = " or ".join(map(str, range(0, 4, scales.count)))
        raise fabric.failure(
            DescriptorError,
            op,
            f"given scale factor ID {found} of {name[-1].upper()} with {scales.count} scale factors a row; expected "
            f"{legal}; mend bits {_ID_SHIFTS[name]} and {_ID_SHIFTS[name] + 1} of the instruction descriptor",
        )
    return int(found)
