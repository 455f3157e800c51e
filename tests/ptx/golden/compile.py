"""Rewrite the PTX of this folder: nvcc's from ``declarations.cu``, Triton's from ``triton_kernels.py``.

``python tests/ptx/golden/compile.py /kernels`` needs nvcc 13.0 and ``pip install triton`` (3.9 wrote the stored files).
The PTX contains the directory as debug data, so the sources are first copied to a short and neutral directory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NVCC = {
    "nvcc_declarations.sm_90a.ptx": ("-arch=sm_90a",),
    "nvcc_declarations.sm_100a.ptx": ("-arch=sm_100a",),
    "nvcc_declarations.sm_120a.ptx": ("-arch=sm_120a",),
    "nvcc_lineinfo.sm_100a.ptx": ("-arch=sm_100a", "-lineinfo"),
    "nvcc_debug.sm_90a.ptx": ("-arch=sm_90a", "-G"),
}


def main(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for source in ("declarations.cu", "triton_kernels.py"):
        shutil.copy(HERE / source, directory)
    for name, flags in NVCC.items():
        subprocess.run(["nvcc", "-ptx", "-std=c++17", *flags, "-o", name, "declarations.cu"], check=True, cwd=directory)
    subprocess.run([sys.executable, "triton_kernels.py"], check=True, cwd=directory)
    for ptx in directory.glob("*.ptx"):
        shutil.copy(ptx, HERE)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
