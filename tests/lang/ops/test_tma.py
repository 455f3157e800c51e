"""The PTX of tensor copies: order of coordinates, modifiers, the maps recorded for the host, and errors."""

from __future__ import annotations

import pytest

from tests.lang.ops.emission import emit, instructions, opcodes
from warpwright.errors import KernelError
from warpwright.lang import bf16, cluster, f16, f32, kernel, mbarrier, smem, tma, u32
from warpwright.types import Scalar

LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


def copies(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("cp.async.bulk")]


def test_coordinates_are_given_in_array_order_and_emitted_innermost_first() -> None:
    def body(a, x, n):
        tma.load(smem.tile(bf16, (128, 64), swizzle=128), a[n, -3], mbarrier())

    assert copies(emit(body)) == [f"{LOAD} [%r1+1024], [%rd1, {{-3, %r0}}], [%r1]"]


def test_modifiers_are_in_the_order_of_ptxas() -> None:
    def body(a, x, n):
        tile, bar = smem.tile(bf16, (64, 64), swizzle=128), mbarrier()
        tma.load(tile, a[0, n], bar, cta_group=2, multicast=0b11, cache_hint=0x12F0000000000000)
        tma.load(tile, a[0, n], bar.at(0), cta_group=2)
        tma.load(tile, a[0, n], bar, cta_group=1)

    opcodes_found = opcodes(copies(emit(body, cluster=2)))
    assert opcodes_found == [
        f"{LOAD}.multicast::cluster.cta_group::2.L2::cache_hint",
        f"{LOAD}.cta_group::2",
        f"{LOAD}.cta_group::1",
    ]


def test_the_peer_bit_may_be_written_as_arithmetic_on_raw_addresses() -> None:
    def body(a, x, n):
        tile, bar = smem.tile(bf16, (64, 64), swizzle=128), mbarrier()
        leader = cluster.map(bar.address, cluster.rank) & 0xFEFFFFFF
        tma.load(tile, a[0, 0], leader, cta_group=2)
        tma.load(tile.address & 0xFEFFFFFF, a[0, 0], leader, cta_group=2)

    lines = emit(body, cluster=2)
    masked = [line.split()[1].rstrip(",") for line in lines if line.endswith(str(0xFEFFFFFF))]
    assert len(masked) == 2
    first, second = copies(lines)
    assert first.endswith(f"[{masked[0]}]") and not first.startswith(f"{LOAD}.cta_group::2 [{masked[1]}]")
    assert second.endswith(f"[{masked[0]}]") and f" [{masked[1]}]," in second


def test_a_reduction_of_a_box_and_a_policy() -> None:
    def body(a, x, n):
        tile = smem.tile(f32, (32, 32), swizzle=128)
        tma.reduce(a[n, 0], tile)
        tma.reduce(a[n, 0], tile, "max", cache_hint=tma.policy("evict_first"))
        tma.store(a[n, 0], tile, cache_hint=tma.policy("evict_first"))

    lines = emit(body)
    assert opcodes(line for line in lines if line.startswith("c") and "cvt" not in line) == [
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group",
        "createpolicy.fractional.L2::evict_first.b64",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.max.tile.bulk_group.L2::cache_hint",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint",
    ]
    policy = next(line for line in lines if line.startswith("createpolicy")).split()[1]
    assert [line.endswith(f", {policy}") for line in lines if line.startswith("cp.")] == [False, True, True]


def test_store_prefetch_and_groups() -> None:
    def body(a, x, n):
        tma.prefetch_map(a)
        tma.prefetch(a[n, 0])
        tma.store(a[n, 0], smem.tile(bf16, (128, 64), swizzle=128))
        tma.commit_group()
        tma.wait_group(1, read=True)
        tma.wait_group()

    assert opcodes(emit(body, arch="sm_90a"))[2:] == [
        "prefetch.tensormap",
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile",
        "mov.u32",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group",
        "cp.async.bulk.commit_group",
        "cp.async.bulk.wait_group.read",
        "cp.async.bulk.wait_group",
    ]


def test_bulk_copies_of_one_dimension() -> None:
    def body(a, x, n):
        line = smem.array(bf16, 512)
        tma.copy(line.address, x.address, 1024, mbarrier())
        tma.copy(x.address, line.address, n)

    assert opcodes(copies(emit(body, arch="sm_120a"))) == [
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
        "cp.async.bulk.global.shared::cta.bulk_group",
    ]


def test_a_bulk_copy_to_another_cta() -> None:
    def body(a, x, n):
        line, bar = smem.array(bf16, 512), mbarrier()
        tma.copy(cluster.map(line.address, n), line.address, 1024, bar.at(n))

    lines = emit(body, arch="sm_90a", cluster=2)
    assert opcodes(copies(lines)) == ["cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"]


def test_the_trace_records_the_maps_that_the_host_encodes() -> None:
    @kernel("sm_100a")
    def moves(a: tma.Map[bf16], b: tma.Map[Scalar], unused: tma.Map[bf16]) -> None:
        bar = mbarrier()
        tma.load(smem.tile(bf16, (128, 64), swizzle=128), a[0, 0], bar)
        tma.load(smem.tile(bf16, (128, 64), swizzle=128), a[128, 0], bar)
        tma.store(b[0, 0], smem.tile(f16, (32, 16)))

    assert moves.trace().maps == {
        "a": tma.MapUse((128, 64), 128, bf16),
        "b": tma.MapUse((32, 16), 0, f16),
    }


def test_leading_coordinates_select_one_element() -> None:
    @kernel("sm_90a")
    def moves(a: tma.Map[bf16], n: u32) -> None:
        tile = smem.tile(bf16, (128, 64), swizzle=128)
        tma.load(tile, a[n, 0, 64], mbarrier())
        tma.store(a[n, 128, 0], tile)

    assert moves.trace().maps == {"a": tma.MapUse((1, 128, 64), 128, bf16)}
    assert [opcode.split(".")[4] for opcode in opcodes(copies(instructions(moves.ptx())))] == ["3d", "3d"]


def test_a_wide_tile_is_copied_a_panel_at_a_time() -> None:
    def body(a, x, n):
        tile = smem.tile(bf16, (64, 128), swizzle=128)
        for column in range(0, 128, 64):
            tma.load(tile[:, column : column + 64], a[0, column], n)

    first, second = copies(emit(body))
    assert "[%r1]," in first and "[%r1+8192]," in second


def tile(dtype=bf16, shape=(128, 64), swizzle=128):
    return smem.tile(dtype, shape, swizzle=swizzle)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda a, b: tma.reduce(a[0, 0], tile(), "mul"),
            "given op='mul' to tma.reduce; expected one of add, min, max, inc, dec, and, or, xor",
        ),
        (
            lambda a, b: tma.policy("evict"),
            "given tma.policy('evict'); expected one of evict_first, evict_last, evict_normal, evict_unchanged",
        ),
        (
            lambda a, b: tma.load(tile(f16), b[0, 0], mbarrier()),
            "given a tile of f16 for tensor map b of bf16; expected one element type",
        ),
        (
            lambda a, b: tma.load(tile(), a[0], mbarrier()),
            "given 1 coordinates of tensor map a for a tile of shape (128, 64); "
            "expected at least one coordinate for each dimension",
        ),
        (
            lambda a, b: [tma.load(tile(shape=(rows, 64)), a[0, 0], mbarrier()) for rows in (64, 128)],
            "given a box of (128, 64) with swizzle 128 for tensor map a, which already has a box of (64, 64) with "
            "swizzle 128; expected one box for each map: pass a second map",
        ),
        (
            lambda a, b: tma.load(tile(shape=(64, 128)), a[0, 0], mbarrier()),
            "given rows of 256 bytes with swizzle 128 to tensor map a; expected at most 128: "
            "copy a panel at a time, tile[:, c:c + 64]",
        ),
        (
            lambda a, b: tma.load(tile(), a[0, 0], mbarrier(), cta_group=3),
            "given cta_group=3; expected 1 or 2",
        ),
        (
            lambda a, b: tma.load(tile(), a[0, 0], mbarrier(), multicast=0),
            "given multicast=0b0; expected a mask of ranks 0 to 15 with at least one bit set",
        ),
        (lambda a, b: tma.wait_group(-1), "given tma.wait_group(-1); expected 0 or more groups"),
        (
            lambda a, b: tma.copy(a.address, b.address, 16),
            "given tma.copy to u64 from u64 without a barrier; expected shared (u32) from global (u64) with a barrier, "
            "global from shared without one, or another CTA's shared memory with that CTA's barrier",
        ),
        (
            lambda a, b: tma.copy(a.address, b.address, 24),
            "given 24 bytes to tma.copy; expected a positive multiple of 16",
        ),
    ],
)
def test_misuse_is_named(call, sentence) -> None:
    @kernel("sm_100a")
    def wrong(a: tma.Map[Scalar], b: tma.Map[bf16], n: u32) -> None:
        call(a, b)

    with pytest.raises(KernelError) as caught:
        wrong.ptx()
    assert str(caught.value) == f"{caught.value.where}: {sentence}"


def test_cta_group_needs_its_target() -> None:
    def body(a, x, n):
        tma.load(tile(), a[0, 0], mbarrier(), cta_group=2)

    with pytest.raises(KernelError, match=r"needs sm_100.*traced for sm_90a"):
        emit(body, arch="sm_90a")
