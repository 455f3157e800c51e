"""``warpwright check``: races, deadlocks and broken protocols of a kernel, with the lines and the repair."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from warpwright import __version__
from warpwright.cli.attention_runs import attend, counted, titled
from warpwright.cli.console import as_json as json_option
from warpwright.cli.console import emit, remark, show, working
from warpwright.cli.flow import write_text
from warpwright.cli.launches import (
    LAUNCH_OPTIONS,
    Launch,
    Substitute,
    chosen_device,
    launch_options,
    parse_size,
    read_described,
    refuse,
)
from warpwright.cli.matmul_runs import operands
from warpwright.cli.problems import PROBLEM_OPTIONS, problem_of
from warpwright.gpu import Device
from warpwright.kernels.attention import Problem
from warpwright.ops.matmul.call import matmul
from warpwright.report.findings import verdict_lines
from warpwright.report.sarif import sarif_of
from warpwright.report.tables import table
from warpwright.report.verdict import Verdict as Numbers
from warpwright.report.verdict import judge, judge_attention
from warpwright.run.check import LIMIT, merged
from warpwright.run.check import check as checked
from warpwright.run.devices import DEFAULT
from warpwright.run.devices import device as device_of
from warpwright.vgpu.checks.findings import Verdict

__all__ = ["command"]

SIZE, HEADS = "256", "1x2x128x64"
STATUS = {"clean": 0, "findings": 1, "incomplete": 3}
STOPPED = ("deadlock", "fault")  # rules after which there is no result


@click.command("check")
@launch_options(size=SIZE, heads=HEADS)
@click.option("--explore", type=click.IntRange(0), metavar="N", help="Run N more schedules, of seeds 1 to N.")
@click.option("--seed", type=click.IntRange(0), help="Run the schedule of this seed; with --explore, N from it on.")
@click.option("--limit", type=click.IntRange(1), default=LIMIT, show_default=True, help="Jumps, accesses: then stop.")
@click.option("--off", multiple=True, metavar="RULE", help="A rule not to check; may be given several times.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Write the findings for code review tools (SARIF).")
@json_option
def command(what: str, off: tuple[str, ...], sarif: Path | None, as_json: bool, **options: Any) -> None:
    """Check a kernel on a virtual GPU: races, deadlocks, broken protocols.

    Exit status: 0 clean, 1 findings, 2 a usage error, 3 incomplete: not all was reached, or not all is modelled.
    """
    with working() as describe:
        describe(what)
        how = {"off": off, "limit": options.pop("limit")}
        how |= {name: value for name in ("explore", "seed") if (value := options.pop(name)) is not None}
        verdict, numbers, source = _made(what, how, options)
    if sarif is not None:
        write_text(sarif, json.dumps(sarif_of(verdict, __version__, source), indent=2))
    if as_json:
        emit({**verdict.as_dict(), **({} if numbers is None else {"result": numbers.as_row()})})
    else:
        errors = [] if numbers is None else [table([numbers.as_row()], "the result, against float64")]
        show(*verdict_lines(verdict, source, _again()), *errors)
    wrong = numbers is not None and not numbers.verified
    if wrong:
        remark("not verified: the result differs from the float64 reference by more than the bound")
    click.get_current_context().exit(1 if wrong else STATUS[verdict.kind])


def _again() -> str:
    """The command as it was given, without its schedules and what only says how to print."""
    context = click.get_current_context()
    words = []
    for option in context.command.params:
        name = option.name or ""
        if name in ("explore", "seed", "sarif", "as_json"):
            continue
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            given, flag = context.params[name], option.opts[:1] * isinstance(option, click.Option)
            for value in given if isinstance(given, tuple) else (given,):
                words += [*flag] if value is True else [*flag, str(value)]
    return shlex.join(["warpwright", "check", *words])


def _made(what: str, how: dict[str, Any], options: dict[str, Any]) -> tuple[Verdict, Numbers | None, Path | None]:
    """The verdict, the errors of the result where there is a reference, and the PTX file where there is one."""
    if what == "gemm":
        refuse(what, options, (*LAUNCH_OPTIONS, *PROBLEM_OPTIONS))
        return *_product(parse_size(options["size"] or SIZE), how, options), None
    if what == "attention":
        refuse(what, options, (*LAUNCH_OPTIONS, "level"))
        problem = problem_of(options["size"] or HEADS, options)
        return *_attention(problem, how, device_of(options["device"] or DEFAULT)), None
    launch = read_described(what, options)
    device = chosen_device(launch, options)
    shape = launch.grid, launch.block, launch.cluster, launch.smem
    how = {"explore": launch.explore, "seed": launch.seed, "depends_on": launch.depends_on} | how
    how["off"] = (*launch.off, *how["off"])
    return checked(launch.kernel, *shape, args=launch.args, device=device, **how), None, launch.source


def _product(
    shape: tuple[int, int, int], how: dict[str, Any], options: dict[str, Any]
) -> tuple[Verdict, Numbers | None]:
    """The launches of a bfloat16 product (M, N, K) of standard normal operands, under one verdict."""
    device, level = device_of(options["device"] or DEFAULT), options["level"]
    m, n, k = shape
    verdicts: list[Verdict] = []

    def act(launch: Launch) -> None:
        verdicts.append(checked(**launch, device=device, **how))

    a, b = operands(shape, 0)
    result = matmul(a, b.T, device=Substitute(device, act), level=level)
    rung = "gemm" if level is None else f"gemm level {level}"
    verdict = merged(f"{rung}, {m} × {n} × {k}", verdicts)
    return verdict, None if _stopped(verdict) else judge(result, a, b.T)


def _attention(problem: Problem, how: dict[str, Any], device: Device) -> tuple[Verdict, Numbers | None]:
    """The launch of an attention of standard normal operands."""
    verdicts: list[Verdict] = []

    def act(launch: Launch) -> None:
        verdicts.append(checked(**counted(launch), device=device, **how))

    given, out, lse, ran = attend(problem, Substitute(device, act), 0)
    verdict = merged(titled(problem, ran), verdicts)
    return verdict, None if _stopped(verdict) else judge_attention(problem, given, out, lse)


def _stopped(verdict: Verdict) -> bool:
    """Whether there is no result: that of the first schedule."""
    first = verdict.seeds[0]
    return any(finding.rule.id in STOPPED and finding.seed == first for finding in verdict.findings)
