"""``warpwright flow``: one tile through every memory of a Blackwell SM, hop by hop."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from warpwright.cli.console import emit, json_option, progress, show
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.kernels import memory_flow
from warpwright.report.flow import TILE_K, TILE_M, TILE_N, PtxStep, ptx_steps
from warpwright.report.svg import draw
from warpwright.report.verdict import judge
from warpwright.run import devices
from warpwright.run.launch import launch

__all__ = ["command"]

Array = NDArray[Any]


@click.command("flow")
@click.option("--ptx", is_flag=True, help="Also print the PTX of the kernel.")
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the flow to this file.")
@click.option("--device", default=devices.DEFAULT, show_default=True, help="One of `warpwright devices`.")
@json_option
def command(ptx: bool, svg: Path | None, device: str, as_json: bool) -> None:
    """Trace one tile: global → shared → tensor memory → registers → shared → global."""
    traced = memory_flow.memory_flow.trace()
    steps = ptx_steps(traced.ptx)
    with progress() as describe:
        describe("D = A · Bᵀ, 128 × 128 × 64, twice")
        result = verify(devices.device(device))
    if svg is not None:
        write_text(svg, draw(steps, conclusion(device, result)))
    if as_json:
        rows = [{"step": s.number, **asdict(s.step), "ptx": [line for line, _ in s.lines]} for s in steps]
        emit({"device": device, "steps": rows, **result, **({"ptx": traced.ptx} if ptx else {})})
    else:
        show(*step_lines(steps), conclusion(device, result))
        if ptx:
            click.echo(traced.ptx)
    if not result["verified"]:
        click.get_current_context().exit(1)


def verify(device: Device) -> dict[str, Any]:
    """Run the kernel on inputs with a known result, then on random inputs; compare both results with float64."""
    rows, columns = np.ogrid[:TILE_M, :TILE_K]
    by_hand = ((rows + columns) * np.float32(0.01)).astype(np.float16)
    ones = np.ones((TILE_N, TILE_K), np.float16)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, TILE_K)).astype(np.float16) for rows in (TILE_M, TILE_N))
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
    d = np.empty((TILE_M, TILE_N), np.float32)
    launch(memory_flow.memory_flow, 1, args=memory_flow.arguments(a, b, d), device=device)
    return d


def step_lines(steps: list[PtxStep]) -> list[str]:
    """Returns the steps as lines of text with markup."""
    lines = ["[bold]D = A · Bᵀ, 128 × 128 × 64, float16 in, float32 out: one CTA of 128 threads[/bold]", ""]
    for each in steps:
        step = each.step
        lines.append(f"[bold]{each.number}  {step.source} → {step.target}[/bold]   {step.nbytes:,} bytes")
        lines += [f"   {step.how}", f"   [dim]{step.who}[/dim]"]
        for line, times in each.lines:
            count = f"{times} ×" if times > 1 else ""
            lines.append(f"   {count:>4} [cyan]{escape(line)}[/cyan]")
        lines.append("")
    return lines


def conclusion(device: str, result: dict[str, Any]) -> str:
    """Returns one line with the results and whether they are verified."""
    word = "Verified" if result["verified"] else "NOT verified"
    return (
        f"{word} on the virtual {device}: D[0, ·] = {result['d_row0']:.4f}, D[1, ·] = {result['d_row1']:.4f}; "
        f"random A and B differ from float64 by at most {result['random']['max_err']:.2g}"
    )


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``. Raises UsageError if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name a file in a folder that exists") from None
