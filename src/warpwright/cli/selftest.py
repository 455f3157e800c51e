"""``warpwright selftest``: a board asked about every rule that its virtual GPU assumes, and every kernel on it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from warpwright import __version__, cuda, targets
from warpwright.cli.console import OutputFile, device_option, emit, json_option, progress, remark, show
from warpwright.cli.ladder import choose_steps, measure_levels
from warpwright.cli.ladder_table import Steps, predict_levels
from warpwright.cli.manual import manual
from warpwright.cuda.driver import version
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.ops.matmul.plan import LADDERS
from warpwright.report.format import signed_percent
from warpwright.report.tables import table
from warpwright.run import devices
from warpwright.selftest import kernels, rules

__all__ = ["command"]

SIZE, REAL_SIZE, ROUNDS = 512, 4096, 30
FINDING, INCOMPLETE = 1, 3
SHOWN = 3  # differing cases of a rule that are printed
FACTS = ("name", "arch", "sms", "clock_mhz", "hbm_gbps", "l2_bytes")


@click.command(
    "selftest",
    epilog=manual(
        "0 if every rule and kernel is right, 1 if one is not",
        "warpwright selftest --device b200",
        "warpwright selftest --device cuda -o report.json",
        "warpwright selftest --compare report.json",
        incomplete="if the board gave no answer to a probe",
    ),
)
@device_option
@click.option("-o", "--output", type=OutputFile(), help="Write the report, with all answers (.json).")
@click.option(
    "--compare",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A report to lay beside the virtual board that it names.",
)
@json_option
def command(device: str, output: Path | None, compare: Path | None, as_json: bool) -> None:
    """Compare a board with its virtual GPU.

    The command asks the board about each rule that its virtual GPU assumes, verifies every kernel, and measures the
    GEMM ladder.

    On a real GPU the answers to all probes are compared with those of its virtual board, every shipped kernel with
    float64, and each level of the ladder is timed beside torch.matmul (cuBLAS) and beside its prediction. On a virtual
    GPU a few cases of each probe run, and smaller problems.
    """
    if compare is not None:
        report = _compared(rules.read_report(compare), device)
    else:
        report, asked = _tested(devices.device(device, numerics="hardware"))
        if output is not None:
            full = {**report, "answers": rules.pack(asked)}
            output.write_text(json.dumps(full, indent=1, default=lambda item: item.item()), encoding="utf-8")
    if as_json:
        emit(report)
    else:
        show(*_tables(report))
    for line in _remarks(report):
        remark(line)
    click.get_current_context().exit(report["status"])


def _tested(target: Device) -> tuple[dict[str, Any], dict[str, rules.Asked]]:
    """Returns the report of a device without its answers, and the answers."""
    real, board = isinstance(target, cuda.Device), _board_of(target)
    with progress() as describe:
        began = time.perf_counter()
        asked = rules.ask_board(target, describe)
        found = list(rules.compare(asked, board if real else None, target.spec.arch))
        rows = []
        for name, check in kernels.checks(target).items():
            describe(f"verifies {name}")
            rows.append(kernels.row_of(name, check))
    ladder = _ladder(target, board)
    seconds = round(time.perf_counter() - began, 1)
    facts = {name: getattr(target.spec, name) for name in FACTS} | ({"driver": version()} if real else {})
    return _report(facts, real, board.name, found, rows, ladder) | {"seconds": seconds}, asked


def _compared(report: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Returns a recorded report with the answers and the predictions of today's virtual board."""
    given = click.get_current_context().get_parameter_source("device")
    named = given is click.core.ParameterSource.COMMANDLINE
    board = devices.device(device if named else report["board"], numerics="hardware")
    if isinstance(board, cuda.Device):
        raise UsageError(f"given --compare with --device {device}; expected a virtual device, or none: leave it out")
    asked, arch = rules.unpack(report["answers"]), report["device"]["arch"]
    with progress() as describe:
        describe(f"asks the virtual {board.name}")
        found = list(rules.compare(asked, board, arch))
    steps = [(level, step) for level, step in _steps(board) if any(row["level"] == level for row in report["ladder"])]
    ladder = [dict(row) for row in report["ladder"]]
    if report["real"] and ladder:
        _add_predictions(ladder, board, steps, ladder[0]["size"])
    return _report(report["device"], report["real"], board.name, found, report["kernels"], ladder)


def _report(
    facts: Mapping[str, Any],
    real: bool,
    board: str,
    found: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    ladder: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    wrong = any(row["status"] == rules.DIFFERENT for row in found) or any(
        row["status"] == kernels.WRONG for row in rows
    )
    unknown = any(row["unanswered"] for row in found)
    head = {"format": rules.FORMAT, "version": __version__, "device": dict(facts), "real": real, "board": board}
    status = FINDING if wrong else INCOMPLETE if unknown else 0
    return {**head, "status": status, "rules": list(found), "kernels": list(rows), "ladder": list(ladder)}


def _board_of(target: Device) -> Device:
    """Returns the virtual board that a GPU is most like."""
    spec = target.spec
    name = spec.name if spec.name in targets.DEVICES else targets.nearest(spec.arch, spec.sms, spec.hbm_gbps).name
    return devices.device(name, numerics="hardware")


def _steps(board: Device) -> Steps:
    known = targets.kernels_of(board.spec.arch) in LADDERS
    return choose_steps(board, None, None, False) if known else []


def _ladder(target: Device, board: Device) -> list[dict[str, Any]]:
    """Returns a row for each level of the GEMM ladder: measured on a real GPU, and predicted."""
    steps = _steps(board)
    if isinstance(target, cuda.Device):
        rows = measure_levels(target, steps, REAL_SIZE, ROUNDS, 0) if steps else []
        _add_predictions(rows, board, steps, REAL_SIZE)
        return rows
    found = predict_levels(board, steps, SIZE, 0, fast=True)
    return [{"level": row["level"], "size": SIZE, "predicted_us": row["time_us"]} for row in found]


def _add_predictions(rows: Sequence[dict[str, Any]], board: Device, steps: Steps, size: int) -> None:
    predicted = {row["level"]: row["time_us"] for row in predict_levels(board, steps, size, 0, fast=True)}
    for row in rows:
        us = predicted[row["level"]]
        row |= {"predicted_us": us, "error": round(us / row["us"] - 1, 3)}


def _tables(report: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the tables of a report."""
    of = f"{report['device']['name']} beside the virtual {report['board']}" if report["real"] else report["board"]
    yield table(_by_page(report["rules"]), f"rules, {of}")
    shown = [row for row in report["kernels"] if row["status"] != kernels.ABSENT]
    if shown:
        columns = ("kernel", "status", "max_err", "max_ulp")
        yield table([{name: row.get(name, "") for name in columns} for row in shown], "kernels, against float64")
    if report["ladder"]:
        names = ("level", "us", "tflops", "torch_tflops", "of_torch", "predicted_us", "error")
        size = report["ladder"][0]["size"]
        rows = [{name: row[name] for name in names if name in row} for row in report["ladder"]]
        yield table(rows, f"GEMM ladder, {size}³")


def _by_page(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each section of docs/machine.md: its rules, their cases, and how many have each status."""
    pages: dict[str, list[Mapping[str, Any]]] = {}
    for row in found:
        pages.setdefault(row["page"], []).append(row)
    return [
        {"page": page, "rules": len(rows), "cases": sum(row["cases"] for row in rows), "answers": _counts(rows)}
        for page, rows in pages.items()
    ]


def _counts(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{count} {status}" for status, count in Counter(row["status"] for row in rows).items())


def _remarks(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines for rules that differ, cases without an answer, wrong kernels, and what is absent."""
    for row in report["rules"]:
        if row["differences"]:
            yield f"rule {row['rule']} differs in {len(row['differences'])} of {row['cases']} cases: {row['page']}"
            yield f"  it asks: {row['asks']}"
            yield from (f"  {line}" for line in row["differences"][:SHOWN])
        yield from (f"rule {row['rule']} has no answer to {line}" for line in row["unanswered"])
        if row["not_executed"]:
            why = next(iter(row["not_executed"].values()))
            yield f"rule {row['rule']}: {len(row['not_executed'])} cases that the virtual GPU does not execute: {why}"
    for row in report["kernels"]:
        if row["status"] == kernels.WRONG:
            yield f"kernel {row['kernel']} is wrong: {row.get('why', 'it differs from float64 by more than the bound')}"
    absent = [row["kernel"] for row in report["kernels"] if row["status"] == kernels.ABSENT]
    if absent:
        yield f"{report['board']} has no kernel for {', '.join(absent)}"
    errors = [abs(row["error"]) for row in report["ladder"] if "error" in row]
    if errors:
        yield f"predicted beside measured: {signed_percent(sum(errors) / len(errors)).lstrip('+')} off in the mean"
        if "torch_tflops" not in report["ladder"][0]:
            yield "torch is not installed, or sees no GPU: cuBLAS was not measured"
    elif not report["ladder"]:
        yield f"{report['board']} has no GEMM ladder"
