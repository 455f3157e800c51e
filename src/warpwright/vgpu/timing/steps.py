"""Rows of a cluster as steps that the replay performs: what each instruction asks of which unit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.layout import InstrDescriptor
from warpwright.ptx import nodes
from warpwright.vgpu.engines import mma as tcgen05
from warpwright.vgpu.engines import wgmma
from warpwright.vgpu.engines.tensor_copy import form_of
from warpwright.vgpu.jit.costs import NEED, is_memory, passed
from warpwright.vgpu.jit.issue import flatten
from warpwright.vgpu.jit.warpgroup import left_registers
from warpwright.vgpu.program.memory_map import RANK_SHIFT, SHARED_WINDOW
from warpwright.vgpu.program.program import Inst, registers_of

if TYPE_CHECKING:
    from warpwright.vgpu.machine.cluster import Cluster

__all__ = ["TRAFFIC", "Access", "Box", "Product", "Program", "Step", "WarpProduct", "is_queued", "program_of"]

Ints = NDArray[np.int64]
_OFFSET = (1 << RANK_SHIFT) - 1
WARP = 32
SECTOR, LINE = 32, 128
SHARED = 1 << 48  # set in the first word of a row of an access to shared memory
TRAFFIC = (
    "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", "cp.async.bulk", "cp.reduce.async.bulk", "cp.async",
    "st.async", "red.async",
)  # fmt: skip


class Step(NamedTuple):
    """One row: what happens (`replay` has a method of that name), the instruction, what it is about, and since the row
    before it cycles, issue slots, and cycles of the unit for special functions."""

    kind: str
    cycles: int
    slots: int
    inst: int
    what: Any = None
    number: int = 0
    nbytes: int = 0
    special: int = 0


@dataclass(slots=True)
class Box:
    """A copy between L2 and shared memory. ``position`` counts the cluster's traffic; ``key`` is what it brings;
    ``targets``: rank, offset in shared memory and barrier of each destination; ``requests`` of up to 128 bytes."""

    position: int
    rank: int
    nbytes: int
    requests: int
    key: int = 0
    targets: tuple[tuple[int, int, int], ...] = ()


@dataclass(slots=True)
class Access:
    """Global memory by lane code: bytes in whole sectors, lines of 128 bytes; ``position`` as in `Box`."""

    position: int
    nbytes: int
    lines: int
    load: bool


@dataclass(slots=True)
class Product:
    """A tensor instruction: ``rows`` of each SM (at least those it takes the time of) by ``n`` by 32 bytes of K.

    ``nbytes``: what each SM reads of its shared memory; ``flops`` of all its CTAs; ``left`` and ``right``: where the
    operands of each CTA lie, (rank, offset); none in registers or tensor memory.
    """

    rows: int
    n: int
    nbytes: int
    flops: int
    ranks: tuple[int, ...]
    left: tuple[tuple[int, int], ...]
    right: tuple[tuple[int, int], ...]


class WarpProduct(NamedTuple):
    """An mma of a warp: flops, and the first registers of what it adds to and of its sums."""

    flops: int
    added: str
    made: str


@dataclass(slots=True)
class Program:
    """The steps of each warp of a cluster, and of each position of its traffic: bytes, whether it reads, and how many
    CTAs get them."""

    warps: list[list[Step]]
    nbytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    reads: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    copies: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: int = 0

    @property
    def length(self) -> int:
        """Steps in all."""
        return sum(map(len, self.warps))


def words_of(inst: Inst) -> int:
    """Words of an instruction's record that hold operands."""
    return sum(len(flatten(operand)) for operand in inst.operands)


class _Reader:
    """Turns the rows of one cluster into steps."""

    def __init__(self, cluster: Cluster, keys: NDArray[np.int64]) -> None:
        self.cluster = cluster
        self.insts = cluster.launch.insts
        self.words = [words_of(inst) if is_queued(inst) else 0 for inst in self.insts]
        self.stride = cluster.shared_stride
        self.keys = keys
        self.nbytes: list[int] = []
        self.reads: list[bool] = []
        self.copies: list[int] = []
        self.columns = 0
        self.known: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def traffic(self, nbytes: int, reads: bool) -> int:
        self.nbytes.append(nbytes)
        self.reads.append(reads)
        self.copies.append(1)
        return len(self.nbytes) - 1

    def step(self, kind: str, row: tuple[int, ...], before: int, **more: Any) -> Step:
        cycles, slots, special = passed(row[1], before)
        return Step(kind, cycles, slots, row[0] & 0xFFFF_FFFF, special=special, **more)


def _address(word: int) -> tuple[int, int]:
    """Rank and offset of a shared or generic address in a record."""
    word = word - SHARED_WINDOW if word >= SHARED_WINDOW else word
    return word >> RANK_SHIFT, word & _OFFSET


def _tensor_copy(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    form = form_of(inst.opcode)
    map = reader.cluster.launch.maps[map_index(reader.cluster, words[form.map])].map
    inner = map.box[0] * map.dtype.bits // 8
    requests = -(-inner // LINE) * (map.nbytes // inner)
    position = reader.traffic(map.nbytes, form.load)
    owner, offset = _address(words[form.shared])
    box = Box(position, rank, map.nbytes, requests, int(reader.keys[position]))
    if not form.load:
        return [{"kind": "add_box" if inst.name.startswith("cp.reduce") else "store_box", "what": box}]
    mbar_rank, mbar = _address(words[form.mbar])
    ranks = [r for r in range(reader.cluster.ranks) if words[form.mask] >> r & 1] if form.mask else [owner]
    reader.copies[position] = len(ranks)
    at = [(r & ~1) | (mbar_rank & 1) if form.pair else r for r in ranks]
    box.targets = tuple((r, offset, b * reader.stride + mbar) for r, b in zip(ranks, at, strict=True))
    return [{"kind": "load_box", "what": box}]


def _bulk_copy(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    size = words[2] & 0xFFFF_FFFF
    to_global, from_global = inst["dst"] == "global", inst["src"] == "global"
    position = reader.traffic(size if to_global or from_global else 0, from_global)
    box = Box(position, rank, size, -(-size // LINE), int(reader.keys[position]))
    if to_global:
        return [{"kind": "add_box" if inst.name.startswith("cp.reduce") else "store_box", "what": box}]
    owner, offset = _address(words[0])
    mbar = _address(words[3])[1]
    ranks = [owner]
    if inst.name == "cp.async.bulk" and inst["multicast"]:
        ranks = [r for r in range(reader.cluster.ranks) if words[4] >> r & 1]
    reader.copies[position] = len(ranks)
    box.targets = tuple((r, offset, r * reader.stride + mbar) for r in ranks)
    return [{"kind": "load_box" if from_global else "send", "what": box}]


def _product(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    form = tcgen05.form_of(inst.opcode, len(words), type(inst.operands[1]) is nodes.Address)
    desc = InstrDescriptor.decode(words[3] & 0xFFFF_FFFF, form.kind)
    base = rank & ~1 if form.group == 2 else rank
    ranks = tuple(range(base, base + form.group))
    rows, n = max(desc.m // form.group, 128), desc.n
    left = () if form.tmem_a else tuple((r, _start(words[1])) for r in ranks)
    right = tuple((r, _start(words[2])) for r in ranks)
    nbytes = (desc.m // form.group if left else 0) * WARP + n // form.group * WARP
    flops = 2 * desc.m * n * desc.k
    return [{"kind": "product", "what": Product(rows, n, nbytes, flops, ranks, left, right)}]


def _start(descriptor: int) -> int:
    """The start address of a matrix descriptor, without the rank."""
    return (descriptor & 0x3FFF) << 4


def _commit(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    owner, offset = _address(words[0])
    ranks = [r for r in range(reader.cluster.ranks) if words[1] >> r & 1] if inst["multicast"] else [owner]
    return [{"kind": "commit", "what": tuple(r * reader.stride + offset for r in ranks), "number": rank}]


def _alloc(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    reader.columns = max(reader.columns, words[1] & 0xFFFF)
    return [{"kind": "alloc"}]


def _cancel(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    mbar = _address(words[1])[1]
    ranks = range(reader.cluster.ranks) if inst["multicast"] else [rank]
    return [{"kind": "cancel", "what": tuple(r * reader.stride + mbar for r in ranks), "nbytes": 16}]


def _lane_copy(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    position = reader.traffic(words[2], True)
    return [{"kind": "lane_copy", "what": Access(position, words[2], 1, True)}]


def _lane_arrive(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    owner, offset = _address(words[0] & 0xFFFF_FFFF)
    return [{"kind": "lane_arrive", "what": owner * reader.stride + offset}]


def _async_store(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    size = 4 * max(1, len(words) - 2)
    owner, mbar = _address(words[-1])
    box = Box(reader.traffic(0, False), rank, size, 1)
    box.targets = ((owner, _address(words[0])[1], owner * reader.stride + mbar),)
    return [{"kind": "send", "what": box}]


def _nothing(reader: _Reader, inst: Inst, rank: int, words: list[int]) -> list[dict[str, Any]]:
    return [{"kind": "pause"}]


_QUEUED: dict[str, Callable[[_Reader, Inst, int, list[int]], list[dict[str, Any]]]] = {
    "cp.async.bulk.tensor": _tensor_copy,
    "cp.reduce.async.bulk.tensor": _tensor_copy,
    "cp.async.bulk": _bulk_copy,
    "cp.reduce.async.bulk": _bulk_copy,
    "tcgen05.mma": _product,
    "tcgen05.mma.ws": _product,
    "tcgen05.commit": _commit,
    "tcgen05.alloc": _alloc,
    "tcgen05.cp": _nothing,
    "tcgen05.shift": _nothing,
    "cp.async": _lane_copy,
    "cp.async.mbarrier.arrive": _lane_arrive,
    "st.async": _async_store,
    "red.async": _async_store,
    "clusterlaunchcontrol.try_cancel.async": _cancel,
}


def map_index(cluster: Cluster, address: int) -> int:
    """Which of the launch's tensor maps stands at an address."""
    return int.from_bytes(bytes(cluster.launch.memory.view(address)[8:16]), "little")


def _barrier(reader: _Reader, inst: Inst, a: int, b: int) -> dict[str, Any]:
    count, nbytes = b & 0xFFFF_FFFF, b >> 32
    if inst.name in ("mbarrier.init", "mbarrier.inval"):
        return {"kind": "set_barrier", "what": a, "number": count}
    if "wait" in inst.name:
        return {"kind": "wait", "what": a, "number": b}
    drop = "arrive_drop" in inst.name
    return {"kind": "arrive_drop" if drop else "arrive", "what": a, "number": count, "nbytes": nbytes}


def _memory(reader: _Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    load = inst.name.startswith(("ld", "atom"))
    if a & SHARED:
        where = "shared_access" if b == rank else "remote_access"
        return {"kind": where, "what": load, "number": a & 0xFF_FFFF, "nbytes": a >> 24 & 0xFF_FFFF}
    nbytes, lines = (a & 0xFF_FFFF) * SECTOR, a >> 24
    position = reader.traffic(nbytes, load or inst.name == "red")
    return {"kind": "global_access", "what": Access(position, nbytes, lines, load)}


def _plain(reader: _Reader, inst: Inst, rank: int, a: int, b: int) -> dict[str, Any]:
    """Steps of instructions without a record in the queue."""
    name = inst.name
    if name.startswith("mbarrier."):
        return _barrier(reader, inst, a, b)
    if is_memory(inst):
        return _memory(reader, inst, rank, a, b)
    if name.startswith("bar") and not name.startswith("barrier.cluster"):
        return {"kind": "bar_arrive" if b >> 32 & 0xFF == 1 else "bar_sync", "what": a, "number": b & 0xFFFF_FFFF}
    if name == "wgmma.mma_async":
        return {"kind": "group_product", "what": _group_product(inst, rank, a, b)}
    if name in ("tcgen05.ld", "tcgen05.st"):
        operand = inst.operands[0] if name == "tcgen05.ld" else inst.operands[-1]
        registers = len(operand.items) if isinstance(operand, nodes.Vector) else 1
        return {"kind": "tmem_load" if name == "tcgen05.ld" else "tmem_store", "nbytes": registers * 4 * WARP}
    if name == "mma":
        return {"kind": "warp_product", "what": _warp_product(inst)}
    return {"kind": _KINDS.get(name, "pause"), "number": a, "what": inst.name.startswith("cp.async.bulk")}


_KINDS = {
    "barrier.cluster.arrive": "cluster_arrive",
    "barrier.cluster.wait": "cluster_wait",
    "wgmma.commit_group": "group_commit",
    "wgmma.wait_group": "group_wait",
    "cp.async.bulk.commit_group": "copy_commit",
    "cp.async.commit_group": "copy_commit",
    "cp.async.bulk.wait_group": "copy_wait",
    "cp.async.wait_group": "copy_wait",
    "cp.async.wait_all": "copy_wait",
    "tcgen05.wait::ld": "tmem_wait",
    "tcgen05.wait::st": "tmem_wait",
}


def _group_product(inst: Inst, rank: int, a: int, b: int) -> Product:
    registers = left_registers(inst)
    immediates = tuple(int(operand.value) for operand in inst.operands[4:] if isinstance(operand, nodes.Imm))
    form = wgmma.form_of(inst.opcode, bool(registers), immediates)
    left = () if registers else ((rank, _start(a)),)
    nbytes = (0 if registers else wgmma.M * WARP) + form.n * WARP
    return Product(wgmma.M, form.n, nbytes, 2 * wgmma.M * form.n * form.k, (rank,), left, ((rank, _start(b)),))


def _warp_product(inst: Inst) -> WarpProduct:
    shape = next(word for word in inst.opcode.split(".") if word.startswith("m") and "n" in word and "k" in word)
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    made, added = ([*registers_of(inst.operands[i]), None][0] for i in (0, 3))
    return WarpProduct(2 * int(m) * int(n) * int(k), added.name if added else "", made.name if made else "")


def program_of(cluster: Cluster, rows: Ints, records: Ints, keys: Ints) -> Program:
    """The steps of a cluster, from its rows in the order in which they were made, and their records."""
    reader = _Reader(cluster, keys)
    queue = deque(records.tolist())
    warps: list[list[Step]] = [[] for _ in range(cluster.count)]
    before = [0] * cluster.count
    for row in rows.tolist():
        number, warp = row[0] & 0xFFFF_FFFF, row[0] >> 32
        rank = warp // cluster.per_cta
        if number & NEED:
            found = [{"kind": "need", "number": number - NEED}]
            row[0] -= NEED
        else:
            found = _steps(reader, number, rank, row, queue)
        for more in found:
            warps[warp].append(reader.step(row=tuple(row), before=before[warp], **more))
            before[warp] = row[1]
    nbytes, copies = np.array(reader.nbytes, np.int64), np.array(reader.copies, np.int64)
    return Program(warps, nbytes, np.array(reader.reads, bool), copies, reader.columns)


def _steps(reader: _Reader, number: int, rank: int, row: list[int], queue: deque[list[int]]) -> list[dict[str, Any]]:
    inst = reader.insts[number]
    if not is_queued(inst):
        return [_plain(reader, inst, rank, row[2], row[3])]
    found: list[dict[str, Any]] = []
    for _ in range(row[2]):
        words = queue.popleft()[2 : 2 + reader.words[number]]
        read = _QUEUED.get(inst.name, _nothing)
        if inst.name in TRAFFIC:
            found += read(reader, inst, rank, words)
            continue
        key = (number, rank, *words)
        if key not in reader.known:
            reader.known[key] = read(reader, inst, rank, words)
        found += reader.known[key]
    return found


def is_queued(inst: Inst) -> bool:
    """Whether the rows of an instruction have records in the queue."""
    return inst.name in _QUEUED or inst.name in _SERVICES


_SERVICES = (
    "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit", "call.vprintf", "call.__assertfail", "tensormap.replace",
    "setmaxnreg",
)  # fmt: skip
