"""Speed of gradients with sums in a fixed order over that in any order, by a model of turns: ``python
bench/simulate_turns.py``.

`ww.profile` counts a poll once, however long a CTA waits for another one. Here CTAs start in the order of their numbers
on 132 SMs, a tile takes ``--step`` µs, and a CTA may add to a tile ``--handover`` µs after the CTA of the neighbouring
block began to add to it. The columns are heads that take turns: one, and as many as the plan says.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90.backward_plan import in_order, plan

TOKENS, COLUMNS, LENGTHS = 16384, 2048, (512, 1024, 2048, 4096, 8192, 16384)
AROUND = 5.0  # µs of a CTA before its first tile and after its last one
OWN = 0.8  # of a handover: after it the same CTA may add to its next tile


@dataclass(frozen=True)
class Model:
    """Heads of ``blocks`` CTAs, ``tiles`` tiles of queries, and the tiles of queries that a block of keys skips for
    each block before it. If there are any, queries ascend in a fixed order, and the last block of a head comes
    first."""

    heads: int
    blocks: int
    tiles: int
    skipped: int
    step: float
    sms: int

    def order(self, width: int, reverse: bool) -> Iterator[tuple[int, int]]:
        """Yields the head and the block of each CTA."""
        for first in range(0, self.heads, width):
            for block in range(self.blocks)[:: -1 if reverse else 1]:
                yield from ((head, block) for head in range(first, min(first + width, self.heads)))

    def time(self, width: int, handover: float) -> float:
        """Returns the time of a launch in µs; a handover of 0 is no order."""
        free, before = [0.0] * self.sms, dict[int, list[float]]()
        for head, block in self.order(width, bool(self.skipped and handover)):
            start = heapq.heappop(free) + AROUND
            added, end = self.adds(start, before.get(head, []), self.tiles - self.skipped * block, handover)
            before[head] = added
            heapq.heappush(free, end)
        return max(free)

    def adds(self, start: float, before: list[float], count: int, handover: float) -> tuple[list[float], float]:
        """Returns when a CTA adds to each of its tiles, in the order of its walk, and when it ends."""
        computed, added = start, list[float]()
        for number in range(count):
            computed = max(computed + self.step, added[-1] if added else 0.0)
            shared = before and number >= self.skipped  # with the neighbour
            turn = before[number - self.skipped] + handover if handover and shared else 0.0
            added.append(max(computed, turn, added[-1] + OWN * handover if added else 0.0))
        return added, added[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--step", type=float, default=2.3, help="µs of a tile")
    parser.add_argument("--handover", type=float, default=2.0, help="µs from the adds of one CTA to those of the next")
    options = parser.parse_args()
    for causal in (False, True):
        for length in LENGTHS:
            heads = COLUMNS // 128
            problem = Problem(TOKENS // length, heads, heads, length, length, 128, causal=causal)
            config = in_order(problem)
            queries, keys = config.tile
            (tiles, *_), (blocks, *_), _ = plan(problem, config=config).grids
            skipped = keys // queries if causal else 0
            model = Model(problem.batch * heads, blocks, tiles, skipped, options.step, config.resident)
            width = int(plan(problem, config=config).scalars["width"])
            any_order = model.time(1, 0.0)
            ratios = [f"{number}: {any_order / model.time(number, options.handover):.3f}" for number in (1, width)]
            print(f"{length:6} {'causal' if causal else '':7}", *ratios, sep="  ", flush=True)


if __name__ == "__main__":
    main()
