/* What the driver and the runtime of a program on a virtual GPU share: requests, copies and launches.

   The GPU is `Calls` in `calls.py`: in the process `warpwright run`, which a socket links to a program of CUDA C++, or
   in this process, for Python's bindings of the driver, where `warpwright_local` is set. A request waits for its answer,
   so a launch is over when it returns, and all streams are in order. Device memory is a file that both processes map at
   MEMORY: addresses are the same in kernels, in the program and in structs and tables. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime.h"

static int link_to_gpu = -1;
static pthread_mutex_t one_request = PTHREAD_MUTEX_INITIALIZER;

answer_t warpwright_local;
int warpwright_lost;

/* Requests. */

static void end(const char *why) {
  fprintf(stderr, "warpwright: error: %s\n", why);
  _exit(2);
}

static void transfer(void *data, size_t nbytes, int sends) {
  for (char *at = data; nbytes;) {
    ssize_t moved = sends ? send(link_to_gpu, at, nbytes, MSG_NOSIGNAL) : recv(link_to_gpu, at, nbytes, 0);
    if (moved <= 0)
      _exit(2); /* `warpwright run` has ended, with its reason */
    at += moved;
    nbytes -= moved;
  }
}

static void connect_to_gpu(void) {
  const char *numbers = getenv("WARPWRIGHT_RUN");
  unsigned long at, size;
  char text[128];
  int memory;
  if (!numbers || sscanf(numbers, "%d %d %lx %lx", &link_to_gpu, &memory, &at, &size) != 4)
    end("this CUDA runtime is Warpwright's; start the program with `warpwright run`");
  int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  if (mmap((void *)at, size, PROT_READ | PROT_WRITE, flags, memory, 0) != (void *)at)
    snprintf(text, sizeof text, "the program has memory of its own from 0x%lx on, where the virtual GPU's is", at), end(text);
}

int warpwright_ask(int call, const void *head, unsigned long head_bytes, const void *data, unsigned long nbytes,
                   void *answer, unsigned long room) {
  struct {
    int32_t code;
    uint32_t pad;
    uint64_t nbytes;
  } message = {call, 0, head_bytes + nbytes};
  if (warpwright_local) /* without the lock: the answer waits for Python's */
    return warpwright_local(call, head, head_bytes, data, nbytes, answer, room);
  pthread_mutex_lock(&one_request);
  if (link_to_gpu < 0)
    connect_to_gpu();
  transfer(&message, sizeof message, 1);
  transfer((void *)head, head_bytes, 1);
  transfer((void *)data, nbytes, 1);
  transfer(&message, sizeof message, 0);
  if (message.nbytes > room)
    end("an answer of the virtual GPU is longer than expected");
  transfer(answer, message.nbytes, 0);
  pthread_mutex_unlock(&one_request);
  return message.code;
}

/* Answers when Python has ended: objects free their memory then. */
int warpwright_over(int call, const void *head, unsigned long head_bytes, const void *data, unsigned long nbytes,
                    void *answer, unsigned long room) {
  return memset(answer, 0, answer ? room : 0), SUCCESS;
}

void warpwright_refuse(const char *name) { request(REFUSE, name, strlen(name), NULL, 0); }

/* Memory. */

int warpwright_allocate(void **p, size_t nbytes, int kind) {
  uint64_t head[] = {nbytes, kind};
  return request(ALLOCATE, head, sizeof head, p, sizeof *p);
}
int warpwright_find(const void *p, place_t *place) {
  memset(place, 0, sizeof *place);
  return request(OWNS, &p, sizeof p, place, sizeof *place);
}

/* Whether bytes lie in one allocation, or are the program's own. */
static int check_range(const void *p, size_t nbytes) {
  size_t range[2] = {(size_t)p, nbytes};
  return nbytes ? request(CHECK_RANGE, range, sizeof range, NULL, 0) : SUCCESS;
}
int warpwright_copy(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height) {
  if (!width || !height)
    return SUCCESS;
  int error = check_range(to, to_pitch * (height - 1) + width);
  error = error ? error : check_range(from, from_pitch * (height - 1) + width);
  for (size_t row = 0; !error && row < height; row++)
    memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return error ? error : warpwright_lost;
}
int warpwright_fill(void *p, size_t pitch, const void *value, size_t each, size_t width, size_t height) {
  int error = width && height ? check_range(p, pitch * (height - 1) + width * each) : SUCCESS;
  for (size_t row = 0; !error && row < height; row++) {
    char *at = (char *)p + row * pitch;
    if (each == 1)
      memset(at, *(const char *)value, width);
    else
      for (size_t column = 0; column < width; column++)
        memcpy(at + column * each, value, each);
  }
  return error ? error : warpwright_lost;
}

/* Launches. */

int warpwright_launch(const void *function, const config_t *config, void **args, int cooperative) {
  struct {
    const void *function;
    uint64_t smem;
    dim3 grid, block, cluster;
    int cooperative;
  } head = {function, (unsigned)config->smem, config->grid, config->block, {1, 1, 1}, cooperative};
  for (unsigned i = 0; i < config->count; i++) {
    const attribute_t *each = &config->attributes[i];
    if (each->id == 2)
      head.cooperative |= each->value[0];
    if (each->id == 4)
      memcpy(&head.cluster, each->value, sizeof head.cluster);
  }
  if (warpwright_lost)
    return warpwright_lost;
  parameter_t places[PARAMETERS] = {0};
  int error = request(PARAMETER_PLACES, &function, sizeof function, places, sizeof places);
  if (error)
    return error;
  char bytes[1 << 15], *at = bytes; /* a kernel has at most 32,764 bytes of parameters */
  for (unsigned i = 0; i < PARAMETERS && places[i].nbytes; at += places[i++].nbytes)
    memcpy(at, args[i], places[i].nbytes);
  static char printed[1 << 22];
  static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;
  if (warpwright_local) /* Python prints */
    error = warpwright_ask(LAUNCH, &head, sizeof head, bytes, at - bytes, NULL, 0);
  else {
    pthread_mutex_lock(&one_launch);
    printed[0] = 0;
    error = warpwright_ask(LAUNCH, &head, sizeof head, bytes, at - bytes, printed, sizeof printed);
    fputs(printed, stdout); /* in order with the program's own output */
    pthread_mutex_unlock(&one_launch);
  }
  if (error >= FIRST_LOST && error <= LAST_LOST) {
    warpwright_lost = error;
    return SUCCESS; /* a kernel's error is found by the next call, as on a GPU */
  }
  return error;
}
