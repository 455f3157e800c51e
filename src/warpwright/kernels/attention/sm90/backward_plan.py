"""Configurations of the Hopper attention backward as data, and what its launches need: no device, no array."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from warpwright.errors import UsageError
from warpwright.kernels.attention.problem import PANEL, Problem, width_of_gradients
from warpwright.kernels.attention.sm90.plan import WARPGROUP

__all__ = [
    "CONFIGS",
    "GREATEST_HEAD",
    "HEAD_DIMS",
    "LONG",
    "ROW",
    "WIDE",
    "BackwardConfig",
    "BackwardPlan",
    "in_order",
    "launches_of",
    "plan",
    "plan_varlen",
]

CONTROL_BYTES = 1024
WIDE = 128  # columns of the widest head whose dK and dV of 64 keys fit into the registers of one warpgroup
ROW = 256  # floats of a row of the sums of dQ, the largest extent of a tensor map's box
HANDOVER = 1.5  # times of a tile from the adds of one CTA to a tile to those of the next, at most
Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class BackwardConfig:
    """One configuration of the kernels of `warpwright.kernels.attention.sm90.backward` or, for head dimensions above
    128, of `warpwright.kernels.attention.sm90.backward_wide`.

    ``tile`` is (queries of a step, keys of a CTA, or of a cluster for wide heads); each 64 keys have a consumer
    warpgroup, or a CTA of the cluster. Q has two stages, dO ``do_stages``, dS two but for wide heads. With ``early`` S
    and dP of the next tile are issued when dQ of this tile has left for the sums; without it at the start of the next
    step, and then dV of half a tile is issued when its half of dS is there, and dK when dQ is there. Wide heads have
    one order. With ``rotated`` the CTAs of a head begin at different queries, so that fewer CTAs add to one address at
    a time. With ``ordered`` they add to an address in the order of their keys, with ``ascending`` queries in the
    reverse order (`sm90.backward_turns`): the gradients have the same bits in every run; wide heads have no such order.
    ``resident`` CTAs run at a time: an H100 or H200 has so many SMs.
    """

    head_dim: int = 128
    tile: tuple[int, int] = (64, 128)
    early: bool = False
    rotated: bool = False
    ordered: bool = False
    ascending: bool = False
    resident: int = 132
    do_stages: int = 2

    @property
    def wide(self) -> bool:
        """Whether the gradients are those of `sm90.backward_wide`."""
        return self.head_dim > WIDE

    @property
    def crowded(self) -> bool:
        """Whether a tile of queries fills registers and shared memory. Then dQ has the registers of dP, dK is issued
        after dQ, without a wait, and no warps convert sums of earlier heads."""
        return not self.wide and self.tile[0] * self.head_dim > 64 * WIDE

    @property
    def cluster(self) -> int:
        """CTAs that share the keys of a tile."""
        return self.tile[1] // 64 if self.wide else 1

    @property
    def threads(self) -> int:
        """Threads of a CTA of `gradients`: two consumer warpgroups, and one that loads and stores."""
        return 3 * WARPGROUP

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that copies, and of a thread of a consumer: dK and dV of 96 columns leave some to the
        copies, whose panels and tiles of 80 queries take more."""
        return (40, 232) if self.head_dim == 96 else (24, 240)

    @property
    def dq_columns(self) -> int:
        """Columns of a consumer's part of dQ: 48 of 96, of which wgmma computes 64; else 64."""
        return self.head_dim // 2 if self.head_dim % PANEL else PANEL

    @property
    def dq_warps(self) -> int:
        """Warps of a consumer that have columns of its part of dQ, 16 each."""
        return self.dq_columns // 16

    @property
    def convert_threads(self) -> int:
        """Threads of a CTA of `convert`: those of a consumer for each part of dQ that it stores at a time."""
        return 32 * self.dq_warps * (self.head_dim // 64 if self.wide else 2)

    @property
    def key_columns(self) -> int:
        """Columns of the tile of K: panels of 64, of which each begins ``dq_columns`` after the one before."""
        return -(-self.head_dim // PANEL) * PANEL

    @property
    def sum_rows(self) -> int:
        """Number of rows of 256 floats in the sums of dQ for one tile of queries."""
        return self.tile[0] * self.head_dim // ROW

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA of `gradients`, bytes, at most: K, V, Q, dO, dS, sums of dQ, and what the
        warps that convert sums have; or P for wide heads."""
        queries, keys = self.tile[0], self.tile[1] // self.cluster
        halves = (
            keys * (self.head_dim + self.key_columns)
            + (2 + self.do_stages) * queries * self.head_dim
            + 2 * queries * keys
        )
        if self.wide:
            return CONTROL_BYTES + 2 * (halves + keys * 128) + 8 * queries * 64 + 16 * queries
        return CONTROL_BYTES + 2 * halves + (4 if self.crowded else 8) * queries * self.head_dim + 16 * queries


CONFIGS = {  # by head dimension and whether there is a right bound
    (64, False): BackwardConfig(64, (128, 128), early=True, rotated=True),
    (64, True): BackwardConfig(64, (128, 128), early=True),
    (96, False): BackwardConfig(96, (80, 128), rotated=True),
    (96, True): BackwardConfig(96, (80, 128)),
    (128, False): BackwardConfig(128, (64, 128), rotated=True),
    (128, True): BackwardConfig(128, (64, 128)),
    (192, False): BackwardConfig(192, (64, 128), rotated=True),
    (192, True): BackwardConfig(192, (64, 128)),
    (256, False): BackwardConfig(256, (64, 128), rotated=True, do_stages=1),
    (256, True): BackwardConfig(256, (64, 128), do_stages=1),
}
LONG = {  # by whether there is a right bound: fewer reads of shared memory for a product, for the power limit decides
    False: BackwardConfig(128, (80, 128), rotated=True),
    True: BackwardConfig(128, (80, 128)),
}
LONG_QUERIES = {False: 8192, True: 16384}  # from which `LONG` is faster, of 4096, 8192 and 16384 measured
HEAD_DIMS = (64, 96, 128, 192, 256)
GREATEST_HEAD = HEAD_DIMS[-1]


class TileConfig(Protocol):
    """What the launches need of a configuration, which may be that of another architecture."""

    @property
    def tile(self) -> tuple[int, int]: ...
    @property
    def sum_rows(self) -> int: ...


C = TypeVar("C", bound=TileConfig)


@dataclass(frozen=True, slots=True)
class BackwardPlan(Generic[C]):
    """Three launches in ``grids``: `prepare`, `gradients`, `convert`, those of `sm90.backward` or `sm100.backward`.
    ``scalars`` are by the names of their parameters; a
    string names an array.

    Maps are those of arrays (batch, heads, rows, head_dim) of any strides with dense rows. The launches share float32
    arrays, ``scratch``: the ``sums`` of dQ, in the order of fragments; and of (batch · heads, padded queries) the
    ``shifts`` that are added to scaled scores in base 2, and the ``means``, the mean gradient of each query's weights.
    ``progress`` are the counters of `sm90.backward_dq.Progress`.
    """

    config: C
    bounds: tuple[bool, bool]
    scratch: dict[str, tuple[int, int]]
    grids: tuple[Dim3, Dim3, Dim3]
    scalars: dict[str, int | float | str]


def plan(
    problem: Problem, *, config: BackwardConfig | None = None, modified: bool = False
) -> BackwardPlan[BackwardConfig]:
    """Returns the launches for ``problem``, by ``config`` or else by the fastest one, of those that have registers for
    functions of the user if ``modified``."""
    found = launches_of(problem, config or (_choose(problem) if modified else _fastest(problem)))
    return with_sums(found, problem.batch * problem.kv_heads, problem)


def in_order(problem: Problem) -> BackwardConfig:
    """Returns the fastest ordered configuration. Raises UsageError for a head dimension above 128.

    With a right bound each block of keys begins at a later tile of queries than the one before, and no CTA waits at its
    start if queries ascend; without one, heads take turns so that few wait (`turning_heads`).
    """
    if problem.head_dim > WIDE:
        raise UsageError(
            f"attention: given deterministic=True and head dimension {problem.head_dim}, whose kernel sums the "
            f"gradient by q in any order; expected deterministic=False, or a head dimension of at most {WIDE}"
        )
    return replace(_fastest(problem), rotated=False, ordered=True, ascending=problem.right is not None)


def launches_of(problem: Problem, config: C) -> BackwardPlan[C]:
    """Returns the launches for ``problem`` by ``config``."""
    queries, keys = config.tile
    tiles, all_heads = -(-problem.q_len // queries), problem.batch * problem.heads
    stats, by_query = (all_heads, tiles * queries), (tiles, problem.heads, problem.batch)
    return BackwardPlan(
        config=config,
        bounds=(problem.left is not None, problem.right is not None),
        scratch={"sums": (all_heads * tiles * config.sum_rows, ROW), "shifts": stats, "means": stats},
        grids=(by_query, (-(-problem.kv_len // keys), problem.kv_heads, problem.batch), by_query),
        scalars={
            "q_len": problem.q_len,
            "kv_len": problem.kv_len,
            "begin": problem.offset - (problem.left or 0),
            "end": problem.offset + (problem.right or 0) + 1,
            "group": problem.group,
            "tiles": tiles,
            "scale": problem.factor,
        },
    )


def with_sums(found: BackwardPlan[BackwardConfig], heads: int, problem: Problem) -> BackwardPlan[BackwardConfig]:
    """Returns the launches with sums of dQ of ``heads`` heads of K: those of wide heads are all converted at the end,
    because the CTAs have no shared memory to convert them."""
    if not found.config.wide:
        return convert_ahead(found, heads, problem)
    tiles = found.grids[0][0]
    scratch = found.scratch | {"sums": (heads * problem.group * tiles * found.config.sum_rows, ROW)}
    scalars = found.scalars | {"first": 0, "slots": heads, "kv_heads": problem.kv_heads}
    by_query, (blocks, kv_heads, batch), _ = found.grids
    by_key = blocks * found.config.cluster, kv_heads, batch
    return replace(found, scratch=scratch, grids=(by_query, by_key, (tiles, problem.group, heads)), scalars=scalars)


def convert_ahead(found: BackwardPlan[BackwardConfig], heads: int, problem: Problem) -> BackwardPlan[BackwardConfig]:
    """Returns the launches with sums of ``slots`` of ``heads`` heads of K at a time.

    CTAs convert the sums of the head ``lag`` before their own, whose CTAs have all ended on an H200 when they begin: so
    many CTAs after 1.1 times those that are resident, 1.5 times with a bound, with which CTAs of a head take different
    times. After 0.75 times as many more the conversion has ended too. Heads that take turns (`turning_heads`) begin and
    end together. CTAs of a crowded configuration convert none.
    """
    tiles, blocks, resident = found.grids[0][0], found.grids[1][0], found.config.resident
    width = min(turning_heads(found, problem), heads)
    late = 1.1 if problem.left is None and problem.right is None else 1.5
    lag, more = (width * (math.ceil(x * resident / (width * blocks)) + (width > 1)) for x in (late, 0.75))
    lag = heads if found.config.crowded else min(lag, heads)
    slots = min(lag + more, heads)
    sum_heads, counters = slots * problem.group, 2 + blocks if found.config.ordered else 2
    scratch = found.scratch | {"sums": (sum_heads * tiles * found.config.sum_rows, ROW), "progress": (heads, counters)}
    scalars = found.scalars | {"sum_heads": sum_heads, "counters": counters * heads, "blocks": blocks, "lag": lag}
    scalars |= {
        "sums_at": "sums",
        "items": problem.group * tiles,
        "slots": slots,
        "first": heads - lag,
        "kv_heads": problem.kv_heads,
        "width": width,
    }
    return replace(found, scratch=scratch, grids=(*found.grids[:2], (tiles, problem.group, lag)), scalars=scalars)


def turning_heads(found: BackwardPlan[BackwardConfig], problem: Problem) -> int:
    """Returns how many heads of K take turns, block by block, in the numbers of CTAs of an ordered configuration whose
    queries do not ascend.

    A CTA adds to a tile a handover after the CTA of the block before. The CTAs of a head begin a handover apart if so
    many CTAs of other heads begin between them as end in that time: in the time of a tile, as many as are resident over
    the tiles of a CTA.
    """
    if not found.config.ordered or found.config.ascending:
        return 1
    queries, keys = found.config.tile
    steps = problem.group * problem.pairs / (queries * keys * -(-problem.kv_len // keys))
    return math.ceil(HANDOVER * found.config.resident / max(steps, 1))


def plan_varlen(
    problem: Problem, total_q: int, total_k: int, *, config: BackwardConfig | None = None
) -> BackwardPlan[BackwardConfig]:
    """Returns the launches for ``problem.batch`` packed sequences of ``total_q`` queries and ``total_k`` keys in all.

    Maps are ragged, of arrays (heads, rows, head_dim). There are more tiles and blocks than the sequences have; each of
    the former has its part of the ``scratch`` arrays.
    """
    found = config or _choose(problem)
    queries, keys = found.tile
    tiles, blocks = total_q // queries + problem.batch, total_k // keys + problem.batch
    stats, by_query, anywhere = (problem.heads, tiles * queries), (tiles, problem.heads, 1), total_q + total_k
    launches = BackwardPlan(
        config=found,
        bounds=(problem.left is not None, problem.right is not None),
        scratch={"shifts": stats, "means": stats},
        grids=(by_query, (blocks, problem.kv_heads, 1), by_query),
        scalars={
            "q_len": total_q,
            "kv_len": total_k,
            "begin": -min(problem.left or 0, anywhere),
            "end": min(problem.right or 0, anywhere) + 1,
            "group": problem.group,
            "tiles": tiles,
            "scale": problem.factor,
            "sequences": problem.batch,
        },
    )
    return with_sums(launches, problem.kv_heads, problem)


def _fastest(problem: Problem) -> BackwardConfig:
    """Returns the fastest configuration for sequences of one length."""
    bounded, found = problem.right is not None, _choose(problem)
    long = problem.left is None and problem.q_len >= LONG_QUERIES[bounded]
    return LONG[bounded] if long and found.head_dim == LONG[bounded].head_dim else found


def _choose(problem: Problem) -> BackwardConfig:
    """Returns the fastest configuration for sequences of any lengths, and for functions of the user."""
    return CONFIGS[width_of_gradients(problem, HEAD_DIMS), problem.right is not None]
