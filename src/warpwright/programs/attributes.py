"""Attributes of a virtual GPU by their numbers in ``cudaDeviceAttr`` and ``CUdevice_attribute`` (CUDA 13.0)."""

from __future__ import annotations

from warpwright.targets import Device

__all__ = ["STATIC_SMEM_LIMIT", "device_attributes"]

STATIC_SMEM_LIMIT = 48 << 10  # bytes of shared memory of a block, without the attribute of its kernel


def device_attributes(spec: Device) -> dict[int, int]:
    """Returns the attributes of a device that programs ask for; sizes are in bytes, clocks in kHz."""
    limits, (major, minor) = spec.limits, spec.capability
    return {
        1: limits.max_threads_per_block,
        **dict(zip((2, 3, 4), limits.max_block_dim, strict=True)),
        **dict(zip((5, 6, 7), limits.max_grid_dim, strict=True)),
        8: STATIC_SMEM_LIMIT,
        9: 64 << 10,  # constant memory
        10: limits.warp_size,
        12: limits.registers_per_sm,
        13: 1000 * spec.clock_mhz,
        16: spec.sms,
        18: 0,  # integrated
        19: 1,  # maps host memory
        31: 1,  # concurrent kernels
        32: 1,  # ECC
        38: spec.l2_bytes,
        39: limits.max_threads_per_sm,
        40: 1,  # copy engines
        41: 1,  # unified addresses
        75: major,
        76: minor,
        78: 1,  # priorities of streams
        81: limits.smem_per_sm,
        82: limits.registers_per_sm,
        83: 1,  # managed memory
        88: 0,  # memory of malloc
        89: 1,  # managed memory while a kernel runs
        95: 1,  # cooperative launches
        97: limits.smem_per_block,
        106: limits.max_ctas_per_sm,
        111: limits.smem_reserved_per_block,
        115: 1,  # memory pools
        120: 1,  # clusters
        142: 1,  # memory pools of a node of the host
        144: 1,  # memory pools of the host
    }
