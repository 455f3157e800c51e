"""Attention kernels that run under the checks, after an edit of their PTX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

import warpwright as ww
from tests.kernels.attention import attention_helpers
from tests.kernels.attention.attention_helpers import normal_qkv, output_arguments
from tests.kernels.attention.backward_helpers import resident
from tests.kernels.attention.decode_helpers import launches
from tests.kernels.attention.fp8_helpers import E4M3, random_inputs
from tests.kernels.attention.fp8_helpers import launches as fp8_launches
from tests.kernels.attention.mla_helpers import fill_rows, latent_problem, mla_launches
from tests.kernels.attention.paged_helpers import fill_pages, paged_launches
from tests.kernels.attention.varlen_helpers import pack_sequences, prepare_launch
from tests.races.watched import Change, Watched, awaited, watch_launch, watched_device
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.kernels.attention.sm90.backward_plan import BackwardConfig
from warpwright.kernels.attention.sm90.decode import kernel_of
from warpwright.kernels.attention.sm90.decode_plan import MANY, DecodeConfig
from warpwright.kernels.attention.sm90.direct import kernel_of as kernel_of_sm90
from warpwright.kernels.attention.sm90.fp8_plan import Fp8Config
from warpwright.kernels.attention.sm100 import backward_plan as sm100_backward_plan
from warpwright.kernels.attention.sm100 import decode as sm100_decode
from warpwright.kernels.attention.sm100 import decode_plan as sm100_decode_plan
from warpwright.kernels.attention.sm100 import plan as sm100_plan
from warpwright.kernels.attention.sm120 import backward_plan as sm120_backward_plan
from warpwright.kernels.attention.sm120 import plan as sm120_plan
from warpwright.kernels.attention.sm120.plan import CP_ASYNC, STEPS
from warpwright.ops.attention.backward import choose as choose_backward
from warpwright.ops.attention.backward import describe as describe_gradients
from warpwright.ops.attention.forward import describe as describe_attention
from warpwright.ops.attention.plan import OWN
from warpwright.ops.attention.varlen_backward import describe as describe_packed
from warpwright.ops.launches import launches as launches_of
from warpwright.run.launch import launch
from warpwright.targets import DEVICES
from warpwright.types import bf16
from warpwright.vgpu import Device

__all__ = ["ATTENTION", "attention_backward", "mma_sync", "sliding"]


def mma_sync(config: sm120_plan.Config, problem: Problem, change: Change | None = None) -> Watched:
    """Run attention by mma.sync."""
    q, k, v = normal_qkv(problem)
    kernel, grid, args = attention_helpers.arguments(
        problem, config, (q, k, v, np.zeros_like(q), np.zeros(q.shape[:3], np.float32))
    )
    watched = Watched(Device(DEVICES["rtx5090"]), change)
    launch(kernel, grid, args=args, device=watched)
    return watched


def _forward(
    device: str, problem: Problem, config: Any, keys: int, change: Change | None = None, *, growth: int = 1
) -> Watched:
    """Run attention by an sm_90a or sm_100a kernel on one CTA, with the log-sum-exp and, where the kernel has one, a
    tile counter; then tiles with one, two and three blocks of ``keys`` keys. ``growth`` multiplies Q, so that the
    maxima of the scores grow along the keys."""
    _, plan, kernel_of = OWN[DEVICES[device].arch]
    watched = watched_device(device, change, 1)
    few = (replace(problem, batch=3, q_len=32, kv_len=blocks * keys) for blocks in (1, 2, 3))
    for each in (problem, *few):
        found = plan(each, sms=1, config=config)
        kernel = kernel_of(config).trace(dtype=bf16, bounds=found.bounds)
        q, k, v = _tensors(each, ("q", "k", "v"))
        rest = {"lse": np.zeros(q.shape[:3], np.float32), "counter": np.zeros(1, np.uint32)}
        tail = [array for name, array in rest.items() if name in dict(kernel.params)]
        output = output_arguments(config, np.zeros_like(q))
        launch(kernel, found.grid, args=[growth * q, k, v, *output, *tail, *found.scalars], device=watched)
    return watched


def sliding(problem: Problem, config: sm90_plan.Config, change: Change | None = None) -> Watched:
    """Run Hopper's attention in windows of whole blocks on one CTA, with the log-sum-exp and a tile counter: several
    tiles whose window begins at a key, then those with none there, with one to three blocks between the ends."""
    watched, found = watched_device("h200", change, 1), sm90_plan.plan(problem, sms=1, config=config)
    kernel = kernel_of_sm90(config).trace(dtype=bf16, bounds=found.bounds)
    q, k, v = _tensors(problem, ("q", "k", "v"))
    rest = np.zeros(q.shape[:3], np.float32), np.zeros(1, np.uint32)
    launch(kernel, found.grid, args=[q, k, v, np.zeros_like(q), *rest, *found.scalars], device=watched)
    return watched


def _attention_fp8(problem: Problem, config: Fp8Config, change: Change | None = None) -> Watched:
    """Run FP8 attention on one CTA, then tiles with one, two and three blocks of keys; the launch that transposes V
    runs without a check. The blocks that come last have the largest keys, so row maxima grow; those of the first head,
    whose queries are small, do not."""
    watched = watched_device("h200", change, 1)
    few = (replace(problem, batch=3, q_len=32, kv_len=blocks * config.tile[1]) for blocks in (1, 2, 3))
    for each in (problem, *few):
        (q, k, v), scales = random_inputs(each)
        q = (q.astype(np.float32) * np.geomspace(2.0**-6, 1.0, each.heads)[:, None, None]).astype(E4M3)
        k = (k.astype(np.float32) * np.geomspace(64, 1, each.kv_len)[:, None]).astype(E4M3)
        (before, found), _ = fp8_launches(each, config, (q, k, v), scales, sms=1)
        watched.depends_on = [list(dict(found[0].params)).index("values")]
        for (kernel, grid, args), device in ((before, watched.device), (found, watched)):
            launch(kernel, grid, args=args, device=device)
    return watched


def _fp8_values(problem: Problem, change: Change | None = None) -> Watched:
    """Run the launch that transposes V for FP8 attention on one CTA at a time."""
    watched = watched_device("h200", change, 1)
    (kernel, grid, args), _ = fp8_launches(problem, Fp8Config(64, (64, 32)), *random_inputs(problem))[0]
    launch(kernel, grid, args=args, device=watched)
    return watched


def _packed_sequences(name: str, change: Change | None = None, *, growth: int = 1) -> Watched:
    """Run attention of packed sequences on one CTA: tiles of many blocks of keys, then of one, two and three blocks.
    ``growth`` as in `_forward`."""
    device, problem, config, block = ATTENTIONS[name]
    watched = watched_device(device, change, 1)
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
    watched = watched_device("h200", change, 1)
    for each in (problem, *(replace(problem, batch=3, q_len=32, kv_len=blocks * 128) for blocks in (1, 2, 3))):
        options = {"causal": each.causal, "window": None, "scale": None, "layout": "bhsd", "out": None}
        call = describe_attention(
            *_tensors(each, "qkv"), **options, **functions, device=watched.device, return_lse=True, explain=False
        )
        watch_launch(call, number, watched)
    return watched


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
    watched = watched_device(device, change, 3)
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
    watched, each = watched_device("h200", change, 3), Problem(4, 24, 4, 4, 258, 64, causal=True)
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
    watch_launch(call, number, watched)
    return watched


def _latent(change: Change | None = None, *, number: int = 0) -> Watched:
    """Run the decoding of latent attention: three CTAs that share tiles of ten blocks, of two and of one; or with
    ``number`` 1 only the second launch."""
    watched, each = watched_device("h200", change, 3), latent_problem(3, 24, 4, 290, causal=True)
    planned, _ = mla_launches(each, fill_rows(each, 16, [289, 33, 4]), 16, 3)
    kernel, grid, args, _ = planned[number]
    watched.depends_on = [list(kernel.params).index("workspace")] * number
    launch(kernel, grid, args=args, device=watched)
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
    watched = watched_device(device, change, 4)
    watched.depends_on = awaited(each.kernel)
    launch(each.kernel, each.grid, args=each.args, device=watched)
    return watched


def modified_backward(number: int, change: Change | None = None) -> Watched:
    """Run one of the launches of the gradients with a function of the score, a mask function, a cap and sinks; the
    launches before run without a check."""
    watched, each = watched_device("h200", change, 4), replace(CAUSAL, heads=3, kv_heads=3, causal=False)
    q, k, v, o, do = _tensors(each, ("q", "k", "v", "o", "do"))
    options = {"causal": False, "window": None, "scale": None, "layout": "bhsd", "device": watched.device}
    rows = np.zeros(q.shape[:3], np.float32)
    functions: dict[str, Any] = {"softcap": 4.0, "sinks": np.ones(3, np.float32), "mask_mod": sees_document}
    functions["score_mod"] = lambda score, batch, head, q, k: score * 0.5
    with resident(1):
        call = describe_gradients(q, k, v, o, rows, do, dlse=rows, **options, **functions)
    watch_launch(call, number, watched)
    return watched


def packed_backward(number: int, change: Change | None = None) -> Watched:
    """Run one of the launches of the gradients of packed sequences, two of them without queries or without keys; the
    launches before run without a check."""
    watched, each = watched_device("h200", change, 4), replace(CAUSAL, heads=3, kv_heads=3)
    given = pack_sequences(each, [300, 0, 70, 5], [330, 20, 70, 0])
    rows = np.zeros((3, len(given.q)), np.float32)
    arrays = {"q": given.q, "k": given.k, "v": given.v, "o": given.q, "do": given.q, "lse": rows, "dlse": rows}
    starts = {"cu_seqlens_q": given.cu_q, "cu_seqlens_k": given.cu_k}
    options = {"causal": True, "scale": None, "window": None, "device": watched.device}
    with resident(1):
        call = describe_packed(**arrays, **starts, **options)
    watch_launch(call, number, watched)
    return watched


def _tensors(problem: Problem, names: Iterable[str]) -> list[Any]:
    """Returns random arrays (batch, heads, rows, head_dim); those of keys and values are called k, v, dk, dv."""
    random, queries = np.random.default_rng(0), (problem.heads, problem.q_len)
    extents = [(problem.kv_heads, problem.kv_len) if name[-1] in "kv" else queries for name in names]
    shapes = [(problem.batch, *each, problem.head_dim) for each in extents]
    return [random.standard_normal(shape, np.float32).astype(problem.dtype) for shape in shapes]


FEW = Problem(1, 1, 1, 100, 290, 64, causal=True)
FEW_BACKWARD = Problem(1, 2, 1, 230, 290, 64, causal=True)
STEPS_BACKWARD = Problem(1, 2, 1, 390, 300, 64, causal=True)  # up to eight steps a CTA
CAUSAL = Problem(1, 2, 1, 640, 672, 64, causal=True)  # diagonals end inside blocks
HEADS = replace(CAUSAL, heads=3, kv_heads=3, q_len=320, kv_len=336)  # the last one reuses the sums of the first one
FIRST = replace(CAUSAL, q_len=672, kv_len=560, head_dim=56)  # tiles of one block, and of blocks that all have masks
WIDE = Problem(1, 2, 1, 300, 140, 256, causal=True)  # six steps, and two in a cluster with one CTA that has keys
WINDOW = replace(CAUSAL, causal=False, window=(300, 0))
DOCUMENTS = np.repeat(np.arange(5, dtype=np.int32), 160)[:672]
DECIDED = Problem(1, 2, 1, 640, 672, 64)
FEWER = Problem(2, 24, 4, 4, 64, 64, causal=True)
DECODE = DecodeConfig(64, 64, 3, places=4)
ATTENTIONS: dict[str, tuple[Any, ...]] = {
    "sm90": ("h200", CAUSAL, sm90_plan.Config(64, (128, 64), stages=3), 64),
    "sm90 in turn": ("h200", CAUSAL, sm90_plan.Config(64, (192, 32), in_turn=True), 32),
    "sm90 one Q": ("h200", CAUSAL, sm90_plan.Config(64, (128, 32), q_stages=1, branches=False), 32),
    "sm90 parts": ("h200", CAUSAL, sm90_plan.Config(64, (128, 64), stages=3, splits=True), 64),
    "sm90 direct": ("h200", FIRST, sm90_plan.Config(64, (128, 32), q_stages=1, branches=False, direct=True), 32),
    "sm100": ("b200", WINDOW, sm100_plan.Config(64), sm100_plan.KEYS),
    "sm100 one tile": ("b200", CAUSAL, sm100_plan.Config(64, tiles=1, stages=2), sm100_plan.KEYS),
}
ATTENTION: dict[str, Callable[..., Watched]] = {
    "mma.sync cp.async": functools.partial(mma_sync, CP_ASYNC[64], FEW),
    **{
        f"mma.sync {name}": functools.partial(mma_sync, replace(config, head_dim=64), FEW)
        for name, config in STEPS.items()
    },
    **{
        f"attention {name}": functools.partial(_forward, *args, growth=20 if "sm100" in name else 1)
        for name, args in ATTENTIONS.items()
    },
    "attention sm90 sliding": functools.partial(
        sliding, Problem(1, 1, 1, 730, 730, 56, window=(511, 0)), replace(sm90_plan.SLIDING, head_dim=64)
    ),
    "attention sm90 fp8": functools.partial(
        _attention_fp8,
        # Of a whole tile blocks 1 to 6 have masks for the first warpgroup, 1 and 2 for the last: both add to sums.
        Problem(1, 2, 1, 784, 817, 64, dtype=E4M3, causal=True),
        Fp8Config(64, (192, 32), stages=3, in_turn=True, run=2),
    ),
    "fp8 values": functools.partial(_fp8_values, replace(CAUSAL, dtype=E4M3)),
    "attention sm90 packed": functools.partial(_packed_sequences, "sm90"),
    "attention sm100 packed": functools.partial(_packed_sequences, "sm100", growth=20),
    "attention sm90 modified": functools.partial(modified, 0, CAUSAL, softcap=4.0, sinks=np.ones(2, np.float32)),
    "attention sm90 lists": functools.partial(modified, 1, DECIDED, mask_mod=sees_document),
    "block lists": functools.partial(modified, 0, DECIDED, mask_mod=sees_document),
    "mma.sync packed": _packed_sequences_mma,
    "few queries": functools.partial(_few_queries, DECODE),
    "few queries in pairs": functools.partial(_few_queries, replace(DECODE, ctas_per_sm=2)),
    "few queries, two launches": functools.partial(_few_queries, replace(DECODE, last=False)),
    "few queries sm100": functools.partial(
        _few_queries,
        sm100_decode_plan.DecodeConfig(64, 128, 3, places=4),
        device="b200",
        first=sm100_decode.kernel_of,
        growth=20,
    ),
    "few queries, combine": functools.partial(_few_queries, replace(DECODE, last=False), number=1),
    "few queries, combine of many": functools.partial(
        _few_queries, replace(DECODE, last=False, at_once=MANY), number=1
    ),
    "few queries paged": functools.partial(_paged, DECODE),
    "few queries paged, combine": functools.partial(_paged, replace(DECODE, last=False), number=1),
    "latent rows": _latent,
    "latent rows, combine": functools.partial(_latent, number=1),
    "new rows": functools.partial(_paged, None),
    "chunks paged": functools.partial(_paged, None, number=1),
    "backward sm90": functools.partial(
        attention_backward, 1, replace(HEADS, head_dim=128), BackwardConfig(128, (64, 128), resident=1)
    ),
    "backward sm90 of 96": functools.partial(
        attention_backward, 1, replace(HEADS, head_dim=96, q_len=400), BackwardConfig(96, (80, 128), resident=1)
    ),
    "backward sm90 long": functools.partial(
        attention_backward, 1, replace(HEADS, head_dim=128, q_len=400), BackwardConfig(128, (80, 128))
    ),
    "backward sm90 early": functools.partial(
        attention_backward, 1, HEADS, BackwardConfig(64, (64, 128), early=True, resident=1)
    ),
    "backward sm90 ordered": functools.partial(
        attention_backward, 1, replace(HEADS, kv_len=400), BackwardConfig(64, (64, 128), ordered=True, resident=1)
    ),
    "backward sm90 ascending": functools.partial(
        attention_backward,
        1,
        replace(HEADS, kv_len=400),
        BackwardConfig(64, (64, 128), ordered=True, ascending=True, resident=1),
    ),
    "backward sm90 wide": functools.partial(attention_backward, 1, WIDE, BackwardConfig(256, (64, 128), do_stages=1)),
    "backward sm90 prepare": functools.partial(attention_backward, 0, HEADS, BackwardConfig(64, (64, 128), resident=1)),
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
}
