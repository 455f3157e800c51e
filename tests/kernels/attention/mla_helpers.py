"""Latent rows in pages or one after the other, with unused rows of NaN, and comparison with float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import warpwright as ww
from tests.kernels.attention.attention_helpers import SENTINEL
from tests.kernels.attention.paged_helpers import Paged, fill_pages, rows_of, verify_paged
from warpwright.kernels.attention.problem import LATENT_DIM, LATENT_VALUES, LatentProblem
from warpwright.kernels.attention.sm90.mla import combine_of, kernel_of
from warpwright.kernels.attention.sm90.mla_plan import CONFIG, MlaConfig, plan
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

SCALE = 192**-0.5  # of DeepSeek-V3


def latent_problem(batch: int, heads: int, q_len: int, keys: int, **more: Any) -> LatentProblem:
    how = {"scale": SCALE, "value_dim": LATENT_VALUES, **more}
    return LatentProblem(batch, heads, 1, q_len, keys, LATENT_DIM, **how)


def fill_rows(problem: LatentProblem, size: int, lengths: list[int], *, growth: float = 1, seed: int = 0) -> Paged:
    """Returns Q, the latent rows as K and their first columns as V, in pages of ``size`` rows, or with 0 one page a
    sequence; Q is multiplied by ``growth``. Rows without a key are NaN."""
    longest = max(*lengths, 1)
    given = fill_pages(problem, size or longest, lengths, seed=seed)
    if not size:
        whole = np.full((len(lengths), longest, 1, LATENT_DIM), np.nan, given.k.dtype)
        for row, table, length in zip(whole, given.table, lengths, strict=True):
            row[:length] = rows_of(given.k, table, length).swapaxes(0, 1)
        given = given._replace(k=whole, table=np.arange(len(lengths), dtype=np.int32)[:, None])
    return given._replace(q=(growth * given.q).astype(given.q.dtype), v=given.k[..., :LATENT_VALUES])


def on_few_sms(sms: int) -> Device:
    return Device(replace(DEVICES["h200"], sms=sms))


def run_mla(problem: LatentProblem, given: Paged, size: int, sms: int = 3, **more: Any) -> Any:
    """Run the call with a result filled with NaN; returns what it returns."""
    out = np.full((*given.q.shape[:3], LATENT_VALUES), np.nan, given.q.dtype)
    options = {"scale": problem.factor, "causal": problem.causal, "return_lse": True, "out": out, **more}
    options |= {"block_table": given.table} if size else {}
    return ww.attention_mla(given.q, given.k, lengths=given.lengths, **options, device=on_few_sms(sms))


def verify_mla(problem: LatentProblem, given: Paged, found: Any) -> None:
    """Assert that output (batch, q_len, heads, 512) and log-sum-exp (batch, heads, q_len) are right."""
    verify_paged(problem, given, found)


def mla_launches(
    problem: LatentProblem, given: Paged, size: int, sms: int, config: MlaConfig = CONFIG
) -> tuple[list[tuple[Any, ...]], Any]:
    """Returns kernel, grid, arguments and workspace of each launch of ``config``, and the results; the workspace is
    filled with NaN, the results with a number."""
    found = plan(problem, sms=sms, config=config)
    out = np.full((*given.q.shape[:3], LATENT_VALUES), SENTINEL, given.q.dtype)
    lse = np.full((len(given.q), problem.heads, problem.q_len), SENTINEL, np.float32)
    options = {"scale": problem.factor, "causal": problem.causal, "return_lse": True, "device": on_few_sms(sms)}
    options |= {"block_table": given.table} if size else {}
    first = next(iter(ww.launches(ww.attention_mla, given.q, given.k, lengths=given.lengths, out=out, **options)))
    space, names = np.full(found.words, np.nan, np.float32), list(dict(first.kernel.params))
    args = [*first.args[: -len(found.scalars)], *found.scalars]
    args[names.index("workspace")], args[names.index("lse")] = space, lse
    how = {"causal": found.causal, "size": size}
    planned = [(kernel_of(found.config).configure(**how), found.grid, args, space)]
    if found.combine_grid:
        last = combine_of(found.config).configure(**how, by_tile=found.by_tile)
        planned.append((last, found.combine_grid, args[2:-1], space))
    return planned, (out, lse)
