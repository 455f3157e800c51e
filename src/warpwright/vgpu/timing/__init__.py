"""The timing model: the predicted time of a launch on the chip, and its breakdown."""

from __future__ import annotations

from warpwright.vgpu.timing.result import Conflict, Phase, Profile, Region, Resources, Role, Span, Stall, Usage

__all__ = ["Conflict", "Phase", "Profile", "Region", "Resources", "Role", "Span", "Stall", "Usage"]
