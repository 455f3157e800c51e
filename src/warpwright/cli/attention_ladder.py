"""``warpwright ladder attention``: a published attention kernel for sm_120a, and what each step that follows gains."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource
from rich.console import RenderableType

from warpwright import cuda
from warpwright.cli.attention_runs import attention_profile, inputs
from warpwright.cli.console import emit, exit_unless, json_option, progress, show
from warpwright.cli.launches import STEP_DEVICE
from warpwright.cli.manual import WRONG, manual
from warpwright.cli.problems import counted, is_number
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm120.plan import EARLIER, OVER, STEPS
from warpwright.ops.attention import trials
from warpwright.ops.attention.plan import plan_of_step
from warpwright.report.format import percent
from warpwright.report.published import ATTENTION
from warpwright.report.tables import table
from warpwright.report.text import main_stall
from warpwright.run import devices

__all__ = ["barriers_of", "command", "takes_over"]

HEADS, HEAD_DIM = 32, 128  # of the published table
WARNING = """\
  All three published columns are one kernel, FA2, and none is v3: the switch of
  the script had no effect (docs/errata.md). The published kernel was causal and
  computed half of S²; its TFLOPS count all of S²."""


@click.command(
    "attention",
    epilog=manual(
        WRONG,
        "warpwright ladder attention",
        "warpwright ladder attention --size 512,1024 --steps v3,rows --device rtx5090",
    ),
)
@click.option(
    "--size", default="1024", show_default=True, help="Queries and keys of a head, or a list: 512,1024,2048,4096."
)
@click.option("--steps", help=f"Steps to run (default: all): {','.join(STEPS)}.")
@click.option("--causal", is_flag=True, help="Causal mask: half of the work. Predictions take minutes from 2048 on.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Launches of each step on a real GPU."
)
@click.option("--device", default=STEP_DEVICE, show_default=True, help="One of `warpwright devices`.")
@json_option
def command(size: str, steps: str | None, causal: bool, rounds: int, device: str, as_json: bool) -> None:
    """Compare the steps of attention on consumer Blackwell.

    32 heads of dimension 128 run by the published kernel v3 and by each of the steps after it.
    A virtual GPU predicts the times. A real one measures them: each result is verified against float64, then the steps,
    and torch's backends if torch is installed, run alternately from cold L2.
    """
    target, names, lengths = devices.device(device), _steps_of(steps), _lengths_of(size)
    problems = [Problem(1, HEADS, HEADS, n, n, HEAD_DIM, causal=causal) for n in lengths]
    rows = []
    with progress(len(names) * len(problems)) as describe:
        for problem in problems:
            if isinstance(target, cuda.Device):
                rows += _measure(target, problem, names, rounds, describe)
            else:
                rows += _predict(target, problem, names, describe)
    if as_json:
        emit(rows)
    else:
        notes = [f"  {name}: {STEPS[name].summary}" for name in names]
        show(*_tables(rows, problems, target), *notes, *_earlier(target))
    exit_unless(all(row.get("verified", True) for row in rows))


def takes_over(context: click.Context) -> bool:
    """Returns whether ``warpwright ladder`` runs this command. Raises UsageError for options before its name."""
    if context.invoked_subcommand is None:
        return False
    for name, value in context.params.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"given --{name} {value} before attention; write the options after it: ladder attention …")
    return True


def _steps_of(text: str | None) -> list[str]:
    names = list(STEPS) if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in STEPS:
            raise UsageError(f"given --steps {text}; expected some of {','.join(STEPS)}; choose existing steps")
    return names


def _lengths_of(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(is_number(part) and int(part) for part in parts):
        raise UsageError(f"given --size {text}; expected a length or a list of lengths, such as 512,1024")
    return [int(part) for part in parts]


def _predict(device: Device, problem: Problem, names: Sequence[str], describe: Any) -> list[dict[str, Any]]:
    """Returns a row for each step, predicted on a virtual GPU."""
    rows: list[dict[str, Any]] = []
    for name in names:
        describe(f"{name}: {problem.q_len} × {problem.kv_len}, {STEPS[name].summary}")
        profile, _ = attention_profile(device, problem, fast=True, step=name)
        facts = {"ctas_per_sm": profile.ctas_per_sm, "stall": main_stall(profile)}
        rows.append(_row(device, problem, name, float(profile.time_us), rows) | facts)
    return rows


def _measure(
    device: cuda.Device, problem: Problem, names: Sequence[str], rounds: int, describe: Any
) -> list[dict[str, Any]]:
    """Returns a row for each step, measured on a real GPU."""
    plans = {name: plan_of_step(problem, name, device.spec.arch) for name in names}
    found = trials.measure(device, problem, inputs(problem, 0), plans, rounds=rounds, describe=describe)
    rows: list[dict[str, Any]] = []
    for trial in found:
        us, facts = trial.times.median * 1e6, {"max_err": trial.verdict.max_err, "verified": trial.verdict.verified}
        if trial.ours:
            rows.append(_row(device, problem, trial.kernel, us, rows) | facts)
    return rows


def _row(
    device: Device, problem: Problem, name: str, time_us: float, others: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the row of a step; ``others`` are the rows of steps before it."""
    config, over, tflops = STEPS[name], OVER.get(name, ""), problem.flops / time_us / 1e6
    published = ATTENTION.get(problem.q_len, {}) if name == "v3" and device.spec.arch == "sm_120a" else {}
    before = next((row["time_us"] for row in others if row["step"] == over), None)
    return {
        "size": problem.q_len,
        "step": name,
        "time_us": time_us,
        "tflops": tflops,
        "of_peak": tflops / device.spec.bf16_tflops,
        "over": over,
        "gain": before / time_us if before else None,
        "expected": config.expected,
        "threads": config.threads,
        "barriers": barriers_of(plan_of_step(problem, name, device.spec.arch).launches[0].kernel.ptx),
        "smem_bytes": config.smem_bytes,
        "published_us": published,
    }


def barriers_of(ptx: str) -> int:
    """Returns the barriers of the CTA, or of its consumers, in the loop over key blocks: the most of any loop."""
    lines = ptx.splitlines()
    labels = {found[1]: at for at, line in enumerate(lines) if (found := re.match(r"\s*(\w+):", line))}
    jumps = ((at, re.search(r"\bbra(?:\.uni)? (\w+);", line)) for at, line in enumerate(lines))
    loops = [lines[labels[jump[1]] : at] for at, jump in jumps if jump and labels[jump[1]] < at]
    return max(sum("bar.sync" in line for line in loop) for loop in loops)


def _tables(
    rows: Sequence[Mapping[str, Any]], problems: Sequence[Problem], device: Device
) -> Iterator[RenderableType | str]:
    """Yields for each length the times of the steps; then their resources, and what was published."""
    where = f"{device.spec.name}, measured" if isinstance(device, cuda.Device) else f"virtual {device.name}, predicted"
    count, mask = counted(problems[-1]), "causal" if problems[0].causal else "no mask"
    for problem in problems:
        title = f"attention ladder at S = {problem.q_len}: {HEADS} heads of {HEAD_DIM}, bfloat16, {mask}; {where}; "
        yield table([_times(row) for row in rows if row["size"] == problem.q_len], title + counted(problem))
    last = [row for row in rows if row["size"] == problems[-1].q_len]
    if "stall" in last[0]:
        title = "Barriers of a CTA in its loop over blocks of keys, shared memory of a CTA in bytes, "
        yield table([_resources(row) for row in last], f"{title}longest stall at S = {problems[-1].q_len}")
    published = [_published(row) for row in rows if row["published_us"]]
    if published:
        yield table(published, f"v3 beside the published times. {count}; published: all of S²")
        yield WARNING


def _earlier(device: Device) -> Iterator[str]:
    """Yields a line for each layout before v3 that was published by its shared memory alone."""
    for name, (config, more) in EARLIER.items():
        used, room = config.smem_bytes + sum(piece.nbytes for piece in more), device.spec.smem_per_block
        fits = f"does not fit: {device.spec.name} has" if used > room else f"fits: {device.spec.name} has"
        yield f"  {name}: published before v3, {used:,} bytes of shared memory; {fits} {room:,}"


def _times(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"step": row["step"], "µs": round(row["time_us"]), "TFLOPS": f"{row['tflops']:.1f}"}
    shown |= {"of_peak": percent(row["of_peak"]), "over": row["over"]}
    shown |= {"gain": f"{row['gain']:.2f}×" if row["gain"] else "", "expected": row["expected"]}
    return shown | ({"verified": row["verified"]} if "verified" in row else {})


def _resources(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"step": row["step"], "barriers": row["barriers"], "shared_memory": row["smem_bytes"]}
    return shown | {"CTAs_an_SM": row["ctas_per_sm"], "longest_stall": row["stall"]}


def _published(row: Mapping[str, Any]) -> dict[str, Any]:
    published, all_pairs = row["published_us"], 4 * HEADS * row["size"] ** 2 * HEAD_DIM
    shown = {"S": str(row["size"]), **{f"{name}_µs": round(us) for name, us in published.items()}}
    shown |= {"TMA_TFLOPS": f"{all_pairs / published['TMA'] / 1e6:.2f}"}
    return shown | {"ours_µs": round(row["time_us"]), "ours_TFLOPS": f"{row['tflops']:.1f}"}
