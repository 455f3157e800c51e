"""`ww.attention_paged` and flash-attn's functions with a block table on a real H200."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import warpwright as ww
from tests.gpu.test_attention_varlen import host, tensors
from tests.kernels.attention.paged_helpers import fill_pages, verify_paged
from warpwright.interop.flash_attn import flash_attn_with_kvcache
from warpwright.interop.torch import attention_paged, attention_paged_append
from warpwright.kernels.attention import Problem

MASKS: list[dict[str, Any]] = [{}, {"causal": True}, {"causal": True, "window": (200, None)}]


@pytest.mark.parametrize("size", [16, 48, 64, 128, 256])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("q_len", [1, 4, 200])
@pytest.mark.parametrize("mask", MASKS)
def test_agrees_with_float64(size: int, head_dim: int, q_len: int, mask: dict[str, Any]) -> None:
    """Pages are in random order, and what is not a key is NaN."""
    problem = Problem(5, 8, 2, q_len, 1500, head_dim, **mask)
    given = fill_pages(problem, size, [1500, 0, 1, 700, size])
    found = ww.attention_paged(*tensors(given), **mask, return_lse=True)
    verify_paged(problem, given, [host(x) for x in found])


def test_many_sequences_and_one_long_one() -> None:
    """Parts of one tile that a second launch combines, and more sequences than a warp has lanes."""
    for problem, lengths in ((Problem(1, 8, 1, 1, 60000, 128), [60000]), (Problem(200, 8, 2, 1, 900, 64), None)):
        given = fill_pages(problem, 64, lengths or [i * 37 % 901 for i in range(200)])
        found = ww.attention_paged(*tensors(given), return_lse=True)
        verify_paged(problem, given, [host(x) for x in found])


def test_repeated_calls_with_new_lengths_and_in_a_graph() -> None:
    problem = Problem(3, 8, 2, 1, 600, 128)
    given = fill_pages(problem, 16, [600, 600, 600])
    arrays = tensors(given)
    for _ in range(2):
        ww.attention_paged(*arrays, return_lse=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ww.attention_paged(*arrays, return_lse=True)
    for lengths in ([600, 3, 0], [17, 599, 64]):
        arrays[-1].copy_(torch.tensor(lengths))
        graph.replay()
        verify_paged(problem, given._replace(lengths=np.array(lengths, np.int32)), [host(x) for x in found])


def test_operators_compile_and_a_graph_decodes_step_by_step() -> None:
    """A step writes a row of ones after the last key and increments the lengths, which a graph repeats."""
    problem = Problem(3, 8, 2, 1, 600, 128)
    given = fill_pages(problem, 16, [585, 3, 77])
    new = [torch.ones(3, 1, 2, 128, dtype=torch.bfloat16, device="cuda") for _ in "kv"]

    def step(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        found = attention_paged_append(q, k, v, table, lengths, *new)
        return *found, *attention_paged(q, k, v, table, lengths + 1)

    results = []
    for run in (step, torch.compile(step, fullgraph=True)):
        arrays = tensors(given)
        for _ in range(2):
            found = run(*arrays)
        results.append((*found, *arrays[1:3]))
        assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*results, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(*arrays)
        arrays[-1].add_(1)
    for count in (1, 2, 3):
        graph.replay()
        k, v = (host(x) for x in arrays[1:3])
        after = given._replace(k=k, v=v, lengths=given.lengths + count)
        verify_paged(problem, after, [host(x) for x in found[:2]])


def test_new_rows_are_written_first() -> None:
    problem = Problem(3, 8, 2, 2, 600, 128, causal=True)
    given = fill_pages(problem, 32, [600, 2, 333])
    q, k, v, table, lengths = tensors(given)
    new = []
    for pages in (k, v):
        rows = torch.empty(3, 2, 2, 128, dtype=pages.dtype, device="cuda")
        for i, length in enumerate(given.lengths):
            for n in range(2):
                row = int(length) - 2 + n
                place = int(given.table[i, row // 32]), row % 32
                rows[i, n] = pages[place]
                pages[place] = torch.nan
        new.append(rows)
    found = flash_attn_with_kvcache(
        q, k, v, *new, cache_seqlens=lengths - 2, block_table=table, causal=True, return_softmax_lse=True
    )
    verify_paged(problem, given, [host(x) for x in found])
    assert all(np.array_equal(host(a).view(np.int16), b.view(np.int16)) for a, b in ((k, given.k), (v, given.v)))
