"""``warpwright devices``: what a kernel can run on."""

from __future__ import annotations

from typing import Any

import click

from warpwright import targets
from warpwright.cli.console import as_json as json_option
from warpwright.cli.console import emit, show
from warpwright.devices import DEFAULT
from warpwright.report.tables import table

__all__ = ["devices"]


@click.command()
@json_option
def devices(as_json: bool) -> None:
    """List the devices and their limits."""
    rows = [_row(name) for name in targets.DEVICES]
    if as_json:
        emit(rows)
    else:
        show(table(rows), f"[dim]Without --device, kernels run on {DEFAULT}.[/dim]")


def _row(name: str) -> dict[str, Any]:
    spec = targets.device(name)
    return {
        "name": name,
        "kind": "virtual",
        "target": spec.arch,
        "sms": spec.sms,
        "clock_mhz": spec.clock_mhz,
        "bf16_tflops": spec.bf16_tflops,
        "memory_gb": round(spec.hbm_bytes / 1e9),
        "hbm_gb_s": spec.hbm_gbps,
        "l2_mb": round(spec.l2_bytes / 1e6),
        "smem_block_bytes": spec.smem_per_block,
        "tmem_columns": spec.tensor_memory_columns,
    }
