"""Guard against Python names that a run-time loop or branch rebinds: the tracer sees the body once, PTX runs it often.

``x = x + 1`` inside a loop makes ``x`` name a new register; the next round still reads the old one. Comparing the
user's local names before and after the body finds it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from warpwright.lang.context import current, is_user, misuse
from warpwright.lang.expr import Expr, is_number

__all__ = ["Names"]


class Names:
    """The user's local names at the start of a construct (``kind``, written at ``at``); `check` compares at its end."""

    def __init__(self, kind: str, at: str) -> None:
        self.kind, self.at = kind, at
        self.before = [(frame, _values(frame)) for frame in _user_frames()]

    def check(self) -> None:
        """KernelError if a name that held a value before now holds another run-time value."""
        for frame, before in self.before:
            now = _values(frame)
            for name, old in before.items():
                if name in now and _rebound(old, now[name]):
                    raise misuse(self._message(name, old, now[name]))

    def _message(self, name: str, old: Any, new: Any) -> str:
        type = new.type if isinstance(new, Expr) else old.type
        was = old if isinstance(old, Expr) else f"the Python number {old!r}"
        article = "an" if self.kind[0] in "EI" else "a"
        root = name.split("[")[0]
        return (
            f"{name} was {was} before {article} {self.kind} ({self.at}) and is rebound inside it, "
            f"which PTX does not see; write {name} = var({type.name}, …) before it and {name}.set(…) or {name} += … "
            f"inside, or choose another name than {root}"
        )


def _user_frames() -> Iterator[FrameType]:
    """The user's frames from the innermost to the kernel function."""
    root = current().frame
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame is not root:
        if is_user(frame):
            yield frame
        frame = frame.f_back


def _values(frame: FrameType) -> dict[str, Any]:
    """Local names of a frame that hold run-time values or numbers, with the elements of lists as ``name[i]``."""
    found = {}
    for name, value in frame.f_locals.items():
        if isinstance(value, list):
            found.update({f"{name}[{i}]": item for i, item in enumerate(value) if _tracked(item)})
        elif _tracked(value):
            found[name] = value
    return found


def _tracked(value: Any) -> bool:
    return isinstance(value, Expr) or is_number(value)


def _rebound(old: Any, new: Any) -> bool:
    """A live register replaced by anything, or a number replaced by a register (that is no loop counter)."""
    if old is new:
        return False
    if isinstance(old, Expr):
        return old.scope.open and not (isinstance(new, Expr) and new.reg == old.reg and new.negated == old.negated)
    return isinstance(new, Expr)
