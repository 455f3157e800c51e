"""Errors of kernels: of their launch, the next synchronisation and the next launch. The argument names the kernel."""

import sys

import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

CODE = """
extern "C" __global__ void outside(int *x, int n) { x[n] = 1; }
extern "C" __global__ void smem(int *x, int n) { extern __shared__ int s[]; s[n] = n; x[0] = s[n]; }
"""

device = Device()
device.set_current()
stream = device.create_stream()
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}", lineinfo=True)
kernel = Program(CODE, code_type="c++", options=options).compile("cubin").get_kernel(sys.argv[1])
buffer = device.allocate(256, stream=stream)
config = LaunchConfig(grid=1, block=1, shmem_size=100_000 if sys.argv[1] == "smem" else 0)


def report(call, *args):
    try:
        call(*args)
        print("no error")
    except Exception as error:
        print(str(error).partition(":")[0])


report(launch, stream, config, kernel, buffer, np.int32(64))
report(stream.sync)
report(launch, stream, config, kernel, buffer, np.int32(0))
