/* Read lists: what they say of a sequence is, token by token, what its policy keeps by definition. Plans and block tables are real, pages and
 * kernels are not needed. */
#include "kv/read_lists.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 3000, HEADS = 3 };

/* A sequence without numbers. */
struct sequence {
    struct method method;
    struct block_table table;
    struct read_lists lists;
    struct extent extent;
    struct plan plan;
    uint32_t window;               /* of layers that slide; 0: they do not */
    struct read_page copied[MOST]; /* as kernels would see the list: only what is said to have changed is copied */
};

static struct sequence *sequence_new(const char *name, uint32_t tail, uint32_t window) {
    struct sequence *s = calloc(1, sizeof *s);
    struct terse_cache_options options = {.method = name, .tail_tokens = tail};
    struct terse_error error;
    if (method_resolve(&options, 32, &s->method, &error)) fail_msg("%s", error.message);
    if (window) s->method = method_of_window(&s->method, window);
    s->window = window;
    assert_int_equal(block_table_new(&s->table, &page_memory_host, &(size_t){64}, 1, NULL), TERSE_OK);
    return s;
}

static void sequence_free(struct sequence *s) {
    read_lists_free(&s->lists);
    block_table_free(&s->table);
    free(s);
}

static void begin(struct sequence *s, enum cache_step_kind kind, size_t n) {
    s->plan = plan_step(&s->method, &s->extent, kind, n);
    assert_int_equal(block_table_reserve(&s->table, s->table.n_sealed + s->plan.seal, NULL), TERSE_OK);
    block_table_assign(&s->table, &s->plan, 0);
    assert_int_equal(read_lists_begin(&s->lists, &s->table, &s->plan, &s->method, 0, NULL), TERSE_OK);
}

/* As a cache does when a step ends. */
static void commit(struct sequence *s) {
    s->table.n_sealed += s->plan.seal;
    s->extent = s->plan.after;
    size_t evicted = block_table_evicted(&s->table, s->extent.first);
    if (!evicted) return;
    block_table_drop(&s->table, 0, evicted);
    read_lists_changed(&s->lists, 0);
}

/* Adds one to read[t] for each way in which the list reads token t. */
static void add_read(const struct sequence *s, const struct read_list *list, uint64_t length, uint8_t *read) {
    for (uint64_t t = list->rows_begin; t < list->rows_end; t++) read[t]++;
    for (uint32_t i = 0; i < list->n_pages; i++) {
        const struct page_set *set = &s->table.sets[list->pages[i].page];
        uint64_t live = list->pages[i].live;
        assert_true(!i || set->first > s->table.sets[list->pages[i - 1].page].first);
        while (live) read[set->first + read_take(&live)]++;
    }
    for (uint64_t t = list->window_first; t < length; t++) read[t]++;
}

/* Stored tokens are read if and only if the policy kept them and the oldest new token sees them, once each. */
static void check_shared(const struct sequence *s) {
    static uint8_t read[MOST];
    const struct read_list *list = read_list_of(&s->lists, 1);
    uint64_t length = s->extent.length;
    assert_ptr_equal(list, &s->lists.shared);
    memset(read, 0, sizeof read);
    add_read(s, list, length, read);
    for (uint64_t t = 0; t < length; t++) {
        bool seen = !s->window || t + s->window > length;
        bool kept = (t < s->extent.exact || t >= s->extent.first) && seen;
        if (read[t] != kept) fail_msg("%s: token %d of %d is read %d times", s->method.name, (int)t, (int)length, read[t]);
    }
    assert_int_equal(list->moved, s->method.policy->positions_by_index ? s->extent.first - s->extent.exact : 0);
    assert_int_equal(list->n_chosen + list->n_kept, 0);
    assert_null(list->exact);
}

/* A copy of which only what is said to have changed is made anew equals the list. */
static void check_copy(struct sequence *s) {
    const struct read_list *list = &s->lists.shared;
    for (size_t i = 0; i < list->n_pages; i++)
        if (i < s->lists.stale_low || i >= s->lists.stale_high) s->copied[i] = list->pages[i];
    read_lists_copied(&s->lists);
    for (size_t i = 0; i < list->n_pages; i++) {
        assert_true(s->copied[i].live == list->pages[i].live);
        assert_int_equal(s->copied[i].page, list->pages[i].page);
    }
}

static void take(struct sequence *s, enum cache_step_kind kind, size_t n, size_t times) {
    for (size_t i = 0; i < times; i++) {
        begin(s, kind, n);
        check_shared(s);
        if (i % 3 != 1) check_copy(s); /* steps of many tokens read no copy: some changes add up */
        commit(s);
    }
}

static void lists_say_what_policies_keep(void **state) {
    (void)state;
    static const struct {
        const char *method;
        uint32_t tail, window;
    } cases[] = {{"f16", 0, 0},      {"q4_0", 128, 0},         {"streaming-100", 0, 0}, {"streaming-300", 70, 0},
                 {"mat-256", 64, 0}, {"streaming-1000", 0, 0}, {"q8_0", 0, 100},        {"f16", 64, 64},
                 {"q4_0", 0, 1},     {"kivi-4", 128, 333}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sequence *s = sequence_new(cases[i].method, cases[i].tail, cases[i].window);
        take(s, CACHE_STEP_DECODE, 1, 7); /* the first exact rows come one by one */
        take(s, CACHE_STEP_PREFILL, 777, 1);
        take(s, CACHE_STEP_DECODE, 1, 300);
        take(s, CACHE_STEP_CHUNK, 130, 3);
        take(s, CACHE_STEP_DECODE, 3, 60);
        sequence_free(s);
    }
}

/* A step that is given up leaves the list of the next one as if it had not begun. */
static void a_step_can_be_given_up(void **state) {
    (void)state;
    struct sequence *s = sequence_new("q8_0", 0, 0);
    take(s, CACHE_STEP_PREFILL, 300, 1);
    begin(s, CACHE_STEP_PREFILL, 500);
    begin(s, CACHE_STEP_DECODE, 100);
    check_shared(s);
    check_copy(s);
    commit(s);
    take(s, CACHE_STEP_DECODE, 1, 70);
    sequence_free(s);
}

/* Pages of fewer tokens: the last of a step that is sealed before it is read, and one that is cut when the sequence is truncated. */
static void pages_may_hold_fewer_tokens(void **state) {
    (void)state;
    struct sequence *s = sequence_new("q4_0", 0, 0);
    begin(s, CACHE_STEP_PAPER, 174);
    assert_int_equal(s->lists.shared.n_pages, 0);
    read_lists_set_sealed(&s->lists, &s->table, &s->plan, &s->method, true);
    const struct read_list *list = &s->lists.shared;
    assert_int_equal(list->rows_end, 4);
    assert_int_equal(list->n_pages, 3);
    assert_true(list->pages[0].live == READ_ALL && list->pages[1].live == READ_ALL);
    assert_true(list->pages[2].live == ((uint64_t)1 << 42) - 1); /* 174 tokens = 4 exact ones + 128 + 42 */
    assert_int_equal(list->window_first, 174);
    commit(s);
    take(s, CACHE_STEP_DECODE, 1, 5);
    s->table.n_sealed = 2; /* as cache_truncate(100) does */
    s->table.sets[1].count = 32;
    s->extent.length = s->extent.window_first = 100;
    read_lists_changed(&s->lists, 1);
    take(s, CACHE_STEP_DECODE, 1, 200);
    assert_true(s->lists.pages[1].live == ((uint64_t)1 << 32) - 1);
    sequence_free(s);
}

/* A fork shares pages; what it evicts of them is its own list's business. */
static void forks_read_by_lists_of_their_own(void **state) {
    (void)state;
    struct sequence *s = sequence_new("streaming-300", 0, 0), *fork = sequence_new("streaming-300", 0, 0);
    take(s, CACHE_STEP_PREFILL, 290, 1);
    assert_int_equal(block_table_share(&fork->table, &s->table, NULL), TERSE_OK);
    fork->extent = s->extent;
    take(fork, CACHE_STEP_DECODE, 1, 100);
    assert_true(fork->extent.first > s->extent.first);
    begin(s, CACHE_STEP_DECODE, 1);
    check_shared(s);
    sequence_free(fork);
    take(s, CACHE_STEP_DECODE, 1, 100);
    sequence_free(s);
}

/* A KV head that chooses tokens reads these and no others of the pages; the others read on as they did. */
static void heads_may_have_lists_of_their_own(void **state) {
    (void)state;
    static uint8_t read[MOST];
    struct sequence *s = sequence_new("q4_0", 0, 0);
    take(s, CACHE_STEP_PREFILL, 1000, 1);
    begin(s, CACHE_STEP_DECODE, 1);
    assert_int_equal(read_lists_reserve_own(&s->lists, HEADS, NULL), TERSE_OK);
    struct read_list *own = read_lists_own(&s->lists, 1);
    struct read_page *pages = own_pages_of(&s->lists, 1);
    pages[0] = (struct read_page){.live = 5, .page = 2};
    pages[1] = (struct read_page){.live = read_slots(60, 64), .page = 7};
    own->pages = pages;
    own->n_pages = own->n_chosen = 2;
    for (uint32_t head = 0; head < HEADS; head++) {
        const struct read_list *list = read_list_of(&s->lists, head);
        memset(read, 0, sizeof read);
        add_read(s, list, 1000, read);
        for (uint64_t t = 0; t < 1000; t++) {
            bool chosen = t == 4 + 2 * 64 || t == 4 + 2 * 64 + 2 || (t >= 4 + 7 * 64 + 60 && t < 4 + 8 * 64);
            bool paged = t >= 4 && t < s->extent.window_first;
            assert_int_equal(read[t], !paged || head != 1 || chosen);
        }
    }
    commit(s);
    begin(s, CACHE_STEP_DECODE, 1); /* lists of heads are those of a step */
    check_shared(s);
    sequence_free(s);
}

/* Exact rows in place of codes, by a plain search, in pages read in order and after others. */
static void exact_rows_take_the_place_of_codes(void **state) {
    (void)state;
    static const uint32_t keys[] = {4, 5, 67, 68, 131, 132, 200, 450, 451, 452, 899},
                          values[] = {6, 66, 67, 130, 131, 300, 301, 302, 451, 700, 701};
    static const uint32_t *const anchors[2] = {keys, values};
    enum { N = sizeof keys / sizeof keys[0] };
    struct sequence *s = sequence_new("q4_0", 0, 0);
    take(s, CACHE_STEP_PREFILL, 1000, 1);
    begin(s, CACHE_STEP_DECODE, 1);
    const struct read_page some[] = {{READ_ALL, 1}, {7, 6}, {READ_ALL, 0}, {READ_ALL, 13}};
    const struct read_list lists[] = {s->lists.shared, {.pages = some, .n_pages = 4, .n_chosen = 2}};
    struct read_exact exact[32];
    for (size_t l = 0; l < 2; l++) {
        size_t found = 0;
        read_exact_set(&lists[l], &s->table, anchors, N, exact);
        for (uint32_t i = 0; i < lists[l].n_pages; i++)
            for (int side = 0; side < 2; side++)
                for (uint32_t t = 0; t < PAGE_TOKENS; t++) {
                    uint32_t row = 0;
                    uint64_t token = s->table.sets[lists[l].pages[i].page].first + t;
                    while (row < N && anchors[side][row] != token) row++;
                    assert_int_equal(exact[i].slots[side] >> t & 1, row < N);
                    if (row == N) continue;
                    assert_int_equal(read_exact_row(&exact[i], side, t), row);
                    found++;
                }
        assert_true(l ? found > 0 : found == 2 * N);
    }
    sequence_free(s);
}

static void masks_are_of_slots(void **state) {
    (void)state;
    for (uint32_t begin = 0; begin <= 64; begin++)
        for (uint32_t end = begin; end <= 64; end++) {
            uint64_t mask = read_slots(begin, end);
            for (uint32_t t = 0; t < 64; t++) assert_int_equal(mask >> t & 1, t >= begin && t < end);
            assert_int_equal(read_count(mask), end - begin);
            assert_false(read_has_holes(mask));
            if (begin == end) continue;
            assert_int_equal(read_begin(mask), begin);
            assert_int_equal(read_end(mask), end);
            assert_int_equal(read_has_holes(mask & ~((uint64_t)1 << (begin + end) / 2)), end - begin > 2);
        }
    assert_int_equal(read_begin(0) + read_end(0) + read_count(0), 0);
    assert_true(read_slots_of(100, 40, 0, 100) == 0 && read_slots_of(100, 40, 140, 1000) == 0);
    assert_true(read_slots_of(100, 40, 110, 120) == read_slots(10, 20) && read_slots_of(100, 40, 0, 1000) == read_slots(0, 40));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_of_slots),
        cmocka_unit_test(lists_say_what_policies_keep),
        cmocka_unit_test(a_step_can_be_given_up),
        cmocka_unit_test(pages_may_hold_fewer_tokens),
        cmocka_unit_test(forks_read_by_lists_of_their_own),
        cmocka_unit_test(heads_may_have_lists_of_their_own),
        cmocka_unit_test(exact_rows_take_the_place_of_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
