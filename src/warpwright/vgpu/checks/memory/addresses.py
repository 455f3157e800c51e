"""Global addresses of the clusters of a launch: stored row by row while they run, laid out when all are over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpwright.layout.tensor_map_bytes import MAP_BYTES
from warpwright.vgpu.checks.memory.spans import Allocations, Touches, boxes, bytes_moved, is_inside
from warpwright.vgpu.checks.order.access_kinds import GENERIC, MAP, WEAK, Kind, accesses_by_lane, global_operand
from warpwright.vgpu.checks.stream import GlobalRows
from warpwright.vgpu.engines.op import BoundMap
from warpwright.vgpu.jit.state import RECORD_WORDS
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.program.operation import box_count, values

__all__ = ["Addresses"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_LANE = np.arange(32)


class _Rows(NamedTuple):
    """Accesses of lanes: cluster, turn, number of the row; the instruction, the warp, its lanes, bytes a lane; the
    lowest and the highest address, and the others: by ``stride`` from lane to lane, or in row ``table`` of a table if
    that is not -1."""

    cluster: Ints
    turn: Ints
    row: Ints
    inst: Ints
    warp: Ints
    mask: Ints
    nbytes: Ints
    low: Ints
    high: Ints
    stride: Ints
    table: Ints


class _Operations(NamedTuple):
    """Asynchronous operations: of each the cluster, the turn, the row that issued it, its number and its record."""

    cluster: Ints
    turn: Ints
    row: Ints
    op: Ints
    records: Ints


class Addresses:
    """Accesses of global memory by all clusters of a launch; ``kinds`` of its instructions."""

    def __init__(self, launch: Launch, kinds: list[Kind | None]) -> None:
        self.launch, self.kinds = launch, kinds
        self.matters = np.array([kind is not None for kind in kinds], np.bool_)
        self.writes = np.array([kind is not None and kind.writes for kind in kinds], np.bool_)
        self.strong = np.array([kind is not None and kind.scope > WEAK for kind in kinds], np.bool_)
        self.generic = np.array([accesses_by_lane(inst) and not inst["space"] for inst in launch.insts], np.bool_)
        self.lock = threading.Lock()
        self.rows: list[_Rows] = []
        self.tables: list[Ints] = []
        self.tabled = 0
        self.operations: list[_Operations] = []
        self.issued: dict[int, int] = {}
        self.stored: dict[tuple[int, int], tuple[Ints, Ints]] = {}  # by cluster and row of a doubted store: where, what
        self.maps: dict[int, dict[int, int]] = {}  # by cluster: the tensor maps of its operations

    @cached_property
    def allocations(self) -> Allocations:
        """The allocations of the launch."""
        return Allocations(self.launch.table)

    def add(self, rows: GlobalRows) -> None:
        """Store the accesses of global memory in a part of a cluster's stream."""
        number, heads = rows.cluster.number, rows.heads
        inst = heads[rows.rows, 0] & 0xFFFF_FFFF
        chosen = np.flatnonzero(self.matters[inst])
        chosen = chosen[self._global(inst[chosen], heads[rows.rows[chosen]], rows.addresses[chosen])]
        at = rows.rows[chosen]
        first = self.issued.get(number, 0)
        self.issued[number] = first + len(rows.records)
        records = rows.records.view(np.int64)
        issued = np.flatnonzero(self.matters[records[:, 0]])
        by = rows.issuers[issued]
        turns, by_row = rows.turns[by], rows.first + by
        operations = _Operations(np.full(len(by), number), turns, by_row, first + issued, records[issued])
        valued = rows.rows[rows.valued]
        on = heads[valued, 1, None] >> _LANE & 1 == 1
        stored = zip(np.where(on, rows.addresses[rows.valued], 0), rows.values, strict=True)
        with self.lock:
            self.stored.update(zip(((number, row) for row in (rows.first + valued).tolist()), stored, strict=True))
            self.operations.append(operations)
            where = np.full(len(at), number), rows.turns[at], rows.first + at
            self.rows.append(_Rows(*where, *self._compact(heads[at], rows.addresses[chosen])))

    def _global(self, inst: Ints, heads: Ints, addresses: Ints) -> Bools:
        """Returns which accesses go to global memory: those with generic addresses may not."""
        found = ~self.generic[inst]
        asked = np.flatnonzero(~found)
        on = heads[asked, 1, None] >> _LANE & 1 == 1
        found[asked] = (on & (self.allocations.of(addresses[asked]) >= 0)).any(axis=1)
        return found

    def _compact(self, heads: Ints, addresses: Ints) -> tuple[Ints, ...]:
        """Returns accesses in compact form: most addresses increase from lane to lane by one stride."""
        mask = heads[:, 1] & 0xFFFF_FFFF
        on = mask[:, None] >> _LANE & 1 == 1
        low = np.where(on, addresses, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
        high = np.where(on, addresses, 0).max(axis=1, initial=0)
        stride = addresses[:, 1] - addresses[:, 0]
        regular = (mask == 0xFFFF_FFFF) & (addresses == addresses[:, :1] + stride[:, None] * _LANE).all(axis=1)
        table = np.where(regular, -1, self.tabled - 1 + np.cumsum(~regular))
        self.tables.append(addresses[~regular])
        self.tabled += len(self.tables[-1])
        return heads[:, 0] & 0xFFFF_FFFF, heads[:, 0] >> 32, mask, heads[:, 2], low, high, stride, table

    def value_at(self, cluster: int, row: int, host: int) -> int | None:
        """Returns what a row stores at a host address; None if it is not known, or if lanes store different values."""
        if (cluster, row) not in self.stored:
            return None
        addresses, values = self.stored[cluster, row]
        found = np.unique(values[addresses == host])
        return int(found[0]) if len(found) == 1 else None

    def gather(self) -> None:
        """Concatenate the accesses of all clusters, which are over, in the order of their numbers."""
        empty = np.empty(0, np.int64)
        self.rows.sort(key=lambda rows: rows.cluster[:1].tolist())
        self.operations.sort(key=lambda operations: operations.cluster[:1].tolist())
        self.all_rows = _Rows(*map(np.concatenate, zip([empty] * len(_Rows._fields), *self.rows, strict=True)))
        self.table = np.concatenate([np.empty((0, 32), np.int64), *self.tables])
        nothing = _Operations(empty, empty, empty, empty, np.empty((0, RECORD_WORDS), np.int64))
        self.all_operations = _Operations(*map(np.concatenate, zip(nothing, *self.operations, strict=True)))

    def _addresses(self, which: Ints) -> tuple[Ints, Bools]:
        """Returns the addresses of all lanes in some rows, and which of them lie in global memory."""
        rows = self.all_rows
        base = np.where(rows.stride[which] < 0, rows.high[which], rows.low[which])
        addresses = base[:, None] + rows.stride[which, None] * _LANE
        tabled = rows.table[which] >= 0
        addresses[tabled] = self.table[rows.table[which][tabled]]
        on = rows.mask[which, None] >> _LANE & 1 == 1
        return addresses, on & (self.allocations.of(addresses) >= 0)

    def _ends(self, which: Ints) -> tuple[Ints, Ints]:
        """Returns the allocation of each row whose lanes are all in one (else -1), and the rows where they are not."""
        first, last = (self.allocations.of(part[which]) for part in (self.all_rows.low, self.all_rows.high))
        one = np.where(first == last, first, -1)
        return one, which[one < 0]

    def strong_accesses(self) -> Touches:
        """Returns the strong accesses of lanes."""
        return self._lanes(np.flatnonzero(self.strong[self.all_rows.inst]))

    def touches(self, also: Ints) -> Touches:
        """Returns the accesses of allocations that are written to, or of allocations ``also``."""
        wanted = np.zeros(len(self.allocations.low) + 1, np.bool_)
        wanted[self._written_allocations()] = True
        wanted[also] = True
        wanted[-1] = False
        one, apart = self._ends(np.arange(len(self.all_rows.row)))
        addresses, inside = self._addresses(apart)
        chosen = wanted[one]
        chosen[apart] = (inside & wanted[self.allocations.of(addresses)]).any(axis=1)
        parts = [self._lanes(np.flatnonzero(chosen)), *self._copies(wanted)]
        return Touches(*map(np.concatenate, zip(*parts, strict=True)))

    def _written_allocations(self) -> Ints:
        """Returns the allocations that are written to."""
        operations = self.all_operations
        one, apart = self._ends(np.flatnonzero(self.writes[self.all_rows.inst]))
        addresses, inside = self._addresses(apart)
        found = [np.unique(one), np.unique(self.allocations.of(addresses[inside]))]
        for inst, which in self._by_instruction(np.flatnonzero(self.writes[operations.records[:, 0]])):
            if "map" in self.launch.insts[inst].columns:
                parts = [self._map_hosts(bound, here) for bound, here in self._by_map(inst, which)]
                hosts = np.concatenate([np.empty(0, np.int64), *parts])
            else:
                hosts = self._starts(inst, which)
            found.append(np.unique(self.allocations.of(hosts)))
        return np.concatenate(found)

    def _lanes(self, which: Ints) -> Touches:
        rows = self.all_rows
        addresses, inside = self._addresses(which)
        at, lane = np.nonzero(inside)
        low, at = addresses[at, lane], which[at]
        unit = np.array([kind.unit if kind else 0 for kind in self.kinds], np.int64)
        return Touches(
            low,
            low + rows.nbytes[at],
            rows.cluster[at],
            rows.turn[at],
            rows.row[at],
            np.full(len(at), -1),
            rows.inst[at],
            rows.warp[at] * 32 + lane,
            np.full(len(at), GENERIC),
            unit[rows.inst[at]],
        )

    def _by_instruction(self, which: Ints) -> Iterator[tuple[int, Ints]]:
        """Yields records by the instruction that issued them."""
        inst = self.all_operations.records[which, 0]
        for number in np.unique(inst).tolist():
            yield number, which[inst == number]

    def _by_map(self, inst: int, which: Ints) -> Iterator[tuple[BoundMap, Ints]]:
        """Yields records of an instruction by the tensor map that they use."""
        clusters, ops = (part[which].tolist() for part in (self.all_operations.cluster, self.all_operations.op))
        used = [self.maps.get(cluster, {}).get(op, -1) for cluster, op in zip(clusters, ops, strict=True)]
        numbers = np.array(used, np.int64)
        for number in np.unique(numbers[numbers >= 0]).tolist():
            yield self.launch.maps.bound[number], which[numbers == number]

    def _copies(self, wanted: Bools) -> Iterator[Touches]:
        """Yields the accesses of asynchronous operations."""
        for inst, which in self._by_instruction(np.arange(len(self.all_operations.op))):
            if "map" in self.launch.insts[inst].columns:
                yield from self._tensor(inst, which, wanted)
            else:
                yield self._linear(inst, which, wanted)

    def _starts(self, number: int, which: Ints) -> Ints:
        """Returns the host addresses in global memory where linear operations of an instruction begin."""
        inst, kind = self.launch.insts[number], self.kinds[number]
        assert kind is not None
        return self.allocations.host(values(inst, self.all_operations.records[which], global_operand(inst, kind))[:, 0])

    def _linear(self, inst: int, which: Ints, wanted: Bools) -> Touches:
        kind, low = self.kinds[inst], self._starts(inst, which)
        assert kind is not None
        size = bytes_moved(self.launch.insts[inst], self.all_operations.records[which])
        chosen = wanted[self.allocations.of(low)] & (size > 0)
        return self._touches(which[chosen], low[chosen], (low + size)[chosen], kind.proxy, kind.unit)

    def _tensor(self, number: int, which: Ints, wanted: Bools) -> Iterator[Touches]:
        inst, kind = self.launch.insts[number], self.kinds[number]
        assert kind is not None
        for bound, here in self._by_map(number, which):
            if not is_inside(bound) or wanted[self.allocations.of(np.array([bound.host]))[0]]:
                box, low, high = self._boxes(bound, here)
                chosen = wanted[self.allocations.of(low)]
                yield self._touches(here[box][chosen], low[chosen], high[chosen], kind.proxy, bound.map.dtype.nbytes)
            place = self.allocations.host(values(inst, self.all_operations.records[here], "map")[:, 0])
            if wanted[self.allocations.of(place[:1])[0]]:
                yield self._touches(here, place, place + MAP_BYTES, MAP, 0)

    def _boxes(self, bound: BoundMap, which: Ints) -> tuple[Ints, Ints, Ints]:
        """Returns the intervals of `spans.boxes` for operations that use one tensor map."""
        records = self.all_operations.records[which]
        inst = self.launch.insts[records[0, 0]]
        coords = ((values(inst, records, "coords") & 0xFFFF_FFFF) ^ 0x8000_0000) - 0x8000_0000
        count = box_count(inst)
        if count > 1:
            coords = np.stack([coords[:, :1].repeat(count, 1), coords[:, 1:]], axis=2).reshape(-1, 2)
        filters = values(inst, records, "offsets") & 0xFFFF if "offsets" in inst.columns else coords[:, 2:] * 0
        which, low, high = boxes(bound, coords, filters, self.allocations)
        return which // count, low, high

    def _map_hosts(self, bound: BoundMap, which: Ints) -> Ints:
        """Returns one host address in each allocation that operations access through a tensor map."""
        return np.array([bound.host], np.int64) if is_inside(bound) else self._boxes(bound, which)[1]

    def _touches(self, which: Ints, low: Ints, high: Ints, proxy: int, unit: int) -> Touches:
        operations = self.all_operations
        who = operations.records[which, 1]
        warp = (who >> 32) * self.per_cta + (who >> 8 & 0xFF_FFFF)
        return Touches(
            low,
            high,
            operations.cluster[which],
            operations.turn[which],
            operations.row[which],
            operations.op[which],
            operations.records[which, 0],
            warp * 32 + (who & 0xFF),
            np.full(len(which), proxy),
            np.full(len(which), unit),
        )

    @property
    def per_cta(self) -> int:
        return -(-self.launch.threads // 32)
