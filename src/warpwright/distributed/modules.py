"""Linear layers of tensor parallelism: the outputs of one are divided among the ranks, the inputs of the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpwright.distributed.collectives import resolve_group
from warpwright.distributed.operators import all_gather_matmul, matmul_reduce_scatter

__all__ = ["AllGatherLinear", "LinearReduceScatter"]


class AllGatherLinear(torch.nn.Module):  # type: ignore[misc]
    """``all_gather(x) @ weight.T + bias``; ``weight`` and ``bias`` are the part of this rank of the outputs.

    ``x`` is (…, inputs), divided among the ranks along its first axis; the result has all rows and the outputs of this
    rank. `from_linear` takes the part of a whole layer.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, group: Any = None) -> None:
        super().__init__()
        self.weight, self.group = torch.nn.Parameter(weight), group
        self.bias = None if bias is None else torch.nn.Parameter(bias)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, group: Any = None) -> AllGatherLinear:
        """Returns the layer of this rank of ``linear``, which all ranks have whole."""
        bias = None if linear.bias is None else own_part(linear.bias, 0, group)
        return cls(own_part(linear.weight, 0, group), bias, group)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = all_gather_matmul(x, self.weight.T, self.group)
        return y if self.bias is None else y + self.bias


class LinearReduceScatter(torch.nn.Module):  # type: ignore[misc]
    """``reduce_scatter(x @ weight.T) + bias``; ``weight`` is the part of this rank of the inputs, ``bias`` is whole.

    ``x`` is (…, inputs of this rank), with all rows; the result has this rank's part of the first axis and all outputs.
    ``bias`` is added to a part of the rows, so its gradient is a part too, which the optimizer has to sum over ranks.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, group: Any = None) -> None:
        super().__init__()
        self.weight, self.group = torch.nn.Parameter(weight), group
        self.bias = None if bias is None else torch.nn.Parameter(bias)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, group: Any = None) -> LinearReduceScatter:
        """Returns the layer of this rank of ``linear``, which all ranks have whole."""
        bias = None if linear.bias is None else linear.bias.detach().clone()
        return cls(own_part(linear.weight, 1, group), bias, group)

    def forward(self, x: Tensor) -> Tensor:
        y = matmul_reduce_scatter(x, self.weight.T, self.group)
        return y if self.bias is None else y + self.bias


def own_part(whole: Tensor, axis: int, group: Any) -> Tensor:
    """Returns a copy of this rank's part of a tensor along an axis."""
    found = resolve_group(group)
    return whole.detach().chunk(found.size(), axis)[found.rank()].clone(memory_format=torch.contiguous_format)
