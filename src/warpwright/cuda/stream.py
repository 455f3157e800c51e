"""Handles of CUDA streams, from the stream objects of any library."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from warpwright.errors import UsageError

__all__ = ["current", "handle"]


def handle(stream: Any) -> int:
    """Returns the driver's handle of ``stream``: an int, or a stream of cuda.core, torch, CuPy or another library.

    Raises UsageError for another object.
    """
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    raise UsageError(f"given stream={stream!r}; expected a stream of cuda.core, torch or CuPy, or its handle as an int")


def current(owners: Iterable[Any]) -> int:
    """Returns the current stream of the library of the first torch or CuPy array in ``owners``; else the default."""
    for owner in owners:
        library = type(owner).__module__.partition(".")[0]
        module = sys.modules.get(library)
        if module is not None and library == "torch":
            return int(module.cuda.current_stream(owner.device).cuda_stream)
        if module is not None and library == "cupy":
            return int(module.cuda.get_current_stream().ptr)
    return 0
