"""The modules of the last texts: of repeated launches only the first parses."""

from __future__ import annotations

import functools

from .nodes import Module
from .parser import parse

__all__ = ["parse_once"]


@functools.lru_cache(maxsize=32)
def _modules(text: str) -> list[Module]:
    return []


def parse_once(text: str) -> Module:
    """Returns the module of a text, the same one for later calls and for other threads: devices compile it once."""
    known = _modules(text)
    if not known:
        known.append(parse(text))
    return known[0]
