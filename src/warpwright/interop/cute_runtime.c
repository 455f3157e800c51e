/* The functions of CuTe DSL's runtime library (libcute_dsl_runtime.so) that compiled host code calls, for a virtual GPU.

   Host code loads a library of kernels, asks for kernels and attributes, and launches. `warpwright.interop.cute` serves
   these seven calls; all others have nothing to do. A call that fails returns FAILED: the error is Python's already.

   Each function has a second name that begins with W: object code gets that one, which NVIDIA's library, if the process
   has loaded it, does not have. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define SUCCESS 0
#define FAILED -1
#define LIBRARIES 64 /* of one compiled function: one for each module of kernels */

struct calls {
  int (*load)(void **library, const void *binary);
  int (*kernel)(void **kernel, void *library, const char *name);
  int (*attribute)(int *value, int attribute);
  int (*kernel_attribute)(int *value, int attribute, void *kernel);
  int (*occupancy)(int *count, void *kernel, int threads, size_t smem);
  int (*launch)(const void *config, void *kernel, void **args);
  int (*encode)(void *map, int type, int rank, void *address, const uint64_t *dims, const uint64_t *strides,
                const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int l2_promotion, int fill);
};

struct calls warpwright_calls;

int _cudaLibraryLoadData(void **library, const void *binary, void *a, void *b, int c, void *d, void *e, int f) {
  return warpwright_calls.load(library, binary);
}
int _cuLibraryLoadData(void **library, const void *binary, void *a, void *b, int c, void *d, void *e, int f) {
  return warpwright_calls.load(library, binary);
}
int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  return warpwright_calls.kernel(kernel, library, name);
}
int _cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  return warpwright_calls.kernel(kernel, library, name);
}
int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  return warpwright_calls.attribute(value, attribute);
}
int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  return warpwright_calls.kernel_attribute(value, attribute, kernel);
}
int _cudaLaunchKernelEx(const void *config, void *kernel, void **args) {
  return warpwright_calls.launch(config, kernel, args);
}
int _cuTensorMapEncodeTiled(void *map, int type, int rank, void *address, const uint64_t *dims,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                            int swizzle, int l2_promotion, int fill) {
  return warpwright_calls.encode(map, type, rank, address, dims, strides, box, steps, interleave, swizzle, l2_promotion,
                                 fill);
}

static int set(int *place, int value) {
  *place = value;
  return SUCCESS;
}
int _cudaGetDeviceCount(int *count) { return set(count, 1); }
int _cudaGetDevice(int *device) { return set(device, 0); }
int _cuDeviceGet(int *device, int ordinal) { return set(device, ordinal); }
int _cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *kernel, int threads, size_t smem) {
  return warpwright_calls.occupancy(count, kernel, threads, smem);
}

int _cudaSetDevice(int device) { return SUCCESS; }
int _cudaLibraryUnload(void *library) { return SUCCESS; }
int _cuLibraryUnload(void *library) { return SUCCESS; }
int _cudaFuncSetAttribute(void *kernel, int attribute, int value) { return SUCCESS; }
int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) { return SUCCESS; }
int _cudaDeviceSynchronize(void) { return SUCCESS; }
int _cudaStreamSynchronize(void *stream) { return SUCCESS; }

/* Host code that asserts goes on after a call that failed: its next launch raises the error. */
void cuda_dialect_assert_success(int code) {}

const char *cuda_dialect_get_error_name(int code) { return code ? "error of a virtual GPU" : "success"; }

/* Load the kernels of a function at its first call; ``state`` is a static variable of the function. */
int cuda_dialect_init_library_once(void **state, int (*init)(void **), int (*load)(void **, int), void *set_error) {
  if (*state)
    return SUCCESS;
  void **libraries = calloc(LIBRARIES, sizeof(void *));
  if (!libraries || init(libraries) || load(libraries, 0)) {
    free(libraries);
    return FAILED;
  }
  *state = libraries;
  return SUCCESS;
}
void cuda_dialect_unload_library_once(void **state) {
  free(*state);
  *state = NULL;
}

/* An error of a call that is not FAILED: there is none. */
void CuteDSLRT_TVMFFISetRaisedCudaError(void (*raise)(const char *, const char **, int), int code) {
  const char *parts[] = {"a call of CuTe DSL failed on a virtual GPU"};
  raise("RuntimeError", parts, 1);
}

#define NAMED(first, name) extern __typeof(first##name) W##name __attribute__((alias(#first #name)));
NAMED(_, cudaLibraryLoadData)
NAMED(_, cuLibraryLoadData)
NAMED(_, cudaLibraryGetKernel)
NAMED(_, cuLibraryGetKernel)
NAMED(_, cudaDeviceGetAttribute)
NAMED(_, cuKernelGetAttribute)
NAMED(_, cudaLaunchKernelEx)
NAMED(_, cuTensorMapEncodeTiled)
NAMED(_, cudaGetDeviceCount)
NAMED(_, cudaGetDevice)
NAMED(_, cuDeviceGet)
NAMED(_, cudaOccupancyMaxActiveBlocksPerMultiprocessor)
NAMED(_, cudaSetDevice)
NAMED(_, cudaLibraryUnload)
NAMED(_, cuLibraryUnload)
NAMED(_, cudaFuncSetAttribute)
NAMED(_, cudaKernelSetAttributeForDevice)
NAMED(_, cudaDeviceSynchronize)
NAMED(_, cudaStreamSynchronize)
NAMED(c, uda_dialect_assert_success)
NAMED(c, uda_dialect_get_error_name)
NAMED(c, uda_dialect_init_library_once)
NAMED(c, uda_dialect_unload_library_once)
NAMED(C, uteDSLRT_TVMFFISetRaisedCudaError)
