"""PyTorch's fused operators by the engines of this package: ``torch.ops.symm_mem.fused_all_gather_matmul`` and
``fused_matmul_reduce_scatter``, which torch.compile inserts for asynchronous tensor parallelism."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import _symmetric_memory as symm_mem

from warpwright.distributed.operators import run_gather, run_scatter
from warpwright.distributed.workspace import workspace_of

__all__ = ["replace_symm_mem"]

AVERAGE = "avg"


def replace_symm_mem() -> Callable[[], None]:
    """Let PyTorch's two fused operators run the engines of this package; returns a function that undoes this.

    A gather along K, and another reduction than a sum or an average, stay PyTorch's.
    """
    library = torch.library.Library("symm_mem", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        library.impl("fused_all_gather_matmul", _gather, "CUDA", allow_override=True)
        library.impl("fused_matmul_reduce_scatter", _scatter, "CUDA", allow_override=True)
    restore: Callable[[], None] = library._destroy
    return restore


def _gather(
    A: Tensor, Bs: list[Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[Tensor | None, list[Tensor]]:
    if gather_dim % A.ndim == A.ndim - 1:
        found: tuple[Tensor | None, list[Tensor]] = symm_mem._fused_all_gather_matmul(
            A, Bs, gather_dim, group_name, return_A=return_A
        )
        return found
    x = A.movedim(gather_dim, 0)
    flat = run_gather(x.reshape(-1, x.shape[-1]), Bs, _group(group_name), gathered=return_A)
    shaped = [each.view(-1, *x.shape[1:-1], each.shape[-1]).movedim(0, gather_dim) for each in flat]
    return (shaped[-1], shaped[:-1]) if return_A else (None, shaped)


def _scatter(A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> Tensor:
    if scatter_dim % A.ndim == A.ndim - 1 or reduce_op not in ("sum", AVERAGE):
        found: Tensor = symm_mem._fused_matmul_reduce_scatter(A, B, reduce_op, scatter_dim, group_name)
        return found
    x, group = A.movedim(scatter_dim, 0), _group(group_name)
    sums = run_scatter(x.reshape(-1, x.shape[-1]), B, group)
    if reduce_op == AVERAGE:
        sums /= workspace_of(group).ranks
    return sums.view(-1, *x.shape[1:-1], B.shape[1]).movedim(0, scatter_dim)


def _group(name: str) -> object:
    return torch.distributed.distributed_c10d._resolve_process_group(name)
