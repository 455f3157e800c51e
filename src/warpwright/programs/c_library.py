"""C sources of the package, compiled at their first use to a library of the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from warpwright import folders
from warpwright.errors import UsageError

__all__ = ["build"]

COMPILERS = ("cc", "gcc", "clang")


def build(source: Path, name: str, *options: str) -> Path:
    """Returns the shared library of a C source, a file ``name``; compiles it if the cache folder does not have it.

    The source includes headers of its own folder only. ``options`` are the compiler's, and more sources there.

    Raises UsageError without a C compiler, with the compiler's message if it refuses the source, and if another user
    may write to the folder.
    """
    parts = [file.read_bytes() for file in (source, *sorted(source.parent.glob("*.[ch]")))]
    parts += [word.encode() for word in (platform.machine(), name, *options)]
    path = folders.cache() / "c" / hashlib.sha256(b"\0".join(parts)).hexdigest() / name
    if not folders.make_private(path.parent):
        raise UsageError(
            f"{source.name} is compiled to {path.parent}, where another user may write; expected a folder of the user "
            f"alone: chmod go-w {path.parent}, or set WARPWRIGHT_CACHE to another folder"
        )
    if not path.exists():
        with tempfile.TemporaryDirectory() as scratch:
            _compile(source, Path(scratch) / name, options)
            folders.replace_file(path, (Path(scratch) / name).read_bytes())
    return path


def _compile(source: Path, library: Path, options: Sequence[str]) -> None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise UsageError(
            f"{source.name} must be compiled once, and no C compiler is on PATH; expected one of "
            f"{', '.join(COMPILERS)}: install gcc, or set CC"
        )
    command = [*compiler.split(), "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(source), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(f"the C compiler {compiler} does not start ({error}); set CC to one that does") from None
    if done.returncode:
        raise UsageError(f"{compiler} refuses {source}: {done.stderr.strip()[-500:]}; set CC to another compiler")
