"""Every shipped kernel, by the operators that launch it, against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpwright import vgpu
from warpwright.arrays.libraries import NUMPY
from warpwright.errors import UsageError, WarpwrightError
from warpwright.gpu import Device
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention import reference as exact_attention
from warpwright.kernels.attention.sm120.plan import STEPS
from warpwright.kernels.reference import accumulation_slack, finished
from warpwright.ops.attention.backward import gradients
from warpwright.ops.attention.forward import attention
from warpwright.ops.attention.plan import plan_of_step
from warpwright.ops.attention.varlen import attention_varlen
from warpwright.ops.binding import Call
from warpwright.ops.matmul.call import matmul
from warpwright.ops.matmul.plan import LADDERS
from warpwright.report.verdict import Verdict, judge_attention, judge_values
from warpwright.targets import kernels_of

__all__ = ["ABSENT", "VERIFIED", "WRONG", "checks", "row_of"]

Array = NDArray[Any]
Check = Callable[[], Verdict]

ABSENT, VERIFIED, WRONG = "absent", "verified", "wrong"
BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
DTYPES = (BFLOAT16, FLOAT16, np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))
SMALL, LARGE = (136, 72, 88), (2056, 1032, 1096)  # M, N, K on a virtual and on a real GPU
STEEPEST = 1.2  # more than the slope of any activation
OF_ACTIVATION = 2.0**-16  # relative error of an activation in float32
OF_GRADIENT = 2.0**-6  # of the largest gradient: P, dS and O are rounded to 8 bits before they are multiplied


def checks(device: Device) -> dict[str, Check]:
    """Returns a check of each kernel by its name; a check raises UsageError if the device has no such kernel."""
    large = not isinstance(device, vgpu.Device)
    size, length, batch = (LARGE, 1000, 2) if large else (SMALL, 70, 1)
    product = partial(_matmul, device, size)
    found: dict[str, Check] = {
        f"matmul level {level}": partial(product, level=level)
        for level in LADDERS.get(kernels_of(device.spec.arch), ())
    }
    found |= {f"matmul {dtype.name}": partial(product, dtype=dtype) for dtype in DTYPES}
    found |= {f"matmul {layout}": partial(product, layout=layout) for layout in ("nn", "nt", "tn", "tt")}
    found |= {f"matmul {name}": partial(product, activation=name) for name in ("relu", "gelu", "silu")}
    found |= {
        "matmul batches": partial(product, batches=3),
        "matmul scales": partial(product, dtype=DTYPES[2], scale=0.5),
    }
    found["matmul few tiles"] = partial(_matmul, device, (64, 128, 4096))
    base = Problem(batch, 2 * batch, batch, length, length + 77, 128)
    problems = {
        f"head dimension {dim}": replace(base, head_dim=dim, causal=True)
        for dim in ((40, 64, 128, 256) if large else (64, 128))
    }
    problems |= {"window": replace(base, window=(60, 10)), "float16": replace(base, dtype=FLOAT16)}
    problems |= {
        "few keys": replace(base, q_len=50, kv_len=64),
        "few queries": replace(base, q_len=3, kv_len=8 * length),
    }
    found |= {f"attention {name}": partial(_attention, device, problem) for name, problem in problems.items()}
    step = replace(base, kv_heads=base.heads)
    found |= {
        f"attention sm120 step {name}": partial(_attention, device, step, name)
        for name in list(STEPS)[:: 1 if large else 6]
    }
    packed = (length, 1, 0, 64)
    found |= {f"attention packed {dim}": partial(_packed, device, dim, packed) for dim in (64, 128)}
    found |= {
        f"attention gradients {dim}": partial(_gradients, device, replace(base, head_dim=dim)) for dim in (64, 128)
    }
    return found


def row_of(name: str, check: Check) -> dict[str, Any]:
    """Returns the row of a kernel: its verdict, or why there is none."""
    try:
        verdict = check()
    except UsageError as error:
        return {"kernel": name, "status": ABSENT, "why": str(error)}
    except WarpwrightError as error:
        return {"kernel": name, "status": WRONG, "why": str(error)}
    return {"kernel": name, "status": VERIFIED if verdict.verified else WRONG, **verdict.as_row()}


def _normal(*shape: int, dtype: np.dtype[Any] = BFLOAT16, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def _matmul(
    device: Device,
    shape: tuple[int, int, int],
    *,
    dtype: np.dtype[Any] = BFLOAT16,
    layout: str = "nt",
    activation: str = "",
    scale: float | None = None,
    batches: int = 0,
    level: int | None = None,
) -> Verdict:
    """``layout`` has a letter for A and one for B: n for dense rows, t for dense columns."""
    (m, n, k), lead = shape, (batches,) * bool(batches)
    a = _normal(*lead, m, k, dtype=dtype) if layout[0] == "n" else _normal(*lead, k, m, dtype=dtype).swapaxes(-1, -2)
    b = _normal(k, n, dtype=dtype, seed=1) if layout[1] == "n" else _normal(n, k, dtype=dtype, seed=1).T
    bias = _normal(n, dtype=BFLOAT16, seed=2) if activation else None
    more: dict[str, Any] = {"bias": bias, "activation": activation} if activation else {}
    more |= {} if scale is None else {"scale_a": scale, "scale_b": 1.0}
    d = matmul(a, b, device=device, level=level, **more)
    rows, factor = a.reshape(-1, k), 1.0 if scale is None else scale
    exact = finished(rows.astype(np.float64) @ b.astype(np.float64), factor, bias, activation)
    slack = STEEPEST * factor * accumulation_slack(rows, b.T) + bool(activation) * OF_ACTIVATION * (1 + np.abs(exact))
    return judge_values(d.reshape(-1, n), exact, slack)


def _inputs(problem: Problem) -> tuple[Array, Array, Array]:
    q = problem.batch, problem.heads, problem.q_len, problem.head_dim
    k = problem.batch, problem.kv_heads, problem.kv_len, problem.head_dim
    how: dict[str, Any] = {"dtype": problem.dtype}
    return _normal(*q, **how), _normal(*k, **how, seed=1), _normal(*k, **how, seed=2)


def _attention(device: Device, problem: Problem, step: str | None = None) -> Verdict:
    given = _inputs(problem)
    if step is None:
        how: dict[str, Any] = {"causal": problem.causal, "window": problem.window, "device": device}
        return judge_attention(problem, given, *attention(*given, **how, return_lse=True))
    o, lse = np.zeros_like(given[0]), np.zeros(given[0].shape[:3], np.float32)
    values = {**dict(zip("qkv", given, strict=True)), "o": o, "lse": lse}
    Call(device, NUMPY, None, [(plan_of_step(problem, step, device.spec.arch), values)]).start()
    return judge_attention(problem, given, o, lse)


def _packed(device: Device, head_dim: int, lengths: Sequence[int]) -> Verdict:
    """Packed sequences of these lengths, causal; each is judged by itself."""
    starts = np.array([0, *accumulate(lengths)], np.int32)
    problem = Problem(1, 4, 2, int(starts[-1]), int(starts[-1]), head_dim, causal=True)
    q, k, v = (each[0].swapaxes(0, 1).copy() for each in _inputs(problem))
    out, lse = attention_varlen(q, k, v, starts, starts, causal=True, return_lse=True, device=device)
    found = []
    for each, rows, keys in exact_attention.sequences(problem, starts, starts):
        one = tuple(x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        found.append(judge_attention(each, one, out[rows].swapaxes(0, 1)[None], lse[None, :, rows]))
    return worst(found)


def _gradients(device: Device, problem: Problem) -> Verdict:
    given = _inputs(problem)
    do = _normal(*given[0].shape, seed=3)
    o, lse = exact_attention.attention(problem, *given)
    found = gradients(*given, o.astype(problem.dtype), lse.astype(np.float32), do, device=device)
    exact = exact_attention.gradients(problem, *given, do)
    largest = (np.full(each.shape, OF_GRADIENT * np.abs(each).max()) for each in exact)
    return worst([judge_values(*each) for each in zip(found, exact, largest, strict=True)])


def worst(found: Sequence[Verdict]) -> Verdict:
    """Returns the verdict over several results: the largest errors."""
    return Verdict(
        max(each.max_err for each in found),
        max(each.mean_err for each in found),
        min(each.cos_sim for each in found),
        max(each.max_ulp for each in found),
        all(each.verified for each in found),
    )
