"""setmaxnreg: registers move from the warps that need few to those that need many (PTX ISA 9.1 section 9.7.19.5).

A kernel that uses it is assembled with a fixed number of registers a thread, as many as the CTA's threads may have.
All four warps of a warpgroup execute it, with the same count.
"""

from __future__ import annotations

from warpwright.lang.context import misuse
from warpwright.lang.trace import current

__all__ = ["dec", "inc"]

LEAST, MOST, STEP = 24, 256, 8


def dec(count: int) -> None:
    """Keep ``count`` registers a thread (24 to 256, a multiple of 8) and give the others back to the CTA.

    Raises KernelError for another count.

    Issued by every warp of a warpgroup, converged.
    Completes by itself.
    Targets: sm_90a, sm_100a, sm_120a.
    PTX ISA 9.1 section 9.7.19.5 (setmaxnreg).
    """
    _emit("dec", count)


def inc(count: int) -> None:
    """Raise this warp's registers to ``count`` a thread (24 to 256, a multiple of 8); the new ones hold nothing yet.

    Raises KernelError for another count.

    Issued by every warp of a warpgroup, converged.
    Completes by other warps' `dec`: it waits until the CTA has enough.
    Targets: sm_90a, sm_100a, sm_120a.
    PTX ISA 9.1 section 9.7.19.5 (setmaxnreg).
    """
    _emit("inc", count)


def _emit(action: str, count: int) -> None:
    trace = current()
    if not isinstance(count, int) or count % STEP or not LEAST <= count <= MOST:
        raise misuse(
            f"given setmaxnreg.{action}({count!r}); expected a multiple of {STEP} registers from {LEAST} to {MOST}"
        )
    trace.emit(f"setmaxnreg.{action}.sync.aligned.u32", count)
