/* The GGUF reader on sound files: what it says is what was written; and the tests' GGUF writer. Damaged files: test_gguf_damage.c. */
#include "base/memory.h"
#include "gguf/gguf.h"
#include "support/gguf_sample.h"
#include "terse_gguf.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Sound files -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *key, *type, *text;
} sample_metadata[] = {
    {"general.architecture", "string", "llama"},
    {"a.u8", "u8", "200"},
    {"a.i8", "i8", "-100"},
    {"a.u16", "u16", "60000"},
    {"a.i16", "i16", "-30000"},
    {"a.u32", "u32", "4000000000"},
    {"a.i32", "i32", "-2000000000"},
    {"a.f32", "f32", "1e-05"},
    {"a.bool", "bool", "true"},
    {"a.u64", "u64", "18446744073709551615"},
    {"a.i64", "i64", "-9223372036854775808"},
    {"a.f64", "f64", "0.1"},
    {"a.string", "string", "two\\nlines \xe2\x82\xac"},
    {"a.empty", "string", ""},
    {"b.u8", "array of u8", "3: [1, 2, 255]"},
    {"b.i8", "array of i8", "2: [-1, 1]"},
    {"b.u16", "array of u16", "1: [65535]"},
    {"b.i16", "array of i16", "1: [-32768]"},
    {"b.u32", "array of u32", "2: [0, 4294967295]"},
    {"b.i32", "array of i32", "2: [-2147483648, 2147483647]"},
    {"b.f32", "array of f32", "3: [0.1, -3, inf]"},
    {"b.bool", "array of bool", "2: [false, true]"},
    {"b.u64", "array of u64", "1: [1]"},
    {"b.i64", "array of i64", "1: [-1]"},
    {"b.f64", "array of f64", "2: [1e+300, 0.25]"},
    {"b.string", "array of string", "3: [\"a\", \"\", \"\\\"c\\\"\"]"},
    {"b.none", "array of u32", "0: []"},
    {"b.array", "array of array", "3: [[1, 2], [], [\"x\"]]"},
};
enum { SAMPLE_KEYS = sizeof sample_metadata / sizeof *sample_metadata };

static void check_sample(const struct terse_gguf *gguf, uint32_t version) {
    char text[200];
    assert_int_equal(terse_gguf_version(gguf), version);
    assert_int_equal(terse_gguf_metadata_count(gguf), SAMPLE_KEYS);
    for (uint64_t i = 0; i < SAMPLE_KEYS; i++) {
        const char *key, *type;
        terse_gguf_metadata(gguf, i, &key, &type);
        assert_string_equal(key, sample_metadata[i].key);
        assert_string_equal(type, sample_metadata[i].type);
        terse_gguf_metadata_text(gguf, i, text, sizeof text);
        assert_string_equal(text, sample_metadata[i].text);
        /* Every capacity: the whole text, or a beginning of it and "...". */
        for (size_t capacity = 0; capacity < sizeof text; capacity++) {
            char cut[sizeof text + 1];
            memset(cut, 'x', sizeof cut);
            terse_gguf_metadata_text(gguf, i, cut, capacity);
            assert_int_equal(cut[capacity], 'x');
            if (capacity == 0) continue;
            size_t length = strlen(cut);
            assert_true(length < capacity);
            if (capacity > strlen(text)) {
                assert_string_equal(cut, text);
            } else {
                size_t dots = capacity > 3 ? 3 : capacity - 1;
                assert_memory_equal(cut, text, length - dots);
                assert_memory_equal(cut + length - dots, "...", dots);
            }
        }
    }
    static const struct terse_gguf_tensor tensors[] = {
        {"floats", "F32", true, 2, {32, 2, 1, 1}, 256},
        {"scalar", "F32", true, 0, {1, 1, 1, 1}, 4},
        {"blocks", "Q8_0", true, 4, {64, 1, 2, 1}, 136},
        {"named", "IQ2_XS", false, 1, {256, 1, 1, 1}, 0},
        {"nameless", "type 4000000000", false, 1, {7, 1, 1, 1}, 0},
    };
    assert_int_equal(terse_gguf_tensor_count(gguf), 5);
    for (uint64_t i = 0; i < 5; i++) {
        struct terse_gguf_tensor tensor;
        terse_gguf_tensor(gguf, i, &tensor);
        assert_string_equal(tensor.name, tensors[i].name);
        assert_string_equal(tensor.type, tensors[i].type);
        assert_int_equal(tensor.supported, tensors[i].supported);
        assert_int_equal(tensor.n_dims, tensors[i].n_dims);
        assert_memory_equal(tensor.dims, tensors[i].dims, sizeof tensor.dims);
        assert_int_equal(tensor.bytes, tensors[i].bytes);
    }
}

static void test_metadata_and_tensors(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        size_t size;
        struct terse_gguf *gguf;
        struct terse_error error;
        void *file = gguf_sample_build(version, &size);
        assert_int_equal(terse_gguf_open_memory(file, size, "sample", &gguf, &error), TERSE_OK);
        check_sample(gguf, version);
        terse_gguf_free(gguf);
        memory_free(file);
    }
    terse_gguf_free(NULL);
    gguf_free(NULL);
}

static void test_tensor_data(void **state) {
    (void)state;
    size_t size;
    struct gguf *gguf;
    struct terse_error error;
    uint8_t *file = gguf_sample_build(3, &size);
    assert_int_equal(gguf_open(file, size, "sample", &gguf, &error), TERSE_OK);
    assert_string_equal(gguf_name(gguf), "sample");
    const struct gguf_tensor *floats = gguf_find_tensor(gguf, "floats"), *blocks = gguf_find_tensor(gguf, "blocks");
    assert_ptr_equal(floats, gguf_tensor_at(gguf, 0));
    assert_ptr_equal(blocks, gguf_tensor_at(gguf, 2));
    assert_memory_equal(floats->data, gguf_sample_floats, sizeof gguf_sample_floats);
    assert_memory_equal(blocks->data, gguf_sample_blocks, sizeof gguf_sample_blocks);
    assert_int_equal((uintptr_t)blocks->data % 32, 0);
    assert_memory_equal(file + blocks->offset + 8, "blocks", 6);
    assert_null(gguf_find_tensor(gguf, "named")->data);
    assert_null(gguf_find_tensor(gguf, "block"));
    assert_null(gguf_find_tensor(gguf, ""));
    gguf_free(gguf);
    memory_free(file);
}

static void test_getters(void **state) {
    (void)state;
    size_t size;
    struct gguf *gguf;
    struct terse_error error;
    void *file = gguf_sample_build(3, &size);
    assert_int_equal(gguf_open(file, size, "sample", &gguf, &error), TERSE_OK);
    assert_true(gguf_has(gguf, "a.i8"));
    assert_false(gguf_has(gguf, "a.i"));

    static const struct {
        const char *key;
        bool fits;
        uint32_t value;
    } u32[] = {{"a.u8", true, 200},    {"a.u16", true, 60000}, {"a.u32", true, 4000000000u}, {"a.i8", false, 0},
               {"a.i32", false, 0},    {"a.i64", false, 0},    {"a.u64", false, 0},          {"a.f32", false, 0},
               {"a.string", false, 0}, {"a.bool", false, 0},   {"b.u32", false, 0}};
    for (size_t i = 0; i < sizeof u32 / sizeof *u32; i++) {
        uint32_t value = 17;
        bool found = false;
        enum terse_status status = gguf_get_u32(gguf, u32[i].key, &value, &found, &error);
        assert_true(found);
        assert_int_equal(status, u32[i].fits ? TERSE_OK : TERSE_E_FORMAT);
        assert_int_equal(value, u32[i].fits ? u32[i].value : 17);
        if (u32[i].fits) continue;
        assert_non_null(strstr(error.message, u32[i].key));
        assert_non_null(strstr(error.message, "sample"));
        assert_true(error.offset > 24 && error.offset < size);
    }

    static const struct {
        const char *key;
        bool fits;
        float value;
    } f32[] = {{"a.f32", true, 1e-5f},  {"a.f64", true, 0.1f},    {"a.u8", true, 200},       {"a.i8", true, -100},
               {"a.i16", true, -30000}, {"a.u64", true, 0x1p64f}, {"a.i64", true, -0x1p63f}, {"a.bool", false, 0},
               {"a.string", false, 0},  {"b.f32", false, 0}};
    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++) {
        float value = 17;
        enum terse_status status = gguf_get_f32(gguf, f32[i].key, &value, NULL, &error);
        assert_int_equal(status, f32[i].fits ? TERSE_OK : TERSE_E_FORMAT);
        assert_true(value == (f32[i].fits ? f32[i].value : 17));
    }

    bool flag = false, found = true;
    struct gguf_string string = {0};
    assert_int_equal(gguf_get_bool(gguf, "a.bool", &flag, &found, &error), TERSE_OK);
    assert_true(flag && found);
    assert_int_equal(gguf_get_bool(gguf, "a.u8", &flag, &found, &error), TERSE_E_FORMAT);
    assert_int_equal(gguf_get_string(gguf, "a.string", &string, &found, &error), TERSE_OK);
    assert_int_equal(string.size, 13);
    assert_memory_equal(string.data, "two\nlines \xe2\x82\xac", 13);
    assert_int_equal(gguf_get_string(gguf, "a.u8", &string, &found, &error), TERSE_E_FORMAT);

    /* Missing: asked for, or required. */
    uint32_t value = 17;
    assert_int_equal(gguf_get_u32(gguf, "c", &value, &found, &error), TERSE_OK);
    assert_false(found);
    assert_int_equal(value, 17);
    assert_int_equal(gguf_get_u32(gguf, "c.missing", &value, NULL, &error), TERSE_E_FORMAT);
    assert_non_null(strstr(error.message, "c.missing"));
    gguf_free(gguf);
    memory_free(file);
}

static void test_number_limits(void **state) {
    (void)state;
    struct gguf_writer writer = {0};
    size_t size;
    struct gguf *gguf;
    struct terse_error error;
    uint32_t whole;
    float single;
    gguf_writer_value(&writer, "huge", GGUF_F64, &(double){1e39}, 8);
    gguf_writer_value(&writer, "nan", GGUF_F64, &(double){NAN}, 8);
    gguf_writer_f32(&writer, "infinite", -INFINITY);
    gguf_writer_f32(&writer, "whole", 4096);
    gguf_writer_f32(&writer, "fraction", 4096.5f);
    gguf_writer_value(&writer, "just above", GGUF_I64, &(int64_t){UINT32_MAX + INT64_C(1)}, 8);
    gguf_writer_value(&writer, "largest", GGUF_I64, &(int64_t){UINT32_MAX}, 8);
    void *file = gguf_writer_build(&writer, &size);
    assert_int_equal(gguf_open(file, size, "limits", &gguf, &error), TERSE_OK);
    assert_int_equal(gguf_get_f32(gguf, "huge", &single, NULL, &error), TERSE_E_FORMAT);
    assert_int_equal(gguf_get_f32(gguf, "nan", &single, NULL, &error), TERSE_E_FORMAT);
    assert_int_equal(gguf_get_f32(gguf, "infinite", &single, NULL, &error), TERSE_E_FORMAT);
    assert_int_equal(gguf_get_u32(gguf, "nan", &whole, NULL, &error), TERSE_E_FORMAT);
    assert_int_equal(gguf_get_u32(gguf, "infinite", &whole, NULL, &error), TERSE_E_FORMAT);
    assert_int_equal(gguf_get_u32(gguf, "whole", &whole, NULL, &error), TERSE_OK);
    assert_int_equal(whole, 4096);
    assert_int_equal(gguf_get_u32(gguf, "fraction", &whole, NULL, &error), TERSE_E_FORMAT);
    assert_int_equal(gguf_get_u32(gguf, "just above", &whole, NULL, &error), TERSE_E_FORMAT);
    assert_int_equal(gguf_get_u32(gguf, "largest", &whole, NULL, &error), TERSE_OK);
    assert_int_equal(whole, UINT32_MAX);
    gguf_free(gguf);
    gguf_writer_free(&writer);
    memory_free(file);
}

static void test_arrays(void **state) {
    (void)state;
    size_t size;
    struct gguf *gguf;
    struct terse_error error;
    struct gguf_array array;
    struct gguf_string strings[3];
    bool found;
    void *file = gguf_sample_build(3, &size);
    assert_int_equal(gguf_open(file, size, "sample", &gguf, &error), TERSE_OK);
    assert_int_equal(gguf_get_array(gguf, "b.i32", GGUF_I32, &array, &found, &error), TERSE_OK);
    assert_int_equal(array.count, 2);
    assert_memory_equal(array.data, ((int32_t[]){INT32_MIN, INT32_MAX}), 8);
    assert_int_equal(gguf_get_array(gguf, "b.string", GGUF_STRING, &array, &found, &error), TERSE_OK);
    assert_int_equal(array.count, 3);
    gguf_array_strings(&array, strings);
    assert_int_equal(strings[0].size, 1);
    assert_memory_equal(strings[0].data, "a", 1);
    assert_int_equal(strings[1].size, 0);
    assert_int_equal(strings[2].size, 3);
    assert_memory_equal(strings[2].data, "\"c\"", 3);
    assert_int_equal(gguf_get_array(gguf, "b.none", GGUF_U32, &array, &found, &error), TERSE_OK);
    assert_int_equal(array.count, 0);
    assert_int_equal(gguf_get_array(gguf, "b.i32", GGUF_U32, &array, &found, &error), TERSE_E_FORMAT);
    assert_non_null(strstr(error.message, "b.i32"));
    assert_int_equal(gguf_get_array(gguf, "a.i32", GGUF_I32, &array, &found, &error), TERSE_E_FORMAT);
    assert_int_equal(gguf_get_array(gguf, "absent", GGUF_I32, &array, &found, &error), TERSE_OK);
    assert_false(found);
    gguf_free(gguf);
    memory_free(file);
}

static void test_alignment(void **state) {
    (void)state;
    static const uint32_t alignments[] = {8, 16, 32, 64, 4096};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        struct gguf_writer writer = {0};
        size_t size;
        struct gguf *gguf;
        struct terse_error error;
        gguf_writer_align(&writer, alignments[i]);
        for (uint64_t t = 1; t <= 5; t++)
            gguf_writer_tensor(&writer, (char[]){(char)('a' + t), 0}, TENSOR_F32, 1, &t, gguf_sample_floats + t);
        uint8_t *file = gguf_writer_build(&writer, &size);
        assert_int_equal(gguf_open(file, size, "aligned", &gguf, &error), TERSE_OK);
        for (uint64_t t = 1; t <= 5; t++) {
            const struct gguf_tensor *tensor = gguf_tensor_at(gguf, t - 1);
            assert_int_equal((size_t)((const uint8_t *)tensor->data - file) % alignments[i], 0);
            assert_memory_equal(tensor->data, gguf_sample_floats + t, t * sizeof *gguf_sample_floats);
        }
        gguf_free(gguf);
        gguf_writer_free(&writer);
        memory_free(file);
    }
}

static void test_file_equals_memory(void **state) {
    (void)state;
    char path[] = P_tmpdir "/terse-test-gguf-XXXXXX";
    size_t size;
    struct gguf_writer writer;
    struct terse_gguf *gguf;
    struct terse_error error;
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    gguf_sample_write(&writer, 3);
    assert_int_equal(gguf_writer_save(&writer, path, NULL, NULL, &error), TERSE_OK);
    uint8_t *built = gguf_writer_build(&writer, &size), *saved = malloc(size + 1);
    FILE *file = fopen(path, "rb");
    assert_int_equal(fread(saved, 1, size + 1, file), size);
    assert_memory_equal(saved, built, size);
    fclose(file);
    assert_int_equal(terse_gguf_open(path, &gguf, &error), TERSE_OK);
    check_sample(gguf, 3);
    terse_gguf_free(gguf);

    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(terse_gguf_open(path, &gguf, &error), TERSE_E_FORMAT);
    assert_null(gguf);
    assert_non_null(strstr(error.message, "empty"));
    unlink(path);
    assert_int_equal(terse_gguf_open(path, &gguf, &error), TERSE_E_IO);
    assert_null(gguf);
    assert_non_null(strstr(error.message, path));
    gguf_writer_free(&writer);
    memory_free(built);
    free(saved);
}

static void test_shipped_model(void **state) {
    (void)state;
    struct terse_gguf *gguf;
    struct terse_error error;
    uint64_t elements = 0;
    assert_int_equal(terse_gguf_open(PROJECT_DIR "/models/lab-27m-q8_0.gguf", &gguf, &error), TERSE_OK);
    assert_int_equal(terse_gguf_version(gguf), 3);
    for (uint64_t i = 0; i < terse_gguf_tensor_count(gguf); i++) {
        struct terse_gguf_tensor tensor;
        terse_gguf_tensor(gguf, i, &tensor);
        assert_true(tensor.supported);
        elements += tensor.dims[0] * tensor.dims[1] * tensor.dims[2] * tensor.dims[3];
    }
    /* 12 layers of 2 norms, q and o of 768 x 384, k and v of 256 x 384, three feed-forward matrices; embedding; last norm. */
    assert_int_equal(terse_gguf_tensor_count(gguf), 12 * 9 + 2);
    assert_int_equal(elements, 12 * (2 * 384 + 2 * 768 * 384 + 2 * 256 * 384 + 3 * 1024 * 384) + 8192 * 384 + 384);
    terse_gguf_free(gguf);
}

/* ---- The writer --------------------------------------------------------------------------------------------------------- */

struct filled {
    uint64_t next, calls;
    bool refuse;
};

static void fill(void *user, uint64_t tensor, uint64_t offset, void *bytes, size_t size) {
    struct filled *filled = user;
    assert_int_equal(tensor, 1);
    assert_int_equal(offset, filled->next);
    assert_int_equal(size % 34, 0);
    for (size_t i = 0; i < size; i++) ((uint8_t *)bytes)[i] = (uint8_t)((offset + i) % 251);
    filled->next += size;
    filled->calls++;
}

static bool report(void *user, const char *what, uint64_t done, uint64_t total) {
    struct filled *filled = user;
    assert_string_equal(what, "writing");
    assert_true(done <= total);
    return !(filled->refuse && filled->calls == 1);
}

static void test_writer_streams(void **state) {
    (void)state;
    char folder[] = P_tmpdir "/terse-test-gguf-XXXXXX", path[64];
    const uint64_t dims[2] = {32 * 1000, 300}; /* 10.2 MB: more than one piece */
    struct gguf_writer writer = {0};
    struct filled filled = {0};
    struct gguf_writer_source source = {fill, &filled};
    struct terse_progress progress = {report, &filled};
    struct terse_error error;
    struct terse_gguf *gguf;
    struct terse_gguf_tensor tensor;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    gguf_writer_tensor(&writer, "small", TENSOR_F32, 1, (uint64_t[]){64}, gguf_sample_floats);
    gguf_writer_tensor(&writer, "large", TENSOR_Q8_0, 2, dims, NULL);
    assert_int_equal(gguf_writer_save(&writer, path, &source, &progress, &error), TERSE_OK);
    assert_true(filled.calls > 1);
    assert_int_equal(filled.next, 34 * 1000 * 300);

    FILE *file = fopen(path, "rb");
    assert_int_equal(terse_gguf_open(path, &gguf, &error), TERSE_OK);
    terse_gguf_tensor(gguf, 1, &tensor);
    assert_int_equal(tensor.bytes, filled.next);
    terse_gguf_free(gguf);
    fseek(file, -(long)memory_round_up(tensor.bytes, 32), SEEK_END);
    for (uint64_t i = 0; i < tensor.bytes; i++)
        if (fgetc(file) != (int)(i % 251)) fail_msg("byte %llu differs", (unsigned long long)i);
    fclose(file);
    unlink(path);

    /* Stopped, or on a full disk: no file is left. */
    filled = (struct filled){.refuse = true};
    assert_int_equal(gguf_writer_save(&writer, path, &source, &progress, &error), TERSE_E_INTERRUPTED);
    assert_int_not_equal(access(path, F_OK), 0);
    struct rlimit limit, before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 100000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(gguf_writer_save(&writer, path, NULL, NULL, &error), TERSE_E_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_non_null(strstr(error.message, strerror(EFBIG)));
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/no/such/folder", folder);
    assert_int_equal(gguf_writer_save(&writer, path, NULL, NULL, &error), TERSE_E_IO);
    assert_non_null(strstr(error.message, path));
    gguf_writer_free(&writer);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metadata_and_tensors), cmocka_unit_test(test_tensor_data),   cmocka_unit_test(test_getters),
        cmocka_unit_test(test_number_limits),        cmocka_unit_test(test_arrays),        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_file_equals_memory),   cmocka_unit_test(test_shipped_model), cmocka_unit_test(test_writer_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
