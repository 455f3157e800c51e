"""The folders of the user's files, and the atomic replacement of a file."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

__all__ = ["cache", "replace_file", "settings"]


def cache() -> Path:
    """Returns the cache folder: WARPWRIGHT_CACHE, or ``warpwright`` in the user's cache directory."""
    return _folder("WARPWRIGHT_CACHE", "XDG_CACHE_HOME", ".cache")


def settings() -> Path:
    """Returns the settings folder: WARPWRIGHT_CONFIG, or ``warpwright`` in the user's configuration directory."""
    return _folder("WARPWRIGHT_CONFIG", "XDG_CONFIG_HOME", ".config")


def _folder(own: str, common: str, fallback: str) -> Path:
    if os.environ.get(own):
        return Path(os.environ[own])
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "warpwright"
    return Path(os.environ.get(common) or Path.home() / fallback) / "warpwright"


def replace_file(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically: another process reads the old file or all of ``data``. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
