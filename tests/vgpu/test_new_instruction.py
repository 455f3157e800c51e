"""A toy instruction, added through the files that docs/map.md names, on the virtual GPU: run, checked and timed.

``toy.async.fill [dst_mem], value, size, [mbar]`` fills shared memory with a word and counts the bytes at an mbarrier.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text
from warpwright import isa
from warpwright.isa.notation import forms
from warpwright.run.launch import Entry
from warpwright.vgpu.checks.knowledge import MEANINGS as CHECKS
from warpwright.vgpu.checks.meanings import copies
from warpwright.vgpu.engines import copy
from warpwright.vgpu.engines.op import Fabric
from warpwright.vgpu.engines.place import barrier, locate
from warpwright.vgpu.jit import issue
from warpwright.vgpu.jit.lanes import MEANINGS
from warpwright.vgpu.program.operation import Op
from warpwright.vgpu.timing import steps

# 1. isa/async_.py: the form, its operands by name, its traits
(FILL,) = forms(
    "one thread",
    "mbarrier complete_tx",
    """
toy.async.fill  0  Fill shared memory with a word and tell an mbarrier. [copy async]
    toy.async.fill.dst=shared::cluster.mbarrier::complete_tx::bytes   [dst_mem], value:u32, size:u32, [mbar]
""",
)


def fill(fabric: Fabric, op: Op) -> None:
    """3. engines/copy.py: data first, then the bytes."""
    rank, offset = locate(fabric, op, op["dst_mem"], "destination")
    fabric.shared[rank, offset : offset + op["size"]].view(np.uint32)[:] = op["value"]
    mbar_rank, mbar = barrier(fabric, op, op["mbar"])
    fabric.complete_tx(op, mbar_rank, mbar, op["size"])


def cost(reader: Any, op: Op) -> steps.Steps:
    """5. timing/steps.py: as fast as a copy from another CTA."""
    box = steps.Box(reader.traffic(0, False), op.rank, op["size"], 1)
    box.targets = ((op.rank, op["dst_mem"] & 0xFFFFFF, op["mbar"] & 0xFFFFFF),)
    return [{"kind": "send", "what": box}]


@pytest.fixture(autouse=True)
def entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(isa.FORMS, FILL.name, FILL)
    monkeypatch.setitem(MEANINGS, FILL.name, issue.issue)  # 2. jit/issue.py: the code of every form of the copy queue
    monkeypatch.setitem(copy.ENGINES, FILL.name, fill)
    monkeypatch.setitem(CHECKS, FILL.name, copies.copy)  # 4. checks/meanings/copies.py
    monkeypatch.setitem(steps.RECORDS, FILL.name, cost)
    steps.TRAFFIC.add(FILL.name)
    yield
    steps.TRAFFIC.discard(FILL.name)


BODY = """
  setp.ne.u32 %p0, %lane, 0;
  @!%p0 mbarrier.init.shared.b64 [full], 1; @!%p0 fence.mbarrier_init.release.cluster;
  @!%p0 fence.proxy.async; bar.sync 0;
  @%p0 bra wait;
  mbarrier.arrive.expect_tx.shared.b64 _, [full], 128;
  toy.async.fill.shared::cluster.mbarrier::complete_tx::bytes [data], 7, 128, [full];
wait:
  mbarrier.try_wait.parity.shared.b64 %p1, [full], 0; @!%p1 bra wait;
  mul.lo.u32 %r3, %lane, 4; mov.u32 %r4, data; add.u32 %r4, %r4, %r3; ld.shared.u32 %r5, [%r4];
  st.global.u32 [%o], %r5; ret;
"""
TOP = ".shared .align 128 .b8 data[32768]; .shared .align 8 .b64 full;"


def launch(folder: Path, body: str = BODY) -> tuple[Entry, np.ndarray]:
    out, path = np.zeros(32, np.uint32), folder / "k.ptx"
    path.write_text(text(body, (out,), top=TOP))
    return ww.load_ptx(path)["k"], out


def test_the_toy_instruction_runs(tmp_path: Path) -> None:
    entry, out = launch(tmp_path)
    ww.launch(entry, 1, 32, args=(out,), device="b200")
    assert (out == 7).all()


def test_the_toy_instruction_is_checked(tmp_path: Path) -> None:
    entry, out = launch(tmp_path)
    assert ww.check(entry, 1, 32, args=(out,), device="b200").findings == ()
    hasty, out = launch(tmp_path, BODY.replace("@!%p1 bra wait;", ""))
    race, leaves = ww.check(hasty, 1, 32, args=(out,), device="b200").findings
    assert (race.rule.id, leaves.rule.id) == ("race", "exit-early")
    assert "toy.async.fill" in str(race) and "toy.async.fill" in str(leaves)


def test_the_toy_instruction_is_timed(tmp_path: Path) -> None:
    """The threads wait for the bytes, so more of them take longer."""
    cycles = []
    for size in ("128", "32768"):
        entry, out = launch(tmp_path, BODY.replace("128", size))
        cycles.append(ww.profile(entry, 1, 32, args=(out,), device="b200").cycles)
    assert cycles[0] < cycles[1]
