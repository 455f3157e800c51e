"""`ww.attention_varlen`, its operator and its kernel on a real H200."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16
from tests.kernels.attention.varlen_helpers import Packed, pack_sequences, prepare_launch, starts, verify_packed
from tests.kernels.test_ragged import copy_sequence
from warpwright.interop.torch import attention_varlen
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.plan import CONFIGS

operator = torch.ops.warpwright.attention_varlen

MASKS: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (200, 30)}, {"window": (100, None), "causal": True}]
Q_LENS = [0, 1, 63, 64, 65, 0, 127, 129, 1000, 40, 7, 0]
K_LENS = [9, 1, 64, 63, 200, 0, 129, 127, 1000, 0, 300, 5]


def tensors(given: Packed) -> list[Any]:
    kinds = {BF16: torch.bfloat16, np.dtype(np.float16): torch.float16}
    three = [torch.from_numpy(x.view(np.int16)).cuda().view(kinds[x.dtype]) for x in given[:3]]
    return [*three, *(torch.from_numpy(x).cuda() for x in given[3:])]


def host(tensor: Any) -> np.ndarray:
    array = tensor.cpu()
    return array.view(torch.int16).numpy().view("bfloat16") if array.dtype == torch.bfloat16 else array.numpy()


@pytest.mark.parametrize(("first", "length"), [(0, 64), (0, 63), (13, 17), (100, 50), (149, 1), (150, 0), (20, 0)])
def test_ragged_maps_do_what_those_of_the_virtual_gpu_do(first: int, length: int) -> None:
    (x, y), (_, virtual) = (copy_sequence(first, length, device) for device in ("cuda", "h200"))
    assert np.array_equal(y, virtual) and np.array_equal(y[first : first + length], x[first : first + length])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)])
def test_configurations(name: str, mask: dict[str, Any], dtype: np.dtype) -> None:
    problem = Problem(1, 6, 3, 1, 1, CONFIGS[name].head_dim, dtype=dtype, **mask)
    given = pack_sequences(problem, Q_LENS, K_LENS)
    grid, kernel, args, (o, lse, counter) = prepare_launch(problem, CONFIGS[name], given, sms=132)
    ww.launch(kernel, grid, args=args, device="cuda")
    verify_packed(problem, given, (o, lse))
    assert counter[0] == 0


@pytest.mark.parametrize("name", CONFIGS)
def test_the_virtual_gpu_agrees(name: str) -> None:
    """The same PTX; only ex2 and lg2 differ in their last bits, and the order of sums in the tensor core."""
    problem = Problem(1, 2, 1, 1, 1, CONFIGS[name].head_dim, causal=True)
    given, results = pack_sequences(problem, [200, 0, 1, 70], [260, 40, 90, 170]), []
    for device in ("cuda", "h200"):
        grid, kernel, args, result = prepare_launch(problem, CONFIGS[name], given)
        ww.launch(kernel, grid, args=args, device=device)
        results.append([each.astype(np.float64) for each in result])
    (o, lse, _), (virtual, virtual_lse, _) = results
    assert np.abs(o - virtual).max() < 2**-7 and np.mean(o != virtual) < 0.05
    np.testing.assert_allclose(lse, virtual_lse, atol=2e-6)


@pytest.mark.parametrize("head_dim", [40, 64, 80, 96, 128, 192, 256])
def test_head_dimensions_of_slices_of_a_projection(head_dim: int) -> None:
    problem = Problem(1, 4, 4, 1, 1, head_dim, causal=True)
    given = pack_sequences(problem, Q_LENS, Q_LENS)
    q, k, v, *cu = tensors(given)
    whole = torch.stack([q, k, v], 1)
    out, lse, ran = ww.attention_varlen(*whole.unbind(1), *cu, causal=True, return_lse=True, explain=True)
    assert (ran.kernel, ran.device) == ("sm90.attention_varlen", "cuda:0")
    verify_packed(problem, given, (host(out), host(lse)))


def test_nothing_leaks_from_one_sequence_into_another() -> None:
    problem = Problem(1, 4, 2, 1, 1, 128, causal=True)
    given = pack_sequences(problem, [300, 77, 129], [300, 90, 200])
    q, k, v, *cu = tensors(given)
    expected, expected_lse = ww.attention_varlen(q, k, v, *cu, causal=True, return_lse=True)
    q[300:377], k[300:390], v[300:390] = (float("nan"),) * 3
    out, lse = ww.attention_varlen(q, k, v, *cu, causal=True, return_lse=True)
    assert out[300:377].isnan().all()
    for rows in (slice(300), slice(377, None)):
        assert torch.equal(out[rows], expected[rows]) and torch.equal(lse[:, rows], expected_lse[:, rows])


def test_each_sequence_is_as_it_is_by_itself() -> None:
    """The same configuration: the same bits. Heads are so many that no sequence alone is one of few queries."""
    lengths = [700, 300, 1024, 513]
    given = pack_sequences(Problem(1, 24, 12, 1, 1, 128), lengths, lengths)
    q, k, v, *cu = tensors(given)
    out = ww.attention_varlen(q, k, v, *cu, causal=True)
    for a, b in itertools.pairwise(given.cu_q.tolist()):
        alone, ran = ww.attention(*(x[None, a:b] for x in (q, k, v)), causal=True, layout="bshd", explain=True)
        assert ran.kernel == "sm90.attention" and torch.equal(alone[0], out[a:b])


def test_calls_that_are_made_again() -> None:
    """With other arrays and lengths, with ``out`` and without; with ``explain`` every call goes the long way."""
    for seed, lengths in enumerate(([100, 200, 300], [0, 1, 599], [600, 0, 0])):
        q, k, v, *cu = tensors(pack_sequences(Problem(1, 4, 2, 1, 1, 64), lengths, lengths, seed))
        expected, lse, _ = ww.attention_varlen(q, k, v, *cu, causal=True, return_lse=True, explain=True)
        for out in (
            None,
            torch.full_like(q, float("nan")),
            torch.zeros(600, 4, 65, device="cuda").bfloat16()[..., :64],
        ):
            found = ww.attention_varlen(q, k, v, *cu, causal=True, return_lse=True, out=out)
            assert torch.equal(found[0], expected) and torch.equal(found[1], lse)
        assert all(map(torch.equal, operator(q, k, v, *cu, True), (expected, lse)))


def test_thousands_of_sequences_and_starts_that_make_no_sense() -> None:
    lengths = np.random.default_rng(0).integers(0, 20, 3000).tolist()
    given = pack_sequences(Problem(1, 2, 1, 1, 1, 64), lengths, lengths)
    q, k, v, *cu = tensors(given)
    out = ww.attention_varlen(q, k, v, *cu, causal=True)
    at = 1234
    a, b = (int(x) for x in given.cu_q[at : at + 2])
    alone = ww.attention(*(x[None, a:b] for x in (q, k, v)), causal=True, layout="bshd")
    assert (out[a:b] - alone[0]).abs().max() < 2e-2 and out.isfinite().all()
    for wrong in ([0, 10**9, 5], [-7, 2**31 - 1, 3], [100, 50, 20]):
        bad = torch.tensor(wrong, dtype=torch.int32, device="cuda")
        ww.attention_varlen(q, k, v, bad, bad, causal=True)
    torch.cuda.synchronize()
    assert torch.equal(ww.attention_varlen(q, k, v, *cu, causal=True), out)


def test_a_graph_whose_lengths_change_and_other_streams() -> None:
    given = pack_sequences(Problem(1, 4, 2, 1, 1, 64), [100, 200, 300], [300, 200, 100])
    q, k, v, *cu = tensors(given)
    operator(q, k, v, *cu, True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = operator(q, k, v, *cu, True)
    for q_lens, k_lens in (([1, 599, 0], [599, 1, 0]), ([0, 300, 300], [200, 200, 200]), ([100, 200, 300],) * 2):
        for tensor, lengths in zip(cu, (q_lens, k_lens), strict=True):
            tensor.copy_(torch.from_numpy(starts(lengths)))
        graph.replay()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            expected = attention_varlen(q, k, v, *cu, True)
        torch.cuda.synchronize()
        assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
        verify_packed(
            Problem(1, 4, 2, 1, 1, 64, causal=True),
            given._replace(cu_q=starts(q_lens), cu_k=starts(k_lens)),
            (host(out), host(lse)),
        )


def test_it_compiles_and_is_registered_as_torch_demands() -> None:
    q, k, v, *cu = tensors(pack_sequences(Problem(1, 2, 1, 1, 1, 64), [30, 50], [60, 20]))

    def model(q: Any, k: Any, v: Any) -> Any:
        return attention_varlen(q * 2, k, v, *cu, True)[0] + 1

    assert (torch.compile(model, fullgraph=True)(q, k, v) - model(q, k, v)).abs().max() < 2e-2
    assert set(torch.library.opcheck(attention_varlen, (q, k, v, *cu), {"causal": True}).values()) == {"SUCCESS"}


def test_arrays_on_two_places() -> None:
    q, k, v, cu_q, cu_k = tensors(pack_sequences(Problem(1, 2, 1, 1, 1, 64), [30, 50], [60, 20]))
    with pytest.raises(ww.UsageError) as caught:
        ww.attention_varlen(q, k, v, cu_q, cu_k.cpu())
    assert str(caught.value) == ("attention: q is on cuda:0 and cu_seqlens_k on the host; expected all on one device")
