"""Scripts of cuda.core and of ``cuda.bindings.driver`` run unmodified on a virtual GPU, each in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

missing = {"cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc"} - {each.name for each in distributions()}
if missing:
    reason = f"{' and '.join(sorted(missing))} are extras: pip install 'warpwright[foreign]'"
    pytest.skip(reason, allow_module_level=True)

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("cuda_core")


def python(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=environment)


def run(script: str, *words: object, device: str = "h200") -> subprocess.CompletedProcess[str]:
    """Runs ``warpwright run``."""
    return python("-m", "warpwright", "run", "--device", device, SCRIPTS / f"{script}.py", *words)


@pytest.mark.parametrize(
    ("script", "device"), [("saxpy", "b200"), ("saxpy", "rtx5090"), ("linked", "h200"), ("memory", "h200")]
)
def test_a_script_runs(script: str, device: str) -> None:
    done = run(script, device=device)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{script}: right\n", "")


def test_a_runtime_of_nvidia_in_the_process_finds_no_device() -> None:
    """torch's, for example, asks the driver for undocumented tables; torch warns of other errors."""
    found = find_spec("nvidia")
    places = [
        place
        for each in (found.submodule_search_locations if found else ())
        for place in Path(each).glob("**/libcudart.so.13")
    ]
    if not places:
        pytest.skip("no package has libcudart.so.13")
    text = f"""
import ctypes
from cuda.bindings import driver
assert driver.cuInit(0) == (driver.CUresult.CUDA_SUCCESS,)
print(ctypes.CDLL({str(places[0])!r}).cudaGetDeviceCount(ctypes.byref(ctypes.c_int())))
"""
    done = python("-c", f"import warpwright as ww\nwith ww.virtual('h200'):\n    exec({text!r})")
    assert done.stdout == "100\n", done.stderr


def test_clusters_shared_memory_and_printf() -> None:
    done = run("cluster")
    assert (done.returncode, done.stdout) == (0, "8 CTAs in clusters of 2\ncluster: right\n"), done.stderr


def test_functions_of_the_driver() -> None:
    done = run("bindings")
    assert (done.returncode, done.stdout) == (0, "bindings: right\n"), done.stderr
    assert done.stderr == "warpwright: error: <ptx>:3:14: found the end of the text, expected ';'.\n"


def test_an_illegal_address_is_the_error_of_the_next_synchronisation() -> None:
    done = run("fault", "outside")
    assert done.stdout.splitlines() == ["no error", "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ILLEGAL_ADDRESS"]
    assert done.stderr.count("warpwright: error: ") == 1
    assert (
        "`st.global.u32`: kernel outside, CTA (0, 0, 0), warp 0, lane 0: address 0x6b0000000100 is outside global "
        "memory: 0 bytes past the end of the 256 bytes at 0x6b0000000000;"
    ) in done.stderr


def test_too_much_shared_memory_is_an_error_of_the_launch() -> None:
    done = run("fault", "smem")
    assert done.stdout.splitlines() == ["CUDA_ERROR_INVALID_VALUE", "no error", "CUDA_ERROR_INVALID_VALUE"]
    assert done.stderr.splitlines()[0] == (
        "warpwright: error: kernel smem is launched with 100,000 bytes of dynamic shared memory; expected at most "
        "49,152: call cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000, kernel, device) "
        "before"
    )


def test_verdicts_times_and_memory_of_a_context() -> None:
    tensors = [] if find_spec("torch") is None else ["torch"]
    done = python(SCRIPTS / "context.py", "b200", *tensors)
    expected = ["race findings True", "twice clean True", *(["twice clean True"] if tensors else [])]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, expected, "")


def test_what_a_virtual_gpu_does_not_have_is_told() -> None:
    done = python(SCRIPTS / "refused.py")
    assert done.stdout == "CUDA_ERROR_NOT_SUPPORTED\nCUDA_ERROR_NO_BINARY_FOR_GPU\n"
    assert done.stderr.splitlines() == [
        "warpwright: error: the program calls cuStreamBeginCapture_v2, which a virtual GPU does not have; the call "
        "fails",
        "warpwright: error: given machine code without PTX; expected PTX, or a fatbin with PTX: compile the kernels "
        "for compute_90a in place of sm_90a, for example, or call virtual() before NVRTC is loaded",
    ]
