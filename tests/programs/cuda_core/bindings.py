"""PTX by the functions of the driver: modules, launches in both forms, memory, streams, events, attributes, errors."""

from itertools import chain

import numpy as np
from cuda.bindings import driver as cu

PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .u32 step = 2;
.visible .entry count(.param .u64 out, .param .u32 first)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<5>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [first];
  mov.u32 %r2, %tid.x;
  ld.global.u32 %r3, [step];
  mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r4;
  ret;
}
"""


def call(found):
    """Returns the values of a call that succeeds."""
    error, *values = found
    assert error == cu.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values


call(cu.cuInit(0))
device = call(cu.cuDeviceGet(0))
assert cu.cuDeviceGet(1)[0] == cu.CUresult.CUDA_ERROR_INVALID_DEVICE
context = call(cu.cuDevicePrimaryCtxRetain(device))
call(cu.cuCtxSetCurrent(context))
assert call(cu.cuDeviceGetName(64, device)).startswith(b"Warpwright")

module = call(cu.cuModuleLoadData(PTX))
kernel = call(cu.cuModuleGetFunction(module, b"count"))
assert cu.cuModuleGetFunction(module, b"counts")[0] == cu.CUresult.CUDA_ERROR_NOT_FOUND
assert cu.cuModuleLoadData(b".version 8.0\n.target sm_90\n.entr count()")[0] == cu.CUresult.CUDA_ERROR_INVALID_PTX
variable, nbytes = call(cu.cuModuleGetGlobal(module, b"step"))
assert nbytes == 4
call(cu.cuMemcpyHtoD(variable, np.array([5], np.uint32), 4))

memory = call(cu.cuMemAlloc(128))
start, nbytes = call(cu.cuMemGetAddressRange(int(memory) + 4))
assert (int(start), nbytes) == (int(memory), 128)
kinds = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
assert call(cu.cuPointerGetAttribute(kinds, memory)) == cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
pinned = call(cu.cuMemAllocHost(64))
assert call(cu.cuPointerGetAttribute(kinds, int(pinned))) == cu.CUmemorytype.CU_MEMORYTYPE_HOST
assert cu.cuMemcpyDtoH(np.zeros(64, np.uint32), memory, 256)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE

stream = call(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
assert call(cu.cuStreamGetFlags(stream)) == 1
first, last, timeless = (call(cu.cuEventCreate(flags)) for flags in (0, 0, 2))
call(cu.cuEventRecord(first, stream))
arguments = np.array([int(memory)], np.uint64), np.array([100], np.uint32)
pointers = np.array([each.ctypes.data for each in arguments], np.uint64)
call(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, pointers.ctypes.data, 0))
call(cu.cuEventRecord(last, stream))
call(cu.cuStreamSynchronize(stream))
assert call(cu.cuEventElapsedTime(first, last)) > 0
assert cu.cuEventElapsedTime(first, timeless)[0] == cu.CUresult.CUDA_ERROR_INVALID_HANDLE
found = np.zeros(32, np.uint32)
call(cu.cuMemcpyDtoH(found, memory, 128))
np.testing.assert_array_equal(found, 100 + 5 * np.arange(32))

packed = np.array([*chain(int(memory).to_bytes(8, "little"), (7).to_bytes(4, "little"))], np.uint8)
length = np.array([packed.size], np.uint64)
extra = np.array([1, packed.ctypes.data, 2, length.ctypes.data, 0], np.uint64)  # the arguments in one buffer
call(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, extra.ctypes.data))
call(cu.cuMemcpyDtoH(found, memory, 128))
np.testing.assert_array_equal(found, 7 + 5 * np.arange(32))
for fill, value, width in ((cu.cuMemsetD8, 0x11, 1), (cu.cuMemsetD16, 0x2222, 2), (cu.cuMemsetD32, 0x33333333, 4)):
    call(fill(memory, value, 128 // width))
    call(cu.cuMemcpyDtoH(found, memory, 128))
    assert set(found.tolist()) == {value * {1: 0x01010101, 2: 0x00010001, 4: 1}[width]}

assert call(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 128, 0)) == 16
call(cu.cuMemFree(memory))
assert cu.cuMemFree(memory)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
print("bindings: right")
