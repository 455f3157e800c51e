"""The modules of the last texts: of repeated launches only the first parses."""

from __future__ import annotations

import functools

from .check import load_module
from .excerpt import excerpt, needed_by, outline
from .nodes import Module

__all__ = ["load_kernel", "load_once", "load_outline"]


@functools.lru_cache(maxsize=64)
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


def load_outline(text: str, source: str = "<ptx>") -> Module:
    """Returns the module of a text of several kernels with empty bodies, of one kernel whole; as `load_once` does."""
    return load_once(outline(text), source)


@functools.lru_cache(maxsize=64)
def load_kernel(text: str, entry: str, source: str = "<ptx>") -> Module:
    """Returns the module with the bodies that a kernel of a text needs and with the other bodies empty; as `load_once`
    does."""
    return load_once(excerpt(text, needed_by(text, load_outline(text, source), entry)), source)
