"""ptxas: where it is, and what it says about a text."""

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
    """What ptxas made of a text: ``cubin`` (empty when refused), ``errors`` by 1-based line (0 for none), ``log``."""

    cubin: bytes
    errors: dict[int, str]
    log: str

    @property
    def ok(self) -> bool:
        """Whether the text was accepted."""
        return bool(self.cubin)


@cache
def find_ptxas() -> str | None:
    """Path of ptxas: on PATH, under CUDA_HOME, or in the PyPI package nvidia-cuda-nvcc; None without one."""
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
    """Path of ptxas. Raises UsageError that says how to get it."""
    found = find_ptxas()
    if found is None:
        raise UsageError("ptxas was not found on PATH, in CUDA_HOME or in Python; run: pip install nvidia-cuda-nvcc")
    return found


def assemble(text: str, arch: str, *options: str) -> Assembly:
    """Assemble PTX ``text`` for ``arch`` (``"sm_100a"``). A refusal is a result, not an exception.

    Raises UsageError when there is no ptxas.
    """
    program = ptxas()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text)
        command = [program, f"-arch={arch}", *options, str(source), "-o", str(target)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        log = (run.stdout + run.stderr).replace(str(source), "kernel.ptx")
        cubin = target.read_bytes() if run.returncode == 0 and target.exists() else b""
    return Assembly(cubin, {} if cubin else _errors(log), log)


def _errors(log: str) -> dict[int, str]:
    errors: dict[int, str] = {}
    for line in log.splitlines():
        found = re.match(r"ptxas (?:kernel\.ptx, line (\d+); )?(?:error|fatal)\s*: (.*)", line)
        if found:
            errors.setdefault(int(found[1] or 0), found[2])
    return errors
