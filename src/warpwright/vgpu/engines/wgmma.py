"""wgmma.mma_async: MMAs of a warpgroup, accumulated in its registers (PTX ISA 9.1 section 9.7.15.5).

Instructions that add to the same accumulator are one matrix product with their K concatenated, as in `engines.mma`:
products exact, float32 sums in the order of NumPy's matrix product, f16 accumulators rounded once an instruction, s32
exact. The fragments are those of sections 9.7.15.5.1.1: see `matrix` and `left`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DescriptorError
from warpwright.isa.operands import extents_of
from warpwright.vgpu.engines import hardware
from warpwright.vgpu.engines.op import Fabric, Op
from warpwright.vgpu.engines.operand import K_BYTES, Shape, gather, plan, reads
from warpwright.vgpu.jit.tensor_core import TYPES, as_float

__all__ = ["Accumulator", "Form", "Step", "form_of", "fragment", "left", "matrix", "perform"]

M = 64
LONGEST = 32  # instructions in one matrix product: the operands stay in the cache
LONGEST_INTEGER = 8  # 8 × 32 × 255² < 2^24: exact in float32
Floats = NDArray[np.float32]
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of an opcode and its immediates. ``a`` is None if A is in registers of ``a_type``."""

    n: int
    d_type: str
    a_type: str
    a: Shape | None
    b: Shape
    negate: bool
    saturate: bool

    @property
    def k(self) -> int:
        return K_BYTES // TYPES[self.a_type]

    @property
    def longest(self) -> int:
        """Most instructions in one matrix product."""
        if self.d_type == "f16" or self.saturate:
            return 1
        return LONGEST if self.d_type == "f32" else LONGEST_INTEGER


@lru_cache(maxsize=256)
def form_of(opcode: str, registers: bool, immediates: tuple[int, ...]) -> Form:
    """``registers``: A is in registers; ``immediates``: the operands after scale-d, scales first, then
    transpositions."""
    words = opcode.split(".")
    shape, d_type, a_type, b_type = words[words.index("aligned") + 1 :][:4]
    _, n, _ = extents_of(shape)
    scales, transposed = immediates[:2], immediates[2:]
    majors = ["mn" if bit else "k" for bit in transposed] or ["k"]
    return Form(
        n=n,
        d_type=d_type,
        a_type=a_type,
        a=None if registers else Shape(M, 1, a_type, majors[0], "sm_90a"),
        b=Shape(n, 1, b_type, majors[-1], "sm_90a"),
        negate=scales in ((1, -1), (-1, 1)),
        saturate="satfinite" in words,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Accumulator:
    """The registers of D by number, in order and as a set. One object an accumulator: compared by identity."""

    at: NDArray[np.int64]
    numbers: frozenset[int]


@dataclass(slots=True, eq=False)
class Step:
    """One instruction of a warpgroup: the operation (for messages), descriptors or registers of A, descriptor of B."""

    op: Op
    form: Form
    a: int
    b: int
    accumulate: bool
    d: Accumulator
    a_at: NDArray[np.int64]


Registers = Words  # of four warps: (4, registers, 32 lanes)


def perform(fabric: Fabric, registers: Registers, steps: Sequence[Step]) -> None:
    """Perform instructions in order on the registers of their warpgroup.

    Raises DescriptorError through ``fabric.failure``.
    """
    runs: dict[Accumulator, list[Step]] = {}
    for step in steps:
        run = runs.get(step.d)
        if run and step.accumulate and step.form is run[0].form and len(run) < step.form.longest:
            run.append(step)
            continue
        if any(not step.d.numbers.isdisjoint(other.numbers) for other in runs):
            _perform_runs(fabric, registers, runs)
        runs[step.d] = [step]
    _perform_runs(fabric, registers, runs)


def _perform_runs(fabric: Fabric, registers: Registers, runs: dict[Accumulator, list[Step]]) -> None:
    for run in runs.values():
        _perform_run(fabric, registers, run)
    runs.clear()


def _perform_run(fabric: Fabric, registers: Registers, run: Sequence[Step]) -> None:
    form, where = run[0].form, run[0].d.at
    for step in run:
        _check(fabric, step.op, step.a, form.a)
        _check(fabric, step.op, step.b, form.b)
    a, b = _operands(fabric, registers, run)
    old = matrix(registers[:, where], form.d_type) if run[0].accumulate else None
    with np.errstate(all="ignore"):
        as_hardware = fabric.hardware and form.d_type != "s32"
        new = (_accumulate_as_hardware if as_hardware else _accumulate)(a, b, old, form)
    registers[:, where] = fragment(new, form.d_type)


def _accumulate(a: Floats, b: Floats, old: NDArray[Any] | None, form: Form) -> NDArray[Any]:
    sums = a @ b.T
    if form.negate:
        np.negative(sums, out=sums)
    if form.d_type == "s32":
        total = sums.astype(np.int64) + (0 if old is None else old)
        if form.saturate:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return total.astype(np.int32)
    if old is not None:
        sums += old
    return sums.astype(np.float16) if form.d_type == "f16" else sums


def _accumulate_as_hardware(a: Floats, b: Floats, old: NDArray[Any] | None, form: Form) -> NDArray[Any]:
    """Accumulate one instruction after the other, each rounded like the tensor core."""
    sums = np.zeros((M, form.n), np.float32) if old is None else np.ascontiguousarray(old)
    model = hardware.model_of(form.a_type, form.b.type, form.d_type, "sm_90a")
    hardware.accumulate(sums, -a if form.negate else a, b, form.k, model)
    return sums.astype(np.float16) if form.d_type == "f16" else sums


def _check(fabric: Fabric, op: Op, descriptor: int, shape: Shape | None) -> None:
    try:
        if shape is not None:
            reads(descriptor, shape, fabric.shared_limit)
    except DescriptorError as error:
        raise fabric.failure(DescriptorError, op, str(error)) from None


def _operands(fabric: Fabric, registers: Registers, run: Sequence[Step]) -> tuple[Floats, Floats]:
    """A as 64 by K and B as N by K, the K of all instructions concatenated."""
    form = run[0].form
    host = fabric.shared_host + run[0].op.rank * fabric.shared_stride
    if form.a is None:
        a = np.concatenate([left(registers[:, step.a_at], form.a_type) for step in run], axis=1)
    else:
        a = _gather(fabric, host, tuple([step.a for step in run]), form.a, form.k, "a")
    return a, _gather(fabric, host, tuple([step.b for step in run]), form.b, form.k, "b")


def _gather(fabric: Fabric, host: int, descriptors: tuple[int, ...], shape: Shape, k: int, purpose: str) -> Floats:
    chunks = plan(((descriptors, shape),), fabric.shared_limit, fabric.shared_stride)
    values = gather(chunks, shape.type, host, purpose)[: shape.rows * k * len(descriptors)]
    return values.reshape(shape.rows, -1) if shape.major == "k" else values.reshape(-1, shape.rows).T


def matrix(words: Words, type: str) -> NDArray[Any]:
    """D's registers (4 warps, N/2 or N/4, 32 lanes) as 64 by N values of a type.

    Lane 4g + q of warp w has, in register 4c + 2h + p, row 16w + 8h + g and column 8c + 2q + p; an f16 register has
    both p.
    """
    if type == "f16":
        halves = words.view(np.float16).reshape(4, -1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4, 5)
        return halves.reshape(M, -1).astype(np.float32)
    parts = words.reshape(4, -1, 2, 2, 8, 4).transpose(0, 2, 4, 1, 5, 3)
    return parts.reshape(M, -1).view(np.int32 if type == "s32" else np.float32)


def fragment(values: NDArray[Any], type: str) -> Words:
    """D's registers from 64 by N values: the inverse of `matrix`."""
    if type == "f16":
        halves = np.ascontiguousarray(values).view(np.uint16).reshape(4, 2, 8, -1, 4, 2).transpose(0, 3, 1, 2, 4, 5)
        return np.ascontiguousarray(halves).view(np.uint32).reshape(4, -1, 32)
    words = np.ascontiguousarray(values).view(np.uint32).reshape(4, 2, 8, -1, 4, 2)
    return words.transpose(0, 3, 1, 5, 2, 4).reshape(4, -1, 32)


def left(words: Words, type: str) -> Floats:
    """A's four registers (4 warps, 4, 32 lanes) as 64 by K float32 values.

    Register 2c + h of lane 4g + q in warp w has row 16w + 8h + g and 32 bits of K from byte 16c + 4q on.
    """
    rows = words.reshape(4, 2, 2, 8, 4).transpose(0, 2, 3, 1, 4).reshape(M, K_BYTES // 4)
    return as_float(np.ascontiguousarray(rows).view(np.uint8), type)
