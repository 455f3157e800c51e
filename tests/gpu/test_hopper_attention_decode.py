"""The Hopper attention for few queries on a real H200: every configuration against float64, and `ww.attention`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16, normal_qkv, verify
from tests.kernels.attention.decode_helpers import run_decode
from warpwright.interop.torch import attention
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.decode_plan import CONFIGS, choose
from warpwright.ops.attention.plan import SETTING

MASKS: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (200, 30)}, {"window": (100, None), "causal": True}]
LENGTHS = [(1, 1), (1, 65), (1, 4097), (3, 1000)]  # queries, keys


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)


@pytest.mark.parametrize("head_dim", CONFIGS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("last", [True, False])
def test_configurations(head_dim: int, mask: dict[str, Any], last: bool) -> None:
    """bfloat16 where the CTA of the last part combines a tile, else float16."""
    dtype = BF16 if last else np.dtype(np.float16)
    for q_len, kv_len in LENGTHS:
        problem = Problem(1, 10, 2, q_len, kv_len, head_dim - 8 * last, dtype=dtype, **mask)
        given, config = normal_qkv(problem), replace(choose(problem), last=last)
        verify(problem, given, run_decode(problem, given, 132, "cuda", config=config))


@pytest.mark.parametrize("q_len", [7, 20, 64, 100])
def test_more_queries(q_len: int) -> None:
    problem = Problem(1, 6, 2, q_len, 2000, 128, causal=True)
    given = normal_qkv(problem)
    verify(problem, given, run_decode(problem, given, 132, "cuda"))


@pytest.mark.parametrize("head_dim", CONFIGS)
def test_the_virtual_gpu_agrees(head_dim: int) -> None:
    """The same PTX; only ex2 and lg2 differ in their last bits, and the order of sums in the tensor core."""
    problem = Problem(2, 10, 2, 2, 700, head_dim, causal=True)
    given = normal_qkv(problem)
    (o, lse), (virtual, virtual_lse) = (run_decode(problem, given, 9, name) for name in ("cuda", "h200"))
    assert np.abs(o.astype(np.float64) - virtual.astype(np.float64)).max() < 2**-7
    assert np.mean(o != virtual) < 0.05
    np.testing.assert_allclose(lse, virtual_lse, atol=2e-6)


def tensors(batch: int, heads: int, kv_heads: int, q_len: int, kv_len: int, head_dim: int = 128) -> list[Any]:
    shapes = [(batch, heads, q_len, head_dim), *[(batch, kv_heads, kv_len, head_dim)] * 2]
    return [torch.randn(shape, device="cuda").to(torch.bfloat16) for shape in shapes]


def test_the_result_is_the_same_every_time() -> None:
    """The CTA that finishes last combines the parts, always in the same order."""
    arrays = tensors(3, 16, 2, 1, 5000)
    first, ran = ww.attention(*arrays, explain=True)
    assert ran.kernel == "sm90_decode.attention" and ran.why.endswith("CTAs that share out their keys: 102")
    assert all(torch.equal(ww.attention(*arrays), first) for _ in range(50))


def test_heads_inside_rows_are_used_where_they_lie(monkeypatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "__setitem__", lambda *_: made.append(_))
    q, k, v = (x.transpose(1, 2).contiguous() for x in tensors(2, 8, 2, 3, 700))
    found = ww.attention(q, k, v, layout="bshd", causal=True)
    apart = ww.attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
    assert not made and found.shape == q.shape and torch.equal(apart.transpose(1, 2), found)
    scores = q.transpose(1, 2).double() @ k.transpose(1, 2).repeat_interleave(4, 1).double().mT / 128**0.5
    hidden = torch.ones(3, 700, dtype=torch.bool, device="cuda").triu(698)
    expected = (
        torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v.transpose(1, 2).repeat_interleave(4, 1).double()
    )
    assert (apart.double() - expected).abs().max() < 1e-2


def test_a_graph_and_many_streams() -> None:
    """Each stream and each graph has a workspace of its own."""
    arrays = [tensors(1, 16, 2, 1, 3000) for _ in range(4)]
    expected = [attention(*each, True)[0] for each in arrays]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [attention(*each, True)[0] for each in arrays]
    streams = [torch.cuda.Stream() for _ in arrays]
    torch.cuda.synchronize()
    for _ in range(5):
        graph.replay()
        found = []
        for stream, each in zip(streams, arrays, strict=True):
            with torch.cuda.stream(stream):
                found.append(attention(*each, True)[0])
        torch.cuda.synchronize()
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        assert all(torch.equal(*pair) for pair in zip(captured, expected, strict=True))


def test_a_larger_problem_after_a_smaller_one() -> None:
    """The workspace of a stream grows, and its counters stay where they are."""
    small, large = tensors(1, 4, 2, 1, 500), tensors(4, 64, 4, 2, 2000, 256)
    alone = [ww.attention(*each) for each in (small, large)]
    for _ in range(3):
        assert torch.equal(ww.attention(*small), alone[0]) and torch.equal(ww.attention(*large), alone[1])
