"""Verification and times of `trials`, on a stand-in for a GPU that multiplies with NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.cuda.host_gpu import Driver
from warpwright import cuda, targets
from warpwright.arrays.device import reach
from warpwright.cuda import memory
from warpwright.kernels.gemm import sm90, sm100
from warpwright.ops.matmul import trials
from warpwright.report.verdict import judge

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
CONFIGS = {name: sm90.CONFIGS[name] for name in ("128x256", "64x64", "64x64 split 2")}


def at(pointer: int, tensor: Any) -> Any:
    """Returns the matrix of a tensor map in the memory of the stand-in."""
    shape, strides, dtype = tensor.array.shape, tensor.array.strides, tensor.array.dtype
    data = (ctypes.c_uint8 * reach((shape, strides, dtype))).from_address(pointer)
    return np.ndarray(shape, dtype, data, 0, strides)


class Gpu:
    """A GPU whose ``kernels`` are used one after the other, one for each loaded function."""

    name, ordinal, context = "cuda:0", 0, None

    def __init__(self, chip: str, *kernels: Callable[[Any, Any, Any], None]) -> None:
        self.spec, self.kernels = targets.device(chip), list(kernels)

    def function(self, module: Any, entry: str, *_: Any, dependent: bool = False) -> SimpleNamespace:
        kernel = self.kernels.pop(0) if len(self.kernels) > 1 else self.kernels[0]

        def launch(grid: Any, values: list[Any], stream: int) -> Callable[[], None]:
            return lambda: kernel(*(at(*value) if isinstance(value, tuple) else value for value in values[:3]))

        return SimpleNamespace(at=launch, enter=lambda: None)


def right(a: Any, b: Any, d: Any) -> None:
    d[...] = a.astype(np.float32) @ b.astype(np.float32).T


def short(a: Any, b: Any, d: Any) -> None:
    """Leaves one element unwritten."""
    last = d[-1, -1]
    right(a, b, d)
    d[-1, -1] = last


def wrong(a: Any, b: Any, d: Any) -> None:
    right(a, b, d)
    d[0, 0] += 1


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``judged`` counts the comparisons with float64, ``timed`` has the names of the timed runs; ``driver`` is the
    driver."""
    driver = Driver()
    noted = SimpleNamespace(judged=0, timed=[], driver=driver)
    monkeypatch.setattr(memory, "driver", lambda: driver)
    monkeypatch.setattr(trials, "require", lambda: driver)
    monkeypatch.setattr(cuda, "MovableMap", lambda tensor: lambda pointer: (pointer, tensor))
    monkeypatch.setattr(trials, "torch_matmul", lambda problem: None)

    def times(runs: dict[str, Any], device: Any, rounds: int) -> dict[str, cuda.Times]:
        noted.timed = list(runs)
        return {name: cuda.Times((i + 1) * 1e-6, 0.0, 1.0, 1700.0) for i, name in enumerate(runs)}

    def judged(*given: Any) -> Any:
        noted.judged += 1
        return judge(*given)

    monkeypatch.setattr(cuda, "times", times)
    monkeypatch.setattr(trials, "judge", judged)
    return noted


def test_each_configuration_is_verified_and_timed(host: SimpleNamespace) -> None:
    told: list[str] = []
    found = trials.measure(Gpu("h200", right), 200, 36, 52, CONFIGS, rounds=7, describe=told.append)
    assert {name: (trial.seconds, trial.verdict.verified) for name, trial in found.each.items()} == {
        "128x256": (1e-6, True),
        "64x64": (2e-6, True),
        "64x64 split 2": (3e-6, True),
    }
    assert found.peer is None and host.judged == 1
    assert told[0] == "128x256: compiled and verified" and told[-1] == "7 rounds of 3, timed"


@pytest.mark.parametrize("broken", [short, wrong])
def test_a_wrong_result_is_seen_beside_right_ones(host: SimpleNamespace, broken: Callable[..., None]) -> None:
    found = trials.measure(Gpu("h200", right, broken, right), 130, 40, 64, CONFIGS)
    assert [trial.verdict.verified for trial in found.each.values()] == [True, False, True]
    assert host.judged == 2


def test_of_a_large_matmul_some_rows_are_compared_and_all_must_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "WHOLE", 1000)
    monkeypatch.setattr(trials, "SOME_ROWS", 5)
    assert trials.compared_rows(101, 40, 64).tolist() == [0, 25, 50, 75, 100]
    assert trials.compared_rows(3, 40, 64).tolist() == [0, 1, 2]

    def skips(a: Any, b: Any, d: Any) -> None:
        right(a[:60], b, d[:60])
        right(a[70:], b, d[70:])

    found = trials.measure(Gpu("h200", right, skips), 101, 40, 64, dict(list(CONFIGS.items())[:2]))
    assert [trial.verdict.verified for trial in found.each.values()] == [True, False]


def test_operands_of_8_bits() -> None:
    """Sums of 14 bits are within the bound, a wrong element is not."""

    def coarse(a: Any, b: Any, d: Any) -> None:
        sums = a.astype(np.float64) @ b.astype(np.float64).T
        d[...] = sums + 2.0**-14 * np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T

    configs = {name: sm90.CONFIGS[name] for name in ("fp8 128x128", "fp8 64x64")}
    found = trials.measure(Gpu("h200", coarse, wrong), 100, 40, 90, configs, dtype=FLOAT8)
    assert [trial.verdict.verified for trial in found.each.values()] == [True, False]


def test_slices_of_k_are_two_launches_and_memory_between_them(host: SimpleNamespace) -> None:
    def multiplies(a: Any, b: Any, parts: Any) -> None:
        assert (a.shape, b.shape, parts.shape) == ((40, 1024), (24, 1024), (4, 40, 24))
        for number, part in enumerate(parts):
            own = slice(256 * number, 256 * number + 256)
            part[...] = a[:, own].astype(np.float32) @ b[:, own].astype(np.float32).T

    def adds(parts: int, d: int, m: int) -> None:
        sums = np.ndarray((4, m, 24), np.float32, (ctypes.c_uint8 * (4 * m * 24 * 4)).from_address(parts))
        result = np.ndarray((m, 24), BFLOAT16, (ctypes.c_uint8 * (m * 24 * 2)).from_address(d))
        result[...] = sums.sum(0)

    config = {"sliced": sm90.CONFIGS["64x64 stream, 4 slices"]}
    found = trials.measure(Gpu("h200", multiplies, adds), 40, 24, 1024, config)
    assert found.each["sliced"].verdict.verified and not host.driver.held


def test_torch_is_timed_with_the_others(host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "torch_matmul", lambda problem: lambda: None)
    found = trials.measure(Gpu("h200", right), 64, 40, 64, CONFIGS)
    assert host.timed == [*CONFIGS, "torch"] and found.peer == 4e-6


def test_the_ladder_of_blackwell_can_be_measured_too() -> None:
    """Some levels take D as a pointer, some as a tensor map."""
    pointers: list[Any] = []
    configs = {str(level): sm100.LEVELS[level] for level in (1, 6)}
    given = trials.problem_on_gpu(Gpu("b200", right), 256, 256, 64, BFLOAT16, 0)
    with given as problem:
        for config in configs.values():
            (launch,) = trials.plan_of(config, problem).on(problem.arrays)
            pointers.append([type(argument).__name__ for argument in launch.args[:3]])
            assert launch.grid[0] % 2 == 0 and launch.kernel.arch == "sm_100a"
    assert pointers == [["TensorMap", "TensorMap", "ndarray"], ["TensorMap"] * 3]
