"""Ragged tensor maps in kernels: many loads in flight, sequences that end inside a box, stores after them."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright.errors import MemoryFault
from warpwright.lang import If, Ring, bf16, elect_one, fence, kernel, loop, smem, tma, u32, warp
from warpwright.layout.tensor_map import RAGGED_ROWS, ragged

ROWS, STAGES = 16, 4
BF16 = np.dtype(ml_dtypes.bfloat16)


@kernel("sm_90a", threads=32)
def copy(x: tma.Map[bf16], y: tma.Map[bf16], first: u32, length: u32, boxes: u32) -> None:
    """Copies ``length`` rows from ``first`` on, by ``boxes`` boxes of 16 rows, which may reach past them."""
    ring = Ring(STAGES, name="x", x=smem.tile(bf16, (ROWS, 64), swizzle=128))
    one = elect_one()
    with If(one):
        ring.init()
        fence.mbarrier_init()
    warp.sync()
    with If(one):
        loads, stores = ring.producer(), ring.consumer()
        for number in loop(boxes):
            slot = next(loads)
            slot.full.arrive_expect_tx(slot.nbytes)
            place = RAGGED_ROWS, first + length, RAGGED_ROWS - length + number * ROWS, 0
            tma.load(slot.x, x[place], slot.full)
        for number in loop(boxes):
            slot = next(stores)
            slot.full.wait()
            place = RAGGED_ROWS, first + length, RAGGED_ROWS - length + number * ROWS, 0
            tma.store(y[place], slot.x)
        tma.commit_group()
        tma.wait_group(0)


def copy_sequence(first: int, length: int, device: Any = "h200") -> tuple[np.ndarray, np.ndarray]:
    """Returns an array, and an array of 7 after the kernel has copied a sequence of the first into it."""
    x = np.random.default_rng(0).standard_normal((150, 64)).astype(BF16)
    y = np.full_like(x, 7)
    maps = [ragged(each, (1, 1, ROWS, 64), swizzle=128) for each in (x, y)]
    ww.launch(copy, 1, args=[*maps, first, length, STAGES], device=device)
    return x, y


@pytest.mark.parametrize(("first", "length"), [(0, 64), (0, 63), (13, 17), (100, 50), (149, 1), (150, 0), (20, 0)])
def test_only_the_sequence_is_copied(first: int, length: int) -> None:
    x, y = copy_sequence(first, length)
    inside = np.zeros(150, bool)
    inside[first : first + length] = True
    assert np.array_equal(y[inside], x[inside]) and (y[~inside] == 7).all()


def test_a_sequence_that_is_not_in_the_array_is_a_fault() -> None:
    """One that ends past the map copies nothing; one that starts before the array is a memory fault."""
    assert (copy_sequence(100, 51)[1] == 7).all()
    with pytest.raises(MemoryFault) as caught:
        copy_sequence(2**32 - 10, 74)
    assert re.sub("0x[0-9a-f]+", "0x…", str(caught.value)).endswith(
        "`cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes`: kernel copy, CTA (0, 0, "
        "0), warp 0, lane 0: bytes 0x… to 0x… are outside global memory: 1280 bytes before the 19200 bytes at 0x…."
    )
