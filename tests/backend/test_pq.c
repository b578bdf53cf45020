/* The codecs pq and vq: codes are of the nearest centroids and lie where page_layout.h says, every way of reading equals decoded
 * rows met in double precision, and what cannot be served is refused. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/pq.h"
#include "backend/cpu/kernels/pq/ops.h"
#include "base/half.h"
#include "train/codec_learning.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SLOTS 64

static uint64_t random_state = 5;

static double random_unit(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(random_state >> 11) + 0.5) * 0x1p-53;
}

static float random_normal(void) { return (float)(sqrt(-2 * log(random_unit())) * cos(2 * M_PI * random_unit())); }

static void fill_normal(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = random_normal();
}

/* ---- A codec that has learned, and blocks of it ------------------------------------------------------------------------------ */

struct learner {
    const struct codec *codec;
    enum codec_side side;
    struct codec_shape shape;
    size_t centroids, numbers;
    float *parameters;
    float *rows; /* [parts][2^bits][width] as they are read, from half */
};

/* Levels of what was snapped, exactly what rows say, and nothing besides; planes of other keys alone. */
static void check_channels(const struct learner *l, bool snapped) {
    const struct pq_codebook *p = pq_codebook_of(l->shape);
    size_t plane = PQ_CHANNEL_ENTRIES(p->bits), width = p->width;
    bool by_channel = pq_ops()->has_register_lut && p->bits <= PQ_CHANNEL_BITS;
    bool by_row = pq_ops()->has_register_lut && p->bits > PQ_CHANNEL_BITS && width % 4 == 0;
    assert_int_equal(p->centroids_u8 != NULL, by_channel && snapped);
    assert_int_equal(p->centroid_rows_u8 != NULL, by_row && snapped);
    assert_int_equal(p->byte_planes != NULL, by_channel && !snapped && l->side == CODEC_KEYS);
    bool words = pq_ops()->reads_rows_i16 && p->bits <= PQ_CHANNEL_BITS && width % 2 == 0 && l->side == CODEC_KEYS;
    assert_int_equal(p->rows_i16 != NULL, words && snapped);
    for (size_t c = 0; p->centroids_u8 && c < l->shape.head_dim; c++) {
        assert_true((double)p->from[c] == (double)p->low[c] - 0x1p17 * (double)p->step[c]);
        for (size_t j = 0; j < plane; j++) {
            double row = (double)l->rows[(c / width * l->centroids + j % l->centroids) * width + c % width];
            assert_true((double)p->low[c] + (double)p->step[c] * p->centroids_u8[c * plane + j] == row);
        }
    }
    for (size_t i = 0; p->centroid_rows_u8 && i < l->numbers; i++) {
        size_t c = i / (l->centroids * width) * width + i % width;
        assert_true((double)p->low[c] + (double)p->step[c] * p->centroid_rows_u8[i] == (double)l->rows[i]);
    }
    for (size_t i = 0; p->rows_i16 && i < l->numbers; i++) {
        size_t c = i / (l->centroids * width) * width + i % width;
        assert_true((double)p->low[c] + (double)p->step[c] * p->rows_i16[i] == (double)l->rows[i]);
    }
}

static struct learner make_learner(const struct codec *codec, enum codec_side side, uint32_t hd, uint32_t width, uint32_t bits,
                                   bool snapped) {
    struct learner l = {.codec = codec, .side = side, .shape = {.head_dim = hd, .group = 4, .width = width, .bits = bits}};
    struct terse_error error;
    void *learned;
    l.centroids = (size_t)1 << bits;
    l.numbers = codec_parameters(codec, l.shape);
    assert_int_equal(l.numbers, l.centroids * hd);
    l.parameters = malloc(l.numbers * sizeof *l.parameters);
    l.rows = malloc(l.numbers * sizeof *l.rows);
    fill_normal(l.parameters, l.numbers);
    if (snapped) codec_snap_to_grid(&codec_pq, l.shape, l.parameters);
    assert_int_equal(codec_check(codec, l.shape, side, &error), TERSE_OK);
    assert_int_equal(cpu_codec_of(codec)->learned->make(l.shape, side, l.parameters, &learned, &error), TERSE_OK);
    assert_true(cpu_codec_of(codec)->learned->bytes(learned) >= l.numbers * sizeof(uint16_t));
    l.shape.learned = learned;
    for (size_t i = 0; i < l.numbers; i++) l.rows[i] = half_to_float(pq_codebook_of(l.shape)->rows[i]);
    check_channels(&l, snapped);
    return l;
}

static void free_learner(struct learner *l) {
    cpu_codec_of(l->codec)->learned->free((void *)l->shape.learned);
    free(l->parameters);
    free(l->rows);
}

static uint8_t *new_page(const struct learner *l) {
    void *page = NULL;
    size_t bytes = codec_page_bytes(l->codec, l->shape, l->side);
    assert_int_equal(bytes % 64, 0);
    assert_int_equal(posix_memalign(&page, 64, bytes), 0);
    memset(page, 0xa5, bytes);
    return page;
}

/* Token t's code of sub-vector m, bit by bit from the words of page_layout.h. */
static unsigned code_at(const uint8_t *page, unsigned bits, size_t m, size_t t) {
    const uint8_t *planes = page + m * 8 * bits;
    unsigned code = 0, done = 0;
    for (unsigned part = 8; part; part /= 2) {
        if (!(bits & part)) continue;
        for (unsigned i = 0; i < part; i++) {
            size_t at = t * part + i;
            code |= (planes[at / 8] >> at % 8 & 1u) << (done + i);
        }
        planes += 8 * part;
        done += part;
    }
    return code;
}

static const struct {
    uint32_t hd, width, bits;
} shapes[] = {{64, 2, 8},  {128, 2, 8}, {128, 4, 8},  {128, 8, 8},  {32, 1, 4},  {96, 3, 5},    {96, 6, 6},
              {96, 12, 7}, {64, 8, 9},  {96, 24, 10}, {64, 16, 11}, {64, 4, 12}, {128, 32, 12}, {256, 64, 8}};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static void for_learners(bool snapped, void (*check)(const struct learner *l)) {
    for (size_t i = 0; i < N_SHAPES; i++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct learner l =
                make_learner(i % 2 ? &codec_vq : &codec_pq, side, shapes[i].hd, shapes[i].width, shapes[i].bits, snapped);
            check(&l);
            free_learner(&l);
        }
    }
}

/* ---- Blocks --------------------------------------------------------------------------------------------------------------------
 */

static double distance(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

static void check_nearest(const struct learner *l) {
    size_t hd = l->shape.head_dim, width = l->shape.width, parts = hd / width;
    float rows[SLOTS * 256], decoded[SLOTS * 256];
    uint8_t *page = new_page(l), *again = new_page(l);
    fill_normal(rows, SLOTS * hd);
    for (size_t n = 17; n <= SLOTS; n += 47) {
        cpu_codec_of(l->codec)->encode(l->shape, l->side, rows, n, page);
        cpu_codec_of(l->codec)->encode(l->shape, l->side, rows, n, again);
        assert_memory_equal(page, again, codec_page_bytes(l->codec, l->shape, l->side));
        cpu_codec_of(l->codec)->decode(l->shape, l->side, page, decoded);
        for (size_t m = 0; m < parts; m++) {
            const float *of = l->rows + m * l->centroids * width;
            for (size_t t = 0; t < SLOTS; t++) {
                unsigned code = code_at(page, l->shape.bits, m, t);
                assert_true(code < l->centroids);
                assert_memory_equal(decoded + t * hd + m * width, of + code * width, width * sizeof *of);
                if (t >= n) assert_int_equal(code, 0);
                double best = INFINITY;
                for (size_t j = 0; t < n && j < l->centroids; j++)
                    best = fmin(best, distance(rows + t * hd + m * width, of + j * width, width));
                double mine = distance(rows + t * hd + m * width, of + code * width, width);
                if (t < n && mine > best + 1e-5 * (1 + best))
                    fail_msg("hd %zu width %zu: %g, nearest is %g", hd, width, mine, best);
            }
        }
        for (size_t i = parts * 8 * l->shape.bits; i < codec_page_bytes(l->codec, l->shape, l->side); i++)
            assert_int_equal(page[i], 0);
    }
    free(page);
    free(again);
}

static void codes_are_of_the_nearest_centroids(void **state) {
    (void)state;
    for_learners(false, check_nearest);
}

/* Rows that are centroids come back as they are, whatever the code. */
static void every_code_survives(void **state) {
    (void)state;
    for (uint32_t bits = PQ_BITS_MIN; bits <= PQ_BITS_MAX; bits++) {
        struct learner l = make_learner(&codec_pq, CODEC_KEYS, 32, 8, bits, false);
        float rows[SLOTS * 32], decoded[SLOTS * 32];
        uint8_t *page = new_page(&l);
        assert_int_equal(codec_page_bytes(l.codec, l.shape, l.side), (4 * 8 * bits + 63) / 64 * 64);
        for (size_t first = 0; first < l.centroids; first += SLOTS / 2) {
            for (size_t t = 0; t < SLOTS; t++)
                for (size_t m = 0; m < 4; m++)
                    memcpy(rows + t * 32 + m * 8, l.rows + (m * l.centroids + (first + t + m) % l.centroids) * 8, 8 * sizeof *rows);
            cpu_codec_of(l.codec)->encode(l.shape, l.side, rows, SLOTS, page);
            cpu_codec_of(l.codec)->decode(l.shape, l.side, page, decoded);
            assert_memory_equal(rows, decoded, sizeof rows);
            for (size_t t = 0; t < SLOTS; t++)
                for (size_t m = 0; m < 4; m++) assert_int_equal(code_at(page, bits, m, t), (first + t + m) % l.centroids);
        }
        free(page);
        free_learner(&l);
    }
}

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Half precision as they are; once snapped, where levels are read by channel or by row, at most 256 levels of a channel, that are
 * halves. */
static void check_rounding(const struct learner *l) {
    size_t width = l->shape.width;
    float *snapped = malloc(l->numbers * sizeof *snapped);
    for (size_t i = 0; i < l->numbers; i++) assert_true(l->rows[i] == half_to_float(half_from_float(l->parameters[i])));
    memcpy(snapped, l->parameters, l->numbers * sizeof *snapped);
    codec_snap_to_grid(&codec_pq, l->shape, snapped);
    bool moved = l->shape.bits <= PQ_CHANNEL_BITS || width % 4 == 0;
    if (!moved) assert_memory_equal(snapped, l->parameters, l->numbers * sizeof *snapped);
    for (size_t c = 0; moved && c < l->shape.head_dim; c++) {
        const float *given = l->parameters + c / width * l->centroids * width + c % width;
        const float *now = snapped + c / width * l->centroids * width + c % width;
        float gap = INFINITY, *sorted = malloc(l->centroids * sizeof *sorted);
        for (size_t j = 0; j < l->centroids; j++) {
            sorted[j] = now[j * width];
            assert_true(now[j * width] == half_to_float(half_from_float(now[j * width])));
        }
        qsort(sorted, l->centroids, sizeof *sorted, compare_floats);
        float least = sorted[0], most = sorted[l->centroids - 1];
        for (size_t j = 1; j < l->centroids; j++)
            if (sorted[j] != sorted[j - 1]) gap = fminf(gap, sorted[j] - sorted[j - 1]);
        free(sorted);
        assert_true(most - least <= 255 * gap);
        for (size_t j = 0; j < l->centroids; j++)
            assert_true(fabsf(now[j * width] - given[j * width]) <= 1.26f * (most - least) / 510);
    }
    free(snapped);
}

static void centroids_are_rounded_as_said(void **state) {
    (void)state;
    for_learners(false, check_rounding);
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------- */

static void make_pages(const struct learner *l, size_t n, uint8_t *const *page, float *decoded) {
    float rows[SLOTS * 256];
    size_t hd = l->shape.head_dim;
    for (size_t b = 0; b < n; b++) {
        fill_normal(rows, SLOTS * hd);
        cpu_codec_of(l->codec)->encode(l->shape, l->side, rows, SLOTS, page[b]);
        cpu_codec_of(l->codec)->decode(l->shape, l->side, page[b], decoded + b * SLOTS * hd);
    }
}

static void expect_close(double got, double want, double allowed, const struct learner *l, const char *way) {
    if (fabs(got - want) <= allowed) return;
    fail_msg("%s %s hd %u width %u bits %u G %u: %g, not %g, off by %g of %g", l->codec->name, way, l->shape.head_dim,
             l->shape.width, l->shape.bits, l->shape.group, got, want, fabs(got - want), allowed);
}

/* By look-up and by decoding, the one that the codec chooses and both by force. Fixed point: 2^-17 of the widest span for each
 * sub-vector by look-up, 1 / 65278 of the largest of query times step by levels, and no sub-vector's products span more than twice
 * its query's absolute sum times the largest centroid. */
static void check_keys(const struct learner *l, uint32_t G) {
    struct codec_shape shape = l->shape;
    const struct pq_codebook *p = pq_codebook_of(shape);
    size_t hd = shape.head_dim, floats = pq_table_floats(p, G);
    bool fixed = pq_reads_u8(p) || p->rows_i16;
    shape.group = G;
    float *q = malloc(G * hd * sizeof *q), *tables = malloc(floats * sizeof *tables), decoded[SLOTS * 256];
    float *logits[3];
    for (size_t way = 0; way < 3; way++) logits[way] = malloc(G * SLOTS * sizeof **logits);
    uint8_t *page = new_page(l);
    make_pages(l, 1, &page, decoded);
    fill_normal(q, G * hd);
    size_t chosen = cpu_codec_query_floats(cpu_codec_of(l->codec), shape);
    assert_true(chosen == 0 || chosen == floats || (fixed && chosen == G * pq_i16_floats(p)));
    assert_true(chosen * sizeof(float) <= (size_t)320 << 10);
    if (chosen) cpu_codec_of(l->codec)->queries->prepare(shape, q, tables);
    cpu_codec_of(l->codec)->score(shape, q, chosen ? tables : NULL, page, logits[0]);
    pq_ops()->score(p, q, G, page, logits[1]);
    pq_ops()->prepare(p, q, G, tables);
    pq_ops()->look_up(p, tables, G, page, logits[2]);
    for (size_t g = 0; g < G; g++) {
        double span = 0, largest = 0;
        for (size_t c = 0; fixed && c < hd; c++) largest = fmax(largest, fabs((double)q[g * hd + c]) * (double)p->step[c]);
        for (size_t m = 0; m < p->parts; m++) {
            double sum = 0;
            for (size_t i = 0; i < p->width; i++) sum += fabs((double)q[g * hd + m * p->width + i]);
            span = fmax(span, 2 * 6 * sum); /* normal centroids are below 6 */
        }
        for (size_t t = 0; t < SLOTS; t++) {
            double want = 0, terms = 0;
            for (size_t c = 0; c < hd; c++) {
                want += (double)q[g * hd + c] * (double)decoded[t * hd + c];
                terms += fabs((double)q[g * hd + c] * (double)decoded[t * hd + c]);
            }
            double allowed = 1e-6 * (terms + (fixed ? span : 0)) + (double)hd * 255 * largest / 65278,
                   table = (double)p->parts * span * 0x1p-17 + 1e-6 * (terms + span);
            expect_close((double)logits[0][g * SLOTS + t], want, chosen == floats ? table : allowed, l, "as chosen");
            expect_close((double)logits[1][g * SLOTS + t], want, allowed, l, "by decoding");
            expect_close((double)logits[2][g * SLOTS + t], want, table, l, "by look-up");
            expect_close((double)logits[2][g * SLOTS + t], (double)logits[1][g * SLOTS + t], allowed + table, l, "each other");
        }
    }
    for (size_t way = 0; way < 3; way++) free(logits[way]);
    free(q);
    free(tables);
    free(page);
}

static void check_all_keys(const struct learner *l) {
    if (l->side == CODEC_VALUES) return;
    float decoded[SLOTS * 256], channels[256 * SLOTS];
    uint8_t *page = new_page(l);
    make_pages(l, 1, &page, decoded);
    cpu_codec_of(l->codec)->channels(l->shape, page, channels);
    for (size_t t = 0; t < SLOTS; t++)
        for (size_t c = 0; c < l->shape.head_dim; c++) assert_true(channels[c * SLOTS + t] == decoded[t * l->shape.head_dim + c]);
    free(page);
    check_keys(l, 1);
    check_keys(l, 3);
    check_keys(l, 4);
    check_keys(l, 8);
    if (l->shape.bits <= 8) check_keys(l, 96);
}

static void keys_read_every_way_equal_decoded_rows(void **state) {
    (void)state;
    for_learners(false, check_all_keys);
    for_learners(true, check_all_keys);
}

/* Mixed block by block, and tallied over all blocks and finished once. Weights in fixed point are off by at most 1 / 65278 of a
 * block's largest. */
static void check_values(const struct learner *l, uint32_t G) {
    enum { PAGES = 3 };
    struct codec_shape shape = l->shape;
    const struct pq_codebook *p = pq_codebook_of(shape);
    size_t hd = shape.head_dim, floats = pq_table_floats(p, G);
    shape.group = G;
    float *weights = malloc(PAGES * G * SLOTS * sizeof *weights), *code_sums = calloc(floats, sizeof *code_sums);
    float *accumulated = calloc(G * hd, sizeof *accumulated), *finished = calloc(G * hd, sizeof *finished),
          *chosen = calloc(G * hd, sizeof *chosen);
    float *decoded = malloc(PAGES * SLOTS * hd * sizeof *decoded);
    uint8_t *page[PAGES];
    for (size_t b = 0; b < PAGES; b++) page[b] = new_page(l);
    make_pages(l, PAGES, page, decoded);
    for (size_t i = 0; i < PAGES * G * SLOTS; i++) weights[i] = (float)exp(8 * random_unit() - 8); /* as softmax gives them */
    for (size_t b = 0; b < PAGES; b++) {
        cpu_codec_of(l->codec)->accumulate_values(shape, weights + b * G * SLOTS, page[b], accumulated);
        pq_ops()->accumulate_by_code(p, weights + b * G * SLOTS, G, page[b], code_sums);
    }
    pq_ops()->finish_code_sums(p, code_sums, G, finished);
    assert_true(cpu_codec_of(l->codec)->code_sums->floats(shape) == 0 ||
                cpu_codec_of(l->codec)->code_sums->floats(shape) == floats);
    memset(code_sums, 0, floats * sizeof *code_sums);
    for (size_t b = 0; b < PAGES; b++) cpu_codec_of(l->codec)->code_sums->add(shape, weights + b * G * SLOTS, page[b], code_sums);
    cpu_codec_of(l->codec)->code_sums->finish(shape, code_sums, chosen);
    for (size_t g = 0; g < G; g++) {
        for (size_t c = 0; c < hd; c++) {
            double want = 0, terms = 0, largest = 0;
            for (size_t i = 0; i < PAGES * SLOTS; i++) {
                double weight = (double)weights[(i / SLOTS * G + g) * SLOTS + i % SLOTS];
                want += weight * (double)decoded[i * hd + c];
                terms += fabs(weight * (double)decoded[i * hd + c]);
                largest = fmax(largest, weight);
            }
            double levels = pq_reads_u8(p) ? PAGES * SLOTS * largest * 255 * (double)p->step[c] / 65278 : 0;
            expect_close((double)accumulated[g * hd + c], want, 3e-6 * (1 + terms) + levels, l, "by mixing");
            expect_close((double)finished[g * hd + c], want, 3e-6 * (1 + terms), l, "by tally");
            expect_close((double)chosen[g * hd + c], want, 3e-6 * (1 + terms), l, "by the codec's tally");
        }
    }
    float *all[] = {weights, code_sums, accumulated, finished, chosen, decoded};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    for (size_t b = 0; b < PAGES; b++) free(page[b]);
}

static void check_all_values(const struct learner *l) {
    if (l->side == CODEC_KEYS) return;
    check_values(l, 1);
    check_values(l, 3);
    check_values(l, 4);
    check_values(l, 11);
}

static void values_read_every_way_equal_decoded_rows(void **state) {
    (void)state;
    for_learners(false, check_all_values);
    for_learners(true, check_all_values);
}

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

static void expect_unsupported(struct codec_shape shape, const char *says) {
    const struct codec *codecs[] = {&codec_pq, &codec_vq};
    for (size_t i = 0; i < 2; i++) {
        struct terse_error error = {0};
        assert_int_equal(codec_check(codecs[i], shape, CODEC_KEYS, &error), TERSE_E_UNSUPPORTED);
        assert_non_null(strstr(error.message, says));
        assert_null(strchr(error.message, '\n'));
    }
}

static void shapes_that_do_not_fit_are_refused(void **state) {
    (void)state;
    expect_unsupported((struct codec_shape){.head_dim = 128, .width = 0, .bits = 8}, "sub-vectors of 0 channels");
    expect_unsupported((struct codec_shape){.head_dim = 128, .width = 3, .bits = 8}, "do not divide the model's heads of 128");
    expect_unsupported((struct codec_shape){.head_dim = 128, .width = 128, .bits = 8}, "up to 64");
    expect_unsupported((struct codec_shape){.head_dim = 128, .width = 4, .bits = 3}, "codes of 3 bits: use 4 to 12");
    expect_unsupported((struct codec_shape){.head_dim = 128, .width = 4, .bits = 13}, "codes of 13 bits: use 4 to 12");
    expect_unsupported((struct codec_shape){.head_dim = 80, .width = 4, .bits = 8}, "80 channels");
    assert_null(codec_find("pq"));
    assert_null(codec_find("vq"));
    assert_int_equal(codec_pq.rope, CODEC_ROPE_AFTER);
    assert_int_equal(codec_vq.rope, CODEC_ROPE_IN_RUN);
}

static void parameters_that_are_not_finite_are_refused(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e9f};
    const struct codec_shape shape = {.head_dim = 32, .group = 1, .width = 4, .bits = 6};
    float parameters[64 * 32];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct terse_error error = {0};
            fill_normal(parameters, 64 * 32);
            parameters[777] = bad[i];
            assert_int_equal(codec_check_parameters(side == CODEC_KEYS ? &codec_pq : &codec_vq, shape, parameters, &error),
                             TERSE_E_FORMAT);
            assert_non_null(strstr(error.message, "number 777"));
        }
    }
    cpu_codec_pq.learned->free(NULL);
}

/* All rows alike and one centroid at their place: exact, also where a channel has but one level. */
static void constant_rows_are_exact(void **state) {
    (void)state;
    const struct codec_shape base = {.head_dim = 64, .group = 2, .width = 8, .bits = 8};
    float *parameters = malloc(256 * 64 * sizeof *parameters), rows[SLOTS * 64], decoded[SLOTS * 64];
    for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        struct codec_shape shape = base;
        struct terse_error error;
        void *learned, *page = NULL;
        for (size_t i = 0; i < 256 * 64; i++) parameters[i] = 0.375f;
        for (size_t i = 0; i < SLOTS * 64; i++) rows[i] = 0.375f;
        assert_int_equal(cpu_codec_pq.learned->make(shape, side, parameters, &learned, &error), TERSE_OK);
        shape.learned = learned;
        assert_int_equal(posix_memalign(&page, 64, codec_page_bytes(&codec_pq, shape, side)), 0);
        cpu_codec_pq.encode(shape, side, rows, SLOTS, page);
        cpu_codec_pq.decode(shape, side, page, decoded);
        assert_memory_equal(rows, decoded, sizeof rows);
        if (side == CODEC_VALUES) {
            float weights[2 * SLOTS], acc[2 * 64] = {0};
            for (size_t i = 0; i < 2 * SLOTS; i++) weights[i] = 0.25f;
            cpu_codec_pq.accumulate_values(shape, weights, page, acc);
            for (size_t i = 0; i < 2 * 64; i++) assert_true(acc[i] == 6); /* 64 * 0.25 * 0.375 */
        }
        cpu_codec_pq.learned->free(learned);
        free(page);
    }
    free(parameters);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_of_the_nearest_centroids),
        cmocka_unit_test(every_code_survives),
        cmocka_unit_test(centroids_are_rounded_as_said),
        cmocka_unit_test(keys_read_every_way_equal_decoded_rows),
        cmocka_unit_test(values_read_every_way_equal_decoded_rows),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
        cmocka_unit_test(parameters_that_are_not_finite_are_refused),
        cmocka_unit_test(constant_rows_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
