/* What CuPy's other modules call in cupy_backends.cuda.api.runtime, by the functions of `driver.c`.

   The CUDA runtime is linked into that module. Other modules of CuPy call it through the table __pyx_capi__, Cython's
   interface between modules in C; `cupy.py` puts these functions in the table. Each stands for the function of its name
   and returns on failure what Cython expects: NULL, -1 of an int, 0 of other types, with Python's exception set. */

#include <stddef.h>
#include <stdint.h>

enum { SUCCESS };
typedef int cudaMemcpyKind;

void Py_DecRef(void *object);
void *(*cupy_check_status)(int status); /* CuPy's: raises CUDARuntimeError, or returns None */

static int failed(int status) {
  void *none = cupy_check_status(status);
  Py_DecRef(none); /* which may be NULL */
  return !none;
}

/* A function without a result, and one with a result `value`. The types are compared with CuPy's. */
#define DOES(name, types, call)                                                                                        \
  const char types_##name[] = #types;                                                                                  \
  void *cupy_##name types { return cupy_check_status(call); }
#define GIVES(type, name, types, call, failure)                                                                        \
  const char types_##name[] = #types;                                                                                  \
  type cupy_##name types {                                                                                             \
    type value = 0;                                                                                                    \
    return failed(call) ? failure : value;                                                                             \
  }

/* Memory. */

int cuMemAlloc_v2(), cuMemAllocManaged(), cuMemAllocAsync(), cuMemAllocFromPoolAsync(), cuMemHostAlloc();
int cuMemFree_v2(), cuMemcpy(), cuMemsetD8_v2();
int warpwright_copy(intptr_t to, size_t to_pitch, intptr_t from, size_t from_pitch, size_t width, size_t height);

GIVES(intptr_t, malloc, (size_t nbytes), cuMemAlloc_v2(&value, nbytes), 0)
GIVES(intptr_t, mallocManaged, (size_t nbytes), cuMemAllocManaged(&value, nbytes, 1), 0)
GIVES(intptr_t, mallocAsync, (size_t nbytes, intptr_t stream), cuMemAllocAsync(&value, nbytes, stream), 0)
GIVES(intptr_t, mallocFromPoolAsync, (size_t nbytes, intptr_t pool, intptr_t stream),
      cuMemAllocFromPoolAsync(&value, nbytes, pool, stream), 0)
GIVES(intptr_t, hostAlloc, (size_t nbytes, unsigned int flags), cuMemHostAlloc(&value, nbytes, flags), 0)
DOES(free, (intptr_t p), cuMemFree_v2(p))
DOES(freeHost, (intptr_t p), cuMemFree_v2(p))
DOES(freeAsync, (intptr_t p, intptr_t stream), cuMemFree_v2(p))
DOES(hostRegister, (intptr_t p, size_t nbytes, unsigned int flags), SUCCESS)
DOES(hostUnregister, (intptr_t p), SUCCESS)
DOES(memcpy, (intptr_t to, intptr_t from, size_t nbytes, int kind), cuMemcpy(to, from, nbytes))
DOES(memcpyAsync, (intptr_t to, intptr_t from, size_t nbytes, int kind, intptr_t stream), cuMemcpy(to, from, nbytes))
DOES(memcpyPeer, (intptr_t to, int a, intptr_t from, int b, size_t nbytes), cuMemcpy(to, from, nbytes))
DOES(memcpyPeerAsync, (intptr_t to, int a, intptr_t from, int b, size_t nbytes, intptr_t stream),
     cuMemcpy(to, from, nbytes))
DOES(memset, (intptr_t p, int value, size_t nbytes), cuMemsetD8_v2(p, value, nbytes))
DOES(memsetAsync, (intptr_t p, int value, size_t nbytes, intptr_t stream), cuMemsetD8_v2(p, value, nbytes))
DOES(memcpy2D, (intptr_t to, size_t to_pitch, intptr_t from, size_t from_pitch, size_t width, size_t height,
                cudaMemcpyKind kind), warpwright_copy(to, to_pitch, from, from_pitch, width, height))
DOES(memcpy2DAsync, (intptr_t to, size_t to_pitch, intptr_t from, size_t from_pitch, size_t width, size_t height,
                     cudaMemcpyKind kind, intptr_t stream), warpwright_copy(to, to_pitch, from, from_pitch, width, height))
DOES(memAdvise, (intptr_t p, size_t nbytes, int advice, int device), SUCCESS)
DOES(memPrefetchAsync, (intptr_t p, size_t nbytes, int device, intptr_t stream), SUCCESS)

/* Pools of memory. */

int cuDeviceGetMemPool();

GIVES(intptr_t, deviceGetMemPool, (int device), cuDeviceGetMemPool(&value, device), 0)
GIVES(intptr_t, deviceGetDefaultMemPool, (int device), cuDeviceGetMemPool(&value, device), 0)
DOES(deviceSetMemPool, (int device, intptr_t pool), SUCCESS)
DOES(memPoolDestroy, (intptr_t pool), SUCCESS)
DOES(memPoolTrimTo, (intptr_t pool, size_t nbytes), SUCCESS)

/* The device. */

int cuDriverGetVersion(), cuDeviceGetCount(), cuDeviceGetAttribute(), cuCtxGetDevice(), cuCtxSynchronize();

GIVES(int, driverGetVersion, (void), cuDriverGetVersion(&value), -1)
GIVES(int, getDeviceCount, (void), cuDeviceGetCount(&value), -1)
GIVES(int, getDevice, (void), cuCtxGetDevice(&value), -1)
GIVES(int, deviceGetAttribute, (int attribute, int device), cuDeviceGetAttribute(&value, attribute, device), -1)
GIVES(int, deviceCanAccessPeer, (int device, int peer), SUCCESS, -1)
DOES(setDevice, (int device), device ? 101 : SUCCESS) /* cudaErrorInvalidDevice */
DOES(deviceSynchronize, (void), cuCtxSynchronize())
DOES(_ensure_context, (void), SUCCESS)
DOES(_deviceEnsurePeerAccess, (int peer), SUCCESS)
DOES(profilerStart, (void), SUCCESS)
DOES(profilerStop, (void), SUCCESS)

/* Streams and events. */

int cuStreamCreateWithPriority(), cuStreamDestroy_v2(), cuStreamGetFlags(), cuStreamGetPriority();
int cuStreamBeginCapture_v2(), cuEventCreate(), cuEventDestroy_v2(), cuEventRecord(), cuEventElapsedTime_v2();

GIVES(intptr_t, streamCreate, (void), cuStreamCreateWithPriority(&value, 0, 0), 0)
GIVES(intptr_t, streamCreateWithFlags, (unsigned int flags), cuStreamCreateWithPriority(&value, flags, 0), 0)
GIVES(intptr_t, streamCreateWithPriority, (unsigned int flags, int priority),
      cuStreamCreateWithPriority(&value, flags, priority), 0)
GIVES(unsigned int, streamGetFlags, (intptr_t stream), cuStreamGetFlags(stream, &value), 0)
GIVES(int, streamGetPriority, (intptr_t stream), cuStreamGetPriority(stream, &value), 0)
GIVES(int, streamIsCapturing, (intptr_t stream), SUCCESS, 0)
DOES(streamBeginCapture, (intptr_t stream), cuStreamBeginCapture_v2())
DOES(streamDestroy, (intptr_t stream), cuStreamDestroy_v2(stream))
DOES(streamSynchronize, (intptr_t stream), cuCtxSynchronize())
DOES(streamWaitEvent, (intptr_t stream, intptr_t event), SUCCESS)
GIVES(intptr_t, eventCreate, (void), cuEventCreate(&value, 0), 0)
GIVES(intptr_t, eventCreateWithFlags, (unsigned int flags), cuEventCreate(&value, flags), 0)
GIVES(float, eventElapsedTime, (intptr_t start, intptr_t end), cuEventElapsedTime_v2(&value, start, end), 0)
DOES(eventDestroy, (intptr_t event), cuEventDestroy_v2(event))
DOES(eventRecord, (intptr_t event, intptr_t stream), cuEventRecord(event, stream))
DOES(eventSynchronize, (intptr_t event), cuCtxSynchronize())
