"""Eight ranks of a layer on a virtual node: ``python -m tests.kernels.gemm.sm90.node_layer [--size 1024] [--ranks 8]``.

Each kernel for several GPUs multiplies M = N = K = ``size``, divided among the ranks as a tensor-parallel layer is. A
row has the seconds of a launch that is compared with float64, and of a verdict that has to be clean: of the machine's
clock and of processor time, after a launch that compiles.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import warpwright as ww
from tests.kernels.gemm.sm90.node_helpers import AllReduce, Gather, Reduce
from warpwright.kernels.gemm.sm90.all_gather import SENDING, all_gather_gemm, plan_gather
from warpwright.kernels.gemm.sm90.all_reduce import gemm_all_reduce
from warpwright.kernels.gemm.sm90.reduce_scatter import gemm_reduce_scatter
from warpwright.lang import Kernel

SMS = 132
HALF_ULP = 2.0**-8
Layer = tuple[Kernel, int, list[Any], Callable[[], float]]  # error as a share of its bound


def gather(ranks: int, size: int) -> Layer:
    rows, columns = size // ranks, size // ranks
    problem = Gather(ranks, rows, columns, size)
    grid, _, _ = plan_gather(SENDING, ranks, rows, columns, size, sms=SMS)
    return all_gather_gemm, grid[0], problem.args, lambda: problem.error() / HALF_ULP


def reduce(kernel: Kernel, kind: type[Reduce], ranks: int, size: int) -> Layer:
    problem = kind(ranks, size // ranks, size, size // ranks)
    tiles_m, tiles_n = problem.args[-6:-4]
    grid = min(SMS, ranks * tiles_m * tiles_n)
    return kernel, grid, problem.args, lambda: problem.errors(problem.sums(), HALF_ULP, 0)


LAYERS: dict[str, Callable[[int, int], Layer]] = {
    "all-gather + GEMM": gather,
    "GEMM + reduce-scatter": lambda *given: reduce(gemm_reduce_scatter, Reduce, *given),
    "GEMM + all-reduce": lambda *given: reduce(gemm_all_reduce, AllReduce, *given),
}


def seconds(run: Callable[[], object]) -> str:
    """Returns the seconds that a call takes, of the clock and of the processor."""
    start = time.perf_counter(), time.process_time()
    run()
    return f"{time.perf_counter() - start[0]:.1f} s ({time.process_time() - start[1]:.1f} s of CPU)"


def measure(name: str, ranks: int, size: int) -> str:
    device = f"h200x{ranks}"

    def launch() -> None:
        kernel, grid, args, error = LAYERS[name](ranks, size)
        ww.launch(kernel, grid, args=args, device=device)
        assert error() <= 1

    def check() -> None:
        kernel, grid, args, error = LAYERS[name](ranks, size)
        verdict = ww.check(kernel, grid, args=args, device=device, update=True)
        assert verdict.kind == "clean" and error() <= 1, str(verdict)

    return f"{name}: verified in {seconds(launch)}, checked clean in {seconds(check)}"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--size", type=int, default=1024)
    options.add_argument("--ranks", type=int, default=8)
    given = options.parse_args()
    for name, layer in LAYERS.items():
        kernel, grid, args, _ = layer(2, 256)
        ww.launch(kernel, grid, args=args, device="h200x2")  # compiles
        print(measure(name, given.ranks, given.size), flush=True)


if __name__ == "__main__":
    main()
