"""Time: what a launch would take on the chip, and where it would go."""

from __future__ import annotations

from warpwright.vgpu.timing.result import Conflict, Profile, Role, Span, Stall, Usage

__all__ = ["Conflict", "Profile", "Role", "Span", "Stall", "Usage"]
