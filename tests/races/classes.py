"""The classes of publicly reported bugs, and for each class the kernels of this folder that have the bug: wrong, and
repaired.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from tests.races import (
    global_kernels,
    kernels,
    map_kernels,
    node_kernels,
    published,
    published_copies,
    published_protocol,
    published_tensor,
    schedule_kernels,
)
from tests.races.cases import Case, new_case
from tests.races.corpus import copies
from warpwright.layout.peers import PerRank
from warpwright.layout.tensor_map import TensorMap

__all__ = ["CLASSES", "MORE"]

WORDS, OTHERS, FLOATS = (np.zeros(512, dtype) for dtype in (np.uint32, np.uint32, np.float32))
BOX = np.zeros((32, 32), np.float32)
LONG = np.ones((32, 256), np.float32)
SQUARE, TALL, WIDE = (np.ones(shape).astype(ml_dtypes.bfloat16) for shape in ((64, 64), (128, 64), (64, 512)))
DEEP = np.ones((128, 256)).astype(ml_dtypes.bfloat16)
RESULT, SQUARE_RESULT = np.zeros((128, 64), np.float32), np.zeros((64, 64), np.float32)
ROWS = np.ones((8, 32), np.float32)
MODIFY_MAP, PASS_MAP = (
    [TensorMap(ROWS, (8, 32)), FLOATS, WORDS, FLOATS.copy()],
    [TensorMap(ROWS, (8, 32)), WORDS, FLOATS],
)
MATMUL = [TALL, SQUARE, RESULT]
RANK_ROWS = PerRank([ROWS, ROWS.copy()])
SENT = [RANK_ROWS, PerRank([WORDS, OTHERS]), RANK_ROWS, PerRank([FLOATS, FLOATS.copy()])]


c, g, p, q, t = published_copies, global_kernels, published, published_protocol, published_tensor

CLASSES: dict[int, tuple[Case, ...]] = {
    1: (
        new_case(kernels.store_box, [BOX], "proxy-fence", "st(tile.at", "tma.store"),
        new_case(p.written_operands, [FLOATS], "proxy-fence", "st(at + (tid.x + first)", "wgmma.mma(", fenced=False),
        new_case(kernels.wait_before_init, [BOX], "mbarrier-init", "full.init()", "full.wait(0)"),
    ),
    2: (new_case(kernels.refill, [LONG, 8], "proxy-fence", "ld(slot.x.at", "tma.load(slot.x"),),
    3: (new_case(p.matrices_refilled, [WIDE, 6], "proxy-fence", "ldmatrix(slot.x.at", "tma.load(slot.x"),),
    4: (new_case(p.late_fence, [BOX], "proxy-fence", "st(tile.at(warp.lane, column + warp.id)", "tma.store"),),
    5: (new_case(t.tensor_core, [RESULT], "proxy-fence", "st(place + word, ONES)", "tcgen05.mma(", fenced=False),),
    6: (
        new_case(p.others_group, [BOX], "race", "tma.store", "st(tile.at(warp.lane, warp.id)"),
        new_case(p.refilled_source, [LONG], "race", "tma.store", "st(tile.at(warp.lane, column + warp.id)"),
    ),
    7: (
        new_case(p.multicast_early, [LONG], "race", "tma.load(tile, x[0, COLUMNS]", "ld(tile.at(warp.lane, 0)", grid=2),
    ),
    8: (new_case(p.lonely_multicast, [BOX], "deadlock", "full: phase 0 lacks 4,096 bytes", "full.wait(0)", grid=2),),
    9: (
        new_case(map_kernels.modify_map, MODIFY_MAP, "tensor-map", "tma.load(", "tensormap.replace(map", waited=False),
        new_case(
            map_kernels.modify_map, MODIFY_MAP, "tensor-map", "tensormap.cp_fenceproxy(", "tma.load(", acquired=False
        ),
        new_case(map_kernels.modify_map, MODIFY_MAP, "tensor-map", "map[tid.x] =", "tma.load(", published=False),
        new_case(map_kernels.pass_map, PASS_MAP, "tensor-map", "tensormap.replace(", "tma.load(", released=False),
        new_case(map_kernels.pass_map, PASS_MAP, "tensor-map", "tensormap.replace(", "tma.load(", acquired=False),
    ),
    10: (new_case(p.early_release, [WIDE, WIDE, 6], "race", "wgmma.mma(", "tma.load(slot."),),
    11: (
        new_case(
            kernels.accumulators,
            [SQUARE, SQUARE, SQUARE_RESULT],
            "wgmma-fence",
            "register.set(0.0)",
            "wgmma.mma(",
            fenced=False,
        ),
        new_case(
            kernels.accumulators,
            [SQUARE, SQUARE, SQUARE_RESULT],
            "wgmma-registers",
            "wgmma.mma(",
            "st(d +",
            waited=False,
        ),
        new_case(p.overwritten_registers, [SQUARE, FLOATS], "wgmma-registers", "wgmma.mma(", "left[0] += 1"),
    ),
    12: (new_case(kernels.lapped_waiter, [4], "mbarrier-lapped", "slot.full.wait()", "slot.full.arrive()"),),
    13: (
        new_case(p.one_phase, [LONG, 4], "deadlock", "empty: phase 4 lacks 32 of 32 arrivals", "empty.wait("),
        new_case(
            p.second_tile,
            [LONG, 2, 3],
            "fault",
            "got an arrival for a phase that has all of its arrivals",
            "full.arrive_expect_tx(",
        ),
    ),
    14: (
        new_case(p.expected_twice, [BOX], "deadlock", "full: phase 0 lacks 4,096 bytes", "full.wait(0)"),
        new_case(t.pair_bytes, [BOX], "deadlock", "full: phase 0 lacks 8,192 bytes", "full.wait(0)", grid=4),
    ),
    15: (
        new_case(p.all_arrive, [WORDS], "deadlock", "ready: phase 31 was ended by", "ready.wait(0)"),
        new_case(
            q.arrives_too_often,
            [WORDS],
            "fault",
            "got an arrival for a phase that has all of its arrivals",
            "ready.arrive()",
        ),
    ),
    16: (new_case(kernels.peer, [WORDS], "exit-early", "ld(Pointer(", grid=2),),
    17: (
        new_case(t.tensor_core, [RESULT], "tmem-freed", "tcgen05.ld(acc)", "tmem.dealloc()", synced=False),
        new_case(t.early_reuse, [TALL, SQUARE, 3], "race", "tcgen05.ld(acc)", "tcgen05.mma("),
    ),
    18: (new_case(t.pair_parts, [WORDS], "tmem-pair", "tmem.alloc()", "tmem.dealloc()", grid=2, synced=False),),
    19: (new_case(t.tensor_core, [RESULT], "race", "tmem.alloc()", "tmem.open()", opened=False),),
    20: (new_case(t.unallocated, [WORDS], "fault", "columns from 0 on are not allocated", "tcgen05.st.sync.aligned"),),
    21: (
        new_case(p.initialised_again, [WORDS], "mbarrier-live", "ready.init()", "ready.init()"),
        new_case(p.overwritten_mbarrier, [WORDS], "mbarrier-live", "ready.init()", "scratch[0] = 7"),
    ),
    22: (
        new_case(
            c.one_group_early, [WORDS, OTHERS], "race", "cp_async.copy(buffer", "y[tid.x] = buffer[256 + 63 - tid.x]"
        ),
        new_case(c.signals_early, [WORDS, OTHERS], "race", "cp_async.copy(buffer", "y[warp.lane] = buffer[warp.lane]"),
        new_case(c.late_copy, [WORDS, OTHERS], "race", "x + (tid.x * 4 + 128)", "buffer[128 + warp.lane]"),
        new_case(c.counts_itself, [WORDS, OTHERS], "deadlock", "full: phase 0 lacks 32 of 32 arrivals", "full.wait(0)"),
        new_case(c.waits_before, [WORDS, OTHERS], "race", "cp_async.copy(buffer", "y[tid.x] = buffer[63 - tid.x]"),
        new_case(
            c.fences_before, [FLOATS, np.zeros((4, 32), np.float32)], "proxy-fence", "cp_async.copy(", "tma.store("
        ),
    ),
    23: (
        new_case(p.arrives_twice, [WORDS], "race", "buffer[warp.lane] = warp.lane", "x[warp.lane] = buffer[warp.lane]"),
    ),
    24: (
        new_case(
            q.registers_differ,
            [WORDS],
            "setmaxnreg",
            "setmaxnreg.dec(40)",
            "setmaxnreg.dec(40 if right else 48)",
        ),
        new_case(
            q.registers_of_one,
            [WORDS],
            "setmaxnreg",
            "setmaxnreg.dec(40)",
        ),
        new_case(
            q.registers_missing,
            [WORDS],
            "deadlock",
            "1024 registers (0 are free)",
            "setmaxnreg.inc(152 if right else 160)",
        ),
        new_case(
            q.registers_upwards, [WORDS], "fault", "a thread of the warp has 128 registers; expected", "setmaxnreg.dec("
        ),
        new_case(q.registers_at_once, [WORDS], "setmaxnreg", "setmaxnreg.dec(128)", "setmaxnreg.dec(40)"),
        new_case(p.single_stage, [LONG, 4], "race", "ld(tile.at", "tma.load"),
    ),
    25: (new_case(p.loop_back, [WIDE, WIDE, 3], "race", "wgmma.mma(acc, a_tiles[group]", "tma.load(b_tile"),),
    26: (new_case(q.counts_to_zero, [0], "fault", "count 0; expected 1 to 1048575 arrivals", "mbarrier.init"),),
    27: (
        new_case(p.missing_wait, [BOX], "race", "tma.load", "ld(tile.at"),
        new_case(q.write_after_load, [BOX, FLOATS], "race", "scale[0] = 2.0", "y[warp.lane] = scale[0]"),
    ),
    28: (
        replace(
            new_case(
                global_kernels.dependent_launch,
                [WORDS, WORDS.copy()],
                "grid-dependency",
                "y[tid.x] = x[tid.x]",
                first=False,
            ),
            depends_on=(0,),
        ),
    ),
}

MORE: tuple[Case, ...] = (
    new_case(global_kernels.read_only_load, [WORDS, WORDS.copy()], "read-only", "x[tid.x] = tid.x", "nc=not right"),
    new_case(global_kernels.same_address, [WORDS], "grid-race", "= ctaid.x", "= ctaid.x", grid=2),
    new_case(p.odd_pair, [BOX, 1], "deadlock", "full: phase 0 lacks 1 of 2 arrivals", "full.wait(0)", grid=2),
    new_case(p.written_operands, [FLOATS], "race", "wgmma.mma(", "st(starts[0] + tid.x, 0)", ordered=False),
    new_case(q.expected_too_little, [BOX], "deadlock", "2,048 bytes too many", "full.wait(0)"),
    new_case(q.expected_by_two, [BOX], "deadlock", "full: phase 0 lacks 4,096 bytes", "full.wait(0)"),
    new_case(
        q.peer_uninitialised,
        [WORDS],
        "fault",
        "of CTA 1 is not initialised",
        "ready.at(cluster.rank ^ 1).arrive()",
        grid=2,
    ),
    new_case(q.peer_exited, [WORDS], "exit-early", "ready.at(cluster.rank ^ 1).arrive()", grid=2),
    new_case(q.store_out_of_bounds, [WORDS, 64], "fault", "is outside shared memory", "buffer[tid.x + "),
    new_case(q.unwritten_sums, [FLOATS, 64], "uninitialised", "d[tid.x] = acc.regs[0]"),
    new_case(q.warps_disagree, [SQUARE, SQUARE], "fault", "scale-d is 0x", "wgmma.mma("),
    new_case(q.arrives_too_seldom, [WORDS], "deadlock", "ready: phase 0 lacks 1 of 2 arrivals", "ready.wait(0)"),
    new_case(q.counts_one_less, [WORDS], "mbarrier-count", "ready.arrive()", "ready.arrive()"),
    new_case(q.alternate_warps, [2], "barrier-count", "bar.sync(1, 64)", "bar.arrive(1, 64)"),
    new_case(q.never_initialised, [WORDS], "fault", "is not initialised: run mbarrier.init there", "ready.arrive()"),
    new_case(q.peer_as_own, [WORDS], "fault", "reaches the CTA's own: use .shared::cluster", "mbarrier.arrive", grid=2),
    new_case(q.bytes_for_the_peer, [BOX], "deadlock", "and has 4,096 bytes too many", "full.wait(0)", grid=2),
    new_case(q.misaligned_bytes, [WORDS, 40], "fault", "the size is 40; expected a multiple of 16 bytes", "tma.copy("),
    new_case(q.misaligned_box, [TensorMap(BOX, (32, 32))], "fault", "expected a multiple of 128", "tma.load(tile.at("),
    new_case(
        q.misaligned_descriptor,
        [SQUARE, SQUARE],
        "fault",
        "with bit 60 set; expected 0 on sm_90a",
        "current().emit(opcode",
    ),
    new_case(q.counted_and_read, [WORDS], "race", "red.add(count, 1)", "x[tid.x] = count[0]"),
    new_case(q.counted_and_read, [WORDS], "uninitialised", "red.add(count, 1)", zeroed=False, right=True),
    new_case(
        q.other_count,
        [WORDS],
        "fault",
        "barrier 1 for 32 threads; others arrived at it for 64",
        "bar.sync(1, 64 if right",
    ),
    new_case(
        q.other_number,
        [WORDS],
        "deadlock",
        "barrier 1 (32 of 64 threads have arrived)",
        "bar.sync(1, 64)",
        "bar.sync(1 if right",
    ),
    new_case(
        q.divergent_barrier,
        [3],
        "deadlock",
        "cycle: produce → empty → consume → barrier 0 → produce",
        "empty.wait(",
        "bar.sync()",
    ),
    new_case(
        q.half_a_cluster,
        [WORDS],
        "deadlock",
        "the barrier of the cluster (96 of 128 threads have",
        "cluster.sync()",
        "bar.sync()",
        grid=2,
    ),
    new_case(q.arrives_again, [WORDS], "fault", "arrives again before it has waited", "cluster.arrive()", grid=2),
    new_case(
        q.part_of_a_warpgroup,
        [SQUARE, SQUARE],
        "deadlock",
        "warp 3 has issued fewer wgmma than others",
        "wgmma.wait_group(0)",
    ),
    new_case(t.tensor_core, [RESULT], "race", "tcgen05.mma(", "tcgen05.ld(acc)", committed=False),
    new_case(t.early_stage, [DEEP, WIDE, 4], "race", "tcgen05.mma(", "tma.load(slot."),
    new_case(t.tensor_core, [RESULT], "product-lost", "tcgen05.mma(", "tcgen05.mma(", accumulates=False),
    new_case(t.tensor_core, [RESULT], "tmem-registers", "tcgen05.ld(acc)", "st(d + tid.x * 64", loaded=False),
    new_case(
        t.tensor_core, [RESULT], "fault", "has relinquished its permit to allocate", "tmem.alloc()", permitted=False
    ),
    new_case(
        t.tensor_core,
        [RESULT],
        "fault",
        "exits with 64 columns of tensor memory allocated",
        "tmem.alloc()",
        freed=False,
    ),
    new_case(t.tensor_core, [RESULT], "uninitialised", "tcgen05.mma(", starts_at_zero=False),
    new_case(kernels.tensor_memory, MATMUL, "tcgen05-fence", "tcgen05.mma(acc", "tcgen05.ld(acc)"),
    new_case(t.tensor_core, [RESULT], "race", "tcgen05.mma(", 'space="shared::cta")[tid.x] = 0', ordered=False),
    new_case(t.missing_store_wait, [FLOATS], "uninitialised", "tcgen05.ld(acc)", stored=False, right=True),
    new_case(t.missing_store_wait, [FLOATS], "race", "tcgen05.st(acc", "tcgen05.ld(acc)"),
    new_case(t.a_in_tensor_memory, [FLOATS], "race", "tcgen05.st(left", "tcgen05.mma(acc, left", stored=False),
    new_case(t.mixed_shapes, [FLOATS], "race", "tcgen05.mma(sums", "tcgen05.mma(scores"),
    new_case(
        t.pair_parts,
        [WORDS],
        "cta-group",
        "tmem.alloc()",
        'current().emit(f"tcgen05.relinquish_alloc_permit',
        grid=2,
        group=1,
    ),
    new_case(kernels.half_warp, [WORDS], "inactive-lane", "shfl.down("),
    new_case(schedule_kernels.crossed_locks, [WORDS], "lock-order", *["old = atom.cas("] * 4),
    new_case(copies.load_all, [BOX], "cluster-entry", "tma.load(", grid=2, wrong="entry"),
    new_case(q.number_as_parity, [BOX, 3], "mbarrier-parity", "full.wait("),
    new_case(t.others_commit, [FLOATS], "race", "tcgen05.mma(", "tcgen05.ld(acc)"),
    replace(new_case(node_kernels.send_tile, SENT, "peer-race", "tma.store(", "out[0] = y[0]"), device="h200x2"),
)
