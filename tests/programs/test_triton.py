"""Programs of Triton run unmodified on a virtual GPU, with right numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[foreign]'")
triton = pytest.importorskip("triton", reason="Triton is an extra: pip install 'warpwright[foreign]'")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import warpwright as ww  # noqa: E402
from tests.programs import attention_kernels, kernels, scaled_kernels  # noqa: E402
from tests.programs.verdicts import check, checked  # noqa: E402
from warpwright.cli import main  # noqa: E402
from warpwright.interop import virtual  # noqa: E402
from warpwright.interop.memory import living  # noqa: E402

DEVICES = ("h200", "b200", "rtx5090")


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path_factory) -> None:
    """Triton warns where this variable is not set, and keeps compiled kernels in a folder of these tests."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


@pytest.fixture(params=DEVICES)
def session(request):
    torch.manual_seed(1)
    with checked(request.param) as session:
        yield session


def test_vectors_are_added(session) -> None:
    x, y = torch.rand(1000, device="cuda"), torch.rand(1000, device="cuda")
    torch.testing.assert_close(kernels.add(x, y), x + y, rtol=0, atol=0)
    assert [(each.name, each.grid) for each in session.launches] == [("add_kernel", (4, 1, 1))]


def test_rows_are_normalised(session) -> None:
    x = torch.randn(37, 130, device="cuda")
    torch.testing.assert_close(kernels.softmax(x), torch.softmax(x, axis=1))


HALF = 2**-11  # one rounding to float16, of the largest value; sums are in float32
HALVES = 2**-10  # the factors of the second GEMM are rounded to float16 too
FLOAT = 2**-20  # about 100 float32 additions, of the largest value


def test_a_gemm_is_autotuned(session) -> None:
    """Tiles in groups of rows, a ragged edge, an activation."""
    kernels.matmul_kernel.cache.clear()  # Triton's, which has no device
    a, b = torch.randn(200, 96, device="cuda").half(), torch.randn(96, 136, device="cuda").half()
    exact = a.double() @ b.double()
    check(kernels.matmul(a, b, "leaky_relu"), torch.where(exact >= 0, exact, 0.01 * exact), HALF)
    tried = [each for each in session.launches if each.time_us is not None]
    assert len(tried) >= 2 and session.launches[-1].time_us is None


def test_gradients_are_recorded(session) -> None:
    """Layer norm; nine programs add their parts of two gradients in four places, each under a lock."""
    x, y = torch.randn(9, 100, device="cuda"), torch.randn(9, 100, device="cuda")
    operands = [x, torch.randn(100, device="cuda"), torch.randn(100, device="cuda")]
    mine = [each.clone().requires_grad_() for each in operands]
    exact = [each.double().requires_grad_() for each in operands]
    out = kernels.Norm.apply(*mine, 1e-5)
    out.backward(y)
    expected = torch.nn.functional.layer_norm(exact[0], (100,), *exact[1:], 1e-5)
    expected.backward(y.double())
    check(out.detach(), expected.detach(), FLOAT)
    for found, right in zip(mine, exact, strict=True):
        check(found.grad, right.grad, FLOAT)


ATTENTION = [("h200", True, False), ("b200", False, True), ("rtx5090", True, False)]


@pytest.mark.parametrize(("name", "causal", "roles"), ATTENTION, ids=["h200", "b200-roles", "rtx5090"])
def test_attention_and_its_gradients(name, causal, roles) -> None:
    """The autotuner sets the blocks of tensor descriptors; ``roles`` asks Triton for roles of warps."""
    torch.manual_seed(1)
    attention_kernels.attention_kernel.cache.clear()
    operands = [torch.randn(1, 128, 32).half() for _ in range(3)]
    y = torch.randn(1, 128, 32).half()
    mine = [each.clone().requires_grad_() for each in operands]
    exact = [each.double().requires_grad_() for each in operands]
    with checked(name):
        out = attention_kernels.Attention.apply(*mine, causal, roles)
        out.backward(y)
    expected = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=causal)
    expected.backward(y.double())
    check(out.detach(), expected.detach(), HALVES)
    for found, right in zip(mine, exact, strict=True):
        check(found.grad, right.grad, HALVES)


def test_a_persistent_gemm(session) -> None:
    """Three programs, twelve tiles, ragged edges; one loop over tiles and steps."""
    a, b = torch.randn(200, 96).half(), torch.randn(96, 136).half()
    c = torch.zeros(200, 136).half()
    attention_kernels.persistent_kernel[(3,)](a, b, c, 200, 136, 96, PROGRAMS=3, BM=64, BN=64, BK=32, GROUP=2)
    check(c, a.double() @ b.double(), HALF)


PERSISTENT = [
    ("h200", torch.float16, False, 1, False),
    ("h200", torch.float8_e4m3fn, True, 2, False),
    ("b200", torch.float16, True, 2, False),
    ("b200", torch.float8_e4m3fn, True, 2, True),
    ("rtx5090", torch.float16, True, 1, True),
]


@pytest.mark.parametrize(("name", "dtype", "host", "parts", "roles"), PERSISTENT)
def test_a_persistent_gemm_of_tensor_descriptors(name, dtype, host, parts, roles) -> None:
    """Descriptors of the host or the device, a tile stored in parts, roles of warps instead of one loop."""
    torch.manual_seed(1)
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    a, b, c = (torch.randn(m, n).to(dtype) for m, n in ((300, 128), (128, 128), (300, 128)))
    maps = [TensorDescriptor.from_tensor(x, [m, n]) for x, m, n in ((a, 128, 64), (b, 64, 64), (c, 128, 64 // parts))]
    with checked(name):
        attention_kernels.persistent_descriptor_kernel[(2,)](
            *(maps if host else (a, b, c)), 300, 128, 128,
            PROGRAMS=2, BM=128, BN=64, BK=64, GROUP=2, PARTS=parts, ROLES=roles, FLAT=not roles,
        )  # fmt: skip
    check(c, a.double() @ b.double().T, HALF if dtype == torch.float16 else 2**-4)


SCALED = {
    "mxfp8": ("e4m3", "e4m3", 32, "float8_e8m0fnu"),
    "mixed": ("e5m2", "e2m1", 32, "float8_e8m0fnu"),
    "nvfp4": ("e2m1", "e2m1", 16, "float8_e4m3fn"),
}


@pytest.mark.parametrize(("device", "format"), [*(("b200", format) for format in SCALED), ("rtx5090", "nvfp4")])
def test_a_gemm_with_block_scales(device, format) -> None:
    """tl.dot_scaled by tcgen05.mma or mma.sync, scale factors in tiles of 128 by 4. 512 float32 additions lose at most
    2^-15 of the magnitudes."""
    block = 256 if device == "b200" else 128
    with checked(device):
        d, exact, size = scaled_kernels.scaled_matmul(*SCALED[format], 128, 128, 2 * block, block)
    assert ((d.double() - exact).abs() <= 2.0**-15 * size).all()


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


def test_a_profile_of_tensor_descriptors_made_on_the_device() -> None:
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    with ww.virtual("b200", profile=True) as session:
        x = torch.randn(256, 64, device="cuda")
        kernels.device_descriptor_kernel[(8, 2)](x, torch.zeros_like(x), 256, 64, BM=32, BN=32)
    assert 1 < session.launches[0].time_us < 100


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


def test_a_graph_repeats_launches_and_operators() -> None:
    """As on a GPU, a capture executes nothing, and results are those of the last replay."""
    with checked("h200") as session:
        x, y = torch.ones(1000, device="cuda"), torch.ones(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
            total = kernels.add(x, y)
            x.add_(total)
            torch.mul(total, 2, out=y)
            half = (total / 2).reshape(50, 20).sum(1)
        assert not session.launches and x.eq(1).all() and y.eq(1).all()
        graph.replay()
        assert total.eq(2).all() and x.eq(3).all() and y.eq(4).all() and half.eq(20).all()
        y.fill_(1)
        graph.replay()
        assert total.eq(4).all() and x.eq(7).all() and y.eq(8).all() and half.eq(40).all()
        assert len(session.launches) == 2
        assert triton.testing.do_bench_cudagraph(lambda: kernels.add(x, y), rep=1) > 0


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


def test_the_command_runs_a_script_and_tells_its_kernels(tmp_path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + "import sys\nsys.exit(len(sys.argv) - 2)\n", encoding="utf-8")
    command = [sys.executable, "-m", "warpwright", "run", "--device", "b200", "--check", str(path), "word"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "9900.0 (10, 0)\n"), done.stderr
    assert re.search(r"double +1 +clean", done.stderr)


def test_a_script_that_ends_with_words_fails_with_them(tmp_path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import sys\nsys.exit('no input')\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["run", "--device", "b200", str(path)])
    assert (result.exit_code, result.stderr) == (1, "no input\n")


def test_the_kernel_of_the_readme_runs(tmp_path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (text,) = (block for block in re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S) if "@triton.jit" in block)
    ran = run_script(tmp_path, text)
    assert ran.returncode == 0, ran.stderr
    expected = re.search(r"# (softmax clean .*)", text)
    assert expected and ran.stdout == f"{expected[1]}\n"


def test_a_library_that_is_absent_is_absent_inside_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program asks for CuTe DSL by an import that may fail."""
    monkeypatch.setattr(virtual, "_DOORS", {"triton": "triton", "no_library_of_this_name": "cute"})
    with ww.virtual("h200"), pytest.raises(ModuleNotFoundError):
        import no_library_of_this_name  # noqa: F401


def test_tensors_of_torch_compile_are_no_memory_of_a_kernel() -> None:
    with FakeTensorMode():
        fake = torch.zeros(1)
    real = torch.zeros(1)
    found = {id(each) for each in living()}
    assert id(real) in found and id(fake) not in found


def test_only_tensors_with_memory_are_on_the_gpu() -> None:
    with ww.virtual("h200"):
        assert torch.zeros(1).is_cuda and not torch.zeros(1, device="meta").is_cuda
