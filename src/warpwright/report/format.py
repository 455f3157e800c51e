"""Text formats that tables, pictures and traces share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpwright.vgpu.timing import Profile

__all__ = ["base_name", "clause", "gain_text", "headline", "percent", "signed_percent"]


def headline(profile: Profile) -> str:
    """Returns the kernel and the device as a title."""
    return f"{profile.kernel} on {profile.device}, predicted"


def base_name(where: str) -> str:
    """Returns ``file:line`` of ``folder/file:line``."""
    return where.rpartition("/")[2]


def percent(share: float) -> str:
    """Returns ``"41 %"``, below ten with one decimal."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 or round(value, 1) == round(value) else f"{value:.1f} %"


def signed_percent(share: float) -> str:
    """Returns ``"+4 %"`` or ``"−4 %"``."""
    return f"{100 * share:+.0f} %".replace("-", "−")


def gain_text(gain: float) -> str:
    """Returns ``"+46 %"``, and from 100 % on ``"up to 2.5 times as fast"``."""
    if gain < 99.5:
        return f"+{gain:.0f} %"
    times = 1 + gain / 100
    return f"up to {times:.0f} times as fast" if times >= 9.95 else f"up to {times:.1f} times as fast"


def clause(role: str, reason: str) -> str:
    """Returns role and stall reason as a clause: ``"mma waits ab.full"``, ``"all warps wait ab.full"``."""
    return f"{role} {reason.replace('waits', 'wait', 1)}" if role == "all warps" else f"{role} {reason}"
