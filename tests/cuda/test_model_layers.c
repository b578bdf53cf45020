/* Models of layers of other kinds on the GPU: windows, caps, norms behind layers or of each head, attention beside the
 * feed-forward layer, longrope, experts. Their logits are near the CPU's. */
#include "base/memory.h"
#include "model_logits.h"
#include "no_device.h"

#include <stdio.h>

/* Enough tokens for a product of many rows; steps of one token, which come again, and of some. */
static const struct way ways[] = {{"a prompt and single tokens", 66, 1, true}, {"a prompt and steps of 4", 58, 4, true}};
#ifdef TERSE_EMULATED_CUDA
enum { LOGITS = 70 };
#else
enum { LOGITS = 400 };
#endif

static void logits_are_near_the_cpus(void **state) {
    const struct random_model_spec *spec = *state;
    void *file;
    struct terse_model *model = random_model_new(spec, &file);
#ifdef TERSE_EMULATED_CUDA
    check_logits(spec->architecture, model, "f16", &ways[(spec - random_layer_models) % 2], 1, LOGITS); /* one, by turns */
#else
    check_logits(spec->architecture, model, "f16", ways, sizeof ways / sizeof ways[0], LOGITS);
#endif
    terse_model_free(model);
    memory_free(file);
}

#define TESTS_MOST 16

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    setenv("TERSE_CPU", "scalar", 1); /* the others take vectors of some products to 8 bits only */
    struct CMUnitTest tests[TESTS_MOST];
    size_t n = 0;
    for (size_t i = 0; i < n_random_layer_models; i++)
        tests[n++] = (struct CMUnitTest){random_layer_models[i].architecture, logits_are_near_the_cpus, NULL, NULL,
                                         (void *)(uintptr_t)&random_layer_models[i]};
    return _cmocka_run_group_tests("models on the GPU", tests, n, NULL, NULL);
}
