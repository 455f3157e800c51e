"""A whole launch on the chip: the SMs and the wave of each cluster, its L2 hits, and the total time."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from warpwright.targets import LINKS, Timing
from warpwright.vgpu.program.names import Variables
from warpwright.vgpu.timing.cache import Lookup, Visit, footprint, look_up, look_up_again
from warpwright.vgpu.timing.capture import Capture
from warpwright.vgpu.timing.flops import Weight, energy_of, flops_of, time_of
from warpwright.vgpu.timing.journal import Journal, journal_of
from warpwright.vgpu.timing.neighbours import contention, gpcs_of, l2_costs
from warpwright.vgpu.timing.places import WAVES, assign_places, later_wave, places_of
from warpwright.vgpu.timing.registers import pressure
from warpwright.vgpu.timing.replay import Layout, Outcome, Work, replay
from warpwright.vgpu.timing.result import Profile, Resources, Usage
from warpwright.vgpu.timing.timeline import conflicts_of, timeline_fields, wait_insts
from warpwright.vgpu.timing.units import Memory

__all__ = ["profile_of"]

LONGEST = 120_000  # steps of one replay before the rest is extrapolated
ROUNDS = 4  # rounds of resident clusters that are replayed at least
LONG, FEW_ROUNDS = 240_000, 2  # steps of one replay from which on fewer rounds are enough
ENOUGH = 60_000  # steps of the replay that finds the clock of a launch with MMAs, before the rest is extrapolated
SEQUENCES = 2  # different loads of an SM that are replayed
SAME_CLOCK = 0.02
SHORTER = 0.9  # a load with less of the steps of the longest does not determine the clock
EVERYTHING = 1 << 62  # bytes of an L2 that evicts nothing, steps of a whole replay
FAR = (  # latencies of `Timing`
    "ld_l2", "ld_hbm", "ld_hbm_mixed", "tma_l2", "tma_hbm", "tma_fresh", "tma_late_l2", "tma_late_hbm",
)  # fmt: skip

Floats = NDArray[np.float64]
# The share that misses L2; then the fields of `Work`, in order.
Shares = tuple[Floats, Floats, Floats, Floats, Floats, Floats]


@dataclass(frozen=True, slots=True)
class _Load:
    """Clusters, as (kind, wave), that one set of SMs runs one after another; ``sets``: sets of SMs with this load."""

    clusters: tuple[tuple[int, int], ...]
    sets: int


class _Grid:
    """The clusters of a launch: the kind, place and wave of each, and its L2 lookups. ``overwrites``: all data of the
    launch are in L2 when it starts."""

    def __init__(self, capture: Capture, warm: bool = False) -> None:
        self.launch, self.capture, self.warm = capture.launch, capture, warm
        self.timing = capture.timing.warm if warm else capture.timing
        self.kinds = list(capture.kinds.values())
        self.kind_of = {number: i for i, kind in enumerate(self.kinds) for number in kind.members}
        self.columns = max((kind.program.columns for kind in self.kinds), default=0)
        self.places = places_of(self.launch, self.timing, self.columns)
        x, y, z = self.launch.clusters
        self.numbers = sorted(self.kind_of) if self.launch.takes_over else range(x * y * z)
        self.later = 1 if self.launch.takes_over else later_wave(x * y * z, self.places.count)
        starts = (0, self.later * self.places.count)
        waves = [[n for n in range(start, start + self.places.count) if n in self.kind_of] for start in starts]
        self.waves = [wave for wave in waves if wave]
        self.waves[-1] += self._unlike()
        self.overwrites = False
        self.shares = self._shares()
        waves = np.minimum(np.array(self.numbers) // self.places.count, WAVES - 1)
        self.what = [
            (self.kind_of.get(number, self.kind_of[self._representative(number)]), wave)
            for number, wave in zip(self.numbers, waves.tolist(), strict=True)
        ]
        self.counts = Counter(self.what)

    def _representative(self, number: int) -> int:
        """The recorded cluster of a sampled wave that has the place of ``number`` in its wave."""
        count = self.places.count
        if number < count:
            return number
        same = self.later * count + number % count
        return same if same in self.kind_of else number % count

    def _unlike(self) -> list[int]:
        """A cluster of each kind that no sampled wave has, and whose representative makes other accesses: clusters that
        wait for others differ by what they find."""
        present = {self.kind_of[number] for wave in self.waves for number in wave}
        firsts = [kind.members[0] for i, kind in enumerate(self.kinds) if i not in present]
        accesses = {number: len(self.kinds[kind].program.nbytes) for number, kind in self.kind_of.items()}
        return [number for number in firsts if accesses[number] != accesses[self._representative(number)]]

    def _shares(self) -> dict[tuple[int, int], Shares]:
        """For each kind and wave the fields of `Work` for each position, averaged over the clusters."""
        timing = self.timing
        waves = self.waves
        visits = [[self._visit(number) for number in wave] for wave in waves]
        places = gpcs_of(timing, self.places.ranks)
        homes = [[places[number % len(places)] for number in wave] for wave in waves]
        found = self._look_up(visits, homes)
        resident = min(self.places.together, -(-len(self.numbers) // self.places.groups))
        rows: dict[tuple[int, int], list[Shares]] = defaultdict(list)
        for wave, (numbers, lookups) in enumerate(zip(waves, found, strict=True)):
            cost, slower = contention(timing, resident, later=wave > 0)
            own = l2_costs(visits[wave], homes[wave], cost, timing)
            for number, (miss, common, cold, fresh), l2 in zip(numbers, lookups, own, strict=True):
                far = self.capture.far.get(number)
                far, near = (np.zeros_like(miss), 1.0) if far is None else (far, 1.0 - far)
                hbm = near * (miss + slower * common)
                shares = near * miss, hbm, near * cold, near * fresh, near * l2, far
                rows[self.kind_of[number], wave].append(shares)
        return {key: _mean(each) for key, each in rows.items()}

    def _look_up(self, waves: list[list[Visit]], homes: list[list[int]]) -> list[list[Lookup]]:
        size = self.launch.spec.l2_bytes
        if not self.warm:
            return look_up(waves, homes, size)
        kept = round(self.timing.l2_kept * size)
        self.overwrites = self._footprint() <= kept
        if self.overwrites:
            return look_up_again(waves, homes, size, EVERYTHING, whole=True)
        return look_up_again(waves, homes, size, kept, whole=sum(map(len, waves)) == len(self.numbers))

    def _footprint(self) -> int:
        """Bytes of the lines that the launch accesses. Each wave after the first accesses as many new ones as the
        sampled one, up to all allocations."""
        rounds = -(-len(self.numbers) // self.places.count) - 1
        waves = [[self._first_visit(number) for number in wave] for wave in self.waves]
        first, both = footprint(waves[:1]), footprint(waves)
        return min(first + rounds * (both - first), self.launch.memory.nbytes)

    def _first_visit(self, number: int) -> Visit:
        """`_visit` without the bytes of repeated stores."""
        again = self.kinds[self.kind_of[number]].program.again
        visit = self._visit(number)
        return visit._replace(nbytes=np.where(again, 0, visit.nbytes))

    def _visit(self, number: int) -> Visit:
        capture, kind = self.capture, self.kinds[self.kind_of[number]]
        program = kind.program
        keys, lines, outside = (known[number] for known in (capture.traffic, capture.lines, capture.outside))
        return Visit(keys, lines, program.nbytes, outside, program.reads, program.copies, kind.order)

    def share(self, kind: int, wave: int) -> Shares:
        """`_shares` of a kind in a wave; a kind that the wave lacks has the shares of another wave, or of its
        representative."""
        same = self.kind_of[self._representative(self.kinds[kind].members[0])]
        keys = [(k, w) for k in (kind, same) for w in (wave, 0, 1)]
        return next(self.shares[key] for key in keys if key in self.shares)

    def loads(self) -> list[_Load]:
        """The loads of the sets of SMs, the longest first."""
        lengths = [self.kinds[kind].program.length for kind, _ in self.what]
        sets: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for what, place in zip(self.what, assign_places(lengths, self.places.count), strict=True):
            sets[place % self.places.groups].append(what)
        counted = Counter(tuple(clusters) for clusters in sets.values())
        loads = [_Load(clusters, count) for clusters, count in counted.items()]
        return sorted(loads, key=lambda load: -self.steps(load))

    def steps(self, load: _Load) -> int:
        return sum(self.kinds[kind].program.length for kind, _ in load.clusters)

    def total(self, measure: NDArray[np.float64]) -> float:
        """The sum over all clusters of a figure of each kind."""
        return float(sum(count * measure[kind] for (kind, _), count in self.counts.items()))


def _mean(rows: list[Shares]) -> Shares:
    miss, hbm, cold, fresh, l2, far = (np.mean(column, axis=0) for column in zip(*rows, strict=True))
    return miss, hbm, cold, fresh, l2, far


@dataclass(frozen=True, slots=True)
class _Run:
    """A replayed load: cycles until its last cluster ends, and clusters of the load over clusters replayed."""

    load: _Load
    cycles: float
    outcome: Outcome
    scale: float


_Outcomes = dict[tuple[tuple[int, int], ...], Outcome]


def profile_of(capture: Capture, fast: bool, sustained: bool = False, warm: bool = False) -> Profile:
    """The prediction for a recorded launch; on a node that of the slowest rank, with those of all ``ranks``."""
    gpus = capture.launch.spec.gpus
    if gpus == 1:
        return _profile_of_gpu(capture, fast, sustained, warm)
    ranks = tuple(_profile_of_gpu(capture.of_rank(rank), fast, sustained, warm) for rank in range(gpus))
    return replace(max(ranks, key=lambda each: each.time_us), ranks=ranks)


def _profile_of_gpu(capture: Capture, fast: bool, sustained: bool, warm: bool) -> Profile:
    """The prediction for one GPU of a recorded launch; ``sustained``: at the clock that the board's power limit allows;
    ``warm``: for one of many equal launches, each of which follows the other."""
    grid = _Grid(capture, warm)
    launch, timing = capture.launch, grid.timing
    least = _flops(grid) / (timing.mma_flops * launch.spec.sms)
    loads, clock = _loads(grid), _clocks(grid, least, least, sustained=False).loaded
    long = [load for load in loads if grid.steps(load) >= SHORTER * grid.steps(loads[0])]
    for last, enough in ((False, ENOUGH if least else EVERYTHING), (True, EVERYTHING)):
        journal, outcomes = journal_of(launch), _Outcomes()
        runs = _replay_loads(grid, long, clock, journal, outcomes, enough)
        found = _clocks_of(grid, runs[0], sustained).loaded
        agrees = abs(found / clock - 1) < SAME_CLOCK
        if last or (agrees and all(run.outcome.whole for run in runs)):
            break
        clock = clock if agrees else found
    runs = _replay_loads(grid, loads, clock, journal, outcomes)
    return _profile(grid, runs, journal, _clocks_of(grid, runs[0], sustained), fast)


def _loads(grid: _Grid) -> list[_Load]:
    """The loads to replay, the longest first. One with fewer steps than a long one is not replayed: it ends before."""
    loads = grid.loads()[:SEQUENCES]
    most = grid.steps(loads[0])
    return [load for load in loads if most < LONG or grid.steps(load) == most]


def _replay_loads(
    grid: _Grid, loads: list[_Load], clock: float, journal: Journal, outcomes: _Outcomes, enough: int = EVERYTHING
) -> list[_Run]:
    """Replay loads at a clock; the slowest comes first. ``outcomes``: of the replays at this clock by the sampled
    clusters, which loads share; the first replay has the ``journal``."""
    runs = []
    for load in loads:
        clusters = _sample_clusters(grid, load)
        if clusters not in outcomes:
            own = None if outcomes else journal
            outcomes[clusters] = _replay_clusters(grid, clusters, clock, own, load, enough)
        runs.append(_extend(grid, load, len(clusters), outcomes[clusters]))
    return sorted(runs, key=lambda each: -each.cycles)


def _link_share(grid: _Grid, load: _Load) -> float:
    """The share of the link's bandwidth that the SMs of a load get: that of their bytes."""
    moved = _traffic(grid)
    own = sum(
        float((grid.kinds[kind].program.nbytes * grid.share(kind, wave)[-1]).sum()) for kind, wave in load.clusters
    )
    return own / max(1.0, moved.received + moved.sent)


def _replay_clusters(
    grid: _Grid,
    clusters: tuple[tuple[int, int], ...],
    clock: float,
    journal: Journal | None,
    load: _Load,
    enough: int,
) -> Outcome:
    launch, places = grid.launch, grid.places
    timing = _scale_latencies(grid.timing, clock / launch.spec.clock_mhz)
    timing = replace(timing, ld_hbm=timing.ld_hbm + _mixed(grid) * (timing.ld_hbm_mixed - timing.ld_hbm))
    active = places.ranks * min(places.groups, len(grid.numbers))
    share = places.ranks / active
    hbm = _hbm_rate(grid) / (clock * 1e6)
    own_clock = launch.spec.clock_mhz / clock * share
    gpcs = places.ranks * timing.pair_bytes / 2 * launch.spec.sms / active
    l2, written = timing.l2_bytes * own_clock, timing.l2_write_bytes * own_clock
    memory = Memory(l2, written, hbm * share, gpcs, timing.sm_bytes, grid.overwrites)
    if launch.spec.gpus > 1:
        link = LINKS[launch.spec.chip]
        share = max(_link_share(grid, load), 1e-9)
        bandwidth, latency = share * link.payload_gbps * 1e3 / clock, link.latency_ns * clock / 1e3
        memory = replace(memory, link=bandwidth, link_latency=latency)
    per_cta = -(-launch.threads // 32)
    layout = Layout(places.ranks, per_cta, launch.shared_stride, places.together, active * timing.cta_rate)
    shares = [(kind, [each.tolist() for each in grid.share(kind, wave)[1:]]) for kind, wave in clusters]
    works = [Work(grid.kinds[kind].program, *share) for kind, share in shares]
    return replay(works, timing, memory, layout, journal or journal_of(launch), journal is not None, enough)


def _extend(grid: _Grid, load: _Load, count: int, outcome: Outcome) -> _Run:
    """The run of a load of which the first ``count`` clusters were replayed: the others take as long as the last
    rounds."""
    left, together = len(load.clusters) - count, grid.places.together
    ends = sorted(outcome.ends)
    rounds = len(ends) // 2 // together * together  # clusters of one SM end together
    rate = (ends[-1] - ends[-1 - rounds]) / rounds if left else 0.0
    return _Run(load, ends[-1] + left * rate, outcome, len(load.clusters) / count)


def _scale_latencies(timing: Timing, share: float) -> Timing:
    """The costs when SMs run at a ``share`` of their highest clock: latencies of L2 and device memory stay constant in
    time."""
    return replace(timing, **{name: share * getattr(timing, name) for name in FAR})


def _hbm_rate(grid: _Grid) -> float:
    """Bytes a second between this launch and device memory, less the share that L2 takes for earlier write-backs."""
    timing, moved = grid.timing, _traffic(grid)
    own = moved.missed + moved.written
    share = timing.hbm_share + _mixed(grid) * (timing.hbm_mixed_share - timing.hbm_share)
    return grid.launch.spec.hbm_gbps * 1e9 * share * max(1.0, own) / max(1.0, own + moved.evicted)


def _mixed(grid: _Grid) -> float:
    """How mixed the traffic of device memory is: 0 for reads or writes alone, 1 for as many bytes of both."""
    moved = _traffic(grid)
    writes = moved.written + moved.evicted
    return 2 * min(moved.missed, writes) / max(1.0, moved.missed + writes)


def _sample_clusters(grid: _Grid, load: _Load) -> tuple[tuple[int, int], ...]:
    """The clusters of a load to replay: all, or a few rounds of resident clusters, of long clusters fewer."""
    together, steps = grid.places.together, 0
    for count, (kind, _) in enumerate(load.clusters):
        steps += grid.kinds[kind].program.length
        rounds = ROUNDS if steps <= LONG else FEW_ROUNDS
        if count >= rounds * together and count % together == 0 and steps > LONGEST:
            return load.clusters[:count]
    return load.clusters


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Clocks in MHz: ``loaded`` for the ``cycles`` from the first MMA of a launch to the last, ``free`` otherwise."""

    free: float
    loaded: float
    cycles: float

    def microseconds(self, cycles: float) -> float:
        return (cycles - self.cycles) / self.free + self.cycles / self.loaded


def _clocks(grid: _Grid, cycles: float, mma_cycles: float, sustained: bool) -> _Clocks:
    """The clocks of a launch. Between the first MMA and the last the clock falls with the power at once; otherwise it
    is the highest clock.

    ``sustained``: under the board's power limit, which applies to the whole launch.
    """
    timing, joules = grid.timing, _joules(grid)
    free = float(grid.launch.spec.clock_mhz)
    if sustained:
        free = min(free, _limited_clock(grid, joules, cycles))
    if not mma_cycles:
        return _Clocks(free, free, 0.0)
    loaded = timing.droop_top / (1 + timing.droop * joules * 1e6 / mma_cycles)
    return _Clocks(free, min(timing.tensor_mhz, loaded, free), mma_cycles)


def _whole(grid: _Grid, run: _Run) -> float:
    """Cycles from the start of a launch to the end of its slowest run."""
    timing = grid.timing
    return run.cycles + timing.entry + (timing.cluster_start if grid.places.ranks > 1 else 0.0)


def _clocks_of(grid: _Grid, run: _Run, sustained: bool) -> _Clocks:
    """The clocks of a launch with this slowest run."""
    return _clocks(grid, _whole(grid, run), _mma_cycles(run), sustained)


def _mma_cycles(run: _Run) -> float:
    """Cycles from the first MMA to the last."""
    outcome = run.outcome
    return max(0.0, run.cycles - outcome.first_mma - (max(outcome.ends) - outcome.last_mma))


def _limited_clock(grid: _Grid, joules: float, cycles: float) -> float:
    """The clock in MHz at which the board reaches its power limit: the voltage falls with the clock, and so does
    energy."""
    timing = grid.timing
    top = timing.tensor_mhz if _flops(grid) else float(grid.launch.spec.clock_mhz)
    if not joules:
        return top
    ratio = (timing.sustained_watts - timing.idle_watts) * cycles / (top * 1e6 * joules)
    return float(top * ratio ** (1 / (1 + timing.volts_slope)))


def _joules(grid: _Grid) -> float:
    """The energy of a launch above idle power, in joules, at the voltage of the highest clock.

    A byte that L2 multicasts to several CTAs counts once. A byte that SMs of a GPC request together saves half the
    share of power that it saves of L2 bandwidth (clock.same_ab of bench/micro.py).
    """
    timing, moved = grid.timing, _traffic(grid)
    near, far = (moved.l2 + moved.l2_cost) / 2, moved.missed + moved.written + moved.evicted
    return 1e-12 * (_flops(grid, energy_of(timing)) * timing.flop_pj + near * timing.l2_pj + far * timing.hbm_pj)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Bytes of a launch: through L2, their bandwidth cost in L2, read, read from device memory, written to L2 for the
    first time; ``evicted``: written back for other data, less the launch's own dirty lines that stay in L2;
    ``received`` and ``sent`` over the link to other GPUs."""

    l2: float
    l2_cost: float
    read: float
    missed: float
    written: float
    evicted: float
    received: float = 0.0
    sent: float = 0.0


def _traffic(grid: _Grid) -> _Traffic:
    l2_cost = read = missed = stored = written = received = sent = 0.0
    for (kind, wave), count in grid.counts.items():
        program, (miss, *_, l2, far) = grid.kinds[kind].program, grid.share(kind, wave)
        received += count * float((program.nbytes * far)[program.reads].sum())
        sent += count * float((program.nbytes * far)[~program.reads].sum())
        reads = np.where(program.reads, program.nbytes, 0)
        l2_cost += count * float((program.nbytes * l2).sum())
        read += count * float(reads.sum())
        missed += count * float((reads * miss).sum())
        stores = (program.nbytes - reads) * (1.0 - far)
        stored += count * float(stores.sum())
        written += count * float(np.where(program.again, 0, stores).sum())
    written *= not grid.overwrites
    size, dirty = grid.launch.spec.l2_bytes, grid.timing.l2_dirty
    evicted = dirty * min(size, missed + written) - min(dirty * size, written)
    return _Traffic(read + stored, l2_cost, read, missed, written, evicted, received, sent)


def _flops(grid: _Grid, weight: Weight = lambda mma: 1.0) -> float:
    """The flops of a launch, those of each MMA times its weight."""
    return grid.total(np.array([flops_of(kind.program, weight) for kind in grid.kinds]))


def _busy_cycles(grid: _Grid, runs: list[_Run], unit: str) -> float:
    """Busy cycles of all units of a kind during the launch; loads that were not replayed count in proportion."""
    done = steps = 0.0
    for each in runs:
        units = getattr(each.outcome.units, unit)
        flat = units if isinstance(units, list) else [units]
        flat = [unit for row in flat for unit in (row if isinstance(row, list) else [row])]
        done += sum(unit.busy for unit in flat) * each.scale * each.load.sets
        steps += grid.steps(each.load) * each.load.sets
    whole = grid.total(np.array([kind.program.length for kind in grid.kinds]))
    return done * whole / steps if steps else 0.0


def _profile(grid: _Grid, runs: list[_Run], journal: Journal, clocks: _Clocks, fast: bool) -> Profile:
    launch, timing, places, cycles = grid.launch, grid.timing, grid.places, _whole(grid, runs[0])
    moved, flops = _traffic(grid), _flops(grid)
    mma_flops = sum(each.outcome.flops for each in runs)
    wasted = flops * sum(each.outcome.wasted for each in runs) / mma_flops if mma_flops else 0.0
    inside = clocks.microseconds(cycles)
    first = grid.kinds[runs[0].load.clusters[0][0]].program
    longest = max((kind.program for kind in grid.kinds), key=lambda program: program.length)
    time_us = timing.launch_us + inside
    hbm = launch.spec.hbm_gbps * 1e3 * time_us
    sms = launch.spec.sms * cycles
    usage = Usage(
        tensor=_busy_cycles(grid, runs, "tensor") / sms,
        l2=_busy_cycles(grid, runs, "l2") / (min(places.groups, len(grid.numbers)) * cycles),
        hbm=(moved.missed + moved.written) / hbm,
        shared=_busy_cycles(grid, runs, "shared") / sms,
        issue=_busy_cycles(grid, runs, "schedulers") / (sms * timing.schedulers),
    )
    return Profile(
        kernel=launch.name,
        device=launch.spec.name,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        time_us=time_us,
        cycles=cycles,
        clock_mhz=cycles / inside,
        launch_us=timing.launch_us,
        flops=round(flops),
        wasted_flops=round(wasted),
        rate=flops / _flops(grid, time_of(timing)) if flops else 1.0,
        tflops=(flops - wasted) / time_us / 1e6,
        bytes_hbm=round(moved.missed + moved.written),
        bytes_l2=round(moved.l2),
        bytes_received=round(moved.received),
        bytes_sent=round(moved.sent),
        l2_hit=1 - moved.missed / moved.read if moved.read else 0.0,
        usage=usage,
        ctas_per_sm=places.together,
        ctas_fitting=places.fitting,
        waves=len(grid.numbers) / places.count,
        tail=_tail(grid, runs),
        resources=Resources(launch.threads, pressure(launch.kernel.program), launch.shared_limit, grid.columns),
        **timeline_fields(journal, wait_insts(first), Variables(launch.kernel.program)),
        conflicts=conflicts_of(longest, journal.names),
        fast=fast,
        warm=grid.warm,
    )


def _tail(grid: _Grid, runs: list[_Run]) -> float:
    """The share of the SMs' time in which they are out of work; 0 if there is none."""
    if not runs[0].cycles:
        return 0.0
    per_step = runs[0].cycles / max(1, grid.steps(runs[0].load))
    replayed = {each.load: each.cycles for each in runs}
    loads = grid.loads()
    done = sum(load.sets * replayed.get(load, grid.steps(load) * per_step) for load in loads)
    return 1 - done / (grid.places.groups * runs[0].cycles)
