"""A sequence divided among the ranks of a group: in zigzag, so that causal attention has equal work on all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpwright.distributed.collectives import all_gather, group_name, resolve_group
from warpwright.errors import UsageError

__all__ = ["check_lengths", "chunks_of", "join_ranks", "packed_order", "shard_sequence", "unshard_sequence"]


def chunks_of(rank: int, ranks: int, zigzag: bool) -> tuple[int, ...]:
    """Returns the numbers of a rank's chunks: of 2 · ranks in zigzag the rank-th from both ends, else of ``ranks``."""
    return (rank, 2 * ranks - 1 - rank) if zigzag else (rank,)


def shard_sequence(
    x: Tensor, group: Any = None, *, dim: int = -2, zigzag: bool = True, cu_seqlens: Tensor | None = None
) -> Tensor:
    """Returns the part of this rank of a tensor that all ranks have whole, along its sequence ``dim``.

    With ``zigzag`` the sequence has 2 · ranks chunks, and rank r has chunks r and 2 · ranks - 1 - r: the work of causal
    attention is then equal. Without, rank r has the r-th of ``ranks`` chunks. Positions are divided in the same way:
    ``shard_sequence(torch.arange(length), dim=0)``. Of packed sequences, whose sums of lengths are ``cu_seqlens``, each
    is divided: a chunk has the chunks of all sequences.

    Raises UsageError for a length that is no multiple of the number of chunks; lengths on a GPU are not checked.
    """
    found = resolve_group(group)
    numbers = chunks_of(found.rank(), found.size(), zigzag)
    count = len(numbers) * found.size()
    check_lengths("shard_sequence", x.shape[dim], found.size(), count, cu_seqlens)
    if cu_seqlens is not None:
        order = packed_order(cu_seqlens, count, count, x.shape[dim])
        x = x.index_select(dim, order.argsort())
    chunks = x.chunk(count, dim)
    return torch.cat([chunks[number] for number in numbers], dim)


def unshard_sequence(
    x: Tensor, group: Any = None, *, dim: int = -2, zigzag: bool = True, cu_seqlens: Tensor | None = None
) -> Tensor:
    """Returns the whole tensor on every rank, from the parts that `shard_sequence` made. Gradients do not pass.

    Raises UsageError for a part that is no multiple of the number of its chunks.
    """
    count = len(chunks_of(0, 1, zigzag))
    if x.shape[dim] % count:
        raise UsageError(f"unshard_sequence: given a part of {x.shape[dim]}; expected a multiple of {count}")
    parts = all_gather(x.detach(), group_name(group))
    whole = join_ranks(parts, dim, zigzag)
    if cu_seqlens is None:
        return whole
    chunks = count * parts.shape[0]
    return whole.index_select(dim, packed_order(cu_seqlens, chunks, chunks, whole.shape[dim]))


def check_lengths(name: str, length: int, ranks: int, chunks: int, cu_seqlens: Tensor | None) -> None:
    """Raise UsageError for a sequence, or packed ones, that are not whole chunks; lengths on a GPU are not checked."""
    if length % chunks:
        raise UsageError(
            f"{name}: given a sequence of {length} for {ranks} ranks; expected a multiple of {chunks}, the number of "
            "chunks"
        )
    if cu_seqlens is None or cu_seqlens.device.type != "cpu":
        return
    if int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != length or bool((cu_seqlens.diff() % chunks).any()):
        raise UsageError(
            f"{name}: given cu_seqlens {cu_seqlens.tolist()} for {length} tokens on {ranks} ranks; expected sums from "
            f"0 to {length} of lengths that are multiples of {chunks}, the number of chunks: pad each sequence"
        )


def packed_order(cu_seqlens: Tensor, chunks: int, seen: int, length: int) -> Tensor:
    """Returns for each token of packed sequences, cut to their first ``seen`` of ``chunks`` chunks, its place where the
    chunks of all sequences follow one another. ``length`` is that of the cut sequences in all."""
    starts = cu_seqlens.long() // chunks
    tokens = torch.arange(length, device=cu_seqlens.device)
    numbers = torch.searchsorted(starts * seen, tokens, right=True) - 1
    starts, lengths = starts[numbers], starts.diff()[numbers]
    within = tokens - starts * seen
    return within // lengths * (length // seen) + starts + within % lengths


def join_ranks(parts: Tensor, dim: int, zigzag: bool) -> Tensor:
    """Returns the whole tensor from the parts of all ranks, which follow one another along the first axis."""
    ranks, chunks = parts.shape[0], dict[int, Tensor]()
    for rank, part in enumerate(parts):
        numbers = chunks_of(rank, ranks, zigzag)
        chunks |= zip(numbers, part.chunk(len(numbers), dim), strict=True)
    return torch.cat([chunks[number] for number in sorted(chunks)], dim)
