"""The command ``warpwright``.

Exit status: 0 if the result is verified, 1 for a finding (a wrong result, a fault of the kernel, a race), 2 for a
usage error, 3 for an incomplete verdict (an instruction that the virtual GPU does not execute, unreached code).
"""

from __future__ import annotations

from typing import Any

import click

from warpwright import __version__
from warpwright.cli import attention, attention_ladder, bench, check, devices, flow, ladder, matmul, profile, ptx, tune
from warpwright.errors import KernelError, PtxSyntaxError, UnsupportedInstruction, UsageError, WarpwrightError

__all__ = ["main"]

FINDING, USAGE, INCOMPLETE = 1, 2, 3


class Commands(click.Group):
    """A group that prints an error as one line and exits with the status of its kind."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            self._end(ctx, error.format_message(), USAGE)
        except MemoryError as error:
            self._end(ctx, f"the arrays exceed this machine's memory ({error}); choose a smaller size", USAGE)
        except WarpwrightError as error:
            self._end(ctx, str(error), status_of(error))

    def _end(self, ctx: click.Context, message: str, status: int) -> None:
        click.echo(f"warpwright: error: {message}", err=True)
        ctx.exit(status)


def status_of(error: WarpwrightError) -> int:
    """Returns the exit status of an error."""
    if isinstance(error, UnsupportedInstruction):
        return INCOMPLETE
    return USAGE if isinstance(error, (UsageError, PtxSyntaxError, KernelError)) else FINDING


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="warpwright")
def main() -> None:
    """Run, verify, check and profile asynchronous tensor-core kernels."""


for module in (attention, bench, check, devices, flow, ladder, matmul, profile, ptx, tune):
    main.add_command(module.command)
ladder.command.add_command(attention_ladder.command)
