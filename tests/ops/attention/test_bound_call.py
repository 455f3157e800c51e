"""Repeated calls of `ww.attention` on a GPU; the GPU is host memory, and its kernels are NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import normal_qkv, verify
from tests.kernels.attention.varlen_helpers import pack_sequences, starts, verify_packed
from tests.ops.host_kernels import bind_host
from warpwright import targets
from warpwright.arrays import libraries
from warpwright.arrays.device import DeviceArray
from warpwright.arrays.libraries import LIBRARIES
from warpwright.kernels.attention import Problem
from warpwright.ops import binding
from warpwright.ops.attention import arrays, forward, plan, varlen
from warpwright.ops.memo import MEMO


class OnGpu(np.ndarray):
    """An array that stands for one on a GPU."""


def viewed(array: Any) -> DeviceArray:
    return DeviceArray(array.ctypes.data, array.shape, array.strides, array.dtype, 0, array)


def guard(array: Any) -> Any:
    known = array.shape, array.strides, array.dtype
    return lambda other: isinstance(other, OnGpu) and (other.shape, other.strides, other.dtype) == known


def aligned(shape: Any, dtype: Any) -> Any:
    """Returns an array at a multiple of 16 bytes, which NumPy does not guarantee."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.full(count + 16, 7, np.uint8)
    start = -raw.ctypes.data % 16
    return raw[start : start + count].view(dtype).reshape(shape).view(OnGpu)


@pytest.fixture
def launches(monkeypatch) -> Iterator[list[Any]]:
    """The started launches: kernel, counter and stream of each."""
    started: list[Any] = []

    def problem_of(plan: Any, known: Any) -> Problem:
        kv_heads = known["k"][0][1]
        if "cu_seqlens_q" in known:
            return Problem(1, known["q"][0][1], kv_heads, 1, 1, 64, known["q"][2], causal=True)
        (batch, heads, q_len, head_dim), (_, _, kv_len, _) = known["q"][0], known["k"][0]
        return Problem(batch, heads, kv_heads, q_len, kv_len, head_dim, known["q"][2], causal=True)

    def note(plan: Any, given: dict[str, Any], stream: int) -> None:
        started.append((plan.kernel, given["workspace"], stream))

    library = replace(
        LIBRARIES["numpy"],
        view=viewed,
        guard=guard,
        stream=lambda _: lambda: 5,
        maker=lambda shape, dtype, _: lambda: aligned(shape, dtype),
        zeros=lambda shape, dtype, _: np.zeros(shape, dtype).view(OnGpu),
    )
    target = SimpleNamespace(name="cuda:0", spec=targets.device("h200"))
    monkeypatch.setattr(libraries, "library_of", lambda _: library)
    monkeypatch.setattr(arrays, "resolve", lambda *_: target)
    monkeypatch.setattr(arrays, "capturing", lambda _: False)
    monkeypatch.setattr(binding, "bind", bind_host(problem_of, note))
    monkeypatch.delenv(plan.SETTING, raising=False)
    for cache in (MEMO, arrays._WORKSPACES):
        cache.clear()
    yield started
    for cache in (MEMO, arrays._WORKSPACES):
        cache.clear()


def on_gpu(array: Any) -> Any:
    made = aligned(array.shape, array.dtype)
    made[...] = array
    return made


PROBLEM = Problem(2, 40, 20, 40, 70, 64, causal=True)


def test_a_call_is_made_again_with_other_arrays(launches, monkeypatch) -> None:
    for seed in range(3):
        given = [on_gpu(x) for x in normal_qkv(PROBLEM, seed)]
        verify(PROBLEM, given, ww.attention(*given, causal=True, return_lse=True))
        monkeypatch.setattr(forward, "views_of", None)  # from now on only calls that were made before
    assert [kernel for kernel, *_ in launches] == ["sm90.attention"] * 3
    assert len({counter for _, counter, _ in launches}) == 1 and {stream for *_, stream in launches} == {5}


def test_heads_inside_rows(launches, monkeypatch) -> None:
    for seed in range(2):
        given = [on_gpu(x.swapaxes(1, 2)).swapaxes(1, 2) for x in normal_qkv(PROBLEM, seed)]
        out, lse = ww.attention(*given, causal=True, return_lse=True)
        verify(PROBLEM, given, (out, lse))
        assert out.strides == given[0].strides
        monkeypatch.setattr(forward, "views_of", None)


@pytest.mark.parametrize("turned", [False, True])
def test_arrays_without_a_batch_again(launches, monkeypatch, turned) -> None:
    problem = replace(PROBLEM, batch=1)
    for seed in range(2):
        four = normal_qkv(problem, seed)
        given = [on_gpu(x[0].swapaxes(0, 1)).swapaxes(0, 1) if turned else on_gpu(x[0]) for x in four]
        out, lse = ww.attention(*given, causal=True, return_lse=True)
        verify(problem, four, (out[None], lse[None]))
        assert (out.shape, lse.shape, out.strides) == (given[0].shape, (40, 40), given[0].strides)
        monkeypatch.setattr(forward, "views_of", None)


def test_out_is_written_again(launches, monkeypatch) -> None:
    for seed in range(3):
        given, out = (
            [on_gpu(x) for x in normal_qkv(PROBLEM, seed)],
            aligned((2, 40, 40, 64), normal_qkv(PROBLEM)[0].dtype),
        )
        found, lse = ww.attention(*given, causal=True, out=out, return_lse=True)
        assert found is out
        verify(PROBLEM, given, (out, lse))
        monkeypatch.setattr(forward, "views_of", None)


def test_out_that_lies_between_what_is_read_goes_the_long_way(launches, monkeypatch) -> None:
    """If spans overlap, only the elements tell whether memory is shared."""
    q, k, v = normal_qkv(PROBLEM)
    beside, whole = (on_gpu(np.zeros((*q.shape[:3], 2, 64), q.dtype)) for _ in range(2))
    whole[..., 0, :] = q
    given, long_way, library = [whole[..., 0, :], on_gpu(k), on_gpu(v)], list[Any](), forward.views_of
    monkeypatch.setattr(forward, "views_of", lambda *given: long_way.append(1) or library(*given))
    for out in (beside[..., 1, :], beside[..., 0, :], whole[..., 1, :]):
        verify(PROBLEM, given, ww.attention(*given, causal=True, out=out, return_lse=True))
    assert len(long_way) == 2
    with pytest.raises(ww.UsageError) as caught:
        ww.attention(*given, causal=True, out=given[0])
    assert str(caught.value) == "attention: out overlaps q; expected memory of its own: leave out= out"


def test_packed_sequences_again(launches, monkeypatch) -> None:
    """Also with other lengths: they are values in memory."""
    problem, outs = Problem(1, 4, 2, 1, 1, 64, causal=True), []
    for seed, lengths in enumerate(([5, 0, 9], [1, 12, 1], [14, 0, 0])):
        given = pack_sequences(problem, lengths, [8, 1, 7], seed)
        arrays = [on_gpu(x) for x in given]
        found = ww.attention_varlen(*arrays, causal=True, return_lse=True)
        verify_packed(problem, given, found)
        outs.append(aligned((14, 4, 64), given.q.dtype))
        assert ww.attention_varlen(*arrays, causal=True, out=outs[-1]) is outs[-1]
        assert np.array_equal(outs[-1], found[0])
        monkeypatch.setattr(varlen, "views_of", None)
    assert [kernel for kernel, *_ in launches] == ["sm90.attention_varlen"] * 6
    assert len({place for _, place, _ in launches}) == 1


def test_other_packed_calls_go_the_long_way(launches, monkeypatch) -> None:
    given = [on_gpu(x) for x in pack_sequences(Problem(1, 4, 2, 1, 1, 64), [5, 0, 9], [8, 1, 7])]
    long_way, library = list[Any](), varlen.views_of
    ww.attention_varlen(*given, causal=True)
    monkeypatch.setattr(varlen, "views_of", lambda *given: long_way.append(1) or library(*given))
    ww.attention_varlen(*given, causal=True)
    assert not long_way
    more = [*given[:3], *(on_gpu(starts([*lengths, 0])) for lengths in ([5, 0, 9], [8, 1, 7]))]
    ww.attention_varlen(*given, causal=True, explain=True)
    ww.attention_varlen(*more, causal=True)
    ww.attention_varlen(*given)
    assert len(long_way) == 3


def test_other_calls_go_the_long_way(launches, monkeypatch) -> None:
    given = [on_gpu(x) for x in normal_qkv(PROBLEM)]
    ww.attention(*given, causal=True)
    long_way: list[Any] = []
    library = forward.views_of
    monkeypatch.setattr(forward, "views_of", lambda *given: long_way.append(1) or library(*given))
    ww.attention(*given, causal=True)
    assert not long_way
    short = [x[:, :, :12] for x in given]
    for inputs, options in (
        (given, {"causal": True, "scale": 0.5}),
        (given, {"causal": True, "return_lse": True}),
        (given, {"causal": True, "explain": True}),
        (given, {"causal": True, "out": aligned(given[0].shape, given[0].dtype)}),
        ([short[0], *given[1:]], {"causal": True}),
    ):
        ww.attention(*inputs, **options)
    monkeypatch.setenv(plan.SETTING, "0")
    ww.attention(*given, causal=True)
    assert len(long_way) == 6 and launches[-1][0] == "sm120.attention_cp_async"


def test_a_graph_has_a_counter_of_its_own(launches, monkeypatch) -> None:
    given, captured = [on_gpu(x) for x in normal_qkv(PROBLEM)], iter((False, True, False))
    monkeypatch.setattr(arrays, "capturing", lambda _: next(captured))
    for _ in range(3):
        ww.attention(*given, causal=True)
    first, second, third = (counter for _, counter, _ in launches)
    assert first == third != second


def test_a_workspace_grows_beside_the_counter(launches) -> None:
    """The keys of few queries are split among CTAs: a larger problem gets a larger workspace, which smaller ones
    share."""
    small, large = ([on_gpu(x) for x in normal_qkv(Problem(2, heads, 2, 1, 300, 64, causal=True))] for heads in (4, 32))
    for given in (small, small, large, small, large, [on_gpu(x) for x in normal_qkv(PROBLEM)]):
        ww.attention(*given, causal=True)
    kernels, places, _ = zip(*launches, strict=True)
    assert kernels == ("sm90_decode.attention",) * 5 + ("sm90.attention",)
    assert places[0] == places[1] != places[2] == places[3] == places[4] != places[5]
