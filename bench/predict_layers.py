"""Predicted times of tensor-parallel layers beside measured ones: ``python bench/predict_layers.py [--rows 4096]``.

No GPU is used. The layers, their engines and the measured microseconds are the facts of `warpwright.distributed`, of
two H200s. `ww.profile` predicts the matmuls of an engine, with L2 full of other data as bench/distributed.py has it;
the copies and the flags between them take as long as bench/link.py measured. A row has the parts, so that an error can
be found in one of them.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

import warpwright as ww
from warpwright.distributed.facts import FACTS, Fact
from warpwright.distributed.gather import CHUNK_BYTES, CHUNKS
from warpwright.targets import DEVICES

DEVICE = "h200"
ITEM_BYTES = 2
LINK = json.loads((Path(__file__).parent / "measured" / "h200_link.json").read_text())["results"]
MEMORY_BYTES = DEVICES[DEVICE].hbm_gbps * 1e3  # a µs


class Parts(NamedTuple):
    """Predicted microseconds of a layer: of one matmul, of the exchange alone, of all."""

    matmul: float
    exchange: float
    whole: float


@functools.cache
def copy_line() -> tuple[float, float]:
    """Returns the microseconds of a copy that moves nothing, and the bytes a µs: the line through the largest two."""
    copies = [(each["bytes"], each["seconds"] * 1e6) for each in LINK if each["probe"] == "copy engine"]
    (less, first), (more, second) = sorted(copies)[-2:]
    rate = (more - less) / (second - first)
    return first - less / rate, rate


def copy_us(nbytes: float) -> float:
    start, rate = copy_line()
    return start + nbytes / rate


def answer_us() -> float:
    """Returns the microseconds of a flag to a peer and back."""
    return next(float(each["seconds"]) * 1e6 for each in LINK if each["probe"] == "flag and answer")


@functools.cache
def matmul_us(m: int, n: int, k: int) -> tuple[float, float]:
    """Returns the predicted microseconds of `ww.matmul`, and those of a launch."""
    a, b = (np.zeros((rows, k), ml_dtypes.bfloat16) for rows in (m, n))
    call = ww.launches(ww.matmul, a, b.T, device=DEVICE)
    found = [ww.profile(each.kernel, each.grid, args=each.args, device=DEVICE, fast=True) for each in call]
    return sum(each.time_us for each in found), found[0].launch_us


def predict_gather(fact: Fact) -> Parts:
    """Returns the times of ``parts``, whose matmul of the own rows hides the copies, or of one kernel with all rows,
    which waits at most for the last chunk."""
    rows = fact.m // fact.ranks
    exchange = copy_us((fact.ranks - 1) * rows * fact.k * ITEM_BYTES)
    if fact.engine.startswith("parts"):
        part, launch = matmul_us(rows, fact.n, fact.k)
        whole = max(part, exchange) + (fact.ranks - 1) * part
        return Parts(part, exchange, launch + answer_us() + whole)
    matmul, launch = matmul_us(fact.m, fact.n, fact.k)
    chunk = min(rows, max(CHUNK_BYTES // (fact.k * ITEM_BYTES), rows // CHUNKS))
    return Parts(matmul, exchange, launch + answer_us() + max(matmul, exchange + matmul * chunk / fact.m))


def predict_scatter(fact: Fact) -> Parts:
    """Returns the times of matmuls whose sums are sent while the next one runs, and added at the end; or of the kernel,
    which sends and adds in its epilogue."""
    rows, count = fact.m // fact.ranks, fact.ranks - 1
    sums = rows * fact.n * ITEM_BYTES
    exchange = copy_us(count * sums)
    if fact.engine.startswith("kernel"):
        matmul, launch = matmul_us(fact.m, fact.n, fact.k)
        return Parts(matmul, exchange, launch + answer_us() + max(matmul, exchange))
    part, launch = matmul_us(rows, fact.n, fact.k)
    moved = 2 * sums if fact.engine == "parts" else 3 * sums  # `parts` copies what its last matmul adds to
    add = count * (launch + moved / MEMORY_BYTES)
    return Parts(part, exchange, count * part + max(part, exchange) + add)


def predict(fact: Fact) -> Parts:
    return predict_gather(fact) if fact.operation.startswith("all_gather") else predict_scatter(fact)


def row(fact: Fact, parts: Parts, measured: float) -> str:
    found = f"{parts.matmul:>8.0f}{parts.exchange:>9.0f}{parts.whole:>8.0f}{measured:>9.0f}"
    shape = f"{fact.operation:<22}{fact.m:>6}{fact.n:>7}{fact.k:>7}"
    return f"{shape}  {fact.engine:<16}{found}{parts.whole / measured - 1:>+8.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", help="of the layers, such as 1024 4096")
    options = parser.parse_args()
    errors = []
    print("operation               rows      N      K  engine            matmul exchange     all measured   error")
    for fact in (each for each in FACTS if not options.rows or each.m in options.rows):
        parts, measured = predict(fact), fact.nccl_us / fact.ratio
        errors.append(parts.whole / measured - 1)
        print(row(fact, parts, measured), flush=True)
    size, mean = statistics.fmean(map(abs, errors)), statistics.fmean(errors)
    print(f"{len(errors)} layers: mean of the errors' sizes {size:.1%}, mean of the errors {mean:+.1%}")


if __name__ == "__main__":
    main()
