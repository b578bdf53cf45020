/* Caches cut short, forked and saved: attention goes on to equal dense attention over what they hold, and what cannot be cut is refused. This program brings
 * its own base/memory, which counts. */
#include "kv/cache.h"
#include "support/backend_under_test.h"
#include "support/counting_memory.h"
#include "support/oracle_copies.h"
#include "support/oracle_runs.h"

#include <inttypes.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CAPACITY 700

static const struct oracle_setup small = {.method = "f16", .layers = 2, .query_heads = 4, .kv_heads = 2};

static const char *const named[][3] = {{"f16", NULL, NULL},       {"q8_0", NULL, NULL},           {"q4_0", NULL, NULL},
                                       {"kivi-4", NULL, NULL},    {"kivi-2", NULL, NULL},         {"f16", "q8_0", "q4_0"},
                                       {"q4_0", "f16", "q8_0"},   {"terse-4", NULL, NULL},        {"terse-2", NULL, NULL},
                                       {"million-4", NULL, NULL}, {"cq-1", NULL, NULL},           {"q8_0", "kivi-4", "kivi-2"},
                                       {"antkv-4", NULL, NULL},   {"streaming-1000", NULL, NULL}, {"commvq-1", NULL, NULL}};
#define NAMED (sizeof named / sizeof named[0])
static const char *methods[NAMED + CODEC_COUNT][3];
static size_t n_methods;
static size_t outside; /* bytes that a backend keeps when no cache is left */

static struct oracle_setup setup_of(size_t method, uint32_t tail, uint64_t seed) {
    return oracle_setup_of(&small, methods[method], tail, seed);
}

static struct oracle_setup setup_named(const char *method, uint64_t seed) {
    struct oracle_setup setup = small;
    setup.method = method;
    setup.seed = seed;
    return setup;
}

static void check_all_is_freed(void) {
    assert_int_equal(live_bytes, outside);
    assert_true(!outside || backend_under_test()->kv != backend_cpu.kv);
}

/* ---- Cuts */

/* Cuts inside the window, inside of pages, at their ends, inside the exact tokens; then pages begin elsewhere than in an uncut sequence. */
static void what_is_left_equals_dense_attention(void **state) {
    (void)state;
    static const size_t cuts[] = {299, 196, 132, 100, 5, 3};
    for (size_t m = 0; m < n_methods; m++) {
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            const struct oracle_setup plain = setup_of(m, c % 2 ? 0 : 64, m * 10 + c);
            struct oracle_setup setup = plain;
            if (c % 3 == 2 && strcmp(setup.method, "streaming-1000")) setup.read_percent = 100; /* through packed pages */
            if (!oracle_served(&setup)) setup = plain;
            struct oracle *o = oracle_new(&setup, CAPACITY);
            oracle_skip(o, P, 290);
            for (size_t i = 0; i < 10; i++) oracle_skip(o, D, 1);
            oracle_cut(o, cuts[c]);
            oracle_step(o, D, 1, 0);
            oracle_step(o, D, 90, 0);
            oracle_cut(o, cuts[c] + 50);
            oracle_step(o, P, 150, 0);
            for (size_t i = 0; i < 5; i++) oracle_step(o, D, 1, 0);
            oracle_free(o);
            check_all_is_freed();
        }
    }
}

static void a_cut_into_a_sealed_paper_page_holds(void **state) {
    (void)state;
    const struct oracle_setup setup = setup_named("q4_0", 3);
    struct oracle *o = oracle_new(&setup, CAPACITY);
    oracle_skip(o, Q, 100);
    oracle_skip(o, Q, 100);
    oracle_cut(o, 120);
    oracle_step(o, D, 3, 0);
    oracle_cut(o, 80);
    oracle_step(o, P, 200, 0);
    oracle_free(o);
}

static void expect_refused(struct oracle *o, uint64_t n, enum terse_status wanted, const char *word) {
    struct terse_error error;
    uint64_t length = cache_length(o->cache);
    assert_int_equal(parts_truncate(o->cache, n, &error), wanted);
    assert_non_null(strstr(error.message, word));
    assert_null(strchr(error.message, '\n'));
    assert_int_equal(cache_length(o->cache), length);
}

static void what_cannot_be_cut_is_refused(void **state) {
    (void)state;
    struct oracle_setup setup = setup_named("streaming-100", 1);
    struct oracle *o = oracle_new(&setup, CAPACITY);
    oracle_skip(o, P, 100);
    expect_refused(o, 101, TERSE_E_ARGUMENT, "101");
    oracle_cut(o, 99); /* nothing was evicted */
    oracle_step(o, D, 1, 0);
    oracle_step(o, D, 1, 0);
    expect_refused(o, 100, TERSE_E_UNSUPPORTED, "streaming-100 has evicted");
    oracle_step(o, D, 1, 0);
    oracle_cut(o, 0);
    oracle_step(o, P, 120, 0);
    oracle_free(o);

    setup = setup_named("snapkv-200", 3);
    o = oracle_new(&setup, CAPACITY);
    oracle_step(o, P, 300, 0);
    oracle_step(o, D, 200, 0);
    expect_refused(o, 150, TERSE_E_UNSUPPORTED, "snapkv-200 has evicted");
    oracle_cut(o, 310); /* a page that was sealed since */
    oracle_step(o, D, 100, 0);
    oracle_cut(o, 300);
    oracle_step(o, P, 300, 0);
    expect_refused(o, 310, TERSE_E_UNSUPPORTED, "snapkv-200 has evicted");
    oracle_cut(o, 0);
    oracle_step(o, P, 10, 0);
    oracle_free(o);
    check_all_is_freed();
}

/* ---- Forks */

static void forks_go_their_own_ways(void **state) {
    (void)state;
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(m, m % 2 ? 0 : 64, m);
        struct oracle *a = oracle_new(&setup, CAPACITY);
        oracle_skip(a, P, 230);
        for (size_t i = 0; i < 40; i++) oracle_skip(a, D, 1);
        struct oracle *b = oracle_fork(a, 171), *c = oracle_fork(b, 172);
        for (size_t i = 0; i < 70; i++) {
            oracle_step(a, D, 1, 0);
            oracle_step(b, D, 1, 0);
        }
        oracle_cut(b, 150); /* pages that the others hold go on to be theirs */
        oracle_step(b, P, 200, 0);
        oracle_step(c, D, 1, 0);
        oracle_step(a, D, 1, 0);
        oracle_cut(a, 0);
        oracle_step(a, P, 300, 0);
        oracle_step(a, D, 1, 0);
        oracle_step(c, P, 100, 0);
        oracle_cut(c, 200);
        oracle_step(b, D, 1, 0);
        oracle_free_copy(b);
        oracle_step(c, P, 130, 0);
        oracle_step(c, D, 1, 0);
        oracle_free_copy(c);
        oracle_step(a, D, 30, 0);
        oracle_free(a);
        check_all_is_freed();
    }
}

/* ---- Saved states */

static void saving_leaves_all_as_it_was(void **state) {
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(m, 64, 600 + m);
        setup.magnitude = 1.25f;
        struct oracle *o = oracle_new(&setup, 400);
        char *saved[2];
        size_t n[2];
        oracle_skip(o, P, 230);
        for (size_t i = 0; i < 40; i++) oracle_skip(o, D, 1);
        for (int i = 0; i < 2; i++) {
            oracle_save(o, *state);
            saved[i] = state_contents(*state, &n[i]);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(saved[0], saved[1], n[0]);
        for (int i = 0; i < 2; i++) free(saved[i]);
        struct oracle *loaded = oracle_load(o, o->kv, *state, 181);
        oracle_step(loaded, D, 1, 0);
        oracle_free_copy(loaded);
        oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

/* Checks why a state is refused in which `value` stands at `at` of a section. */
static void check_refused(const struct oracle *o, const char *path, enum state_section section, size_t at, const void *value,
                          size_t bytes, const char *why) {
    struct terse_error error;
    struct state_file *file;
    struct cache *cache;
    size_t size;
    uint64_t offset;
    char *data = state_contents(path, &size);
    uint8_t *changed = NULL;
    assert_int_equal(posix_memalign((void **)&changed, STATE_PAGES_ALIGN, size), 0);
    memcpy(changed, data, size);
    memcpy(&offset, data + 64 + 32 * section + 8, sizeof offset); /* of the file's table */
    assert_memory_not_equal(changed + offset + at, value, bytes);
    memcpy(changed + offset + at, value, bytes);
    assert_true(state_file_reseal(changed, size));
    assert_int_equal(state_file_open_memory(changed, size, "state", &file, NULL), TERSE_OK);
    assert_int_equal(parts_create(o->kv->storage, &o->shape, &o->method, 1, &cache, NULL), TERSE_OK);
    assert_int_equal(parts_load(cache, file, &error), TERSE_E_FORMAT);
    if (!strstr(error.message, why)) fail_msg("%s instead of %s", error.message, why);
    parts_destroy(cache);
    state_file_close(file);
    free(changed);
    free(data);
}

/* Every backend refuses a state that no steps lead to, before it uses its numbers as addresses or counts. */
static void pieces_that_cannot_be_are_refused(void **state) {
    const struct oracle_setup setup = {
        .method = "q8_0", .evict = "snapkv-200", .tail = 64, .layers = 2, .query_heads = 4, .kv_heads = 2, .seed = 77};
    if (!oracle_served(&setup)) return;
    struct oracle *o = oracle_new(&setup, 400);
    oracle_step(o, P, 390, 0);
    oracle_save(o, *state);
    const struct cache_base *base = cache_base_of(o->cache);
    const size_t n = base->n_anchors, side = n * (sizeof(uint32_t) + o->shape.head_dim * sizeof(uint16_t));
    const uint64_t wide = base->extent.exact;
    uint32_t *tokens = malloc(n * sizeof *tokens);
    assert_true(n > 2);
    assert_true(base->storage->anchor_tokens(o->cache, 0, 0, CODEC_KEYS, tokens));
    check_refused(o, *state, STATE_ANCHORS, 4, tokens, 4, "tokens out of order"); /* twice the same */
    assert_true(base->storage->anchor_tokens(o->cache, 1, 1, CODEC_VALUES, tokens));
    const uint32_t window = (uint32_t)base->extent.window_first, other = tokens[n - 1] == window - 1 ? window - 2 : window - 1;
    assert_true(other > tokens[n - 2]);
    check_refused(o, *state, STATE_ANCHORS, (n - 1) * 4, &window, 4, "tokens out of order");           /* not sealed */
    check_refused(o, *state, STATE_ANCHORS, 7 * side + (n - 1) * 4, &other, 4, "tokens out of order"); /* not the keys' */
    check_refused(o, *state, STATE_CACHE, 16, &wide, 8, "it holds more tokens than the method keeps there");
    free(tokens);
    oracle_free(o);
}

/* ---- Where prompts end */

static void check_generated(const struct oracle *o, uint64_t prompt_end) {
    const struct block_table *pages = &cache_base_of(o->cache)->pages;
    for (size_t i = 0; i < pages->n_sealed; i++)
        if (pages->sets[i].generated != (pages->sets[i].first >= prompt_end))
            fail_msg("the page of tokens from %" PRIu64 " on, the prompt's end being %" PRIu64, pages->sets[i].first, prompt_end);
}

static void decode(struct oracle *o, size_t n) {
    for (size_t i = 0; i < n; i++) oracle_skip(o, D, 1);
}

/* A step that chooses tokens chooses from prompts' pages and reads generated ones whole, and prompts are found again by theirs: whose a page is
 * stays known where the prompt's last tokens are sealed after the sequence was cut, forked or saved. */
static void pages_are_a_prompts_or_generated(void **state) {
    struct oracle_setup setup = setup_named("q8_0", 1);
    setup.tail = 128;
    struct oracle *o = oracle_new(&setup, 600);
    oracle_skip(o, P, 300);
    oracle_save(o, *state);
    struct oracle *others[2] = {oracle_fork(o, 2), oracle_load(o, o->kv, *state, 3)};
    for (int i = 0; i < 2; i++) {
        decode(others[i], 300);
        assert_int_equal(cache_base_of(others[i]->cache)->pages.sets[6].first, 388);
        check_generated(others[i], 300);
        oracle_free_copy(others[i]);
    }
    decode(o, 300);
    check_generated(o, 300);
    oracle_save(o, *state);
    others[0] = oracle_load(o, o->kv, *state, 4);
    check_generated(others[0], 300);
    oracle_free_copy(others[0]);
    oracle_cut(o, 100);
    decode(o, 300);
    check_generated(o, 100);
    oracle_free(o);
    check_all_is_freed();
}

/* Runs one cache's whole life, so that what a backend makes once is there. */
static void begin_counting(void) {
    struct oracle *o = oracle_new(&small, 10);
    oracle_step(o, P, 9, 0);
    oracle_step(o, D, 1, 0);
    oracle_free(o);
    outside = live_bytes;
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    omp_set_num_threads(1); /* small work: waiting for each other would be most of it */
    const size_t all = oracle_methods(named, NAMED, NULL, methods);
    for (size_t m = 0; m < all; m++) {
        for (size_t i = 0; i < 3; i++) methods[n_methods][i] = methods[m][i];
        const struct oracle_setup setup = setup_of(n_methods, 0, 0);
        n_methods += oracle_served(&setup);
    }
    begin_counting();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_equals_dense_attention),
        cmocka_unit_test(a_cut_into_a_sealed_paper_page_holds),
        cmocka_unit_test(what_cannot_be_cut_is_refused),
        cmocka_unit_test(forks_go_their_own_ways),
        cmocka_unit_test_setup_teardown(saving_leaves_all_as_it_was, make_state_path, remove_state_path),
        cmocka_unit_test_setup_teardown(pieces_that_cannot_be_are_refused, make_state_path, remove_state_path),
        cmocka_unit_test_setup_teardown(pages_are_a_prompts_or_generated, make_state_path, remove_state_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
