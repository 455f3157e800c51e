"""Configurations of the Hopper attention forward as data, and what a launch of one needs: no device, no array."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from warpwright.kernels.attention.problem import Problem

__all__ = ["CONFIGS", "HopperConfig", "HopperPlan", "plan"]

WARPGROUP = 128
STRIP = 64
PANEL = 64  # columns of a tensor map's box: 128 bytes
CONTROL_BYTES = 1024
L2_BYTES = 32 * 2**20  # of keys and values that tiles under way should share, of the H200's 50 MB


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """One way to run `warpwright.kernels.attention.sm90.attention`.

    ``tile`` is (queries of a CTA, keys of a block); each 64 queries have a warpgroup. ``stages`` are those of the rings
    of K and of V, ``q_stages`` those of Q. With ``in_turn`` the warpgroups issue their products in turn, so that one
    computes its softmax while the other multiplies; ``dynamic`` tiles are handed out by a counter.
    """

    head_dim: int = 128
    tile: tuple[int, int] = (128, 128)
    stages: int = 2
    q_stages: int = 2
    in_turn: bool = True
    dynamic: bool = False
    lazy: bool = True
    chained: bool = True

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.tile[0] // STRIP

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers and a warpgroup that loads."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes, at most."""
        queries, keys = self.tile
        return CONTROL_BYTES + 2 * self.head_dim * (self.q_stages * queries + 2 * self.stages * keys)

    @property
    def keywords(self) -> dict[str, Any]:
        """What ``attention.configure`` takes."""
        names = "head_dim tile stages q_stages in_turn dynamic lazy chained threads"
        return {name: getattr(self, name) for name in names.split()}


CONFIGS = {
    (64, False): HopperConfig(64, (192, 128), stages=2),
    (64, True): HopperConfig(64, (192, 128), stages=2, dynamic=True),
    (128, False): HopperConfig(128, (128, 160)),
    (128, True): HopperConfig(128, (128, 128), dynamic=True),
    (256, False): HopperConfig(256, (128, 80), q_stages=1, chained=False),
    (256, True): HopperConfig(256, (128, 80), q_stages=1, chained=False, dynamic=True),
}


@dataclass(frozen=True, slots=True)
class HopperPlan:
    """One launch of ``kernel_of(config)`` configured with ``bounds`` and ``dtype``.

    Arguments in order: maps of q, k, v and o, each of an array (batch, heads, rows, head_dim) of any strides with dense
    rows, in boxes ``q_box``, ``kv_box``, ``kv_box`` and ``o_box`` with a swizzle of 128 bytes; the address of the
    log-sum-exp (batch, heads, q_len) of float32, or 0; the address of a counter, a u32 that is 0 before the launch and
    after it (``dynamic``), or 0; then ``scalars``.
    """

    config: HopperConfig
    bounds: tuple[bool, bool]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int
    q_box: tuple[int, int, int, int]
    kv_box: tuple[int, int, int, int]
    o_box: tuple[int, int, int, int]
    scalars: tuple[int | float, ...]


def plan(problem: Problem, *, sms: int, config: HopperConfig | None = None) -> HopperPlan:
    """The launch for ``problem`` on a device of ``sms`` SMs, by ``config`` or the one that suits it best."""
    found = config or CONFIGS[problem.padded_dim, problem.right is not None]
    queries, keys = found.tile
    tiles = -(-problem.q_len // queries)
    total = tiles * problem.heads * problem.batch
    section = _section(problem) if problem.right is not None else 1
    scalars = (
        problem.q_len,
        problem.kv_len,
        problem.offset - (problem.left or 0),
        problem.offset + (problem.right or 0) + 1,
        problem.heads,
        problem.group,
        tiles,
        total,
        section,
        problem.factor * math.log2(math.e),
    )
    return HopperPlan(
        config=found,
        bounds=(problem.left is not None, problem.right is not None),
        grid=(min(sms, total), 1, 1),
        block=(found.threads, 1, 1),
        smem=found.smem_bytes,
        q_box=(1, 1, queries, PANEL),
        kv_box=(1, 1, keys, PANEL),
        o_box=(1, 1, queries, PANEL),
        scalars=scalars,
    )


def _section(problem: Problem) -> int:
    """Heads whose tiles are done side by side, longest first: as many as keep their keys and values in L2."""
    nbytes = 2 * problem.kv_len * problem.padded_dim * problem.dtype.itemsize
    fit = max(1, L2_BYTES // nbytes) * problem.group
    heads = problem.batch * problem.heads
    return next(count for count in range(min(fit, heads), 0, -1) if heads % count == 0)
