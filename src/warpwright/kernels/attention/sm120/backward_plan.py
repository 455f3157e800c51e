"""Configurations of the mma.sync attention backward as data, and what its launches need: no device, no array."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.kernels.attention.problem import Problem, width_of_gradients
from warpwright.kernels.attention.sm120.plan import LANES, bounds_of, check_grid

__all__ = ["CONFIGS", "GREATEST_HEAD", "BackwardConfig", "BackwardPlan", "plan"]

STRIP = 16  # rows of a warp
CONTROL_BYTES = 1024
Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class BackwardConfig:
    """One configuration of the kernels of `warpwright.kernels.attention.sm120.backward`.

    ``by_query`` is (queries of a CTA, keys of a step) of `query_gradients`, ``by_key`` (keys of a CTA, queries of a
    step) of `key_gradients`; each 16 rows of a CTA have a warp. The rings have ``stages``.
    """

    head_dim: int = 128
    by_query: tuple[int, int] = (128, 32)
    by_key: tuple[int, int] = (128, 32)
    stages: int = 2

    def threads(self, tile: tuple[int, int]) -> int:
        """Threads of a CTA with ``tile``: a warp for each 16 rows, and one that loads."""
        return LANES * (1 + tile[0] // STRIP)

    def smem_bytes(self, tile: tuple[int, int]) -> int:
        """Dynamic shared memory of a CTA with ``tile``, bytes, at most: two tiles of its rows, and two rings."""
        rows, step = tile
        return CONTROL_BYTES + 4 * self.head_dim * (rows + self.stages * step)


# By key, head dimension 128: with the warp that loads, seven warps leave 255 registers to a thread, nine only 168.
CONFIGS = {64: BackwardConfig(64), 128: BackwardConfig(128, by_key=(112, 32))}
GREATEST_HEAD = max(CONFIGS)


@dataclass(frozen=True, slots=True)
class BackwardPlan:
    """Two launches of `sm120.backward` in ``grids``: `query_gradients`, `key_gradients`. ``scalars`` are by the names
    of their parameters.

    Maps are those of arrays (batch, heads, rows, head_dim) of any strides with dense rows. The launches share float32
    arrays, ``scratch``, of (batch · heads, padded queries): the ``shifts`` that are added to scaled scores in base 2,
    and the ``means``, the mean gradient of each query's weights.
    """

    config: BackwardConfig
    bounds: tuple[bool, bool]
    scratch: dict[str, tuple[int, int]]
    grids: tuple[Dim3, Dim3]
    scalars: dict[str, int | float]


def plan(problem: Problem, *, config: BackwardConfig | None = None) -> BackwardPlan:
    """Returns the launches for ``problem``, by ``config`` or else by the fastest one.

    Raises UsageError for a head dimension above 128, and for more heads or batches than a grid holds.
    """
    check_grid(problem)
    found = config or CONFIGS[width_of_gradients(problem, CONFIGS)]
    queries, keys = found.by_query[0], found.by_key[0]
    tiles = -(-problem.q_len // queries)
    stats, (left, right) = (problem.batch * problem.heads, tiles * queries), bounds_of(problem)
    return BackwardPlan(
        config=found,
        bounds=(problem.left is not None, problem.right is not None),
        scratch={"shifts": stats, "means": stats},
        grids=(
            (tiles, problem.heads, problem.batch),
            (-(-problem.kv_len // keys), problem.kv_heads, problem.batch),
        ),
        scalars={
            "q_len": problem.q_len,
            "kv_len": problem.kv_len,
            "left": left,
            "right": right,
            "group": problem.group,
            "padded": tiles * queries,
            "scale": problem.factor,
        },
    )
