"""The four steps of `warpwright flow`, compared with the PTX and with the event stream."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

import warpwright as ww
from warpwright.kernels import memory_flow
from warpwright.report.flow import STEPS, PtxStep, ptx_steps
from warpwright.report.svg import draw
from warpwright.vgpu import Event, EventLog


@pytest.fixture(scope="module")
def events() -> list[Event]:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    log = EventLog()
    arguments = memory_flow.arguments(a, b, np.zeros((128, 128), np.float32))
    ww.launch(memory_flow.memory_flow, 1, args=arguments, observers=[log])
    return log.events


@pytest.fixture(scope="module")
def steps() -> list[PtxStep]:
    return ptx_steps(memory_flow.memory_flow.ptx())


def of(events: list[Event], kind: str, opcode: str) -> list[Event]:
    return [event for event in events if event.kind == kind and event.inst and event.inst.opcode.startswith(opcode)]


def test_the_bytes_of_step_one_are_those_the_barrier_expects(events: list[Event]) -> None:
    (arrival,) = of(events, "arrive", "mbarrier.arrive.expect_tx")
    assert arrival.nbytes == STEPS[0].nbytes == 2 * 128 * 64 * 2


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
    words = [[(line.split()[0].split(".cta_group")[0], times) for line, times in step.lines] for step in steps]
    assert [[(word.split(".shared")[0], times) for word, times in step] for step in words] == [
        [("mbarrier.arrive.expect_tx", 1), ("cp.async.bulk.tensor.2d", 2), ("mbarrier.try_wait.parity", 1)],
        [
            ("tcgen05.mma", 4),
            ("tcgen05.commit", 1),
            ("mbarrier.try_wait.parity", 1),
            ("tcgen05.fence::after_thread_sync;", 1),
        ],
        [("tcgen05.ld.sync.aligned.32x32b.x32.b32", 4), ("tcgen05.wait::ld.sync.aligned;", 1)],
        [
            ("st", 32),
            ("fence.proxy.async", 1),
            ("bar.sync", 1),
            ("cp.async.bulk.tensor.2d.global", 1),
            ("cp.async.bulk.commit_group;", 1),
            ("cp.async.bulk.wait_group", 1),
        ],
    ]


def test_the_drawing_is_well_formed_and_keeps_its_text_inside(steps: list[PtxStep]) -> None:
    tree = ElementTree.fromstring(draw(steps, "Verified: 1 < 2 & 3"))
    width = float(tree.attrib["width"])
    texts = [node for node in tree.iter() if node.tag.endswith("text")]
    assert "Verified: 1 < 2 & 3" in {node.text for node in texts}
    for node in texts:
        if node.get("text-anchor") == "start":
            assert float(node.attrib["x"]) + 6.8 * len(node.text or "") < width, node.text
