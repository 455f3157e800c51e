"""Which cells of shared memory an operation touches. A cell is as wide as the narrowest write of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from warpwright.layout import tmem_cp_map, tmem_ld_map
from warpwright.layout.tmem import COLUMNS, LANES
from warpwright.types import of_name
from warpwright.vgpu.checks.memory.accesses import Ids, Repeated
from warpwright.vgpu.checks.memory.cells import Cells, cells_of, joined, span_of
from warpwright.vgpu.checks.order.access_kinds import accesses_by_lane
from warpwright.vgpu.checks.order.clocks import Lanes
from warpwright.vgpu.engines import mma, wgmma
from warpwright.vgpu.engines.accumulator import Block
from warpwright.vgpu.engines.box import Extents, Geometry, Lines, chunks, geometry
from warpwright.vgpu.engines.launch_control import RESPONSE_BYTES
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.engines.operand import CHUNK, Shape, reads
from warpwright.vgpu.engines.pixels import part_inside
from warpwright.vgpu.engines.place import barrier, ctas_of, locate
from warpwright.vgpu.engines.tensor_copy import filter_offsets, starts
from warpwright.vgpu.engines.tmem_copy import SHIFTED_COLUMNS, copied_bytes
from warpwright.vgpu.jit.lanes import bits_of
from warpwright.vgpu.jit.warpgroup import immediates, left_registers
from warpwright.vgpu.jit.wmma import access_bytes
from warpwright.vgpu.machine.fabric import ClusterFabric
from warpwright.vgpu.program.operation import box_count
from warpwright.vgpu.program.program import Inst

__all__ = ["BARRIER_BYTES", "COPIES", "SCALED", "Footprints", "TensorCells", "TensorGroup"]

LANES_A_CELL = 16  # of tensor memory: what its instructions take, they take 16 lanes at a time
BARRIER_BYTES = 8
_ADDRESS_BYTES = 4
COPIES = "tensor copies"  # the pipeline of tcgen05.cp and tcgen05.shift
SCALED = "block-scaled tensor"  # begins the names of pipelines of MMAs with block scales
_WORD = 0xFFFF_FFFF


class TensorCells(NamedTuple):
    """The cells that an operation of the tensor core reads of shared and tensor memory, and writes; whether it begins a
    sum; and its pipeline."""

    shared_reads: list[Cells]
    tensor_reads: list[Cells]
    accumulators: list[Cells]
    begins: bool
    pipe: str


class TensorGroup(NamedTuple):
    """Operations of the tensor core that follow one another and are stored as one access; ``where`` they are: their
    CTA, pipeline and lane; whether they begin a sum; the instruction of each and the cells that it reads."""

    ops: list[Op]
    where: tuple[int, str, int]
    begins: bool
    accesses: Repeated
    reads: list[tuple[int, Cells]]


class Footprints:
    """Footprints in one cluster's shared memory; cells count from the first CTA's first byte."""

    def __init__(self, cluster: ClusterFabric) -> None:
        self.cluster = cluster
        self.cell = _cell(cluster.launch.insts)
        self.shift = self.cell.bit_length() - 1
        self.stride = cluster.shared_stride
        self.shared_bytes = cluster.ranks * cluster.shared_stride
        self.shared_cells = self.shared_bytes // self.cell
        self.of_ops: dict[tuple[str, int], tuple[Any, Op]] = {}
        self.wgmmas: dict[tuple[int, ...], list[Cells]] = {}
        self.quarters: dict[tuple[int, int, int], Cells] = {}
        self.tensor_cells = cluster.ranks * COLUMNS * (LANES // LANES_A_CELL) if cluster.launch.has_tmem else 0

    def of_lanes(self, places: Ids, lanes: Lanes, nbytes: int) -> tuple[Ids, Lanes]:
        """Returns the cells of an access of ``nbytes`` a lane, and the lane of each."""
        count, first = max(1, nbytes // self.cell), places // self.cell
        if count == 1:
            return first, lanes
        return (first[:, None] + np.arange(count)).ravel(), lanes.repeat(count)

    def span(self, rank: int, offset: int, nbytes: int) -> Cells:
        """Returns the cells of some bytes of a CTA. The machine refuses bytes that do not exist."""
        first = (rank * self.stride + offset) // self.cell
        return span_of(first, min(first + -(-nbytes // self.cell), self.shared_cells))

    def place(self, op: Op, name: str) -> tuple[int, int]:
        """Returns CTA and offset of an address operand."""
        return locate(self.cluster, op, op[name], "place")

    def _once(self, make: Callable[[Op], Any], op: Op) -> Any:
        """Returns what a function returns for an operation; for the same object, what it has returned."""
        key = make.__name__, id(op)
        if key not in self.of_ops:
            self.of_ops[key] = make(op), op  # as long as the operation is here, no other one has its number
        return self.of_ops[key][0]

    def reads(self, op: Op) -> list[Cells]:
        """Returns the cells of shared memory that a copy reads."""
        found: list[Cells] = self._once(self._reads, op)
        return found

    def _reads(self, op: Op) -> list[Cells]:
        if "src_mem" not in op or op.inst["src"] == "global":
            return []
        if "map" in op:
            return [self._stored_box(op)]
        return [self.span(*self.place(op, "src_mem"), op["size"] & 0xFFFFFFFF)]

    def writes(self, op: Op) -> list[Cells]:
        """Returns the cells of shared memory that a copy writes, for each CTA that it delivers to, in order."""
        found: list[Cells] = self._once(self._writes, op)
        return found

    def _writes(self, op: Op) -> list[Cells]:
        name, nbytes = self._target(op)
        if not nbytes:
            return []
        rank, offset = self.place(op, name)
        return [self.span(each, offset, nbytes) for each in self._receivers(op, rank)]

    def barriers(self, op: Op) -> list[int]:
        """Returns the places of the mbarriers that a copy to shared memory completes on, or a commit arrives at."""
        found: list[int] = self._once(self._barriers, op)
        return found

    def _barriers(self, op: Op) -> list[int]:
        rank, offset = barrier(self.cluster, op, op["mbar"])
        return [each * self.stride + offset for each in self._receivers(op, rank)]

    def _target(self, op: Op) -> tuple[str, int]:
        """Returns the operand of the destination in shared memory, and the bytes that each CTA gets."""
        if "b" in op:
            return "a", of_name(op.inst["type"]).nbytes * len(op.vector("b"))
        if "addr" in op:
            return "addr", RESPONSE_BYTES
        if op.inst["dst"] == "global":
            return "", 0
        return "dst_mem", self._box(op).span * box_count(op.inst) if "map" in op else op["size"] & 0xFFFFFFFF

    def _receivers(self, op: Op, rank: int) -> Sequence[int]:
        """Returns the CTAs that a multicast delivers to, or that of the destination or mbarrier."""
        if "mask" in op:
            return list(ctas_of(self.cluster, op, op["mask"]))
        return range(self.cluster.ranks) if "addr" in op and op.inst["multicast"] else (rank,)

    def _stored_box(self, op: Op) -> Cells:
        """Returns the cells that the store of a box, or of four rows, reads: its elements inside the tensor."""
        box, (rank, offset) = self._box(op), self.place(op, "src_mem")
        parts = [part_inside(box, at, filter_offsets(op)) if box.rank == len(at) else None for at in starts(op, box)]
        if parts == [None]:
            return self.span(rank, offset, box.span)
        found = [self._stored(box, part, rank, offset + i * box.row) for i, part in enumerate(parts)]
        cells = np.unique(np.concatenate(found))
        return cells_of(cells[cells < self.shared_cells])

    def _stored(self, box: Geometry, part: Extents | Lines | None, rank: int, offset: int) -> Ids:
        if part is None:
            return self.span(rank, offset, box.span).numbers
        phase = offset % box.period
        plan = chunks(box, phase, part)
        places = np.append(plan.shared[:, None] * CHUNK + np.arange(0, CHUNK, self.cell), plan.shared_bytes)
        cells: Ids = (places + (rank * self.stride + offset - phase)) // self.cell
        return cells

    def _box(self, op: Op) -> Geometry:
        return geometry(self.cluster.tensor_map(op, op["map"]).map)

    def of_tensor_op(self, op: Op) -> TensorCells:
        """Returns the cells of an instruction of the tensor core."""
        found: TensorCells = self._once(self._cells_of_mma if "idesc" in op else self._cells_of_copy, op)
        return found

    def _cells_of_copy(self, op: Op) -> TensorCells:
        """Returns the cells of a copy or shift."""
        group = int(op.inst["group"][-1])
        base, first, low = op.rank & ~(group - 1), op["taddr"] & 0xFFFF, op["taddr"] >> 16 & 0xFFFF
        ranks = range(base, base + group)
        if "desc" not in op:
            moved = [self._rectangle(rank, first, first + SHIFTED_COLUMNS, low, LANES) for rank in ranks]
            return TensorCells([], moved, moved, False, COPIES)
        lanes, columns = tmem_cp_map(op.inst["shape"], op.inst["multicast"])
        source = copied_bytes(op["desc"], lanes.shape[1], columns * 4 // CHUNK, self.cluster.shared_limit)
        cells = np.unique(source // self.cell)
        read = [cells_of(cells + rank * self.stride // self.cell) for rank in ranks]
        written = [_copied(op.inst["shape"], op.inst["multicast"], rank * COLUMNS + first, low) for rank in ranks]
        return TensorCells(read, [], written, False, COPIES)

    def _cells_of_mma(self, op: Op) -> TensorCells:
        """Returns the cells of an MMA. MMAs that add to the same sums in the same shape run in order, in a pipeline of
        their own (PTX ISA 9.1 section 9.7.16.6); so do copies."""
        form = mma.form_of_op(op)
        first = op["d"] & 0xFFFF
        descriptor = mma.read_descriptor(form, mma.descriptor_of(op, form), op["d"] >> 16 & 0xFFFF)
        base = op.rank & ~(form.group - 1)
        shared = [self._matrix(op["b"], descriptor.b, base)]
        tensor: list[Cells] = []
        if form.tmem_a:
            a = op["a"] & 0xFFFF
            lanes = {(block.cta, block.lanes.start, block.lanes.stop) for block in descriptor.layout}
            tensor = [self._rectangle(base + cta, a, a + mma.A_COLUMNS, low, high) for cta, low, high in sorted(lanes)]
        else:
            shared.insert(0, self._matrix(op["a"], descriptor.a, base))
        tensor += [self.columns(base + cta, *at) for at in mma.scale_reads(op, descriptor) for cta in range(form.group)]
        sums = [self._block(block, base, first) for block in descriptor.layout]
        pipe = f"{SCALED if form.block else 'tensor'} sums of {descriptor.m}x{descriptor.n} at {op['d'] & _WORD:#x}"
        return TensorCells(joined(shared), joined(tensor), joined(sums), not op["enable_input_d"] & 1, pipe)

    def _block(self, block: Block, base: int, first: int) -> Cells:
        """Returns the cells of a block of an accumulator that starts at a column."""
        columns, lanes = block.columns, block.lanes
        return self._rectangle(base + block.cta, first + columns.start, first + columns.stop, lanes.start, lanes.stop)

    def columns(self, rank: int, first: int, count: int) -> Cells:
        """Returns the cells of all lanes of some columns of tensor memory."""
        return self._rectangle(rank, first, first + count, 0, LANES)

    def quarter(self, inst: Inst, warp: int, address: int) -> Cells:
        """Returns the cells of tensor memory that a load or store of a warp accesses, in its quarter of the lanes."""
        key = inst.index, warp, address
        if key not in self.quarters:
            self.quarters[key] = self._quarter(inst, warp, address)
        return self.quarters[key]

    def _quarter(self, inst: Inst, warp: int, address: int) -> Cells:
        rank, inside = divmod(warp, self.cluster.per_cta)
        packed = inst.has("pack::16b") or inst.has("unpack::16b")
        cells = _moved(inst["shape"], int(inst["num"][1:]), inst.number("split"), packed)
        first, lane = rank * COLUMNS + (address & 0xFFFF), 32 * (inside % 4) + (address >> 16 & 31)
        runs = cells.runs + (first * LANES + lane) // LANES_A_CELL
        return Cells(np.minimum(runs, (rank + 1) * COLUMNS * (LANES // LANES_A_CELL)))

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
        form = wgmma.form_of(inst.opcode, bool(left_registers(inst)), immediates(inst))
        mask = (1 << 64) - 1
        matrices = [(b & mask, form.b)] if form.a is None else [(a & mask, form.a), (b & mask, form.b)]
        return joined([self._matrix(word, shape, rank) for word, shape in matrices])


@lru_cache(maxsize=512)
def _rectangle(first: int, last: int, low: int, high: int) -> Cells:
    side = np.arange(low // LANES_A_CELL, -(-high // LANES_A_CELL))
    return cells_of((np.arange(first, last)[:, None] * (LANES // LANES_A_CELL) + side).ravel())


@lru_cache(maxsize=512)
def _copied(shape: str, multicast: str, first: int, low: int) -> Cells:
    """Returns the cells that tcgen05.cp writes from a column and a lane on."""
    lanes, columns = tmem_cp_map(shape, multicast)
    sides = np.unique((lanes + low) // LANES_A_CELL)
    return cells_of((np.arange(first, first + columns)[:, None] * (LANES // LANES_A_CELL) + sides).ravel())


@lru_cache(maxsize=512)
def _moved(shape: str, num: int, split: int, packed: bool) -> Cells:
    """Returns the cells of tcgen05.ld and tcgen05.st, relative to the address."""
    lanes, columns = tmem_ld_map(shape, num, split)
    columns = np.append(2 * columns, 2 * columns + 1) if packed else columns.ravel()
    return cells_of(np.unique(columns * (LANES // LANES_A_CELL) + np.resize(lanes, columns.shape) // LANES_A_CELL))


@lru_cache(maxsize=4096)
def _cells(descriptor: int, shape: Shape, limit: int, base: int, stride: int, cell: int) -> Cells:
    chunks = np.unique(reads(descriptor, shape, limit))
    per = CHUNK // cell
    one = (chunks[:, None] * per + np.arange(per)).ravel()
    return cells_of(np.concatenate([one + (base + cta) * stride // cell for cta in range(shape.ctas)]))


def _cell(insts: list[Inst]) -> int:
    """Returns the bytes of a cell of shared memory: the least that an instruction writes. A read of less than a cell
    overlaps all that is written there; of the addresses that tcgen05.alloc writes, several may be in one cell."""
    addresses = sum(inst.name == "tcgen05.alloc" for inst in insts) > 1
    return min([_ADDRESS_BYTES if addresses else CHUNK, *map(_width, insts)])


def _width(inst: Inst) -> int:
    """Returns the bytes that a lane writes to shared memory, a vector as a whole; CHUNK for other instructions."""
    if inst.traits.access == "read":
        return CHUNK
    if inst.traits.queue == "lane-copy":
        return inst.number("size", CHUNK)
    stores = inst.traits.queue == "copy" and inst.find("b") is not None
    if not (stores or accesses_by_lane(inst)) or inst["space"].startswith(("param", "const", "local", "global")):
        return CHUNK
    if "matrix" in inst.form.slots:
        return access_bytes(inst)
    return len(inst.items("b" if inst.find("b") else "d")) * bits_of(inst["type"]) // 8
