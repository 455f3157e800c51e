"""The levels of the GEMM ladder on a virtual GPU: predicted, and in a full run also computed and verified."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from warpwright.cli.console import progress
from warpwright.cli.matmul_runs import matmul_profile
from warpwright.gpu import Device
from warpwright.report.account import account, loss, reason
from warpwright.report.format import percent
from warpwright.report.ladder import Level
from warpwright.report.tables import table
from warpwright.report.text import main_stall
from warpwright.vgpu.timing import Profile

__all__ = ["level_tables", "levels_of", "predict_levels"]

ERRORS = ("level", "max_err", "mean_err", "cos_sim", "max_ulp", "verified", "wall_s")


def predict_levels(
    device: Device, summaries: Mapping[int, str], size: int, seed: int, fast: bool, sustained: bool = False
) -> list[dict[str, Any]]:
    """Returns a row for each level: its prediction, and in a full run the errors of its result."""
    rows: list[dict[str, Any]] = []
    before: Profile | None = None
    with progress(len(summaries)) as describe:
        for level, summary in summaries.items():
            describe(f"level {level}: {summary} ({size}³ on {device.name})")
            start = time.perf_counter()
            profile, verdict = matmul_profile(device, (size, size, size), level, fast, seed, sustained)
            wall = round(time.perf_counter() - start, 3)
            faster = reason(before, profile) if before else ""
            before = profile
            errors = {} if verdict is None else verdict.as_row()
            facts = {"level": level, "size": size, "device": device.name}
            rows.append({**facts, **_facts(profile), "why_faster": faster, **errors, "wall_s": wall})
    return rows


def _facts(profile: Profile) -> dict[str, Any]:
    return {
        "time_us": profile.time_us,
        "tflops": profile.tflops,
        "tensor": profile.usage.tensor,
        "wasted": profile.wasted_flops / profile.flops if profile.flops else 0.0,
        "parts_us": account(profile),
        "largest_loss": loss(profile),
        "main_stall": main_stall(profile),
    }


def level_tables(rows: Sequence[Mapping[str, Any]], title: str) -> Iterable[RenderableType]:
    """Yields the table of predictions, and the table of errors if results were computed."""
    predictions = [
        {
            "level": str(row["level"]),
            "time_us": row["time_us"],
            "tflops": row["tflops"],
            "tensor_cores": percent(row["tensor"]),
            "dropped_work": percent(row["wasted"]),
            "largest loss": row["largest_loss"],
            "why faster than the previous": row["why_faster"],
        }
        for row in rows
    ]
    yield table(predictions, title)
    if "verified" in rows[0]:
        yield table([{name: row[name] for name in ERRORS} for row in rows], "the results, against float64")


def levels_of(rows: Sequence[Mapping[str, Any]], summaries: Mapping[int, str]) -> list[Level]:
    """Returns the rows as levels of the chart."""
    return [
        Level(row["level"], row["tflops"], row.get("wasted", 0.0), summaries[row["level"]], row.get("largest_loss", ""))
        for row in rows
    ]
