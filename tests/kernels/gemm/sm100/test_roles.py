"""GEMM levels 4 to 10: rasterization, overlap of the roles, the epilogue."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.kernels.helpers import SENTINEL, check, delayed, gemm, normal, replaced, without
from tests.lang.ops.emission import instructions, opcodes
from tests.samples import sampled
from warpwright.errors import Deadlock, DeviceError
from warpwright.kernels.gemm.sm100 import IMPROVED, LEVELS, Config, config_of, kernel_of
from warpwright.kernels.gemm.sm100.steps import rasterize, rasterize_pairs
from warpwright.lang import Global, bf16, f16, f32, kernel, smem, st, tid, tma, u32
from warpwright.layout import InstrDescriptor
from warpwright.ptx.ptxas import assemble
from warpwright.run.launch import launch
from warpwright.vgpu import Event, EventLog

UPPER = (4, 5, 6, 7, 8, 9, 10)
ROLES = (6, 7, 8, 9, 10)
DUAL = (7, 8, 9, 10)
LEADER, PEER = 0, 1
SHAPES = [(1, 1), (1, 8), (3, 4), (4, 3), (5, 1), (9, 5)]  # blocks along M and N; the last three were wrong
LOAD, STORE = "cp.async.bulk.tensor.2d.shared::cluster", "cp.async.bulk.tensor.2d.global"
Place = tuple[int, int]


def lines_of(level: int | Config, **changes) -> list[str]:
    return instructions(kernel_of(replace(config_of(level), **changes)).trace().ptx)


def last_operands(lines: list[str], start: str) -> list[str]:
    """The last operands of the instructions that begin with ``start``, without guards."""
    return [line.rsplit(" ", 1)[1] for line in lines if re.sub(r"^@!?%p\d+ ", "", line).startswith(start)]


@cache
def events(level: int | Config, shape: tuple[int, int, int], sms: int) -> tuple[Event, ...]:
    """The events of a launch, cluster by cluster."""
    log, (m, n, k) = EventLog(), shape
    gemm(level, normal(1, m, k), normal(2, n, k), observers=[log], sms=sms)
    return tuple(event for event in log.events if event.inst is not None)


def issued(level: int, shape: tuple[int, int, int], sms: int, opcode: str) -> list[Event]:
    return [e for e in events(level, shape, sms) if e.kind == "issue" and e.inst.opcode.startswith(opcode)]


def size_of(level: int, blocks: Place) -> tuple[int, int, int]:
    """Extents of ``blocks`` tiles of a CTA, the last ones cut off, with one k-block of eight columns."""
    tile_m, tile_n, _ = LEVELS[level].tile
    return blocks[0] * tile_m - 3, blocks[1] * tile_n - 5, 8


# Launch facts.


@pytest.mark.parametrize("level", UPPER)
@sampled(("dtype", "out"), [(bf16, None), (f16, None), (bf16, f32)], every=2)
def test_ptxas_accepts_every_level_without_local_memory(level, dtype, out) -> None:
    result = assemble(kernel_of(LEVELS[level]).trace(dtype=dtype, out=out).ptx, "sm_100a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log


@pytest.mark.parametrize(
    ("level", "smem", "threads", "columns"),
    [
        (4, 197_632, 128, 128),
        (5, 197_632, 128, 128),
        (6, 230_400, 256, 256),
        (7, 197_632, 256, 512),
        (8, 230_400, 256, 256),
        (9, 230_400, 256, 512),
        (10, 230_400, 256, 512),
    ],
)
def test_launch_facts(level, smem, threads, columns) -> None:
    """The published facts; level 9 has 932 bytes more, which align its boxes."""
    config, kernel = LEVELS[level], kernel_of(LEVELS[level]).trace()
    assert (kernel.smem_bytes, kernel.threads, kernel.cluster) == (smem, (threads, 1, 1), (2, 1, 1))
    assert (config.smem_bytes, config.threads, config.tmem_columns) == (smem, threads, columns)
    assert smem <= 232_448
    assert (
        last_operands(lines_of(level), "tcgen05.alloc")
        == last_operands(lines_of(level), "tcgen05.dealloc")
        == [str(columns)]
    )


@pytest.mark.parametrize(("level", "mmas", "n"), [(4, 4, 128), (7, 8, 128), (8, 4, 128), (9, 8, 256)])
def test_mmas_of_a_k_block_cover_the_waves_of_a_tile(level, mmas, n) -> None:
    lines = [line for line in lines_of(level) if line.startswith("tcgen05.mma")]
    idesc = InstrDescriptor("f16", "bf16", "bf16", "f32", 256, n).encode()
    assert len(lines) == mmas and all(f"0x{idesc:08x}" in line for line in lines)
    waves = LEVELS[level].tile[0] // 128
    assert [line.rsplit(", ", 1)[1] for line in lines[waves:]] == ["1"] * (mmas - waves)
    assert all(line.rsplit(", ", 1)[1].startswith("%p") for line in lines[:waves])
    assert len({re.search(r"\[(%r\d+(\+\d+)?)\]", line)[1] for line in lines}) == waves


@pytest.mark.parametrize(("level", "readers"), [(6, 4), (7, 8), (8, 8), (9, 8), (10, 8)])
def test_a_thread_of_each_warp_of_each_storing_cta_arrives_at_acc_empty(level, readers) -> None:
    stages, lines = LEVELS[level].stages, lines_of(level)
    accumulators = LEVELS[level].accumulators * (2 if LEVELS[level].stagger else 1)
    counts = [int(word) for word in last_operands(lines, "mbarrier.init")]
    assert counts == [1] * 2 * stages + [1] * accumulators + [readers] * accumulators
    arrival = max(i for i, line in enumerate(lines) if "mbarrier.arrive.release.cluster.shared::cluster" in line)
    before = [line for line in lines[:arrival] if not line.startswith(("add", "mapa", "mov", "@!", "mad"))]
    assert before[-2:] == ["tcgen05.fence::before_thread_sync", "bar.warp.sync 0xffffffff"]


@pytest.mark.parametrize(("level", "box", "swizzle"), [(6, (128, 128), 0), (7, (128, 128), 0), (8, (128, 64), 128)])
def test_store_boxes(level, box, swizzle) -> None:
    assert kernel_of(LEVELS[level]).trace().maps["d"] == tma.MapUse(box, swizzle, bf16)
    assert kernel_of(LEVELS[level]).trace(out=f32).maps["d"] == tma.MapUse((box[0], box[1] // 2), swizzle, f32)


@pytest.mark.parametrize(("level", "columns"), [(6, 8), (7, 8), (8, 32), (9, 32), (10, 32)])
def test_the_epilogue_loads_packs_and_stores_16_bytes_a_thread(level, columns) -> None:
    codes = opcodes(lines_of(level))
    loads = [code for code in codes if code.startswith("tcgen05.ld")]
    whole = LEVELS[level].tile[0] // 128 * LEVELS[level].tile[1]
    assert loads == [f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32"] * (whole // columns)
    assert codes.count("st.shared.v4.b32") == whole // 8
    assert sum(code.startswith("cvt.rn.bf16x2") for code in codes) == whole // 2


@pytest.mark.parametrize("level", ROLES)
def test_all_writers_fence_before_they_synchronise_and_one_stores(level) -> None:
    """In the other order the async proxy sees the writes of one thread alone."""
    codes = opcodes(lines_of(level))
    barrier = "bar.warp.sync" if LEVELS[level].box[0] == 32 else "bar.sync"
    for index in (i for i, code in enumerate(codes) if code.startswith(STORE)):
        fence = max(i for i, code in enumerate(codes[:index]) if code.startswith("fence.proxy.async"))
        written = max(i for i, code in enumerate(codes[:index]) if code.startswith("st.shared"))
        assert written < fence and barrier in codes[fence:index]


def test_boxes_of_a_warp_need_no_barrier_of_the_cta() -> None:
    assert not any(code.startswith("bar.sync") for code in opcodes(lines_of(10)))
    assert any(code.startswith("bar.sync") for code in opcodes(lines_of(8)))


# Rasterization.


@kernel("sm_100a", threads=128)
def places(d: Global[u32], across: u32, down: u32, *, group: int = 8) -> None:
    row, column = rasterize(tid.x, across, down, group)
    st(d + tid.x * 2, row, column)


@pytest.mark.parametrize("group", [8, 16])
@pytest.mark.parametrize("extents", [(16, 8), (10, 6), (9, 5), (3, 4), (1, 8), (5, 1), (17, 7)])
def test_tiles_are_numbered_down_the_rows_of_a_group(group, extents) -> None:
    across, down = extents
    found = np.zeros((128, 2), np.uint32)
    launch(places.trace(group=group), 1, args=[found, across, down], device="b200")
    order = [
        (row, column)
        for first in range(0, across, group)
        for column in range(down)
        for row in range(first, min(first + group, across))
    ]
    assert [tuple(row) for row in found[: across * down].tolist()] == order


@kernel("sm_100a", threads=128)
def places_of_pairs(d: Global[u32], across: u32, down: u32) -> None:
    row, column = rasterize_pairs(tid.x, across, down, 8)
    st(d + tid.x * 2, row, column)


@pytest.mark.parametrize("extents", [(2, 37), (7, 3), (3, 16), (1, 9)])
def test_few_rows_of_tiles_are_numbered_along_the_columns_of_a_group(extents) -> None:
    """Eight GPCs get pairs in turn, so all pairs of a whole group of columns on a GPC have the same column."""
    across, down = extents
    found = np.zeros((128, 2), np.uint32)
    launch(places_of_pairs.trace(), 1, args=[found, across, down], device="b200")
    order = [
        (row, column)
        for first in range(0, down, 8)
        for row in range(across)
        for column in range(first, min(first + 8, down))
    ]
    assert [tuple(row) for row in found[: across * down].tolist()] == order


def test_eight_rows_of_tiles_are_numbered_down_the_rows() -> None:
    found = np.zeros((128, 2), np.uint32)
    launch(places_of_pairs.trace(), 1, args=[found, 8, 16], device="b200")
    assert found.tolist() == [[i % 8, i // 8] for i in range(128)]


def test_the_published_order_of_groups_of_eight() -> None:
    found = np.zeros((128, 2), np.uint32)
    launch(places.trace(), 1, args=[found, 16, 8], device="b200")
    assert found[[0, 1, 2, 7, 8, 9]].tolist() == [[0, 0], [1, 0], [2, 0], [7, 0], [0, 1], [1, 1]]


@pytest.mark.parametrize(("level", "group"), [(7, 8), (8, 8), (9, 16)])
def test_ctas_take_the_tiles_in_the_published_groups_of_rows(level, group) -> None:
    """Published: CTA i takes tile i, down the rows of a group, so that CTAs 2i and 2i + 1 have the same columns."""
    tile_m, tile_n, _ = LEVELS[level].tile
    columns, loads = 2, {}
    for event in issued(level, size_of(level, (2 * group, columns)), 2 * group * columns, LOAD):
        loads.setdefault(2 * event.cluster + event.cta, []).append(event.op.vector("coords")[1])
    assert sorted(loads) == list(range(2 * group * columns))
    for cta, (row, column, *_) in loads.items():
        above, inside = cta // (group * columns) * group, cta % (group * columns)
        assert (row // tile_m, column // tile_n) == (above + inside % group, inside // group)


@pytest.mark.parametrize("level", ROLES)
@sampled("blocks", SHAPES, every=2)
def test_every_element_of_d_is_stored_once(level, blocks) -> None:
    m, n, k = size_of(level, blocks)
    times = np.zeros((m, n), int)
    rows, columns = kernel_of(LEVELS[level]).trace().maps["d"].box
    for event in issued(level, (m, n, k), 6, STORE):
        column, row = event.op.vector("coords")[:2]
        times[row : row + rows, column : column + columns] += 1
    assert (times == 1).all()


@pytest.mark.parametrize("level", DUAL)
@pytest.mark.parametrize("blocks", SHAPES)
def test_a_pair_has_two_blocks_of_rows_and_the_two_halves_of_one_block_of_b(level, blocks) -> None:
    m, n, k = size_of(level, blocks)
    tile_m, tile_n, _ = LEVELS[level].tile
    loads: dict[tuple[int, int], list[Place]] = {}
    for event in issued(level, (m, n, k), 6, LOAD):
        loads.setdefault((event.cluster, event.cta), []).append(tuple(event.op.vector("coords")[:2]))
    for cluster in {cluster for cluster, _ in loads}:
        leader, peer = loads[cluster, LEADER], loads[cluster, PEER]
        assert [b[1] - a[1] for a, b in zip(leader[::2], peer[::2], strict=True)] == [tile_m] * (len(leader) // 2)
        assert [b[1] - a[1] for a, b in zip(leader[1::2], peer[1::2], strict=True)] == [tile_n // 2] * (len(peer) // 2)
        assert all(row % tile_n == 0 for _, row in leader[1::2])


@pytest.mark.parametrize(("level", "factor"), [(5, 2), (6, 2), (7, 1), (8, 1), (9, 1), (10, 1)])
def test_up_to_level_6_half_of_the_mmas_have_the_same_operands(level, factor) -> None:
    m, n = 2048, 512
    shape = (m, n, 64)
    _, columns, _ = LEVELS[level].tile
    mmas = len(issued(level, shape, 8, "tcgen05.mma"))
    assert mmas * 256 * columns * 16 == factor * m * n * 64
    writers = {event.cta for event in issued(level, shape, 8, STORE)}
    if level >= 6:
        assert writers == ({LEADER} if factor == 2 else {LEADER, PEER})


@pytest.mark.parametrize("level", ROLES)
def test_clusters_without_a_tile_are_not_launched(level) -> None:
    for sms, blocks in ((1, (4, 4)), (2, (4, 4)), (7, (4, 4)), (148, (1, 1))):
        m, n, k = size_of(level, blocks)
        starts = {event.cluster for event in issued(level, (m, n, k), sms, LOAD)}
        assert starts == set(range(len(starts))) and 1 <= len(starts) <= max(1, sms // 2)


# Roles.


def order_of(level: int, opcode: str) -> list[int]:
    """The indices of instructions in the stream of one cluster that computes several tiles of two k-blocks."""
    stream = [e for e in events(level, (2048, 256, 128), 2) if e.kind == "issue" and e.cta == LEADER]
    return [i for i, event in enumerate(stream) if event.inst.opcode.startswith(opcode)]


@pytest.mark.parametrize("level", [6, 7, 8])
def test_mmas_of_the_next_tile_are_issued_before_a_tile_is_stored(level) -> None:
    mmas, stores = order_of(level, "tcgen05.mma"), order_of(level, STORE)
    tile = 2 * 4 * LEVELS[level].tile[0] // 128
    assert len(mmas) >= 4 * tile
    assert mmas[2 * tile - 1] < stores[0]


def test_with_one_accumulator_the_next_mmas_wait_until_it_is_read() -> None:
    mmas, stores = order_of(9, "tcgen05.mma"), order_of(9, STORE)
    assert mmas[15] < stores[0] < mmas[16]


def test_staggered_waves_are_three_k_blocks_apart_at_the_ends_of_a_tile() -> None:
    """Sums of 512 columns: the first wave's are 0 to 255. Four MMAs a k-block and wave, ten k-blocks."""
    found = issued(10, (512, 256, 640), 2, "tcgen05.mma")
    waves = "".join("01"[event.op["d"] % 512 >= 256] for event in found)
    ends, turn = "0000" * 3 + "1111" * 3, "00001111"
    assert waves == ends + turn * 4 + ends


@pytest.mark.parametrize("blocks", range(1, 10))
def test_staggered_waves_with_few_k_blocks(blocks) -> None:
    a, b = normal(blocks, 600, 64 * blocks), normal(9, 300, 64 * blocks)
    check(gemm(10, a, b, sms=2), a, b)


def test_staggered_waves_compute_the_next_tile_while_half_of_this_one_is_unread() -> None:
    log = EventLog()
    a, b = normal(1, 1024, 64), normal(2, 256, 64)
    late = delayed("tcgen05.ld", after="wait_acc_full_1")
    check(gemm(10, a, b, sms=2, change=late, observers=[log]), a, b)
    stream = [e for e in log.events if e.kind == "issue" and e.cta == LEADER]
    mmas = [i for i, event in enumerate(stream) if event.inst.opcode.startswith("tcgen05.mma")]
    second = [
        i for i, e in enumerate(stream) if e.inst.opcode.startswith(STORE) and e.op.vector("coords")[1] % 256 >= 128
    ]
    assert mmas[11] < second[0] < mmas[12]


def test_level_5_improved_continues_its_phases_from_tile_to_tile() -> None:
    shape = (900, 128, 64 * 3)
    waits = [
        e for e in events(IMPROVED[5], shape, 2) if e.kind == "wait" and e.done and e.cta == LEADER and e.warp == 1
    ]
    done = [e.parity for e in waits if e.barrier == waits[-1].barrier and e.lane == 5]
    assert done == [0, 1] * 4
    inits = [e for e in events(IMPROVED[5], shape, 2) if e.inst.opcode.startswith("barrier.cluster")]
    assert len(inits) == 2 * 4 * 3


def test_level_5_begins_with_phase_0_in_each_tile() -> None:
    """Eight tiles, with two cluster barriers each: CTAs × warps × (arrive, wait)."""
    shape = (900, 128, 64 * 3)
    waits = [e for e in events(5, shape, 2) if e.kind == "wait" and e.done and e.cta == LEADER and e.warp == 1]
    done = [e.parity for e in waits if e.barrier == waits[-1].barrier and e.lane == 5]
    assert done == [0] * 8
    barriers = [e for e in events(5, shape, 2) if e.inst.opcode.startswith("barrier.cluster")]
    assert len(barriers) == 2 * 4 * (2 + 2 * 8)


def test_level_5_without_the_first_cluster_barrier_between_tiles_is_wrong_or_deadlocks() -> None:
    """A warp that reads late finds the next tile's sums, or waits at mbarriers that are initialised again."""
    a, b, late = normal(1, 2000, 64), normal(2, 128, 64), delayed("tcgen05.ld", first=96)
    check(gemm(5, a, b, change=late, sms=2), a, b)

    def lone(ptx: str) -> str:
        parts = re.split(r"(\n[^\n]*barrier\.cluster[^\n]*;)", ptx)
        if len(parts) != 2 * 8 + 1:
            pytest.fail("expected four cluster barriers, the second between tiles")
        return "".join(part for at, part in enumerate(parts) if at not in (5, 7))

    with pytest.raises((AssertionError, DeviceError)):
        check(gemm(5, a, b, change=lambda ptx: late(lone(ptx)), sms=2), a, b)


def test_level_5_improved_without_the_barrier_between_tiles_is_wrong_or_deadlocks() -> None:
    """A warp that reads late finds the next tile's sums, or waits for a phase that is over."""
    a, b = normal(1, 2000, 64), normal(2, 128, 64)
    late, lone = delayed("tcgen05.ld", first=96), without(r"bar\.sync 0")
    check(gemm(IMPROVED[5], a, b, change=late, sms=2), a, b)
    with pytest.raises((AssertionError, Deadlock)):
        check(gemm(IMPROVED[5], a, b, change=lambda ptx: late(lone(ptx)), sms=2), a, b)


@sampled("level", [6, 7, 8], every=2)
def test_mmas_that_do_not_wait_for_acc_empty_are_wrong_or_lap_the_epilogue(level) -> None:
    """With the wait, even a late epilogue reads its sums before they are overwritten."""
    late, hasty = delayed("tcgen05.ld"), replaced(r"(wait_acc_empty_0:\n)[^;]*mbarrier\.try_wait[^;]*;[^;]*;", r"\1")
    a, b = normal(1, 2500, 64), normal(2, 256, 64)
    check(gemm(level, a, b, sms=2, change=late), a, b)
    with pytest.raises((AssertionError, Deadlock)):
        check(gemm(level, a, b, sms=2, change=lambda ptx: late(hasty(ptx))), a, b)


def test_one_thread_that_arrives_for_the_whole_epilogue_lets_a_late_warps_sums_be_overwritten() -> None:
    """Level 8 as published: thread 0 arrives after its own fence, while other warps still read."""
    alone = (
        r"{ .reg .pred %first; .reg .b32 %me; mov.u32 %me, %tid.x; setp.lt.and.u32 %first, %me, 160, \1; "
        r"@%first mbarrier.arrive\2; }"
    )
    fewer = replaced(r"(mbarrier\.init\.shared::cta\.b64 \S+), 8;", r"\1, 2;", 2)
    one = replaced(r"@(%p\d+) mbarrier\.arrive(\.release\.cluster\.shared::cluster[^;]*);", alone)
    late = delayed("tcgen05.ld", first=160, last=True)
    a, b = normal(1, 2500, 64), normal(2, 256, 64)
    check(gemm(8, a, b, sms=2, change=late), a, b)
    check(gemm(8, a, b, sms=2, change=lambda ptx: one(fewer(ptx))), a, b)
    with pytest.raises(AssertionError):
        check(gemm(8, a, b, sms=2, change=lambda ptx: late(one(fewer(ptx)))), a, b)


@pytest.mark.parametrize("level", DUAL)
def test_without_the_epilogues_arrivals_the_mma_role_deadlocks(level) -> None:
    a, b = normal(1, 4000, 64), normal(2, 256, 64)
    unsaid = without(r"mbarrier\.arrive\.release\.cluster\.shared::cluster", 2 if LEVELS[level].stagger else 1)
    with pytest.raises(Deadlock, match="mbarrier"):
        gemm(level, a, b, sms=2, change=unsaid)


def test_without_the_wait_for_its_store_a_block_is_overwritten() -> None:
    """Without the wait D gets the bytes of another box."""
    a, b = normal(1, 700, 64), normal(2, 256, 64)
    unwaited = replaced(r"cp\.async\.bulk\.wait_group\.read 1", "cp.async.bulk.wait_group.read 9", 2)
    with pytest.raises(AssertionError):
        check(gemm(8, a, b, sms=2, change=unwaited), a, b)


@pytest.mark.parametrize("level", ROLES)
def test_a_tile_over_the_edge_writes_nothing_outside_d(level) -> None:
    a, b = normal(1, 130, 72), normal(2, 8, 72)
    d = gemm(level, a, b, spare_rows=500)
    check(d, a, b)
    assert (d[130:].astype(np.float32) == SENTINEL).all()


# The epilogue's blocks in shared memory.


@kernel("sm_100a", threads=32)
def addresses(d: Global[u32], *, columns: int = 64, swizzle: int = 128, column: int = 0) -> None:
    tile = smem.tile(bf16, (128, columns), swizzle=swizzle)
    st(d + tid.x, tile.at(tid.x, column).address)


def wavefronts(columns: int, swizzle: int, column: int) -> int:
    """Wavefronts of one 16-byte store of each lane of a warp."""
    found = np.zeros(32, np.uint32)
    launch(addresses.trace(columns=columns, swizzle=swizzle, column=column), 1, args=[found], device="b200")
    banks = Counter(bank % 32 for address in found.tolist() for bank in range(address // 4, address // 4 + 4))
    return max(banks.values())


@pytest.mark.parametrize("column", range(0, 64, 8))
def test_stores_into_swizzled_boxes_use_all_banks_evenly(column) -> None:
    assert wavefronts(64, 128, column) == 4
    assert wavefronts(128, 0, column) == 32


def test_level_4_stores_whole_rows_side_by_side() -> None:
    lines = lines_of(4)
    stores = [line for line in lines if "st.global" in line]
    assert len(stores) == 1 and re.match(r"@%p\d+ st\.global\.v2\.b32 ", stores[0])
    assert sum("ld.shared.v2.b32" in line for line in lines) == 1
    assert "mul.lo.u32" not in stores[0]
    spread = [line for line in lines if line.startswith(("shl.b32", "mul.lo.u32")) and line.endswith((", 2", ", 4"))]
    assert spread  # a lane's column is four times its number


@pytest.mark.parametrize(
    ("config", "loads", "stores", "words"), [(LEVELS[4], 32, 32, 2), (LEVELS[5], 32, 32, 2), (IMPROVED[4], 4, 16, 4)]
)
def test_rows_reach_shared_memory_four_columns_at_a_time_as_published(config, loads, stores, words) -> None:
    lines = lines_of(config)
    columns = 128 // loads
    assert sum(f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32" in line for line in lines) == loads
    assert sum(f"st.shared.v{words}.b32" in line for line in lines) == stores


def test_the_published_rows_are_stored_after_all_four_warps_staged_theirs() -> None:
    (row,) = [number for number, line in enumerate(lines_of(4)) if "ld.shared.v2.b32" in line]
    assert [number < row for number, line in enumerate(lines_of(4)) if line.startswith("bar.sync")] == [True]
    assert not [line for line in lines_of(IMPROVED[4]) if line.startswith("bar.sync")]
