"""Layouts of shared memory, tensor memory and registers, as pure functions of addresses and indices."""

from __future__ import annotations

from warpwright.layout.instr_descriptor import InstrDescriptor
from warpwright.layout.scales import SCALE_TILE, pack_e2m1, scale_columns, scale_offsets, scale_tiles, tmem_scale_map
from warpwright.layout.smem_descriptor import SmemDescriptor, element_offsets, operand_addresses
from warpwright.layout.swizzle import ATOM_32B, ATOM_64B, period, swizzle, width
from warpwright.layout.tmem import (
    TmemAddress,
    tmem_a_layout,
    tmem_cp_map,
    tmem_d_layout,
    tmem_ld_map,
    tmem_ld_registers,
)

__all__ = [
    "ATOM_32B",
    "ATOM_64B",
    "SCALE_TILE",
    "InstrDescriptor",
    "SmemDescriptor",
    "TmemAddress",
    "element_offsets",
    "operand_addresses",
    "pack_e2m1",
    "period",
    "scale_columns",
    "scale_offsets",
    "scale_tiles",
    "swizzle",
    "tmem_a_layout",
    "tmem_cp_map",
    "tmem_d_layout",
    "tmem_ld_map",
    "tmem_ld_registers",
    "tmem_scale_map",
    "width",
]
