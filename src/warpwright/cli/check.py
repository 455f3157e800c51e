"""``warpwright check``: races, deadlocks and broken protocols of a kernel, with the lines and the repair."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from warpwright import __version__
from warpwright.cli import flow_runs, matmul_runs
from warpwright.cli.attention_runs import call_of, title_of, with_counter
from warpwright.cli.console import OutputFile, emit, json_option, progress, remark, show
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
from warpwright.cli.matmul_runs import operands
from warpwright.cli.problems import PROBLEM_OPTIONS, problem_of
from warpwright.cli.profile import predict
from warpwright.errors import DescriptorError, DeviceError
from warpwright.gpu import Device
from warpwright.kernels import memory_flow
from warpwright.kernels.attention import Problem
from warpwright.ops.binding import Call
from warpwright.ops.launches import launches
from warpwright.ops.matmul.call import matmul
from warpwright.report.findings import verdict_lines
from warpwright.report.html.profile import profile_page
from warpwright.report.html.verdict import verdict_page
from warpwright.report.output import write_file
from warpwright.report.sarif import sarif_of
from warpwright.report.tables import table
from warpwright.report.verdict import Verdict, judge, judge_attention
from warpwright.run import check, devices
from warpwright.vgpu.checks import findings

__all__ = ["command"]

SIZE, HEADS = "256", "1x2x128x64"
STATUS = {"clean": 0, "notes": 0, "findings": 1, "incomplete": 3}
STOPPED = ("deadlock", "fault")  # rules after which there is no result


@click.command(
    "check",
    epilog=manual(
        "0 if the verdict is clean or has notes only, 1 for findings or a wrong result",
        "warpwright check gemm --level 7 --size 256",
        "warpwright check attention --size 1x2x128x64 --explore 8",
        "warpwright check saxpy.ptx --grid 4 --block 256 --arg 1000 --arg 2.0 --arg f32[1000] --arg f32[1000]",
        incomplete="if it is incomplete: some code was not reached or is not modelled",
    ),
)
@launch_options(size=SIZE, heads=HEADS)
@click.option("--explore", type=click.IntRange(0), metavar="N", help="Run N more schedules, with seeds 1 to N.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="Run the schedule of this seed; with --explore, N schedules from this seed on.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=check.LIMIT,
    show_default=True,
    help="Stop after so many jumps of a warp, or accesses of a cluster.",
)
@click.option("--off", multiple=True, metavar="RULE", help="Rule that is not checked; may be repeated.")
@click.option("--strict", is_flag=True, help="Notes are findings, also in PTX of other compilers.")
@click.option("--sarif", type=OutputFile(), help="Write the findings for code review tools (SARIF).")
@click.option("--html", type=OutputFile(), help="Write the verdict and the timeline as a page for a browser (HTML).")
@json_option
def command(
    what: str, off: tuple[str, ...], sarif: Path | None, html: Path | None, as_json: bool, **options: Any
) -> None:
    """Check a kernel for races, deadlocks and broken protocols.

    The kernel runs on a virtual GPU. A PTX file needs --grid and an --arg for each parameter; a launch file (.toml)
    has both.
    """
    with progress() as describe:
        describe(what)
        how = {"off": off, "limit": options.pop("limit")}
        how |= {"strict": True} if options.pop("strict") else {}
        how |= {name: value for name in ("explore", "seed") if (value := options.pop(name)) is not None}
        verdict, errors, source = _verdict(what, how, options)
    if sarif is not None:
        write_file(sarif, json.dumps(sarif_of([verdict], __version__, source), indent=2))
    if html is not None:
        write_file(html, _page(what, options, verdict, errors, source))
    if as_json:
        emit({**verdict.as_dict(), **({} if errors is None else {"result": errors.as_row()})})
    else:
        tables = [] if errors is None else [table([errors.as_row()], "the result, against float64")]
        show(*verdict_lines(verdict, source, _command()), *tables)
    wrong = errors is not None and not errors.verified
    if wrong:
        remark("not verified: the result differs from the float64 reference by more than the bound")
    click.get_current_context().exit(1 if wrong else STATUS[verdict.kind])


def _page(
    what: str, options: dict[str, Any], verdict: findings.Verdict, errors: Verdict | None, source: Path | None
) -> str:
    """Returns the page of a verdict, with the profile of the launch; a kernel that stops has none."""
    try:
        profile, _ = predict(what, False, options | {"limit": None})
    except (DeviceError, DescriptorError):
        return verdict_page(verdict, source, _command(), errors)
    return profile_page(profile, errors, verdict, source, _command())


def _command() -> str:
    """Returns the command line without the options of schedules and output."""
    context = click.get_current_context()
    words = []
    for option in context.command.params:
        name = option.name or ""
        if name in ("explore", "seed", "sarif", "html", "as_json"):
            continue
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            given, flag = context.params[name], option.opts[:1] * isinstance(option, click.Option)
            for value in given if isinstance(given, tuple) else (given,):
                words += [*flag] if value is True else [*flag, str(value)]
    return shlex.join(["warpwright", "check", *words])


def _verdict(
    what: str, how: dict[str, Any], options: dict[str, Any]
) -> tuple[findings.Verdict, Verdict | None, Path | None]:
    """Returns the verdict, the errors of the result if there is a reference, and the PTX file if there is one."""
    if what == "gemm":
        refuse_options(what, options, (*LAUNCH_OPTIONS, "step", *PROBLEM_OPTIONS))
        return *_matmul(parse_size(options["size"] or SIZE), how, options), None
    if what == "attention":
        refuse_options(what, options, (*LAUNCH_OPTIONS, "level"))
        problem = problem_of(options["size"] or HEADS, options)
        return *_attention(problem, how, device_of(options), options["step"]), None
    if what == "memory_flow":
        refuse_options(what, options, (*LAUNCH_OPTIONS, *PROBLEM_OPTIONS, "level", "size", "step"))
        return *_memory_flow(how, device_of(options)), None
    launch = launch_spec(what, options)
    device = device_for(launch, options)
    shape = launch.grid, launch.block, launch.cluster, launch.smem
    how = {name: getattr(launch, name) for name in ("explore", "seed", "depends_on", "memory")} | how
    how["off"] = (*launch.off, *how["off"])
    return check.check(launch.kernel, *shape, args=launch.args, device=device, **how), None, launch.source


def _matmul(
    shape: tuple[int, int, int], how: dict[str, Any], options: dict[str, Any]
) -> tuple[findings.Verdict, Verdict | None]:
    """Returns one verdict on the launches of a bfloat16 matmul (M, N, K) of standard normal operands, and the errors of
    its result."""
    device, level = devices.device(options["device"] or devices.DEFAULT), options["level"]
    a, b = operands(shape, 0)
    call = launches(matmul, a, b.T, device=device, level=level)
    verdict = check.merge_verdicts(matmul_runs.title_of(shape, level), _check_each(call, how))
    return verdict, None if _stopped(verdict) else judge(call.result, a, b.T)


def _attention(
    problem: Problem, how: dict[str, Any], device: Device, step: str | None
) -> tuple[findings.Verdict, Verdict | None]:
    """Returns one verdict on the launches of an attention of standard normal operands, and the errors of its result."""
    given, call = call_of(problem, device, 0, step)
    verdicts = _check_each(call, how)
    out, lse, ran = call.result
    verdict = check.merge_verdicts(title_of(problem, ran), verdicts)
    return verdict, None if _stopped(verdict) else judge_attention(problem, given, out, lse)


def _memory_flow(how: dict[str, Any], device: Device) -> tuple[findings.Verdict, Verdict | None]:
    """Returns the verdict on the memory flow of standard normal operands, and the errors of its result."""
    a, b, d = flow_runs.operands()
    args = memory_flow.arguments(a, b, d)
    verdict = check.check(memory_flow.memory_flow, 1, args=args, device=device, update=True, **how)
    return verdict, None if _stopped(verdict) else judge(d, a, b.T)


def _check_each(call: Call, how: dict[str, Any]) -> list[findings.Verdict]:
    """Returns the verdict on each launch of a call; the next launch reads the results."""
    how = {"device": call.device} | how
    each_launch = map(with_counter, call)
    return [check.check(each.kernel, each.grid, args=each.args, update=True, **how) for each in each_launch]


def _stopped(verdict: findings.Verdict) -> bool:
    """Returns whether the first schedule stopped, so that there is no result."""
    first = verdict.seeds[0]
    return any(finding.rule.id in STOPPED and finding.seed == first for finding in verdict.findings)
