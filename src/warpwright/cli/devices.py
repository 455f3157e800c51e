"""``warpwright devices``: the devices and their figures."""

from __future__ import annotations

from typing import Any

import click

from warpwright import cuda, targets
from warpwright.cli.console import emit, json_option, show
from warpwright.cli.manual import manual
from warpwright.report.tables import table
from warpwright.run.devices import resolve

__all__ = ["command"]


@click.command(
    "devices", epilog=manual("0 if the devices are listed", "warpwright devices", "warpwright devices --json")
)
@json_option
def command(as_json: bool) -> None:
    """List the devices and their limits.

    With --json, each figure has its source.
    """
    real = [_row(gpu.name, gpu.spec.name, gpu.spec) for gpu in cuda.devices()]
    rows = real + [_row(name, "virtual", spec) for name, spec in targets.DEVICES.items()]
    if as_json:
        emit(rows)
    else:
        hidden = {"source"} if real else {"source", "kind"}  # without a real GPU all are virtual
        shown = [{key: value for key, value in row.items() if key not in hidden} for row in rows]
        show(
            table(shown, "" if real else "virtual devices"),
            f"[dim]Without --device, kernels run on {resolve(None).name}.[/dim]",
        )


def _row(name: str, kind: str, spec: targets.Device) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "target": spec.arch,
        "sms": spec.sms,
        "clock_mhz": spec.clock_mhz,
        "bf16_tflops": spec.bf16_tflops,
        "memory_gb": round(spec.hbm_bytes / 1e9),
        "hbm_gb_s": spec.hbm_gbps,
        "l2_mb": round(spec.l2_bytes / 1e6),
        "smem_block_bytes": spec.smem_per_block,
        "tmem_columns": spec.tensor_memory_columns,
        "source": dict(spec.source),
    }
