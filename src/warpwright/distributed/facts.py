"""The fastest engine of each measured problem of several GPUs.

The facts are medians on two H200s with NVLink (torch 2.11, NCCL 2.28.9), bf16, weights dense along K, L2 filled with
other data before each call; the command is ``python -m torch.distributed.run --standalone --nproc-per-node 2
bench/distributed.py --engines parts adds kernel copies``. They are from the second to the fourth run in
docs/log/2026-11.md, the mean of two runs for an engine that both measured; of those engines of reduce-scatter and of
``parts`` the last two.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FACTS", "Fact"]


class Fact(NamedTuple):
    """A problem, rows of all ranks, columns and K of a rank; the name of its fastest engine; the microseconds of NCCL
    and torch.matmul in turn, and that time over ours."""

    operation: str
    ranks: int
    m: int
    n: int
    k: int
    engine: str
    nccl_us: float
    ratio: float


_GATHER, _SCATTER = "all_gather_matmul", "matmul_reduce_scatter"

FACTS = (
    Fact(_GATHER, 2, 1024, 3072, 4096, "copies 128x128", 80.0, 1.46),
    Fact(_GATHER, 2, 1024, 14336, 4096, "copies 128x128", 200.0, 1.12),
    Fact(_GATHER, 2, 1024, 3584, 5120, "copies 128x128", 96.0, 1.47),
    Fact(_GATHER, 2, 1024, 27648, 5120, "copies 128x192", 410.0, 1.05),
    Fact(_GATHER, 2, 1024, 5120, 8192, "parts torch", 173.0, 1.28),
    Fact(_GATHER, 2, 1024, 28672, 8192, "copies 128x256", 670.0, 1.07),
    Fact(_GATHER, 2, 4096, 3072, 4096, "copies 128x192", 231.0, 1.52),
    Fact(_GATHER, 2, 4096, 14336, 4096, "copies 128x256", 705.0, 1.14),
    Fact(_GATHER, 2, 4096, 3584, 5120, "copies 128x128", 320.0, 1.47),
    Fact(_GATHER, 2, 4096, 27648, 5120, "copies 128x256", 1601.0, 1.07),
    Fact(_GATHER, 2, 4096, 5120, 8192, "copies 128x256", 593.0, 1.34),
    Fact(_GATHER, 2, 4096, 28672, 8192, "parts torch", 2663.0, 1.06),
    Fact(_GATHER, 2, 16384, 3072, 4096, "copies 128x256", 822.0, 1.52),
    Fact(_GATHER, 2, 16384, 14336, 4096, "copies 128x256", 2855.0, 1.12),
    Fact(_GATHER, 2, 16384, 3584, 5120, "copies 128x256", 1128.0, 1.43),
    Fact(_GATHER, 2, 16384, 27648, 5120, "parts", 6896.0, 1.07),
    Fact(_GATHER, 2, 16384, 5120, 8192, "copies 128x256", 2337.0, 1.32),
    Fact(_GATHER, 2, 16384, 28672, 8192, "copies 128x256", 11858.0, 1.07),
    Fact(_SCATTER, 2, 1024, 4096, 2048, "kernel 128x128", 66.0, 1.40),
    Fact(_SCATTER, 2, 1024, 5120, 2560, "adds torch", 82.0, 1.34),
    Fact(_SCATTER, 2, 1024, 8192, 4096, "adds", 152.0, 1.33),
    Fact(_SCATTER, 2, 1024, 4096, 7168, "adds", 119.0, 1.20),
    Fact(_SCATTER, 2, 1024, 5120, 13824, "adds torch", 229.0, 1.07),
    Fact(_SCATTER, 2, 1024, 8192, 14336, "adds torch", 359.0, 1.11),
    Fact(_SCATTER, 2, 4096, 4096, 2048, "adds", 196.0, 1.57),
    Fact(_SCATTER, 2, 4096, 5120, 2560, "adds", 266.0, 1.53),
    Fact(_SCATTER, 2, 4096, 4096, 4096, "halves", 280.0, 1.37),
    Fact(_SCATTER, 2, 4096, 8192, 4096, "halves", 522.0, 1.38),
    Fact(_SCATTER, 2, 4096, 4096, 7168, "halves torch", 400.0, 1.25),
    Fact(_SCATTER, 2, 4096, 5120, 13824, "halves torch", 848.0, 1.14),
    Fact(_SCATTER, 2, 4096, 8192, 14336, "halves", 1378.0, 1.12),
    Fact(_SCATTER, 2, 8192, 8192, 14784, "halves", 3124.0, 1.15),
    Fact(_SCATTER, 2, 16384, 4096, 2048, "adds", 680.0, 1.60),
    Fact(_SCATTER, 2, 16384, 5120, 2560, "adds", 952.0, 1.51),
    Fact(_SCATTER, 2, 16384, 8192, 4096, "parts", 2031.0, 1.35),
    Fact(_SCATTER, 2, 16384, 4096, 7168, "halves", 1562.0, 1.25),
    Fact(_SCATTER, 2, 16384, 5120, 13824, "kernel 128x256", 3499.0, 1.12),
    Fact(_SCATTER, 2, 16384, 8192, 14336, "halves", 6261.0, 1.15),
)
