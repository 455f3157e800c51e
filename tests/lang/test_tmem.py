"""Tensor memory: claims of columns, the allocation protocol, and errors."""

from __future__ import annotations

import pytest

from tests.lang.ops.emission import emit, text
from warpwright.errors import KernelError
from warpwright.lang import Ring, bf16, f32, f64, tcgen05, tmem


def test_protocol() -> None:
    def body(a, x, n):
        tmem.tile(f32, (128, 96))
        tmem.alloc()
        tmem.open()
        tmem.dealloc()

    assert emit(body) == [
        "mov.u32 %r0, __smem",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 128",
        "ld.shared.u32 %r1, [%r0]",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 128",
    ]


@pytest.mark.parametrize(("columns", "allocated"), [(1, 32), (32, 32), (33, 64), (256, 256), (257, 512), (512, 512)])
def test_a_power_of_two_of_columns_is_allocated(columns, allocated) -> None:
    def body(a, x, n):
        tmem.tile(bf16, (64, columns))
        tmem.alloc()

    assert emit(body)[-1].endswith(f", {allocated}")


def test_tiles_are_side_by_side_and_slices_inside_them() -> None:
    def body(a, x, n):
        tmem.tile(f32, (128, 64))
        second = tmem.tile(f32, (128, 64))
        tmem.alloc()
        tmem.open()
        tcgen05.ld(second)
        tcgen05.ld(second[:, 16:48][:, 8:16])

    loads = [line.rsplit("+", 1)[1] for line in emit(body) if line.startswith("tcgen05.ld")]
    assert loads == ["64]", "88]"]


def claim(*shapes, **options):
    return [tmem.tile(f32, shape, **options) for shape in shapes]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: claim((256, 64)),
            "given a tmem.tile of f32 (256, 64); expected at most 128 lanes × 512 columns of 32 bits",
        ),
        (
            lambda: tmem.tile(f64, (128, 8)),
            "given a tmem.tile of f64 (128, 8); expected at most 128 lanes × 512 columns of 32 bits",
        ),
        (
            lambda: claim((128, 512), (128, 8)),
            "given tiles of 520 columns of tensor memory; expected at most 512: use fewer stages or columns",
        ),
        (
            lambda: Ring(3, d=claim((128, 256))[0]),
            "given tiles of 768 columns of tensor memory; expected at most 512: use fewer stages or columns",
        ),
        (
            lambda: (claim((128, 8)), claim((128, 8), cta_group=2)),
            "given cta_group=2 in a kernel that uses cta_group=1; expected one cta_group in every tcgen05 instruction "
            "of a kernel",
        ),
        (
            lambda: claim((128, 8), cta_group=2),
            "given cta_group=2 in clusters of 1; expected CTA pairs: @kernel(…, cluster=2), or another even number",
        ),
        (
            lambda: (claim((128, 8)), tmem.alloc(), claim((128, 8))),
            "given a tmem.tile after tmem.alloc(); expected every tile before it: move the tile up",
        ),
        (
            lambda: (claim((128, 8)), tmem.alloc(), tmem.alloc()),
            "given a second tmem.alloc(); expected one, after the last tmem.tile",
        ),
        (
            lambda: (claim((128, 8)), tmem.open()),
            "given tmem.open() without tmem.alloc(); expected one warp to allocate first",
        ),
        (
            lambda: tcgen05.ld(claim((128, 8))[0]),
            "given a tmem.tile before tmem.open(); expected tmem.alloc(), a barrier, then tmem.open()",
        ),
        (
            tmem.alloc,
            "given tensor memory without a tile; expected tmem.tile(dtype, (lanes, columns)) first",
        ),
        (
            lambda: claim((128, 8))[0][0:64, :],
            "given tile[(slice(0, 64, None), slice(None, None, None))] of tensor memory; "
            "expected tile[:, start:stop], a range of columns",
        ),
        (lambda: claim((128, 8))[0][:, 8:], "given tile[:, 8:None]; expected at least one of 8 columns"),
    ],
)
def test_misuse_is_named(call, sentence) -> None:
    with pytest.raises(KernelError) as caught:
        text(lambda a, x, n: call())
    assert str(caught.value) == f"{caught.value.where}: {sentence}"
