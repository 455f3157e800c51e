"""griddepcontrol: programmatic dependent launch (PTX ISA 9.1 section 9.7.13.13).

A grid may start before the grid that it depends on has ended, if the host launches it so; else both calls do nothing.
"""

from __future__ import annotations

from warpwright.lang.trace import current

__all__ = ["launch_dependents", "wait"]


def wait() -> None:
    """Wait until the grids that this grid depends on are complete and their writes are visible.

    It comes before the first read of memory that they write and before the first write to memory that they read.

    Issued by each thread that needs it.
    Completes by the end of those grids.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.13 (griddepcontrol.wait).
    """
    current().emit("griddepcontrol.wait")


def launch_dependents() -> None:
    """Let the dependent grid start when every CTA has called this or ended; the hint makes no write visible.

    Issued by one thread or more of each CTA.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.13 (griddepcontrol.launch_dependents).
    """
    current().emit("griddepcontrol.launch_dependents")
