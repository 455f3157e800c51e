"""The problem of a call: its shapes, dtype and layouts, without tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from warpwright.errors import UsageError

__all__ = ["MAP_BYTES", "Problem", "describe_gather", "describe_scatter", "fits_tensor_maps", "major_of"]

SIXTEEN_BITS = (torch.bfloat16, torch.float16)
MAP_BYTES = 16


class Problem(NamedTuple):
    """``rows``: of a rank, of the gathered operand or of the scattered result; ``columns``: of each weight; ``majors``:
    the axis of each weight that is dense in memory, "k" or "mn", or "" for neither."""

    operation: str
    ranks: int
    rows: int
    k: int
    columns: tuple[int, ...]
    majors: tuple[str, ...]
    dtype: torch.dtype

    @property
    def text(self) -> str:
        """The description that all ranks must agree on."""
        columns, dtype = ", ".join(map(str, self.columns)), str(self.dtype).removeprefix("torch.")
        return f"{self.operation} of {self.rows} rows a rank, K={self.k}, N={columns}, {dtype}"


def major_of(weight: Tensor) -> str:
    """Returns the axis of a weight (K, N) that is dense in memory, as `Problem` has it."""
    for major, dense, far in (("k", 0, 1), ("mn", 1, 0)):
        stride, extent = weight.stride(far), weight.shape[dense]
        if weight.stride(dense) == 1 and stride >= extent and stride * weight.itemsize % MAP_BYTES == 0:
            return major if weight.data_ptr() % MAP_BYTES == 0 else ""
    return ""


def describe_gather(x: Tensor, weights: list[Tensor], ranks: int) -> Problem:
    """Returns the problem of an all-gather of ``x`` (rows, K) and its products with ``weights`` (K, N).

    Raises UsageError for tensors that do not fit together.
    """
    for weight in weights:
        _check("all_gather_matmul", x, weight)
    columns = tuple(weight.shape[1] for weight in weights)
    return Problem("all_gather_matmul", ranks, x.shape[0], x.shape[1], columns, tuple(map(major_of, weights)), x.dtype)


def describe_scatter(x: Tensor, weight: Tensor, ranks: int) -> Problem:
    """Returns the problem of the product of ``x`` (rows of all ranks, K) and ``weight`` (K, N), scattered by rows.

    Raises UsageError for tensors that do not fit together, and for rows that do not divide among the ranks.
    """
    _check("matmul_reduce_scatter", x, weight)
    if x.shape[0] % ranks:
        raise UsageError(
            f"matmul_reduce_scatter: given {x.shape[0]} rows for {ranks} ranks; expected a multiple of {ranks}"
        )
    rows, columns = x.shape[0] // ranks, (weight.shape[1],)
    return Problem("matmul_reduce_scatter", ranks, rows, x.shape[1], columns, (major_of(weight),), x.dtype)


def _check(name: str, x: Tensor, weight: Tensor) -> None:
    if weight.ndim != 2 or x.ndim < 2 or x.shape[-1] != weight.shape[0]:
        raise UsageError(
            f"{name}: given x of shape {tuple(x.shape)} and a weight of {tuple(weight.shape)}; expected (…, K) and "
            "(K, N); a torch.nn.Linear has the transpose: linear.weight.T"
        )
    if x.dtype != weight.dtype:
        raise UsageError(f"{name}: given x of {x.dtype} and a weight of {weight.dtype}; expected one dtype")


def fits_tensor_maps(problem: Problem) -> bool:
    """Returns whether the kernels of Hopper take the problem: 16-bit floats, rows of whole 16 bytes in memory."""
    step = MAP_BYTES // problem.dtype.itemsize
    whole = all(extent % step == 0 for extent in (problem.k, *problem.columns))
    return problem.dtype in SIXTEEN_BITS and whole and "" not in problem.majors and 0 not in (problem.rows, problem.k)
