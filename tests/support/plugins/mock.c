/* A third backend, of which no other file of the project knows: a plug-in of the CPU's tables under a name of its own, whose loads of models are
 * counted in the environment (MOCK_LOADS), where another copy of the library can read them, and whose caches take more. */
#include "backend/cpu/executor.h"
#include "backend/cpu/kv/ops.h"
#include "backend/cpu/kv/storage.h"
#include "backend/plugin.h"

#include <stdio.h>
#include <stdlib.h>

static enum terse_status load(const struct terse_model *model, const struct kv_ops *kv, uint32_t threads,
                              struct executor **executor, struct terse_error *error) {
    const char *loads = getenv("MOCK_LOADS");
    char text[16];
    snprintf(text, sizeof text, "%d", loads ? atoi(loads) + 1 : 1);
    setenv("MOCK_LOADS", text, 1);
    return cpu_executor_ops.load(model, kv, threads, executor, error);
}

#define MORE 4096 /* bytes of tables that its caches say they have */

static struct kv_storage storage;

static enum terse_status create(const struct cache_shape *shape, const struct method *method, uint32_t threads,
                                struct cache **cache, struct terse_error *error) {
    enum terse_status status = cpu_storage.create(shape, method, threads, cache, error);
    if (!status) cache_base(*cache)->storage = &storage;
    return status;
}

static void bytes(const struct cache *cache, struct cache_bytes *bytes) {
    cpu_storage.bytes(cache, bytes);
    bytes->tables += MORE;
}

static void bytes_after(const struct cache_shape *shape, const struct method *method, const struct plan *plan,
                        struct cache_bytes *bytes) {
    cpu_storage.bytes_after(shape, method, plan, bytes);
    bytes->tables += MORE;
}

static struct kv_ops kv_ops;
static struct executor_ops executor_ops;
static const struct backend backend_mock = {.name = "mock", .executor = &executor_ops, .kv = &kv_ops};

__attribute__((constructor)) static void fill(void) {
    executor_ops = cpu_executor_ops;
    executor_ops.load = load;
    executor_ops.weight_profile = NULL; /* the library's serves */
    storage = cpu_storage;
    storage.create = create;
    storage.bytes = bytes;
    storage.bytes_after = bytes_after;
    kv_ops = cpu_kv_ops;
    kv_ops.storage = &storage;
}

__attribute__((visibility("default"))) extern const struct backend_plugin terse_backend_plugin;
const struct backend_plugin terse_backend_plugin = BACKEND_PLUGIN(&backend_mock);
