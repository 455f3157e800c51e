"""Which source line an instruction stands for, by the ``.loc`` and ``.file`` of its module."""

from __future__ import annotations

import re

from warpwright.ptx import nodes

__all__ = ["Lines"]

Spot = tuple[int, int, int]  # file, row, column
_FILE = re.compile(r'(\d+)\s+"([^"]*)"')
_CALL = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")


class Lines:
    """``files`` by number; ``calls``: where the code at a spot was last inlined."""

    def __init__(self, module: nodes.Module) -> None:
        texts = [item.text for item in module.items if isinstance(item, nodes.Directive) and item.name == ".file"]
        self.files = {int(found[1]): found[2] for found in map(_FILE.match, texts) if found}
        self.calls: dict[Spot, Spot] = {}

    def at(self, loc: nodes.Loc) -> tuple[str, int] | None:
        """File and row, None for code that has none. Of code that was inlined it is the innermost line in the kernel's
        own file: a function of that file is shown itself, one of a library where it is called."""
        if not loc.row:
            return None
        spots, called = [(loc.file, loc.row, loc.column)], _CALL.search(loc.tail)
        if called:
            self.calls[spots[0]] = int(called[1]), int(called[2]), int(called[3])
        while spots[-1] in self.calls and self.calls[spots[-1]] not in spots:
            spots.append(self.calls[spots[-1]])
        own = spots[-1][0] if called else loc.file
        file, row, _ = next(spot for spot in spots if spot[0] == own)
        return self.files.get(file, f"file {file}"), row
