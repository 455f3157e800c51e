"""The timeline of a profile as data for the script that draws it: lanes in the order of the data flow, in columns of
whole cycles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from warpwright.report.format import base_name
from warpwright.report.html.sources import code_of
from warpwright.report.lanes import ALL_WARPS, Lane, kind, lanes, merge_tracks, windows
from warpwright.vgpu.timing import Phase, Profile, Span

__all__ = ["timeline_data"]

BARRIER = "barrier"
Json = dict[str, Any]


class _Strings:
    """Strings by number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


def timeline_data(profile: Profile) -> Json:
    """Returns lanes, phases and strings of a timeline; ``{}`` for a profile without spans.

    The columns of a lane: start, duration, name, line, bytes, phase, and the phase whose end released a wait. A lane of
    an mbarrier has its phases.
    """
    spans = merge_tracks(profile.spans)
    drawn = lanes(spans)
    if not drawn:
        return {}
    names, wheres = _Strings(), _Strings()
    rows = list(_lanes(drawn, profile.phases, names, wheres))
    tracks = {(row["cta"], row["name"]): number for number, row in enumerate(rows)}
    return {
        "cyclesPerUs": profile.clock_mhz,
        "windows": asdict(windows(profile.spans)),
        "lanes": rows,
        "phases": _phase_columns(profile.phases, tracks, wheres),
        "names": list(names.numbers),
        "wheres": [base_name(where) for where in wheres.numbers],
        "code": [code_of(where) for where in wheres.numbers],
    }


def _lanes(drawn: Sequence[Lane], phases: Sequence[Phase], names: _Strings, wheres: _Strings) -> Iterable[Json]:
    """Yields the lanes of each CTA, then those of its mbarriers."""
    for cta, group in groupby(drawn, key=lambda lane: lane.cta):
        for lane in group:
            row: Json = {"cta": cta, "name": lane.track, "ring": lane.ring}
            yield row | _span_columns(lane.spans, names, wheres)
        own = [(number, phase) for number, phase in enumerate(phases) if phase.cta == cta]
        for name, some in groupby(sorted(own, key=lambda each: each[1].barrier), key=lambda each: each[1].barrier):
            yield {"cta": cta, "name": name, "ring": name.partition("[")[0], "barrier": True} | _phases_of(
                list(some), names, wheres
            )


def _span_columns(spans: Sequence[Span], names: _Strings, wheres: _Strings) -> Json:
    columns: Json = {
        "start": [round(span.start) for span in spans],
        "length": [max(1, round(span.end - span.start)) for span in spans],
        "what": [names.number((span.name, kind(span))) for span in spans],
        "where": [wheres.number(span.where) for span in spans],
        "bytes": [span.nbytes for span in spans],
        "phase": [span.phase for span in spans],
        "released": [span.released for span in spans],
    }
    constant = {"bytes": 0, "phase": -1, "released": -1}
    return {name: column for name, column in columns.items() if any(value != constant.get(name) for value in column)}


def _phases_of(phases: Sequence[tuple[int, Phase]], names: _Strings, wheres: _Strings) -> Json:
    """Returns the columns of the lane of an mbarrier; phases of parity 0 and 1 differ in their kind."""
    return {
        "start": [round(phase.start) for _, phase in phases],
        "length": [max(1, round(phase.end - phase.start)) for _, phase in phases],
        "what": [names.number(("phase", f"parity {phase.number & 1}")) for _, phase in phases],
        "where": [wheres.number(phase.where) for _, phase in phases],
        "bytes": [phase.nbytes for _, phase in phases],
        "phase": [phase.number for _, phase in phases],
        "released": [number for number, _ in phases],
    }


def _phase_columns(phases: Sequence[Phase], tracks: dict[tuple[int, str], int], wheres: _Strings) -> Json:
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
        "where": [wheres.number(phase.where) for phase in phases],
    }
