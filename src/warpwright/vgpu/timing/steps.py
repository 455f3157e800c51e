"""Recorded rows of a cluster as steps of the replay: the units that each instruction needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.isa.operands import extents_of
from warpwright.layout import InstrDescriptor
from warpwright.ptx import nodes
from warpwright.vgpu.engines import wgmma
from warpwright.vgpu.engines.mma import PACKED_KINDS
from warpwright.vgpu.jit.costs import WARP_MMAS, is_memory
from warpwright.vgpu.jit.warpgroup import immediates, left_registers
from warpwright.vgpu.program.memory_map import RANK_SHIFT, SHARED_WINDOW
from warpwright.vgpu.program.operation import Op, box_count
from warpwright.vgpu.program.program import Inst, registers_of, word_count
from warpwright.vgpu.program.services import SERVICES
from warpwright.vgpu.timing.emulation import FLOAT8, count_emulation

if TYPE_CHECKING:
    from warpwright.vgpu.machine.launch import Launch
    from warpwright.vgpu.machine.state import ClusterState

__all__ = [
    "RECORDS", "ROWS", "TRAFFIC", "Access", "Box", "Facts", "Mma", "Mmas", "Program", "Reader", "Step", "Steps",
    "WarpMma", "mmas_of", "read_row",
]  # fmt: skip

Ints = NDArray[np.int64]
_OFFSET = (1 << RANK_SHIFT) - 1
WARP = 32
SECTOR, LINE = 32, 128
_MMAS = {"mma": 1, "wgmma": 4, "warp_mma": 1}  # kinds of steps of MMAs: how many warps have the step of one
SHARED = 1 << 48  # set in the first word of a row of an access to shared memory
TRAFFIC: set[str] = set()  # forms whose records move data through L2


class Step(NamedTuple):
    """One row: its kind (`replay` has a method of that name), the instruction, operands, and what `costs.elapsed` has
    since the row before it: ``slots`` are single instructions, ``dense`` those in successive cycles."""

    kind: str
    cycles: int
    slots: int
    inst: int
    what: Any = None
    number: int = 0
    nbytes: int = 0
    special: int = 0
    half: int = 0
    dense: int = 0


@dataclass(slots=True)
class Box:
    """A copy between L2 and shared memory. ``position`` counts the cluster's traffic; ``key`` identifies the data;
    ``targets``: rank, offset in shared memory and barrier of each destination; ``requests`` of up to 128 bytes;
    ``source``: the offset in shared memory of a store, -1 for a load."""

    position: int
    rank: int
    nbytes: int
    requests: int
    key: int = 0
    targets: tuple[tuple[int, int, int], ...] = ()
    source: int = -1


@dataclass(slots=True)
class Access:
    """A global-memory access of lane code: bytes in whole sectors, lines of 128 bytes; ``position`` as in `Box`.

    ``again``: the cluster has stored to these sectors before, so device memory gets them once. ``adds``: an atomic
    operation, which L2 executes; device memory takes what L2 did not have before.
    """

    position: int
    nbytes: int
    lines: int
    load: bool
    again: bool = False
    adds: bool = False


@dataclass(slots=True)
class Mma:
    """A tcgen05.mma or wgmma: ``rows`` of each SM (at least the rows whose time it takes) by ``n`` by 32 bytes of K.

    ``nbytes``: shared-memory bytes that each SM reads; ``flops`` of all its CTAs; ``left`` and ``right``: (rank,
    offset) of the operands of each CTA; empty for operands in registers or tensor memory. ``d``: the first column of D
    in tensor memory, -1 for D in registers. ``type``: "e2m1x2" for two elements a byte. ``k``: elements of K.
    """

    rows: int
    n: int
    nbytes: int
    flops: int
    ranks: tuple[int, ...]
    left: tuple[tuple[int, int], ...]
    right: tuple[tuple[int, int], ...]
    d: int = -1
    type: str = ""
    k: int = 16


class WarpMma(NamedTuple):
    """An mma.sync: flops, the names of the first registers of C and D, the type of A, "" for 16-bit floats of wmma, and
    the conversions and additions of a thread where tensor cores do not multiply this type."""

    flops: int
    c: str
    d: str
    type: str = ""
    emulation: tuple[int, int] = (0, 0)


Mmas = list[tuple[Any, float]]  # an `Mma` or `WarpMma`, and the flops of all steps like it


def mmas_of(steps: Iterable[Step]) -> Mmas:
    """Returns each `Mma` and `WarpMma` of steps, with the flops of all steps that have it."""
    found = [step for step in steps if step.kind in _MMAS]
    counts, different = Counter(map(id, found)), {id(step): step for step in found}
    return [(step.what, counts[key] * step.what.flops / _MMAS[step.kind]) for key, step in different.items()]


@dataclass
class Program:
    """The steps of each warp of a cluster, or a function that reads them; for each position of its traffic: bytes,
    whether it reads, whether it stores ``again`` to the same sectors, and how many CTAs receive it; ``columns`` of
    tensor memory; ``pairs``: whether its MMAs span two CTAs; how many steps in all, and their MMAs."""

    source: list[list[Step]] | Callable[[], list[list[Step]]]
    nbytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    reads: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    again: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    copies: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: int = 0
    pairs: bool = False
    length: int = -1
    mmas: Mmas = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.length < 0:
            self.length = sum(map(len, self.warps))
            self.mmas = mmas_of(step for steps in self.warps for step in steps)

    @cached_property
    def warps(self) -> list[list[Step]]:
        """The steps of each warp."""
        return self.source() if callable(self.source) else self.source


class Facts:
    """What the readers of all clusters of a launch ask for: of each instruction whether it leaves a record, whether it
    accesses memory itself, and the words of its record; the MMAs of warps and warpgroups."""

    def __init__(self, launch: Launch) -> None:
        self.insts = launch.insts
        self.emulation = count_emulation(launch.kernel.program)
        self.queued = np.array([inst.form.queued for inst in self.insts], bool)
        self.memory = np.array([is_memory(inst) for inst in self.insts], bool)
        self.widths = [word_count(inst) if inst.form.queued else 0 for inst in self.insts]
        self.mmas = {inst.index for inst in self.insts if inst.name in (*WARP_MMAS, "wgmma.mma_async")}
        self.maps = launch.maps.bound
        self.boxes: dict[tuple[int, int], tuple[int, int]] = {}

    def size_of_boxes(self, inst: Inst, map: int) -> tuple[int, int]:
        """Returns the bytes of a tensor copy through a map, given by its number, and its requests to L2."""
        found = self.boxes.get((inst.index, map))
        if found is None:
            bound = self.maps[map].map
            inner, nbytes = bound.box[0] * bound.dtype.bits // 8, bound.nbytes * box_count(inst)
            found = self.boxes[inst.index, map] = nbytes, -(-inner // LINE) * (nbytes // inner)
        return found


class Reader:
    """Converts the rows of one cluster into steps."""

    def __init__(self, cluster: ClusterState, keys: NDArray[np.int64], facts: Facts) -> None:
        self.cluster, self.facts = cluster, facts
        self.insts, self.emulation, self.widths = facts.insts, facts.emulation, facts.widths
        self.stride = cluster.shared_stride
        self.keys = keys
        self.nbytes: list[int] = []
        self.reads: list[bool] = []
        self.again: list[bool] = []
        self.stored: set[tuple[int, int]] = set()
        self.copies: list[int] = []
        self.columns = 0
        self.pairs = False
        self.known: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def traffic(self, nbytes: int, reads: bool, again: bool = False) -> int:
        self.nbytes.append(nbytes)
        self.reads.append(reads)
        self.again.append(again)
        self.copies.append(1)
        return len(self.nbytes) - 1


def _address(word: int) -> tuple[int, int]:
    """Rank and offset of a shared or generic address in a record."""
    word = word - SHARED_WINDOW if word >= SHARED_WINDOW else word
    return word >> RANK_SHIFT, word & _OFFSET


Steps = list[dict[str, Any]]
RECORDS: dict[str, Callable[[Reader, Op], Steps]] = {}
RecordReader = Callable[[Reader, Op], Steps]


def record(*names: str, traffic: bool = False) -> Callable[[RecordReader], RecordReader]:
    """Register the reader for records of the forms ``names``; ``traffic``: whether their data move through L2."""

    def register(function: RecordReader) -> RecordReader:
        RECORDS.update(dict.fromkeys(names, function))
        TRAFFIC.update(names if traffic else ())
        return function

    return register


def _ranks(reader: Reader, op: Op, alone: int) -> list[int]:
    """The CTAs of a multicast mask, else one alone."""
    return [r for r in range(reader.cluster.ranks) if op["mask"] >> r & 1] if "mask" in op else [alone]


@record("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", traffic=True)
def _tensor_copy(reader: Reader, op: Op) -> Steps:
    inst, load = op.inst, "dst_mem" in op
    nbytes, requests = reader.facts.size_of_boxes(inst, op["map"])
    position = reader.traffic(nbytes, load)
    box = Box(position, op.rank, nbytes, requests, int(reader.keys[position]))
    if not load:
        box.source = _address(op["src_mem"])[1]
        return [{"kind": "add_box" if "op" in inst.form.slots else "store_box", "what": box}]
    owner, offset = _address(op["dst_mem"])
    mbar_rank, mbar = _address(op["mbar"])
    ranks = _ranks(reader, op, owner)
    reader.copies[position] = len(ranks)
    at = [(r & ~1) | (mbar_rank & 1) if inst["group"] == "cta_group::2" else r for r in ranks]
    box.targets = tuple((r, offset, b * reader.stride + mbar) for r, b in zip(ranks, at, strict=True))
    return [{"kind": "load_box", "what": box}]


@record("cp.async.bulk", "cp.reduce.async.bulk", traffic=True)
def _bulk_copy(reader: Reader, op: Op) -> Steps:
    inst, size = op.inst, op["size"] & 0xFFFF_FFFF
    to_global, from_global = inst["dst"] == "global", inst["src"] == "global"
    position = reader.traffic(size if to_global or from_global else 0, from_global)
    box = Box(position, op.rank, size, -(-size // LINE), int(reader.keys[position]))
    if to_global:
        box.source = _address(op["src_mem"])[1]
        return [{"kind": "add_box" if "op" in inst.form.slots else "store_box", "what": box}]
    owner, offset = _address(op["dst_mem"])
    mbar = _address(op["mbar"])[1]
    ranks = _ranks(reader, op, owner)
    reader.copies[position] = len(ranks)
    box.targets = tuple((r, offset, r * reader.stride + mbar) for r in ranks)
    return [{"kind": "load_box" if from_global else "send", "what": box}]


@record("tcgen05.mma", "tcgen05.mma.ws")
def _mma(reader: Reader, op: Op) -> Steps:
    inst, tmem_a = op.inst, isinstance(op.inst.operand("a"), nodes.Address)
    ranks = _group_ranks(op)
    group = len(ranks)
    kind = inst["kind"].removeprefix("kind::")
    desc = InstrDescriptor.decode(op["idesc"] & 0xFFFF_FFFF, kind)
    reader.pairs |= group > 1
    # M = 64 takes the time of 128 rows. M = 128 of a pair leaves no lane idle: 64 lanes have the other half of N.
    rows, n = desc.m // group if group > 1 else max(desc.m, 128), desc.n
    left = () if tmem_a else tuple((r, _start_address(op["a"])) for r in ranks)
    right = tuple((r, _start_address(op["b"])) for r in ranks)
    nbytes = (desc.m // group if left else 0) * WARP + n // group * WARP
    flops = 2 * desc.m * n * desc.k
    type = "e2m1x2" if kind in PACKED_KINDS else ""
    return [{"kind": "mma", "what": Mma(rows, n, nbytes, flops, ranks, left, right, op["d"] & 0xFFFF, type, desc.k)}]


def _group_ranks(op: Op) -> tuple[int, ...]:
    """The CTAs of the group of a tcgen05 instruction."""
    group = int(op.inst["group"][-1])
    base = op.rank & ~1 if group == 2 else op.rank
    return tuple(range(base, base + group))


def _start_address(descriptor: int) -> int:
    """The start address of a matrix descriptor, without the rank."""
    return (descriptor & 0x3FFF) << 4


@record("tcgen05.commit")
def _commit(reader: Reader, op: Op) -> Steps:
    owner, offset = _address(op["mbar"])
    places = tuple(r * reader.stride + offset for r in _ranks(reader, op, owner))
    return [{"kind": "commit", "what": places, "number": op.rank}]


@record("tcgen05.dealloc")
def _dealloc(reader: Reader, op: Op) -> Steps:
    return [{"kind": "alloc"}]


@record("tcgen05.alloc")
def _alloc(reader: Reader, op: Op) -> Steps:
    reader.columns = max(reader.columns, op["ncols"] & 0xFFFF)
    return [{"kind": "alloc"}]


@record("clusterlaunchcontrol.try_cancel.async")
def _cancel(reader: Reader, op: Op) -> Steps:
    mbar = _address(op["mbar"])[1]
    ranks = range(reader.cluster.ranks) if op.inst["multicast"] else [op.rank]
    return [{"kind": "cancel", "what": tuple(r * reader.stride + mbar for r in ranks), "nbytes": 16}]


@record("cp.async", traffic=True)
def _lane_copy(reader: Reader, op: Op) -> Steps:
    position = reader.traffic(op["size"], True)
    return [{"kind": "lane_copy", "what": Access(position, op["size"], 1, True)}]


@record("cp.async.mbarrier.arrive")
def _lane_arrive(reader: Reader, op: Op) -> Steps:
    owner, offset = _address(op["mbar"] & 0xFFFF_FFFF)
    return [{"kind": "lane_arrive", "what": owner * reader.stride + offset}]


@record("st.async", "red.async", traffic=True)
def _async_store(reader: Reader, op: Op) -> Steps:
    size = 4 * len(op.vector("b"))
    owner, mbar = _address(op["mbar"])
    box = Box(reader.traffic(0, False), op.rank, size, 1)
    box.targets = ((owner, _address(op["a"])[1], owner * reader.stride + mbar),)
    return [{"kind": "send", "what": box}]


@record("tcgen05.cp")
def _tensor_memory_copy(reader: Reader, op: Op) -> Steps:
    """``nbytes`` that each SM of the group reads from shared memory; ``what`` are its CTAs."""
    rows, bits = map(int, op.inst["shape"].removesuffix("b").split("x"))
    return [{"kind": "tmem_copy", "what": _group_ranks(op), "nbytes": rows * bits // 8}]


@record(
    "tcgen05.shift", "tcgen05.relinquish_alloc_permit", "setmaxnreg",
    "tensormap.replace", "tensormap.cp_fenceproxy", *SERVICES,
)  # fmt: skip
def _issue(reader: Reader, op: Op) -> Steps:
    """The issue alone."""
    return [{"kind": "pause"}]


RowReader = Callable[[Reader, Inst, int, int, int], dict[str, Any]]


def _set_barrier(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    return {"kind": "set_barrier", "what": a, "number": b & 0xFFFF_FFFF}


def _wait(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    return {"kind": "wait", "what": a, "number": b}


def _arrive(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    return {"kind": "arrive", "what": a, "number": b & 0xFFFF_FFFF, "nbytes": b >> 32}


def _arrive_drop(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    return {"kind": "arrive_drop", "what": a, "number": b & 0xFFFF_FFFF, "nbytes": b >> 32}


def _memory(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    load = inst.find("d") is not None
    if a & SHARED:
        where = "shared_access" if b == rank else "remote_access"
        return {"kind": where, "what": load, "number": a & 0xFF_FFFF, "nbytes": a >> 24 & 0xFF_FFFF}
    nbytes, lines = (a & 0xFF_FFFF) * SECTOR, a >> 24
    reads, place = inst.traits.access != "write", (b // SECTOR, a)
    again = not reads and place in reader.stored
    if not reads:
        reader.stored.add(place)
    position = reader.traffic(nbytes, reads, again)
    return {
        "kind": "global_access",
        "what": Access(position, nbytes, lines, load, again, inst.traits.access == "update"),
    }


def _bar(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    return {"kind": "bar_arrive" if b >> 32 & 0xFF == 1 else "bar_sync", "what": a, "number": b & 0xFFFF_FFFF}


def _cluster_arrive(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    """``number``: 1 for an arrival that releases, as it does without ``.relaxed``."""
    return {"kind": "cluster_arrive", "number": int(inst["sem"] != "relaxed")}


def _tmem(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    kind, name = ("tmem_load", "d") if inst.name == "tcgen05.ld" else ("tmem_store", "b")
    return {"kind": kind, "nbytes": len(inst.items(name)) * 4 * WARP}


def read_row(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    """The step of an instruction without a record in the queue."""
    if is_memory(inst):
        return _memory(reader, inst, rank, a, b)
    found = ROWS.get(inst.name, "pause")
    return {"kind": found, "number": a} if isinstance(found, str) else found(reader, inst, rank, a, b)


def _wgmma(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    registers = left_registers(inst)
    form = wgmma.form_of(inst.opcode, bool(registers), immediates(inst))
    left = () if registers else ((rank, _start_address(a)),)
    nbytes = (0 if registers else wgmma.M * WARP) + form.n * WARP
    flops = 2 * wgmma.M * form.n * form.k
    return {
        "kind": "wgmma",
        "what": Mma(wgmma.M, form.n, nbytes, flops, (rank,), left, ((rank, _start_address(b)),), k=form.k),
    }


def _warp_mma(reader: Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    m, n, k = extents_of(inst["shape"])
    d, c = (next(iter(registers_of(inst.operand(name))), None) for name in ("d", "c"))
    type = "e2m1x2" if any(inst.has(f"kind::{kind}") for kind in PACKED_KINDS) else inst["atype"]
    scaled = inst.has("block_scale") and type in FLOAT8
    rate = "mxf8" if scaled else type
    emulation = reader.emulation.get(inst.index, (0, 0))
    what = WarpMma(2 * m * n * k, c.name if c else "", d.name if d else "", rate, emulation)
    return {"kind": "warp_mma", "what": what}


_BARS = ("bar", "bar.cta", "barrier", "barrier.cta")
# For the row of an instruction without a record: a kind of step, or a function that returns the step.
ROWS: dict[str, str | RowReader] = {
    "mbarrier.init": _set_barrier,
    "mbarrier.inval": _set_barrier,
    "mbarrier.expect_tx": _arrive,
    "mbarrier.complete_tx": _arrive,
    "mbarrier.arrive": _arrive,
    "mbarrier.arrive.expect_tx": _arrive,
    "mbarrier.arrive.noComplete": _arrive,
    "mbarrier.arrive_drop": _arrive_drop,
    "mbarrier.arrive_drop.expect_tx": _arrive_drop,
    "mbarrier.arrive_drop.noComplete": _arrive_drop,
    "mbarrier.test_wait": _wait,
    "mbarrier.test_wait.parity": _wait,
    "mbarrier.try_wait": _wait,
    "mbarrier.try_wait.parity": _wait,
    **dict.fromkeys((f"{bar}.{how}" for bar in _BARS for how in ("sync", "arrive", "red")), _bar),
    "barrier.cluster.arrive": _cluster_arrive,
    "barrier.cluster.wait": "cluster_wait",
    "wgmma.mma_async": _wgmma,
    "wgmma.commit_group": "group_commit",
    "wgmma.wait_group": "group_wait",
    "cp.async.bulk.commit_group": "copy_commit",
    "cp.async.commit_group": "copy_commit",
    "cp.async.bulk.wait_group": "copy_wait",
    "cp.async.wait_group": "copy_wait",
    "cp.async.wait_all": "copy_wait",
    "tcgen05.ld": _tmem,
    "tcgen05.st": _tmem,
    "tcgen05.wait::ld": "tmem_wait",
    "tcgen05.wait::st": "tmem_wait",
    **dict.fromkeys(WARP_MMAS, _warp_mma),
}
