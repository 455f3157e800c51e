"""Tables from rows with equal keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = ["HEADINGS", "cell_text", "table"]


WIDE = 9  # columns

# Headings of keys that are not words; the keys are those of the JSON output.
HEADINGS = {
    "bf16_tflops": "BF16\nTFLOPS",
    "clock_mhz": "clock\nMHz",
    "cos_sim": "cosine",
    "ctas": "CTAs",
    "gpu": "GPU",
    "hbm_gb_s": "DRAM\nGB/s",
    "k": "K",
    "l2_mb": "L2\nMB",
    "launch_us": "launch µs",
    "m": "M",
    "max_err": "max error",
    "max_ulp": "max ulp",
    "mean_err": "mean error",
    "memory_gb": "DRAM\nGB",
    "n": "N",
    "sms": "SMs",
    "predicted_us": "predicted µs",
    "smem_block_bytes": "SMEM\nbytes",
    "tflops": "TFLOPS",
    "time_us": "time µs",
    "tmem_columns": "TMEM\ncols",
    "torch_tflops": "torch TFLOPS",
    "us": "µs",
    "wall_s": "wall time s",
}


def table(rows: Sequence[Mapping[str, Any]], title: str = "", *, wrap: Collection[str] = ()) -> Table:
    """Returns a table with one column for each key of the first row; numbers are right-aligned, long headings wrap.
    `HEADINGS` has the headings of keys that are no words.

    The cells of the columns ``wrap`` wrap too, where the console is too narrow.
    """
    dense = len(rows[0]) > WIDE  # else a terminal of 80 columns cuts numbers off
    result = Table(
        box=box.SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        title_style="bold",
        collapse_padding=dense,
        pad_edge=not dense,
    )
    for key, value in rows[0].items():
        heading = HEADINGS.get(key, key.replace("_", " "))
        cells = [Text.from_markup(_cell(key, row[key])) for row in rows]
        width = max(*map(len, heading.split()), *map(len, cells))
        side: Literal["left", "right"] = "right" if isinstance(value, (int, float)) else "left"
        least = None if key in wrap else width
        result.add_column(heading, justify=side, min_width=least, vertical="bottom" if least else "top")
    for row in rows:
        result.add_row(*(_cell(key, value) for key, value in row.items()))
    return result


def _cell(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "[green]yes[/green]" if value else "[red]no[/red]"
    return cell_text(key, value)


def cell_text(key: str, value: Any) -> str:
    """Returns a number with the digits that a table shows, anything else as it is."""
    if isinstance(value, float):
        return f"{value:.6f}" if key == "cos_sim" else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
