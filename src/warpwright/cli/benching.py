"""``warpwright bench``: the times of a kernel, measured beside torch's on a real GPU, predicted on a virtual one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import numpy as np

from warpwright import sdpa_trials
from warpwright.cli.attending import inputs, parse_heads
from warpwright.cli.attention import DTYPE_NAMES, mask_of, parse_window
from warpwright.cli.console import as_json as json_option
from warpwright.cli.console import emit, remark, show, working
from warpwright.cli.launching import Launch, Substitute
from warpwright.cuda import Device as RealGpu
from warpwright.devices import DEFAULT
from warpwright.devices import device as device_of
from warpwright.gpu import Device
from warpwright.kernels.attention import Problem
from warpwright.profile import profile
from warpwright.report.tables import table
from warpwright.report.words import percent
from warpwright.sdpa_launch import Job, run
from warpwright.vgpu.timing import Profile

__all__ = ["bench"]

SIZE, REAL_SIZE = "1x16x1024x128", "4x16x4096x128"


@click.group()
def bench() -> None:
    """Time a kernel: measured beside torch's on a real GPU, predicted on a virtual one."""


@bench.command()
@click.option(
    "--size", help=f"BATCHxHEADSxLENGTHxDIM, or BATCHxHEADSxQUERIESxKEYSxDIM; {SIZE}, on a real GPU {REAL_SIZE}."
)
@click.option("--kv-heads", type=click.IntRange(min=1), help="Heads of keys and values; as many as of queries.")
@click.option("--causal", is_flag=True, help="No query sees a key behind its own place; the last stands at the last.")
@click.option("--window", metavar="LEFT,RIGHT", help="Keys to either side that a query sees; - for any: 128,-.")
@click.option("--dtype", type=click.Choice(list(DTYPE_NAMES)), default="bfloat16", show_default=True)
@click.option(
    "--rounds", type=click.IntRange(min=2), default=30, show_default=True, help="Launches of each on a real GPU."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the standard normal inputs.")
@click.option("--device", default=DEFAULT, show_default=True, help="One of `warpwright devices`.")
@json_option
def attention(
    size: str | None,
    kv_heads: int | None,
    causal: bool,
    window: str | None,
    dtype: str,
    rounds: int,
    seed: int,
    device: str,
    as_json: bool,
) -> None:
    """Time attention by each kernel that serves it; the first is the one that `warpwright.attention` takes.

    A real GPU is measured: all take turns in random order, each launch from cold L2, torch's backends among them where
    torch is installed; medians, and the quartiles beside them. Each result is verified against float64 first.
    """
    target = device_of(device)
    real = isinstance(target, RealGpu)
    given = parse_heads(size or (REAL_SIZE if real else SIZE), causal)
    problem = replace(given, kv_heads=kv_heads or given.heads, window=parse_window(window), dtype=DTYPE_NAMES[dtype])
    rows = _timed(target, problem, rounds, seed) if isinstance(target, RealGpu) else _predicted(target, problem)
    if as_json:
        emit(rows)
    else:
        where = f"{target.spec.name}, medians of {rounds} from cold L2" if real else f"virtual {target.name}, predicted"
        show(table([_shown(row) for row in rows], f"attention of {_described(problem)}; {where}"))
    if not all(row.get("verified", True) for row in rows if row["ours"]):
        remark("not verified: a result differs from the float64 reference by more than the bound")
        click.get_current_context().exit(1)


def _timed(target: RealGpu, problem: Problem, rounds: int, seed: int) -> list[dict[str, Any]]:
    """A row a kernel from a real GPU."""
    with working(1) as describe:
        describe("random inputs")
        given = inputs(problem, seed)
        found = sdpa_trials.measured(target, problem, given, rounds=rounds, describe=describe)
    return [
        {"kernel": trial.kernel, "ours": trial.ours}
        | {f"{name}us": round(getattr(trial.times, each) * 1e6, 2) for name, each in QUARTILES.items()}
        | _rate(problem, trial.times.median, found[0].times.median)
        | {name: getattr(trial.verdict, name) for name in ("verified", "max_err", "mean_err")}
        for trial in found
    ]


def _predicted(target: Device, problem: Problem) -> list[dict[str, Any]]:
    """A row a kernel from a virtual GPU."""
    ways = sdpa_trials.ways(problem, target.spec)
    made: dict[str, Profile] = {}
    with working(len(ways)) as describe:
        for name, job in ways.items():
            describe(name)
            made[name] = _profile(target, problem, job)
    first = next(iter(made.values())).time_us
    return [
        {"kernel": name, "ours": True, "us": each.time_us}
        | _rate(problem, each.time_us / 1e6, first / 1e6)
        | {"tensor": each.usage.tensor}
        for name, each in made.items()
    ]


def _profile(target: Device, problem: Problem, job: Job) -> Profile:
    made: list[Profile] = []

    def act(launch: Launch) -> None:
        made.append(profile(**launch, device=target, fast=True))

    q, k, v = inputs(problem, None)
    run(job, (q, k, v, np.zeros_like(q)), None, Substitute(target, act), None, 0)
    return made[0]


def _rate(problem: Problem, seconds: float, first: float) -> dict[str, Any]:
    return {"tflops": round(problem.flops * 1e-12 / seconds, 1), "speed": round(first / seconds, 3)}


QUARTILES = {"": "median", "low_": "low", "high_": "high"}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a line of the table."""
    shown = {name: value for name, value in row.items() if name not in ("ours", "low_us", "high_us", "tensor")}
    if "low_us" in row:
        quartiles = {"quartiles": f"{row['low_us']} – {row['high_us']}"}
        return dict(list(shown.items())[:2]) | quartiles | dict(list(shown.items())[2:])
    return shown | {"tensor_cores": percent(row["tensor"])}


def _described(problem: Problem) -> str:
    """The extents and the mask, as words."""
    extents = f"{problem.batch} × {problem.heads} heads of {problem.head_dim}, {problem.q_len} × {problem.kv_len}"
    shared = "" if problem.group == 1 else f", {problem.kv_heads} heads of keys"
    return f"{extents}{shared}, mask {mask_of(problem)}, {problem.dtype.name}"
