"""``warpwright flow``: one tile through every memory of a Blackwell SM, hop by hop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.markup import escape

from warpwright import targets
from warpwright.cli import flow_runs
from warpwright.cli.console import OutputFile, emit, json_option, progress, show
from warpwright.cli.manual import WRONG, manual
from warpwright.gpu import Device
from warpwright.kernels import memory_flow
from warpwright.lang.trace import Traced
from warpwright.report.flow import RESULT, TILE_K, TILE_M, TILE_N, WRITE_UP_SMEM, PtxLine, PtxStep, ptx_steps
from warpwright.report.flow_table import (
    StepTime,
    access_rows,
    amount,
    source_table,
    step_constants,
    step_times,
    tb_s,
    time_rows,
)
from warpwright.report.format import base_name, percent
from warpwright.report.output import write_file
from warpwright.report.svg import draw
from warpwright.report.tables import table
from warpwright.report.verdict import judge
from warpwright.run import devices
from warpwright.run.launch import launch
from warpwright.vgpu.timing import Profile

__all__ = ["command"]

Array = NDArray[Any]
FIELDS = ("source", "target", "how", "who", "idle", "nbytes", "costs", "latency", "rate")
PREDICTED = ("device", "time_us", "cycles", "clock_mhz", "launch_us", "conflicts")


@click.command("flow", epilog=manual(WRONG, "warpwright flow --ptx", "warpwright flow --svg flow.svg --device b200"))
@click.option("--ptx", is_flag=True, help="Also print the PTX of the kernel.")
@click.option("--svg", type=OutputFile(), help="Draw the flow to this file.")
@click.option("--device", default=devices.DEFAULT, show_default=True, help="One of `warpwright devices`.")
@json_option
def command(ptx: bool, svg: Path | None, device: str, as_json: bool) -> None:
    """Trace one tile through every memory of an SM.

    Global → shared → tensor memory → registers → shared → global, with the cycles of each step.
    """
    traced, target = memory_flow.memory_flow.trace(), devices.device(device)
    steps = ptx_steps(traced.ptx)
    with progress() as describe:
        describe("D = A · Bᵀ, 128 × 128 × 64, twice")
        result = verify(target)
        predicted = flow_runs.flow_profile(target if target.name in targets.DEVICES else None, fast=True)[0]
    times = step_times(steps, predicted)
    if svg is not None:
        write_file(svg, draw(steps, times, predicted.device, conclusion(target, result)))
    if as_json:
        figures = {name: value for name, value in predicted.as_dict().items() if name in PREDICTED}
        rows = list(step_dicts(steps, times, predicted.device))
        facts = {"device": target.name, **launch_facts(traced), "predicted": figures, "steps": rows}
        emit({**facts, **result, **({"ptx": traced.ptx} if ptx else {})})
    else:
        show(*heading(traced), *step_lines(steps, times), *tables(times, predicted), conclusion(target, result))
        if ptx:
            click.echo(traced.ptx)
    if not result["verified"]:
        click.get_current_context().exit(1)


def verify(device: Device) -> dict[str, Any]:
    """Run the kernel on inputs with a known result, then on random inputs; compare both results with float64."""
    rows, columns = np.ogrid[:TILE_M, :TILE_K]
    by_hand = ((rows + columns) * np.float32(0.01)).astype(np.float16)
    ones = np.ones((TILE_N, TILE_K), np.float16)
    a, b, _ = flow_runs.operands()
    d = run(by_hand, ones, device)
    known, drawn = judge(d, by_hand, ones.T), judge(run(a, b, device), a, b.T)
    return {
        "input": "A[i, j] = (i + j) / 100 in float16, B = 1",
        "d_row0": round(float(d[0, 0]), 4),
        "d_row1": round(float(d[1, 0]), 4),
        "random": drawn.as_row(),
        "verified": known.verified and drawn.verified,
    }


def run(a: Array, b: Array, device: Device) -> Array:
    """Returns D (128, 128) float32 of ``a`` and ``b`` (128, 64) float16, by one launch."""
    d = np.full((TILE_M, TILE_N), np.nan, np.float32)
    launch(memory_flow.memory_flow, 1, args=memory_flow.arguments(a, b, d), device=device)
    return d


def launch_facts(traced: Traced) -> dict[str, Any]:
    """Returns the threads of the launch, and its shared and tensor memory in bytes."""
    tiles = {"a": TILE_M * TILE_K * 2, "b": TILE_N * TILE_K * 2, "d": RESULT}
    shared = {**tiles, "mbarriers": traced.smem_bytes - sum(tiles.values())}
    return {
        "threads": traced.threads[0],
        "smem_bytes": traced.smem_bytes,
        "write_up_smem_bytes": WRITE_UP_SMEM,
        "shared_memory": shared,
        "tensor_memory_bytes": RESULT,
    }


def heading(traced: Traced) -> Iterator[str]:
    """Yields the first lines: the problem, the memories, shared memory and threads."""
    facts = launch_facts(traced)
    shared = facts["shared_memory"]
    yield "[bold]D = A · Bᵀ, 128 × 128 × 64, float16 in, float32 out: one CTA[/bold]"
    yield "global → shared → tensor memory → registers → shared → global memory"
    yield ""
    yield f"Shared memory: {facts['smem_bytes']:,} bytes (the write-up: {WRITE_UP_SMEM:,})"
    yield f"   A {shared['a']:,}, B {shared['b']:,}, D {shared['d']:,}, mbarriers and padding {shared['mbarriers']:,}"
    yield f"Tensor memory: {RESULT:,} bytes, 128 of 512 columns"
    yield f"Threads: {facts['threads']}, {facts['threads'] // 32} warps"
    yield "Lines: of kernels/memory_flow.py; below each line its PTX"
    yield ""


def step_lines(steps: Sequence[PtxStep], times: Sequence[StepTime]) -> Iterator[str]:
    """Yields the steps as lines of text with markup: what happens, the threads that work and those that are idle, and
    below each line of Python its PTX."""
    time_of = {time.step: time for time in times}
    for each in steps:
        step, time = each.step, time_of.get(each.step)
        yield f"[bold]{step.number:2} {step.title}[/bold]" + ("" if time is None else f"   {amount(time)}")
        yield f"   {step.how}"
        share = "" if time is None else f" (issues in {percent(time.issues)} of the cycles)"
        yield f"   [dim]works: {step.who}{share}[/dim]"
        yield f"   [dim]idle:  {step.idle}[/dim]"
        for row, lines in groupby(each.lines, key=lambda line: line.row):
            instructions = list(lines)
            yield f"[dim]line {row}:[/dim]  {escape(instructions[0].python)}"
            yield from map(instruction, instructions)
        yield ""


def instruction(line: PtxLine) -> str:
    """Returns PTX after its count, if more than one."""
    count = f"{line.times} ×" if line.times > 1 else ""
    return f"{count:3} [cyan]{escape(line.text)}[/cyan]"


def tables(times: Sequence[StepTime], predicted: Profile) -> Iterator[RenderableType]:
    """Yields the predicted time beside the figures of the write-up, and the source of each constant."""
    device = predicted.device
    yield table(time_rows(times, predicted), f"predicted time on {device}, beside the estimates of the write-up")
    for each in predicted.conflicts:
        yield f"bank conflicts at {base_name(each.where)}: {each.wavefronts:,} wavefronts, {each.least:,} without them"
    yield ""
    yield table(
        access_rows(times, device), f"one access, and all SMs of {device} together, beside the tables of the write-up"
    )
    yield source_table(times, device, f"constants of the predictions for {device}")


def step_dicts(steps: Sequence[PtxStep], times: Sequence[StepTime], device: str) -> Iterator[dict[str, Any]]:
    """Yields each step for JSON: its text, figures, constants and instructions."""
    time_of = {time.step: time for time in times}
    for each in steps:
        step, time = each.step, time_of.get(each.step)
        yield {
            "step": step.number,
            **{name: getattr(step, name) for name in FIELDS},
            **({} if time is None else time.as_dict()),
            "write_up": asdict(step.write_up),
            **({"all_sms_tb_s": tb_s(step.rate, device)} if step.rate else {}),
            "constants": [asdict(constant) for constant in step_constants(step, device)],
            "instructions": [{**asdict(line), "python": line.python} for line in each.lines],
        }


def conclusion(device: Device, result: dict[str, Any]) -> str:
    """Returns one line with the results and whether they are verified."""
    word = "Verified" if result["verified"] else "NOT verified"
    kind = "the virtual " if device.name in targets.DEVICES else ""
    return (
        f"{word} on {kind}{device.name}: D[0, ·] = {result['d_row0']:.4f}, D[1, ·] = {result['d_row1']:.4f}; "
        f"random A and B differ from float64 by at most {result['random']['max_err']:.2g}"
    )
