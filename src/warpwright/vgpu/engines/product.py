"""The product of tcgen05.mma for 16-bit operands in shared memory and float32 sums, in machine code (`jit.product`).

The sums are added to tensor memory in the order of K, one product after the other. What an instruction reads depends on
descriptors only, so a run that is repeated keeps it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.engines.accumulator import Block, cells_of
from warpwright.vgpu.engines.op import Fabric
from warpwright.vgpu.engines.operand import Matrix, Shape, buffer, plan
from warpwright.vgpu.jit.product import B_PANEL, KINDS, LARGEST_PANEL
from warpwright.vgpu.jit.runtime import address, function

__all__ = ["Packed", "Product", "add", "is_packable", "prepare"]


@dataclass(slots=True, eq=False)
class Product:
    """Some instructions on one accumulator, as `accumulate` takes them: a plan at ``plan_at``. ``left`` and ``right``:
    elements of A and B; ``b``: the chunks of B. The plan names ``kept``."""

    plan: NDArray[np.int64]
    plan_at: int
    left: int
    right: int
    b: Matrix
    kept: tuple[Any, ...]


def is_packable(a: Shape, b: Shape, d_type: str, layout: tuple[Block, ...]) -> bool:
    """Whether the product of these operands is computed in machine code, on every host alike."""
    whole = all(
        not (m.start % LARGEST_PANEL or m.stop % LARGEST_PANEL or n.start % B_PANEL or n.stop % B_PANEL)
        for _, _, _, n, m in layout
    )
    return whole and d_type == "f32" and a.type in KINDS and b.type in KINDS


def prepare(
    fabric: Fabric,
    place: tuple[int, int, tuple[Block, ...]],
    shapes: tuple[Shape, Shape],
    descriptors: list[tuple[int, int]],
    k: int,
) -> Product:
    """Returns the product of instructions with these descriptors of A and B, on the accumulator at ``place``: first
    CTA, address, rectangles. Raises DescriptorError."""
    base, d, layout = place
    matrices = [
        plan(((column, shape),), fabric.shared_limit, fabric.shared_stride)
        for shape, column in zip(shapes, zip(*descriptors, strict=True), strict=True)
    ]
    cells = [cells_of(fabric, base, d, block) for block in layout]
    tiles = [
        (each.ctypes.data, each.strides[0], m.start, n.start, m.stop - m.start, n.stop - n.start)
        for (_, _, _, n, m), each in zip(layout, cells, strict=True)
    ]
    words = np.array([*_words(shapes, matrices, k, len(tiles)), *itertools.chain(*tiles)], np.int64)
    (a, b), kept = shapes, (*matrices, *cells)
    return Product(words, words.ctypes.data, a.rows * k, b.rows * k, matrices[1], kept)


def _words(shapes: tuple[Shape, Shape], matrices: list[Matrix], k: int, tiles: int) -> list[int]:
    """Returns the words `PLAN`. Paired: the second half of the tiles is for rows of A in the other CTA of a pair, at
    the same places."""
    (a, b), (chunks_a, chunks_b) = shapes, matrices
    paired = a.ctas == 2 and a.major == "k"
    left = a.rows, k, chunks_a.at, chunks_a.count, _packing(a)
    return [*left, b.rows, chunks_b.at, _packing(b), paired, tiles]


def _packing(shape: Shape) -> int:
    return address(f"pack_{'rows' if shape.major == 'k' else 'columns'}_{shape.type}")


@dataclass(slots=True)
class Packed:
    """The operand B that this thread has packed last: products that follow each other may share it, as long as shared
    memory does not change."""

    key: tuple[Matrix | None, int] = (None, 0)


def add(fabric: Fabric, product: Product, base: int, packed: Packed, *, accumulate: bool) -> None:
    """Add a product to its accumulator, without ``accumulate`` to 0. ``base``: the first CTA of the group."""
    host, key = fabric.shared_host + base * fabric.shared_stride, (product.b, base)
    left, right = buffer("packed a", product.left)[1], buffer("packed b", product.right)[1]
    function("accumulate")(product.plan_at, host, fabric.shared_stride, left, right, accumulate, packed.key != key)
    packed.key = key
