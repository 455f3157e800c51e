"""Predicted kernels of learn-cuda's ``02e_matmul_sm100`` beside their published rates:
``python bench/predict_learn_cuda.py CHECKOUT [--only v4,v6]``. Needs nvcc and no GPU.

CHECKOUT is a clone of https://github.com/gau-nernst/learn-cuda, whose sources nvcc compiles unchanged. M = N = K =
4096 in bf16 on the virtual B200, fast mode, TFLOPS. Its README has two lists, both of one B200. The first (December
2025) is of `triton.testing.do_bench`, which writes to L2 before each launch and rests before each kernel: beside it
stands the prediction of a launch alone. The second (since February 2026) is of launches in a row with operands of their
own, for 10 ms at a time: beside it stands the prediction under the power limit. Nothing is fitted to either list. Exit
status 1 if a list is more than 8 % off on average.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.run.launch import PtxModule

SIZE, ROWS, MEAN_GOAL = 4096, 128, 0.08
# What common.h takes of torch: a macro of host code, and what its header includes.
TORCH = "#pragma once\n#include <cuda_bf16.h>\n#include <tuple>\n#define TORCH_CHECK(...)\n"
NVCC = ("nvcc", "-ptx", "-arch=sm_100a", "-std=c++17", "-O3", "-lineinfo", "-w", "--expt-relaxed-constexpr")


@dataclass(frozen=True)
class Case:
    """A kernel: template arguments as in its mangled name; columns and depth of a tile, stages, the published TFLOPS
    of the first and the second list, bytes of a row of a box, and whether CTAs are pairs and the grid the SMs."""

    mangled: str
    columns: int
    depth: int
    stages: int
    published: tuple[float, float]
    row_bytes: int = 128
    pair: bool = False
    persistent: bool = False

    @property
    def halves(self) -> int:
        return 2 if self.pair else 1


CASES = {
    "v1b": Case("ILi256ELi256ELb1E", 256, 256, 1, (252.81, 254.37), row_bytes=16),
    "v2b": Case("ILi256ELi256ELb1E", 256, 256, 1, (695.43, 721.02)),
    "v3": Case("ILi256ELi128ELi2E", 256, 128, 2, (939.61, 914.42)),
    "v4": Case("ILi128ELi64ELi7E", 128, 64, 7, (1208.83, 1053.61)),
    "v5": Case("ILi256ELi64ELi2ELi7ELb0E", 256, 64, 7, (1302.29, 1169.65), pair=True),
    "v6": Case("ILi256ELi64ELi2ELi7ELb0E", 256, 64, 7, (1475.93, 1273.32), pair=True, persistent=True),
}


def compile_ptx(checkout: Path, name: str) -> PtxModule:
    """Returns the module of a kernel's source, ``v1b`` of ``matmul_v1.cu``."""
    source = checkout / "02e_matmul_sm100" / f"matmul_{name[:2]}.cu"
    with tempfile.TemporaryDirectory() as folder:
        header, ptx = Path(folder, "torch", "library.h"), Path(folder, "kernel.ptx")
        header.parent.mkdir()
        header.write_text(TORCH)
        subprocess.run([*NVCC, f"-I{folder}", "-o", str(ptx), str(source)], check=True)
        return ww.load_ptx(ptx.read_text())


def tensor_map(array: np.ndarray, rows: int, depth: int, row_bytes: int) -> ww.TensorMap:
    """Returns the map of ``init_tmap_3d_128B`` and of v1b: columns of ``row_bytes``, one after the other."""
    height, width = array.shape
    inner = row_bytes // 2
    dims, strides = (inner, height, width // inner), (2 * width, row_bytes)
    swizzle = row_bytes if row_bytes == 128 else 0
    return ww.TensorMap(array, (depth // inner, rows, inner), swizzle=swizzle, dims=dims, strides=strides)


def predict(checkout: Path, name: str) -> tuple[float, float]:
    """Returns the predicted TFLOPS of a launch alone and under the power limit."""
    case, module = CASES[name], compile_ptx(checkout, name)
    kernel = module[next(entry for entry in module if case.mangled in entry)]
    a, b, c = (np.zeros((SIZE, SIZE), ml_dtypes.bfloat16) for _ in range(3))
    wide = case.columns // case.halves
    maps = tensor_map(a, ROWS, case.depth, case.row_bytes), tensor_map(b, wide, case.depth, case.row_bytes)
    how: dict[str, Any] = {
        "grid": 148 if case.persistent else (SIZE // ROWS) * (SIZE // case.columns),
        "block": 192 if case.persistent else 128,
        "smem": 2 * (ROWS + wide) * case.depth * case.stages,
        "args": [*maps, c, SIZE, SIZE, SIZE, *([0, 0] if case.pair else [])],
        "device": "b200",
    }
    alone, lasting = (ww.profile(kernel, sustained=sustained, **how).time_us for sustained in (False, True))
    return 2e-6 * SIZE**3 / alone, 2e-6 * SIZE**3 / lasting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of github.com/gau-nernst/learn-cuda")
    parser.add_argument("--only", default=",".join(CASES), metavar="KERNELS", help="of " + ",".join(CASES))
    options = parser.parse_args()
    errors: tuple[list[float], list[float]] = ([], [])
    print("| kernel | published | alone | | published again | sustained | |", "| --- " * 7 + "|", sep="\n")
    for name in options.only.split(","):
        cells = []
        for found, published, errs in zip(predict(options.checkout, name), CASES[name].published, errors, strict=True):
            errs.append(found / published - 1)
            cells.append(f"{published:,.0f} | {found:,.0f} | {errs[-1]:+.0%}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    means = [fmean(map(abs, each)) for each in errors]
    print(f"mean error: alone {means[0]:.1%}, sustained {means[1]:.1%}")
    sys.exit(max(means) > MEAN_GOAL)


if __name__ == "__main__":
    main()
