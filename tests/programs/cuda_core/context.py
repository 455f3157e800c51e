"""`virtual` in a script: verdict and time of launches, tensors of torch, and what holds after the context."""

import sys

import numpy as np

import warpwright as ww

CODE = """
extern "C" __global__ void race(float *x) { x[0] = threadIdx.x; }
extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }
"""

with ww.virtual(sys.argv[1], check=True, profile=True) as session:
    from cuda.bindings import driver
    from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    module = Program(CODE, code_type="c++", options=options).compile("cubin")
    buffer = LegacyPinnedMemoryResource().allocate(256)
    found = np.from_dlpack(buffer).view(np.float32)
    found[:] = np.arange(64)
    for name in ("race", "twice"):
        launch(device.default_stream, LaunchConfig(grid=1, block=64), module.get_kernel(name), buffer)
    if "torch" in sys.argv:
        import torch

        tensor = torch.ones(64, device="cuda")
        kernel = module.get_kernel("twice")
        launch(device.default_stream, LaunchConfig(grid=1, block=64), kernel, tensor.data_ptr())
        assert tensor.eq(2).all()
    device.sync()

assert found[1:].tolist() == list(range(2, 128, 2))
assert driver.cuInit(0)[0] == driver.cuMemAlloc(4)[0] == driver.CUresult.CUDA_ERROR_NO_DEVICE
buffer.close()
for each in session.launches:
    print(each.name, each.verdict.kind, each.time_us > 0)
