"""Scripts of CuPy run unmodified on a virtual GPU, each in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

NEEDED = {"cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"}
missing = NEEDED - {each.name for each in distributions()}
if missing:
    reason = f"{' and '.join(sorted(missing))} are extras: pip install 'warpwright[foreign]'"
    pytest.skip(reason, allow_module_level=True)

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("cupy")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cupy")


def python(cache: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUPY_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(("device", "capability"), [("h200", 90), ("b200", 100)])
def test_arrays_and_kernels(cache: Path, device: str, capability: int) -> None:
    done = python(cache, "-m", "warpwright", "run", "--device", device, SCRIPTS / "arrays.py")
    expected = f"arrays: right on {capability} Warpwright {device}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_errors_are_those_of_cupy(cache: Path) -> None:
    done = python(cache, "-m", "warpwright", "run", "--device", "h200", SCRIPTS / "errors.py")
    assert done.stdout.splitlines() == [
        "CUDARuntimeError: cudaErrorInvalidDevice: invalid device ordinal",
        "OutOfMemoryError: Out of memory allocating 35,184,372,088,832 bytes (allocated so far: 0 bytes).",
        "CUDARuntimeError: cudaErrorNotSupported: operation not supported",
        "RuntimeError: radix_sort: failed on 1st step: cudaErrorInvalidDevice: invalid device ordinal",
        "CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access was encountered",
    ], done.stderr
    refused, fault = done.stderr.splitlines()[:2]
    assert refused.endswith(
        "the program calls cuStreamBeginCapture_v2, which a virtual GPU does not have; the call fails"
    )
    assert "kernel outside, CTA (0, 0, 0), warp 0, lane 0: address" in fault
    assert "4194048 bytes past the end of the 256 bytes" in fault


def test_verdicts_times_and_the_end_of_a_context(cache: Path) -> None:
    done = python(cache, SCRIPTS / "context.py")
    expected = ["race findings True", "cudaErrorNoDevice: no CUDA-capable device is detected"]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, expected, "")


def test_cupy_imported_too_early_is_refused(cache: Path) -> None:
    done = python(cache, "-c", "import cupy, warpwright as ww\nwith ww.virtual('h200'):\n    pass")
    assert done.stderr.splitlines()[-1] == (
        "warpwright.errors.UsageError: given CuPy imported before virtual(), with the functions of a GPU; expected the "
        "import inside the context, or the whole script: warpwright run --device b200 script.py"
    )


def test_a_function_with_other_types_is_refused(cache: Path) -> None:
    text = """
import warpwright as ww
from cupy_backends.cuda.api import runtime
runtime.__pyx_capi__["malloc"] = runtime.__pyx_capi__["free"]
with ww.virtual("h200"):
    pass
"""
    done = python(cache, "-c", text)
    assert done.stderr.splitlines()[-1] == (
        "warpwright.errors.UsageError: the function malloc of CuPy has other types than in version 14; expected "
        "cupy-cuda13x>=14,<15"
    )
