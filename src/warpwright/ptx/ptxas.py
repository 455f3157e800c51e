"""ptxas: its path, and its result for a PTX text."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from warpwright.errors import UsageError

__all__ = ["Assembly", "assemble", "find_ptxas", "ptxas"]


@dataclass(frozen=True, slots=True)
class Assembly:
    """The result of ptxas: ``cubin`` (empty after an error), ``errors`` by 1-based line (0 for no line), ``log``."""

    cubin: bytes
    errors: dict[int, str]
    log: str

    @property
    def ok(self) -> bool:
        """Whether ptxas accepted the text."""
        return bool(self.cubin)


@cache
def find_ptxas() -> str | None:
    """Returns the path of ptxas on PATH, under CUDA_HOME, or in the PyPI package nvidia-cuda-nvcc; None without it, and
    on Windows."""
    if os.name == "nt":  # without /dev/stdin
        return None
    on_path = shutil.which("ptxas")
    if on_path:
        return on_path
    folders = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    package = find_spec("nvidia")
    for root in package.submodule_search_locations or () if package else ():
        folders += [*Path(root).glob("cu*"), *Path(root).glob("cuda_nvcc")]
    for folder in folders:
        candidate = folder / "bin" / "ptxas"
        if candidate.is_file():
            return str(candidate)
    return None


def ptxas() -> str:
    """Returns the path of ptxas. Raises UsageError, with the command that installs it, if there is none."""
    found = find_ptxas()
    if found is None:
        raise UsageError(
            "found no ptxas on PATH, in CUDA_HOME or in the Python environment; run: pip install nvidia-cuda-nvcc"
        )
    return found


def assemble(text: str, arch: str, *options: str, seconds: float | None = None) -> Assembly:
    """Assemble PTX ``text`` for ``arch`` (``"sm_100a"``). Errors of ptxas are in the result.

    Raises UsageError if there is no ptxas, and if ptxas has not ended after ``seconds``: it takes hours for some texts.
    """
    program = ptxas()
    with tempfile.TemporaryFile() as source:  # it has no name; ptxas reads its input twice, so a pipe will not do
        source.write(text.encode())
        source.seek(0)
        command = [program, f"-arch={arch}", *options, "/dev/stdin", "-o", "/dev/stdout"]
        try:
            run = subprocess.run(command, stdin=source, capture_output=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"ptxas has not ended after {seconds:g} s; give it a smaller kernel, or more time"
            ) from None
    log = run.stderr.decode(errors="replace").replace("/dev/stdin", "kernel.ptx")
    cubin = run.stdout if run.returncode == 0 else b""
    return Assembly(cubin, {} if cubin else _errors(log), log)


def _errors(log: str) -> dict[int, str]:
    errors: dict[int, str] = {}
    for line in log.splitlines():
        found = re.match(r"ptxas (?:kernel\.ptx, line (\d+); )?(?:error|fatal)\s*: (.*)", line)
        if found:
            errors.setdefault(int(found[1] or 0), found[2])
    return errors
