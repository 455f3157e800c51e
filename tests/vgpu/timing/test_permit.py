"""An SM runs one CTA at a time if a CTA keeps its permit to allocate tensor memory."""

from __future__ import annotations

import pytest

import warpwright as ww
from warpwright.report.advice import advice
from warpwright.vgpu.timing import Profile

TEXT = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k()
{{
    .reg .b32 %r<2>;
    .reg .b64 %d<3>;
    .reg .pred %p0;
    .shared .align 4 .b32 slot;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], {columns};
    {relinquish}
    ld.shared.u32 %r0, [slot];
    mov.u32 %r1, 0;
work:
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p0, %r1, 200;
    @%p0 bra work;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r0, {columns};
    ret;
}}
"""
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"


def profile(relinquish: str, columns: int = 128, ctas: int = 8 * 148) -> Profile:
    text = TEXT.format(relinquish=relinquish, columns=columns)
    return ww.profile(ww.load_ptx(text)["k"], ctas, block=32, device="b200")


@pytest.mark.parametrize(("columns", "fitting"), [(64, 8), (128, 4), (512, 1)])
def test_ctas_share_an_sm_once_the_permit_is_relinquished(columns: int, fitting: int) -> None:
    shared, alone = profile(RELINQUISH, columns), profile("", columns)
    assert (shared.ctas_per_sm, shared.ctas_fitting) == (fitting, fitting)
    assert (alone.ctas_per_sm, alone.ctas_fitting) == (1, fitting)
    assert alone.waves == fitting * shared.waves
    assert (alone.cycles > 1.5 * shared.cycles) == (fitting > 1)


def test_advice_names_the_permit_where_more_ctas_fit() -> None:
    (found,) = [each for each in advice(profile("")) if each.topic == "occupancy"]
    assert found.text == (
        "an SM runs 1 CTA at a time, although 4 fit: a CTA keeps its permit to allocate tensor memory until it exits; "
        "execute tcgen05.relinquish_alloc_permit after the last tcgen05.alloc"
    )
    assert 0 < found.gain <= 300
    for other in (profile(RELINQUISH), profile("", 512), profile("", ctas=148)):
        assert "occupancy" not in [each.topic for each in advice(other)]
