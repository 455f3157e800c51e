"""The command ``warpwright``.

Exit status: 0 when the result was verified, 1 for a finding (a wrong number, a fault of the kernel, a race), 2 for a
usage error, 3 for ``incomplete`` (an instruction that the virtual GPU does not execute, code that was not reached).
"""

from __future__ import annotations

from typing import Any

import click

from warpwright import __version__
from warpwright.cli import attention, bench, check, devices, flow, ladder, matmul, profile, ptx, tune
from warpwright.errors import KernelError, PtxSyntaxError, UnsupportedInstruction, UsageError, WarpwrightError

__all__ = ["main"]

FINDING, USAGE, INCOMPLETE = 1, 2, 3


class Commands(click.Group):
    """A group whose commands end with one line of error and a status that says what kind it is."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            self._end(ctx, error.format_message(), USAGE)
        except MemoryError as error:
            self._end(ctx, f"it does not fit in this machine's memory ({error}); choose a smaller size", USAGE)
        except WarpwrightError as error:
            self._end(ctx, str(error), status_of(error))

    def _end(self, ctx: click.Context, message: str, status: int) -> None:
        click.echo(f"warpwright: error: {message}", err=True)
        ctx.exit(status)


def status_of(error: WarpwrightError) -> int:
    """The exit status that an error stands for."""
    if isinstance(error, UnsupportedInstruction):
        return INCOMPLETE
    return USAGE if isinstance(error, (UsageError, PtxSyntaxError, KernelError)) else FINDING


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="warpwright")
def main() -> None:
    """Asynchronous tensor-core kernels, run and verified on a virtual GPU."""


for module in (attention, bench, check, devices, flow, ladder, matmul, profile, ptx, tune):
    main.add_command(module.command)
