/* A prompt's attention on the GPU against the same in double precision from the same floats and halves: all head sizes, groups and ragged
 * shapes; rows read in parts and not; in place; ALiBi, also where other ranks have pages between the rows. Buffers end where the last row does and everything that must not be read is NaN. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_prefill.h"
#include "base/half.h"
#include "no_device.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The bound of the relative error of a head's result as a whole: the length of the difference over the length of the result. Queries and weights are
 * rounded to halves, 2^-12 of themselves on average; a logit is the sum of hd such products. */
#define BOUND 1e-3

/* Kernels that run on the host are slow: fewer shapes, short ones, and one way, there being no other. */
#ifdef TERSE_EMULATED_CUDA
enum { EMULATED = 1 };
#else
enum { EMULATED = 0 };
#endif

#define CHECKED_MOST 120 /* heads of queries that are compared; evenly spread, the last among them */

struct shape {
    uint32_t head_dim, kv_heads, group;
    size_t n, first_query, begin;
    bool parts, slopes, in_place, mma; /* mma: the way of older devices */
    uint32_t window;                   /* 0: all rows are seen */
    float cap;                         /* of logits; 0: none */
    bool sinks;                        /* a key without a value, whose logit is that of sink_of */
    uint32_t pages; /* behind row `dealt`, of every second rope run, a multiple of 4; 0: rows are as many positions apart as rows */
    size_t dealt;
};

#define MOVED(pages) ((pages)*PAGE_TOKENS) /* as many tokens are elsewhere */

static size_t position_of(const struct shape *s, size_t row) {
    if (!s->pages || row < s->dealt) return row;
    const size_t page = (row - s->dealt) / PAGE_TOKENS;
    return row + (page < s->pages ? page / 4 * 4 * PAGE_TOKENS : MOVED(s->pages));
}

static float sink_of(uint32_t head) { return (float)(head % 3) - 1; }
static size_t first_seen(const struct shape *s, size_t last) {
    return s->window && last + 1 > s->begin + s->window ? last + 1 - s->window : s->begin;
}

static void *on_device(const void *data, size_t bytes) {
    void *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, bytes), cudaSuccess);
    assert_int_equal(device_send(memory, data, bytes), cudaSuccess);
    return memory;
}

static void *allocated(size_t bytes) {
    void *memory = malloc(bytes);
    assert_non_null(memory);
    return memory;
}

/* out[hd] of query i, head h. */
static void expected(const struct shape *s, const float *slopes, double scale, const float *q, const float *k, const float *v,
                     size_t i, uint32_t h, double *out) {
    uint32_t hd = s->head_dim, heads = s->kv_heads * s->group, kv_head = h / s->group;
    size_t last = s->first_query + i;
    double *weights = allocated((last + 1) * sizeof *weights), largest = s->sinks ? (double)sink_of(h) : -INFINITY, sum = 0;
    for (size_t r = first_seen(s, last); r <= last; r++) {
        double logit = 0;
        for (uint32_t c = 0; c < hd; c++) logit += (double)q[(i * heads + h) * hd + c] * k[(r * s->kv_heads + kv_head) * hd + c];
        logit *= scale;
        if (s->cap > 0) logit = (double)s->cap * tanh(logit / (double)s->cap);
        weights[r] = logit + (slopes ? slopes[h] * ((double)position_of(s, r) - (double)position_of(s, last)) : 0);
        largest = fmax(largest, weights[r]);
    }
    memset(out, 0, hd * sizeof *out);
    if (s->sinks) sum = exp((double)sink_of(h) - largest);
    for (size_t r = first_seen(s, last); r <= last; r++) {
        double weight = exp(weights[r] - largest);
        sum += weight;
        for (uint32_t c = 0; c < hd; c++) out[c] += weight * v[(r * s->kv_heads + kv_head) * hd + c];
    }
    for (uint32_t c = 0; c < hd; c++) out[c] /= sum;
    free(weights);
}

struct run {
    struct shape shape;
    float *q, *slopes, *k, *v; /* keys and values as the halves that the device has */
    float *out;                /* the device's result */
    float scale;
};

/* Inputs of logits of `spread`, and what the device makes of them. */
static struct run attended(const struct shape *s, double spread, uint64_t seed) {
    struct random random = {seed};
    uint32_t hd = s->head_dim, heads = s->kv_heads * s->group;
    size_t queries = s->n * heads * hd, rows = (s->first_query + s->n) * s->kv_heads * hd;
    struct run run = {.shape = *s, .scale = 1 / sqrtf((float)hd)};
    run.q = allocated(queries * sizeof *run.q);
    run.out = allocated(queries * sizeof *run.out);
    run.k = allocated(rows * sizeof *run.k);
    run.v = allocated(rows * sizeof *run.v);
    uint16_t *halves[2] = {allocated(rows * sizeof **halves), allocated(rows * sizeof **halves)};
    run.slopes = allocated(heads * sizeof *run.slopes);
    for (size_t i = 0; i < queries; i++) run.q[i] = random_normal(&random) * (float)spread, run.out[i] = NAN;
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < rows; i++) {
            halves[side][i] = i < s->begin * s->kv_heads * hd ? 0x7e00 : half_from_float(random_normal(&random));
            (side ? run.v : run.k)[i] = half_to_float(halves[side][i]);
        }
    for (uint32_t h = 0; h < heads; h++) run.slopes[h] = exp2f(-8.0f * (float)(h + 1) / (float)heads);

    struct head_view view = {.layers = 1, .query_heads = heads, .kv_heads = s->kv_heads, .head_dim = hd, .scale = run.scale};
    assert_true(attend_prefill_supports(&view));
    float *slopes = s->slopes ? on_device(run.slopes, heads * sizeof *run.slopes) : NULL;
    float *sinks = allocated(2 * heads * sizeof *sinks), *device_sinks;
    for (uint32_t h = 0; h < 2 * heads; h++) sinks[h] = h < heads ? NAN : sink_of(h - heads); /* of two layers */
    device_sinks = s->sinks ? on_device(sinks, 2 * heads * sizeof *sinks) : NULL;
    free(sinks);
    view.slopes = slopes;
    view.sinks = device_sinks;
    view.window = s->window;
    view.cap = s->cap;
    float *q = on_device(run.q, queries * sizeof *run.q), *out = s->in_place ? q : on_device(run.out, queries * sizeof *run.out);
    uint16_t *k = on_device(halves[0], rows * sizeof *k), *v = on_device(halves[1], rows * sizeof *v);
    float *parts = NULL;
    if (s->parts) assert_int_equal(cudaMalloc((void **)&parts, attend_prefill_part_floats(&view) * sizeof *parts), cudaSuccess);
    struct row_span *spans = calloc(s->pages + 2, sizeof *spans), *device_spans;
    assert_non_null(spans);
    for (uint32_t i = 0; i <= s->pages; i++) {
        const size_t row = s->dealt + i * PAGE_TOKENS;
        spans[i + 1] = (struct row_span){(uint32_t)row, (uint32_t)position_of(s, row)};
    }
    device_spans = on_device(spans, (s->pages + 2) * sizeof *spans);
    free(spans);
    struct attend_prefill attend = {.heads = view,
                                    .layer = 1,
                                    .q = q,
                                    .n = s->n,
                                    .first_query = s->first_query,
                                    .k = k,
                                    .v = v,
                                    .begin = s->begin,
                                    .out = out,
                                    .parts = parts};
    if (s->pages) attend.places = (struct row_places){device_spans, s->pages + 2};
    assert_int_equal((s->mma ? attend_prefill_mma : attend_prefill_launch)(&attend, device_stream()), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(device_stream()), cudaSuccess);
    assert_int_equal(device_fetch(run.out, out, queries * sizeof *run.out), cudaSuccess);
    cudaFree(slopes), cudaFree(device_sinks), cudaFree(q), cudaFree(k), cudaFree(v), cudaFree(parts), cudaFree(device_spans);
    if (out != q) cudaFree(out);
    free(halves[0]), free(halves[1]);
    return run;
}

static void run_free(struct run *run) { free(run->q), free(run->slopes), free(run->k), free(run->v), free(run->out); }

static void check_way(const struct shape *s) {
    struct run run = attended(s, 1.0, s->n * 31 + s->head_dim);
    uint32_t hd = s->head_dim, heads = s->kv_heads * s->group;
    size_t total = s->n * heads, step = total > CHECKED_MOST ? total / CHECKED_MOST : 1;
    double worst = 0, want[CODEC_HEAD_DIM_MAX];
    for (size_t i = 0; i < total * hd; i++) assert_true(isfinite(run.out[i]));
    for (size_t back = 0; back < total; back += step) {
        size_t at = total - 1 - back;
        double difference = 0, length = 0;
        expected(s, s->slopes ? run.slopes : NULL, run.scale, run.q, run.k, run.v, at / heads, (uint32_t)(at % heads), want);
        for (uint32_t c = 0; c < hd; c++) {
            double d = run.out[at * hd + c] - want[c];
            difference += d * d;
            length += want[c] * want[c];
        }
        worst = fmax(worst, sqrt(difference / length));
        if (!(difference <= BOUND * BOUND * length))
            fail_msg("query %zu, head %zu: off by %g of its length", at / heads, at % heads, sqrt(difference / length));
    }
    print_message("hd %3u, %u x %u heads, %4zu queries from row %5zu, rows from %4zu%s%s%s%s: off by at most %.1e\n", hd,
                  s->kv_heads, s->group, s->n, s->first_query, s->begin, s->parts ? ", parts" : "", s->slopes ? ", ALiBi" : "",
                  s->in_place ? ", in place" : "", s->mma ? ", mma" : "", worst);
    run_free(&run);
}

static void check(const struct shape *shape) {
    struct shape s = *shape;
    if (!EMULATED) check_way(&s);
    s.mma = true;
    check_way(&s);
}

static const uint32_t head_dims[] = {64, 96, 128, 256};
#define HEAD_DIMS (sizeof head_dims / sizeof *head_dims)

static void prompts_from_nothing(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 65, 129, 2, 31, 63, 64, 127, 128, 257, 700};
    for (size_t d = 0; d < HEAD_DIMS; d++)
        for (size_t i = 0; i < (EMULATED ? 3 : sizeof lengths / sizeof *lengths); i++)
            check(&(struct shape){.head_dim = head_dims[d], .kv_heads = 2, .group = 4, .n = lengths[i], .in_place = i % 2});
}

static void every_group(void **state) {
    (void)state;
    for (size_t d = 0; d < HEAD_DIMS; d++)
        for (uint32_t group = 1; group <= 8; group += EMULATED ? 3 : 1)
            check(&(struct shape){.head_dim = head_dims[d], .kv_heads = 3, .group = group, .n = 77 + group, .first_query = 50});
}

static void rows_before_begin_are_not_read(void **state) {
    (void)state;
    for (size_t d = 0; d < HEAD_DIMS; d++)
        for (size_t begin = 1; begin < (EMULATED ? 10 : 500); begin = begin * 3 + 1)
            check(&(struct shape){
                .head_dim = head_dims[d], .kv_heads = 2, .group = 2, .n = 150, .first_query = begin + d, .begin = begin});
}

static void slopes_are_added(void **state) {
    (void)state;
    for (size_t d = 0; d < HEAD_DIMS; d++)
        for (int parts = 0; parts < 2; parts++)
            check(&(struct shape){.head_dim = head_dims[d],
                                  .kv_heads = 4,
                                  .group = 2,
                                  .n = EMULATED ? 19 : 190,
                                  .first_query = EMULATED ? 1200 : 2100,
                                  .begin = 100,
                                  .slopes = true,
                                  .parts = parts});
}

static void slopes_count_positions_of_dealt_pages(void **state) {
    (void)state;
    for (size_t d = 0; d < HEAD_DIMS; d++)
        for (int parts = 0; parts < 2; parts++)
            check(&(struct shape){.head_dim = head_dims[d],
                                  .kv_heads = 2,
                                  .group = 4,
                                  .n = EMULATED ? 9 : 190,
                                  .first_query = 4 + 8 * PAGE_TOKENS + 150,
                                  .begin = parts ? 4 : 0,
                                  .slopes = true,
                                  .parts = parts,
                                  .pages = 8,
                                  .dealt = 4});
}

/* Windows within a block of keys, of several, and that reach beyond the first row; logits up to the cap and beyond. */
static void windows_caps_and_sinks(void **state) {
    (void)state;
    static const uint32_t windows[] = {0, 1, 50, 333, 5000};
    for (size_t d = 0; d < HEAD_DIMS; d++)
        for (size_t w = 0; w < (EMULATED ? 3 : sizeof windows / sizeof *windows); w++)
            for (int parts = 0; parts < 2; parts++)
                check(&(struct shape){.head_dim = head_dims[d],
                                      .kv_heads = 2,
                                      .group = 2,
                                      .n = EMULATED ? 70 : 700,
                                      .first_query = EMULATED ? (parts ? 1100 : 90) : 1500,
                                      .begin = 4,
                                      .window = windows[w],
                                      .cap = w % 2 ? 0 : 1.5f,
                                      .sinks = w % 3 < 2,
                                      .parts = parts});
}

static void few_queries_over_many_rows(void **state) {
    (void)state;
    static const size_t n[] = {1, 17, 100, 300};
    size_t first = EMULATED ? 1200 : 6000;
    for (size_t d = 0; d < HEAD_DIMS; d++)
        for (size_t i = 0; i < (EMULATED ? 2 : sizeof n / sizeof *n); i++)
            check(&(struct shape){.head_dim = head_dims[d],
                                  .kv_heads = 2,
                                  .group = 4,
                                  .n = n[i],
                                  .first_query = first + 7 * d,
                                  .begin = 13,
                                  .parts = true,
                                  .in_place = i % 2});
    if (EMULATED) return;
    /* This has as many parts of full tiles as 132 multiprocessors have room for. */
    check(&(struct shape){.head_dim = 64, .kv_heads = 8, .group = 4, .n = 624, .first_query = 10000, .parts = true});
    /* This has more parts than early queries of the panel have blocks to read. */
    check(&(struct shape){.head_dim = 128, .kv_heads = 1, .group = 1, .n = 3000, .parts = true});
}

static void many_queries(void **state) {
    (void)state;
    if (EMULATED) skip();
    check(&(struct shape){
        .head_dim = 128, .kv_heads = 8, .group = 4, .n = 2500, .first_query = 1111, .parts = true, .in_place = true});
    check(&(struct shape){
        .head_dim = 64, .kv_heads = 8, .group = 4, .n = 2500, .first_query = 1111, .parts = true, .in_place = true});
}

/* Logits beyond what halves hold: results stay means of values. */
static void huge_queries_stay_finite(void **state) {
    (void)state;
    for (size_t d = 0; d < HEAD_DIMS; d++) {
        struct shape s = {.head_dim = head_dims[d], .kv_heads = 2, .group = 2, .n = 100, .first_query = 30};
        struct run run = attended(&s, 1e7, d + 1);
        size_t all = s.n * s.kv_heads * s.group * s.head_dim, rows = (s.first_query + s.n) * s.kv_heads * s.head_dim;
        float most = 0;
        for (size_t i = 0; i < rows; i++) most = fmaxf(most, fabsf(run.v[i]));
        for (size_t i = 0; i < all; i++) assert_true(fabsf(run.out[i]) <= most * 1.001f);
        run_free(&run);
    }
}

static void what_is_not_served_is_refused(void **state) {
    (void)state;
    struct head_view heads = {.query_heads = 8, .kv_heads = 2, .head_dim = 80, .scale = 1};
    assert_false(attend_prefill_supports(&heads));
    assert_int_equal(attend_prefill_launch(&(struct attend_prefill){.heads = heads, .n = 1}, device_stream()),
                     cudaErrorInvalidValue);
    heads.head_dim = 128;
    heads.query_heads = 0;
    assert_false(attend_prefill_supports(&heads));
    heads.query_heads = 8;
    assert_int_equal(attend_prefill_launch(&(struct attend_prefill){.heads = heads, .n = 1, .begin = 1}, device_stream()),
                     cudaErrorInvalidValue);
    assert_int_equal(attend_prefill_launch(&(struct attend_prefill){.heads = heads}, device_stream()), cudaSuccess);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_from_nothing),
        cmocka_unit_test(every_group),
        cmocka_unit_test(rows_before_begin_are_not_read),
        cmocka_unit_test(slopes_are_added),
        cmocka_unit_test(slopes_count_positions_of_dealt_pages),
        cmocka_unit_test(windows_caps_and_sinks),
        cmocka_unit_test(few_queries_over_many_rows),
        cmocka_unit_test(many_queries),
        cmocka_unit_test(huge_queries_stay_finite),
        cmocka_unit_test(what_is_not_served_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
