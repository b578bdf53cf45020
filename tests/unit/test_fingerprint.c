/* The fingerprint of a model: the documented number, the same from a file and from memory and whatever the order of things in the
 * file, another one for every other model. */
#include "base/memory.h"
#include "format/codebook.h"
#include "gguf/gguf_writer.h"
#include "model/fingerprint.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODELS TESTS_DIR "/fixtures/models/"

static uint64_t fingerprint_of(const char *path) {
    struct terse_model *model;
    struct terse_model_info info;
    struct terse_error error = {0};
    if (terse_model_load(path, &model, &error)) fail_msg("%s", error.message);
    terse_model_describe(model, &info);
    assert_true(info.fingerprint == model_fingerprint(model));
    terse_model_free(model);
    return info.fingerprint;
}

static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *data = memory_array(*size, 1);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

static struct terse_model_info describe(const void *data, size_t size) {
    struct terse_model *model;
    struct terse_model_info info;
    struct terse_error error = {0};
    if (terse_model_load_memory(data, size, "memory", &model, &error)) fail_msg("%s", error.message);
    terse_model_describe(model, &info);
    terse_model_free(model);
    return info; /* its strings are gone */
}

static uint64_t fingerprint_in_memory(const void *data, size_t size) { return describe(data, size).fingerprint; }
static uint64_t norms_in_memory(const void *data, size_t size) { return describe(data, size).norms_fingerprint; }

/* tests/fixtures/make_codebook.py computed it from docs/codebook-format.md, without anything of terse. */
static void test_documented(void **state) {
    (void)state;
    struct terse_codebook *codebook;
    struct terse_codebook_info info;
    assert_int_equal(terse_codebook_load(TESTS_DIR "/fixtures/llama.codebook", &codebook, NULL), TERSE_OK);
    terse_codebook_describe(codebook, &info);
    assert_true(info.fingerprint == fingerprint_of(MODELS "llama.gguf"));
    terse_codebook_free(codebook);
}

static void test_file_equals_memory(void **state) {
    (void)state;
    size_t size;
    void *data = read_file(MODELS "qwen3.gguf", &size);
    assert_true(fingerprint_in_memory(data, size) == fingerprint_of(MODELS "qwen3.gguf"));
    memory_free(data);
}

static void test_models_differ(void **state) {
    (void)state;
    static const char *const paths[] = {MODELS "llama-3.gguf",    MODELS "llama-linear.gguf", MODELS "llama-untied.gguf",
                                        MODELS "llama-yarn.gguf", MODELS "llama.gguf",        MODELS "llama-yarn-given.gguf",
                                        MODELS "mistral.gguf",    MODELS "qwen2.gguf",        MODELS "qwen3.gguf"};
    enum { N = sizeof paths / sizeof *paths };
    uint64_t found[N];
    for (size_t i = 0; i < N; i++) {
        found[i] = fingerprint_of(paths[i]);
        for (size_t j = 0; j < i; j++) assert_true(found[i] != found[j]);
    }
}

/* ---- The same model in another file --------------------------------------------------------------------------------------- */

enum { MOST = 256 };

/* The model in `data` again: keys and tensors in the opposite order when `reversed`, another name, and key `skip` left out. */
static void *rewrite(const void *data, size_t size, bool reversed, const char *skip, size_t *new_size) {
    struct gguf *gguf;
    struct gguf_writer w = {0};
    assert_int_equal(gguf_open(data, size, "model", &gguf, NULL), TERSE_OK);
    uint64_t n_keys = gguf_metadata_count(gguf), n_tensors = gguf_tensor_count(gguf);
    for (uint64_t k = 0; k < n_keys; k++) {
        uint64_t i = reversed ? n_keys - 1 - k : k;
        struct gguf_string key = gguf_key_at(gguf, i), value = gguf_value_at(gguf, i);
        char name[MOST];
        snprintf(name, sizeof name, "%.*s", (int)key.size, key.data);
        if (skip && strcmp(name, skip) == 0) continue;
        if (strcmp(name, "general.name") == 0) {
            gguf_writer_string(&w, name, "another name");
            continue;
        }
        /* From the key's end to the value's end: type, length, what a reader needs. */
        gguf_bytes_string(&w.keys, key.data, key.size);
        gguf_bytes_put(&w.keys, key.data + key.size, (size_t)(value.data + value.size - key.data) - key.size);
        w.n_keys++;
    }
    for (uint64_t t = 0; t < n_tensors; t++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, reversed ? n_tensors - 1 - t : t);
        char name[MOST];
        snprintf(name, sizeof name, "%.*s", (int)tensor->name.size, tensor->name.data);
        gguf_writer_tensor(&w, name, tensor->type, tensor->n_dims, tensor->dims, tensor->data);
    }
    void *file = gguf_writer_build(&w, new_size);
    assert_non_null(file);
    gguf_writer_free(&w);
    gguf_free(gguf);
    return file;
}

/* The same keys; matrices are of another type, of zeros, which changes nothing. */
static void *requantize(const void *data, size_t size, enum tensor_type type, size_t *new_size) {
    struct gguf *gguf;
    struct gguf_writer w = {0};
    void *zeros = memory_zeros(size, 8);
    assert_non_null(zeros);
    assert_int_equal(gguf_open(data, size, "model", &gguf, NULL), TERSE_OK);
    for (uint64_t i = 0; i < gguf_metadata_count(gguf); i++) {
        struct gguf_string key = gguf_key_at(gguf, i), value = gguf_value_at(gguf, i);
        gguf_bytes_string(&w.keys, key.data, key.size);
        gguf_bytes_put(&w.keys, key.data + key.size, (size_t)(value.data + value.size - key.data) - key.size);
        w.n_keys++;
    }
    for (uint64_t t = 0; t < gguf_tensor_count(gguf); t++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, t);
        bool matrix = tensor->dims[1] > 1;
        char name[MOST];
        snprintf(name, sizeof name, "%.*s", (int)tensor->name.size, tensor->name.data);
        gguf_writer_tensor(&w, name,
                           !matrix                ? tensor->type
                           : tensor->dims[0] % 32 ? TENSOR_F16
                                                  : type,
                           tensor->n_dims, tensor->dims, matrix ? zeros : tensor->data);
    }
    void *file = gguf_writer_build(&w, new_size);
    assert_non_null(file);
    gguf_writer_free(&w);
    gguf_free(gguf);
    memory_free(zeros);
    return file;
}

/* The matrices of a model as F16, Q8_0 and Q4_0, its vectors as they are, as llama.cpp's quantizer leaves them. */
static void test_quantization_leaves_norms(void **state) {
    (void)state;
    static const enum tensor_type types[] = {TENSOR_F16, TENSOR_Q8_0, TENSOR_Q4_0};
    size_t size, new_size;
    void *data = read_file(MODELS "qwen2.gguf", &size);
    uint64_t own = fingerprint_in_memory(data, size), norms = norms_in_memory(data, size);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        void *file = requantize(data, size, types[i], &new_size);
        assert_true(fingerprint_in_memory(file, new_size) != own);
        assert_true(norms_in_memory(file, new_size) == norms);
        memory_free(file);
    }
    void *file = rewrite(data, size, false, "qwen2.rope.freq_base", &new_size);
    assert_true(norms_in_memory(file, new_size) != norms);
    memory_free(file);
    memory_free(data);
}

static void test_order_and_name_do_not_count(void **state) {
    (void)state;
    size_t size, new_size;
    void *data = read_file(MODELS "qwen2.gguf", &size);
    uint64_t own = fingerprint_in_memory(data, size);
    for (int reversed = 0; reversed <= 1; reversed++) {
        void *file = rewrite(data, size, reversed, NULL, &new_size);
        if (reversed) assert_true(new_size != size || memcmp(file, data, size) != 0);
        assert_true(fingerprint_in_memory(file, new_size) == own);
        memory_free(file);
    }
    void *file = rewrite(data, size, false, "tokenizer.ggml.pre", &new_size);
    assert_true(fingerprint_in_memory(file, new_size) == own);
    memory_free(file);
    file = rewrite(data, size, false, "qwen2.rope.freq_base", &new_size);
    assert_true(fingerprint_in_memory(file, new_size) != own);
    memory_free(file);
    memory_free(data);
}

/* Every sampled byte counts: the first and last of each tensor, and all of a small one. */
static void test_weights_count(void **state) {
    (void)state;
    size_t size;
    uint8_t *data = read_file(MODELS "llama.gguf", &size);
    struct gguf *gguf;
    uint64_t own = fingerprint_in_memory(data, size), norms = norms_in_memory(data, size);
    assert_int_equal(gguf_open(data, size, "model", &gguf, NULL), TERSE_OK);
    for (uint64_t t = 0; t < gguf_tensor_count(gguf); t++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, t);
        uint64_t places[] = {0, tensor->bytes / 2 < 4096 ? tensor->bytes / 2 : 4095, tensor->bytes - 1};
        for (int p = 0; p < 3; p++) {
            uint8_t *byte = (uint8_t *)tensor->data + places[p];
            *byte ^= 1;
            assert_true(fingerprint_in_memory(data, size) != own);
            assert_int_equal(norms_in_memory(data, size) != norms, tensor->dims[1] == 1); /* vectors count in both */
            *byte ^= 1;
        }
    }
    assert_true(fingerprint_in_memory(data, size) == own);
    gguf_free(gguf);
    memory_free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documented),
        cmocka_unit_test(test_file_equals_memory),
        cmocka_unit_test(test_models_differ),
        cmocka_unit_test(test_order_and_name_do_not_count),
        cmocka_unit_test(test_quantization_leaves_norms),
        cmocka_unit_test(test_weights_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
