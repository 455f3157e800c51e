"""What parts of a program are called: roles and barriers, by the labels of its PTX."""

from __future__ import annotations

import re

from warpwright.vgpu.program import Program, place

__all__ = ["Names"]

WHOLE, APART = "kernel", "all warps"
_ROLE = re.compile(r"role_(\w+?)_(\d+)(_end|_join)?$")
_WAIT = re.compile(r"wait_(\w+)_\d+$")
_HALF = re.compile(r"(\w+)_(full|empty)$")


class Names:
    """``roles``: of every instruction, by its number; ``barriers``: of those that wait for one, ``ab.full``."""

    def __init__(self, program: Program) -> None:
        self.roles: list[str] = []
        self.barriers: dict[int, str] = {}
        self.places = [place(inst) for inst in program.insts]
        outside = APART if any(_ROLE.match(block.name) for block in program.blocks) else WHOLE
        role = outside
        for block in program.blocks:
            found = _ROLE.match(block.name)
            if found:
                role = outside if found[3] == "_end" else found[1]
            wait = _WAIT.match(block.name)
            for inst in block.insts:
                self.roles.append(role)
                if inst.name.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
                    self.barriers[inst.index] = _barrier(wait[1]) if wait else ""

    def waits(self, inst: int, address: int) -> str:
        """The reason of a wait: ``waits ab.full``, or the barrier's place in shared memory."""
        return f"waits {self.barriers.get(inst) or f'barrier 0x{address:x}'}"


def _barrier(label: str) -> str:
    found = _HALF.match(label)
    return f"{found[1]}.{found[2]}" if found else label
