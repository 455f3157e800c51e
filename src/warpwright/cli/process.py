"""The process of a command: an interrupt ends it at once and leaves no unfinished file."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from warpwright import folders

__all__ = ["run"]

LOOK = 0.05  # seconds between two looks at signals; some systems do not interrupt a wait
CURSOR = "\r\x1b[K\x1b[?25h"  # of a terminal: removes the line of progress, shows the cursor that it hides
CRASH = 3


def run(command: Callable[[], object]) -> NoReturn:
    """Run ``command`` in a thread and exit with its status; with 128 + the number of the signal for SIGINT or SIGTERM,
    and with 3 for an unexpected exception, since 1 stands for a finding.

    The main thread only waits: native code (the compiler, lane code, matrix multiplications) looks at no signals.
    """
    errors: list[BaseException] = []

    def work() -> None:
        try:
            command()
        except BaseException as error:
            errors.append(error)

    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, _stop)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK)
    error = errors[0] if errors else SystemExit(0)
    if isinstance(error, SystemExit):
        raise error
    traceback.print_exception(type(error), error, error.__traceback__)
    sys.exit(CRASH)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End the process here and now: other threads may hold any lock."""
    folders.remove_parts()
    line = f"warpwright: stopped by {signal.Signals(number).name}\n"
    with contextlib.suppress(OSError):
        os.write(2, ((CURSOR if os.isatty(2) else "") + line).encode())
    os._exit(128 + number)
