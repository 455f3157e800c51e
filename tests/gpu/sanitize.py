"""compute-sanitizer over the Hopper GEMM: ``python tests/gpu/sanitize.py [--size 1024] [--tools memcheck,racecheck]``.

Every level of the ladder and every shipped configuration multiplies M = N = K = ``--size`` under memcheck, racecheck
and synccheck, FP8 with scales, a bias and an activation, and each result is verified. The exit status is 0 only if no
tool has a finding; `sanitizer` explains how the tools themselves are tested.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import ml_dtypes
import numpy as np
from sanitizer import main

import warpwright as ww
from warpwright import cuda
from warpwright.kernels import gemm
from warpwright.kernels.gemm import sm90
from warpwright.kernels.reference import finished
from warpwright.ops.matmul import trials
from warpwright.types import of_dtype

BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)


def configurations() -> dict[str, sm90.Config]:
    levels = {f"level {level}": config for level, config in sm90.LEVELS.items()}
    return levels | {name: config for name, config in sm90.CONFIGS.items() if not config.promoted}


def multiply(size: int) -> bool:
    """Returns whether the result of every configuration is verified; the work under a tool."""
    right = [multiply_rows(rows, size) for rows in {config.rows or size for config in configurations().values()}]
    return all(right) and multiply_8_bits(size)


def multiply_rows(rows: int, size: int) -> bool:
    """The configurations whose stages have at most ``rows`` rows of A, or with ``rows`` = ``size`` all others."""
    known: dict[bytes, Any] = {}
    right = True
    problem = trials.problem_on_gpu(cuda.device("cuda"), rows, size, size, trials.BFLOAT16, 0)
    with problem as given, contextlib.ExitStack() as memory:
        for name, config in configurations().items():
            if (config.rows or size) != rows:
                continue
            verdict = trials.verify(trials.run_of(config, given, memory), given, known)
            print(f"{name}: {'right' if verdict.verified else 'WRONG'}", flush=True)
            right &= verdict.verified
    return right


def multiply_8_bits(size: int) -> bool:
    """The same for FP8, with every epilogue."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((size, size)).astype(E4M3) for _ in range(2))
    bias, scale, right = random.standard_normal(size).astype(BF16), np.array([0.5], np.float32), True
    expected = finished(a.astype(np.float64) @ b.astype(np.float64).T, 0.125, bias, "gelu")
    epilogue = gemm.Epilogue(scaled=True, bias=of_dtype(BF16), activation="gelu")
    for name, config in ((name, config) for name, config in sm90.CONFIGS.items() if config.promoted):
        rows = config.rows or size
        config = sm90.fit_last(config, rows, size, sms=132)
        traced = sm90.kernel_of(config).trace(dtype=of_dtype(E4M3), epilogue=epilogue)
        plan = sm90.plan_gemm(config, rows, size, size, sms=132, in_bytes=1)
        d = np.full((rows, plan.pitch), np.nan, BF16)
        given = plan.arguments(columns=size, bias=bias, scale_a=scale, alpha=0.25)
        more = *({"b": b, "d": d}[name] for name in plan.maps), *plan.widths
        ww.launch(traced, plan.grid, args=[a[:rows], b, d, *given, *more], device="cuda")
        error = d.astype(np.float64) - expected[:rows]
        verified = np.linalg.norm(error) < 3e-3 * np.linalg.norm(expected[:rows])
        print(f"{name}: {'right' if verified else 'WRONG'}", flush=True)
        right &= bool(verified)
    return right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="M = N = K")
    main(parser, lambda options: multiply(options.size))
