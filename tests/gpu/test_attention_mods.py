"""Gradients of functions, caps and sinks, and of packed sequences, on a real H200: float64, and CUDA graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.gpu.test_attention_backward import hopper, tensors
from tests.gpu.test_attention_varlen import host
from tests.gpu.test_attention_varlen import tensors as packed_tensors
from tests.kernels.attention.varlen_helpers import pack_sequences
from tests.ops.attention.test_mods_backward import CASES, PROBLEM, random, reference, verify
from tests.ops.attention.test_varlen_backward import LENGTHS, arrays, verify_packed
from warpwright.interop.torch import AttentionMods, attention_modified, attention_varlen
from warpwright.kernels.attention import Problem
from warpwright.lang import f32
from warpwright.ops.attention.backward import gradients
from warpwright.ops.attention.varlen_backward import gradients_varlen


@hopper
@pytest.mark.parametrize("name", ["soft cap", "sinks"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_caps_and_sinks(name: str, head_dim: int) -> None:
    problem, (options, score, mask) = replace(PROBLEM, head_dim=head_dim), CASES[name]
    given = random(problem)
    exact = reference(problem, given, name, options, score, mask)
    q, k, v, do, o = (torch.from_numpy(x.view("int16")).cuda().view(torch.bfloat16) for x in (*given, exact.out))
    options = {key: torch.from_numpy(x).cuda() if key == "sinks" else x for key, x in options.items()}
    found = gradients(q, k, v, o, torch.from_numpy(exact.lse).cuda(), do, **options)
    verify([host(x) for x in found], exact)


@hopper
@pytest.mark.parametrize("head_dim", [64, 128])
def test_packed_sequences(head_dim: int) -> None:
    problem = Problem(1, 4, 2, 1, 1, head_dim, causal=True)
    given = pack_sequences(problem, *LENGTHS)
    values = arrays(problem, given)
    q, k, v, *cu = packed_tensors(given)
    o, do = (torch.from_numpy(values[name].view("int16")).cuda().view(torch.bfloat16) for name in ("o", "do"))
    found = gradients_varlen(q, k, v, o, torch.from_numpy(values["lse"]).cuda(), do, *cu, causal=True)
    verify_packed(problem, given, values["do"], [host(x) for x in found])


@hopper
def test_a_step_in_a_graph() -> None:
    """A forward and a backward pass with a function, a mask function and sinks, then one of packed sequences."""
    q, k, v, _ = tensors(replace(PROBLEM, q_len=300, kv_len=300))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    sinks, slopes = torch.ones(4, device="cuda", requires_grad=True), torch.ones(4, device="cuda")
    mods = AttentionMods(
        lambda score, b, h, q, k: score + slopes[h] * (k - q).to(f32) * 0.01, lambda b, h, q, k: (k <= q) & (k > q - 90)
    )
    cu = torch.tensor([0, 40, 300], dtype=torch.int32, device="cuda")

    def step() -> tuple[Any, ...]:
        loss = attention_modified(*leaves, mods.captured, sinks, 5.0, mods.key)[0].float().square().sum()
        rows = [x[0].transpose(0, 1).contiguous() for x in leaves]
        packed = attention_varlen(*rows, cu, cu, True)[0].float().square().sum()
        return torch.autograd.grad(loss + packed, [*leaves, sinks])

    stream = torch.cuda.Stream()  # of all steps: torch warns of leaves whose earlier steps had another one
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = step()
    for _ in range(3):
        graph.replay()
        for each, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(each, wanted, rtol=2e-2, atol=1e-2)
