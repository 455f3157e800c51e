/* The CUDA runtime of a program that runs on a virtual GPU: documented functions of the runtime API, and the functions
   that nvcc's host code calls. It stands on `driver.c` and `requests.c`.

   Source: CUDA Runtime API 13.0; `crt/host_runtime.h` of CUDA 13.0 for the functions that begin with __cuda. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { VERSION = 13000, PITCH = 512, FUNCTION_ATTRIBUTES = 144 };

static __thread int last; /* the last error of this thread */

static int note(int error) {
  if (error)
    last = error;
  return error;
}
static int ask(int call, const void *data, size_t nbytes, void *answer, size_t room) {
  return note(request(call, data, nbytes, answer, room));
}

NOTHING(cudaSetDevice, int device)
NOTHING(cudaSetDeviceFlags, unsigned flags)
NOTHING(cudaInitDevice, int device, unsigned a, unsigned b)
NOTHING(cudaDeviceSetCacheConfig, int config)
NOTHING(cudaFuncSetCacheConfig, const void *function, int config)
NOTHING(cudaCtxResetPersistingL2Cache, void)
NOTHING(cudaProfilerStart, void)
NOTHING(cudaProfilerStop, void)
NOTHING(cudaMemPrefetchAsync, const void *p, size_t nbytes, uint64_t location, unsigned flags, void *stream)
NOTHING(cudaMemAdvise, const void *p, size_t nbytes, int advice, uint64_t location)
NOTHING(cudaMemPoolSetAttribute, void *pool, int attribute, void *value)
NOTHING(cudaHostRegister, void *p, size_t nbytes, unsigned flags)
NOTHING(cudaHostUnregister, void *p)
NOTHING(cudaStreamDestroy, void *stream)
NOTHING(cudaStreamWaitEvent, void *stream, void *event, unsigned flags)
NOTHING(cudaStreamSetAttribute, void *stream, int attribute, const void *value)
NOTHING(cudaStreamAttachMemAsync, void *stream, void *p, size_t nbytes, unsigned flags)
REPORTS(cudaDeviceSynchronize, void)
REPORTS(cudaDeviceReset, void)
REPORTS(cudaStreamSynchronize, void *stream)
REPORTS(cudaStreamQuery, void *stream)
REPORTS(cudaEventSynchronize, void *event)
REPORTS(cudaEventQuery, void *event)
TELLS(0, cudaGetDevice, int)
TELLS(0, cudaDeviceCanAccessPeer, int, int device, int peer)
TELLS(0, cudaDeviceGetDefaultMemPool, void *, int device)
REFUSED(cudaStreamBeginCapture)
REFUSED(cudaGraphCreate)
REFUSED(cudaGraphLaunch)
REFUSED(cudaCreateTextureObject)
REFUSED(cudaCreateSurfaceObject)
REFUSED(cudaIpcGetMemHandle)
REFUSED(cudaMemcpy3D)

int cudaStreamIsCapturing(void *stream, int *status) { return *status = 0; }
int cudaGetDeviceCount(int *count) { return *count = 1, SUCCESS; }
int cudaRuntimeGetVersion(int *version) { return *version = VERSION, SUCCESS; }
int cudaDriverGetVersion(int *version) { return cuDriverGetVersion(version); }
int cudaDeviceGetStreamPriorityRange(int *least, int *most) { return *least = *most = 0; }
int cudaDeviceGetLimit(size_t *value, int limit) { return note(cuCtxGetLimit(value, limit)); }
int cudaDeviceSetLimit(int limit, size_t value) { return note(cuCtxSetLimit(limit, value)); }

/* Errors. */

int cudaPeekAtLastError(void) { return last; }
int cudaGetLastError(void) {
  int error = last;
  last = warpwright_lost;
  return error;
}
static const char *error_text(int call, int error) {
  static __thread char text[2][ERROR_TEXT];
  char *found = text[call == ERROR_NAME];
  memset(found, 0, ERROR_TEXT);
  warpwright_ask(call, &error, sizeof error, NULL, 0, found, ERROR_TEXT - 1);
  return found;
}
const char *cudaGetErrorName(int error) { return error_text(ERROR_NAME, error); }
const char *cudaGetErrorString(int error) { return error_text(ERROR_STRING, error); }

/* Properties. */

int cudaGetDeviceProperties(void *properties, int device) {
  memset(properties, 0, PROPERTIES);
  return ask(DEVICE_PROPERTIES, &device, sizeof device, properties, PROPERTIES);
}
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  return ask(DEVICE_ATTRIBUTE, &attribute, sizeof attribute, value, sizeof *value);
}

/* Memory. */

int cudaMalloc(void **p, size_t nbytes) { return note(warpwright_allocate(p, nbytes, ON_DEVICE)); }
int cudaMallocHost(void **p, size_t nbytes) { return note(warpwright_allocate(p, nbytes, ON_HOST)); }
int cudaHostAlloc(void **p, size_t nbytes, unsigned flags) { return cudaMallocHost(p, nbytes); }
int cudaMallocManaged(void **p, size_t nbytes, unsigned flags) { return note(warpwright_allocate(p, nbytes, MANAGED)); }
int cudaMallocAsync(void **p, size_t nbytes, void *stream) { return cudaMalloc(p, nbytes); }
int cudaMallocFromPoolAsync(void **p, size_t nbytes, void *pool, void *stream) { return cudaMalloc(p, nbytes); }
int cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height) {
  *pitch = (width + PITCH - 1) / PITCH * PITCH;
  return cudaMalloc(p, *pitch * height);
}
int cudaFree(void *p) { return p ? ask(FREE, &p, sizeof p, NULL, 0) : SUCCESS; }
int cudaFreeHost(void *p) { return cudaFree(p); }
int cudaFreeAsync(void *p, void *stream) { return cudaFree(p); }
int cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
  place_t place;
  *device = host;
  if (warpwright_find(host, &place) == SUCCESS)
    return SUCCESS;
  warpwright_refuse("cudaHostGetDevicePointer for memory of cudaHostRegister");
  return note(NOT_SUPPORTED);
}
int cudaMemGetInfo(size_t *available, size_t *total) { return note(cuMemGetInfo_v2(available, total)); }
int cudaPointerGetAttributes(void *attributes, const void *p) {
  struct {
    int type, device;
    const void *on_device, *on_host;
    long reserved[8];
  } found = {0, 0, NULL, p}; /* cudaMemoryTypeUnregistered */
  place_t place;
  if (warpwright_find(p, &place) == SUCCESS)
    found.type = place.kind, found.on_device = p;
  memcpy(attributes, &found, sizeof found);
  return SUCCESS;
}

int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind) {
  return note(warpwright_copy(to, to_pitch, from, from_pitch, width, height));
}
int cudaMemcpy(void *to, const void *from, size_t nbytes, int kind) {
  return cudaMemcpy2D(to, nbytes, from, nbytes, nbytes, 1, kind);
}
int cudaMemcpyAsync(void *to, const void *from, size_t nbytes, int kind, void *stream) {
  return cudaMemcpy(to, from, nbytes, kind);
}
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                      int kind, void *stream) {
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
int cudaMemset2D(void *p, size_t pitch, int value, size_t width, size_t height) {
  return note(warpwright_fill(p, pitch, &value, 1, width, height));
}
int cudaMemset(void *p, int value, size_t nbytes) { return cudaMemset2D(p, nbytes, value, nbytes, 1); }
int cudaMemsetAsync(void *p, int value, size_t nbytes, void *stream) { return cudaMemset(p, value, nbytes); }
int cudaMemset2DAsync(void *p, size_t pitch, int value, size_t width, size_t height, void *stream) {
  return cudaMemset2D(p, pitch, value, width, height);
}

/* Variables of the device. */

static int find_symbol(const void *symbol, size_t place[2]) {
  return ask(SYMBOL, &symbol, sizeof symbol, place, 2 * sizeof *place);
}
int cudaGetSymbolAddress(void **p, const void *symbol) {
  size_t place[2] = {0, 0};
  int error = find_symbol(symbol, place);
  return *p = (void *)place[0], error;
}
int cudaGetSymbolSize(size_t *nbytes, const void *symbol) {
  size_t place[2] = {0, 0};
  int error = find_symbol(symbol, place);
  return *nbytes = place[1], error;
}
int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t nbytes, size_t offset, int kind) {
  void *p;
  int error = cudaGetSymbolAddress(&p, symbol);
  return error ? error : cudaMemcpy((char *)p + offset, from, nbytes, kind);
}
int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t nbytes, size_t offset, int kind) {
  void *p;
  int error = cudaGetSymbolAddress(&p, symbol);
  return error ? error : cudaMemcpy(to, (char *)p + offset, nbytes, kind);
}
int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t nbytes, size_t offset, int kind, void *stream) {
  return cudaMemcpyToSymbol(symbol, from, nbytes, offset, kind);
}
int cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t nbytes, size_t offset, int kind, void *stream) {
  return cudaMemcpyFromSymbol(to, symbol, nbytes, offset, kind);
}

/* Streams and events. */

int cudaStreamCreate(void **stream) { return *stream = malloc(1), SUCCESS; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return cudaStreamCreate(stream); }
int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) { return cudaStreamCreate(stream); }
int cudaLaunchHostFunc(void *stream, void (*call)(void *), void *data) { return call(data), SUCCESS; }
int cudaStreamAddCallback(void *stream, void (*call)(void *, int, void *), void *data, unsigned flags) {
  return call(stream, warpwright_lost, data), SUCCESS;
}
int cudaEventCreate(void **event) { return *event = calloc(1, sizeof(double)), SUCCESS; }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return cudaEventCreate(event); }
int cudaEventDestroy(void *event) { return free(event), SUCCESS; }
int cudaEventRecord(void *event, void *stream) { return ask(TIME_MS, NULL, 0, event, sizeof(double)); }
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { return cudaEventRecord(event, stream); }
int cudaEventElapsedTime(float *ms, void *start, void *end) {
  *ms = *(double *)end - *(double *)start;
  return note(warpwright_lost);
}

/* Kernels. The handle of a kernel is the address of its function in the host code. */

int cudaGetKernel(void **kernel, const void *function) { return *kernel = (void *)function, SUCCESS; }
int __cudaGetKernel(void **kernel, const void *function) { return cudaGetKernel(kernel, function); }
int cudaGetFuncBySymbol(void **kernel, const void *function) { return cudaGetKernel(kernel, function); }
int cudaFuncGetAttributes(void *attributes, const void *function) {
  memset(attributes, 0, FUNCTION_ATTRIBUTES);
  return ask(FUNCTION_PROPERTIES, &function, sizeof function, attributes, FUNCTION_ATTRIBUTES);
}
int cudaFuncSetAttribute(const void *function, int attribute, int value) {
  long values[] = {(long)function, attribute, value};
  return ask(SET_ATTRIBUTE, values, sizeof values, NULL, 0);
}

static int launch(const void *function, const config_t *config, void **args, int cooperative) {
  return note(warpwright_launch(function, config, args, cooperative));
}
int cudaLaunchKernelExC(const config_t *config, const void *function, void **args) {
  return launch(function, config, args, 0);
}
int cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t smem, void *stream) {
  config_t config = {grid, block, smem, stream, NULL, 0};
  return launch(function, &config, args, 0);
}
int __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **args, size_t smem, void *stream) {
  return cudaLaunchKernel(kernel, grid, block, args, smem, stream);
}
int cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **args, size_t smem, void *stream) {
  config_t config = {grid, block, smem, stream, NULL, 0};
  return launch(function, &config, args, 1);
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int threads, size_t smem) {
  return note(cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, smem));
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int threads, size_t smem,
                                                           unsigned flags) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, smem);
}
int cudaOccupancyMaxActiveClusters(int *count, const void *function, const config_t *config) {
  return note(cuOccupancyMaxActiveClusters(count, function, config));
}
int cudaOccupancyMaxPotentialClusterSize(int *size, const void *function, const config_t *config) {
  return note(cuOccupancyMaxPotentialClusterSize(size, function, config));
}

/* What nvcc's host code calls. */

void **__cudaRegisterFatBinary(void *wrapper) {
  const struct {
    int magic, version;
    const unsigned char *data;
  } *found = wrapper;
  uint16_t head;
  uint64_t nbytes;
  memcpy(&head, found->data + 6, sizeof head); /* bytes of the header, and after it */
  memcpy(&nbytes, found->data + 8, sizeof nbytes);
  void **module = malloc(sizeof *module);
  warpwright_ask(MODULE, &module, sizeof module, found->data, head + nbytes, NULL, 0);
  return module;
}
void __cudaRegisterFatBinaryEnd(void **module) {}
void __cudaUnregisterFatBinary(void **module) {}
char __cudaInitModule(void **module) { return 1; }
void __cudaRegisterFunction(void **module, const char *function, char *device, const char *name, int limit, void *thread,
                            void *block, void *threads, void *grid, int *warp) {
  const void *head[] = {module, function};
  warpwright_ask(FUNCTION, head, sizeof head, name, strlen(name), NULL, 0);
}
static void *add_variable(void **module, const void *symbol, const char *name, size_t managed) {
  size_t head[] = {(size_t)module, (size_t)symbol, managed}, place[2] = {0, 0};
  warpwright_ask(VARIABLE, head, sizeof head, name, strlen(name), place, sizeof place);
  return (void *)place[0];
}
void __cudaRegisterVar(void **module, char *symbol, char *device, const char *name, int ext, size_t nbytes, int constant,
                       int global) {
  add_variable(module, symbol, name, 0);
}
void __cudaRegisterManagedVar(void **module, void **pointer, char *device, const char *name, int ext, size_t nbytes,
                              int constant, int global) {
  *pointer = add_variable(module, pointer, name, 1);
}

static __thread config_t pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t smem, void *stream) {
  pushed = (config_t){grid, block, smem, stream, NULL, 0};
  return 0;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *smem, void **stream) {
  *grid = pushed.grid, *block = pushed.block, *smem = pushed.smem, *stream = pushed.stream;
  return SUCCESS;
}

/* Functions of the driver that programs ask the runtime for. */

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (found)
    *found = *function ? 0 : 1; /* cudaDriverEntryPointSymbolNotFound */
  if (!*function)
    warpwright_refuse(name);
  return SUCCESS;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *found) {
  return cudaGetDriverEntryPoint(name, function, flags, found);
}
