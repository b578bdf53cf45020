/* Memory of the CPU's caches that are forked and cut: pages lie in memory once, a budget counts what is there, and every refused allocation is survived.
 * This program brings its own base/memory, which counts and refuses. */
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/step.h"
#include "support/cache_steps.h"
#include "support/counting_memory.h"
#include "support/oracle_copies.h"
#include "support/oracle_runs.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CAPACITY 700

static struct oracle_setup setup_of(const char *method, uint32_t tail, uint64_t seed) {
    return (struct oracle_setup){
        .method = method, .tail = tail, .layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 32, .seed = seed};
}

static const char *const methods[] = {"f16", "q8_0", "q4_0", "kivi-2", "cq-1", "million-4", "antkv-4", "terse-2", "streaming-1000"};
#define METHODS (sizeof methods / sizeof methods[0])

/* ---- Anchors */

/* Some anchors were cut, so that their memory holds more than there are. Those that are left go along into a fork, and into memory that grows. */
static void anchors_that_are_left_are_read(void **state) {
    (void)state;
    struct oracle_setup setup = setup_of("q4_0", 0, 4);
    setup.anchor_count = 5;
    struct oracle *a = oracle_new(&setup, CAPACITY);
    oracle_step(a, P, 260, 0);
    oracle_step(a, P, 300, 0);
    oracle_cut(a, 260);
    assert_int_equal(a->cache->base.n_anchors, 5);
    struct oracle *b = oracle_fork(a, 173);
    oracle_step(b, D, 1, 0);
    oracle_step(b, P, 200, 0);
    oracle_free_copy(b);
    oracle_step(a, P, 200, 0);
    oracle_free(a);
    assert_int_equal(live_bytes, 0);
}

static void what_lies_among_anchors_cannot_be_cut(void **state) {
    (void)state;
    struct oracle_setup setup = setup_of("q4_0", 0, 2);
    struct terse_error error;
    setup.anchor_count = 5;
    struct oracle *o = oracle_new(&setup, CAPACITY);
    oracle_step(o, P, 300, 0);
    for (size_t i = 0; i < 80; i++) oracle_skip(o, D, 1);
    assert_int_equal(cache_truncate(o->cache, 20, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "q4_0 has chosen its exact tokens"));
    assert_null(strchr(error.message, '\n'));
    assert_int_equal(cache_length(o->cache), 380);
    oracle_cut(o, 300);
    oracle_step(o, D, 1, 0);
    oracle_step(o, P, 100, 0);
    oracle_cut(o, 4);
    oracle_step(o, P, 90, 0);
    oracle_free(o);
    assert_int_equal(live_bytes, 0);
}

/* ---- Pages */

/* Page sets held by somebody, each counted once, and those in memory. */
static void count_pool(struct cache *const *caches, size_t n, size_t *held, size_t *sets) {
    *held = *sets = 0;
    for (const struct page_chunk *chunk = caches[0]->base.pages.pool->chunks; chunk; chunk = chunk->next) {
        size_t chunk_held = 0;
        for (uint32_t i = 0; i < chunk->sets; i++) {
            uint32_t holders = 0;
            for (size_t c = 0; c < n; c++)
                for (size_t s = 0; s < caches[c]->base.pages.n; s++)
                    holders += caches[c]->base.pages.sets[s].owner == chunk && caches[c]->base.pages.sets[s].index == i;
            assert_int_equal(holders, chunk->holders[i]);
            chunk_held += holders > 0;
        }
        assert_int_equal(chunk_held, chunk->held);
        *held += chunk_held;
        *sets += chunk->sets;
    }
}

static void pages_lie_in_memory_once(void **state) {
    (void)state;
    struct oracle_setup setup = setup_of("q8_0", 0, 1);
    struct oracle *o = oracle_new(&setup, CAPACITY);
    struct cache *caches[2] = {o->cache, NULL};
    struct terse_cache_report one, two;
    size_t held, sets;
    oracle_skip(o, P, 500); /* 7 page sets */
    cache_report(caches[0], &one);
    assert_int_equal(one.shared, 0);
    size_t bytes = live_bytes, set = caches[0]->base.page_set_bytes;
    assert_int_equal(cache_fork(caches[0], &caches[1], NULL), TERSE_OK);
    assert_true(live_bytes - bytes < one.resident - 7 * set + 200 * 64 * sizeof(float)); /* no page more, angles of 64 positions */
    cache_report(caches[0], &one);
    cache_report(caches[1], &two);
    assert_int_equal(one.shared, 7 * set);
    assert_int_equal(two.shared, 7 * set);
    assert_int_equal(one.codes, two.codes);
    count_pool(caches, 2, &held, &sets);
    assert_int_equal(held, 7);
    assert_int_equal(sets, 7);
    /* Pages that one of them frees belong to the other alone; pages that no cache holds are used again before anything is allocated. */
    assert_int_equal(cache_truncate(caches[0], 100, NULL), TERSE_OK);
    cache_report(caches[0], &one);
    assert_int_equal(one.codes, 2 * set);
    assert_int_equal(one.shared, 2 * set);
    assert_int_equal(cache_truncate(caches[1], 4 + 3 * 64, NULL), TERSE_OK);
    count_pool(caches, 2, &held, &sets);
    assert_int_equal(held, 7); /* free, but held: the memory of a cache that is cut stays its own */
    cache_destroy(caches[1]);
    caches[1] = NULL;
    count_pool(caches, 1, &held, &sets);
    assert_int_equal(held, 2);
    assert_int_equal(sets, 7);
    o->length = 100;
    if (o->window > 100) o->window = 100;
    oracle_step(o, P, 330, 0);
    count_pool(caches, 1, &held, &sets);
    assert_int_equal(held, 7);
    assert_int_equal(sets, 7);
    oracle_free(o);
    assert_int_equal(live_bytes, 0);
}

/* ---- Refused memory */

static void refused_memory_leaves_both_as_they_were(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct oracle_setup setup = setup_of(methods[m], TERSE_TAIL_DEFAULT, 5);
        setup.anchor_percent = 0;
        struct oracle *o = oracle_new(&setup, CAPACITY);
        struct cache *copy;
        struct terse_error error;
        enum terse_status status;
        size_t refused = 0;
        oracle_skip(o, P, 300);
        oracle_skip(o, D, 1);
        size_t before = live_bytes;
        do {
            allowed = allocations + refused++;
            status = cache_fork(o->cache, &copy, &error);
            if (!status) break;
            assert_int_equal(status, TERSE_E_MEMORY);
            assert_null(copy);
            assert_int_equal(live_bytes, before);
        } while (true);
        assert_true(refused > 4);
        allowed = SIZE_MAX;
        cache_destroy(copy);
        oracle_step(o, D, 1, 0);
        oracle_free(o);
        assert_int_equal(live_bytes, 0);
    }
}

/* ---- The budget */

/* Returns the bytes that a cache allocates for anything but keys and values. */
static size_t workspace_bytes(const struct cache *cache) {
    size_t angles = 2 * cache->rotary.pairs * sizeof(float);
    size_t bytes = (cache->scratch.floats + cache->observed_floats + cache->fit_floats) * sizeof(float) + cache->selection.bytes +
                   cache->selection.capacity * sizeof(uint32_t) + read_lists_bytes(&cache->base.reads);
    if (cache->gathered)
        bytes += (size_t)cache->base.threads * (cache->largest_page[CODEC_KEYS] + cache->largest_page[CODEC_VALUES]);
    return bytes + 5 * PAGE_TOKENS / 2 * angles + cache->rotary.capacity * (angles + sizeof(int64_t)) +
           position_scores_bytes(&cache->positions);
}

/* Runs a step without comparing its output. */
static void run_step(struct oracle *o, struct cache *cache, enum cache_step_kind kind, size_t n) {
    float *rows = malloc(n * cache_shape_query_width(&o->shape) * sizeof *rows);
    for (size_t i = 0; i < n * cache_shape_query_width(&o->shape); i++) rows[i] = oracle_random(o);
    step_cache(o->kv, cache, &o->shape, kind, n, &(struct step_rows){.k = rows, .v = rows, .q = rows});
    free(rows);
}

/* Steps, cuts, forks and ends of many caches in any order: what the budget counts is what lies in memory, never more than it has, and what
 * does not fit leaves a cache as it was. */
static void nothing_grows_past_the_budget(void **state) {
    (void)state;
    enum { CACHES = 5 };
    uint64_t random = 1;
    for (size_t m = 0; m < METHODS; m++) {
        struct oracle_setup setup = setup_of(methods[m], m % 2 ? 0 : 64, m);
        struct oracle *o = oracle_new(&setup, 1);
        size_t outside = live_bytes, refused = 0, done = 0;
        struct terse_cache_report report;
        cache_predict(&cpu_storage, &o->shape, &o->method, 400, &report);
        struct kv_budget budget = {.most = 2 * report.resident};
        struct cache *caches[CACHES] = {NULL};
        for (int i = 0; i < 400; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t c = (size_t)(random >> 40) % CACHES, what = (size_t)(random >> 50) % 8, n = 1 + (size_t)(random >> 33) % 120;
            uint64_t length = caches[c] ? cache_length(caches[c]) : 0, used = budget.used;
            struct terse_error error;
            enum terse_status status = TERSE_OK;
            if (!caches[c]) {
                struct cache *from = caches[(c + 1) % CACHES], *made = NULL;
                if (from && what < 5) {
                    status = cache_fork(from, &made, &error);
                } else if (!cache_create(&o->shape, &o->method, 1, &made, &error) &&
                           (status = cache_limit(made, &budget, &error))) {
                    cache_destroy(made);
                    made = NULL;
                }
                assert_true((status == TERSE_OK) == (made != NULL));
                if (status) assert_int_equal(budget.used, used);
                caches[c] = made;
            } else if (what == 0) {
                cache_destroy(caches[c]);
                caches[c] = NULL;
            } else if (what == 1) {
                (void)cache_truncate(caches[c], length / 2, NULL);
            } else if (!(status = cache_begin(caches[c], what < 4 ? P : D, n, &error))) {
                run_step(o, caches[c], what < 4 ? P : D, n);
            } else {
                assert_int_equal(cache_length(caches[c]), length);
            }
            if (status) assert_true(status == TERSE_E_MEMORY && strstr(error.message, "budget") && !strchr(error.message, '\n'));
            refused += status != TERSE_OK;
            done += status == TERSE_OK;
            size_t workspaces = 0;
            for (size_t j = 0; j < CACHES; j++)
                if (caches[j]) workspaces += workspace_bytes(caches[j]);
            assert_int_equal(budget.used, live_bytes - outside - workspaces);
            assert_true(budget.used <= budget.most);
        }
        assert_true(refused > 5 && done > 100);
        for (size_t c = 0; c < CACHES; c++) cache_destroy(caches[c]);
        assert_int_equal(budget.used, 0);
        oracle_free(o);
        assert_int_equal(live_bytes, 0);
    }
}

int main(void) {
    omp_set_num_threads(1); /* small work: waiting for each other would be most of it */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anchors_that_are_left_are_read), cmocka_unit_test(what_lies_among_anchors_cannot_be_cut),
        cmocka_unit_test(pages_lie_in_memory_once), cmocka_unit_test(refused_memory_leaves_both_as_they_were),
        cmocka_unit_test(nothing_grows_past_the_budget)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
