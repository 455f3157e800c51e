"""What launches of the Hopper attention over keys in pages need: no device, no array."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpwright.kernels.attention.problem import Problem
from warpwright.kernels.attention.sm90 import decode_plan
from warpwright.kernels.attention.sm90.decode_plan import DecodeConfig
from warpwright.kernels.attention.sm90.plan import CONFIGS, Config, Plan, choose, launch_of_packed

__all__ = ["PAGE_STEP", "PagedDecodePlan", "plan_few", "plan_packed"]

# Three consumer warpgroups leave the load warp no registers for the numbers of a block's pages, and a block of 80 keys
# takes boxes of 16 rows, one of 64 keys whole pages of 64.
IN_PAGES = {"64: 192x128": "64: 128x128", "128: 192x80": "128: 128x128", "256: 128x80": "256: 128x64"}
PAGE_STEP = 16  # rows of a page are a multiple: a box of a page and of every key block has as many


@dataclass(frozen=True, slots=True)
class PagedDecodePlan:
    """One launch of ``kernel_of(config)`` of `sm90.paged_decode`, and where ``combine_grid`` says so one of
    ``combine_of(config)``, both configured with ``bounds``, ``dtype`` and the size of a page.

    Arguments in order, of the first: the map of q as for `decode_plan.DecodePlan`; ragged maps of k and v, each of an
    array (kv_heads, rows, head_dim); of both: O, its strides, head_dim, the log-sum-exp and the workspace as there; the
    addresses of the block table and of the lengths; the width of the table, the number of pages, the new keys of a
    sequence, the rows of k and of v from one page to the next; then ``scalars``, of the second launch without the last
    one.
    """

    config: DecodeConfig
    bounds: tuple[bool, bool]
    grid: tuple[int, int, int]
    combine_grid: tuple[int, int, int] | None
    words: int
    scalars: tuple[int | float, ...]


def plan_few(problem: Problem, *, sms: int, config: DecodeConfig | None = None) -> PagedDecodePlan:
    """Returns the launch for at most 64 queries a sequence; ``problem.kv_len`` is the longest length.

    The grid is that for sequences of that length. Shorter ones leave a cut inside a tile possible everywhere.
    """
    dense = decode_plan.plan(problem, sms=sms, config=config)
    rows, ctas, reserve, scale = *dense.scalars[8:11], dense.scalars[11]
    bounds = dense.bounds
    window = (problem.left or 0) * bounds[0], (problem.right or 0) * bounds[1]
    found, count = dense.config, dense.grid[0]
    pieces = -(-int(rows) * found.head_dim // (decode_plan.QUAD * decode_plan.COMBINE_THREADS))
    cut = not found.last and count > 1
    return PagedDecodePlan(
        config=found,
        bounds=bounds,
        grid=dense.grid,
        combine_grid=(count - 1, pieces, 1) if cut else None,
        words=dense.words,
        scalars=(problem.batch, problem.q_len, *window, problem.kv_heads, problem.group, rows, ctas, reserve, scale),
    )


def plan_packed(problem: Problem, total_q: int, most: int, *, sms: int, config: Config | None = None) -> Plan:
    """Returns the launch of `sm90.paged_varlen.attention_paged` for ``problem.batch`` sequences of ``total_q`` queries
    in all, each of at most ``most`` keys, by ``config`` or else the fastest one for ``problem``.

    Arguments in order: ragged maps of q, k, v and o, each of an array (heads, rows, head_dim); the addresses of the
    log-sum-exp (heads, total_q), of a tile counter as for `plan`, of ``cu_q``, of the block table and of the lengths;
    the numbers of pages as for `PagedDecodePlan`; then ``scalars``.
    """
    name = choose(problem)
    found = config or replace(CONFIGS[IN_PAGES.get(name, name)], direct=False)
    bounds, grid, scalars = launch_of_packed(problem, total_q, most, sms, found.tile[0])
    return Plan(found, bounds, True, grid, scalars)
