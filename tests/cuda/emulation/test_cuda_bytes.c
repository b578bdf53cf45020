/* Tests that terse_cache_bytes foretells for the device "cuda" the bytes of the plug-in's caches, not of the CPU's: the numbers are
 * those of the backend's own table in this program, and methods that it does not serve are refused in its words. */
#include "backend/cuda/kv/ops.h"
#include "base/memory.h"
#include "kv/parts.h"
#include "support/random_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct random_model_spec spec = {"llama",    {TENSOR_Q8_0, TENSOR_F16, TENSOR_Q4_0}, 2, .heads = 2, .head_dim = 64,
                                              .layers = 2};
static struct terse_model *model;
static void *model_file;

static int make_model(void **state) {
    (void)state;
    model = random_model_new(&spec, &model_file);
    return setenv("TERSE_PLUGIN_PATH", PLUGINS, 1);
}

static int free_model(void **state) {
    (void)state;
    terse_model_free(model);
    memory_free(model_file);
    return 0;
}

static void bytes_are_those_of_the_plugin(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double read, anchors; /* percent */
    } methods[] = {{"f16", 0, 0},     {"q4_0", 0, 0},          {"kivi-2", 0, 0},     {"terse-2", 0, 0},
                   {"terse-2", 7, 0}, {"streaming-256", 0, 0}, {"snapkv-256", 0, 0}, {"quest-256", 0, 0},
                   {"q8_0", 0, 2},    {"mat-256", 0, 0},       {"selfindex-2", 0, 0}};
    static const uint64_t lengths[] = {1, 300, FIT_TOKENS + SINKS, 5000};
    const struct cache_shape shape = cache_shape_of(model, model->context);
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        struct terse_cache_options options = terse_cache_options_defaults();
        struct method method;
        options.method = methods[i].name;
        options.read_percent = methods[i].read;
        if (methods[i].anchors > 0) options.anchor_percent = methods[i].anchors;
        assert_int_equal(method_resolve(&options, model->head_dim, &method, NULL), TERSE_OK);
        method.of_weights = method_needs_weights(&method);
        for (size_t j = 0; j < sizeof lengths / sizeof lengths[0]; j++) {
            struct terse_cache_report foretold, own, cpus;
            struct terse_error error;
            if (terse_cache_bytes(model, "cuda", &options, lengths[j], &foretold, &error)) fail_msg("%s", error.message);
            parts_predict(cuda_kv_ops.storage, &shape, &method, lengths[j], &own);
            assert_memory_equal(&foretold, &own, sizeof own);
            assert_int_equal(terse_cache_bytes(model, "cpu", &options, lengths[j], &cpus, NULL), TERSE_OK);
            assert_int_not_equal(foretold.resident, cpus.resident);
            if (terse_cache_bytes(model, "auto", &options, lengths[j], &own, &error)) fail_msg("%s", error.message);
            assert_memory_equal(&foretold, &own, sizeof own); /* this "GPU" serves the model */
        }
    }
}

static void what_the_plugin_does_not_serve_is_refused(void **state) {
    (void)state;
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_cache_report report;
    struct terse_error error;
    options.key_type = "terse-2";
    options.value_type = "q8_0";
    assert_int_equal(terse_cache_bytes(model, "cpu", &options, 100, &report, &error), TERSE_OK);
    assert_int_equal(terse_cache_bytes(model, "cuda", &options, 100, &report, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "on the GPU"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_those_of_the_plugin),
                                       cmocka_unit_test(what_the_plugin_does_not_serve_is_refused)};
    return cmocka_run_group_tests(tests, make_model, free_model);
}
