"""A template of CUDA C++ by NVRTC, in two types, on a stream; copies between pinned, managed and device memory."""

import numpy as np
from cuda.core import (
    Device,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    Program,
    ProgramOptions,
    launch,
)

CODE = """
template <typename T> __global__ void saxpy(const T a, const T *x, const T *y, T *out, size_t n) {
  for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x)
    out[i] = a * x[i] + y[i];
}
"""
N = 1000

device = Device()
device.set_current()
stream = device.create_stream()
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
module = Program(CODE, code_type="c++", options=options).compile(
    "cubin", name_expressions=("saxpy<float>", "saxpy<double>")
)
for name, dtype in (("saxpy<float>", np.float32), ("saxpy<double>", np.float64)):
    nbytes = N * np.dtype(dtype).itemsize
    pinned = LegacyPinnedMemoryResource().allocate(nbytes)
    managed = ManagedMemoryResource().allocate(nbytes, stream=stream)
    x, out = (device.allocate(nbytes, stream=stream) for _ in range(2))
    on_host, y = np.from_dlpack(pinned).view(dtype), np.from_dlpack(managed).view(dtype)
    on_host[:], y[:] = np.arange(N), np.arange(N)[::-1]
    x.copy_from(pinned, stream=stream)
    before = stream.record(options=EventOptions(timing_enabled=True))
    launch(stream, LaunchConfig(grid=4, block=128), module.get_kernel(name), dtype(3), x, managed, out, np.uint64(N))
    after = stream.record(options=EventOptions(timing_enabled=True))
    out.copy_to(pinned, stream=stream)
    after.sync()
    np.testing.assert_array_equal(on_host, 3 * np.arange(N) + np.arange(N)[::-1])
    assert after - before > 0
    x.fill(7, stream=stream)
    x.copy_to(pinned, stream=stream)
    stream.sync()
    assert bytes(np.from_dlpack(pinned)) == bytes([7]) * nbytes
    for buffer in (pinned, managed, x, out):
        buffer.close(stream)
print("saxpy: right")
