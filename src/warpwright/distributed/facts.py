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
    Fact(_GATHER, 2, 1024, 3072, 4096, "parts torch", 78.0, 1.46),
    Fact(_GATHER, 2, 1024, 14336, 4096, "copies 128x128", 202.9, 1.12),
    Fact(_GATHER, 2, 1024, 3584, 5120, "copies 128x128", 95.9, 1.47),
    Fact(_GATHER, 2, 1024, 27648, 5120, "parts torch", 420.9, 1.05),
    Fact(_GATHER, 2, 1024, 5120, 8192, "parts torch", 175.3, 1.28),
    Fact(_GATHER, 2, 1024, 28672, 8192, "copies 128x256", 687.3, 1.07),
    Fact(_GATHER, 2, 4096, 3072, 4096, "copies 128x192", 233.1, 1.52),
    Fact(_GATHER, 2, 4096, 14336, 4096, "copies 128x256", 722.1, 1.14),
    Fact(_GATHER, 2, 4096, 3584, 5120, "copies 128x128", 322.7, 1.46),
    Fact(_GATHER, 2, 4096, 27648, 5120, "copies 128x256", 1655.3, 1.07),
    Fact(_GATHER, 2, 4096, 5120, 8192, "copies 128x256", 604.8, 1.34),
    Fact(_GATHER, 2, 4096, 28672, 8192, "copies 128x192", 2771.8, 1.06),
    Fact(_GATHER, 2, 16384, 3072, 4096, "copies 128x256", 837.0, 1.51),
    Fact(_GATHER, 2, 16384, 14336, 4096, "copies 128x192", 2950.9, 1.12),
    Fact(_GATHER, 2, 16384, 3584, 5120, "parts", 1150.2, 1.42),
    Fact(_GATHER, 2, 16384, 27648, 5120, "parts", 7222.4, 1.07),
    Fact(_GATHER, 2, 16384, 5120, 8192, "parts", 2408.1, 1.32),
    Fact(_GATHER, 2, 16384, 28672, 8192, "copies 128x192", 12499.3, 1.06),
    Fact(_SCATTER, 2, 1024, 4096, 2048, "kernel 128x128", 65.1, 1.40),
    Fact(_SCATTER, 2, 1024, 5120, 2560, "kernel 128x128", 81.2, 1.27),
    Fact(_SCATTER, 2, 1024, 8192, 4096, "adds", 152.3, 1.28),
    Fact(_SCATTER, 2, 1024, 4096, 7168, "kernel 128x256", 120.3, 1.17),
    Fact(_SCATTER, 2, 1024, 5120, 13824, "adds torch", 231.9, 1.04),
    Fact(_SCATTER, 2, 1024, 8192, 14336, "adds torch", 365.2, 1.09),
    Fact(_SCATTER, 2, 4096, 4096, 2048, "adds torch", 195.1, 1.51),
    Fact(_SCATTER, 2, 4096, 5120, 2560, "adds torch", 267.9, 1.49),
    Fact(_SCATTER, 2, 4096, 4096, 4096, "adds", 284.8, 1.33),
    Fact(_SCATTER, 2, 4096, 8192, 4096, "adds", 529.4, 1.34),
    Fact(_SCATTER, 2, 4096, 4096, 7168, "adds", 407.4, 1.22),
    Fact(_SCATTER, 2, 4096, 5120, 13824, "adds torch", 867.8, 1.11),
    Fact(_SCATTER, 2, 4096, 8192, 14336, "adds", 1420.7, 1.11),
    Fact(_SCATTER, 2, 8192, 8192, 14784, "kernel 128x192", 3190.4, 1.13),
    Fact(_SCATTER, 2, 16384, 4096, 2048, "adds", 688.5, 1.59),
    Fact(_SCATTER, 2, 16384, 5120, 2560, "adds", 966.0, 1.48),
    Fact(_SCATTER, 2, 16384, 8192, 4096, "parts", 2089.9, 1.34),
    Fact(_SCATTER, 2, 16384, 4096, 7168, "parts", 1603.3, 1.22),
    Fact(_SCATTER, 2, 16384, 5120, 13824, "kernel 128x256", 3625.1, 1.12),
    Fact(_SCATTER, 2, 16384, 8192, 14336, "kernel 128x192", 6317.4, 1.14),
)
