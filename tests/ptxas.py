"""The assembler that judges every PTX we emit: ``ptxas`` from ``PATH``, else from the wheel ``nvidia-cuda-nvcc``."""

from __future__ import annotations

import functools
import shutil
import site
import subprocess
import tempfile
from pathlib import Path


@functools.cache
def find() -> str | None:
    """Path of ptxas, or None on a machine that has neither."""
    wheels = (path for root in site.getsitepackages() for path in Path(root).glob("nvidia/*/bin/ptxas"))
    return shutil.which("ptxas") or next(map(str, wheels), None)


def errors(ptx: str, arch: str) -> str:
    """What ptxas says against ``ptx`` for target ``arch`` ("" when it accepts the text)."""
    program = find()
    assert program is not None, "ptxas is missing: pip install nvidia-cuda-nvcc"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [program, f"-arch={arch}", str(source), "-o", str(source.with_suffix(".cubin"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
