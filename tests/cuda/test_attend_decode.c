/* A decoding step's attention on the GPU against the same in double precision over what the CPU's codecs decode: all codecs and pairs of them,
 * head sizes and groups; rows of several sequences of different lengths in one launch, read in one part and in many; exact rows, windows that
 * wrap, pages of which a part is evicted or was never filled; ALiBi. What must not be read is NaN. */
#include "backend/cpu/codec/codec.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_decode.h"
#include "base/half.h"
#include "base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Of a head's result as a whole: length of the difference by length of the result. What is rounded to halves is queries, by at most 2^-12 of a
 * channel, of which one times a key's largest makes up most of a logit of some units; then weights and their products with scales. Of keys of
 * kivi it is queries times scales, whose products with codes are larger than the key: a zero takes much of them back. Codes and sums are
 * exact but for fp32. */
#define BOUND 2.5e-3
#define BOUND_KIVI_KEYS 6e-3

#define LAYERS 2
#define LAYER 1
#define SEQUENCES 3
#define SETS 3 /* page sets of a chunk */
#define EXACT_CAPACITY 24
#define WINDOW_CAPACITY 128

static const char *const names[] = {"f16", "q8_0", "q4_0", "kivi-4", "kivi-2"};

static double bound_of(enum codec_id keys) { return keys < CODEC_KIVI_4 ? BOUND : BOUND_KIVI_KEYS; }

/* A sequence: exact rows, evicted tokens, pages, a window. */
struct sequence {
    uint32_t exact, evicted, pages, begin, end; /* slots of the first page from `begin` on, of the last before `end` */
    uint32_t window, origin;                    /* tokens of the window; its ring begins so many tokens before it */
    uint32_t splits;
};

struct setup {
    enum codec_id codec[2];
    uint32_t head_dim, kv_heads, group;
    struct sequence sequences[SEQUENCES];
    bool slopes, in_place;
};

static uint64_t state = 1;

static float random_normal(void) {
    double u = random_uniform(random_next(&state)) + 0x1p-54, v = random_uniform(random_next(&state));
    return (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

static void *allocated(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

static void *on_device(const void *data, size_t bytes) {
    void *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, bytes ? bytes : 1), cudaSuccess);
    assert_int_equal(device_send(memory, data, bytes), cudaSuccess);
    return memory;
}

/* Rows of a sequence's one KV head as they are to be read, with their tokens and what they are rotated for. */
struct read_row {
    const float *row[2];
    double position;
    bool exact;
};

/* Rows of keys have a channel far larger than the others, as models' have. */
static void random_rows(enum codec_side side, uint32_t hd, size_t n, float *rows) {
    for (size_t i = 0; i < n * hd; i++) {
        rows[i] = random_normal() * (side == CODEC_KEYS && i % hd == 5 ? 8 : 1);
        rows[i] = half_to_float(half_from_float(rows[i]));
    }
}

/* What is compared, and what is taken to the device. */
struct made {
    const struct setup *setup;
    struct place_view places[LAYERS * 4];
    size_t set_bytes;
    struct sequence_view views[SEQUENCES];
    float *rows[SEQUENCES][4][2]; /* [sequence][head][side]: exact rows, pages' decoded rows, the window's */
    void *memory[64];             /* of the device */
    size_t n_memory;
};

static void *take(struct made *made, const void *data, size_t bytes) {
    assert_true(made->n_memory < 64);
    return made->memory[made->n_memory++] = on_device(data, bytes);
}

static uint32_t first_token(const struct sequence *s) { return s->exact + s->evicted; } /* of the first page, or of the window */
static uint32_t window_first(const struct sequence *s) { return first_token(s) + PAGE_TOKENS * s->pages; }
static uint32_t position_of(const struct sequence *s) { return window_first(s) + s->window - 1; }
static size_t rows_of(const struct sequence *s) { return s->exact + PAGE_TOKENS * s->pages + s->window; }

static void make_places(struct made *made) {
    const struct setup *setup = made->setup;
    for (uint32_t i = 0; i < LAYERS * setup->kv_heads; i++) {
        made->places[i].offset = made->set_bytes;
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct codec_shape shape = {.head_dim = setup->head_dim, .group = setup->group};
            made->places[i].bytes[side] = (uint32_t)codec_page_bytes(codec_at(setup->codec[side]), shape, side);
            made->set_bytes += made->places[i].bytes[side];
        }
    }
}

/* Pages of all heads in chunks; decoded rows of each. */
static void make_pages(struct made *made, uint32_t number) {
    const struct setup *setup = made->setup;
    const struct sequence *s = &setup->sequences[number];
    uint32_t hd = setup->head_dim, chunks = (s->pages + SETS - 1) / SETS;
    struct page_set_view *sets = allocated(s->pages * sizeof *sets);
    uint8_t *chunk = allocated(made->set_bytes * SETS);
    float *rows = allocated(sizeof *rows * PAGE_TOKENS * hd);
    for (uint32_t c = 0; c < chunks; c++) {
        memset(chunk, 0xff, made->set_bytes * SETS);
        for (uint32_t index = 0; index < SETS && c * SETS + index < s->pages; index++) {
            uint32_t page = c * SETS + index;
            sets[page] = (struct page_set_view){.chunk = chunk, .sets = SETS, .index = index, .end = PAGE_TOKENS};
            sets[page].first = first_token(s) + PAGE_TOKENS * page;
            if (page == 0) sets[page].begin = (uint16_t)s->begin;
            if (page + 1 == s->pages) sets[page].end = (uint16_t)s->end;
            for (uint32_t head = 0; head < setup->kv_heads; head++) {
                for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
                    const struct cpu_codec *codec = cpu_codec_of(codec_at(setup->codec[side]));
                    struct codec_shape shape = {.head_dim = hd, .group = setup->group};
                    void *to = page_address(&sets[page], &made->places[LAYER * setup->kv_heads + head], side);
                    random_rows(side, hd, PAGE_TOKENS, rows);
                    codec->encode(shape, side, rows, sets[page].end, to);
                    codec->decode(shape, side, to, made->rows[number][head][side] + (s->exact + (size_t)PAGE_TOKENS * page) * hd);
                }
            }
        }
        void *there = take(made, chunk, made->set_bytes * SETS);
        for (uint32_t index = 0; index < SETS && c * SETS + index < s->pages; index++) sets[c * SETS + index].chunk = there;
    }
    made->views[number].page_sets = take(made, sets, s->pages * sizeof *sets);
    made->views[number].n_sealed = s->pages;
    free(sets);
    free(chunk);
    free(rows);
}

/* The exact rows and the window, in halves. */
static void make_halves(struct made *made, uint32_t number) {
    const struct setup *setup = made->setup;
    const struct sequence *s = &setup->sequences[number];
    struct sequence_view *view = &made->views[number];
    size_t hd = setup->head_dim, heads = (size_t)LAYERS * setup->kv_heads * 2;
    size_t exact_bytes = heads * EXACT_CAPACITY * hd * 2, window_bytes = heads * WINDOW_CAPACITY * hd * 2;
    uint16_t *exact = allocated(exact_bytes), *window = allocated(window_bytes);
    memset(exact, 0xff, exact_bytes); /* NaN */
    memset(window, 0xff, window_bytes);
    view->n_exact = s->exact, view->exact_capacity = EXACT_CAPACITY, view->evicted = s->evicted;
    view->window_capacity = WINDOW_CAPACITY, view->window_first = window_first(s),
    view->window_origin = window_first(s) - s->origin;
    for (uint32_t head = 0; head < setup->kv_heads; head++) {
        for (size_t side = 0; side < 2; side++) {
            float *rows = made->rows[number][head][side], *last = rows + (s->exact + (size_t)PAGE_TOKENS * s->pages) * hd;
            size_t at = ((size_t)LAYER * setup->kv_heads + head) * 2 + side;
            random_rows((enum codec_side)side, setup->head_dim, s->exact, rows);
            random_rows((enum codec_side)side, setup->head_dim, s->window, last);
            for (size_t i = 0; i < s->exact * hd; i++) exact[at * EXACT_CAPACITY * hd + i] = half_from_float(rows[i]);
            for (uint32_t t = 0; t < s->window; t++) {
                uint16_t *to = window + (at * WINDOW_CAPACITY + window_row(view, view->window_first + t)) * hd;
                for (size_t c = 0; c < hd; c++) to[c] = half_from_float(last[t * hd + c]);
            }
        }
    }
    view->exact = take(made, exact, exact_bytes);
    view->window = take(made, window, window_bytes);
    free(exact);
    free(window);
}

/* out[hd] of a query. */
static void expected(const struct made *made, uint32_t number, uint32_t head, const float *q, const float *q_exact, double scale,
                     double slope, double *out) {
    const struct sequence *s = &made->setup->sequences[number];
    uint32_t hd = made->setup->head_dim;
    size_t n = rows_of(s);
    double *logits = allocated(n * sizeof *logits), largest = -INFINITY, sum = 0;
    for (size_t r = 0; r < n; r++) {
        bool exact = r < s->exact, of_page = !exact && r < s->exact + (size_t)PAGE_TOKENS * s->pages;
        uint32_t slot = (uint32_t)(r - s->exact);
        logits[r] = -INFINITY;
        if (of_page && slot < s->begin) continue;
        if (of_page && slot >= PAGE_TOKENS * (s->pages - 1) + s->end) continue;
        const float *key = made->rows[number][head][0] + r * hd, *query = exact ? q_exact : q;
        double position = (double)r + s->evicted, product = 0; /* exact rows stand before the first that is not evicted */
        for (uint32_t c = 0; c < hd; c++) product += (double)query[c] * key[c];
        logits[r] = scale * product + slope * (position - position_of(s));
        largest = fmax(largest, logits[r]);
    }
    memset(out, 0, hd * sizeof *out);
    for (size_t r = 0; r < n; r++) {
        double weight = exp(logits[r] - largest);
        if (weight == 0) continue;
        sum += weight;
        for (uint32_t c = 0; c < hd; c++) out[c] += weight * made->rows[number][head][1][r * hd + c];
    }
    for (uint32_t c = 0; c < hd; c++) out[c] /= sum;
    free(logits);
}

static double worst_of(const struct made *made, const float *q, const float *q_exact, double scale, const float *slopes,
                       const float *out) {
    const struct setup *setup = made->setup;
    uint32_t hd = setup->head_dim, heads = setup->kv_heads * setup->group;
    double worst = 0, *row = allocated(hd * sizeof *row);
    for (uint32_t r = 0; r < SEQUENCES; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            size_t at = ((size_t)r * heads + h) * hd;
            double difference = 0, length = 0;
            expected(made, r, h / setup->group, q + at, q_exact + at, scale, slopes ? slopes[h] : 0, row);
            for (uint32_t c = 0; c < hd; c++) {
                difference += (out[at + c] - row[c]) * (out[at + c] - row[c]);
                length += row[c] * row[c];
            }
            double error = sqrt(difference / length);
            if (!(error <= worst)) worst = error; /* NaN, too */
        }
    }
    free(row);
    return worst;
}

/* Runs it twice; returns the worst error. */
static double check(const struct setup *setup) {
    struct made made = {.setup = setup};
    uint32_t hd = setup->head_dim, heads = setup->kv_heads * setup->group;
    size_t n = (size_t)SEQUENCES * heads * hd;
    float *q = allocated(n * sizeof *q), *q_exact = allocated(n * sizeof *q), *out = allocated(n * sizeof *q), slopes[64];
    make_places(&made);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        for (uint32_t h = 0; h < setup->kv_heads; h++)
            for (int side = 0; side < 2; side++)
                made.rows[i][h][side] = allocated(rows_of(&setup->sequences[i]) * hd * sizeof(float));
        make_pages(&made, i);
        make_halves(&made, i);
    }
    for (size_t i = 0; i < n; i++) q[i] = random_normal(), q_exact[i] = random_normal();
    for (uint32_t h = 0; h < heads; h++) slopes[h] = exp2f(-8.0f * (float)(h + 1) / (float)heads);
    struct query_row_view rows[SEQUENCES];
    uint32_t splits = 0;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        const struct sequence *s = &setup->sequences[i];
        rows[i] = (struct query_row_view){.sequence = i, .position = position_of(s), .splits = s->splits};
        splits = s->splits > splits ? s->splits : splits;
    }
    struct head_view view = {.layers = LAYERS, .query_heads = heads, .kv_heads = setup->kv_heads, .head_dim = hd};
    view.scale = 1 / sqrtf((float)hd);
    if (setup->slopes) view.slopes = take(&made, slopes, sizeof slopes);
    size_t part_floats = attend_decode_part_floats(&view, SEQUENCES, splits);
    float *nan = allocated((part_floats + n) * sizeof *nan);
    memset(nan, 0xff, (part_floats + n) * sizeof *nan);
    uint32_t *arrived = calloc((size_t)SEQUENCES * setup->kv_heads, sizeof *arrived);
    assert_non_null(arrived);
    struct attend_decode attend = {.heads = view, .layer = LAYER, .codec = {setup->codec[0], setup->codec[1]}, .n_rows = SEQUENCES};
    attend.splits = splits;
    attend.places = take(&made, made.places, sizeof made.places);
    attend.sequences = take(&made, made.views, sizeof made.views);
    attend.rows = take(&made, rows, sizeof rows);
    attend.q_exact = take(&made, q_exact, n * sizeof *q);
    attend.parts = take(&made, nan, part_floats * sizeof *nan);
    attend.arrived = take(&made, arrived, (size_t)SEQUENCES * setup->kv_heads * sizeof *arrived);
    double worst = 0;
    for (int run = 0; run < 2; run++) {
        attend.q = take(&made, q, n * sizeof *q);
        attend.out = setup->in_place ? (float *)attend.q : take(&made, nan, n * sizeof *nan);
        assert_true(attend_decode_supports(&attend.heads, attend.codec));
        assert_int_equal(attend_decode_launch(&attend, device_stream()), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_int_equal(device_fetch(out, attend.out, n * sizeof *out), cudaSuccess);
        uint32_t *left = allocated((size_t)SEQUENCES * setup->kv_heads * sizeof *left);
        assert_int_equal(device_fetch(left, attend.arrived, (size_t)SEQUENCES * setup->kv_heads * sizeof *left), cudaSuccess);
        assert_memory_equal(left, arrived, (size_t)SEQUENCES * setup->kv_heads * sizeof *left);
        free(left);
        double error = worst_of(&made, q, q_exact, view.scale, setup->slopes ? slopes : NULL, out);
        if (!(error <= worst)) worst = error;
    }
    while (made.n_memory) assert_int_equal(cudaFree(made.memory[--made.n_memory]), cudaSuccess);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        for (uint32_t h = 0; h < setup->kv_heads; h++)
            for (int side = 0; side < 2; side++) free(made.rows[i][h][side]);
    free(q), free(q_exact), free(out), free(nan), free(arrived);
    return worst;
}

#ifdef TERSE_EMULATED_CUDA
#define MANY_PAGES 17 /* the host takes its time */
#define KV_HEADS 1
#else
#define MANY_PAGES 41
#define KV_HEADS 2
#endif

/* Of no page; of some; of many, its first and its last in part. */
static const struct sequence SOME[SEQUENCES] = {
    {.exact = 4, .evicted = 0, .pages = 0, .window = 37, .origin = 0, .splits = 1},
    {.exact = 0, .evicted = 0, .pages = 11, .begin = 0, .end = 64, .window = 1, .origin = 100, .splits = 3},
    {.exact = 20, .evicted = 77, .pages = MANY_PAGES, .begin = 23, .end = 51, .window = 90, .origin = 70, .splits = 7},
};

static void report(const struct setup *setup) {
    double error = check(setup);
    if (!(error <= bound_of(setup->codec[0])))
        fail_msg("keys %s, values %s, head_dim %u, group %u: %g", names[setup->codec[0]], names[setup->codec[1]], setup->head_dim,
                 setup->group, error);
}

static struct setup setup_of(enum codec_id keys, enum codec_id values, uint32_t hd, uint32_t group) {
    struct setup setup = {.codec = {keys, values}, .head_dim = hd, .kv_heads = KV_HEADS, .group = group};
    memcpy(setup.sequences, SOME, sizeof SOME);
    return setup;
}

static const uint32_t head_dims[] = {64, 96, 128, 256}, groups[] = {1, 2, 4, 7, 8, 16};

static bool supported(enum codec_id keys, enum codec_id values, uint32_t hd) {
    struct head_view view = {.query_heads = 2, .kv_heads = 2, .head_dim = hd};
    return attend_decode_supports(&view, (enum codec_id[2]){keys, values});
}

static void codecs_heads_and_groups(void **unused) {
    (void)unused;
    for (enum codec_id codec = CODEC_F16; codec <= CODEC_KIVI_2; codec++) {
        double worst = 0;
        for (size_t d = 0; d < 4; d++) {
            for (size_t g = 0; g < 6; g++) {
                if (!supported(codec, codec, head_dims[d])) continue;
                struct setup setup = setup_of(codec, codec, head_dims[d], groups[g]);
                setup.in_place = g % 2;
                double error = check(&setup);
                if (!(error <= bound_of(codec)))
                    print_message("%s, head_dim %u, group %u: %g\n", names[codec], head_dims[d], groups[g], error);
                if (!(error <= worst)) worst = error;
            }
        }
        print_message("%s: %.2g\n", names[codec], worst);
        assert_true(worst <= bound_of(codec));
    }
}

static void pairs_of_codecs(void **unused) {
    (void)unused;
    size_t n = 0;
    for (enum codec_id keys = CODEC_F16; keys <= CODEC_KIVI_2; keys++) {
        for (enum codec_id values = CODEC_F16; values <= CODEC_KIVI_2; values++) {
            for (size_t d = 0; d < 4; d++, n++) {
                if (keys == values || !supported(keys, values, head_dims[d])) continue;
                struct setup setup = setup_of(keys, values, head_dims[d], n % 3 ? groups[n % 5] : 16);
                report(&setup);
            }
        }
    }
}

static void slopes(void **unused) {
    (void)unused;
    for (enum codec_id codec = CODEC_F16; codec <= CODEC_KIVI_2; codec++) {
        struct setup setup = setup_of(codec, codec, 128, codec == CODEC_F16 ? 12 : 3);
        setup.slopes = true;
        report(&setup);
    }
}

/* From one part to more than there are pages. */
static void parts(void **unused) {
    (void)unused;
    for (uint32_t n = 1; n <= 90; n += n < 4 ? 1 : 17) {
        for (enum codec_id codec = CODEC_F16; codec <= CODEC_Q4_0; codec++) {
            struct setup setup = setup_of(codec, codec, 128, 4);
            for (uint32_t i = 0; i < SEQUENCES; i++) setup.sequences[i].splits = 1 + (n - 1) * (i + 1) / SEQUENCES;
            report(&setup);
        }
    }
}

static void splits_are_chosen(void **unused) {
    (void)unused;
    struct head_view view = {.query_heads = 32, .kv_heads = 8, .head_dim = 128};
    assert_int_equal(attend_decode_splits(&view, CODEC_F16, 132, 1, 0), 1);
    assert_true(attend_decode_splits(&view, CODEC_F16, 132, 1, 512) > attend_decode_splits(&view, CODEC_F16, 132, 8, 512));
    assert_int_equal(attend_decode_splits(&view, CODEC_F16, 132, 1000, 512), 1);
}

int main(void) {
    struct terse_error error;
    if (device_available(&error)) {
        fprintf(stderr, "skipped: %s\n", error.message);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codecs_heads_and_groups),
        cmocka_unit_test(pairs_of_codecs),
        cmocka_unit_test(slopes),
        cmocka_unit_test(parts),
        cmocka_unit_test(splits_are_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
