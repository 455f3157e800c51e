"""``warpwright profile``: the predicted time of a kernel, where it goes, and what to change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from warpwright.cli.console import as_json as json_option
from warpwright.cli.console import emit, remark, show, working
from warpwright.cli.profiling import product_profile
from warpwright.devices import DEFAULT
from warpwright.devices import device as device_of
from warpwright.errors import UsageError
from warpwright.launch_file import Described, arguments, described, entry_of, read_launch
from warpwright.profile import profile as profile_of
from warpwright.report.account import account
from warpwright.report.advice import advice
from warpwright.report.figure import check_path
from warpwright.report.pipeline import draw_pipeline
from warpwright.report.tables import table
from warpwright.report.text import profile_tables
from warpwright.report.trace import trace_of
from warpwright.report.verdict import Verdict
from warpwright.vgpu.timing import Profile

__all__ = ["profile"]

LAUNCH_OPTIONS = ("entry", "grid", "block", "cluster", "smem", "arg")


@click.command()
@click.argument("what", metavar="gemm|FILE.ptx|FILE.toml")
@click.option("--level", type=int, help="Of gemm: the rung of the ladder; without it, as matmul chooses.")
@click.option("--size", default="4096", show_default=True, help="Of gemm: M = N = K, or MxNxK such as 4096x512x8192.")
@click.option("--entry", help="Of a PTX file: the kernel; may be left out where there is one.")
@click.option("--grid", help="Of a PTX file: CTAs, x or x,y,z.")
@click.option("--block", help="Of a PTX file: threads, x or x,y,z; a kernel with .reqntid knows.")
@click.option("--cluster", help="Of a PTX file: CTAs of a cluster, x or x,y,z.")
@click.option("--smem", type=int, help="Of a PTX file: dynamic shared memory, bytes.")
@click.option("--arg", multiple=True, help="Of a PTX file, once a parameter: 1000, 2.5, f32[64,32] or x.npy.")
@click.option(
    "--fast/--full", default=True, show_default=True, help="One representative wave, or every CTA with numbers."
)
@click.option("--sustained", is_flag=True, help="At the clock of a board under lasting load, not after a rest.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write a trace for Perfetto (JSON).")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the pipeline (.svg, .png, .pdf).")
@click.option("--device", help=f"One of `warpwright devices`; {DEFAULT} where neither it nor a launch file names one.")
@json_option
def profile(what: str, fast: bool, trace: Path | None, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Predict the time of a kernel on a virtual GPU, and show where it goes."""
    if plot is not None:
        check_path(plot)
    with working() as describe:
        describe(f"{what} on {options['device'] or DEFAULT}")
        made, verdict = _made(what, fast, options)
    if trace is not None:
        _write(trace, json.dumps(trace_of(made)))
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
    if what == "gemm":
        _refuse(what, options, LAUNCH_OPTIONS)
        device = device_of(options["device"] or DEFAULT)
        return product_profile(
            device, parse_size(options["size"]), options["level"], fast, sustained=options["sustained"]
        )
    _refuse(what, options, ("level",))
    launch = _described(what, options)
    device = device_of(options["device"] or launch.device or DEFAULT)
    shape = launch.grid, launch.block, launch.cluster, launch.smem
    return profile_of(
        launch.kernel, *shape, args=launch.args, device=device, fast=fast, sustained=options["sustained"]
    ), None


def _described(what: str, options: dict[str, Any]) -> Described:
    path = Path(what)
    if path.suffix == ".toml":
        _refuse(what, options, LAUNCH_OPTIONS)
        return read_launch(path)
    if path.suffix != ".ptx":
        raise UsageError(f"given {what}; expected gemm, a PTX file (.ptx) or a launch file (.toml)")
    if options["grid"] is None:
        raise UsageError(f"given {what} without --grid; expected the CTAs of the launch, such as --grid 148")
    grid, block, cluster = (_dims(name, options[name]) for name in ("grid", "block", "cluster"))
    args = tuple(arguments(described(options["arg"]), Path(), "--arg"))
    return Described(entry_of(path, options["entry"]), grid, block, cluster, options["smem"], args, None)


def _refuse(what: str, options: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if options[name] not in (None, ()):
            raise UsageError(f"given --{name} for {what}; it says nothing there: leave it out")


def _dims(name: str, text: str | None) -> tuple[int, ...] | None:
    """``"4"`` or ``"4,2,1"``."""
    parts = [] if text is None else text.replace("x", ",").split(",")
    if len(parts) > 3 or not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"given --{name} {text}; expected a number, or up to three: {name} 4,2,1")
    return tuple(map(int, parts)) or None


def parse_size(text: str) -> tuple[int, int, int]:
    """``"4096"`` or ``"4096x512x8192"`` as (M, N, K)."""
    parts = text.lower().split("x")
    if len(parts) not in (1, 3) or not all(part.isdigit() and int(part) for part in parts):
        raise UsageError(f"given --size {text}; expected M = N = K such as 4096, or MxNxK such as 4096x512x8192")
    m, n, k = (parts * 3)[:3]
    return int(m), int(n), int(k)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name a file in a folder that exists") from None
