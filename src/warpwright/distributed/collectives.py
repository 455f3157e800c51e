"""Groups of ranks by name, and the all-gather of torch that torch.compile traces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import _functional_collectives  # noqa: F401  (registers the operators of `all_gather`)
from torch.distributed import distributed_c10d as c10d

__all__ = ["all_gather", "group_name", "resolve_group"]


def group_name(group: Any) -> str:
    """Returns the name of a group: of a ProcessGroup, of a name, or of the world for None."""
    if isinstance(group, str):
        return group
    return str((c10d._get_default_group() if group is None else group).group_name)


def resolve_group(group: Any) -> Any:
    """Returns the ProcessGroup of a group or of its name, or the world for None."""
    if isinstance(group, str):
        return c10d._resolve_process_group(group)
    return c10d._get_default_group() if group is None else group


def all_gather(x: Tensor, group: str) -> Tensor:
    """Returns the tensors of all ranks along a new first axis."""
    ranks = resolve_group(group).size()
    flat = x.contiguous().view(1, -1)
    found = torch.ops._c10d_functional.all_gather_into_tensor(flat, ranks, group)
    return torch.ops._c10d_functional.wait_tensor(found).view(ranks, *x.shape)
