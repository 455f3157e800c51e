"""Accesses of one memory by their bytes: which of them overlap, and which pairs must be ordered.

All accesses of a launch are laid out together and split where one begins or ends, so that each piece has the list of
accesses that touch it, in the order of the run. Order is transitive, so few pairs are enough: a write stands for all
accesses before it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["meeting", "pairs", "pieces"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def meeting(low: Ints, high: Ints, write: Bools, kind: Ints) -> Ints:
    """Returns the accesses that share a byte with another one of which one is a write; from low to high. Accesses of
    one ``kind`` do not race with one another, unless it is 0."""
    order = np.argsort(low, kind="stable")
    first, last = low[order], high[order]
    reach = np.maximum.accumulate(last)
    apart = np.empty(len(order), np.bool_)  # nothing before this one reaches into it
    apart[:1], apart[1:] = True, first[1:] >= reach[:-1]
    heap = np.cumsum(apart) - 1
    sizes = np.bincount(heap)
    written = np.bincount(heap, write[order], len(sizes)) > 0
    starts = np.flatnonzero(apart)
    least, most = (each.reduceat(kind[order], starts) if len(starts) else sizes for each in (np.minimum, np.maximum))
    found: Ints = order[(written & (sizes > 1) & ((least != most) | (least == 0)))[heap]]
    return found


def pieces(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Splits bytes where an access begins or ends. Returns, for each piece of each access, the piece and the access."""
    bounds = np.sort(np.concatenate([low, high]))  # np.unique takes ten times as long
    bounds = bounds[np.diff(bounds, prepend=-1) > 0]
    start, end = np.searchsorted(bounds, low), np.searchsorted(bounds, high)
    counts = end - start
    access = np.repeat(np.arange(len(low)), counts)
    inside = np.arange(len(access)) - np.repeat(np.cumsum(counts) - counts, counts)
    return start[access] + inside, access


def pairs(piece: Ints, access: Ints, time: Ints, agent: Ints, write: Bools, strong: Ints) -> tuple[Ints, Ints]:
    """Returns pairs (earlier, later) of accesses that race unless they are ordered, or both strong.

    ``piece`` and ``access`` are those of `pieces`; the others are of the accesses. ``strong``: 0 for plain accesses;
    those of one number do not race with one another, and where writes of several overlap, all but one count as plain.
    Of the accesses of one agent between two accesses of the other kind by others, the first and the last stand for all.
    """
    piece, access = _contested(piece, access, agent, write)
    order = np.lexsort((access, time[access], piece))
    piece, access = piece[order], access[order]
    soft = _strong(piece, strong[access], write[access])
    plain = write[access] & ~soft
    epoch = np.cumsum(plain) + _numbers(piece)  # from one plain write, or the piece's begin, to the next
    found = [_around(piece, access, plain), _among(epoch, access, agent, write[access] & soft, ~write[access] & ~soft)]
    earlier, later = (np.concatenate(part) for part in zip(*found, strict=True))
    other = agent[earlier] != agent[later]
    packed = np.unique(earlier[other] << 32 | later[other])
    return packed >> 32, packed & 0xFFFF_FFFF


def _strong(piece: Ints, strong: Ints, write: Bools) -> Bools:
    """Returns which entries are strong, of one kind in each piece: a kind that is written."""
    most = np.zeros(int(piece.max(initial=-1)) + 1, np.int64)
    np.maximum.at(most, piece, np.where(write, strong, 0))
    found: Bools = (strong > 0) & (strong == most[piece])
    return found


def _contested(piece: Ints, access: Ints, agent: Ints, write: Bools) -> tuple[Ints, Ints]:
    """Returns the entries in pieces that are written to and that more than one agent touches."""
    count = int(piece.max(initial=-1)) + 1
    written = np.zeros(count, np.bool_)
    written[piece[write[access]]] = True
    someone = np.zeros(count, np.int64)
    someone[piece] = agent[access]
    shared = np.zeros(count, np.bool_)
    shared[piece[agent[access] != someone[piece]]] = True
    contested = (written & shared)[piece]
    return piece[contested], access[contested]


def _numbers(piece: Ints) -> Ints:
    """Returns the pieces, which are in order, counted from 0."""
    found: Ints = np.cumsum(np.diff(piece, prepend=piece[:1]) != 0)
    return found


def _around(piece: Ints, access: Ints, plain: Bools) -> tuple[Ints, Ints]:
    """Returns pairs of each access and its neighbours in time among the plain writes of the same piece of memory."""
    at = np.arange(len(access))
    before = np.maximum.accumulate(np.where(plain, at, -1))
    before = np.concatenate([[-1], before[:-1]])[: len(at)]
    after = np.minimum.accumulate(np.where(plain, at, len(at))[::-1])[::-1]
    after = np.concatenate([after[1:], [len(at)]])[: len(at)]
    has = (before >= 0) & (piece[np.maximum(before, 0)] == piece)
    will = (after < len(at)) & (piece[np.minimum(after, len(at) - 1)] == piece)
    return (
        np.concatenate([access[before[has]], access[at[will]]]),
        np.concatenate([access[at[has]], access[after[will]]]),
    )


def _among(epoch: Ints, access: Ints, agent: Ints, soft: Bools, reads: Bools) -> tuple[Ints, Ints]:
    """Returns pairs of strong writes and plain reads between two plain writes."""
    both = np.bincount(epoch, soft) * np.bincount(epoch, reads) > 0
    here = np.flatnonzero((soft | reads) & both[epoch]) if len(epoch) else epoch
    turns = np.where(soft[here], np.cumsum(reads[here]), np.cumsum(soft[here]))
    here = here[_ends(epoch[here], agent[access[here]], soft[here], turns)]
    left, right = [here[:0]], [here[:0]]
    for group in np.split(here, np.flatnonzero(np.diff(epoch[here])) + 1):
        writes, others = group[soft[group]], group[~soft[group]]
        if len(writes) and len(others):
            one, two = np.repeat(writes, len(others)), np.tile(others, len(writes))
            left.append(np.minimum(one, two))
            right.append(np.maximum(one, two))
    return access[np.concatenate(left)], access[np.concatenate(right)]


def _ends(*keys: Ints | Bools) -> Bools:
    """Returns which entries, in order of time, are the first or the last with their keys."""
    order = np.lexsort(keys)
    table = np.stack([key[order] for key in keys])
    new = np.ones(len(order) + 1, np.bool_)
    new[1:-1] = np.any(table[:, 1:] != table[:, :-1], axis=0)
    chosen = np.zeros(len(order), np.bool_)
    chosen[order] = new[:-1] | new[1:]
    return chosen
