"""``warpwright attention``: one problem on a device, verified against float64; or the shared-memory budgets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click
import numpy as np

from warpwright.cli.attention_runs import call_of
from warpwright.cli.console import emit, json_option, progress, remark, show
from warpwright.cli.manual import WRONG, manual
from warpwright.cli.problems import SIZE_HELP, mask_of, problem_of, problem_options
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm120.plan import EARLIER, STEPS, Config, Piece, layout
from warpwright.report.tables import table
from warpwright.report.verdict import judge_attention
from warpwright.run import devices
from warpwright.targets import ARCHS

__all__ = ["budgets", "command"]

COLUMNS = {
    "Q": ("Q, then O",),
    "K": ("K",),
    "V": ("V",),
    "scores": ("scores, then weights", "weights"),
    "O": ("sums of O",),
    "rest": ("mbarriers", "row maxima and sums", "alignment"),
}


@click.command(
    "attention",
    epilog=manual(
        WRONG, "warpwright attention --size 1x4x100x64 --causal", "warpwright attention --size 8x1024x128 --device h200"
    ),
)
@click.option("--size", default="1x4x256x128", show_default=True, help=f"{SIZE_HELP}.")
@problem_options()
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the standard normal inputs."
)
@click.option("--device", default=devices.DEFAULT, show_default=True, help="One of `warpwright devices`.")
@click.option("--smem", is_flag=True, help="Only print the shared-memory budget of each sm_120a configuration.")
@json_option
def command(size: str, seed: int, device: str, smem: bool, as_json: bool, **options: Any) -> None:
    """Run attention and verify the result.

    The inputs are random; the result is compared with float64.
    """
    if smem:
        _show_budgets(as_json)
        return
    problem = problem_of(size, options)
    with progress() as describe:
        describe(f"attention of {size} on {device}")
        row = _run(problem, device, seed)
    if as_json:
        emit(row)
    else:
        errors = {name: row[name] for name in ("max_err", "mean_err", "cos_sim", "max_ulp", "verified", "wall_s")}
        show(table([_extents(problem) | errors], "attention, against float64"), f"  {row['ran']}")
    if not row["verified"]:
        remark("not verified: the result differs from the float64 reference by more than the bound")
        click.get_current_context().exit(1)


def _extents(problem: Problem) -> dict[str, str]:
    """Returns the table columns of the problem: both shapes and the mask."""
    of_q = problem.batch, problem.heads, problem.q_len, problem.head_dim
    of_k = problem.batch, problem.kv_heads, problem.kv_len, problem.head_dim
    return {"q": " × ".join(map(str, of_q)), "k,_v": " × ".join(map(str, of_k)), "mask": mask_of(problem) or "none"}


def _run(problem: Problem, device: str, seed: int) -> dict[str, Any]:
    """Run the problem; returns its extents, the verdict, the wall time without verification, and the kernel."""
    start = time.perf_counter()
    qkv, call = call_of(problem, devices.device(device), seed)
    call.start()
    out, lse, ran = call.result
    seconds = time.perf_counter() - start
    extents = {name: getattr(problem, name) for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")}
    verdict = judge_attention(problem, qkv, np.asarray(out), np.asarray(lse))
    return {
        **extents,
        "dtype": problem.dtype.name,
        "causal": problem.causal,
        **verdict.as_row(),
        "wall_s": round(seconds, 3),
        "ran": str(ran),
    }


def budgets(configs: Mapping[str, tuple[Config, tuple[Piece, ...]]]) -> list[dict[str, Any]]:
    """Returns the shared memory of a CTA of each configuration and its other pieces, in bytes.

    Each row has the parts, their sum, the bytes left of sm_120a's maximum, and the CTAs that fit in an SM.
    """
    arch = ARCHS["sm_120a"]
    rows = []
    for name, (config, others) in configs.items():
        pieces = {piece.name: piece.nbytes for piece in (*layout(config), *others)}
        used = sum(pieces.values())
        warps = f"{config.producers}+{config.consumers}"
        sizes = {short: sum(pieces.get(piece, 0) for piece in whole) for short, whole in COLUMNS.items()}
        fit = arch.smem_per_sm // (used + arch.smem_reserved_per_block)
        tile = "×".join(map(str, config.tile))
        rows.append(
            {"name": name, "tile": tile, "stages": config.stages, "warps": warps, **sizes}
            | {"sum": used, "left": arch.smem_per_block - used, "ctas": fit}
        )
    return rows


def _show_budgets(as_json: bool) -> None:
    configs = EARLIER | {name: (config, ()) for name, config in STEPS.items()}
    rows = budgets(configs)
    if as_json:
        emit(rows)
    else:
        notes = [f"  {name}: {config.summary}" for name, (config, _) in configs.items()]
        show(table(rows, "shared memory of a CTA in bytes, sm_120a, head dimension 128"), *notes)
