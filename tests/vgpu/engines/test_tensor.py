"""The queue of the tensor engine: fusion, order, commits, tcgen05.cp and shift, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vgpu.engines.fabric import MBAR, Cluster, operation, shared_address
from tests.vgpu.engines.operands import DTYPES, swizzle_address
from tests.vgpu.engines.test_mma import A_AT, B_AT, COLUMN, exact, matrices, place_shares
from warpwright.errors import DescriptorError, MemoryFault, ProtocolError, UnsupportedInstruction
from warpwright.layout import InstrDescriptor, SmemDescriptor
from warpwright.vgpu.engines import product, tensor
from warpwright.vgpu.jit.state import SHARED_WINDOW

MMA = "tcgen05.mma.cta_group::{}.kind::f16"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster{}.b64"
CP = "tcgen05.cp.cta_group::{}.{}"
SHIFT = "tcgen05.shift.cta_group::{}.down"
IDESC = {group: InstrDescriptor("f16", "bf16", "bf16", "f32", 128 * group, 32).encode() for group in (1, 2)}


def fill_with_integers(ranks: int = 2) -> Cluster:
    """Fill shared memory with bf16 and tensor memory with float32 -1, 0 and 1: sums are exact, and so are reads as
    bf16."""
    cluster, random = Cluster(ranks, limit=32 * 1024), np.random.default_rng(11)
    for rank in range(ranks):
        cluster.shared[rank] = random.integers(-1, 2, 16 * 1024).astype(DTYPES["bf16"]).view(np.uint8)
    cluster.tmem[:] = random.integers(-1, 2, cluster.tmem.shape).astype(np.float32).view(np.int32)
    return cluster


def descriptor(at: int) -> int:
    return SmemDescriptor(at, 16, 1024, 128).encode()


@st.composite
def queues(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...], int, bool]]:
    """Draws operations of two threads on few accumulators that may overlap, with mixed shapes and groups."""
    ops = []
    for _ in range(draw(st.integers(1, 12))):
        group, rank = draw(st.sampled_from([(1, 0), (1, 1), (2, 0)]))
        column = draw(st.sampled_from([0, 0, 0, 32, 48, 64]))
        a, b = (descriptor(1024 * draw(st.integers(1, 3)) + 32 * draw(st.integers(0, 3))) for _ in range(2))
        enable, idesc = draw(st.sampled_from([1, 1, 1, 0])), IDESC[group]
        kind = draw(st.sampled_from(["mma"] * 6 + ["masked", "scaled", "tmem", "cp", "shift", "commit"]))
        masks = (0x0F0F_0F0F,) * (4 * group) if kind == "masked" else (0,) * (4 * group)
        tail = (*masks, enable, *([1] if kind == "scaled" else []))
        source = draw(st.sampled_from([32, 96]))
        ops.append(
            {
                "mma": (MMA.format(group), (column, a, b, idesc, enable), rank, False),
                "masked": (MMA.format(group), (column, a, b, idesc, *tail), rank, False),
                "scaled": (MMA.format(group), (column, a, b, idesc, *tail), rank, False),
                "tmem": (MMA.format(group), (column, source, b, idesc, enable), rank, True),
                "cp": (CP.format(group, "128x256b"), (column, a), rank, False),
                "shift": (SHIFT.format(group), (column,), rank, False),
                "commit": (COMMIT.format(""), (shared_address(rank, MBAR),), rank, False),
            }[kind]
        )
    return ops


@given(queues())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_a_queue_equals_its_operations_one_by_one(
    queue: list[tuple[str, tuple[int, ...], int, bool]],
) -> None:
    ops = [operation(opcode, *words, rank=rank, a_in_tmem=tmem) for opcode, words, rank, tmem in queue]
    together, separate = fill_with_integers(), fill_with_integers()
    tensor.complete(together, ops)
    for op in ops:
        tensor.complete(separate, [op])
    memories = [cluster.tmem.view(np.float32) for cluster in (together, separate)]
    np.testing.assert_array_equal(*(np.nan_to_num(values, nan=0.5) for values in memories))
    assert together.log == separate.log


@pytest.fixture
def matmul_shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Returns the list of the shapes (N, K) of the products that the engine computes."""
    found: list[tuple[int, ...]] = []
    prepare = product.prepare

    def record(fabric: Any, place: Any, shapes: Any, descriptors: Any, k: int) -> Any:
        found.append((shapes[1].rows, k))
        return prepare(fabric, place, shapes, descriptors, k)

    monkeypatch.setattr(product, "prepare", record)
    return found


def test_instructions_on_one_accumulator_are_one_matmul_across_commits(matmul_shapes: list[tuple[int, ...]]) -> None:
    cluster, ops = fill_with_integers(), []
    for i in range(8):
        words = 0, descriptor(2048 + 32 * (i % 4)), descriptor(4096 + 32 * (i % 4)), IDESC[2], i > 0
        ops.append(operation(MMA.format(2), *words))
        if i % 4 == 3:
            ops.append(operation(COMMIT.format(""), MBAR + 8 * (i // 4)))
    tensor.complete(cluster, ops)
    assert matmul_shapes == [(32, 128)]
    assert cluster.log == [("arrive", 0, MBAR), ("arrive", 0, MBAR + 8)]


def test_alternating_accumulators_are_two_matmuls(matmul_shapes: list[tuple[int, ...]]) -> None:
    cluster = fill_with_integers()
    words = descriptor(2048), descriptor(4096), IDESC[1]
    tensor.complete(cluster, [operation(MMA.format(1), 64 * (i % 2), *words, i > 1) for i in range(10)])
    assert matmul_shapes == [(32, 80), (32, 80)]


def test_a_matmul_has_at_most_1024_k(matmul_shapes: list[tuple[int, ...]]) -> None:
    cluster = fill_with_integers()
    words = descriptor(2048), descriptor(4096), IDESC[1]
    tensor.complete(cluster, [operation(MMA.format(1), 0, *words, i > 0) for i in range(70)])
    assert matmul_shapes == [(32, 1024), (32, 96)]


def test_a_long_run_scales_its_accumulator_once() -> None:
    together, separate = fill_with_integers(), fill_with_integers()
    words = descriptor(2048), descriptor(4096), IDESC[1], 1
    ops = [operation(MMA.format(1), 0, *words, 0 if i else 3) for i in range(70)]
    tensor.complete(together, ops)
    for op in ops:
        tensor.complete(separate, [op])
    np.testing.assert_array_equal(together.tmem, separate.tmem)


def test_masks_of_zeros_do_not_split_a_matmul(matmul_shapes: list[tuple[int, ...]]) -> None:
    cluster = fill_with_integers()
    words = descriptor(2048), descriptor(4096), IDESC[1], 0, 0, 0, 0
    tensor.complete(cluster, [operation(MMA.format(1), 0, *words, i > 0) for i in range(4)])
    assert matmul_shapes == [(32, 64)]


def test_commits_arrive_after_all_data(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, seen = fill_with_integers(), []
    monkeypatch.setattr(cluster, "arrive", lambda *_: seen.append(cluster.tmem.copy()))
    first = operation(MMA.format(1), 0, descriptor(2048), descriptor(4096), IDESC[1], 0)
    tensor.complete(cluster, [first, operation(COMMIT.format(""), MBAR)])
    np.testing.assert_array_equal(seen[0], cluster.tmem)


@pytest.mark.parametrize("window", [0, SHARED_WINDOW])
def test_a_commit_arrives_once_at_the_cta_of_the_address(window: int) -> None:
    cluster = Cluster(2)
    opcode = COMMIT.format("") if not window else COMMIT.format("").replace(".shared::cluster", "")
    tensor.complete(cluster, [operation(opcode, window + shared_address(1, MBAR))])
    assert cluster.log == [("arrive", 1, MBAR)]


def test_a_multicast_commit_arrives_at_every_selected_cta() -> None:
    cluster = Cluster(4)
    tensor.complete(cluster, [operation(COMMIT.format(".multicast::cluster"), MBAR, 0b1101)])
    assert cluster.log == [("arrive", rank, MBAR) for rank in (0, 2, 3)]


COPIED_LANES = {
    "128x256b": lambda row: [row],
    "128x128b": lambda row: [row],
    "4x256b": lambda row: [32 * row],
    "64x128b.warpx2::02_13": lambda row: [row, row + 64],
    "64x128b.warpx2::01_23": lambda row: [row % 32 + 64 * (row // 32), row % 32 + 64 * (row // 32) + 32],
    "32x128b.warpx4": lambda row: [row + 32 * quarter for quarter in range(4)],
}


@pytest.mark.parametrize("shape", COPIED_LANES)
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("mode", [0, 32])
def test_rows_of_shared_memory_become_lanes(shape: str, group: int, mode: int) -> None:
    cluster, base = Cluster(group), 5 if shape.startswith("4x") else 0
    rows, words = int(shape.split("x")[0]), int(shape.split("x")[1].split("b")[0]) // 32
    lbo, sbo = (128 * rows, 128) if mode == 0 else (16, 256)
    expected = cluster.tmem.copy()
    for rank in range(group):
        for row in range(rows):
            for word in range(words):
                inside = word // 4 * lbo + row % 8 * 16 + word % 4 * 4 if mode == 0 else row % 8 * 32 + word * 4
                at = swizzle_address(A_AT + row // 8 * sbo + inside, mode)
                for lane in COPIED_LANES[shape](row):
                    expected[rank, COLUMN + word, base + lane] = cluster.shared[rank, at : at + 4].view(np.int32)[0]
    ignored = 0 if mode else 5  # a base offset means nothing without a swizzle
    words_of = base << 16 | COLUMN, SmemDescriptor(A_AT, lbo, sbo, mode, base_offset=ignored).encode()
    tensor.complete(cluster, [operation(CP.format(group, shape), *words_of)])
    np.testing.assert_array_equal(cluster.tmem, expected)


@pytest.mark.parametrize(("group", "base"), [(1, 0), (1, 64), (2, 0)])
def test_lanes_take_32_bytes_of_the_next_lane_of_their_quarter(group: int, base: int) -> None:
    cluster = Cluster(group)
    expected = cluster.tmem.copy()
    for lane in range(base, 128):
        if lane % 32 < 31:
            expected[:, COLUMN : COLUMN + 8, lane] = cluster.tmem[:, COLUMN : COLUMN + 8, lane + 1]
    tensor.complete(cluster, [operation(SHIFT.format(group), base << 16 | COLUMN)])
    np.testing.assert_array_equal(cluster.tmem, expected)


def test_an_accumulator_may_feed_the_next_mma_as_a() -> None:
    cluster = Cluster()
    a, b = matrices("tf32", "tf32", "tf32", 128, 8)
    opcode, idesc = (
        "tcgen05.mma.cta_group::1.kind::tf32",
        InstrDescriptor("tf32", "tf32", "tf32", "f32", 128, 8).encode(),
    )
    first, second = place_shares(cluster, A_AT, a, 1), place_shares(cluster, B_AT, b, 1)
    ops = [
        operation(opcode, 0, first, second, idesc, 0),
        operation(opcode, 64, 0, second, idesc, 0, a_in_tmem=True),
        operation(opcode, 0, first, second, idesc, 1),
        operation(opcode, 64, 0, second, idesc, 1, a_in_tmem=True),
    ]
    tensor.complete(cluster, ops)
    got = cluster.tmem[0, 64:72].view(np.float32).T
    np.testing.assert_array_equal(got, 3 * (exact(a) @ exact(b).T) @ exact(b).T)


GOOD = descriptor(2048), descriptor(4096)
F16 = "tcgen05.mma.cta_group::1.kind::f16"
REFUSED = {
    "columns that are not allocated": (
        F16, (480, *GOOD, IDESC[1] + (16 << 17) - (4 << 17), 0), ProtocolError,
        "tensor memory columns 480..607 are not allocated in CTA 0: allocate them with tcgen05.alloc before, and free "
        "them only after this instruction is complete",
    ),
    "columns freed in the peer": (
        MMA.format(2), (0, *GOOD, IDESC[2], 0), ProtocolError,
        "tensor memory columns 0..31 are not allocated in CTA 1: allocate them with tcgen05.alloc before, and "
        "free them "
        "only after this instruction is complete",
    ),
    "a lane in the address": (
        F16, (5 << 16, *GOOD, IDESC[1], 0), ProtocolError,
        "tensor memory address 0x00050000 names lane 5; expected lane 0; clear bits 16 to 31 of the address",
    ),
    "a descriptor outside shared memory": (
        F16, (0, descriptor(60 * 1024), GOOD[1], IDESC[1], 0), DescriptorError,
        "descriptor points outside shared memory: 0x4000404000010f00 reads bytes 61440 to 77823; expected them within "
        "1024 to 65535; mend the start address or the byte offsets",
    ),
    "a descriptor of the system's bytes": (
        F16, (0, GOOD[0], SmemDescriptor(0, 16, 1024, 128).encode(), IDESC[1], 0), DescriptorError,
        "descriptor points outside shared memory: 0x4000404000010000 reads bytes 0 to 4095; expected them within 1024 "
        "to 65535; mend the start address or the byte offsets",
    ),
    "a descriptor of another version": (
        F16, (0, GOOD[0] & ~(1 << 46), GOOD[1], IDESC[1], 0), DescriptorError,
        "given descriptor 0x4000004000010080 with version bits 46-48 = 0; expected 1 on sm_100a; set bit 46 and clear "
        "bits 47 and 48",
    ),
    "a base offset": (
        F16, (0, GOOD[0] | 1 << 49, GOOD[1], IDESC[1], 0), DescriptorError,
        "given base offset 1; expected 0; start the swizzle pattern at a multiple of 1024 bytes",
    ),
    "an M that does not exist": (
        F16, (0, *GOOD, IDESC[2], 0), DescriptorError,
        "given M=256 for tcgen05.mma kind::f16 cta_group::1; expected one of 64, 128",
    ),
    "types of another kind": (
        F16, (0, *GOOD, IDESC[1] | 2 << 7, 0), DescriptorError,
        "given instruction descriptor 0x08080590 with type code 3 for A; expected one of 0 (f16), 1 (bf16) with "
        "kind::f16",
    ),
    "reserved bits": (
        F16, (0, *GOOD, IDESC[1] | 1 << 29, 0), DescriptorError,
        "given instruction descriptor 0x28080490 for kind::f16 with reserved bits 0x20000000; expected 0 there; "
        "build it "
        "with InstrDescriptor(...).encode()",
    ),
    "sparse operands": (
        F16, (0, *GOOD, IDESC[1] | 1 << 2, 0), DescriptorError,
        "given instruction descriptor 0x08080494 with the sparse bit set; expected it only with tcgen05.mma.sp",
    ),
    "the swizzle of MN-major tf32 for another type": (
        F16, (0, SmemDescriptor(2048, 16, 1024, "128B_ATOM_32B").encode(), GOOD[1], IDESC[1], 0), DescriptorError,
        "given swizzle '128B_ATOM_32B' for a bf16 operand that is K-major; expected '128B_ATOM_32B' for tf32 "
        "operands that "
        "are MN-major and another swizzle for all others",
    ),
    "K of 96": (
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale",
        (0, *GOOD, InstrDescriptor("mxf4", "e2m1", "e2m1", "f32", 128, 32, k96=True).encode(), 64, 96, 0),
        DescriptorError,
        "given instruction descriptor 0x88880480 with K = 96, which the virtual GPU does not execute; expected K = 64",
    ),
    "block scales with M of 64 in each CTA": (
        "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale",
        (0, *GOOD, InstrDescriptor("mxf8f6f4", "e4m3", "e4m3", "f32", 128, 32).encode(), 64, 96, 0), DescriptorError,
        "given instruction descriptor 0x08880000 with M = 128, block scales and cta_group::2, which the virtual GPU "
        "does not execute; expected M = 256",
    ),
    "scale factors of ue4m3 for 32 elements": (
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block32",
        (0, *GOOD, InstrDescriptor("mxf4nvf4", "e2m1", "e2m1", "f32", 128, 32, scale_type="ue4m3").encode(), 64, 96, 0),
        DescriptorError,
        "given scale factors of type ue4m3 with blocks of 32; expected ue8m0, or blocks of 16: write "
        "kind::mxf4nvf4.block_scale.block16",
    ),
    "an odd ID of two scale factors": (
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale",
        (0, *GOOD, InstrDescriptor("mxf4", "e2m1", "e2m1", "f32", 128, 32, sfa_id=1).encode(), 64, 96, 0),
        DescriptorError,
        "given scale factor ID 1 of A with 2 scale factors a row; expected 0 or 2; mend bits 29 and 30 of the "
        "instruction descriptor",
    ),
    "scale factors without copies": (
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale",
        (0, *GOOD, InstrDescriptor("mxf8f6f4", "e4m3", "e4m3", "f32", 128, 32).encode(), 64, 96, 0), ProtocolError,
        "the scale factors of A at tensor memory column 64 of CTA 0 differ between lanes 0..31 and lanes 32..63; "
        "expected four copies; copy them with tcgen05.cp.32x128b.warpx4",
    ),
    "a zero-column mask": (
        "tcgen05.mma.ws.cta_group::1.kind::f16",
        (0, *GOOD, InstrDescriptor("f16", "bf16", "bf16", "f32", 128, 64).encode(), 0, 3), UnsupportedInstruction,
        "the virtual GPU does not execute zero-column masks, 0x3 here; expected 0",
    ),
    "decompression": (
        CP.format(1, "128x256b.b8x16.b6x16_p32"), (0, GOOD[0]), UnsupportedInstruction,
        "the virtual GPU does not decompress .b6x16_p32 to .b8x16; copy bytes instead",
    ),
    "a copy from outside shared memory": (
        CP.format(1, "128x128b"), (0, SmemDescriptor(65024, 16, 128, 0).encode()), DescriptorError,
        "descriptor points outside shared memory: 0x0000400800010fe0 reads bytes 65024 to 67071; expected them within "
        "1024 to 65535; mend the start address or the byte offsets",
    ),
    "a copy to a lane": (
        CP.format(1, "32x128b.warpx4"), (32 << 16, GOOD[0]), ProtocolError,
        "tensor memory address 0x00200000 names lane 32; expected lane 0; clear bits 16 to 31 of the address",
    ),
    "a barrier outside shared memory": (
        COMMIT.format(""), (64,), MemoryFault,
        "the mbarrier takes bytes 64 to 71 of the shared memory of CTA 0; expected them within 1024 to 65535; mend the "
        "address or launch with more shared memory",
    ),
    "a multicast beyond the cluster": (
        COMMIT.format(".multicast::cluster"), (MBAR, 0b100), ProtocolError,
        "the multicast mask 0x4 names CTA 2; expected CTA 0 to 1; clear the bits above the size of the cluster",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_tensor_engine_refuses_bad_operands(case: str) -> None:
    opcode, words, kind, sentence = REFUSED[case]
    cluster = Cluster(2)
    cluster.allocated[1] = 0xFFFE
    with pytest.raises(kind) as raised:
        tensor.complete(cluster, [operation(opcode, *words)])
    assert str(raised.value) == sentence


def test_mma_refuses_4_bit_types_in_tensor_memory() -> None:
    """PTX shows in a figure alone where a byte of tensor memory holds the element."""
    idesc = InstrDescriptor("f8f6f4", "e2m1", "e4m3", "f32", 128, 32).encode()
    op = operation("tcgen05.mma.cta_group::1.kind::f8f6f4", 0, 300, GOOD[1], idesc, 0, a_in_tmem=True)
    with pytest.raises(DescriptorError) as raised:
        tensor.complete(Cluster(), [op])
    assert str(raised.value) == (
        "given A of type e2m1 in tensor memory, which the virtual GPU does not multiply; store A in shared memory"
    )


def test_mma_refuses_a_shifted_a() -> None:
    op = operation("tcgen05.mma.cta_group::1.kind::f16.ashift", 0, 64, GOOD[1], IDESC[1], 0, a_in_tmem=True)
    with pytest.raises(UnsupportedInstruction) as raised:
        tensor.complete(Cluster(), [op])
    assert str(raised.value) == (
        "the virtual GPU does not execute .ashift; use tcgen05.shift or store the shifted rows of A"
    )


def test_mma_refuses_an_mn_major_a_in_tensor_memory() -> None:
    op = operation(F16, 0, 64, GOOD[1], IDESC[1] | 1 << 15, 0, a_in_tmem=True)
    with pytest.raises(DescriptorError) as raised:
        tensor.complete(Cluster(), [op])
    assert str(raised.value) == (
        "given instruction descriptor 0x08088490 with an MN-major A in tensor memory; expected K-major: clear bit 15"
    )


def test_a_pair_needs_two_ctas() -> None:
    with pytest.raises(ProtocolError) as raised:
        tensor.complete(Cluster(1), [operation(MMA.format(2), 0, *GOOD, IDESC[2], 0)])
    assert str(raised.value) == (
        "cta_group::2 needs the pair of CTA 0, CTA 1; the cluster has 1; launch with an even cluster size or use "
        "cta_group::1"
    )


def test_the_error_names_its_instruction_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, blamed = fill_with_integers(), []
    monkeypatch.setattr(cluster, "failure", lambda kind, op, message: blamed.append(op) or kind(message))
    bad = SmemDescriptor(64, 16, 1024, 128).encode()
    pairs = [GOOD, (GOOD[0], bad), (bad, GOOD[1])]
    ops = [operation(F16, 0, a, b, IDESC[1], i > 0) for i, (a, b) in enumerate(pairs)]
    with pytest.raises(DescriptorError):
        tensor.complete(cluster, ops)
    assert blamed == [ops[1]]
