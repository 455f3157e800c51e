"""The time of each step of the sm_120a attention: ``python bench/attention_steps.py [--length 1024] [--device …]``.

Thirty-two heads of dimension 128, bfloat16, not causal: the extents of the published table. TFLOPS count 4 · heads ·
length² · 128. On a virtual device the times are predicted (``ww.profile``); on a real GPU (``--device cuda``) they are
medians of 20 launches, back to back between CUDA events, on standard normal inputs, of the same kernels' PTX for sm_90.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

import warpwright as ww
from warpwright.gpu import Device
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm120.kernel import kernel_of
from warpwright.kernels.attention.sm120.plan import STEPS, Config, plan

HEADS, HEAD_DIM = 32, 128
ROUNDS = 20
OVER = {
    "rows": "v3",
    "helpers": "rows",
    "two-ten": "rows",
    "fewer-syncs": "rows",
    "registers": "fewer-syncs",
    "two-ctas": "registers",
}


def launch_of(problem: Problem, config: Config, device: Device) -> dict[str, Any]:
    """Returns the arguments of ``ww.launch`` and ``ww.profile``."""
    real = device.name.startswith("cuda")
    found = plan(problem, config=config)
    kernel = kernel_of(config).trace(arch="sm_90" if real else device.spec.arch)
    return {"kernel": kernel, "grid": found.grid, "args": [*arrays(problem, real), *found.scalars]}


def arrays(problem: Problem, real: bool) -> list[Any]:
    """Returns Q, K, V, O and the log-sum-exp: standard normal on a real GPU, else zeros."""
    shape = 1, HEADS, problem.q_len, HEAD_DIM
    if not real:
        return [*(np.zeros(shape, problem.dtype) for _ in range(4)), np.zeros(shape[:3], np.float32)]
    import torch

    four = [torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in range(4)]
    return [*four, torch.zeros(shape[:3], device="cuda")]


def seconds(launch: dict[str, Any], device: Device) -> float:
    """Returns the predicted or the measured seconds."""
    if not device.name.startswith("cuda"):
        return float(ww.profile(**launch, device=device).time_us) * 1e-6
    import torch

    marks = [torch.cuda.Event(enable_timing=True) for _ in range(ROUNDS + 1)]
    for _ in range(3):
        ww.launch(**launch, device=device)
    for mark in marks:
        mark.record()
        ww.launch(**launch, device=device)
    torch.cuda.synchronize()
    times = [first.elapsed_time(second) for first, second in itertools.pairwise(marks)]
    return float(np.median(times)) * 1e-3


def table(length: int, device: Device) -> Iterator[str]:
    """Yields a line for each step."""
    problem = Problem(1, HEADS, HEADS, length, length, HEAD_DIM)
    times: dict[str, float] = {}
    yield "| step | what changes | µs | TFLOPS | gain | over | expected |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, config in STEPS.items():
        times[name] = seconds(launch_of(problem, config, device), device)
        base = OVER.get(name, "")
        gain = f"{times[base] / times[name]:.2f}×" if base else ""
        figures = f"{times[name] * 1e6:.0f} | {problem.flops / times[name] * 1e-12:.1f}"
        yield f"| {name} | {config.summary} | {figures} | {gain} | {base} | {config.expected} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=1024, help="queries and keys of a head")
    parser.add_argument("--device", default="rtx5090", help="one of `warpwright devices`")
    given = parser.parse_args()
    for line in table(given.length, ww.device(given.device)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
