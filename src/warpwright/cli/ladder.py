"""``warpwright ladder``: one GEMM at each level of the ladder, verified against float64."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from warpwright import cuda
from warpwright.cli import attention_ladder
from warpwright.cli.console import OutputFile, device_option, emit, exit_unless, json_option, progress, show
from warpwright.cli.ladder_table import Step, Steps, beside_published, level_tables, levels_of, notes_of, predict_levels
from warpwright.cli.manual import WRONG, manual
from warpwright.cli.problems import is_number
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels.gemm import sm100
from warpwright.kernels.gemm.formats import FORMATS
from warpwright.ops.matmul import scaled as scaled_gemm
from warpwright.ops.matmul import trials
from warpwright.ops.matmul.plan import LADDERS
from warpwright.report.figure import check_path
from warpwright.report.ladder import draw_ladder
from warpwright.report.tables import table
from warpwright.run import devices
from warpwright.targets import kernels_of

__all__ = ["choose_steps", "command", "ladder_of", "measure_levels", "timing"]

SIZE, REAL_SIZE = 1024, 4096
MOST = 100  # numbers of a range


@click.group(
    "ladder",
    invoke_without_command=True,
    subcommand_metavar="[attention]",
    epilog=manual(
        WRONG,
        "warpwright ladder --size 256",
        "warpwright ladder --levels 4-7 --size 4096 --fast",
        "warpwright ladder --scaled nvfp4 --size 8192 --fast",
        "warpwright ladder --device cuda",
        "warpwright ladder attention",
    ),
)
@click.option("--levels", help="Levels to run: 2, 1-3 or 1,3 (default: all levels of the device).")
@click.option("--stages", help="Stages of the ring of A and B, such as 2,4,8 (default: those of each level).")
@click.option(
    "--improved",
    is_flag=True,
    help="Blackwell: levels 1 to 5 with stores of 16 bytes, levels 1 to 3 with CTAs that share an SM, level 5 with "
    "mbarriers that are initialised once.",
)
@click.option(
    "--mma-sync",
    is_flag=True,
    help="The ladder of consumer Blackwell, TMA and mma.sync, compiled for the device, such as h200.",
)
@click.option(
    "--scaled",
    type=click.Choice(list(FORMATS)),
    help="The ladder of matrices with block scales, on a virtual Blackwell GPU; --size is a multiple of 32.",
)
@click.option("--size", type=click.IntRange(min=1), help=f"M = N = K; default {SIZE}, on a real GPU {REAL_SIZE}.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=30, show_default=True, help="Launches of each level on a real GPU."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the standard normal inputs."
)
@click.option(
    "--fast/--full", default=False, help="On a virtual GPU: only predict, or also compute and verify (default)."
)
@click.option(
    "--sustained", is_flag=True, help="Predict with the clock of a board under sustained load (default: after idle)."
)
@click.option(
    "--warm",
    is_flag=True,
    help="Predict one launch of many in a loop: L2 has what the one before left (default: cold).",
)
@click.option("--plot", type=OutputFile(), help="Draw the ladder as a chart (.svg, .png, .pdf).")
@device_option
@json_option
def command(
    levels: str | None,
    stages: str | None,
    improved: bool,
    mma_sync: bool,
    scaled: str | None,
    size: int | None,
    rounds: int,
    seed: int,
    fast: bool,
    sustained: bool,
    warm: bool,
    plot: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """Multiply by each level of the GEMM ladder.

    The operands are one pair of random BF16 matrices, M = N = K; with --scaled they are quantized.
    A virtual GPU predicts the time of each level and says why the level is faster than the one before; levels 1 to 9
    of Blackwell have the published rates beside them. On a real GPU the levels, and torch.matmul if torch is installed,
    run alternately, each launch from cold L2; medians are shown.
    """
    if attention_ladder.takes_over(click.get_current_context()):
        return
    target = devices.device(device)
    if warm and isinstance(target, cuda.Device):
        raise UsageError("given --warm for a real GPU; launches there are measured from cold L2: leave it out")
    chosen = choose_steps(target, levels, stages, improved, mma_sync, scaled)
    if plot is not None:
        check_path(plot)
    real = isinstance(target, cuda.Device)
    extent = size or (REAL_SIZE if real else SIZE)
    if isinstance(target, cuda.Device):
        rows = measure_levels(target, chosen, extent, rounds, seed)
    else:
        rows = predict_levels(target, chosen, extent, seed, fast, sustained, warm, scaled)
    if plot is not None:
        draw_ladder(levels_of(rows, chosen), extent, target.spec, plot, measured=real, format=scaled)
    if as_json:
        emit(rows)
    else:
        sizes = f"{extent} × {extent} × {extent}, {_device_title(target)}{', warm loop' if warm else ''}"
        types = f"{scaled} in, bf16 out" if scaled else "bf16 in and out"
        title = f"GEMM ladder: {types}, float32 accumulation, {sizes}"
        tables = [table(rows, title)] if real else level_tables(rows, title, stages is not None)
        show(*tables, *notes_of(rows, chosen, improved, scaled))
    exit_unless(all(row.get("verified", fast) for row in rows))


command.add_command(attention_ladder.command)


def measure_levels(target: cuda.Device, steps: Steps, size: int, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Returns a row for each configuration, measured on a real GPU."""
    configs: dict[str, Any] = {f"level {level}, stages {step.stages}": step for level, step in steps}
    with progress(len(steps) + 1) as describe:
        found = trials.measure(target, size, size, size, configs, rounds=rounds, seed=seed, describe=describe)
    rows = []
    for (level, step), trial in zip(steps, found.each.values(), strict=True):
        measured = timing(found, trial, size, size, size)
        facts = {"level": level, "stages": step.stages, "size": size, "device": target.name, **measured}
        facts |= beside_published(step, size, measured["tflops"])
        verdict = trial.verdict
        rows.append(facts | {"verified": verdict.verified, "max_err": verdict.max_err, "max_ulp": verdict.max_ulp})
    return rows


def timing(found: trials.Trials, trial: trials.Trial, m: int, n: int, k: int) -> dict[str, Any]:
    """Returns time and rate of a configuration, and those of torch.matmul if it was measured."""
    tera = 2e-12 * m * n * k
    row: dict[str, Any] = {"us": round(trial.seconds * 1e6, 2), "tflops": round(tera / trial.seconds, 1)}
    if found.peer is not None:
        row |= {"torch_tflops": round(tera / found.peer, 1), "of_torch": round(found.peer / trial.seconds, 3)}
    return row


def choose_steps(
    device: Device,
    levels: str | None,
    stages: str | None,
    improved: bool,
    mma_sync: bool = False,
    scaled: str | None = None,
) -> Steps:
    """Returns the levels of the options with their configurations: each level with each number of stages.

    Raises UsageError for unknown levels, for ``improved`` on a device whose levels are not those of Blackwell, and for
    ``scaled`` on a device without that ladder or beside ``mma_sync``.
    """
    ladder: Mapping[int, Step] = LADDERS["sm_120a"] if mma_sync else ladder_of(device)
    if scaled:
        ladder = scaled_ladder_of(device, mma_sync)
    if improved:
        if ladder is not LADDERS["sm_100a"]:
            raise UsageError(
                f"given --improved for {device.spec.name}; it is of levels 1, 2, 3 and 5 of Blackwell: leave it out"
            )
        ladder = {**ladder, **sm100.IMPROVED}
    numbers = list(ladder) if levels is None else parse_levels(levels, ladder)
    if stages is None:
        return [(level, ladder[level]) for level in numbers]
    counts = parse_numbers(stages, "--stages", "a number, a range or a list: 2, 1-4 or 2,4,8")
    return [(level, replace(ladder[level], stages=count)) for level in numbers for count in counts]


def scaled_ladder_of(device: Device, mma_sync: bool) -> Mapping[int, Step]:
    """Returns the levels for matrices with block scales. Raises UsageError for a device without that ladder."""
    found = scaled_gemm.LADDERS.get(kernels_of(device.spec.arch))
    if found is None or isinstance(device, cuda.Device) or mma_sync:
        given = "--mma-sync" if mma_sync else f"--device {device.name}"
        raise UsageError(
            f"given --scaled with {given}; the ladder of block scales is of Blackwell: expected --device b200, b300 or "
            "rtx5090, virtual, and no --mma-sync"
        )
    return found


def ladder_of(device: Device) -> Mapping[int, Step]:
    """Returns the levels of a device's GEMM ladder. Raises UsageError for a target without one."""
    found = LADDERS.get(kernels_of(device.spec.arch))
    if found is None:
        raise UsageError(
            f"no GEMM ladder for {device.spec.name} ({device.spec.arch}); expected --device b200, gb200, h200, "
            "rtx5090 or cuda"
        )
    return found


def _device_title(device: Device) -> str:
    return device.spec.name if device.name.startswith("cuda") else f"virtual {device.name}"


def parse_levels(text: str, known: Collection[int] = tuple(sm100.LEVELS)) -> list[int]:
    """Parses ``"2"``, ``"1-3"`` or ``"1,3"``. Raises UsageError for other text and unknown levels."""
    levels = parse_numbers(text, "--levels", "a level, a range or a list: 2, 1-3 or 1,3")
    for level in levels:
        if level not in known:
            raise UsageError(
                f"given level {level}; expected one of {', '.join(map(str, known))}; choose an existing level"
            )
    return levels


def parse_numbers(text: str, option: str, expected: str) -> list[int]:
    """Parses ``"2"``, ``"1-3"`` or ``"1,3"``. Raises UsageError for other text; ``expected`` is its middle."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not is_number(first) or not int(first) or (dash and not is_number(last)):
            raise UsageError(f"{option} {text!r}; expected {expected}")
        stop = int(last if dash else first) + 1
        if stop - int(first) > MOST:
            raise UsageError(
                f"{option} {text!r} is a range of more than {MOST} numbers; write a shorter one, such as 1-3"
            )
        numbers += range(int(first), stop)
    if not numbers:
        raise UsageError(f"{option} {text!r} names no number; write the range upwards, such as 1-3")
    return numbers
