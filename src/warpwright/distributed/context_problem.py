"""The problem of context-parallel attention: extents, which keys a rank's queries see, and in which calls."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from warpwright.distributed.sequence import check_lengths, chunks_of
from warpwright.errors import UsageError

__all__ = ["ContextProblem", "QueryCall", "describe_context", "fixed_order"]

GROUPS = 4  # of heads, at most
GROUP_BYTES = 16 << 20  # at least, of keys and values of all ranks in a group of several


class QueryCall(NamedTuple):
    """A call of attention: these rows of a rank's queries see the keys before ``end``, the last of them its own."""

    rows: slice
    end: int


class ContextProblem(NamedTuple):
    """``rows``: of a rank, in one chunk or with ``zigzag`` in two; ``heads``: of queries; ``kv_heads``: of keys.
    ``sequences``: packed ones, each divided among the ranks, or 0 for one sequence in each batch."""

    operation: str
    ranks: int
    batch: int
    heads: int
    kv_heads: int
    rows: int
    head_dim: int
    dtype: torch.dtype
    causal: bool
    scale: float | None
    zigzag: bool
    sequences: int = 0

    @property
    def text(self) -> str:
        """The description that all ranks must agree on."""
        dtype = str(self.dtype).removeprefix("torch.")
        flags = f"causal={self.causal}, scale={self.scale}, zigzag={self.zigzag}"
        flags += f", {self.sequences} packed sequences" if self.sequences else ""
        return (
            f"{self.operation} of {self.batch} x {self.heads} heads ({self.kv_heads} of keys) x {self.rows} rows a "
            f"rank x {self.head_dim}, {dtype}, {flags}"
        )

    @property
    def groups(self) -> int:
        """Groups of heads. Attention of a group runs while keys and values of the next one are sent."""
        itemsize: int = self.dtype.itemsize
        nbytes = 2 * self.batch * self.kv_heads * self.ranks * self.rows * self.head_dim * itemsize
        most = max(1, min(GROUPS, nbytes // GROUP_BYTES))
        return max(count for count in range(1, most + 1) if self.kv_heads % count == 0)

    @property
    def chunk(self) -> int:
        """Rows of a chunk."""
        return self.rows // (2 if self.zigzag else 1)

    def chunks(self, rank: int) -> tuple[int, ...]:
        """Returns the numbers of a rank's chunks."""
        return chunks_of(rank, self.ranks, self.zigzag)

    def places(self, rank: int) -> list[tuple[slice, int, slice]]:
        """Returns for each chunk of a rank its place in the rows of the rank, its number, and its place in the whole
        sequence."""

        def span(number: int) -> slice:
            return slice(number * self.chunk, (number + 1) * self.chunk)

        return [(span(place), number, span(number)) for place, number in enumerate(self.chunks(rank))]

    def sees(self, rank: int, chunk: int) -> bool:
        """Returns whether any query of a rank sees keys of a chunk."""
        return not self.causal or chunk <= max(self.chunks(rank))

    def viewers(self, chunk: int) -> slice:
        """Returns the ranks, neighbours of each other, whose queries see a chunk."""
        found = [rank for rank in range(self.ranks) if self.sees(rank, chunk)]
        return slice(found[0], found[-1] + 1)

    def calls(self, rank: int) -> list[QueryCall]:
        """Returns the calls of a rank for each group of heads, the longest first."""
        every = self.ranks * self.rows
        return [QueryCall(rows, span.stop if self.causal else every) for rows, _, span in reversed(self.places(rank))]


def describe_context(
    operation: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranks: int,
    causal: bool,
    scale: float | None,
    zigzag: bool,
    cu_seqlens: Tensor | None = None,
) -> ContextProblem:
    """Returns the problem of the parts ``q`` (batch, heads, rows, head_dim), ``k`` and ``v`` of a rank. ``cu_seqlens``:
    of packed sequences, all of one batch.

    Raises UsageError for tensors that do not fit together.
    """
    shapes = f"q of shape {tuple(q.shape)}, k of {tuple(k.shape)} and v of {tuple(v.shape)}"
    if q.ndim != 4 or k.shape != v.shape or k.ndim != 4 or _common(q) != _common(k) or q.shape[1] % k.shape[1]:
        raise UsageError(
            f"{operation}: given {shapes}; expected (batch, heads, rows, head_dim) and twice (batch, kv_heads, rows, "
            "head_dim), with heads a multiple of kv_heads"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise UsageError(f"{operation}: given q of {q.dtype}, k of {k.dtype} and v of {v.dtype}; expected one dtype")
    if zigzag and q.shape[2] % 2:
        raise UsageError(
            f"{operation}: given {q.shape[2]} rows; expected two chunks of equal length, as shard_sequence makes them, "
            "or zigzag=False"
        )
    (batch, heads, rows, head_dim), sequences = q.shape, 0
    if cu_seqlens is not None:
        check_lengths(operation, ranks * rows, ranks, ranks * (2 if zigzag else 1), cu_seqlens)
        sequences = cu_seqlens.shape[0] - 1
    elif not causal:  # then the order of keys is free, and all rows of a rank are one chunk
        zigzag = False
    extents = batch, heads, k.shape[1], rows, head_dim
    return ContextProblem(operation, ranks, *extents, q.dtype, causal, scale, zigzag, sequences)


def fixed_order() -> bool:
    """Returns whether gradients must be summed in a fixed order: torch refuses sums in any order."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def _common(x: Tensor) -> tuple[int, ...]:
    return x.shape[0], *x.shape[2:]
