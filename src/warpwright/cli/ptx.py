"""``warpwright ptx``: the PTX of a kernel of this package."""

from __future__ import annotations

from typing import Any

import click

from warpwright.cli.attention_runs import call_of
from warpwright.cli.console import emit, json_option
from warpwright.cli.launches import device_of, parse_size, refuse_options
from warpwright.cli.manual import manual
from warpwright.cli.matmul_runs import operands
from warpwright.cli.problems import SIZE_HELP, parse_heads
from warpwright.errors import UsageError
from warpwright.kernels import memory_flow
from warpwright.lang.trace import Traced
from warpwright.ops.launches import launches
from warpwright.ops.matmul.call import matmul
from warpwright.run import devices

__all__ = ["command"]

KERNELS = ("gemm", "attention", "memory_flow")
SIZE, HEADS = "4096", "16x1024x128"


@click.command(
    "ptx",
    epilog=manual(
        "0 if the PTX is printed",
        "warpwright ptx gemm --level 3",
        "warpwright ptx attention --size 16x1024x128 --device h200",
    ),
)
@click.argument("kernel", metavar="gemm|attention|memory_flow")
@click.option("--level", type=int, help="Of gemm: level of the ladder (default: the kernel that matmul chooses).")
@click.option("--step", help="Of attention: step of `warpwright ladder attention`, such as v3, on the rtx5090.")
@click.option("--size", help=f"Of gemm: M = N = K, or MxNxK (default {SIZE}). Of attention: {SIZE_HELP} ({HEADS}).")
@click.option("--device", help=f"One of `warpwright devices` (default {devices.DEFAULT}).")
@json_option
def command(kernel: str, as_json: bool, **options: Any) -> None:
    """Print the PTX of the kernel that a call launches.

    Of several kernels, the first one is printed.
    """
    traced = trace(kernel, options)
    if as_json:
        facts = {"threads": traced.threads, "cluster": traced.cluster, "smem_bytes": traced.smem_bytes}
        emit({"kernel": kernel, "entry": traced.entry, "arch": traced.arch, **facts, "ptx": traced.ptx})
    else:
        click.echo(traced.ptx)


def trace(kernel: str, options: dict[str, Any]) -> Traced:
    """Trace the named kernel. Raises UsageError for another name, and for options that do not apply to the kernel."""
    if kernel == "gemm":
        refuse_options(kernel, options, ("step",))
        a, b = operands(parse_size(options["size"] or SIZE), None)
        return next(iter(launches(matmul, a, b.T, device=device_of(options), level=options["level"]))).kernel
    if kernel == "attention":
        refuse_options(kernel, options, ("level",))
        problem = parse_heads(options["size"] or HEADS)
        return next(iter(call_of(problem, device_of(options), None, options["step"])[1])).kernel
    if kernel != "memory_flow":
        raise UsageError(f"unknown kernel {kernel!r}; expected one of {', '.join(KERNELS)}")
    refuse_options(kernel, options, ("level", "step", "size", "device"))
    return memory_flow.memory_flow.trace()
