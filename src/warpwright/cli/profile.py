"""``warpwright profile``: the predicted time of a kernel, where it goes, and what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from warpwright.cli.attention_runs import attention_profile
from warpwright.cli.console import as_json as json_option
from warpwright.cli.console import emit, remark, show, working
from warpwright.cli.flow import write_text
from warpwright.cli.launches import LAUNCH_OPTIONS, chosen_device, launch_options, parse_size, read_described, refuse
from warpwright.cli.matmul_runs import matmul_profile
from warpwright.cli.problems import PROBLEM_OPTIONS, problem_of
from warpwright.report.account import account
from warpwright.report.advice import advice
from warpwright.report.figure import check_path
from warpwright.report.pipeline import draw_pipeline
from warpwright.report.tables import table
from warpwright.report.text import profile_tables
from warpwright.report.trace import trace_of
from warpwright.report.verdict import Verdict
from warpwright.run.devices import DEFAULT
from warpwright.run.devices import device as device_of
from warpwright.run.profile import profile as profile_of
from warpwright.vgpu.timing import Profile

__all__ = ["command"]

SIZE, HEADS = "4096", "1x16x1024x128"


@click.command("profile")
@launch_options(size=SIZE, heads=HEADS)
@click.option(
    "--fast/--full", default=True, show_default=True, help="One representative wave, or every CTA with numbers."
)
@click.option("--sustained", is_flag=True, help="At the clock of a board under lasting load, not after a rest.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write a trace for Perfetto (JSON).")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the pipeline (.svg, .png, .pdf).")
@json_option
def command(what: str, fast: bool, trace: Path | None, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Predict the time of a kernel on a virtual GPU, and show where it goes."""
    if plot is not None:
        check_path(plot)
    with working() as describe:
        describe(what)
        made, verdict = _made(what, fast, options)
    if trace is not None:
        write_text(trace, json.dumps(trace_of(made)))
    if plot is not None:
        draw_pipeline(made, plot)
    hints = advice(made)
    if as_json:
        checked = {} if verdict is None else verdict.as_row()
        emit({**made.as_dict(), "parts_us": account(made), "advice": [hint.as_dict() for hint in hints], **checked})
    else:
        errors = [] if verdict is None else [table([verdict.as_row()], "the result, against float64")]
        show(*profile_tables(made, hints), *errors)
    if verdict is not None and not verdict.verified:
        remark("not verified: the result differs from the float64 reference by more than the bound")
        click.get_current_context().exit(1)


def _made(what: str, fast: bool, options: dict[str, Any]) -> tuple[Profile, Verdict | None]:
    """The profile, and the verdict on the result: None where nothing was computed or there is no reference."""
    device = device_of(options["device"] or DEFAULT)
    if what == "gemm":
        refuse(what, options, (*LAUNCH_OPTIONS, *PROBLEM_OPTIONS))
        size = parse_size(options["size"] or SIZE)
        return matmul_profile(device, size, options["level"], fast, sustained=options["sustained"])
    if what == "attention":
        refuse(what, options, (*LAUNCH_OPTIONS, "level"))
        problem = problem_of(options["size"] or HEADS, options)
        return attention_profile(device, problem, fast, options["sustained"])
    launch = read_described(what, options)
    chosen = chosen_device(launch, options)
    shape = launch.grid, launch.block, launch.cluster, launch.smem
    return profile_of(
        launch.kernel, *shape, args=launch.args, device=chosen, fast=fast, sustained=options["sustained"]
    ), None
