"""The recorder of a launch: clusters that did the same, up to coordinates, are one kind and are understood once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.targets import Timing
from warpwright.vgpu.jit.costs import NEED, is_memory
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.machine.state import ClusterState
from warpwright.vgpu.machine.tape import Tape
from warpwright.vgpu.program.program import Inst, word_count
from warpwright.vgpu.timing.steps import SHARED, TRAFFIC, Program, map_index, program_of

__all__ = ["Capture", "Kind"]

Rows = NDArray[np.int64]
_WORDS, _FIRST_WORD = 14, 2  # of a record: operands, and where they begin
# Factors without a common one: keys are sums over coordinates, and different places must not have the same.
_SPREAD = np.random.default_rng(0).integers(1, 1 << 62, _WORDS)


@dataclass(slots=True)
class Kind:
    """Clusters whose rows are equal up to coordinates: their numbers, the steps of one of them, and the order in which
    it came to the positions of its traffic."""

    program: Program
    order: NDArray[np.int64]
    members: list[int] = field(default_factory=list)


class Capture(Tape):
    """A listener for timing. ``choose`` picks the clusters that run; ``kinds`` by signature; ``traffic``: what every
    cluster touched, position by position, equal numbers for equal places; ``lines``: what comes to L2 with it."""

    def __init__(self, timing: Timing, choose: Callable[[Launch, Timing], Sequence[int] | None]) -> None:
        super().__init__()
        self.timing: Timing = timing
        self.choose = choose
        self.kinds: dict[bytes, Kind] = {}
        self.traffic: dict[int, NDArray[np.int64]] = {}
        self.lines: dict[int, NDArray[np.int64]] = {}
        self.lock = threading.Lock()
        self.launch: Launch

    def launched(self, launch: Launch) -> Sequence[int] | None:
        self.launch = launch
        insts = launch.insts
        self.memory = np.array([is_memory(inst) for inst in insts], bool)
        self.copies = np.array([inst.name in TRAFFIC for inst in insts], bool)
        self.queued = np.array([inst.form.queued for inst in insts], bool)
        self.weights = np.array([_weights(inst) for inst in insts], np.int64)
        used = np.array([min(word_count(inst), _WORDS) if inst.form.queued else 0 for inst in insts], np.int64)
        self.fixed = (self.weights == 0) & (np.arange(_WORDS) < used[:, None])
        return self.choose(launch, self.timing)

    def recorded(self, cluster: ClusterState, rows: Rows, records: NDArray[Any]) -> None:
        """File a cluster under its kind."""
        order = np.argsort(rows[:, 0] >> 32, kind="stable")
        rows = rows[order]
        warp = (records[:, 1] >> 32) * cluster.per_cta + (records[:, 1] >> 8 & 0xFFFFFF)
        records = records[np.argsort(warp, kind="stable")]
        numbers = rows[:, 0] & 0xFFFF_FFFF
        plain = numbers < NEED
        numbers = np.where(plain, numbers, 0)
        access = self.memory[numbers] & plain & (rows[:, 2] & SHARED == 0)
        signature = _signature(rows, access, np.where(self.fixed[records[:, 0]], records[:, 2:], 0))
        copies = self.copies[numbers] & plain
        counts = np.where(access, 1, np.where(copies, rows[:, 2], 0))
        keys, lines = self._keys(cluster, rows, records, access, counts)
        with self.lock:
            kind = self.kinds.get(signature)
            if kind is None:
                program = program_of(cluster, rows, records, keys)
                kind = self.kinds[signature] = Kind(program, np.argsort(np.repeat(order, counts), kind="stable"))
            kind.members.append(cluster.number)
            self.traffic[cluster.number] = keys
            self.lines[cluster.number] = lines

    def _keys(
        self, cluster: ClusterState, rows: Rows, records: Rows, access: NDArray[np.bool_], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What each position of the traffic touches, and what comes to L2 with it: TMA may ask for wider lines."""
        total = int(counts.sum())
        keys, lines = np.zeros((2, total), np.int64)
        at = (np.cumsum(counts) - counts)[access]
        copied = np.ones(total, bool)
        copied[at] = False
        keys[at] = lines[at] = rows[access, 3]
        if copied.any():
            own = records[self.copies[records[:, 0]]]
            keys[copied] = (own[:, 2:] * self.weights[own[:, 0]]).sum(axis=1)
            lines[copied] = keys[copied] - self._within(cluster, own)
        return keys, lines

    def _within(self, cluster: ClusterState, records: Rows) -> NDArray[np.int64]:
        """What the keys of boxes have because these do not begin where the lines begin that TMA brings to L2."""
        found = np.zeros(len(records), np.int64)
        for number in np.unique(records[:, 0]).tolist():
            inst = cluster.launch.insts[number]
            if "map" not in inst.columns or "dst_mem" not in inst.columns:
                continue
            own, place, inner = records[:, 0] == number, inst.columns["map"].start, inst.columns["coords"].start
            for address in np.unique(records[own, _FIRST_WORD + place]).tolist():
                map = cluster.launch.maps[map_index(cluster, address)].map
                line = map.l2_promotion * 8 // map.dtype.bits
                here = own & (records[:, _FIRST_WORD + place] == address)
                if line > map.box[0]:
                    found[here] = records[here, _FIRST_WORD + inner] % line * int(_SPREAD[inner])
        return found


def _signature(rows: Rows, access: NDArray[np.bool_], words: Rows) -> bytes:
    """A digest of everything but coordinates and global addresses."""
    same = rows.copy()
    same[access, 3] = 0
    digest = hashlib.blake2b(same.tobytes(), digest_size=16)
    digest.update(words.tobytes())
    return digest.digest()


def _weights(inst: Inst) -> list[int]:
    """For words of a record that say where in global memory a copy goes, factors of its key; 0 for the others."""
    weights = [0] * _WORDS
    for name in _places(inst) if inst.name in TRAFFIC else ():
        for at in inst.columns[name]:
            weights[at] = int(_SPREAD[at])
    return weights


def _places(inst: Inst) -> tuple[str, ...]:
    """The operands that say where in memory the data of a copy come from, or where in global memory they go."""
    if "map" in inst.columns:
        return "map", "coords"
    to_global = "dst" in inst.form.slots and inst["dst"] == "global"
    return tuple(name for name in ("dst_mem" if to_global else "src_mem",) if name in inst.columns)
