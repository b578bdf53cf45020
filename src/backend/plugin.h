/* A plug-in is a backend that is a shared object of its own, opened at run time; this is what it exports. It has its own copies of
 * what backends share (src/base, format, method, kv), so that nothing but this one symbol goes between, and either's copies work on
 * a cache; therefore it must be of the library's very version. */
#ifndef TERSE_BACKEND_PLUGIN_H
#define TERSE_BACKEND_PLUGIN_H

#include "backend/backend.h"
#include "base/plugin_file.h"
#include "kv/cache.h"

#define PLUGIN_SYMBOL "terse_backend_plugin"

struct backend_plugin {
    /* These members differ where the two were not built together. */
    const char *version; /* PLUGIN_VERSION */
    size_t backend_bytes, executor_bytes, kv_bytes, learning_bytes, storage_bytes, cache_bytes, cache_shape_bytes, method_bytes,
        model_bytes;
    const struct backend *backend;
};

#define BACKEND_PLUGIN(table) \
    { \
        PLUGIN_VERSION, sizeof(struct backend), sizeof(struct executor_ops), sizeof(struct kv_ops), sizeof(struct learning_ops), \
            sizeof(struct kv_storage), sizeof(struct cache_base), sizeof(struct cache_shape), sizeof(struct method), \
            sizeof(struct terse_model), table \
    }

/* Finds the backend of a name: "cpu"; "gpu", the first in `gpus` that there is; else a plug-in, libterse-NAME.so, opened when it is
 * first asked for and never closed. TERSE_E_ARGUMENT for what cannot be a name; TERSE_E_UNSUPPORTED says in one line what is
 * missing. It is thread-safe. */
enum terse_status backend_open(const char *name, const struct backend **backend, struct terse_error *error);

/* Checks that this machine has what the backend needs, and that it computes such models. */
enum terse_status backend_serves(const struct backend *backend, const struct terse_model *model, struct terse_error *error);

/* Finds the backend that computes a model on `device`, as terse_engine_options.device says, which serves the model. */
enum terse_status backend_for(const struct terse_model *model, const char *device, const struct backend **backend,
                              struct terse_error *error);

#endif
