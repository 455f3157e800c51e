"""A barrier of all ranks of a node, as one CTA on each of them."""

from __future__ import annotations

from warpwright.lang import Break, Global, If, Peers, bar, globaltimer, kernel, ld, loop, st, tid, u32, u64
from warpwright.lang.ops.debug import assert_

__all__ = ["THREADS", "barrier"]

THREADS = 128
MISSING = "the rank of this thread's number has not come to the barrier within the time limit"
DISAGREED = "the rank of this thread's number makes another call, or has other shapes"


@kernel("sm_90", threads=THREADS)
def barrier(
    marks: Peers[u64],
    epoch: Global[u32],
    counters: Global[u32],
    count: u32,
    digest: u32,
    limit_ns: u64,
    *,
    limited: bool = True,
) -> None:
    """Set ``count`` words of ``counters`` to 0, then wait until all ranks have come here.

    ``marks``: on every rank a word for each rank, ``epoch``: on this rank the number of barriers so far, both 0 before
    the first barrier. A mark is the epoch, and above it the ``digest`` of the caller's work, the same on all ranks.
    Thread r waits for rank r. After ``limit_ns`` nanoseconds, and for another digest, it stops the launch.
    """
    for number in loop(tid.x, count, THREADS):
        counters[number] = 0
    now = epoch[0] + 1
    bar.sync()  # orders the zeros of all threads before the marks
    with If(tid.x == 0):
        epoch[0] = now
    with If((tid.x < marks.ranks) & (tid.x != marks.rank)):
        mark = digest.to(u64) << 32 | now.to(u64)
        st(marks[tid.x] + marks.rank, mark, sem="release", scope="sys")
        start = globaltimer()
        for _ in loop():
            found = ld(marks[marks.rank] + tid.x, sem="acquire", scope="sys")
            ahead = found.to(u32) - now
            with If(ahead == 0):
                assert_((found >> 32).to(u32) == digest, DISAGREED)
            Break(when=ahead < 1 << 31)
            if limited:
                assert_(globaltimer() - start < limit_ns, MISSING)
