"""Predicted time of the gradients of attention on a virtual GPU: ``python bench/predict_gradients.py [--causal] …``.

Prints the time of each launch and TFLOPS of five GEMMs over the pairs of a query and a visible key, of
the longest launch and of all. With ``--every`` every CTA runs, without data: CTAs of a causal mask have different
lengths, and the first and a middle wave, which represent all others otherwise, have other lengths than all (minutes).
"""

from __future__ import annotations

import argparse
from unittest import mock

import numpy as np

import warpwright as ww
from warpwright.kernels.attention import Problem
from warpwright.ops.attention.backward import gradients
from warpwright.vgpu.timing import device as replay
from warpwright.vgpu.timing.result import Profile

GEMMS = 5 / 2  # of the backward over those of the forward
EVERY = {
    "warpwright.run.profile.choose_clusters": lambda launch, timing: range(int(np.prod(launch.clusters))),
    f"{replay.__name__}._Grid._representative": lambda grid, number: number,
    f"{replay.__name__}._sample_clusters": lambda grid, load: load.clusters,
}


def predict(problem: Problem, device: str, deterministic: bool) -> list[Profile]:
    """Returns the profiles of the launches."""
    of_q = problem.batch, problem.heads, problem.q_len, problem.head_dim
    of_k = problem.batch, problem.kv_heads, problem.kv_len, problem.head_dim
    q, k, v, o, do = (np.zeros(shape, problem.dtype) for shape in (of_q, of_k, of_k, of_q, of_q))
    lse = np.zeros(of_q[:3], np.float32)
    options = {"causal": problem.causal, "device": device, "deterministic": deterministic}
    call = ww.launches(gradients, q, k, v, o, lse, do, **options)
    return [ww.profile(each.kernel, each.grid, args=each.args, device=device) for each in call]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default="2x16x8192x128", help="batch x heads x rows x head dimension")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--device", default="b200")
    parser.add_argument("--deterministic", action="store_true", help="sums in a fixed order")
    parser.add_argument("--every", action="store_true", help="run every CTA")
    options = parser.parse_args()
    batch, heads, rows, head_dim = map(int, options.size.split("x"))
    problem = Problem(batch, heads, heads, rows, rows, head_dim, causal=options.causal)
    patches = [mock.patch(name, value) for name, value in EVERY.items()] if options.every else []
    for patch in patches:
        patch.start()
    profiles = predict(problem, options.device, options.deterministic)
    for each in profiles:
        print(f"{each.kernel:12} {each.time_us:8.1f} µs")
    flops = GEMMS * problem.flops / 1e6
    longest, total = max(each.time_us for each in profiles), sum(each.time_us for each in profiles)
    print(f"{flops / longest:.0f} TFLOPS in the longest launch; {total:.1f} µs, {flops / total:.0f} TFLOPS in all")


if __name__ == "__main__":
    main()
