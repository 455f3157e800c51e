"""setmaxnreg: move registers between the warpgroups of a CTA (PTX ISA 9.1 section 9.7.19.5).

ptxas gives such a kernel a fixed number of registers a thread, the maximum for its block size. All four warps of a
warpgroup execute the instruction with the same count.
"""

from __future__ import annotations

from warpwright.lang.context import misuse
from warpwright.lang.trace import current

__all__ = ["dec", "inc"]

MIN_COUNT, MAX_COUNT, STEP = 24, 256, 8


def dec(count: int) -> None:
    """Reduce to ``count`` registers a thread (24 to 256, a multiple of 8) and release the others to the CTA.

    Raises KernelError for another count.

    Issued by every warp of a warpgroup, converged.
    Completes by itself.
    Targets: sm_90a, sm_100a, sm_120a.
    PTX ISA 9.1 section 9.7.19.5 (setmaxnreg).
    """
    _emit("dec", count)


def inc(count: int) -> None:
    """Increase to ``count`` registers a thread (24 to 256, a multiple of 8); the new registers are not initialised.

    Raises KernelError for another count.

    Issued by every warp of a warpgroup, converged.
    Completes by other warps' `dec`: it waits until the CTA has enough.
    Targets: sm_90a, sm_100a, sm_120a.
    PTX ISA 9.1 section 9.7.19.5 (setmaxnreg).
    """
    _emit("inc", count)


def _emit(action: str, count: int) -> None:
    trace = current()
    if not isinstance(count, int) or count % STEP or not MIN_COUNT <= count <= MAX_COUNT:
        raise misuse(
            f"given setmaxnreg.{action}({count!r}); "
            f"expected a multiple of {STEP} registers from {MIN_COUNT} to {MAX_COUNT}"
        )
    trace.emit(f"setmaxnreg.{action}.sync.aligned.u32", count)
