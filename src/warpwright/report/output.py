"""Output files: tried before the work, and written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

from warpwright import folders
from warpwright.errors import UsageError

__all__ = ["try_file", "write_file"]


def try_file(path: Path) -> None:
    """Raise UsageError, before a long run, if ``path`` cannot be written."""
    try:
        folders.try_file(path)
    except OSError as error:
        raise _refusal(path, error) from None


def write_file(path: Path, data: str | bytes) -> None:
    """Write ``data``, text as UTF-8, to ``path``. Raises UsageError if that fails; then the old file is whole."""
    try:
        folders.replace_file(path, data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise _refusal(path, error) from None


def _refusal(path: Path, error: OSError) -> UsageError:
    remedy = "a file in a folder that exists" if error.errno == errno.ENOENT else "another file"
    return UsageError(f"cannot write {path}: {error.strerror or error}; name {remedy}")
