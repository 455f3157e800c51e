"""Keys and values in pages: arrays with unused rows of NaN, and comparison with float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import warpwright as ww
from tests.kernels.attention.attention_helpers import normal_qkv, verify
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.decode_plan import DecodeConfig
from warpwright.kernels.attention.sm90.paged_decode import combine_of, kernel_of
from warpwright.kernels.attention.sm90.paged_plan import plan_few
from warpwright.targets import DEVICES
from warpwright.vgpu import Device


class Paged(NamedTuple):
    """Q (batch, q_len, heads, head_dim), K and V (pages, page_size, kv_heads, head_dim), block table and lengths."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    table: np.ndarray
    lengths: np.ndarray


def fill_pages(problem: Problem, size: int, lengths: list[int], *, spare: int = 3, seed: int = 0) -> Paged:
    """Returns ``problem`` with keys in pages in random order. Rows after the last key and spare pages are NaN, and so
    are unused numbers of the table far beyond the pages."""
    width = -(-problem.kv_len // size)
    pages = sum(-(-length // size) for length in lengths) + spare
    random = np.random.default_rng(seed)
    order, table = random.permutation(pages).astype(np.int32), np.full((len(lengths), width), 2**30, np.int32)
    whole = replace(problem, batch=len(lengths), kv_len=max(*lengths, 1))
    q, *kv = normal_qkv(whole, seed)
    arrays = [np.full((pages, size, *x.shape[1::2]), np.nan, x.dtype) for x in kv]
    for sequence, length in enumerate(lengths):
        for number in range(-(-length // size)):
            page, order = order[0], order[1:]
            table[sequence, number] = page
            rows = min(size, length - number * size)
            for array, x in zip(arrays, kv, strict=True):
                array[page, :rows] = x[sequence, :, number * size :][:, :rows].swapaxes(0, 1)
    return Paged(q.swapaxes(1, 2).copy(), *arrays, table, np.array(lengths, np.int32))


def rows_of(array: np.ndarray, table: np.ndarray, length: int) -> np.ndarray:
    """Returns the rows of a sequence, (heads, rows, head_dim)."""
    pages = array[table[: -(-length // array.shape[1])]]
    return pages.reshape(-1, *array.shape[2:])[:length].swapaxes(0, 1)


def sequences(problem: Problem, given: Paged) -> Iterator[tuple[Problem, Any]]:
    """Yields the problem of each sequence with keys, with its Q, K and V (batch, heads, rows, head_dim)."""
    for q, table, length in zip(given.q, given.table, given.lengths, strict=True):
        if length:
            kv = (rows_of(x, table, length)[None] for x in (given.k, given.v))
            yield replace(problem, batch=1, kv_len=int(length)), (q.swapaxes(0, 1)[None], *kv)


def verify_paged(problem: Problem, given: Paged, found: Any) -> None:
    """Assert that output (batch, q_len, heads, head_dim) and log-sum-exp (batch, heads, q_len) are right."""
    out, lse = found
    some = given.lengths > 0
    for (each, arrays), o, logs in zip(sequences(problem, given), out[some], lse[some], strict=True):
        verify(each, arrays, (o.swapaxes(0, 1)[None], logs[None]))
    assert not out[~some].any() and np.isneginf(lse[~some]).all()


def paged_launches(problem: Problem, given: Paged, sms: int, config: DecodeConfig) -> list[tuple[Any, ...]]:
    """Returns kernel, grid, arguments and workspace of each launch of ``config``; the workspace is filled with NaN."""
    device = Device(replace(DEVICES["h200"], sms=sms))
    first = next(iter(ww.launches(ww.attention_paged, *given, return_lse=True, device=device)))
    found = plan_few(problem, sms=sms, config=config)
    options = {"bounds": found.bounds, "size": given.k.shape[1]}
    space = np.full(found.words, np.nan, np.float32)
    space[: 4 * sms] = 0  # counters
    at = list(dict(first.kernel.params)).index("workspace")
    args = [*first.args[:at], space, *first.args[at + 1 : -len(found.scalars)], *found.scalars]
    planned = [(kernel_of(config).configure(**options), found.grid, args, space)]
    if found.combine_grid:
        planned.append((combine_of(config).configure(**options), found.combine_grid, args[3:-1], space))
    return planned
