"""Every shipped configuration of every kernel is clean, on a problem that fills its slots twice.

Tests run the configurations that no other test here runs; ``python -m tests.races.test_shipped [PART OF A NAME]`` runs
all, some minutes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.kernels.attention import fp8_helpers
from tests.kernels.attention.attention_helpers import normal_qkv, output_arguments
from tests.kernels.attention.decode_helpers import launches
from tests.kernels.attention.varlen_helpers import pack_sequences, prepare_launch
from tests.kernels.gemm.sm100.test_switches import SWITCHES
from tests.kernels.helpers import BF16
from tests.races.attention_runs import attention_backward, mma_sync, sliding
from tests.races.removals import KERNELS, blackwell, hopper, ladder_gemm
from tests.races.watched import Watched
from tests.samples import sampled
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.problem import FLOAT8
from warpwright.kernels.attention.sm90 import backward_plan as sm90_backward_plan
from warpwright.kernels.attention.sm90 import decode_plan as sm90_decode_plan
from warpwright.kernels.attention.sm90 import fp8_plan as sm90_fp8_plan
from warpwright.kernels.attention.sm90 import plan as sm90_plan
from warpwright.kernels.attention.sm100 import backward_plan as sm100_backward_plan
from warpwright.kernels.attention.sm100 import plan as sm100_plan
from warpwright.kernels.attention.sm120 import backward_plan as sm120_backward_plan
from warpwright.kernels.attention.sm120 import plan as sm120_plan
from warpwright.kernels.gemm import sm90, sm100
from warpwright.ops.attention.plan import OWN
from warpwright.ops.matmul.call import matmul
from warpwright.run.launch import launch
from warpwright.targets import DEVICES
from warpwright.types import bf16
from warpwright.vgpu import Device

Run = Callable[[], Watched]
MASKS = ("every key", "causal", "window")
BLOCK = (128, 128)  # queries and keys of a tile of sm_100a


def _problem(config: Any, mask: str) -> Problem:
    """Returns a problem with two query heads of one key head, partial tiles, and blocks that a window does not mask."""
    queries, keys = getattr(config, "tile", BLOCK)
    how = {"every key": {}, "causal": {"causal": True}, "window": {"window": (2 * keys + 70, 40)}}[mask]
    value_dim = getattr(config, "value_dim", None)
    return Problem(1, 2, 1, 2 * queries + 20, 5 * keys + 30, config.head_dim, value_dim=value_dim, **how)


def _hopper(config: sm90.Config) -> Run:
    """Two tiles for each cluster, each with one and a half rounds of the ring."""
    (rows, columns), (along_m, along_n), size = config.tile, config.share, 1 if config.promoted else 2
    k = (3 * config.stages // 2 + 1) * config.depth * config.split * config.slices * 128 // size
    if config.rows:  # all rows of A are in one tile
        return functools.partial(hopper, config, (config.rows - 3, 2 * columns - 8, k), config.cluster)
    return functools.partial(hopper, config, (2 * rows * along_m - 8, columns * along_n - 8, k), config.cluster)


def _blackwell(level: int, changes: dict[str, Any]) -> Run:
    """Four tiles for one cluster, each with more than one round of the ring."""
    config = replace(sm100.LEVELS[level], **changes)
    rows, columns = config.area
    k = (config.stages + 3) * config.tile[2]
    return functools.partial(blackwell, config, (2 * rows - 20, 2 * columns - 20, k), config.cluster)


def _matmul(*shapes: tuple[int, ...], transpose_a: bool = False, **options: Any) -> Watched:
    """Run `matmul` on Hopper with a transposed array: A if ``transpose_a``, else B."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape, np.float32).astype(BF16) for shape in shapes)
    first, second = (np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in (a, b))
    watched = Watched(Device(replace(DEVICES["h200"], sms=4)))
    matmul(*((first, b) if transpose_a else (a, second)), device=watched, **options)
    return watched


def _attention(device: str, config: Any, mask: str) -> Watched:
    """Run attention by an sm_90a or sm_100a kernel on one CTA, with the log-sum-exp and growing maxima."""
    problem, watched = _problem(config, mask), Watched(Device(replace(DEVICES[device], sms=1)))
    _, plan, kernel_of = OWN[DEVICES[device].arch]
    found = plan(problem, sms=1, config=config)
    kernel = kernel_of(config).trace(dtype=bf16, bounds=found.bounds)
    q, k, v = normal_qkv(problem)
    rest = {"lse": np.zeros(q.shape[:3], np.float32), "counter": np.zeros(1, np.uint32)}
    tail = [array for name, array in rest.items() if name in dict(kernel.params)]
    o = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    output = output_arguments(config, o)
    launch(kernel, found.grid, args=[20 * q, k, v, *output, *tail, *found.scalars], device=watched)
    return watched


def _attention_fp8(config: sm90_fp8_plan.Fp8Config, mask: str) -> Watched:
    """Run both launches of FP8 attention on one CTA, with and without the log-sum-exp, with keys for three promotions;
    the maxima of the scores grow."""
    problem = replace(_problem(config, mask), kv_len=3 * config.run * config.tile[1] + 30, dtype=FLOAT8)
    watched = Watched(Device(replace(DEVICES["h200"], sms=1)))
    (q, k, v), scales = fp8_helpers.random_inputs(problem)
    given = (20 * q.astype(np.float32)).astype(FLOAT8), k, v
    for wants_lse in (True, False):
        (before, found), _ = fp8_helpers.launches(problem, config, given, scales, sms=1, wants_lse=wants_lse)
        for (kernel, grid, args), depends_on in ((before, []), (found, [list(dict(found[0].params)).index("values")])):
            watched.depends_on = depends_on
            launch(kernel, grid, args=args, device=watched)
    return watched


def _packed_sequences(device: str, config: Any, mask: str) -> Watched:
    """Run attention of packed sequences of several lengths, some of them empty."""
    problem, watched = _problem(config, mask), Watched(Device(replace(DEVICES[device], sms=1)))
    sequences = pack_sequences(problem, [problem.q_len, 0, 1, 70], [problem.kv_len, 5, config.tile[1], 0])
    grid, kernel, args, _ = prepare_launch(problem, config, sequences, sms=1, arch=DEVICES[device].arch)
    launch(kernel, grid, args=args, device=watched)
    return watched


def _packed_sequences_mma(config: sm120_plan.Config, mask: str) -> Watched:
    """Run attention of packed sequences by mma.sync."""
    problem, watched = _problem(config, mask), Watched(Device(DEVICES["rtx5090"]))
    sequences = pack_sequences(problem, [problem.q_len, 0, 1, 70], [problem.kv_len, 5, config.tile[1], 0])
    grid, kernel, args, _ = prepare_launch(problem, config, sequences, arch="sm_120a")
    launch(kernel, grid, args=args, device=watched)
    return watched


def _few_queries(config: sm90_decode_plan.DecodeConfig, mask: str) -> Watched:
    """Run attention of four queries of each of six heads: whole and partial tiles, a block that only some queries
    see."""
    how = {
        "every key": {},
        "causal": {"causal": True},
        "window": {"causal": True, "window": (7 * config.keys + 4, None)},
    }
    problem = Problem(1, 24, 4, 4, 10 * config.keys + 2, config.head_dim, **how[mask])
    watched = Watched(Device(replace(DEVICES["h200"], sms=3)))
    for kernel, grid, args in launches(problem, normal_qkv(problem), 3, replace(config, places=4))[1]:
        launch(kernel, grid, args=args, device=watched)
    return watched


def _gradients(mask: str, head_dim: int, number: int, ordered: bool = False) -> Run:
    config = sm90_backward_plan.CONFIGS[head_dim, mask == "causal"]
    if ordered:
        config = sm90_backward_plan.in_order(_problem(config, mask))
    return functools.partial(attention_backward, number, _problem(config, mask), config)


BIAS = np.ones(520, BF16)
MMA_SYNC = [*sm120_plan.WIDE.values(), *sm120_plan.CP_ASYNC.values(), *sm120_plan.STEPS.values()]
SHIPPED: dict[str, Run] = {
    **KERNELS,
    **{
        f"blackwell {level} improved": functools.partial(ladder_gemm, "b200", config, (256, 256, 640), 8)
        for level, config in sm100.IMPROVED.items()
    },
    **{f"blackwell, {name}": _blackwell(*each) for name, each in SWITCHES.items()},
    **{f"hopper {name}": _hopper(config) for name, config in sm90.CONFIGS.items() if config.slices <= 2},
    **{
        f"blackwell {name}": functools.partial(
            ladder_gemm, "b200", config, (40, 520, 1600) if config.swapped else (520, 520, 1100), 4, bias=BIAS
        )
        for name, config in sm100.TILINGS.items()
        if config.matrices == 1
    },
    "matmul": functools.partial(_matmul, (200, 264), (264, 328), bias=np.ones(328, BF16), activation="gelu"),
    "matmul of a batch": functools.partial(_matmul, (3, 100, 136), (3, 136, 72)),
    "matmul of transposes": functools.partial(_matmul, (200, 264), (264, 840), transpose_a=True),
    **{
        f"{arch} attention {name}, {mask}": functools.partial(_attention, device, config, mask)
        for arch, device, plan in (("sm90", "h200", sm90_plan), ("sm100", "b200", sm100_plan))
        for name, config in plan.CONFIGS.items()
        for mask in MASKS
    },
    **{
        f"sm90 attention with narrow values, {mask}": functools.partial(
            _attention, "h200", sm90_plan.NARROW_VALUES, mask
        )
        for mask in MASKS
    },
    "sm90 attention sliding": functools.partial(
        sliding, Problem(1, 2, 1, 788, 788, 120, window=(511, 0)), sm90_plan.SLIDING
    ),
    **{
        f"sm90 attention fp8 {name}, {mask}": functools.partial(_attention_fp8, config, mask)
        for name, config in sm90_fp8_plan.CONFIGS.items()
        for mask in MASKS
    },
    **{
        f"packed attention {prefix}{name}, {mask}": functools.partial(_packed_sequences, device, config, mask)
        for prefix, device, plan in (("", "h200", sm90_plan), ("sm100 ", "b200", sm100_plan))
        for name, config in plan.CONFIGS.items()
        for mask in MASKS
    },
    **{
        f"packed mma.sync attention {head_dim}, {mask}": functools.partial(_packed_sequences_mma, config, mask)
        for head_dim, config in sm120_plan.CONFIGS.items()
        for mask in MASKS
    },
    **{
        f"few queries {head_dim}{suffix}{'' if last else ', two launches'}, {mask}": functools.partial(
            _few_queries, replace(config, last=last), mask
        )
        for suffix, configs in (("", sm90_decode_plan.CONFIGS), (" in pairs", sm90_decode_plan.PAIRS))
        for head_dim, config in configs.items()
        for mask in MASKS
        for last in (True, False)
    },
    **{
        f"{config.kernel} {config.head_dim} {config.tile} {config.softmax}, {mask}": functools.partial(
            mma_sync, config, _problem(config, mask)
        )
        for config in MMA_SYNC
        for mask in MASKS
    },
    **{
        f"mma.sync gradients of {head_dim}, {mask}, launch {number}": functools.partial(
            attention_backward, number, _problem(config, mask), config, device="rtx5090"
        )
        for head_dim, config in sm120_backward_plan.CONFIGS.items()
        for mask in MASKS
        for number in range(2)
    },
    **{
        f"sm100 gradients of {head_dim}, {mask}, launch {number}": functools.partial(
            attention_backward, number, _problem(config, mask), config, device="b200"
        )
        for (head_dim, bound), config in sm100_backward_plan.CONFIGS.items()
        for mask in MASKS
        if bound == (mask != "every key")
        for number in range(3)
    },
    **{
        f"gradients of 128, 80 queries, {mask}, launch {number}": functools.partial(
            attention_backward, number, _problem(config, mask), config
        )
        for bound, config in sm90_backward_plan.LONG.items()
        for mask in MASKS
        if bound == (mask != "every key") and mask != "window"
        for number in range(3)
    },
    **{
        f"gradients of {head_dim}, {mask}, launch {number}": _gradients(mask, head_dim, number)
        for head_dim in sm90_backward_plan.HEAD_DIMS
        for mask in MASKS
        for number in range(3)
    },
    **{
        f"gradients in order of {head_dim}, {mask}": _gradients(mask, head_dim, 1, ordered=True)
        for head_dim in sm90_backward_plan.HEAD_DIMS
        if head_dim <= sm90_backward_plan.WIDE
        for mask in MASKS
    },
}
SOME = [
    "blackwell 1 improved",
    "blackwell 2 improved",
    "blackwell 3 improved",
    "blackwell, multicast of B",
    "blackwell, launch control, one tile a pair",
    "blackwell 128x192 pair",
    "hopper 64x64 split 6",
    "hopper fp8 128x64 stream",
    "matmul",
    "matmul of a batch",
    "matmul of transposes",
]


@sampled("name", SOME, every=3)
def test_a_shipped_configuration_is_clean(name: str) -> None:
    for verdict in SHIPPED[name]().verdicts:
        assert verdict.kind == "clean", str(verdict)


def main(part: str) -> None:
    for name, run in SHIPPED.items():
        if part in name:
            for verdict in run().verdicts:
                print(f"{name}: {verdict.kind}", *verdict.findings, *verdict.reasons, sep="\n  ", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
