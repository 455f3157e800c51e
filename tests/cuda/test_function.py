"""Parameter buffers and launches of a loaded kernel."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cuda.conftest import FakeDriver, Result
from warpwright.cuda.compile import Cubin
from warpwright.cuda.function import BUFFERS, Function, layout, wrap_integers
from warpwright.errors import LaunchError
from warpwright.ptx.nodes import Variable
from warpwright.run.launch import load_ptx
from warpwright.vgpu.program.decode import decode


def param(type: str, *dims: int, align: int | None = None, vector: int = 1) -> Variable:
    return Variable("param", type, "p", dims=dims, align=align, vector=vector)


def test_parameters_stand_at_their_alignment() -> None:
    form, offsets = layout(
        [param("u8"), param("f64"), param("u16"), param("f32"), param("b8", 128, align=64), param("u32")]
    )
    assert offsets == [0, 8, 16, 20, 64, 192]
    data = form.pack(7, -2.5, 513, 1.5, bytes(range(128)), 0xDEADBEEF)
    assert len(data) == 196
    assert (data[0], data[16:18]) == (7, b"\x01\x02")
    assert struct.unpack_from("<d", data, 8) == (-2.5,)
    assert struct.unpack_from("<f", data, 20) == (1.5,)
    assert data[64:192] == bytes(range(128))
    assert data[192:] == b"\xef\xbe\xad\xde"


def test_vectors_and_arrays_are_bytes() -> None:
    form, offsets = layout([param("f32"), param("f32", vector=4), param("u64", 3)])
    assert offsets == [0, 16, 32]
    assert form.pack(0.0, bytes(16), bytes(24)) == bytes(56)


def test_no_parameters() -> None:
    form, offsets = layout([])
    assert (form.size, offsets, form.pack()) == (0, [], b"")


def test_the_virtual_gpu_lays_them_out_alike() -> None:
    names = ("u8 a", "u64 b", "b16 c", "f32 d", "u8 e", "f64 f")
    declared = ", ".join(f".param .{name}" for name in names) + ", .param .align 64 .b8 g[128], .param .u16 h"
    module = load_ptx(f".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k({declared})\n{{\n ret;\n}}\n")
    program = decode(module["k"].module, "k")
    assert layout(module["k"].function.params)[1] == [each.offset for each in program.params]


def test_negative_integers_become_their_twos_complement() -> None:
    form, _ = layout([param("u32"), param("s64"), param("f32"), param("b16"), param("b8", 3)])
    values = (-1, -2, -1.5, -3, b"abc")
    with pytest.raises(struct.error):
        form.pack(*values)
    assert wrap_integers(form, values) == [0xFFFFFFFF, 2**64 - 2, -1.5, 0xFFFD, b"abc"]


CONTEXT = 77
SMALL = [param("u32"), param("b8", 16, align=8), param("f32")]


class Kernels(FakeDriver):
    """A fake driver that records the grid, the stream and the parameters of each launch."""

    def __init__(self) -> None:
        super().__init__()
        self.current, self.entered, self.started = CONTEXT, [], []
        names = ("MAX_DYNAMIC_SHARED_SIZE_BYTES", "NON_PORTABLE_CLUSTER_SIZE_ALLOWED")
        self.CUfunction_attribute = SimpleNamespace(**{f"CU_FUNC_ATTRIBUTE_{name}": name for name in names})
        self.CUjit_option = SimpleNamespace(CU_JIT_ERROR_LOG_BUFFER=0, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES=1)
        self.CUlaunchConfig = SimpleNamespace
        self.cuModuleLoadDataEx = lambda *_: (Result.CUDA_SUCCESS, "module")
        self.cuModuleGetFunction = lambda *_: (Result.CUDA_SUCCESS, "kernel")
        self.cuFuncSetAttribute = self.cuFuncLoad = lambda *_: (Result.CUDA_SUCCESS,)

    def cuCtxGetCurrent(self) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, self.current

    def cuCtxSetCurrent(self, context: int) -> tuple[Result]:
        self.current = context
        self.entered.append(context)
        return (Result.CUDA_SUCCESS,)

    def cuLaunchKernelEx(self, config: Any, kernel: str, parameters: int, _: int) -> tuple[Result]:
        places = (ctypes.c_uint64 * len(SMALL)).from_address(parameters)
        first, second, third = (ctypes.string_at(place, size) for place, size in zip(places, (4, 16, 4), strict=True))
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        values = int.from_bytes(first, "little"), second, struct.unpack("<f", third)[0]
        self.started.append((kernel, grid, config.hStream, values))
        return (self.status,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    made = Kernels()
    monkeypatch.setattr("warpwright.cuda.function.driver", lambda: made)
    return made


def test_a_launch_keeps_its_arguments(driver: Kernels) -> None:
    """Each of many launches has its own parameters; a negative integer is in two's complement."""
    function = Function(CONTEXT, Cubin(b"", ""), "k", SMALL, (32, 1, 1))
    expected = [("kernel", (1 + n % 3, 1, 1), n % 2, (n, bytes([n % 256]) * 16, n / 4)) for n in range(2 * BUFFERS + 3)]
    launches = [function.at(grid, values, stream) for _, grid, stream, values in expected]
    for launch in reversed(launches):
        launch()
    assert driver.started == expected[::-1]
    function((1, 2, 3), (-1, bytes(16), 0.5))
    assert driver.started[-1] == ("kernel", (1, 2, 3), 0, (0xFFFFFFFF, bytes(16), 0.5))


def test_a_launch_runs_in_the_context_of_its_gpu(driver: Kernels) -> None:
    launch = Function(CONTEXT, Cubin(b"", ""), "k", SMALL, (32, 1, 1)).at((1, 1, 1), (1, bytes(16), 0.5))
    driver.entered.clear()
    launch()
    driver.current = 0
    launch()
    assert driver.entered == [CONTEXT] and driver.current == CONTEXT


def test_a_launch_that_the_driver_refuses(driver: Kernels) -> None:
    function = Function(CONTEXT, Cubin(b"", ""), "k", SMALL, (32, 1, 1))
    driver.status = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError) as caught:
        function((4, 1, 1), (1, bytes(16), 0.5))
    assert str(caught.value) == (
        "launch of 'k' with grid=(4, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1): the CUDA driver answers "
        "CUDA_ERROR_INVALID_VALUE"
    )
