"""FP8 attention on a real H200: configurations against float64 and the virtual H200, and `ww.attention` of torch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.fp8_helpers import (
    BAR,
    E4M3,
    random_inputs,
    relative_error,
    rounded_attention,
    run_attention,
    scaled,
)
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm90.fp8_plan import CONFIGS

MASKS: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (200, 30)}, {"window": (100, None), "causal": True}]
KEPT = 2.0**-13  # relative, of a sum of 32 products, of which a tensor core keeps 14 bits
LENGTHS = [(1, 1000, 0), (333, 700, 16), (700, 333, 0), (1500, 3000, 0)]  # queries, keys, columns fewer than a tile


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("wants_lse", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)])
def test_configurations(name: str, wants_lse: bool, mask: dict[str, Any], dtype: np.dtype) -> None:
    config = CONFIGS[name]
    for q_len, kv_len, fewer in LENGTHS:
        problem = Problem(2, 6, 3, q_len, kv_len, config.head_dim - fewer, dtype=E4M3, **mask)
        given, scales = random_inputs(problem)
        o, lse = run_attention(problem, config, given, scales, device="cuda", sms=132, out=dtype, wants_lse=wants_lse)
        wide = scaled(given, scales)
        exact, exact_lse = reference.attention(problem, *wide)
        bar = relative_error(rounded_attention(problem, *wide), exact)
        assert relative_error(o, exact) <= BAR * bar + 2.0**-9
        if not wants_lse:
            continue
        empty = np.isneginf(exact_lse)
        assert np.array_equal(np.isneginf(lse), empty)
        q, k = (each.astype(np.float64) for each in wide[:2])
        largest = np.abs(q @ np.repeat(k, problem.group, 1).swapaxes(2, 3)).max() * problem.factor
        np.testing.assert_allclose(lse[~empty], exact_lse[~empty], atol=KEPT * config.head_dim / 32 * largest)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("wants_lse", [True, False])
def test_the_virtual_gpu_agrees(name: str, wants_lse: bool) -> None:
    """The same PTX, and sums as the tensor core rounds them; only ex2 and lg2 differ in their last bits, which moves a
    weight across a rounding boundary now and then."""
    config = CONFIGS[name]
    problem = Problem(1, 2, 1, 300, 1700, config.head_dim, dtype=E4M3, causal=True)
    given, scales = random_inputs(problem)
    o, lse = run_attention(problem, config, given, scales, device="cuda", wants_lse=wants_lse)
    virtual, virtual_lse = run_attention(problem, config, given, scales, numerics="hardware", wants_lse=wants_lse)
    assert np.mean(o != virtual) < 0.02
    assert relative_error(o, virtual.astype(np.float64)) < 2e-3
    np.testing.assert_allclose(lse, virtual_lse, atol=2e-6)


def test_torch_tensors_on_the_gpu() -> None:
    torch = pytest.importorskip("torch")
    problem = Problem(2, 4, 2, 300, 500, 128, dtype=E4M3, causal=True)
    given, scales = random_inputs(problem)
    config = CONFIGS["128: 128x224"]
    wanted, narrow = (
        run_attention(problem, config, given, scales, device="cuda", sms=132, wants_lse=wants_lse)[0]
        for wants_lse in (True, False)
    )
    q, k, v = (torch.from_numpy(x.view(np.uint8)).cuda().view(torch.float8_e4m3fn) for x in given)
    keywords = dict(zip(("scale_q", "scale_k", "scale_v"), (torch.from_numpy(s).cuda() for s in scales), strict=True))
    for _ in range(3):  # the second call comes from the memo
        found = ww.attention(q, k, v, causal=True, **keywords)
        assert found.dtype == torch.bfloat16
        assert np.array_equal(found.float().cpu().numpy(), narrow.astype(np.float32))
    with_lse, _ = ww.attention(q, k, v, causal=True, return_lse=True, **keywords)
    assert np.array_equal(with_lse.float().cpu().numpy(), wanted.astype(np.float32))
    out = torch.empty_like(found, dtype=torch.float16)
    assert ww.attention(q, k, v, causal=True, out=out, **keywords) is out
    assert relative_error(out.cpu().numpy(), narrow.astype(np.float64)) < 2.0**-8
