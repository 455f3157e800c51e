"""The mistakes of this folder's kernels and of the published bugs, by name, each as launches of one, two and four CTAs
where that is possible."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.races import classes, kernels
from tests.races import deadlock_kernels as h
from tests.races import global_kernels as g
from tests.races.cases import Case, in_cluster, new_case
from tests.races.corpus import barriers as b
from tests.races.corpus import copies as c
from tests.races.corpus import roles as r
from tests.races.corpus import scopes as s
from tests.races.corpus import tensor as t
from tests.races.corpus import warpgroup as w
from warpwright.lang import Kernel
from warpwright.layout.tensor_map import TensorMap

__all__ = ["MISTAKES", "NOTES", "UNDECIDED"]

WORDS, FLOATS, BOX = np.zeros(4096, np.uint32), np.ones(4096, np.float32), np.ones((64, 64), np.float32)
HALVES = np.ones(8192).astype(ml_dtypes.bfloat16)
ALL, CLUSTERS = (1, 2, 4), (2, 4)


def _at(sizes: tuple[int, ...], kernel: Kernel, args: list[Any], rule: str, *expected: str, **wrong: Any) -> list[Case]:
    case = new_case(kernel, args, rule, *expected, **wrong)
    return [in_cluster(case, ctas) for ctas in sizes]


def _copies() -> list[list[Case]]:
    load, bulk, many = "tma.load(tile", "tma.copy(words.address", "tma.load(tile, x[0, 0], full, multicast"
    reads, reads_bulk, overwrites = "ld(tile.at(", "ld(words + 4", "[0] = 1.0"
    lacks, extra = "full: phase 0 lacks 16 bytes", "has 16 bytes too many"
    store, written = "tma.store(y[", "tiles[1].at(warp.id, warp.lane)[0] = 2.0"
    copy, sent = "cp_async.copy(stage", "current().emit(opcode"
    return [
        _at(ALL, c.load_tile, [BOX], "race", load, reads, wrong="early"),
        _at(ALL, c.load_tile, [BOX], "race", load, overwrites, wrong="overwritten"),
        _at(ALL, c.load_tile, [BOX], "exit-early", load, wrong="left"),
        _at(ALL, c.load_tile, [BOX], "deadlock", extra, "full.wait(0)", wrong="fewer"),
        _at(ALL, c.load_tile, [BOX], "deadlock", lacks, "full.wait(0)", wrong="more"),
        _at(ALL, c.load_bytes, [FLOATS], "race", bulk, reads_bulk, wrong="early"),
        _at(ALL, c.load_bytes, [FLOATS], "race", bulk, "words[tid.x] = 1.0", wrong="overwritten"),
        _at(ALL, c.load_bytes, [FLOATS], "exit-early", bulk, wrong="left"),
        _at(ALL, c.load_bytes, [FLOATS], "deadlock", extra, "full.wait(0)", wrong="fewer"),
        _at(ALL, c.load_bytes, [FLOATS], "deadlock", lacks, "full.wait(0)", wrong="more"),
        _at(CLUSTERS, c.load_all, [BOX], "race", many, reads, wrong="early"),
        _at(CLUSTERS, c.load_all, [BOX], "race", many, overwrites, wrong="overwritten"),
        _at(CLUSTERS, c.load_all, [BOX], "deadlock", extra, "full.wait(phase)", wrong="fewer"),
        _at(CLUSTERS, c.load_all, [BOX], "deadlock", lacks, "full.wait(phase)", wrong="more"),
        _at(CLUSTERS, c.load_all, [BOX], "cluster-entry", many, wrong="entry"),
        _at(CLUSTERS, c.load_all, [BOX], "deadlock", "phase 0 lacks 1,024 bytes", "full.wait(phase)", wrong="alone"),
        _at(CLUSTERS, c.load_all, [BOX], "race", reads, many, wrong="reused"),
        _at(ALL, c.load_two, [BOX], "race", "tma.load(tiles", "ld(tiles[0]", wrong="first"),
        _at(ALL, c.load_two, [BOX], "race", "tma.load(tiles", "ld(tiles[1 if", wrong="second"),
        _at(ALL, c.load_two, [BOX], "race", "tma.load(tiles", "tma.load(tiles", wrong="one_tile"),
        _at(ALL, c.load_after_store, [BOX], "proxy-fence", overwrites, load, wrong="unfenced"),
        _at(ALL, c.load_after_store, [BOX], "race", overwrites, load, wrong="unsynced"),
        _at(ALL, c.store_tiles, [BOX], "proxy-fence", overwrites, store, wrong="unfenced"),
        _at(ALL, c.store_tiles, [BOX], "race", overwrites, store, wrong="unsynced"),
        _at(CLUSTERS, c.store_tiles, [BOX], "race", store, store, wrong="same_box"),
        _at(ALL, c.store_tiles, [BOX], "race", store, store, wrong="twice"),
        _at(ALL, c.store_tiles, [BOX], "race", store, written, wrong="uncommitted"),
        _at(ALL, c.store_tiles, [BOX], "race", store, written, wrong="empty"),
        _at(ALL, c.store_tiles, [BOX], "race", store, written, wrong="pending"),
        _at(ALL, c.store_tiles, [BOX], "race", store, written, wrong="reused"),
        _at(ALL, c.store_bytes, [FLOATS], "proxy-fence", "words[tid.x] = 1.0", "tma.copy(mine", wrong="unfenced"),
        _at(ALL, c.store_bytes, [FLOATS], "race", "tma.copy(mine", "words[63 - tid.x] = 2.0", wrong="reused"),
        _at(ALL, c.store_bytes, [FLOATS], "race", "tma.copy(mine", "ld(mine)", wrong="read_back"),
        _at(ALL, c.waits_of_others, [BOX], "race", "tma.store(y[", "[0] = 2.0", wrong="unowned"),
        _at(ALL, c.copy_stages, [WORDS], "race", copy, "ld(stages", wrong="uncommitted"),
        _at(ALL, c.copy_stages, [WORDS], "race", copy, "stages[0][tid.x * 4] = 1", wrong="overwritten"),
        _at(ALL, c.copy_stages, [WORDS], "race", copy, "x[ctaid.x * 256 + tid.x * 4] = 1", wrong="source"),
        _at(ALL, c.copy_stages, [WORDS], "race", copy, "cp_async.copy(stages[0]", wrong="copied_again"),
        _at(ALL, c.copy_stages, [WORDS], "race", copy, "ld(stages", wrong="unawaited"),
        _at(ALL, c.copy_stages, [WORDS], "race", copy, "ld(stages", wrong="other_stage"),
        _at(ALL, c.copy_stages, [WORDS], "race", copy, "ld(stages", wrong="unsynced"),
        _at(ALL, c.copy_stages, [WORDS], "race", copy, "ld(stages", wrong="deep"),
        _at(ALL, c.copy_loop, [WORDS, 4], "race", "ld(stages", "stages[(number", wrong="ahead"),
        _at(ALL, c.copy_for_others, [WORDS], "race", "cp_async.copy(words", "words[warp.lane] = 1", wrong="unawaited"),
        _at(CLUSTERS, c.store_async, [WORDS], "race", sent, "ld(words + tid.x)", wrong="early"),
        _at(CLUSTERS, c.store_async, [WORDS], "race", sent, "ld(words + tid.x)", wrong="fewer"),
        _at(CLUSTERS, c.store_async, [WORDS], "deadlock", lacks, "full.wait(0)", wrong="more"),
        _at(CLUSTERS, c.store_async, [WORDS], "cluster-entry", sent, wrong="entry"),
    ]


def _roles() -> list[list[Case]]:
    there, tile = "in_cta(next_rank(), words)[", "tile.at(row, warp.lane)[0] = 1.0"
    first, second, writes = "ld(in_cta(next_rank(), words) + tid.x)", "+ warp.lane)", "words[tid.x - 32"
    return [
        _at(ALL, r.write_then_read, [], "race", there, "ld(words", wrong="unawaited"),
        _at(ALL, r.write_then_read, [], "race", there, "ld(words", wrong="late"),
        _at(ALL, r.write_then_read, [], "deadlock", "full: phase 1 lacks 32 of 32", "full.wait(", wrong="parity"),
        _at(ALL, r.read_then_write, [], "race", "ld(in_cta(", "words[31 - warp.lane] = 1", wrong="unawaited"),
        *(
            _at(ALL, r.two_readers, [], "race", read, writes, wrong=f"missing{number}", **widths)
            for widths in ({}, {"widths": (1, 2, 4)})
            for number, read in enumerate((first, second))
        ),
        _at(ALL, r.two_readers, [], "race", second, writes, wrong="unawaited", bars=1),
        _at(ALL, r.two_readers, [], "mbarrier-count", "arrive()", "arrive()", wrong="count", bars=1),
        _at(ALL, r.reader_loop, [4], "race", "ld(words", "in_cta(", wrong="0"),
        _at(ALL, r.reader_loop, [4], "race", "ld(words", "in_cta(", wrong="1"),
        _at(ALL, r.reader_loop, [4], "mbarrier-count", "read[0].at(before)", "read[0].at(before)", wrong="2"),
        _at(ALL, r.reader_loop, [4], "mbarrier-count", "read[1].at(before)", "read[1].at(before)", wrong="3"),
        _at(ALL, r.two_buffers, [4], "race", "in_cta(next_rank(), buffer)[", "ld(buffers[", wrong="second"),
        _at(ALL, r.two_producers, [4], "race", there, "ld(words", wrong="2"),
        _at(ALL, r.two_producers, [4], "race", there, "ld(words", wrong="3"),
        _at(ALL, r.overlapping_slices, [], "race", "st(there", "ld(words", wrong="unawaited"),
        _at(ALL, r.fenced_store, [BOX], "proxy-fence", tile, "tma.store(", wrong="unfenced"),
        _at(ALL, r.fenced_store, [BOX], "proxy-fence", tile, "tma.store(", wrong="after_arrive"),
        _at(CLUSTERS, r.flag, [], "race", there, "ld(words)", wrong="scope"),
        _at(ALL, r.flag, [], "race", there, "ld(words)", wrong="store"),
        _at(ALL, r.flag, [], "race", there, "ld(words)", wrong="load"),
        _at(CLUSTERS, r.exchange, [WORDS], "cluster-entry", there, wrong="entry"),
        _at(ALL, r.exchange, [WORDS], "race", there, "ld(words", wrong="relaxed"),
        _at(ALL, r.exchange, [WORDS], "race", there, "ld(words", wrong="late"),
        _at(ALL, r.exchange, [WORDS], "fault", "waits without having arrived", "ctas.wait()", wrong="unarrived"),
        _at(CLUSTERS, r.exchange, [WORDS], "race", there, "ld(words", wrong="cta"),
        _at(CLUSTERS, r.exchange, [WORDS], "race", "ld(in_cta(", "words[31 - warp.lane] = 1", wrong="reused"),
        _at(CLUSTERS, r.exchange, [WORDS], "exit-early", "ld(in_cta(", wrong="exit"),
    ]


def _scopes() -> list[list[Case]]:
    there, load, reads = "in_cta(next_rank(), words)[", "tma.load(tile", "ld(tile.at("
    rows = np.ones((4, 32), np.float32)
    written, copied, sent = "y[ctas.rank * COLUMNS", "tma.copy((y + ", "current().emit(opcode"
    adds, arrive, response = "red.add(there", "empty.at(", "is_canceled(ld("
    bad, words = (ALL, s.bad_address), [WORDS, 500_000]
    return [
        *(_at(ALL, s.lanes, [], "race", there, "ld(words)", wrong=wrong) for wrong in ("partial", "writer", "reader")),
        *(_at(ALL, s.load_lane, [BOX], "race", load, reads, wrong=wrong) for wrong in ("lane", "warp")),
        *(_at(ALL, s.relaxed_mbarrier, [], "race", there, "ld(words", wrong=wrong) for wrong in ("arrive", "wait")),
        *(
            _at(ALL, s.fence_space, [FLOATS], "proxy-fence", "words[tid.x] = 1.0", copied, wrong=wrong)
            for wrong in ("global", "early")
        ),
        *(
            _at(ALL, s.load_written, [rows, rows.reshape(-1)], rule, written, load, wrong=wrong)
            for wrong, rule in (("unfenced", "proxy-fence"), ("shared", "proxy-fence"), ("unsynced", "race"))
        ),
        *(
            _at(ALL, s.publish_store, [WORDS], "race", copied, "ld(y + ", wrong=wrong)
            for wrong in ("unawaited", "read_only")
        ),
        _at(CLUSTERS, s.copy_to_next, [], "proxy-fence", "source[tid.x] = tid.x", sent, wrong="unfenced"),
        _at(CLUSTERS, s.copy_to_next, [], "cluster-entry", sent, wrong="entry"),
        _at(CLUSTERS, s.copy_to_next, [], "race", sent, "ld(target", wrong="early"),
        _at(CLUSTERS, s.copy_to_next, [], "race", sent, "source[tid.x] = 0", wrong="reused"),
        _at(CLUSTERS, s.copy_to_next, [], "exit-early", sent, wrong="exit"),
        _at(CLUSTERS, s.scoped_count, [], "race", "there[0] = there", "there[0] = there", wrong="plain"),
        _at(CLUSTERS, s.scoped_count, [], "race", adds, adds, wrong="scope"),
        _at(ALL, s.scoped_count, [], "race", adds, "ld(count)", wrong="unsynced"),
        _at(CLUSTERS, s.shared_ring, [BOX, 5], "mbarrier-count", arrive, arrive, wrong="count"),
        _at(ALL, s.shared_ring, [BOX, 5], "race", load, reads, wrong="unreleased"),
        _at(ALL, s.shared_ring, [BOX, 5], "race", load, reads, wrong="early"),
        _at(CLUSTERS, s.shared_ring, [BOX, 5], "deadlock", "empty: phase 0 lacks", "empty.wait(", wrong="local"),
        _at(ALL, s.cancel, [], "race", "try_cancel(", response, wrong="early"),
        _at(ALL, s.cancel, [], "race", response, "try_cancel(", wrong="unsynced"),
        _at(ALL, s.cancel, [], "deadlock", "8 bytes too many", "full.wait(phase)", wrong="fewer"),
        _at(*bad, words, "fault", "is outside shared memory", "ld(place)", wrong="outside", space="shared"),
        _at(*bad, words, "fault", "is outside global memory", "ld(place)", wrong="outside", space="global"),
        *(
            _at(*bad, [WORDS, 5], "fault", "is not aligned to", "ld(place, vec=4)", wrong="misaligned", space=space)
            for space in ("shared", "global")
        ),
        _at(*bad, [WORDS, 5], "fault", "belongs to CTA 5 of a cluster", "ld(place)", wrong="rank", space="cluster"),
    ]


def _barriers() -> list[list[Case]]:
    missing, first, second = "is not initialised", "ready[1].wait(", "ready[0].wait("
    used = {"wait": "ready.wait(0)", "arrive": "ready.at(next_rank()).arrive()", "expect": "expect_tx(16)"}
    return [
        *(
            _at(ALL, b.use_of_mbarrier, [], "fault", missing, line, wrong=when, use=use)
            for use, line in used.items()
            for when in ("before", "after")
        ),
        *(
            _at(ALL, b.use_of_mbarrier, [], "mbarrier-live", "ready.inval()", wrong=when, use="inval")
            for when in ("before", "after")
        ),
        _at(ALL, b.partitions, [], "deadlock", "phase 0 lacks 1 of 2 arrivals", first, second, wrong="under"),
        _at(ALL, b.partitions, [], "deadlock", "ready1 → second → ready0 → first", first, second, wrong="mutual"),
        _at(ALL, b.partitions, [], "deadlock", "ready0: phase 0 lacks 1 of 1 arrivals", second, wrong="returned"),
        _at(ALL, b.arrivals, [], "deadlock", "ready: phase 2 lacks 1 of 1 arrivals", "ready.wait(0", wrong="twice"),
        _at(ALL, b.arrivals, [], "fault", "more arrivals than its phase has", "arrive(2)", wrong="underflow"),
        _at(ALL, b.phases, [6], "deadlock", "full: phase 6 lacks 1 of 1 arrivals", "full.wait(", wrong="lapped"),
        _at(ALL, b.phases, [6], "deadlock", "full: phase 5 lacks 1 of 1 arrivals", "full.wait(", wrong="more_waits"),
        _at(ALL, b.phases, [6], "deadlock", "empty: phase 4 lacks 1 of 1", "empty.wait(", wrong="more_completions"),
        _at(ALL, b.uneven_waits, [6], "mbarrier-lapped", "full.wait(", "full.arrive()", wrong="uncounted"),
        *(
            _at(ALL, b.hazard, [], "race", one, two, wrong="unsynced", kind=kind, **threads)
            for threads in ({}, {"threads": 32})
            for kind, one, two in (
                ("raw", "words[tid.x] = ", "ld(words + other)"),
                ("war", "ld(words + tid.x)", "words[other] = 1"),
                ("waw", "words[tid.x] = ", "words[other] = 1"),
            )
        ),
        _at(ALL, b.divergent, [], "deadlock", "barrier 1 (32 of 64 threads", "bar.sync(1, 64)", wrong="warp"),
        _at(ALL, b.divergent, [], "deadlock", "barrier 1 (32 of 64 threads", "bar.sync(1, 64)", wrong="lanes"),
        _at(ALL, b.divergent, [], "deadlock", "barrier 1 (64 of 96 threads", "barrier.sync", wrong="count"),
        _at(ALL, b.named_barriers, [6], "barrier-count", "bar.sync(1, 64)", "bar.arrive(1, 64)", wrong="empty"),
        _at(ALL, b.named_barriers, [6], "race", "= number", "ld(words", wrong="full"),
        _at(ALL, b.named_barriers, [6], "race", "= number", "ld(words", wrong="early"),
    ]


def _tensor() -> list[list[Case]]:
    mma, cp, ones = "tcgen05.mma(", "tcgen05.cp(", "st(place + word, ONES)"
    accesses = {"store": "st(Pointer(u32, operand", "load": "tcgen05.ld(acc)", "write": "tcgen05.st(acc"}
    st, group = "tcgen05.st(acc", "wgmma.mma("
    return [
        *(
            _at(sizes, kernel, [HALVES], "race", mma, line, wrong="unawaited", access=access)
            for kernel, sizes in ((t.multiply, ALL), (t.multiply_in_pair, CLUSTERS))
            for access, line in {"tma": "tma.copy(", **accesses}.items()
        ),
        _at(ALL, t.multiply, [HALVES], "proxy-fence", ones, mma, wrong="unfenced"),
        _at(ALL, t.multiply, [HALVES], "race", mma, "tcgen05.ld(acc)", wrong="committed_before"),
        _at(ALL, t.multiply, [HALVES], "race", mma, "tcgen05.ld(acc)", wrong="arrived"),
        _at(ALL, t.multiply, [HALVES], "race", mma, "tcgen05.ld(acc)", wrong="unawaited_but_tma"),
        _at(CLUSTERS, t.multiply_in_pair, [HALVES], "proxy-fence", ones, mma, wrong="unfenced"),
        _at(CLUSTERS, t.multiply_in_pair, [HALVES], "deadlock", "done: phase 0 lacks 1", "done.wait(0)", wrong="alone"),
        _at(CLUSTERS, t.multiply_in_pair, [HALVES], "deadlock", "lacks 1 of 2", "done.wait(0)", wrong="overcounted"),
        _at(ALL, t.two_sums, [], "race", mma, "tcgen05.ld(sums[", wrong="other_commit"),
        *(
            _at(ALL, t.copy_to_tensor_memory, [], "race", cp, line, wrong="unawaited", access=access)
            for access, line in accesses.items()
        ),
        _at(ALL, t.copy_to_tensor_memory, [], "race", cp, cp, wrong="unawaited", access="copy"),
        _at(ALL, t.copy_to_tensor_memory, [], "uninitialised", cp, wrong="unwritten"),
        _at(ALL, t.copy_to_tensor_memory, [], "proxy-fence", ones, cp, wrong="unfenced"),
        _at(ALL, t.multiply_copied, [], "race", mma, cp, wrong="unawaited"),
        _at(ALL, t.transfers, [], "race", st, st, wrong="stored_twice"),
        _at(ALL, t.transfers, [], "race", st, "tcgen05.ld(acc)", wrong="store_unawaited"),
        _at(ALL, t.transfers, [], "race", "tcgen05.ld(acc)", st, wrong="load_unawaited"),
        _at(ALL, t.transfers, [], "race", st, st, wrong="unsynced"),
        _at(ALL, t.hand_over, [], "race", st, mma, wrong="store_unawaited"),
        _at(ALL, t.hand_over, [], "race", st, mma, wrong="unawaited"),
        *(
            _at(ALL, w.multiply_stages, [], "race", group, "st(overwritten", wrong=wrong, access=access)
            for access in ("warpgroup", "other_warp")
            for wrong in ("unawaited", "uncommitted", "other_stage")
        ),
        _at(ALL, w.multiply_stages, [], "proxy-fence", ones, group, wrong="unfenced"),
    ]


def _deadlocks() -> list[list[Case]]:
    waits = "full.wait(0)"
    return [
        _at(ALL, h.mutual_wait, [4], "deadlock", "load → empty → use → full → load", "empty.wait(", "full.wait("),
        _at(ALL, h.unreleased_stage, [5], "deadlock", "ab.empty[0]: phase 0 lacks 1", "slot.empty.wait()"),
        _at(ALL, h.count_too_high, [WORDS], "deadlock", "ready: phase 0 lacks 31 of 32 arrivals", "ready.wait(0)"),
        _at(ALL, h.short_loop, [4], "deadlock", "full: phase 3 lacks 1 of 1 arrivals", "full.wait("),
        _at(ALL, h.bytes_at_wrong_mbarrier, [BOX], "deadlock", "full: phase 0 lacks 4,096 bytes", waits),
        _at(ALL, h.unexpected_bytes, [BOX], "deadlock", "4,096 bytes too many", waits),
        _at(ALL, h.barrier_in_branch, [WORDS], "deadlock", "barrier 1 (32 of 64", "bar.sync(1, 64)"),
        _at(ALL, h.crossed_barriers, [WORDS], "deadlock", "barrier 1 (32 of 64", "bar.sync("),
        _at((2,), h.arrive_after_cluster_sync, [WORDS], "deadlock", "ready: phase 0 lacks 1", "ready.wait(0)"),
        _at(ALL, h.one_parity, [WORDS], "deadlock", "full: phase 2 lacks 1 of 1", "full.wait("),
    ]


def _global_memory() -> list[list[Case]]:
    words = [np.zeros(256, np.uint32) for _ in range(3)]
    next_words, lock = "y[ctaid.x * 64 + tid.x] = x[other", "x[0] = x[0] + 1"
    return [
        _at((2,), g.pair, words[:2], "race", "= tid.x", "= x[(ctaid.x ^ 1)"),
        [new_case(kernels.unwritten_read, [WORDS], "uninitialised", "x[tid.x] = buffer[tid.x]")],
        [new_case(g.overwrite_box, [TensorMap(BOX, (8, 32)), BOX.reshape(-1)], "race", "tma.load", "x[tid.x] = 1.0")],
        [new_case(g.neighbours, words[:2], "race", "x[tid.x] = tid.x", "y[tid.x] = x[63 - tid.x]")],
        [new_case(g.last_block, words, "grid-race", "x[ctaid.x * 64", "total.set(", grid=4, fenced=False)],
        [new_case(g.grid_barrier, words, "grid-race", "x[ctaid.x * 64", next_words, grid=4, before=False)],
        [new_case(g.grid_barrier, words, "grid-race", "x[ctaid.x * 64", next_words, grid=4, after=False)],
        [new_case(g.sum_under_lock, words[:2], "grid-race", lock, lock, grid=3)],
        [new_case(g.relay_flags, words, "grid-race", "x[0] = 5", "y[0] = x[0]", grid=3)],
        [new_case(g.tickets, words, "grid-race", "x[ctaid.x] = ctaid.x", "y[each] = x[each]", grid=4)],
    ]


# published bugs whose CTAs write no common memory
_EACH_CTA = (
    "wait_before_init", "early_release", "lapped_waiter", "one_phase", "second_tile", "expected_twice", "all_arrive",
    "arrives_too_often", "early_reuse", "unallocated", "initialised_again", "overwritten_mbarrier", "registers_missing",
    "registers_upwards", "single_stage", "loop_back", "counts_to_zero", "missing_wait", "expected_too_little",
    "expected_by_two", "store_out_of_bounds", "warps_disagree", "arrives_too_seldom", "alternate_warps",
    "never_initialised", "misaligned_bytes", "misaligned_box", "misaligned_descriptor", "other_count", "other_number",
    "divergent_barrier", "part_of_a_warpgroup", "early_stage",
)  # fmt: skip

# what is a note in PTX of others, because the assembler or the chip is known to keep the order: its evidence
NOTES = {
    "cancel-unsynced": "served",
    "refill": "overwrite",
    "matrices_refilled": "overwrite",
    "late_fence": "late fence",
    "load_after_store-late": "late fence",
    "load_tile-init_unfenced": "fence",
    "fenced_store-consumer": "late fence",
    "cancel-unfenced": "overwrite",
    "registers_differ": "registers",
    "registers_of_one": "registers",
    "registers_at_once": "registers",
    "tensor_core-loaded": "load",
    "tensor_memory": "fence",
    "number_as_parity": "parity",
    "exit_before_store": "exit",
}


def _published() -> list[list[Case]]:
    cases = [case for cases in (*classes.CLASSES.values(), classes.MORE) for case in cases]
    return [[in_cluster(case, ctas) for ctas in ALL] if case.name in _EACH_CTA else [case] for case in cases]


# what the checks do not find, and why it is not known to be wrong
UNDECIDED = {
    "write_then_read-release": "a release of CTA scope at the mbarrier of another CTA: CUTLASS's pipelines do it",
    "write_then_read-acquire": "a wait of CTA scope for what another CTA wrote: CUTLASS's pipelines do it",
}


def _undecided() -> list[list[Case]]:
    there, reads = "in_cta(next_rank(), words)[", "ld(words"
    return [_at(CLUSTERS, r.write_then_read, [], "race", there, reads, wrong=wrong) for wrong in ("release", "acquire")]


def _notes() -> list[list[Case]]:
    tile = "tile.at(warp.id, warp.lane)[0] = 1.0"
    return [
        _at(ALL, c.load_after_store, [BOX], "proxy-fence", tile, "tma.load(", wrong="late"),
        _at(ALL, c.load_tile, [BOX], "mbarrier-init", "full.init()", "tma.load(tile", wrong="init_unfenced"),
        _at(ALL, r.fenced_store, [BOX], "proxy-fence", "tile.at(row, warp.lane)[0]", "tma.store(", wrong="consumer"),
        _at(ALL, s.cancel, [], "proxy-fence", "is_canceled(ld(", "try_cancel(", wrong="unfenced"),
        _at((1,), kernels.exit_before_store, [BOX[:32, :32]], "exit-early", "tma.store("),
    ]


_GROUPS = (
    _published, _copies, _roles, _scopes, _barriers, _tensor, _deadlocks, _global_memory, _notes, _undecided,
)  # fmt: skip
MISTAKES = {cases[0].name: cases for group in _GROUPS for cases in group()}
