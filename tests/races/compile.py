"""Compile the CUDA C++ kernels of `cuda/`, wrong and repaired, to the PTX in ``cuda/ptx/``.

``python -m tests.races.compile`` rewrites ``cuda/ptx/`` and ``hangs/hangs.ptx``; it needs nvcc 13.0 on the PATH.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent / "cuda"
HANGS = HERE.with_name("hangs")
BLACKWELL = ("parted_pair", "uncommitted_product")
NAMES = sorted(path.stem for path in HERE.glob("*.cu"))
STATES = ("wrong", "repaired")
# "_INTERNAL_" and a hash of the folder of nvcc, as bytes of a debug section
_HASHED = re.compile(r"(95,73,78,84,69,82,78,65,76,95)(?:,\d+){8}")


def golden(name: str, state: str) -> Path:
    """Returns the file of a kernel's stored PTX."""
    return HERE / "ptx" / f"{name}.{state}.ptx"


def compile_ptx(name: str, state: str, to: Path) -> None:
    """Compile a kernel with source lines but without folders. Raises CalledProcessError with nvcc's output."""
    arch = "sm_100a" if name in BLACKWELL else "sm_90a"
    define = ["-DREPAIRED"] if state == "repaired" else []
    _compile(HERE / f"{name}.cu", to, f"-arch={arch}", *define)


def compile_hangs(to: Path) -> None:
    """Compile ``hangs/hangs.cu`` as `compile_ptx` does."""
    _compile(HANGS / "hangs.cu", to, "-arch=sm_90a")


def _compile(source: Path, to: Path, *options: str) -> None:
    command = ["nvcc", "-ptx", "-lineinfo", "-std=c++17", *options, "-o", str(to), source.name]
    subprocess.run(command, check=True, cwd=source.parent)
    text = re.sub(r'(\.file\s+\d+) ".*/([^"/]+)"', r'\1 "\2"', to.read_text())
    to.write_text(_HASHED.sub(r"\1" + ",48" * 8, text))


def main() -> None:
    for name in NAMES:
        for state in STATES:
            compile_ptx(name, state, golden(name, state))
            print(golden(name, state).name, file=sys.stderr)
    compile_hangs(HANGS / "hangs.ptx")


if __name__ == "__main__":
    main()
