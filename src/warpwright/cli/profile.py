"""``warpwright profile``: the predicted time of a kernel, where it goes, and what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from warpwright.cli.attention_runs import attention_profile
from warpwright.cli.console import OutputFile, emit, json_option, progress, remark, show
from warpwright.cli.flow_runs import flow_profile
from warpwright.cli.launches import (
    LAUNCH_OPTIONS,
    device_for,
    device_of,
    launch_options,
    launch_spec,
    parse_size,
    refuse_options,
)
from warpwright.cli.manual import manual
from warpwright.cli.matmul_runs import matmul_profile
from warpwright.cli.problems import PROBLEM_OPTIONS, problem_of
from warpwright.report.account import account
from warpwright.report.advice import advice
from warpwright.report.figure import check_path
from warpwright.report.html.profile import profile_page
from warpwright.report.output import write_file
from warpwright.report.pipeline import draw_pipeline
from warpwright.report.tables import table
from warpwright.report.text import profile_tables
from warpwright.report.trace import trace_of
from warpwright.report.verdict import Verdict
from warpwright.run import profile
from warpwright.vgpu.timing import Profile

__all__ = ["command"]

SIZE, HEADS = "4096", "1x16x1024x128"


@click.command(
    "profile",
    epilog=manual(
        "0 if the time is predicted, 1 if the result was computed (--full) and is wrong or a kernel fails",
        "warpwright profile gemm --level 7 --size 1024",
        "warpwright profile attention --causal --html report.html",
        "warpwright profile saxpy.ptx --grid 4 --block 256 --arg 1000 --arg 2.0 --arg f32[1000] --arg f32[1000]",
    ),
)
@launch_options(size=SIZE, heads=HEADS)
@click.option(
    "--fast/--full", default=True, show_default=True, help="Run one representative wave, or every CTA with data."
)
@click.option(
    "--sustained", is_flag=True, help="Predict with the clock of a board under sustained load (default: after idle)."
)
@click.option(
    "--warm",
    is_flag=True,
    help="Predict one launch of many in a loop: L2 has what the one before left (default: cold).",
)
@click.option("--limit", type=click.IntRange(1), help="Of a file: stop after so many jumps of a warp.")
@click.option("--trace", type=OutputFile(), help="Write a trace for Perfetto (JSON).")
@click.option("--html", type=OutputFile(), help="Write the report, with a timeline that zooms, for a browser (HTML).")
@click.option("--plot", type=OutputFile(), help="Draw the pipeline (.svg, .png, .pdf).")
@json_option
def command(
    what: str, fast: bool, trace: Path | None, html: Path | None, plot: Path | None, as_json: bool, **options: Any
) -> None:
    """Predict the time of a kernel, and show where it goes.

    The kernel runs on a virtual GPU. Times are in µs and in cycles of the SM. A PTX file needs --grid and an --arg for
    each parameter; a launch file (.toml) has both.
    """
    if plot is not None:
        check_path(plot)
    with progress() as describe:
        describe(what)
        predicted, verdict = predict(what, fast, options)
    if trace is not None:
        write_file(trace, json.dumps(trace_of(predicted)))
    if plot is not None:
        draw_pipeline(predicted, plot)
    if html is not None:
        write_file(html, profile_page(predicted, verdict))
    hints = advice(predicted)
    if as_json:
        checked = {} if verdict is None else verdict.as_row()
        emit(
            {
                **predicted.as_dict(),
                "parts_us": account(predicted),
                "advice": [hint.as_dict() for hint in hints],
                **checked,
            }
        )
    else:
        errors = [] if verdict is None else [table([verdict.as_row()], "the result, against float64")]
        show(*profile_tables(predicted, hints), *errors)
    if verdict is not None and not verdict.verified:
        remark("not verified: the result differs from the float64 reference by more than the bound")
        click.get_current_context().exit(1)


def predict(what: str, fast: bool, options: dict[str, Any]) -> tuple[Profile, Verdict | None]:
    """Returns the profile, and the verdict on the result: None if nothing was computed or there is no reference."""
    state: dict[str, Any] = {name: options[name] for name in ("sustained", "warm") if name in options}
    device = device_of(options)
    if what == "gemm":
        refuse_options(what, options, (*LAUNCH_OPTIONS, "limit", "step", *PROBLEM_OPTIONS))
        size = parse_size(options["size"] or SIZE)
        return matmul_profile(device, size, options["level"], fast, **state)
    if what == "attention":
        refuse_options(what, options, (*LAUNCH_OPTIONS, "limit", "level"))
        problem = problem_of(options["size"] or HEADS, options)
        return attention_profile(device, problem, fast, step=options["step"], **state)
    if what == "memory_flow":
        refuse_options(what, options, (*LAUNCH_OPTIONS, *PROBLEM_OPTIONS, "level", "limit", "size", "step"))
        return flow_profile(device, fast, **state)
    launch = launch_spec(what, options)
    chosen = device_for(launch, options)
    shape = launch.grid, launch.block, launch.cluster, launch.smem
    how = {**state, "limit": options["limit"]}
    return profile.profile(
        launch.kernel, *shape, args=launch.args, device=chosen, fast=fast, memory=launch.memory, **how
    ), None
