"""tcgen05.mma: the meaning of an opcode and an instruction descriptor, and the matrix product of many instructions at
once.

Instructions that add to the same accumulator are one matrix product with their K concatenated (`Run`). Elementwise
products are exact; PTX leaves the order of the float32 sums open ("at least single precision"). With 16-bit operands in
shared memory it is that of K (`product`); else NumPy's matrix product chooses it. f16 accumulators are rounded once an
instruction, so those are never concatenated; s32 is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpwright import isa
from warpwright.errors import DescriptorError
from warpwright.layout import InstrDescriptor, tmem_a_layout
from warpwright.ptx import nodes
from warpwright.vgpu.engines import hardware, product, scales
from warpwright.vgpu.engines.accumulator import Block, blocks, cells_of, check_columns, update, values_of, width
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.operand import K_BYTES, Shape, buffer, gather, plan, reads
from warpwright.vgpu.jit.tensor_core import PADDED, as_float

__all__ = [
    "A_COLUMNS",
    "PACKED_KINDS",
    "Form",
    "Mma",
    "Run",
    "descriptor_of",
    "form_of_op",
    "multiply",
    "read_descriptor",
    "scale_reads",
    "tensor_reads",
]

A_COLUMNS = K_BYTES // 4
PACKED_KINDS = ("mxf4", "mxf4nvf4")  # two elements a byte
LONGEST_K = 1024  # elements of K in one matrix product: the operands stay in the cache
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """The fields of a tcgen05.mma opcode, and whether A is in tensor memory. ``block``: elements that share a scale
    factor, 0 without scale factors; ``refusal``: why the virtual GPU does not execute the opcode, "" if it does."""

    kind: str
    group: int
    ws: bool
    tmem_a: bool
    block: int
    refusal: str


def form_of_op(op: Op) -> Form:
    """Returns the fields of an operation's opcode."""
    return form_of(op.inst.opcode, type(op.inst.operand("a")) is nodes.Address)


@lru_cache(maxsize=256)
def form_of(opcode: str, tmem_a: bool) -> Form:
    """Returns the fields of a tcgen05.mma opcode; ``tmem_a``: A is in tensor memory, not in shared memory."""
    match = isa.match(opcode)
    assert match is not None
    words = opcode.split(".")
    kind, group = match["kind"].removeprefix("kind::"), int(match["group"][-1])
    block = 0 if "block_scale" not in words else 16 if {"block16", "scale_vec::4X"} & {*words} else 32
    refusal = "the virtual GPU does not execute .ashift; use tcgen05.shift or store the shifted rows of A"
    return Form(kind, group, "ws" in words, tmem_a, block, refusal if "ashift" in words else "")


@dataclass(frozen=True, slots=True, eq=False)
class Mma:
    """A decoded instruction descriptor. ``span``: columns of the accumulator; ``lanes``: the lanes at which it may
    start; ``longest``: how many such instructions on one accumulator the virtual GPU computes as one matrix product;
    ``packable``: whether `product` computes it."""

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
    scales: scales.Scales | None
    packable: bool


def descriptor_of(op: Op, form: Form) -> int:
    """Returns an operation's instruction descriptor without the scale factor IDs: operations that differ in these alone
    add to the same sum."""
    return op["idesc"] & 0xFFFF_FFFF & ~(scales.SCALE_IDS if form.block else 0)


@lru_cache(maxsize=256)
def read_descriptor(form: Form, idesc: int, lane: int) -> Mma:
    """Decode an instruction descriptor; ``lane``: the start lane in the accumulator's address.

    Raises DescriptorError for reserved bits, types that the kind lacks, or an illegal M or N.
    """
    group, ws = form.group, form.ws
    desc = InstrDescriptor.decode(idesc, form.kind)
    desc.validate(group, ws)
    _check(desc, form, f"given instruction descriptor 0x{idesc:08x}")
    halves = (0, 16) if desc.m == 64 and not ws else (0,)
    layout = blocks(desc.m, desc.n, group, ws, lane == 16 and 16 in halves)
    types = ["e2m1x2" if desc.kind in PACKED_KINDS else type for type in (desc.a_type, desc.b_type)]
    a, b = Shape(desc.m, group, types[0], desc.a_major), Shape(desc.n, group, types[1], desc.b_major)
    negate = desc.negate_a != desc.negate_b
    packable = product.is_packable(a, b, desc.d_type, layout) and not (form.tmem_a or negate or desc.saturate)
    return Mma(
        m=desc.m,
        n=desc.n,
        k=desc.k,
        a=a,
        b=b,
        d_type=desc.d_type,
        layout=layout,
        span=width(layout),
        lanes=halves,
        negate=negate,
        saturate=desc.saturate,
        fusable=desc.d_type != "f16" and not desc.saturate,
        longest=8 if desc.kind == "i8" else LONGEST_K // desc.k,  # 8 × 32 × 255² < 2^24: exact in float32
        scales=scales.scales_of(desc, form.block, group),
        packable=packable,
    )


def _check(desc: InstrDescriptor, form: Form, given: str) -> None:
    if desc.sparse:
        raise DescriptorError(f"{given} with the sparse bit set; expected it only with tcgen05.mma.sp")
    if form.tmem_a and desc.a_major == "mn":
        raise DescriptorError(f"{given} with an MN-major A in tensor memory; expected K-major: clear bit 15")
    if form.tmem_a and desc.a_type in PADDED and desc.kind not in PACKED_KINDS:
        raise DescriptorError(
            f"given A of type {desc.a_type} in tensor memory, which the virtual GPU does not multiply; store A in "
            "shared memory"
        )
    if desc.k96:
        raise DescriptorError(f"{given} with K = 96, which the virtual GPU does not execute; expected K = 64")
    if form.block and (desc.m, form.group) == (128, 2):
        raise DescriptorError(
            f"{given} with M = 128, block scales and cta_group::2, which the virtual GPU does not execute; expected "
            "M = 256"
        )


def tensor_reads(op: Op, form: Form, mma: Mma) -> list[tuple[int, int]]:
    """Returns the columns of tensor memory that an operation reads beside the accumulator, as (first, count): of A and
    of scale factors."""
    return [(op["a"] & 0xFFFF, A_COLUMNS), *scale_reads(op, mma)] if form.tmem_a else scale_reads(op, mma)


def scale_reads(op: Op, mma: Mma) -> list[tuple[int, int]]:
    """Returns the columns of tensor memory with the scale factors of A and of B, as (first, count)."""
    if not mma.scales:
        return []
    places = [scales.place_of(op, name, mma.scales) for name in scales.NAMES]
    return [(address & 0xFFFF, count) for address, count in places]


@dataclass(slots=True, eq=False)
class Run:
    """Instructions of one CTA on one accumulator. ``base``: first CTA of the group; ``d``: address of the accumulator;
    ``factor``: scale of the old accumulator; ``masks``: words of lanes that keep their values; ``products``: those of
    `product`, once the run was performed."""

    form: Form
    mma: Mma
    base: int
    d: int
    accumulate: bool
    factor: float
    masks: list[int]
    ops: list[Op] = field(default_factory=list)
    products: list[product.Product] = field(default_factory=list)

    def overlaps(self, base: int, group: int, first: int, count: int) -> bool:
        """Whether the accumulator has a column among ``count`` from ``first`` in the CTAs from ``base`` on."""
        mine = self.d & 0xFFFF
        return (
            self.base < base + group
            and base < self.base + self.form.group
            and mine < first + count
            and first < mine + self.mma.span
        )


def multiply(fabric: Fabric, runs: Iterable[Run]) -> None:
    """Perform the instructions of runs, between which shared memory does not change. Raises DescriptorError through
    ``fabric.failure``."""
    packed = product.Packed()
    for run in runs:
        _perform(fabric, run, packed)


def _perform(fabric: Fabric, run: Run, packed: product.Packed) -> None:
    if not fabric.computes:
        return
    masked = _save_lanes(fabric, run)
    if run.mma.packable and run.factor == 1 and not fabric.hardware:
        _add_products(fabric, run, packed)
    else:
        with np.errstate(all="ignore"):
            as_hardware = fabric.hardware and run.mma.d_type != "s32"
            (_accumulate_as_hardware if as_hardware else _accumulate)(fabric, run)
    for cells, lanes, old in masked:
        cells[:, lanes] = old


def _add_products(fabric: Fabric, run: Run, packed: product.Packed) -> None:
    run.products = run.products or _products_of(fabric, run)
    for i, each in enumerate(run.products):
        product.add(fabric, each, run.base, packed, accumulate=run.accumulate or i > 0)


def _products_of(fabric: Fabric, run: Run) -> list[product.Product]:
    mma, found, place = run.mma, [], (run.base, run.d, run.mma.layout)
    for first in range(0, len(run.ops), mma.longest):
        descriptors = [(op["a"], op["b"]) for op in run.ops[first : first + mma.longest]]
        try:
            found.append(product.prepare(fabric, place, (mma.a, mma.b), descriptors, mma.k * len(descriptors)))
        except DescriptorError as error:
            raise _locate_error(fabric, run, error) from None
    return found


def _accumulate(fabric: Fabric, run: Run) -> None:
    mma = run.mma
    for first in range(0, len(run.ops), mma.longest):
        work = _multiply(fabric, run, run.ops[first : first + mma.longest])
        for block in mma.layout:
            update(
                cells_of(fabric, run.base, run.d, block),
                work[block.n, block.m],
                mma.d_type,
                accumulate=run.accumulate or first > 0,
                factor=1.0 if first else run.factor,
                saturate=mma.saturate,
            )


def _accumulate_as_hardware(fabric: Fabric, run: Run) -> None:
    """Accumulate one instruction after the other, each rounded like the tensor core."""
    mma, model = (
        run.mma,
        hardware.model_of(run.mma.a.type, run.mma.b.type, run.mma.d_type, "sm_100a"),
    )
    places = [(block, cells_of(fabric, run.base, run.d, block)) for block in mma.layout]
    sums = np.zeros((mma.m, mma.n), np.float32)
    for block, cells in places if run.accumulate else ():
        sums[block.m, block.n] = values_of(cells, mma.d_type).T * np.float32(run.factor)
    for first in range(0, len(run.ops), mma.longest):
        ops = run.ops[first : first + mma.longest]
        a, b = _operands(fabric, run, ops)
        left = -a if mma.negate else a
        if mma.scales:
            scales.round_scaled(fabric, ops, run.base, mma.scales, left, b, sums, model)
        else:
            hardware.accumulate(sums, left, b, mma.k, model)
    for block, cells in places:
        work = sums[block.m, block.n].T
        update(cells, work, mma.d_type, accumulate=False, factor=1.0, saturate=False)


def _save_lanes(fabric: Fabric, run: Run) -> list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]]:
    """For each CTA the accumulator's columns, the lanes that disable-output-lane masks, and their old values.

    Four words a CTA, bit i of word w: lane 32 w + i. The first four are the even CTA's (PTX does not specify it).
    """
    first, masked = run.d & 0xFFFF, []
    for cta in range(len(run.masks) // 4):
        lanes = np.array([i for i in range(128) if run.masks[4 * cta + i // 32] >> i % 32 & 1], np.int64)
        cells = fabric.tmem[run.base + cta, first : first + run.mma.span]
        masked.append((cells, lanes, cells[:, lanes]))
    return masked


def _multiply(fabric: Fabric, run: Run, ops: list[Op]) -> Floats:
    """The transposed product, N by M, of some instructions of the run, in a buffer of this thread."""
    mma = run.mma
    a, b = _operands(fabric, run, ops)
    work = buffer("sums", mma.n * mma.m)[0][: mma.n * mma.m].reshape(mma.n, mma.m)
    if mma.scales:
        scales.multiply_scaled(fabric, ops, run.base, mma.scales, a, b, work)
    else:
        np.matmul(b, a.T, out=work)
    return np.negative(work, out=work) if mma.negate else work


def _operands(fabric: Fabric, run: Run, ops: list[Op]) -> tuple[Floats, Floats]:
    """Returns the operands of some instructions of the run as float arrays: A (m, k) and B (n, k), k of all."""
    mma, host = run.mma, fabric.shared_host + run.base * fabric.shared_stride
    a, b = (tuple([op["a"] for op in ops]), mma.a), (tuple([op["b"] for op in ops]), mma.b)
    k = mma.k * len(ops)
    try:
        if run.form.tmem_a:
            right = gather(plan((b,), fabric.shared_limit, fabric.shared_stride), mma.b.type, host, "b")
            return _from_tensor_memory(fabric, run, ops), _matrix(right, mma.b, k)
        if mma.a.type == mma.b.type:
            both = gather(plan((a, b), fabric.shared_limit, fabric.shared_stride), mma.a.type, host, "a")
            left, right = both[: mma.m * k], both[mma.m * k :]
        else:
            left = gather(plan((a,), fabric.shared_limit, fabric.shared_stride), mma.a.type, host, "a")
            right = gather(plan((b,), fabric.shared_limit, fabric.shared_stride), mma.b.type, host, "b")
    except DescriptorError as error:
        raise _locate_error(fabric, run, error) from None
    return _matrix(left, mma.a, k), _matrix(right, mma.b, k)


def _matrix(values: Floats, shape: Shape, k: int) -> Floats:
    values = values[: shape.rows * k]
    return values.reshape(shape.rows, k) if shape.major == "k" else values.reshape(k, shape.rows).T


def _locate_error(fabric: Fabric, run: Run, error: DescriptorError) -> Exception:
    """The error, located at the first instruction of the run that causes it."""
    for op in run.ops:
        operands = [("b", run.mma.b)] if run.form.tmem_a else [("a", run.mma.a), ("b", run.mma.b)]
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
    mma = run.mma
    cta, lane, _ = tmem_a_layout(mma.m, run.form.group, ws=run.form.ws)(np.arange(mma.m), 0)
    cta = np.broadcast_to(cta, lane.shape)
    columns = []
    for op in ops:
        address = op["a"]
        for rank in range(run.base, run.base + run.form.group):
            check_columns(fabric, op, rank, address, A_COLUMNS, mma.lanes)
        first, lanes = address & 0xFFFF, lane + (address >> 16 & 0xFFFF)
        where = (run.base + cta)[:, None], np.arange(first, first + A_COLUMNS), lanes[:, None]
        columns.append(fabric.tmem[where])
    return as_float(np.concatenate(columns, axis=1).view(np.uint8), mma.a.type)
