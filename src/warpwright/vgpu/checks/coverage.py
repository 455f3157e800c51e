"""How much of a kernel a launch executed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Coverage", "OneWay", "coverage_lines", "merge_coverages"]

_SHOWN = 3  # branches that a verdict's text lists


@dataclass(frozen=True, slots=True)
class OneWay:
    """A branch, or the guard of an access or a synchronisation, that went one way in all threads.

    ``never``: what it did not do; ``depends``: the arguments with their values, the parts of the launch and the memory
    that decide it; ``other``: an argument or grid with which it would, "" if none was found; ``calls``: as in `Step`.
    """

    where: str
    opcode: str
    never: str
    depends: tuple[str, ...] = ()
    other: str = ""
    calls: tuple[str, ...] = ()
    ptx_line: int = 0

    @property
    def key(self) -> Hashable:
        """The same for the same direction in another launch of the kernel."""
        return self.where, self.opcode, self.never, self.ptx_line

    def __str__(self) -> str:
        because = f" (depends on {', '.join(self.depends)}{self.other and f'; {self.other} would'})"
        return f"{self.where} never {self.never}{because if self.depends else ''}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Instructions that were reached, of those there are; ``missed``: lines with barriers, fences or accesses that were
    not, so that nothing is known of them.

    ``branches``: directions taken, of two each, of conditional branches and of guards of accesses and synchronisation;
    ``one_way``: those of which one was not taken, the ones in front of unreached code first. Left out are polls, and
    directions that no input can take or that report a failed assertion. ``idle``: a mechanism of the kernel that the
    size of the launch leaves unused.
    """

    reached: int
    present: int
    missed: tuple[str, ...]
    branches: tuple[int, int] = (0, 0)
    one_way: tuple[OneWay, ...] = ()
    idle: tuple[str, ...] = ()

    def __str__(self) -> str:
        gone, ways = self.branches
        directions = f" and {gone:,} of {ways:,} directions of branches" if gone < ways else ""
        return f"{self.reached:,} of {self.present:,} instructions{directions} reached" if self.present else ""


def coverage_lines(coverage: Coverage) -> Iterator[str]:
    """Yields lines of text: what the launch left unused, and the first branches that went one way only."""
    yield from coverage.idle
    texts = list(dict.fromkeys(map(str, coverage.one_way)))
    if texts:
        more = f"; and {len(texts) - _SHOWN} more" if texts[_SHOWN:] else ""
        yield f"one way only: {'; '.join(texts[:_SHOWN])}{more}"


def merge_coverages(parts: Sequence[tuple[str, Coverage]]) -> Coverage:
    """Returns the coverage of several launches, each with the name of its kernel. A direction that one launch of a
    kernel took is taken."""
    missed = dict.fromkeys(where for _, part in parts for where in part.missed)
    reached, present, gone, ways = (
        sum(each) for each in zip(*((part.reached, part.present, *part.branches) for _, part in parts), strict=True)
    )
    one_way: dict[Hashable, OneWay] = {}
    idle: dict[str, None] = {}
    for name in dict.fromkeys(name for name, part in parts if part.present):
        own = [part for other, part in parts if other == name and part.present]
        keys = set.intersection(*({way.key for way in part.one_way} for part in own))
        one_way |= {way.key: way for way in own[0].one_way if way.key in keys}
        idle |= dict.fromkeys(own[0].idle if all(part.idle for part in own) else ())
    return Coverage(reached, present, tuple(missed), (gone, ways), tuple(one_way.values()), tuple(idle))
