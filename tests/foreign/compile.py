"""Compile the CUDA C++ kernels of this folder to the PTX in ``ptx/``.

``python tests/foreign/compile.py`` rewrites ``ptx/``; it needs nvcc 13.0 on the PATH.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ARCHS = ("sm_90a", "sm_100a", "sm_120a")

# Name of the PTX file -> name of the source and further flags, where they are not simply the file's own name.
VARIANTS = {"float_math_fast": ("float_math", ("-use_fast_math",))}
NAMES = sorted([path.stem for path in (HERE / "cuda").glob("*.cu")] + list(VARIANTS))


def golden(name: str, arch: str) -> Path:
    """Returns the file of the stored PTX of one kernel file."""
    return HERE / "ptx" / f"{name}.{arch}.ptx"


def compile_ptx(name: str, arch: str, to: Path) -> None:
    """Compile one kernel file with nvcc for ``arch``. Raises CalledProcessError with nvcc's output in stderr."""
    source, flags = VARIANTS.get(name, (name, ()))
    command = [
        "nvcc",
        "-ptx",
        f"-arch={arch}",
        "-std=c++17",
        *flags,
        "-o",
        str(to),
        str(HERE / "cuda" / f"{source}.cu"),
    ]
    subprocess.run(command, check=True)


def main() -> None:
    for name in NAMES:
        for arch in ARCHS:
            compile_ptx(name, arch, golden(name, arch))
            print(golden(name, arch).name, file=sys.stderr)


if __name__ == "__main__":
    main()
