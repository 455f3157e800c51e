"""Matmuls of tensor-parallel layers fused with their communication, on torch.distributed.

`all_gather_matmul` and `matmul_reduce_scatter` take a ProcessGroup of up to 8 GPUs of one host. Needs torch with CUDA
and NCCL; `bench/distributed.py` measures both.
"""

from __future__ import annotations

from warpwright.distributed.agreement import DistributedTimeout
from warpwright.distributed.modules import AllGatherLinear, LinearReduceScatter
from warpwright.distributed.operators import all_gather_matmul, matmul_reduce_scatter
from warpwright.distributed.symm_mem import replace_symm_mem

__all__ = [
    "AllGatherLinear",
    "DistributedTimeout",
    "LinearReduceScatter",
    "all_gather_matmul",
    "matmul_reduce_scatter",
    "replace_symm_mem",
]
