/* A decoding step's attention over pages of codec transform on the GPU against the same in double precision over what the CPU's codec decodes:
 * rates, head sizes and groups; rows of several sequences of different lengths in one launch, read in one part and in many; runs of keys,
 * turned by rope in both pairings, wholly and in part; exact rows, windows that wrap, pages of which a part is evicted or was never filled;
 * ALiBi; parameters of the profile and those fitted to a sequence. What must not be read is NaN. */
#include "backend/cpu/codec/codec.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_decode.h"
#include "backend/cuda/kv/transforms.h"
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

/* Of a head's result as a whole: length of the difference by length of the result. Queries that are turned to a run and the basis are rounded to
 * halves, each by at most 2^-12 of itself, weights of rows of halves likewise; all that happens on codes is exact or within 2^-15. */
#define BOUND 1e-3

#define LAYERS 2
#define LAYER 1
#define HEADS 2
#define SEQUENCES 3
#define SETS 5 /* page sets of a chunk */
#define EXACT_CAPACITY 24
#define WINDOW_CAPACITY 128

/* A sequence: exact rows, evicted tokens, pages, a window. */
struct sequence {
    uint32_t exact, evicted, pages, begin, end; /* slots of the first page from `begin` on, of the last before `end` */
    uint32_t window, origin;                    /* tokens of the window; its ring begins so many tokens before it */
    uint32_t splits;
};

struct setup {
    double rate[2];
    uint32_t head_dim, group, n_rot;
    enum rope_pairing pairing;
    struct sequence sequences[SEQUENCES];
    bool slopes, in_place, fitted;
};

static uint64_t state = 1;

static double random_normal(void) {
    double u = random_uniform(random_next(&state)) + 0x1p-54, v = random_uniform(random_next(&state));
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static void *allocated(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    assert_non_null(memory);
    return memory;
}

/* Of a layer's head and side. */
struct side {
    float *parameters;
    struct transform_layout layout;
    void *learned;
};

struct made {
    const struct setup *setup;
    struct side sides[HEADS][2];
    struct place_view places[LAYERS * HEADS];
    size_t set_bytes;
    float *fitted[SEQUENCES]; /* [LAYERS][HEADS][2][fitted floats] */
    struct sequence_view views[SEQUENCES];
    float *rows[SEQUENCES][HEADS][2]; /* exact rows, pages' decoded rows, the window's */
    void *memory[128];                /* of the device */
    size_t n_memory;
};

static void *take(struct made *made, const void *data, size_t bytes) {
    void *memory = NULL;
    assert_true(made->n_memory < 128);
    assert_int_equal(cudaMalloc(&memory, bytes ? bytes : 1), cudaSuccess);
    assert_int_equal(device_send(memory, data, bytes), cudaSuccess);
    return made->memory[made->n_memory++] = memory;
}

/* A basis that is a product of reflections, each row of a length of its own; sizes that fall. */
static void make_parameters(uint32_t hd, float *floats) {
    float *mean = floats, *size = mean + hd, *basis = size + hd, *rest = basis + (size_t)hd * hd;
    double square = 0, own = 1, v[CODEC_HEAD_DIM_MAX];
    for (size_t c = 0; c < hd; c++, own *= pow(0.02, 1.0 / hd)) {
        mean[c] = (float)random_normal();
        size[c] = (float)own;
        square += own * own;
        for (size_t ch = 0; ch < hd; ch++) basis[c * hd + ch] = c == ch ? (float)(1 + 0.3 * random_normal() / 3) : 0;
    }
    for (size_t c = 0; c < hd; c++) size[c] *= (float)sqrt(hd / square);
    for (int reflection = 0; reflection < 5; reflection++) {
        double norm = 0;
        for (size_t ch = 0; ch < hd; ch++) v[ch] = random_normal(), norm += v[ch] * v[ch];
        for (size_t c = 0; c < hd; c++) {
            double dot = 0;
            for (size_t ch = 0; ch < hd; ch++) dot += v[ch] * (double)basis[c * hd + ch];
            for (size_t ch = 0; ch < hd; ch++) basis[c * hd + ch] -= (float)(2 * dot / norm * v[ch]);
        }
    }
    rest[0] = 0.1f, rest[1] = 4, rest[2] = 0;
}

static struct codec_shape shape_of(const struct made *made, uint32_t head, enum codec_side side) {
    const struct side *own = &made->sides[head][side];
    return (struct codec_shape){
        .head_dim = made->setup->head_dim, .group = made->setup->group, .layout = &own->layout, .learned = own->learned};
}

static void make_sides(struct made *made, struct transform_view views[LAYERS][HEADS][2]) {
    const uint32_t hd = made->setup->head_dim;
    uint16_t *halves = allocated((size_t)hd * hd * 2);
    uint32_t readers[6 * TRANSFORM_PLANES_MAX];
    for (uint32_t head = 0; head < HEADS; head++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct side *own = &made->sides[head][side];
            uint8_t bits[TRANSFORM_QUADS_MAX] = {0};
            own->parameters = allocated(transform_parameter_floats(hd) * sizeof(float));
            make_parameters(hd, own->parameters);
            struct transform_parameters parameters = transform_parameters_at(own->parameters, hd);
            struct transform_share share = {0, parameters.size, bits};
            transform_share_bits(&share, 1, hd, made->setup->rate[side] * (head ? 0.75 : 1));
            transform_layout_set(bits, hd, &own->layout);
            assert_int_equal(
                cpu_codec_transform.learned_new(shape_of(made, head, side), side, own->parameters, &own->learned, NULL), TERSE_OK);
            for (size_t i = 0; i < (size_t)hd * hd; i++) halves[i] = half_from_float(parameters.basis[i]);
            transform_readers(&own->layout, side, readers);
            views[LAYER][head][side] =
                (struct transform_view){.layout = own->layout,
                                        .gain_least = parameters.gain_least,
                                        .gain_step = (parameters.gain_most - parameters.gain_least) / 255,
                                        .mean = take(made, parameters.mean, hd * sizeof(float)),
                                        .size = take(made, parameters.size, hd * sizeof(float)),
                                        .basis = take(made, parameters.basis, (size_t)hd * hd * sizeof(float)),
                                        .basis_half = take(made, halves, (size_t)hd * hd * 2),
                                        .readers = take(made, readers, transform_reader_words(&own->layout) * sizeof *readers),
                                        .wraps = transform_wraps(&own->layout, side)};
        }
    }
    free(halves);
}

static void make_places(struct made *made) {
    for (uint32_t i = 0; i < LAYERS * HEADS; i++) {
        made->places[i].offset = made->set_bytes;
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            made->places[i].bytes[side] = (uint32_t)codec_page_bytes(&codec_transform, shape_of(made, i % HEADS, side), side);
            made->set_bytes += made->places[i].bytes[side];
        }
    }
}

/* Fitted numbers of a sequence: a mean of its own, sizes in any order. */
static void make_fitted(struct made *made, uint32_t number) {
    const uint32_t hd = made->setup->head_dim;
    const size_t own = transform_fitted_floats(hd), all = own * LAYERS * HEADS * 2;
    float *floats = allocated(all * sizeof *floats);
    memset(floats, 0xff, all * sizeof *floats);
    for (uint32_t head = 0; head < HEADS; head++) {
        for (size_t side = 0; side < 2; side++) {
            float *to = floats + ((LAYER * HEADS + head) * 2 + side) * own;
            const float *size = made->sides[head][side].parameters + hd;
            for (size_t c = 0; c < hd; c++)
                to[c] = (float)random_normal(), to[hd + c] = size[c] * (float)exp(0.3 * random_normal());
            to[2 * hd] = 0.05f, to[2 * hd + 1] = 5;
        }
    }
    made->fitted[number] = floats;
    made->views[number].fitted = take(made, floats, all * sizeof *floats);
}

static uint32_t first_token(const struct sequence *s) { return s->exact + s->evicted; } /* of the first page, or of the window */
static uint32_t window_first(const struct sequence *s) { return first_token(s) + PAGE_TOKENS * s->pages; }
static uint32_t position_of(const struct sequence *s) { return window_first(s) + s->window - 1; }
static size_t rows_of(const struct sequence *s) { return s->exact + (size_t)PAGE_TOKENS * s->pages + s->window; }

static void rope_of(const struct setup *setup, float *frequency, struct rope *rope) {
    for (uint32_t i = 0; i < setup->n_rot / 2; i++) frequency[i] = (float)pow(10000, -2.0 * i / setup->n_rot);
    *rope = (struct rope){setup->pairing, setup->head_dim, setup->n_rot, frequency, 1};
}

/* Rows as the parameters have them; keys as they lie in a page of a run. */
static void random_rows(struct codec_shape shape, enum codec_side side, const float *parameters, float *rows) {
    const uint32_t hd = shape.head_dim;
    struct transform_parameters own = transform_parameters_at(parameters, hd);
    const float *mean = shape.fitted ? (const float *)shape.fitted : own.mean;
    (void)side;
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        double gain = exp(random_uniform(random_next(&state)) - 0.5);
        for (size_t ch = 0; ch < hd; ch++) rows[t * hd + ch] = mean[ch];
        for (size_t c = 0; c < hd; c++) {
            float y = (float)(gain * random_normal()) * own.size[c];
            for (size_t ch = 0; ch < hd; ch++) rows[t * hd + ch] += y * own.basis[c * hd + ch];
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
    float *rows = allocated(sizeof *rows * PAGE_TOKENS * hd), frequency[CODEC_HEAD_DIM_MAX], cosine[CODEC_HEAD_DIM_MAX],
          sine[CODEC_HEAD_DIM_MAX];
    struct rope rope;
    rope_of(setup, frequency, &rope);
    for (uint32_t c = 0; c < chunks; c++) {
        memset(chunk, 0xff, made->set_bytes * SETS);
        for (uint32_t index = 0; index < SETS && c * SETS + index < s->pages; index++) {
            uint32_t page = c * SETS + index;
            sets[page] = (struct page_set_view){.chunk = chunk, .sets = SETS, .index = index, .end = PAGE_TOKENS};
            sets[page].first = first_token(s) + PAGE_TOKENS * page;
            if (page == 0) sets[page].begin = (uint16_t)s->begin;
            if (page + 1 == s->pages) sets[page].end = (uint16_t)s->end;
            rope_angles(&rope, run_of(sets[page].first), cosine, sine);
            for (uint32_t head = 0; head < HEADS; head++) {
                for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
                    struct codec_shape shape = shape_of(made, head, side);
                    if (made->fitted[number])
                        shape.fitted = made->fitted[number] + ((LAYER * HEADS + head) * 2 + side) * transform_fitted_floats(hd);
                    void *to = page_address(&sets[page], &made->places[LAYER * HEADS + head], side);
                    float *decoded = made->rows[number][head][side] + (s->exact + (size_t)PAGE_TOKENS * page) * hd;
                    random_rows(shape, side, made->sides[head][side].parameters, rows);
                    cpu_codec_transform.encode(shape, side, rows, sets[page].end, to);
                    cpu_codec_transform.decode(shape, side, to, decoded);
                    if (side == CODEC_KEYS && setup->n_rot) rope_rotate(&rope, cosine, sine, decoded, PAGE_TOKENS, hd);
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

static void random_halves(float *rows, size_t n) {
    for (size_t i = 0; i < n; i++) rows[i] = half_to_float(half_from_float((float)random_normal()));
}

/* The exact rows and the window, in halves. */
static void make_halves(struct made *made, uint32_t number) {
    const struct sequence *s = &made->setup->sequences[number];
    struct sequence_view *view = &made->views[number];
    size_t hd = made->setup->head_dim, heads = (size_t)LAYERS * HEADS * 2;
    size_t exact_bytes = heads * EXACT_CAPACITY * hd * 2, window_bytes = heads * WINDOW_CAPACITY * hd * 2;
    uint16_t *exact = allocated(exact_bytes), *window = allocated(window_bytes);
    memset(exact, 0xff, exact_bytes); /* NaN */
    memset(window, 0xff, window_bytes);
    view->n_exact = s->exact, view->exact_capacity = EXACT_CAPACITY, view->evicted = s->evicted;
    view->window_capacity = WINDOW_CAPACITY, view->window_first = window_first(s),
    view->window_origin = window_first(s) - s->origin;
    for (uint32_t head = 0; head < HEADS; head++) {
        for (size_t side = 0; side < 2; side++) {
            float *rows = made->rows[number][head][side], *last = rows + (s->exact + (size_t)PAGE_TOKENS * s->pages) * hd;
            size_t at = ((size_t)LAYER * HEADS + head) * 2 + side;
            random_halves(rows, s->exact * hd);
            random_halves(last, s->window * hd);
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
        for (uint32_t c = 0; c < hd; c++) product += (double)query[c] * (double)key[c];
        logits[r] = scale * product + slope * (position - position_of(s));
        largest = fmax(largest, logits[r]);
    }
    memset(out, 0, hd * sizeof *out);
    for (size_t r = 0; r < n; r++) {
        double weight = exp(logits[r] - largest);
        if (weight == 0) continue;
        sum += weight;
        for (uint32_t c = 0; c < hd; c++) out[c] += weight * (double)made->rows[number][head][1][r * hd + c];
    }
    for (uint32_t c = 0; c < hd; c++) out[c] /= sum;
    free(logits);
}

static double worst_of(const struct made *made, const float *q, const float *q_exact, double scale, const float *slopes,
                       const float *out) {
    uint32_t hd = made->setup->head_dim, group = made->setup->group, heads = HEADS * group;
    double worst = 0, *row = allocated(hd * sizeof *row);
    for (uint32_t r = 0; r < SEQUENCES; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            size_t at = ((size_t)r * heads + h) * hd;
            double difference = 0, length = 0;
            expected(made, r, h / group, q + at, q_exact + at, scale, slopes ? (double)slopes[h] : 0, row);
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

static const float *make_angles(struct made *made, uint32_t positions) {
    const struct setup *setup = made->setup;
    float frequency[CODEC_HEAD_DIM_MAX], cosine[CODEC_HEAD_DIM_MAX], sine[CODEC_HEAD_DIM_MAX];
    struct rope rope;
    rope_of(setup, frequency, &rope);
    const uint32_t runs = positions / RUN_TOKENS + 1, half = setup->n_rot / 2;
    float *angles = allocated((size_t)runs * setup->n_rot * sizeof *angles);
    for (uint32_t run = 0; run < runs; run++) {
        rope_angles(&rope, (int64_t)run * RUN_TOKENS, cosine, sine);
        for (uint32_t i = 0; i < half; i++)
            angles[((size_t)run * half + i) * 2] = cosine[i], angles[((size_t)run * half + i) * 2 + 1] = sine[i];
    }
    const float *there = take(made, angles, (size_t)runs * setup->n_rot * sizeof *angles);
    free(angles);
    return there;
}

/* Runs it twice; returns the worst error. */
static double check(const struct setup *setup) {
    struct made made = {.setup = setup};
    static struct transform_view views[LAYERS][HEADS][2];
    uint32_t hd = setup->head_dim, heads = HEADS * setup->group, splits = 0, positions = 0;
    size_t n = (size_t)SEQUENCES * heads * hd;
    float *q = allocated(n * sizeof *q), *q_exact = allocated(n * sizeof *q), *out = allocated(n * sizeof *q), slopes[64];
    struct query_row_view rows[SEQUENCES];
    make_sides(&made, views);
    make_places(&made);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        const struct sequence *s = &setup->sequences[i];
        for (uint32_t h = 0; h < HEADS; h++)
            for (int side = 0; side < 2; side++) made.rows[i][h][side] = allocated(rows_of(s) * hd * sizeof(float));
        if (setup->fitted && i != 1) make_fitted(&made, i);
        make_pages(&made, i);
        make_halves(&made, i);
        rows[i] = (struct query_row_view){.sequence = i, .position = position_of(s), .splits = s->splits};
        splits = s->splits > splits ? s->splits : splits;
        positions = position_of(s) > positions ? position_of(s) : positions;
    }
    for (size_t i = 0; i < n; i++) q[i] = (float)random_normal(), q_exact[i] = (float)random_normal();
    for (uint32_t h = 0; h < heads; h++) slopes[h] = exp2f(-8.0f * (float)(h + 1) / (float)heads);
    struct head_view view = {.layers = LAYERS, .query_heads = heads, .kv_heads = HEADS, .head_dim = hd};
    view.scale = 1 / sqrtf((float)hd), view.n_rot = setup->n_rot, view.pairing = setup->pairing;
    if (setup->slopes) view.slopes = take(&made, slopes, sizeof slopes);
    uint32_t runs = positions / RUN_TOKENS + 1;
    size_t part_floats = attend_decode_part_floats(&view, SEQUENCES, splits);
    size_t run_words = attend_decode_run_words(&view, CODEC_TRANSFORM, SEQUENCES, runs);
    float *nan = allocated((part_floats + n + run_words) * sizeof *nan);
    memset(nan, 0xff, (part_floats + n + run_words) * sizeof *nan);
    uint32_t arrived[SEQUENCES * HEADS] = {0}, left[SEQUENCES * HEADS];
    struct attend_decode attend = {
        .heads = view, .layer = LAYER, .codec = {CODEC_TRANSFORM, CODEC_TRANSFORM}, .n_rows = SEQUENCES, .splits = splits};
    attend.run_angles = make_angles(&made, positions);
    attend.places = take(&made, made.places, sizeof made.places);
    attend.transforms = take(&made, views, sizeof views);
    attend.sequences = take(&made, made.views, sizeof made.views);
    attend.rows = take(&made, rows, sizeof rows);
    attend.q_exact = take(&made, q_exact, n * sizeof *q);
    attend.parts = take(&made, nan, part_floats * sizeof *nan);
    for (uint32_t i = 0; i < 2 * LAYERS * HEADS; i++)
        if (made.places[i / 2].bytes[i % 2] > attend.page_bytes[i % 2]) attend.page_bytes[i % 2] = made.places[i / 2].bytes[i % 2];
    attend.run_queries = take(&made, nan, run_words * sizeof *nan);
    attend.runs = runs;
    attend.arrived = take(&made, arrived, sizeof arrived);
    double worst = 0;
    for (int run = 0; run < 2; run++) {
        attend.q = take(&made, q, n * sizeof *q);
        attend.out = setup->in_place ? (float *)attend.q : take(&made, nan, n * sizeof *nan);
        assert_true(attend_decode_supports(&attend.heads, attend.codec));
        assert_int_equal(attend_decode_launch(&attend, device_stream()), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_int_equal(device_fetch(out, attend.out, n * sizeof *out), cudaSuccess);
        assert_int_equal(device_fetch(left, attend.arrived, sizeof left), cudaSuccess);
        assert_memory_equal(left, arrived, sizeof left);
        double error = worst_of(&made, q, q_exact, (double)view.scale, setup->slopes ? slopes : NULL, out);
        if (!(error <= worst)) worst = error;
    }
    while (made.n_memory) assert_int_equal(cudaFree(made.memory[--made.n_memory]), cudaSuccess);
    for (uint32_t h = 0; h < HEADS; h++) {
        for (int side = 0; side < 2; side++) {
            for (uint32_t i = 0; i < SEQUENCES; i++) free(made.rows[i][h][side]);
            cpu_codec_transform.learned_free(made.sides[h][side].learned);
            free(made.sides[h][side].parameters);
        }
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) free(made.fitted[i]);
    free(q), free(q_exact), free(out), free(nan);
    return worst;
}

/* Of no page; of some, read in several parts; of many, read in more parts than there are CTAs' worth of pages. */
static const struct sequence SOME[SEQUENCES] = {
    {.exact = 4, .evicted = 0, .pages = 0, .window = 37, .origin = 0, .splits = 1},
    {.exact = 0, .evicted = 0, .pages = 1, .begin = 0, .end = 64, .window = 1, .origin = 100, .splits = 5},
    {.exact = 20, .evicted = 77, .pages = 27, .begin = 23, .end = 51, .window = 90, .origin = 70, .splits = 7},
};

static struct setup setup_of(double rate, uint32_t hd, uint32_t group) {
    struct setup setup = {.rate = {rate, rate}, .head_dim = hd, .group = group, .n_rot = hd};
    memcpy(setup.sequences, SOME, sizeof SOME);
    return setup;
}

static const uint32_t head_dims[] = {64, 96, 128, 256};

static void report(const struct setup *setup, double *worst) {
    double error = check(setup);
    if (!(error <= BOUND))
        print_message("rates %g and %g, head_dim %u, group %u, n_rot %u: %g\n", setup->rate[0], setup->rate[1], setup->head_dim,
                      setup->group, setup->n_rot, error);
    if (!(error <= *worst)) *worst = error;
}

static void finish(const char *what, double worst) {
    print_message("%s: %.2g\n", what, worst);
    assert_true(worst <= BOUND);
}

static void rates(void **unused) {
    static const double rates[] = {0.5, 1, 1.5, 2, 3, 4, 6, 8};
    double worst = 0;
    (void)unused;
    for (size_t r = 0; r < 8; r++) {
        for (size_t d = 0; d < 4; d++) {
            struct setup setup = setup_of(rates[r], head_dims[d], 4);
            setup.rate[1] = rates[(r + d) % 8];
            setup.in_place = d % 2;
            report(&setup, &worst);
        }
    }
    finish("rates", worst);
}

static void groups(void **unused) {
    static const uint32_t groups[] = {1, 2, 3, 5, 7, 8, 12, 16};
    double worst = 0;
    (void)unused;
    for (size_t g = 0; g < 8; g++) {
        struct setup setup = setup_of(2, head_dims[g % 4], groups[g]);
        setup.in_place = g % 2;
        report(&setup, &worst);
        setup = setup_of(3, g % 2 ? 128 : 256, groups[g]);
        setup.slopes = true;
        report(&setup, &worst);
    }
    finish("groups", worst);
}

static void ropes(void **unused) {
    double worst = 0;
    (void)unused;
    for (uint32_t n_rot = 0; n_rot <= 128; n_rot += 32) {
        for (int adjacent = 0; adjacent < 2; adjacent++) {
            struct setup setup = setup_of(2, 128, 4);
            setup.n_rot = n_rot, setup.pairing = adjacent ? ROPE_ADJACENT : ROPE_HALF_SPLIT;
            report(&setup, &worst);
        }
    }
    finish("ropes", worst);
}

static void fitted(void **unused) {
    double worst = 0;
    (void)unused;
    for (size_t d = 0; d < 4; d++) {
        struct setup setup = setup_of(2, head_dims[d], 4);
        setup.fitted = true;
        report(&setup, &worst);
    }
    finish("fitted", worst);
}

/* From one part to more than there are pages. */
static void parts(void **unused) {
    double worst = 0;
    (void)unused;
    for (uint32_t n = 1; n <= 70; n += n < 4 ? 1 : 22) {
        struct setup setup = setup_of(1, 128, 4);
        for (uint32_t i = 0; i < SEQUENCES; i++) setup.sequences[i].splits = 1 + (n - 1) * (i + 1) / SEQUENCES;
        report(&setup, &worst);
    }
    finish("parts", worst);
}

/* More than 32 for a warp: what lanes hold of pages is loaded again. */
static void many_pages(void **unused) {
    double worst = 0;
    (void)unused;
    for (int rate = 2; rate <= 8; rate += 6) { /* rings of two pages, and of one */
        struct setup setup = setup_of(rate, 64, 2);
        setup.sequences[2].pages = 300, setup.sequences[2].splits = 1;
        report(&setup, &worst);
    }
    finish("many pages", worst);
}

int main(void) {
    struct terse_error error;
    if (device_available(&error)) {
        fprintf(stderr, "skipped: %s\n", error.message);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates),  cmocka_unit_test(groups), cmocka_unit_test(ropes),
        cmocka_unit_test(fitted), cmocka_unit_test(parts),  cmocka_unit_test(many_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
