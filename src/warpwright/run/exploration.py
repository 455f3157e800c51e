"""How long `check` runs further schedules: until all have run, until they show nothing new, or for a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from warpwright import display

__all__ = ["SECONDS", "Exploration"]

SECONDS = 60.0  # after which no further schedule starts
_FRUITLESS = 100  # schedules in a row without a new order of synchronisation


@dataclass
class Exploration:
    """The schedules of ``seeds``, of which the first always runs, and runs last: arrays then have its results.

    ``orders``: of synchronisation, that were seen; ``fruitless``: schedules since the last new one; ``choice``: whether
    schedules can differ; ``unexplored``: why not all schedules ran.
    """

    seeds: Sequence[int]
    orders: set[int] = field(default_factory=set)
    fruitless: int = 0
    choice: bool = True
    unexplored: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[int]:
        """Yields the seeds of the schedules to run."""
        end = time.monotonic() + SECONDS
        with display.progress("schedules", len(self.seeds)) as show:
            for ran, seed in enumerate(self.seeds[1:]):
                show(ran)
                if reason := self._reason(ran, time.monotonic() > end):
                    self.unexplored = (reason,)
                    break
                yield seed
        yield self.seeds[0]

    def _reason(self, ran: int, late: bool) -> str:
        """Returns why no further schedule runs, "" if one does."""
        asked = f"{ran + 1:,} of {len(self.seeds):,} schedules ran"
        if ran and not self.choice:
            return f"{asked}: this launch has one order of synchronisation, in every schedule"
        if self.fruitless >= _FRUITLESS:
            return (
                f"{asked}: the last {_FRUITLESS} had no new order of synchronisation; further ones may still have one"
            )
        rest = f"to run the others: explore={len(self.seeds) - ran - 1}, seed={self.seeds[ran + 1]}"
        return f"{asked} in {SECONDS:.0f} s, the time of an exploration; {rest}" if late else ""

    def note(self, order: int, choice: bool) -> None:
        """A schedule has ended; ``order``: of its synchronisation."""
        self.fruitless = 0 if order not in self.orders else self.fruitless + 1
        self.orders.add(order)
        self.choice = choice
