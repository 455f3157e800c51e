"""Private interfaces of other libraries that save host time, each with a public fallback.

``os.environ._data`` saves 1 µs a call: the public ``get`` encodes the name and raises inside where it is unset. The
class of an operator packet of torch, replaced, saves 3 µs a call: the dispatcher. ``WARPWRIGHT_HOOKS=0``, read at
import, turns both off; so does a version of Python or torch that lacks them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

__all__ = ["ENABLED", "environment_reader", "replace_class"]

ENABLED = os.environ.get("WARPWRIGHT_HOOKS") != "0"


def environment_reader(name: str, enabled: bool = ENABLED) -> Callable[[], Any]:
    """Returns a function that returns the value of an environment variable, encoded or not; None where it is unset."""
    data = getattr(os.environ, "_data", None) if enabled else None
    if isinstance(data, dict):
        return functools.partial(data.get, os.environ.encodekey(name))
    return functools.partial(os.environ.get, name)


def replace_class(value: Any, kind: type, enabled: bool = ENABLED) -> bool:
    """Make ``value`` an instance of ``kind``, a subclass of its class; returns whether that was possible."""
    try:
        if enabled:
            value.__class__ = kind
    except TypeError:
        return False
    return enabled
