"""Switches of levels 6 to 10: merged stages, multicast, throttle, stores, scheduler."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.helpers import BF16, SENTINEL, check, gemm, normal
from tests.lang.ops.emission import instructions, opcodes
from tests.samples import sampled
from warpwright.kernels.gemm.sm100 import LEVELS, SMALLER, Config, kernel_of, plan_gemm
from warpwright.ptx.ptxas import assemble
from warpwright.vgpu import Event, EventLog


def fields(config: Config) -> dict[str, Any]:
    return {field: getattr(config, field) for field in ("tile", "stages", "stagger", "accumulators", "boxes")}


THREE_BOXES = {"tile": (128, 192, 64), "stagger": 0, "accumulators": 2}
SWITCHES: dict[str, tuple[int, dict[str, Any]]] = {
    "merged stages": (8, {"merge": 2}),
    "multicast of B": (8, {"share": (2, 1)}),
    "multicast of A": (10, {"share": (1, 2)}),
    "multicast of both": (8, {"share": (2, 2)}),
    "throttle": (8, {"throttle": 90}),
    "one store block": (8, {"boxes": 1}),
    "plain store blocks": (8, {"swizzle": 0}),
    "late release": (8, {"early": False}),
    "launch control": (10, {"scheduler": "clc"}),
    "launch control, one tile a pair": (6, {"scheduler": "clc"}),
    "launch control and multicast": (7, {"scheduler": "clc", "share": (2, 1)}),
    **{f"tiles of {each.tile[0]} × {each.tile[1]}": (10, fields(each)) for each in SMALLER},
    "three boxes, two blocks": (10, THREE_BOXES),
}


def lines_of(level: int, **changes: Any) -> list[str]:
    return instructions(kernel_of(replace(LEVELS[level], **changes)).trace().ptx)


def events(level: int, shape: tuple[int, int, int], sms: int = 148, **changes: Any) -> list[Event]:
    log, (m, n, k) = EventLog(), shape
    gemm(level, normal(1, m, k), normal(2, n, k), observers=[log], sms=sms, **changes)
    return log.events


def some(found: list[Event], kind: str, opcode: str) -> list[Event]:
    return [event for event in found if event.kind == kind and event.inst and event.inst.opcode.startswith(opcode)]


@sampled("name", SWITCHES, every=2)
@sampled(("shape", "sms"), [((129, 257, 72), 148), ((1290, 700, 328), 8), ((1, 1, 8), 148)], every=2)
def test_numbers(name, shape, sms) -> None:
    level, changes = SWITCHES[name]
    m, n, k = shape
    a, b = normal(1, m, k), normal(2, n, k)
    d = gemm(level, a, b, spare_rows=3, sms=sms, **changes)
    check(d, a, b)
    assert (d[m:].astype(np.float32) == SENTINEL).all()


@pytest.mark.parametrize("name", SWITCHES)
def test_ptxas_accepts_it_without_local_memory(name) -> None:
    level, changes = SWITCHES[name]
    config = replace(LEVELS[level], **changes)
    traced = kernel_of(config).trace()
    result = assemble(traced.ptx, "sm_100a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert traced.cluster == (config.cluster, 1, 1)
    clc = 1024 if config.scheduler == "clc" else 0  # a tile for the responses
    assert config.smem_bytes <= traced.smem_bytes <= config.smem_bytes + clc <= 232_448


def test_plans_know_the_boxes_of_shared_operands() -> None:
    found = plan_gemm(replace(LEVELS[10], share=(2, 2)), 2000, 1000, 64)
    traced = kernel_of(replace(LEVELS[10], share=(2, 2))).trace()
    assert (found.a_box, found.b_box) == ((128, 64), (64, 64)) == (traced.maps["a"].box, traced.maps["b"].box)
    assert (found.cluster, found.grid, found.scalars) == ((8, 1, 1), (32, 1, 1), (2, 2, 1))


# Merged stages.


def test_merged_stages_have_half_the_barriers_commits_and_arrivals_with_twice_the_bytes() -> None:
    shape, both = (256, 128, 64 * 8), []
    for merge in (1, 2):
        found = events(8, shape, merge=merge)
        commits = some(found, "arrive", "tcgen05.commit")
        expected = {event.nbytes for event in some(found, "arrive", "mbarrier.arrive.expect_tx")}
        both.append((len(commits), len({e.barrier.offset for e in commits}), expected))
    assert both == [(2 * (8 + 1), 8 + 1, {2 * 24_576}), (2 * (4 + 1), 4 + 1, {2 * 49_152})]


def test_merged_stages_take_the_same_memory_and_mmas() -> None:
    assert kernel_of(replace(LEVELS[8], merge=2)).trace().smem_bytes == LEVELS[8].smem_bytes
    assert sum(line.startswith("tcgen05.mma") for line in lines_of(8, merge=2)) == 8


# Multicast.


@pytest.mark.parametrize(
    ("share", "a_bytes", "b_bytes"),
    [((1, 1), 16_384, 8_192), ((2, 1), 16_384, 4_096), ((1, 2), 8_192, 8_192), ((2, 2), 8_192, 4_096)],
)
def test_bytes_that_a_cta_loads_for_a_k_block(share, a_bytes, b_bytes) -> None:
    """Every CTA receives the same bytes; pairs that share an operand load a part of it each."""
    found = plan_gemm(replace(LEVELS[8], share=share), 512, 256, 64)
    assert (found.a_box[0] * found.a_box[1] * 2, found.b_box[0] * found.b_box[1] * 2) == (a_bytes, b_bytes)
    seen = events(8, (512, 256, 64), share=share)
    loads = some(seen, "issue", "cp.async.bulk.tensor.2d.shared::cluster")
    assert len(loads) == 2 * 8
    received = sum(event.nbytes for event in some(seen, "complete_tx", "cp.async.bulk.tensor.2d.shared"))
    asked = len(loads) // 2 * (a_bytes + b_bytes)
    assert received == 8 * (16_384 + 8_192)
    assert (asked == received) == (share == (1, 1))


def test_without_pairs_that_share_nothing_is_multicast() -> None:
    assert not any("multicast" in line for line in lines_of(8) if line.startswith("cp.async"))
    loads = [line for line in lines_of(8, share=(2, 1)) if line.startswith("cp.async.bulk.tensor.2d.shared::cluster")]
    assert [".multicast::cluster.cta_group::2" in line for line in loads] == [False, True]


def test_a_slot_is_empty_when_all_pairs_that_receive_it_have_read_it() -> None:
    lines = lines_of(8, share=(2, 1))
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("mbarrier.init")]
    assert counts[:16] == [1] * 8 + [2] * 8
    masks = {line.split()[1].rstrip(","): line.split()[-1] for line in lines if line.startswith("mov.b16")}
    commits = [line.split()[-1] for line in lines if line.startswith("tcgen05.commit")]
    assert masks[commits[0]] == "15"


# Throttle.


def test_without_a_throttle_no_clock_is_read() -> None:
    assert all(level.throttle == 100 for level in LEVELS.values())
    assert not any("clock" in line for line in lines_of(8))
    assert sum("%clock64" in line for line in lines_of(8, throttle=90)) == 2


def test_the_throttle_waits_for_the_mmas_before_it_idles() -> None:
    lines = lines_of(8, throttle=90)
    wait = lines.index("wait_throttle_0:")
    assert lines[wait - 1].startswith("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64")
    assert "%clock64" in next(line for line in lines[wait:] if "clock" in line)


@pytest.mark.parametrize(("percent", "cycles"), [(90, 28), (50, 256), (25, 768)])
def test_the_throttle_idles_for_the_rest_of_the_time(percent, cycles) -> None:
    """A k-block of 128 × 128 × 64 in each CTA takes 256 cycles of its tensor core."""
    limits = [line.rsplit(" ", 1)[1] for line in lines_of(8, throttle=percent) if line.startswith("setp.ge.u64")]
    assert limits == [str(cycles)]


# Stores.


def test_with_two_blocks_one_is_filled_while_tma_reads_the_other() -> None:
    waits = [line for line in lines_of(8) if "wait_group.read" in line]
    alone = [line for line in lines_of(8, boxes=1) if "wait_group.read" in line]
    assert [line[-1] for line in waits] == ["1", "1", "0"]
    assert [line[-1] for line in alone] == ["0", "0", "0"]


def test_an_odd_number_of_boxes_waits_for_all_older_stores() -> None:
    """Three boxes and two blocks: the next tile begins with the block that this tile ended with."""
    waits = [line[-1] for line in lines_of(10, **THREE_BOXES) if "wait_group.read" in line]
    assert waits == ["0"] * 4


def test_early_release_is_before_the_last_box_is_stored() -> None:
    def last(lines: list[str], opcode: str) -> int:
        return max(i for i, code in enumerate(opcodes(lines)) if code.startswith(opcode))

    early, late = lines_of(8), lines_of(8, early=False)
    store, arrival = "cp.async.bulk.tensor.2d.global", "mbarrier.arrive.release"
    assert last(early, arrival) < last(early, store)
    assert last(late, arrival) > last(late, store)


# Cluster launch control.


def test_running_clusters_take_over_the_tiles_of_those_that_have_not_started() -> None:
    m, n, sms = 2560, 768, 8
    found = events(10, (m, n, 64), sms, scheduler="clc")
    assert {event.cluster for event in found if event.kind == "start"} == set(range(sms // 2))
    stores = some(found, "issue", "cp.async.bulk.tensor.2d.global")
    times = np.zeros((m, n), int)
    for event in stores:
        column, row = event.op.vector("coords")[:2]
        times[row : row + 32, column : column + 64] += 1
    assert (times == 1).all()


def test_both_schedulers_give_the_same_bits() -> None:
    """For whole numbers, whose sums are exact in any order."""
    random = np.random.default_rng(3)
    a, b = (random.integers(-3, 4, (rows, 200)).astype(BF16) for rows in (1290, 700))
    static, dynamic = (gemm(10, a, b, np.float32, sms=6, scheduler=scheduler) for scheduler in ("static", "clc"))
    assert np.array_equal(static, dynamic)


def test_one_warp_of_a_cluster_cancels_and_every_reader_of_every_cta_arrives() -> None:
    lines = lines_of(10, scheduler="clc", share=(2, 1))
    requests = [line for line in lines if line.startswith("clusterlaunchcontrol.try_cancel")]
    assert len(requests) == 1 and ".multicast::cluster::all." in requests[0]
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("mbarrier.init")]
    assert counts[-4:] == [1, 1, 22, 22]  # four load warps, two mma warps, four warps of four epilogues
    queries = [line for line in lines if "query_cancel.is_canceled" in line]
    assert len(queries) == 4


def test_the_response_is_read_before_it_may_be_overwritten() -> None:
    """The reader's fence orders its read before the next asynchronous write."""
    lines = lines_of(10, scheduler="clc")
    reads = [i for i, line in enumerate(lines) if line.startswith("ld.shared.b128")]
    for read in reads:
        assert any(line.startswith("fence.proxy.async") for line in lines[read : read + 3])
    assert len(reads) == 4 and all(re.match(r"ld\.shared\.b128 %rq\d+, \[%r\d+\+\d+\]", lines[read]) for read in reads)
