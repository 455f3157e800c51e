"""Kernels and examples that run under the checks, after an edit of their PTX."""

from __future__ import annotations

import functools
import io
import runpy
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import warpwright as ww
from tests.kernels.gemm.sm90.node_helpers import Gather, Reduce
from tests.races.attention_runs import ATTENTION
from tests.races.watched import Change, Watched, watch_launch, watched_device
from warpwright import targets
from warpwright.kernels.gemm import sm90, sm100
from warpwright.kernels.gemm.slices import add_slices, sum_grid
from warpwright.kernels.gemm.sm90 import all_gather, reduce_scatter
from warpwright.kernels.gemm.sm100 import scaled as sm100_scaled
from warpwright.kernels.gemm.sm120 import scaled as sm120_scaled
from warpwright.kernels.memory_flow import arguments, memory_flow
from warpwright.lang import Kernel
from warpwright.layout.tensor_map import TensorMap
from warpwright.ops.binding import geometry
from warpwright.ops.matmul.call import matmul
from warpwright.ops.matmul.plan import Level, plan_sm90
from warpwright.ops.matmul.quantized import quantize
from warpwright.ops.matmul.scaled import Config as ScaledConfig
from warpwright.run.launch import launch
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

__all__ = ["KERNELS", "blackwell", "hopper", "ladder_gemm"]

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
OTHERS = {"07_attention": "rtx5090"}  # device of an example, if not b200


def _flow(change: Change | None = None) -> Watched:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    watched = Watched(Device(DEVICES["b200"]), change)
    launch(memory_flow, 1, args=arguments(a, b, np.zeros((128, 128), np.float32)), device=watched)
    return watched


def ladder_gemm(
    device: str, level: Level, shape: tuple[int, int, int], sms: int, change: Change | None = None, **options: Any
) -> Watched:
    """Run a bfloat16 GEMM (M, N, K) of the ladder, or of a configuration."""
    m, n, k = shape
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, k), np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n))
    watched = watched_device(device, change, sms)
    matmul(a, b.T, device=watched, level=level, **options)
    return watched


def blackwell(config: sm100.Config, shape: tuple[int, int, int], sms: int, change: Change | None = None) -> Watched:
    """Run a GEMM (M, N, K) by a configuration of the Blackwell kernel with roles."""
    m, n, k = shape
    a, b = (np.ones((extent, k), ml_dtypes.bfloat16) for extent in (m, n))
    found = sm100.plan_gemm(config, m, n, k, out_bytes=2, sms=sms)
    d = TensorMap(np.zeros((m, found.pitch), a.dtype), found.d_box, swizzle=found.d_swizzle)
    maps = [TensorMap(x, box, swizzle=found.swizzle) for x, box in ((a, found.a_box), (b, found.b_box))]
    watched = watched_device("b200", change, sms)
    launch(sm100.kernel_of(config).trace(), found.grid, args=[*maps, d, *found.scalars], device=watched)
    return watched


def scaled_gemm(
    device: str, config: ScaledConfig, name: str, shape: tuple[int, int, int], sms: int, change: Change | None = None
) -> Watched:
    """Run a GEMM (M, N, K) of matrices with block scales by a configuration, with a bias."""
    m, n, k = shape
    random = np.random.default_rng(0)
    a, b = (quantize(random.standard_normal((rows, k), np.float32), name) for rows in (m, n))
    watched = watched_device(device, change, sms)
    matmul(a, b.T, device=watched, level=config, bias=BIAS[:n])
    return watched


def hopper(config: sm90.Config, shape: tuple[int, int, int], sms: int, change: Change | None = None) -> Watched:
    """Run a GEMM (M, N, K) by a configuration of the Hopper kernel, in FP8 or bfloat16; of a configuration with slices
    of K, the launch that computes the slices."""
    m, n, k = shape
    random = np.random.default_rng(0)
    dtype = ml_dtypes.float8_e4m3fn if config.promoted else ml_dtypes.bfloat16
    a, b = (random.standard_normal((rows, k), np.float32).astype(dtype) for rows in (m, n))
    d = np.zeros((m, n), ml_dtypes.bfloat16)
    plan = plan_sm90(config, *map(geometry, (a, b, d)), ("k", "k"), sms)
    scratch = {name: np.zeros(shape, np.float32) for name, shape in plan.scratch.items()}
    values = {"a": a, "b": b, "d": d, "bias": 0, "scale_a": 0, "scale_b": 0, "alpha": 1.0, **scratch}
    watched = watched_device("h200", change, sms)
    first = next(plan.on(values))
    launch(first.kernel, first.grid, args=first.args, device=watched)
    return watched


def _node(kernel: Kernel, args: list[Any], change: Change | None = None) -> Watched:
    """Run a kernel on two ranks, each with one CTA."""
    watched = Watched(Device(targets.device("h200x2")), change)
    launch(kernel, 1, args=args, device=watched)
    return watched


def _all_gather(change: Change | None = None) -> Watched:
    config = replace(all_gather.SENDING, tile=(128, 128), share=(1, 1))
    return _node(all_gather.kernel_of(config, True), Gather(2, 128, 256, 512, config).args, change)


def _reduce_scatter(change: Change | None = None) -> Watched:
    config = replace(reduce_scatter.ALONE, tile=(128, 128), stages=3)
    args = Reduce(2, 128, 256, 512, config).args
    return _node(reduce_scatter.gemm_reduce_scatter.configure(config=config), args, change)


def _sum(change: Change | None = None) -> Watched:
    """Run the launch that adds the slices of a GEMM, which an earlier, possibly unfinished launch writes."""
    m, n, slices = 5, 67, 3
    width = n + 1
    parts = np.random.default_rng(0).standard_normal((slices, m, width), np.float32)
    d = np.zeros((m, width), ml_dtypes.bfloat16)
    watched = Watched(Device(DEVICES["h200"]), change, depends_on=[0])
    scalars = m, n, width, m * width, width, 0, 0, 0, 0, 1.0
    launch(add_slices.trace(slices=slices), sum_grid(m, width), args=[parts, d, *scalars], device=watched)
    return watched


def _slices(change: Change | None = None) -> Watched:
    """Run the first launch of a Blackwell GEMM in slices of K, whose threads store partial sums."""
    watched = watched_device("b200", change, 4)
    a, b = (np.ones((rows, 3200), ml_dtypes.bfloat16) for rows in (60, 1024))
    level = sm100.TILINGS["swapped 128x64 pair, 2 slices"]
    watch_launch(ww.launches(matmul, a, b.T, device=watched.device, level=level), 0, watched)
    return watched


def _example(path: Path, change: Change | None = None) -> Watched:
    """Run an example, without a check of its result."""
    watched = Watched(Device(DEVICES[OTHERS.get(path.stem, "b200")]), change)
    patch = mock.patch.object(ww, "launch", functools.partial(launch, device=watched))
    with patch, suppress(AssertionError), redirect_stdout(io.StringIO()):
        runpy.run_path(str(path))["main"]()
    return watched


MMA_SYNC = 256, 256, 320  # M, N, K: two tiles for each of two SMs
BIAS = np.ones(768, ml_dtypes.bfloat16)
KERNELS: dict[str, Callable[..., Watched]] = {
    "memory_flow": _flow,
    "blackwell 1": functools.partial(ladder_gemm, "b200", 1, (256, 256, 192), 8),
    "blackwell 2": functools.partial(ladder_gemm, "b200", 2, (256, 256, 192), 8),
    "blackwell 3": functools.partial(ladder_gemm, "b200", 3, (256, 256, 640), 8),
    "blackwell 4": functools.partial(ladder_gemm, "b200", 4, (256, 256, 640), 8),
    "blackwell 5": functools.partial(ladder_gemm, "b200", 5, (512, 384, 640), 4),
    "blackwell 6": functools.partial(ladder_gemm, "b200", 6, (384, 384, 640), 4),
    "blackwell 7": functools.partial(ladder_gemm, "b200", 7, (1024, 768, 384), 4),
    "blackwell 8": functools.partial(ladder_gemm, "b200", 8, (1024, 512, 640), 4),
    "blackwell 9": functools.partial(ladder_gemm, "b200", 9, (1024, 768, 384), 4),
    "blackwell 10": functools.partial(ladder_gemm, "b200", 10, (1024, 768, 640), 4),
    "blackwell launch control": functools.partial(
        blackwell, replace(sm100.LEVELS[7], scheduler="clc", share=(2, 1)), (1300, 620, 192), 8
    ),
    "blackwell pair": functools.partial(
        ladder_gemm, "b200", sm100.TILINGS["256x256 pair"], (1024, 768, 640), 4, bias=BIAS, activation="relu"
    ),
    "blackwell alone": functools.partial(
        ladder_gemm, "b200", sm100.TILINGS["128x256"], (256, 768, 640), 1, bias=BIAS, activation="relu"
    ),
    "blackwell swapped": functools.partial(
        ladder_gemm, "b200", sm100.TILINGS["swapped 128x32"], (60, 768, 1600), 2, bias=BIAS
    ),
    "blackwell slices": _slices,
    "blackwell cluster": functools.partial(
        ladder_gemm,
        "b200",
        replace(sm100.TILINGS["swapped 128x128, cluster of 3 slices"], stages=3),
        (120, 128, 1152),
        3,
    ),
    "blackwell halves": functools.partial(
        ladder_gemm, "b200", sm100.TILINGS["128x256 pair, halves"], (768, 768, 512), 4, bias=BIAS, activation="relu"
    ),
    "blackwell multicast": functools.partial(
        ladder_gemm, "b200", sm100.TILINGS["128x192 multicast"], (256, 384, 704), 4, bias=BIAS[:384], activation="relu"
    ),
    "scaled 1": functools.partial(scaled_gemm, "b200", sm100_scaled.LEVELS[1], "mxfp8", (128, 256, 384), 2),
    # The kernels of levels 2 and 3 on persistent clusters, for the loops over tiles to take several.
    "scaled 2": functools.partial(
        scaled_gemm, "b200", replace(sm100_scaled.LEVELS[2], group=1), "mxfp8", (256, 384, 896), 2
    ),
    "scaled 3": functools.partial(
        scaled_gemm, "b200", replace(sm100_scaled.LEVELS[3], group=1), "mxfp8", (512, 768, 896), 4
    ),
    "scaled 5": functools.partial(scaled_gemm, "b200", sm100_scaled.LEVELS[5], "mxfp8", (1024, 768, 768), 4),
    "scaled 7": functools.partial(scaled_gemm, "b200", sm100_scaled.LEVELS[7], "mxfp8", (512, 768, 768), 2),
    "scaled 6": functools.partial(scaled_gemm, "b200", sm100_scaled.LEVELS[6], "mxfp8", (1536, 768, 768), 4),
    "hopper 1": functools.partial(ladder_gemm, "h200", 1, (128, 128, 256), 4),
    "hopper 2": functools.partial(ladder_gemm, "h200", 2, (256, 256, 512), 4),
    "hopper 3": functools.partial(ladder_gemm, "h200", 3, (128, 128, 896), 4),
    "hopper 4": functools.partial(ladder_gemm, "h200", 4, (256, 512, 384), 4),
    "hopper 5": functools.partial(ladder_gemm, "h200", 5, (512, 1024, 384), 4),
    "hopper 6": functools.partial(ladder_gemm, "h200", 6, (512, 1024, 384), 4),
    "hopper 7": functools.partial(ladder_gemm, "h200", 7, (512, 1024, 384), 4),
    "hopper 8": functools.partial(ladder_gemm, "h200", 8, (512, 1024, 384), 4),
    "hopper delayed": functools.partial(hopper, sm90.CONFIGS["128x256"], (512, 1024, 384), 4),
    "hopper two widths": functools.partial(  # the third CTA has no narrow tile
        hopper, replace(sm90.CONFIGS["128x256 two widths"], group=2, last=232), (512, 464, 384), 3
    ),
    "hopper pingpong": functools.partial(  # nine wide tiles and three narrow ones
        hopper,
        replace(sm90.CONFIGS["128x200 pingpong"], tile=(128, 72), stages=8, group=2, last=56),
        (512, 160, 256),
        1,
    ),
    "hopper pair two widths": functools.partial(  # the third pair of CTAs has no narrow tile
        hopper, replace(sm90.CONFIGS["128x256 pair two widths"], group=2, last=232), (1024, 464, 384), 6
    ),
    "hopper pair pingpong": functools.partial(  # nine wide tiles and three narrow ones
        hopper,
        replace(sm90.CONFIGS["128x176 pair pingpong"], tile=(128, 80), stages=8, group=2, last=64),
        (1024, 192, 256),
        2,
    ),
    "hopper 16 rows": functools.partial(hopper, sm90.CONFIGS["64x64 stream rotated, 16 rows"], (16, 128, 3328), 1),
    "hopper split": functools.partial(hopper, sm90.CONFIGS["64x64 split 4"], (60, 120, 5376), 8),
    "hopper fp8 split": functools.partial(hopper, sm90.CONFIGS["fp8 64x64 split 2"], (60, 120, 5376), 4),
    "hopper fp8": functools.partial(hopper, sm90.CONFIGS["fp8 192x128"], (384, 512, 1280), 2),
    "hopper slices": functools.partial(hopper, sm90.CONFIGS["64x64 stream, 2 slices"], (128, 128, 3328), 2),
    "hopper sum": _sum,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    **{
        f"mma.sync gemm {level}": functools.partial(ladder_gemm, "rtx5090", level, MMA_SYNC, 2)
        for level in (1, 2, 4, 6, 7)
    },
    "mma.sync scaled": functools.partial(scaled_gemm, "rtx5090", sm120_scaled.LEVELS[5], "mxfp8", MMA_SYNC, 2),
    **ATTENTION,
    **{f"example {path.stem[:2]}": functools.partial(_example, path) for path in EXAMPLES},
}
