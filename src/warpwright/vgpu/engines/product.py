"""The product of tcgen05.mma for 16-bit operands in shared memory and float32 sums, in machine code (`jit.product`).

The sums are added to tensor memory in the order of K, one product after the other. What an instruction reads depends on
descriptors only, so a run that is repeated keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpwright.vgpu.engines.accumulator import Block, cells_of
from warpwright.vgpu.engines.op import Fabric
from warpwright.vgpu.engines.operand import Matrix, Shape, buffer, plan
from warpwright.vgpu.jit.product import B_PANEL, KINDS, LARGEST_PANEL
from warpwright.vgpu.jit.runtime import function, product_tile

__all__ = ["Packed", "Product", "add", "is_packable", "prepare"]


@dataclass(slots=True, eq=False)
class Operand:
    """What some instructions read of A or B: its shape, its chunks, and the routine that packs them."""

    shape: Shape
    chunks: Matrix
    pack: Callable[..., None]


@dataclass(slots=True, eq=False)
class Product:
    """Some instructions on one accumulator, whose rectangles of tensor memory are ``cells``; ``tiles``: the extents of
    each, and where its rows of A and B begin. ``k``: elements along K. ``paired``: the second half of the cells is for
    rows of A in the other CTA of a pair, at the same places."""

    a: Operand
    b: Operand
    k: int
    cells: list[NDArray[np.int32]]
    tiles: list[tuple[int, int, int, int, int, int]]
    paired: bool


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
    a, b = (
        _operand(fabric, shape, column) for shape, column in zip(shapes, zip(*descriptors, strict=True), strict=True)
    )
    cells = [cells_of(fabric, base, d, block) for block in layout]
    tiles = [
        (each.ctypes.data, each.strides[0], m.start, n.start, m.stop - m.start, n.stop - n.start)
        for (_, _, _, n, m), each in zip(layout, cells, strict=True)
    ]
    return Product(a, b, k, cells, tiles, a.shape.ctas == 2 and a.shape.major == "k")


def _operand(fabric: Fabric, shape: Shape, descriptors: tuple[int, ...]) -> Operand:
    chunks = plan(((descriptors, shape),), fabric.shared_limit, fabric.shared_stride)
    return Operand(shape, chunks, function(f"pack_{'rows' if shape.major == 'k' else 'columns'}_{shape.type}"))


@dataclass(slots=True)
class Packed:
    """The operand B that this thread has packed last: products that follow each other may share it, as long as shared
    memory does not change."""

    key: tuple[Matrix | None, int] = (None, 0)


def add(fabric: Fabric, product: Product, base: int, packed: Packed, *, accumulate: bool) -> None:
    """Add a product to its accumulator, without ``accumulate`` to 0. ``base``: the first CTA of the group."""
    host, k, cells = fabric.shared_host + base * fabric.shared_stride, product.k, product.cells
    for each in () if accumulate else cells:
        each.fill(0)
    twins = product.paired and _are_twins(fabric, product, host)
    rows, blocks = (product.a.shape.rows // 2, len(cells) // 2) if twins else (product.a.shape.rows, len(cells))
    left, right = buffer("packed a", rows * k)[1], buffer("packed b", product.b.shape.rows * k)[1]
    product.a.pack(left, host, product.a.chunks.at, rows, k, product_tile().panel)
    if packed.key != (product.b.chunks, base):
        product.b.pack(right, host, product.b.chunks.at, product.b.shape.rows, k, B_PANEL)
        packed.key = product.b.chunks, base
    multiply = function("product")
    for to, pitch, row, column, height, width in product.tiles[:blocks]:
        multiply(to, pitch, left + 4 * row * k, right + 4 * column * k, height, width, k)
    for copy, each in zip(cells[blocks:], cells, strict=False):
        copy[...] = each


def _are_twins(fabric: Fabric, product: Product, host: int) -> bool:
    """Whether both CTAs of a pair have the same rows of A and the same sums, so that one product serves both."""
    chunks, half = product.a.chunks, len(product.cells) // 2
    if not function("same_chunks")(host, host + fabric.shared_stride, chunks.at, chunks.count // 2):
        return False
    return all(np.array_equal(*pair) for pair in zip(product.cells[:half], product.cells[half:], strict=True))
