"""memory_flow on the virtual B200: the values of the example, random data, and failures of changed PTX."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.helpers import flow, normal, replaced, without
from warpwright.errors import Deadlock
from warpwright.kernels import reference


def ramp() -> np.ndarray:
    return (np.add.outer(np.arange(128), np.arange(64)) * 0.01).astype(np.float16)


def check(d: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    exact = reference.gemm(a, b)
    allowed = 0.5 * reference.ulp(exact, np.float32) + reference.accumulation_slack(a, b)
    np.testing.assert_array_less(np.abs(d - exact), allowed + np.finfo(np.float32).tiny)


def test_the_example_gives_the_values_of_rounded_inputs() -> None:
    d = flow(ramp(), np.ones((128, 64), np.float16))
    np.testing.assert_allclose(d[[0, 1, 127], 0], [20.1592, 20.7993, 101.4395], atol=5e-5)
    assert (d == d[:, :1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_random_matrices(seed) -> None:
    a, b = normal(seed, 128, 64, dtype=np.float16), normal(seed + 50, 128, 64, dtype=np.float16)
    check(flow(a, b), a, b)


def test_every_element_comes_from_its_own_row_and_column() -> None:
    random = np.random.default_rng(1)
    chosen = random.integers(0, 64, 128)
    a = np.zeros((128, 64), np.float16)
    a[np.arange(128), chosen] = 1
    b = random.permutation(128 * 64).reshape(128, 64).astype(np.float16)
    np.testing.assert_array_equal(flow(a, b), b.T[chosen].astype(np.float32))


def test_an_accumulator_that_every_step_overwrites_keeps_only_the_last_quarter() -> None:
    overwrite = replaced(r"(tcgen05\.mma.*), 1;", r"\1, 0;", 3)
    d = flow(ramp(), np.ones((128, 64), np.float16), overwrite)
    np.testing.assert_allclose(d[[0, 1], 0], [8.8792, 9.0393], atol=5e-5)


@pytest.mark.parametrize("pattern", [r"tcgen05\.commit", r"mbarrier\.arrive\.expect_tx"])
def test_without_a_signal_all_threads_deadlock(pattern) -> None:
    with pytest.raises(Deadlock, match="mbarrier"):
        flow(normal(1, 128, 64, dtype=np.float16), normal(2, 128, 64, dtype=np.float16), without(pattern))


def test_expecting_the_wrong_bytes_never_completes() -> None:
    more = replaced(r"(arrive\.expect_tx\.shared::cta\.b64 _, \[%r\d+\]), 32768;", r"\1, 32784;")
    with pytest.raises(Deadlock, match="mbarrier"):
        flow(normal(1, 128, 64, dtype=np.float16), normal(2, 128, 64, dtype=np.float16), more)
