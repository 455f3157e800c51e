"""Attention for the commands: inputs, the call, and its profile."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpwright.arrays.libraries import NUMPY
from warpwright.cli.launches import profile_each
from warpwright.cli.problems import check_elements, counted, extents, mask_of
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.problem import DTYPES
from warpwright.ops.attention.forward import attention
from warpwright.ops.attention.plan import COUNTER, Explanation, explain, plan_of_step
from warpwright.ops.binding import Call, Launch
from warpwright.ops.launches import launches
from warpwright.report.verdict import Verdict, judge_attention

if TYPE_CHECKING:
    from warpwright.vgpu.timing import Profile

__all__ = ["attention_profile", "call_of", "inputs", "title_of", "with_counter"]

Array = NDArray[Any]
Inputs = tuple[Array, Array, Array]


def inputs(problem: Problem, seed: int | None) -> Inputs:
    """Returns Q, K and V: standard normal, or zero without a seed."""
    of_q = problem.batch, problem.heads, problem.q_len, problem.head_dim
    of_k = problem.batch, problem.kv_heads, problem.kv_len, problem.head_dim
    check_elements(math.prod(of_q) + 2 * math.prod(of_k))
    if seed is None:
        return tuple(np.zeros(shape, problem.dtype) for shape in (of_q, of_k, of_k))  # type: ignore[return-value]
    random = np.random.default_rng(seed)
    q, k, v = (random.standard_normal(shape, np.float32).astype(problem.dtype) for shape in (of_q, of_k, of_k))
    return q, k, v


def call_of(problem: Problem, device: Device, seed: int | None, step: str | None = None) -> tuple[Inputs, Call]:
    """Returns inputs and the call of attention on them, whose result is O, the log-sum-exp, and the explanation; with
    ``step`` by this step of the sm_120a kernel."""
    q, k, v = inputs(problem, seed)
    if step is not None:
        plan = plan_of_step(problem, step, device.spec.arch)
        o, lse = np.zeros_like(q), np.zeros(q.shape[:3], np.float32)
        values = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
        return (q, k, v), Call(device, NUMPY, (o, lse, explain(plan, device.name)), [(plan, values)])
    how: dict[str, Any] = {"causal": problem.causal, "window": problem.window, "scale": problem.scale}
    return (q, k, v), launches(attention, q, k, v, **how, device=device, return_lse=True, explain=True)


def with_counter(launch: Launch) -> Launch:
    """Returns the launch with a tile counter if the kernel has that parameter. A call whose tiles all see equally many
    keys passes no counter, and a check of it would not reach the lines that use one."""
    names, counter = [name for name, _ in launch.kernel.params], np.zeros(COUNTER, np.uint32)
    args = [counter if name == "counter" else value for name, value in zip(names, launch.args, strict=True)]
    return replace(launch, args=tuple(args))


def title_of(problem: Problem, ran: Explanation) -> str:
    """Returns one line with the kernel and its problem."""
    more = [mask_of(problem)] * bool(mask_of(problem)) + [problem.dtype.name] * (problem.dtype != DTYPES[0])
    return ", ".join([ran.kernel, extents(problem), *more])


def attention_profile(
    device: Device,
    problem: Problem,
    fast: bool,
    sustained: bool = False,
    seed: int = 0,
    step: str | None = None,
    warm: bool = False,
) -> tuple[Profile, Verdict | None]:
    """Returns the profile of the longest launch of an attention, and for a full run, with standard normal operands, the
    verdict on the result.

    ``tflops`` count both GEMMs over the visible pairs of a query and a key.
    """
    if device.name.startswith("cuda"):
        raise UsageError(
            f"given device {device.name}; expected a virtual one, such as h200: a profile is predicted; on a real one "
            "let a profiler watch a launch: ncu --set full warpwright attention --device cuda"
        )
    given, call = call_of(problem, device, None if fast else seed, step)
    profiles = profile_each(call, device, fast, sustained, warm)
    out, lse, ran = call.result
    verdict = None if fast else judge_attention(problem, given, out, lse)
    longest = max(profiles, key=lambda each: each.time_us)
    others = sum(each.time_us for each in profiles) - longest.time_us
    title = f"{title_of(problem, ran)} ({counted(problem)})" + (
        f"; a second launch takes {others:.2f} µs" if others else ""
    )
    return replace(longest, kernel=title, tflops=problem.flops / longest.time_us / 1e6), verdict
