"""Edits of a kernel's PTX: each synchronising instruction removed, or changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["CHANGES", "REMOVED", "Edit", "edits"]

REMOVED = "removed"
SYNCHRONISES = re.compile(
    r"^\s*(?:@!?%p\d+ )?(mbarrier\.(?!inval)\S+|fence\S*|bar(?:rier)?\.\S+|\S+\.commit\S*|\S+\.wait\S*|"
    r"tcgen05\.(?:alloc|dealloc|relinquish\S*|fence\S*)|wgmma\.fence\S*|setmaxnreg\S*|cp\.async\.mbarrier\S*|griddepcontrol\S*)"
)
CHANGEABLE = re.compile(r"^\s*(?:@!?%p\d+ )?(mapa\S*|cp\.async\.bulk\.tensor\S*mbarrier\S*)")
TESTS = re.compile(r"(\s*)mbarrier\.(?:try|test)_wait\S* (%p\d+),")
ADDRESS = r"\[(%\w+)(?:\+(\d+))?\]"
COUNT = re.compile(r", (\d+);")


def _add(number: int) -> Callable[[str], str]:
    """Returns an edit that adds ``number`` to the last number of a line."""
    return lambda line: COUNT.sub(lambda found: f", {int(found[1]) + number};", line)


def _double_bytes(line: str) -> str:
    return COUNT.sub(lambda found: f", {2 * int(found[1])};", line)


def _arrive_twice(line: str) -> str:
    """Make an arrival count as two."""
    return line.replace("];", "], 2;")


def _arrive_at_once(line: str) -> str:
    """Make the thread arrive itself, before its asynchronous operations have completed."""
    return re.sub(
        r"(tcgen05\.commit|cp\.async\.mbarrier)\S* (\[\S+\]);", r"mbarrier.arrive.shared::cta.b64 _, \2;", line
    )


def _relax(line: str) -> str:
    return line.replace(".release", ".relaxed")


def _allow_one_more(line: str) -> str:
    """Allow one more group in flight."""
    return re.sub(r" (\d+);", lambda found: f" {int(found[1]) + 1};", line)


def _flip_parity(line: str) -> str:
    """Flip the parity, a number or a register."""
    found = re.search(r", (%r\d+|[01]);", line)
    assert found is not None
    if not found[1].startswith("%"):
        return line.replace(found[0], f", {1 - int(found[1])};")
    return f"{{ .reg .b32 %edit; xor.b32 %edit, {found[1]}, 1; {line.replace(found[0], ', %edit;').strip()} }}"


def _move_address(place: int) -> Callable[[str], str]:
    """Returns an edit that adds 8 bytes to the first or the last address of a line."""

    def change(line: str) -> str:
        found = list(re.finditer(ADDRESS, line))[place]
        return f"{line[: found.start()]}[{found[1]}+{int(found[2] or 0) + 8}]{line[found.end() :]}"

    return change


def _use_own_address(line: str) -> str:
    """Replace another CTA's address by this CTA's."""
    return re.sub(r"mapa\S* (%\w+), (%\w+), \S+;", r"mov.b32 \1, \2;", line)


def _use_leader_address(line: str) -> str:
    """Use the leader's address for the data too."""
    found = re.search(ADDRESS, line)
    assert found is not None
    inner = line.replace(found[0], f"[%edit+{found[2] or 0}]", 1).strip()
    return f"{{ .reg .b32 %edit; mapa.shared::cluster.u32 %edit, {found[1]}, 0; {inner} }}"


# name of the change: opcodes, and the change of their line
CHANGES: dict[str, tuple[str, Callable[[str], str]]] = {
    "one arrival more": (r"mbarrier\.init", _add(1)),
    "one arrival less": (r"mbarrier\.init", _add(-1)),
    "twice the bytes": (r"mbarrier\.(arrive\.)?expect_tx", _double_bytes),
    "bytes too few": (r"mbarrier\.(arrive\.)?expect_tx", _add(-16)),
    "two arrivals": (r"mbarrier\.arrive\.(?!expect_tx)", _arrive_twice),
    "arrives at once": (r"tcgen05\.commit|cp\.async\.mbarrier", _arrive_at_once),
    "a warp more": (r"bar\.sync$", _add(32)),
    "a warp less": (r"bar\.sync$", _add(-32)),
    "relaxed": (r"barrier\.cluster\.arrive", _relax),
    "a group more in flight": (r"(cp\.async\.bulk|wgmma)\.wait_group", _allow_one_more),
    "the other phase": (r"mbarrier\.try_wait\.parity", _flip_parity),
    "the next barrier": (r"mbarrier\.(try_wait|arrive)|tcgen05\.commit", _move_address(0)),
    "bytes for the next barrier": (r"cp\.async\.bulk\.tensor", _move_address(-1)),
    "no peer": (r"mapa", _use_own_address),
    "data at the leader": (r"cp\.async\.bulk\.tensor\S*cta_group::2", _use_leader_address),
}


@dataclass(frozen=True)
class Edit:
    """One edited line of PTX: its instruction, its role, and its index among the role's equal instructions; ``place``
    is the line of the kernel's source."""

    line: int
    role: str
    opcode: str
    number: int
    what: str = REMOVED
    place: str = ""

    def __call__(self, text: str) -> str:
        """Returns the edited text; a removed test of a phase has the result true."""
        lines = text.split("\n")
        found = TESTS.match(lines[self.line])
        if self.what != REMOVED:
            lines[self.line] = CHANGES[self.what][1](lines[self.line])
        else:
            lines[self.line] = f"{found[1]}setp.eq.u32 {found[2]}, 0, 0;" if found else ""
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.role} {self.opcode} #{self.number}" + (f": {self.what}" if self.what != REMOVED else "")


def edits(text: str) -> Iterator[Edit]:
    """Yields the removal of every synchronising instruction, and every change that alters its line."""
    role, place, seen = "kernel", "", Counter[tuple[str, str]]()
    files = dict(re.findall(r'\.file (\d+) "(.*)"', text))
    for number, line in enumerate(text.split("\n")):
        spot = re.match(r"\s*\.loc (\d+) (\d+)", line)
        place = f"{files.get(spot[1])}:{spot[2]}" if spot else place
        label = re.match(r"\s*role_(\w+?)_\d+(_\w+)?:", line)
        if label:
            role = "kernel" if label[2] == "_end" else label[1] + " end" if label[2] == "_join" else label[1]
        found = SYNCHRONISES.match(line) or CHANGEABLE.match(line)
        if not found:
            continue
        opcode = found[1].rstrip(";")
        if SYNCHRONISES.match(line):
            yield Edit(number, role, opcode, seen[role, opcode], place=place)
        for what, (opcodes, change) in CHANGES.items():
            if re.match(opcodes, opcode) and change(line) != line:
                yield Edit(number, role, opcode, seen[role, opcode], what, place)
        seen[role, opcode] += 1
