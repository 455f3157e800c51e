"""A workspace in memory of the host: each rank is a thread, whose streams run at once, in order of their calls."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from warpwright.distributed.context_problem import ContextProblem
from warpwright.distributed.problem import Problem
from warpwright.distributed.watch import Watch
from warpwright.distributed.workspace import FLAG_BYTES, Workspace
from warpwright.targets import DEVICES

__all__ = ["HostWorkspace", "run_ranks", "workspaces"]

SECONDS = 5.0


class HostWorkspace(Workspace):
    """The workspace of one rank; ``ranks`` share ``entrance``."""

    def __init__(self, rank: int, ranks: int, entrance: threading.Barrier, nbytes: int) -> None:
        self.rank, self.ranks, self.entrance = rank, ranks, entrance
        self.gpu: Any = SimpleNamespace(spec=DEVICES["h200"])
        self.bound, self.problems = {}, list[Problem | ContextProblem]()
        self.sends, self.receives, *self.side = range(1, 7)
        self.data = torch.full((nbytes,), 0xFF, dtype=torch.uint8)
        self.words = torch.zeros(256, dtype=torch.int32)
        self.senders = dict[tuple[int, int], int]()
        self.limit = {"report": 0x3000, "limit_ns": 5 * 10**9}
        self.host_words = torch.zeros(2, dtype=torch.int64)
        words = self.host_words.data_ptr(), self.host_words.data_ptr() + 8
        self.watch = Watch(rank, SECONDS, words, str, lambda count: self.words[:count].tolist(), lambda report: None)

    def digest(self, problem: Problem | ContextProblem) -> int:
        self.problems.append(problem)
        return 0

    def reserve(self, nbytes: int) -> None:
        assert nbytes <= self.data.numel()

    def start(self, digest: int, flags: int, stream: int, beside: bool = False) -> None:
        self.watch.begin(0)
        self.words[:flags] = 0
        self.entrance.wait(SECONDS)

    def ready(self, stream: int) -> None:
        """The barrier has ended: streams run at once."""

    def stream(self) -> int:  # type: ignore[override]
        return 0

    def order(self, before: int, after: int, event: int) -> None:
        assert before != after

    def record(self, event: int, stream: int) -> None:
        """A stream has done its work: streams run at once."""

    def follow(self, event: int, stream: int) -> None:
        """The work has been done: streams run at once."""

    def beside(self, number: int) -> AbstractContextManager[None]:
        return nullcontext()

    def receiving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(target, source, nbytes)

    def copy_rows(self, target: tuple[int, int], source: tuple[int, int], nbytes: int, rows: int, stream: int) -> None:
        assert rows == 1 or min(target[1], source[1]) >= nbytes
        for row in range(rows):
            self.copy(target[0] + row * target[1], source[0] + row * source[1], nbytes, stream)

    def signal(self, rank: int, flag: int, value: int, stream: int) -> None:
        self.senders[rank, flag] = self.rank
        ctypes.c_uint32.from_address(self.flags[rank] + FLAG_BYTES * flag).value = value

    def wait(self, flag: int, value: int, source: int, stream: int) -> None:
        self.watch.expect(flag, value, source)
        last = time.monotonic() + SECONDS
        while int(self.words[flag]) < value:
            assert time.monotonic() < last, f"rank {self.rank}: flag {flag} has not come"
            time.sleep(1e-4)
        assert self.senders[self.rank, flag] == source


def workspaces(ranks: int, nbytes: int) -> list[HostWorkspace]:
    """Returns the workspaces of all ranks, each with the addresses of all."""
    entrance = threading.Barrier(ranks)
    found = [HostWorkspace(rank, ranks, entrance, nbytes) for rank in range(ranks)]
    for each in found:
        each.pointers = tuple(other.data.data_ptr() for other in found)
        each.flags = tuple(other.words.data_ptr() for other in found)
        each.begun, each.calls, each.senders = each.flags, 0, found[0].senders
    return found


def run_ranks(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Returns the results of the calls, one of each rank, which run at once."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
