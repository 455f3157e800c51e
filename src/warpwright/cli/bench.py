"""``warpwright bench``: the times of a kernel, measured beside torch's on a real GPU, predicted on a virtual one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import click
import numpy as np

from warpwright import cuda
from warpwright.cli.attention_runs import inputs
from warpwright.cli.console import device_option, emit, json_option, progress, remark, show
from warpwright.cli.launches import parse_size, profile_each
from warpwright.cli.manual import WRONG, manual
from warpwright.cli.matmul_runs import matmul_profile
from warpwright.cli.problems import SIZE_HELP, counted, problem_of, problem_options, summary_of
from warpwright.gpu import Device
from warpwright.kernels.attention import Problem
from warpwright.kernels.gemm import sm90, sm100, sm120
from warpwright.ops.attention import trials as attention_trials
from warpwright.ops.binding import Plan
from warpwright.ops.matmul import measurements, trials
from warpwright.ops.matmul.plan import Config
from warpwright.report.format import percent
from warpwright.report.tables import table
from warpwright.report.verdict import Verdict
from warpwright.run import devices
from warpwright.targets import kernels_of
from warpwright.vgpu.timing import Profile

__all__ = ["command"]

QUARTILES = {"": "median", "low_": "low", "high_": "high"}
SIZE, REAL_SIZE = "1x16x1024x128", "4x16x4096x128"


rounds_option = click.option(
    "--rounds", type=click.IntRange(min=1), default=30, show_default=True, help="Launches of each kernel on a real GPU."
)
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the standard normal inputs."
)


@click.group(
    "bench",
    epilog=manual(
        WRONG,
        "warpwright bench gemm --size 4096x512x8192",
        "warpwright bench attention --size 1x16x4096x128 --device cuda",
    ),
)
def command() -> None:
    """Time a kernel.

    The time is measured beside torch's on a real GPU, and predicted on a virtual one. The unit is µs.
    """


@command.command(
    epilog=manual(
        WRONG,
        "warpwright bench attention --size 1x16x4096x128 --causal",
        "warpwright bench attention --device cuda --rounds 50",
    )
)
@click.option("--size", help=f"{SIZE_HELP}; default {SIZE}, on a real GPU {REAL_SIZE}.")
@problem_options()
@rounds_option
@seed_option
@device_option
@json_option
def attention(size: str | None, rounds: int, seed: int, device: str, as_json: bool, **options: Any) -> None:
    """Time attention by each kernel that computes it.

    The first kernel is the one that `warpwright.attention` chooses.

    On a real GPU the kernels, and torch's backends if torch is installed, run alternately in random order, each launch
    from cold L2; the table has medians, quartiles and the clock of the SMs after a launch. Each result is first
    verified against float64.
    """
    target = devices.device(device)
    problem = problem_of(size or (REAL_SIZE if isinstance(target, cuda.Device) else SIZE), options)
    rows = (
        _measure_attention(target, problem, rounds, seed)
        if isinstance(target, cuda.Device)
        else _predict_attention(target, problem)
    )
    _report(rows, f"attention of {summary_of(problem)}, {counted(problem)}", target, rounds, as_json)


@command.command(
    epilog=manual(
        WRONG, "warpwright bench gemm --size 4096", "warpwright bench gemm --size 4096x512x8192 --device cuda"
    )
)
@click.option("--size", default="4096", show_default=True, help="M = N = K, or MxNxK: 4096x512x8192.")
@rounds_option
@seed_option
@device_option
@json_option
def gemm(size: str, rounds: int, seed: int, device: str, as_json: bool) -> None:
    """Time a BF16 matmul by the kernel of `ww.matmul`.

    On a real GPU the result is first verified against float64. Then our kernel, and torch.matmul if torch is installed,
    run alternately in random order, each launch from cold L2; the table has medians, quartiles and the clock of the SMs
    after a launch.
    """
    target, shape = devices.device(device), parse_size(size)
    if isinstance(target, cuda.Device):
        rows = _measure_matmul(target, shape, rounds, seed)
    else:
        rows = _predict_matmul(target, shape)
    _report(rows, f"gemm of {' × '.join(map(str, shape))}, bfloat16", target, rounds, as_json)


def _report(rows: list[dict[str, Any]], title: str, target: Device, rounds: int, as_json: bool) -> None:
    """Print the rows; exit with status 1 if a result of our kernels is wrong."""
    if as_json:
        emit(rows)
    else:
        measured = f"{target.spec.name}, medians of {rounds} from cold L2"
        where = measured if isinstance(target, cuda.Device) else f"virtual {target.name}, predicted"
        show(table([_display_row(row) for row in rows], f"{title}; {where}"))
    if not all(row.get("verified", True) for row in rows if row["ours"]):
        remark("not verified: a result differs from the float64 reference by more than the bound")
        click.get_current_context().exit(1)


def _measure_matmul(target: cuda.Device, shape: tuple[int, int, int], rounds: int, seed: int) -> list[dict[str, Any]]:
    """Returns a row for our kernel and one for torch's, measured on a real GPU."""
    name, config = _chosen_config(target, shape)
    with progress(2) as describe:
        found = trials.measure(target, *shape, {name: config}, rounds=rounds, seed=seed, describe=describe)
    trial = found.each[name]
    rows = [_measured_row(f"gemm {name}", True, _flops(shape), trial.times, trial.seconds, trial.verdict)]
    if found.torch is not None:
        rows.append(_measured_row("torch matmul", False, _flops(shape), found.torch, trial.seconds, None))
    return rows


def _predict_matmul(target: Device, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Returns a row for our kernel, predicted on a virtual GPU."""
    with progress() as describe:
        describe("gemm")
        predicted, _ = matmul_profile(target, shape, None, fast=True)
    return [_predicted_row("gemm", _flops(shape), predicted, predicted)]


def _chosen_config(target: cuda.Device, shape: tuple[int, int, int]) -> tuple[str, Config]:
    """Returns the name and the configuration that `warpwright.matmul` chooses."""
    arch, sms, tuned = kernels_of(target.spec.arch), target.spec.sms, measurements.choices(target.spec.name)
    if arch == "sm_100a":
        tiling = sm100.choose(sm100.Problem(*shape), sms=sms, tuned=tuned)
        return next(name for name, each in sm100.TILINGS.items() if each == tiling), tiling
    family: Any = sm120 if arch == "sm_120a" else sm90
    config = family.choose(*shape, sms=sms, tuned=tuned)
    return next(name for name, each in family.CONFIGS.items() if each == config), config


def _flops(shape: tuple[int, int, int]) -> int:
    return 2 * math.prod(shape)


def _measure_attention(target: cuda.Device, problem: Problem, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Returns a row for each kernel, measured on a real GPU."""
    with progress(1) as describe:
        describe("random inputs")
        given = inputs(problem, seed)
        found = attention_trials.measure(target, problem, given, rounds=rounds, describe=describe)
    first = found[0].times.median
    return [_measured_row(x.kernel, x.ours, problem.flops, x.times, first, x.verdict) for x in found]


def _measured_row(
    kernel: str, ours: bool, flops: int, times: cuda.Times, first: float, verdict: Verdict | None
) -> dict[str, Any]:
    """Returns the row of a measured kernel; ``first`` are the seconds of the first kernel."""
    return (
        {"kernel": kernel, "ours": ours}
        | {f"{name}us": round(getattr(times, each) * 1e6, 2) for name, each in QUARTILES.items()}
        | _rate(flops, times.median, first)
        | {"clock_mhz": round(times.clock_mhz)}
        | {name: getattr(verdict, name, None) for name in ("verified", "max_err", "mean_err")}
    )


def _predicted_row(kernel: str, flops: int, predicted: Profile, first: Profile) -> dict[str, Any]:
    rate = _rate(flops, predicted.time_us / 1e6, first.time_us / 1e6)
    return {"kernel": kernel, "ours": True, "us": predicted.time_us} | rate | {"tensor": predicted.usage.tensor}


def _predict_attention(target: Device, problem: Problem) -> list[dict[str, Any]]:
    """Returns a row for each kernel, predicted on a virtual GPU."""
    plans = attention_trials.plans(problem, target.spec)
    profiles: dict[str, Profile] = {}
    with progress(len(plans)) as describe:
        for name, plan in plans.items():
            describe(name)
            profiles[name] = _profile(target, problem, plan)
    first = next(iter(profiles.values()))
    return [_predicted_row(name, problem.flops, each, first) for name, each in profiles.items()]


def _profile(target: Device, problem: Problem, plan: Plan) -> Profile:
    """Returns the profile of the longest launch, with the time of all launches."""
    q, k, v = inputs(problem, None)
    workspace = np.zeros(plan.words, np.uint32) if plan.words else 0
    values = {"q": q, "k": k, "v": v, "o": np.zeros_like(q), "lse": 0, "workspace": workspace}
    profiles = profile_each(plan.on(values), target, fast=True)
    longest = max(profiles, key=lambda each: each.time_us)
    return replace(longest, time_us=sum(each.time_us for each in profiles))


def _rate(flops: int, seconds: float, first: float) -> dict[str, Any]:
    return {"tflops": round(flops * 1e-12 / seconds, 1), "speed": round(first / seconds, 3)}


def _display_row(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row as the table shows it."""
    hidden = "ours", "low_us", "high_us", "tensor"
    shown = {name: "–" if value is None else value for name, value in row.items() if name not in hidden}
    if "low_us" in row:
        quartiles = {"quartiles": f"{row['low_us']} – {row['high_us']}"}
        return dict(list(shown.items())[:2]) | quartiles | dict(list(shown.items())[2:])
    return shown | {"tensor_cores": percent(row["tensor"])}
