/* src/base: half floats, aligned memory, mapped files, lines of text, status. */
#include "base/half.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Half floats -------------------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The value of a finite half by its definition. */
static double half_value(uint16_t half) {
    int exponent = half >> 10 & 31;
    double fraction = half & 1023;
    double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -magnitude : magnitude;
}

static bool half_is_finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

static void test_half_to_float_all(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t half = (uint16_t)i;
        float value = half_to_float(half);
        assert_int_equal(signbit(value) != 0, half >> 15);
        if (half_is_finite(half)) {
            if ((double)value != half_value(half)) fail_msg("half 0x%04x is %.9g, not %.9g", half, (double)value, half_value(half));
        } else if (half & 0x3ff) {
            assert_true(isnan(value));
        } else {
            assert_true(isinf(value));
        }
    }
}

/* The nearest half by distances in double: between two halves next to each other, a tie goes to the even one. 65536 takes the
 * place of infinity, whose encoding follows the largest half's. */
static uint16_t nearest_half(float value) {
    double wanted = fabs((double)value);
    uint16_t low = 0, high = 0x7c00;
    if (wanted >= 65536) return (uint16_t)(0x7c00 | (signbit(value) ? 0x8000 : 0));
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (half_value(middle) <= wanted)
            low = middle;
        else
            high = middle;
    }
    double below = wanted - half_value(low), above = (high == 0x7c00 ? 65536 : half_value(high)) - wanted;
    uint16_t nearest = below < above ? low : below > above ? high : (low & 1) ? high : low;
    return (uint16_t)(nearest | (signbit(value) ? 0x8000 : 0));
}

static void check_rounding(uint32_t bits) {
    float value = float_of(bits);
    uint16_t half = half_from_float(value), wanted = nearest_half(value);
    if (half != wanted) fail_msg("float 0x%08x (%.9g) became half 0x%04x, not 0x%04x", bits, (double)value, half, wanted);
}

static void test_half_from_float(void **state) {
    (void)state;
    /* Every half comes back, NaN as a NaN of the same sign. */
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t half = (uint16_t)i, back = half_from_float(half_to_float(half));
        bool nan = !half_is_finite(half) && (half & 0x3ff);
        assert_int_equal(back, nan ? half | 0x200 : half);
    }
    /* Around every half, and around the middle between it and the next: the floats where rounding changes. */
    for (uint16_t half = 0; half < 0x7c00; half++) {
        double next = half == 0x7bff ? 65536 : half_value((uint16_t)(half + 1));
        uint32_t here = bits_of((float)half_value(half)), middle = bits_of((float)((half_value(half) + next) / 2));
        for (int32_t d = -2; d <= 2; d++) {
            if (here || d >= 0) check_rounding(here + (uint32_t)d);
            check_rounding(middle + (uint32_t)d);
            check_rounding((middle + (uint32_t)d) | 0x80000000);
        }
    }
    /* A sweep of all finite floats in steps that reach every exponent with many fractions, both signs. */
    for (uint32_t bits = 0; bits < 0x7f800000; bits += 4999) {
        check_rounding(bits);
        check_rounding(bits | 0x80000000);
    }
    assert_int_equal(half_from_float(INFINITY), 0x7c00);
    assert_int_equal(half_from_float(-INFINITY), 0xfc00);
    for (uint32_t bits = 0x7f800001; bits < 0x80000000; bits += 4999) {
        uint16_t half = half_from_float(float_of(bits)), negative = half_from_float(float_of(bits | 0x80000000));
        assert_true((half & 0xfc00) == 0x7c00 && (half & 0x3ff));
        assert_int_equal(negative, half | 0x8000);
    }
}

static void test_bfloat(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) assert_int_equal(bits_of(bfloat_to_float((uint16_t)i)), i << 16);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------------- */

static void test_memory(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4097, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *memory = memory_array(sizes[i], 1), *zeros = memory_zeros(1, sizes[i]);
        assert_non_null(memory);
        assert_non_null(zeros);
        assert_int_equal((uintptr_t)memory % MEMORY_ALIGN, 0);
        assert_int_equal((uintptr_t)zeros % MEMORY_ALIGN, 0);
        if (sizes[i]) memset(memory, 0xff, sizes[i]);
        for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(zeros[j], 0);
        memory_free(memory);
        memory_free(zeros);
    }
    memory_free(NULL);
}

static void test_memory_overflow(void **state) {
    (void)state;
    assert_null(memory_array(SIZE_MAX, 2));
    assert_null(memory_array(SIZE_MAX / 16 + 1, 16)); /* 2^64 exactly: wraps to 0 */
    assert_null(memory_array((size_t)1 << 32, (size_t)1 << 32));
    assert_null(memory_array(SIZE_MAX, 1)); /* would wrap when rounded up to the alignment */
    assert_null(memory_zeros(SIZE_MAX, SIZE_MAX));
    assert_null(memory_zeros((size_t)PTRDIFF_MAX + 1, 1));
    void *nothing = memory_array(SIZE_MAX, 0);
    assert_non_null(nothing);
    memory_free(nothing);
}

static void test_round_up(void **state) {
    (void)state;
    for (size_t multiple = 1; multiple < 100; multiple++)
        for (size_t n = 0; n < 300; n++) {
            size_t rounded = memory_round_up(n, multiple);
            assert_true(rounded >= n && rounded - n < multiple && rounded % multiple == 0);
        }
}

/* ---- Mapped files ------------------------------------------------------------------------------------------------------- */

static void write_file(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void test_mapped_file(void **state) {
    const char *folder = *state;
    char path[256], content[10000];
    struct mapped_file file;
    struct terse_error error;
    for (size_t i = 0; i < sizeof content; i++) content[i] = (char)(i * 31);
    snprintf(path, sizeof path, "%s/file", folder);
    write_file(path, content, sizeof content);
    assert_int_equal(mapped_file_open(path, &file, &error), TERSE_OK);
    assert_int_equal(file.size, sizeof content);
    assert_int_equal((uintptr_t)file.data % 4096, 0);
    assert_memory_equal(file.data, content, sizeof content);
    mapped_file_close(&file);
    assert_null(file.data);
    mapped_file_close(&file);

    write_file(path, content, 0);
    assert_int_equal(mapped_file_open(path, &file, &error), TERSE_OK);
    assert_null(file.data);
    assert_int_equal(file.size, 0);
    mapped_file_close(&file);
    unlink(path);
}

static void refused(const char *path, int reason, const char *words) {
    struct mapped_file file = {.data = "x", .size = 1};
    struct terse_error error = {0};
    assert_int_equal(mapped_file_open(path, &file, &error), TERSE_E_IO);
    assert_int_equal(error.code, TERSE_E_IO);
    assert_null(file.data);
    assert_int_equal(file.size, 0);
    assert_non_null(strstr(error.message, path));
    assert_non_null(strstr(error.message, reason ? strerror(reason) : words));
    assert_null(strchr(error.message, '\n'));
    assert_int_equal(mapped_file_open(path, &file, NULL), TERSE_E_IO);
}

static void test_mapped_file_refused(void **state) {
    const char *folder = *state;
    char path[256];
    refused(folder, 0, "a directory");
    snprintf(path, sizeof path, "%s/absent", folder);
    refused(path, ENOENT, NULL);
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    refused(path, 0, "not a regular file"); /* and does not wait for a writer */
    unlink(path);
    if (geteuid() != 0) { /* the superuser may read everything */
        snprintf(path, sizeof path, "%s/closed", folder);
        write_file(path, "x", 1);
        assert_int_equal(chmod(path, 0), 0);
        refused(path, EACCES, NULL);
        unlink(path);
    }
}

static int make_folder(void **state) {
    static char folder[64];
    strcpy(folder, P_tmpdir "/terse-test-base-XXXXXX");
    *state = mkdtemp(folder);
    return *state ? 0 : -1;
}

static int remove_folder(void **state) { return rmdir(*state); }

/* ---- Text --------------------------------------------------------------------------------------------------------------- */

/* Decodes by the definition of UTF-8, without the tables of the code under test. */
static size_t reference_character(const unsigned char *c, size_t size) {
    size_t n = c[0] < 0x80 ? 1 : (c[0] & 0xe0) == 0xc0 ? 2 : (c[0] & 0xf0) == 0xe0 ? 3 : (c[0] & 0xf8) == 0xf0 ? 4 : 0;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0 || n > size) return 0;
    uint32_t code = n == 1 ? c[0] : c[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((c[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (c[i] & 0x3f);
    }
    if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return 0;
    return code < 0x20 || (code >= 0x7f && code < 0xa0) ? 0 : n;
}

static void test_characters(void **state) {
    (void)state;
    static const unsigned char interesting[] = {0x00, 0x20, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff};
    enum { N = sizeof interesting };
    for (unsigned first = 0; first < 256; first++)
        for (unsigned second = 0; second < 256; second++)
            for (unsigned rest = 0; rest < N * N; rest++) {
                unsigned char c[4] = {(unsigned char)first, (unsigned char)second, interesting[rest / N], interesting[rest % N]};
                for (size_t size = 1; size <= 4; size++)
                    if (text_character((const char *)c, size) != reference_character(c, size))
                        fail_msg("%02x %02x %02x %02x, %zu bytes", c[0], c[1], c[2], c[3], size);
            }
    assert_true(text_is_printable("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10));
    assert_true(text_is_printable("", 0));
    assert_false(text_is_printable("a\nb", 3));
    assert_false(text_is_printable("\xe2\x82\xac", 2));
}

static void expect_line(const char *data, size_t size, bool quoted, size_t capacity, const char *wanted) {
    char buffer[65]; /* one past the largest capacity */
    memset(buffer, 'x', sizeof buffer);
    struct text_line line = text_line_begin(buffer, capacity);
    text_line_string(&line, data, size, quoted);
    assert_int_equal(text_line_end(&line), strlen(wanted));
    assert_string_equal(buffer, wanted);
    assert_int_equal(buffer[capacity], 'x');
}

static void test_lines(void **state) {
    (void)state;
    expect_line("plain", 5, false, 64, "plain");
    expect_line("plain", 5, false, 6, "plain");
    expect_line("plain", 5, false, 5, "p...");
    expect_line("plain", 5, false, 3, "..");
    expect_line("plain", 5, false, 1, "");
    expect_line("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 8, false, 9, "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9");
    expect_line("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 8, false, 8, "\xc3\xa9\xc3\xa9...");
    expect_line("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 8, false, 7, "\xc3\xa9...");
    expect_line("a\n\t\r\0\x1b\xff\"\\", 9, false, 64, "a\\n\\t\\r\\x00\\x1b\\xff\"\\");
    expect_line("say \"\\\"", 7, true, 64, "\"say \\\"\\\\\\\"\"");
    expect_line("ab\xff", 3, false, 7, "ab\\xff");
    expect_line("abc\xff", 4, false, 7, "abc...");
    struct text_line none = text_line_begin(NULL, 0);
    text_line_string(&none, "abc", 3, true);
    assert_int_equal(text_line_end(&none), 0);
}

/* ---- Status ------------------------------------------------------------------------------------------------------------- */

static void test_status(void **state) {
    (void)state;
    struct terse_error error = {0};
    assert_int_equal(status_fail(&error, TERSE_E_ARGUMENT, "%d and %s", 7, "more"), TERSE_E_ARGUMENT);
    assert_int_equal(error.code, TERSE_E_ARGUMENT);
    assert_int_equal(error.offset, TERSE_NO_OFFSET);
    assert_string_equal(error.message, "7 and more");
    assert_int_equal(status_fail_at(&error, TERSE_E_FORMAT, 12, "bad"), TERSE_E_FORMAT);
    assert_int_equal(error.offset, 12);
    assert_int_equal(status_no_memory(&error, 1000, "a thing"), TERSE_E_MEMORY);
    assert_non_null(strstr(error.message, "1000"));
    assert_int_equal(status_fail(NULL, TERSE_E_IO, "no error to write to"), TERSE_E_IO);
    char long_text[2000];
    memset(long_text, 'y', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    status_fail(&error, TERSE_E_IO, "%s", long_text);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    for (int i = TERSE_OK; i <= TERSE_E_INTERRUPTED; i++)
        assert_int_equal(strncmp(terse_status_name((enum terse_status)i), "TERSE_", 6), 0);
    assert_non_null(terse_status_name((enum terse_status)99));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_to_float_all),
        cmocka_unit_test(test_half_from_float),
        cmocka_unit_test(test_bfloat),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_overflow),
        cmocka_unit_test(test_round_up),
        cmocka_unit_test_setup_teardown(test_mapped_file, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_mapped_file_refused, make_folder, remove_folder),
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
