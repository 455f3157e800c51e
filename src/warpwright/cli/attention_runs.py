"""Attention on a device that profiles or checks what it is given to launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.cli.launches import Launch, Substitute
from warpwright.cli.problems import extents, mask_of
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.problem import DTYPES
from warpwright.ops.attention.forward import attention
from warpwright.ops.attention.plan import COUNTER, Explanation
from warpwright.report.verdict import Verdict, judge_attention
from warpwright.run.launch import entry_point
from warpwright.run.profile import profile
from warpwright.vgpu.timing import Profile

__all__ = ["attend", "attention_profile", "counted", "inputs", "titled"]

Array = NDArray[Any]


def inputs(problem: Problem, seed: int | None) -> tuple[Array, Array, Array]:
    """Q, K and V: standard normal, or zero where there is no seed."""
    of_q = problem.batch, problem.heads, problem.q_len, problem.head_dim
    of_k = problem.batch, problem.kv_heads, problem.kv_len, problem.head_dim
    if seed is None:
        return tuple(np.zeros(shape, problem.dtype) for shape in (of_q, of_k, of_k))  # type: ignore[return-value]
    random = np.random.default_rng(seed)
    q, k, v = (random.standard_normal(shape, np.float32).astype(problem.dtype) for shape in (of_q, of_k, of_k))
    return q, k, v


def attend(
    problem: Problem, device: Device, seed: int | None
) -> tuple[tuple[Array, Array, Array], Array, Array, Explanation]:
    """Inputs, output, log-sum-exp, and what ran."""
    given = inputs(problem, seed)
    out, lse, ran = attention(
        *given,
        causal=problem.causal,
        window=problem.window,
        scale=problem.scale,
        device=device,
        return_lse=True,
        explain=True,
    )
    return given, out, lse, ran


def counted(launch: Launch) -> Launch:
    """The launch with a counter of tiles where the kernel can take one: without, as tiles that all see as many keys are
    dealt out, the lines that use it would never be reached."""
    params = entry_point(launch["kernel"]).function.params
    counter = np.zeros(COUNTER, np.uint32)
    args = [counter if param.name == "counter" else value for param, value in zip(params, launch["args"], strict=True)]
    return {**launch, "args": args}


def titled(problem: Problem, ran: Explanation) -> str:
    """The kernel and the problem that it ran, as one line."""
    more = [mask_of(problem)] * bool(mask_of(problem)) + [problem.dtype.name] * (problem.dtype != DTYPES[0])
    return ", ".join([ran.kernel, extents(problem), *more])


def attention_profile(
    device: Device, problem: Problem, fast: bool, sustained: bool = False, seed: int = 0
) -> tuple[Profile, Verdict | None]:
    """The profile of an attention, the longest launch where it takes two; of a full run, with standard normal operands,
    also the verdict on its result.

    Its ``tflops`` count the products of visible pairs.
    """
    if device.name.startswith("cuda"):
        raise UsageError(
            f"given device {device.name}; expected a virtual one, such as h200: a profile is predicted; on a real one "
            "let a profiler watch a launch: ncu --set full warpwright attention --device cuda"
        )
    made: list[Profile] = []

    def act(launch: Launch) -> None:
        made.append(profile(**launch, device=device, fast=fast, sustained=sustained))

    given, out, lse, ran = attend(problem, Substitute(device, act), None if fast else seed)
    verdict = None if fast else judge_attention(problem, given, out, lse)
    found = max(made, key=lambda each: each.time_us)
    others = sum(each.time_us for each in made) - found.time_us
    title = titled(problem, ran) + (f"; a second launch takes {others:.2f} µs" if others else "")
    return replace(found, kernel=title, tflops=problem.flops / found.time_us / 1e6), verdict
