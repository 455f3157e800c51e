"""`kernel[grid, block](…)`, and the errors of a launch that a newcomer makes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.errors import WarpwrightError
from warpwright.lang import Global, If, ctaid, kernel, nctaid, ntid, tid, u32


@kernel("sm_90a", threads=32)
def fill(x: Global[u32], n: u32, *, value: int = 1, per_cta: int = 32):
    with If(ctaid.x * 32 + tid.x < n):
        x[ctaid.x * 32 + tid.x] = value


@kernel("sm_90a")
def extents(x: Global[u32], *, threads: int | tuple[int, ...] = 128):
    with If(tid.x == 0):
        x[0], x[1], x[2], x[3] = ntid.x, ntid.y, nctaid.x, nctaid.y


def message(call: Any) -> str:
    with pytest.raises(WarpwrightError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("key", [2, (2,), (2, 32), ((2, 1), 32), (2, 1, 1), lambda meta: (64 // meta["per_cta"],)])
def test_a_kernel_is_launched_with_a_grid_as_in_triton_and_numba(key: Any) -> None:
    x = np.zeros(64, np.uint32)
    assert fill[key](x, 60, value=3, device="h200") == ww.launch(fill, 2, args=[x, 0], device="h200")
    assert x.tolist() == [3] * 60 + [0] * 4


def test_a_block_sets_the_threads_of_a_kernel_that_leaves_them_open() -> None:
    x = np.zeros(4, np.uint32)
    extents[(3, 2), (16, 4)](x, device="h200")
    assert x.tolist() == [16, 4, 3, 2]
    extents[5](x, device="h200")
    assert x.tolist() == [128, 1, 5, 1]


def test_a_kernel_of_ptx_is_launched_with_a_grid_and_a_block() -> None:
    x, entry = np.zeros(4, np.uint32), ww.load_ptx(extents.ptx(threads=64))["extents"]
    entry[2, 64](x, device="h200")
    assert x.tolist() == [64, 1, 2, 1]
    assert message(lambda: entry[2, 32](x, device="h200")) == (
        "block=32: the kernel itself demands (64, 1, 1); leave block= out"
    )
    assert message(lambda: entry[2](x, n=3)) == "given n= to extents[…](…); PTX takes its arguments by position"


X, MATRIX = np.zeros(32, np.uint32), np.zeros((4, 4), np.float16)
ON_GPU = SimpleNamespace(
    __cuda_array_interface__={"data": (512, False), "shape": (32,), "typestr": "<u4", "strides": None, "version": 3}
)
POSITIVE = "expected a positive integer, or one to three of them as (x, y, z)"
DEVICE = "expected a name or a Device: write device='cuda:0', or 'h200' for a virtual GPU"
HOST = (
    "given an array on cuda:0 for the virtual h200; expected arrays on the host; copy it to the host, or launch it "
    "without device="
)
WRONG: dict[str, tuple[Any, str]] = {
    "threads": (
        lambda: fill[4, 2](X, 1),
        "given fill[4, 2] for a kernel of 32 threads; write fill[4], or @kernel(threads=2); "
        "a grid of 4 × 2 CTAs is fill[(4, 2), 32]",
    ),
    "four": (
        lambda: fill[1, 2, 3, 4],
        "given fill[1, 2, 3, 4]; expected fill[grid] or fill[grid, block], with a number or (x, y, z) for each",
    ),
    "iteration": (lambda: list(fill), f"grid=0: {POSITIVE}"),
    "float": (lambda: fill[1.5], f"grid=1.5: {POSITIVE}: round up with -(-n // 128)"),
    "device": (lambda: ww.launch(fill, 1, args=[X, 1], device=0), f"given device=0; {DEVICE}"),  # type: ignore[arg-type]
    "check": (lambda: ww.check(fill, 1, args=[X, 1], device=0), f"given device=0; {DEVICE}"),  # type: ignore[arg-type]
    "matmul": (lambda: ww.matmul(MATRIX, MATRIX, device=3.5), f"given device=3.5; {DEVICE}"),  # type: ignore[arg-type]
    "ww.device": (lambda: ww.device(None), f"given device=None; {DEVICE}"),  # type: ignore[arg-type]
    "load_ptx": (
        lambda: ww.load_ptx(None),  # type: ignore[arg-type]
        "given None to load_ptx; expected the path of a PTX file, or PTX text as a str",
    ),
    "bytes": (
        lambda: ww.load_ptx(b".version 8.0"),  # type: ignore[arg-type]
        "given bytes to load_ptx; expected the path of a PTX file, or PTX text as a str: data.decode()",
    ),
    "args": (
        lambda: ww.launch(fill, 1, args=X),  # type: ignore[arg-type]
        "given an ndarray as args; expected a list with a value for each parameter: args=[x, n]",
    ),
    "no args": (lambda: fill[1](), "launch of 'fill' with 0 arguments; expected 2: x (.u64), n (.u32)"),
    "one": (lambda: fill[1](X), "launch of 'fill' with 1 argument; expected 2: x (.u64), n (.u32)"),
    "data": (
        lambda: fill[1](b"1234", 1),
        "argument 'x' (.u64) was given bytes; expected an array or an int: np.frombuffer(x, np.uint8)",
    ),
    "masked": (
        lambda: fill[1](np.ma.masked_array(X), 1),
        "argument 'x' (.u64) was given a masked array; expected a plain one, for a kernel sees no mask: x.filled(0)",
    ),
    "check on GPU": (lambda: ww.check(fill, 1, args=[ON_GPU, 1]), HOST),
    "profile on GPU": (lambda: ww.profile(fill, 1, args=[ON_GPU, 1]), HOST),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_sentence_names_the_edit(name: str) -> None:
    call, expected = WRONG[name]
    assert message(call) == expected


def test_a_wrong_configuration_points_at_the_line_of_the_caller() -> None:
    wrong = message(lambda: fill[1](X, 1, valeu=3))
    assert wrong.partition(": ")[0].rpartition(":")[0].endswith("test_launcher.py")
    assert wrong.endswith(": given valeu= to kernel fill; its configuration is value, per_cta; did you mean value?")
    assert message(lambda: fill[1](X, n=3)).endswith(
        "given n= to kernel fill; n is a run-time parameter: pass it by position, or in args=[…] of ww.launch"
    )
