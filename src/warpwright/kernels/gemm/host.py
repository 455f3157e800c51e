"""What a launch of one GEMM level needs, computed from the problem alone: no device, no array, no launch."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.errors import UsageError
from warpwright.kernels.gemm.configs import CLUSTER, ELEMENT_BYTES, GemmConfig

__all__ = ["MAP_ALIGNMENT", "SWIZZLE", "Plan", "plan"]

SWIZZLE = 128
MAP_ALIGNMENT = 16
MAX_GRID_X = 2**31 - 1
MAX_TILES = MAX_GRID_X // CLUSTER


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of ``gemm_level1…3`` for D (m, n) = A (m, k) · B (n, k)ᵀ.

    ``a_box`` and ``b_box`` are (rows, columns) of the tensor maps of A and B, both with a 128-byte swizzle.
    ``pitch`` is the number of elements between rows of D: n rounded up to whole 16-byte vectors, so D is a buffer of
    shape (m, pitch) whose first n columns are the result. ``scalars`` follow the maps and D in the argument list:
    m, n, pitch, tiles_n, tiles_k.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    a_box: tuple[int, int]
    b_box: tuple[int, int]
    swizzle: int
    pitch: int
    scalars: tuple[int, int, int, int, int]


def plan(config: GemmConfig, m: int, n: int, k: int, *, out_bytes: int = 2) -> Plan:
    """The launch of ``config`` for one problem.

    ``out_bytes`` is the size of an element of D (2 or 4). Raises UsageError for an extent below 1, for rows of A and B
    that are no multiple of 16 bytes (a rule of tensor maps), and for more tiles than a grid can hold.
    """
    _check(m, n, k)
    tile_m, tile_n, tile_k = config.tile
    tiles_m, tiles_n, tiles_k = (-(-extent // tile) for extent, tile in zip((m, n, k), config.tile, strict=True))
    if tiles_m * tiles_n > MAX_TILES:
        raise UsageError(
            f"given D of {m} × {n}, {tiles_m * tiles_n} tiles; expected at most {MAX_TILES}; "
            "split the product along M or N"
        )
    vector = MAP_ALIGNMENT // out_bytes
    pitch = -(-n // vector) * vector
    return Plan(
        grid=(CLUSTER * tiles_m * tiles_n, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(CLUSTER, 1, 1),
        smem=config.smem_bytes,
        a_box=(tile_m, tile_k),
        b_box=(tile_n // CLUSTER, tile_k),
        swizzle=SWIZZLE,
        pitch=pitch,
        scalars=(m, n, pitch, tiles_n, tiles_k),
    )


def _check(m: int, n: int, k: int) -> None:
    if min(m, n, k) < 1:
        raise UsageError(f"given M={m}, N={n}, K={k}; expected each at least 1; an empty product needs no kernel")
    step = MAP_ALIGNMENT // ELEMENT_BYTES
    if k % step:
        padded = -(-k // step) * step
        raise UsageError(
            f"given K={k}; expected a multiple of {step} (rows of 16 bytes); pad A and B with zeros to K={padded}"
        )
