"""Warp operations: `warp` (id, lane, sync), `shfl`, `vote`, `match`, `redux`, `elect_one`, `activemask`."""

from __future__ import annotations

from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.convert import pack, unpack
from warpwright.lang.expr import Expr, Value, as_expr, operand
from warpwright.lang.ops.special import read, tid
from warpwright.lang.trace import current
from warpwright.ptx import nodes
from warpwright.types import b32, pred, u32

__all__ = ["activemask", "elect_one", "match", "redux", "shfl", "vote", "warp"]

ALL = "0xffffffff"


class _Warp:
    """``warp``: the thread's warp in its CTA, its lane, and the warp barrier."""

    __slots__ = ()
    namespace = "warp"

    @property
    def id(self) -> Expr:
        """The warp's number in its CTA (u32), computed from the thread index: ``%warpid`` may change (section 10.4)."""
        x, y, z = current().threads
        row = tid.z * y + tid.y if z > 1 else tid.y if y > 1 else None
        index = tid.x if row is None else row * x + tid.x
        return index >> 5

    @property
    def lane(self) -> Expr:
        """The thread's number in its warp, 0 to 31 (u32)."""
        return read("laneid")

    def sync(self, mask: Value | str = ALL) -> None:
        """Wait until all lanes of ``mask`` arrive; the barrier orders their memory accesses.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.2 (bar.warp.sync).
        """
        current().emit("bar.warp.sync", _mask_operand(mask))


warp = _Warp()


def _mask_operand(mask: Value | str) -> Any:
    return mask if isinstance(mask, str) else operand(mask, u32)


def elect_one(mask: Value | str = ALL) -> Expr:
    """Returns a pred that holds in exactly one lane of ``mask``, always the same one.

    Issued by every lane of the mask, converged.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.14 (elect.sync).
    """
    trace = current()
    chosen = trace.fresh(pred)
    trace.emit("elect.sync", nodes.Pair(nodes.Reg("_"), nodes.Reg(chosen.reg)), _mask_operand(mask))
    return chosen


def activemask() -> Expr:
    """Returns the mask (b32) of the lanes that execute this call together; PTX does not specify which.

    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.13.11 (activemask).
    """
    return current().result("activemask.b32", b32)


class _Shuffle:
    """``shfl``: the value of another lane, for types of 16, 32 and 64 bits."""

    __slots__ = ()
    namespace = "shfl"

    def bfly(self, value: Expr, lane_mask: Value, *, width: int = 32, mask: Value | str = ALL) -> Expr:
        """Returns the value of lane ``lane ^ lane_mask``.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.9.6 (shfl.sync.bfly).
        """
        return _shuffle("bfly", value, lane_mask, width, mask)

    def idx(self, value: Expr, lane: Value, *, width: int = 32, mask: Value | str = ALL) -> Expr:
        """Returns the value of lane ``lane`` of each group of ``width`` lanes.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.9.6 (shfl.sync.idx).
        """
        return _shuffle("idx", value, lane, width, mask)

    def up(self, value: Expr, delta: Value, *, width: int = 32, mask: Value | str = ALL) -> Expr:
        """Returns the value of the lane ``delta`` below; the first ``delta`` lanes of a group get their own.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.9.6 (shfl.sync.up).
        """
        return _shuffle("up", value, delta, width, mask)

    def down(self, value: Expr, delta: Value, *, width: int = 32, mask: Value | str = ALL) -> Expr:
        """Returns the value of the lane ``delta`` above; the last ``delta`` lanes of a group get their own.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.9.6 (shfl.sync.down).
        """
        return _shuffle("down", value, delta, width, mask)


def _shuffle(mode: str, value: Expr, lane: Value, width: int, mask: Value | str) -> Expr:
    """Emit a shuffle; 16-bit values are widened, 64-bit values split. Operand c is segment mask and clamp (9.7.9.6)."""
    current()
    if width not in (1, 2, 4, 8, 16, 32):
        raise misuse(f"given width={width} to shfl.{mode}; expected a power of two from 1 to 32")
    if not isinstance(value, Expr) or value.type.bits not in (16, 32, 64):
        raise misuse(f"given {value!r} to shfl.{mode}; expected a run-time value of 16, 32 or 64 bits")
    if value.type.bits == 64:
        low, high = unpack(value, b32)
        return pack(value.type, _shuffle(mode, low, lane, width, mask), _shuffle(mode, high, lane, width, mask))
    if value.type.bits == 16:
        wide = pack(b32, value, value)
        return unpack(_shuffle(mode, wide, lane, width, mask), value.type)[0]
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    return current().result(f"shfl.sync.{mode}.b32", value.type, value, operand(lane, u32), clamp, _mask_operand(mask))


class _Vote:
    """``vote``: a predicate reduced over the lanes of a warp."""

    __slots__ = ()
    namespace = "vote"

    def all(self, p: Expr, *, mask: Value | str = ALL) -> Expr:
        """Returns a pred, whether ``p`` holds in every lane of ``mask``.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.9 (vote.sync.all).
        """
        return current().result("vote.sync.all.pred", pred, as_expr(p, pred), _mask_operand(mask))

    def any(self, p: Expr, *, mask: Value | str = ALL) -> Expr:
        """Returns a pred, whether ``p`` holds in any lane of ``mask``.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.9 (vote.sync.any).
        """
        return current().result("vote.sync.any.pred", pred, as_expr(p, pred), _mask_operand(mask))

    def ballot(self, p: Expr, *, mask: Value | str = ALL) -> Expr:
        """Returns the lanes of ``mask`` in which ``p`` holds, one bit each (b32).

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.9 (vote.sync.ballot).
        """
        return current().result("vote.sync.ballot.b32", b32, as_expr(p, pred), _mask_operand(mask))


class _Match:
    """``match``: the lanes with equal values of 32 or 64 bits."""

    __slots__ = ()
    namespace = "match"

    def any(self, value: Expr, *, mask: Value | str = ALL) -> Expr:
        """Returns the lanes of ``mask`` with the same value as this lane, one bit each (b32).

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.10 (match.any.sync).
        """
        return current().result(f"match.any.sync.b{value.type.bits}", b32, value, _mask_operand(mask))

    def all(self, value: Expr, *, mask: Value | str = ALL) -> Expr:
        """Returns ``mask`` if all its lanes have the same value, else 0 (b32).

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.10 (match.all.sync).
        """
        return current().result(f"match.all.sync.b{value.type.bits}", b32, value, _mask_operand(mask))


class _Redux:
    """``redux``: a 32-bit integer reduced over the lanes of a warp; every lane gets the result."""

    __slots__ = ()
    namespace = "redux"

    def add(self, value: Expr, *, mask: Value | str = ALL) -> Expr:
        """Returns the sum over the lanes of ``mask``: u32, s32.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all.
        PTX ISA 9.1 section 9.7.13.12 (redux.sync.add).
        """
        return _reduce("add", value, mask)

    def min(self, value: Expr, *, mask: Value | str = ALL) -> Expr:
        """Returns the minimum over the lanes of ``mask``: u32, s32; f32 on sm_100a.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all; f32 sm_100a.
        PTX ISA 9.1 section 9.7.13.12 (redux.sync.min).
        """
        return _reduce("min", value, mask)

    def max(self, value: Expr, *, mask: Value | str = ALL) -> Expr:
        """Returns the maximum over the lanes of ``mask``: u32, s32; f32 on sm_100a.

        Issued by every lane of the mask.
        Completes by the arrival of the last of them.
        Targets: all; f32 sm_100a.
        PTX ISA 9.1 section 9.7.13.12 (redux.sync.max).
        """
        return _reduce("max", value, mask)


def _reduce(op: str, value: Expr, mask: Value | str) -> Expr:
    current()
    if not isinstance(value, Expr) or value.type.name not in ("u32", "s32", "f32"):
        raise misuse(f"given {value!r} to redux.{op}; expected a run-time u32 or s32: convert with x.to(u32)")
    return current().result(f"redux.sync.{op}.{value.type.name}", value.type, value, _mask_operand(mask))


shfl = _Shuffle()
vote = _Vote()
match = _Match()
redux = _Redux()
