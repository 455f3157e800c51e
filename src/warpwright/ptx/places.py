"""The place of a fault in a PTX text."""

from __future__ import annotations

import re

__all__ = ["Fault", "column_of"]


class Fault(Exception):
    """A broken rule: the line, the name in that line, what was found, and what was expected."""

    def __init__(self, line: int, name: str, found: str, wanted: str) -> None:
        super().__init__(found)
        self.line, self.name, self.found, self.wanted = line, name, found, wanted


def column_of(text: str, line: int, name: str) -> int:
    """Returns the 1-based column of a name in a line; of the line's first word if the name is not in it."""
    row = text.split("\n")[line - 1]
    found = re.search(rf"(?<![\w%$.]){re.escape(name)}(?![\w$])", row) or re.search(re.escape(name), row)
    return (found.start() if found else len(row) - len(row.lstrip())) + 1
