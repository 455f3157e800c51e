"""The check that no run-time loop or branch rebinds a Python name.

``x = x + 1`` inside a loop binds ``x`` to a new register, but the next iteration in PTX still reads the old one.
`Names` compares the user's local names before and after the body.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from warpwright.lang.context import is_user, misuse
from warpwright.lang.expr import Expr, is_number
from warpwright.lang.trace import current

__all__ = ["Names"]


class Names:
    """The user's local names before a construct of ``kind`` at source line ``at``; `check` compares them at its end."""

    def __init__(self, kind: str, at: str) -> None:
        self.kind, self.at = kind, at
        self.before = [(frame, _values(frame)) for frame in _user_frames()]

    def check(self) -> None:
        """Raise KernelError if a name has another run-time value than before the construct."""
        for frame, before in self.before:
            now = _values(frame)
            for name, old in before.items():
                if name in now and _is_rebound(old, now[name]):
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
    """Yields the user's frames from the innermost to the kernel function."""
    root = current().frame
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame is not root:
        if is_user(frame):
            yield frame
        frame = frame.f_back


def _values(frame: FrameType) -> dict[str, Any]:
    """Returns a frame's local names of run-time values and numbers, elements of lists as ``name[i]``."""
    found = {}
    for name, value in frame.f_locals.items():
        if isinstance(value, list):
            found.update({f"{name}[{i}]": item for i, item in enumerate(value) if _is_tracked(item)})
        elif _is_tracked(value):
            found[name] = value
    return found


def _is_tracked(value: Any) -> bool:
    return isinstance(value, Expr) or is_number(value)


def _is_rebound(old: Any, new: Any) -> bool:
    """Whether a readable register was replaced, or a number was replaced by a register."""
    if old is new:
        return False
    if isinstance(old, Expr):
        return old.scope.open and not (isinstance(new, Expr) and new.reg == old.reg and new.negated == old.negated)
    return isinstance(new, Expr)
