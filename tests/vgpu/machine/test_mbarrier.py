"""The mbarrier object: phases, counts, bytes, tokens, remote arrivals, and every misuse."""

from __future__ import annotations

import pytest

from tests.vgpu.helpers import error_message, line_of, out
from warpwright.errors import MemoryFault, ProtocolError

TOP = ".shared .align 8 .b64 bar[4];"
FIRST = "setp.ne.u32 %p19, %t, 0; @%p19 ret;"
MOST = 2**20 - 1


def states(*steps: str) -> list[int]:
    """Returns the parity of the current phase after each step, which one thread executes on a fresh mbarrier of two
    arrivals; a step is code, with ``bar`` for the mbarrier."""
    asks = "".join(
        f"{step} mbarrier.test_wait.parity.shared::cta.b64 %p0, [bar], 0; selp.u32 %r10, 1, 0, %p0;"
        f" mbarrier.test_wait.parity.shared::cta.b64 %p0, [bar], 1; selp.u32 %r11, 2, 0, %p0;"
        f" add.u32 %r10, %r10, %r11; st.global.u32 [%a0+{4 * i}], %r10;\n"
        for i, step in enumerate(steps)
    )
    found = out(f"{FIRST} mbarrier.init.shared::cta.b64 [bar], 2;\n{asks} ret;", len(steps), top=TOP)
    assert set(found.tolist()) <= {1, 2}, "exactly one of the two parities is complete"
    return [2 - int(value) for value in found]


ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [bar];"
EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 48;"
COMPLETE = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 48;"
BOTH = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 48;"


@pytest.mark.parametrize(
    ("steps", "phases"),
    [
        (["", ARRIVE, ARRIVE, ARRIVE, ARRIVE], [0, 0, 1, 1, 0]),
        (["mbarrier.arrive.shared::cta.b64 _, [bar], 2;", "mbarrier.arrive.release.cta.shared::cta.b64 %d1, "
            "[bar], 2;"], [1, 0]),
        ([EXPECT, ARRIVE, ARRIVE, COMPLETE], [0, 0, 0, 1]),
        ([COMPLETE, ARRIVE, EXPECT, ARRIVE], [0, 0, 0, 1]),
        ([ARRIVE, COMPLETE, BOTH], [0, 0, 1]),
        ([BOTH, COMPLETE, ARRIVE, BOTH, ARRIVE, COMPLETE], [0, 0, 1, 1, 1, 0]),
        (["mbarrier.arrive_drop.shared::cta.b64 _, [bar];", ARRIVE, ARRIVE, ARRIVE], [0, 1, 0, 1]),
        (["mbarrier.arrive_drop.expect_tx.shared::cta.b64 _, [bar], 48;", ARRIVE, COMPLETE, ARRIVE], [0, 0, 1, 0]),
        (["mbarrier.arrive.noComplete.shared::cta.b64 %d1, [bar], 1;", ARRIVE], [0, 1]),
        ([EXPECT, "mbarrier.arrive.noComplete.shared::cta.b64 %d1, [bar], 2;", COMPLETE], [0, 0, 1]),
        (["mbarrier.arrive_drop.noComplete.shared::cta.b64 %d1, [bar], 1;", ARRIVE, ARRIVE], [0, 1, 0]),
        ([ARRIVE, "mbarrier.inval.shared::cta.b64 [bar]; mbarrier.init.shared::cta.b64 [bar], 1;", ARRIVE], [0, 0, 1]),
        ([f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], {MOST};", ARRIVE, ARRIVE,
          f"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], {MOST};"], [0, 0, 0, 1]),
        (["mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [bar];",
          "mbarrier.arrive.release.cluster.shared::cta.b64 %d1, [bar];",
          "mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar], "
              "48;", "mbarrier.arrive.b64 _, [%d9];" + COMPLETE], [0, 1, 1, 0]),
    ],
)  # fmt: skip
def test_steps_complete_phases(steps: list[str], phases: list[int]) -> None:
    generic = "mov.u64 %d9, bar; cvta.shared.u64 %d9, %d9;"
    assert states(generic + steps[0], *steps[1:]) == phases


@pytest.mark.parametrize("wait", ["test_wait", "try_wait"])
@pytest.mark.parametrize("scope", ["", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster"])
def test_a_fresh_mbarrier_has_completed_parity_1(wait: str, scope: str) -> None:
    """Parity 1, the phase before the first, is complete; parity 0 is not."""
    body = f"""{FIRST} mbarrier.init.shared.b64 [bar], 1; mov.u32 %r10, 0;
      mbarrier.{wait}.parity{scope}.shared::cta.b64 %p0, [bar], 1; @%p0 add.u32 %r10, %r10, 1;
      mbarrier.test_wait.parity{scope}.shared::cta.b64 %p0, [bar], 0; @%p0 add.u32 %r10, %r10, 2;
      mbarrier.arrive.shared.b64 %d1, [bar];
      mbarrier.{wait}{scope}.shared::cta.b64 %p0, [bar], %d1; @%p0 add.u32 %r10, %r10, 4;
      mbarrier.arrive.shared.b64 %d2, [bar];
      mbarrier.{wait}{scope}.shared::cta.b64 %p0, [bar], %d2; @%p0 add.u32 %r10, %r10, 8;
      mov.u32 %r3, 1; mbarrier.{wait}.parity{scope}.shared::cta.b64 %p0, [bar], %r3; @%p0 add.u32 %r10, %r10, 16;
      st.global.u32 [%a0], %r10; ret;"""
    assert out(body, 1, top=TOP).tolist() == [1 + 4 + 8 + 16]


def test_waits_have_time_limits_and_tokens_pending_counts() -> None:
    body = f"""{FIRST} mbarrier.init.shared.b64 [bar], 7; mov.u32 %r10, 0;
      mbarrier.arrive.noComplete.shared.b64 %d1, [bar], 2; mbarrier.pending_count.b64 %r3, %d1;
      mbarrier.arrive.noComplete.shared.b64 %d1, [bar], 3; mbarrier.pending_count.b64 %r4, %d1;
      mad.lo.u32 %r10, %r3, 10, %r4; mbarrier.arrive.shared.b64 _, [bar], 2;
      mbarrier.try_wait.parity.shared::cta.b64 %p0, [bar], 0, 0x989680; @%p0 add.u32 %r10, %r10, 100;
      st.global.u32 [%a0], %r10; ret;"""
    assert out(body, 1, top=TOP).tolist() == [175]


def test_all_lanes_arrive_and_wait() -> None:
    """64 threads, four phases: no thread passes a phase before all threads have arrived."""
    body = """
      mov.u32 %r3, 0; setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [bar], 64;
      @%p0 st.shared.u32 [sum], 0; bar.sync 0;
    PHASE: atom.shared.add.u32 %r4, [sum], 1;
      mbarrier.arrive.shared.b64 %d1, [bar];
    WAIT: mbarrier.try_wait.shared.b64 %p1, [bar], %d1; @!%p1 bra WAIT;
      ld.volatile.shared.u32 %r10, [sum];
      mbarrier.arrive.shared.b64 _, [bar]; and.b32 %r5, %r3, 1;
    AGAIN: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 1; @!%p1 bra AGAIN;
      add.u32 %r3, %r3, 1; mad.lo.u32 %r6, %r3, 64, 0; setp.ne.u32 %p2, %r6, %r10; @%p2 trap;
      setp.lt.u32 %p2, %r3, 4; @%p2 bra PHASE;
      st.global.u32 [%o], %r10; ret;"""
    assert out(body, 64, block=64, top=TOP + ".shared .u32 sum;").tolist() == [256] * 64


def test_two_warps_use_a_ring() -> None:
    """A ring of two slots, ten items, with full and empty mbarriers and the parities that kernels use."""
    top = ".shared .align 8 .b64 full[2]; .shared .align 8 .b64 empty[2]; .shared .align 4 .u32 slot[2];"
    body = """
      setp.ne.u32 %p0, %t, 0; @%p0 bra READY;
      mbarrier.init.shared.b64 [full], 1; mbarrier.init.shared.b64 [full+8], 1;
      mbarrier.init.shared.b64 [empty], 32; mbarrier.init.shared.b64 [empty+8], 32; fence.mbarrier_init.release.cluster;
    READY: bar.sync 0;
      mov.u32 %r3, 0; mov.u32 %r10, 0; mov.u32 %r20, full; mov.u32 %r21, empty; mov.u32 %r22, slot;
      setp.ne.u32 %p1, %warp, 0;
    NEXT: and.b32 %r4, %r3, 1; shr.u32 %r5, %r3, 1; and.b32 %r5, %r5, 1;
      mad.lo.u32 %r6, %r4, 8, %r20; mad.lo.u32 %r7, %r4, 8, %r21; mad.lo.u32 %r8, %r4, 4, %r22;
      @%p1 bra CONSUME;
      setp.ne.u32 %p2, %lane, 0; @%p2 bra STEP; xor.b32 %r5, %r5, 1;
    FREE: mbarrier.try_wait.parity.shared.b64 %p3, [%r7], %r5; @!%p3 bra FREE;
      mul.lo.u32 %r9, %r3, %r3; st.shared.u32 [%r8], %r9; mbarrier.arrive.shared.b64 _, [%r6]; bra STEP;
    CONSUME: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], %r5; @!%p3 bra CONSUME;
      ld.shared.u32 %r9, [%r8]; add.u32 %r10, %r10, %r9; mbarrier.arrive.shared.b64 _, [%r7];
    STEP: add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, 10; @%p4 bra NEXT;
      st.global.u32 [%o], %r10; ret;"""
    assert out(body, 64, block=64, top=top).tolist() == [0] * 32 + [sum(i * i for i in range(10))] * 32


def test_ctas_arrive_at_a_remote_mbarrier() -> None:
    """Every CTA of four arrives at rank 0's mbarrier, in all spellings of its address; only rank 0 waits."""
    body = """
      setp.eq.u32 %p0, %r2, 0; @%p0 mbarrier.init.shared.b64 [bar], 16;
      barrier.cluster.arrive; barrier.cluster.wait; @!%p0 bra END;
      mov.u32 %r3, bar; mapa.shared::cluster.u32 %r4, %r3, 0; mov.u64 %d0, bar; cvta.shared.u64 %d0, %d0;
      mapa.u64 %d0, %d0, 0;
      mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
      mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4], 2;
      mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r4], 128;
      mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r4], 64;
      mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r4], 192;
      setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 0; @!%p2 bra WAIT;
      mov.u32 %r10, 3; st.global.u32 [%o], %r10;
    END: barrier.cluster.arrive; barrier.cluster.wait; ret;"""
    found = out(body, 128, grid=4, cluster=4, top=TOP)
    assert found[0] == 3
    assert found.sum() == 3


WHERE = "the mbarrier at offset 0x400 of CTA 0"
UNINITIALISED = f"{WHERE} is not initialised: run mbarrier.init there, and synchronise, before it is used."
OPERATIONS = [
    "mbarrier.arrive.shared.b64 _, [bar];",
    "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;",
    "mbarrier.arrive_drop.shared.b64 _, [bar];",
    "mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 16;",
    "mbarrier.complete_tx.relaxed.cta.shared.b64 [bar], 16;",
    "mbarrier.test_wait.parity.shared.b64 %p1, [bar], 0;",
    "mbarrier.try_wait.parity.shared.b64 %p1, [bar], 1;",
    "mbarrier.try_wait.shared.b64 %p1, [bar], %d1;",
]


def assert_misuse(code: str, what: str, start: str = "mbarrier.init.shared.b64 [bar], 2;") -> None:
    """Lane 4 executes ``code``; assert that the error says ``what``."""
    body = f"setp.ne.u32 %p0, %lane, 4; @%p0 ret; mov.u64 %d1, 0; {start}\n {code}\n ret;"
    opcode = code.split()[0]
    line = line_of(body, code, top=TOP)
    assert (
        error_message(ProtocolError, body, top=TOP)
        == f"PTX line {line}: `{opcode}`: kernel k, CTA (0, 0, 0), warp 0, lane 4: {what}"
    )


@pytest.mark.parametrize("code", OPERATIONS)
def test_use_before_init_is_refused(code: str) -> None:
    assert_misuse(code, UNINITIALISED, start="")


@pytest.mark.parametrize("code", OPERATIONS)
def test_use_after_inval_is_refused(code: str) -> None:
    assert_misuse(code, UNINITIALISED, start="mbarrier.init.shared.b64 [bar], 2; mbarrier.inval.shared.b64 [bar];")


@pytest.mark.parametrize("count", [0, 2**20])
def test_init_refuses_a_bad_count(count: int) -> None:
    assert_misuse(
        f"mbarrier.init.shared.b64 [bar], {count};", f"count {count}; expected 1 to 1048575 arrivals.", start=""
    )


def test_init_accepts_the_largest_count() -> None:
    body = f"""{FIRST} mbarrier.init.shared.b64 [bar], {MOST}; mbarrier.arrive.shared.b64 %d1, [bar], {MOST};
        mbarrier.test_wait.shared.b64 %p0, [bar], %d1; selp.u32 %r10, 1, 0, %p0; st.global.u32 [%a0], %r10; ret;"""
    assert out(body, 1, top=TOP).tolist() == [1]


def test_misuse_is_refused() -> None:
    fields = "phase 0, 2 of 2 arrivals and 0 bytes pending"
    more = f"{WHERE} got more arrivals than its phase has pending"
    assert_misuse("mbarrier.arrive.shared.b64 _, [bar], 3;", f"{more} ({fields}); raise its count, or drop an arrival.")
    assert_misuse("mbarrier.arrive.shared.b64 _, [bar], 0;", "count 0; expected 1 to 1048575 arrivals.")
    start = "mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.expect_tx.shared.b64 _, [bar], 32;"
    after = "phase 0, 0 of 1 arrivals and 32 bytes pending"
    assert_misuse(
        "mbarrier.arrive.shared.b64 _, [bar];",
        f"{WHERE} got an arrival for a phase that has all of its arrivals ({after}); wait for the end of the phase "
        "before the next arrival, or raise its count.",
        start=start,
    )
    closes = "would complete its phase, which an arrival with .noComplete must not; arrive without it."
    assert_misuse("mbarrier.arrive.noComplete.shared.b64 %d1, [bar], 2;", f"{WHERE} ({fields}) {closes}")


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("expect_tx", f"2 of 2 arrivals and {MOST} bytes pending"),
        ("complete_tx", f"2 of 2 arrivals pending, {MOST} bytes too many"),
    ],
)
def test_bytes_out_of_range_are_refused(code: str, fields: str) -> None:
    start = f"mbarrier.init.shared.b64 [bar], 2; mbarrier.{code}.relaxed.cta.shared.b64 [bar], {MOST};"
    assert_misuse(f"mbarrier.{code}.relaxed.cta.shared.b64 [bar], 1;",
           f"{WHERE} (phase 0, {fields}) would leave the range of its "
               f"transaction "
           "count, +-1048575 bytes.", start=start)  # fmt: skip


def test_bad_addresses_are_refused() -> None:
    body = "mbarrier.init.shared.b64 [bar+4], 1; ret;"
    assert "address 0x404 is not aligned to the size of the access." in error_message(MemoryFault, body, top=TOP)
    body = "mbarrier.init.shared.b64 [bar+32], 1; ret;"
    assert "address 0x420 is outside shared memory, bytes 0x400 to 0x420 of each CTA." in error_message(
        MemoryFault, body, top=TOP
    )


def test_an_ordinary_store_destroys_the_object() -> None:
    assert_misuse(
        "mbarrier.arrive.shared.b64 _, [bar];",
        UNINITIALISED,
        start="mbarrier.init.shared.b64 [bar], 2; st.shared.u64 [bar], 5;",
    )
