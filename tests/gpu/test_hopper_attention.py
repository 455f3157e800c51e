"""Every shipped configuration of the Hopper attention on a real H200, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16, normal_qkv, verify
from tests.kernels.attention.sm90.test_forward import prepare_launch
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm90.plan import CONFIGS, NARROW_VALUES, SLIDING
from warpwright.kernels.reference import ulp

MASKS: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (200, 30)}, {"window": (100, None), "causal": True}]
LENGTHS = [(1, 1000, 0), (333, 700, 8), (700, 333, 0), (1500, 1500, 0)]  # queries, keys, columns fewer than a tile


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)])
def test_configurations(name: str, mask: dict[str, Any], dtype: np.dtype) -> None:
    config = CONFIGS[name]
    for q_len, kv_len, fewer in LENGTHS:
        problem = Problem(2, 6, 3, q_len, kv_len, config.head_dim - fewer, dtype=dtype, **mask)
        given = normal_qkv(problem)
        found, kernel, args, (o, lse, counter) = prepare_launch(problem, config, given, sms=132)
        ww.launch(kernel, found.grid, args=args, device="cuda")
        verify(problem, given, (o, lse))
        assert counter[0] == 0


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("head_dim", "value_dim"), [(192, 128), (128, 64), (136, 72), (64, 128)])
def test_values_of_other_columns(head_dim: int, value_dim: int, mask: dict[str, Any]) -> None:
    for q_len, kv_len, _ in LENGTHS:
        problem = Problem(2, 6, 3, q_len, kv_len, head_dim, value_dim=value_dim, **mask)
        given = normal_qkv(problem)
        found, kernel, args, (o, lse, counter) = prepare_launch(problem, NARROW_VALUES, given, sms=132)
        ww.launch(kernel, found.grid, args=args, device="cuda")
        verify(problem, given, (o, lse))
        assert counter[0] == 0


@pytest.mark.parametrize("window", [256, 384, 1024])
@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)])
def test_windows_of_whole_blocks(window: int, dtype: np.dtype) -> None:
    for q_len, kv_len, columns in ((1500, 1500, 128), (333, 1357, 120)):
        problem = Problem(2, 6, 3, q_len, kv_len, columns, dtype=dtype, window=(window - 1, 0))
        given = normal_qkv(problem)
        found, kernel, args, (o, lse, counter) = prepare_launch(problem, SLIDING, given, sms=132)
        ww.launch(kernel, found.grid, args=args, device="cuda")
        verify(problem, given, (o, lse))
        assert counter[0] == 0


def test_the_virtual_gpu_agrees_in_windows() -> None:
    problem, results = Problem(1, 2, 1, 700, 700, 128, window=(383, 0)), []
    for device in ("cuda", "h200"):
        found, kernel, args, result = prepare_launch(problem, SLIDING, normal_qkv(problem))
        ww.launch(kernel, found.grid, args=args, device=device)
        results.append([each.astype(np.float64) for each in result])
    (o, lse, _), (virtual, virtual_lse, _) = results
    assert np.abs(o - virtual).max() < 2**-7 and np.mean(o != virtual) < 0.05
    np.testing.assert_allclose(lse, virtual_lse, atol=2e-6)


def test_sinks_in_a_window() -> None:
    torch = pytest.importorskip("torch")
    problem, sinks = Problem(2, 8, 8, 1024, 1024, 128, window=(255, 0)), np.linspace(-2, 5, 8, dtype=np.float32)
    given = normal_qkv(problem)
    arrays = [torch.from_numpy(each.astype(np.float32)).cuda().bfloat16() for each in given]
    o, lse, ran = ww.attention(
        *arrays, window=(255, 0), sinks=torch.from_numpy(sinks).cuda(), return_lse=True, explain=True
    )
    assert (ran.kernel, ran.config) == ("sm90.attention", SLIDING)
    exact, exact_lse = reference.attention(problem, *given)
    sunk = np.logaddexp(exact_lse, sinks[:, None])
    np.testing.assert_allclose(lse.cpu().numpy(), sunk, rtol=2e-6, atol=2e-6)
    exact *= np.exp(exact_lse - sunk)[..., None]
    found = o.float().cpu().numpy().astype(np.float64)
    assert (np.abs(found - exact) <= reference.slack(problem, *given) + ulp(exact, BF16)).all()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_virtual_gpu_agrees(name: str) -> None:
    """The same PTX; only ex2 and lg2 differ in their last bits, and the order of sums in the tensor core."""
    problem = Problem(1, 2, 1, 300, 400, CONFIGS[name].head_dim, causal=True)
    results = []
    for device in ("cuda", "h200"):
        found, kernel, args, result = prepare_launch(problem, CONFIGS[name], normal_qkv(problem))
        ww.launch(kernel, found.grid, args=args, device=device)
        results.append([each.astype(np.float64) for each in result])
    (o, lse, _), (virtual, virtual_lse, _) = results
    assert np.abs(o - virtual).max() < 2**-7 and np.mean(o != virtual) < 0.05
    np.testing.assert_allclose(lse, virtual_lse, atol=2e-6)
