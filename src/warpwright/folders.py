"""The folders of the user's files, entries of a cache of code, and the atomic replacement of a file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path

__all__ = ["CODE_BYTES", "cache", "read_code", "replace_file", "settings", "write_code"]

CODE_BYTES = 1 << 28  # of the entries of one folder
DIGEST = hashlib.sha256().digest_size


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


def read_code(path: Path) -> bytes | None:
    """Returns a cache entry; None if it is missing or damaged, or if another user may write to its folder."""
    try:
        entry = path.read_bytes() if _private(path.parent) else b""
    except OSError:
        return None
    digest, code = entry[:DIGEST], entry[DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def write_code(path: Path, code: bytes) -> None:
    """Write a cache entry, whose name begins with two hexadecimal digits. Does nothing where the folder cannot be
    written, or where another user may write to it. Now and then the oldest entries beyond `CODE_BYTES` go."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _private(path.parent):
            replace_file(path, hashlib.sha256(code).digest() + code)
            if int(path.name[:2], 16) < 8:  # one write of 32
                remove_oldest(path.parent, CODE_BYTES)


def remove_oldest(folder: Path, limit: int) -> None:
    """Remove the oldest files of a folder until the others have at most ``limit`` bytes together. Raises OSError."""
    files = sorted(((file.stat(), file) for file in folder.iterdir()), key=lambda each: -each[0].st_mtime)
    total = 0
    for facts, file in files:
        total += facts.st_size
        if total > limit:
            file.unlink(missing_ok=True)


def _private(folder: Path) -> bool:
    """Returns whether the user owns the folder and no other user may write to it."""
    if sys.platform == "win32":
        return True
    facts = folder.stat()
    return facts.st_uid == os.getuid() and not facts.st_mode & 0o022
