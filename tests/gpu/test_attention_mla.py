"""`ww.attention_mla` and its operator of torch on a real H200."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import warpwright as ww
from tests.gpu.test_attention_varlen import host, tensors
from tests.kernels.attention.mla_helpers import fill_rows, latent_problem, verify_mla
from tests.kernels.attention.paged_helpers import Paged
from warpwright.interop.torch import attention_mla


def call(problem: Any, arrays: Any, size: int) -> Any:
    q, k, _, table, lengths = arrays
    out = torch.full_like(q[..., :512], torch.nan)
    options = {"block_table": table} if size else {}
    return ww.attention_mla(
        q, k, lengths=lengths, **options, scale=problem.factor, causal=problem.causal, out=out, return_lse=True
    )


def on_gpu(given: Paged) -> list[Any]:
    return tensors(given._replace(v=given.v.copy()))


@pytest.mark.parametrize("size", [0, 16, 48, 64, 256])
@pytest.mark.parametrize("heads", [1, 16, 40, 128])
@pytest.mark.parametrize("q_len", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_float64(size: int, heads: int, q_len: int, causal: bool) -> None:
    """Pages are in random order, and what is not a key is NaN, as the result is before the call."""
    problem = latent_problem(5, heads, q_len, 1500, causal=causal)
    given = fill_rows(problem, size, [1500, 0, 1, 700, 65])
    verify_mla(problem, given, [host(x) for x in call(problem, on_gpu(given), size)])


@pytest.mark.parametrize("dtype", [np.float16, None])
def test_many_sequences_and_one_long_one(dtype: Any) -> None:
    """Parts that a second launch combines by tile and by cut, more sequences than a warp has lanes, great scores."""
    more = {} if dtype is None else {"dtype": dtype}
    for problem, lengths in (
        (latent_problem(1, 128, 1, 40000, **more), [40000]),
        (latent_problem(200, 16, 1, 900, **more), [i * 37 % 901 for i in range(200)]),
    ):
        given = fill_rows(problem, 64, lengths, growth=2)
        verify_mla(problem, given, [host(x) for x in call(problem, on_gpu(given), 64)])


def test_repeated_calls_with_new_lengths_and_in_a_graph() -> None:
    problem = latent_problem(3, 128, 1, 600)
    given = fill_rows(problem, 16, [600, 600, 600])
    q, k, _, table, lengths = on_gpu(given)
    keywords = {"block_table": table, "lengths": lengths, "scale": problem.factor, "return_lse": True}
    for _ in range(2):
        ww.attention_mla(q, k, **keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ww.attention_mla(q, k, **keywords)
    for new in ([600, 3, 0], [17, 599, 64]):
        lengths.copy_(torch.tensor(new))
        graph.replay()
        verify_mla(problem, given._replace(lengths=np.array(new, np.int32)), [host(x) for x in found])


def test_the_operator_compiles() -> None:
    problem = latent_problem(3, 16, 2, 600, causal=True)
    given = fill_rows(problem, 64, [600, 3, 77])
    q, k, _, table, lengths = on_gpu(given)
    compiled = torch.compile(lambda *arrays: attention_mla(*arrays), fullgraph=True)
    for run in (attention_mla, compiled, compiled):
        found = run(q, k, problem.factor, table, lengths, True)
        verify_mla(problem, given, [host(x) for x in found])
