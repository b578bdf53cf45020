/* Finds and opens backends. */
#include "backend/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* These are the plug-ins of this project, in the order in which "gpu" asks for them: a row for each backend beside "cpu". */
static const char *const gpus[] = {"cuda"};

#define NAME 32    /* bytes of a plug-in's name, with its end */
#define PLUGINS 16 /* that can be open */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct opened {
    char name[NAME];
    const struct backend *backend;
} opened[PLUGINS];
static size_t n_opened;

/* Returns whether the plug-in was built with this library. */
static bool fits(const struct backend_plugin *plugin, const struct backend_plugin *own) {
    return strcmp(plugin->version, own->version) == 0 && plugin->backend_bytes == own->backend_bytes &&
           plugin->executor_bytes == own->executor_bytes && plugin->kv_bytes == own->kv_bytes &&
           plugin->learning_bytes == own->learning_bytes && plugin->storage_bytes == own->storage_bytes &&
           plugin->cache_bytes == own->cache_bytes && plugin->cache_shape_bytes == own->cache_shape_bytes &&
           plugin->method_bytes == own->method_bytes && plugin->model_bytes == own->model_bytes;
}

static enum terse_status open_plugin(const char *name, const struct backend **backend, struct terse_error *error) {
    struct plugin_file file;
    const struct backend_plugin own = BACKEND_PLUGIN(NULL);
    if (!plugin_find(name, &file))
        return status_fail(error, TERSE_E_UNSUPPORTED, "no backend %s: there is no libterse-%s.so in %s%s, or use --device cpu",
                           name, name, file.folder[0] ? file.folder : "the library's folder",
                           strcmp(name, "cuda") == 0 ? "; build it with make CUDA=1" : "; put it there");
    void *object = dlopen(file.path, RTLD_NOW | RTLD_LOCAL);
    if (!object) return status_fail(error, TERSE_E_UNSUPPORTED, "the backend %s cannot be opened: %s", name, dlerror());
    const struct backend_plugin *plugin = dlsym(object, PLUGIN_SYMBOL);
    if (!plugin || !fits(plugin, &own)) {
        dlclose(object);
        return status_fail(error, TERSE_E_UNSUPPORTED, "%s belongs to another version of terse: build both together", file.path);
    }
    *backend = plugin->backend;
    return TERSE_OK;
}

/* Returns whether a name is of letters, digits and hyphens alone, since it becomes a part of a path. */
static bool is_name(const char *name) {
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return n && n < NAME && !name[n];
}

static enum terse_status open_once(const char *name, const struct backend **backend, struct terse_error *error) {
    for (size_t i = 0; i < n_opened; i++)
        if (strcmp(opened[i].name, name) == 0) {
            *backend = opened[i].backend;
            return TERSE_OK;
        }
    if (n_opened == PLUGINS) return status_fail(error, TERSE_E_UNSUPPORTED, "%d backends are open: no more can be", PLUGINS);
    enum terse_status status = open_plugin(name, backend, error);
    if (status) return status;
    memcpy(opened[n_opened].name, name, strlen(name) + 1);
    opened[n_opened++].backend = *backend;
    return TERSE_OK;
}

static enum terse_status open_gpu(const struct backend **backend, struct terse_error *error) {
    enum terse_status status = TERSE_E_UNSUPPORTED;
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0] && status; i++) status = open_once(gpus[i], backend, error);
    return status;
}

enum terse_status backend_open(const char *name, const struct backend **backend, struct terse_error *error) {
    *backend = &backend_cpu;
    if (strcmp(name, backend_cpu.name) == 0) return TERSE_OK;
    *backend = NULL;
    if (!is_name(name))
        return status_fail(error, TERSE_E_ARGUMENT,
                           "no device \"%.40s\": there are cpu, gpu and auto, and backends by name, such as %s", name, gpus[0]);
    pthread_mutex_lock(&mutex);
    enum terse_status status = strcmp(name, "gpu") == 0 ? open_gpu(backend, error) : open_once(name, backend, error);
    pthread_mutex_unlock(&mutex);
    return status;
}

enum terse_status backend_serves(const struct backend *backend, const struct terse_model *model, struct terse_error *error) {
    enum terse_status status = backend->executor->available(error);
    return status || !backend->executor->supports ? status : backend->executor->supports(model, error);
}

enum terse_status backend_for(const struct terse_model *model, const char *device, const struct backend **backend,
                              struct terse_error *error) {
    const bool try = device && strcmp(device, "auto") == 0;
    enum terse_status status = backend_open(try ? "gpu" : device ? device : backend_cpu.name, backend, error);
    if (!status) status = backend_serves(*backend, model, error);
    return status && try ? backend_for(model, NULL, backend, error) : status;
}
