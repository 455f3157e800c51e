"""tcgen05.mma: what an opcode and an instruction descriptor ask for, and products of many instructions at once.

Instructions that add to the same accumulator are one product with their K side by side (`Run`). Products of operands
are exact; their sums are float32 sums in whatever order the matrix product takes, which PTX leaves open ("at least
single precision"). f16 accumulators are rounded once an instruction, so those never share a product; s32 is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpwright import isa
from warpwright.errors import DescriptorError
from warpwright.layout import InstrDescriptor, tmem_a_layout
from warpwright.vgpu.engines import hardware
from warpwright.vgpu.engines.accumulator import Block, blocks, cells_of, check_columns, held, update, width
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.operand import K_BYTES, Shape, buffer, gather, plan, reads
from warpwright.vgpu.jit.tensor_core import TYPES, as_float

__all__ = ["A_COLUMNS", "Form", "Product", "Run", "form_of", "multiply", "product_of"]

A_COLUMNS = K_BYTES // 4
LONGEST_K = 1024  # elements of K in one product: the operands stay in the cache
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What an opcode says. ``refused``: why it is not executed."""

    kind: str
    group: int
    ws: bool
    tmem_a: bool
    refused: str


@lru_cache(maxsize=256)
def form_of(opcode: str, tmem_a: bool) -> Form:
    """Returns the form of an opcode; ``tmem_a``: whether A is in tensor memory."""
    match = isa.match(opcode)
    assert match is not None
    ws = "ws" in opcode.split(".")
    kind, group = match["kind"].removeprefix("kind::"), int(match["group"][-1])
    return Form(kind, group, ws, tmem_a, _refused(opcode.split("."), kind))


def _refused(words: list[str], kind: str) -> str:
    if "block_scale" in words:
        return (
            f"the virtual GPU does not execute block-scaled kinds, kind::{kind} here; expected kind::f16, tf32, f8f6f4 "
            "or i8; scale the operands before the product"
        )
    if "ashift" in words:
        return "the virtual GPU does not execute .ashift; use tcgen05.shift or store the shifted rows of A"
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """An instruction descriptor read for a form. ``span``: columns of the accumulator; ``lanes``: where it may start;
    ``longest``: instructions that one matrix product takes."""

    m: int
    n: int
    k: int
    a: Shape
    b: Shape
    d_type: str
    layout: tuple[Block, ...]
    span: int
    lanes: tuple[int, ...]
    negate: bool
    saturate: bool
    fusable: bool
    longest: int


@lru_cache(maxsize=256)
def product_of(kind: str, group: int, ws: bool, tmem_a: bool, idesc: int, lane: int) -> Product:
    """What an instruction descriptor asks for; ``lane``: that of the accumulator's address.

    Raises DescriptorError for reserved bits, types that the kind does not have, or an illegal M or N.
    """
    desc = InstrDescriptor.decode(idesc, kind)
    desc.validate(group, ws)
    if desc.sparse:
        raise DescriptorError(
            f"given instruction descriptor 0x{idesc:08x} with the sparse bit set; expected it only with tcgen05.mma.sp"
        )
    if tmem_a and desc.a_major == "mn":
        raise DescriptorError(
            f"given instruction descriptor 0x{idesc:08x} with an MN-major A in tensor memory; expected K-major: "
            "clear bit 15"
        )
    for name, type in (("A", desc.a_type), ("B", desc.b_type)):
        if type not in TYPES:
            raise DescriptorError(
                f"given {name} of type {type}, which the virtual GPU does not multiply; expected one of "
                f"{', '.join(TYPES)}"
            )
    halves = (0, 16) if desc.m == 64 and not ws else (0,)
    layout = blocks(desc.m, desc.n, group, ws, lane == 16 and 16 in halves)
    return Product(
        m=desc.m,
        n=desc.n,
        k=desc.k,
        a=Shape(desc.m, group, desc.a_type, desc.a_major),
        b=Shape(desc.n, group, desc.b_type, desc.b_major),
        d_type=desc.d_type,
        layout=layout,
        span=width(layout),
        lanes=halves,
        negate=desc.negate_a != desc.negate_b,
        saturate=desc.saturate,
        fusable=desc.d_type != "f16" and not desc.saturate,
        longest=8 if desc.kind == "i8" else LONGEST_K // desc.k,  # 8 × 32 × 255² < 2^24: exact in float32
    )


@dataclass(slots=True, eq=False)
class Run:
    """Instructions of one CTA on one accumulator. ``base``: first CTA of the group; ``d``: address of the accumulator;
    ``factor``: what the accumulator is multiplied with first; ``masks``: words of lanes to leave alone."""

    form: Form
    product: Product
    base: int
    d: int
    accumulate: bool
    factor: float
    masks: list[int]
    ops: list[Op] = field(default_factory=list)

    def overlaps(self, base: int, group: int, first: int, count: int) -> bool:
        """Whether the accumulator has a column among ``count`` from ``first`` in the CTAs from ``base`` on."""
        mine = self.d & 0xFFFF
        return (
            self.base < base + group
            and base < self.base + self.form.group
            and mine < first + count
            and first < mine + self.product.span
        )


def multiply(fabric: Fabric, run: Run) -> None:
    """Perform the instructions of a run. Raises what ``fabric.failure`` makes of DescriptorError."""
    if not fabric.computes:
        return
    kept = _masked_lanes(fabric, run)
    with np.errstate(all="ignore"):
        modelled = fabric.hardware and run.product.d_type != "s32"
        (_accumulate_as_hardware if modelled else _accumulate)(fabric, run)
    for cells, lanes, old in kept:
        cells[:, lanes] = old


def _accumulate(fabric: Fabric, run: Run) -> None:
    product = run.product
    for first in range(0, len(run.ops), product.longest):
        work = _product(fabric, run, run.ops[first : first + product.longest])
        for block in product.layout:
            update(
                cells_of(fabric, run.base, run.d, block),
                work[block.n, block.m],
                product.d_type,
                accumulate=run.accumulate or first > 0,
                factor=1.0 if first else run.factor,
                saturate=product.saturate,
            )


def _accumulate_as_hardware(fabric: Fabric, run: Run) -> None:
    """One instruction after the other, each rounded as the tensor core does."""
    product, model = (
        run.product,
        hardware.model_of(run.product.a.type, run.product.b.type, run.product.d_type, "sm_100a"),
    )
    places = [(block, cells_of(fabric, run.base, run.d, block)) for block in product.layout]
    sums = np.zeros((product.m, product.n), np.float32)
    for block, cells in places if run.accumulate else ():
        sums[block.m, block.n] = held(cells, product.d_type).T * np.float32(run.factor)
    for first in range(0, len(run.ops), product.longest):
        a, b = _operands(fabric, run, run.ops[first : first + product.longest])
        hardware.accumulate(sums, -a if product.negate else a, b, product.k, model)
    for block, cells in places:
        work = sums[block.m, block.n].T
        update(cells, work, product.d_type, accumulate=False, factor=1.0, saturate=False)


def _masked_lanes(fabric: Fabric, run: Run) -> list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]]:
    """Columns of the accumulator, the lanes that a mask takes from the output, and what these hold.

    Four words a CTA, bit i of word w: lane 32 w + i. The first four are the even CTA's (PTX does not say).
    """
    first, kept = run.d & 0xFFFF, []
    for cta in range(len(run.masks) // 4):
        lanes = np.array([i for i in range(128) if run.masks[4 * cta + i // 32] >> i % 32 & 1], np.int64)
        cells = fabric.tmem[run.base + cta, first : first + run.product.span]
        kept.append((cells, lanes, cells[:, lanes]))
    return kept


def _product(fabric: Fabric, run: Run, ops: list[Op]) -> Floats:
    """The transposed product, N by M, of some instructions of the run, in a buffer of this thread."""
    product = run.product
    a, b = _operands(fabric, run, ops)
    work = buffer("product", product.n * product.m)[0][: product.n * product.m].reshape(product.n, product.m)
    np.matmul(b, a.T, out=work)
    return np.negative(work, out=work) if product.negate else work


def _operands(fabric: Fabric, run: Run, ops: list[Op]) -> tuple[Floats, Floats]:
    """A as M by K and B as N by K."""
    product, host = run.product, fabric.shared_host + run.base * fabric.shared_stride
    a, b = (tuple([op["a"] for op in ops]), product.a), (tuple([op["b"] for op in ops]), product.b)
    k = product.k * len(ops)
    try:
        if run.form.tmem_a:
            right = gather(plan((b,), fabric.shared_limit, fabric.shared_stride), product.b.type, host, "b")
            return _from_tensor_memory(fabric, run, ops), _matrix(right, product.b, k)
        if product.a.type == product.b.type:
            both = gather(plan((a, b), fabric.shared_limit, fabric.shared_stride), product.a.type, host, "a")
            left, right = both[: product.m * k], both[product.m * k :]
        else:
            left = gather(plan((a,), fabric.shared_limit, fabric.shared_stride), product.a.type, host, "a")
            right = gather(plan((b,), fabric.shared_limit, fabric.shared_stride), product.b.type, host, "b")
    except DescriptorError as error:
        raise _culprit(fabric, run, error) from None
    return _matrix(left, product.a, k), _matrix(right, product.b, k)


def _matrix(values: Floats, shape: Shape, k: int) -> Floats:
    values = values[: shape.rows * k]
    return values.reshape(shape.rows, k) if shape.major == "k" else values.reshape(k, shape.rows).T


def _culprit(fabric: Fabric, run: Run, error: DescriptorError) -> Exception:
    """The error, at the first instruction of the run that has it."""
    for op in run.ops:
        operands = [("b", run.product.b)] if run.form.tmem_a else [("a", run.product.a), ("b", run.product.b)]
        for name, shape in operands:
            reason = _refusal(op[name], shape, fabric.shared_limit)
            if reason:
                return fabric.failure(DescriptorError, op, reason)
    return error


def _refusal(descriptor: int, shape: Shape, limit: int) -> str:
    try:
        reads(descriptor, shape, limit)
    except DescriptorError as error:
        return str(error)
    return ""


def _from_tensor_memory(fabric: Fabric, run: Run, ops: list[Op]) -> Floats:
    """A as M by K from each CTA's tensor memory, 32 bits of K a column."""
    product = run.product
    cta, lane, _ = tmem_a_layout(product.m, run.form.group, ws=run.form.ws)(np.arange(product.m), 0)
    cta = np.broadcast_to(cta, lane.shape)
    columns = []
    for op in ops:
        address = op["a"]
        for rank in range(run.base, run.base + run.form.group):
            check_columns(fabric, op, rank, address, A_COLUMNS, product.lanes)
        first, lanes = address & 0xFFFF, lane + (address >> 16 & 0xFFFF)
        where = (run.base + cta)[:, None], np.arange(first, first + A_COLUMNS), lanes[:, None]
        columns.append(fabric.tmem[where])
    return as_float(np.concatenate(columns, axis=1).view(np.uint8), product.a.type)
