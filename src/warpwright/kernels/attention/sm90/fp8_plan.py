"""Configurations of FP8 attention on Hopper as data, and what its two launches need: no device, no array."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.kernels.attention.problem import Problem
from warpwright.kernels.attention.sm90.plan import CONTROL_BYTES, Config, Plan
from warpwright.kernels.attention.sm90.plan import plan as plan_16_bit

__all__ = ["CONFIGS", "HEAD_DIMS", "SLAB", "VALUE_KEYS", "Fp8Config", "Fp8Plan", "choose", "plan"]

HEAD_DIMS = (64, 128)
SLAB = 32  # keys of V that one wgmma multiplies
ONES = 8  # columns of ones after those of V, the least N of a wgmma
SUM_BYTES = 4  # of a float32 sum
SUMS_ALIGN = 1024
VALUE_KEYS = 128  # of V that a CTA of the first launch transposes


@dataclass(frozen=True, slots=True)
class Fp8Config(Config):
    """One configuration of `warpwright.kernels.attention.sm90.fp8.attention_fp8`, as `Config`.

    The keys of a tile are a multiple of 32. The tensor core accumulates ``run`` blocks, a power of two; then the sums
    are added in float32 to those in shared memory. O is rescaled when a score exceeds the row max by more
    than ``room`` powers of 2.
    """

    run: int = 4
    room: int = 2

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes."""
        (queries, keys), width = self.tile, self.head_dim
        slots = width * (self.q_stages * queries + self.stages * keys) + (width + ONES) * self.stages * keys
        sums = SUM_BYTES * queries * (width + ONES)
        return CONTROL_BYTES + -(-slots // SUMS_ALIGN) * SUMS_ALIGN + sums


CONFIGS = {
    "64: 192x128": Fp8Config(64, (192, 128), in_turn=True),
    "128: 128x224": Fp8Config(128, (128, 224), in_turn=True),
}


def choose(problem: Problem) -> str:
    """Returns the name of the fastest configuration on an H200."""
    return "64: 192x128" if problem.head_dim <= 64 else "128: 128x224"


@dataclass(frozen=True, slots=True)
class Fp8Plan:
    """Two launches: `sm90.fp8_values.transpose_values`, then ``kernel_of(config)`` configured with ``bounds``, its
    programmatic dependent launch.

    The first one writes V of each head to ``values_shape`` (batch · kv_heads, slabs of keys, head_dim, 32) of e4m3.
    ``main.scalars`` are those of `sm90.plan.Plan`.
    """

    config: Fp8Config
    main: Plan
    values_shape: tuple[int, int, int, int]
    values_grid: tuple[int, int, int]


def plan(problem: Problem, *, sms: int, config: Fp8Config | None = None) -> Fp8Plan:
    """Returns the launches for ``problem`` on a device of ``sms`` SMs, by ``config`` or else the fastest one."""
    found = config or CONFIGS[choose(problem)]
    keys = found.tile[1]
    slabs = -(-problem.kv_len // keys) * keys // SLAB
    shape = problem.batch * problem.kv_heads, slabs, found.head_dim, SLAB
    grid = -(-slabs * SLAB // VALUE_KEYS), problem.kv_heads, problem.batch
    return Fp8Plan(found, plan_16_bit(problem, sms=sms, config=found), shape, grid)
