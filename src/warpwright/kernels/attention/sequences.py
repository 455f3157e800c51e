"""Packed sequences in a kernel: which sequence a tile belongs to, and its rows."""

from __future__ import annotations

from typing import Any

from warpwright.lang import Break, Expr, Global, loop, max, min, popc, u32, var, vote, warp

__all__ = ["find_sequence", "rows_of"]

LANES = 32


def find_sequence(starts: Global[Any], sequences: Expr, total: Expr, rows: int, number: Expr) -> Any:
    """Returns the last sequence whose tiles begin at ``number`` or before.

    Sequence i has the numbers from ``starts[i] // rows + i`` on. That is at least one number for each of its tiles,
    and the numbers increase with i, so that every lane of the warp compares one sequence at a time.
    """
    found, stop = var(u32, 0), var(u32, sequences)
    for _ in loop():
        step = (stop - found + (LANES - 1)) // LANES
        probe = found + warp.lane * step
        begin = min(starts[min(probe, sequences)], total) // rows + probe
        before = popc(vote.ballot((probe < stop) & (begin <= number)))
        found += (max(before, 1) - 1) * step
        stop.set(min(found + step, stop))
        Break(when=step <= 1)
    return found


def rows_of(starts: Global[Any], index: Any, total: Expr) -> tuple[Any, Any]:
    """Returns the first row of a sequence and the row after its last one, both within the array whatever ``starts``
    contains."""
    first = min(starts[index], total)
    return first, max(min(starts[index + 1], total), first)
