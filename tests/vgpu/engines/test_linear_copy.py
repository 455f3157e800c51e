"""Bulk copies of bytes, their reductions, and asynchronous stores of single values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.vgpu.engines.fabric import GLOBAL_AT, MBAR, Cluster, operation, shared_address
from warpwright.errors import MemoryFault, ProtocolError
from warpwright.vgpu.engines import copy
from warpwright.vgpu.engines.reduce import combine
from warpwright.vgpu.jit.state import SHARED_WINDOW

TO_CLUSTER = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
TO_CTA = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
BETWEEN = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
TO_GLOBAL = "cp.async.bulk.global.shared::cta.bulk_group"
REDUCE_GLOBAL = "cp.reduce.async.bulk.global.shared::cta.bulk_group"
REDUCE_SHARED = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
ST_ASYNC = "st.async.shared::cluster.mbarrier::complete_tx::bytes"
RED_ASYNC = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize("opcode", [TO_CLUSTER, TO_CTA])
def test_a_copy_reaches_shared_memory(opcode: str) -> None:
    cluster = Cluster()
    before = cluster.shared[0].copy()
    copy.complete(cluster, [operation(opcode, 2064, GLOBAL_AT + 32, 1008, MBAR)])
    np.testing.assert_array_equal(cluster.shared[0, 2064:3072], cluster.memory[32:1040])
    before[2064:3072] = cluster.memory[32:1040]
    np.testing.assert_array_equal(cluster.shared[0], before)
    assert cluster.log == [("tx", 0, MBAR, 1008)]


def test_a_multicast_reaches_several_ctas() -> None:
    cluster = Cluster(4)
    copy.complete(cluster, [operation(TO_CLUSTER + ".multicast::cluster", 2048, GLOBAL_AT, 64, MBAR, 0b1001)])
    for rank, reached in enumerate((True, False, False, True)):
        assert (cluster.shared[rank, 2048:2112] == cluster.memory[:64]).all() == reached
    assert cluster.log == [("tx", 0, MBAR, 64), ("tx", 3, MBAR, 64)]


def test_a_copy_reaches_another_cta() -> None:
    cluster = Cluster(2)
    words = shared_address(0, 4096), shared_address(1, 2048), 128, shared_address(0, MBAR)
    copy.complete(cluster, [operation(BETWEEN, *words, rank=1)])
    np.testing.assert_array_equal(cluster.shared[0, 4096:4224], cluster.shared[1, 2048:2176])
    assert cluster.log == [("tx", 0, MBAR, 128)]


def test_a_copy_reaches_global_memory() -> None:
    cluster = Cluster()
    before = cluster.memory.copy()
    copy.complete(cluster, [operation(TO_GLOBAL, GLOBAL_AT + 16, 2048, 160)])
    np.testing.assert_array_equal(cluster.memory[16:176], cluster.shared[0, 2048:2208])
    np.testing.assert_array_equal(cluster.memory[176:], before[176:])


@pytest.mark.parametrize(("suffix", "words"), [("", (0x0F01,)), (".L2::cache_hint", (1 << 60, 0x0F01))])
def test_the_byte_mask_selects_bytes_of_every_16(suffix: str, words: tuple[int, ...]) -> None:
    cluster = Cluster()
    expected = cluster.memory.copy()
    for i in range(64):
        if 0x0F01 >> i % 16 & 1:
            expected[i] = cluster.shared[0, 2048 + i]
    copy.complete(cluster, [operation(f"{TO_GLOBAL}{suffix}.cp_mask", GLOBAL_AT, 2048, 64, *words)])
    np.testing.assert_array_equal(cluster.memory, expected)


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [("add.f32", np.float32), ("add.f64", np.float64), ("add.noftz.bf16", ml_dtypes.bfloat16), ("add.s32", np.int32)],
)
def test_a_reduction_adds_to_global_memory(suffix: str, dtype: Any) -> None:
    cluster, random = Cluster(), np.random.default_rng(3)
    old, new = (random.normal(0, 1000, 64).astype(dtype) for _ in range(2))
    cluster.memory[: old.nbytes] = old.view(np.uint8)
    cluster.shared[0, 2048 : 2048 + new.nbytes] = new.view(np.uint8)
    copy.complete(cluster, [operation(f"{REDUCE_GLOBAL}.{suffix}", GLOBAL_AT, 2048, new.nbytes)])
    np.testing.assert_array_equal(cluster.memory[: old.nbytes].view(dtype), old + new)


def test_a_reduction_adds_to_another_cta() -> None:
    cluster = Cluster(2)
    old, new = (cluster.shared[rank, 2048:2112].view(np.uint32).copy() for rank in (1, 0))
    words = shared_address(1, 2048), 2048, 64, shared_address(1, MBAR)
    copy.complete(cluster, [operation(f"{REDUCE_SHARED}.xor.b32", *words)])
    np.testing.assert_array_equal(cluster.shared[1, 2048:2112].view(np.uint32), old ^ new)
    assert cluster.log == [("tx", 1, MBAR, 64)]


@pytest.mark.parametrize(
    ("suffix", "values", "expected"),
    [
        ("b32", (0x1_2233_4455,), "55443322"),
        ("v4.b32", (1, 2, 3, 0xFFFF_FFFF), "010000000200000003000000ffffffff"),
        ("v2.b64", (1, (1 << 64) - 2), "0100000000000000feffffffffffffff"),
    ],
)
@pytest.mark.parametrize("window", [0, SHARED_WINDOW])
def test_st_async_stores_and_counts_bytes(suffix: str, values: tuple[int, ...], expected: str, window: int) -> None:
    cluster = Cluster(2)
    words = window + shared_address(1, 2048), *values, window + shared_address(1, MBAR)
    copy.complete(cluster, [operation(f"{ST_ASYNC}.{suffix}", *words)])
    assert cluster.shared[1, 2048 : 2048 + len(expected) // 2].tobytes().hex() == expected
    assert cluster.log == [("tx", 1, MBAR, len(expected) // 2)]


@pytest.mark.parametrize(
    ("suffix", "old", "value", "expected"),
    [
        ("add.u32", 0xFFFF_FFFF, 3, 2),
        ("add.u64", 0xFFFF_FFFF, 1, 1 << 32),
        ("min.s32", 5, 0xFFFF_FFFE, 0xFFFF_FFFE),
        ("max.u32", 5, 0xFFFF_FFFE, 0xFFFF_FFFE),
        ("inc.u32", 7, 7, 0),
        ("dec.u32", 0, 9, 9),
        ("and.b32", 0b1100, 0b1010, 0b1000),
    ],
)
def test_red_async_combines_and_counts_bytes(suffix: str, old: int, value: int, expected: int) -> None:
    cluster, size = Cluster(2), int(suffix[-2:]) // 8
    cluster.shared[1, 2048 : 2048 + size] = np.frombuffer(old.to_bytes(size, "little"), np.uint8)
    words = shared_address(1, 2048), value, shared_address(1, MBAR)
    copy.complete(cluster, [operation(f"{RED_ASYNC}.{suffix}", *words)])
    assert int.from_bytes(cluster.shared[1, 2048 : 2048 + size].tobytes(), "little") == expected
    assert cluster.log == [("tx", 1, MBAR, size)]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_min_and_max_order_nan_and_zeros(dtype: Any) -> None:
    old = np.array([np.nan, 1, 0.0, -0.0, np.nan], dtype)
    new = np.array([2, np.nan, -0.0, 0.0, np.nan], dtype)
    least, most = (combine(op, old, new).astype(np.float32) for op in ("min", "max"))
    np.testing.assert_array_equal(least, [2, 1, 0, 0, np.nan])
    np.testing.assert_array_equal(np.signbit(least[2:4]), [True, True])
    np.testing.assert_array_equal(np.signbit(most[2:4]), [False, False])


@pytest.mark.parametrize(
    ("opcode", "words", "kind", "sentence"),
    [
        (
            TO_CTA, (2048, GLOBAL_AT, 24, MBAR), MemoryFault,
            "the size is 24; expected a multiple of 16 bytes; pad or align the data",
        ),
        (
            TO_CTA, (2056, GLOBAL_AT, 32, MBAR), MemoryFault,
            "the destination address is 2056; expected a multiple of 16 bytes; pad or align the data",
        ),
        (
            TO_CTA, (2048, GLOBAL_AT + 4, 32, MBAR), MemoryFault,
            f"the source address is {GLOBAL_AT + 4}; expected a multiple of 16 bytes; pad or align the data",
        ),
        (
            TO_CTA, (65536 - 16, GLOBAL_AT, 32, MBAR), MemoryFault,
            "the destination takes bytes 65520 to 65551 of the shared memory of CTA 0; expected them within "
            "1024 to 65535; "
            "mend the address or launch with more shared memory",
        ),
        (
            TO_CTA, (shared_address(1, 2048), GLOBAL_AT, 32, shared_address(1, MBAR)), MemoryFault,
            "the destination is shared memory of CTA 1; expected that of CTA 0, which .shared::cta names; use "
            ".shared::cluster",
        ),
        (
            TO_CLUSTER, (2048, GLOBAL_AT, 32, shared_address(1, MBAR)), ProtocolError,
            "the mbarrier is in CTA 1 and the destination in CTA 0; expected both in one CTA; map the mbarrier to the "
            "destination's CTA with mapa",
        ),
        (
            BETWEEN, (4096, 2048, 32, MBAR), ProtocolError,
            "the destination is shared memory of CTA 0, which issued the copy; expected another CTA of the "
            "cluster; map "
            "the destination with mapa",
        ),
        (
            TO_GLOBAL, (GLOBAL_AT, shared_address(1, 2048), 32), MemoryFault,
            "the source is shared memory of CTA 1; expected that of CTA 0, which .shared::cta names",
        ),
        (
            f"{ST_ASYNC}.v2.b32", (2052, 1, 2, MBAR), MemoryFault,
            "the destination is at offset 2052 of shared memory; expected a multiple of 8 bytes",
        ),
        (
            f"{ST_ASYNC}.b32", (2048, 1, shared_address(1, MBAR)), ProtocolError,
            "the mbarrier is in CTA 1 and the destination in CTA 0; expected both in one CTA; map both with "
            "mapa to the "
            "same rank",
        ),
    ],
)  # fmt: skip
def test_a_linear_copy_refuses_bad_operands(
    opcode: str, words: tuple[int, ...], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind) as raised:
        copy.complete(Cluster(2), [operation(opcode, *words)])
    assert str(raised.value) == sentence
