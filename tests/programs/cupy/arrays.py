"""CuPy's arrays, the kernels that it writes itself, RawKernel, RawModule, streams, events and memory of each kind."""

import cupy as cp
import numpy as np
from cupy.cuda import runtime

N = 1000
SAXPY = r"""
extern "C" __global__ void saxpy(const float a, const float *x, const float *y, float *out, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) out[i] = a * x[i] + y[i];
}
"""
MODULE = r"""
__constant__ int shift;
template <typename T> __global__ void reverse(T *p) {
  extern __shared__ char bytes[];
  T *all = reinterpret_cast<T *>(bytes);
  all[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = all[blockDim.x - 1 - threadIdx.x] + shift;
}
"""


def arrays() -> None:
    on_host = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = cp.asarray(on_host)
    np.testing.assert_array_equal((2 * x + 1).get(), 2 * on_host + 1)
    np.testing.assert_array_equal(x.sum(axis=1).get(), on_host.sum(axis=1))
    np.testing.assert_array_equal(cp.ascontiguousarray(x.T).get(), on_host.T)
    np.testing.assert_array_equal(x[cp.array([2, 0]), 1:].get(), on_host[[2, 0], 1:])
    square = cp.ElementwiseKernel("T x", "T y", "y = x * x", "square")
    assert float(square(x).max()) == 121
    x[:, 1] = 7
    assert x.get()[:, 1].tolist() == [7, 7, 7]


def kernel() -> None:
    x, y = cp.asarray(np.arange(N, dtype=np.float32)), cp.ones(N, cp.float32)
    out, stream = cp.empty_like(x), cp.cuda.Stream(non_blocking=True)
    start, end, seen = cp.cuda.Event(), cp.cuda.Event(), []
    with stream:
        start.record(stream)
        cp.RawKernel(SAXPY, "saxpy")((8,), (128,), (np.float32(3), x, y, out, np.int32(N)))
        end.record(stream)
        stream.launch_host_func(seen.append, 1)
        stream.add_callback(lambda *given: seen.append(given[1:]), 2)
    end.synchronize()
    np.testing.assert_array_equal(out.get(stream=stream), 3 * np.arange(N, dtype=np.float32) + 1)
    assert cp.cuda.get_elapsed_time(start, end) > 0 and stream.done and end.done
    assert seen == [1, (0, 2)]


def module() -> None:
    loaded = cp.RawModule(code=MODULE, options=("-std=c++17",), name_expressions=("reverse<float>", "reverse<double>"))
    cp.ndarray((1,), cp.int32, loaded.get_global("shift"))[:] = 5
    for name, dtype in (("reverse<float>", cp.float32), ("reverse<double>", cp.float64)):
        x, function = cp.arange(256, dtype=dtype), loaded.get_function(name)
        function.max_dynamic_shared_size_bytes = 100_000
        function((1,), (256,), (x,), shared_mem=100_000)
        np.testing.assert_array_equal(x.get(), np.arange(256)[::-1] + 5)


def memory() -> None:
    managed = cp.ndarray(4, cp.float32, cp.cuda.malloc_managed(16))
    managed.fill(2)
    pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(16), np.float32, 4)
    pinned[:] = 3
    with cp.cuda.using_allocator(cp.cuda.MemoryAsyncPool().malloc):
        assert (managed + cp.asarray(pinned)).get().tolist() == [5, 5, 5, 5]
    for array, kind in ((cp.empty(4), 2), (managed, 3)):
        found = runtime.pointerGetAttributes(array.data.ptr)
        assert (found.device, found.devicePointer, found.type) == (0, array.data.ptr, kind)
    assert runtime.pointerGetAttributes(np.empty(4).ctypes.data).type == 0
    wide = cp.zeros((4, 8), cp.uint8)
    runtime.memcpy2D(wide.data.ptr, 8, cp.full(12, 9, cp.uint8).data.ptr, 3, 3, 4, runtime.memcpyDeviceToDevice)
    assert wide.get().sum(axis=0).tolist() == [36, 36, 36, 0, 0, 0, 0, 0]
    available, total = cp.cuda.Device().mem_info
    assert 0 < available < total


device = cp.cuda.Device()
assert device.attributes["MultiProcessorCount"] == runtime.getDeviceProperties(0)["multiProcessorCount"]
for part in (arrays, kernel, module, memory):
    part()
print("arrays: right on", device.compute_capability, runtime.getDeviceProperties(0)["name"].decode())
