"""What the ranks of a node wait for in a deadlock: the flag that each of them polls, its value, and who wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.memory.globals import Globals
from warpwright.vgpu.checks.memory.spans import Touches
from warpwright.vgpu.machine.waits import number_text
from warpwright.vgpu.program.program import results

__all__ = ["rank_lines"]

Live = NDArray[np.uint32]


class _Poll(NamedTuple):
    """A rank polls the bytes from ``low`` to ``high`` (host addresses) by an instruction."""

    rank: int
    inst: int
    low: int
    high: int


def rank_lines(globals: Globals, hung: Iterable[tuple[int, Live]]) -> Iterator[str]:
    """Yields what each rank waits for; ``hung``: the clusters that can no longer run, and the live lanes of their
    warps."""
    strong = globals.addresses.strong_accesses()
    strong = strong.select(np.lexsort((strong.row, strong.turn)))
    ctas: dict[_Poll, list[int]] = {}
    for number, live in hung:
        rank, cluster = divmod(number, globals.launch.clusters_a_rank)
        for poll in dict.fromkeys(_polls(globals, strong, number, rank, live)):
            ctas.setdefault(poll, []).append(cluster)
    for poll, clusters in sorted(ctas.items()):
        where, what = _line(globals, poll.inst), _flag_text(globals, strong, poll)
        yield f"rank {poll.rank}, cluster {number_text(clusters)}, waits at {where} for {what}"


def _line(globals: Globals, inst: int) -> str:
    """Returns ``"k.py:12"``; the page of a deadlock has no room for folders."""
    return globals.names.places[inst].rpartition("/")[2]


def _polls(globals: Globals, strong: Touches, number: int, rank: int, live: Live) -> Iterator[_Poll]:
    """Yields the last strong accesses of the live lanes of a cluster, where those are loads."""
    own = strong.select(strong.cluster == number)
    last = {lane: at for at, lane in enumerate(own.lane.tolist())}
    for lane, at in last.items():
        inst = int(own.inst[at])
        if int(live[lane // 32]) >> lane % 32 & 1 and results(globals.launch.insts[inst]):
            yield _Poll(rank, inst, int(own.low[at]), int(own.high[at]))


def _flag_text(globals: Globals, strong: Touches, poll: _Poll) -> str:
    """Returns ``"byte 4 of flags of rank 1, which is 0 and was last written by rank 0 at k.py:12"``."""
    launch = globals.launch
    address = int(globals.addresses.allocations.virtual_of(np.array([poll.low]))[0])
    value = int.from_bytes(launch.memory.view(address)[: poll.high - poll.low].tobytes(), "little")
    writes = strong.select(globals.addresses.writes[strong.inst] & (strong.low == poll.low))
    wrote = "no strong store has written"
    if len(writes.low):
        rank = int(writes.cluster[-1]) // launch.clusters_a_rank
        wrote = f"was last written by rank {rank} at {_line(globals, int(writes.inst[-1]))}"
    which = f"which is {value} and {wrote}" if len(writes.low) else f"which is {value} and which {wrote}"
    return f"{launch.owner(address)}, {which}"
