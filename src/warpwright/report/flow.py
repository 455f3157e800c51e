"""The four steps of `kernels.memory_flow`, with their lines of its PTX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["STEPS", "PtxStep", "Step", "ptx_steps"]

TILE_M, TILE_N, TILE_K = 128, 128, 64
LOADED = (TILE_M + TILE_N) * TILE_K * 2
RESULT = TILE_M * TILE_N * 4


@dataclass(frozen=True)
class Step:
    """One hop of the data. ``anchor`` is the first opcode of the hop in the PTX; ``opcodes`` are the opcodes to show.

    ``nbytes`` counts the payload that is written to ``target``.
    """

    source: str
    target: str
    how: str
    who: str
    nbytes: int
    anchor: str
    opcodes: tuple[str, ...]


STEPS = (
    Step(
        "global memory",
        "shared memory",
        "TMA copies the boxes of A and B, asynchronously: their bytes complete a phase of an mbarrier",
        "one thread issues; all 128 wait on the mbarrier",
        LOADED,
        "mbarrier.arrive.expect_tx",
        ("mbarrier.arrive.expect_tx", "cp.async.bulk.tensor", "mbarrier.try_wait"),
    ),
    Step(
        "shared memory",
        "tensor memory",
        "the tensor core multiplies K = 16 four times, asynchronously: the first overwrites, the rest accumulate",
        "one thread issues and commits; all 128 wait on its mbarrier",
        RESULT,
        "tcgen05.mma",
        ("tcgen05.mma", "tcgen05.commit", "mbarrier.try_wait", "tcgen05.fence"),
    ),
    Step(
        "tensor memory",
        "registers",
        "each warp reads its own 32 lanes",
        "all 4 warps, every lane",
        RESULT,
        "tcgen05.ld",
        ("tcgen05.ld", "tcgen05.wait"),
    ),
    Step(
        "registers",
        "shared → global memory",
        "generic stores, a proxy fence by every writer, a barrier, then one TMA store",
        "all 128 threads write and fence; one thread stores and waits",
        RESULT,
        "st.shared",
        ("st.shared", "fence.proxy.async", "bar.sync", "cp.async.bulk"),
    ),
)


@dataclass(frozen=True)
class PtxStep:
    """A step with its PTX lines: ``(line, repeats)`` in program order."""

    number: int
    step: Step
    lines: tuple[tuple[str, int], ...]


def ptx_steps(ptx: str) -> list[PtxStep]:
    """Returns the four steps with their lines of ``ptx``; adjacent lines with one opcode are merged and counted."""
    instructions = list(_instructions(ptx))
    starts = _starts([opcode for opcode, _ in instructions])
    steps = []
    for number, (step, first, last) in enumerate(zip(STEPS, starts, [*starts[1:], None], strict=True), 1):
        lines = [text for opcode, text in instructions[first:last] if opcode.startswith(step.opcodes)]
        steps.append(PtxStep(number, step, tuple(_count_repeats(lines))))
    return steps


def _instructions(ptx: str) -> Iterator[tuple[str, str]]:
    """Yields (opcode, text) of every instruction, without its guard and with long vectors shortened."""
    for line in ptx.splitlines():
        text = re.sub(r"^@!?%?\w+\s+", "", line.strip())
        if re.match(r"[a-z]\w*\.[\w.:]+", text):
            yield text.split()[0], re.sub(r"\{([^{},]+),(?:[^{},]+,){3,}\s*([^{},]+)\}", r"{\1, …, \2}", text)


def _starts(opcodes: Sequence[str]) -> list[int]:
    """Returns the index of each step's first instruction: its anchor, searched for after the previous anchor."""
    starts: list[int] = []
    for step in STEPS:
        after = starts[-1] + 1 if starts else 0
        starts.append(next(i for i in range(after, len(opcodes)) if opcodes[i].startswith(step.anchor)))
    return starts


def _count_repeats(lines: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yields the first of adjacent lines with one opcode, and the number of these lines."""
    first, times = "", 0
    for line in lines:
        if times and line.split()[0] == first.split()[0]:
            times += 1
            continue
        if times:
            yield first, times
        first, times = line, 1
    if times:
        yield first, times
