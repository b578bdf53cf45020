/* Loading models by their names. */
#include "support/fixture_model.h"

#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct terse_model *fixture_model(const char *name) {
    struct terse_model *model;
    struct terse_error error;
    char path[512];
    snprintf(path, sizeof path, TESTS_DIR "/fixtures/models/%s.gguf", name);
    if (terse_model_load(path, &model, &error)) fail_msg("%s", error.message);
    return model;
}

uint8_t *fixture_bytes(const char *name, size_t *size) {
    char path[512];
    snprintf(path, sizeof path, TESTS_DIR "/fixtures/models/%s.gguf", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    uint8_t *data = aligned_alloc(64, (*size + 63) / 64 * 64);
    assert_non_null(data);
    rewind(file);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

void fixture_set_u32(uint8_t *file, size_t size, const char *key, uint32_t value) {
    const size_t length = strlen(key);
    size_t at = 8;
    uint64_t n = 0;
    for (; at + length + 8 < size; at++) {
        memcpy(&n, file + at - 8, sizeof n);
        if (n == length && memcmp(file + at, key, length) == 0) break;
    }
    assert_int_equal(n, length);
    memcpy(file + at + length + 4, &value, sizeof value); /* behind its type */
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
