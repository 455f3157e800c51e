"""Lanes that execute a collective instruction of their warp and are no members, that take values from lanes that do not
execute it, or that name lanes that have exited (PTX ISA 9.1 sections 9.7.9.6 and 9.7.13)."""

from __future__ import annotations

from warpwright.vgpu.checks.findings import Step
from warpwright.vgpu.checks.knowledge import Knowledge
from warpwright.vgpu.checks.row import Row
from warpwright.vgpu.checks.rules import EVIDENCE
from warpwright.vgpu.jit.record import EXITED_MEMBER, NO_MEMBER

__all__ = ["absent"]


def absent(known: Knowledge, row: Row) -> None:
    """Lanes take a value from a lane that does not execute the instruction, are not members, or name lanes that have
    exited."""
    if row.extra & EXITED_MEMBER:
        _find_exited(known, row)
    elif row.extra & NO_MEMBER:
        known.find("inactive-lane", (_step(known, row),), "the lane is not in the member mask that it gives")
    else:
        text = "the lane whose value it takes has exited, or is no member"
        known.find("inactive-lane", (_step(known, row),), text)


def _find_exited(known: Knowledge, row: Row) -> None:
    existed = known.cluster.launch.live_mask(row.warp % known.cluster.per_cta)
    gone = row.a & existed
    if gone:
        lane = (gone & -gone).bit_length() - 1
        text = f"lane {lane} of its member mask has exited"
        known.find("inactive-lane", (_step(known, row),), text, EVIDENCE["exited"])


def _step(known: Knowledge, row: Row) -> Step:
    return known.step("executes", row.inst, int(row.lanes[0]))
