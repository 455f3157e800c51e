"""Tensor memory: allocation, its errors, and loads and stores of every shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import error_message, line_of, out, run, text
from warpwright.errors import ProtocolError, UnsupportedInstruction
from warpwright.layout import tmem_ld_map

TOP = ".shared .align 8 .u32 at[8];"
SIZES = [32, 64, 128, 256, 512]


def alloc(columns: int | str, where: str = "at", group: int = 1) -> str:
    return f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [{where}], {columns};"


def free(register: str, columns: int | str, group: int = 1) -> str:
    return f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 {register}, {columns};"


RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("source", ["constant", "register"])
def test_alloc_takes_every_size(columns: int, source: str) -> None:
    count = columns if source == "constant" else "%r9"
    body = f"""mov.u32 %r9, {columns}; {alloc(count)} ld.shared.u32 %r3, [at]; st.global.u32 [%o], %r3;
        {free("%r3", count)} ret;"""
    assert out(body, top=TOP).tolist() == [0] * 32


def test_alloc_returns_the_first_free_columns() -> None:
    body = f"""
      {alloc(128)} {alloc(64, "at+4")} {alloc(64, "at+8")} {alloc(32, "at+12")}
      ld.shared.u32 %r20, [at]; ld.shared.u32 %r21, [at+4]; ld.shared.u32 %r22, [at+8]; ld.shared.u32 %r23, [at+12];
      {free("%r21", 64)} {alloc(32, "at+16")} ld.shared.u32 %r24, [at+16]; {RELINQUISH}
      st.global.v4.u32 [%a0], {{%r20, %r21, %r22, %r23}}; st.global.u32 [%a0+16], %r24;
      {free("%r20", 128)} {free("%r22", 64)} {free("%r23", 32)} {free("%r24", 32)} ret;"""
    assert out(body, 5, top=TOP).tolist() == [0, 128, 192, 256, 128]


def test_alloc_waits_for_dealloc() -> None:
    """Warp 1 requests more columns than are free, until warp 0 frees its own."""
    body = f"""
      setp.eq.u32 %p0, %warp, 1; @%p0 bra SECOND;
      {alloc(512)} bar.sync 1, 64; bar.sync 2, 32; ld.shared.u32 %r3, [at]; st.shared.u32 [at+16], 77;
      {free("%r3", 512)} ret;
    SECOND: bar.sync 1, 64; {alloc(256, "at+4")} ld.shared.u32 %r3, [at+16]; st.global.u32 [%o], %r3;
      ld.shared.u32 %r4, [at+4]; {free("%r4", 256)} ret;"""
    assert out(body, 64, block=64, top=TOP).tolist() == [0] * 32 + [77] * 32


def test_alloc_of_a_pair_returns_equal_columns() -> None:
    """Both CTAs get the same columns, also when one of them has allocated for itself before."""
    body = f"""
      {alloc(64, group=2)} ld.shared.u32 %r3, [at]; {alloc(128, "at+4", 2)} ld.shared.u32 %r4, [at+4];
      mad.lo.u32 %r10, %r3, 1000, %r4; st.global.u32 [%o], %r10;
      {free("%r4", 128, 2)} {free("%r3", 64, 2)} tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
      barrier.cluster.arrive; barrier.cluster.wait; ret;"""
    assert set(out(body, 128, grid=4, cluster=4, top=TOP).tolist()) == {128}


def assert_misuse(code: str, what: str, start: str = "", **launch: object) -> None:
    body = f"{start}\n {code} // here\n ret;"
    found = error_message(ProtocolError, body, np.zeros(64, np.uint32), top=TOP, **launch)
    line = line_of(body, "// here", top=TOP)
    assert found == f"PTX line {line}: `{code.split()[0]}`: kernel k, CTA (0, 0, 0), warp 0, lane 0: {what}"


@pytest.mark.parametrize("columns", [0, 16, 48, 96, 1024])
def test_alloc_refuses_illegal_counts(columns: int) -> None:
    assert_misuse(alloc("%r9"), f"{columns} columns; expected 32, 64, 128, 256 or 512.", f"mov.u32 %r9, {columns};")


def test_alloc_after_relinquish_is_refused() -> None:
    assert_misuse(alloc(32), "the CTA has relinquished its permit to allocate; allocate before.", RELINQUISH)


def test_dealloc_of_free_columns_is_refused() -> None:
    start = f"{alloc(64)} ld.shared.u32 %r3, [at];"
    mend = "are not allocated here; give the address and count of an alloc."
    assert_misuse(free("%r3", 128), f"columns 0 to 127 {mend}", start)
    assert_misuse(free("%r4", 64), f"columns 64 to 127 {mend}", start + "add.u32 %r4, %r3, 64;")
    assert_misuse(free("%r4", 32), f"columns 16 to 47 {mend}", start + "add.u32 %r4, %r3, 16;")
    assert_misuse(free("%r3", 64), f"columns 0 to 63 {mend}", start + free("%r3", 64))


def test_pairs_need_two_ctas_that_agree() -> None:
    assert_misuse(
        alloc(32, group=2), "cta_group::2 takes pairs of CTAs; the cluster has 1: launch clusters of an even size."
    )
    body = f"setp.eq.u32 %p0, %r0, 1; mov.u32 %r9, 64; @%p0 mov.u32 %r9, 32; {alloc('%r9', group=2)} ret;"
    assert error_message(ProtocolError, body, np.zeros(1), grid=2, cluster=2, top=TOP).endswith(
        "CTA (1, 0, 0), warp 0, lane 0: 32 columns; the other CTA of the pair asks for 64: ask for the same in both."
    )


def test_exit_without_dealloc_is_refused() -> None:
    body = f"setp.eq.u32 %p0, %r0, 1; @!%p0 ret; {alloc(64)} {alloc(32, 'at+4')} ret;"
    assert error_message(ProtocolError, body, np.zeros(1), grid=2, top=TOP) == (
        "kernel k, CTA (1, 0, 0) exits with 96 columns of tensor memory allocated; free them with tcgen05.dealloc."
    )


LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r10}, [%r4];"
START = f"{alloc(64)} ld.shared.u32 %r3, [at];"


def test_access_to_free_columns_is_refused() -> None:
    what = (
        "tensor memory columns from {} on are not allocated; "
        "allocate them with tcgen05.alloc before, and free them after."
    )
    assert_misuse(LOAD, what.format(0), "mov.u32 %r4, 0;")
    assert_misuse(LOAD, what.format(64), START + "add.u32 %r4, %r3, 64;")
    assert_misuse(LOAD, what.format(600), START + "add.u32 %r4, %r3, 600;")
    assert_misuse(
        LOAD.replace("x1.", "x2.").replace("{%r10}", "{%r10, %r11}"), what.format(63), START + "add.u32 %r4, %r3, 63;"
    )
    assert_misuse(
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r10};",
        what.format(0),
        START + free("%r3", 64) + "mov.u32 %r4, 0;",
    )


def test_a_load_after_the_dealloc_of_another_warp_is_refused() -> None:
    """Nothing orders the dealloc of warp 0 after the loads of warp 1. Other warps run on after the dealloc."""
    body = f"""setp.eq.u32 %p0, %warp, 0; @!%p0 bra OTHER; {alloc(32)} bar.sync 0; ld.shared.u32 %r4, [at];
        {free("%r4", 32)} ret; OTHER: bar.sync 0; ld.shared.u32 %r4, [at]; {LOAD} ret;"""
    assert error_message(ProtocolError, body, np.zeros(64, np.uint32), block=64, top=TOP).endswith(
        "warp 1, lane 0: tensor memory columns from 0 on are not allocated; allocate them with tcgen05.alloc before, "
        "and free them after."
    )


def test_access_to_lanes_of_another_warp_is_refused() -> None:
    what = "tensor memory lane 32 is not one of this warp's, 0 to 31; add 0 << 16 to the address."
    assert_misuse(LOAD, what, START + "add.u32 %r4, %r3, 0x200000;")
    body = f"""setp.eq.u32 %p0, %warp, 0; @!%p0 bra OTHER; {alloc(32)} bar.sync 0; ret; OTHER: bar.sync 0;
        ld.shared.u32 %r4, [at]; add.u32 %r4, %r4, 0x400000; {LOAD} ret;"""
    assert error_message(ProtocolError, body, np.zeros(64, np.uint32), block=64, top=TOP).endswith(
        "warp 1, lane 0: tensor memory lane 64 is not one of this warp's, 32 to 63; add 32 << 16 to the address."
    )
    far = "tensor memory lane 256 is not one of this warp's, 0 to 31; add 0 << 16 to the address."
    assert_misuse(LOAD, far, START + "add.u32 %r4, %r3, 0x1000000;")


@pytest.mark.parametrize(("shape", "lane"), [("32x32b.x1", 16), ("32x32b.x1", 1), ("16x64b.x1", 8)])
def test_access_in_the_middle_of_a_quarter_is_refused(shape: str, lane: int) -> None:
    code = LOAD.replace("32x32b.x1", shape)
    mend = "expected the first lane of a quarter, or its 17th for shapes of 16 lanes."
    assert_misuse(
        code,
        f"the access cannot begin at tensor memory lane {lane}; {mend}",
        START + f"add.u32 %r4, %r3, {lane << 16};",
    )


def test_a_wrong_count_of_registers_is_refused() -> None:
    body = f"{START}\n tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%r10}}, [%r3]; ret;"
    assert "`tcgen05.ld.sync.aligned.32x32b.x2.b32` moves 2 registers; 1 are given." in error_message(
        UnsupportedInstruction, body, top=TOP
    )


PER = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
SHAPES = [(shape, 2**k) for shape in PER for k in range(8) if PER[shape] * 2**k <= 128]


def exchange(shape: str, num: int, pack: bool, lane: int = 0) -> None:
    """Store random registers, read the memory through 32x32b, load it back."""
    count, split = PER[shape] * num, num if shape.endswith("x2") else 0
    names = ", ".join(f"%r{10 + i}" for i in range(count))
    half = f", {split * (2 if pack else 1)}" if split else ""
    fill = "".join(
        f"mad.lo.u32 %r{10 + i}, %lane, {7919 * (i + 1)}, {2654435761 * (i + 3) & 0xFFFF_FFFF};" for i in range(count)
    )
    wipe = "".join(f"mov.u32 %r{10 + i}, 0;" for i in range(count))
    put = "".join(f"st.global.u32 [%a1+{4 * i}], %r{10 + i};" for i in range(count))
    columns = tmem_ld_map(shape, num, split * (2 if pack else 1))[1] * (2 if pack else 1)
    width = int(columns.max()) + (2 if pack else 1)
    room = max(32, 1 << (width - 1).bit_length())
    dump = "".join(
        f"""add.u32 %r5, %r3, {c}; tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r6}}, [%r5];
            tcgen05.wait::ld.sync.aligned; st.global.u32 [%o+{128 * c}], %r6;"""
        for c in range(width)
    )
    body = f"""{alloc(room)} ld.shared.u32 %r3, [at]; add.u32 %r4, %r3, {lane << 16}; {fill}
      tcgen05.st.sync.aligned.{shape}.x{num}{".unpack::16b" if pack else ""}.b32 [%r4]{half}, {{{names}}};
      tcgen05.wait::st.sync.aligned; {wipe}
      tcgen05.ld.sync.aligned.{shape}.x{num}{".pack::16b" if pack else ""}.b32 {{{names}}}, [%r4]{half};
      tcgen05.wait::ld.sync.aligned;
      mul.wide.u32 %d1, %lane, {4 * count}; add.u64 %a1, %a1, %d1; {put} {dump} {free("%r3", room)} ret;"""
    back = np.zeros((32, count), np.uint32)
    seen = out(body, 32 * width, back, top=TOP).reshape(width, 32)
    lanes, index = np.arange(32)[:, None], np.arange(count)
    values = (lanes * 7919 * (index + 1) + (2654435761 * (index + 3) & 0xFFFF_FFFF)) & 0xFFFF_FFFF
    assert np.array_equal(back, values)
    rows = tmem_ld_map(shape, num, split * (2 if pack else 1))[0] + lane
    for name, part in (("low", values & 0xFFFF), ("high", values >> 16)) if pack else (("", values),):
        assert np.array_equal(seen[columns + (name == "high"), rows], part.T), name


@pytest.mark.parametrize(("shape", "num"), SHAPES)
def test_store_and_load_keep_values(shape: str, num: int) -> None:
    exchange(shape, num, pack=False)


@pytest.mark.parametrize(("shape", "num"), [(shape, 2**k) for shape in PER for k in (0, 2, 4)])
def test_packed_store_and_load_keep_values(shape: str, num: int) -> None:
    exchange(shape, num, pack=True)


@pytest.mark.parametrize("shape", ["16x64b", "16x128b", "16x256b", "16x32bx2"])
def test_shapes_reach_the_upper_half_of_a_quarter(shape: str) -> None:
    exchange(shape, 4, pack=False, lane=16)


@pytest.mark.parametrize(
    "change",
    [
        "mov.u32 %r10, 7;",
        "setp.eq.u32 %p0, %t, 99; @%p0 bra NEXT; mov.u32 %r10, 7; NEXT:",
        "setp.ge.u32 %p0, %t, 7; bar.red.popc.u32 %r10, 1, !%p0;",
    ],
)
def test_a_store_takes_the_registers_at_its_place(change: str) -> None:
    """PTX orders a thread's accesses to its registers; FlashAttention-4 reuses registers before tcgen05.wait::st."""
    body = f"""{alloc(32)} ld.shared.u32 %r3, [at]; mad.lo.u32 %r10, %lane, 3, 1;
      tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {{%r10}}; {change} tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r11}}, [%r3]; tcgen05.wait::ld.sync.aligned; add.u32 %r11, %r11, %r10;
      st.global.u32 [%o], %r11; {free("%r3", 32)} ret;"""
    assert out(body, 32, top=TOP).tolist() == [3 * lane + 8 for lane in range(32)]


def test_every_warp_has_its_quarter() -> None:
    body = f"""
      setp.ne.u32 %p0, %warp, 0; @%p0 bra READY; {alloc(32)} READY: bar.sync 0; ld.shared.u32 %r3, [at];
      and.b32 %r5, %warp, 3; shl.b32 %r5, %r5, 21; add.u32 %r4, %r3, %r5; setp.gt.u32 %p1, %warp, 3; @%p1 bra READ;
      tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {{%t}}; tcgen05.wait::st.sync.aligned; bar.sync 0; bra END;
    READ: bar.sync 0; tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r10}}, [%r4]; tcgen05.wait::ld.sync.aligned;
    st.global.u32 [%o], %r10;
    END: bar.sync 0; @%p0 ret; {free("%r3", 32)} ret;"""
    assert out(body, 256, block=256, top=TOP)[128:].tolist() == list(range(128))


QUARTERS = f"""
      setp.ne.u32 %p0, %warp, 0; @%p0 bra READY; {alloc(32)} READY: bar.sync 0; ld.shared.u32 %r3, [at];
      shl.b32 %r5, %warp, 21; add.u32 %r5, %r5, %r3; ADDRESS
      tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {{%t}}; tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r10}}, [%r4]; tcgen05.wait::ld.sync.aligned;
      add.u32 %r10, %r10, 1000; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {{%r10}}; tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r10}}, [%r5]; tcgen05.wait::ld.sync.aligned; st.global.u32 [%o], %r10;
      bar.sync 0; @%p0 ret; {free("%r3", 32)} ret;"""
ADDRESSES = {"the warp's own lanes": "mov.u32 %r4, %r5;", "lane 0": "mov.u32 %r4, %r3;"}
ADDRESSES["the second CTA's lanes"] = "add.u32 %r4, %r5, 0x800000;"


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_warp_reaches_its_own_quarter_by_all_addresses_in_use(address: str) -> None:
    """DeepGEMM's four warps all give lane 0; published kernels of CTA pairs give lanes 128 to 255 in the second."""
    body = QUARTERS.replace("ADDRESS", ADDRESSES[address])
    assert out(body, 128, block=128, top=TOP).tolist() == list(range(1000, 1128))
    array = np.zeros(128, np.uint32)
    used, own = (
        ww.load_ptx(text(QUARTERS.replace("ADDRESS", line), (array,), TOP))["k"]
        for line in (ADDRESSES[address], ADDRESSES["the warp's own lanes"])
    )
    launch: dict[str, Any] = {"grid": 1, "block": 128, "args": [array]}
    assert ww.check(used, **launch).kind == "clean"
    assert ww.profile(used, **launch).cycles == pytest.approx(ww.profile(own, **launch).cycles, abs=2)


def test_fresh_tensor_memory_is_not_zero() -> None:
    """Tensor memory that no thread has written has no defined value."""
    body = f"""{START} tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r10}}, [%r3]; tcgen05.wait::ld.sync.aligned;
        st.global.u32 [%o], %r10; {free("%r3", 64)} ret;"""
    assert np.isnan(out(body, top=TOP).view(np.float32)).all()


def test_other_targets_refuse_tensor_memory() -> None:
    body = f"{alloc(32)} ret;"
    with pytest.raises(UnsupportedInstruction) as caught:
        run(body, np.zeros(1), target="sm_90a", device="h200", top=TOP)
    opcode = body.split()[0]
    assert str(caught.value) == f"PTX line {line_of(body, opcode)}: `{opcode}`: sm_90a does not have this instruction."
