"""Memory pools of the device, the host and managed memory; copies in a batch; a tensor map of a buffer for TMA."""

import numpy as np
from cuda.bindings import driver
from cuda.core import (
    Device,
    DeviceMemoryResource,
    LaunchConfig,
    ManagedMemoryResource,
    PinnedMemoryResource,
    Program,
    ProgramOptions,
    launch,
)
from cuda.core.utils import CopyOptions, StridedMemoryView, copy_batch

CODE = r"""
struct __align__(64) TensorMap { unsigned long long opaque[16]; };

extern "C" __global__ void tiles(const __grid_constant__ TensorMap map, float *out) {
  __shared__ __align__(128) float tile[32];
  __shared__ unsigned long long full;
  unsigned at = __cvta_generic_to_shared(tile), bar = __cvta_generic_to_shared(&full);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(bar) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" ::"r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];"
                 ::"r"(at), "l"(&map), "r"(blockIdx.x * 32), "r"(bar) : "memory");
  }
  __syncthreads();
  asm volatile("{\n\t.reg .pred done;\nwait:\n\tmbarrier.try_wait.parity.shared.b64 done, [%0], 0;\n\t"
               "@!done bra wait;\n\t}" ::"r"(bar) : "memory");
  out[blockIdx.x * 32 + threadIdx.x] = tile[threadIdx.x];
}
"""
NBYTES = 1024

device = Device()
device.set_current()
stream = device.create_stream()
pools = PinnedMemoryResource(), ManagedMemoryResource(), DeviceMemoryResource(device)
pinned, managed, source = (pool.allocate(NBYTES, stream=stream) for pool in pools)
assert pools[2].attributes.used_mem_current >= NBYTES
attributes = driver.CUpointer_attribute
wanted = [attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, attributes.CU_POINTER_ATTRIBUTE_IS_MANAGED]
kinds = [driver.cuPointerGetAttributes(2, wanted, int(each.handle))[1] for each in (pinned, managed, source)]
assert [(int(kind), bool(managed)) for kind, managed in kinds] == [(1, False), (2, True), (2, False)], kinds
on_host, seen = (np.from_dlpack(each).view(np.float32) for each in (pinned, managed))
on_host[:] = np.arange(256)
copy_batch(stream, [pinned, pinned], [source, managed], options=CopyOptions())
stream.sync()
np.testing.assert_array_equal(seen, on_host)

view = StridedMemoryView.from_buffer(source, shape=(256,), dtype=np.dtype(np.float32))
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
kernel = Program(CODE, code_type="c++", options=options).compile("cubin").get_kernel("tiles")
seen[:] = 0
launch(stream, LaunchConfig(grid=8, block=32), kernel, view.as_tensor_map(box_dim=(32,)), managed)
stream.sync()
np.testing.assert_array_equal(seen, np.arange(256))
print("memory: right")
