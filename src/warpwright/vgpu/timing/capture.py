"""The recorder of a launch. Clusters whose rows are equal up to coordinates are one kind, and each kind is read
once."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.layout.tensor_map import TensorMap
from warpwright.targets import Timing
from warpwright.vgpu.jit.costs import NEED, is_memory
from warpwright.vgpu.machine.events import Records
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.machine.state import ClusterState
from warpwright.vgpu.machine.tape import Tape
from warpwright.vgpu.program.operation import values
from warpwright.vgpu.program.program import Inst, word_count
from warpwright.vgpu.timing.peers import Peers
from warpwright.vgpu.timing.representatives import extrapolate, representatives
from warpwright.vgpu.timing.rows import program_of
from warpwright.vgpu.timing.steps import SECTOR, SHARED, TRAFFIC, Facts, Program
from warpwright.vgpu.timing.tiles import Walk, between_kinds, extrapolate_tiles, usual_tiles, walk_of

__all__ = ["Capture", "Kind"]

Rows = NDArray[np.int64]
_WORDS, _FIRST_WORD = 14, 2  # operands of a record, and the index of the first
_BOXES = ("", "tile")  # modes of a tensor copy whose coordinates are the start of one box
# Random factors: keys are weighted sums of coordinates, and different addresses must have different keys.
_SPREAD = np.random.default_rng(0).integers(1, 1 << 62, _WORDS)


@dataclass(slots=True)
class Kind:
    """Clusters whose rows are equal up to coordinates: their numbers, the steps of one of them, the order in which it
    accesses the positions of its traffic, and the positions of each warp."""

    program: Program
    order: NDArray[np.int64]
    per_warp: NDArray[np.int64]
    members: list[int] = field(default_factory=list)


class Capture(Tape):
    """A listener for timing. ``choose`` picks the clusters that run; ``kinds`` by signature; ``traffic``: the keys of
    each cluster's accesses, position by position, equal for equal addresses; ``lines``: the keys of their L2 lines;
    ``outside``: the bytes of boxes outside their array; ``far``: on a node, 1 for accesses of other ranks' memory."""

    def __init__(self, timing: Timing, choose: Callable[[Launch, Timing], Sequence[int] | None]) -> None:
        super().__init__()
        self.timing: Timing = timing
        self.choose = choose
        self.kinds: dict[bytes, Kind] = {}
        self.traffic: dict[int, NDArray[np.int64]] = {}
        self.lines: dict[int, NDArray[np.int64]] = {}
        self.outside: dict[int, NDArray[np.int64]] = {}
        self.far: dict[int, NDArray[np.float64]] = {}
        self.left: list[int] = []  # clusters that did not run, because others represent them
        self.next: list[int] = []  # clusters that the next launch runs
        self.all: list[int] = []  # clusters to run instead, if some cluster draws a number: it stands for no other
        self.drawn = False
        self.lock = threading.Lock()
        self.launch: Launch

    def launched(self, launch: Launch) -> Sequence[int] | None:
        self.launch = launch
        insts = launch.insts
        self.facts = Facts(launch)
        self.stores = np.array([is_memory(inst) and inst.traits.access == "write" for inst in insts], bool)
        self.copies = np.array([inst.name in TRAFFIC for inst in insts], bool)
        self.maps = np.array([_map_place(inst) for inst in insts], np.int64)
        self.edits_maps = any(inst.traits.effect == "edits-maps" for inst in insts)
        self.weights = np.array([_key_weights(inst) for inst in insts], np.int64)
        used = np.array([min(word_count(inst), _WORDS) if inst.form.queued else 0 for inst in insts], np.int64)
        self.fixed = ((self.weights == 0) & (np.arange(_WORDS) < used[:, None]))[:, : used.max(initial=0)]
        self.peers = Peers(launch) if launch.spec.gpus > 1 else None
        self.draws = np.array(launch.draws, bool)
        self.represents = bool(self.all)
        if self.next:
            return self.next
        clusters = self.choose(launch, self.timing)
        few = representatives(launch, clusters or ())
        self.left = [number for number in clusters or () if number not in few] if few else []
        self.all = list(clusters or ()) if few and self.draws.any() else []
        self.represents = bool(self.all)
        return few or clusters

    def complete(self) -> bool:
        """Add the clusters that did not run. Returns False if some of them must run: in another launch."""
        if self.drawn:
            self._start_again()
            return False
        self.left = [number for number in self.left if number not in self.traffic]
        if self.left:
            walk = self._walk()
            middle = between_kinds(walk.groups) if walk else None
            found = self._extrapolate(walk) if middle is None else middle
            if isinstance(found, dict):
                self._add(found, walk)
            self.next = self.left if found is None else [found] if isinstance(found, int) else []
        return not self.left

    def _start_again(self) -> None:
        """Forget what was recorded: all clusters run in the next launch, which has memory of its own."""
        for each in (self.kinds, self.traffic, self.lines, self.outside, self.left, self.parts):
            each.clear()
        self.next, self.all, self.drawn = self.all, [], False

    def _walk(self) -> Walk | None:
        """How the clusters walk tiles, if they are persistent, all resident, and of two kinds, of which the first has
        the lower numbers and one tile more, or are like these."""
        if self.launch.clusters != (len(self.left) + len(self.traffic), 1, 1):
            return None
        return walk_of([(kind.program.length, kind.per_warp, kind.members) for kind in self.kinds.values()])

    def _extrapolate(self, walk: Walk | None) -> dict[int, Rows] | int | None:
        """The keys of the traffic, of its lines, and the bytes outside, of the clusters that did not run; or as of
        `extrapolate_tiles`."""
        fields = self.traffic, self.lines, self.outside
        usual = self.traffic if walk is None else [number for which in walk.usual for number in self._members(which)]
        known = {number: np.stack([each[number] for each in fields]) for number in usual}
        if len(self.kinds) == 1:
            return extrapolate(known, self.launch.clusters, self.left)
        if walk is None:
            return None
        tiles = {number: walk.counts[walk.group(number)] for number in (*known, *self.left)}
        count = len(self.left) + len(self.traffic)
        found = extrapolate_tiles(known, tiles, walk.tile, count, self.left)
        if found is not None:
            return found
        keys = {number: rows[:2] for number, rows in known.items()}  # edges of the array are not linear
        found = extrapolate_tiles(keys, tiles, walk.tile, count, self.left)
        if not isinstance(found, dict):
            return found
        inside = usual_tiles({number: rows[2:] for number, rows in known.items()}, tiles, walk.tile, self.left)
        return {number: np.concatenate([rows, inside[number]]) for number, rows in found.items()}

    def _members(self, which: int) -> list[int]:
        return list(self.kinds.values())[which].members

    def _add(self, found: dict[int, Rows], walk: Walk | None) -> None:
        """Add clusters with their keys, each to the kind of those around it."""
        for number, fields in found.items():
            self.traffic[number], self.lines[number], self.outside[number] = fields
            self._members(walk.usual[walk.group(number)] if walk else 0).append(number)
        self.left = []

    def of_rank(self, rank: int) -> Capture:
        """Returns the capture of one rank of a node, as if its GPU were alone."""
        found, count, kinds = copy.copy(self), self.launch.clusters_a_rank, dict[bytes, Kind]()
        for name in ("traffic", "lines", "outside", "far"):
            own = {n - rank * count: each for n, each in getattr(self, name).items() if n // count == rank}
            setattr(found, name, own)
        for key, kind in self.kinds.items():
            members = [number - rank * count for number in kind.members if number // count == rank]
            if members:
                kinds[key] = replace(kind, members=members)
        found.kinds = kinds
        return found

    def take(self, cluster: ClusterState, rows: Rows, records: Records) -> None:
        """Store rows and records. A kernel that changes tensor maps may change one later: their numbers are put into
        its records at once."""
        super().take(cluster, rows, records)
        if self.all and not self.drawn and self._draws_in(rows):
            self.drawn = cluster.launch.stopped = True
        if self.edits_maps and len(records):
            self._number_maps(cluster, self.parts[cluster.number][1][-1])

    def _number_maps(self, cluster: ClusterState, records: NDArray[Any]) -> None:
        """Put the numbers of tensor maps in place of their addresses: copies through equal maps at different addresses
        access the same data."""
        places = self.maps[records[:, 0]]
        own = np.flatnonzero(places)
        addresses, which = np.unique(records[own, places[own]], return_inverse=True)
        numbers = [cluster.launch.maps.number_at(address) for address in addresses.tolist()]
        records[own, places[own]] = np.array(numbers, records.dtype)[which]

    def _draws_in(self, rows: Rows) -> bool:
        numbers = rows[:, 0] & 0xFFFF_FFFF
        return bool(self.draws[numbers[numbers < NEED]].any())

    def recorded(self, cluster: ClusterState, rows: Rows, records: NDArray[Any]) -> None:
        """Add a cluster to its kind."""
        if not self.edits_maps:
            self._number_maps(cluster, records)
        order = _by_warp(rows[:, 0] >> 32)
        rows = rows.take(order, axis=0)
        if self.peers is not None:
            kept, rows = self.peers.without_polls(rows)
            order = order[kept]
        warp = (records[:, 1] >> 32) * cluster.per_cta + (records[:, 1] >> 8 & 0xFFFFFF)
        records = records.take(_by_warp(warp), axis=0)
        numbers = rows[:, 0] & 0xFFFF_FFFF
        plain = numbers < NEED
        numbers = np.where(plain, numbers, 0)
        access = self.facts.memory[numbers] & plain & (rows[:, 2] & SHARED == 0)
        stores = access & self.stores[numbers]
        fixed = self.fixed[records[:, 0]]
        words = records[:, _FIRST_WORD : _FIRST_WORD + fixed.shape[1]] * fixed
        signature = _signature(rows, access, stores, words)
        copies = self.copies[numbers] & plain
        counts = np.where(access, 1, np.where(copies, rows[:, 2], 0))
        keys, lines, outside = self._traffic_keys(cluster, rows, records, access, counts)
        far = None if self.peers is None else self.peers.far(cluster, rows, records, access, copies, counts)
        with self.lock:
            if far is not None:
                self.far[cluster.number] = far
            kind = self.kinds.get(signature)
            if kind is None:
                program = program_of(cluster, rows, records, keys, self.facts)
                accesses = np.argsort(np.repeat(order, counts), kind="stable")
                per_warp = np.bincount(np.repeat(rows[:, 0] >> 32, counts), minlength=cluster.count)
                kind = self.kinds[signature] = Kind(program, accesses, per_warp)
            kind.members.append(cluster.number)
            self.traffic[cluster.number] = keys
            self.lines[cluster.number] = lines
            self.outside[cluster.number] = outside

    def _traffic_keys(
        self, cluster: ClusterState, rows: Rows, records: Rows, access: NDArray[np.bool_], counts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """For each position of the traffic its key, the key of its L2 line (TMA may fetch lines wider than a box), and
        its bytes outside the array."""
        total = int(counts.sum())
        keys, lines, outside = found = np.zeros((3, total), np.int64)
        at = (np.cumsum(counts) - counts)[access]
        of_boxes = np.ones(total, bool)
        of_boxes[at] = False
        keys[at] = lines[at] = _virtual(cluster.launch, rows[access, 3])
        if of_boxes.any():
            own = records[self.copies[records[:, 0]]]
            keys[of_boxes] = (own[:, 2:] * self.weights[own[:, 0]]).sum(axis=1)
            offsets, outside[of_boxes] = self._places_of_boxes(cluster, own)
            lines[of_boxes] = keys[of_boxes] - offsets
        return found

    def _places_of_boxes(self, cluster: ClusterState, records: Rows) -> NDArray[np.int64]:
        """The part of the keys that comes from the offsets of boxes inside the L2 lines that TMA fetches, and the bytes
        of boxes outside the array."""
        found = np.zeros((2, len(records)), np.int64)
        for number in np.unique(records[:, 0]).tolist():
            inst = cluster.launch.insts[number]
            if "map" not in inst.columns or "dst_mem" not in inst.columns:
                continue
            own, place, inner = records[:, 0] == number, inst.columns["map"].start, inst.columns["coords"].start
            for which in np.unique(records[own, _FIRST_WORD + place]).tolist():
                map = cluster.launch.maps.bound[which].map
                line = map.l2_promotion * 8 // map.dtype.bits
                here = own & (records[:, _FIRST_WORD + place] == which)
                if line > map.box[0]:
                    found[0, here] = records[here, _FIRST_WORD + inner] % line * int(_SPREAD[inner])
                if inst["mode"] in _BOXES:
                    found[1, here] = _bytes_outside(map, values(inst, records[here], "coords"))
        return found


def _virtual(launch: Launch, hosts: Rows) -> Rows:
    """The addresses of a kernel for those of the host, which differ between launches."""
    first, _, shift = launch.table[np.argsort(launch.table[:, 0] + launch.table[:, 2])].T
    found: Rows = hosts - shift[np.maximum(np.searchsorted(first + shift, hosts, "right") - 1, 0)]
    return found


def _by_warp(warps: NDArray[np.int64]) -> NDArray[np.intp]:
    """The order of rows by their warps, and of the rows of a warp as they are. NumPy sorts 16-bit integers in linear
    time."""
    return np.argsort(warps.astype(np.uint16), kind="stable")


def _bytes_outside(map: TensorMap, coords: Rows) -> NDArray[np.int64]:
    """The bytes of each box outside the array."""
    starts = coords.astype(np.int32).astype(np.int64)
    extents = np.minimum(starts + map.box, map.dims) - np.maximum(starts, 0)
    share = np.prod(np.maximum(extents, 0) / np.array(map.box), axis=1)
    outside: NDArray[np.int64] = np.rint(map.nbytes * (1 - share)).astype(np.int64)
    return outside


def _signature(rows: Rows, access: NDArray[np.bool_], stores: NDArray[np.bool_], words: Rows) -> bytes:
    """A digest of the rows and records without coordinates and global addresses, but with the stores that repeat. The
    rows, which are large, have other addresses meanwhile."""
    sectors, firsts = np.unique(rows[stores, 3] // SECTOR, return_inverse=True)
    extents = np.unique(rows[stores, 2], return_inverse=True)[1]
    _, firsts, which = np.unique(extents * len(sectors) + firsts, return_index=True, return_inverse=True)
    at, again = np.flatnonzero(access), np.flatnonzero(stores)
    addresses, rows[at, 3] = rows[at, 3], 0
    rows[again, 3] = firsts[which]
    digest = hashlib.sha256(rows.data)
    rows[at, 3] = addresses
    digest.update(words.data)
    return digest.digest()


def _map_place(inst: Inst) -> int:
    """The place in a record of an instruction that has the address of a tensor map; 0 without one."""
    return _FIRST_WORD + inst.columns["map"].start if inst.form.queued and "map" in inst.columns else 0


def _key_weights(inst: Inst) -> list[int]:
    """For each word of a record the factor of its key; 0 for words that do not address global memory."""
    weights = [0] * _WORDS
    for name in _address_operands(inst) if inst.name in TRAFFIC else ():
        for at in inst.columns[name]:
            weights[at] = int(_SPREAD[at])
    return weights


def _address_operands(inst: Inst) -> tuple[str, ...]:
    """The operands that address the source of a copy, or its destination in global memory."""
    if "map" in inst.columns:
        return "map", "coords"
    to_global = "dst" in inst.form.slots and inst["dst"] == "global"
    return tuple(name for name in ("dst_mem" if to_global else "src_mem",) if name in inst.columns)
