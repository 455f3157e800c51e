"""Configurations of the Blackwell attention forward as data, and what a launch of one needs: no device, no array."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from warpwright.kernels.attention.problem import Problem
from warpwright.kernels.attention.sm90.plan import WARPGROUP, launch_of_packed

__all__ = ["CONFIGS", "KEYS", "ROWS", "Config", "Plan", "choose", "plan", "plan_varlen"]

ROWS, KEYS = 128, 128  # of a tile of queries (the lanes of tensor memory), and of a key block (N of one MMA)
CONTROL_BYTES = 1024
WARP_ROWS = 32
PANEL_BYTES = 2 * ROWS * 128  # the two panels through which O leaves


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of `warpwright.kernels.attention.sm100.kernel.attention`.

    ``head_dim`` is that of the tiles, a multiple of 32; arrays may have fewer columns. A CTA has ``tiles`` tiles of 128
    queries in flight, each with a softmax warpgroup: during the softmax of one tile the tensor cores work for the
    other. ``stages`` are blocks of 128 keys or values in shared memory. A row max is updated only when it grows by more
    than ``lazy`` powers of two. Of 16 neighbouring pairs of weights in a row, ``polynomials`` are computed by
    FMAs, the others by the special-function unit.
    """

    head_dim: int = 128
    tiles: int = 2
    stages: int = 4
    lazy: float = 8.0
    polynomials: int = 3

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
        blocks = 2 * self.head_dim * (self.tiles * ROWS + self.stages * KEYS)
        return CONTROL_BYTES * (1 + self.tiles) + blocks + PANEL_BYTES

    @property
    def keywords(self) -> dict[str, Any]:
        """Every option and the number of threads by name, for reports."""
        return {**asdict(self), "threads": self.threads}


# O of 192 or 256 columns leaves room for one tile in the 512 columns of tensor memory.
CONFIGS = {
    64: Config(64, stages=8),
    96: Config(96, stages=6),
    128: Config(128),
    192: Config(192, tiles=1, stages=3),
    256: Config(256, tiles=1, stages=2),
}


def choose(problem: Problem) -> Config:
    """Returns the configuration for the head dimension of ``problem``."""
    return next(config for width, config in CONFIGS.items() if width >= problem.head_dim)


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of ``kernel_of(config)`` configured with ``bounds`` and ``dtype``.

    Arguments in order: maps of q, k, v and o, each of an array (batch, heads, rows, head_dim) of any strides with dense
    rows, in the boxes that the traced kernel names; the address of the log-sum-exp (batch, heads, q_len) of float32, or
    0; then ``scalars``.
    """

    config: Config
    bounds: tuple[bool, bool]
    grid: tuple[int, int, int]
    scalars: tuple[int | float, ...]


def plan(problem: Problem, *, sms: int, config: Config | None = None) -> Plan:
    """Returns the launch for ``problem`` on a device of ``sms`` SMs, by ``config`` or that of its head dimension."""
    found = config or choose(problem)
    parts, anywhere = -(-problem.q_len // (found.tiles * ROWS)), problem.q_len + problem.kv_len
    total = parts * problem.heads * problem.batch
    return Plan(
        config=found,
        bounds=(problem.left is not None, problem.right is not None),
        grid=(min(sms, total), 1, 1),
        scalars=(
            problem.q_len,
            problem.kv_len,
            problem.offset - min(problem.left or 0, anywhere),
            problem.offset + min(problem.right or 0, anywhere) + 1,
            problem.heads,
            problem.group,
            parts,
            total,
            problem.factor * math.log2(math.e),
        ),
    )


def plan_varlen(problem: Problem, total_q: int, total_k: int, *, sms: int, config: Config | None = None) -> Plan:
    """Returns the launch of `sm100.varlen.attention_varlen` for packed sequences, see `sm90.plan.plan_varlen`."""
    found = config or choose(problem)
    return Plan(found, *launch_of_packed(problem, total_q, total_k, sms, found.tile[0]))
