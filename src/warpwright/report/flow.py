"""The steps of `kernels.memory_flow`: their threads, PTX and Python lines, and the figures of the write-up."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

__all__ = ["STEPS", "WRITE_UP_SMEM", "PtxLine", "PtxStep", "Step", "WriteUp", "ptx_steps"]

TILE_M, TILE_N, TILE_K = 128, 128, 64
LOADED = (TILE_M + TILE_N) * TILE_K * 2
RESULT = TILE_M * TILE_N * 4
WRITE_UP_SMEM = 163_840
SHOWN = ("elect.sync", "mbarrier.", "fence.", "tcgen05.", "cp.async.", "st.shared", "ld.shared", "bar.sync")
WAITS = ("bar.sync", "mbarrier.try_wait", "tcgen05.wait", "cp.async.bulk.wait_group")


@dataclass(frozen=True)
class WriteUp:
    """Figures of the write-up "minimal memory flow", which names no source for them: cycles of one access, TB/s of the
    chip, µs and GB/s of the step."""

    latency: str = ""
    tb_s: str = ""
    time_us: float = 0.0
    gb_s: str = ""


@dataclass(frozen=True)
class Step:
    """One step of the kernel. ``nbytes``: payload that it writes to ``target``; ``anchor``: its first opcode in the
    PTX.

    Constants of the timing model, by name: ``costs`` are those that change the cycles of the step by 3 % or more if
    halved, ``latency`` is the cycles of one access, ``rate`` the bandwidth.
    """

    number: str
    source: str
    target: str
    how: str
    who: str
    idle: str
    nbytes: int
    anchor: str
    costs: tuple[str, ...] = ()
    latency: str = ""
    rate: str = ""
    write_up: WriteUp = WriteUp()

    @property
    def title(self) -> str:
        """The memories of the step, or what it prepares."""
        return f"{self.source} → {self.target}" if self.source else self.target

    @property
    def name(self) -> str:
        """Number and target, short."""
        return f"{self.number} {self.target.removesuffix(' memory')}"


STEPS = (
    Step(
        "0",
        "",
        "set-up",
        "mbarriers are initialised, and 128 of the 512 columns of tensor memory are allocated",
        "one thread of warp 0 initialises; warp 1 allocates and relinquishes the permit",
        "warps 2 and 3; at last all 128 threads wait at the barrier",
        0,
        "elect.sync",
        ("tmem_alloc",),
    ),
    Step(
        "1",
        "global",
        "shared memory",
        "TMA copies the boxes of A and B, asynchronously: their bytes complete a phase of an mbarrier",
        "one thread of warp 0 announces the bytes and issues both copies",
        "all 128 threads wait at the mbarrier",
        LOADED,
        "elect.sync",
        ("tma_first", "tma_hbm", "tma_late_hbm", "sm_bytes"),
        "tma_hbm",
        "hbm_share",
        WriteUp("300-500", "4-8", 10.0, "3.2"),
    ),
    Step(
        "2",
        "shared",
        "tensor memory",
        "the tensor core multiplies K = 16 four times, asynchronously: the first mma overwrites D, the others add",
        "one thread of warp 0 issues four mma and the commit; no thread copies anything",
        "all 128 threads wait at the mbarrier of the commit",
        RESULT,
        "elect.sync",
        ("mma_flops", "shared_bytes", "mma_latency", "commit"),
        "mma_latency",
        "shared_bytes",
        WriteUp("pipelined", "19", 2.0),
    ),
    Step(
        "3",
        "tensor memory",
        "registers",
        "each warp reads its own 32 lanes: a thread has a row of D, 128 values",
        "all 4 warps, every lane",
        "none by design: a warp waits for its own loads",
        RESULT,
        "tcgen05.ld",
        ("tmem_bytes", "tmem_latency"),
        "tmem_latency",
        "tmem_bytes",
        WriteUp("5-10", "10", 0.5, "128"),
    ),
    Step(
        "4a",
        "registers",
        "shared memory",
        "16 bytes a store; then every writer fences for the asynchronous proxy, and a barrier joins the writers",
        "all 128 threads store and fence",
        "none by design: warps wait for the port of shared memory",
        RESULT,
        "st.shared",
        ("shared_bytes",),
        "shared_latency",
        "shared_bytes",
        WriteUp("20-30", "2-4; 19", 1.0, "64"),
    ),
    Step(
        "4b",
        "shared",
        "global memory",
        "one TMA store, in a bulk group whose wait returns when D is in global memory",
        "one thread of warp 0 stores, commits and waits",
        "warp 0 waits for that thread; warp 1 deallocates; warps 2 and 3 have exited",
        RESULT,
        "elect.sync",
        ("tma_store_bytes", "tma_store"),
        "tma_store",
        "tma_store_bytes",
        WriteUp("300-500", "4-8", 10.0, "6.4"),
    ),
    Step(
        "5",
        "",
        "clean-up",
        "tensor memory is deallocated, while the TMA store runs",
        "warp 1, which allocated",
        "the others, as in step 4b",
        0,
        "tcgen05.dealloc",
    ),
)


@dataclass(frozen=True)
class PtxLine:
    """Adjacent instructions with one opcode, one Python line and equal immediates: the first one's text, and their
    number. ``file`` and ``row`` are the Python line."""

    text: str
    times: int
    file: str
    row: int

    @property
    def where(self) -> str:
        """``file:row``."""
        return f"{self.file}:{self.row}"

    @property
    def python(self) -> str:
        """The text of the Python line, empty if the file cannot be read."""
        return linecache.getline(self.file, self.row).strip()

    @property
    def opcode(self) -> str:
        return self.text.split()[0]

    @property
    def immediates(self) -> tuple[str, ...]:
        """The operands that are numbers; addresses and vectors do not count."""
        outside = re.sub(r"\[[^\]]*\]|\{[^}]*\}", "", self.text)
        return tuple(re.findall(r"(?<=[ ,])(?:0x)?[0-9a-f]+(?=[,;])", outside))


@dataclass(frozen=True)
class PtxStep:
    """A step with its lines of the PTX, in program order."""

    step: Step
    lines: tuple[PtxLine, ...]

    @property
    def waits(self) -> list[PtxLine]:
        """The lines that wait; the step is over when the last of them is."""
        return [line for line in self.lines if line.opcode.startswith(WAITS)]


def ptx_steps(ptx: str) -> list[PtxStep]:
    """Returns the steps with their lines of ``ptx``, which has source lines; arithmetic and branches are left out."""
    lines = [line for line in _instructions(ptx) if line.opcode.startswith(SHOWN)]
    starts = _starts([line.opcode for line in lines])
    return [
        PtxStep(step, tuple(_count_repeats(lines[first:last])))
        for step, first, last in zip(STEPS, starts, [*starts[1:], None], strict=True)
    ]


def _instructions(ptx: str) -> Iterator[PtxLine]:
    """Yields every instruction, without its guard and with long vectors shortened."""
    files, file, row = dict(re.findall(r'^\.file (\d+) "(.*)"', ptx, re.MULTILINE)), "", 0
    for line in ptx.splitlines():
        text = re.sub(r"^@!?%?\w+\s+", "", line.strip())
        if text.startswith(".loc "):
            number, row = text.split()[1], int(text.split()[2])
            file = files[number]
        if re.match(r"[a-z]\w*\.[\w.:]+", text):
            yield PtxLine(re.sub(r"\{([^{},]+),(?:[^{},]+,){3,}\s*([^{},]+)\}", r"{\1, …, \2}", text), 1, file, row)


def _starts(opcodes: Sequence[str]) -> list[int]:
    """Returns the index of each step's first instruction: its anchor, searched for after the previous anchor."""
    starts: list[int] = []
    for step in STEPS:
        after = starts[-1] + 1 if starts else 0
        starts.append(next(i for i in range(after, len(opcodes)) if opcodes[i].startswith(step.anchor)))
    return starts


def _count_repeats(lines: Sequence[PtxLine]) -> Iterator[PtxLine]:
    """Yields the first of adjacent lines that `PtxLine` counts as one, with their number."""
    for _, group in groupby(lines, key=lambda line: (line.opcode, line.row, line.immediates)):
        first, *others = group
        yield replace(first, times=1 + len(others))
