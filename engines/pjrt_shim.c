/* A PJRT plugin that hands on another one, the library that PJRT_PLUGIN names, with one function replaced: a client
 * is created without options. TorchTPU passes some that a TPU knows and a CPU plugin refuses.
 * The layout is that of OpenXLA's pjrt_c_api.h; it only ever grows at its end. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*function)(void *arguments);

struct api {
  size_t struct_size; /* in bytes, of the whole table */
  void *extension_start;
  struct {
    size_t struct_size;
    void *extension_start;
    int major_version, minor_version;
  } version;
  function functions[];
};

struct client_create_arguments { /* only its first fields */
  size_t struct_size;
  void *extension_start;
  const void *create_options;
  size_t num_options;
};

enum { CLIENT_CREATE = 10 }; /* its place among the functions */

static function create;

static void *create_without_options(void *arguments) {
  struct client_create_arguments *given = arguments;
  given->create_options = NULL;
  given->num_options = 0;
  return create(given);
}

const struct api *GetPjrtApi(void) {
  static struct api *ours;
  if (ours) return ours;
  const char *path = getenv("PJRT_PLUGIN");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  const struct api *(*get)(void) = library ? (const struct api *(*)(void))dlsym(library, "GetPjrtApi") : NULL;
  if (!get) {
    fprintf(stderr, "PJRT_PLUGIN names no PJRT plugin: %s\n", path ? dlerror() : "it is not set");
    return NULL;
  }
  const struct api *theirs = get();
  ours = malloc(theirs->struct_size);
  if (!ours) return NULL;
  memcpy(ours, theirs, theirs->struct_size);
  create = ours->functions[CLIENT_CREATE];
  ours->functions[CLIENT_CREATE] = create_without_options;
  return ours;
}
