"""The timeline of a profile as data for the script that draws it: lanes in the order of the data flow, in columns of
whole cycles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any

from warpwright.report.format import base_name
from warpwright.report.html.sources import code_of
from warpwright.report.lanes import ALL_WARPS, ENGINES, Lane, kind, lanes, merge_tracks, whole_window, windows
from warpwright.vgpu.checks.findings import Step, Verdict, causes
from warpwright.vgpu.machine.launch import RankCta
from warpwright.vgpu.timing import Phase, Profile, Span

__all__ = ["slowest", "timeline_data"]

Json = dict[str, Any]
Numbers = dict[tuple[str, str], int]
Wheres = dict[str, int]


class _Timeline:
    """The lanes and phases of the ranks so far; names and lines are strings by number."""

    def __init__(self) -> None:
        self.names: Numbers = {}
        self.wheres: Wheres = {}
        self.lanes: list[Json] = []
        self.phases: dict[str, list[Any]] = defaultdict(list)

    def add(self, profile: Profile, rank: Json) -> None:
        """Adds the lanes and phases of a GPU; ``rank`` is entered in each lane."""
        first, count = len(self.lanes), len(self.phases["end"])
        drawn = lanes(merge_tracks(profile.spans))
        self.lanes += [row | rank for row in self._lanes(drawn, profile.phases, count)]
        tracks = {(row["cta"], row["name"]): at for at, row in enumerate(self.lanes[first:], first)}
        for name, column in _phase_columns(profile.phases, tracks, self.wheres).items():
            self.phases[name] += column

    def _lanes(self, drawn: Sequence[Lane], phases: Sequence[Phase], count: int) -> Iterable[Json]:
        """Yields the lanes of each CTA, then those of its mbarriers; ``count``: phases before those of this GPU."""
        for cta, group in groupby(drawn, key=lambda lane: lane.cta):
            for lane in group:
                row: Json = {"cta": cta, "name": lane.track, "ring": lane.ring}
                yield row | _span_columns(lane.spans, count, self.names, self.wheres)
            own = [(number, phase) for number, phase in enumerate(phases, count) if phase.cta == cta]
            for name, some in groupby(sorted(own, key=lambda each: each[1].barrier), key=lambda each: each[1].barrier):
                columns = _phases_of(list(some), self.names, self.wheres)
                yield {"cta": cta, "name": name, "ring": name.partition("[")[0], "barrier": True} | columns


def timeline_data(profile: Profile, verdict: Verdict | None = None) -> Json:
    """Returns lanes, phases and strings of a timeline; ``{}`` for a profile without spans.

    The columns of a lane: start, duration, name, line, bytes, phase, and the phase whose end released a wait. A lane of
    an mbarrier has its phases. On a node each lane has its rank. ``verdict``: of the same launch; the accesses of its
    findings are marked.
    """
    if not profile.spans:
        return {}
    drawn = _Timeline()
    for rank, each in enumerate(profile.ranks):
        drawn.add(each, {"rank": rank})
    if not profile.ranks:
        drawn.add(profile, {})
    if not drawn.lanes:
        return {}
    whole = whole_window(span for each in profile.ranks or (profile,) for span in each.spans)
    places = asdict(windows(profile.spans)) | {"whole": whole}
    marks = list(_marks(verdict, profile.cluster, drawn)) if verdict else []
    return {
        "cyclesPerUs": profile.clock_mhz,
        "windows": places,
        "lanes": drawn.lanes,
        "phases": drawn.phases,
        "names": list(drawn.names),
        "wheres": [base_name(where) for where in drawn.wheres],
        "code": [code_of(where) for where in drawn.wheres],
        "marks": marks,
        **({"slowest": slowest(profile)} if profile.ranks else {}),
    }


def slowest(profile: Profile) -> int:
    """Returns the rank of a node that takes the longest, which the profile is of."""
    return max(range(len(profile.ranks)), key=lambda rank: profile.ranks[rank].time_us)


def _marks(verdict: Verdict, cluster: tuple[int, int, int], drawn: _Timeline) -> Iterator[Json]:
    """Yields the accesses of a verdict, one finding of each cause, with their operation on the timeline."""
    operations = _operations(drawn)
    names = [name for name, _ in drawn.names]
    for number, cause in enumerate(causes(verdict.findings), 1):
        for step in verdict.findings[cause[0]].steps:
            rank = step.cta.rank if isinstance(step.cta, RankCta) else None
            found = operations.get((rank, drawn.wheres.get(step.where, -1)))
            if found:
                lane, index = min(found, key=partial(_distance, step, cluster, drawn.lanes, names))
                yield {"text": f"{number}. {step.what}: {step.opcode}, CTA {step.cta}", "lane": lane, "index": index}


def _operations(drawn: _Timeline) -> dict[tuple[int | None, int], list[tuple[int, int]]]:
    """Returns for each rank and line the operations (lane, index) of roles and engines, the earliest first."""
    found: dict[tuple[int | None, int], list[tuple[int, int]]] = defaultdict(list)
    for number, lane in enumerate(drawn.lanes):
        for index, where in enumerate(lane["where"]) if not lane["ring"] and not lane.get("barrier") else ():
            found[lane.get("rank"), where].append((number, index))
    return found


def _distance(
    step: Step, cluster: tuple[int, int, int], rows: Sequence[Json], names: Sequence[str], at: tuple[int, int]
) -> tuple[bool, bool, bool, int]:
    """Returns how far an operation at the line of a step is from it: it only issues, is of another CTA of the cluster
    or of another role; then its start."""
    lane, index = rows[at[0]], at[1]
    x, y, z = (place % size for place, size in zip(step.cta, cluster, strict=True))
    cta = x + cluster[0] * (y + cluster[1] * z)
    other = lane["name"] not in (step.role, ALL_WARPS, *ENGINES)
    return names[lane["what"][index]] == "issues", lane["cta"] != cta, other, lane["start"][index]


def _number(value: Any, numbers: dict[Any, int]) -> int:
    """Returns the number of a string, the next one for a new string."""
    return numbers.setdefault(value, len(numbers))


def _span_columns(spans: Sequence[Span], count: int, names: Numbers, wheres: Wheres) -> Json:
    columns: Json = {
        "start": [round(span.start) for span in spans],
        "length": [max(1, round(span.end - span.start)) for span in spans],
        "what": [_number((span.name, kind(span)), names) for span in spans],
        "where": [_number(span.where, wheres) for span in spans],
        "bytes": [span.nbytes for span in spans],
        "phase": [span.phase for span in spans],
        "released": [span.released + count if span.released >= 0 else -1 for span in spans],
    }
    constant = {"bytes": 0, "phase": -1, "released": -1}
    return {name: column for name, column in columns.items() if any(value != constant.get(name) for value in column)}


def _phases_of(phases: Sequence[tuple[int, Phase]], names: Numbers, wheres: Wheres) -> Json:
    """Returns the columns of the lane of an mbarrier; phases of parity 0 and 1 differ in their kind."""
    return {
        "start": [round(phase.start) for _, phase in phases],
        "length": [max(1, round(phase.end - phase.start)) for _, phase in phases],
        "what": [_number(("phase", f"parity {phase.number & 1}"), names) for _, phase in phases],
        "where": [_number(phase.where, wheres) for _, phase in phases],
        "bytes": [phase.nbytes for _, phase in phases],
        "phase": [phase.number for _, phase in phases],
        "released": [number for number, _ in phases],
    }


def _phase_columns(phases: Sequence[Phase], tracks: Mapping[tuple[int, str], int], wheres: Wheres) -> Json:
    """Returns the phases: name, end, and lane, cycle of issue and line of the operation that ended each."""
    lane = [tracks.get((phase.by, phase.track), tracks.get((phase.by, ALL_WARPS), -1)) for phase in phases]
    return {
        "barrier": [phase.barrier for phase in phases],
        "cta": [phase.cta for phase in phases],
        "number": [phase.number for phase in phases],
        "end": [round(phase.end) for phase in phases],
        "bytes": [phase.nbytes for phase in phases],
        "lane": lane,
        "issued": [round(phase.issued) for phase in phases],
        "where": [_number(phase.where, wheres) for phase in phases],
    }
