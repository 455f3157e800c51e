"""Words that tables, pictures and traces share."""

from __future__ import annotations

from warpwright.vgpu.timing import Profile

__all__ = ["clause", "headline", "percent", "place"]


def headline(profile: Profile) -> str:
    """What ran where, in a few words."""
    return f"{profile.kernel} on {profile.device}, predicted"


def place(where: str) -> str:
    """``file:line`` without the folders before the file."""
    return where.rpartition("/")[2]


def percent(share: float) -> str:
    """``"41 %"``; one digit behind the point below ten."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 or round(value, 1) == round(value) else f"{value:.1f} %"


def clause(role: str, reason: str) -> str:
    """Who waits for what: ``"mma waits ab.full"``, ``"all warps wait ab.full"``."""
    return f"{role} {reason.replace('waits', 'wait', 1)}" if role == "all warps" else f"{role} {reason}"
