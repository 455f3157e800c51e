"""Which kernel is being traced, and which line of the user's source asks for something."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING

from warpwright.errors import KernelError

if TYPE_CHECKING:
    from warpwright.lang.trace import Trace

__all__ = ["activate", "current", "is_user", "misuse", "source_line", "user_frame", "where"]

_SILENT = ("warpwright.lang", "warpwright.layout", "contextlib")
_NAMESPACES = {
    "bar",
    "cluster",
    "clusterlaunchcontrol",
    "fence",
    "griddepcontrol",
    "mbarrier",
    "mma",
    "setmaxnreg",
    "smem",
}
_NAMESPACES |= {"tcgen05", "tma", "tmem", "wgmma"}
_ACTIVE: ContextVar[Trace | None] = ContextVar("warpwright_trace", default=None)


@contextmanager
def activate(trace: Trace) -> Iterator[None]:
    """Make ``trace`` the current one inside the ``with`` block."""
    token = _ACTIVE.set(trace)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def current() -> Trace:
    """The trace of the kernel that is being traced now; KernelError, naming the call, outside a kernel."""
    trace = _ACTIVE.get()
    if trace is None:
        raise misuse(
            f"{_called()} called outside a kernel: it emits PTX, so it stands in the body of a function under @kernel"
        )
    return trace


def is_user(frame: FrameType) -> bool:
    """Whether ``frame`` runs code outside this language package and the context managers it is built with."""
    return not str(frame.f_globals.get("__name__")).startswith(_SILENT)


def user_frame() -> FrameType:
    """The innermost frame outside this package: the line of the kernel that is being traced."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user(frame):
        frame = frame.f_back
    return frame or sys._getframe(1)


def where() -> str:
    """``"file:line"`` of the user's line."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def source_line() -> str:
    """The text of the user's line, stripped; empty where there is no source."""
    frame = user_frame()
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def misuse(message: str, at: str = "") -> KernelError:
    """A KernelError that points at the user's line, or at ``at``."""
    return KernelError(message, where=at or where())


def _called() -> str:
    """The language function that the user's line called, as the user spells it; families of methods say ``called``."""
    frame: FrameType | None = sys._getframe(1)
    name = "an operation"
    while frame is not None and not is_user(frame):
        stem, function = str(frame.f_globals["__name__"]).rpartition(".")[2], frame.f_code.co_name
        family = getattr(frame.f_locals.get("self"), "called", stem if stem in _NAMESPACES else "")
        name = f"{family}.{function}" if family else function
        frame = frame.f_back
    return name
