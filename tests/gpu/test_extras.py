"""Scales, bias, activation and 8-bit operands: the GPU gives the bits of the virtual H200; `ww.matmul` uses them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import warpwright as ww
from warpwright.kernels.gemm import Epilogue
from warpwright.kernels.gemm.sm90 import CONFIGS, LEVELS, Config, fit_last, kernel_of, plan_gemm
from warpwright.run.launch import entry_point, launch
from warpwright.types import of_dtype

BF16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
SHIPPED = {**{f"level {level}": config for level, config in LEVELS.items()}, **CONFIGS}
FP8 = [name for name in CONFIGS if name.startswith("fp8")]
SHAPE = (200, 264, 1040)


def results(
    config: Config, types: tuple[Any, Any], epilogue: Epilogue, out: Any = np.float32, *, positive: bool = False
) -> list[np.ndarray]:
    """D of the GPU and of the virtual H200 with the hardware's arithmetic."""
    (m, n, k), random = (config.rows or SHAPE[0], *SHAPE[1:]), np.random.default_rng(0)
    a, b = (random.standard_normal((rows, k)) * 2.0 ** random.integers(-4, 3, (rows, k)) for rows in (m, n))
    a, b = ((np.abs(x) if positive else x).astype(dtype) for x, dtype in zip((a, b), types, strict=True))
    bias = (random.standard_normal(n) * 20).astype(epilogue.bias.dtype) if epilogue.bias else 0
    dtypes = {"dtype": of_dtype(a.dtype), "b_dtype": of_dtype(b.dtype), "out": of_dtype(out)}
    sms = 2 if config.last else 132
    config = fit_last(config, m, n, sms=sms)
    kernel = kernel_of(config).trace(epilogue=epilogue, **dtypes)
    plan = plan_gemm(config, m, n, k, sms=sms, in_bytes=a.itemsize, out_bytes=np.dtype(out).itemsize)
    given = {"columns": n, "bias": bias, "scale_a": np.array([0.3], np.float32), "alpha": 1.7}
    found = []
    for device in ("cuda", "h200"):
        d = np.full((m, plan.pitch), np.nan, out)
        options = {"numerics": "hardware"} if device == "h200" else {}
        more = *({"b": b, "d": d}[name] for name in plan.maps), *plan.widths
        launch(kernel, plan.grid, args=[a, b, d, *plan.arguments(**given), *more], device=device, **options)
        found.append(d[:, :n])
    return found


def assert_same_bits(found: list[np.ndarray]) -> None:
    gpu, virtual = (each.view(f"u{each.itemsize}") for each in map(np.ascontiguousarray, found))
    np.testing.assert_array_equal(gpu, virtual)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("name", FP8)
def test_sums_of_8_bits(name: str, positive: bool) -> None:
    assert_same_bits(results(CONFIGS[name], (E4M3, E4M3), Epilogue(), positive=positive))


@pytest.mark.parametrize("types", [(E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)])
def test_sums_of_mixed_8_bits(types: tuple[Any, Any]) -> None:
    assert_same_bits(results(CONFIGS["fp8 128x128"], types, Epilogue()))


@pytest.mark.parametrize("name", ["level 1", "128x256", "64x64 split 4", *FP8])
def test_scales_bias_and_relu(name: str) -> None:
    config = SHIPPED[name]
    types = (E4M3, E4M3) if config.promoted else (BF16, BF16)
    for bias, out in ((BF16, BF16), (FLOAT16, np.float32), (np.float32, np.float16)):
        assert_same_bits(results(config, types, Epilogue(True, of_dtype(bias), "relu"), out))


@pytest.mark.parametrize("name", ["128x256", "fp8 192x128"])
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_approximate_steps_agree(name: str, activation: str) -> None:
    """ex2.approx and rcp.approx may differ by their documented bounds."""
    config = SHIPPED[name]
    types = (E4M3, E4M3) if config.promoted else (BF16, BF16)
    gpu, virtual = results(config, types, Epilogue(True, of_dtype(BF16), activation))
    np.testing.assert_allclose(gpu, virtual, rtol=2.0**-17, atol=1e-35)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(512, 768, 1024), (33, 100, 64), (7, 65, 48)])
def test_matmul_of_tensors(activation: str | None, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """Three calls: the long way, the prepared one, and one with other addresses."""
    m, n, k = shape
    activate = getattr(torch.nn.functional, activation) if activation else lambda x: x
    for _ in range(3):
        a, w = torch.randn(m, k, device="cuda").to(dtype), torch.randn(n, k, device="cuda").to(dtype)
        bias, scale = torch.randn(n, device="cuda").bfloat16(), torch.rand((), device="cuda")
        given = {"bias": bias, "activation": activation, "scale_a": scale, "scale_b": 0.5}
        d = ww.matmul(a, w.T, out_dtype=torch.float32, **given)
        expected = activate((a.double() @ w.double().T) * scale.double() * 0.5 + bias.double())
        slack = (a.double().abs() @ w.double().abs().T) * scale.double() * 2.0**-12
        limit = slack if dtype.itemsize == 1 else slack / 64
        assert ((d.double() - expected).abs() <= limit + expected.abs() * 2.0**-16 + 1e-6).all()
        rounded = ww.matmul(a, w.T, **given)
        assert rounded.dtype == torch.bfloat16
        assert torch.equal(rounded, d.bfloat16())


def test_a_graph_reads_the_scale_and_the_bias_at_replay() -> None:
    a, w = (torch.randn(256, 128, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    scale, bias, d = (
        torch.ones((), device="cuda"),
        torch.zeros(256, device="cuda"),
        torch.empty(256, 256, device="cuda"),
    )
    given = {"scale_b": scale, "bias": bias, "out": d}
    ww.matmul(a, w.T, **given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ww.matmul(a, w.T, **given)
    first = d.clone()
    scale.fill_(2)
    bias.fill_(3)
    graph.replay()
    torch.testing.assert_close(d, 2 * first + 3, rtol=1e-6, atol=1e-4)


def test_what_is_elsewhere_is_refused() -> None:
    a = torch.zeros(8, 16, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(ww.UsageError) as caught:
        ww.matmul(a, a.T, bias=torch.zeros(8))
    assert str(caught.value) == "matmul: a is on cuda:0 and bias on the host; expected all on one device"
    with pytest.raises(ww.UsageError) as caught:
        ww.matmul(a.cpu(), a.T.cpu(), scale_a=torch.ones((), device="cuda"))
    assert str(caught.value) == "matmul: a is on the host and scale_a on cuda:0; expected it there or on the host"


@pytest.mark.parametrize("name", FP8)
def test_no_local_memory(name: str) -> None:
    device = ww.device("cuda")
    traced = kernel_of(CONFIGS[name]).trace(dtype=of_dtype(E4M3), epilogue=Epilogue(True, of_dtype(BF16), "gelu"))
    entry = entry_point(traced)
    function = device.function(entry.module, entry.name, traced.threads, traced.cluster, traced.smem_bytes)
    assert function.local_bytes == 0 and "C75" not in function.cubin.log
