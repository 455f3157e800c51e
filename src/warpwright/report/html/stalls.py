"""Stalls by source line beside the code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from warpwright.report.findings import location_of
from warpwright.report.format import clause, percent
from warpwright.report.html.elements import Html
from warpwright.report.html.sources import listing
from warpwright.vgpu.machine.waits import number_text
from warpwright.vgpu.timing import Profile

__all__ = ["stall_listings"]

MIN_SHARE = 0.01  # of the longest role's time, for a stall beside the code


class _Stall(NamedTuple):
    """The cycles that a role of a rank stalls at a line, and the time of the role."""

    cycles: float
    role: float
    rank: int


Stalls = Mapping[str, list[_Stall]]  # of a line, by role and reason


def stall_listings(profile: Profile) -> Iterator[Html]:
    """Yields for each source file its lines with stalls, beside them who stalls there, why and for how long; on a node
    on which ranks."""
    ranks = profile.ranks or (profile,)
    longest = max((role.cycles for each in ranks for role in each.roles), default=0.0)
    notes: dict[str, dict[int, dict[str, list[_Stall]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for rank, each in enumerate(ranks):
        for role in each.roles:
            for stall in role.stalls:
                for where, cycles in stall.lines or ((stall.where, stall.cycles),):
                    found = location_of(where)
                    if found and cycles >= MIN_SHARE * longest:
                        which = _Stall(cycles, role.cycles, rank)
                        notes[found[0]][found[1]][clause(role.name, stall.reason)].append(which)
    for file, lines in sorted(notes.items(), key=lambda each: -max(map(_longest, each[1].values()))):
        yield listing(file, {line: _notes(some, longest, bool(profile.ranks)) for line, some in lines.items()})


def _longest(stalls: Stalls) -> float:
    return max(each.cycles for some in stalls.values() for each in some)


def _notes(stalls: Stalls, longest: float, node: bool) -> tuple[str, str]:
    """Returns the longest stall of a line as a share of the longest role's time, and all stalls in words."""
    texts = sorted(((max(some).cycles, f"{who} {_shares(some, node)}") for who, some in stalls.items()), reverse=True)
    return percent(_longest(stalls) / longest), "; ".join(text for _, text in texts)


def _shares(stalls: list[_Stall], node: bool) -> str:
    """Returns ``"25 % of its 9,000 cycles"``, on a node ``"25 % of its cycles on ranks 0-2, 31 % on rank 3"``."""
    if not node:
        return f"{percent(stalls[0].cycles / stalls[0].role)} of its {stalls[0].role:,.0f} cycles"
    ranks: dict[str, list[int]] = defaultdict(list)
    for each in stalls:
        ranks[percent(each.cycles / each.role)].append(each.rank)
    first, *rest = [(share, f"on rank{'s' * (len(some) > 1)} {number_text(some)}") for share, some in ranks.items()]
    return ", ".join([f"{first[0]} of its cycles {first[1]}", *(f"{share} {where}" for share, where in rest)])
