"""The rows of docs/seeds.md: what the documents ask for, with the commands, pages and tests that serve each row.

``python -m tests.seeds [ROW …]`` runs the commands that the page marks "by hand", of all rows or of those given, and
prints what they print. It leaves out those that need a GPU.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "seeds.md"
HAND = "by hand: "
LINE = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.*?) ?\|$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One row: ``items`` are its commands, tests and links to sections, ``hand`` those that run by hand, and ``shows``
    the texts that its first command, or else its first section, contains."""

    number: int
    items: tuple[str, ...]
    hand: tuple[str, ...]
    shows: tuple[str, ...]

    @property
    def commands(self) -> list[str]:
        return [item for item in self.items if item.startswith("warpwright ")]

    @property
    def tests(self) -> list[str]:
        return [item for item in (*self.items, *self.hand) if "::" in item.split()[0]]

    @property
    def links(self) -> list[str]:
        return [link for item in self.items for link in re.findall(r"\]\((.+)\)$", item)]


def rows(text: str) -> Iterator[Row]:
    """The rows of the page ``text``, in its order."""
    for number, _, cell, shows in LINE.findall(text):
        cells = cell.replace(r"\|", "|").split("; ")
        items = [item.strip("`") for item in cells if not item.startswith(HAND)]
        hand = [item.removeprefix(HAND).strip("`") for item in cells if item.startswith(HAND)]
        yield Row(int(number), tuple(items), tuple(hand), tuple(re.findall(r"`([^`]+)`", shows)))


def by_hand(numbers: Sequence[int]) -> Iterator[str]:
    """The commands by hand that need no GPU, each once, of the rows ``numbers`` or of all."""
    found = dict.fromkeys(
        command
        for row in rows(PAGE.read_text(encoding="utf-8"))
        if not numbers or row.number in numbers
        for command in row.hand
    )
    return (command for command in found if "::" not in command and "--device cuda" not in command)


def main() -> None:
    for command in by_hand([int(word) for word in sys.argv[1:]]):
        print(f"\n$ {command}", flush=True)
        program, *words = shlex.split(command)
        start = [sys.executable, *(["-m", "warpwright"] if program == "warpwright" else [])]
        subprocess.run([*start, *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
