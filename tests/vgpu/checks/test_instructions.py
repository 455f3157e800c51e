"""The checks of instructions that no kernel of the library uses: `ldu`, `red.async`, a wait for tensor memory."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from warpwright.vgpu.checks.findings import Verdict

HEADER = ".version 9.0\n.target {arch}\n.address_size 64\n"
LDU = """
.visible .entry k(.param .u64 x) {
  .reg .b32 %r<4>; .reg .b64 %d<4>;
  ld.param.u64 %d0, [x];
  ldu.global.u32 %r0, [%d0];
  st.global.u32 [%d0+4], %r0;
  ret;
}
"""
RED_ASYNC = """
.visible .entry k(.param .u64 x) {
  .reg .b32 %r<6>; .reg .b64 %d<4>; .reg .pred %p<3>;
  .shared .align 8 .b8 full[8];
  .shared .align 8 .b8 sum[8];
  mov.u32 %r0, full;
  mov.u32 %r1, sum;
  mov.u32 %r2, 1;
  st.shared.u32 [%r1], %r2;
  mbarrier.init.shared::cta.b64 [%r0], 1;
  fence.proxy.async.shared::cta;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 4;
  mapa.shared::cluster.u32 %r3, %r1, 0;
  mapa.shared::cluster.u32 %r4, %r0, 0;
  red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r3], %r2, [%r4];
wait:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0], 0;
  @!%p1 bra wait;
  ld.shared.u32 %r5, [%r1];
  ld.param.u64 %d0, [x];
  st.global.u32 [%d0], %r5;
  ret;
}
"""
ALLOC = """
.visible .entry k() {
  .reg .b32 %r<4>; .reg .pred %p<2>;
  .shared .align 8 .b8 address[16];
  mov.u32 %r0, %tid.x;
  setp.ge.u32 %p0, %r0, 32;
  @%p0 bra second;
  mov.u32 %r1, address;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512;
  bar.sync 1, 64;
  ld.shared.u32 %r2, [%r1];
  bar.sync 2, 64;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 512;
  ret;
second:
  bar.sync 1, 64;
  mov.u32 %r1, address+4;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512;
  ld.shared.u32 %r2, [%r1];
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 512;
  bar.sync 2, 64;
  ret;
}
"""

WMMA = """
.visible .entry k(.param .u64 x) {
  .reg .b32 %r<20>; .reg .b64 %d<4>; .reg .f32 %f<8>; .reg .pred %p<2>;
  .shared .align 32 .b8 tile[1024];
  ld.param.u64 %d0, [x];
  mov.u64 %d1, PLACE;
  mov.u32 %r0, %tid.x;
  setp.lt.u32 %p0, %r0, 32;
  mov.f32 %f0, 0f3F800000;
  @!%p0 bra second;
  wmma.store.d.sync.aligned.row.m16n16k16SPACE.f32 [%d1], {%f0, %f0, %f0, %f0, %f0, %f0, %f0, %f0};
second:
  bar.sync 0;
  @%p0 bra done;
  wmma.load.c.sync.aligned.col.m16n16k16SPACE.f32 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, [%d1];
  add.f32 %f0, %f0, %f7;
  mul.wide.u32 %d2, %r0, 4;
  add.u64 %d2, %d2, %d0;
  st.global.f32 [%d2+4096], %f0;
done:
  ret;
}
"""
WMMA_PLACES = {".shared": "tile", ".global": "%d0"}


def _check(text: str, device: str, block: int = 1, *args: np.ndarray) -> Verdict:
    arch = "sm_90a" if device == "h200" else "sm_100a"
    kernel = ww.load_ptx(HEADER.format(arch=arch) + text)["k"]
    return ww.check(kernel, grid=1, block=block, args=args, device=device, update=True)


def test_ldu_is_a_weak_load() -> None:
    x = np.array([7, 0], np.uint32)
    assert _check(LDU, "h200", 1, x).findings == ()
    assert x[1] == 7


def test_a_wait_makes_the_write_of_red_async_visible() -> None:
    x = np.zeros(1, np.uint32)
    assert _check(RED_ASYNC, "h200", 1, x).findings == ()
    assert x[0] == 2


def test_red_async_without_a_wait_races_with_the_load() -> None:
    text = RED_ASYNC.replace("@!%p1 bra wait;", "")
    assert [finding.rule.id for finding in _check(text, "h200", 1, np.zeros(1, np.uint32)).findings][:1] == ["race"]


@pytest.mark.parametrize("space", WMMA_PLACES)
def test_a_barrier_orders_wmma_accesses(space: str) -> None:
    text = WMMA.replace("SPACE", space).replace("PLACE", WMMA_PLACES[space])
    x = np.zeros(2048, np.float32)
    assert _check(text, "h200", 64, x).findings == ()
    assert (x[:256] == (space == ".global")).all() and (x[1056:1088] == 2).all()
    (found,) = _check(text.replace("  bar.sync 0;\n", ""), "h200", 64, x).findings
    assert found.rule.id == "race"
    assert [step.where for step in found.steps] == ["PTX line 14", "PTX line 17"]


def test_wmma_reads_what_nobody_wrote() -> None:
    text = WMMA.replace("SPACE", ".shared").replace("PLACE", "tile").replace("@!%p0 bra second", "bra second")
    (found,) = _check(text, "h200", 64, np.zeros(2048, np.float32)).findings
    assert found.rule.id == "uninitialised"


def test_a_deadlock_of_alloc_names_the_dealloc_after_a_barrier() -> None:
    (found,) = _check(ALLOC, "b200", 64).findings
    assert found.rule.id == "deadlock"
    assert "cycle: warp 0 → barrier 2 → warp 1 → 512 columns of tensor memory → warp 0" in found.message
    assert "(0 are free); PTX line 16 would arrive, but waits itself" in found.message
