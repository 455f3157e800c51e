"""Calls of a kernel that runs on all ranks of a node, again and again with the same buffers.

A call begins on a rank when the call before has ended there, as launches of one stream do. Ranks begin and end it at
different times: a rank sends nothing to another before that one has begun the same call, and so has read what the call
before sent it. Calls are numbered on the GPU, so that a captured launch can be repeated: ``calls[0]`` is the number of
the last call that has ended on this rank, which the last CTA stores, and ``calls[1]`` counts the CTAs of a call. A flag
that holds the number of the call which set it is never set back.

A wait for a rank that does not come ends: past its limit the kernel stores which rank is missing, and traps.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from warpwright.lang import (
    Break,
    Expr,
    Global,
    If,
    Peers,
    Pointer,
    Var,
    atom,
    fence,
    globaltimer,
    ld,
    loop,
    nctaid,
    st,
    trap,
    u32,
    u64,
    var,
)

__all__ = [
    "Lack",
    "Limit",
    "await_flag",
    "is_last",
    "lack_of",
    "report_of",
    "signal_begin",
    "store_and_trap",
    "trap_when_late",
]

_SHIFT = 8  # of a lack in a report; below it is the rank


class Lack(IntEnum):
    """What a rank that is waited for has not done."""

    BEGIN = 1
    SEND = 2
    STORE = 3


class Limit(NamedTuple):
    """How long a rank waits for another one: ``ns`` nanoseconds (u64), or 0 for any time. ``report`` is a word that
    the host can read after the kernel has trapped, 0 before."""

    report: Global[u32]
    ns: Expr


def report_of(lack: Lack, rank: Any) -> Any:
    """Returns the report of what a rank (int or u32) lacks; not 0."""
    return rank + (int(lack) << _SHIFT)


def lack_of(report: int) -> tuple[Lack, int]:
    """Returns what a report says: what is missing, and of which rank."""
    return Lack(report >> _SHIFT), report & (1 << _SHIFT) - 1


def signal_begin(begun: Peers[u32], call: Expr) -> None:
    """Tell all other ranks that this one has begun ``call``: from now on they may write to its buffers."""
    for step in loop(1, begun.ranks):
        st(begun[(begun.rank + step) % begun.ranks] + begun.rank, call, sem="release", scope="sys")


def await_flag(flag: Pointer[u32], value: Expr, source: Expr, lack: Lack, limit: Limit) -> None:
    """Wait until rank ``source`` has set a flag of this rank to ``value``: its writes before that are visible.

    The time is read only after a poll that failed. Past the limit the kernel traps, and the report says ``lack``.
    """
    deadline = var(u64, 0)
    for _ in loop():
        Break(when=ld(flag, sem="acquire", scope="sys") == value)
        trap_when_late(deadline, source, lack, limit)


def trap_when_late(deadline: Var, source: Expr, lack: Lack, limit: Limit) -> None:
    """Store what rank ``source`` lacks and end the kernel if a wait has lasted for its limit.

    Follows each poll that failed. ``deadline`` (u64) is a variable of the wait, 0 before the first poll.
    """
    with If(limit.ns != 0):
        now = globaltimer()
        with If(deadline == 0):
            deadline.set(now + limit.ns)
        with If(now >= deadline):
            store_and_trap(limit.report, report_of(lack, source))


def store_and_trap(report: Global[u32], value: Expr) -> None:
    """Store a report to a word of the host, and end the kernel."""
    st(report, value, sem="relaxed", scope="sys")
    fence.acq_rel("sys")  # the store has been performed before the trap ends all work of this GPU
    trap()


def is_last(calls: Global[u32]) -> Expr:
    """Whether this CTA is the last one to get here (pred): all CTAs have ended what they do before it.

    Issued by one thread of each CTA, once.
    """
    last = nctaid.x - 1
    ended: Expr = atom.inc(calls + 1, last, sem="acq_rel", scope="gpu") == last
    return ended
