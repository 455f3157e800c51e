"""The folders of the user's files, entries of a cache of code, and the atomic replacement of a file."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "CODE_BYTES",
    "cache",
    "is_own",
    "make_private",
    "read_code",
    "remove_parts",
    "replace_file",
    "settings",
    "try_file",
    "write_code",
]

CODE_BYTES = 1 << 30  # of the entries of one folder
DIGEST = hashlib.sha256().digest_size
PART = ".warpwright-part-"  # of the name of an unfinished file; the number of its process follows
_parts: set[Path] = set()
_numbers = itertools.count()


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
    """Write ``data`` to ``path`` atomically: another process reads the old file or all of ``data``. Makes the folder,
    and removes what killed processes left there. A device or a pipe is written in place. Raises OSError."""
    if is_special(path):
        path.write_bytes(data)
        return
    path = path.resolve()  # the target of a link, not the link
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    with _part(path.parent) as part:
        part.write_bytes(data)
        os.replace(part, path)


def try_file(path: Path) -> None:
    """Raises OSError if `replace_file` cannot write ``path``; leaves the file as it is."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if not is_special(path):
        with _part(path.resolve().parent) as part:
            part.touch()


def is_special(path: Path) -> bool:
    """Returns whether ``path`` is a device, a pipe or the like."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextlib.contextmanager
def _part(folder: Path) -> Iterator[Path]:
    """Yields a path for an unfinished file; at the exit nothing is there."""
    path = folder / f"{PART}{os.getpid()}-{next(_numbers)}"
    _parts.add(path)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        _parts.discard(path)


def remove_parts() -> None:
    """Remove the unfinished files of this process, which is about to end."""
    for path in list(_parts):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files of processes that were killed. Raises OSError."""
    for path in folder.glob(f"{PART}*"):
        process = path.name.removeprefix(PART).partition("-")[0]
        if process.isdecimal() and not _runs(int(process)):
            path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    """Returns whether a process is there; on Windows always True."""
    if sys.platform != "win32":
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
    return True


def read_code(path: Path) -> bytes | None:
    """Returns a cache entry, which counts as new then; None if it is missing or damaged, or if another user may write
    to its folder."""
    try:
        entry = path.read_bytes() if _is_private(path.parent) else b""
    except OSError:
        return None
    digest, code = entry[:DIGEST], entry[DIGEST:]
    if hashlib.sha256(code).digest() != digest:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return code


def write_code(path: Path, code: bytes) -> None:
    """Write a cache entry, whose name begins with two hexadecimal digits. Does nothing where the folder cannot be
    written, or where another user may write to it. Now and then those go that were not used for the longest time,
    beyond `CODE_BYTES`."""
    with contextlib.suppress(OSError):
        if make_private(path.parent):
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


def is_own(path: Path) -> bool:
    """Returns whether the user owns a file or folder. Raises OSError."""
    return sys.platform == "win32" or path.stat().st_uid == os.getuid()


def make_private(folder: Path) -> bool:
    """Make a folder for the user alone if there is none. Returns whether no other user may write to it. Raises
    OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _is_private(folder)


def _is_private(folder: Path) -> bool:
    """Returns whether the user owns the folder and no other user may write to it."""
    return is_own(folder) and (sys.platform == "win32" or not folder.stat().st_mode & 0o022)
