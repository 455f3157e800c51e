"""The modules of the last texts: of repeated launches only the first parses."""

from __future__ import annotations

import functools

from .check import load_module
from .nodes import Module

__all__ = ["load_once"]


@functools.lru_cache(maxsize=32)
def _modules(text: str, source: str) -> list[Module]:
    return []


def load_once(text: str, source: str = "<ptx>") -> Module:
    """Returns the module of a text of a file, the same one for later calls and other threads: devices compile it once.

    Raises PtxSyntaxError, which names the file ``source``, for text that ptxas would refuse.
    """
    known = _modules(text, source)
    if not known:
        known.append(load_module(text, source=source))
    return known[0]
