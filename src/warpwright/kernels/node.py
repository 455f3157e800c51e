"""Calls of a kernel that runs on all ranks of a node, again and again with the same buffers.

A call begins on a rank when the call before has ended there, as launches of one stream do. Ranks begin and end it at
different times: a rank sends nothing to another before that one has begun the same call, and so has read what the call
before sent it. Calls are numbered on the GPU, so that a captured launch can be repeated: ``calls[0]`` is the number of
the last call that has ended on this rank, which the last CTA stores, and ``calls[1]`` counts the CTAs of a call. A flag
that holds the number of the call which set it is never set back.
"""

from __future__ import annotations

from warpwright.lang import Break, Expr, Global, Peers, Pointer, atom, ld, loop, nctaid, st, u32

__all__ = ["await_flag", "is_last", "signal_begin"]


def signal_begin(begun: Peers[u32], call: Expr) -> None:
    """Tell all other ranks that this one has begun ``call``: from now on they may write to its buffers."""
    for step in loop(1, begun.ranks):
        st(begun[(begun.rank + step) % begun.ranks] + begun.rank, call, sem="release", scope="sys")


def await_flag(flag: Pointer[u32], value: Expr) -> None:
    """Wait until another rank has set a flag of this rank to ``value``: its writes before that are visible."""
    for _ in loop():
        Break(when=ld(flag, sem="acquire", scope="sys") == value)


def is_last(calls: Global[u32]) -> Expr:
    """Whether this CTA is the last one to get here (pred): all CTAs have ended what they do before it.

    Issued by one thread of each CTA, once.
    """
    last = nctaid.x - 1
    ended: Expr = atom.inc(calls + 1, last, sem="acq_rel", scope="gpu") == last
    return ended
