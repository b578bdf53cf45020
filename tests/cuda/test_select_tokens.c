/* Checks which tokens a decoding step chooses where keys of codec transform rank them: scores, in double precision over the components that rank;
 * the choice, exactly, by a plain search among the same scores, ties and rope runs included; how much of it is the CPU's own; and attention to what
 * was chosen in double precision. Rows that choose, of all pages and of some, beside rows that do not; some tokens are anchors, which are not chosen. */
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/position_scores.h"
#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/select.h"
#include "no_device.h"
#include "transform_sample.h"

#define BOUND 1e-3     /* of attention, as in test_attend_transform */
#define SCORES_OFF 2.0 /* units of 1/256 of a logit: queries are rounded to halves before and after they are rotated to a run */
#define SLOTS_MOST (PAGES_MOST * PAGE_TOKENS)

static struct selection selection;
static struct sequence_view view[SEQUENCES];
static double worst_score;
static size_t chosen, others; /* tokens, and those of them that the CPU does not choose */

/* Returns which tokens of a page have rows of halves: of every other sequence, whose last page set came later. */
static uint64_t anchored(const struct sequence *sequences, uint32_t row, uint32_t head, size_t page) {
    const uint32_t turn = (uint32_t)(page * 7 + head * 3 + row) % 60;
    return row % 2 == 0 && page + 1 < sequences[row].pages ? UINT64_C(0x9003) << turn : 0;
}

/* Gives a view the masks of all heads; the rows themselves are left out. */
static void view_anchors(struct attend_sample *sample, uint32_t row) {
    static uint64_t masks[LAYERS * HEADS_MOST * PAGES_MOST];
    const uint32_t pages = sample->sequences[row].pages - 1;
    for (uint32_t head = 0; head < LAYERS * sample->kv_heads; head++)
        for (uint32_t page = 0; page < pages; page++)
            masks[head * pages + page] = anchored(sample->sequences, row, head % sample->kv_heads, page);
    sample->views[row].anchored = take(sample, masks, LAYERS * sample->kv_heads * pages * sizeof *masks);
    sample->views[row].anchored_pages = pages;
}

static void prepare(struct attend_sample *sample, struct query_row_view *rows) {
    const struct head_view *heads = &sample->attend.heads;
    const size_t bytes = selection_bytes(heads, SEQUENCES, PAGES_MOST);
    void *nan = allocated(bytes);
    memset(nan, 0xff, bytes);
    selection = selection_at(take(sample, nan, bytes), heads, SEQUENCES, PAGES_MOST, 0);
    free(nan);
    sample->attend.lists_written = true;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        const struct sequence *s = &sample->sequences[i];
        rows[i].tokens_read = s->tokens_read, rows[i].runs_read = s->runs_read;
        if (s->tokens_read && i % 2 == 0) view_anchors(sample, i);
        if (s->tokens_read) sample->views[i].own = selection_at(selection.scores, heads, SEQUENCES, PAGES_MOST, i).lists;
    }
    memcpy(view, sample->views, sizeof view);
}

/* ---- What scores should be */

struct expected_page {
    struct page_set_view set;
    uint8_t *bytes;
    uint64_t slots; /* that hold tokens to choose from, all but anchors */
    uint64_t anchored;
    double scores[PAGE_TOKENS];
    uint16_t ranks[PAGE_TOKENS]; /* the CPU's */
};

static void mean_query(const struct attend_sample *sample, uint32_t row, uint32_t head, const float *q, float *mean) {
    const size_t hd = sample->head_dim, group = sample->group;
    const float *own = q + ((size_t)row * sample->kv_heads + head) * group * hd;
    for (size_t c = 0; c < hd; c++) {
        double sum = 0;
        for (size_t g = 0; g < group; g++) sum += (double)own[g * hd + c];
        mean[c] = (float)(sum / (double)group) * sample->attend.heads.scale;
    }
}

static struct codec_shape shape_of(const struct attend_sample *sample, uint32_t row, uint32_t head) {
    struct codec_shape shape = sample->shape[head][CODEC_KEYS];
    if (sample->records[row]) shape.fitted = sample->records[row] + 2 * head * sample->record_bytes;
    shape.group = 1;
    return shape;
}

static void score_page(const struct attend_sample *sample, uint32_t row, uint32_t head, const float *mean,
                       const struct position_scores *positions, struct expected_page *page) {
    struct codec_shape shape = shape_of(sample, row, head);
    const size_t hd = sample->head_dim;
    struct transform_layout first;
    struct rope rope;
    float frequency[CODEC_HEAD_DIM_MAX], cosine[CODEC_HEAD_DIM_MAX], sine[CODEC_HEAD_DIM_MAX], q[CODEC_HEAD_DIM_MAX],
        tables[RANK_FLOATS], products[2 * POSITION_PAIRS_MAX], of_positions[PAGE_TOKENS] = {0};
    float *rows = allocated(PAGE_TOKENS * hd * sizeof *rows);
    memcpy(q, mean, hd * sizeof *q);
    rope_of(sample, frequency, &rope);
    rope_angles(&rope, -(int64_t)run_of(page->set.first), cosine, sine);
    rope_rotate(&rope, cosine, sine, q, 1, 0);
    cpu_codec_transform.ranks->prepare(shape, q, tables);
    position_products(positions, cpu_codec_transform.pre_rope_mean(shape), q, 1, hd, products);
    position_scores_add(positions, products, 1, page->set.first, of_positions);
    cpu_codec_transform.ranks->rank(shape, tables, 0, page->bytes, of_positions, page->ranks);
    transform_layout_first(shape.layout, TRANSFORM_RANK_BITS(sample->head_dim), &first);
    shape.layout = &first;
    cpu_codec_transform.decode(shape, CODEC_KEYS, page->bytes, rows);
    complete_keys(sample, shape, page->set.first, rows);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        double logit = 0;
        for (size_t c = 0; c < hd; c++) logit += (double)q[c] * (double)rows[t * hd + c];
        page->scores[t] = fmin(fmax(32768 + 256 * logit, 0), 65534);
    }
    free(rows);
}

/* ---- What should be chosen by scores */

/* Opens the best of n runs; of equal ones the last. */
static void open_runs(const int *best, size_t n, size_t wanted, bool *open) {
    memset(open, !wanted, n * sizeof *open);
    for (size_t i = 0; i < wanted; i++) {
        size_t at = n;
        for (size_t r = 0; r < n; r++)
            if (best[r] >= 0 && !open[r] && (at == n || best[r] >= best[at])) at = r;
        if (at == n) break;
        open[at] = true;
    }
}

/* Writes what is read of each page: of generated ones all, of others the best, of equal ones the last. Tokens of runs that are not open, and slots that
 * hold none, score 0. */
static void choose_plainly(const struct sequence *s, const struct expected_page *pages, const int *scores, uint64_t *read) {
    static bool open[SLOTS_MOST / ROPE_RUN_TOKENS + 2];
    static int best[SLOTS_MOST / ROPE_RUN_TOKENS + 2], own[SLOTS_MOST];
    const size_t first_run = pages[0].set.first / ROPE_RUN_TOKENS,
                 runs = pages[s->pages - 1].set.first / ROPE_RUN_TOKENS - first_run + 1;
    for (size_t r = 0; r < runs; r++) best[r] = -1;
    for (size_t i = 0; i < (size_t)s->pages * PAGE_TOKENS; i++) {
        int *const of_run = &best[pages[i / PAGE_TOKENS].set.first / ROPE_RUN_TOKENS - first_run];
        if (!pages[i / PAGE_TOKENS].set.generated && scores[i] > *of_run) *of_run = scores[i];
    }
    open_runs(best, runs, s->runs_read, open);
    for (size_t i = 0; i < (size_t)s->pages * PAGE_TOKENS; i++) {
        const struct page_set_view *set = &pages[i / PAGE_TOKENS].set;
        const bool anchor = pages[i / PAGE_TOKENS].anchored >> i % PAGE_TOKENS & 1;
        own[i] = set->generated || anchor ? -1 : open[set->first / ROPE_RUN_TOKENS - first_run] ? scores[i] : 0;
    }
    for (size_t p = 0; p < s->pages; p++) read[p] = pages[p].set.generated ? ~pages[p].anchored : 0;
    for (uint32_t k = 0; k < s->tokens_read; k++) {
        size_t at = SLOTS_MOST;
        for (size_t i = 0; i < (size_t)s->pages * PAGE_TOKENS; i++)
            if (own[i] >= 0 && (at == SLOTS_MOST || own[i] >= own[at])) at = i;
        read[at / PAGE_TOKENS] |= UINT64_C(1) << at % PAGE_TOKENS;
        own[at] = -1;
    }
}

/* ---- One row and KV head */

static void check_head(struct attend_sample *sample, uint32_t row, uint32_t head, const float *q) {
    static int scores[SLOTS_MOST], ranks[SLOTS_MOST];
    static uint16_t found[SLOTS_MOST];
    static uint64_t read[PAGES_MOST], by_cpu[PAGES_MOST];
    static struct read_page listed[PAGES_MOST];
    const struct sequence *s = &sample->sequences[row];
    const size_t n = s->pages, at = (size_t)row * sample->kv_heads + head,
                 key_bytes = sample->places[LAYER * sample->kv_heads + head].bytes[0];
    struct expected_page *pages = allocated(n * sizeof *pages);
    struct page_set_view *sets = allocated(n * sizeof *sets);
    struct position_scores positions = {0};
    struct rope rope;
    struct read_list list;
    float mean[CODEC_HEAD_DIM_MAX], frequency[CODEC_HEAD_DIM_MAX];
    rope_of(sample, frequency, &rope);
    assert_int_equal(position_scores_new(&rope, &positions, NULL), TERSE_OK);
    mean_query(sample, row, head, q, mean);
    device_fetch(sets, view[row].page_sets, n * sizeof *sets);
    device_fetch(found, selection.scores + at * PAGES_MOST * PAGE_TOKENS, n * PAGE_TOKENS * sizeof *found);
    device_fetch(&list, selection.lists + at, sizeof list);
    device_fetch(listed, list.pages, list.n_pages * sizeof *listed);
    for (size_t p = 0; p < n; p++) {
        pages[p].set = sets[p];
        pages[p].bytes = allocated(key_bytes);
        device_fetch(pages[p].bytes, page_address(&sets[p], &sample->places[LAYER * sample->kv_heads + head], 0), key_bytes);
        score_page(sample, row, head, mean, &positions, &pages[p]);
        pages[p].anchored = anchored(sample->sequences, row, head, p);
        pages[p].slots = read_slots(p == 0 ? s->begin : 0, p + 1 == n ? s->end : PAGE_TOKENS) & ~pages[p].anchored;
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            const bool there = pages[p].slots >> t & 1;
            scores[p * PAGE_TOKENS + t] = found[p * PAGE_TOKENS + t] - 1;
            ranks[p * PAGE_TOKENS + t] = there ? pages[p].ranks[t] : 0;
            if (!there || sets[p].generated) continue;
            const double off = fabs(scores[p * PAGE_TOKENS + t] - pages[p].scores[t]);
            if (!(off <= worst_score)) worst_score = off;
        }
    }
    choose_plainly(s, pages, scores, read);
    choose_plainly(s, pages, ranks, by_cpu);
    size_t entry = 0;
    for (size_t p = 0; p < n; p++) {
        const uint64_t live = read[p] & pages[p].slots;
        sample->live[row][head][p] = live;
        if (live) {
            assert_true(entry < list.n_pages && listed[entry].page == p && listed[entry].live == live);
            entry++;
        }
        if (!sets[p].generated) chosen += read_count(live), others += read_count(live & ~by_cpu[p]);
        free(pages[p].bytes);
    }
    assert_int_equal(entry, list.n_pages);
    assert_true(list.rows_end == view[row].list.rows_end && list.window_first == view[row].list.window_first);
    position_scores_free(&positions);
    free(pages);
    free(sets);
}

static void choose(struct attend_sample *sample, const float *q) {
    const struct select_tokens select = {.attend = sample->attend, .to = selection};
    assert_int_equal(select_tokens_launch(&select, cuda_codec_of(CODEC_TRANSFORM)->score, device_stream()), cudaSuccess);
    for (uint32_t row = 0; row < SEQUENCES; row++)
        for (uint32_t head = 0; head < sample->kv_heads && sample->sequences[row].tokens_read; head++)
            check_head(sample, row, head, q);
}

/* One that chooses few tokens of few runs; one of all runs, among pages of generated tokens; one that does not choose; one that chooses a
 * token; one that chooses most tokens, more than its runs have. */
static const struct sequence SOME[SEQUENCES] = {
    {.exact = 4, .pages = 38, .end = 64, .window = 20, .splits = 3, .tokens_read = 150, .runs_read = 5},
    {.exact = 4, .pages = 11, .end = 30, .window = 37, .origin = 9, .splits = 2, .generated = 3, .tokens_read = 90, .runs_read = 4},
    {.exact = 4, .pages = 3, .end = 64, .window = 20, .splits = 1},
    {.exact = 0, .pages = 9, .end = 64, .window = 90, .origin = 70, .splits = 7, .tokens_read = 1, .runs_read = 4},
    {.exact = 20, .pages = 12, .end = 51, .window = 3, .splits = 1, .generated = 6, .tokens_read = 300, .runs_read = 1}};

static void check_setup(double rate, uint32_t hd, uint32_t group, uint32_t n_rot, enum rope_pairing pairing, bool fitted) {
    struct setup setup = {.rate = {rate, rate},
                          .head_dim = hd,
                          .group = group,
                          .n_rot = n_rot,
                          .pairing = pairing,
                          .fitted = fitted,
                          .in_place = group % 2,
                          .prepare = prepare,
                          .choose = choose};
    memcpy(setup.sequences, SOME, sizeof SOME);
    worst_score = 0, chosen = others = 0;
    const double error = check_transform(&setup);
    print_message("rate %g, head_dim %u, group %u: attention %.2g, scores %.2g, %zu of %zu tokens are not the CPU's\n", rate, hd,
                  group, error, worst_score, others, chosen);
    assert_true(error <= BOUND);
    assert_true(worst_score <= SCORES_OFF);
    assert_true(others * 50 <= chosen);
}

static void the_best_are_read(void **state) {
    (void)state;
    check_setup(2, 64, 3, 64, ROPE_HALF_SPLIT, false);
    check_setup(4, 128, 4, 128, ROPE_ADJACENT, true);
    check_setup(0.5, 96, 1, 64, ROPE_HALF_SPLIT, false);
    check_setup(1, 128, 16, 128, ROPE_HALF_SPLIT, false);
    check_setup(3, 256, 2, 256, ROPE_ADJACENT, false);
    check_setup(8, 64, 9, 64, ROPE_ADJACENT, true);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_best_are_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
