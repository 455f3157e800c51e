"""Kernels as short PTX text, launched on the virtual GPU.

`run` writes the frame of the kernel: arguments are in %a0, %a1, … (addresses and 64-bit integers) or %n0, … (32-bit
integers, by position too), %t is the thread's number in the grid along x, %o the address of element %t of the first
array, four bytes an element.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

import numpy as np
import pytest

from warpwright import ptx, targets
from warpwright.errors import DeviceError
from warpwright.ptx import nodes
from warpwright.vgpu import Device, LaunchResult

TIME_FACTOR = float(os.environ.get("WARPWRIGHT_TEST_TIME_FACTOR", 1))  # of limits of time; for emulated processors

REGISTERS = """
  .reg .pred %p<20>; .reg .b16 %h<20>; .reg .b32 %r<140>; .reg .b64 %d<60>; .reg .f32 %f<20>; .reg .f64 %g<20>;
  .reg .b128 %q<4>; .reg .b64 %a<10>; .reg .b32 %n<10>; .reg .b32 %t, %lane, %warp; .reg .b64 %o;
"""

Dim3 = tuple[int, int, int]


def dim3(value: int | tuple[int, ...]) -> Dim3:
    x, y, z = (*((value,) if isinstance(value, int) else value), 1, 1)[:3]
    return x, y, z


def text(body: str, args: tuple[Any, ...] = (), top: str = "", heads: str = "", target: str = "sm_100a") -> str:
    """Returns PTX with one entry ``k``; line 1 is the version."""
    params, loads = [], []
    for i, arg in enumerate(args):
        if isinstance(arg, int):
            params.append(f".param .u32 a{i}")
            loads.append(f"ld.param.u32 %n{i}, [a{i}];")
        else:
            params.append(f".param .u64 a{i}")
            loads.append(f"ld.param.u64 %a{i}, [a{i}];")
    return f""".version 8.6
.target {target}
.address_size 64
{top}
.visible .entry k({", ".join(params)}) {heads}
{{{REGISTERS}
  {" ".join(loads)}
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %t, %r0, %r1, %r2;
  and.b32 %lane, %r2, 31; shr.u32 %warp, %r2, 5;
  mul.wide.u32 %o, %t, 4; add.u64 %o, %o, %a0;
{body}
}}
"""


@cache
def parse_once(text: str) -> nodes.Module:
    """Returns the module of a text, the same one for each call: the virtual GPU compiles a module once."""
    return ptx.parse(text)


def run(
    body: str,
    *args: Any,
    grid: int | tuple[int, ...] = 1,
    block: int | tuple[int, ...] = 32,
    cluster: int | tuple[int, ...] = 1,
    smem: int = 0,
    top: str = "",
    heads: str = "",
    target: str = "sm_100a",
    device: str = "b200",
    observers: tuple[Any, ...] = (),
) -> LaunchResult:
    module = parse_once(text(body, args, top, heads, target))
    machine = Device(targets.device(device))
    return machine.launch(module, "k", dim3(grid), dim3(block), dim3(cluster), smem, args, observers)


def out(body: str, count: int = 32, *more: Any, dtype: Any = np.uint32, **launch: Any) -> np.ndarray:
    """Returns the first array, of ``count`` zeros, after the kernel's run."""
    array = np.zeros(count, dtype)
    run(body, array, *more, **launch)
    return array


def error_message(kind: type[Exception], body: str, *args: Any, **launch: Any) -> str:
    """Returns the message of the error of ``kind`` that ends the kernel."""
    with pytest.raises(kind) as caught:
        run(body, *args or (np.zeros(64, np.uint32),), **launch)
    assert type(caught.value) is kind
    return str(caught.value)


def line_of(body: str, *parts: str, args: tuple[Any, ...] = (np.zeros(1),), **frame: Any) -> int:
    """Returns the number of the line of the whole text that contains all ``parts``."""
    lines = text(body, args, **frame).splitlines()
    found = [number for number, line in enumerate(lines, 1) if all(part in line for part in parts)]
    assert len(found) == 1, found
    return found[0]


def hang_message(seconds: float, body: str, *args: Any, **launch: Any) -> str:
    """Returns the message of the DeviceError of a hanging kernel, which must end in time once it is compiled."""
    message = device_error(body, *args, **launch)
    start = time.perf_counter()
    assert device_error(body, *args, **launch) == message
    assert time.perf_counter() - start < seconds * TIME_FACTOR
    return message


def device_error(body: str, *args: Any, **launch: Any) -> str:
    with pytest.raises(DeviceError) as caught:
        run(body, *args or (np.zeros(64, np.uint32),), **launch)
    return f"{type(caught.value).__name__}: {caught.value}"
