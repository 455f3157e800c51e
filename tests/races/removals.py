"""Kernels and examples that run under the checks, after an edit of their PTX."""

from __future__ import annotations

import functools
import io
import runpy
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import warpwright as ww
from tests.kernels.attention import attention_helpers
from tests.kernels.attention.attention_helpers import normal_qkv
from tests.kernels.attention.decode_helpers import launches
from tests.kernels.attention.fp8_helpers import E4M3, random_inputs
from tests.kernels.attention.fp8_helpers import launches as fp8_launches
from tests.kernels.attention.paged_helpers import fill_pages, paged_launches
from tests.kernels.attention.varlen_helpers import pack_sequences, prepare_launch
from tests.kernels.gemm.sm90.node_helpers import Gather, Reduce
from tests.races.watched import Change, Watched
from warpwright import targets
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.kernels.attention.sm90.backward_plan import BackwardConfig
from warpwright.kernels.attention.sm90.decode import kernel_of
from warpwright.kernels.attention.sm90.decode_plan import DecodeConfig
from warpwright.kernels.attention.sm90.fp8_plan import Fp8Config
from warpwright.kernels.attention.sm100 import backward_plan as sm100_backward_plan
from warpwright.kernels.attention.sm100 import decode as sm100_decode
from warpwright.kernels.attention.sm100 import decode_plan as sm100_decode_plan
from warpwright.kernels.attention.sm100 import plan as sm100_plan
from warpwright.kernels.attention.sm120 import backward_plan as sm120_backward_plan
from warpwright.kernels.attention.sm120 import plan as sm120_plan
from warpwright.kernels.attention.sm120.plan import CP_ASYNC, STEPS
from warpwright.kernels.gemm import sm90, sm100
from warpwright.kernels.gemm.slices import add_slices, sum_grid
from warpwright.kernels.gemm.sm90 import all_gather, reduce_scatter
from warpwright.kernels.gemm.sm100 import scaled as sm100_scaled
from warpwright.kernels.gemm.sm120 import scaled as sm120_scaled
from warpwright.kernels.memory_flow import arguments, memory_flow
from warpwright.lang import Kernel
from warpwright.layout.tensor_map import TensorMap
from warpwright.ops.attention.backward import choose as choose_backward
from warpwright.ops.attention.backward import describe as describe_gradients
from warpwright.ops.attention.forward import describe as describe_attention
from warpwright.ops.attention.plan import OWN
from warpwright.ops.attention.varlen_backward import describe as describe_packed
from warpwright.ops.binding import geometry
from warpwright.ops.launches import launches as launches_of
from warpwright.ops.matmul.call import matmul
from warpwright.ops.matmul.plan import Level, plan_sm90
from warpwright.ops.matmul.quantized import quantize
from warpwright.ops.matmul.scaled import Config as ScaledConfig
from warpwright.run.launch import launch
from warpwright.targets import DEVICES
from warpwright.types import bf16
from warpwright.vgpu import Device

__all__ = [
    "KERNELS",
    "Change",
    "Watched",
    "attention_backward",
    "blackwell",
    "hopper",
    "ladder_gemm",
    "mma_sync",
    "modified",
    "modified_backward",
    "packed_backward",
    "scaled_gemm",
    "sees_document",
]

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
OTHERS = {"07_attention": "rtx5090"}  # device of an example, if not b200


def _watched_device(device: str, change: Change | None, sms: int) -> Watched:
    """Returns a device with few SMs, so that clusters compute several tiles."""
    return Watched(Device(replace(DEVICES[device], sms=sms)), change)


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
    watched = _watched_device(device, change, sms)
    matmul(a, b.T, device=watched, level=level, **options)
    return watched


def blackwell(config: sm100.Config, shape: tuple[int, int, int], sms: int, change: Change | None = None) -> Watched:
    """Run a GEMM (M, N, K) by a configuration of the Blackwell kernel with roles."""
    m, n, k = shape
    a, b = (np.ones((extent, k), ml_dtypes.bfloat16) for extent in (m, n))
    found = sm100.plan_gemm(config, m, n, k, out_bytes=2, sms=sms)
    d = TensorMap(np.zeros((m, found.pitch), a.dtype), found.d_box, swizzle=found.d_swizzle)
    maps = [TensorMap(x, box, swizzle=found.swizzle) for x, box in ((a, found.a_box), (b, found.b_box))]
    watched = _watched_device("b200", change, sms)
    launch(sm100.kernel_of(config).trace(), found.grid, args=[*maps, d, *found.scalars], device=watched)
    return watched


def scaled_gemm(
    device: str, config: ScaledConfig, name: str, shape: tuple[int, int, int], sms: int, change: Change | None = None
) -> Watched:
    """Run a GEMM (M, N, K) of matrices with block scales by a configuration, with a bias."""
    m, n, k = shape
    random = np.random.default_rng(0)
    a, b = (quantize(random.standard_normal((rows, k), np.float32), name) for rows in (m, n))
    watched = _watched_device(device, change, sms)
    matmul(a, b.T, device=watched, level=config, bias=BIAS[:n])
    return watched


def mma_sync(config: sm120_plan.Config, problem: Problem, change: Change | None = None) -> Watched:
    """Run attention by mma.sync."""
    q, k, v = normal_qkv(problem)
    kernel, grid, args = attention_helpers.arguments(
        problem, config, (q, k, v, np.zeros_like(q), np.zeros(q.shape[:3], np.float32))
    )
    watched = Watched(Device(DEVICES["rtx5090"]), change)
    launch(kernel, grid, args=args, device=watched)
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
    watched = _watched_device("h200", change, sms)
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
    watched = _watched_device("b200", change, 4)
    a, b = (np.ones((rows, 3200), ml_dtypes.bfloat16) for rows in (60, 768))
    level = sm100.TILINGS["swapped 128x64 pair, 2 slices"]
    _watch_launch(ww.launches(matmul, a, b.T, device=watched.device, level=level), 0, watched)
    return watched


def _forward(
    device: str, problem: Problem, config: Any, keys: int, change: Change | None = None, *, growth: int = 1
) -> Watched:
    """Run attention by an sm_90a or sm_100a kernel on one CTA, with the log-sum-exp and, where the kernel has one, a
    tile counter; then tiles with one, two and three blocks of ``keys`` keys. ``growth`` multiplies Q, so that the
    maxima of the scores grow along the keys."""
    _, plan, kernel_of = OWN[DEVICES[device].arch]
    watched = _watched_device(device, change, 1)
    few = (replace(problem, batch=3, q_len=32, kv_len=blocks * keys) for blocks in (1, 2, 3))
    for each in (problem, *few):
        found = plan(each, sms=1, config=config)
        kernel = kernel_of(config).trace(dtype=bf16, bounds=found.bounds)
        q, k, v = _tensors(each, ("q", "k", "v"))
        rest = {"lse": np.zeros(q.shape[:3], np.float32), "counter": np.zeros(1, np.uint32)}
        tail = [array for name, array in rest.items() if name in dict(kernel.params)]
        launch(kernel, found.grid, args=[growth * q, k, v, np.zeros_like(q), *tail, *found.scalars], device=watched)
    return watched


def _attention_fp8(problem: Problem, config: Fp8Config, change: Change | None = None) -> Watched:
    """Run FP8 attention on one CTA, then tiles with one, two and three blocks of keys; the launch that transposes V
    runs without a check."""
    watched = _watched_device("h200", change, 1)
    few = (replace(problem, batch=3, q_len=32, kv_len=blocks * config.tile[1]) for blocks in (1, 2, 3))
    for each in (problem, *few):
        (before, found), _ = fp8_launches(each, config, *random_inputs(each), sms=1)
        for (kernel, grid, args), device in ((before, watched.device), (found, watched)):
            launch(kernel, grid, args=args, device=device)
    return watched


def _packed_sequences(name: str, change: Change | None = None, *, growth: int = 1) -> Watched:
    """Run attention of packed sequences on one CTA: tiles of many blocks of keys, then of one, two and three blocks.
    ``growth`` as in `_forward`."""
    device, problem, config, block = ATTENTIONS[name]
    watched = _watched_device(device, change, 1)
    few = (([32] * 3, [blocks * block] * 3) for blocks in (1, 2, 3))
    for queries, keys in (([640, 0, 130], [672, 70, 200]), *few):
        packed = pack_sequences(problem, queries, keys)
        sequences = packed._replace(q=growth * packed.q)
        grid, kernel, args, _ = prepare_launch(problem, config, sequences, sms=1, arch=DEVICES[device].arch)
        launch(kernel, grid, args=args, device=watched)
    return watched


def modified(number: int, problem: Problem, change: Change | None = None, **functions: Any) -> Watched:
    """Run the ``number``-th launch of Hopper's attention with functions, masks and sinks of a user, then tiles with
    one, two and three blocks of keys; a launch before it runs without a check."""
    watched = _watched_device("h200", change, 1)
    for each in (problem, *(replace(problem, batch=3, q_len=32, kv_len=blocks * 128) for blocks in (1, 2, 3))):
        options = {"causal": each.causal, "window": None, "scale": None, "layout": "bhsd", "out": None}
        call = describe_attention(
            *_tensors(each, "qkv"), **options, **functions, device=watched.device, return_lse=True, explain=False
        )
        _watch_launch(call, number, watched)
    return watched


def _watch_launch(call: Iterable[Any], number: int, watched: Watched) -> None:
    """Run the launches of a call up to the ``number``-th, which is checked."""
    for index, found in zip(range(number + 1), call, strict=False):
        launch(found.kernel, found.grid, args=found.args, device=watched if index == number else watched.device)


def sees_document(batch: Any, head: Any, q: Any, k: Any) -> Any:
    """Documents of 160 positions, and no key for the last queries: blocks that all queries of a tile see, some, and
    none, and a tile without a block."""
    return ((DOCUMENTS[q] == DOCUMENTS[k]) | (k < 320)) & (q < 512)


def _packed_sequences_mma(change: Change | None = None) -> Watched:
    """Run attention of packed sequences by mma.sync: several sequences, one of them empty; more than 32 blocks."""
    watched = Watched(Device(DEVICES["rtx5090"]), change)
    sequences = pack_sequences(FEW, [100, 0, 1, 40], [290, 5, 70, 40])
    grid, kernel, args, _ = prepare_launch(FEW, sm120_plan.CONFIGS[64], sequences, arch="sm_120a")
    launch(kernel, grid, args=args, device=watched)
    return watched


def _few_queries(
    config: DecodeConfig,
    change: Change | None = None,
    *,
    number: int = 0,
    device: str = "h200",
    first: Any = kernel_of,
    growth: int = 1,
) -> Watched:
    """Run attention of few queries: three CTAs that share tiles, then one CTA with tiles of one, two and three blocks.
    ``number`` 1 runs only the second launch of the first problem; its workspace is that of an earlier launch, which
    need not have ended. ``growth`` as in `_forward`."""
    watched = _watched_device(device, change, 3)
    many = replace(FEWER, kv_len=4 * config.keys + 2)  # tiles of five blocks, two and two thirds a CTA
    few = ((replace(FEWER, batch=2, kv_len=blocks * config.keys), 1) for blocks in (1, 2, 3))
    for problem, sms in ((many, 3), *few)[: 1 if number else None]:
        q, k, v = normal_qkv(problem)
        kernel, grid, args = launches(problem, (growth * q, k, v), sms, config, first=first)[1][number]
        watched.depends_on = [list(kernel.params).index("workspace")] * number
        launch(kernel, grid, args=args, device=watched)
    return watched


def _paged(config: DecodeConfig | None, change: Change | None = None, *, number: int = 0) -> Watched:
    """Run attention over keys in pages, of few queries where ``config`` is given, else of packed chunks. ``number`` 1
    is the second launch of few queries, or the attention after the launch that writes new rows."""
    watched, each = _watched_device("h200", change, 3), Problem(4, 24, 4, 4, 258, 64, causal=True)
    if config is not None:
        given = fill_pages(each, 16, [258, 70, 30, 4])  # tiles of five blocks, of two and of one
        kernel, grid, args, _ = paged_launches(each, given, 3, config)[number]
        watched.depends_on = [list(kernel.params).index("workspace")] * number
        launch(kernel, grid, args=args, device=watched)
        return watched
    given = fill_pages(replace(each, q_len=140, kv_len=400, heads=2, kv_heads=1), 48, [60, 30, 400])  # first one block
    q, cu = np.concatenate([given.q[0, :5], given.q[1, :5], given.q[2]]), np.array([0, 5, 10, 150], np.int32)
    new = {name: np.ones((150, 1, 64), q.dtype) for name in "kv"}
    lengths = given.lengths - np.diff(cu)
    options = {"cu_seqlens_q": cu, "causal": True, "return_lse": True, "device": watched.device}
    call = launches_of(ww.attention_paged, q, *given[1:4], lengths, **new, **options)
    _watch_launch(call, number, watched)
    return watched


def attention_backward(
    number: int, problem: Problem, config: Any, change: Change | None = None, device: str = "h200"
) -> Watched:
    """Run one of the launches of attention's gradients; the arrays of the other launches have no defined contents."""
    plan = choose_backward(problem, DEVICES[device].arch, config)
    names = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
    tensors = dict(zip(names, _tensors(problem, names), strict=True))
    rows = {name: np.zeros(tensors["q"].shape[:3], np.float32) for name in ("lse", "dlse")}
    scratch = {name: np.zeros(shape, np.float32) for name, shape in plan.scratch.items()}
    each = list(plan.on({**tensors, **rows, **scratch}))[number]
    watched = _watched_device(device, change, 4)
    launch(each.kernel, each.grid, args=each.args, device=watched)
    return watched


def modified_backward(number: int, change: Change | None = None) -> Watched:
    """Run one of the launches of the gradients with a function of the score, a mask function, a cap and sinks; the
    launches before run without a check."""
    watched, each = _watched_device("h200", change, 4), replace(CAUSAL, causal=False)
    q, k, v, o, do = _tensors(each, ("q", "k", "v", "o", "do"))
    options = {"causal": False, "window": None, "scale": None, "layout": "bhsd", "device": watched.device}
    rows = np.zeros(q.shape[:3], np.float32)
    functions: dict[str, Any] = {"softcap": 4.0, "sinks": np.ones(2, np.float32), "mask_mod": sees_document}
    functions["score_mod"] = lambda score, batch, head, q, k: score * 0.5
    call = describe_gradients(q, k, v, o, rows, do, dlse=rows, **options, **functions)
    _watch_launch(call, number, watched)
    return watched


def packed_backward(number: int, change: Change | None = None) -> Watched:
    """Run one of the launches of the gradients of packed sequences, two of them without queries or without keys; the
    launches before run without a check."""
    watched, each = _watched_device("h200", change, 4), replace(CAUSAL, batch=1)
    given = pack_sequences(each, [300, 0, 70, 5], [330, 20, 70, 0])
    rows = np.zeros((2, len(given.q)), np.float32)
    arrays = {"q": given.q, "k": given.k, "v": given.v, "o": given.q, "do": given.q, "lse": rows, "dlse": rows}
    starts = {"cu_seqlens_q": given.cu_q, "cu_seqlens_k": given.cu_k}
    options = {"causal": True, "scale": None, "window": None, "device": watched.device}
    call = describe_packed(**arrays, **starts, **options)
    _watch_launch(call, number, watched)
    return watched


def _tensors(problem: Problem, names: Iterable[str]) -> list[Any]:
    """Returns random arrays (batch, heads, rows, head_dim); those of keys and values are called k, v, dk, dv."""
    random, queries = np.random.default_rng(0), (problem.heads, problem.q_len)
    extents = [(problem.kv_heads, problem.kv_len) if name[-1] in "kv" else queries for name in names]
    shapes = [(problem.batch, *each, problem.head_dim) for each in extents]
    return [random.standard_normal(shape, np.float32).astype(problem.dtype) for shape in shapes]


def _example(path: Path, change: Change | None = None) -> Watched:
    """Run an example, without a check of its result."""
    watched = Watched(Device(DEVICES[OTHERS.get(path.stem, "b200")]), change)
    patch = mock.patch.object(ww, "launch", functools.partial(launch, device=watched))
    with patch, suppress(AssertionError), redirect_stdout(io.StringIO()):
        runpy.run_path(str(path))["main"]()
    return watched


MMA_SYNC = 256, 256, 320  # M, N, K: two tiles for each of two SMs
FEW = Problem(1, 1, 1, 100, 290, 64, causal=True)
FEW_BACKWARD = Problem(1, 2, 1, 230, 290, 64, causal=True)
STEPS_BACKWARD = Problem(1, 2, 1, 390, 300, 64, causal=True)  # up to eight steps a CTA
CAUSAL = Problem(1, 2, 1, 640, 672, 64, causal=True)  # diagonals end inside blocks
WINDOW = replace(CAUSAL, causal=False, window=(300, 0))
DOCUMENTS = np.repeat(np.arange(5, dtype=np.int32), 160)[:672]
DECIDED = Problem(1, 2, 1, 640, 672, 64)
FEWER = Problem(2, 24, 4, 4, 64, 64, causal=True)
DECODE = DecodeConfig(64, 64, 3, places=4)
ATTENTIONS: dict[str, tuple[Any, ...]] = {
    "sm90": ("h200", CAUSAL, sm90_plan.Config(64, (128, 64), stages=3), 64),
    "sm90 in turn": ("h200", CAUSAL, sm90_plan.Config(64, (192, 32), in_turn=True), 32),
    "sm90 one Q": ("h200", CAUSAL, sm90_plan.Config(64, (128, 32), q_stages=1, together=False), 32),
    "sm100": ("b200", WINDOW, sm100_plan.Config(64), sm100_plan.KEYS),
    "sm100 one tile": ("b200", CAUSAL, sm100_plan.Config(64, tiles=1, stages=2), sm100_plan.KEYS),
}

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
    "mma.sync cp.async": functools.partial(mma_sync, CP_ASYNC[64], FEW),
    **{
        f"mma.sync {name}": functools.partial(mma_sync, replace(config, head_dim=64), FEW)
        for name, config in STEPS.items()
    },
    **{
        f"attention {name}": functools.partial(_forward, *args, growth=20 if "sm100" in name else 1)
        for name, args in ATTENTIONS.items()
    },
    "attention sm90 fp8": functools.partial(
        _attention_fp8, replace(CAUSAL, dtype=E4M3), Fp8Config(64, (128, 64), stages=3, in_turn=True, run=2)
    ),
    "attention sm90 packed": functools.partial(_packed_sequences, "sm90"),
    "attention sm100 packed": functools.partial(_packed_sequences, "sm100", growth=20),
    "attention sm90 modified": functools.partial(modified, 0, CAUSAL, softcap=4.0, sinks=np.ones(2, np.float32)),
    "attention sm90 lists": functools.partial(modified, 1, DECIDED, mask_mod=sees_document),
    "block lists": functools.partial(modified, 0, DECIDED, mask_mod=sees_document),
    "mma.sync packed": _packed_sequences_mma,
    "few queries": functools.partial(_few_queries, DECODE),
    "few queries, two launches": functools.partial(_few_queries, replace(DECODE, last=False)),
    "few queries sm100": functools.partial(
        _few_queries,
        sm100_decode_plan.DecodeConfig(64, 128, 3, places=4),
        device="b200",
        first=sm100_decode.kernel_of,
        growth=20,
    ),
    "few queries, combine": functools.partial(_few_queries, replace(DECODE, last=False), number=1),
    "few queries paged": functools.partial(_paged, DECODE),
    "few queries paged, combine": functools.partial(_paged, replace(DECODE, last=False), number=1),
    "new rows": functools.partial(_paged, None),
    "chunks paged": functools.partial(_paged, None, number=1),
    "backward sm90": functools.partial(
        attention_backward, 1, replace(CAUSAL, head_dim=128), BackwardConfig(128, (64, 128))
    ),
    "backward sm90 early": functools.partial(attention_backward, 1, CAUSAL, BackwardConfig(64, (64, 128), early=True)),
    "backward sm90 prepare": functools.partial(attention_backward, 0, CAUSAL, BackwardConfig(64, (64, 128))),
    "backward sm90 convert": functools.partial(attention_backward, 2, CAUSAL, BackwardConfig(64, (64, 128))),
    **{
        f"backward sm90 {kind}{name}": functools.partial(run, number)
        for kind, run, names in (
            ("modified", modified_backward, {" lists": 0, "": 2, " sinks": 4}),
            ("packed", packed_backward, {" prepare": 0, "": 1, " convert": 2}),
        )
        for name, number in names.items()
    },
    **{
        f"backward sm100{name}": functools.partial(
            attention_backward, number, STEPS_BACKWARD, sm100_backward_plan.CONFIGS[64, True], device="b200"
        )
        for number, name in ((1, ""), (2, " convert"))
    },
    **{
        f"backward sm120 {name}": functools.partial(
            attention_backward,
            number,
            FEW_BACKWARD,
            sm120_backward_plan.BackwardConfig(64, (64, 32), (64, 32)),
            device="rtx5090",
        )
        for number, name in enumerate(("by query", "by key"))
    },
    **{f"example {path.stem[:2]}": functools.partial(_example, path) for path in EXAMPLES},
}
