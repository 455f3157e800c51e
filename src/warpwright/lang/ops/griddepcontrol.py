"""griddepcontrol: a grid starts before the one it depends on has ended (PTX ISA 9.1 section 9.7.13.13).

The host launches the dependent grid so that it may start early; without that both calls do nothing.
"""

from __future__ import annotations

from warpwright.lang.trace import current

__all__ = ["launch_dependents", "wait"]


def wait() -> None:
    """Wait until the grids before this one are complete and their memory is visible.

    It stands before the first access to memory that they write, and before writes to memory that they read.

    Issued by each thread that needs it.
    Completes by the end of those grids.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.13 (griddepcontrol.wait).
    """
    current().emit("griddepcontrol.wait")


def launch_dependents() -> None:
    """Allow the next grid to start, once every CTA of this one has said so or ended: a hint that publishes no memory.

    Issued by one thread or more of each CTA.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.13 (griddepcontrol.launch_dependents).
    """
    current().emit("griddepcontrol.launch_dependents")
