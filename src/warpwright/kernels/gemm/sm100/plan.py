"""Grid, cluster, shared memory, boxes and arguments of one launch, computed from the problem alone."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.errors import UsageError
from warpwright.kernels.gemm.sm100.configs import ELEMENT_BYTES, PAIR, Config

__all__ = ["B200_SMS", "MAP_ALIGNMENT", "SWIZZLE", "Plan", "plan_gemm"]

SWIZZLE = 128
MAP_ALIGNMENT = 16
MAX_GRID_X = 2**31 - 1
B200_SMS = 148


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of ``kernel_of(config)`` for D (m, n) = A (m, k) · B (n, k)ᵀ.

    ``a_box`` and ``b_box`` are (rows, columns) of the tensor maps of A and B, both with a 128-byte swizzle. ``d_box``
    and ``d_swizzle`` describe the tensor map of D at levels 6 and up; below, ``d_box`` is None and D is a pointer.
    ``pitch`` is the number of elements between rows of D: n rounded up to whole 16-byte vectors. D is a buffer of
    shape (m, pitch) whose first n columns are the result. ``scalars`` follow A, B and D in the argument list: at
    levels 6 and up the areas of clusters along M and along N, and the k-blocks; below m, n, pitch, the tiles along N,
    and the k-blocks.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    a_box: tuple[int, int]
    b_box: tuple[int, int]
    swizzle: int
    pitch: int
    scalars: tuple[int, ...]
    d_box: tuple[int, int] | None = None
    d_swizzle: int = 0
    l2_promotion: int = 0


def plan_gemm(
    config: Config,
    m: int,
    n: int,
    k: int,
    *,
    out_bytes: int = 2,
    sms: int = B200_SMS,
    clusters: int | None = None,
) -> Plan:
    """Returns the launch of ``config`` for one problem on a device of ``sms`` SMs.

    ``clusters`` limits the persistent clusters to those that fit at once. The default, one for each ``config.cluster``
    SMs, is right for pairs; larger clusters leave some SMs of a GPC idle. With the scheduler "clc" there is a cluster
    for each area. ``out_bytes`` is the size of an element of D (2 or 4).

    Raises UsageError for an extent below 1, for rows of A and B that are not a multiple of 16 bytes (a rule of tensor
    maps), and for more tiles than a grid can have.
    """
    _check(m, n, k)
    tile_m, tile_n, tile_k = config.tile
    areas_m, areas_n = (-(-extent // size) for extent, size in zip((m, n), config.area, strict=True))
    tiles_k = -(-k // (tile_k * config.merge))
    if areas_m * areas_n * config.cluster > MAX_GRID_X:
        raise UsageError(
            f"given D of {m} × {n}, {areas_m * areas_n} tiles; expected at most {MAX_GRID_X // config.cluster}; "
            "split the GEMM along M or N"
        )
    vector = MAP_ALIGNMENT // out_bytes
    pitch = -(-n // vector) * vector
    mapped = config.kernel == "roles"
    return Plan(
        grid=(_clusters(config, areas_m * areas_n, clusters or sms // config.cluster) * config.cluster, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        smem=config.smem_bytes,
        a_box=(tile_m // config.share[1], tile_k),
        b_box=(tile_n // PAIR // config.share[0], tile_k),
        swizzle=SWIZZLE,
        pitch=pitch,
        scalars=(areas_m, areas_n, tiles_k) if mapped else (m, n, pitch, areas_n, tiles_k),
        d_box=(config.box[0], config.box[1] // out_bytes) if mapped else None,
        d_swizzle=config.swizzle,
        l2_promotion=config.l2_promotion,
    )


def _clusters(config: Config, areas: int, fit: int) -> int:
    """Returns the number of clusters to launch: at least one, even if the device has fewer SMs than a cluster."""
    persistent = config.group > 0 and config.scheduler == "static"
    return min(areas, max(1, fit)) if persistent else areas


def _check(m: int, n: int, k: int) -> None:
    if min(m, n, k) < 1:
        raise UsageError(f"given M={m}, N={n}, K={k}; expected each at least 1; an empty GEMM needs no kernel")
    step = MAP_ALIGNMENT // ELEMENT_BYTES
    if k % step:
        padded = -(-k // step) * step
        raise UsageError(
            f"given K={k}; expected a multiple of {step} (rows of 16 bytes); pad A and B with zeros to K={padded}"
        )
