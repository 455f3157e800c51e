"""The source line of each instruction, from the module's ``.loc`` and ``.file`` directives."""

from __future__ import annotations

import re

from warpwright.ptx import nodes

__all__ = ["Line", "Lines"]

Line = tuple[str, int]  # file, row
Location = tuple[int, int, int]  # file, row, column
_FILE = re.compile(r'(\d+)\s+"([^"]*)"')
_CALL = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")


class Lines:
    """``files`` by number; ``calls``: for each inlined location its last call site."""

    def __init__(self, module: nodes.Module) -> None:
        texts = [item.text for item in module.items if isinstance(item, nodes.Directive) and item.name == ".file"]
        self.files = {int(found[1]): found[2] for found in map(_FILE.match, texts) if found}
        self.calls: dict[Location, Location] = {}

    def at(self, loc: nodes.Loc) -> tuple[Line, ...]:
        """File and row of a ``.loc``, and of the calls around it, the innermost first; () for code without a source
        line.

        For inlined code, the first is the innermost line in the kernel's own file: a function of that file shows its
        own line, a library function the line of the call.
        """
        if not loc.row:
            return ()
        chain, call = [(loc.file, loc.row, loc.column)], _CALL.search(loc.tail)
        if call:
            self.calls[chain[0]] = int(call[1]), int(call[2]), int(call[3])
        while chain[-1] in self.calls and self.calls[chain[-1]] not in chain:
            chain.append(self.calls[chain[-1]])
        own = chain[-1][0] if call else loc.file
        first = next(number for number, location in enumerate(chain) if location[0] == own)
        return tuple((self.files.get(file, f"file {file}"), row) for file, row, _ in chain[first:])
