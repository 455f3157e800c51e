"""Configurations of the Blackwell attention forward as data, and what a launch of one needs: no device, no array."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from warpwright.kernels.attention.problem import PANEL, Problem
from warpwright.kernels.attention.sm90.plan import WARPGROUP

__all__ = ["CONFIGS", "KEYS", "ROWS", "Config", "Plan", "plan"]

ROWS, KEYS = 128, 128  # of a tile of queries (the lanes of tensor memory), and of a key block (N of one MMA)
CONTROL_BYTES = 1024
WARP_ROWS = 32


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of `warpwright.kernels.attention.sm100.kernel.attention`.

    A CTA has ``tiles`` tiles of 128 queries in flight, each with a softmax warpgroup: during the softmax of one tile
    the tensor cores work for the other. ``stages`` are blocks of 128 keys or values in shared memory. A row max is
    updated only when it grows by more than ``lazy`` powers of two.
    """

    head_dim: int = 128
    tiles: int = 2
    stages: int = 4
    lazy: float = 8.0

    @property
    def tile(self) -> tuple[int, int]:
        """Rows of queries in flight, and keys of a block."""
        return ROWS * self.tiles, KEYS

    @property
    def threads(self) -> int:
        """Threads of a CTA: a softmax warpgroup a tile, the correction warpgroup, one that loads and multiplies."""
        return WARPGROUP * (self.tiles + 2)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes, at most."""
        return CONTROL_BYTES * (1 + self.tiles) + 2 * self.head_dim * (self.tiles * ROWS + self.stages * KEYS)

    @property
    def keywords(self) -> dict[str, Any]:
        """Every option and the number of threads by name, for reports."""
        return {**asdict(self), "threads": self.threads}


# O of 256 columns leaves room for one tile in the 512 columns of tensor memory.
CONFIGS = {
    64: Config(64, stages=8),
    128: Config(128),
    256: Config(256, tiles=1, stages=2),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of ``kernel_of(config)`` configured with ``bounds`` and ``dtype``.

    Arguments in order: maps of q, k, v and o, each of an array (batch, heads, rows, head_dim) of any strides with dense
    rows, in boxes ``q_box``, ``kv_box``, ``kv_box`` and ``o_box`` with a swizzle of 128 bytes; the address of the
    log-sum-exp (batch, heads, q_len) of float32, or 0; then ``scalars``.
    """

    config: Config
    bounds: tuple[bool, bool]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int
    q_box: tuple[int, int, int, int]
    kv_box: tuple[int, int, int, int]
    o_box: tuple[int, int, int, int]
    scalars: tuple[int | float, ...]


def plan(problem: Problem, *, sms: int, config: Config | None = None) -> Plan:
    """Returns the launch for ``problem`` on a device of ``sms`` SMs, by ``config`` or that of its head dimension."""
    found = config or CONFIGS[problem.padded_dim]
    parts = -(-problem.q_len // (found.tiles * ROWS))
    total = parts * problem.heads * problem.batch
    return Plan(
        config=found,
        bounds=(problem.left is not None, problem.right is not None),
        grid=(min(sms, total), 1, 1),
        block=(found.threads, 1, 1),
        smem=found.smem_bytes,
        q_box=(1, 1, ROWS, PANEL),
        kv_box=(1, 1, KEYS, PANEL),
        o_box=(1, 1, WARP_ROWS, PANEL),
        scalars=(
            problem.q_len,
            problem.kv_len,
            problem.offset - (problem.left or 0),
            problem.offset + (problem.right or 0) + 1,
            problem.heads,
            problem.group,
            parts,
            total,
            problem.factor * math.log2(math.e),
        ),
    )
