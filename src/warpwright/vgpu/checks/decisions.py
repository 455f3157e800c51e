"""What decides the branches of a kernel: the arguments, special registers and memory that their predicates depend on.

The text alone is followed, without the order of the instructions: all definitions of a register count.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from warpwright.ptx import nodes
from warpwright.vgpu.checks.order.access_kinds import is_strong, kind_of, strong_kind_of
from warpwright.vgpu.checks.stuck.wait_forms import Form, Forms, definitions
from warpwright.vgpu.machine.launch import Dim3, Launch
from warpwright.vgpu.program.program import Inst, Register, Symbol, mentions, results

__all__ = ["EMPTY", "Decision", "Decisions", "parameter_of"]

_GRID = re.compile(r"%n?(?:ctaid|clusterid)\.|%n?smid")
_BLOCK = re.compile(r"%n?(?:tid|warpid)")
_FIXED = re.compile(rf"{_BLOCK.pattern}|%(?:laneid|lanemask|cluster_|is_explicit)")  # by the block and the cluster
_NUMBERED = re.compile(r"_param_(\d+)$")
EMPTY = " = 0"  # the end of an argument that goes another way: of a size, nothing is left to do
Parameter = tuple[str, int]  # a parameter and an offset in it
_LARGEST = 1 << 31  # larger arguments are addresses
_STEPS = [sign << bit for bit in range(13) for sign in (1, -1)]  # to other arguments and grids


class Decision:
    """What a register, such as a predicate, depends on. ``specials``: special registers; ``reads``: reads of
    parameters and of memory."""

    def __init__(self, guard: Register, defined: dict[str, list[Inst]]) -> None:
        self.guard, self.specials, self.reads = guard, set[str](), list[Inst]()
        seen, todo = set[str](), [guard.name]
        while todo:
            name = todo.pop()
            self.specials |= {name} if name.startswith("%") and name not in defined else set()
            found = defined.get(name, []) if name not in seen else []
            seen.add(name)
            self.reads += [inst for inst in found if _reads(inst)]
            todo += [used for inst in found if not _reads(inst) for used in mentions(inst)[0]]

    @property
    def waits(self) -> bool:
        """Whether the result of a test of an mbarrier decides: the schedule does."""
        return any(inst.traits.queue == "mbarrier" for inst in self.reads)

    @property
    def polls(self) -> bool:
        """Whether a strong read of memory decides, as when a loop polls a flag."""
        return any(is_strong(kind_of(inst)) or strong_kind_of(inst) is not None for inst in self.reads)

    @property
    def fixed(self) -> bool:
        """Whether only the thread's index in its block, and the block's rank in its cluster, decide."""
        return not self.reads and all(_FIXED.match(name) for name in self.specials)


class Decisions:
    """The predicates of a launch; ``params``: the bytes of its arguments."""

    def __init__(self, launch: Launch, params: bytes) -> None:
        self.launch, self.params, self.program = launch, params, launch.kernel.program
        self.defined = definitions(self.program)
        self.constants = Forms(self.program, self.defined, {}, 0)
        self.known: dict[Register, Decision] = {}
        self.threads: dict[Dim3, list[dict[str, int]]] = {}  # by grid

    def of(self, guard: Register) -> Decision:
        if guard not in self.known:
            self.known[guard] = Decision(guard, self.defined)
        return self.known[guard]

    def is_open(self, decision: Decision) -> bool:
        """Whether arguments, data or the shape of the launch decide a predicate."""
        constant = self.constants.of(decision.guard).known
        return not (constant or decision.waits or (decision.fixed and self.program.reqntid))

    def depends(self, decision: Decision) -> tuple[str, ...]:
        """Returns what decides a predicate: arguments with their values, the grid, the block, memory."""
        found = [self._argument(inst) if parameter_of(inst) else "data in memory" for inst in decision.reads]
        for pattern, text in ((_GRID, f"the grid {self.launch.grid}"), (_BLOCK, f"the block {self.launch.block}")):
            given = text.startswith("the block") and self.program.reqntid
            found += [text] * (not given and any(map(pattern.match, decision.specials)))
        return tuple(dict.fromkeys(found))

    def other(self, decision: Decision, want: bool) -> str:
        """Returns an argument or a grid, near the present one, with which the predicate is ``want`` in some thread; ""
        if the text does not show it."""
        grid, loads = self.launch.grid, [inst for inst in decision.reads if parameter_of(inst)]
        values = {_symbol(load): self._value(load) for load in loads}
        if len(loads) < len(decision.reads) or max(values.values(), default=0) >= _LARGEST:
            return ""
        if not self._values(decision, values, grid):
            return ""
        for load in loads:
            at = _symbol(load)
            value = _closest(values[at], partial(self._holds_with, decision, want, values, at))
            if value is not None:
                return f"{_name(load)} = {value:,}"
        for axis in range(3) if any(map(_GRID.match, decision.specials)) else ():
            size = _closest(grid[axis], partial(self._holds_in_grid, decision, want, values, axis))
            if size:
                return f"a grid of {_resized(grid, axis, size)}"
        return ""

    def _holds_with(
        self, decision: Decision, want: bool, values: Mapping[Parameter, int], at: Parameter, value: int
    ) -> bool:
        """Whether the predicate is ``want`` in some thread, with another value of a parameter."""
        return want in self._values(decision, {**values, at: value}, self.launch.grid)

    def _holds_in_grid(
        self, decision: Decision, want: bool, values: Mapping[Parameter, int], axis: int, size: int
    ) -> bool:
        """Whether the predicate is ``want`` in some thread of a grid of another size."""
        fits = size > 0 and not size % self.launch.cluster[axis]
        return fits and want in self._values(decision, values, _resized(self.launch.grid, axis, size))

    def _values(self, decision: Decision, params: Mapping[Parameter, int], grid: Dim3) -> set[bool]:
        """Returns the values of a predicate in the first and the last threads, as far as the text shows them."""
        found = set()
        for specials in self._threads(grid):
            forms = Forms(self.program, self.defined, specials, 0)
            for load in decision.reads:
                value = Form(params[_symbol(load)], based=True)
                forms.known_forms |= {register.name: value for register in results(load)}
            form = forms.of(decision.guard)
            found |= {bool(form.constant & 1)} if form.known else set()
        return found

    def _threads(self, grid: Dim3) -> list[dict[str, int]]:
        if grid not in self.threads:
            launch = copy.copy(self.launch)
            launch.grid = grid
            self.threads[grid] = list(_threads(launch))
        return self.threads[grid]

    def _argument(self, load: Inst) -> str:
        value = self._value(load)
        return _name(load) + (f" = {value:,}" if value < _LARGEST else "")

    def _value(self, load: Inst) -> int:
        """Returns the parameter that an instruction loads, as an unsigned integer; of a vector its first element."""
        _, offset = _symbol(load)
        address = load.operand("a")
        assert isinstance(address, nodes.Address) and isinstance(address.base, Symbol)
        start = address.base.value + offset
        return int.from_bytes(self.params[start : start + results(load)[0].bits // 8], "little")


def _reads(inst: Inst) -> bool:
    """Whether the result of an instruction is not computed from its registers alone."""
    return inst.traits.access in ("read", "update") or inst.traits.queue == "mbarrier"


def parameter_of(inst: Inst) -> str:
    """Returns the parameter of the kernel that an instruction loads, "" if it loads none."""
    address = inst.find("a")
    base = address.base if isinstance(address, nodes.Address) else None
    return base.name if isinstance(base, Symbol) and base.space == "param" else ""


def _symbol(load: Inst) -> Parameter:
    """Returns the parameter that an instruction loads, and the offset in it."""
    address = load.operand("a")
    assert isinstance(address, nodes.Address) and isinstance(address.base, Symbol)
    return address.base.name, address.offset


def _name(load: Inst) -> str:
    """Returns the name of a parameter, its number if the compiler named it, and the offset of a part of it."""
    name, offset = _symbol(load)
    numbered = _NUMBERED.search(name)
    return (f"argument {numbered[1]}" if numbered else name) + (f" at byte {offset}" if offset else "")


def _closest(value: int, holds: Callable[[int], bool]) -> int | None:
    """Returns a number near a value for which a condition holds, 0 last; None if there is none. Of a condition that
    holds from some number on, it is the nearest."""
    for step in _STEPS:
        if value + step > 0 and holds(value + step):
            near, far = value + int(step / 2), value + step
            while abs(far - near) > 1:
                middle = (near + far) // 2
                near, far = (near, middle) if holds(middle) else (middle, far)
            return far
    return 0 if holds(0) else None


def _resized(grid: Dim3, axis: int, size: int) -> Dim3:
    x, y, z = (size if at == axis else same for at, same in enumerate(grid))
    return x, y, z


def _threads(launch: Launch) -> Iterator[dict[str, int]]:
    """Yields the special registers of the first and the last thread of the first and the last CTA of the first and the
    last cluster of a launch."""
    x, y, z = launch.clusters
    ranks, last = launch.cluster[0] * launch.cluster[1] * launch.cluster[2], launch.threads - 1
    for number, rank in itertools.product({0, x * y * z - 1}, {0, ranks - 1}):
        grid = launch.grid_specials(launch.first_cta(number), rank)
        for thread in {0, last}:
            specials: dict[str, Any] = launch.fixed_specials(rank, thread // 32) | grid
            yield {name: int(np.broadcast_to(value, 32)[thread % 32]) for name, value in specials.items()}
