"""Registers of a warp that checks follow."""

from __future__ import annotations

from dataclasses import dataclass, field

from warpwright.vgpu.jit.uses import Use

__all__ = ["WarpRegisters"]


@dataclass(slots=True)
class WarpRegisters:
    """The registers of one warp. ``flight``: group, instruction and registers of each wgmma that the warp has not
    waited for; ``since``: registers used since the last wgmma.fence, and by which instruction; ``fresh``: no wgmma
    was issued since then; ``written``: the lanes (a mask) that have written each register that may be unwritten;
    ``origins``: the load of unwritten memory that such a register comes from."""

    flight: list[tuple[int, int, Use]] = field(default_factory=list)
    since: dict[str, int] = field(default_factory=dict)
    fenced: bool = False
    fresh: bool = False
    written: dict[str, int] = field(default_factory=dict)
    origins: dict[str, int] = field(default_factory=dict)
