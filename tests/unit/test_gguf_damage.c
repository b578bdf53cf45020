/* The GGUF reader on damaged and hostile files: each is refused with one line that says what is wrong and where, nothing is read
 * past the file's end, and false sizes cost neither memory nor time. Sound files: test_gguf.c. */
#include "base/memory.h"
#include "support/gguf_sample.h"
#include "terse_gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif

enum { HEADER = 24 }; /* bytes before the first key */

/* ---- Damage --------------------------------------------------------------------------------------------------------------- */

/* Reads everything that an opened file offers. */
static void read_all(const struct terse_gguf *gguf) {
    char text[64];
    for (uint64_t i = 0; i < terse_gguf_metadata_count(gguf); i++) {
        const char *key, *type;
        terse_gguf_metadata(gguf, i, &key, &type);
        assert_non_null(type);
        terse_gguf_metadata_text(gguf, i, text, sizeof text);
        assert_true(strlen(text) < sizeof text);
    }
    for (uint64_t i = 0; i < terse_gguf_tensor_count(gguf); i++) {
        struct terse_gguf_tensor tensor;
        terse_gguf_tensor(gguf, i, &tensor);
        assert_non_null(tensor.type);
    }
}

/* Opens a copy of exactly `size` bytes, so that a memory checker sees a read past the end. */
static enum terse_status open_copy(const void *data, size_t size, struct terse_error *error) {
    struct terse_gguf *gguf;
    void *copy = memory_array(size, 1);
    assert_non_null(copy);
    if (size) memcpy(copy, data, size);
    enum terse_status status = terse_gguf_open_memory(copy, size, "bad.gguf", &gguf, error);
    assert_int_equal(gguf != NULL, status == TERSE_OK);
    if (gguf) read_all(gguf);
    terse_gguf_free(gguf);
    memory_free(copy);
    return status;
}

static void check_message(const struct terse_error *error, enum terse_status status, size_t size) {
    assert_int_equal(error->code, status);
    assert_true(error->offset <= size);
    assert_int_equal(strncmp(error->message, "bad.gguf: ", 10), 0);
    assert_null(strchr(error->message, '\n'));
}

static void test_truncated(void **state) {
    (void)state;
    size_t size;
    uint8_t *file = gguf_sample_build(3, &size);
    /* The last tensor has no data of its own, but lies at the beginning of the last 32 bytes. */
    for (size_t cut = 0; cut < size; cut++) {
        struct terse_error error;
        enum terse_status status = open_copy(file, cut, &error);
        assert_int_equal(status, cut > size - 32 ? TERSE_OK : TERSE_E_FORMAT);
        if (status != TERSE_OK) check_message(&error, status, cut);
    }
    memory_free(file);
}

static void test_bits_flipped(void **state) {
    (void)state;
    size_t size;
    uint8_t *file = gguf_sample_build(2, &size);
    for (size_t bit = 0; bit < size * 8; bit++) {
        struct terse_error error;
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
        enum terse_status status = open_copy(file, size, &error);
        if (status != TERSE_OK) check_message(&error, status, size);
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    memory_free(file);
}

static void begin(struct gguf_bytes *file, uint64_t n_tensors, uint64_t n_keys) {
    *file = (struct gguf_bytes){0};
    gguf_bytes_put(file, "GGUF", 4);
    gguf_bytes_u32(file, 3);
    gguf_bytes_u64(file, n_tensors);
    gguf_bytes_u64(file, n_keys);
}

static void add_key(struct gguf_bytes *file, const char *key, uint32_t type) {
    gguf_bytes_string(file, key, strlen(key));
    gguf_bytes_u32(file, type);
}

static void add_tensor(struct gguf_bytes *file, const char *name, uint32_t type, uint64_t columns, uint64_t rows, uint64_t offset) {
    gguf_bytes_string(file, name, strlen(name));
    gguf_bytes_u32(file, 2);
    gguf_bytes_u64(file, columns);
    gguf_bytes_u64(file, rows);
    gguf_bytes_u32(file, type);
    gguf_bytes_u64(file, offset);
}

static void add_zeros(struct gguf_bytes *file, size_t size) {
    while (size--) gguf_bytes_put(file, "", 1);
}

/* The file is refused, the message has the words and the offset; the file is released. */
static void refused(struct gguf_bytes *file, enum terse_status wanted, uint64_t offset, const char *words) {
    struct terse_error error = {0};
    assert_int_equal(open_copy(file->data, file->size, &error), wanted);
    check_message(&error, wanted, file->size);
    if (!strstr(error.message, words)) fail_msg("'%s' lacks '%s'", error.message, words);
    if (error.offset != offset)
        fail_msg("'%s': offset %llu, not %llu", error.message, (unsigned long long)error.offset, (unsigned long long)offset);
    memory_free(file->data);
}

static void test_bad_header(void **state) {
    (void)state;
    struct gguf_bytes file = {0};
    gguf_bytes_put(&file, "GGML0000000000000000000000000000", 32);
    refused(&file, TERSE_E_FORMAT, 0, "not a GGUF file");
    file = (struct gguf_bytes){0};
    gguf_bytes_put(&file, "GG", 2);
    refused(&file, TERSE_E_FORMAT, 0, "not a GGUF file");
    static const struct {
        uint32_t version;
        const char *words;
    } versions[] = {{0, "version 0"}, {1, "version 1"}, {4, "version 4"}, {0x03000000, "big-endian"}, {0x02000000, "big-endian"}};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        begin(&file, 0, 0);
        memcpy(file.data + 4, &versions[i].version, 4);
        refused(&file, TERSE_E_UNSUPPORTED, 4, versions[i].words);
    }
    begin(&file, UINT64_MAX, 0);
    add_zeros(&file, 1000);
    refused(&file, TERSE_E_FORMAT, 8, "18446744073709551615 tensors");
    begin(&file, 0, UINT64_C(1) << 60);
    add_zeros(&file, 1000);
    refused(&file, TERSE_E_FORMAT, 16, "1152921504606846976 keys");
}

static void test_bad_keys(void **state) {
    (void)state;
    struct gguf_bytes file;
    begin(&file, 0, 1);
    add_key(&file, "k", 13);
    add_zeros(&file, 16);
    refused(&file, TERSE_E_FORMAT, HEADER + 9, "type is 13");
    begin(&file, 0, 1);
    add_key(&file, "k", GGUF_BOOL);
    gguf_bytes_put(&file, "\2", 1);
    refused(&file, TERSE_E_FORMAT, HEADER + 13, "bool");
    begin(&file, 0, 1);
    gguf_bytes_u64(&file, UINT64_MAX); /* the key's length */
    add_zeros(&file, 16);
    refused(&file, TERSE_E_FORMAT, HEADER + 8, "key 0");
    begin(&file, 0, 1);
    add_key(&file, "", GGUF_U64);
    add_zeros(&file, 16);
    refused(&file, TERSE_E_FORMAT, HEADER, "empty");
    begin(&file, 0, 1);
    gguf_bytes_string(&file, "a\0b", 3);
    add_zeros(&file, 16);
    refused(&file, TERSE_E_FORMAT, HEADER, "printable");
    begin(&file, 0, 1);
    add_key(&file, "esc\x1b[2J", GGUF_U8);
    add_zeros(&file, 16);
    refused(&file, TERSE_E_FORMAT, HEADER, "printable");
    begin(&file, 0, 1);
    gguf_bytes_u64(&file, 65536);
    add_zeros(&file, 70000);
    refused(&file, TERSE_E_FORMAT, HEADER, "65536 bytes long");
    begin(&file, 0, 1);
    add_key(&file, "k", GGUF_STRING);
    gguf_bytes_u64(&file, UINT64_MAX - 7);
    refused(&file, TERSE_E_FORMAT, HEADER + 21, "'k'");
    begin(&file, 0, 2);
    add_key(&file, "twice", GGUF_U8);
    gguf_bytes_put(&file, "a", 1);
    add_key(&file, "twice", GGUF_U8);
    gguf_bytes_put(&file, "b", 1);
    refused(&file, TERSE_E_FORMAT, HEADER + 18 + 8, "occurs twice");
}

static void test_bad_arrays(void **state) {
    (void)state;
    struct gguf_bytes file;
    static const uint64_t counts[] = {3, UINT64_C(1) << 62, UINT64_C(1) << 61, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        begin(&file, 0, 1);
        add_key(&file, "k", GGUF_ARRAY);
        gguf_bytes_u32(&file, GGUF_U64);
        gguf_bytes_u64(&file, counts[i]); /* times 8 wraps to a small number */
        add_zeros(&file, 16);
        refused(&file, TERSE_E_FORMAT, HEADER + 25, "values of type u64 do not fit");
        begin(&file, 0, 1);
        add_key(&file, "k", GGUF_ARRAY);
        gguf_bytes_u32(&file, GGUF_STRING);
        gguf_bytes_u64(&file, counts[i]);
        add_zeros(&file, 16);
        refused(&file, TERSE_E_FORMAT, HEADER + 41, "a string");
    }
    begin(&file, 0, 1);
    add_key(&file, "k", GGUF_ARRAY);
    gguf_bytes_u32(&file, 99);
    gguf_bytes_u64(&file, 0);
    refused(&file, TERSE_E_FORMAT, HEADER + 13, "99");
    begin(&file, 0, 1);
    add_key(&file, "k", GGUF_ARRAY);
    gguf_bytes_u32(&file, GGUF_BOOL);
    gguf_bytes_u64(&file, 3);
    gguf_bytes_put(&file, "\0\1\377", 3);
    refused(&file, TERSE_E_FORMAT, HEADER + 27, "255");
    /* A million arrays, each in the one before. */
    begin(&file, 0, 1);
    add_key(&file, "k", GGUF_ARRAY);
    for (int i = 0; i < 1000000; i++) {
        gguf_bytes_u32(&file, GGUF_ARRAY);
        gguf_bytes_u64(&file, 1);
    }
    refused(&file, TERSE_E_FORMAT, HEADER + 13 + 8 * 12, "nested");
}

static void test_bad_tensors(void **state) {
    (void)state;
    struct gguf_bytes file;
    static const struct {
        uint64_t columns, rows, offset;
        uint32_t type;
        uint64_t place; /* of the error in the description: 0 the beginning, 13 and 21 the dimensions */
        const char *words;
    } tensors[] = {
        {0, 1, 0, TENSOR_F32, 13, "dimension 0 is 0"},
        {1, 0, 0, TENSOR_F32, 21, "dimension 1 is 0"},
        {UINT64_C(1) << 32, UINT64_C(1) << 32, 0, TENSOR_F32, 21, "2^63"},
        {UINT64_C(1) << 33, UINT64_C(1) << 30, 0, 99, 21, "2^63"},
        {UINT64_C(1) << 62, 1, 0, TENSOR_F32, 0, "2^64"},
        {UINT64_C(1) << 61, 1, 0, TENSOR_F32, 0, "past the file's end"},
        {33, 1, 0, TENSOR_Q8_0, 0, "whole Q8_0 blocks"},
        {128, 2, 0, TENSOR_Q4_K, 0, "whole Q4_K blocks"},
        {16, 2, 0, TENSOR_F32, 0, "past the file's end"},
        {4, 1, 16, TENSOR_F32, 0, "alignment"},
        {4, 1, 96, TENSOR_F32, 0, "past the file's end"},
        {16, 1, 64, TENSOR_F32, 0, "past the file's end"},
        {4, 1, UINT64_MAX - 31, TENSOR_F32, 0, "past the file's end"},
        {4, 1, UINT64_MAX - 31, 99, 0, "past the file's end"},
        {4, 1, 96, 99, 0, "past the file's end"},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        begin(&file, 1, 0);
        add_tensor(&file, "t", tensors[i].type, tensors[i].columns, tensors[i].rows, tensors[i].offset);
        add_zeros(&file, 96 - file.size + 96); /* 96 bytes of data */
        refused(&file, TERSE_E_FORMAT, HEADER + tensors[i].place, tensors[i].words);
    }
    begin(&file, 1, 0);
    gguf_bytes_string(&file, "t", 1);
    gguf_bytes_u32(&file, 5);
    add_zeros(&file, 96);
    refused(&file, TERSE_E_FORMAT, HEADER + 9, "5 dimensions");
    begin(&file, 1, 0);
    add_tensor(&file, "a name of 65 characters, which is one more than the 64 allowed...", TENSOR_F32, 1, 1, 0);
    add_zeros(&file, 96);
    refused(&file, TERSE_E_FORMAT, HEADER, "65 bytes long");
    begin(&file, 2, 0);
    add_tensor(&file, "t", TENSOR_F32, 1, 1, 0);
    add_tensor(&file, "t", TENSOR_F32, 1, 1, 32);
    add_zeros(&file, 96);
    refused(&file, TERSE_E_FORMAT, HEADER + 41 + 8, "occurs twice");
    begin(&file, 3, 0);
    add_tensor(&file, "first", TENSOR_F32, 1, 1, 64);
    add_tensor(&file, "second", TENSOR_F32, 4, 1, 32);
    add_tensor(&file, "third", TENSOR_F32, 9, 1, 0); /* 36 bytes: 4 into the second's */
    add_zeros(&file, 128);
    refused(&file, TERSE_E_FORMAT, HEADER + 45, "overlap those of 'third'");
    /* Descriptions that end where the file ends. */
    begin(&file, 1, 0);
    add_tensor(&file, "t", TENSOR_F32, 1, 1, 0);
    refused(&file, TERSE_E_FORMAT, HEADER, "past the file's end");
}

static void test_bad_alignment(void **state) {
    (void)state;
    static const uint32_t alignments[] = {0, 1, 4, 24, 33, UINT32_MAX};
    struct gguf_bytes file;
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        begin(&file, 0, 1);
        add_key(&file, "general.alignment", GGUF_U32);
        gguf_bytes_u32(&file, alignments[i]);
        refused(&file, TERSE_E_FORMAT, HEADER + 29, "power of 2");
    }
    begin(&file, 0, 1);
    add_key(&file, "general.alignment", GGUF_STRING);
    gguf_bytes_string(&file, "32", 2);
    refused(&file, TERSE_E_FORMAT, HEADER + 37, "general.alignment");
    begin(&file, 1, 1);
    add_key(&file, "general.alignment", GGUF_U32);
    gguf_bytes_u32(&file, UINT32_C(1) << 31);
    add_tensor(&file, "t", TENSOR_F32, 1, 1, 0);
    add_zeros(&file, 96);
    refused(&file, TERSE_E_FORMAT, HEADER + 33, "past the file's end");
}

static void test_misaligned_memory(void **state) {
    (void)state;
    size_t size;
    struct gguf *gguf;
    struct terse_error error;
    uint8_t *file = gguf_sample_build(3, &size), *moved = memory_array(size + 1, 1);
    memcpy(moved + 1, file, size);
    assert_int_equal(gguf_open(moved + 1, size, "moved", &gguf, &error), TERSE_E_ARGUMENT);
    assert_null(gguf);
    assert_non_null(strstr(error.message, "moved"));
    memory_free(file);
    memory_free(moved);
}

/* Names go into messages as they are meant for one line of a terminal, and long paths keep their end. */
static void test_names_in_messages(void **state) {
    (void)state;
    char path[601];
    struct gguf *gguf;
    struct terse_error error;
    assert_int_equal(gguf_open(NULL, 0, "new\nline\x1b[2J", &gguf, &error), TERSE_E_FORMAT);
    assert_int_equal(strncmp(error.message, "new\\nline\\x1b[2J: ", 17), 0);
    for (size_t i = 0; i < sizeof path; i++) path[i] = "\xc3\xa9"[i % 2];
    strcpy(path + sizeof path - 11, "model.gguf");
    assert_int_equal(gguf_open(NULL, 0, path, &gguf, &error), TERSE_E_FORMAT);
    assert_int_equal(strncmp(error.message, "...\xc3\xa9", 5), 0);
    assert_non_null(strstr(error.message, "model.gguf: it is empty"));
}

/* ---- Hostile sizes ------------------------------------------------------------------------------------------------------ */

/* 100,000 names that differ only at their ends: look-ups and the search for duplicates must not be quadratic. */
static void test_many_keys(void **state) {
    (void)state;
    enum { N = 100000 };
    struct gguf_writer writer = {0};
    size_t size;
    struct gguf *gguf;
    struct terse_error error;
    char key[64];
    for (uint32_t i = 0; i < N; i++) {
        snprintf(key, sizeof key, "some.rather.long.and.common.beginning.%08u", (unsigned)(i * 7919u % N));
        gguf_writer_u32(&writer, key, i);
        gguf_writer_tensor(&writer, key, TENSOR_F32, 1, &(uint64_t){1}, NULL);
    }
    void *file = gguf_writer_build(&writer, &size);
    assert_int_equal(gguf_open(file, size, "many", &gguf, &error), TERSE_OK);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t value;
        snprintf(key, sizeof key, "some.rather.long.and.common.beginning.%08u", (unsigned)(i * 7919u % N));
        assert_int_equal(gguf_get_u32(gguf, key, &value, NULL, &error), TERSE_OK);
        assert_int_equal(value, i);
        assert_ptr_equal(gguf_find_tensor(gguf, key), gguf_tensor_at(gguf, i));
    }
    assert_false(gguf_has(gguf, "some.rather.long.and.common.beginning.99999999"));
    gguf_free(gguf);
    memory_free(file);

    gguf_writer_u32(&writer, key, 0);
    file = gguf_writer_build(&writer, &size);
    assert_int_equal(gguf_open(file, size, "many", &gguf, &error), TERSE_E_FORMAT);
    assert_non_null(strstr(error.message, "occurs twice"));
    memory_free(file);
    gguf_writer_free(&writer);
}

/* Bytes of address space in use. */
static size_t address_space(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%lu", &pages) != 1) pages = 0;
        fclose(file);
    }
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* A file of 1 GiB whose counts fit it, but whose first key or tensor is already wrong: the tables grow with what is read, not with
 * the count. */
static void test_false_counts_cost_nothing(void **state) {
    (void)state;
#ifdef ADDRESS_SANITIZER
    skip(); /* its own memory cannot be limited */
#endif
    const size_t size = (size_t)1 << 30;
    void *file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t used = address_space();
    if (file == MAP_FAILED || used == 0) skip();
    for (int tensors = 0; tensors <= 1; tensors++) {
        struct gguf_bytes head;
        struct rlimit before, limited;
        struct gguf *gguf;
        struct terse_error error;
        begin(&head, tensors ? size / 32 : 0, tensors ? 0 : size / 16);
        gguf_bytes_u64(&head, UINT64_MAX);
        memcpy(file, head.data, head.size);
        memory_free(head.data);
        assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
        limited = before;
        limited.rlim_cur = used + ((size_t)64 << 20);
        assert_int_equal(setrlimit(RLIMIT_AS, &limited), 0);
        enum terse_status status = gguf_open(file, size, "false", &gguf, &error);
        setrlimit(RLIMIT_AS, &before);
        assert_int_equal(status, TERSE_E_FORMAT);
    }
    munmap(file, size);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_bits_flipped),
        cmocka_unit_test(test_bad_header),
        cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_bad_arrays),
        cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_bad_alignment),
        cmocka_unit_test(test_misaligned_memory),
        cmocka_unit_test(test_names_in_messages),
        cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_false_counts_cost_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
