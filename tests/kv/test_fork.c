/* Caches cut short and forked: attention goes on to equal dense attention over what they hold, pages lie in memory once, and every
 * refused allocation is survived. This program brings its own base/memory, which counts and refuses. */
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/step.h"
#include "support/cache_oracle.h"
#include "support/counting_memory.h"

#include <inttypes.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define D CACHE_STEP_DECODE
#define P CACHE_STEP_PREFILL
#define Q CACHE_STEP_PAPER
#define CAPACITY 700

static struct oracle_setup setup_of(const char *method, uint32_t tail, uint64_t seed) {
    return (struct oracle_setup){
        .method = method, .tail = tail, .layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 32, .seed = seed};
}

static void cut(struct oracle *o, size_t n) {
    struct terse_error error;
    if (cache_truncate(o->cache, n, &error)) fail_msg("%s", error.message);
    assert_int_equal(cache_length(o->cache), n);
    o->length = n;
    if (o->window > n) o->window = n;
}

static const char *const methods[] = {"f16", "q8_0", "q4_0", "kivi-2", "cq-1", "million-4", "antkv-4", "terse-2", "streaming-1000"};
#define METHODS (sizeof methods / sizeof methods[0])

/* Cuts inside the window, inside of pages, at their ends, inside the exact tokens; then pages begin elsewhere than in an uncut sequence. */
static void what_is_left_equals_dense_attention(void **state) {
    (void)state;
    static const size_t cuts[] = {299, 196, 132, 100, 5, 3};
    for (size_t m = 0; m < METHODS; m++) {
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            struct oracle_setup setup = setup_of(methods[m], c % 2 ? 0 : 64, m * 10 + c);
            if (c % 3 == 2 && m != 8) setup.read_percent = 100; /* through packed pages */
            struct oracle *o = oracle_new(&setup, CAPACITY);
            oracle_skip(o, P, 290);
            for (size_t i = 0; i < 10; i++) oracle_skip(o, D, 1);
            cut(o, cuts[c]);
            oracle_step(o, D, 1, 0);
            oracle_step(o, D, 90, 0);
            cut(o, cuts[c] + 50);
            oracle_step(o, P, 150, 0);
            for (size_t i = 0; i < 5; i++) oracle_step(o, D, 1, 0);
            oracle_free(o);
            assert_int_equal(live_bytes, 0);
        }
    }
}

static void a_cut_into_a_sealed_paper_page_holds(void **state) {
    (void)state;
    struct oracle_setup setup = setup_of("q4_0", 0, 3);
    struct oracle *o = oracle_new(&setup, CAPACITY);
    oracle_skip(o, Q, 100);
    oracle_skip(o, Q, 100);
    cut(o, 120);
    oracle_step(o, D, 3, 0);
    cut(o, 80);
    oracle_step(o, P, 200, 0);
    oracle_free(o);
}

/* A second oracle of the same sequence; its cache is a fork. */
static struct oracle *fork_oracle(const struct oracle *from, uint64_t seed) {
    struct oracle *o = malloc(sizeof *o);
    struct terse_error error;
    *o = *from;
    if (cache_fork(from->cache, &o->cache, &error)) fail_msg("%s", error.message);
    assert_int_equal(cache_length(o->cache), from->length);
    size_t bytes = o->setup.layers * o->capacity * o->setup.kv_heads * o->setup.head_dim * sizeof *o->k;
    o->k = memcpy(malloc(bytes), from->k, bytes);
    o->v = memcpy(malloc(bytes), from->v, bytes);
    o->random = seed;
    return o;
}

static void free_fork(struct oracle *o) {
    cache_destroy(o->cache);
    free(o->k);
    free(o->v);
    free(o);
}

static void forks_go_their_own_ways(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct oracle_setup setup = setup_of(methods[m], m % 2 ? 0 : 64, m);
        struct oracle *a = oracle_new(&setup, CAPACITY);
        oracle_skip(a, P, 230);
        for (size_t i = 0; i < 40; i++) oracle_skip(a, D, 1);
        struct oracle *b = fork_oracle(a, 171), *c = fork_oracle(b, 172);
        for (size_t i = 0; i < 70; i++) {
            oracle_step(a, D, 1, 0);
            oracle_step(b, D, 1, 0);
        }
        cut(b, 150); /* pages that the others hold go on to be theirs */
        oracle_step(b, P, 200, 0);
        oracle_step(c, D, 1, 0);
        cut(a, 0);
        oracle_step(a, P, 300, 0);
        oracle_step(a, D, 1, 0);
        oracle_step(c, P, 100, 0);
        cut(c, 200);
        oracle_step(b, D, 1, 0);
        free_fork(b);
        oracle_step(c, P, 130, 0);
        oracle_step(c, D, 1, 0);
        free_fork(c);
        oracle_step(a, D, 30, 0);
        oracle_free(a);
        assert_int_equal(live_bytes, 0);
    }
}

/* Some anchors were cut, so that their memory holds more than there are. Those that are left go along into a fork, and into memory that grows. */
static void anchors_that_are_left_are_read(void **state) {
    (void)state;
    struct oracle_setup setup = setup_of("q4_0", 0, 4);
    setup.anchor_count = 5;
    struct oracle *a = oracle_new(&setup, CAPACITY);
    oracle_step(a, P, 260, 0);
    oracle_step(a, P, 300, 0);
    cut(a, 260);
    assert_int_equal(a->cache->base.n_anchors, 5);
    struct oracle *b = fork_oracle(a, 173);
    oracle_step(b, D, 1, 0);
    oracle_step(b, P, 200, 0);
    free_fork(b);
    oracle_step(a, P, 200, 0);
    oracle_free(a);
    assert_int_equal(live_bytes, 0);
}

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

/* ---- Refusals */

static void expect_refused(struct oracle *o, uint64_t n, enum terse_status wanted, const char *word) {
    struct terse_error error;
    uint64_t length = cache_length(o->cache);
    assert_int_equal(cache_truncate(o->cache, n, &error), wanted);
    assert_non_null(strstr(error.message, word));
    assert_null(strchr(error.message, '\n'));
    assert_int_equal(cache_length(o->cache), length);
}

/* Runs a step without comparing its output. */
static void run_step(struct oracle *o, enum cache_step_kind kind, size_t n) {
    enum { WIDTH = 4 * 32 };
    float *rows[3];
    for (size_t r = 0; r < 3; r++) {
        rows[r] = malloc(n * WIDTH * sizeof(float));
        for (size_t i = 0; i < n * WIDTH; i++) rows[r][i] = oracle_random(o);
    }
    assert_int_equal(cache_begin(o->cache, kind, n, NULL), TERSE_OK);
    for (uint32_t layer = 0; layer < 2; layer++) {
        assert_int_equal(cache_append(o->cache, layer, rows[0], rows[1], NULL), TERSE_OK);
        assert_int_equal(cache_attend(o->cache, rows[2], 0, n, rows[2], NULL), TERSE_OK);
        assert_int_equal(cache_end_layer(o->cache, NULL), TERSE_OK);
    }
    assert_int_equal(cache_commit(o->cache, NULL), TERSE_OK);
    for (size_t r = 0; r < 3; r++) free(rows[r]);
}

static void what_cannot_be_cut_is_refused(void **state) {
    (void)state;
    struct oracle_setup setup = setup_of("streaming-100", 0, 1);
    struct oracle *o = oracle_new(&setup, CAPACITY);
    oracle_skip(o, P, 100);
    expect_refused(o, 101, TERSE_E_ARGUMENT, "101");
    cut(o, 99); /* nothing was evicted */
    oracle_step(o, D, 1, 0);
    oracle_step(o, D, 1, 0);
    expect_refused(o, 100, TERSE_E_UNSUPPORTED, "streaming-100 has evicted");
    oracle_step(o, D, 1, 0);
    cut(o, 0);
    oracle_step(o, P, 120, 0);
    oracle_free(o);

    setup = setup_of("q4_0", 0, 2);
    setup.anchor_count = 5;
    o = oracle_new(&setup, CAPACITY);
    oracle_step(o, P, 300, 0);
    for (size_t i = 0; i < 80; i++) oracle_skip(o, D, 1);
    expect_refused(o, 20, TERSE_E_UNSUPPORTED, "q4_0 has chosen its exact tokens");
    cut(o, 300);
    oracle_step(o, D, 1, 0);
    oracle_step(o, P, 100, 0);
    cut(o, 4);
    oracle_step(o, P, 90, 0);
    oracle_free(o);

    setup = setup_of("snapkv-200", 0, 3);
    o = oracle_new(&setup, 1);
    run_step(o, P, 300);
    run_step(o, D, 200);
    expect_refused(o, 150, TERSE_E_UNSUPPORTED, "snapkv-200 has evicted");
    assert_int_equal(cache_truncate(o->cache, 310, NULL), TERSE_OK); /* a page that was sealed since */
    run_step(o, D, 100);
    assert_int_equal(cache_truncate(o->cache, 300, NULL), TERSE_OK);
    run_step(o, P, 300);
    expect_refused(o, 310, TERSE_E_UNSUPPORTED, "snapkv-200 has evicted");
    assert_int_equal(cache_truncate(o->cache, 0, NULL), TERSE_OK);
    run_step(o, P, 10);
    oracle_free(o);
    assert_int_equal(live_bytes, 0);
}

/* ---- Where prompts end */

static void check_generated(const struct cache *cache, uint64_t prompt_end) {
    const struct block_table *pages = &cache->base.pages;
    for (size_t i = 0; i < pages->n_sealed; i++)
        if (pages->sets[i].generated != (pages->sets[i].first >= prompt_end))
            fail_msg("the page of tokens from %" PRIu64 " on, the prompt's end being %" PRIu64, pages->sets[i].first, prompt_end);
}

/* A cache of what another saved. */
static struct cache *saved_and_loaded(const struct oracle *o) {
    char path[] = "/tmp/terse-test-fork-XXXXXX";
    struct state_writer *writer;
    struct state_file *file;
    struct cache *cache;
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    assert_int_equal(state_writer_new(path, &writer, NULL), TERSE_OK);
    for (int section = STATE_METHOD; section < STATE_CACHE; section++) state_writer_begin(writer, (enum state_section)section);
    cache_save(o->cache, writer);
    assert_int_equal(state_writer_finish(writer, &(struct state_identity){0}, NULL), TERSE_OK);
    assert_int_equal(cache_create(&o->shape, &o->method, 1, &cache, NULL), TERSE_OK);
    assert_int_equal(state_file_open(path, &file, NULL), TERSE_OK);
    assert_int_equal(cache_load(cache, file, NULL), TERSE_OK);
    state_file_close(file);
    unlink(path);
    return cache;
}

/* Decodes with a cache in place of the oracle's. */
static void decode_with(struct oracle *o, struct cache *cache, size_t n) {
    struct cache *kept = o->cache;
    o->cache = cache;
    for (size_t i = 0; i < n; i++) run_step(o, D, 1);
    o->cache = kept;
}

/* A step that chooses tokens chooses from prompts' pages and reads generated ones whole, and prompts are found again by theirs: whose a page is
 * stays known where the prompt's last tokens are sealed after the sequence was cut, forked or saved. */
static void pages_are_a_prompts_or_generated(void **state) {
    (void)state;
    struct oracle_setup setup = setup_of("q8_0", 128, 1);
    struct oracle *o = oracle_new(&setup, 1);
    struct cache *others[2];
    run_step(o, P, 300);
    assert_int_equal(cache_fork(o->cache, &others[0], NULL), TERSE_OK);
    others[1] = saved_and_loaded(o);
    for (int i = 0; i < 2; i++) {
        decode_with(o, others[i], 300);
        assert_int_equal(others[i]->base.pages.sets[6].first, 388);
        check_generated(others[i], 300);
        cache_destroy(others[i]);
    }
    decode_with(o, o->cache, 300);
    check_generated(o->cache, 300);
    others[0] = saved_and_loaded(o);
    check_generated(others[0], 300);
    cache_destroy(others[0]);
    assert_int_equal(cache_truncate(o->cache, 100, NULL), TERSE_OK);
    decode_with(o, o->cache, 300);
    check_generated(o->cache, 100);
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
                struct cache *kept = o->cache;
                o->cache = caches[c];
                run_step(o, what < 4 ? P : D, n);
                o->cache = kept;
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_left_equals_dense_attention),
                                       cmocka_unit_test(a_cut_into_a_sealed_paper_page_holds),
                                       cmocka_unit_test(forks_go_their_own_ways),
                                       cmocka_unit_test(anchors_that_are_left_are_read),
                                       cmocka_unit_test(pages_lie_in_memory_once),
                                       cmocka_unit_test(what_cannot_be_cut_is_refused),
                                       cmocka_unit_test(pages_are_a_prompts_or_generated),
                                       cmocka_unit_test(refused_memory_leaves_both_as_they_were),
                                       cmocka_unit_test(nothing_grows_past_the_budget)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
