"""The command ``warpwright``.

Exit status: 0 if the result is verified, 1 for a finding (a wrong result, a fault of the kernel, a race), 2 for a
usage error, 3 for an incomplete verdict (an instruction that the virtual GPU does not execute, unreached code) and for
output that could not be written, 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from warpwright import __version__
from warpwright.cli import process
from warpwright.cli.manual import manual
from warpwright.errors import (
    KernelError,
    LimitReached,
    PtxSyntaxError,
    UnsupportedInstruction,
    UsageError,
    WarpwrightError,
)

__all__ = ["main", "run"]

FINDING, USAGE, INCOMPLETE = 1, 2, 3
CLOSED = 1  # with which click and rich exit if the reader of the output has closed the pipe
COMMANDS = (
    "attention",
    "bench",
    "check",
    "completion",
    "devices",
    "flow",
    "ladder",
    "matmul",
    "profile",
    "ptx",
    "run",
    "selftest",
    "tune",
)


class Commands(click.Group):
    """A group that imports the module of a command when it is used. It prints an error as one line and exits with the
    status of its kind."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command: click.Command | None = None
        if name in COMMANDS:
            command = import_module(f"warpwright.cli.{name}").command
        return command

    def main(self, *args: Any, **options: Any) -> NoReturn:
        try:
            status = super().main(*args, **{**options, "standalone_mode": False})
            if sys.stdout is not None:
                sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            status = USAGE
        except click.ClickException as error:
            status = report(error.format_message(), USAGE)
        except MemoryError as error:
            status = report(f"the arrays exceed this machine's memory ({error}); choose a smaller size", USAGE)
        except WarpwrightError as error:
            status = report(str(error), status_of(error))
        except OSError as error:
            status = report_output(error)
        except SystemExit as error:
            if error.code != CLOSED:
                raise
            status = report_output(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
        sys.exit(status if isinstance(status, int) else 0)


def report(message: str, status: int) -> int:
    """Print the message of an error and return the status."""
    with contextlib.suppress(OSError):
        click.echo(f"warpwright: error: {message}", err=True)
    return status


def report_output(error: OSError) -> int:
    """Print that the output could not be written; what Python has not written yet is dropped."""
    with contextlib.suppress(OSError, AttributeError):  # no file, or none at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return report(f"cannot write the output: {error.strerror or error}", INCOMPLETE)


def status_of(error: WarpwrightError) -> int:
    """Returns the exit status of an error."""
    if isinstance(error, (LimitReached, UnsupportedInstruction)):
        return INCOMPLETE
    return USAGE if isinstance(error, (UsageError, PtxSyntaxError, KernelError)) else FINDING


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=manual(
        "0 if the result is verified, 1 for a finding",
        "warpwright check gemm --level 7 --size 256",
        "warpwright profile attention --causal",
        'eval "$(warpwright completion bash)"',
        incomplete="for an incomplete verdict or output that could not be written",
    ),
)
@click.version_option(__version__, prog_name="warpwright")
def main() -> None:
    """Run, verify, check and profile asynchronous tensor-core kernels."""


def run() -> NoReturn:
    """Run the command line of this process."""
    process.run(lambda: main(prog_name="warpwright"))
