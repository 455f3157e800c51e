/* Modules, kernels and launches of the CUDA driver, and the code that NVRTC gives to a program.

   Source: CUDA Driver API 13.0, NVRTC 13.0. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

static const uint32_t FATBIN = 0xBA55ED50, ELF = 0x464C457F;

/* Modules, libraries and kernels. A library is its module, a kernel its function. */

static size_t bytes_of_image(const unsigned char *image) {
  uint32_t magic;
  uint16_t head;
  uint64_t nbytes;
  memcpy(&magic, image, sizeof magic);
  memcpy(&head, image + 6, sizeof head); /* of a fatbin: the bytes of its header, and those after it */
  memcpy(&nbytes, image + 8, sizeof nbytes);
  if (magic == FATBIN)
    return head + nbytes;
  return magic == ELF ? sizeof magic : strlen((const char *)image); /* machine code; PTX */
}
int cuModuleLoadData(void **module, const void *image) {
  return warpwright_ask(IMAGE, image, bytes_of_image(image), NULL, 0, module, sizeof *module);
}
int cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void *values) {
  return cuModuleLoadData(module, image);
}
int cuModuleLoadFatBinary(void **module, const void *image) { return cuModuleLoadData(module, image); }
int cuModuleLoad(void **module, const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file)
    return 301; /* CUDA_ERROR_FILE_NOT_FOUND */
  fseek(file, 0, SEEK_END);
  size_t nbytes = ftell(file);
  rewind(file);
  char *image = calloc(nbytes + 16, 1);
  nbytes = fread(image, 1, nbytes, file);
  fclose(file);
  int error = cuModuleLoadData(module, image);
  return free(image), error;
}
int cuLibraryLoadData(void **library, const void *image, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
  return cuModuleLoadData(library, image);
}
int cuLibraryLoadFromFile(void **library, const char *path, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
  return cuModuleLoad(library, path);
}
int cuLibraryGetModule(void **module, void *library) { return *module = library, SUCCESS; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  return warpwright_ask(KERNEL, &module, sizeof module, name, strlen(name), function, sizeof *function);
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  return cuModuleGetFunction(kernel, library, name);
}
int cuKernelGetFunction(void **function, void *kernel) { return *function = kernel, SUCCESS; }
int cuModuleGetGlobal_v2(address_t *p, size_t *nbytes, void *module, const char *name) {
  size_t place[2] = {0, 0};
  int error = warpwright_ask(GLOBAL, &module, sizeof module, name, strlen(name), place, sizeof place);
  if (p)
    *p = place[0];
  if (nbytes)
    *nbytes = place[1];
  return error;
}
int cuLibraryGetGlobal(address_t *p, size_t *nbytes, void *library, const char *name) {
  return cuModuleGetGlobal_v2(p, nbytes, library, name);
}
int cuLibraryGetManaged(address_t *p, size_t *nbytes, void *library, const char *name) {
  return cuModuleGetGlobal_v2(p, nbytes, library, name);
}

/* A linker gives back its input: one PTX text or fatbin. */
typedef struct {
  size_t nbytes;
  char *image;
} linker_t;
int cuLinkCreate_v2(unsigned count, void *options, void *values, linker_t **linker) {
  return *linker = calloc(1, sizeof **linker), SUCCESS;
}
int cuLinkAddData_v2(linker_t *linker, int type, const void *data, size_t nbytes) { /* and its name and options */
  if (linker->image)
    return warpwright_refuse("cuLinkAddData for a second input"), NOT_SUPPORTED;
  linker->image = calloc(nbytes + 16, 1);
  linker->nbytes = nbytes;
  return memcpy(linker->image, data, nbytes), SUCCESS;
}
int cuLinkComplete(linker_t *linker, void **image, size_t *nbytes) {
  return *image = linker->image, *nbytes = linker->nbytes, SUCCESS;
}
int cuLinkDestroy(linker_t *linker) { return free(linker->image), free(linker), SUCCESS; }

/* The same linker by the names of nvJitLink, which cuda.core prefers where it is installed (nvJitLink 13.0). */
int nvJitLinkVersion(unsigned *major, unsigned *minor) { return *major = 13, *minor = 0, SUCCESS; }
int nvJitLinkCreate(linker_t **linker, uint32_t count, const char **options) {
  return cuLinkCreate_v2(0, NULL, NULL, linker);
}
int nvJitLinkAddData(linker_t *linker, int type, const void *data, size_t nbytes, const char *name) {
  return cuLinkAddData_v2(linker, type, data, nbytes) ? 6 : SUCCESS; /* NVJITLINK_ERROR_INTERNAL */
}
int nvJitLinkComplete(linker_t *linker) { return SUCCESS; }
int nvJitLinkGetLinkedCubinSize(linker_t *linker, size_t *nbytes) { return *nbytes = linker->nbytes, SUCCESS; }
int nvJitLinkGetLinkedCubin(linker_t *linker, void *image) {
  return memcpy(image, linker->image, linker->nbytes), SUCCESS;
}
int nvJitLinkGetLinkedPtxSize(linker_t *linker, size_t *nbytes) { return *nbytes = linker->nbytes, SUCCESS; }
int nvJitLinkGetLinkedPtx(linker_t *linker, void *text) { return nvJitLinkGetLinkedCubin(linker, text); }
int nvJitLinkGetErrorLogSize(linker_t *linker, size_t *nbytes) { return *nbytes = 1, SUCCESS; }
int nvJitLinkGetErrorLog(linker_t *linker, char *text) { return *text = 0; }
int nvJitLinkGetInfoLogSize(linker_t *linker, size_t *nbytes) { return *nbytes = 1, SUCCESS; }
int nvJitLinkGetInfoLog(linker_t *linker, char *text) { return *text = 0; }
int nvJitLinkDestroy(linker_t **linker) { return cuLinkDestroy(*linker); }

/* An attribute of CUfunction_attribute is a field of cudaFuncAttributes. */
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  struct {
    size_t smem, constant, local; /* attributes 1 to 3 */
    int threads, others[29];      /* attribute 0, and those from 4 on */
  } found = {0};
  int error = request(FUNCTION_PROPERTIES, &function, sizeof function, &found, sizeof found);
  if (attribute < 0 || attribute > 15)
    return INVALID_VALUE;
  *value = attribute > 3 ? found.others[attribute - 4] : attribute ? (&found.smem)[attribute - 1] : found.threads;
  return error;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  long values[] = {(long)function, attribute, value};
  return request(SET_ATTRIBUTE, values, sizeof values, NULL, 0);
}
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  return cuFuncGetAttribute(value, attribute, kernel);
}
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
  return cuFuncSetAttribute(kernel, attribute, value);
}
static int parameter(void *function, size_t index, size_t *offset, size_t *nbytes) {
  parameter_t found[PARAMETERS] = {0};
  int error = request(PARAMETER_PLACES, &function, sizeof function, found, sizeof found);
  if (error || index >= PARAMETERS || !found[index].nbytes)
    return error ? error : INVALID_VALUE;
  *offset = found[index].offset;
  if (nbytes)
    *nbytes = found[index].nbytes;
  return SUCCESS;
}
int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *nbytes) {
  return parameter(function, index, offset, nbytes);
}
int cuKernelGetParamInfo(void *kernel, size_t index, size_t *offset, size_t *nbytes) {
  return parameter(kernel, index, offset, nbytes);
}

/* Arguments in one buffer: ``extra`` is 1, the buffer, 2, the address of its size, 0. */
static int launch(void *function, const config_t *config, void **args, void **extra, int cooperative) {
  parameter_t places[PARAMETERS] = {0};
  void *pointers[PARAMETERS];
  if (args || !extra)
    return warpwright_launch(function, config, args, cooperative);
  while (*extra && *extra != (void *)1)
    extra += 2;
  int error = request(PARAMETER_PLACES, &function, sizeof function, places, sizeof places);
  for (unsigned i = 0; *extra && i < PARAMETERS && places[i].nbytes; i++)
    pointers[i] = (char *)extra[1] + places[i].offset;
  return error ? error : *extra ? warpwright_launch(function, config, pointers, cooperative) : INVALID_VALUE;
}
int cuLaunchKernelEx(const config_t *config, void *function, void **args, void **extra) {
  return launch(function, config, args, extra, 0);
}
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned smem, void *stream, void **args, void **extra) {
  config_t config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, smem, stream, NULL, 0};
  return launch(function, &config, args, extra, 0);
}
int cuLaunchCooperativeKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned smem, void *stream, void **args) {
  config_t config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, smem, stream, NULL, 0};
  return launch(function, &config, args, NULL, 1);
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int threads, size_t smem) {
  long values[] = {(long)function, threads, smem};
  return request(OCCUPANCY, values, sizeof values, count, sizeof *count);
}
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, void *function, int threads, size_t smem,
                                                         unsigned flags) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, smem);
}
static int clusters(int call, int *count, const void *function, const config_t *config) {
  long values[] = {(long)function, config->block.x * config->block.y * config->block.z, (unsigned)config->smem, 1};
  for (unsigned i = 0; i < config->count; i++)
    if (config->attributes[i].id == 4)
      for (int axis = 0; axis < 3; axis++)
        values[3] *= config->attributes[i].value[axis];
  return request(call, values, sizeof values, count, sizeof *count);
}
int cuOccupancyMaxActiveClusters(int *count, const void *function, const config_t *config) {
  return clusters(ACTIVE_CLUSTERS, count, function, config);
}
int cuOccupancyMaxPotentialClusterSize(int *size, const void *function, const config_t *config) {
  return clusters(LARGEST_CLUSTER, size, function, config);
}

/* NVRTC compiles for an SM to machine code and to PTX. The program gets a fatbin with the PTX, for a fatbin tells how
   long it is: bindings look for these two functions in the process before they look in NVIDIA's library. */

typedef struct { /* a fatbin with one entry; see fatbin.py */
  uint32_t magic;
  uint16_t version, header;
  uint64_t nbytes;
  uint16_t kind, number;
  uint32_t entry_header;
  uint64_t text;
  uint64_t packed[3], flags[3];
} fatbin_t;

static int nvrtc(const char *name, void *program, void *place) {
  void *library = dlopen("libnvrtc.so.13", RTLD_LAZY | RTLD_NOLOAD);
  int (*call)(void *, void *) = library ? dlsym(library, name) : NULL;
  return call ? call(program, place) : 11; /* NVRTC_ERROR_INTERNAL_ERROR */
}
int nvrtcGetCUBINSize(void *program, size_t *nbytes) {
  int error = nvrtc("nvrtcGetPTXSize", program, nbytes);
  return *nbytes += sizeof(fatbin_t) - 1, error; /* without the text's zero */
}
int nvrtcGetCUBIN(void *program, char *code) {
  fatbin_t head = {.magic = FATBIN, .version = 1, .header = 16, .kind = 1, .number = 0x101, .entry_header = 64};
  size_t nbytes = 0;
  int error = nvrtcGetCUBINSize(program, &nbytes);
  char *text = malloc(nbytes);
  error = error ? error : nvrtc("nvrtcGetPTX", program, text);
  head.nbytes = nbytes - head.header, head.text = nbytes - sizeof head;
  memcpy(code, &head, sizeof head);
  memcpy(code + sizeof head, text, head.text);
  return free(text), error;
}
