"""Matmuls of tensor-parallel layers and context-parallel attention, with their communication, on torch.distributed.

`all_gather_matmul`, `matmul_reduce_scatter` and `context_parallel_attention` take a ProcessGroup of up to 8 GPUs of one
host. Needs torch with CUDA and NCCL; `bench/distributed.py` and `bench/context_parallel.py` measure them.
"""

from __future__ import annotations

from warpwright.distributed.agreement import DistributedTimeout
from warpwright.distributed.context_operators import context_parallel_attention, context_parallel_attention_varlen
from warpwright.distributed.modules import AllGatherLinear, LinearReduceScatter
from warpwright.distributed.operators import all_gather_matmul, matmul_reduce_scatter
from warpwright.distributed.sequence import shard_sequence, unshard_sequence
from warpwright.distributed.symm_mem import replace_symm_mem

__all__ = [
    "AllGatherLinear",
    "DistributedTimeout",
    "LinearReduceScatter",
    "all_gather_matmul",
    "context_parallel_attention",
    "context_parallel_attention_varlen",
    "matmul_reduce_scatter",
    "replace_symm_mem",
    "shard_sequence",
    "unshard_sequence",
]
