/* Loading models by their names. */
#include "support/fixture_model.h"

#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

struct terse_model *fixture_model(const char *name) {
    struct terse_model *model;
    struct terse_error error;
    char path[512];
    snprintf(path, sizeof path, TESTS_DIR "/fixtures/models/%s.gguf", name);
    if (terse_model_load(path, &model, &error)) fail_msg("%s", error.message);
    return model;
}

int32_t *fixture_tokens(const struct terse_model *model, size_t n) {
    uint32_t state = 1;
    int32_t *tokens = malloc(n * sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((state >> 8) % model->vocabulary);
    }
    return tokens;
}
