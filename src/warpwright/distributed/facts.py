"""The fastest engine of each measured problem of several GPUs.

The facts are medians on two H200s with NVLink (torch 2.11, NCCL 2.28.9), bf16, weights dense along K, L2 filled with
other data before each call; the command is ``python -m torch.distributed.run --standalone --nproc-per-node 2
bench/distributed.py --engines parts adds whole kernel copies sends``. Where no engine was faster than NCCL and
torch.matmul in turn the ratio is 1.
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
    Fact(_GATHER, 2, 1024, 3072, 4096, "copies 128x128", 77.9, 1.46),
    Fact(_GATHER, 2, 1024, 14336, 4096, "copies 128x128", 201.7, 1.12),
    Fact(_GATHER, 2, 1024, 3584, 5120, "copies 128x128", 95.2, 1.46),
    Fact(_GATHER, 2, 1024, 27648, 5120, "copies 128x192", 413.0, 1.05),
    Fact(_GATHER, 2, 1024, 5120, 8192, "copies 128x192", 173.2, 1.20),
    Fact(_GATHER, 2, 1024, 28672, 8192, "copies 128x256", 675.3, 1.07),
    Fact(_GATHER, 2, 4096, 3072, 4096, "copies 128x192", 229.5, 1.52),
    Fact(_GATHER, 2, 4096, 14336, 4096, "copies 128x256", 707.9, 1.14),
    Fact(_GATHER, 2, 4096, 3584, 5120, "copies 128x128", 317.6, 1.46),
    Fact(_GATHER, 2, 4096, 27648, 5120, "copies 128x256", 1612.3, 1.07),
    Fact(_GATHER, 2, 4096, 5120, 8192, "copies 128x256", 594.1, 1.34),
    Fact(_GATHER, 2, 4096, 28672, 8192, "copies 128x192", 2698.1, 1.05),
    Fact(_GATHER, 2, 16384, 3072, 4096, "copies 128x256", 822.0, 1.51),
    Fact(_GATHER, 2, 16384, 14336, 4096, "copies 128x192", 2908.1, 1.12),
    Fact(_GATHER, 2, 16384, 3584, 5120, "copies 128x256", 1128.5, 1.43),
    Fact(_GATHER, 2, 16384, 27648, 5120, "copies 128x256", 7223.1, 1.07),
    Fact(_GATHER, 2, 16384, 5120, 8192, "copies 128x256", 2377.7, 1.32),
    Fact(_GATHER, 2, 16384, 28672, 8192, "parts", 12205.2, 1.06),
    Fact(_SCATTER, 2, 1024, 4096, 2048, "adds", 63.8, 1.15),
    Fact(_SCATTER, 2, 1024, 5120, 2560, "adds", 80.4, 1.21),
    Fact(_SCATTER, 2, 1024, 8192, 4096, "adds", 150.8, 1.27),
    Fact(_SCATTER, 2, 1024, 4096, 7168, "adds", 118.7, 1.14),
    Fact(_SCATTER, 2, 1024, 5120, 13824, "whole torch", 227.8, 1.00),
    Fact(_SCATTER, 2, 1024, 8192, 14336, "adds", 361.0, 1.08),
    Fact(_SCATTER, 2, 4096, 4096, 2048, "adds", 192.8, 1.49),
    Fact(_SCATTER, 2, 4096, 5120, 2560, "adds", 264.8, 1.46),
    Fact(_SCATTER, 2, 4096, 4096, 4096, "adds", 282.0, 1.32),
    Fact(_SCATTER, 2, 4096, 8192, 4096, "adds", 521.0, 1.34),
    Fact(_SCATTER, 2, 4096, 4096, 7168, "adds", 399.2, 1.20),
    Fact(_SCATTER, 2, 4096, 5120, 13824, "adds", 851.4, 1.06),
    Fact(_SCATTER, 2, 4096, 8192, 14336, "adds", 1388.6, 1.11),
    Fact(_SCATTER, 2, 8192, 8192, 14784, "adds", 2935.8, 1.13),
    Fact(_SCATTER, 2, 16384, 4096, 2048, "adds", 675.8, 1.57),
    Fact(_SCATTER, 2, 16384, 5120, 2560, "adds", 949.4, 1.49),
    Fact(_SCATTER, 2, 16384, 8192, 4096, "parts", 2046.9, 1.35),
    Fact(_SCATTER, 2, 16384, 4096, 7168, "parts", 1565.9, 1.22),
    Fact(_SCATTER, 2, 16384, 5120, 13824, "adds", 3509.9, 1.11),
    Fact(_SCATTER, 2, 16384, 8192, 14336, "adds", 6259.9, 1.14),
)
