"""Kernels as PTX text: one thread of each CTA moves boxes from tensor map ``x`` to tensor map ``y``.

Its registers: %x and %y are the addresses of the maps, %n is the number of the CTA, %t its own number, 0; %p (64 bits),
%r0 to %r7 (32 bits), %h and %w (16 bits) are free. The boxes are at ``tile`` in shared memory, the mbarrier is ``bar``.
"""

from __future__ import annotations

__all__ = ["text"]


def text(
    target: str, load: str, store: str, *, nbytes: int, start: str = "", early: str = "", late: str = "",
    waits: bool = True, params: str = "",
) -> str:  # fmt: skip
    """Returns PTX with one entry ``move``. ``nbytes``: of the loads; ``start``, ``early``, ``late``: code before the
    loads, before the wait and after the store; ``waits``: whether the store comes after the loads have completed."""
    return f""".version 8.7
.target {target}
.address_size 64
.visible .entry move(.param .align 64 .b8 x[128], .param .align 64 .b8 y[128]{params}) {{
    .reg .b64 %x, %y, %p;
    .reg .b32 %t, %n, %r<8>;
    .reg .b16 %h, %w;
    .reg .pred %first, %done;
    .shared .align 1024 .b8 tile[2048];
    .shared .align 8 .b64 bar;
    mov.b64 %x, x;
    cvta.param.u64 %x, %x;
    mov.b64 %y, y;
    cvta.param.u64 %y, %y;
    mov.u32 %t, %tid.x;
    mov.u32 %n, %ctaid.x;
    setp.ne.u32 %first, %t, 0;
    @%first bra END;
    {start}
    mbarrier.init.shared::cta.b64 [bar], 1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {nbytes};
    {load}
    {early}
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
    @!%done bra {"WAIT" if waits else "GO"};
GO:
    {store}
    {late}
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
END:
    ret;
}}
"""
