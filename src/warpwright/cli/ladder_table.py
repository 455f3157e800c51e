"""The levels of the GEMM ladder on a virtual GPU: predicted, and in a full run also computed and verified."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from rich.console import RenderableType

from warpwright import targets
from warpwright.cli.console import progress
from warpwright.cli.matmul_runs import matmul_profile
from warpwright.gpu import Device
from warpwright.kernels.gemm import sm100
from warpwright.ops.matmul import scaled
from warpwright.ops.matmul.plan import LadderConfig
from warpwright.report.account import account, loss, reason
from warpwright.report.format import percent, signed_percent
from warpwright.report.ladder import Level, peak_tflops
from warpwright.report.published import CUBLAS, PUBLISHED, beyond_published
from warpwright.report.tables import table
from warpwright.report.text import main_stall
from warpwright.vgpu.timing import Profile

__all__ = ["Step", "Steps", "beside_published", "level_tables", "levels_of", "notes_of", "predict_levels"]

Step = LadderConfig | scaled.Config
Steps = Sequence[tuple[int, Step]]  # levels and their configurations

MULTIPLES = {2: "twice", 4: "four times", 8: "eight times"}
ERRORS = ("level", "max_err", "mean_err", "cos_sim", "max_ulp", "verified", "wall_s")


def predict_levels(
    device: Device,
    steps: Steps,
    size: int,
    seed: int,
    fast: bool,
    sustained: bool = False,
    warm: bool = False,
    format: str | None = None,
) -> list[dict[str, Any]]:
    """Returns a row for each configuration: its prediction, the published figures, and in a full run the errors of its
    result. With ``format`` the operands have block scales, and a row has the share of the peak of that format."""
    rows: list[dict[str, Any]] = []
    before: Profile | None = None
    with progress(len(steps)) as describe:
        for level, step in steps:
            describe(f"level {level}: {step.summary} ({size}³ on {device.name})")
            start = time.perf_counter()
            profile, verdict = matmul_profile(device, (size, size, size), step, fast, seed, sustained, warm, format)
            wall = round(time.perf_counter() - start, 3)
            faster = reason(before, profile) if before else ""
            before = profile
            errors = {} if verdict is None else verdict.as_row()
            facts = {"level": level, "stages": step.stages, "size": size, "device": device.name}
            facts |= _facts(profile) | beside_published(step, size, profile.tflops)
            if format:
                facts["of_peak"] = profile.tflops / peak_tflops(device.spec, format)
            rows.append({**facts, "why_faster": faster, **errors, "wall_s": wall})
    return rows


def _facts(profile: Profile) -> dict[str, Any]:
    return {
        "time_us": profile.time_us,
        "tflops": profile.tflops,
        "tensor": profile.usage.tensor,
        "wasted": profile.dropped,
        "ctas_per_sm": profile.ctas_per_sm,
        "parts_us": account(profile),
        "largest_loss": loss(profile),
        "main_stall": main_stall(profile),
    }


def beside_published(step: Step, size: int, tflops: float) -> dict[str, Any]:
    """Returns the published TFLOPS of a level and the difference from them, and those of cuBLAS, where published.

    A configuration that is no level of the ladder has no published figure.
    """
    if not isinstance(step, sm100.Config) or size not in CUBLAS:
        return {}
    row = {"published_cublas": CUBLAS[size]}
    if sm100.LEVELS.get(step.level) == step and size in PUBLISHED.get(step.level, ()):
        published = PUBLISHED[step.level][size]
        row |= {"published": published, "difference": round(tflops / published - 1, 3)}
    return row


def level_tables(rows: Sequence[Mapping[str, Any]], title: str, stages: bool = False) -> Iterable[RenderableType]:
    """Yields title and table of the predictions, with ``stages``, and the table of errors if results were computed."""
    published = any("published" in row for row in rows)
    yield f"[bold]{title}[/bold]"
    yield table([_cells(row, stages, published) for row in rows], wrap=("largest loss",))
    if "verified" in rows[0]:
        yield table([{name: row[name] for name in ERRORS} for row in rows], "the results, against float64")


def _cells(row: Mapping[str, Any], stages: bool, published: bool) -> dict[str, Any]:
    """Returns a row of the table of predictions."""
    beside = f"{row['published']:,.0f} ({signed_percent(row['difference'])})" if "published" in row else ""
    return {
        "level": str(row["level"]),
        **({"stages": str(row["stages"])} if stages else {}),
        "time\nµs": round(row["time_us"]) if row["time_us"] >= 100 else round(row["time_us"], 1),
        "TFLOPS": round(row["tflops"], 1) if row["tflops"] < 100 else round(row["tflops"]),
        **({"published\nTFLOPS": beside} if published else {}),
        **({"of\npeak": percent(row["of_peak"])} if "of_peak" in row else {}),
        "tensor\ncores": percent(row["tensor"]),
        "dropped\nwork": percent(row["wasted"]),
        "largest loss": row["largest_loss"],
    }


def notes_of(
    rows: Sequence[Mapping[str, Any]], steps: Steps, improved: bool, format: str | None = None
) -> Iterator[str]:
    """Yields the lines below the table: each level and why it is faster than the row before it, and what the levels and
    the published figures are."""
    last = 0
    for row, (level, step) in zip(rows, steps, strict=True):
        if level != last:
            yield f"  level {level}: {step.summary}"
        why, who = row.get("why_faster", ""), f"stages {step.stages}: " if level == last else ""
        if why:
            yield f"    {who}{why if why.startswith('slower') else f'faster: {why}'}"
        last = level
    yield from _published_notes({level for level, step in steps if getattr(step, "published", False)})
    if format:
        spec = targets.device(rows[0]["device"])
        flops = MULTIPLES[round(peak_tflops(spec, format) / spec.bf16_tflops)]
        yield f"  of peak: of the data sheet's dense {format.partition('_')[0]} rate, {flops} that of bf16"
    if improved:
        yield "  levels 1 to 3 improved: CTAs share an SM, and a store has 16 bytes"
        yield "  levels 4 and 5 improved: rows reach shared memory 16 bytes at a time"
        yield "  level 5 improved: mbarriers are initialised once, and phases continue from tile to tile"
    fastest = max(rows, key=lambda row: float(row["tflops"]))
    beyond = "" if format else beyond_published(fastest["device"], fastest["tflops"])
    if beyond:
        yield f"  level {fastest['level']}: {beyond}"
    if "published_cublas" in rows[0]:
        cublas = f"{rows[0]['published_cublas']:,.0f}"
        yield f"  published: by the authors of the levels, on a GB200; cuBLAS there: {cublas} TFLOPS"


def _published_notes(levels: Set[int]) -> Iterator[str]:
    if levels & {1, 2, 3}:
        yield "  levels 1 to 3 as published: one CTA an SM at a time, stores of one element (--improved: neither)"
    if levels & {4, 5}:
        yield "  levels 4 and 5 as published: rows reach shared memory 8 bytes at a time (--improved: 16)"
    if 5 in levels:
        yield "  level 5 as published: mbarriers are initialised for each tile (--improved: once)"


def levels_of(rows: Sequence[Mapping[str, Any]], steps: Steps) -> list[Level]:
    """Returns the rows as levels of the chart."""
    return [
        Level(
            level=row["level"],
            tflops=row["tflops"],
            wasted=row.get("wasted", 0.0),
            summary=step.summary,
            why=row.get("largest_loss", ""),
            published=row.get("published"),
        )
        for row, (_, step) in zip(rows, steps, strict=True)
    ]
