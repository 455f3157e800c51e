"""Launching on a real GPU: arrays of every origin, streams, graphs, clusters, prepared functions, refusals."""

from __future__ import annotations

from pathlib import Path

import cupy
import numpy as np
import pytest
import torch

import warpwright as ww
from tests.gpu.kernels import COLUMNS, ROWS, THREADS, copy, large, ranks, saxpy
from tests.run.test_pointers import KERNELS, record
from warpwright import cuda
from warpwright.arrays.device import device_array
from warpwright.errors import LaunchError
from warpwright.kernels.gemm import sm90
from warpwright.run.devices import resolve
from warpwright.run.launch import entry_point
from warpwright.selftest.probes import texts
from warpwright.types import bf16

N = 1000
GRID = -(-N // THREADS)
# ptxas and the driver refuse more than 227 KiB of shared memory; `ww.load_ptx` accepts any amount.
LARGE = ".version 8.0\n.target sm_90a\n.address_size 64\n.shared .b8 tile[300000];\n"


def saxpy_function(**options: bool) -> cuda.Function:
    entry = entry_point(saxpy.trace())
    return ww.device("cuda").function(entry.module, entry.name, entry.block, **options)


def test_numpy_arrays_come_back_written() -> None:
    x, y = np.random.default_rng(1).standard_normal((2, N), dtype=np.float32)
    expected = np.float32(1.5) * x + y
    ww.launch(saxpy, GRID, args=[1.5, x, y, N], device="cuda")
    np.testing.assert_array_equal(y, expected)


def test_pointers_in_a_struct_point_to_the_memory_of_the_gpu() -> None:
    x, y = torch.arange(64.0, device="cuda"), torch.zeros(64, device="cuda")
    args = [record(x.data_ptr(), y.data_ptr())]
    ww.launch(KERNELS["scale"], 1, 64, args=args, memory=[x, y])
    assert torch.equal(y, 2 * x)
    with pytest.raises(LaunchError, match="whose kernels cannot follow pointers to the host"):
        ww.launch(KERNELS["scale"], 1, 64, args=args, memory=[x, np.zeros(64)], device="cuda")


def test_a_map_that_moves_is_the_one_made_there() -> None:
    x = torch.zeros(3, 64, 64, device="cuda", dtype=torch.bfloat16)
    tensor = ww.TensorMap(device_array(x[0]), (64, 64), swizzle=128, l2_promotion=256)
    moved = cuda.MovableMap(tensor)
    for part in (x[1], x[2], x[0], x[1]):
        assert moved(part.data_ptr()) == cuda.encode(tensor, part.data_ptr())


def test_a_kernel_for_sm_90a_runs_on_the_gpu_when_none_is_named() -> None:
    assert resolve(None, "sm_90a").name == "cuda:0"
    assert resolve(None, "sm_90a", virtual=True).name == "h200"
    assert resolve(None, "sm_100a").name == "b200"


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_device_arrays_are_used_in_place(library: str) -> None:
    x, y = np.random.default_rng(2).standard_normal((2, N), dtype=np.float32)
    if library == "torch":
        mine, theirs = torch.from_numpy(x).cuda(), torch.from_numpy(y.copy()).cuda()
        ww.launch(saxpy, GRID, args=[2.0, mine, theirs, N])
        found = theirs.cpu().numpy()
    else:
        theirs = cupy.asarray(y)
        ww.launch(saxpy, GRID, args=[2.0, cupy.asarray(x), theirs, N])
        found = theirs.get()
    np.testing.assert_array_equal(found, 2 * x + y)


def test_torch_tensors_through_tensor_maps() -> None:
    """A view that starts inside its storage, bfloat16, gradients asked for."""
    whole = torch.randn(200, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    x = whole[8:, 64:192]
    y = torch.zeros(192, 128, device="cuda", dtype=torch.bfloat16)
    ww.launch(copy, (128 // COLUMNS, 192 // ROWS), args=[x, y])
    assert torch.equal(x, y)


def test_a_view_with_gaps_is_refused_as_a_pointer() -> None:
    x = torch.zeros(N, 2, device="cuda")[:, 0]
    message = (
        "argument 'x' (.u64) was given an array on the GPU with strides of (8,) bytes; "
        "expected a C-contiguous one: x.contiguous()"
    )
    with pytest.raises(ww.UsageError) as caught:
        ww.launch(saxpy, GRID, args=[1.0, x, x, N])
    assert str(caught.value) == message


def test_a_launch_goes_to_the_current_stream_of_torch() -> None:
    x, y = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
    ww.launch(saxpy, GRID, args=[0.0, x, y, N])  # compiles, so that the next launch is faster than the sleep
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        ww.launch(saxpy, GRID, args=[3.0, x, y, N])
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 3))


def test_a_stream_may_be_given() -> None:
    x, y = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True), 0):
        ww.launch(saxpy, GRID, args=[1.0, x, y, N], stream=stream)
        torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(y, 3))


def test_launches_are_captured_in_a_graph() -> None:
    x, y = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
    ww.launch(saxpy, GRID, args=[1.0, x, y, N])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ww.launch(saxpy, GRID, args=[1.0, x, y, N])
        ww.launch(saxpy, GRID, args=[10.0, x, y, N])
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(y, 34))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # raised, it would leave the stream current
def test_numpy_arrays_cannot_be_captured() -> None:
    x, y = np.ones(N, np.float32), np.zeros(N, np.float32)
    ww.launch(saxpy, GRID, args=[1.0, x, y, N], device="cuda")
    stream = torch.cuda.Stream()
    with (
        pytest.raises(ww.LaunchError, match="expected arrays on the GPU"),
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream),
    ):
        ww.launch(saxpy, GRID, args=[1.0, x, y, N], device="cuda", stream=stream)


def test_a_prepared_function_runs_as_often_as_it_is_called() -> None:
    function = saxpy_function()
    x, y = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
    values = (1.0, x.data_ptr(), y.data_ptr(), N)
    for _ in range(1000):
        function((GRID, 1, 1), values, 0)
    torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(y, 1000))


def test_dependent_and_cooperative_launches_run() -> None:
    x, y = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
    torch.cuda.synchronize()
    for options in ({"dependent": True}, {"cooperative": True}):
        saxpy_function(**options)((GRID, 1, 1), (1.0, x.data_ptr(), y.data_ptr(), N), 0)
        torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(y, 2))


def test_a_cooperative_launch_larger_than_the_gpu_is_refused() -> None:
    with pytest.raises(ww.LaunchError, match="CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"):
        saxpy_function(cooperative=True)((100_000, 1, 1), (1.0, 0, 0, 0), 0)


def test_large_clusters_and_large_shared_memory() -> None:
    out = np.zeros(32, np.uint32)
    ww.launch(ranks, 32, args=[out], device="cuda")
    np.testing.assert_array_equal(out, np.arange(32) % 16)
    ww.launch(large, 4, args=[out], device="cuda")
    np.testing.assert_array_equal(out[:4], np.arange(4) + 77)


def test_what_the_gpu_cannot_run_is_refused() -> None:
    args = [1.0, np.zeros(4, np.float32), np.zeros(4, np.float32), 4]
    with pytest.raises(ww.LaunchError) as caught:
        ww.launch(saxpy.trace("sm_100a"), 1, args=args, device="cuda")
    assert str(caught.value) == "kernel saxpy is for sm_100a; device cuda:0 is sm_90a: compile it for that."
    with pytest.raises(ww.LaunchError) as caught:
        ww.launch(saxpy, 1, smem=300_000, args=args, device="cuda")
    assert str(caught.value) == ("kernel saxpy asks for 300000 bytes of shared memory; cuda:0 has 232448 a CTA.")


def test_the_assembler_reports_registers_and_no_spills() -> None:
    function = saxpy_function()
    usage = function.cubin.usage("saxpy")
    assert usage is not None, function.cubin.log
    assert usage.registers == function.registers
    assert (usage.spill_stores, function.local_bytes) == (0, 0)


def test_ptx_that_the_assembler_refuses() -> None:
    text = f"{LARGE}.visible .entry bad()\n{{ st.shared.u32 [tile], 0; ret; }}\n"
    with pytest.raises(ww.UsageError, match=r"ptxas refuses this PTX for sm_90a: (.|\n)*too much shared data"):
        ww.launch(ww.load_ptx(text)["bad"], 1, 32, device="cuda")


@pytest.fixture
def without_ptxas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The driver assembles what it loads."""
    monkeypatch.setattr(cuda.compile, "assembler", lambda: "")
    monkeypatch.setenv("WARPWRIGHT_CACHE", str(tmp_path))


@pytest.mark.usefixtures("without_ptxas")
def test_the_driver_assembles_and_refuses_as_ptxas_does() -> None:
    a, b = (torch.randn(264, 136, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    config = sm90.Config(group=3)  # not one of the chooser, so no other test has loaded it
    entry = entry_point(sm90.kernel_of(config).trace())
    assert ww.device("cuda").function(entry.module, entry.name, entry.block, entry.cluster, entry.smem).local_bytes == 0
    d, plan = (
        torch.empty(264, 264, device="cuda", dtype=torch.bfloat16),
        sm90.plan_gemm(config, 264, 264, 136, sms=132),
    )
    ww.launch(sm90.kernel_of(config), plan.grid, args=[a, b, d, *plan.scalars])
    torch.testing.assert_close(d.float(), a.float() @ b.float().T, rtol=2e-2, atol=1e-3)
    text = f"{LARGE}.visible .entry worse()\n{{ st.shared.u32 [tile], 0; ret; }}\n"
    with pytest.raises(ww.UsageError, match=r"the driver refuses the PTX of 'worse': (.|\n)*too much shared data"):
        ww.launch(ww.load_ptx(text)["worse"], 1, 32, device="cuda")


@pytest.mark.parametrize("by", ["ptxas", "the driver"])
def test_dynamic_memory_behind_static_memory_is_aligned_as_declared(
    by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ptxas and the driver respect the alignment in a whole program; a linker does not, and such code is refused."""
    if by == "the driver":
        monkeypatch.setattr(cuda.compile, "assembler", lambda: "")
    monkeypatch.setenv("WARPWRIGHT_CACHE", str(tmp_path))
    text, out = texts.addresses().replace(".align 16 .b8 arena", ".align 128 .b8 arena"), np.zeros(5, np.uint32)
    ww.launch(ww.load_ptx(f"{text}// {by}\n")["addresses"], 1, 1, args=[out], device="cuda")
    assert out[1] >= out[0] + 100 and out[1] % 128 == 0


def test_a_second_process_finds_the_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = saxpy.ptx()
    first = cuda.compile.compile_ptx(text, "sm_90a", tmp_path)
    monkeypatch.setattr(cuda.compile, "link", lambda *_: pytest.fail("compiled again"))
    assert cuda.compile.compile_ptx(text, "sm_90a", tmp_path) == first


def test_events_measure_a_copy() -> None:
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    entry = entry_point(copy.trace())
    function = ww.device("cuda").function(entry.module, entry.name, entry.block, smem=entry.smem)
    maps = [cuda.encode_fields(t.data_ptr(), bf16.tma, (4096, 4096), (8192,), (64, 64), swizzle=128) for t in (x, y)]
    seconds = cuda.measure(lambda: function((64, 64, 1), maps, 0), rounds=5)
    assert torch.equal(x, y)
    assert all(67.1e6 / 5e12 < second < 1e-3 for second in seconds), seconds
