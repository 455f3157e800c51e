"""The stream of one cluster: all that it did, from which alone its verdict follows.

Clusters of one launch mostly do the same at other addresses of global memory. Streams are therefore stored in a form
that is equal for such clusters: addresses in shared memory count from the cluster's first byte, and operands that only
say where in global memory an access goes, or which value it stores, are left out (`ignored_words`). Equal streams have
equal digests, and one of the clusters is judged.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import DeviceError, LimitReached
from warpwright.vgpu.checks.order.access_kinds import global_operand, is_strong, kind_of, kinds_of
from warpwright.vgpu.checks.polls import kept_rows, may_repeat
from warpwright.vgpu.engines.box import geometry
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.engines.pixels import part_inside
from warpwright.vgpu.engines.tensor_copy import filter_offsets, starts
from warpwright.vgpu.jit.record import ADDRESSES, OPERANDS, VALUED
from warpwright.vgpu.jit.runtime import function
from warpwright.vgpu.jit.state import DONE, RECORD_WORDS
from warpwright.vgpu.machine.events import Records, Rows
from warpwright.vgpu.machine.fabric import ClusterFabric
from warpwright.vgpu.program.operation import HEAD_WORDS
from warpwright.vgpu.program.program import Inst, Program, word_count

__all__ = ["Block", "GlobalRows", "Shared", "Stream", "ignored_words"]

_LANE = np.arange(32)
_WORDS = 40  # of an access
_MANY = 1 << 10  # rows of a turn that may be those of a polling loop
_LARGEST = 1 << 22  # words that are stored as they are; more are folded and compressed


@dataclass(frozen=True, slots=True)
class Block:
    """Part of a stream.

    ``heads`` (rows, 4): instruction | warp << 32, lanes | extra << 32, two words (`watch.ll`); ``places`` (tables, 32):
    bytes from the start of the cluster's shared memory, -1 for lanes that are off and for other memory, but -2, -3, …
    for the addresses of strong accesses of global memory, in the order in which they come; ``packed``
    (tables, 32): operands of mbarriers, of those rows that have them; ``records`` (operations, words) in the order in
    which rows issued them. ``steps`` (steps, 3): rows, records and signals of each turn of the machine, the signals
    after the rows; ``live`` (steps, warps): lanes that have not exited, ``running``: warps that have not. ``signals``
    (signals, 7): operation, instruction and CTA that arrived on an mbarrier, its CTA and offset, count, bytes.
    """

    heads: Rows
    places: Rows
    packed: Rows
    records: Records
    steps: Rows
    live: NDArray[np.uint32]
    running: NDArray[np.bool_]
    signals: Rows

    def digest(self, into: hashlib.blake2b) -> None:
        for field in fields(self):
            part = getattr(self, field.name)
            into.update(len(part).to_bytes(8, "little"))
            into.update(part.tobytes())


@dataclass(frozen=True, slots=True)
class GlobalRows:
    """The rows of a `Block` with what the block leaves out, for checks of global memory.

    ``first``: number, in the cluster, of the first row here (`Knowledge.at` when the row is judged); ``heads`` as in
    `Block`; ``rows``: which of the heads are accesses with an address a lane; ``addresses`` (accesses, 32): host
    addresses, of any memory, valid where the lane is on; ``valued``: which of ``rows`` are doubted stores, ``values``
    (doubted stores, 32): what they write; ``records`` with all words, ``issuers``: which of the heads issued each;
    ``turns``: of the heads, which turn of the launch's clusters each was in."""

    cluster: ClusterFabric
    first: int
    heads: Rows
    rows: Rows
    addresses: Rows
    valued: Rows
    values: Rows
    records: Records
    issuers: Rows
    turns: Rows


class Shared:
    """What the streams of one launch share: masks of the words that matter, by instruction, and the count of turns.
    ``collectors`` get each part of each stream with its global addresses, from the thread that runs the cluster.
    ``flags``: strong accesses of global memory may order others, or their order is followed. ``doubted``: instructions;
    the rows of the stores among them have values."""

    def __init__(
        self,
        program: Program,
        collectors: Sequence[Callable[[GlobalRows], None]],
        flags: bool,
        doubted: frozenset[int] = frozenset(),
    ) -> None:
        self.collectors = collectors
        self.valued = np.array([i in doubted and inst.name in VALUED for i, inst in enumerate(program.insts)], np.bool_)
        self.turns = itertools.count()
        self.word_masks, self.operand_masks, self.queued, self.box_stores, self.may_repeat = _masks(program)
        self.strong = np.array([flags and is_strong(kind) for kind in kinds_of(program)], np.bool_)


@lru_cache(maxsize=8)
def _masks(
    program: Program,
) -> tuple[NDArray[np.uint64], Rows, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns by instruction `word_masks`, `operand_mask`, whether it is queued, `stores_box`, and `may_repeat`."""
    insts = program.insts
    return (
        np.array([word_masks(inst) for inst in insts], np.uint64),
        np.array([operand_mask(inst) for inst in insts], np.int64),
        np.array([inst.form.queued for inst in insts], np.bool_),
        np.array([stores_box(inst) for inst in insts], np.bool_),
        np.array([may_repeat(inst) for inst in insts], np.bool_),
    )


class Stream:
    """The rows, records and signals of one cluster, from its start to its end."""

    def __init__(self, cluster: ClusterFabric, shared: Shared) -> None:
        self.cluster, self.shared = cluster, shared
        self.hash = hashlib.blake2b(digest_size=16)
        self.folded: list[bytes] = []
        self.rows_before = self.ops_before = 0
        self.flags: dict[int, int] = {}  # by host address of a strong access: which of the cluster's it is
        self._empty()

    def _empty(self) -> None:
        self.rows: list[Rows] = []
        self.records: list[Records] = []
        self.signals: list[tuple[int, ...]] = []
        self.steps: list[tuple[int, int, int]] = []
        self.turns: list[int] = []
        self.live: list[NDArray[np.uint32]] = []
        self.running: list[NDArray[np.bool_]] = []
        self.words = 0
        self.state = b""

    def take(self, rows: Rows, records: Records) -> None:
        """Store a turn of the machine: its rows, and the records of the operations that they issued."""
        rows = self._without_polls(rows)
        live, running = self.cluster.warps["live"].copy(), self.cluster.warps["status"] != DONE
        state = live.tobytes() + running.tobytes()
        if not len(rows) and state == self.state:
            return
        limit = self.cluster.launch.limit
        if self.words > (_LARGEST if limit is None else min(_LARGEST, _WORDS * limit)):
            self.fold()
        self.state = state
        self.steps.append((len(rows), len(records), len(self.signals)))
        self.turns.append(next(self.shared.turns))
        self.rows.append(rows)
        self.records.append(records.copy())
        self.live.append(live)
        self.running.append(running)
        self.words += rows.size + records.size

    def _without_polls(self, rows: Rows) -> Rows:
        """Returns a copy of the rows without those of repeated iterations of a polling loop."""
        if len(rows) < _MANY:
            return rows.copy()
        starts = row_starts(rows)
        heads = rows[starts]
        extra = heads[:, 1] >> 32
        on = (heads[:, 1, None] >> _LANE & 1 == 1) & (extra == ADDRESSES)[:, None]
        tables = np.where(on, rows.reshape(-1)[np.minimum((starts + 1) * 4, rows.size - 32)[:, None] + _LANE], 0)
        may = self.shared.may_repeat[heads[:, 0] & 0xFFFF_FFFF] & (extra & 15 < OPERANDS)
        return rows[np.repeat(kept_rows(heads, tables, may), 1 + 8 * (extra & 15))]

    def signal(self, inst: int, number: int, cta: int, rank: int, offset: int, count: int, nbytes: int) -> None:
        """Store a signal: operation ``number`` of ``cta`` arrives on an mbarrier, or delivers bytes for it."""
        self.signals.append((number, inst, cta, rank, offset, count, nbytes))

    def fold(self) -> None:
        """Compress all that is stored so far."""
        block = self._block()
        self.folded.append(zlib.compress(pickle.dumps(block), 1))
        self._empty()
        limit = self.cluster.launch.limit
        if limit is not None and self.rows_before > limit:
            text = (
                f"did not end within {limit:,} accesses and barriers; give a higher limit, or choose a smaller problem"
            )
            raise LimitReached(f"kernel {self.cluster.launch.name} {text}.")

    def end(self, done: bool) -> bytes:
        """The cluster is over, at its end or not. Returns a digest of all that it did."""
        self.last = self._block()
        self.hash.update(bytes([done]))
        return self.hash.digest()

    def blocks(self) -> Iterator[Block]:
        """Yields the whole stream, once the cluster is over."""
        for folded in self.folded:
            yield pickle.loads(zlib.decompress(folded))
        yield self.last

    def _block(self) -> Block:
        rows = np.concatenate(self.rows) if self.rows else np.empty((0, 4), np.int64)
        records = np.concatenate(self.records) if self.records else np.empty((0, RECORD_WORDS), np.uint64)
        starts = row_starts(rows)
        heads, tables = rows[starts], rows[starts, 1] >> 32 & 15
        on = heads[:, 1, None] >> _LANE & 1 == 1
        places = self._places(rows, heads[tables > 0], starts[tables > 0], on[tables > 0])
        inside = places[tables[tables > 0] > 1] != -1  # what a store writes to global memory, `GlobalRows` has
        block = Block(
            heads,
            places,
            self._packed(rows, heads[tables > 1], starts[tables > 1], on[tables > 1] & inside),
            self._masked(records),
            self._steps(starts),
            np.array(self.live, np.uint32).reshape(-1, self.cluster.count),
            np.array(self.running, np.bool_).reshape(-1, self.cluster.count),
            np.array(self.signals, np.int64).reshape(-1, 7),
        )
        if len(self.cluster.launch.numbers) > 1:  # otherwise no other cluster can be equal
            block.digest(self.hash)
        turns = np.repeat(np.array(self.turns, np.int64), block.steps[:, 0])
        global_rows = self._global_rows(rows, starts, heads, tables, records, turns)
        for collect in self.shared.collectors:
            collect(global_rows)
        self.rows_before += len(heads)
        self.ops_before += len(records)
        return block

    def _places(self, rows: Rows, heads: Rows, starts: Rows, on: NDArray[np.bool_]) -> Rows:
        places = _table(rows, starts, 0) - self.cluster.shared_host
        nbytes = self.cluster.ranks * self.cluster.shared_stride
        inside = on & (places >= 0) & (places < nbytes)
        found = np.where(inside, places, -1)
        flags = np.nonzero(on & ~inside & self.shared.strong[heads[:, 0] & 0xFFFF_FFFF][:, None])
        if len(flags[0]):
            found[flags] = [-2 - self.flags.setdefault(each, len(self.flags)) for each in places[flags].tolist()]
        return found

    def _packed(self, rows: Rows, heads: Rows, starts: Rows, on: NDArray[np.bool_]) -> Rows:
        kept = self.shared.operand_masks[heads[:, 0] & 0xFFFF_FFFF]
        return np.where(on, _table(rows, starts, 1) & kept[:, None], 0)

    def _masked(self, records: Records) -> Records:
        """Returns records with the words that matter. The coordinates of a store matter if its box is clipped."""
        insts = records[:, 0].astype(np.intp)
        kept = records & self.shared.word_masks[insts]
        for i in np.flatnonzero(self.shared.box_stores[insts]).tolist():
            if self._clipped(self.cluster.op_of(records[i].tolist(), self.ops_before + i)):
                kept[i] = records[i]
        return kept

    def _clipped(self, op: Op) -> bool:
        """Whether a box of a store is not wholly inside the tensor. The machine refuses what is no box."""
        with suppress(DeviceError):
            box = geometry(self.cluster.tensor_map(op, op["map"]).map)
            parts = (part_inside(box, at, filter_offsets(op)) for at in starts(op, box) if box.rank == len(at))
            return any(part is not None for part in parts)
        return False

    def _steps(self, starts: Rows) -> Rows:
        """Returns the turns of the machine as counts of heads, of records and of the signals after them."""
        steps = np.array(self.steps, np.int64).reshape(-1, 3)
        ends = np.searchsorted(starts, np.cumsum(steps[:, 0]))
        steps[:, 0] = np.diff(ends, prepend=0)
        steps[:, 2] = np.diff(steps[:, 2], append=len(self.signals))
        return steps

    def _global_rows(
        self, rows: Rows, starts: Rows, heads: Rows, tables: Rows, records: Records, turns: Rows
    ) -> GlobalRows:
        stores = self.shared.valued[heads[:, 0] & 0xFFFF_FFFF]
        chosen = np.flatnonzero((tables == 1) | stores)
        counts = np.where(self.shared.queued[heads[:, 0] & 0xFFFF_FFFF], heads[:, 2], 0)
        issuers = np.repeat(np.arange(len(heads)), counts)
        valued = np.flatnonzero(stores[chosen])
        addresses, values = _table(rows, starts[chosen], 0), _table(rows, starts[chosen[valued]], 1)
        return GlobalRows(
            self.cluster, self.rows_before, heads, chosen, addresses, valued, values, records, issuers, turns
        )


def row_starts(rows: Rows) -> Rows:
    """Returns where the rows begin that may have tables after them."""
    starts = np.empty(len(rows), np.int64)
    return starts[: function("watch_rows")(rows.ctypes.data, len(rows), starts.ctypes.data)]


def _table(rows: Rows, starts: Rows, number: int) -> Rows:
    """Returns the tables after some rows, one word a lane. A table takes the room of eight rows."""
    words: Rows = rows.reshape(-1)[((starts + 1 + 8 * number) * 4)[:, None] + _LANE]
    return words


def ignored_words(inst: Inst) -> range:
    """Returns the operand words that the verdict does not depend on: coordinates, global addresses, stored values."""
    if inst.traits.queue not in ("copy", "lane-copy"):
        return range(0)
    kind = kind_of(inst)
    name = "b" if kind is None else "coords" if inst.find("map") else global_operand(inst, kind)
    return inst.columns.get(name, range(0))


def stores_box(inst: Inst) -> bool:
    """Whether an instruction reads a box of shared memory."""
    return "coords" in inst.columns and inst["dst"] == "global"


def word_masks(inst: Inst) -> list[int]:
    """Returns a mask for each word of a record: all bits if the instruction has the word and the word matters."""
    dropped, count = ignored_words(inst), word_count(inst)
    used = [i < count and i not in dropped for i in range(RECORD_WORDS - HEAD_WORDS)]
    return [(1 << 64) - 1 if keep else 0 for keep in [True] * HEAD_WORDS + used]


_OPERAND_MASKS = {
    "mbarrier.init": 0xFFFFF,
    "mbarrier.test_wait": 1,
    "mbarrier.test_wait.parity": 0xFFFFF,
    "mbarrier.try_wait": 1,
    "mbarrier.try_wait.parity": 0xFFFFF,
}


def operand_mask(inst: Inst) -> int:
    """Returns the bits that matter of an mbarrier's packed operands (20 bits each): a wait's parity, an
    initialisation's count."""
    return _OPERAND_MASKS.get(inst.name, -1)
