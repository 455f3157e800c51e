#include <stddef.h>
#include <stdint.h>

/* Requests of a program to its virtual GPU, by the names of `Calls` in `calls.py`. */

enum {
  ALLOCATE, FREE, CHECK_RANGE, OWNS, MEMORY_INFO, MODULE, FUNCTION, VARIABLE, SYMBOL, IMAGE, KERNEL, GLOBAL,
  PARAMETER_PLACES, LAUNCH, DEVICE_PROPERTIES, DEVICE_ATTRIBUTE, FUNCTION_PROPERTIES, SET_ATTRIBUTE, OCCUPANCY,
  ACTIVE_CLUSTERS, LARGEST_CLUSTER, ENCODE_MAP, SET_HEAP, HEAP_SIZE, TIME_MS, ERROR_NAME, DRIVER_ERROR_NAME, ERROR_STRING, REFUSE
};

/* Kinds of memory, as in cudaMemoryType; errors of kernels that stopped: cudaErrorIllegalAddress to
   cudaErrorLaunchFailure; bytes of cudaDeviceProp and of an error's text; parameters of a
   kernel at most. */
enum { ON_HOST = 1, ON_DEVICE, MANAGED };
enum { FIRST_LOST = 700, LAST_LOST = 719 };
enum { PROPERTIES = 1008, ERROR_TEXT = 160, PARAMETERS = 1024 };

typedef struct {
  unsigned x, y, z;
} dim3;
typedef struct { /* cudaLaunchAttribute, CUlaunchAttribute */
  unsigned id, pad;
  unsigned value[16];
} attribute_t;
typedef struct { /* cudaLaunchConfig_t; CUlaunchConfig, of whose smem the upper half is padding */
  dim3 grid, block;
  size_t smem;
  void *stream;
  attribute_t *attributes;
  unsigned count;
} config_t;
typedef uint64_t address_t; /* CUdeviceptr */
typedef struct { /* an allocation */
  uint64_t kind, start, nbytes;
} place_t;
typedef struct { /* of a kernel's parameter */
  uint32_t offset, nbytes;
} parameter_t;

/* Send a request, ``head`` and ``data``, and wait for its answer of at most ``room`` bytes. Returns an error code. */
typedef int (*answer_t)(int call, const void *head, unsigned long head_bytes, const void *data, unsigned long nbytes,
                        void *answer, unsigned long room);
int warpwright_ask(int call, const void *head, unsigned long head_bytes, const void *data, unsigned long nbytes,
                   void *answer, unsigned long room);
static inline int request(int call, const void *data, size_t nbytes, void *answer, size_t room) {
  return warpwright_ask(call, data, nbytes, NULL, 0, answer, room);
}
extern answer_t warpwright_local; /* answers in this process */
extern int warpwright_lost;       /* the error of a kernel that stopped: it stays */

/* In requests.c. */
void warpwright_refuse(const char *name); /* tells that the GPU does not have a function */
int warpwright_allocate(void **p, size_t nbytes, int kind);
int warpwright_find(const void *p, place_t *place);
int warpwright_copy(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height);
int warpwright_fill(void *p, size_t pitch, const void *value, size_t each, size_t width, size_t height);
int warpwright_launch(const void *function, const config_t *config, void **args, int cooperative);

/* Errors that the runtime and the driver share. */
enum { SUCCESS, INVALID_VALUE, NOT_SUPPORTED = 801 };

/* Functions that have nothing to do since all work is over when its call returns, that report a kernel that stopped,
   that have one answer, or that the GPU does not have. ``note`` of the file keeps an error for the thread. */
#define NOTHING(name, ...)                                                                                             \
  int name(__VA_ARGS__) { return SUCCESS; }
#define REPORTS(name, ...)                                                                                             \
  int name(__VA_ARGS__) { return note(warpwright_lost); }
#define TELLS(value, name, type, ...)                                                                                  \
  int name(type *place, ##__VA_ARGS__) { return *place = value, SUCCESS; }
#define REFUSED(name)                                                                                                  \
  int name(void) { return warpwright_refuse(#name), note(NOT_SUPPORTED); }

/* In driver.c, for the runtime. */
int cuDriverGetVersion(int *version);
int cuCtxGetLimit(size_t *value, int limit);
int cuCtxSetLimit(int limit, size_t value);
int cuMemGetInfo_v2(size_t *available, size_t *total);
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int threads, size_t smem);
int cuOccupancyMaxActiveClusters(int *count, const void *function, const config_t *config);
int cuOccupancyMaxPotentialClusterSize(int *size, const void *function, const config_t *config);
