"""Notes: what PTX does not promise, and the assembler or the chip is known to keep; and the findings beside them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text
from warpwright.report.sarif import sarif_of
from warpwright.vgpu.checks.findings import Verdict
from warpwright.vgpu.checks.rules import EVIDENCE

TENSOR = """.shared .align 4 .b32 taddr; .shared .align 8 .b64 bar[2];
  setp.ne.u32 %p0, %t, 0; setp.ne.u32 %p1, %warp, 0;
  @%p0 bra ALLOC; mbarrier.init.shared.b64 [bar], 1;
ALLOC: @%p1 bra SYNC;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [taddr], 32;
SYNC: bar.sync 0; ld.shared.u32 %r9, [taddr];
"""
FREE = "bar.sync 0; @%p1 bra END; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 32; END: ret;"
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r9], {%t}; tcgen05.wait::st.sync.aligned; "
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r9];"
USE = "st.global.u32 [%o], %r5;"
# Warps 0 and 4 have the same lanes of tensor memory.
ALTERNATE = f"""@%p1 bra STORED; {STORE} STORED: bar.sync 0; setp.ne.u32 %p3, %warp, 4; @%p3 bra LOADED;
  {LOAD} tcgen05.wait::ld.sync.aligned; st.global.u32 [%o+-512], %r5; LOADED: """

# 64 bytes of `tile`, and a bulk copy of them to or from global memory by thread 0.
COPY = """.shared .align 128 .b32 tile[32]; .shared .align 8 .b64 bar[2];
  setp.ne.u32 %p0, %t, 0; mov.u32 %r3, tile; shl.b32 %r4, %lane, 2; add.u32 %r3, %r3, %r4;
  @%p0 bra START; mbarrier.init.shared.b64 [bar], 1; {init}
START: bar.sync 0;
"""
FETCH = """@%p0 bra WAIT;
  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 128;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%a0], 128, [bar];
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra WAIT;
"""
SEND = """@%p0 bra SENT; {fence}
  cp.async.bulk.global.shared::cta.bulk_group [%a0], [tile], 128;
  cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; SENT: ret;"""
FENCE = "fence.proxy.async.shared::cta;"
INIT = "fence.mbarrier_init.release.cluster;"
FENCED = COPY.format(init=INIT)
EQUAL = """.shared .align 4 .b32 flag; cvt.u32.u64 %r5, %o; {value}
  st.shared.u32 [flag], %r5; bar.sync 0; ld.shared.u32 %r6, [flag]; st.global.u32 [%o], %r6; ret;"""
MATRIX = """.shared .align 16 .b32 x[32]; shl.b32 %r3, %lane, 4; mov.u32 %r4, x; add.u32 %r4, %r4, %r3; {value}
  stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r4], {{%r5}}; ret;"""
UNWRITTEN = """.shared .align 4 .b32 x[64]; shl.b32 %r3, %t, 2; mov.u32 %r4, x; add.u32 %r4, %r4, %r3;
  setp.eq.u32 %p0, %warp, 0; @%p0 st.shared.u32 [%r4], %t; ld.shared.u32 %r5, [%r4]; add.u32 %r6, %r5, 1;
  {exchange} {guard} st.global.u32 [%o], %r6; ret;"""
# Warps 0 and 1 wait for each other, twice; one lane of each arrives. Warp 2 waits with warp 1 and does not arrive.
TURN = """@%p1 bra WAIT{turn}; @%p2 bra PASS{turn}; mbarrier.arrive.shared.b64 _, [bar];
PASS{turn}: mbarrier.try_wait.parity.shared.b64 %p3, [bar+8], {turn}; @!%p3 bra PASS{turn}; bra DONE{turn};
WAIT{turn}: mbarrier.try_wait.parity.shared.b64 %p3, [bar], {turn}; @!%p3 bra WAIT{turn};
  setp.eq.u32 %p3, %t, 32; @%p3 mbarrier.arrive.shared.b64 _, [bar+8]; DONE{turn}:
"""
TURNS = (
    """.shared .align 8 .b64 bar[2]; setp.ne.u32 %p1, %warp, 0; setp.ne.u32 %p2, %t, 0; @%p2 bra START;
  mbarrier.init.shared.b64 [bar], 1; mbarrier.init.shared.b64 [bar+8], 1;
START: bar.sync 0; """
    + TURN.format(turn=0)
    + TURN.format(turn=1)
    + "ret;"
)
# Warp 1 reads, or writes, memory; one of its lanes arrives; warp 0 writes there.
HANDED = """.shared .align 4 .b32 x[32]; .shared .align 8 .b64 bar; setp.ne.u32 %p0, %t, 0; setp.ne.u32 %p1, %warp, 0;
  shl.b32 %r3, %lane, 2; mov.u32 %r4, x; add.u32 %r4, %r4, %r3; @%p1 bra START;
  st.shared.u32 [%r4], %t; @%p0 bra START; mbarrier.init.shared.b64 [bar], 1; START: bar.sync 0; @%p1 bra READ;
PASS: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0; @!%p3 bra PASS; st.shared.u32 [%r4], %lane; ret;
READ: setp.eq.u32 %p2, %lane, 0; {body} st.global.u32 [%o], %r5; ret;"""
READ, ELECT, ARRIVE = (
    "ld.shared.u32 %r5, [%r4]; ",
    "elect.sync _|%p4, -1; ",
    "@%p2 mbarrier.arrive.shared.b64 _, [bar]; ",
)
UNINIT = {"uninitialised"}
SHUFFLE = "shfl.sync.bfly.b32 %r6, %r6, 1, 31, -1;"


def verdict(body: str, strict: bool = False, threads: int = 64, target: str = "sm_100a", heads: str = "") -> Verdict:
    kernel = ww.load_ptx(text(body, (np.zeros(64, np.uint32),), target=target, heads=heads))["k"]
    device = {"sm_100a": "b200", "sm_90a": "h200"}[target]
    return ww.check(kernel, args=[np.zeros(64, np.uint32)], grid=1, block=threads, device=device, strict=strict)


WRITTEN = FENCED + "st.shared.u32 [%r3], %t; "
FETCHED = FETCH + "ld.shared.u32 %r5, [%r3]; st.global.u32 [%o], %r5; ret;"
# evidence, rule, threads, body
NOTES = [
    ("spin", "mbarrier-lapped", 64, TURNS),
    ("served", "race", 64, HANDED.format(body=READ + ELECT + ARRIVE)),
    ("load", "tmem-registers", 64, TENSOR + STORE + LOAD + USE + FREE),
    ("fence", "mbarrier-init", 32, COPY.format(init="") + FETCHED),
    ("fence", "tcgen05-fence", 160, TENSOR + ALTERNATE + FREE),
    ("overwrite", "proxy-fence", 32, WRITTEN + "ld.shared.u32 %r5, [%r3]; bar.sync 0;" + FETCH + "ret;"),
    ("late fence", "proxy-fence", 32, WRITTEN + "bar.sync 0;" + SEND.format(fence=FENCE)),
    ("equal", "race", 64, EQUAL.format(value="mov.u32 %r5, %ctaid.x; add.u32 %r5, %r5, 7;")),
    ("equal", "race", 64, MATRIX.format(value="shl.b32 %r5, %lane, 3;")),
    ("equal", "race", 64, "st.global.u32 [%a0], 7; ret;"),
    ("equal", "race", 64, "st.u32 [%a0], 7; ret;"),
]


@pytest.mark.parametrize(("evidence", "rule", "threads", "body"), NOTES, ids=[f"{each[0]}-{each[1]}" for each in NOTES])
def test_a_note_has_its_evidence(evidence: str, rule: str, threads: int, body: str) -> None:
    found = verdict(body, threads=threads)
    assert (found.kind, found.findings) == ("notes", ()), str(found)
    assert {(note.rule.id, note.evidence) for note in found.notes} == {(rule, EVIDENCE[evidence])}
    strict = verdict(body, strict=True, threads=threads)
    assert strict.kind == "findings" and {each.rule.id for each in strict.findings} == {rule}


def rules(body: str, threads: int = 32) -> set[str]:
    """Returns the rules of the findings, without notes."""
    return {finding.rule.id for finding in verdict(body, threads=threads).findings}


def test_an_arrival_between_load_and_use_is_a_race() -> None:
    """Another warp stores to tensor memory that the load may still read; after the use it may not."""
    early, late = (
        TENSOR + "mov.u32 %r7, 0; mov.u32 %r5, 0;"
        + "setp.ne.u32 %p3, %warp, 4; @%p1 bra OTHER; " + STORE + LOAD + order
        + " bra DONE; OTHER: @%p3 bra DONE; bar.sync 1, 64; " + STORE + " DONE: " + FREE
        for order in ("bar.sync 1, 64; " + USE, USE + "bar.sync 1, 64;")
    )  # fmt: skip
    assert rules(early, threads=160) == {"race"}
    assert rules(late, threads=160) == set()


def test_another_warp_that_waits_may_be_overtaken() -> None:
    assert rules(TURNS, threads=64) == set()
    assert rules(TURNS, threads=96) == {"mbarrier-lapped"}


UNSERVED = [
    READ + ARRIVE,
    READ + ARRIVE + ELECT,
    ELECT + READ + ARRIVE,
    "mov.u32 %r5, 0; st.shared.u32 [%r4], %t;" + ELECT + ARRIVE,
]


@pytest.mark.parametrize("body", UNSERVED, ids=["alone", "later", "earlier", "store"])
def test_a_lane_that_hands_over_the_reads_of_others(body: str) -> None:
    assert rules(HANDED.format(body=body), threads=64) == {"race"}


def test_a_lane_that_hands_over_reads_of_another_cta() -> None:
    """Shared memory serves a warp in order; the network of a cluster need not."""
    body = """.shared .align 4 .b32 x[32]; .shared .align 8 .b64 bar; setp.ne.u32 %p0, %lane, 0; shl.b32 %r3, %lane, 2;
      mov.u32 %r4, x; add.u32 %r4, %r4, %r3; st.shared.u32 [%r4], %t; @%p0 bra START;
      mbarrier.init.shared.b64 [bar], 1; START: barrier.cluster.arrive; barrier.cluster.wait;
      mov.u32 %r6, %cluster_ctarank; setp.eq.u32 %p1, %r6, 0; @%p1 bra READ;
    PASS: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [bar], 0; @!%p3 bra PASS;
      st.shared.u32 [%r4], %lane; bra DONE;
    READ: mapa.shared::cluster.u32 %r7, %r4, 1; ld.shared::cluster.u32 %r5, [%r7]; elect.sync _|%p4, -1;
      @%p0 bra STORE; mov.u32 %r8, bar; mapa.shared::cluster.u32 %r8, %r8, 1;
      mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];
    STORE: st.global.u32 [%o], %r5; DONE: barrier.cluster.arrive; barrier.cluster.wait; ret;"""
    kernel = ww.load_ptx(text(body, (np.zeros(64, np.uint32),), heads=".reqnctapercluster 2, 1, 1"))["k"]
    found = ww.check(kernel, args=[np.zeros(64, np.uint32)], grid=2, block=32, cluster=2, device="b200")
    assert {finding.rule.id for finding in found.findings} == {"race"}, str(found)


def test_an_mbarrier_that_nothing_orders_is_a_finding() -> None:
    body = COPY.format(init="").replace("bar.sync 0;", "") + FETCH.replace(
        "@%p0 bra WAIT;", "setp.ne.u32 %p0, %t, 32; @%p0 bra WAIT;", 1
    )
    assert "mbarrier-init" in rules(body + "ret;", threads=64)


PEER = """.shared .align 8 .b64 bar; setp.ne.u32 %p0, %lane, 0; {first} @%p0 bra START;
  mbarrier.init.shared.b64 [bar], 32;
START: {second} mov.u32 %r3, bar; mov.u32 %r4, %cluster_ctarank; xor.b32 %r4, %r4, 1;
  mapa.shared::cluster.u32 %r5, %r3, %r4; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [bar], 0; @!%p1 bra WAIT; ret;"""
RELAXED, RELEASE = (f"barrier.cluster.arrive{word}; barrier.cluster.wait;" for word in (".relaxed", ""))
EARLY = "fence.mbarrier_init.release.cluster;"


@pytest.mark.parametrize(
    ("first", "second", "grade"),
    [(EARLY, RELAXED, "notes"), (RELEASE, RELAXED, "notes"), (RELEASE, "", "findings"), ("", RELEASE, "clean")],
)
def test_an_initialisation_that_a_relaxed_arrival_does_not_release(first: str, second: str, grade: str) -> None:
    body = PEER.format(first=first, second=second)
    kernel = ww.load_ptx(text(body, (np.zeros(64, np.uint32),), heads=".reqnctapercluster 2, 1, 1"))["k"]
    found = ww.check(kernel, args=[np.zeros(64, np.uint32)], grid=2, block=32, cluster=2, device="b200")
    assert found.kind == grade, str(found)
    assert {note.rule.id for note in found.notes} == ({"mbarrier-init"} if grade == "notes" else set())


def test_memory_that_nobody_has_read_is_overwritten() -> None:
    assert rules(WRITTEN + "bar.sync 0;" + FETCH + "ret;") == {"proxy-fence"}


def test_a_store_without_any_fence() -> None:
    assert rules(WRITTEN + "bar.sync 0;" + SEND.format(fence="")) == {"proxy-fence"}


def test_stores_of_other_values_race() -> None:
    assert rules(EQUAL.format(value="shr.u32 %r5, %t, 5;"), threads=64) == {"race"}
    assert rules(EQUAL.format(value="shr.u32 %r5, %t, 6;"), threads=64) == set()
    last = "setp.eq.u32 %p0, %t, 63; selp.b32 %r5, 1, 0, %p0;"
    assert rules(MATRIX.format(value=last), threads=64) == {"race"}


# All CTAs store {value} to one word of global memory, and four of them each the number of their half to another.
CTAS = """mov.u32 %r5, {value}; st.global.u32 [%a0], %r5; shr.u32 %r6, %r0, 2; mul.wide.u32 %a1, %r6, 4;
  add.u64 %a1, %a1, %a0; st.global.u32 [%a1+4], %r6; ret;"""


def grid_verdict(body: str, grid: int, block: int) -> Verdict:
    kernel = ww.load_ptx(text(body, (np.zeros(4, np.uint32),) * 2))["k"]
    return ww.check(kernel, args=[np.zeros(4, np.uint32)] * 2, grid=grid, block=block, device="b200")


def test_ctas_that_store_equal_values_to_global_memory() -> None:
    equal = grid_verdict(CTAS.format(value="7"), 8, 32)
    assert {(note.rule.id, note.evidence) for note in equal.notes} == {("grid-race", EVIDENCE["equal"])}
    assert equal.kind == "notes" and len(equal.notes) == 2
    found = grid_verdict(CTAS.format(value="%r0"), 8, 32)
    assert [finding.rule.id for finding in found.findings] == ["grid-race"] and len(found.notes) == 1


def test_of_stores_by_one_instruction_one_has_another_value() -> None:
    last = "setp.eq.u32 %p0, %t, 255; selp.u32 %r5, 8, 7, %p0; st.global.u32 [%a0], %r5; ret;"
    found = grid_verdict(last, 4, 64)
    assert {finding.rule.id for finding in found.findings} == {"race"}


def test_a_race_in_shared_memory_does_not_hide_one_in_global_memory() -> None:
    """One instruction: warps 1 and 2 store equal values to shared memory, warp 0 of each CTA another to global."""
    body = """.shared .align 4 .b32 flag; mov.u32 %r6, flag; cvt.u64.u32 %a1, %r6; cvta.shared.u64 %a1, %a1;
      setp.eq.u32 %p0, %warp, 0; selp.b64 %a1, %a0, %a1, %p0; st.u32 [%a1], %r0; ret;"""
    found = grid_verdict(body, 4, 96)
    assert {finding.rule.id for finding in found.findings} == {"grid-race"}
    assert {note.rule.id for note in found.notes} == {"race"}


# Warp 1 stores the rows of warp 0 in reverse: lane 0 gives the address of row 7. Elements count, or rows do.
REVERSED = """.shared .align 16 .b32 x[32]; setp.ne.u32 %p1, %warp, 0; selp.b32 %r3, 7, 0, %p1; xor.b32 %r3, %r3, %lane;
  shl.b32 %r3, %r3, 4; mov.u32 %r4, x; add.u32 %r4, %r4, %r3; {value} stmatrix.sync.aligned.m8n8.x1{trans}.shared.b16
  [%r4], {{%r5}}; ret;"""
PLAIN = "selp.b32 %r5, 28, 0, %p1; xor.b32 %r5, %r5, %lane;"
TRANSPOSED = """and.b32 %r5, %lane, 3; shl.b32 %r5, %r5, 1; add.u32 %r6, %r5, 1; @!%p1 bra PACK;
  sub.u32 %r5, 7, %r5; sub.u32 %r6, 7, %r6; PACK: shl.b32 %r6, %r6, 16; or.b32 %r5, %r5, %r6;"""
OTHER = "setp.eq.u32 %p2, %t, 40; selp.b32 %r6, 1, 0, %p2; add.u32 %r5, %r5, %r6;"


@pytest.mark.parametrize(("trans", "value"), [("", PLAIN), (".trans", TRANSPOSED)], ids=["plain", "trans"])
def test_rows_of_matrices_that_other_lanes_store(trans: str, value: str) -> None:
    assert rules(REVERSED.format(trans=trans, value=value), threads=64) == set()
    assert rules(REVERSED.format(trans=trans, value=value + OTHER), threads=64) == {"race"}


@pytest.mark.parametrize("exchange", ["", SHUFFLE])
def test_unwritten_memory_is_a_finding_where_it_has_an_effect(exchange: str) -> None:
    assert rules(UNWRITTEN.format(exchange=exchange, guard="@%p0"), threads=64) == set()
    assert rules(UNWRITTEN.format(exchange=exchange, guard=""), threads=64) == {"uninitialised"}


@pytest.mark.parametrize("effect", [USE, STORE.replace("%t", "%r5")], ids=["store", "tmem"])
def test_an_unwritten_accumulator_is_a_finding_where_it_has_an_effect(effect: str) -> None:
    """The loop that fills the accumulator runs no iterations, and the load after it gives what `selp` drops."""
    chosen, other = (
        f"{TENSOR}{LOAD} setp.ne.u32 %p2, %t, {lane}; selp.b32 %r5, 0, %r5, %p2; {effect} {FREE}" for lane in (77, 7)
    )
    assert rules(chosen) == set()
    assert rules(other) == {"uninitialised"}
    strict = verdict(chosen, strict=True, threads=32)
    assert "uninitialised" in {finding.rule.id for finding in strict.findings}


def test_one_lane_of_an_exchange_is_unwritten() -> None:
    """Any lane may get its value: all lanes have it."""
    body = (
        UNWRITTEN.format(exchange=SHUFFLE, guard="@%p0")
        .replace("%p0, %warp, 0", "%p0, %t, 0")
        .replace("@%p0 st.shared", "@!%p0 st.shared")
    )
    assert rules(body) == {"uninitialised"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("idx.b32 %r6, %r5, 0, 31", set()),
        ("idx.b32 %r6, %r5, %r5, 31", UNINIT),
        ("bfly.b32 %r6, %r5, 1, 31", UNINIT),
        ("up.b32 %r6, %r5, 1, 0", UNINIT),
    ],
)
def test_a_shuffle_needs_the_values_of_the_lanes_that_are_asked(source: str, found: set[str]) -> None:
    """Only lane 0 has written the register."""
    body = f"setp.eq.u32 %p0, %t, 0; @%p0 mov.u32 %r5, 0; shfl.sync.{source}, -1; st.global.u32 [%o], %r6; ret;"
    assert rules(body) == found


def test_setmaxnreg_of_one_warp() -> None:
    body = "@%p0 bra END; setp.ne.u32 %p1, %warp, 0; @%p1 bra END; setmaxnreg.dec.sync.aligned.u32 40; END: ret;"
    found = verdict(body, threads=128, heads=".maxntid 128 .minnctapersm 1")
    assert {(note.rule.id, note.evidence) for note in found.notes} == {("setmaxnreg", EVIDENCE["registers"])}
    assert found.kind == "notes"


def test_notes_of_missing_proxy_fences_are_one_line() -> None:
    read = WRITTEN + "ld.shared.u32 %r5, [%r3]; bar.sync 0; "
    found = verdict(read + SEND.format(fence=FENCE).replace("ret;", "") + FETCH + "ret;", threads=32)
    assert {note.evidence for note in found.notes} == {EVIDENCE["late fence"], EVIDENCE["overwrite"]}
    assert str(found).splitlines()[1:] == [
        "note proxy-fence at PTX line 18 and PTX line 19, 2 more: the fence.proxy.async comes after the barrier, in "
        f"the thread of the second; {EVIDENCE['late fence']}; {EVIDENCE['overwrite']}"
    ]


def test_reports_of_notes() -> None:
    found = verdict(WRITTEN + "bar.sync 0;" + SEND.format(fence=FENCE), threads=32)
    assert str(found).splitlines()[1:] == [
        "note proxy-fence at PTX line 18 and PTX line 19: the fence.proxy.async comes after the barrier, in the thread "
        "of the second; "
        f"{EVIDENCE['late fence']}"
    ]
    data = json.loads(json.dumps(found.as_dict()))
    assert data["verdict"] == "notes" and data["findings"] == []
    assert data["notes"][0]["evidence"] == EVIDENCE["late fence"]
    (result,) = sarif_of([found], "1.0")["runs"][0]["results"]
    assert result["level"] == "note" and EVIDENCE["late fence"] in result["message"]["text"]
