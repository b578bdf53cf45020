/* Checks the lists that a choice writes, exactly, by sorting the same scores: rows of very different lengths in one launch, with fewer pages than CTAs,
 * and of so many pages that a CTA goes over its part several times; ties at the least score that is chosen, within one part and over all; as many tokens
 * as there are, more, one, none; anchors, pages of generated tokens, slots without tokens, closed rope runs; many launches in the same memory. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/select.h"
#include "base/random.h"
#include "no_device.h"
#include "sent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    ROWS = 9,
    HEADS = 2,
    LAYERS = 2,
    LAYER = 1,
    HD = 32,
    CAPACITY = 1300,
    TOKENS = CAPACITY * PAGE_TOKENS,
    RUN_PAGES = ROPE_RUN_TOKENS / PAGE_TOKENS
};

/* A row has so many pages, of which the first begins within a rope run, and scores of so many different values; it chooses so many tokens. */
static const struct row {
    uint32_t pages, first, levels, tokens_read, runs_read, generated; /* one page in so many is of generated tokens; 0: none */
    bool anchors;
} ROW[ROWS] = {{.pages = CAPACITY, .first = 64, .levels = 3, .tokens_read = 30000},
               {.pages = 1, .levels = 65535, .tokens_read = 7},
               {.pages = 0, .levels = 1, .tokens_read = 5},
               {.pages = 333, .levels = 1, .tokens_read = 1601, .generated = 5, .anchors = true},
               {.pages = 71, .levels = 700, .tokens_read = 71 * PAGE_TOKENS},
               {.pages = 37, .levels = 2, .tokens_read = 40 * PAGE_TOKENS, .generated = 4, .anchors = true},
               {.pages = 601, .first = 192, .levels = 65535, .tokens_read = 900, .runs_read = 20, .generated = 7, .anchors = true},
               {.pages = 130, .first = 128, .levels = 5, .tokens_read = 3000, .runs_read = 6, .anchors = true},
               {.pages = 19, .levels = 4, .tokens_read = 0, .generated = 3}};

static uint64_t state = 3;
static uint32_t first_row; /* of a launch */
static uint16_t scores[ROWS][HEADS][TOKENS], best[ROWS][HEADS][CAPACITY];
static uint64_t anchored[ROWS][LAYERS][HEADS][CAPACITY];
static struct read_page list[ROWS][CAPACITY];
static struct page_set_view sets[ROWS][CAPACITY];

/* Fills in what a row reads, with scores as codecs write them: 1 where a slot has no token. */
static void make_row(uint32_t row) {
    const struct row *r = &ROW[row];
    for (uint32_t page = 0; page < r->pages; page++) {
        const bool last = page + 1 == r->pages;
        sets[row][page] = (struct page_set_view){
            .first = r->first + page * PAGE_TOKENS, .count = PAGE_TOKENS, .generated = r->generated && page % r->generated == 1};
        list[row][page] = (struct read_page){.live = last ? read_slots(0, 41) : page ? READ_ALL : read_slots(3, 64), .page = page};
        for (uint32_t head = 0; head < HEADS; head++) {
            uint16_t *const own = scores[row][head] + page * PAGE_TOKENS;
            best[row][head][page] = 1;
            for (uint32_t slot = 0; slot < PAGE_TOKENS; slot++) {
                const uint32_t level = (uint32_t)(random_uniform(random_next(&state)) * r->levels);
                own[slot] = list[row][page].live >> slot & 1 ? (uint16_t)(65535 - level * (65535 / r->levels)) : 1;
                if (own[slot] > best[row][head][page]) best[row][head][page] = own[slot];
            }
        }
    }
}

/* Stands in for a codec: the scores are those above. */
static cudaError_t put_scores(const struct select_tokens *select, cudaStream_t stream) {
    cudaError_t result = cudaSuccess;
    for (uint32_t i = 0; i < select->attend.n_rows * HEADS && result == cudaSuccess; i++) {
        const uint32_t row = first_row + i / HEADS, head = i % HEADS;
        const size_t at = (size_t)i * CAPACITY;
        result = cudaMemcpyAsync(select->to.scores + at * PAGE_TOKENS, scores[row][head], sizeof scores[row][head],
                                 cudaMemcpyHostToDevice, stream);
        if (result == cudaSuccess)
            result = cudaMemcpyAsync(select->to.best + at, best[row][head], sizeof best[row][head], cudaMemcpyHostToDevice, stream);
    }
    return result;
}

/* ---- What should be chosen */

static int newer_first(const void *a, const void *b) { /* of numbers score * 2^32 + place, the largest first */
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Says of each page whether its rope run may be read: those with the best scores, of equal ones the last. */
static void open_runs(uint32_t row, uint32_t head, bool *open) {
    static uint64_t runs[CAPACITY / RUN_PAGES + 2];
    const struct row *r = &ROW[row];
    const uint32_t n = r->pages ? (sets[row][r->pages - 1].first / ROPE_RUN_TOKENS) + 1 : 0;
    for (uint32_t i = 0; i < n; i++) runs[i] = i;
    for (uint32_t page = 0; page < r->pages; page++) {
        uint64_t *const run = &runs[sets[row][page].first / ROPE_RUN_TOKENS];
        if (!sets[row][page].generated && best[row][head][page] > *run >> 32)
            *run = (uint64_t)best[row][head][page] << 32 | (uint32_t)*run;
    }
    qsort(runs, n, sizeof *runs, newer_first);
    for (uint32_t page = 0; page < r->pages; page++) open[page] = !r->runs_read;
    for (uint32_t i = 0; i < n && i < r->runs_read; i++)
        for (uint32_t page = 0; page < r->pages; page++)
            if (sets[row][page].first / ROPE_RUN_TOKENS == (uint32_t)runs[i]) open[page] = true;
}

static void check_list(uint32_t row, uint32_t head, const struct selection *selection) {
    static uint64_t candidates[TOKENS], read[CAPACITY];
    static bool open[CAPACITY];
    static struct read_page listed[CAPACITY];
    const struct row *r = &ROW[row];
    struct read_list found;
    size_t n = 0;
    uint32_t entry = 0;
    open_runs(row, head, open);
    for (uint32_t i = 0; i < r->pages * PAGE_TOKENS; i++) {
        const uint32_t page = i / PAGE_TOKENS, slot = i % PAGE_TOKENS;
        if (slot == 0) read[page] = sets[row][page].generated ? READ_ALL : 0;
        const uint64_t rows_of_halves = anchored[row][LAYER][head][page] & list[row][page].live;
        if (sets[row][page].generated || (rows_of_halves >> slot & 1)) continue;
        candidates[n++] = (uint64_t)(open[page] ? scores[row][head][i] : 1) << 32 | i;
    }
    qsort(candidates, n, sizeof *candidates, newer_first);
    for (size_t i = 0; i < n && i < r->tokens_read; i++)
        read[(uint32_t)candidates[i] / PAGE_TOKENS] |= UINT64_C(1) << candidates[i] % PAGE_TOKENS;
    device_fetch(&found, selection->lists + row * HEADS + head, sizeof found);
    assert_true(found.n_pages <= r->pages && found.window_first == 1000 + row);
    device_fetch(listed, found.pages, found.n_pages * sizeof *listed);
    for (uint32_t page = 0; page < r->pages; page++) {
        const uint64_t live = read[page] & list[row][page].live & ~anchored[row][LAYER][head][page];
        if (!live) continue;
        assert_true(entry < found.n_pages);
        if (listed[entry].page != page || listed[entry].live != live)
            fail_msg("row %u, head %u, entry %u: page %u, not %u, or other tokens of it", row, head, entry, listed[entry].page,
                     page);
        entry++;
    }
    assert_int_equal(entry, found.n_pages);
}

static void lists_are_those_of_sorted_scores(void **unused) {
    (void)unused;
    static struct sequence_view views[ROWS];
    struct query_row_view rows[ROWS] = {{0}};
    const struct head_view heads = {.layers = LAYERS, .query_heads = 2 * HEADS, .kv_heads = HEADS, .head_dim = HD};
    const size_t bytes = selection_bytes(&heads, ROWS, CAPACITY);
    void *const nan = malloc(bytes), *const q = calloc(ROWS * 2 * HEADS * HD, sizeof(float));
    assert_true(nan && q);
    memset(nan, 0xff, bytes);
    const struct selection selection = selection_at(sent(nan, bytes), &heads, ROWS, CAPACITY, 0);
    for (uint32_t row = 0; row < ROWS; row++) {
        make_row(row);
        for (uint32_t i = 0; ROW[row].anchors && i < HEADS * (ROW[row].pages - 1); i++) {
            const uint32_t head = i % HEADS, page = i / HEADS;
            anchored[row][LAYER][head][page] = page % 3 != 1 ? random_next(&state) & random_next(&state) : 0;
        }
        struct sequence_view *const view = &views[ROWS - 1 - row];
        view->page_sets = sent(sets[row], sizeof sets[row]);
        view->list =
            (struct read_list){.pages = sent(list[row], sizeof list[row]), .n_pages = ROW[row].pages, .window_first = 1000 + row};
        view->own = selection.lists + row * HEADS;
        if (ROW[row].anchors) {
            uint64_t masks[LAYERS][HEADS][CAPACITY]; /* as many as there are pages but the last, which came later */
            const uint32_t n = ROW[row].pages - 1;
            for (uint32_t i = 0; i < LAYERS * HEADS; i++)
                memcpy((uint64_t *)masks + i * n, anchored[row][i / HEADS][i % HEADS], n * sizeof(uint64_t));
            view->anchored = sent(masks, LAYERS * HEADS * n * sizeof(uint64_t)), view->anchored_pages = n;
        }
        rows[row] = (struct query_row_view){
            .sequence = ROWS - 1 - row, .splits = 1, .tokens_read = ROW[row].tokens_read, .runs_read = ROW[row].runs_read};
    }
    const struct select_tokens select = {.attend = {.heads = heads,
                                                    .layer = LAYER,
                                                    .sequences = sent(views, sizeof views),
                                                    .rows = sent(rows, sizeof rows),
                                                    .n_rows = ROWS,
                                                    .q = sent(q, ROWS * 2 * HEADS * HD * sizeof(float)),
                                                    .runs = CAPACITY / RUN_PAGES + 2},
                                         .to = selection};
    for (uint32_t n = ROWS; n; n = n > 2 ? 2 : n - 1) /* all, which are taken in few parts; two; one */
        for (first_row = 0; first_row + n <= ROWS; first_row++) {
            struct select_tokens launch = select;
            launch.attend.rows += first_row, launch.attend.n_rows = n;
            launch.to = selection_at(selection.scores, &heads, ROWS, CAPACITY, first_row);
            make_row(first_row); /* of other scores */
            assert_int_equal(select_tokens_launch(&launch, put_scores, device_stream()), cudaSuccess);
            for (uint32_t i = 0; i < n * HEADS; i++) check_list(first_row + i / HEADS, i % HEADS, &selection);
        }
    free_sent();
    free(nan);
    free(q);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_are_those_of_sorted_scores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
