"""Ranks agree on a call before any of them waits on the GPU: descriptions are exchanged through the group's store."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from warpwright.errors import UsageError
from warpwright.kernels.node import Lack, lack_of

__all__ = ["LIMIT_VARIABLE", "Agreement", "DistributedTimeout", "late_rank", "time_limit"]

LIMIT_VARIABLE = "WARPWRIGHT_TIME_LIMIT"  # seconds that a rank waits for the others
_LACKS = {
    Lack.BEGIN: "made no such call",
    Lack.SEND: "has not sent its part",
    Lack.STORE: "has not stored its part of the result",
}


class DistributedTimeout(UsageError):
    """A rank waited for others until the time limit."""


def late_rank(rank: int, limit: float, text: str, report: int) -> DistributedTimeout:
    """Returns the error of a kernel of ``rank`` that has stored ``report`` (`warpwright.kernels.node`) in the call
    ``text``."""
    lack, missing = lack_of(report)
    return DistributedTimeout(
        f"rank {rank} has waited {limit:g} s in {text}, and rank {missing} {_LACKS[lack]}; expected the same calls of "
        f"all ranks, in one order; look for an error of rank {missing}, and start all ranks again: the GPU of rank "
        f"{rank} has stopped; {LIMIT_VARIABLE} or the timeout of the group sets the limit"
    )


def time_limit(timeout: float) -> float:
    """Returns the seconds that a rank waits for the others: the variable WARPWRIGHT_TIME_LIMIT, or ``timeout``, that of
    the group.

    Raises UsageError for a variable that is no positive number.
    """
    given = os.environ.get(LIMIT_VARIABLE, str(timeout))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UsageError(f"given {LIMIT_VARIABLE}={given!r}; expected a number of seconds above 0, such as 120")
    return seconds


class Agreement:
    """The calls that the ranks of a group agree on. ``store`` is a store of this group alone; ``limit``: the seconds
    that a rank waits for the others.

    The first call of a description is exchanged with all ranks; later ones cost a look-up. A kernel compares the
    digest of every call (`warpwright.kernels.barrier`).
    """

    def __init__(self, store: Any, rank: int, ranks: int, limit: float) -> None:
        self.store, self.rank, self.ranks, self.limit = store, rank, ranks, limit
        self.exchanges, self.digests = 0, dict[str, int]()

    def digest(self, text: str) -> int:
        """Returns the digest of a description that all ranks share, 32 bits.

        Raises UsageError for ranks with other descriptions, and DistributedTimeout with the ranks that have made no
        such call within the time limit.
        """
        found = self.digests.get(text)
        if found is None:
            given = self.exchange(text)
            if len(set(given)) > 1:
                raise UsageError(_disagreement(given))
            found = self.digests[text] = zlib.crc32(text.encode())
        return found

    def text(self, digest: int) -> str:
        """Returns the description with a digest."""
        return next((text for text, found in list(self.digests.items()) if found == digest), "a call")

    def exchange(self, text: str) -> Sequence[str]:
        """Returns the texts of all ranks, that of rank 0 first, once every rank has called this."""
        number = self.exchanges
        self.exchanges += 1
        keys = [f"{number}/{rank}" for rank in range(self.ranks)]
        self.store.set(keys[self.rank], text)
        try:
            self.store.wait(keys, timedelta(seconds=self.limit))
        except Exception as error:  # of torch's stores each raises its own
            missing = [str(rank) for rank, key in enumerate(keys) if not self.store.check([key])]
            raise DistributedTimeout(
                f"rank {self.rank} has waited {self.limit:g} s in {text}, and rank{'s' * (len(missing) > 1)} "
                f"{', '.join(missing) or '(none)'} made no such call; expected the same calls of all ranks, in one "
                f"order; {LIMIT_VARIABLE} or the timeout of the group sets the limit"
            ) from error
        return [self.store.get(key).decode() for key in keys]


def _disagreement(given: Sequence[str]) -> str:
    calls = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(given))
    return f"the ranks of a group make different calls; expected one call, with one shape and dtype; {calls}"
