"""Configurations of the Blackwell attention backward as data, and what its launches need: no device, no array."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpwright.kernels.attention.problem import Problem, width_of_gradients
from warpwright.kernels.attention.sm90 import backward_plan as sm90
from warpwright.kernels.attention.sm90.backward_plan import ROW, BackwardPlan
from warpwright.kernels.attention.sm90.plan import WARPGROUP
from warpwright.kernels.attention.sm100.plan import KEYS, ROWS

__all__ = ["CONFIGS", "GREATEST_HEAD", "BackwardConfig", "plan"]

CONTROL_BYTES = 3072  # barriers and row statistics
STAGES = 2  # of Q and dO


@dataclass(frozen=True, slots=True)
class BackwardConfig:
    """One configuration of the kernels of `warpwright.kernels.attention.sm100.backward`.

    A CTA has 128 keys and takes 128 queries a step. With ``rotated`` the CTAs of a head begin at different queries, so
    that fewer CTAs add to one address at a time. CTAs take the heads one after the other, but of the last ``together``
    heads their first key blocks, then the next ones, and so on: with a causal mask most queries see the first keys, and
    the launch should end with short CTAs.
    """

    head_dim: int = 128
    rotated: bool = False
    together: int = 1

    @property
    def tile(self) -> tuple[int, int]:
        """Queries of a step, and keys of a CTA."""
        return ROWS, KEYS

    @property
    def threads(self) -> int:
        """Threads of a CTA: two warpgroups compute, one adds dQ to its sums, one loads and multiplies."""
        return 4 * WARPGROUP

    @property
    def sum_rows(self) -> int:
        """Number of rows of 256 floats in the sums of dQ for one tile of queries."""
        return ROWS * self.head_dim // ROW

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA of `gradients`, bytes, at most: K, V, Q, dO and dS."""
        return CONTROL_BYTES + 2 * self.head_dim * (2 * KEYS + 2 * STAGES * ROWS) + 2 * KEYS * ROWS


HEAD_DIMS = (64, 128)
GREATEST_HEAD = HEAD_DIMS[-1]
CONFIGS = {  # by head dimension and whether there is a right bound
    (head_dim, bound): BackwardConfig(head_dim, rotated=not bound, together=8 if bound else 1)
    for head_dim in HEAD_DIMS
    for bound in (False, True)
}


def plan(problem: Problem, *, config: BackwardConfig | None = None) -> BackwardPlan[BackwardConfig]:
    """Returns the launches for ``problem``, by ``config`` or else by the fastest one.

    Raises UsageError for a head dimension above 128.
    """
    found = config or CONFIGS[width_of_gradients(problem, HEAD_DIMS), problem.right is not None]
    launches = sm90.launches_of(problem, found)
    (blocks, kv_heads, batch), by_query = launches.grids[1], launches.grids[0]
    scalars = launches.scalars | {"blocks": blocks, "kv_heads": kv_heads}
    return replace(launches, grids=(by_query, (blocks * kv_heads * batch, 1, 1), by_query), scalars=scalars)
