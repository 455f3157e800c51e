"""compute-sanitizer over the Hopper GEMM: ``python tests/gpu/sanitize.py [--size 1024] [--tools memcheck,racecheck]``.

Every rung of the ladder and every configuration of the chooser multiplies M = N = K = ``--size`` under memcheck,
racecheck and synccheck, those for FP8 with scales, a bias and an activation, and each result is verified. The exit
status is 0 only when no tool found anything. Each tool first has to find a fault that is planted for it, so that
silence means something.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright import cuda, trials
from warpwright.kernels import gemm
from warpwright.kernels.reference import finished
from warpwright.lang import Global, If, bar, kernel, smem, tid, u32, warp
from warpwright.types import of_dtype

TOOLS: Mapping[str, list[str]] = {
    "memcheck": ["--report-api-errors", "no"],  # the driver itself asks for functions that may not be there
    "racecheck": [],
    "synccheck": [],
}
SUMMARY = re.compile(r"SUMMARY: (\d+) (?:errors?|hazards?)")
ELSEWHERE = "/usr/local/cuda/bin"
BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
FAR = 1 << 26  # words behind an array, where no other lies


@kernel("sm_90a", threads=64)
def outside(out: Global[u32]) -> None:
    """Writes far behind its array: for memcheck."""
    out[tid.x + FAR] = tid.x


@kernel("sm_90a", threads=64)
def racing(out: Global[u32]) -> None:
    """The warps write the same words with nothing between them: for racecheck."""
    words = smem.array(u32, 32)
    words[tid.x % 32] = tid.x
    out[tid.x] = words[tid.x % 32]


@kernel("sm_90a", threads=64)
def divergent(out: Global[u32]) -> None:
    """Half of a warp leaves out the barrier of the CTA: for synccheck."""
    with If(tid.x < 48):
        bar.sync()
    out[tid.x] = warp.id


PLANTED = {"memcheck": outside, "racecheck": racing, "synccheck": divergent}


def configurations() -> dict[str, gemm.HopperConfig]:
    rungs = {f"level {level}": config for level, config in gemm.HOPPER_LEVELS.items()}
    return rungs | {name: config for name, config in gemm.CONFIGS.items() if not config.promoted}


def multiply(size: int) -> bool:
    """Whether every configuration is right; what a tool watches."""
    known: dict[bytes, Any] = {}
    right = True
    problem = trials.problem(cuda.device("cuda"), size, size, size, trials.BFLOAT16, 0)
    with problem as given, contextlib.ExitStack() as held:
        for name, config in configurations().items():
            verdict = trials.verified(trials.run_of(config, given, held), given, known)
            print(f"{name}: {'right' if verdict.verified else 'WRONG'}", flush=True)
            right &= verdict.verified
    return right and multiply_8_bits(size)


def multiply_8_bits(size: int) -> bool:
    """The same for FP8, with all that may follow the sums."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((size, size)).astype(E4M3) for _ in range(2))
    bias, scale, right = random.standard_normal(size).astype(BF16), np.array([0.5], np.float32), True
    expected = finished(a.astype(np.float64) @ b.astype(np.float64).T, 0.125, bias, "gelu")
    epilogue = gemm.Epilogue(scaled=True, bias=of_dtype(BF16), activation="gelu")
    for name, config in ((name, config) for name, config in gemm.CONFIGS.items() if config.promoted):
        traced = gemm.hopper_kernel(config).trace(dtype=of_dtype(E4M3), epilogue=epilogue)
        plan = gemm.hopper_plan(config, size, size, size, sms=132, in_bytes=1)
        d = np.full((size, plan.pitch), np.nan, BF16)
        given = plan.arguments(columns=size, bias=bias, scale_a=scale, alpha=0.25)
        ww.launch(traced, plan.grid, args=[a, b, d, *given], device="cuda")
        verified = np.linalg.norm(d.astype(np.float64) - expected) < 3e-3 * np.linalg.norm(expected)
        print(f"{name}: {'right' if verified else 'WRONG'}", flush=True)
        right &= bool(verified)
    return right


def plant(tool: str) -> None:
    ww.launch(PLANTED[tool], 1, args=[np.zeros(64, np.uint32)], device="cuda")


def watched(tool: str, what: str, size: int, seconds: int) -> tuple[int, str]:
    """The findings of ``tool`` in this script run as ``--run what``, -1 where it did not come to an end; its output."""
    found = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:{ELSEWHERE}")
    if found is None:
        sys.exit(f"compute-sanitizer is neither on PATH nor in {ELSEWHERE}; it comes with the CUDA toolkit")
    command = [found, "--tool", tool, *TOOLS[tool], sys.executable, __file__, "--run", what, "--size", str(size)]
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env={**os.environ, "PYTHONPATH": paths}
        )
    except subprocess.TimeoutExpired:
        return -1, f"not done after {seconds} s"
    output, summary = done.stdout + done.stderr, SUMMARY.search(done.stdout)
    wrong = what == "ladder" and done.returncode != 0
    return (-1 if wrong or summary is None else int(summary[1])), output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="M = N = K")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--seconds", type=int, default=900, help="for one tool")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        sys.exit(not multiply(options.size) if options.run == "ladder" else plant(options.run))
    clean = True
    for tool in options.tools.split(","):
        planted, _ = watched(tool, tool, options.size, min(options.seconds, 60))
        findings, output = watched(tool, "ladder", options.size, options.seconds)
        good = planted > 0 and findings == 0
        print(f"{tool}: {findings} findings; of the planted fault {planted}: {'clean' if good else 'NOT CLEAN'}")
        if not good:
            print(output)
        clean &= good
    sys.exit(not clean)


if __name__ == "__main__":
    main()
