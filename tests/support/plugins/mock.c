/* A third backend, of which no other file of the project knows: a plug-in of the CPU's tables under a name of its own, whose loads of models are
 * counted in the environment (MOCK_LOADS), where another copy of the library can read them. */
#include "backend/cpu/executor.h"
#include "backend/cpu/kv/ops.h"
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

static struct executor_ops executor_ops;
static const struct backend backend_mock = {.name = "mock", .executor = &executor_ops, .kv = &cpu_kv_ops};

__attribute__((constructor)) static void fill(void) {
    executor_ops = cpu_executor_ops;
    executor_ops.load = load;
}

__attribute__((visibility("default"))) extern const struct backend_plugin terse_backend_plugin;
const struct backend_plugin terse_backend_plugin = BACKEND_PLUGIN(&backend_mock);
