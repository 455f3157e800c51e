"""Which cells of shared memory an operation touches. A cell is as wide as the narrowest access of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from warpwright.layout import tmem_cp_map, tmem_ld_map
from warpwright.layout.tmem import COLUMNS, LANES
from warpwright.ptx import nodes
from warpwright.types import of_name
from warpwright.vgpu.checks.memory.accesses import Cells, Ids
from warpwright.vgpu.checks.order.clocks import Lanes
from warpwright.vgpu.engines import mma, wgmma
from warpwright.vgpu.engines.box import chunks, geometry, window
from warpwright.vgpu.engines.launch_control import RESPONSE_BYTES
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.engines.operand import CHUNK, Shape, reads
from warpwright.vgpu.engines.place import barrier, ctas_of, locate
from warpwright.vgpu.engines.tensor_copy import TensorForm, coordinates, form_of
from warpwright.vgpu.jit.lanes import bits_of
from warpwright.vgpu.jit.warpgroup import left_registers
from warpwright.vgpu.machine.fabric import ClusterFabric
from warpwright.vgpu.program.program import Inst

__all__ = ["BARRIER_BYTES", "COPIES", "Footprints"]

LANES_A_CELL = 16  # of tensor memory: what its instructions take, they take 16 lanes at a time
BARRIER_BYTES = 8
COPIES = "tensor copies"  # the pipeline of tcgen05.cp and tcgen05.shift
_NARROW = ("ld", "st", "atom", "red", "ldu", "st.async", "red.async", "cp.async")


class TensorCells(NamedTuple):
    """The cells that an operation of the tensor core reads of shared and tensor memory, and writes; whether it begins a
    sum; and its pipeline."""

    operands: list[Cells]
    tensor_reads: list[Cells]
    accumulators: list[Cells]
    begins: bool
    pipe: str


class Footprints:
    """Footprints in one cluster's shared memory; cells count from the first CTA's first byte."""

    def __init__(self, cluster: ClusterFabric) -> None:
        self.cluster = cluster
        self.cell = min([CHUNK, *(_width(inst) for inst in cluster.launch.insts if inst.name in _NARROW)])
        self.shift = self.cell.bit_length() - 1
        self.stride = cluster.shared_stride
        self.shared_bytes = cluster.ranks * cluster.shared_stride
        self.shared_cells = self.shared_bytes // self.cell
        self.tensor_ops: dict[tuple[int, ...], TensorCells] = {}
        self.wgmmas: dict[tuple[int, ...], list[Cells]] = {}
        self.tensor_cells = cluster.ranks * COLUMNS * (LANES // LANES_A_CELL) if cluster.launch.has_tmem else 0

    def of_lanes(self, places: Ids, lanes: Lanes, nbytes: int) -> tuple[Cells, Lanes]:
        """Returns the cells of an access of ``nbytes`` a lane, and the lane of each."""
        count, first = max(1, nbytes // self.cell), places // self.cell
        if count == 1:
            return first, lanes
        return (first[:, None] + np.arange(count)).ravel(), lanes.repeat(count)

    def span(self, rank: int, offset: int, nbytes: int) -> Cells:
        """Returns the cells of some bytes of a CTA. The machine refuses bytes that do not exist."""
        first = (rank * self.stride + offset) // self.cell
        return np.arange(first, min(first + -(-nbytes // self.cell), self.shared_cells))

    def place(self, op: Op, word: int) -> tuple[int, int]:
        """Returns CTA and offset of an address operand."""
        return locate(self.cluster, op, op.words[word], "place")

    def reads(self, op: Op) -> list[Cells]:
        """Returns the cells of shared memory that a copy reads."""
        if op.inst.name.startswith("cp.") and "tensor" in op.inst.name:
            form = form_of(op.inst.opcode)
            return [] if form.load else [self._stored(op, form)]
        if op.inst.name not in ("cp.async.bulk", "cp.reduce.async.bulk") or op.inst["src"] == "global":
            return []
        return [self.span(*self.place(op, 1), op.words[2] & 0xFFFFFFFF)]

    def writes(self, op: Op) -> list[Cells]:
        """Returns the cells of shared memory that a copy writes, for each CTA that it delivers to, in order."""
        where, nbytes, ranks = self._target(op)
        if not nbytes:
            return []
        rank, offset = self.place(op, where)
        return [self.span(each, offset, nbytes) for each in (ranks if ranks is not None else [rank])]

    def barrier(self, op: Op) -> int:
        """Returns the place of the mbarrier that a copy to shared memory completes on."""
        words = {"st.async": -1, "red.async": -1, "clusterlaunchcontrol.try_cancel.async": 1}
        word = form_of(op.inst.opcode).mbar if "tensor" in op.inst.name else words.get(op.inst.name, 3)
        rank, offset = barrier(self.cluster, op, op.words[word])
        return rank * self.stride + offset

    def _target(self, op: Op) -> tuple[int, int, Sequence[int] | None]:
        """Returns the word of the destination, bytes, and CTAs of a multicast."""
        name, words = op.inst.name, op.words
        if name in ("st.async", "red.async"):
            return 0, of_name(op.inst["type"]).nbytes * (len(words) - 2), None
        if name.startswith("clusterlaunchcontrol"):
            return 0, RESPONSE_BYTES, range(self.cluster.ranks) if op.inst["multicast"] else None
        if "tensor" in name:
            form = form_of(op.inst.opcode)
            ranks = list(ctas_of(self.cluster, op, words[form.mask])) if form.mask else None
            return form.shared, self._box(op, form.map) if form.load else 0, ranks
        if op.inst["dst"] == "global":
            return 0, 0, None
        ranks = list(ctas_of(self.cluster, op, words[4])) if name == "cp.async.bulk" and op.inst["multicast"] else None
        return 0, words[2] & 0xFFFFFFFF, ranks

    def _stored(self, op: Op, form: TensorForm) -> Cells:
        """Returns the cells that the store of a box reads: its elements inside the tensor."""
        box, (rank, offset) = geometry(self.cluster.tensor_map(op, op.words[form.map]).map), self.place(op, form.shared)
        extents = window(box, coordinates(op)) if box.rank == form.dims else None
        if extents is None:
            return self.span(rank, offset, box.nbytes)
        phase = offset % box.period
        plan = chunks(box, phase, extents)
        places = np.append(plan.shared[:, None] * CHUNK + np.arange(0, CHUNK, self.cell), plan.shared_bytes)
        cells: Cells = np.unique((places + (rank * self.stride + offset - phase)) // self.cell)
        return cells[cells < self.shared_cells]

    def _box(self, op: Op, word: int) -> int:
        return geometry(self.cluster.tensor_map(op, op.words[word]).map).nbytes

    def of_tensor_op(self, op: Op) -> TensorCells:
        """Returns the cells of an instruction, cached by its words: a ring of stages repeats them."""
        key = op.inst.index, op.rank, *op.words
        found = self.tensor_ops.get(key)
        if found is None:
            found = TensorCells(
                self.operands(op), self.tensor_reads(op), self.accumulators(op), self.begins(op), self.pipe(op)
            )
            self.tensor_ops[key] = found
        return found

    def operands(self, op: Op) -> list[Cells]:
        """Returns the cells of shared memory that an operation of the tensor core reads."""
        if not op.inst.name.startswith("tcgen05.mma"):
            return []
        form, product, base = self._product(op)
        matrices = [(op.words[2], product.b)] if form.tmem_a else [(op.words[1], product.a), (op.words[2], product.b)]
        return [self._matrix(word, shape, base) for word, shape in matrices]

    def _product(self, op: Op) -> tuple[mma.Form, mma.Mma, int]:
        form = mma.form_of(op.inst.opcode, len(op.words), type(op.inst.operands[1]) is nodes.Address)
        idesc, lane = op.words[3] & 0xFFFFFFFF, op.words[0] >> 16 & 0xFFFF
        product = mma.read_descriptor(form.kind, form.group, form.ws, form.tmem_a, idesc, lane)
        return form, product, op.rank & ~(form.group - 1)

    def begins(self, op: Op) -> bool:
        """Whether an MMA begins a sum: its accumulator is overwritten."""
        if not op.inst.name.startswith("tcgen05.mma"):
            return False
        form, _, _ = self._product(op)
        return not op.words[form.enable] & 1

    def pipe(self, op: Op) -> str:
        """Returns the name of the operation's pipeline. MMAs that add to the same sums in the same shape run in order
        (PTX ISA 9.1 section 9.7.16.6), and so do copies."""
        if not op.inst.name.startswith("tcgen05.mma"):
            return COPIES
        _, product, _ = self._product(op)
        return f"tensor sums of {product.m}x{product.n} at {op.words[0] & 0xFFFFFFFF:#x}"

    def accumulators(self, op: Op) -> list[Cells]:
        """Returns the cells of tensor memory that an operation writes, in each CTA."""
        if not op.inst.name.startswith("tcgen05.mma"):
            group = int(op.inst["group"][-1])
            columns = 1 if op.inst.name == "tcgen05.shift" else tmem_cp_map(op.inst["shape"], op.inst["multicast"])[1]
            base = op.rank & ~(group - 1)
            return [self.columns(base + cta, op.words[0] & 0xFFFF, columns) for cta in range(group)]
        _, product, base = self._product(op)
        first = op.words[0] & 0xFFFF
        return [
            self._rectangle(
                base + block.cta,
                first + block.columns.start,
                first + block.columns.stop,
                block.lanes.start,
                block.lanes.stop,
            )
            for block in product.layout
        ]

    def tensor_reads(self, op: Op) -> list[Cells]:
        """Returns the cells of an MMA's A in tensor memory, in the lanes of its sums."""
        if not op.inst.name.startswith("tcgen05.mma"):
            return []
        form, product, base = self._product(op)
        first = op.words[1] & 0xFFFF
        lanes = {(block.cta, block.lanes.start, block.lanes.stop) for block in product.layout if form.tmem_a}
        last = first + mma.A_COLUMNS
        return [self._rectangle(base + cta, first, last, low, high) for cta, low, high in sorted(lanes)]

    def columns(self, rank: int, first: int, count: int) -> Cells:
        """Returns the cells of all lanes of some columns of tensor memory."""
        return self._rectangle(rank, first, first + count, 0, LANES)

    def quarter(self, inst: Inst, warp: int, address: int) -> Cells:
        """Returns the cells of a warp's lanes in the columns that a load or store accesses."""
        rank, inside = divmod(warp, self.cluster.per_cta)
        _, columns = tmem_ld_map(inst["shape"], int(inst["num"][1:]), 0)
        packed = inst["pack" if inst.name == "tcgen05.ld" else "unpack"]
        width = (int(columns.max()) + 1) * (2 if packed else 1)
        first, lane = address & 0xFFFF, 32 * (inside % 4)
        return self._rectangle(rank, first, first + width, lane, lane + 32)

    def _rectangle(self, rank: int, first: int, last: int, low: int, high: int) -> Cells:
        """Returns the cells of a rectangle. The machine refuses columns that do not exist."""
        start, end = rank * COLUMNS, (rank + 1) * COLUMNS
        return _rectangle(min(start + first, end), min(start + last, end), low, high)

    def _matrix(self, descriptor: int, shape: Shape, base: int) -> Cells:
        return _cells(descriptor, shape, self.cluster.shared_limit, base, self.stride, self.cell)

    def of_wgmma(self, inst: Inst, rank: int, a: int, b: int) -> list[Cells]:
        """Returns the cells of an instruction, cached by its words: a ring of stages repeats them."""
        key = inst.index, rank, a, b
        if key not in self.wgmmas:
            self.wgmmas[key] = self.wgmma(inst, rank, a, b)
        return self.wgmmas[key]

    def wgmma(self, inst: Inst, rank: int, a: int, b: int) -> list[Cells]:
        """Returns the cells of shared memory that a wgmma reads."""
        immediates = tuple(int(operand.value) for operand in inst.operands[4:] if isinstance(operand, nodes.Imm))
        form = wgmma.form_of(inst.opcode, bool(left_registers(inst)), immediates)
        mask = (1 << 64) - 1
        matrices = [(b & mask, form.b)] if form.a is None else [(a & mask, form.a), (b & mask, form.b)]
        return [self._matrix(word, shape, rank) for word, shape in matrices]

    def signals(self, op: Op) -> list[tuple[int, int]]:
        """Returns CTA and offset of every mbarrier that a commit arrives at."""
        rank, offset = barrier(self.cluster, op, op.words[0])
        return [
            (each, offset) for each in (ctas_of(self.cluster, op, op.words[1]) if op.inst["multicast"] else (rank,))
        ]


@lru_cache(maxsize=512)
def _rectangle(first: int, last: int, low: int, high: int) -> Cells:
    side = np.arange(low // LANES_A_CELL, -(-high // LANES_A_CELL))
    return (np.arange(first, last)[:, None] * (LANES // LANES_A_CELL) + side).ravel()


@lru_cache(maxsize=4096)
def _cells(descriptor: int, shape: Shape, limit: int, base: int, stride: int, cell: int) -> Cells:
    chunks = np.unique(reads(descriptor, shape, limit))
    per = CHUNK // cell
    one = (chunks[:, None] * per + np.arange(per)).ravel()
    return np.concatenate([one + (base + cta) * stride // cell for cta in range(shape.ctas)])


def _width(inst: Inst) -> int:
    """Returns the bytes of a lane's access, a vector as a whole."""
    if inst.name == "cp.async":
        size = inst.operands[2]
        return int(size.value) if isinstance(size, nodes.Imm) else 4
    if inst["space"].startswith(("param", "const", "local", "global")):
        return CHUNK
    return (
        max(1, int(inst["vec"][1:] or 1) * bits_of(inst["type"]) // 8)
        if inst["vec"]
        else max(1, bits_of(inst["type"]) // 8)
    )
