"""Real GPUs among the devices: names, choice, and the errors of a machine without a GPU."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright import cuda
from warpwright.arrays.device import DeviceArray
from warpwright.cuda import driver
from warpwright.cuda.device import check_grid, check_kernel, spec_of
from warpwright.lang import Global, f32, kernel
from warpwright.run import devices
from warpwright.targets import DEVICES


@pytest.fixture
def fresh() -> Iterator[None]:
    driver.driver.cache_clear()
    cuda.devices.cache_clear()
    yield
    driver.driver.cache_clear()
    cuda.devices.cache_clear()


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    real = builtins.__import__

    def find(name: str, *rest: Any) -> Any:
        if name.startswith(missing):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", find)


@pytest.mark.usefixtures("fresh")
def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "cuda")
    with pytest.raises(ww.UsageError) as caught:
        ww.device("cuda")
    assert str(caught.value) == (
        "device 'cuda' needs the packages cuda-core and cuda-bindings; run: pip install 'warpwright[cuda]'"
    )
    assert cuda.devices() == ()
    assert devices.resolve(None, "sm_90a").name == "h200"


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("initialise", "reason"),
    [
        (lambda flags: (_ for _ in ()).throw(RuntimeError("no libcuda")), "this machine has no CUDA driver"),
        (
            lambda flags: (SimpleNamespace(value=100, name="CUDA_ERROR_NO_DEVICE"),),
            "the driver answers CUDA_ERROR_NO_DEVICE",
        ),
    ],
)
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, initialise: Any, reason: str) -> None:
    bindings = ModuleType("cuda.bindings")
    bindings.driver = SimpleNamespace(cuInit=initialise)
    for name, module in {
        "cuda": ModuleType("cuda"),
        "cuda.core": ModuleType("cuda.core"),
        "cuda.bindings": bindings,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ww.UsageError) as caught:
        ww.device("cuda:1")
    assert (
        str(caught.value)
        == f"device 'cuda' needs an NVIDIA GPU, and {reason}; use a virtual GPU, such as device='h200'"
    )
    assert cuda.devices() == ()


FIGURES = {
    "COMPUTE_CAPABILITY_MAJOR": 12,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 188,
    "CLOCK_RATE": 2_617_000,
    "MEMORY_CLOCK_RATE": 14_001_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 512,
    "L2_CACHE_SIZE": 128 * 1024**2,
}


def test_the_peak_of_a_gpu_is_that_of_the_board_it_is_most_like() -> None:
    """An RTX PRO 6000 sums in float32 at twice the rate an SM of a GeForce board of its architecture."""
    fine = SimpleNamespace(value=0, name="CUDA_SUCCESS")
    bindings = SimpleNamespace(
        CUdevice_attribute=SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{name}": name for name in FIGURES}),
        cuDeviceGet=lambda ordinal: (fine, ordinal),
        cuDeviceGetName=lambda size, handle: (fine, b"NVIDIA RTX PRO 6000\0\0"),
        cuDeviceTotalMem=lambda handle: (fine, 96 * 1024**3),
        cuDeviceGetAttribute=lambda name, handle: (fine, FIGURES[name]),
    )
    spec = spec_of(bindings, 0)
    assert (spec.name, spec.arch, spec.bf16_tflops, spec.hbm_gbps) == ("NVIDIA RTX PRO 6000", "sm_120a", 503.8, 1792.1)
    assert spec.source["bf16_tflops"] == "192512 FLOP a clock at 2617 MHz, as rtx_pro_6000"


def real(ordinal: int, chip: str) -> Any:
    """Returns a fake of a real GPU with its name and figures."""
    made = object.__new__(cuda.Device)
    made.ordinal, made.spec = ordinal, DEVICES[chip]
    return made


def test_the_first_gpu_that_runs_the_target_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "devices", lambda: (real(0, "h200"), real(1, "b200")))
    assert devices.resolve(None, "sm_90a").name == "cuda:0"
    assert devices.resolve(None, "sm_100a").name == "cuda:1"
    assert devices.resolve(None, "sm_120a").name == "rtx5090"
    assert devices.resolve(None, "sm_103a").name == "b300"
    assert devices.resolve(None, "sm_100f", virtual=True).name == "b200"
    assert devices.resolve(None).name == "cuda:0"
    assert devices.resolve(None, "sm_90a", virtual=True).name == "h200"
    assert devices.resolve("h200", "sm_90a").name == "h200"


def test_what_a_gpu_refuses_in_the_words_of_the_virtual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, module = real(0, "h200"), SimpleNamespace(target=("sm_90a",))
    for wrong, sentence in (
        ({"block": (2000, 1, 1)}, "block=(2000, 1, 1): 2000 threads; a CTA has at most 1024."),
        ({"cluster": (17, 1, 1)}, "cluster=(17, 1, 1): 17 CTAs; cuda:0 has at most 16 in a cluster."),
        ({"smem": 232449}, "kernel k asks for 232449 bytes of shared memory; cuda:0 has 232448 a CTA."),
        (
            {"module": SimpleNamespace(target=("sm_100a",))},
            "kernel k is for sm_100a; device cuda:0 is sm_90a: compile it for that.",
        ),
    ):
        given = {"module": module, "entry": "k", "block": (128, 1, 1), "cluster": (1, 1, 1), "smem": 0} | wrong
        with pytest.raises(ww.LaunchError) as caught:
            check_kernel(gpu, **given)
        assert str(caught.value) == sentence
    with pytest.raises(ww.LaunchError) as caught:
        check_grid((3, 1, 1), (2, 1, 1))
    assert str(caught.value) == "grid=(3, 1, 1) is not a whole number of clusters (2, 1, 1); round the grid up."


def test_observers_need_a_virtual_gpu() -> None:
    with pytest.raises(ww.LaunchError) as caught:
        real(0, "h200").launch(None, "k", (1, 1, 1), (1, 1, 1), observers=[object()])
    assert str(caught.value) == (
        "given observers for cuda:0, a real GPU; expected a virtual GPU; leave device= out, or pass device='h200'"
    )


@kernel("sm_90a")
def clear(x: Global[f32]) -> None:
    x[0] = 0.0


def test_a_virtual_gpu_takes_no_memory_of_a_real_one() -> None:
    array = DeviceArray(256, (4,), (4,), np.dtype(np.float32), 1, None)
    with pytest.raises(ww.LaunchError) as caught:
        ww.launch(clear, 1, args=[array], device="h200")
    assert str(caught.value) == (
        "given an array on cuda:1 for the virtual h200; expected arrays on the host; "
        "copy it to the host, or launch it without device="
    )
    with pytest.raises(ww.LaunchError) as caught:
        ww.launch(clear, 1, args=[np.zeros(4, np.float32)], device="h200", stream=7)
    assert str(caught.value) == "given stream=7 for the virtual h200; expected none; leave stream= out"
