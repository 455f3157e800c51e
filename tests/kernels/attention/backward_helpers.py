"""Problems and launches of the attention backward on a virtual GPU, and comparison of the gradients with float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16, SENTINEL, normal_qkv
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm90.backward_plan import CONFIGS
from warpwright.kernels.reference import FLOAT32_STEP, MMA_K, ulp
from warpwright.lang.trace import Traced
from warpwright.ops.attention import varlen_backward
from warpwright.ops.attention.backward import choose
from warpwright.targets import DEVICES

RTX5090 = ww.vgpu.Device(replace(DEVICES["rtx5090"], sms=4))
B200 = ww.vgpu.Device(replace(DEVICES["b200"], sms=4))
H200 = ww.vgpu.Device(replace(DEVICES["h200"], sms=4))
NAMES = "dq", "dk", "dv"
F16 = np.dtype(np.float16)
SMALL = Problem(1, 2, 1, 100, 150, 64, BF16)
CHANGES: list[dict[str, Any]] = [
    {"batch": 2, "heads": 4, "kv_heads": 2},
    {"head_dim": 128, "q_len": 300, "scale": 0.3},
    {"head_dim": 40, "dtype": F16},
    {"head_dim": 104, "window": (20, 7), "q_len": 250, "dtype": F16},
    {"window": (30, None)},
    {"window": (None, 90), "q_len": 280},
]
Arrays = tuple[np.ndarray, ...]


def random(problem: Problem, seed: int = 0) -> Arrays:
    """Returns Q, K, V and the gradient of the output, of normally distributed numbers."""
    q, k, v = normal_qkv(problem, seed)
    return q, k, v, np.random.default_rng(seed + 1).standard_normal(q.shape).astype(problem.dtype)


@contextmanager
def resident(ctas: int) -> Iterator[None]:
    """Within it the configurations of Hopper's gradients are those for a GPU that runs ``ctas`` CTAs at a time: CTAs
    convert the sums of dQ of an earlier head even of few heads."""
    changed = {key: replace(each, resident=ctas) for key, each in CONFIGS.items()}
    caches = choose, varlen_backward.choose
    with patch.dict(CONFIGS, changed):
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


def arrays(problem: Problem, given: Arrays, config: Any = None, arch: str = "sm_90a") -> dict[str, Any]:
    """Returns all arrays of the launches by name: the forward pass in float64; results and memory are poisoned."""
    q, k, v, do = given
    o, lse = reference.attention(problem, q, k, v)
    found: dict[str, Any] = {"q": q, "k": k, "v": v, "do": do, "o": o.astype(problem.dtype), "dlse": 0}
    found["lse"] = lse.astype(np.float32)
    found |= {name: np.full(each.shape, SENTINEL, problem.dtype) for name, each in zip(NAMES, (q, k, v), strict=True)}
    shapes = choose(problem, arch, config).scratch
    return found | {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}


def launches(
    problem: Problem, values: dict[str, Any], config: Any = None, arch: str = "sm_90a"
) -> Iterator[tuple[Traced, tuple[int, int, int], list[Any]]]:
    """Yields kernel, grid and arguments of each launch."""
    for launch in choose(problem, arch, config).on(values):
        yield launch.kernel, launch.grid, list(launch.args)


def differentiate(problem: Problem, given: Arrays, config: Any = None, device: Any = H200) -> Arrays:
    """Run the launches; returns dQ, dK and dV."""
    arch = device.spec.arch
    values = arrays(problem, given, config, arch)
    for kernel, grid, args in launches(problem, values, config, arch):
        ww.launch(kernel, grid, args=args, device=device)
    return tuple(values[name] for name in NAMES)


def bounds(problem: Problem, given: Arrays) -> Arrays:
    """Returns the largest errors before the results are rounded. Inputs must be finite.

    P, dS and O, from which the mean gradient of a row is computed, are rounded to the dtype: by half a unit in the last
    place, in float16 also by half its smallest number; in bfloat16 weights below the least normal float32 are 0
    (ex2.approx.ftz). The error of a score is that of its float32 sum, a relative error of P and dS.
    """
    q, k, v, do = (np.abs(each.astype(np.float64)) for each in given)
    keys, values = (np.repeat(each, problem.group, axis=1) for each in (k, v))
    weights, _ = reference._weights(problem, *given[:2])
    half = 0.5 * float(ulp(np.ones(1), problem.dtype)[0])
    tiny = 2.0**-25 if problem.dtype == np.float16 else 2.0**-126
    sums = (q @ keys.swapaxes(-1, -2)).max() * problem.factor
    relative = 2 * half + 4 * (sums + 1) * (problem.head_dim // MMA_K + 4) * FLOAT32_STEP
    of_mean = (weights @ values * do).sum(-1, keepdims=True)
    of_ds = weights * (relative * (do @ values.swapaxes(-1, -2) + of_mean)) + tiny
    of_weights = weights * relative + tiny
    by_k, by_v = of_ds.swapaxes(-1, -2) @ q, of_weights.swapaxes(-1, -2) @ do
    summed = [reference._sum_groups(problem, each) for each in (by_k * problem.factor, by_v)]
    return of_ds @ keys * problem.factor, *summed


def verify(problem: Problem, given: Arrays, found: Arrays) -> None:
    """Assert that the gradients equal those in float64 up to the rounding of their dtype."""
    exact = reference.gradients(problem, *given)
    for name, each, wanted, bound in zip(NAMES, found, exact, bounds(problem, given), strict=True):
        allowed = bound + 0.5 * ulp(np.where(wanted == 0, 2.0**-24, wanted), problem.dtype)
        off = np.abs(each.astype(np.float64) - wanted)
        worst = np.unravel_index(np.argmax(off - allowed), off.shape)
        assert (off <= allowed).all(), f"{name}{worst} = {each[worst]}, expected {wanted[worst]} ± {allowed[worst]}"
