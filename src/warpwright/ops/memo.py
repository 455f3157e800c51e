"""The memo of calls: which call on a GPU repeats an earlier one, so that only addresses are new.

Finding kernel, plan and launch takes 57 µs of host time for attention and some 300 µs for its gradients
(`python bench/host_time.py` beside an H200); a call from the memo skips all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

__all__ = ["MEMO", "Guard", "Memo"]

Guard = Callable[[Any], bool]  # whether an array differs from the one of an earlier call in no more than its address
Call = Callable[..., Any]

ENTRIES = 4096
VARIANTS = 8  # calls of one entry: equal shapes and options, other strides or dtypes


class Memo:
    """Bound calls by shapes and options; ``options`` begin with the operator's name."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[tuple[tuple[Guard, ...], Call], ...]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def get(self, arrays: Sequence[Any], options: tuple[Any, ...]) -> Call | None:
        """Returns the bound call for ``arrays`` and ``options``, or None if the memo has none."""
        try:
            variants = self._entries.get((arrays[0].shape, arrays[1].shape, len(arrays), options), ())
        except (AttributeError, RuntimeError, TypeError):  # no array, or a tensor whose shape is absent or symbolic
            return None
        for guards, call in variants:
            for guard, array in zip(guards, arrays):  # noqa: B905  # lengths agree; all() takes a microsecond more
                if not guard(array):
                    break
            else:
                return call
        return None

    def put(self, arrays: Sequence[Any], options: tuple[Any, ...], guards: tuple[Guard, ...], call: Call) -> None:
        """Store ``call`` for arrays that pass ``guards``, which ``arrays`` do."""
        if self.get(arrays, options) is not None:
            return
        if len(self._entries) >= ENTRIES:
            self.clear()
        key = arrays[0].shape, arrays[1].shape, len(arrays), options
        self._entries[key] = (*self._entries.get(key, ())[-VARIANTS + 1 :], (guards, call))

    def clear(self) -> None:
        """Remove every call."""
        self._entries.clear()


MEMO = Memo()  # of all operators
