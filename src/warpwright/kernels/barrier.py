"""A barrier of all ranks of a node, as one CTA on each of them, and the kernel that ends the work of a rank."""

from __future__ import annotations

from warpwright.kernels.node import Lack, Limit, store_and_trap, trap_when_late
from warpwright.lang import Break, Global, If, Peers, bar, kernel, ld, loop, st, tid, u32, u64, var
from warpwright.lang.ops.debug import assert_

__all__ = ["THREADS", "barrier", "stop"]

THREADS = 128
DISAGREED = "the rank of this thread's number makes another call, or has other shapes"


@kernel("sm_90", threads=THREADS)
def barrier(
    marks: Peers[u64],
    epoch: Global[u32],
    counters: Global[u32],
    count: u32,
    digest: u32,
    running: Global[u64],
    report: Global[u32],
    limit_ns: u64,
) -> None:
    """Set ``count`` words of ``counters`` to 0, then wait until all ranks have come here.

    ``marks``: on every rank a word for each rank, ``epoch``: on this rank the number of barriers so far, both 0 before
    the first barrier. A mark is the epoch, and above it the ``digest`` of the caller's work, the same on all ranks.
    ``running``, a word that the host can read, gets the mark first: it tells which call the GPU is in. Thread r waits
    for rank r. For another digest it stops the launch; ``report`` and ``limit_ns`` are the `Limit` of its wait.
    """
    now = epoch[0] + 1
    mark = digest.to(u64) << 32 | now.to(u64)
    with If(tid.x == 0):
        st(running, mark, sem="relaxed", scope="sys")
    for number in loop(tid.x, count, THREADS):
        counters[number] = 0
    bar.sync()  # orders the zeros of all threads before the marks
    with If(tid.x == 0):
        epoch[0] = now
    with If((tid.x < marks.ranks) & (tid.x != marks.rank)):
        st(marks[tid.x] + marks.rank, mark, sem="release", scope="sys")
        deadline = var(u64, 0)
        for _ in loop():
            found = ld(marks[marks.rank] + tid.x, sem="acquire", scope="sys")
            ahead = found.to(u32) - now
            with If(ahead == 0):
                assert_((found >> 32).to(u32) == digest, DISAGREED)
            Break(when=ahead < 1 << 31)
            trap_when_late(deadline, tid.x, Lack.BEGIN, Limit(report, limit_ns))


@kernel("sm_90", threads=32)
def stop(request: Global[u32], report: Global[u32]) -> None:
    """Store the word ``request`` to ``report`` and trap if it is not 0; both are words that the host can read.

    So a host that waits no longer for another rank ends all work of its GPU, streams that wait for a flag too.
    """
    with If((tid.x == 0) & (request[0] != 0)):
        store_and_trap(report, request[0])
