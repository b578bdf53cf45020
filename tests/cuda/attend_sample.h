/* A decoding step's attention and the same in double precision over what the CPU's codecs decode: rows of several sequences of different lengths in
 * one launch, exact rows, pages, of which the first and the last may be in part, windows that wrap, tokens behind the query's own, read lists of
 * KV heads' own, which leave out pages and any of their tokens. What must not be read is NaN. A test fills in what its codecs take: shapes, what
 * kernels see of parameters, and rows. */
#ifndef TERSE_TESTS_CUDA_ATTEND_SAMPLE_H
#define TERSE_TESTS_CUDA_ATTEND_SAMPLE_H

#include "backend/cpu/codec/codec.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_decode.h"
#include "base/half.h"
#include "base/random.h"
#include "model/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 2
#define LAYER 1
#define SEQUENCES 5
#define PAGES_MOST 300
#define HEADS_MOST 2
#define SETS 5 /* page sets of a chunk */
#define EXACT_CAPACITY 24
#define WINDOW_CAPACITY 128

/* A sequence: exact rows, evicted tokens, pages, a window. */
struct sequence {
    uint32_t exact, evicted, pages, begin, end; /* slots of the first page from `begin` on, of the last before `end` */
    uint32_t window, origin;                    /* tokens of the window; its ring begins so many tokens before it */
    uint32_t splits;
    uint32_t behind;                 /* of the last tokens, so many come after the query's own */
    bool by_head;                    /* each KV head has a list of its own */
    uint32_t generated;              /* one page in so many is of generated tokens; 0: none */
    uint32_t tokens_read, runs_read; /* as of struct query_row_view; 0 tokens: it does not choose */
};

struct attend_sample {
    const struct codec *codec[2];
    uint32_t head_dim, kv_heads, group, n_rot;
    enum rope_pairing pairing;
    float magnitude; /* rope's; 0: 1 */
    struct sequence sequences[SEQUENCES];
    bool slopes, sinks, in_place;
    float cap;                               /* of logits; 0: none */
    struct codec_shape shape[HEADS_MOST][2]; /* as the CPU's codec sees them, group and head_dim included */
    const uint8_t *records[SEQUENCES];       /* [Hk][2][record_bytes] of transforms that are a sequence's own, or NULL */
    size_t record_bytes;
    /* rows[64][hd] of a page of a sequence's head, keys as they lie in a run. */
    void (*random_rows)(const struct attend_sample *sample, uint32_t sequence, uint32_t head, enum codec_side side, float *rows);
    /* Adds to decoded rows[64][hd] of keys what their pages, which begin with token `first`, do not hold; NULL: nothing. */
    void (*complete_keys)(const struct attend_sample *sample, struct codec_shape shape, uint32_t first, float *rows);
    /* Of rows that choose what they read; NULL: none do. The first changes rows and views before they are sent, the second chooses, sets
     * `live` to what was chosen, and may look at it. q[SEQUENCES][heads][hd]. */
    void (*prepare)(struct attend_sample *sample, struct query_row_view *rows);
    void (*choose)(struct attend_sample *sample, const float *q);
    const void *parameters;      /* the test's own */
    struct attend_decode attend; /* codecs and what belongs to them; the rest is filled in */

    struct place_view places[LAYERS * HEADS_MOST];
    size_t set_bytes;
    struct sequence_view views[SEQUENCES];
    float *rows[SEQUENCES][HEADS_MOST][2];            /* exact rows, pages' decoded rows, the window's */
    uint64_t live[SEQUENCES][HEADS_MOST][PAGES_MOST]; /* the tokens of a page that are read */
    void *memory[200];                                /* of the device */
    size_t n_memory;
};

static uint64_t attend_state = 1;

static inline double random_normal(void) {
    double u = random_uniform(random_next(&attend_state)) + 0x1p-54, v = random_uniform(random_next(&attend_state));
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static inline void *allocated(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    assert_non_null(memory);
    return memory;
}

/* A copy on the device, which the sample frees. */
static inline void *take(struct attend_sample *sample, const void *data, size_t bytes) {
    void *memory = NULL;
    assert_true(sample->n_memory < sizeof sample->memory / sizeof *sample->memory);
    assert_int_equal(cudaMalloc(&memory, bytes ? bytes : 1), cudaSuccess);
    assert_int_equal(device_send(memory, data, bytes), cudaSuccess);
    return sample->memory[sample->n_memory++] = memory;
}

static inline uint32_t first_token(const struct sequence *s) { return s->exact + s->evicted; } /* of the pages, or of the window */
static inline uint32_t window_first(const struct sequence *s) { return first_token(s) + PAGE_TOKENS * s->pages; }
static inline uint32_t position_of(const struct sequence *s) { return window_first(s) + s->window - 1 - s->behind; }
static inline size_t rows_of(const struct sequence *s) { return s->exact + (size_t)PAGE_TOKENS * s->pages + s->window; }

static inline void make_places(struct attend_sample *sample) {
    for (uint32_t i = 0; i < LAYERS * sample->kv_heads; i++) {
        sample->places[i].offset = sample->set_bytes;
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            size_t bytes = codec_page_bytes(sample->codec[side], sample->shape[i % sample->kv_heads][side], side);
            sample->places[i].bytes[side] = (uint32_t)bytes;
            sample->set_bytes += bytes;
            if (bytes > sample->attend.page_bytes[side]) sample->attend.page_bytes[side] = (uint32_t)bytes;
        }
    }
}

static inline void rope_of(const struct attend_sample *sample, float *frequency, struct rope *rope) {
    for (uint32_t i = 0; i < sample->n_rot / 2; i++) frequency[i] = (float)pow(10000, -2.0 * i / sample->n_rot);
    *rope =
        (struct rope){sample->pairing, sample->head_dim, sample->n_rot, frequency, sample->magnitude > 0 ? sample->magnitude : 1};
}

/* Returns the angles of positions 0, step, ..., [n][n_rot / 2][cosine, sine], on the device. */
static inline const float *make_angles(struct attend_sample *sample, uint32_t n, int64_t step) {
    float frequency[CODEC_HEAD_DIM_MAX], cosine[CODEC_HEAD_DIM_MAX], sine[CODEC_HEAD_DIM_MAX];
    struct rope rope;
    rope_of(sample, frequency, &rope);
    const uint32_t half = sample->n_rot / 2;
    float *angles = allocated((size_t)n * sample->n_rot * sizeof *angles);
    for (uint32_t t = 0; t < n; t++) {
        rope_angles(&rope, t * step, cosine, sine);
        for (uint32_t i = 0; i < half; i++)
            angles[((size_t)t * half + i) * 2] = cosine[i], angles[((size_t)t * half + i) * 2 + 1] = sine[i];
    }
    const float *there = take(sample, angles, (size_t)n * sample->n_rot * sizeof *angles);
    free(angles);
    return there;
}

/* A page of random rows, and what they are decoded to, keys rotated by their own positions. */
static inline void make_page(struct attend_sample *sample, uint32_t number, const struct page_set_view *set, uint32_t head,
                             enum codec_side side, float *rows, float *decoded) {
    const struct cpu_codec *codec = cpu_codec_of(sample->codec[side]);
    struct codec_shape shape = sample->shape[head][side];
    float frequency[CODEC_HEAD_DIM_MAX], cosine[CODEC_HEAD_DIM_MAX], sine[CODEC_HEAD_DIM_MAX];
    struct rope rope;
    if (sample->records[number]) shape.fitted = sample->records[number] + (2 * head + (size_t)side) * sample->record_bytes;
    void *to = page_address(set, &sample->places[LAYER * sample->kv_heads + head], side);
    sample->random_rows(sample, number, head, side, rows);
    codec->encode(shape, side, rows, set->count, to);
    codec->decode(shape, side, to, decoded);
    if (side == CODEC_KEYS && sample->complete_keys) sample->complete_keys(sample, shape, set->first, decoded);
    if (side == CODEC_VALUES || !sample->n_rot || codec->format->rope == CODEC_ROPE_AFTER) return;
    rope_of(sample, frequency, &rope);
    rope_angles(&rope, run_of(set->first), cosine, sine);
    if (codec->format->rope == CODEC_ROPE_IN_RUN) rope_rotate(&rope, cosine, sine, decoded, PAGE_TOKENS, sample->head_dim);
    for (uint32_t t = 0; codec->format->rope == CODEC_ROPE_BEFORE && t < PAGE_TOKENS; t++) {
        rope_angles(&rope, set->first + t, cosine, sine);
        rope_rotate(&rope, cosine, sine, decoded + t * sample->head_dim, 1, sample->head_dim);
    }
}

/* The lists of a sequence's KV heads: the first and last page in part, and where they have their own also every third page left out, and of others
 * any tokens. */
static inline void make_lists(struct attend_sample *sample, uint32_t number) {
    const struct sequence *s = &sample->sequences[number];
    const struct read_list rest = {.rows_end = s->exact, .moved = s->evicted, .window_first = window_first(s)};
    struct read_list own[HEADS_MOST] = {{0}}, list = rest;
    struct read_page pages[PAGES_MOST];
    for (uint32_t head = 0; head < sample->kv_heads; head++) {
        list = rest;
        for (uint32_t i = 0; i < s->pages; i++) {
            uint64_t live = read_slots(i == 0 ? s->begin : 0, i + 1 == s->pages ? s->end : PAGE_TOKENS);
            if (s->by_head && i % 3 == 1) live &= random_next(&attend_state);
            if (s->by_head && i % 3 == 2) live = 0;
            sample->live[number][head][i] = live;
            if (live) pages[list.n_pages++] = (struct read_page){live, i};
        }
        list.pages = take(sample, pages, list.n_pages * sizeof *pages);
        own[head] = list;
    }
    sample->views[number].list = s->by_head ? rest : list; /* all heads' are alike */
    if (s->by_head) sample->views[number].own = take(sample, own, sizeof own);
}

/* Pages of all heads in chunks. */
static inline void make_pages(struct attend_sample *sample, uint32_t number) {
    const struct sequence *s = &sample->sequences[number];
    uint32_t hd = sample->head_dim, chunks = (s->pages + SETS - 1) / SETS;
    struct page_set_view *sets = allocated(s->pages * sizeof *sets);
    uint8_t *chunk = allocated(sample->set_bytes * SETS);
    float *rows = allocated(sizeof *rows * PAGE_TOKENS * hd);
    for (uint32_t c = 0; c < chunks; c++) {
        memset(chunk, 0xff, sample->set_bytes * SETS);
        for (uint32_t index = 0; index < SETS && c * SETS + index < s->pages; index++) {
            uint32_t page = c * SETS + index;
            sets[page] = (struct page_set_view){.chunk = chunk, .sets = SETS, .index = index, .count = PAGE_TOKENS};
            sets[page].first = first_token(s) + PAGE_TOKENS * page;
            sets[page].generated = s->generated && page % s->generated == s->generated - 1;
            if (page + 1 == s->pages) sets[page].count = (uint16_t)s->end;
            for (uint32_t head = 0; head < sample->kv_heads; head++)
                for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++)
                    make_page(sample, number, &sets[page], head, side, rows,
                              sample->rows[number][head][side] + (s->exact + (size_t)PAGE_TOKENS * page) * hd);
        }
        void *there = take(sample, chunk, sample->set_bytes * SETS);
        for (uint32_t index = 0; index < SETS && c * SETS + index < s->pages; index++) sets[c * SETS + index].chunk = there;
    }
    sample->views[number].page_sets = take(sample, sets, s->pages * sizeof *sets);
    free(sets);
    free(chunk);
    free(rows);
}

static inline void random_halves(float *rows, size_t n) {
    for (size_t i = 0; i < n; i++) rows[i] = half_to_float(half_from_float((float)random_normal()));
}

/* The exact rows and the window, in halves. */
static inline void make_halves(struct attend_sample *sample, uint32_t number) {
    const struct sequence *s = &sample->sequences[number];
    struct sequence_view *view = &sample->views[number];
    size_t hd = sample->head_dim, heads = (size_t)LAYERS * sample->kv_heads * 2;
    size_t exact_bytes = heads * EXACT_CAPACITY * hd * 2, window_bytes = heads * WINDOW_CAPACITY * hd * 2;
    uint16_t *exact = allocated(exact_bytes), *window = allocated(window_bytes);
    memset(exact, 0xff, exact_bytes); /* NaN */
    memset(window, 0xff, window_bytes);
    view->exact_capacity = EXACT_CAPACITY, view->window_capacity = WINDOW_CAPACITY,
    view->window_origin = window_first(s) - s->origin;
    for (uint32_t head = 0; head < sample->kv_heads; head++) {
        for (size_t side = 0; side < 2; side++) {
            float *rows = sample->rows[number][head][side], *last = rows + (s->exact + (size_t)PAGE_TOKENS * s->pages) * hd;
            size_t at = ((size_t)LAYER * sample->kv_heads + head) * 2 + side;
            random_halves(rows, s->exact * hd);
            random_halves(last, s->window * hd);
            for (size_t i = 0; i < s->exact * hd; i++) exact[at * EXACT_CAPACITY * hd + i] = half_from_float(rows[i]);
            for (uint32_t t = 0; t < s->window; t++) {
                uint16_t *to = window + (at * WINDOW_CAPACITY + window_row(view, window_first(s) + t)) * hd;
                for (size_t c = 0; c < hd; c++) to[c] = half_from_float(last[t * hd + c]);
            }
        }
    }
    view->exact = take(sample, exact, exact_bytes);
    view->window = take(sample, window, window_bytes);
    free(exact);
    free(window);
}

/* The logit of a query head's key without a value. */
static inline float sink_of_head(uint32_t head) { return 1.5f - 0.5f * (float)head; }

/* out[hd] of a query. */
static inline void expected_row(const struct attend_sample *sample, uint32_t number, uint32_t query_head, const float *q,
                                const float *q_exact, double slope, double *out) {
    const struct sequence *s = &sample->sequences[number];
    uint32_t hd = sample->head_dim, head = query_head / sample->group;
    size_t n = rows_of(s);
    double *logits = allocated(n * sizeof *logits), largest = sample->sinks ? (double)sink_of_head(query_head) : -INFINITY, sum = 0;
    const double cap = (double)sample->cap;
    for (size_t r = 0; r < n; r++) {
        bool exact = r < s->exact, of_page = !exact && r < s->exact + (size_t)PAGE_TOKENS * s->pages;
        uint32_t slot = (uint32_t)(r - s->exact);
        logits[r] = -INFINITY;
        if (r + s->evicted > position_of(s)) continue;
        if (of_page && !(sample->live[number][head][slot / PAGE_TOKENS] >> slot % PAGE_TOKENS & 1)) continue;
        const float *key = sample->rows[number][head][0] + r * hd, *query = exact ? q_exact : q;
        double position = (double)r + s->evicted, product = 0; /* exact rows stand before the first that is not evicted */
        for (uint32_t c = 0; c < hd; c++) product += (double)query[c] * (double)key[c];
        logits[r] = (double)sample->attend.heads.scale * product;
        if (cap > 0) logits[r] = cap * tanh(logits[r] / cap);
        logits[r] += slope * (position - position_of(s));
        largest = fmax(largest, logits[r]);
    }
    memset(out, 0, hd * sizeof *out);
    if (sample->sinks) sum = exp((double)sink_of_head(query_head) - largest);
    for (size_t r = 0; r < n; r++) {
        double weight = exp(logits[r] - largest);
        if (weight == 0) continue;
        sum += weight;
        for (uint32_t c = 0; c < hd; c++) out[c] += weight * (double)sample->rows[number][head][1][r * hd + c];
    }
    for (uint32_t c = 0; c < hd; c++) out[c] /= sum;
    free(logits);
}

/* Returns the worst relative error of a head's result as a whole: the length of the difference over the length of the result. */
static inline double worst_error(const struct attend_sample *sample, const float *q, const float *q_exact, const float *slopes,
                                 const float *out) {
    uint32_t hd = sample->head_dim, heads = sample->kv_heads * sample->group;
    double worst = 0, *row = allocated(hd * sizeof *row);
    for (uint32_t r = 0; r < SEQUENCES; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            size_t at = ((size_t)r * heads + h) * hd;
            double difference = 0, length = 0;
            expected_row(sample, r, h, q + at, q_exact + at, slopes ? (double)slopes[h] : 0, row);
            for (uint32_t c = 0; c < hd; c++) {
                difference += pow((double)out[at + c] - row[c], 2);
                length += row[c] * row[c];
            }
            double error = sqrt(difference / length);
            if (!(error <= worst)) worst = error; /* NaN, too */
        }
    }
    free(row);
    return worst;
}

#define MULTIPROCESSOR_PARTS 12 /* with which a CTA reads several parts of rows that have as many */

/* Runs it twice, the second time with CTAs that may read several parts, which gives the same bits; returns the worst error, and frees what
 * was made but for the test's own. */
static inline double check_attention(struct attend_sample *sample) {
    uint32_t hd = sample->head_dim, heads = sample->kv_heads * sample->group, positions = 0;
    size_t n = (size_t)SEQUENCES * heads * hd;
    float *q = allocated(n * sizeof *q), *q_exact = allocated(n * sizeof *q), *out = allocated(n * sizeof *q),
          *first = allocated(n * sizeof *q), slopes[64], sinks[LAYERS * 64];
    struct query_row_view rows[SEQUENCES];
    struct attend_decode *attend = &sample->attend;
    uint32_t parts = 0; /* of all sequences */
    make_places(sample);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        const struct sequence *s = &sample->sequences[i];
        for (uint32_t h = 0; h < sample->kv_heads; h++)
            for (int side = 0; side < 2; side++) sample->rows[i][h][side] = allocated(rows_of(s) * hd * sizeof(float));
        make_pages(sample, i);
        make_lists(sample, i);
        make_halves(sample, i);
        rows[i] = (struct query_row_view){.sequence = i, .position = position_of(s), .splits = s->splits, .first_part = parts};
        parts += s->splits;
        attend->splits = s->splits > attend->splits ? s->splits : attend->splits;
        positions = position_of(s) > positions ? position_of(s) : positions;
    }
    for (size_t i = 0; i < n; i++) { /* sizes differ by row and head: kernels scale each query by a power of two of its own */
        const size_t head = i / hd;
        const float size = exp2f(-(float)((head / heads + head) % 3));
        q[i] = size * (float)random_normal(), q_exact[i] = size * (float)random_normal();
    }
    for (uint32_t h = 0; h < heads; h++) slopes[h] = exp2f(-8.0f * (float)(h + 1) / (float)heads);
    for (uint32_t i = 0; i < LAYERS * heads; i++) sinks[i] = i / heads == LAYER ? sink_of_head(i % heads) : NAN;
    attend->heads = (struct head_view){.layers = LAYERS,
                                       .query_heads = heads,
                                       .kv_heads = sample->kv_heads,
                                       .head_dim = hd,
                                       .scale = 1 / sqrtf((float)hd),
                                       .n_rot = sample->n_rot,
                                       .pairing = sample->pairing,
                                       .magnitude = sample->magnitude > 0 ? sample->magnitude : 1,
                                       .slopes = sample->slopes ? take(sample, slopes, sizeof slopes) : NULL,
                                       .sinks = sample->sinks ? take(sample, sinks, sizeof sinks) : NULL,
                                       .cap = sample->cap};
    attend->multiprocessors = (1 + attend->splits % 2) * sample->kv_heads; /* so that warps go from one sequence to the next, too */
    attend->layer = LAYER, attend->n_rows = SEQUENCES, attend->runs = positions / ROPE_RUN_TOKENS + 1, attend->run_step = 1;
    for (int side = 0; side < 2; side++) attend->codec[side] = sample->codec[side]->id;
    size_t part_floats = attend_decode_part_floats(&attend->heads, attend->codec[0], SEQUENCES, attend->splits);
    size_t run_words = attend_decode_run_words(&attend->heads, attend->codec[0], SEQUENCES, attend->runs);
    float *nan = allocated((part_floats + n + run_words) * sizeof *nan);
    memset(nan, 0xff, (part_floats + n + run_words) * sizeof *nan);
    uint32_t arrived[SEQUENCES * HEADS_MOST] = {0}, left[SEQUENCES * HEADS_MOST];
    if (sample->prepare) sample->prepare(sample, rows);
    attend->run_angles = make_angles(sample, attend->runs, ROPE_RUN_TOKENS);
    attend->places = take(sample, sample->places, sizeof sample->places);
    attend->sequences = take(sample, sample->views, sizeof sample->views);
    attend->rows = take(sample, rows, sizeof rows);
    attend->q_exact = take(sample, q_exact, n * sizeof *q);
    attend->parts = take(sample, nan, part_floats * sizeof *nan);
    attend->run_queries = take(sample, nan, run_words * sizeof *nan);
    attend->arrived = take(sample, arrived, sizeof arrived);
    double worst = 0;
    for (int run = 0; run < 2; run++) {
        attend->q = take(sample, q, n * sizeof *q);
        attend->out = sample->in_place ? (float *)attend->q : take(sample, nan, n * sizeof *nan);
        assert_true(attend_decode_supports(&attend->heads, attend->codec, attend->centroid));
        if (sample->choose) sample->choose(sample, q);
        attend->multiprocessor_parts = run ? MULTIPROCESSOR_PARTS : 0;
        assert_int_equal(attend_decode_launch(attend, device_stream()), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_int_equal(device_fetch(out, attend->out, n * sizeof *out), cudaSuccess);
        if (!run) memcpy(first, out, n * sizeof *out);
        assert_memory_equal(out, first, n * sizeof *out);
        assert_int_equal(device_fetch(left, attend->arrived, sizeof left), cudaSuccess);
        assert_memory_equal(left, arrived, sizeof left);
        double error = worst_error(sample, q, q_exact, sample->slopes ? slopes : NULL, out);
        if (!(error <= worst)) worst = error;
    }
    while (sample->n_memory) assert_int_equal(cudaFree(sample->memory[--sample->n_memory]), cudaSuccess);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        for (uint32_t h = 0; h < sample->kv_heads; h++)
            for (int side = 0; side < 2; side++) free(sample->rows[i][h][side]);
    free(q), free(q_exact), free(out), free(first), free(nan);
    return worst;
}

#endif
