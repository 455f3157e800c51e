"""A sequence divided among the ranks of a group: in zigzag, so that causal attention has equal work on all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpwright.distributed.collectives import all_gather, group_name, resolve_group
from warpwright.errors import UsageError

__all__ = ["chunks_of", "join_ranks", "shard_sequence", "unshard_sequence"]


def chunks_of(rank: int, ranks: int, zigzag: bool) -> tuple[int, ...]:
    """Returns the numbers of a rank's chunks: of 2 · ranks in zigzag the rank-th from both ends, else of ``ranks``."""
    return (rank, 2 * ranks - 1 - rank) if zigzag else (rank,)


def shard_sequence(x: Tensor, group: Any = None, *, dim: int = -2, zigzag: bool = True) -> Tensor:
    """Returns the part of this rank of a tensor that all ranks have whole, along its sequence ``dim``.

    With ``zigzag`` the sequence has 2 · ranks chunks, and rank r has chunks r and 2 · ranks - 1 - r: the work of causal
    attention is then equal. Without, rank r has the r-th of ``ranks`` chunks. Positions are divided in the same way:
    ``shard_sequence(torch.arange(length), dim=0)``.

    Raises UsageError for a length that is no multiple of the number of chunks.
    """
    found = resolve_group(group)
    numbers = chunks_of(found.rank(), found.size(), zigzag)
    count = len(numbers) * found.size()
    if x.shape[dim] % count:
        raise UsageError(
            f"shard_sequence: given a sequence of {x.shape[dim]} for {found.size()} ranks; expected a multiple of "
            f"{count}, the number of chunks"
        )
    chunks = x.chunk(count, dim)
    return torch.cat([chunks[number] for number in numbers], dim)


def unshard_sequence(x: Tensor, group: Any = None, *, dim: int = -2, zigzag: bool = True) -> Tensor:
    """Returns the whole tensor on every rank, from the parts that `shard_sequence` made. Gradients do not pass.

    Raises UsageError for a part that is no multiple of the number of its chunks.
    """
    count = len(chunks_of(0, 1, zigzag))
    if x.shape[dim] % count:
        raise UsageError(f"unshard_sequence: given a part of {x.shape[dim]}; expected a multiple of {count}")
    return join_ranks(all_gather(x.detach(), group_name(group)), dim, zigzag)


def join_ranks(parts: Tensor, dim: int, zigzag: bool) -> Tensor:
    """Returns the whole tensor from the parts of all ranks, which follow one another along the first axis."""
    ranks, chunks = parts.shape[0], dict[int, Tensor]()
    for rank, part in enumerate(parts):
        numbers = chunks_of(rank, ranks, zigzag)
        chunks |= zip(numbers, part.chunk(len(numbers), dim), strict=True)
    return torch.cat([chunks[number] for number in sorted(chunks)], dim)
