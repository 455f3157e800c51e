"""One thread for NumPy's matrix library while launches run: the clusters have the cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread"]


class _Limit:
    """The limit of the process, which launches of several threads share: the first sets it, the last restores the
    number of threads that was there before."""

    def __init__(self) -> None:
        self.forget_launches()
        self.libraries: ThreadpoolController | None = None  # to find them takes a millisecond
        self.limits: Any = None

    def forget_launches(self) -> None:
        """Count no launch, as in a forked process, where those of other threads do not run."""
        self.lock = threading.Lock()
        self.launches = 0

    def enter(self) -> None:
        with self.lock:
            self.libraries = self.libraries or ThreadpoolController()
            if not self.launches:
                limits = self.libraries.limit(limits=1, user_api="blas")
                self.limits = self.limits or limits  # those of before a fork know the number to restore
            self.launches += 1

    def leave(self) -> None:
        with self.lock:
            self.launches -= 1
            if not self.launches and self.limits is not None:
                self.limits.restore_original_limits()
                self.limits = None


_LIMIT = _Limit()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LIMIT.forget_launches)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy multiply matrices with one thread inside the ``with`` block."""
    _LIMIT.enter()
    try:
        yield
    finally:
        _LIMIT.leave()
