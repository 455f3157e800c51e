"""Verification and times of `trials`, on a stand-in for a GPU whose kernels are NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cuda.host_gpu import Driver
from tests.kernels.attention.attention_helpers import normal_qkv
from tests.ops.host_kernels import memory
from warpwright import cuda, targets
from warpwright.kernels.attention import Problem, reference
from warpwright.ops.attention import trials
from warpwright.ops.attention.plan import SETTING

PROBLEM = Problem(2, 4, 2, 30, 70, 64, causal=True)
GPU = SimpleNamespace(name="cuda:0", ordinal=0, context=None, spec=targets.device("h200"))
NAMES = ["sm90_decode.attention 64 × 128", "sm90.attention 128 × 128", "sm120.attention_cp_async 64 × 64"]
Kernel = Callable[[Problem, Any, Any], None]


def right(problem: Problem, given: Any, out: Any) -> None:
    out[0][...], out[1][...] = reference.attention(problem, *given)


def short(problem: Problem, given: Any, out: Any) -> None:
    """Leaves an element unwritten in a head that is not compared."""
    last = out[0][0, 1, 3, 5]
    right(problem, given, out)
    out[0][0, 1, 3, 5] = last


def wrong(problem: Problem, given: Any, out: Any) -> None:
    right(problem, given, out)
    out[0][1, 3, 29, 1] += np.asarray(0.1, problem.dtype)


def wrong_sum(problem: Problem, given: Any, out: Any) -> None:
    right(problem, given, out)
    out[1][0, 0, 7] += 0.001


@pytest.fixture(autouse=True)
def host(monkeypatch) -> SimpleNamespace:
    """``kernel`` runs on ``problem``; ``timed`` has the names of the timed kernels, ``started`` the name of each
    started kernel, and whether it had a log-sum-exp and a counter."""
    noted = SimpleNamespace(kernel=right, problem=PROBLEM, timed=[], started=[])

    def bind(plan: Any, layouts: Any, device: Any) -> Any:
        def at(values: Any, stream: int) -> Any:
            def launch() -> None:
                *places, lse, workspace = values
                noted.started.append((plan.kernel, bool(lse), bool(workspace)))
                *given, o = (memory(place, layout) for place, (_, layout) in zip(places, layouts, strict=False))
                sums = np.zeros(o.shape[:3], np.float32)
                if lse:
                    sums = memory(lse, (sums.shape, sums.strides, sums.dtype))
                noted.kernel(noted.problem, given, (o, sums))

            return (launch,)

        return at

    def times(runs: dict[str, Any], device: Any, rounds: int) -> dict[str, cuda.Times]:
        noted.timed = list(runs)
        for run in runs.values():
            run()
        return {name: cuda.Times(i + 1.0, 0.5, 2.0, 1700.0) for i, name in enumerate(runs)}

    driver = Driver()
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(cuda.memory, "driver", lambda: driver)
    monkeypatch.setattr(trials, "require", lambda: driver)
    monkeypatch.setattr(trials, "bind", bind)
    monkeypatch.setattr(trials, "torch_of", lambda: None)
    monkeypatch.setattr(cuda, "times", times)
    return noted


def verified(problem: Problem = PROBLEM) -> list[bool]:
    return [trial.verdict.verified for trial in trials.measure(GPU, problem, normal_qkv(problem))]


def test_each_plan_is_verified_and_timed(host) -> None:
    told: list[str] = []
    found = trials.measure(GPU, PROBLEM, normal_qkv(PROBLEM), rounds=7, describe=told.append)
    assert [(trial.kernel, trial.ours, trial.times.median) for trial in found] == [
        (NAMES[0], True, 1.0),
        (NAMES[1], True, 2.0),
        (NAMES[2], True, 3.0),
    ]
    assert all(trial.verdict.verified and 0 < trial.verdict.max_err < 0.01 for trial in found)
    assert told == [*(f"{name}: compiled and verified" for name in NAMES), "7 rounds of 3, timed"]
    assert host.started == [
        ("sm90_decode.attention", True, True),
        ("sm90.attention", True, False),
        ("sm120.attention_cp_async", True, False),
        ("sm90_decode.attention", False, True),
        ("sm90.attention", False, False),
        ("sm120.attention_cp_async", False, False),
    ]


@pytest.mark.parametrize("kernel", [short, wrong, wrong_sum])
def test_a_wrong_result_is_seen(host, kernel: Kernel) -> None:
    host.kernel = kernel
    assert verified() == [False] * 3


def test_the_setting_says_what_is_first(monkeypatch) -> None:
    monkeypatch.setenv(SETTING, "0")
    assert list(trials.plans(PROBLEM, GPU.spec)) == [NAMES[2], *NAMES[:2]]


@pytest.mark.parametrize(
    ("device", "names"),
    [
        (
            "b200",
            [
                "sm100_decode.attention 128 × 128",
                "sm100.attention 256 × 128",
                "sm120.attention_cp_async 64 × 64",
            ],
        ),
        ("rtx5090", ["sm120.attention_cp_async 64 × 64", "sm120.attention 64 × 32"]),
    ],
)
def test_plans_of_other_devices(device: str, names: list[str]) -> None:
    assert list(trials.plans(PROBLEM, targets.DEVICES[device])) == names


def test_of_many_pairs_the_last_queries_are_compared(host, monkeypatch) -> None:
    monkeypatch.setattr(trials, "COMPARED", 70 * 12)
    assert verified() == [True] * 3
    host.kernel = wrong
    assert verified() == [False] * 3
    monkeypatch.setattr(trials, "COMPARED", 1)
    host.kernel = right
    assert verified() == [True] * 3


class Torch:
    """Stands for torch: ``lacking`` has no kernel."""

    lacking = "flash"

    def peer(self, name: str, problem: Problem, tensors: Any) -> Any:
        if name == self.lacking:
            raise RuntimeError("No available kernel. Aborting execution.")
        return reference.attention(problem, *tensors)[0].astype(problem.dtype)


@pytest.fixture
def torch(monkeypatch) -> Torch:
    made = Torch()
    monkeypatch.setattr(trials, "torch_of", lambda: made)
    monkeypatch.setattr(trials, "peer", made.peer)
    monkeypatch.setattr(trials, "to_host", lambda array, problem: array)
    monkeypatch.setattr(trials, "tensor_at", lambda _, pointer, shape, dtype, device: at(pointer, shape, dtype))
    return made


def at(pointer: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    data = (ctypes.c_uint8 * int(np.prod(shape) * dtype.itemsize)).from_address(pointer)
    return np.ndarray(shape, dtype, data)


def test_torch_runs_what_it_can(host, torch) -> None:
    square = Problem(2, 4, 2, 70, 70, 64, causal=True)
    host.problem = square
    found = trials.measure(GPU, square, normal_qkv(square))
    assert [(trial.kernel, trial.ours, trial.verdict.verified) for trial in found][3:] == [("torch cudnn", False, True)]
    assert host.timed[3:] == ["torch cudnn"]
    torch.lacking = ""
    assert [trial.kernel for trial in trials.measure(GPU, square, normal_qkv(square))][3:] == [
        "torch cudnn",
        "torch flash",
    ]


def test_torch_masks_other_keys_where_lengths_differ(host, torch) -> None:
    assert len(trials.measure(GPU, PROBLEM, normal_qkv(PROBLEM))) == 3


def test_another_error_of_torch_is_one(host, torch, monkeypatch) -> None:
    def fails(name: str, problem: Problem, tensors: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    square = Problem(1, 1, 1, 70, 70, 64)
    host.problem = square
    monkeypatch.setattr(trials, "peer", fails)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        trials.measure(GPU, square, normal_qkv(square))
