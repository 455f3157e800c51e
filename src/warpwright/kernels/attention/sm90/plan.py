"""Configurations of the Hopper attention forward as data, and what a launch of one needs: no device, no array."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from warpwright.kernels.attention.problem import Problem

__all__ = [
    "CONFIGS",
    "NARROW_VALUES",
    "SLIDING",
    "STRIP",
    "WARPGROUP",
    "Config",
    "Plan",
    "choose",
    "launch_of_packed",
    "plan",
    "plan_varlen",
    "slides",
]

WARPGROUP = 128
STRIP = 64
CONTROL_BYTES = 1024
TOGETHER = 1024  # queries of a head that concurrent tiles have
L2_BYTES = 32 * 2**20  # of keys and values that concurrent tiles should share, of the H200's 50 MB


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of `warpwright.kernels.attention.sm90.forward.attention`.

    ``head_dim`` is that of the tiles, a multiple of 32, and ``value_dim`` that of tiles of V and O if these are
    narrower; arrays may have fewer columns. ``tile`` is (queries of a CTA,
    keys of a block); each 64 queries have a consumer warpgroup. ``stages`` are those of the rings of K and of V,
    ``q_stages`` those of Q. With ``in_turn`` the consumers issue their wgmmas in turn, so that one computes its softmax
    while another multiplies. With ``branches`` the softmax is `BranchingSoftmax`, else `OnlineSoftmax`. With ``splits``
    PV is issued in two parts, the second after the maxima of the scores, and the softmax is `IntegerSoftmax`. With
    ``direct`` the kernel is `sm90.direct.attention_direct`, whose O leaves from registers. With ``sliding`` it is
    `sm90.sliding.attention_sliding`, which has one ring of ``stages`` for K and V.
    """

    head_dim: int = 128
    tile: tuple[int, int] = (128, 128)
    stages: int = 2
    q_stages: int = 2
    in_turn: bool = False
    branches: bool = True
    splits: bool = False
    value_dim: int | None = None
    direct: bool = False
    sliding: bool = False

    @property
    def columns(self) -> int:
        """The columns of a tile of V and of O."""
        return self.value_dim or self.head_dim

    @property
    def consumers(self) -> int:
        """Consumer warpgroups of a CTA."""
        return self.tile[0] // STRIP

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers, and a warpgroup that loads and stores."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes."""
        queries, keys = self.tile
        of_q, columns = self.q_stages * queries * self.head_dim, self.head_dim + self.columns * (not self.sliding)
        return CONTROL_BYTES + 2 * (of_q + self.stages * keys * columns)

    @property
    def keywords(self) -> dict[str, Any]:
        """Every option and the number of threads by name, for reports."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {**given, "threads": self.threads}


CONFIGS = {
    "64: 192x128": Config(64, (192, 128), stages=3, in_turn=True, splits=True),
    "64: 128x128": Config(64, (128, 128), stages=3),
    "96: 128x128": Config(96, (128, 128)),
    "128: 192x80": Config(128, (192, 80), stages=3),
    "128: 128x128": Config(128, (128, 128)),
    "192: 128x80": Config(192, (128, 80), branches=False),
    "256: 128x64": Config(256, (128, 64), q_stages=1, branches=False, direct=True),
    "256: 128x80": Config(256, (128, 80), q_stages=1, branches=False, direct=True),
}
SLIDING = Config(128, (128, 128), stages=5, in_turn=True, sliding=True)  # where `slides`
NARROW_VALUES = Config(192, (128, 96), branches=False, value_dim=128)  # where V and O have other columns than Q and K
# Keys; between the measured 512 and 1024, 1024 and 2048, 4096 and 8192, 8192 and 16384.
SHORT, MEDIUM, MANY, LONG = 512, 1536, 6144, 12288


def choose(problem: Problem) -> str:
    """Returns the name of the fastest configuration on an H200; docs/performance.md has the measurements."""
    width = next(size for size in (64, 96, 128, 192, 256) if size >= problem.head_dim)
    keys, bounded, seen = problem.kv_len, problem.right is not None, seen_keys(problem, 2 * STRIP)
    wide = problem.q_len > 2 * STRIP and (seen > LONG if width == 128 and bounded else keys > MEDIUM)
    if width == 64 and problem.q_len > 2 * STRIP:
        wide = not bounded or keys > MEDIUM
    names = {
        64: "64: 192x128" if wide else "64: 128x128",
        96: "96: 128x128",
        128: "128: 192x80" if wide else "128: 128x128",
        192: "192: 128x80",
        256: "256: 128x64" if seen <= (MANY if bounded else SHORT) else "256: 128x80",
    }
    return names[width]


def slides(problem: Problem) -> bool:
    """Returns whether the kernel of `SLIDING` suits a problem and is faster: causal, in a window of whole key blocks,
    two at least and a quarter of the keys at most, where the first query stands at the begin of a key block."""
    if problem.left is None or problem.right != 0:
        return False
    window, keys = problem.left + 1, SLIDING.tile[1]
    whole = window % keys == 0 and problem.offset % keys == 0 and problem.offset >= 0
    fits = 96 < problem.head_dim <= SLIDING.head_dim and problem.columns == problem.head_dim
    return whole and fits and 2 * keys <= window <= problem.kv_len // 4


def seen_keys(problem: Problem, queries: int) -> int:
    """Returns how many keys a number of neighbouring queries see at most."""
    near = problem.kv_len if problem.left is None else problem.left + (problem.right or 0) + queries
    return min(problem.kv_len, near)


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of ``kernel_of(config)`` configured with ``bounds`` and ``dtype``.

    Arguments in order: maps of q, k, v and o, each of an array (batch, heads, rows, head_dim) of any strides with dense
    rows, in the boxes that the traced kernel names; the address of the log-sum-exp (batch, heads, q_len) of float32, or
    0; the address of the tile counter, a u32 that is 0 before the launch and after it, or 0; then ``scalars``. A launch
    of ``uneven`` tiles, which do not all see as many keys, is faster with a counter.
    """

    config: Config
    bounds: tuple[bool, bool]
    uneven: bool
    grid: tuple[int, int, int]
    scalars: tuple[int | float, ...]


def plan(problem: Problem, *, sms: int, config: Config | None = None) -> Plan:
    """Returns the launch for ``problem`` on a device of ``sms`` SMs, by ``config`` or else the fastest one."""
    bounds = problem.left is not None, problem.right is not None
    same = problem.columns == problem.head_dim
    fastest = CONFIGS[choose(problem)] if same else NARROW_VALUES
    found = config or (SLIDING if slides(problem) else fastest)
    tiles, anywhere = -(-problem.q_len // found.tile[0]), problem.q_len + problem.kv_len
    total = tiles * problem.heads * problem.batch
    scalars = (
        problem.q_len,
        problem.kv_len,
        problem.offset - min(problem.left or 0, anywhere),
        problem.offset + min(problem.right or 0, anywhere) + 1,
        problem.heads,
        problem.group,
        tiles,
        total,
        _pair(problem) if found.sliding else _section(problem) if bounds[1] else 1,
        problem.factor * math.log2(math.e),
    )
    return Plan(found, bounds, bounds[1], (min(sms, total), 1, 1), scalars)


def plan_varlen(problem: Problem, total_q: int, total_k: int, *, sms: int, config: Config | None = None) -> Plan:
    """Returns the launch of `sm90.varlen.attention_varlen` for ``problem.batch`` sequences of ``total_q`` queries and
    ``total_k`` keys in all, by ``config`` or else the fastest one for ``problem``, whose lengths are the mean lengths.

    Arguments in order: ragged maps of q, k, v and o, each of an array (heads, rows, head_dim); the addresses of the
    log-sum-exp (heads, total_q) and of a tile counter, as for `plan`; the addresses of ``cu_q`` and ``cu_k``, u32 of
    batch + 1 elements; then ``scalars``.
    """
    found = config or replace(CONFIGS[choose(problem)], direct=False)
    bounds, grid, scalars = launch_of_packed(problem, total_q, total_k, sms, found.tile[0])
    return Plan(found, bounds, True, grid, scalars)


def launch_of_packed(
    problem: Problem, total_q: int, total_k: int, sms: int, rows: int
) -> tuple[tuple[bool, bool], tuple[int, int, int], tuple[int | float, ...]]:
    """Returns bounds, grid and scalars of a kernel for packed sequences whose CTAs take ``rows`` queries at a time."""
    bounds = problem.left is not None, problem.right is not None
    most, anywhere = (total_q // rows + problem.batch) * problem.heads, total_q + total_k
    scalars = (
        problem.batch,
        total_q,
        total_k,
        min(problem.left or 0, anywhere),
        min(problem.right or 0, anywhere),
        problem.heads,
        problem.group,
        _section(replace(problem, batch=1)) if bounds[1] else 1,
        problem.factor * math.log2(math.e),
    )
    return bounds, (min(sms, most), 1, 1), scalars


def _pair(problem: Problem) -> int:
    """Returns how many heads the CTAs of `SLIDING` work on at the same time: those that share two heads of K and V, so
    that CTAs that start together read few different blocks."""
    both = 2 * problem.group
    return both if problem.batch * problem.heads % both == 0 else problem.group


def _section(problem: Problem) -> int:
    """Returns how many heads the CTAs work on at the same time, the longest tiles first: as many heads as have the keys
    and values that concurrent tiles see in `L2_BYTES`."""
    nbytes = seen_keys(problem, TOGETHER) * (problem.head_dim + problem.columns) * problem.dtype.itemsize
    fit = max(1, L2_BYTES // nbytes) * problem.group
    heads = problem.batch * problem.heads
    return next(count for count in range(min(fit, heads), 0, -1) if heads % count == 0)
