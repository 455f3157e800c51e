"""Probes of tensor copies of im2col mode: which pixels a copy takes, and in what order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from warpwright.layout.tensor_map import TensorMap
from warpwright.selftest.probes import texts
from warpwright.selftest.probes.cases import Case, numbered

__all__ = ["pixel_loads", "pixel_stores", "refused_pixels"]

LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
STORE = "{}.{}d.global.shared::cta{}.im2col_no_offs.bulk_group"
SWIZZLES = (0, 0, 32, 64, 128)
COUNT = 60


def load(rank: int) -> str:
    """A load to an arena filled with 0xEE; ``out``: the arena, then whether ``nbytes`` arrived exactly."""
    params, loads, vector = texts.coordinates(rank)
    offsets = [f"%f{n}" for n in range(rank - 2)]
    signature = ".param .align 64 .b8 tensor[128], .param .u64 out, .param .u32 total, .param .u32 nbytes"
    copy = f"""
    .reg .b16 %f<3>;
    mov.b64 %map, tensor;
    cvta.param.u64 %map, %map;
    ld.param.u32 %nbytes, [nbytes];
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], %nbytes;
    @%first {LOAD.format(rank)} [%base], [%map, {vector}], [%bar], {{{", ".join(offsets)}}};
"""
    params += "".join(f", .param .u16 f{n}" for n in range(rank - 2))
    loads += "".join(f"    ld.param.u16 %f{n}, [f{n}];\n" for n in range(rank - 2))
    copy, declare = copy.replace("    .reg .b16 %f<3>;\n", ""), "    .reg .b16 %f<3>;\n"
    start = texts.START + declare + loads
    end = texts.WAIT + texts.DUMP + texts.DONE
    return texts.module("load", signature + params, start + texts.FILL + texts.READY + copy + end)


def store(rank: int, op: str = "") -> str:
    """A store (or reduction ``op``) of an arena that holds ``source``."""
    params, loads, vector = texts.coordinates(rank)
    signature = ".param .align 64 .b8 tensor[128], .param .u64 out, .param .u32 total"
    name = STORE.format("cp.reduce.async.bulk.tensor" if op else "cp.async.bulk.tensor", rank, op and f".{op}")
    copy = f"""
    mov.b64 %map, tensor;
    cvta.param.u64 %map, %map;
    fence.proxy.async;
    bar.sync 0;
    @%first {name} [%map, {vector}], [%base];
    @%first cp.async.bulk.commit_group;
    @%first cp.async.bulk.wait_group 0;
"""
    return texts.module("store", signature + params, texts.START + loads + texts.TAKE + copy)


def maps(seed: int, inside: bool = False) -> Iterator[tuple[str, TensorMap, list[int], list[int]]]:
    """Random maps, each with a pixel to start at and the offsets of a filter, all in axis order.

    ``inside``: all pixels of the maps are in the images, and copies start there.
    """
    rng = np.random.default_rng(seed)
    for number in range(COUNT):
        space = 1 + number % 3
        dtype = np.dtype((np.uint8, np.uint16, np.float32)[int(rng.integers(3))])
        swizzle = SWIZZLES[int(rng.integers(len(SWIZZLES)))]
        unit = 16 // dtype.itemsize
        channels = unit * int(rng.integers(1, (swizzle or 64) // 16 + 1))
        extents, steps = rng.integers(3, 7, space), rng.integers(1, 4, space)
        low = rng.integers(0, 2, space) if inside else rng.integers(-2, 2, space)
        high = np.maximum(rng.integers(-2, 1 if inside else 3, space), low + 1 - extents)
        images = numbered((2, *extents, channels + unit * int(rng.integers(0, 2))), dtype)
        tensor = TensorMap(
            images,
            (int(rng.integers(1, 33)), channels),
            swizzle=swizzle,
            corners=(low.tolist(), high.tolist()),
            element_strides=(1, *steps.tolist(), 1),
        )
        places = zip(low, extents + high, steps, strict=True)
        pixel = [int(rng.choice(np.arange(first, last, step))) for first, last, step in places]
        at = [int(rng.integers(0, 2)), *pixel, unit * int(rng.integers(0 if inside else -1, 2))]
        where = " ".join(str(part) for part in (extents, low, high, steps, at))
        yield f"{number}: {dtype.name} {where}", tensor, at, rng.integers(0, 4, space).tolist()


def arena_bytes(tensor: TensorMap) -> int:
    row = max(int(tensor.swizzle), tensor.box[0] * tensor.dtype.nbytes)
    return -(-tensor.box[1] * row // 1024) * 1024


def pixel_loads() -> Iterator[Case]:
    """Loads of pixels across rows and images, inside and outside of the corners, with offsets of a filter."""
    for name, tensor, at, offsets in maps(61):
        total = arena_bytes(tensor)
        out = np.zeros(total // 4 + 1, np.uint32)
        args: list[Any] = [tensor, out, total, tensor.nbytes, *reversed(at), *reversed(offsets)]
        yield Case(name, load(tensor.rank), args, out, smem=1024 + total)


def pixel_stores() -> Iterator[Case]:
    """Stores and sums of the pixels of a map of im2col mode."""
    for number, (name, tensor, at, _) in enumerate(maps(62, inside=True)):
        op = "add" if number % 2 and tensor.dtype.nbytes == 4 else ""
        yield store_case(f"{op} {name}".strip(), tensor, at, op)


def refused_pixels() -> Iterator[Case]:
    """Which stores of a map of im2col mode fault: pixels outside of the images, or a start there."""
    for name, tensor, at, _ in list(maps(63))[:8]:
        if min(at) < 0 or min(tensor.corners[0]) < 0 or max(tensor.corners[1]) > 0:
            yield replace(store_case(name, tensor, at), refused=True)


def store_case(name: str, tensor: TensorMap, at: list[int], op: str = "") -> Case:
    arena = numbered((arena_bytes(tensor) // tensor.dtype.nbytes,), tensor.array.dtype).view(np.uint8)
    args: list[Any] = [tensor, arena, arena.size, *reversed(at)]
    return Case(name, store(tensor.rank, op), args, tensor.array, smem=1024 + arena.size)
