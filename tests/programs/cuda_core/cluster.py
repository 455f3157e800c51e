"""Clusters, more dynamic shared memory than 48 KB, a variable of the module and printf."""

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch

CODE = """
__device__ unsigned factor = 3;

extern "C" __global__ void ranks(unsigned *out, int words) {
  extern __shared__ unsigned smem[];
  unsigned rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  smem[words - 1 - threadIdx.x] = 10 * size + rank;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = factor * smem[words - 1 - threadIdx.x];
  if (threadIdx.x == 0 && blockIdx.x == 0)
    printf("%u CTAs in clusters of %u\\n", gridDim.x, size);
}
"""
SMEM = 100_000

device = Device()
device.set_current()
stream = device.default_stream
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
module = Program(CODE, code_type="c++", options=options).compile("cubin")
kernel = module.get_kernel("ranks")
attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
assert driver.cuKernelSetAttribute(attribute, SMEM, int(kernel.handle), 0)[0] == 0
assert kernel.attributes.max_dynamic_shared_size_bytes == SMEM
assert [(each.offset, each.size) for each in kernel.arguments_info] == [(0, 8), (8, 4)]

buffer = LegacyPinnedMemoryResource().allocate(8 * 32 * 4)
out = np.from_dlpack(buffer).view(np.uint32)
config = LaunchConfig(grid=4, cluster=2, block=32, shmem_size=SMEM)  # the grid is in clusters
launch(stream, config, kernel, buffer, np.int32(SMEM // 4))
device.sync()
np.testing.assert_array_equal(out.reshape(8, 32), 3 * (20 + np.arange(8) % 2)[:, None].repeat(32, axis=1))
print("cluster: right")
