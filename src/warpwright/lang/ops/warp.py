"""Operations of one warp: `warp` (its registers), `shfl`, `vote`, `match`, `redux`, `elect_one`, `activemask`."""

from __future__ import annotations

from typing import Any

from warpwright.lang.context import current, misuse
from warpwright.lang.expr import Expr, Value, operand
from warpwright.lang.ops.special import read, tid
from warpwright.ptx import nodes
from warpwright.types import b32, pred, u32

__all__ = ["activemask", "elect_one", "match", "redux", "shfl", "vote", "warp"]

ALL = "0xffffffff"


class _Warp:
    """This thread's place among the warps of its CTA."""

    @property
    def id(self) -> Expr:
        """The number of the warp in its CTA (u32), from the thread index: ``%warpid`` may change (section 10.4)."""
        x, y, z = current().threads
        index: Any = tid.x
        if y > 1 or z > 1:
            index = (tid.z * y + tid.y) * x + tid.x if z > 1 else tid.y * x + tid.x
        result: Expr = index >> 5
        return result

    @property
    def lane(self) -> Expr:
        """The number of the thread in its warp, 0 to 31 (u32)."""
        return read("laneid")

    def sync(self, mask: Value | str = ALL) -> None:
        """Wait until the lanes of ``mask`` are here; orders their memory accesses.

        Issued by every lane of the mask.
        Completes by the end of the instruction.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.2 (bar.warp.sync).
        """
        current().emit("bar.warp.sync", _mask(mask))


warp = _Warp()


def _mask(mask: Value | str) -> Any:
    return mask if isinstance(mask, str) else operand(mask, u32)


def elect_one(mask: Value | str = ALL) -> Expr:
    """A pred that holds in exactly one lane of ``mask``, the same one every time.

    Issued by every lane of the mask, converged.
    Completes by the end of the instruction.
    Targets: sm_90+.
    PTX ISA 9.1 section 9.7.13.14 (elect.sync).
    """
    trace = current()
    chosen = trace.fresh(pred)
    trace.emit("elect.sync", nodes.Pair(nodes.Reg("_"), nodes.Reg(chosen.reg)), _mask(mask))
    return chosen
