"""The GEMM ladder on the virtual B200: numbers against float64, any size, and failures of a broken protocol."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.helpers import BF16, SENTINEL, check, gemm, normal, replaced, without
from tests.samples import sampled
from warpwright.errors import Deadlock, DeviceError
from warpwright.kernels.gemm.sm100 import IMPROVED, LEVELS

ALL = sorted(LEVELS)
PERSISTENT = (5, 6, 7, 8, 9, 10)
RAGGED = ((1, 1, 8), (129, 257, 72), (200, 136, 1000), (127, 385, 512))


@pytest.mark.parametrize("level", ALL)
@sampled("blocks", [1, 2, 5, 8, 9, 17], keep=[1, 8, 9])
def test_any_number_of_k_blocks_around_the_number_of_stages(level, blocks) -> None:
    a, b = normal(blocks, 128, 64 * blocks), normal(100 + blocks, 128, 64 * blocks)
    check(gemm(level, a, b), a, b)


@sampled(("level", "stages"), [(2, 1), (2, 8), (3, 1), (3, 2), (3, 7), (5, 3), (6, 1), (7, 3), (10, 2)], every=2)
def test_any_number_of_stages(level, stages) -> None:
    a, b = normal(stages, 128, 64 * 10), normal(100 + stages, 128, 64 * 10)
    check(gemm(level, a, b, stages=stages), a, b)


@pytest.mark.parametrize("level", [*ALL, *IMPROVED.values()])
@sampled("shape", RAGGED, keep=[(129, 257, 72), (200, 136, 1000)])
def test_ragged_shapes_leave_the_rows_below_untouched(level, shape) -> None:
    m, n, k = shape
    a, b = normal(1, m, k), normal(2, n, k)
    d = gemm(level, a, b, spare_rows=3)
    check(d, a, b)
    assert (d[m:].astype(np.float32) == SENTINEL).all()


@pytest.mark.parametrize("level", ALL)
def test_every_element_comes_from_its_own_row_and_column(level) -> None:
    random = np.random.default_rng(9)
    m, n, k = 256, 384, 192
    chosen = random.integers(0, k, m)
    a = np.zeros((m, k), BF16)
    a[np.arange(m), chosen] = 1
    b = random.permutation(n * k).reshape(n, k).astype(BF16)
    np.testing.assert_array_equal(gemm(level, a, b).astype(np.float32), b.T[chosen].astype(np.float32))


@pytest.mark.parametrize("level", PERSISTENT)
@pytest.mark.parametrize(("shape", "sms"), [((1290, 520, 200), 4), ((700, 1100, 72), 6), ((390, 900, 136), 3)])
def test_a_device_with_fewer_sms_than_tiles(level, shape, sms) -> None:
    """Odd numbers of blocks along M, odd numbers of tiles, groups that are not full, an SM without a pair."""
    m, n, k = shape
    a, b = normal(1, m, k), normal(2, n, k)
    d = gemm(level, a, b, spare_rows=3, sms=sms)
    check(d, a, b)
    assert (d[m:].astype(np.float32) == SENTINEL).all()


@sampled("level", [3, IMPROVED[3], 4, 7, 10], keep=[4, 10])
@pytest.mark.parametrize(("dtype", "out"), [(np.float16, np.float16), (np.float16, np.float32), (BF16, np.float32)])
def test_types(level, dtype, out) -> None:
    a, b = normal(5, 130, 136, dtype=dtype), normal(6, 141, 136, dtype=dtype)
    check(gemm(level, a, b, out), a, b)


def test_large_and_small_magnitudes() -> None:
    random = np.random.default_rng(11)
    scales = 2.0 ** random.integers(-30, 30, (128, 1))
    a = (random.standard_normal((128, 320)) * scales).astype(BF16)
    b = (random.standard_normal((128, 320)) * scales[::-1]).astype(BF16)
    check(gemm(3, a, b, np.float32), a, b)


@pytest.mark.parametrize("level", [3, 4, 10])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(level, value) -> None:
    a, b = normal(7, 130, 64), np.abs(normal(8, 128, 64)) + BF16(1)
    a[129, 5] = value
    d = gemm(level, a, b)[:, :128].astype(np.float64)
    np.testing.assert_array_equal(d[129], np.full(128, value))
    check(d[:129].astype(BF16), a[:129], b)


@pytest.mark.parametrize("level", [3, 10])
def test_launching_again_gives_the_same_bits(level) -> None:
    a, b = normal(3, 128, 192), normal(4, 128, 192)
    first, second = gemm(level, a, b), gemm(level, a, b)
    np.testing.assert_array_equal(first.view(np.uint16), second.view(np.uint16))


@pytest.mark.parametrize("level", [2, 3])
def test_the_peer_bit_on_the_barrier_address_is_the_same_as_mapa(level) -> None:
    masked = replaced(r"mapa\.shared::cluster\.u32 (%r\d+), (%r\d+), 0;", r"and.b32 \1, \2, 0xFEFFFFFF;")
    a, b = normal(1, 128, 256), normal(2, 128, 256)
    check(gemm(level, a, b, change=masked), a, b)


@pytest.mark.parametrize("level", [2, 3])
def test_the_peer_bit_on_the_destination_too_is_wrong(level) -> None:
    masked = replaced(
        r"(cp\.async\.bulk\.tensor\.2d\.shared::cluster\S+) \[(%r\d+)\+(\d+)\]",
        r"and.b32 %spare, \2, 0xFEFFFFFF;\n    \1 [%spare+\3]",
        2,
    )
    a, b = normal(1, 128, 256), normal(2, 128, 256)

    def change(ptx: str) -> str:
        return masked(ptx.replace(".reg .b32", ".reg .b32 %spare;\n    .reg .b32", 1))

    try:
        d = gemm(level, a, b, change=change)
    except DeviceError:
        return
    with pytest.raises(AssertionError):
        check(d, a, b)


@sampled("level", ALL, every=3)
def test_without_the_last_commit_all_threads_deadlock(level) -> None:
    a, b = normal(1, 128, 128), normal(2, 128, 128)
    with pytest.raises(Deadlock, match="mbarrier"):
        gemm(level, a, b, change=drop_last_commit)


def drop_last_commit(ptx: str) -> str:
    start = ptx.rindex("tcgen05.commit")
    return ptx[:start] + ptx[ptx.index(";", start) + 1 :]


@pytest.mark.parametrize("level", [2, 3])
def test_without_the_peers_arrival_the_leader_deadlocks(level) -> None:
    a, b = normal(1, 128, 128), normal(2, 128, 128)
    with pytest.raises(Deadlock, match="mbarrier"):
        gemm(level, a, b, change=without(r"mbarrier\.arrive\.expect_tx\.release\.cluster"))
