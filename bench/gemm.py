"""GEMM on a real Hopper GPU against cuBLAS and QuACK: ``python bench/gemm.py [--cases ladder,fused] [--sustained]``.

All multiply the same random normal matrices in one process, ours with the configuration that `ww.matmul` chooses,
cuBLAS through torch, and QuACK, where it is installed, with the one that its own tuner chooses for the shape among all
of its configurations (``peers.quack_gemm``). CUDA events time each launch after 256 MB have been written to L2; every
round runs each once in random order, and the medians are compared. ``ratio`` is ours over the faster peer. The results
of ours and of QuACK are first verified against float32. "-" is a problem that QuACK refuses; the reason is printed.
``--sustained`` repeats each alone for half a second and more, so that the power limit of the GPU acts.

- listed: the problems of the table in docs/performance.md, bf16; A (M, K) and B (N, K), "NT" to a BLAS
- layouts: NN, TN and TT at 4096 and 8192
- fp8: e4m3 with a scale for each matrix, D of bf16; cuBLAS is ``torch._scaled_mm``, with float32 accumulation as ours
  and QuACK's, which takes the product of the scales. "fast" is cuBLAS with ``use_fast_accum=True``, which accumulates
  all of K with 14 bits and is no peer of the ratio
- fused: activation(A·B + bias) in one launch; cuBLAS is ``torch.addmm``, its activation one of torch; without QuACK
- drawn: 40 problems of random extents, half of them no multiples of 128
- few: few tiles and a long K; batched: leading dimensions, cuBLAS by ``torch.matmul`` too
- ladder: every level at one size (``--size``)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import peers
import torch
from predict_gemm import LISTED

import warpwright as ww
from warpwright import cuda
from warpwright.kernels.gemm import sm90
from warpwright.ops.binding import bind, layouts_of, start, values_of
from warpwright.ops.launches import launches

FP8 = (
    *((size, size, size) for size in (2048, 4096, 8192, 16384)),
    (8192, 4096, 7168),
    (64, 7168, 4096),
    (16, 8192, 8192),
)
FEW_TILES = (
    (128, 128, 65536),
    (256, 256, 16384),
    (512, 512, 8192),
    (256, 512, 16384),
    (128, 1024, 8192),
    (16, 2048, 7168),
    (16, 2048, 8192),
    (16, 4096, 4096),
    (64, 64, 65536),
    (512, 1024, 4096),
)
BATCHED = (
    (16, 1024, 1024, 1024),
    (64, 512, 512, 512),
    (128, 128, 128, 128),
    (8, 2048, 2048, 2048),
    (32, 4096, 4096, 128),
    (32, 4096, 128, 4096),
    (8, 128, 4096, 4096),
    (8, 16, 4096, 4096),
    (128, 16, 128, 4096),
    (64, 1024, 64, 1024),
    (256, 64, 64, 64),
)
DRAWN, LARGEST = 40, 2e11  # problems, multiplications of one
TOLERANCE = 3e-3  # of the norm; rounding to bf16 alone is 1.7e-3
PEERS = peers.GEMM_NAMES
Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A (M, K) and B (K, N), or ``batches`` of them; ``layout`` has one letter an operand, T where its columns are
    dense in memory; ``level`` is a level of the ladder; None: `ww.matmul` chooses."""

    name: str
    m: int
    n: int
    k: int
    layout: str = "NT"
    level: int | None = None
    batches: int = 1
    dtype: torch.dtype = torch.bfloat16
    activation: str = ""


def listed_cases(size: int) -> Iterator[Case]:
    for m, n, k in LISTED:
        yield Case(f"{m} × {n} × {k}", m, n, k)


def layout_cases(size: int) -> Iterator[Case]:
    for extent in (4096, 8192):
        for layout in ("NN", "TN", "TT"):
            yield Case(f"{extent} {layout}", extent, extent, extent, layout)


def fp8_cases(size: int) -> Iterator[Case]:
    for m, n, k in FP8:
        yield Case(f"{m} × {n} × {k} e4m3", m, n, k, dtype=torch.float8_e4m3fn)


def fused_cases(size: int) -> Iterator[Case]:
    for extent in (4096, 8192):
        for activation in ("relu", "gelu", "silu"):
            yield Case(f"{extent} bias, {activation}", extent, extent, extent, activation=activation)


def ladder_cases(size: int) -> Iterator[Case]:
    for level in sm90.LEVELS:
        yield Case(f"level {level}", size, size, size, level=level)
    yield Case("level 9 (chosen)", size, size, size)


def few_tile_cases(size: int) -> Iterator[Case]:
    for m, n, k in FEW_TILES:
        yield Case(f"{m} × {n} × {k}", m, n, k)


def drawn_cases(size: int) -> Iterator[Case]:
    random, found = Random(99), 0
    while found < DRAWN:
        m, n, k = (int(2 ** random.uniform(*bits)) for bits in ((7.1, 13), (7, 13.5), (8.5, 14)))
        n, k = n // 8 * 8, k // 8 * 8
        if random.random() < 0.5:
            m = -(-m // 128) * 128
        if random.random() < 0.7:
            n, k = -(-n // 128) * 128, -(-k // 64) * 64
        if m * n * k < LARGEST:
            found += 1
            yield Case(f"{m} × {n} × {k}", m, n, k)


def batched_cases(size: int) -> Iterator[Case]:
    for batches, m, n, k in BATCHED:
        yield Case(f"{batches} of {m} × {n} × {k}", m, n, k, batches=batches)


CASES = {
    "listed": listed_cases,
    "layouts": layout_cases,
    "fp8": fp8_cases,
    "fused": fused_cases,
    "drawn": drawn_cases,
    "few": few_tile_cases,
    "batched": batched_cases,
    "ladder": ladder_cases,
}


def operands(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Random normal A (M, K) and B (K, N), each stored as the layout says."""
    generator = torch.Generator(device="cuda").manual_seed(0)

    leading = (case.batches,) if case.batches > 1 else ()

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(*leading, rows, columns, generator=generator, device="cuda").to(case.dtype)

    (left, right), (m, n, k) = case.layout, (case.m, case.n, case.k)
    return (normal(k, m).mT if left == "T" else normal(m, k)), (normal(n, k).mT if right == "T" else normal(k, n))


def bind_ours(case: Case, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> Run:
    """Returns a call that starts our kernel, or both kernels if K is split into slices."""
    call = launches(ww.matmul, a, b, out=d, level=case.level)
    ((plan, values),) = call.steps
    bound = bind(plan, layouts_of(values), call.device)
    started = bound(values_of(values), torch.cuda.current_stream().cuda_stream)
    return lambda _kept=call: start(started)


def error_of(run: Run, d: torch.Tensor, reference: torch.Tensor) -> float:
    """Returns ‖D - reference‖ / ‖reference‖ after ``run``, which overwrites a D full of NaN."""
    d.fill_(math.nan)
    run()
    return float((d.float() - reference).norm() / reference.norm())


def ours_and_peers(
    case: Case, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor
) -> tuple[dict[str, Run], torch.Tensor]:
    """Returns our call and its peers, of which ours and QuACK's write ``d``; and the expected D in float32."""
    other, sums = torch.empty_like(d), a.float() @ b.float()
    if case.activation:
        bias, activate = torch.randn(case.n, device="cuda").bfloat16(), getattr(torch.nn.functional, case.activation)
        fused = partial(ww.matmul, a, b, bias=bias, activation=case.activation, out=d)
        runs = {"ours": fused, "cublas": lambda: activate(torch.addmm(bias, a, b, out=other))}
        return runs, activate(sums + bias.float())
    if case.dtype == torch.bfloat16:
        runs = {"ours": bind_ours(case, a, b, d), "cublas": partial(torch.matmul, a, b, out=other)}
        return runs | quack(a, b, d), sums
    scales = torch.tensor(0.5, device="cuda"), torch.tensor(0.25, device="cuda")
    scaled = partial(torch._scaled_mm, a, b, *scales, out_dtype=torch.bfloat16, out=other)
    ours = partial(ww.matmul, a, b, scale_a=scales[0], scale_b=scales[1], out=d)
    runs = {"ours": ours, "cublas": scaled, "fast": partial(scaled, use_fast_accum=True)}
    return runs | quack(a, b, d, (scales[0] * scales[1]).view(1)), sums / 8


def quack(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, scale: torch.Tensor | float = 1.0) -> dict[str, Run]:
    """Returns QuACK's call, tuned, if it is installed and takes the problem."""
    return peers.usable({peers.QUACK: peers.quack_gemm(a, b, d, scale)} if peers.QUACK in peers.GEMM_NAMES else {})


def measure(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    a, b = operands(case)
    d = torch.empty(*a.shape[:-1], case.n, device="cuda", dtype=torch.bfloat16)
    runs, reference = ours_and_peers(case, a, b, d)
    errors = [error_of(runs[name], d, reference) for name in ("ours", peers.QUACK) if name in runs]
    del reference
    tera = 2e-12 * case.batches * case.m * case.n * case.k
    times = cuda.medians(runs, rounds=rounds)
    row = {"case": case.name, "error": errors[0], "verified": all(error < TOLERANCE for error in errors)}
    row |= speeds(times, tera) | {"us": round(times["ours"] * 1e6, 1)} | peers.ratios(times, PEERS)
    if seconds:
        long = {name: cuda.sustained_seconds(run, seconds=seconds, estimate=times[name]) for name, run in runs.items()}
        row |= {f"{name}_sustained": value for name, value in (speeds(long, tera) | peers.ratios(long, PEERS)).items()}
    return row


def speeds(times: dict[str, float], tera: float) -> dict[str, float | str]:
    """Returns the TFLOPS of each, "-" for a peer without a time."""
    return {name: round(tera / times[name], 1) if name in times else "-" for name in dict.fromkeys([*times, *PEERS])}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as aligned columns with a header."""
    names = [name for name in rows[0] if name not in ("error", "verified")]
    lines = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def measure_all(cases: Iterator[Case], options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for case in cases:
        rows.append(measure(case, options.rounds, options.sustained))
        print(rows[-1], file=sys.stderr, flush=True)  # what a time limit would lose
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="listed,layouts,fp8", help=f"of {','.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=30, help="launches of each kernel")
    parser.add_argument("--size", type=int, default=8192, help="M = N = K of the ladder")
    parser.add_argument(
        "--sustained", type=float, nargs="?", const=0.5, default=0.0, help="also back to back for this many seconds"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    groups = {name: measure_all(CASES[name](options.size), options) for name in options.cases.split(",")}
    rows = [row for group in groups.values() for row in group]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOPS, medians of {options.rounds}")
        for name, group in groups.items():
            print(f"\n{name}\n{table(group)}\n\n{peers.summary(group, PEERS)}")
    unverified = [row["case"] for row in rows if not row["verified"]]
    if unverified:
        sys.exit(f"not verified: {', '.join(unverified)}")


if __name__ == "__main__":
    main()
