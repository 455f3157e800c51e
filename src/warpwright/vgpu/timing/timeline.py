"""The timeline of a replay as fields of its profile: spans, phases of mbarriers by name, parts of shared and tensor
memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from warpwright.vgpu.program.memory_map import RESERVED_SHARED
from warpwright.vgpu.program.names import Names, Variables
from warpwright.vgpu.timing.journal import Journal
from warpwright.vgpu.timing.result import Conflict, Phase, Region, Span
from warpwright.vgpu.timing.slots import indices
from warpwright.vgpu.timing.steps import Program

__all__ = ["conflicts_of", "phases_of", "regions_of", "timeline_fields", "wait_insts"]

SHARED, TENSOR = "shared memory", "tensor memory"
MBARRIER_BYTES = 8


def timeline_fields(journal: Journal, waits: Mapping[int, int], variables: Variables) -> dict[str, Any]:
    """Returns the fields of a profile that the journal has. ``waits``: for the address of a barrier, an instruction
    that waits for it."""
    spans = tuple(sorted([*journal.spans, *journal.slots(dict(waits))], key=lambda span: span.start))
    memory = regions_of(journal, waits, spans, variables)
    return {"roles": journal.roles(), "spans": spans, "phases": phases_of(journal, waits), "memory": memory}


def phases_of(journal: Journal, waits: Mapping[int, int]) -> tuple[Phase, ...]:
    """Returns the phases that ended, in the journal's order."""
    names = barrier_names(journal, waits)
    delivered = _delivered(journal)
    before: dict[int, float] = {}
    found = []
    for (place, end), cause in zip(journal.phases, journal.causes, strict=True):
        start = before.get(place, 0.0)
        nbytes = _between(delivered.get(place, ()), start, end)
        name = names.get(place, f"0x{place % journal.stride:x}")
        found.append(Phase(name, place // journal.stride, cause.number, start, end, nbytes, *cause[1:]))
        before[place] = end
    return tuple(found)


def barrier_names(journal: Journal, waits: Mapping[int, int]) -> dict[int, str]:
    """Returns the names of the mbarriers: ``"ab.full[3]"``, ``"done"`` for the only one of its name in its CTA, or the
    offset in shared memory."""
    stride = journal.stride
    named = {place: name for place, inst in waits.items() if (name := journal.names.barriers.get(inst, ""))}
    found = indices(named, stride)
    several = {(place // stride, name) for place, (name, index) in found.items() if index}
    names = {at: f"{name}[{i}]" if (at // stride, name) in several else name for at, (name, i) in found.items()}
    return {place: f"0x{place % stride:x}" for place in waits} | names


def _delivered(journal: Journal) -> dict[int, list[tuple[float, int]]]:
    """Returns for the address of each barrier the ends of its copies and the sum of the bytes up to each."""
    ends: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for copy in sorted(journal.copies, key=lambda copy: copy.end):
        for _, _, place in copy.box.targets:
            total = ends[place][-1][1] if ends[place] else 0
            ends[place].append((copy.end, total + copy.box.nbytes))
    return ends


def _between(ends: Sequence[tuple[float, int]], start: float, end: float) -> int:
    """Returns the bytes of the copies that end after ``start`` and not after ``end``."""
    first, last = (bisect_right(ends, time, key=lambda each: each[0]) for time in (start, end))
    return (ends[last - 1][1] if last else 0) - (ends[first - 1][1] if first else 0)


def regions_of(
    journal: Journal, waits: Mapping[int, int], spans: Sequence[Span], variables: Variables
) -> tuple[Region, ...]:
    """Returns what is known of the shared and the tensor memory of CTA 0, by memory and offset."""
    starts = [start for start in variables.starts if start < variables.end]
    found = {Region(SHARED, variables.name(start), start, end - start)
             for start, end in zip(starts, [*starts[1:], variables.end], strict=False)}  # fmt: skip
    found.add(Region(SHARED, "reserved by the system", 0, RESERVED_SHARED))
    found |= {Region(SHARED, f"mbarrier {name}", place, MBARRIER_BYTES)
              for place, name in barrier_names(journal, waits).items() if place < journal.stride}  # fmt: skip
    found |= set(_boxes(journal, spans)) | set(_accumulators(journal))
    return tuple(sorted(found, key=lambda region: (region.memory, region.start, -region.size)))


def _boxes(journal: Journal, spans: Sequence[Span]) -> Iterator[Region]:
    """Yields the boxes that TMA wrote and read in the shared memory of CTA 0, those of a slot with its name."""
    loads = (span for span in spans if span.track == "TMA" and span.name.startswith("load "))
    slots = {(span.start, span.cta, span.where): span.name.removeprefix("load ") for span in loads}
    found = {
        (slots.get((copy.start, copy.rank, copy.where), "box of TMA"), offset, copy.box.nbytes)
        for copy in journal.copies
        for rank, offset, _ in copy.box.targets
        if rank == 0
    }
    boxes = [copy.box for copy in journal.copies if copy.box.source >= 0 and copy.rank == 0]
    found |= {("box that TMA stores", box.source, box.nbytes) for box in boxes}
    for fields in found:
        yield Region(SHARED, *fields)


def _accumulators(journal: Journal) -> Iterator[Region]:
    """Yields the columns of each accumulator in tensor memory."""
    for first, count in {(span.mma.d, span.mma.n) for span in journal.mmas if span.mma.d >= 0}:
        yield Region(TENSOR, "D of tcgen05.mma", first, count)


def wait_insts(program: Program) -> dict[int, int]:
    """Returns for the address of each mbarrier an instruction that waits for it."""
    return {step.what: step.inst for steps in program.warps for step in steps if step.kind == "wait"}


def conflicts_of(program: Program, names: Names) -> tuple[Conflict, ...]:
    """Returns instructions that take more wavefronts than their bytes need, the worst first."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for steps in program.warps:
        for step in steps:
            if step.kind == "shared_access":
                count = counts[names.places[step.inst]]
                count[0] += step.number
                count[1] += step.nbytes
    rows = [Conflict(where, most, least) for where, (most, least) in counts.items() if most > least]
    return tuple(sorted(rows, key=lambda row: row.least - row.wavefronts))
