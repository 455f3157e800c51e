"""The mma.sync attention on a real GPU: its PTX for sm_90, against float64 and the virtual GPU."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16, arguments, normal_qkv, run_attention, verify
from tests.kernels.attention.backward_helpers import NAMES, arrays, random
from tests.kernels.attention.backward_helpers import verify as verify_gradients
from tests.kernels.attention.varlen_helpers import pack_sequences, prepare_launch, verify_packed
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm120.backward import kernels_of
from warpwright.kernels.attention.sm120.backward_plan import plan as plan_backward
from warpwright.kernels.attention.sm120.plan import CONFIGS, CP_ASYNC, STEPS
from warpwright.kernels.reference import ulp
from warpwright.types import of_dtype

ALL = {
    **STEPS,
    **{f"tma-{head_dim}": config for head_dim, config in CONFIGS.items() if head_dim != 128},
    **{f"cp.async-{head_dim}": config for head_dim, config in CP_ASYNC.items()},
}


def on_gpu(problem, config, *given):
    return run_attention(problem, config, *given, arch="sm_90", device="cuda")


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": (99, 20)}], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_numbers(name, mask) -> None:
    problem = Problem(2, 4, 2, 300, 700, ALL[name].head_dim, **mask)
    given = normal_qkv(problem)
    verify(problem, given, on_gpu(problem, ALL[name], *given))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 129, 1000])
def test_lengths(name, length) -> None:
    for kv_len in (length, 100):
        problem = Problem(1, 1, 1, length, kv_len, ALL[name].head_dim, causal=True, dtype=np.float16)
        given = normal_qkv(problem, length)
        verify(problem, given, on_gpu(problem, ALL[name], *given))


@pytest.mark.parametrize("name", ALL)
def test_the_gpu_and_the_virtual_gpu_agree(name) -> None:
    """But for the approximate powers of two, which may tip a rounding of a weight or of the result."""
    problem = Problem(1, 2, 1, 130, 150, ALL[name].head_dim, causal=True)
    given = normal_qkv(problem)
    real, virtual = (run_attention(problem, ALL[name], *given, arch="sm_90", device=at) for at in ("cuda", "h200"))
    unit = ulp(np.maximum(np.abs(virtual[0].astype(np.float64)), 2.0**-6), BF16)
    assert (np.abs(real[0].astype(np.float64) - virtual[0].astype(np.float64)) <= unit).all()
    np.testing.assert_allclose(real[1], virtual[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["v3", "fewer-syncs", "two-ctas", "cp.async-128"])
def test_nan_and_infinity(name) -> None:
    problem = Problem(1, 1, 1, 70, 80, 128, scale=1.0)
    q, k, v = (x.copy() for x in normal_qkv(problem))
    q *= BF16.type(30)
    k[0, 0, :, 0] = 1.0
    q[0, 0, 3], q[0, 0, 11] = 0.0, 0.0
    q[0, 0, 3, 0], q[0, 0, 11, 0], q[0, 0, 9, 7] = -np.inf, np.inf, np.nan
    out, lse = on_gpu(problem, ALL[name], q, k, v)
    exact, exact_lse = reference.attention(problem, q, k, v)
    assert np.array_equal(np.isnan(out), np.isnan(exact)) and np.isnan(out).any()
    assert np.array_equal(np.isneginf(lse), np.isneginf(exact_lse)) and np.isneginf(lse[0, 0, 3])


def test_ten_thousand_blocks_and_the_same_bits_each_time() -> None:
    """The published kernel hung from 256 blocks on, and its conversion in place was not the same from run to run."""
    problem = Problem(8, 32, 32, 1024, 64, 128)
    given = normal_qkv(problem)
    for name in ("v3", "helpers", "two-ctas"):
        first, again = (on_gpu(problem, ALL[name], *given)[0] for _ in range(2))
        assert np.array_equal(first.view(np.uint16), again.view(np.uint16))
        part = Problem(1, 32, 32, 1024, 64, 128)
        sliced = [x[3:4] for x in given]
        verify(part, sliced, (first[3:4], reference.attention(part, *sliced)[1]))


def test_a_launch_by_hand() -> None:
    problem = Problem(1, 2, 1, 40, 50, 128)
    q, k, v = normal_qkv(problem)
    o, lse = np.zeros_like(q), np.zeros(q.shape[:3], np.float32)
    kernel, grid, args = arguments(problem, CONFIGS[128], (q, k, v, o, lse), "sm_90")
    ww.launch(kernel, grid, args=args, device="cuda")
    verify(problem, (q, k, v), (o, lse))


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": (99, 20)}], ids=str)
@pytest.mark.parametrize("head_dim", [40, 64, 128, 256])
def test_packed_sequences(head_dim, mask) -> None:
    problem = Problem(1, 4, 2, 1, 1, head_dim, **mask)
    lengths = [1, 63, 0, 65, 700, *[3] * 70]
    given = pack_sequences(problem, lengths, [70, 64, 10, 0, 900, *[5] * 70])
    config = CONFIGS[problem.padded_dim]
    grid, kernel, args, (o, lse, _) = prepare_launch(problem, config, given, arch="sm_120a", target="sm_90")
    ww.launch(kernel, grid, args=args, device="cuda")
    verify_packed(problem, given, (o, lse))


def gradients_on_gpu(problem, given):
    """The gradients by the kernels for sm_120a, compiled for sm_90."""
    found, values = plan_backward(problem), arrays(problem, given, arch="sm_120a")
    for kernel, grid in zip(kernels_of(found.config, found.bounds), found.grids, strict=True):
        traced = kernel.trace("sm_90", dtype=of_dtype(problem.dtype))
        args = [found.scalars.get(name, values.get(name)) for name, _ in traced.params]
        ww.launch(traced, grid, args=args, device="cuda")
    return tuple(values[name] for name in NAMES)


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": (99, 20)}], ids=str)
@pytest.mark.parametrize("head_dim", [40, 64, 128])
@pytest.mark.parametrize(("q_len", "kv_len"), [(300, 700), (129, 65), (1, 1000), (1000, 1)])
def test_gradients(head_dim, mask, q_len, kv_len) -> None:
    problem = Problem(2, 4, 2, q_len, kv_len, head_dim, dtype=np.float16 if head_dim == 40 else BF16, **mask)
    given = random(problem)
    found, again = (gradients_on_gpu(problem, given) for _ in range(2))
    verify_gradients(problem, given, found)
    assert all(np.array_equal(x.view(np.uint16), y.view(np.uint16)) for x, y in zip(found, again, strict=True))
