"""The steps of `warpwright flow`, compared with the PTX, with the event stream and with the timing model."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields, replace
from itertools import accumulate
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import warpwright as ww
from warpwright.kernels import memory_flow
from warpwright.report.flow import STEPS, PtxStep, ptx_steps
from warpwright.report.flow_table import access_rows, amount, step_constants, step_times, time_rows
from warpwright.report.svg import draw
from warpwright.run.arguments import pass_arguments
from warpwright.run.launch import prepare_launch
from warpwright.targets import device, timing_of
from warpwright.vgpu import Event, EventLog
from warpwright.vgpu.timing import Profile
from warpwright.vgpu.timing.capture import Capture
from warpwright.vgpu.timing.device import profile_of
from warpwright.vgpu.timing.places import choose_clusters


@pytest.fixture(scope="module")
def events() -> list[Event]:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    log = EventLog()
    arguments = memory_flow.arguments(a, b, np.zeros((128, 128), np.float32))
    ww.launch(memory_flow.memory_flow, 1, args=arguments, observers=[log])
    return log.events


@pytest.fixture(scope="module")
def capture() -> Capture:
    a, d = np.zeros((128, 64), np.float16), np.zeros((128, 128), np.float32)
    capture = Capture(timing_of("b200"), choose_clusters)
    entry, shape, args = prepare_launch(memory_flow.memory_flow, 1, None, None, memory_flow.arguments(a, a, d))
    with pass_arguments(entry.name, entry.function.params, args) as passed:
        where = shape["grid"], shape["block"], shape["cluster"]
        how = {"smem": entry.smem, "args": passed, "numerics": "none", "listener": capture}
        ww.device("b200").launch(entry.module, entry.name, *where, **how)
    return capture


@pytest.fixture(scope="module")
def predicted(capture: Capture) -> Profile:
    return profile_of(capture, fast=True)


@pytest.fixture(scope="module")
def steps() -> list[PtxStep]:
    return ptx_steps(memory_flow.memory_flow.ptx())


def of(events: list[Event], kind: str, opcode: str) -> list[Event]:
    return [event for event in events if event.kind == kind and event.inst and event.inst.opcode.startswith(opcode)]


def test_the_bytes_of_step_one_are_those_the_barrier_expects(events: list[Event]) -> None:
    (arrival,) = of(events, "arrive", "mbarrier.arrive.expect_tx")
    assert arrival.nbytes == STEPS[1].nbytes == 2 * 128 * 64 * 2


def test_one_thread_issues_and_all_wait(events: list[Event]) -> None:
    for opcode in ("cp.async.bulk.tensor", "tcgen05.mma", "tcgen05.commit"):
        assert len({(event.warp, event.lane) for event in of(events, "issue", opcode)}) == 1
    waits = Counter(event.barrier for event in of(events, "wait", "mbarrier.try_wait") if event.done)
    assert list(waits.values()) == [128, 128]


def test_the_first_mma_completes_after_the_last_was_issued(events: list[Event]) -> None:
    issued = events.index(of(events, "issue", "tcgen05.mma")[-1])
    completed = events.index(of(events, "complete", "tcgen05.mma")[0])
    assert issued < completed


def test_each_step_shows_its_instructions_in_order_and_how_often(steps: list[PtxStep]) -> None:
    shown = {
        each.step.number: [(re.split(r"[.]cta_group|[.]shared|;", line.opcode)[0], line.times) for line in each.lines]
        for each in steps
    }
    assert shown == {
        "0": [
            ("elect.sync", 1),
            ("mbarrier.init", 1),
            ("mbarrier.init", 1),
            ("fence.mbarrier_init.release.cluster", 1),
            ("tcgen05.alloc", 1),
            ("tcgen05.relinquish_alloc_permit", 1),
            ("tcgen05.fence::before_thread_sync", 1),
            ("bar.sync", 1),
            ("tcgen05.fence::after_thread_sync", 1),
            ("ld", 1),
        ],
        "1": [
            ("elect.sync", 1),
            ("mbarrier.arrive.expect_tx", 1),
            ("cp.async.bulk.tensor.2d", 1),
            ("cp.async.bulk.tensor.2d", 1),
            ("mbarrier.try_wait.parity", 1),
        ],
        "2": [
            ("elect.sync", 1),
            ("tcgen05.mma", 1),
            ("tcgen05.mma", 3),
            ("tcgen05.commit", 1),
            ("mbarrier.try_wait.parity", 1),
            ("tcgen05.fence::after_thread_sync", 1),
        ],
        "3": [("tcgen05.ld.sync.aligned.32x32b.x32.b32", 4), ("tcgen05.wait::ld.sync.aligned", 1)],
        "4a": [
            ("st", 32),
            ("fence.proxy.async", 1),
            ("tcgen05.fence::before_thread_sync", 1),
            ("bar.sync", 1),
        ],
        "4b": [
            ("elect.sync", 1),
            ("cp.async.bulk.tensor.2d.global", 1),
            ("cp.async.bulk.commit_group", 1),
            ("cp.async.bulk.wait_group", 1),
        ],
        "5": [("tcgen05.dealloc", 1)],
    }


def test_the_first_mma_overwrites_and_the_other_three_accumulate(steps: list[PtxStep]) -> None:
    mma = [line for line in steps[2].lines if line.opcode.startswith("tcgen05.mma")]
    assert [(line.times, line.immediates[-1]) for line in mma] == [(1, "0"), (3, "1")]


def test_every_instruction_has_its_python_line(steps: list[PtxStep]) -> None:
    source = Path(memory_flow.__file__).read_text(encoding="utf-8").splitlines()
    for line in (line for each in steps for line in each.lines):
        assert (line.file, line.python) == (memory_flow.__file__, source[line.row - 1].strip())
    lines = {line.python: line.text for each in steps for line in each.lines}
    assert lines["loaded.arrive_expect_tx(a_tile.nbytes + b_tile.nbytes)"].endswith(", 32768;")
    assert lines["tma.store(d[0, 0], d_tile)"].startswith("cp.async.bulk.tensor.2d.global.shared::cta")
    assert lines["tmem.dealloc()"].startswith("tcgen05.dealloc")


def test_a_python_line_that_cannot_be_read_is_empty() -> None:
    (line,) = {line.python for each in ptx_steps(elsewhere(memory_flow.memory_flow.ptx())) for line in each.lines}
    assert line == ""


def elsewhere(ptx: str) -> str:
    return ptx.replace(memory_flow.__file__, "/nowhere/memory_flow.py")


def test_the_steps_follow_one_another_until_d_is_stored(steps: list[PtxStep], predicted: Profile) -> None:
    times = step_times(steps, predicted)
    assert [time.step.number for time in times] == ["0", "1", "2", "3", "4a", "4b"]
    copies = [span for span in predicted.spans if span.track == "TMA"]
    ends = list(accumulate(time.cycles for time in times))
    assert max(span.end for span in copies if span.name == "load") < ends[1] < ends[1] + 20
    assert ends[5] == max(span.end for span in copies if span.name == "store")
    multiplied = max(span.end for span in predicted.spans if span.track == "tensor core")
    assert ends[1] < multiplied < ends[2]
    assert sum(time.time_us for time in times) < predicted.time_us - predicted.launch_us


def test_cycles_bytes_and_rates_of_each_step(steps: list[PtxStep], predicted: Profile) -> None:
    times = {time.step.number: time for time in step_times(steps, predicted)}
    timing = timing_of("b200")
    port = 4 * 32 * 32 * 128 / timing.shared_bytes
    assert times["4a"].cycles == pytest.approx(port, rel=0.01), "32 wavefronts a store: every lane meets one bank"
    mma = 4 * 128 * 128 * 16 * 2 / timing.mma_flops
    others = 60  # of the instructions that elect, issue and wait
    assert times["2"].cycles == pytest.approx(mma + timing.mma_latency + timing.commit + others, rel=0.05)
    store = 65_536 / timing.tma_store_bytes + timing.tma_store
    assert times["4b"].cycles == pytest.approx(store, rel=0.05)
    load = times["3"]
    assert load.bytes_per_cycle == 65_536 / load.cycles < 4 * timing.tmem_bytes
    assert load.gb_s == pytest.approx(load.bytes_per_cycle * predicted.clock_mhz / 1e3)
    assert times["1"].issues == pytest.approx(81 / times["1"].cycles), "the thread that issues both copies"
    assert all(0.01 < time.issues < 0.2 for time in times.values())


def test_a_step_names_the_constants_that_change_its_cycles(steps: list[PtxStep], capture: Capture) -> None:
    """Constants of the clock are left out: they change the cycles of device memory, in every step that uses it."""
    timing, clock = capture.timing, ("tensor_mhz", "droop_top", "droop")
    before = [time.cycles for time in step_times(steps, profile_of(capture, fast=True))]
    found: dict[str, set[str]] = {step.number: set() for step in STEPS}
    for name in (each.name for each in fields(timing) if each.type == "float" and each.name not in clock):
        capture.timing = replace(timing, **{name: getattr(timing, name) / 2})
        after = step_times(steps, profile_of(capture, fast=True))
        for cycles, time in zip(before, after, strict=True):
            if abs(time.cycles - cycles) >= 0.03 * cycles:
                found[time.step.number].add(name)
    capture.timing = timing
    assert found == {step.number: set(step.costs) for step in STEPS}


def test_the_tables_have_the_figures_of_the_write_up(steps: list[PtxStep], predicted: Profile) -> None:
    times = step_times(steps, predicted)
    rows = time_rows(times, predicted)
    assert [row["write-up µs"] for row in rows] == ["", "10", "2", "0.5", "1", "10", "", "23.5"]
    assert [row["write-up GB/s"] for row in rows] == ["", "3.2", "", "128", "64", "6.4", "", ""]
    assert [row["bytes"] for row in rows] == [0, 32_768, 65_536, 65_536, 65_536, 65_536, "", ""]
    assert sum(row["cycles"] for row in rows[:-1]) == pytest.approx(rows[-1]["cycles"], abs=4)
    assert sum(row["µs"] for row in rows[:-1]) == pytest.approx(rows[-1]["µs"], abs=0.04)
    assert (rows[-1]["cycles"], rows[-1]["µs"]) == (round(predicted.cycles), round(predicted.time_us, 2))
    accesses = access_rows(times, "b200")
    assert [row["write-up cycles"] for row in accesses] == ["1", "300-500", "pipelined", "5-10", "20-30", "300-500"]
    assert [row["write-up TB/s"] for row in accesses] == ["", "4-8", "19", "10", "2-4; 19", "4-8"]


def test_the_bandwidth_of_all_sms_and_where_it_comes_from(steps: list[PtxStep], predicted: Profile) -> None:
    rows = {row["access"]: row for row in access_rows(step_times(steps, predicted), "b200")}
    spec, timing = device("b200"), timing_of("b200")
    assert rows["1 shared"]["TB/s"] == 6.7 == round(spec.hbm_gbps * timing.hbm_share / 1e3, 1)
    assert rows["4a shared"]["TB/s"] == 37.2 == round(128 * 148 * 1.965 / 1e3, 1)
    assert rows["3 registers"]["TB/s"] == 74.4 == round(4 * 64 * 148 * 1.965 / 1e3, 1)
    assert rows["4b global"]["TB/s"] == round(timing.tma_store_bytes * 148 * 1.965 / 1e3, 1)
    assert rows["registers"]["cycles"] == 4 and rows["registers"]["cycles from"] == "assumed"
    assert (rows["3 registers"]["cycles from"], rows["4b global"]["TB/s from"]) == ("published", "assumed")


def test_every_constant_has_its_value_and_its_source() -> None:
    for step in STEPS:
        for each in step_constants(step, "gb200"):
            timing = timing_of("gb200")
            assert (each.value, each.source) == (getattr(timing, each.name), timing.source[each.name])
            assert each.status in ("measured", "published", "assumed")
    assert [each.name for each in step_constants(STEPS[5], "b200")] == ["tma_store_bytes", "tma_store"]


def test_the_drawing_is_well_formed_and_keeps_its_text_inside(steps: list[PtxStep], predicted: Profile) -> None:
    tree = ElementTree.fromstring(draw(steps, step_times(steps, predicted), "b200", "Verified: 1 < 2 & 3"))
    width = float(tree.attrib["width"])
    texts = [node for node in tree.iter() if node.tag.endswith("text")]
    shown = [node.text for node in texts]
    assert "Verified: 1 < 2 & 3" in shown
    assert [text for text in shown if text in ("1", "2", "3", "4a", "4b")] == ["1", "2", "3", "4a", "4b"]
    assert [text.rsplit(", ", 1)[1] for text in shown if text.startswith("tcgen05.mma")] == ["0;", "1;"]
    assert {"3 ×", "memory_flow.py:73"} <= set(shown)
    (load,) = (text for text in shown if text.startswith("32,768 bytes in "))
    assert load == amount(step_times(steps, predicted)[1])
    for node in texts:
        if node.get("text-anchor") == "start":
            assert float(node.attrib["x"]) + 6.8 * len(node.text or "") < width, node.text
