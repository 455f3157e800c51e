"""GEMM on a real Hopper GPU against cuBLAS: ``python bench/gemm.py [--cases ladder,layouts] [--sustained] [--json]``.

Both multiply the same random normal bf16 matrices in one process, ours by `gemm.choose`, cuBLAS by ``torch.matmul``.
Each launch is timed by CUDA events after 256 MB have been written to L2; in every round both run once in random order,
and the medians are compared. Every product is first verified against float32. ``--sustained`` repeats each alone for
half a second and more, which is where the power limit of the GPU decides.

- listed: the problems of the table in docs/performance.md; A (M, K) and B (N, K), "NT" to a BLAS
- layouts: NN, TN and TT at 4096 and 8192
- ladder: every level at one size (``--size``)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import warpwright as ww
from warpwright import cuda
from warpwright.kernels import gemm
from warpwright.launch import entry_point

SQUARES = (1024, 2048, 4096, 6144, 8192, 12288, 16384)
OTHERS = (
    (8192, 4096, 7168),
    (4096, 7168, 2048),
    (4096, 24576, 1536),
    (16384, 8192, 1024),
    (4096, 4096, 65536),
    (512, 8192, 8192),
    (128, 8192, 8192),
    (64, 7168, 4096),
    (16, 8192, 8192),
)
TOLERANCE = 3e-3  # of the norm; rounding to bf16 alone is 1.7e-3
Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A (M, K) and B (K, N); ``layout`` has one letter an operand, T where its columns are dense in memory."""

    name: str
    m: int
    n: int
    k: int
    layout: str = "NT"
    config: gemm.HopperConfig | None = None


def listed(size: int) -> Iterator[Case]:
    for m, n, k in (*((size, size, size) for size in SQUARES), *OTHERS):
        yield Case(f"{m} × {n} × {k}", m, n, k)


def layouts(size: int) -> Iterator[Case]:
    for extent in (4096, 8192):
        for layout in ("NN", "TN", "TT"):
            yield Case(f"{extent} {layout}", extent, extent, extent, layout)


def ladder(size: int) -> Iterator[Case]:
    for level, config in gemm.HOPPER_LEVELS.items():
        yield Case(f"level {level}", size, size, size, config=config)
    yield Case("level 9 (chooser)", size, size, size)


CASES = {"listed": listed, "layouts": layouts, "ladder": ladder}


def operands(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Random normal A (M, K) and B (K, N), each stored as the layout says."""
    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator, device="cuda").bfloat16()

    (left, right), (m, n, k) = case.layout, (case.m, case.n, case.k)
    return (normal(k, m).T if left == "T" else normal(m, k)), (normal(n, k).T if right == "T" else normal(k, n))


def prepared(case: Case, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> Run:
    """A call that only starts our kernel."""
    device = ww.device("cuda")
    config = case.config or gemm.choose(case.m, case.n, case.k)
    stored_a, major_a = (a, "k") if a.stride(1) == 1 else (a.T, "mn")
    stored_b, major_b = (b.T, "k") if b.stride(0) == 1 else (b, "mn")
    traced = gemm.hopper_kernel(config).trace(majors=(major_a, major_b))
    entry = entry_point(traced)
    function = device.function(entry.module, entry.name, traced.threads, traced.cluster, traced.smem_bytes)
    maps = [
        cuda.encode(
            ww.TensorMap(tensor, use.box, swizzle=use.swizzle, l2_promotion=gemm.L2_PROMOTION), tensor.data_ptr()
        )
        for tensor, use in ((stored_a, traced.maps["a"]), (stored_b, traced.maps["b"]), (d, traced.maps["d"]))
    ]
    plan = gemm.hopper_plan(config, case.m, case.n, case.k, sms=device.spec.sms, majors=(major_a, major_b))
    values, stream = [*maps, *plan.scalars], torch.cuda.current_stream().cuda_stream
    return lambda: function(plan.grid, values, stream)


def error_of(run: Run, d: torch.Tensor, reference: torch.Tensor) -> float:
    """‖D - reference‖ / ‖reference‖ after ``run``, in which D was written over NaN."""
    d.fill_(math.nan)
    run()
    return float((d.float() - reference).norm() / reference.norm())


def measured(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    a, b = operands(case)
    d, other = (torch.empty(case.m, case.n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    runs = {"ours": prepared(case, a, b, d), "cublas": lambda: torch.matmul(a, b, out=other)}
    error = error_of(runs["ours"], d, a.float() @ b.float())
    tera = 2e-12 * case.m * case.n * case.k
    times = cuda.medians(runs, rounds=rounds)
    row = {"case": case.name, "error": error, "verified": error < TOLERANCE}
    row |= {name: round(tera / time, 1) for name, time in times.items()}
    row |= {"us": round(times["ours"] * 1e6, 1), "ratio": round(times["cublas"] / times["ours"], 3)}
    if seconds:
        long = {name: cuda.sustained(run, seconds=seconds, estimate=times[name]) for name, run in runs.items()}
        row |= {f"{name}_sustained": round(tera / time, 1) for name, time in long.items()}
        row |= {"ratio_sustained": round(long["cublas"] / long["ours"], 3)}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in columns, names above."""
    names = [name for name in rows[0] if name not in ("error", "verified")]
    lines = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="listed", help=f"of {','.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=30, help="launches of each")
    parser.add_argument("--size", type=int, default=8192, help="M = N = K of the ladder")
    parser.add_argument("--sustained", type=float, nargs="?", const=0.5, default=0.0, help="also this many seconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = [case for name in options.cases.split(",") for case in CASES[name](options.size)]
    rows = [measured(case, options.rounds, options.sustained) for case in cases]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        ratios = [row["ratio"] for row in rows]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOPS, medians of {options.rounds}")
        print(table(rows))
        print(f"ours / cuBLAS: geometric mean {mean:.3f}, least {min(ratios):.3f}")
    unverified = [row["case"] for row in rows if not row["verified"]]
    if unverified:
        sys.exit(f"not verified: {', '.join(unverified)}")


if __name__ == "__main__":
    main()
