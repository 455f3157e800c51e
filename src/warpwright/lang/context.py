"""The current trace, and the line of the user's source that called the language."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import FrameType
from typing import Any

from warpwright.errors import KernelError

__all__ = ["activate", "current", "is_user", "misuse", "source_line", "user_frame", "where"]

_PACKAGES = ("warpwright.lang", "warpwright.layout", "warpwright.run", "contextlib")
_NAMESPACES = {
    "bar", "cluster", "clusterlaunchcontrol", "fence", "griddepcontrol", "mbarrier", "mma", "setmaxnreg", "smem",
    "tcgen05", "tma", "tmem", "wgmma",
}  # fmt: skip
_ACTIVE: ContextVar[Any] = ContextVar("warpwright_trace", default=None)


@contextmanager
def activate(trace: Any) -> Iterator[None]:
    """Make ``trace`` the current trace inside the ``with`` block."""
    token = _ACTIVE.set(trace)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def current() -> Any:
    """Returns the trace of the kernel that is being traced; `expr` and `trace` give the function its type.

    Raises KernelError outside a kernel.
    """
    trace = _ACTIVE.get()
    if trace is None:
        raise misuse(
            f"{_called_name()} called outside a kernel: it emits PTX; "
            "move the call into the body of a function under @kernel"
        )
    return trace


def is_user(frame: FrameType) -> bool:
    """Whether ``frame`` runs code outside the language and the context managers that it is built with."""
    return _is_user(frame.f_globals.get("__name__"))


@cache
def _is_user(module: str | None) -> bool:
    return not str(module).startswith(_PACKAGES)


def user_frame() -> FrameType:
    """Returns the innermost frame outside the language: the line of the kernel that is being traced."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_user(frame.f_globals.get("__name__")):  # `is_user`, once an instruction
        frame = frame.f_back
    return frame or sys._getframe(1)


def where() -> str:
    """Returns ``"file:line"`` of the user's line."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def source_line() -> str:
    """Returns the text of the user's line, stripped; empty if there is no source."""
    frame = user_frame()
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def misuse(message: str, at: str = "") -> KernelError:
    """Returns a KernelError that points at the user's line, or at ``at``."""
    return KernelError(message, where=at or where())


def _called_name() -> str:
    """Returns the language function that the user's line called, as the user writes it: ``tma.load``, ``vote.any``.

    A method's object names its namespace in ``namespace``.
    """
    frame: FrameType | None = sys._getframe(1)
    name = "an operation"
    while frame is not None and not is_user(frame):
        stem, function = str(frame.f_globals["__name__"]).rpartition(".")[2], frame.f_code.co_name
        namespace = getattr(frame.f_locals.get("self"), "namespace", stem if stem in _NAMESPACES else "")
        name = f"{namespace}.{function}" if namespace else function
        frame = frame.f_back
    return name
