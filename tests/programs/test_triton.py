"""Programs of Triton run unmodified on a virtual GPU, with right numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[foreign]'")
triton = pytest.importorskip("triton", reason="Triton is an extra: pip install 'warpwright[foreign]'")

from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import warpwright as ww  # noqa: E402
from tests.programs import kernels  # noqa: E402

DEVICES = ("h200", "b200", "rtx5090")


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path_factory) -> None:
    """Triton warns where this variable is not set, and keeps compiled kernels in a folder of these tests."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


@pytest.fixture(params=DEVICES)
def session(request):
    torch.manual_seed(1)
    with ww.virtual(request.param) as session:
        yield session


def test_vectors_are_added(session) -> None:
    x, y = torch.rand(1000, device="cuda"), torch.rand(1000, device="cuda")
    torch.testing.assert_close(kernels.add(x, y), x + y, rtol=0, atol=0)
    assert [(each.name, each.grid) for each in session.launches] == [("add_kernel", (4, 1, 1))]


def test_rows_are_normalised(session) -> None:
    x = torch.randn(37, 130, device="cuda")
    torch.testing.assert_close(kernels.softmax(x), torch.softmax(x, axis=1))


def test_a_product_is_autotuned(session) -> None:
    kernels.matmul_kernel.cache.clear()  # Triton's, which has no device
    a, b = torch.randn(200, 96, device="cuda").half(), torch.randn(96, 136, device="cuda").half()
    torch.testing.assert_close(kernels.matmul(a, b), (a.double() @ b.double()).half(), rtol=1e-2, atol=1e-2)
    tried = [each for each in session.launches if each.time_us is not None]
    assert len(tried) >= 2 and session.launches[-1].time_us is None


def test_gradients_are_recorded(session) -> None:
    x = torch.randn(9, 100, device="cuda", requires_grad=True)
    y = torch.randn(9, 100, device="cuda")
    kernels.Norm.apply(x, 1e-5).backward(y)
    found, x.grad = x.grad, None
    torch.nn.functional.layer_norm(x, (100,)).backward(y)
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-5)


def test_tensor_descriptors_of_the_host(session) -> None:
    a, b = torch.randn(128, 128, device="cuda").half(), torch.randn(128, 128, device="cuda").half()
    c = torch.empty(128, 128, device="cuda", dtype=torch.float16)
    blocks = ((64, 64), (64, 64), (64, 64))
    maps = [TensorDescriptor.from_tensor(x, list(block)) for x, block in zip((a, b, c), blocks, strict=True)]
    kernels.descriptor_matmul_kernel[(2, 2)](*maps, 128, BM=64, BN=64, BK=64)
    torch.testing.assert_close(c, (a.double() @ b.double().T).half(), rtol=1e-2, atol=1e-2)


def test_tensor_descriptors_made_on_the_device(session) -> None:
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    x = torch.randn(100, 64, device="cuda")
    out = torch.zeros_like(x)
    kernels.device_descriptor_kernel[(4, 2)](x, out, 100, 64, BM=32, BN=32)
    torch.testing.assert_close(out, 2 * x, rtol=0, atol=0)


def test_a_table_of_addresses(session) -> None:
    tensors = [torch.randn(50, device="cuda") for _ in range(3)]
    table = torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda")
    out = torch.empty(3, 50, device="cuda")
    kernels.pointers_kernel[(3,)](table, out, 50, BLOCK=64)
    torch.testing.assert_close(out, torch.stack(tensors), rtol=0, atol=0)


def test_a_kernel_of_gluon(session) -> None:
    x = torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    kernels.copy_kernel[(2,)](x, out, 1000, 512, kernels.gl.BlockedLayout([1], [32], [4], [0]), num_warps=4)
    torch.testing.assert_close(out, x, rtol=0, atol=0)


def test_verdict_and_time_on_request() -> None:
    x, y = torch.rand(1000), torch.rand(1000)
    with ww.virtual("b200", check=True, profile=True) as session:
        kernels.add(x, y)
    (launched,) = session.launches
    assert launched.verdict.kind == "clean" and 1 < launched.time_us < 100


def test_outside_the_context_everything_is_as_before() -> None:
    available = torch.cuda.is_available
    with pytest.raises(ZeroDivisionError), ww.virtual("h200"):
        assert torch.cuda.is_available() and torch.zeros(1, device="cuda").device.type == "cpu"
        _ = 1 / 0
    assert torch.cuda.is_available is available


def run_script(folder: Path, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script; the package's entry point for Triton is given to it in a folder of its own."""
    (folder / "script.py").write_text(text)
    info = folder / "warpwright-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: warpwright\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[triton.backends]\nwarpwright = warpwright.interop.triton_backend\n")
    paths = [str(folder), str(Path(ww.__file__).parents[1])]
    env = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


SCRIPT = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

x = torch.arange(100, device="cuda", dtype=torch.float32)
double[(1,)](x, 100, BLOCK=128)
print(x.sum().item(), torch.cuda.get_device_capability())
"""


@pytest.mark.parametrize(("name", "capability"), [("h200", (9, 0)), ("b200", (10, 0))])
def test_a_script_runs_on_the_device_that_the_environment_names(tmp_path, name, capability) -> None:
    ran = run_script(tmp_path, SCRIPT, WARPWRIGHT_DEVICE=name)
    assert (ran.stdout, ran.returncode) == (f"9900.0 {capability}\n", 0), ran.stderr


def test_the_kernel_of_the_readme_runs(tmp_path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (text,) = (block for block in re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S) if "@triton.jit" in block)
    ran = run_script(tmp_path, text)
    assert ran.returncode == 0, ran.stderr
    expected = re.search(r"# (softmax clean .*)", text)
    assert expected and ran.stdout == f"{expected[1]}\n"
