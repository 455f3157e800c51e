"""Pointers in structs, in tables and in numbers: `memory=` of `launch`, `check` and `profile`."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import warpwright as ww
from warpwright import cuda
from warpwright.arrays.device import DeviceArray
from warpwright.errors import LaunchError, MemoryFault, UsageError, WarpwrightError
from warpwright.run.check import _argument_number
from warpwright.vgpu.jit.state import GLOBAL_BASE, LOCAL_WINDOW, SHARED_WINDOW

PTX = """
.version 8.3
.target sm_90
.address_size 64
.visible .entry scale(.param .align 8 .b8 p[24])
{
    .reg .b64 %x, %y, %d; .reg .b32 %i, %n; .reg .f32 %f, %v; .reg .pred %p;
    ld.param.b64 %x, [p]; ld.param.b64 %y, [p+8]; ld.param.b32 %n, [p+16]; ld.param.f32 %f, [p+20];
    mov.u32 %i, %tid.x; setp.ge.s32 %p, %i, %n; @%p exit;
    mul.wide.u32 %d, %i, 4; add.u64 %x, %x, %d; add.u64 %y, %y, %d;
    ld.global.f32 %v, [%x]; mul.f32 %v, %v, %f; st.global.f32 [%y], %v; ret;
}
.visible .entry fill(.param .u64 table)
{
    .reg .b64 %t, %d, %x; .reg .b32 %i, %c;
    ld.param.u64 %t, [table]; mov.u32 %c, %ctaid.x; mul.wide.u32 %d, %c, 8; add.u64 %t, %t, %d; ld.global.u64 %x, [%t];
    mov.u32 %i, %tid.x; mul.wide.u32 %d, %i, 4; add.u64 %x, %x, %d; add.u32 %c, %c, 1; st.global.u32 [%x], %c; ret;
}
.visible .entry store(.param .u64 x)
{
    .reg .b64 %x, %d; .reg .b32 %i;
    ld.param.u64 %x, [x]; mov.u32 %i, %tid.x; mul.wide.u32 %d, %i, 4; add.u64 %x, %x, %d; st.u32 [%x], %i; ret;
}
.visible .entry pairs(.param .u64 x)
{
    .reg .b64 %x, %v;
    ld.param.u64 %x, [x]; ld.global.u64 %v, [%x+8]; st.global.u64 [%x], %v; ret;
}
.visible .entry exchange(.param .u64 x)
{
    .reg .b64 %x, %h; .reg .b128 %v;
    ld.param.u64 %x, [x]; mov.u64 %h, 7; mov.b128 %v, {%h, %h}; atom.global.exch.b128 %v, [%x], %v; ret;
}
.visible .entry global(.param .u64 x, .param .u64 address)
{
    .reg .b64 %x, %a; .reg .pred %p; .reg .b32 %v;
    ld.param.u64 %x, [x]; ld.param.u64 %a, [address]; isspacep.global %p, %a; selp.b32 %v, 1, 0, %p;
    st.global.u32 [%x], %v; ret;
}
"""
RECORD = np.dtype([("x", "u8"), ("y", "u8"), ("n", "i4"), ("factor", "f4")])
KERNELS = ww.load_ptx(PTX)


class Scale(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("n", ctypes.c_int), ("factor", ctypes.c_float))


def arrays() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return np.arange(64, dtype=np.float32), np.zeros(64, np.float32)


def record(x: int, y: int, n: int = 64, factor: float = 2.0) -> Any:
    return np.array((x, y, n, factor), RECORD)


def launch(name: str, args: list[Any], memory: Any = None, grid: int = 1, block: int = 64) -> None:
    ww.launch(KERNELS[name], grid, block, args=args, memory=memory, device="h200")


def message(kind: type[WarpwrightError], call: Callable[..., Any], *args: Any, **how: Any) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **how)
    return str(caught.value)


@pytest.mark.parametrize(
    "struct",
    [
        lambda each: Scale(*each.item()),
        lambda each: each,
        lambda each: each[()],
        lambda each: each.tobytes(),
        lambda each: memoryview(each.tobytes()),
    ],
    ids=["ctypes", "0-d array", "record", "bytes", "memoryview"],
)
def test_a_struct_with_two_pointers(struct: Callable[[Any], Any]) -> None:
    x, y = arrays()
    launch("scale", [struct(record(x.ctypes.data, y.ctypes.data))], memory=[x, y])
    assert np.array_equal(y, 2 * np.arange(64)) and np.array_equal(x, np.arange(64))


def test_a_table_of_pointers_and_a_kernel_with_subscripts() -> None:
    rows = [np.zeros(64, np.uint32) for _ in range(100)]
    table = np.array([row.ctypes.data for row in rows])
    KERNELS["fill"][100, 64](table, memory=rows, device="h200")
    assert [set(row.tolist()) for row in rows] == [{number + 1} for number in range(100)]


def test_a_table_of_many_arrays_reached_from_one_warp() -> None:
    """Each lane stores to an array of its own."""
    body = PTX.replace("mov.u32 %c, %ctaid.x", "mov.u32 %c, %tid.x")
    rows = [np.zeros(64, np.uint32) for _ in range(70)]
    table = np.array([row.ctypes.data for row in rows])
    ww.launch(ww.load_ptx(body)["fill"], 1, 64, args=[table], memory=rows, device="h200")
    assert [row.max() for row in rows] == [*range(1, 65), *[0] * 6]


def test_the_lowest_lane_outside_all_arrays_faults() -> None:
    """Lanes before and after it have arrays of their own; its pointer lies between two of them."""
    rows = [np.zeros(64, np.uint32) for _ in range(64)]
    table = np.array([row.ctypes.data for row in rows])
    for lane in (37, 41):
        table[lane] = max(table) + 256 - 4 * lane
    body = ww.load_ptx(PTX.replace("mov.u32 %c, %ctaid.x", "mov.u32 %c, %tid.x"))["fill"]
    fault = message(MemoryFault, ww.launch, body, 1, 64, args=[table], memory=rows, device="h200")
    assert f"warp 1, lane 5: address 0x{max(row.ctypes.data for row in rows) + 256:x} is outside" in fault


def test_a_number_is_a_pointer_into_an_array() -> None:
    x = np.zeros(100, np.uint32)
    launch("store", [x.ctypes.data + 40], memory=[x])
    assert np.array_equal(x, [*[0] * 10, *range(64), *[0] * 26])


def test_objects_with_memory() -> None:
    """DLPack, a ctypes array and mapped memory have the addresses that their libraries report."""
    x, y = arrays()
    by_dlpack = SimpleNamespace(__dlpack__=x.__dlpack__, __dlpack_device__=x.__dlpack_device__)
    launch("scale", [record(x.ctypes.data, y.ctypes.data)], memory=[by_dlpack, y])
    assert y[1] == 2
    words = (ctypes.c_uint32 * 64)()
    launch("store", [ctypes.addressof(words)], memory=[words])
    assert list(words) == list(range(64))
    with mmap.mmap(-1, 4096) as mapped:
        address = ctypes.addressof(view := (ctypes.c_uint32 * 64).from_buffer(mapped))
        launch("store", [address], memory=[mapped])
        assert list(view) == list(range(64))
        del view


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")
    x, y = torch.arange(64, dtype=torch.float32), torch.zeros(64, dtype=torch.bfloat16)
    z = torch.zeros(64)
    launch("scale", [record(x.data_ptr(), z.data_ptr())], memory=[x, y, z])
    assert z[1] == 2
    launch("store", [x], memory=())
    assert x.view(torch.int32)[63] == 63


def test_an_argument_has_its_own_address_too() -> None:
    """A struct points to an array that is an argument by itself; a transposed array is not packed."""
    x = np.zeros((4, 16), np.uint32)
    launch("store", [x.T], memory=[])
    assert np.array_equal(x.reshape(-1), range(64))
    table = np.array([x.ctypes.data])
    launch("fill", [table], memory=[x])
    assert (x == 1).all() and table[0] == x.ctypes.data


def test_views_share_their_memory() -> None:
    x = np.zeros(128, np.uint32)
    launch("store", [x[::2]], memory=[x])
    assert np.array_equal(x[:64], range(64))
    halves = np.arange(8, dtype=np.uint32)
    launch("pairs", [halves[:3]], memory=[halves[3:]], block=1)  # an access of both
    assert halves.tolist() == [2, 3, 2, 3, 4, 5, 6, 7]


def test_copies_of_the_memory_keep_its_alignment() -> None:
    """A read-only array beside it makes the kernel work in a copy, at which an atomic operation needs 16 bytes."""
    x = np.zeros(64, np.uint8)
    at = -x.ctypes.data % 16
    locked = x[at + 4 : at + 16]
    locked.flags.writeable = False
    launch("exchange", [x.ctypes.data + at + 16], memory=[locked, x[at + 16 : at + 32]], block=1)
    assert x.view(np.uint8)[at + 16] == 7


def test_a_read_only_array_stays_as_it_is() -> None:
    x, y = arrays()
    y.flags.writeable = False
    args = [record(x.ctypes.data, y.ctypes.data)]
    assert message(UsageError, launch, "scale", args, memory=[x, y]) == (
        "kernel 'scale' wrote memory[1], an array that is read-only or has several elements at one address; it is "
        "unchanged and all other results are stored; expected an array of its own: x.copy()"
    )
    assert not y.any()


def test_a_fault_stores_the_results_before_it() -> None:
    x, y = arrays()
    args = [record(x.ctypes.data, y.ctypes.data)]
    assert message(MemoryFault, launch, "scale", args, memory=[x, y[:32]]).endswith(
        f"warp 1, lane 0: address 0x{y.ctypes.data + 128:x} is outside global memory: 0 bytes past the end of the 128 "
        f"bytes at 0x{y.ctypes.data:x}; if it belongs to another array, add that array to memory=."
    )
    assert np.array_equal(y[:32], 2 * x[:32]) and not y[32:].any()


def test_a_pointer_without_memory_is_a_fault_that_names_the_option() -> None:
    x, y = arrays()
    for name, value in (("scale", record(x.ctypes.data, y.ctypes.data)), ("store", x.ctypes.data)):
        assert message(MemoryFault, launch, name, [value]).endswith(
            f"address 0x{x.ctypes.data:x} is outside global memory: no allocation is near; if it is a host pointer, "
            "pass its array, too: memory=[x]."
        )
    assert message(MemoryFault, launch, "store", [0]).endswith(
        "address 0x0 is outside global memory: it is a null pointer, or an offset from one."
    )
    assert message(MemoryFault, launch, "store", [8], memory=[x]).endswith(
        "it is a null pointer, or an offset from one."
    )
    assert message(MemoryFault, launch, "store", [1 << 44], memory=[x]).endswith(
        "no allocation is near; if it belongs to another array, add that array to memory=."
    )


def test_a_misaligned_access_names_the_alignment_of_the_array() -> None:
    x = np.zeros(64, np.uint8)
    at = -x.ctypes.data % 16 + 4
    assert message(MemoryFault, launch, "pairs", [x[at : at + 16]], memory=[]).endswith(
        f"address 0x{x.ctypes.data + at + 8:x} is not aligned to the size of the access; its array is at "
        f"0x{x.ctypes.data + at:x}, aligned to 4 bytes (torch aligns arrays to 64 bytes)."
    )


REFUSED: dict[str, tuple[Any, str]] = {
    "an array": (np.zeros(4), "given an ndarray as memory; expected a list of arrays: memory=[x]"),
    "a number": ([5], "given memory[0], an int; expected an array that a pointer in args points into"),
    "a scalar": ([np.float32(5)], "given memory[0], a float32; expected an array that a pointer in args points into"),
    "objects": ([np.array([None])], "given memory[0], an array of object; expected numbers in native byte order"),
    "a mask": (
        [np.ma.masked_array([1.0], [True])],
        "given memory[0], a masked array; expected a plain one, for a kernel sees no mask: x.filled(0)",
    ),
    "gaps": (
        [np.zeros(8, np.uint32)[::2]],
        "launch of 'store' with memory=: given memory[0], an array with strides of (8,) bytes; expected also the array "
        "that contains the bytes between its elements, as x for x[::2]: memory=[x]",
    ),
    "a GPU": (
        [DeviceArray(1 << 40, (4,), (4,), np.dtype(np.float32), 0, None)],
        "given an array on cuda:0 for the virtual h200; expected arrays on the host; copy it to the host, or launch it "
        "without device=",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("run", [ww.launch, ww.check, ww.profile])
def test_memory_that_is_refused(name: str, run: Callable[..., Any]) -> None:
    memory, expected = REFUSED[name]
    args = [np.zeros(64, np.uint32)]
    assert message(UsageError, run, KERNELS["store"], 1, 64, args=args, memory=memory, device="h200") == expected


def test_a_struct_of_another_size_is_refused() -> None:
    expected = "; expected a struct of 24 bytes: bytes, a ctypes.Structure or a NumPy record"
    for given, value in (
        ("an uint64 of 8 bytes", np.uint64(1)),
        ("a c_uint_Array_3 of 12 bytes", (ctypes.c_uint32 * 3)()),
        ("an array of shape (24,)", np.zeros(24, np.uint8)),
        ("an int", 7),
    ):
        assert message(UsageError, launch, "scale", [value]) == f"argument 'p' (.b8[24]) was given {given}{expected}"


def test_check_finds_a_race_through_pointers_in_a_struct() -> None:
    x, y = arrays()
    apart = ww.check(KERNELS["scale"], 1, 64, args=[record(x.ctypes.data, y.ctypes.data)], memory=[x, y], device="h200")
    assert apart.kind == "clean" and not y.any()
    shifted = record(x.ctypes.data, x.ctypes.data + 4, 60)
    verdict = ww.check(KERNELS["scale"], 1, 64, args=[shifted], memory=[x], device="h200")
    assert [finding.rule.id for finding in verdict.findings] == ["race"]
    assert np.array_equal(x, np.arange(64))
    verdict = ww.check(KERNELS["scale"], 1, 64, args=[shifted], memory=[x], device="h200", explore=1, update=True)
    assert x[1] == 0 and len(verdict.findings) == 1


def test_the_number_of_an_argument_is_not_taken_for_an_equal_argument() -> None:
    assert _argument_number([1, np.zeros(2)], 1) == 1


def test_check_knows_memory_that_an_earlier_launch_writes() -> None:
    x, y = arrays()
    for given in (x, 1):
        how: dict[str, Any] = {"memory": [x, y], "depends_on": [given], "device": "h200"}
        verdict = ww.check(KERNELS["scale"], 1, 64, args=[record(x.ctypes.data, y.ctypes.data)], **how)
        assert {finding.rule.id for finding in verdict.findings} == {"grid-dependency"}
    args: dict[str, Any] = {"args": [record(x.ctypes.data, y.ctypes.data)], "memory": [x], "depends_on": [y]}
    assert message(UsageError, ww.check, KERNELS["scale"], 1, 64, **args).endswith(
        "expected an array of args or memory, or its number from 0"
    )


@pytest.mark.parametrize("fast", [True, False])
def test_profile_predicts_the_time_of_plain_arguments(fast: bool) -> None:
    """Also where the arrays are at odd places of the host's memory."""
    x = np.zeros(1024, np.uint32)
    plain = ww.profile(KERNELS["store"], 8, 512, args=[x], device="h200", fast=fast)
    for start in (0, 4, 12):
        part = x[start : start + 512]
        given = ww.profile(KERNELS["store"], 8, 512, args=[part.ctypes.data], memory=[part], device="h200", fast=fast)
        assert given.time_us == plain.time_us
    assert x[13] == (0 if fast else 1)


def test_a_real_gpu_takes_arrays_in_its_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    gpu = SimpleNamespace(
        name="cuda:0",
        spec=SimpleNamespace(arch="sm_90", gpus=1),
        launch=lambda *args, **how: seen.update(how) or SimpleNamespace(printed=""),
    )
    there = DeviceArray(1 << 40, (4,), (4,), np.dtype(np.float32), 0, None)
    ww.launch(KERNELS["store"], 1, 64, args=[1 << 40], memory=[there], device=gpu)
    assert seen["memory"] == [there] and seen["args"] == [1 << 40]
    for args, memory in (([1 << 40], [np.zeros(4)]), ([np.zeros(4)], [there])):
        how: dict[str, Any] = {"args": args, "memory": memory, "device": gpu}
        assert message(LaunchError, ww.launch, KERNELS["store"], 1, 64, **how) == (
            "given memory= and an array on the host for cuda:0, whose kernels cannot follow pointers to the host; "
            "expected all arrays in its memory; copy them there, or launch on a virtual GPU: device='h200'"
        )
    monkeypatch.setattr(cuda, "devices", lambda: (gpu,))
    ww.launch(KERNELS["store"], 1, 64, args=[(x := np.zeros(64, np.uint32)).ctypes.data], memory=[x])
    assert x[63] == 63  # the default device is a virtual one


@pytest.mark.skipif(sys.platform != "linux", reason="asks the mmap of Linux for memory at an address")
@pytest.mark.parametrize("address", [SHARED_WINDOW + (1 << 20), LOCAL_WINDOW - 4096, GLOBAL_BASE])
def test_arrays_at_the_addresses_of_other_memory_are_refused(address: int) -> None:
    """In the window of shared memory, on the border of that of local memory, and at the parameters."""
    libc = ctypes.CDLL(None)
    libc.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
    place = libc.mmap(address, 8192, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if place != address:
        pytest.skip(f"the kernel has no memory at 0x{address:x}")
    words = (ctypes.c_uint32 * 2048).from_address(place)
    assert message(LaunchError, launch, "store", [address], memory=[words]).endswith(
        "where the virtual GPU has shared or local memory, variables or parameters; expected another address; allocate "
        "the array again"
    )
    libc.munmap(place, 8192)


@pytest.mark.parametrize("address", [0, 0x1C3D000, 0x7F_FFFF_F000, 0x5555_5555_0000, GLOBAL_BASE, 0x7FFF_FFFF_F000])
def test_host_addresses_are_global(address: int) -> None:
    x = np.zeros(1, np.uint32)
    launch("global", [x, address], block=1)
    assert x[0] == 1
