"""The epilogue of the Hopper GEMM on the virtual H200 (scales, bias, activation), and the accumulation of FP8."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.samples import sampled
from warpwright.kernels.gemm import Epilogue
from warpwright.kernels.gemm.epilogue import ACTIVATIONS
from warpwright.kernels.gemm.sm90 import CONFIGS, LEVELS, Config, kernel_of, plan_gemm
from warpwright.kernels.reference import finished
from warpwright.lang import Global, If, ctaid, f32, kernel, tid, u32
from warpwright.run.launch import launch
from warpwright.types import of_dtype

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
THREADS = 128
BIASES = [(None, BF16), (BF16, np.float16), (np.float16, np.float32), (np.float32, BF16)]  # and the type of D
SHIPPED = {**{f"level {level}": config for level, config in LEVELS.items()}, **CONFIGS}
ONE_LAUNCH = [name for name, config in SHIPPED.items() if config.slices == 1 and not config.last]


@kernel("sm_90a", threads=THREADS)
def apply(x: Global[f32], n: u32, *, activation: str = "relu") -> None:
    i = ctaid.x * THREADS + tid.x
    with If(i < n):
        x[i] = ACTIVATIONS[activation](x[i])


def applied(activation: str, values: np.ndarray) -> np.ndarray:
    x = values.astype(np.float32)
    launch(apply.configure(activation=activation), -(-x.size // THREADS), args=[x, x.size], device="h200")
    return x


def exact(activation: str, x: np.ndarray) -> np.ndarray:
    """In float64, one number at a time."""
    functions = {
        "relu": lambda v: max(v, 0.0),
        "gelu": lambda v: v * math.erfc(-v / math.sqrt(2)) / 2,
        "silu": lambda v: v / (1 + math.exp(-v)),
    }
    return np.array([functions[activation](float(v)) for v in x])


@pytest.mark.parametrize(("activation", "low", "bits"), [("relu", -100, 24), ("gelu", -5, 19), ("gelu", -12.9, 17)])
def test_accuracy_of_activations(activation: str, low: float, bits: int) -> None:
    x = np.concatenate([np.linspace(low, 20, 20_001), np.geomspace(1e-30, 1, 500), -np.geomspace(1e-30, 1, 500)])
    x = x.astype(np.float32)
    expected = exact(activation, x)
    assert (np.abs(applied(activation, x) - expected) <= np.abs(expected) * 2.0**-bits).all()


def test_accuracy_of_silu() -> None:
    x = np.concatenate([np.linspace(-87, 40, 20_001), np.geomspace(1e-30, 1, 500)]).astype(np.float32)
    expected = exact("silu", x)
    assert (np.abs(applied("silu", x) - expected) <= np.abs(expected) * (4 + np.abs(x)) * 2.0**-23).all()
    assert (np.abs(applied("silu", np.linspace(-1e30, -88, 1000))) < 1e-35).all()


def test_edges_of_activations() -> None:
    x = np.array([math.nan, math.inf, -math.inf, 0.0, 3e38, -3e38, 1e-40, -1e-40, -40.0])
    relu, gelu = applied("relu", x), applied("gelu", x)
    assert np.isnan(relu[0]) and np.isnan(gelu[0]) and np.isnan(applied("silu", x)[0])
    assert relu[1:].tolist() == [math.inf, 0, 0, np.float32(3e38), 0, np.float32(1e-40), 0, 0]
    assert gelu[1:6].tolist() == [math.inf, 0, 0, np.float32(3e38), 0]
    assert (np.abs(gelu[6:]) <= 1e-38).all()
    assert applied("silu", x)[1:2].tolist() == [math.inf]


def operands(seed: int, m: int, n: int, k: int, dtype: Any, other: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Random numbers of widely spread magnitudes, with the extremes of each type among them."""
    random = np.random.default_rng(seed)
    found = []
    for rows, each in ((m, dtype), (n, other or dtype)):
        values = random.standard_normal((rows, k)) * 2.0 ** random.integers(-6, 5, (rows, k))
        info: Any = ml_dtypes.finfo(each)
        if np.dtype(each).itemsize == 1:
            values[random.random((rows, k)) < 0.01] = float(info.max)
            values[random.random((rows, k)) < 0.01] = float(info.smallest_subnormal)
        found.append(np.clip(values, float(info.min), float(info.max)).astype(each))
    return found[0], found[1]


def gemm(
    config: Config,
    a: np.ndarray,
    b: np.ndarray,
    epilogue: Epilogue,
    out: Any,
    numerics: str = "exact",
    **more: Any,
) -> np.ndarray:
    """D, filled with NaN before the launch, with a row and columns around it that must stay NaN."""
    (m, k), n, out = a.shape, b.shape[0], np.dtype(out)
    dtypes = {"dtype": of_dtype(a.dtype), "b_dtype": of_dtype(b.dtype), "out": of_dtype(out)}
    plan = plan_gemm(config, m, n, k, sms=6, in_bytes=a.itemsize, out_bytes=out.itemsize)
    d = np.full((m + 1, plan.pitch), np.nan, out)
    args = [a, b, d[:-1], *plan.arguments(**more)]
    traced = kernel_of(config).trace(epilogue=epilogue, **dtypes)
    launch(traced, plan.grid, args=args, device="h200", numerics=numerics)
    assert np.isnan(d[-1].astype(np.float32)).all()
    return d[:-1, :n]


def assert_near(d: np.ndarray, expected: np.ndarray, slack: np.ndarray | float) -> None:
    """Within half a unit in the last place of D's type, and the slack of the accumulation before its rounding."""
    info: Any = ml_dtypes.finfo(d.dtype)
    half = np.maximum(np.abs(expected), float(info.tiny)) * float(info.eps) / 2
    error = np.abs(d.astype(np.float64) - expected)
    assert (error <= half * 1.01 + slack).all(), float((error - half - slack).max())


@sampled(
    "name",
    ONE_LAUNCH,
    every=7,
    keep=["64x64 stream", "fp8 128x128"],
)
def test_every_configuration_scales_adds_and_activates(name: str) -> None:
    config = SHIPPED[name]
    a, b = operands(1, config.rows or 200, 310, 400, E4M3 if config.promoted else BF16)
    bias = np.random.default_rng(2).standard_normal(310).astype(BF16) * np.asarray(100, BF16)
    scale_a = np.array([2.0**-9], np.float32)
    given = {"columns": 310, "bias": bias, "scale_a": scale_a, "alpha": 0.75}
    d = gemm(config, a, b, Epilogue(True, of_dtype(BF16), "gelu"), np.float32, **given)
    sums = a.astype(np.float64) @ b.astype(np.float64).T
    slack = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T * 2.0**-20 * 0.75 * 2.0**-9
    expected = finished(sums, 0.75 * 2.0**-9, bias, "gelu")
    # gelu's slope is below 1.13, its relative error below 2^-17
    assert_near(d, expected, 1.2 * (slack + np.abs(bias.astype(np.float64)) * 2.0**-24) + np.abs(expected) * 2.0**-17)


@sampled(
    ("activation", "bias", "out"),
    [(activation, *types) for activation in ("", "relu", "gelu", "silu") for types in BIASES],
    every=5,
)
def test_every_bias_and_activation(bias: Any, activation: str, out: Any) -> None:
    a, b = (x * np.asarray(0.125, BF16) for x in operands(3, 70, 136, 72, BF16))
    given = None if bias is None else np.random.default_rng(4).standard_normal(136).astype(bias)
    more = {} if given is None else {"columns": 136, "bias": given}
    d = gemm(CONFIGS["64x128"], a, b, Epilogue(False, bias and of_dtype(bias), activation), out, **more)
    sums = a.astype(np.float64) @ b.astype(np.float64).T
    slack = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T * 2.0**-21
    expected = finished(sums, 1.0, given, activation)
    assert_near(d, expected, 1.2 * slack + np.abs(expected) * 2.0**-16 + 2.0**-24)


@pytest.mark.parametrize("name", ["128x256", "128x128"])
@pytest.mark.parametrize(("activation", "out"), [("", BF16), ("relu", np.dtype(np.float16))])
def test_a_delayed_tile_has_the_bits_of_one_that_is_stored_at_once(name: str, activation: str, out: Any) -> None:
    a, b = operands(7, 1030, 712, 136, BF16)  # three tiles a CTA or more
    given = {"columns": 712, "bias": np.random.default_rng(8).standard_normal(712).astype(BF16), "alpha": 0.5}
    epilogue = Epilogue(True, of_dtype(BF16), activation)
    late, at_once = (
        gemm(replace(CONFIGS[name], delayed=delayed), a, b, epilogue, out, **given) for delayed in (True, False)
    )
    assert np.isfinite(late.astype(np.float32)).all()
    assert np.array_equal(late, at_once)


@sampled(
    ("name", "types"),
    [(name, (E4M3, E4M3)) for name in ONE_LAUNCH if name.startswith("fp8")]
    + [("fp8 64x64", types) for types in ((E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2))],
    every=4,
)
def test_every_fp8_configuration_is_right(name: str, types: tuple[Any, Any]) -> None:
    a, b = operands(5, CONFIGS[name].rows or 260, 200, 656, *types)
    d = gemm(CONFIGS[name], a, b, Epilogue(), np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    assert_near(d, expected, np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T * 2.0**-18)


@pytest.mark.parametrize("name", ["fp8 128x256", "fp8 64x64 stream"])
@pytest.mark.parametrize("positive", [False, True])
def test_sums_over_128_of_k_keep_the_error_of_14_bits_from_adding_up(name: str, positive: bool) -> None:
    """With 14 bits over all of K, as on a real Hopper, the error grows with K, most for positive numbers."""
    random = np.random.default_rng(6)
    a, b = (random.standard_normal((64, 8192)) for _ in range(2))
    a, b = ((np.abs(x) if positive else x).astype(E4M3) for x in (a, b))
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    ours, fast = (
        np.linalg.norm(gemm(config, a, b, Epilogue(), np.float32, "hardware") - expected) / np.linalg.norm(expected)
        for config in (CONFIGS[name], Config((64, 64), consumers=1, share=(1, 1)))
    )
    assert ours < (1e-3 if positive else 2e-4)
    assert fast > (30 if positive else 10) * ours


def test_nan_and_infinity_pass_through_8_bits() -> None:
    a, b = operands(7, 64, 64, 128, E5M2)
    a[3, 5], a[4, 6], b[5, 7] = np.nan, np.inf, -np.inf
    d = gemm(CONFIGS["fp8 64x64"], a, b, Epilogue(activation="relu"), BF16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T, 0)
    assert np.array_equal(np.isnan(d), np.isnan(expected)) and np.isnan(d[3]).all()
    assert np.array_equal(np.isinf(d), np.isinf(expected)) and np.isinf(d).any()
