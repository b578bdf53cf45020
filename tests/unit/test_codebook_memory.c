/* Codebooks when memory is refused: every allocation of making, writing, loading, saving and preparing one is refused in turn, and each
 * time the call says so, gives nothing and leaves nothing behind. And what a codebook says of its memory is what it has, before the CPU
 * has prepared it and after. */
#include "backend/cpu/codec/prepared.h"
#include "format/codebook_private.h"
#include "support/codebook_sample.h"
#include "support/counting_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

enum { FEW = 1000 }; /* allocations that none of these needs */

static void check_refused(enum terse_status status, const void *result, const struct terse_error *error, size_t before) {
    assert_int_equal(status, TERSE_E_MEMORY);
    assert_int_equal(error->code, TERSE_E_MEMORY);
    assert_null(result);
    assert_int_equal(live_bytes, before);
}

/* Preparing takes what was foretold, and nothing when it fails. */
static void check_prepared(const struct terse_codebook *codebook) {
    const struct cpu_codebook *prepared, *again;
    const size_t before = live_bytes, opened = codebook_bytes(codebook), before_asking = allocations;
    const uint64_t foretold = cpu_codebook_bytes(codebook);
    size_t refused = 0;
    assert_int_equal(allocations, before_asking);
    assert_true(foretold > opened);
    for (;; refused++) {
        struct terse_error error = {0};
        assert_true(refused < FEW);
        allowed = allocations + refused;
        enum terse_status status = cpu_codebook_prepare(codebook, &prepared, &error);
        if (status == TERSE_OK) break;
        check_refused(status, prepared, &error, before);
        assert_int_equal(codebook_bytes(codebook), opened);
    }
    assert_true(refused > 5);
    assert_int_equal(live_bytes - before, foretold - opened);
    assert_int_equal(codebook_bytes(codebook), foretold);
    assert_int_equal(cpu_codebook_bytes(codebook), foretold);
    allowed = allocations; /* from here on nothing is made */
    assert_int_equal(cpu_codebook_prepare(codebook, &again, NULL), TERSE_OK);
    assert_ptr_equal(again, prepared);
    allowed = SIZE_MAX;
}

static void test_new(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    enum { MOST = 4096 };
    static float floats[MOST];
    struct terse_codebook *codebook = NULL;
    size_t refused = 0;
    assert_true(codebook_floats(&info, CODEC_KEYS) <= MOST && codebook_floats(&info, CODEC_VALUES) <= MOST);
    codebook_sample_fill(floats, MOST, 1);
    for (; refused < FEW; refused++) {
        struct terse_error error = {0};
        allowed = allocations + refused;
        enum terse_status status = codebook_new(&info, floats, floats, &codebook, &error);
        if (status == TERSE_OK) break;
        check_refused(status, codebook, &error, 0);
    }
    allowed = SIZE_MAX;
    assert_true(refused == 5 && codebook); /* itself, the halves of two sides, and floats to check each */
    assert_int_equal(codebook_bytes(codebook), live_bytes);
    size_t halves = (codebook_floats(&info, CODEC_KEYS) + codebook_floats(&info, CODEC_VALUES)) * sizeof(uint16_t);
    assert_int_equal(codebook_bytes(codebook), halves + sizeof *codebook); /* no tables */
    check_prepared(codebook);
    terse_codebook_free(codebook);
    assert_int_equal(live_bytes, 0);
}

/* Codecs of every kind, with parameters on a grid and off it. */
static void test_prepare(void **state) {
    (void)state;
    static const struct coding sides[][2] = {
        {{.codec = &codec_pq, .width = 4, .bits = 8}, {.codec = &codec_vq, .width = 4, .bits = 8}},
        {{.codec = &codec_pq, .width = 16, .bits = 12}, {.codec = &codec_pq, .width = 8, .bits = 12}},
        {{.codec = &codec_vq, .width = 2, .bits = 5}, {.codec = &codec_gain_shape, .width = 8, .bits = 8}},
        {{.codec = &codec_pq, .width = 1, .bits = 12}, {.codec = NULL}},
        {{.codec = &codec_commvq, .width = 32, .bits = 60}, {.codec = &codec_additive, .width = 32, .bits = 64}}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        struct codebook_info info = codebook_sample_info();
        struct terse_codebook *codebook;
        info.key = sides[i][0];
        info.value = sides[i][1];
        for (int shared = 0; shared < 2; shared++) {
            info.shared = shared;
            assert_int_equal(codebook_random(&info, 8, shared, &codebook, NULL), TERSE_OK);
            check_prepared(codebook);
            terse_codebook_free(codebook);
            assert_int_equal(live_bytes, 0);
        }
        if (sides[i][0].codec == &codec_commvq) continue; /* numbers of no grid are not a pairing */
        assert_int_equal(codebook_sample_new(&info, &codebook, NULL), TERSE_OK);
        check_prepared(codebook);
        terse_codebook_free(codebook);
        assert_int_equal(live_bytes, 0);
    }
}

static void test_load_and_build(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *codebook = NULL, *loaded = NULL;
    uint8_t *file = NULL;
    size_t size, refused = 0;
    info.value = (struct coding){.codec = &codec_gain_shape, .width = 16, .bits = 4}; /* which has a frame */
    assert_int_equal(codebook_sample_new(&info, &codebook, NULL), TERSE_OK);
    size_t before = live_bytes;
    for (; refused < FEW && !file; refused++) {
        allowed = allocations + refused;
        file = codebook_sample_build(codebook, &size);
        if (!file) assert_int_equal(live_bytes, before);
    }
    assert_true(refused > 5 && file);
    before = live_bytes;
    uint8_t *moved = malloc(size + 1); /* from there the loader makes a copy too */
    memcpy(moved + 1, file, size);
    for (refused = 0; refused < FEW; refused++) {
        struct terse_error error = {0};
        allowed = allocations + refused;
        enum terse_status status = terse_codebook_load_memory(moved + 1, size, "moved", &loaded, &error);
        if (status == TERSE_OK) break;
        check_refused(status, loaded, &error, before);
    }
    allowed = SIZE_MAX;
    assert_true(refused > 10 && loaded);
    assert_int_equal(codebook_bytes(loaded), live_bytes - before);
    free(moved);
    memory_free(file);
    terse_codebook_free(codebook);
    terse_codebook_free(loaded);
    assert_int_equal(live_bytes, 0);
}

static void test_save(void **state) {
    (void)state;
    char folder[] = P_tmpdir "/terse-test-codebook-XXXXXX", path[64];
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *codebook = NULL, *loaded = NULL;
    size_t refused = 0;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.codebook", folder);
    assert_int_equal(codebook_sample_new(&info, &codebook, NULL), TERSE_OK);
    size_t before = live_bytes;
    for (; refused < FEW; refused++) {
        struct terse_error error = {0};
        allowed = allocations + refused;
        enum terse_status status = terse_codebook_save(codebook, path, &error);
        if (status == TERSE_OK) break;
        check_refused(status, NULL, &error, before);
        assert_int_not_equal(access(path, F_OK), 0);
    }
    assert_true(refused > 5);
    for (refused = 0; refused < FEW; refused++) {
        struct terse_error error = {0};
        allowed = allocations + refused;
        enum terse_status status = terse_codebook_load(path, &loaded, &error);
        if (status == TERSE_OK) break;
        check_refused(status, loaded, &error, before);
    }
    allowed = SIZE_MAX;
    assert_true(refused > 10 && loaded);
    terse_codebook_free(codebook);
    terse_codebook_free(loaded);
    assert_int_equal(live_bytes, 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else is in it */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_new), cmocka_unit_test(test_load_and_build),
                                       cmocka_unit_test(test_save), cmocka_unit_test(test_prepare)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
