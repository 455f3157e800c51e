"""`ww.attention`, its operator and its stand-in for torch's function, with tensors on a real GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import warpwright as ww
from tests.kernels.attention.attention_helpers import normal_qkv, verify
from warpwright.interop.torch import attention, scaled_dot_product_attention
from warpwright.kernels.attention import Problem
from warpwright.ops.attention import forward
from warpwright.ops.attention.backward import gradients
from warpwright.ops.attention.plan import SETTING
from warpwright.ops.memo import MEMO

theirs = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch) -> None:
    """Nor any call made before."""
    monkeypatch.delenv(SETTING, raising=False)
    MEMO.clear()


def tensors(problem: Problem) -> list[Any]:
    return [torch.from_numpy(x.view(np.int16)).cuda().view(torch.bfloat16) for x in normal_qkv(problem)]


def host(tensor: Any) -> np.ndarray:
    array = tensor.cpu()
    return array.numpy() if array.dtype == torch.float32 else array.view(torch.int16).numpy().view("bfloat16")


@pytest.mark.parametrize("setting", ["0", "1", "-1"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_head_dimensions(head_dim, setting, monkeypatch) -> None:
    monkeypatch.setenv(SETTING, setting)
    problem = Problem(2, 18, 9, 200, 600, head_dim, causal=True)
    out, lse, ran = ww.attention(*tensors(problem), causal=True, return_lse=True, explain=True)
    assert ran.tma == (setting != "0") and ran.device == "cuda:0"
    assert ran.kernel == ("sm120.attention_cp_async" if setting == "0" else "sm90.attention")
    verify(problem, normal_qkv(problem), (host(out), host(lse)))


@pytest.mark.parametrize("setting", ["0", "1"])
def test_heads_inside_rows_are_used_where_they_lie(setting, monkeypatch) -> None:
    """Slices of one projection (batch, rows, 3, heads, head_dim), as models have them; nothing is copied."""
    monkeypatch.setenv(SETTING, setting)
    made: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "__setitem__", lambda *_: made.append(_))
    packed = torch.randn(2, 100, 3, 4, 64, device="cuda").to(torch.bfloat16)
    q, k, v = packed.unbind(2)
    found = ww.attention(q, k, v, layout="bshd", causal=True)
    assert not made and found.is_contiguous() and found.shape == q.shape
    turned = ww.attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
    assert not made and torch.equal(turned.transpose(1, 2), found) and turned.stride() == (100 * 256, 64, 256, 1)
    expected = theirs(*(x.transpose(1, 2).double() for x in (q, k, v)), is_causal=True)
    assert (turned.double() - expected).abs().max() < 2e-2


def test_out_and_views_that_need_copies() -> None:
    q, k, v = (torch.randn(1, 2, 100, 64, device="cuda").to(torch.bfloat16) for _ in range(3))
    expected, whole = ww.attention(q, k, v), torch.zeros(1, 2, 100, 67, device="cuda", dtype=torch.bfloat16)
    given = whole[..., 1:65]
    assert ww.attention(q.mT.contiguous().mT, k, v, out=given) is given
    assert torch.equal(given, expected) and not whole[..., 0].any() and not whole[..., 65:].any()


@pytest.mark.parametrize("setting", ["0", "1"])
def test_calls_that_are_made_again(setting, monkeypatch) -> None:
    """With other arrays, with ``out`` and without; with ``explain`` every call goes the long way."""
    monkeypatch.setenv(SETTING, setting)
    for rows in (700, 700, 1, 700, 1):
        q, k, v = (torch.randn(2, 40, n, 64, device="cuda").to(torch.bfloat16) for n in (rows, 700, 700))
        expected, lse, _ = ww.attention(q, k, v, causal=True, return_lse=True, explain=True)
        out = torch.full_like(q, float("nan"))
        for options in ({}, {"out": out}, {"out": torch.full_like(q, float("nan")).mT.contiguous().mT}):
            found = ww.attention(q, k, v, causal=True, return_lse=True, **options)
            assert torch.equal(found[0], expected) and torch.equal(found[1], lse)
    with pytest.raises(ww.UsageError, match="out overlaps q"):
        ww.attention(k, v, v, causal=True, return_lse=True, out=k)


@pytest.mark.parametrize("setting", ["0", "1"])
def test_any_stream_and_a_graph(setting, monkeypatch) -> None:
    monkeypatch.setenv(SETTING, setting)
    q, k, v = (torch.randn(2, 4, 700, 128, device="cuda").to(torch.bfloat16) for _ in range(3))
    expected = attention(q, k, v, True)[0]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        later = q.clone()
        assert torch.equal(attention(later, k, v, True)[0], expected)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = attention(q, k, v, True)[0]
        captured = captured + attention(q, k, v, True)[0]
    for _ in range(3):
        q.normal_()
        graph.replay()
        assert torch.equal(captured, 2 * attention(q, k, v, True)[0])


@pytest.mark.parametrize("function", [torch.ops.warpwright.attention, scaled_dot_product_attention])
@pytest.mark.parametrize(("q_len", "kv_len"), [(300, 300), (1, 700)])
def test_calls_are_made_again(function, q_len, kv_len, monkeypatch) -> None:
    """With other tensors, on other streams, and in graphs that are replayed; keys of few queries are shared out."""
    for stream in (None, None, torch.cuda.Stream()):
        q = torch.randn(2, 4, q_len, 64, device="cuda").to(torch.bfloat16)
        k, v = (torch.randn(2, 4, kv_len, 64, device="cuda").to(torch.bfloat16) for _ in range(2))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            found = function(q, k, v)
        torch.cuda.synchronize()
        found = found if isinstance(found, torch.Tensor) else found[0]
        assert (found.double() - theirs(q.double(), k.double(), v.double())).abs().max() < 2e-2
        monkeypatch.setattr(forward, "attention", None)  # from now on only calls that were made before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = function(q, k, v)[0]
    for _ in range(3):
        q.normal_()
        graph.replay()
        assert torch.equal(captured, function(q, k, v)[0])


def test_many_streams_at_a_time() -> None:
    """Tiles are handed out by a counter in memory, one for each stream."""
    arrays = [[torch.randn(1, 8, 1500, 128, device="cuda").to(torch.bfloat16) for _ in range(3)] for _ in range(4)]
    expected = [attention(*each, True)[0] for each in arrays]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in arrays]
    for _ in range(5):
        found = []
        for stream, each in zip(streams, arrays, strict=True):
            with torch.cuda.stream(stream):
                found.append(attention(*each, True)[0])
        torch.cuda.synchronize()
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_thread_without_a_context() -> None:
    """As autograd's may be; nothing here has made its context the thread's before the tensor maps are made."""
    given = [torch.randn(3, 5, 200, 64, device="cuda").to(torch.bfloat16) for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        found, lse = pool.submit(lambda: ww.attention(*given, return_lse=True)).result()
    expected = ww.attention(*given)
    assert torch.equal(found, expected)
    with ThreadPoolExecutor(1) as pool:
        dv = pool.submit(lambda: gradients(*given, found, lse, expected)[2]).result()
    assert torch.equal(dv, gradients(*given, found, lse, expected)[2])


@pytest.mark.parametrize(("q_len", "kv_len"), [(100, 100), (100, 300), (300, 100)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_stand_in_computes_what_torch_does(q_len, kv_len, is_causal, monkeypatch) -> None:
    calls: list[Any] = []
    run = forward.attention
    monkeypatch.setattr(forward, "attention", lambda *a, **k: calls.append(k) or run(*a, **k))
    q = torch.randn(2, 8, q_len, 64, device="cuda").to(torch.bfloat16)
    k, v = (torch.randn(2, 2, kv_len, 64, device="cuda").to(torch.bfloat16) for _ in range(2))
    found = scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.2, enable_gqa=True)
    expected = theirs(q.double(), k.double(), v.double(), is_causal=is_causal, scale=0.2, enable_gqa=True)
    assert len(calls) == 1 and (found.double() - expected).abs().max() < 2e-2
    mask = torch.zeros(q_len, kv_len, device="cuda", dtype=torch.bfloat16)
    heads = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
    assert torch.equal(scaled_dot_product_attention(q, *heads, mask), theirs(q, *heads, mask)) and len(calls) == 1


def test_it_compiles_to_one_graph() -> None:
    def model(q: Any, k: Any, v: Any) -> Any:
        return scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    arrays = [torch.randn(1, 2, 200, 64, device="cuda").to(torch.bfloat16) for _ in range(3)]
    compiled = torch.compile(model, fullgraph=True)
    assert (compiled(*arrays).float() - model(*arrays).float()).abs().max() < 2e-2


def test_the_operator_is_registered_as_torch_demands() -> None:
    q = torch.randn(1, 2, 40, 64, device="cuda").to(torch.bfloat16)
    for arguments, keywords in (((q, q, q), {"causal": True}), ((q.transpose(1, 2),) * 3, {"layout": "bshd"})):
        results = torch.library.opcheck(attention, arguments, keywords, rtol=2e-2, atol=2e-2)
        assert set(results.values()) == {"SUCCESS"}


def test_arrays_of_the_host_and_of_cupy() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not in every environment")
    problem = Problem(1, 2, 1, 100, 70, 64, dtype=np.float16)
    given = normal_qkv(problem)
    verify(problem, given, ww.attention(*given, device="cuda", return_lse=True))
    found = ww.attention(*map(cupy.asarray, given), return_lse=True)
    verify(problem, given, [cupy.asnumpy(x) for x in found])
