"""The classes of publicly reported bugs, and for each class the kernels of this folder that have the bug: wrong, and
repaired.

A case has the arguments of its launch, the rule that finds the mistake, and the text of the two conflicting lines; for
a deadlock or a fault, its message and then the text of the lines where threads wait or stop.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from tests.races import (
    global_kernels,
    kernels,
    map_kernels,
    published,
    published_copies,
    published_ends,
    published_protocol,
    published_tensor,
    schedule_kernels,
)
from warpwright.lang import Kernel
from warpwright.layout.tensor_map import TensorMap

__all__ = ["CLASSES", "MORE", "Case"]

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


@dataclass(frozen=True)
class Case:
    kernel: Kernel
    args: list[Any]
    rule: str
    expected: tuple[str, ...]
    grid: int = 1
    wrong: dict[str, Any] = field(default_factory=lambda: {"right": False})
    right: dict[str, Any] = field(default_factory=lambda: {"right": True})
    depends_on: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        changed = "-".join(name for name in self.wrong if name != "right")
        return self.kernel.name + (f"-{changed}" if changed else "")


def _case(kernel: Kernel, args: list[Any], rule: str, *expected: str, grid: int = 1, **wrong: Any) -> Case:
    """Returns a case whose mistake is ``right=False``, or else the first option of ``wrong``."""
    if wrong:
        return Case(kernel, args, rule, expected, grid, wrong, dict([*wrong.items()][1:]))
    return Case(kernel, args, rule, expected, grid)


c, e, g, p, q, t = (
    published_copies, published_ends, global_kernels, published, published_protocol, published_tensor,
)  # fmt: skip

CLASSES: dict[int, tuple[Case, ...]] = {
    1: (
        _case(kernels.store_box, [BOX], "proxy-fence", "st(tile.at", "tma.store"),
        _case(p.written_operands, [FLOATS], "proxy-fence", "st(at + (tid.x + first)", "wgmma.mma(", fenced=False),
        _case(kernels.wait_before_init, [BOX], "mbarrier-init", "full.init()", "full.wait(0)"),
    ),
    2: (_case(kernels.refill, [LONG, 8], "proxy-fence", "ld(slot.x.at", "tma.load(slot.x"),),
    3: (_case(p.matrices_refilled, [WIDE, 6], "proxy-fence", "ldmatrix(slot.x.at", "tma.load(slot.x"),),
    4: (_case(p.late_fence, [BOX], "proxy-fence", "st(tile.at(warp.lane, column + warp.id)", "tma.store"),),
    5: (_case(t.tensor_core, [RESULT], "proxy-fence", "st(at, 0x3F803F80)", "tcgen05.mma(", fenced=False),),
    6: (
        _case(p.others_group, [BOX], "race", "tma.store", "st(tile.at(warp.lane, warp.id)"),
        _case(p.refilled_source, [LONG], "race", "tma.store", "st(tile.at(warp.lane, column + warp.id)"),
    ),
    7: (_case(p.multicast_early, [LONG], "race", "tma.load(tile, x[0, COLUMNS]", "ld(tile.at(warp.lane, 0)", grid=2),),
    8: (_case(p.lonely_multicast, [BOX], "deadlock", "full: phase 0 lacks 4,096 bytes", "full.wait(0)", grid=2),),
    9: (
        _case(map_kernels.modify_map, MODIFY_MAP, "tensor-map", "tma.load(", "tensormap.replace(map", waited=False),
        _case(
            map_kernels.modify_map, MODIFY_MAP, "tensor-map", "tensormap.cp_fenceproxy(", "tma.load(", acquired=False
        ),
        _case(map_kernels.modify_map, MODIFY_MAP, "tensor-map", "map[tid.x] =", "tma.load(", published=False),
        _case(map_kernels.pass_map, PASS_MAP, "tensor-map", "tensormap.replace(", "tma.load(", released=False),
        _case(map_kernels.pass_map, PASS_MAP, "tensor-map", "tensormap.replace(", "tma.load(", acquired=False),
    ),
    10: (_case(p.early_release, [WIDE, WIDE, 6], "race", "wgmma.mma(", "tma.load(slot."),),
    11: (
        _case(
            kernels.accumulators,
            [SQUARE, SQUARE, SQUARE_RESULT],
            "wgmma-fence",
            "register.set(0.0)",
            "wgmma.mma(",
            fenced=False,
        ),
        _case(
            kernels.accumulators,
            [SQUARE, SQUARE, SQUARE_RESULT],
            "wgmma-registers",
            "wgmma.mma(",
            "st(d +",
            waited=False,
        ),
        _case(p.overwritten_registers, [SQUARE, FLOATS], "wgmma-registers", "wgmma.mma(", "left[0] += 1"),
    ),
    12: (_case(kernels.lapped_waiter, [4], "mbarrier-lapped", "slot.full.wait()", "slot.full.arrive()"),),
    13: (
        _case(p.one_phase, [LONG, 4], "deadlock", "empty: phase 4 lacks 32 of 32 arrivals", "empty.wait("),
        _case(
            p.second_tile,
            [LONG, 2, 3],
            "fault",
            "got an arrival for a phase that has all of its arrivals",
            "full.arrive_expect_tx(",
        ),
    ),
    14: (
        _case(p.expected_twice, [BOX], "deadlock", "full: phase 0 lacks 4,096 bytes", "full.wait(0)"),
        _case(t.pair_bytes, [BOX], "deadlock", "full: phase 0 lacks 8,192 bytes", "full.wait(0)", grid=4),
    ),
    15: (
        _case(p.all_arrive, [WORDS], "deadlock", "ready: phase 31 was ended by", "ready.wait(0)"),
        _case(
            q.arrives_too_often,
            [WORDS],
            "fault",
            "got an arrival for a phase that has all of its arrivals",
            "ready.arrive()",
        ),
    ),
    16: (_case(kernels.peer, [WORDS], "exit-early", "ld(Pointer(", grid=2),),
    17: (
        _case(t.tensor_core, [RESULT], "tmem-freed", "tcgen05.ld(acc)", "tmem.dealloc()", synced=False),
        _case(t.early_reuse, [TALL, SQUARE, 3], "race", "tcgen05.ld(acc)", "tcgen05.mma("),
    ),
    18: (_case(t.pair_parts, [WORDS], "tmem-pair", "tmem.alloc()", "tmem.dealloc()", grid=2, synced=False),),
    19: (_case(t.tensor_core, [RESULT], "race", "tmem.alloc()", "tmem.open()", opened=False),),
    20: (_case(t.unallocated, [WORDS], "fault", "columns from 0 on are not allocated", "tcgen05.st.sync.aligned"),),
    21: (
        _case(p.initialised_again, [WORDS], "mbarrier-live", "ready.init()", "ready.init()"),
        _case(p.overwritten_mbarrier, [WORDS], "mbarrier-live", "ready.init()", "scratch[0] = 7"),
    ),
    22: (
        _case(
            c.one_group_early, [WORDS, OTHERS], "race", "cp_async.copy(buffer", "y[tid.x] = buffer[256 + 63 - tid.x]"
        ),
        _case(c.signals_early, [WORDS, OTHERS], "race", "cp_async.copy(buffer", "y[warp.lane] = buffer[warp.lane]"),
        _case(c.late_copy, [WORDS, OTHERS], "race", "x + (tid.x * 4 + 128)", "buffer[128 + warp.lane]"),
        _case(c.counts_itself, [WORDS, OTHERS], "deadlock", "full: phase 0 lacks 32 of 32 arrivals", "full.wait(0)"),
        _case(c.waits_before, [WORDS, OTHERS], "race", "cp_async.copy(buffer", "y[tid.x] = buffer[63 - tid.x]"),
        _case(c.fences_before, [FLOATS, np.zeros((4, 32), np.float32)], "proxy-fence", "cp_async.copy(", "tma.store("),
    ),
    23: (_case(p.arrives_twice, [WORDS], "race", "buffer[warp.lane] = warp.lane", "x[warp.lane] = buffer[warp.lane]"),),
    24: (
        _case(
            q.registers_differ,
            [WORDS],
            "setmaxnreg",
            "setmaxnreg.dec(40)",
            "setmaxnreg.dec(40 if right else 48)",
        ),
        _case(
            q.registers_of_one,
            [WORDS],
            "setmaxnreg",
            "setmaxnreg.dec(40)",
        ),
        _case(
            q.registers_missing,
            [WORDS],
            "deadlock",
            "1024 registers (0 are free)",
            "setmaxnreg.inc(152 if right else 160)",
        ),
        _case(
            q.registers_upwards, [WORDS], "fault", "a thread of the warp has 128 registers; expected", "setmaxnreg.dec("
        ),
        _case(q.registers_at_once, [WORDS], "setmaxnreg", "setmaxnreg.dec(128)", "setmaxnreg.dec(40)"),
        _case(p.single_stage, [LONG, 4], "race", "ld(tile.at", "tma.load"),
    ),
    25: (_case(p.loop_back, [WIDE, WIDE, 3], "race", "wgmma.mma(acc, a_tiles[group]", "tma.load(b_tile"),),
    26: (_case(q.counts_to_zero, [0], "fault", "count 0; expected 1 to 1048575 arrivals", "mbarrier.init"),),
    27: (
        _case(p.missing_wait, [BOX], "race", "tma.load", "ld(tile.at"),
        _case(q.write_after_load, [BOX, FLOATS], "race", "scale[0] = 2.0", "y[warp.lane] = scale[0]"),
    ),
    28: (
        replace(
            _case(
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
    _case(global_kernels.read_only_load, [WORDS, WORDS.copy()], "read-only", "x[tid.x] = tid.x", "nc=not right"),
    _case(global_kernels.same_address, [WORDS], "grid-race", "= ctaid.x", "= ctaid.x", grid=2),
    _case(p.odd_pair, [BOX, 1], "deadlock", "full: phase 0 lacks 1 of 2 arrivals", "full.wait(0)", grid=2),
    _case(p.written_operands, [FLOATS], "race", "wgmma.mma(", "st(starts[0] + tid.x, 0)", ordered=False),
    _case(q.expected_too_little, [BOX], "deadlock", "2,048 bytes too many", "full.wait(0)"),
    _case(q.expected_by_two, [BOX], "deadlock", "full: phase 0 lacks 4,096 bytes", "full.wait(0)"),
    _case(
        q.peer_uninitialised,
        [WORDS],
        "fault",
        "of CTA 1 is not initialised",
        "ready.at(cluster.rank ^ 1).arrive()",
        grid=2,
    ),
    _case(q.peer_exited, [WORDS], "exit-early", "ready.at(cluster.rank ^ 1).arrive()", grid=2),
    _case(q.store_out_of_bounds, [WORDS, 64], "fault", "is outside shared memory", "buffer[tid.x + "),
    _case(q.unwritten_sums, [FLOATS, 64], "uninitialised", "d[tid.x] = acc.regs[0]"),
    _case(q.warps_disagree, [SQUARE, SQUARE], "fault", "scale-d is 0x", "wgmma.mma("),
    _case(q.arrives_too_seldom, [WORDS], "deadlock", "ready: phase 0 lacks 1 of 2 arrivals", "ready.wait(0)"),
    _case(q.counts_one_less, [WORDS], "mbarrier-count", "ready.arrive()", "ready.arrive()"),
    _case(q.alternate_warps, [2], "barrier-count", "bar.sync(1, 64)", "bar.arrive(1, 64)"),
    _case(q.never_initialised, [WORDS], "fault", "is not initialised: run mbarrier.init there", "ready.arrive()"),
    _case(q.peer_as_own, [WORDS], "fault", "reaches the CTA's own: use .shared::cluster", "mbarrier.arrive", grid=2),
    _case(q.bytes_for_the_peer, [BOX], "deadlock", "and has 4,096 bytes too many", "full.wait(0)", grid=2),
    _case(q.misaligned_bytes, [WORDS, 40], "fault", "the size is 40; expected a multiple of 16 bytes", "tma.copy("),
    _case(q.misaligned_box, [TensorMap(BOX, (32, 32))], "fault", "expected a multiple of 128", "tma.load(tile.at("),
    _case(
        q.misaligned_descriptor,
        [SQUARE, SQUARE],
        "fault",
        "with bit 60 set; expected 0 on sm_90a",
        "current().emit(opcode",
    ),
    _case(q.counted_and_read, [WORDS], "race", "red.add(count, 1)", "x[tid.x] = count[0]"),
    _case(q.counted_and_read, [WORDS], "uninitialised", "red.add(count, 1)", zeroed=False, right=True),
    _case(
        q.other_count,
        [WORDS],
        "fault",
        "barrier 1 for 32 threads; others arrived at it for 64",
        "bar.sync(1, 64 if right",
    ),
    _case(
        q.other_number,
        [WORDS],
        "deadlock",
        "barrier 1 (32 of 64 threads have arrived)",
        "bar.sync(1, 64)",
        "bar.sync(1 if right",
    ),
    _case(
        q.divergent_barrier,
        [3],
        "deadlock",
        "cycle: produce → empty → consume → barrier 0 → produce",
        "empty.wait(",
        "bar.sync()",
    ),
    _case(
        q.half_a_cluster,
        [WORDS],
        "deadlock",
        "the barrier of the cluster (96 of 128 threads have",
        "cluster.sync()",
        "bar.sync()",
        grid=2,
    ),
    _case(q.arrives_again, [WORDS], "fault", "arrives again before it has waited", "cluster.arrive()", grid=2),
    _case(
        q.part_of_a_warpgroup,
        [SQUARE, SQUARE],
        "deadlock",
        "warp 3 has issued fewer wgmma than others",
        "wgmma.wait_group(0)",
    ),
    _case(t.tensor_core, [RESULT], "race", "tcgen05.mma(", "tcgen05.ld(acc)", committed=False),
    _case(t.early_stage, [DEEP, WIDE, 4], "race", "tcgen05.mma(", "tma.load(slot."),
    _case(t.tensor_core, [RESULT], "product-lost", "tcgen05.mma(", "tcgen05.mma(", accumulates=False),
    _case(t.tensor_core, [RESULT], "tmem-registers", "tcgen05.ld(acc)", "st(d + tid.x * 64", loaded=False),
    _case(t.tensor_core, [RESULT], "fault", "has relinquished its permit to allocate", "tmem.alloc()", permitted=False),
    _case(
        t.tensor_core,
        [RESULT],
        "fault",
        "exits with 64 columns of tensor memory allocated",
        "tmem.alloc()",
        freed=False,
    ),
    _case(t.tensor_core, [RESULT], "uninitialised", "tcgen05.mma(", starts_at_zero=False),
    _case(kernels.tensor_memory, MATMUL, "tcgen05-fence", "tcgen05.mma(acc", "tcgen05.ld(acc)"),
    _case(t.tensor_core, [RESULT], "race", "tcgen05.mma(", 'space="shared::cta")[tid.x] = 0', ordered=False),
    _case(t.missing_store_wait, [FLOATS], "uninitialised", "tcgen05.ld(acc)", stored=False, right=True),
    _case(t.missing_store_wait, [FLOATS], "race", "tcgen05.st(acc", "tcgen05.ld(acc)"),
    _case(t.a_in_tensor_memory, [FLOATS], "race", "tcgen05.st(left", "tcgen05.mma(acc, left", stored=False),
    _case(t.mixed_shapes, [FLOATS], "race", "tcgen05.mma(sums", "tcgen05.mma(scores"),
    _case(
        t.pair_parts,
        [WORDS],
        "cta-group",
        "tmem.alloc()",
        'current().emit(f"tcgen05.relinquish_alloc_permit',
        grid=2,
        group=1,
    ),
    _case(kernels.half_warp, [WORDS], "inactive-lane", "shfl.down("),
    _case(schedule_kernels.crossed_locks, [WORDS], "lock-order", *["old = atom.cas("] * 4),
    _case(e.stores_at_entry, [WORDS], "cluster-entry", "st(Pointer(", grid=2),
    _case(e.arrives_at_entry, [WORDS], "fault", "of CTA 1 is not initialised", "ready.at(", grid=2),
    _case(e.multicasts_at_entry, [BOX], "cluster-entry", "tma.load(", grid=2),
    _case(e.number_as_parity, [BOX, 3], "mbarrier-parity", "full.wait("),
    _case(e.leaves_a_load, [BOX], "exit-early", "tma.load("),
    _case(e.ends_twice, [WORDS], "mbarrier-live", "ready.inval()"),
    _case(e.others_commit, [FLOATS], "race", "tcgen05.mma(", "tcgen05.ld(acc)"),
    _case(e.refilled_copy, [FLOATS], "race", "tcgen05.cp(", "st(words + tid.x, tid.x)"),
    _case(e.refilled_copy, [FLOATS], "uninitialised", "tcgen05.cp(", written=False, right=True),
)
