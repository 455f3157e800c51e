"""``warpwright ptx``: the PTX of a kernel of this package."""

from __future__ import annotations

import click

from warpwright.cli.console import emit, json_option
from warpwright.errors import UsageError
from warpwright.kernels import memory_flow
from warpwright.kernels.gemm import sm100
from warpwright.lang.trace import Traced
from warpwright.ops.matmul.call import DEFAULT_LEVEL

__all__ = ["command"]

KERNELS = ("gemm", "memory_flow")


@click.command("ptx")
@click.argument("kernel", metavar="gemm|memory_flow")
@click.option(
    "--level",
    type=int,
    default=None,
    help=f"Level of the GEMM ladder, 1 to {len(sm100.LEVELS)} (default {DEFAULT_LEVEL}).",
)
@json_option
def command(kernel: str, level: int | None, as_json: bool) -> None:
    """Print the PTX of a kernel."""
    traced = trace(kernel, level)
    if as_json:
        facts = {"threads": traced.threads, "cluster": traced.cluster, "smem_bytes": traced.smem_bytes}
        emit({"kernel": kernel, "entry": traced.entry, "arch": traced.arch, **facts, "ptx": traced.ptx})
    else:
        click.echo(traced.ptx)


def trace(kernel: str, level: int | None) -> Traced:
    """Trace the named kernel. Raises UsageError for another name, or for a level of a kernel without levels."""
    if kernel == "gemm":
        return sm100.kernel_of(sm100.config_of(DEFAULT_LEVEL if level is None else level)).trace()
    if kernel != "memory_flow":
        raise UsageError(f"unknown kernel {kernel!r}; expected one of {', '.join(KERNELS)}")
    if level is not None:
        raise UsageError("memory_flow has no levels; leave --level out")
    return memory_flow.memory_flow.trace()
