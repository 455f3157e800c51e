"""C sources of the package, compiled at their first use to a library of the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from warpwright import folders
from warpwright.errors import UsageError

__all__ = ["build"]

COMPILERS = ("cc", "gcc", "clang")


def build(source: Path, name: str) -> Path:
    """Returns the shared library of a C source, a file ``name``; compiles it if the cache folder does not have it.

    Raises UsageError without a C compiler, or with its message if it refuses the source.
    """
    text = source.read_bytes()
    path = folders.cache() / "c" / hashlib.sha256(text).hexdigest() / name
    if not path.exists() or not folders.is_own(path):
        with tempfile.TemporaryDirectory() as scratch:
            _compile(source, Path(scratch) / name)
            folders.replace_file(path, (Path(scratch) / name).read_bytes())
    return path


def _compile(source: Path, library: Path) -> None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise UsageError(
            f"{source.name} must be compiled once, and no C compiler is on PATH; expected one of "
            f"{', '.join(COMPILERS)}: install gcc, or set CC"
        )
    command = [*compiler.split(), "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(f"the C compiler {compiler} does not start ({error}); set CC to one that does") from None
    if done.returncode:
        raise UsageError(f"{compiler} refuses {source}: {done.stderr.strip()[-500:]}; set CC to another compiler")
