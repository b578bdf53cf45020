/* Checks the scores that kernels give the tokens of an index's pages beside those of the CPU's index, from the same pages and queries: of sign exactly, of
 * quest to one place of a half, since sums are of another order. Rows of different lengths, no multiples of what a warp takes at once, down to none; in
 * launches of all rows and of single ones, which more CTAs take; masks of live tokens, and tokens that are anchors; index pages beside those of a codec, and
 * pages of keys that begin with them. */
#include "backend/cpu/codec/index.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/score_quest.h"
#include "backend/cuda/kv/score_sign.h"
#include "base/random.h"
#include "no_device.h"
#include "sent.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 4, HEADS = 2, PAGES = 150, SETS = 4, HD_MOST = 256, BYTES_MOST = 4096, KEY_BYTES = BYTES_MOST, VALUE_BYTES = 192 };

static const uint32_t pages_of[ROWS] = {37, PAGES, 0, 1};

static uint64_t state = 5;
static uint8_t chunks[(ROWS * PAGES + SETS - 1) / SETS * SETS * HEADS * (KEY_BYTES + VALUE_BYTES + BYTES_MOST)];
static struct page_set_view sets[ROWS][PAGES];
static struct read_page list[ROWS][PAGES];
static uint64_t anchored[ROWS][HEADS][PAGES];

static float random_number(void) { return (float)(random_uniform(random_next(&state)) * 2 - 1); }

static void check_row(const struct cpu_index *index, uint32_t hd, uint32_t row, const float *q, const float *learned,
                      size_t learned_floats, const struct place_view *places, uint32_t index_page, const uint16_t *found) {
    static uint8_t tables[HD_MOST * 16];
    for (uint32_t head = 0; head < HEADS; head++) {
        index->prepare(hd, learned + (row * HEADS + head) * learned_floats, q + (row * HEADS + head) * hd, 1, tables);
        for (uint32_t page = 0; page < pages_of[row]; page++) {
            uint16_t expected[PAGE_TOKENS];
            const struct page_set_view *set = &sets[row][page];
            const uint64_t live = list[row][page].live & ~anchored[row][head][page];
            index->scores(hd, tables,
                          index_page ? index_address(set, &places[head], index_page) : page_address(set, &places[head], 0),
                          expected);
            for (uint32_t slot = 0; slot < PAGE_TOKENS; slot++) {
                const int own = found[((size_t)head * PAGES + page) * PAGE_TOKENS + slot],
                          right = live >> slot & 1 ? expected[slot] + 1 : 1, off = index == &cpu_index_quest && right > 1;
                if (abs(own - right) > off)
                    fail_msg("%s, %u channels, row %u, head %u, page %u, slot %u: %d, not %d", index->format->name, hd, row, head,
                             page, slot, own, right);
            }
        }
    }
}

static void check_index(const struct cpu_index *index, score_launch *score, uint32_t hd, bool in_keys) {
    static float rows[PAGE_TOKENS * HD_MOST], q[ROWS * HEADS * HD_MOST], learned[ROWS * HEADS * HD_MOST * 17], sizes[HD_MOST];
    static uint16_t found[HEADS * PAGES * PAGE_TOKENS];
    struct sequence_view views[ROWS] = {{0}};
    struct query_row_view queries[ROWS] = {{0}};
    struct place_view places[HEADS];
    struct page_set_view there[ROWS][PAGES];
    const struct head_view heads = {.layers = 1, .query_heads = HEADS, .kv_heads = HEADS, .head_dim = hd, .scale = 1};
    const size_t learned_floats = index_learned_bytes(index->format, hd) / sizeof(float),
                 own_bytes = index_bytes(index->format, hd),
                 set_bytes = HEADS * (KEY_BYTES + VALUE_BYTES + (in_keys ? 0 : own_bytes));
    const uint32_t index_page = in_keys ? 0 : (uint32_t)own_bytes;
    assert_true(own_bytes <= BYTES_MOST && learned_floats <= HD_MOST * 17);
    memset(chunks, 0xff, sizeof chunks);
    for (uint32_t h = 0; h < HEADS; h++)
        places[h] = (struct place_view){.offset = h * set_bytes / HEADS, .bytes = {KEY_BYTES, VALUE_BYTES}};
    for (uint32_t i = 0; i < ROWS * HEADS * hd; i++) q[i] = random_number();
    for (uint32_t c = 0; c < hd; c++) sizes[c] = 0.25f + (float)(c % 7);
    uint8_t *const chunks_there = sent(chunks, sizeof chunks);
    for (uint32_t i = 0; i < ROWS * HEADS * PAGES; i++) {
        const uint32_t row = i / HEADS / PAGES, head = i / PAGES % HEADS, page = i % PAGES, at = row * PAGES + page;
        struct page_set_view *const set = &sets[row][page];
        *set = (struct page_set_view){.chunk = chunks + at / SETS * SETS * set_bytes,
                                      .sets = SETS,
                                      .index = at % SETS,
                                      .first = page * PAGE_TOKENS,
                                      .count = PAGE_TOKENS};
        there[row][page] = *set, there[row][page].chunk = chunks_there + (set->chunk - chunks);
        list[row][page] = (struct read_page){.live = page + 1 == pages_of[row] ? read_slots(0, 39) : READ_ALL, .page = page};
        anchored[row][head][page] = page + 1 < pages_of[row] && row == 1 ? random_next(&state) & random_next(&state) : 0;
        for (uint32_t c = 0; c < PAGE_TOKENS * hd; c++) rows[c] = random_number() * sizes[c % hd] + (float)(c % hd % 3);
        float *const own = learned + (row * HEADS + head) * learned_floats;
        if (page == 0) index->fit(hd, rows, PAGE_TOKENS, hd, &(struct index_options){.median = false}, own);
        index->encode(hd, own, rows, PAGE_TOKENS,
                      in_keys ? page_address(set, &places[head], 0) : index_address(set, &places[head], index_page));
    }
    assert_int_equal(device_send(chunks_there, chunks, sizeof chunks), cudaSuccess);
    const size_t bytes = selection_bytes(&heads, ROWS, PAGES);
    void *const nan = malloc(bytes);
    assert_non_null(nan);
    memset(nan, 0xff, bytes);
    const struct selection selection = selection_at(sent(nan, bytes), &heads, ROWS, PAGES, 0);
    for (uint32_t row = 0; row < ROWS; row++) {
        uint64_t masks[HEADS * PAGES];
        const uint32_t n = row == 1 ? PAGES - 1 : 0; /* page sets that have anchors; the last came later */
        views[row].page_sets = sent(there[row], sizeof there[row]);
        views[row].list = (struct read_list){.pages = sent(list[row], sizeof list[row]), .n_pages = pages_of[row]};
        views[row].own = selection.lists + row * HEADS;
        for (uint32_t i = 0; i < HEADS * n; i++) masks[i] = anchored[row][i / n][i % n];
        if (n) views[row].anchored = sent(masks, HEADS * n * sizeof *masks), views[row].anchored_pages = n;
        if (learned_floats)
            views[row].own_learned = sent(learned + row * HEADS * learned_floats, HEADS * learned_floats * sizeof *learned);
        views[row].learned_floats = (uint32_t)learned_floats;
        queries[row] = (struct query_row_view){.sequence = row, .splits = 1};
    }
    const struct select_tokens all = {.attend = {.heads = heads,
                                                 .places = sent(places, sizeof places),
                                                 .sequences = sent(views, sizeof views),
                                                 .rows = sent(queries, sizeof queries),
                                                 .n_rows = ROWS,
                                                 .shared_lists = true,
                                                 .q = sent(q, ROWS * HEADS * hd * sizeof *q)},
                                      .to = selection,
                                      .index_bytes = index_page};
    for (uint32_t first = 0; first <= ROWS; first++) { /* all rows, then each by itself */
        struct select_tokens select = all;
        const uint32_t begin = first ? first - 1 : 0, n = first ? 1 : ROWS;
        select.attend.rows += begin, select.attend.q += begin * HEADS * hd, select.attend.n_rows = n;
        select.to = selection_at(selection.scores, &heads, ROWS, PAGES, begin);
        assert_int_equal(device_send(selection.scores, nan, bytes), cudaSuccess);
        assert_int_equal(score(&select, device_stream()), cudaSuccess);
        for (uint32_t row = begin; row < begin + n; row++) {
            device_fetch(found, selection.scores + (size_t)row * HEADS * PAGES * PAGE_TOKENS, sizeof found);
            check_row(index, hd, row, q, learned, learned_floats, places, index_page, found);
            for (uint32_t head = 0; head < HEADS; head++) /* nothing is written behind the last page */
                for (uint32_t i = pages_of[row] * PAGE_TOKENS; i < PAGES * PAGE_TOKENS; i++)
                    assert_int_equal(found[head * PAGES * PAGE_TOKENS + i], 0xffff);
        }
    }
    free_sent();
    free(nan);
}

static void scores_are_the_cpus(void **unused) {
    (void)unused;
    static const uint32_t head_dims[] = {64, 96, 128, 256};
    for (int i = 0; i < 4; i++) {
        check_index(&cpu_index_sign, score_sign, head_dims[i], i % 2);
        check_index(&cpu_index_quest, score_quest, head_dims[i], false);
    }
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(scores_are_the_cpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
