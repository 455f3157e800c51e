"""The mainloop of the Hopper GEMM for FP8."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import product
from typing import Any

from warpwright.kernels.gemm.sm90.configs import STRIP, Config
from warpwright.kernels.tiles import WGMMA_BYTES, atom, clear, strip_of, window
from warpwright.lang import Expr, f32, loop, wgmma
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Cursor
from warpwright.lang.smem import Tile

__all__ = ["mainloop_fp8"]


def mainloop_fp8(
    sums: list[Fragment], config: Config, first: Any, start: Any, stop: Expr, slots: Cursor
) -> Iterator[Any]:
    """`mainloop` for FP8, whose tensor core accumulates 14 bits: 128 of K at a time, which are then added in float32.

    ``config.partials`` partial sums of ``config.promoted`` columns are in flight at a time. None is in flight across
    two slots: ptxas would serialise the wgmmas.
    """
    partials = [wgmma.accumulator(f32, (STRIP, config.promoted)) for _ in range(config.partials)]
    clear(*sums)
    for _ in loop(start, stop):
        slot = next(slots)
        slot.full.wait()
        columns = range(0, slot.a.shape[1], atom(slot.a.dtype))
        steps = list(product(range(len(sums)), range(0, sums[0].shape[1], config.promoted), columns))
        in_flight: deque[tuple[int, int, Fragment]] = deque()
        for number, (i, left, k) in enumerate(steps):
            partial = partials[number % config.partials]
            multiply_atom(partial, strip_of(slot.a, first + i, STRIP, "k"), slot.b[left : left + config.promoted, :], k)
            in_flight.append((i, left, partial))
            last = number == len(steps) - 1
            while len(in_flight) > (0 if last else config.partials - 1):
                strip, column, complete = in_flight.popleft()
                wgmma.wait_group(len(in_flight))
                if last and not in_flight:
                    yield slot
                for total, value in zip(sums[strip].regs[column // 2 :], complete.regs, strict=False):
                    total.set(total + value)


def multiply_atom(acc: Fragment, strip: Tile, rows: Tile, k: int) -> None:
    """Issue the wgmmas of 128 bytes of K from column ``k`` on; they overwrite ``acc``."""
    wgmma.fence()
    for kk in range(k, k + atom(strip.dtype), WGMMA_BYTES // strip.dtype.nbytes):
        wgmma.mma(acc, window(strip, kk, "k"), window(rows, kk, "k"), accumulate=kk > k)
    wgmma.commit_group()
