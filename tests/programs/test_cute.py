"""Programs of CuTe DSL, FlashAttention-4 and QuACK run unmodified on a virtual GPU, with right numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[foreign]'")
cutlass = pytest.importorskip("cutlass", reason="CuTe DSL is an extra: pip install 'warpwright[foreign]'")

import tvm_ffi  # noqa: E402
from cutlass import cute  # noqa: E402
from cutlass.cute.runtime import from_dlpack  # noqa: E402
from cutlass.cutlass_dsl import CuTeDSL, DSLCudaRuntimeError  # noqa: E402

import warpwright as ww  # noqa: E402
from tests.programs import cute_kernels  # noqa: E402
from tests.programs.verdicts import checked  # noqa: E402
from warpwright.errors import MemoryFault, UsageError  # noqa: E402

ROOT = Path(__file__).parents[2]
OVER = (
    "given a function that CuTe DSL compiled inside virtual(), after its context; call it inside, or compile it again"
)
BF16 = 2.0**-8  # half a unit in the last place of a result near 1


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


@pytest.mark.parametrize("device", ["h200", "b200", "rtx5090"])
def test_threads_multiply(device: str) -> None:
    with ww.virtual(device, check=True, profile=True) as session:
        a, b = torch.randn(32, 48, device="cuda"), torch.randn(48, 64, device="cuda")
        d = cute_kernels.run(cute_kernels.threads_gemm, a, b, torch.float32)
    torch.testing.assert_close(d.double(), a.double() @ b.double(), rtol=0, atol=1e-4)
    (launched,) = session.launches
    assert launched.grid == (4, 2, 1)
    assert launched.verdict.kind == "clean" and launched.time_us > 0


@pytest.mark.parametrize("library", ["numpy", "tvm_ffi"])
@pytest.mark.parametrize("options", [{}, {"enable_tvm_ffi": True}], ids=["plain", "tvm_ffi"])
def test_arrays_of_other_libraries(library: str, options: dict[str, bool]) -> None:
    """A view of an array of NumPy, and an array by DLPack that only CuTe DSL's tensor has."""
    a, b, d = (np.random.default_rng(0).standard_normal((48, 48), np.float32)[:32, :32] for _ in range(3))
    convert = {"numpy": lambda array: array, "tvm_ffi": tvm_ffi.from_dlpack}[library]
    with checked("h200"):
        tensors = [from_dlpack(convert(each), assumed_align=4, **options) for each in (a, b, d)]
        cute.compile(cute_kernels.threads_gemm, *tensors)(*tensors)
    np.testing.assert_allclose(d, a.astype(np.float64) @ b, rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"enable_tvm_ffi": True}], ids=["plain", "tvm_ffi"])
@pytest.mark.parametrize(("device", "gemm"), [("h200", "hopper_gemm"), ("b200", "blackwell_gemm")])
def test_tensor_cores_multiply(device: str, gemm: str, options: dict[str, bool]) -> None:
    with checked(device) as session:
        a, b = torch.randn(256, 192, device="cuda").bfloat16(), torch.randn(128, 192, device="cuda").bfloat16()
        d = cute_kernels.run(getattr(cute_kernels, gemm), a, b, torch.bfloat16, **options)
    expected = a.double() @ b.double().T
    torch.testing.assert_close(d.double(), expected, rtol=BF16, atol=1e-3)
    assert len(session.launches) == 1


@pytest.mark.parametrize("options", ["", "--enable-tvm-ffi"])
@pytest.mark.parametrize("device", ["h200", "b200"])
def test_tensor_maps_that_host_code_encodes(device: str, options: str) -> None:
    with checked(device):
        x, d = torch.randn(40, 48), torch.full((32, 32), float("nan"))
        tensors = [from_dlpack(each, assumed_align=16, enable_tvm_ffi=bool(options)) for each in (x, d)]
        cute.compile(cute_kernels.copy_tile, *tensors, 32, options=options)(*tensors)
    assert torch.equal(d, x[:32, :32])


@pytest.mark.parametrize("options", ["", "--enable-tvm-ffi"])
def test_a_tensor_map_that_is_refused(options: str) -> None:
    """The host code goes on; its launch raises the error."""
    with ww.virtual("h200"):
        x, d = torch.randn(40, 48), torch.zeros(32, 32)
        tensors = [from_dlpack(each, assumed_align=16, enable_tvm_ffi=bool(options)) for each in (x, d)]
        compiled = cute.compile(cute_kernels.copy_tile, *tensors, 300, options=options)
        with pytest.raises(UsageError) as caught:
            compiled(*tensors)
    assert str(caught.value) == "box is given 300; expected 1 to 256"


@pytest.mark.parametrize("options", ["", "--enable-tvm-ffi"])
def test_a_fault_reaches_the_caller(options: str) -> None:
    """The error is raised as it is, through host code and TVM FFI."""
    with ww.virtual("h200"):
        tensor = from_dlpack(torch.zeros(64), assumed_align=16, enable_tvm_ffi=bool(options))
        compiled = cute.compile(cute_kernels.write_outside, tensor, options=options)
        with pytest.raises(MemoryFault, match="outside global memory"):
            compiled(tensor)


def test_a_cooperative_launch_with_memory_of_the_bindings() -> None:
    """The counter lies in memory that no tensor has. A grid that does not fit is the error of a GPU."""
    runtime = pytest.importorskip("cuda.bindings.runtime")
    with checked("h200") as session:
        success, address = runtime.cudaMalloc(4)
        assert runtime.cudaMemset(address, 0, 4) == (success,)
        counter = cute.runtime.make_ptr(cutlass.Int32, address, cute.AddressSpace.gmem)
        cute_kernels.count(counter, 8)
        found = np.zeros(1, np.int32)
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        assert runtime.cudaMemcpy(found.ctypes.data, address, 4, kind) == (success,)
        assert found.tolist() == [8] and len(session.launches) == 1
        with pytest.raises(DSLCudaRuntimeError) as caught:
            cute_kernels.count(counter, 10_000)
        assert caught.value.error_code == runtime.cudaError_t.cudaErrorCooperativeLaunchTooLarge
        assert runtime.cudaFree(address) == (success,)


def test_a_call_after_the_context() -> None:
    with ww.virtual("h200"):
        tensor = from_dlpack(torch.zeros(64), assumed_align=16, enable_tvm_ffi=True)
        compiled = cute.compile(cute_kernels.write_outside, tensor, options="--enable-tvm-ffi")
    with pytest.raises(UsageError) as caught:
        compiled(tensor)
    assert str(caught.value) == OVER


def test_a_call_after_the_inner_context() -> None:
    """The numbers of its kernels are not those of the outer context's kernels."""
    with ww.virtual("h200"):
        tensor = from_dlpack(torch.zeros(64), assumed_align=16)
        with ww.virtual("h200"):
            compiled = cute.compile(cute_kernels.write_outside, tensor)
            with pytest.raises(MemoryFault):
                compiled(tensor)
        cute_kernels.run(cute_kernels.threads_gemm, torch.ones(16, 16), torch.ones(16, 16), torch.float32)
        with pytest.raises(UsageError) as caught:
            compiled(tensor)
    assert str(caught.value) == OVER


@pytest.mark.parametrize("device", ["h200", "b200"])
def test_contexts_are_nested(device: str) -> None:
    """Each compiles for its own GPU, and again for the same one."""
    with ww.virtual("h200") as outer:
        with ww.virtual(device) as inner:
            cute_kernels.run(cute_kernels.threads_gemm, torch.ones(16, 16), torch.ones(16, 16), torch.float32)
        assert CuTeDSL._get_dsl().envar.arch == "sm_90a"
        cute_kernels.run(cute_kernels.threads_gemm, torch.ones(16, 16), torch.ones(16, 16), torch.float32)
    assert len(inner.launches) == len(outer.launches) == 1


def test_kernels_whose_ptx_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ww.virtual("h200"):
        tensors = [from_dlpack(torch.zeros(32, 32), assumed_align=16) for _ in range(3)]
        compiled = cute.compile(cute_kernels.threads_gemm, *tensors)
        monkeypatch.setenv("WARPWRIGHT_CACHE", str(tmp_path))
        with pytest.raises(UsageError) as caught:
            compiled(*tensors)
    assert str(caught.value) == (
        "given kernels that CuTe DSL compiled outside virtual(), of which only machine code is left; expected PTX: "
        "remove the cache of the program that compiled them, and run it again"
    )


def test_without_a_compiler_of_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UsageError) as caught, ww.virtual("h200"):
        pass
    assert str(caught.value) == (
        "cute_runtime.c must be compiled once, and no C compiler is on PATH; expected one of cc, gcc, clang: install "
        "gcc, or set CC"
    )


@pytest.mark.parametrize("call", ["attention", "gradients", "softmax", "gemm"])
@pytest.mark.parametrize("device", ["h200", "b200"])
def test_libraries_are_called(device: str, call: str) -> None:
    library = "quack" if call in ("softmax", "gemm") else "flash_attn"
    if find_spec(library) is None:
        pytest.skip(f"{library} is an extra: pip install 'warpwright[foreign]'")
    command = [sys.executable, "-m", "tests.programs.calls", device, call]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "src"})
    assert done.returncode == 0, done.stderr[-3000:]
    *errors, names = done.stdout.splitlines()
    assert len(errors) == (4 if call == "gradients" else 1)
    for line in errors:
        error, most = map(float, line.split())
        assert error <= (2 if call == "gradients" else 1) * BF16 * most  # P and dS are rounded too
    assert "kernel" in names


def test_the_call_of_the_readme_runs(tmp_path: Path) -> None:
    pytest.importorskip("flash_attn", reason="FlashAttention-4 is an extra: pip install 'warpwright[foreign]'")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (text,) = (block for block in re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S) if "flash_attn" in block)
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == re.search(r"# (.*)\n$", text)[1] + "\n"
