"""Errors of CuPy's scripts: no such device, too much memory, captures, machine code, and a kernel that stops."""

from collections.abc import Callable

import cupy as cp

OUTSIDE = 'extern "C" __global__ void outside(int *p) { p[1 << 20] = 1; }'


def told(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")


def stop() -> None:
    cp.cuda.set_allocator(None)
    cp.RawKernel(OUTSIDE, "outside")((1,), (1,), (cp.empty(64, cp.int32),))
    cp.cuda.Device().synchronize()


told(cp.cuda.Device(1).use)
told(lambda: cp.empty(1 << 45, cp.uint8))
told(cp.cuda.Stream(non_blocking=True).begin_capture)
told(lambda: cp.sort(cp.arange(8)))
told(stop)
