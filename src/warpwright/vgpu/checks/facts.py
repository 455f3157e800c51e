"""What the checks of all clusters of one launch share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.checks.memory.globals import Globals
from warpwright.vgpu.checks.order.access_kinds import CTA, WEAK, fence_of, is_strong, strong_kinds
from warpwright.vgpu.checks.order.lock_forms import acquiring
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.program.names import Names
from warpwright.vgpu.program.program import mentions, results

__all__ = ["Facts"]


class Facts:
    """The program of a launch, the names in its source, its global memory; ``uses``: the registers that rows of
    `record.touch` are about; ``strong``: by instruction, what a strong access may do to shared memory; ``narrow``: one
    of them has CTA scope; ``synchronises``: strong accesses may order others; ``acquires``: the instructions that
    acquire locks. ``off``, ``depends`` and ``doubted`` are those of the `Watcher`."""

    def __init__(
        self, launch: Launch, off: frozenset[str], depends: Sequence[NDArray[Any]], doubted: frozenset[int]
    ) -> None:
        self.off, self.doubted = off, doubted
        self.program = launch.kernel.program
        self.uses = launch.kernel.uses
        self.names = Names.of(self.program)
        self.strong = strong_kinds(self.program)
        self.narrow = any(kind.scope == CTA for kind in self.strong if kind is not None)
        self.globals = Globals(launch, self.names, off, depends)
        self.synchronises = self._synchronises()
        self.acquires = acquiring(self.program)

    def _synchronises(self) -> bool:
        """Returns whether the program has strong accesses, or fences, that release, and strong reads."""
        strong = [kind for kind in (*self.strong, *self.globals.kinds) if kind is not None and is_strong(kind)]
        releases = any(kind.releases for kind in strong) or any(fence_of(inst) > WEAK for inst in self.program.insts)
        return releases and any(kind.reads for kind in strong)

    @cached_property
    def _read(self) -> set[str]:
        """The registers that some instruction reads."""
        return {name for inst in self.program.insts for name in mentions(inst)[0]}

    def used(self, inst: int) -> NDArray[np.bool_]:
        """Returns which registers of a load some instruction reads; of ldmatrix all."""
        load = self.program.insts[inst]
        names = [register.name for register in results(load)]
        return np.array([load.form.collective or name in self._read for name in names] or [True])
