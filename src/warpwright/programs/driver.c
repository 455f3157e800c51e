/* The CUDA driver of a program that runs on a virtual GPU: documented functions of the driver API. Those of modules,
   kernels and launches are in `modules.c`; `requests.c` sends requests to the GPU, copies and launches.

   Source: CUDA Driver API 13.0. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { NO_DEVICE = 100, INVALID_HANDLE = 400, NOT_FOUND = 500 };
enum { VERSION = 13050, MAP_BYTES = 128, NAME_BYTES = 256, TOTAL_MEMORY = 288 };
enum { HEAP_LIMIT = 2 };   /* CU_LIMIT_MALLOC_HEAP_SIZE */
enum { NO_TIMING = 2 }; /* CU_EVENT_DISABLE_TIMING */

static int note(int error) { return error; } /* the driver keeps none */

NOTHING(cuDevicePrimaryCtxRelease_v2, int device)
NOTHING(cuDevicePrimaryCtxSetFlags_v2, int device, unsigned flags)
NOTHING(cuDevicePrimaryCtxReset_v2, int device)
NOTHING(cuDeviceSetMemPool, int device, void *pool)
NOTHING(cuCtxDestroy_v2, void *context)
NOTHING(cuCtxPushCurrent_v2, void *context)
NOTHING(cuCtxSetCurrent, void *context)
NOTHING(cuCtxSetFlags, unsigned flags)
NOTHING(cuCtxSetCacheConfig, int config)
NOTHING(cuCtxResetPersistingL2Cache, void)
NOTHING(cuModuleUnload, void *module)
NOTHING(cuLibraryUnload, void *library)
NOTHING(cuFuncSetCacheConfig, void *function, int config)
NOTHING(cuKernelSetCacheConfig, void *kernel, int config, int device)
NOTHING(cuFuncLoad, void *function)
NOTHING(cuMemPoolDestroy, void *pool)
NOTHING(cuMemPoolSetAttribute, void *pool, int attribute, void *value)
NOTHING(cuMemPoolSetAccess, void *pool, const void *access, size_t count)
NOTHING(cuMemPoolTrimTo, void *pool, size_t nbytes)
NOTHING(cuMemHostRegister_v2, void *p, size_t nbytes, unsigned flags)
NOTHING(cuMemHostUnregister, void *p)
NOTHING(cuMemPrefetchAsync_v2, address_t p, size_t nbytes, uint64_t location, unsigned flags, void *stream)
NOTHING(cuMemAdvise_v2, address_t p, size_t nbytes, int advice, uint64_t location)
NOTHING(cuPointerSetAttribute, const void *value, int attribute, address_t p)
NOTHING(cuStreamWaitEvent, void *stream, void *event, unsigned flags)
NOTHING(cuStreamSetAttribute, void *stream, int attribute, const void *value)
NOTHING(cuStreamAttachMemAsync, void *stream, address_t p, size_t nbytes, unsigned flags)
REPORTS(cuCtxSynchronize, void)
REPORTS(cuStreamSynchronize, void *stream)
REPORTS(cuStreamQuery, void *stream)
REPORTS(cuEventSynchronize, void *event)
REPORTS(cuEventQuery, void *event)
TELLS(VERSION, cuDriverGetVersion, int)
TELLS(0, cuDeviceCanAccessPeer, int, int device, int peer)
TELLS((void *)ON_DEVICE, cuDeviceGetMemPool, void *, int device)
TELLS((void *)ON_DEVICE, cuDeviceGetDefaultMemPool, void *, int device)
TELLS((void *)1, cuDevicePrimaryCtxRetain, void *, int device)
TELLS((void *)1, cuCtxCreate_v2, void *) /* the other arguments of its versions differ */
TELLS((void *)1, cuCtxGetCurrent, void *)
TELLS((void *)1, cuCtxPopCurrent_v2, void *)
TELLS(0, cuCtxGetDevice, int)
TELLS(0, cuCtxGetFlags, unsigned)
REFUSED(cuStreamBeginCapture_v2)
REFUSED(cuGraphCreate)
REFUSED(cuArray3DCreate_v2)
REFUSED(cuTexObjectCreate)
REFUSED(cuSurfObjectCreate)
REFUSED(cuMemAddressReserve)
REFUSED(cuMemPoolExportToShareableHandle)
REFUSED(cuIpcGetMemHandle)
REFUSED(cuIpcGetEventHandle)
TELLS(0, cuCtxGetCacheConfig, int)
TELLS(1, cuModuleGetLoadingMode, int)
TELLS(1, cuFuncIsLoaded, int, void *function)
TELLS(3, cuMemPoolGetAccess, int, void *pool, void *location) /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */
int cuCtxSetLimit(int limit, size_t value) {
  return limit == HEAP_LIMIT ? request(SET_HEAP, &value, sizeof value, NULL, 0) : SUCCESS;
}
int cuCtxGetLimit(size_t *value, int limit) {
  return *value = 1 << 23, limit == HEAP_LIMIT ? request(HEAP_SIZE, NULL, 0, value, sizeof *value) : SUCCESS;
}
int cuCtxGetId(void *context, uint64_t *id) { return *id = 1, SUCCESS; }
int cuCtxGetApiVersion(void *context, unsigned *version) { return *version = VERSION, SUCCESS; }
int cuCtxGetStreamPriorityRange(int *least, int *most) {
  if (least)
    *least = 0;
  if (most)
    *most = 0;
  return SUCCESS;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *flags = 0, *active = 1, SUCCESS; }

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
  char newer[NAME_BYTES];
  snprintf(newer, sizeof newer, "%s_v2", name);
  *function = dlsym(RTLD_DEFAULT, newer);
  *function = *function ? *function : dlsym(RTLD_DEFAULT, name);
  if (found)
    *found = *function ? 0 : 1;
  return *function ? SUCCESS : NOT_FOUND;
}

/* NVIDIA does not document the driver's tables: there is none. NVRTC asks for one; so does a CUDA runtime of NVIDIA in
   the process, torch's for example, which then finds no device. */
int cuGetExportTable(const void **table, const void *id) { return *table = NULL, NO_DEVICE; }

/* Errors. */

static const char *error_text(int call, int error) {
  static __thread char text[2][ERROR_TEXT];
  char *found = text[call == DRIVER_ERROR_NAME];
  memset(found, 0, ERROR_TEXT);
  request(call, &error, sizeof error, found, ERROR_TEXT - 1);
  return found;
}
int cuGetErrorName(int error, const char **text) { return *text = error_text(DRIVER_ERROR_NAME, error), SUCCESS; }
int cuGetErrorString(int error, const char **text) { return *text = error_text(ERROR_STRING, error), SUCCESS; }

/* The device. */

int cuDeviceGet(int *device, int ordinal) { return *device = 0, ordinal ? 101 : SUCCESS; } /* INVALID_DEVICE */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return request(DEVICE_ATTRIBUTE, &attribute, sizeof attribute, value, sizeof *value);
}
int cuInit(unsigned flags) { /* in this process there is a device only inside a context */
  int major;
  return cuDeviceGetAttribute(&major, 75, 0);
}
int cuDeviceGetCount(int *count) { return *count = 1, cuInit(0); }
static int property(size_t at, void *value, size_t nbytes) {
  char all[PROPERTIES];
  int error = request(DEVICE_PROPERTIES, NULL, 0, all, sizeof all);
  return memcpy(value, all + at, nbytes), error;
}
int cuDeviceGetName(char *name, int nbytes, int device) {
  return property(0, name, nbytes < NAME_BYTES ? nbytes : NAME_BYTES);
}
int cuDeviceGetUuid_v2(void *uuid, int device) { return property(NAME_BYTES, uuid, 16); }
int cuDeviceGetPCIBusId(char *id, int nbytes, int device) { return snprintf(id, nbytes, "0000:01:00.0"), SUCCESS; }
int cuDeviceTotalMem_v2(size_t *nbytes, int device) { return property(TOTAL_MEMORY, nbytes, sizeof *nbytes); }
int cuDeviceComputeCapability(int *major, int *minor, int device) {
  int error = cuDeviceGetAttribute(major, 75, device);
  return error ? error : cuDeviceGetAttribute(minor, 76, device);
}

/* Memory. */

int cuMemAlloc_v2(void **p, size_t nbytes) { return warpwright_allocate(p, nbytes, ON_DEVICE); }
int cuMemAllocHost_v2(void **p, size_t nbytes) { return warpwright_allocate(p, nbytes, ON_HOST); }
int cuMemHostAlloc(void **p, size_t nbytes, unsigned flags) { return warpwright_allocate(p, nbytes, ON_HOST); }
int cuMemAllocManaged(void **p, size_t nbytes, unsigned flags) { return warpwright_allocate(p, nbytes, MANAGED); }
int cuMemAllocAsync(void **p, size_t nbytes, void *stream) { return warpwright_allocate(p, nbytes, ON_DEVICE); }
int cuMemAllocFromPoolAsync(void **p, size_t nbytes, size_t pool, void *stream) {
  return warpwright_allocate(p, nbytes, pool);
}
int cuMemFree_v2(void *p) { return p ? request(FREE, &p, sizeof p, NULL, 0) : SUCCESS; }
int cuMemFreeHost(void *p) { return cuMemFree_v2(p); }
int cuMemFreeAsync(void *p, void *stream) { return cuMemFree_v2(p); }
int cuMemGetInfo_v2(size_t *available, size_t *total) {
  size_t both[2] = {0, 0};
  int error = request(MEMORY_INFO, NULL, 0, both, sizeof both);
  return *available = both[0], *total = both[1], error;
}

/* A pool is the kind of its memory. */
static size_t pool_of(int allocation, int location) { /* CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE */
  return allocation == 2 ? MANAGED : location == 1 ? ON_DEVICE : ON_HOST;
}
int cuMemPoolCreate(size_t *pool, const int *properties) { /* allocation, handles, location */
  return *pool = pool_of(properties[0], properties[2]), SUCCESS;
}
int cuMemGetDefaultMemPool(size_t *pool, const int *location, int allocation) {
  return *pool = pool_of(allocation, *location), SUCCESS;
}
int cuMemGetMemPool(size_t *pool, const int *location, int allocation) {
  return cuMemGetDefaultMemPool(pool, location, allocation);
}
int cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
  size_t available, total;
  int error = cuMemGetInfo_v2(&available, &total);
  if (attribute < 4 || attribute > 8) /* a flag, not a number of bytes */
    return *(int *)value = 0, error;
  return *(uint64_t *)value = attribute == 4 ? 0 : total - available, error;
}
int cuMemHostGetDevicePointer_v2(void **device, void *host, unsigned flags) {
  place_t place;
  return *device = host, warpwright_find(host, &place);
}
int cuMemGetAddressRange_v2(address_t *start, size_t *nbytes, address_t p) {
  place_t place;
  int error = warpwright_find((void *)p, &place);
  if (start)
    *start = place.start;
  if (nbytes)
    *nbytes = place.nbytes;
  return error;
}

/* Set an attribute of a pointer, by its number in CUpointer_attribute; zero for memory of the program's own. */
static int describe_pointer(void *value, int attribute, address_t p, const place_t *place) {
  int known = place->nbytes != 0;
  switch (attribute) {
  case 1: /* context */
  case 7: /* number of the allocation */
    return *(address_t *)value = attribute == 1 ? known : place->start, SUCCESS;
  case 2: /* memory type */
    return *(int *)value = known ? place->kind == ON_HOST ? 1 : 2 : 0, SUCCESS;
  case 3: /* device pointer */
    return *(address_t *)value = known ? p : 0, SUCCESS;
  case 4: /* host pointer */
    return *(address_t *)value = known && place->kind != ON_DEVICE ? p : 0, SUCCESS;
  case 8: /* managed */
    return *(char *)value = known && place->kind == MANAGED, SUCCESS;
  case 9: /* device */
    return *(int *)value = known ? 0 : -2, SUCCESS;
  case 11:
    return *(address_t *)value = place->start, SUCCESS;
  case 12:
    return *(size_t *)value = place->nbytes, SUCCESS;
  case 6:  /* synchronous copies */
  case 13: /* mapped */
    return *(int *)value = attribute == 13 && known, SUCCESS;
  }
  return INVALID_VALUE;
}
int cuPointerGetAttribute(void *value, int attribute, address_t p) {
  place_t place;
  return warpwright_find((void *)p, &place) ? INVALID_VALUE : describe_pointer(value, attribute, p, &place);
}
int cuPointerGetAttributes(unsigned count, const int *attributes, void **values, address_t p) {
  place_t place;
  int error = SUCCESS;
  warpwright_find((void *)p, &place);
  for (unsigned i = 0; i < count && !error; i++)
    error = describe_pointer(values[i], attributes[i], p, &place);
  return error;
}

int cuMemcpyBatchAsync_v2(void **to, void **from, const size_t *nbytes, size_t count) { /* and attributes */
  int error = SUCCESS;
  for (size_t i = 0; i < count && !error; i++)
    error = warpwright_copy(to[i], nbytes[i], from[i], nbytes[i], nbytes[i], 1);
  return error;
}
#define COPIES(name)                                                                                                   \
  int name(void *to, const void *from, size_t nbytes) { return warpwright_copy(to, nbytes, from, nbytes, nbytes, 1); }
#define COPIES_ASYNC(name)                                                                                             \
  int name(void *to, const void *from, size_t nbytes, void *stream) {                                                  \
    return warpwright_copy(to, nbytes, from, nbytes, nbytes, 1);                                                       \
  }
#define FILLS(bits, name2d, name, name2d_async, name_async)                                                            \
  int name2d(void *p, size_t pitch, uint##bits##_t value, size_t width, size_t height) {                               \
    return warpwright_fill(p, pitch, &value, sizeof value, width, height);                                             \
  }                                                                                                                    \
  int name(void *p, uint##bits##_t value, size_t count) { return name2d(p, 0, value, count, 1); }                      \
  int name2d_async(void *p, size_t pitch, uint##bits##_t value, size_t width, size_t height, void *stream) {           \
    return name2d(p, pitch, value, width, height);                                                                     \
  }                                                                                                                    \
  int name_async(void *p, uint##bits##_t value, size_t count, void *stream) { return name(p, value, count); }
COPIES(cuMemcpy)
COPIES(cuMemcpyHtoD_v2)
COPIES(cuMemcpyDtoH_v2)
COPIES(cuMemcpyDtoD_v2)
COPIES_ASYNC(cuMemcpyAsync)
COPIES_ASYNC(cuMemcpyHtoDAsync_v2)
COPIES_ASYNC(cuMemcpyDtoHAsync_v2)
COPIES_ASYNC(cuMemcpyDtoDAsync_v2)
FILLS(8, cuMemsetD2D8_v2, cuMemsetD8_v2, cuMemsetD2D8Async, cuMemsetD8Async)
FILLS(16, cuMemsetD2D16_v2, cuMemsetD16_v2, cuMemsetD2D16Async, cuMemsetD16Async)
FILLS(32, cuMemsetD2D32_v2, cuMemsetD32_v2, cuMemsetD2D32Async, cuMemsetD32Async)

/* Streams and events. */

typedef struct {
  unsigned flags;
  int priority;
} stream_t;
typedef struct {
  double ms;
  unsigned flags, recorded;
} event_t;

static stream_t find_stream(const stream_t *stream) { /* 0 to 2 are the default streams */
  return (size_t)stream > 2 ? *stream : (stream_t){0, 0};
}
int cuStreamCreateWithPriority(stream_t **stream, unsigned flags, int priority) {
  *stream = malloc(sizeof **stream);
  **stream = (stream_t){flags, priority};
  return SUCCESS;
}
int cuStreamCreate(stream_t **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
int cuStreamDestroy_v2(stream_t *stream) { return free(stream), SUCCESS; }
int cuStreamGetFlags(stream_t *stream, unsigned *flags) { return *flags = find_stream(stream).flags, SUCCESS; }
int cuStreamGetPriority(stream_t *stream, int *priority) { return *priority = find_stream(stream).priority, SUCCESS; }
int cuStreamGetId(void *stream, uint64_t *id) { return *id = (uint64_t)stream, SUCCESS; }
int cuStreamGetCtx(void *stream, void **context) { return *context = (void *)1, SUCCESS; }
int cuStreamGetCtx_v2(void *stream, void **context, void **green) {
  return *context = (void *)1, *green = NULL, SUCCESS;
}
int cuStreamGetDevice(void *stream, int *device) { return *device = 0; }
int cuStreamIsCapturing(void *stream, int *status) { return *status = 0; }
int cuStreamGetCaptureInfo_v2(void *stream, int *status) { return *status = 0; } /* and what a capture has */
int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data) { return call(data), SUCCESS; }
int cuStreamAddCallback(void *stream, void (*call)(void *, int, void *), void *data, unsigned flags) {
  return call(stream, warpwright_lost, data), SUCCESS;
}
int cuEventCreate(event_t **event, unsigned flags) {
  *event = calloc(1, sizeof **event);
  return (*event)->flags = flags, SUCCESS;
}
int cuEventDestroy_v2(event_t *event) { return free(event), SUCCESS; }
int cuEventRecord(event_t *event, void *stream) {
  event->recorded = 1;
  return request(TIME_MS, NULL, 0, &event->ms, sizeof event->ms);
}
int cuEventRecordWithFlags(event_t *event, void *stream, unsigned flags) { return cuEventRecord(event, stream); }
int cuEventElapsedTime_v2(float *ms, event_t *start, event_t *end) {
  if ((start->flags | end->flags) & NO_TIMING || !start->recorded || !end->recorded)
    return INVALID_HANDLE;
  return *ms = end->ms - start->ms, warpwright_lost;
}

/* Tensor maps. */

typedef struct {
  uint64_t address, dims[5], strides[4];
  uint32_t box[5], steps[5], rank;
  int type, interleave, swizzle, l2_promotion, fill, im2col, lower[3], upper[3];
} map_t;

static int encode(void *map, map_t *fields, const uint64_t *dims, const uint64_t *strides, const uint32_t *steps) {
  memcpy(fields->dims, dims, fields->rank * sizeof *dims);
  memcpy(fields->strides, strides, (fields->rank - 1) * sizeof *strides);
  memcpy(fields->steps, steps, fields->rank * sizeof *steps);
  return request(ENCODE_MAP, fields, sizeof *fields, map, MAP_BYTES);
}
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int l2_promotion, int fill) {
  map_t fields = {.address = (uint64_t)address, .rank = rank, .type = type, .interleave = interleave, .swizzle = swizzle,
                .l2_promotion = l2_promotion, .fill = fill};
  if (rank < 1 || rank > 5)
    return INVALID_VALUE;
  memcpy(fields.box, box, rank * sizeof *box);
  return encode(map, &fields, dims, strides, steps);
}
int cuTensorMapEncodeIm2col(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                            const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                            uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int l2_promotion,
                            int fill) {
  map_t fields = {.address = (uint64_t)address, .rank = rank, .type = type, .interleave = interleave, .swizzle = swizzle,
                .l2_promotion = l2_promotion, .fill = fill, .im2col = 1, .box = {channels, pixels}};
  if (rank < 3 || rank > 5)
    return INVALID_VALUE;
  memcpy(fields.lower, lower, (rank - 2) * sizeof *lower);
  memcpy(fields.upper, upper, (rank - 2) * sizeof *upper);
  return encode(map, &fields, dims, strides, steps);
}
int cuTensorMapReplaceAddress(void *map, void *address) { return memcpy(map, &address, sizeof address), SUCCESS; }
