"""The fastest engine of each measured problem of several GPUs."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FACTS", "Fact"]


class Fact(NamedTuple):
    """A problem, rows of all ranks, columns and K of a rank, and the name of its fastest engine."""

    operation: str
    ranks: int
    m: int
    n: int
    k: int
    engine: str


_GATHER, _SCATTER = "all_gather_matmul", "matmul_reduce_scatter"

FACTS = (
    Fact(_GATHER, 2, 1024, 3072, 4096, "copies 128x128"),
    Fact(_GATHER, 2, 1024, 28672, 8192, "copies 128x256"),
    Fact(_GATHER, 2, 16384, 14336, 4096, "copies 128x256"),
    Fact(_SCATTER, 2, 1024, 4096, 2048, "in turn"),
    Fact(_SCATTER, 2, 4096, 8192, 4096, "parts"),
    Fact(_SCATTER, 2, 16384, 4096, 7168, "parts"),
)
