/* Finding and opening backends. */
#define _GNU_SOURCE /* dladdr */
#include "backend/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH 4096

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const struct backend *opened; /* there is but one */

/* Where the library itself lies: plug-ins lie beside it, or installed in terse/ beside it. */
static void library_folder(char folder[PATH]) {
    Dl_info info;
    folder[0] = 0;
    if (!dladdr((const void *)(uintptr_t)plugin_open, &info) || !info.dli_fname) return;
    snprintf(folder, PATH, "%s", info.dli_fname);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    else
        snprintf(folder, PATH, ".");
}

/* The plug-in's file: of TERSE_PLUGIN_PATH alone, if that is set. */
static bool find(const char *name, char path[PATH], char *folder) {
    const char *own = getenv("TERSE_PLUGIN_PATH");
    if (own)
        snprintf(folder, PATH, "%s", own);
    else
        library_folder(folder);
    for (int i = 0; i < (own ? 1 : 2); i++) {
        int length = snprintf(path, PATH, "%s%s/libterse-%s.so", folder, i ? "/terse" : "", name);
        if (length > 0 && length < PATH && access(path, R_OK) == 0) return true;
    }
    return false;
}

/* Whether it was built with this library. */
static bool fits(const struct backend_plugin *plugin, const struct backend_plugin *own) {
    return strcmp(plugin->version, own->version) == 0 && plugin->backend_bytes == own->backend_bytes &&
           plugin->executor_bytes == own->executor_bytes && plugin->kv_bytes == own->kv_bytes &&
           plugin->cache_shape_bytes == own->cache_shape_bytes && plugin->method_bytes == own->method_bytes &&
           plugin->model_bytes == own->model_bytes;
}

static enum terse_status open_once(const char *name, struct terse_error *error) {
    char path[PATH + 64], folder[PATH];
    const struct backend_plugin own = BACKEND_PLUGIN(NULL);
    if (!find(name, path, folder))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "no backend %s: there is no libterse-%s.so in %s; build it with make CUDA=1, or use --device cpu", name,
                           name, folder[0] ? folder : "the library's folder");
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) return status_fail(error, TERSE_E_UNSUPPORTED, "the backend %s cannot be opened: %s", name, dlerror());
    const struct backend_plugin *plugin = dlsym(object, PLUGIN_SYMBOL);
    if (!plugin || !fits(plugin, &own)) {
        dlclose(object);
        return status_fail(error, TERSE_E_UNSUPPORTED, "%s belongs to another version of terse: build both together", path);
    }
    opened = plugin->backend;
    return TERSE_OK;
}

enum terse_status plugin_open(const char *name, const struct backend **backend, struct terse_error *error) {
    pthread_mutex_lock(&mutex);
    enum terse_status status = opened ? TERSE_OK : open_once(name, error);
    *backend = opened;
    pthread_mutex_unlock(&mutex);
    return status;
}
