"""An instruction that no thread executes makes a verdict incomplete: after a branch, or under a guard that never
holds. A branch or a guard that went one way only is told, with what decides it."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from warpwright.lang import (
    Break,
    Global,
    If,
    b128,
    clusterlaunchcontrol,
    ctaid,
    elect_one,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    red,
    smem,
    tid,
    u32,
    var,
    warp,
)
from warpwright.report.findings import shorten_paths
from warpwright.report.sarif import sarif_of
from warpwright.run.check import check, merge_verdicts
from warpwright.run.launch import load_ptx
from warpwright.targets import DEVICES
from warpwright.vgpu import Device
from warpwright.vgpu.checks.findings import Verdict


@kernel("sm_90a", threads=64)
def seldom(x: Global[u32], least: u32, *, branch: bool = False) -> None:
    """The threads from ``least`` on store once more: one guarded instruction, or a branch around two."""
    x[tid.x] = 0
    with If(tid.x >= least):
        x[tid.x] = 1
        if branch:
            x[tid.x + 64] = 2


STORES = ("x[tid.x] = 1", "x[tid.x + 64] = 2")


def _check(least: int, branch: bool) -> Verdict:
    args = [np.zeros(128, np.uint32), least]
    return check(seldom.configure(branch=branch), grid=2, args=args, off="grid-race")


def test_ptx_guards_one_store_and_branches_around_two() -> None:
    alone, both = (seldom.configure(branch=branch).ptx() for branch in (False, True))
    assert re.search(r"@%p\d st\.global", alone) and "bra " not in alone
    assert not re.search(r"@%p\d st\.global", both) and re.search(r"@!%p\d bra ", both)


@pytest.mark.parametrize("branch", [False, True])
def test_a_store_that_no_thread_executes_is_not_covered(branch: bool) -> None:
    verdict = _check(64, branch)
    source = [line.strip() for line in inspect.getsource(sys.modules[__name__]).splitlines()]
    lines = [f"{__file__}:{source.index(store) + 1}" for store in STORES[: 1 + branch]]
    assert (verdict.kind, list(verdict.coverage.missed)) == ("incomplete", lines)
    assert verdict.reasons == (f"not reached: {', '.join(lines)}; choose a problem that comes there",)
    assert verdict.coverage.reached == verdict.coverage.present - (4 if branch else 1)


@pytest.mark.parametrize("branch", [False, True])
def test_one_thread_covers_a_store(branch: bool) -> None:
    verdict = _check(63, branch)
    assert verdict.kind == "clean", str(verdict)
    assert verdict.coverage.present == verdict.coverage.reached


@pytest.mark.parametrize(("least", "gone"), [(0, 1), (64, 1), (63, 2)])
def test_coverage_counts_both_ways_of_a_branch_and_of_a_guard(least: int, gone: int) -> None:
    assert _check(least, branch=True).coverage.branches == (gone, 2)
    assert _check(least, branch=False).coverage.branches == (gone, 2)


def _line(text: str) -> str:
    source = [line.strip() for line in inspect.getsource(sys.modules[__name__]).splitlines()]
    return f"{Path(__file__).name}:{source.index(text) + 1}"


def _text(verdict: Verdict) -> list[str]:
    """Returns the lines of a verdict, with files without their folders."""
    return shorten_paths(str(verdict)).splitlines()


IF, STORE, OTHER = map(_line, ("with If(tid.x >= least):", *STORES))
ONE_WAY = {
    (0, True): f"{IF} never goes to the end of the kernel (depends on least = 0; least = 1 would)",
    (64, True): f"{IF} never goes to {STORE} (depends on least = 64; least = 63 would)",
    (0, False): f"{STORE} never skips st.global.u32 (depends on least = 0; least = 1 would)",
    (70, False): f"{STORE} never executes st.global.u32 (depends on least = 70; least = 63 would)",
}


@pytest.mark.parametrize(("least", "branch"), ONE_WAY)
def test_a_branch_that_goes_one_way_is_told_with_the_argument_that_decides(least: int, branch: bool) -> None:
    verdict = _check(least, branch)
    present, reached = (verdict.coverage.present, verdict.coverage.reached)
    counts = f"{reached} of {present} instructions and 1 of 2 directions of branches reached"
    assert _text(verdict)[0] == f"seldom on h200: {'incomplete' if least else 'clean'}; {counts}"
    assert _text(verdict)[-1] == f"one way only: {ONE_WAY[least, branch]}"
    assert len(_text(verdict)) == (3 if least else 2)
    assert len(_text(_check(63, branch))) == 1


def test_a_branch_that_goes_one_way_is_data_too() -> None:
    (way,) = _check(0, branch=True).as_dict()["coverage"]["one_way"]
    where = f"{__file__}:{IF.rpartition(':')[2]}"
    expected = {"where": where, "opcode": "bra", "never": "goes to the end of the kernel", "depends": ("least = 0",)}
    assert way == expected | {"other": "least = 1", "calls": (), "ptx_line": way["ptx_line"]}
    log = sarif_of([_check(0, branch=True)], "1.0", root=Path(__file__).parent)
    (note,) = log["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert (note["level"], note["message"]["text"]) == ("note", ONE_WAY[0, True])
    assert note["locations"][0]["physicalLocation"]["region"] == {"startLine": int(IF.rpartition(":")[2])}


DECIDED = """
.version 8.6
.target sm_90a
.address_size 64
.visible .entry decided(.param .u64 x, .param .u32 decided_param_1)
{
  .reg .pred %p<4>;
  .reg .b32 %r<9>;
  .reg .b64 %rd<4>;
  .shared .align 8 .b64 full;
  mov.u32 %r0, %tid.x;
  setp.ne.u32 %p0, %r0, 0;
  @%p0 bra ready;
  mbarrier.init.shared.b64 [full], 1;
  mbarrier.arrive.shared.b64 _, [full];
ready:
  bar.sync 0;
wait:
  mbarrier.try_wait.parity.shared.b64 %p1, [full], 0;
  @!%p1 bra wait;
  ld.param.u64 %rd0, [x];
  ld.param.u32 %r1, [decided_param_1];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, 5;
  ld.global.u32 %r4, [%rd0];
  setp.lo.u32 %p2, DECIDES;
  @%p2 bra done;
  bar.sync 0;
done:
  ret;
}
"""
LAST = "one way only: PTX line 27 never goes to the end of the kernel"
DEPENDS = {  # what decides, and the end of the verdict
    "grid": ("2, %r2", f"{LAST} (depends on the grid (1, 1, 1); a grid of (4, 1, 1) would)"),
    "argument": ("64, %r1", f"{LAST} (depends on argument 1 = 7; argument 1 = 65 would)"),
    "data": ("8, %r4", f"{LAST} (depends on data in memory)"),
    "block": ("99, %r0", f"{LAST} (depends on the block (64, 1, 1))"),
    "constant": ("7, %r3", "decided on h200: clean; 17 of 17 instructions reached"),
}


@pytest.mark.parametrize("by", DEPENDS)
def test_what_decides_a_branch_is_named(by: str) -> None:
    """The branch of the wait counts nowhere: the schedule decides it."""
    predicate, last = DEPENDS[by]
    entry = load_ptx(DECIDED.replace("DECIDES", predicate))["decided"]
    verdict = check(entry, 1, 64, args=[np.zeros(1, np.uint32), 7])
    assert str(verdict).splitlines()[-1] == last
    assert verdict.coverage.branches == ((2, 2) if by == "constant" else (3, 4))


def test_a_size_that_leaves_nothing_to_do_is_told_last() -> None:
    text = DECIDED.replace("  @%p2 bra done;", "  @%p2 bra done;\n  setp.lo.u32 %p3, 64, %r1;\n  @%p3 bra done;")
    entry = load_ptx(text.replace("DECIDES", "%r1, 1"))["decided"]
    verdict = check(entry, 1, 64, args=[np.zeros(1, np.uint32), 7])
    way = "never goes to the end of the kernel (depends on argument 1 = 7; argument 1 ="
    assert str(verdict).splitlines()[-1] == f"one way only: PTX line 29 {way} 65 would); PTX line 27 {way} 0 would)"


@kernel("sm_100a", threads=32)
def queue(done: Global[u32]) -> None:
    """A cluster takes over others that have not started."""
    response, full = smem.tile(u32, (1, 4)), mbarrier()
    item, parity, leader = var(u32, ctaid.x), var(u32, 0), elect_one()
    with If(leader):
        full.init()
        fence.mbarrier_init()
    for _ in loop():
        with If(leader):
            full.arrive_expect_tx(response.nbytes)
            clusterlaunchcontrol.try_cancel(response.address, full)
            red.add(done + item, 1)
        warp.sync()
        full.wait(parity)
        parity.set(parity ^ 1)
        answer = ld(response.at(0, 0).cast(b128))
        fence.proxy_async()
        warp.sync()
        Break(when=~clusterlaunchcontrol.is_canceled(answer))
        item.set(clusterlaunchcontrol.first_ctaid(answer))


def test_a_grid_that_the_device_runs_at_once_cancels_no_cluster() -> None:
    target = Device(replace(DEVICES["b200"], sms=1))
    verdicts = [check(queue, grid, args=[np.zeros(64, np.uint32)], device=target) for grid in (32, 33)]
    where = _line("clusterlaunchcontrol.try_cancel(response.address, full)")
    told = f"{where} never cancels a cluster: all 32 CTAs of the grid run at once; a grid of 33 CTAs would"
    assert [_text(verdict)[1:2] for verdict in verdicts] == [[told], []]


def test_a_direction_that_one_launch_of_a_kernel_took_is_taken() -> None:
    least = [_check(least, branch=True) for least in (0, 64, 0)]
    assert merge_verdicts("all", least[:2]).coverage.one_way == ()
    merged = merge_verdicts("all", least[::2]).coverage
    assert list(map(shorten_paths, map(str, merged.one_way))) == [ONE_WAY[0, True]]
    assert merged.branches == (2, 4)


ASSERTED = """
.version 8.8
.target sm_90a
.address_size 64
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 c);
.visible .entry asserted(.param .u64 x)
{
  .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<2>;
  mov.u32 %r0, %tid.x; setp.gt.u32 %p0, %r0, 99; @%p0 bra FAILED; ld.param.u64 %d0, [x]; st.global.u32 [%d0], %r0; ret;
FAILED: LATER:
  { .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4; st.param.b64 [p0], %d1;
  st.param.b64 [p1], %d1; st.param.b32 [p2], 5; st.param.b64 [p3], %d1; st.param.b64 [p4], 1;
  call.uni __assertfail, (p0, p1, p2, p3, p4); } ret;
}
"""


def test_no_launch_must_reach_a_failed_assertion() -> None:
    """Nor the label before it, which no instruction follows."""
    verdict = check(load_ptx(ASSERTED)["asserted"], grid=1, block=1, args=[np.zeros(1, np.uint32)])
    assert verdict.kind == "clean", str(verdict)
