"""The attention backward on a real Hopper GPU: float64, torch's own gradients, the same numbers again and again."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch

import warpwright as ww
from tests.gpu.test_attention import host
from tests.kernels.attention.attention_helpers import BF16
from tests.kernels.attention.backward_helpers import NAMES, arrays, launches, random, verify
from warpwright.interop.torch import attention, attention_varlen, scaled_dot_product_attention
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90 import backward_plan
from warpwright.kernels.attention.sm90.backward_plan import WIDE
from warpwright.ops.attention import backward, forward
from warpwright.ops.attention.backward import gradients
from warpwright.ops.memo import MEMO

operator, theirs = torch.ops.warpwright.attention, torch.nn.functional.scaled_dot_product_attention
BASE = Problem(2, 4, 2, 300, 500, 128, BF16)
PROBLEMS = [
    replace(BASE, causal=True),
    replace(BASE, head_dim=64, q_len=1000, kv_len=1000),
    replace(BASE, head_dim=40, q_len=129, kv_len=63, causal=True),
    replace(BASE, head_dim=96, q_len=1000, kv_len=1000),
    replace(BASE, head_dim=96, q_len=1700, causal=True),
    replace(BASE, head_dim=72, q_len=129, kv_len=63, window=(30, 40)),
    replace(BASE, window=(100, 20), q_len=700),
    replace(BASE, q_len=1, kv_len=65),
    replace(BASE, head_dim=256, causal=True),
    replace(BASE, head_dim=256, q_len=1000, kv_len=1000),
    replace(BASE, head_dim=192, window=(100, 20), q_len=700),
    replace(BASE, head_dim=136, q_len=129, kv_len=63, causal=True),
]
hopper = pytest.mark.skipif(
    torch.cuda.get_device_capability() != (9, 0), reason="the kernel has wgmma, of Hopper alone"
)


def tensors(problem: Problem, seed: int = 0) -> list[Any]:
    """Q, K, V and the gradient of the output."""
    return [torch.from_numpy(x.view(np.int16)).cuda().view(torch.bfloat16) for x in random(problem, seed)]


@hopper
@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradients(problem: Problem) -> None:
    q, k, v, do = tensors(problem)
    options: dict[str, Any] = {"causal": problem.causal, "window": problem.window}
    o, lse = ww.attention(q, k, v, return_lse=True, **options)
    found = gradients(q, k, v, o, lse, do, **options)
    verify(problem, random(problem), tuple(host(x) for x in found))


@hopper
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_the_virtual_gpu_agrees(head_dim: int) -> None:
    """The same PTX; only ex2 differs in its last bits, and the order of sums in the tensor core and of parts of dQ."""
    problem = Problem(1, 4, 2, 150, 200, head_dim, BF16, causal=True)
    given, results = random(problem), []
    for device in ("cuda", "h200"):
        values = arrays(problem, given)
        for kernel, grid, args in launches(problem, values):
            ww.launch(kernel, grid, args=args, device=device)
        results.append([values[name].astype(np.float64) for name in NAMES])
    for found, virtual in zip(*results, strict=True):
        assert np.abs(found - virtual).max() < 2**-7 * np.abs(virtual).max() and np.mean(found != virtual) < 0.1


@hopper
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_those_of_keys_and_values_are_the_same_every_time(head_dim: int) -> None:
    problem = Problem(4, 8, 8, 1024, 1024, head_dim, BF16, causal=True)
    q, k, v, do = tensors(problem)
    o, lse = ww.attention(q, k, v, return_lse=True, causal=True)
    dq, dk, dv = gradients(q, k, v, o, lse, do, causal=True)
    for _ in range(10):
        again = gradients(q, k, v, o, lse, do, causal=True)
        assert torch.equal(again[1], dk) and torch.equal(again[2], dv)
        torch.testing.assert_close(again[0], dq, rtol=2e-2, atol=1e-4)


@hopper
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (300, 40)}])
def test_a_fixed_order_gives_the_same_bits_every_time(head_dim: int, options: dict[str, Any]) -> None:
    """Several waves of CTAs; heads of Q share those of K."""
    problem = Problem(8, 8, 4, 1000, 1500, head_dim, BF16, **options)
    q, k, v, do = tensors(problem)
    o, lse = ww.attention(q, k, v, return_lse=True, **options)
    any_order = gradients(q, k, v, o, lse, do, **options)
    first = gradients(q, k, v, o, lse, do, **options, deterministic=True)
    for found, wanted in zip(first, any_order, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1e-3)
    for _ in range(20):
        assert all(map(torch.equal, gradients(q, k, v, o, lse, do, **options, deterministic=True), first))


@hopper
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("problem", [each for each in PROBLEMS if 96 < each.head_dim <= WIDE])
def test_tiles_of_80_queries(problem: Problem, deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for long sequences, whose tiles these are."""
    monkeypatch.setattr(backward_plan, "LONG_QUERIES", {False: 1, True: 1})
    backward.choose.cache_clear()
    MEMO.clear()
    q, k, v, do = tensors(problem)
    options: dict[str, Any] = {"causal": problem.causal, "window": problem.window}
    o, lse = ww.attention(q, k, v, return_lse=True, **options)
    for _ in range(2):
        found = gradients(q, k, v, o, lse, do, **options, deterministic=deterministic)
        verify(problem, random(problem), tuple(host(x) for x in found))
    backward.choose.cache_clear()
    MEMO.clear()


@hopper
@pytest.mark.parametrize("problem", [each for each in PROBLEMS if each.head_dim <= WIDE])
def test_gradients_in_a_fixed_order(problem: Problem) -> None:
    q, k, v, do = tensors(problem)
    options: dict[str, Any] = {"causal": problem.causal, "window": problem.window}
    o, lse = ww.attention(q, k, v, return_lse=True, **options)
    found = gradients(q, k, v, o, lse, do, **options, deterministic=True)
    verify(problem, random(problem), tuple(host(x) for x in found))


@hopper
def test_packed_sequences_in_a_fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [700, 0, 65, 1300, 128, 2000]
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")
    given = [torch.randn(sum(lengths), heads, 128, device="cuda").bfloat16() for heads in (8, 4, 4)]
    leaves, do = [x.requires_grad_() for x in given], torch.randn_like(given[0])
    out = attention_varlen(*leaves, starts, starts, True, None, None, None)[0]
    any_order = torch.autograd.grad(out, leaves, do, retain_graph=True)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    first = torch.autograd.grad(out, leaves, do, retain_graph=True)
    for found, wanted in zip(first, any_order, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1e-3)
    for _ in range(20):
        assert all(map(torch.equal, torch.autograd.grad(out, leaves, do, retain_graph=True), first))


@hopper
@pytest.mark.parametrize(("q_len", "kv_len"), [(256, 256), (200, 333), (333, 200)])
def test_a_step_of_training_is_torchs(q_len: int, kv_len: int) -> None:
    """The stand-in for torch's function, top left aligned, in a graph with a projection before it."""
    problem = replace(BASE, heads=2, q_len=q_len, kv_len=kv_len)
    *given, do = tensors(problem)
    results = []
    for function, kind in ((scaled_dot_product_attention, torch.bfloat16), (theirs, torch.float64)):
        leaves = [x.to(kind).requires_grad_() for x in given]
        out = function(*(x * 0.5 for x in leaves), is_causal=True)
        results.append((out, *torch.autograd.grad(out, leaves, do.to(kind))))
    assert "AttentionFunction" in results[0][0].grad_fn.name()
    for found, expected in zip(*results, strict=True):
        assert (found.double() - expected).abs().max() <= 2e-2 * expected.abs().max()


@hopper
@pytest.mark.parametrize(
    "function", [lambda *x: operator(*x, True)[0], lambda *x: scaled_dot_product_attention(*x, is_causal=True)]
)
def test_calls_by_autograd_are_made_again(function, monkeypatch) -> None:
    """With other tensors, on another stream, and in a graph that is replayed."""
    problem = replace(BASE, kv_len=300, heads=2, causal=True)
    for seed, stream in enumerate((None, None, torch.cuda.Stream())):
        *given, do = tensors(problem, seed)
        torch.cuda.synchronize()
        exact, leaves = ([x.to(kind).requires_grad_() for x in given] for kind in (torch.float64, torch.bfloat16))
        with torch.cuda.stream(stream):
            found = torch.autograd.grad(function(*leaves), leaves, do)
        torch.cuda.synchronize()
        expected = torch.autograd.grad(theirs(*exact, is_causal=True), exact, do.double())
        for each, wanted in zip(found, expected, strict=True):
            assert (each.double() - wanted).abs().max() <= 2e-2 * wanted.abs().max()
        monkeypatch.setattr(forward, "views_of", None)  # from now on only calls that were made before
        monkeypatch.setattr(backward, "views_of", None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(function(*leaves), leaves, do)
    for _ in range(3):
        do.normal_()
        graph.replay()
        for each, wanted in zip(captured, torch.autograd.grad(function(*leaves), leaves, do), strict=True):
            torch.testing.assert_close(each, wanted, rtol=2e-2, atol=1e-3)


@hopper
def test_it_compiles_and_runs_in_a_graph() -> None:
    *given, do = tensors(replace(BASE, causal=True))
    leaves = [x.requires_grad_() for x in given]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (attention(q, k, v, True)[0] * do).sum()

    expected = torch.autograd.grad(loss(*leaves), leaves)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    o, lse = attention(*(x.detach() for x in leaves), True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = gradients(*(x.detach() for x in leaves), o, lse, do, causal=True)
    graph.replay()
    for found in (torch.autograd.grad(compiled(*leaves), leaves), kept):
        for each, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(each, wanted, rtol=2e-2, atol=1e-3)
