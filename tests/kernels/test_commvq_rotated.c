/* CommVQ's keys rotated and scored in 16 bits, against their definition in double precision: within what kernels/commvq/ops.h
 * allows, and far closer on the whole; where it refuses; and the runs of rounds whose sums are bytes. */
#include "backend/cpu/codec/commvq.h"
#include "base/half.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_HD = 256, E = COMMVQ_ENTRIES, MOST_QUERIES = 11 };

static struct random source = {17};

static float normal(void) { return random_normal(&source); }

static const struct shape {
    uint32_t hd, width, rounds, pairs;
    bool adjacent, serves; /* in tiers that rotate in 16 bits */
    float decay, mean;     /* of rounds; the size of means */
} shapes[] = {{128, 128, 11, 64, true, true, -0.85f, 1},  {128, 128, 21, 64, false, true, -0.85f, 30},
              {64, 64, 5, 32, true, true, -0.85f, 0},     {64, 64, 11, 32, false, true, 0, 3},
              {256, 128, 4, 128, true, true, -0.3f, 1},   {128, 32, 2, 48, false, true, 0, 1},
              {128, 128, 3, 32, true, true, -2, 100},     {32, 32, 1, 16, true, true, 0, 1},
              {64, 64, 64, 0, true, true, -0.5f, 1},      {64, 64, 2, 16, false, true, -1, 1},
              {160, 80, 3, 80, false, false, -0.85f, 1},  {96, 96, 4, 40, true, false, -0.85f, 1},
              {64, 64, 2, 32, true, false, -0.85f, 3e10f}};
#define EACH_SHAPE(s) for (const struct shape *s = shapes; s < shapes + sizeof shapes / sizeof *shapes; s++)

struct setup {
    struct codec_shape shape;
    const struct commvq_code *code;
    void *learned;
    float *cosine, *sine;
    int16_t *i16;
    uint8_t *codes;
    size_t code_bytes;
    struct key_rotation rotation;
};

static void make_angles(const struct shape *s, struct setup *u) {
    size_t n = s->pairs * 64;
    u->cosine = malloc((n + 1) * sizeof(float));
    u->sine = malloc((n + 1) * sizeof(float));
    u->i16 = guard_bytes(4 * n, GUARD_END);
    u->rotation = (struct key_rotation){.cosine = u->cosine,
                                        .sine = u->sine,
                                        .pairs = s->pairs,
                                        .adjacent = s->adjacent,
                                        .i16 = u->i16,
                                        .magnitude = s->hd == 64 ? 1.25f : 1};
    for (size_t i = 0; i < n; i++) {
        double angle = (double)(i % 64) * pow(10000, -(double)(i / 64) / s->pairs);
        u->i16[i / 64 * 128 + i % 64] = (int16_t)lrint(32767 * cos(angle));
        u->i16[i / 64 * 128 + 64 + i % 64] = (int16_t)lrint(32767 * sin(angle));
        u->cosine[i] = u->rotation.magnitude * (float)cos(angle);
        u->sine[i] = u->rotation.magnitude * (float)sin(angle);
    }
}

static struct setup setup_new(const struct shape *s) {
    struct setup u = {.shape = {.head_dim = s->hd, .group = 1, .width = s->width, .bits = COMMVQ_BITS * s->rounds}};
    struct terse_error error;
    size_t n = codec_parameters(&codec_commvq, u.shape), tables = commvq_table_numbers(u.shape), round = (size_t)E * s->width;
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < tables; i++) p[i] = normal() * powf((float)(1 + i / round % s->rounds), s->decay);
    for (size_t i = 0; i < tables && s->mean == 0; i += s->width / 2) p[i] = 0; /* a pair that does not move */
    commvq_set_pairing(u.shape, p, s->pairs, s->adjacent);
    for (size_t c = 0; c < s->hd; c++) p[tables + 2 + c] = s->mean * normal();
    p[n - 1] = 1.25f;
    for (size_t i = 0; i < tables; i++) p[i] = half_to_float(half_from_float(p[i]));
    assert_int_equal(cpu_codec_commvq.learned->make(u.shape, CODEC_KEYS, p, &u.learned, &error), TERSE_OK);
    u.shape.learned = u.learned;
    u.code = commvq_code_of(u.shape);
    make_angles(s, &u);
    u.code_bytes = s->hd / s->width * s->rounds * COMMVQ_PART;
    u.codes = guard_bytes(u.code_bytes, GUARD_END);
    fill_bytes(&source, u.codes, u.code_bytes);
    free(p);
    return u;
}

static void setup_free(struct setup *u) {
    cpu_codec_commvq.learned->free(u->learned);
    free(u->cosine);
    free(u->sine);
    guard_release();
}

/* Sizes of gains: alike, of all sizes, some none at all, none. */
enum { GAINS = 4 };
static void set_gains(int kind, float *gains) {
    for (size_t t = 0; t < 64; t++) {
        gains[t] = kind == 1 ? powf(2, 5 * normal()) : 1 + 0.25f * (float)random_unit(&source);
        if (kind == 3 || (kind == 2 && t % 3)) gains[t] = 0;
    }
}

/* The channels of a sub-vector's pair. */
static size_t first_of(const struct commvq_code *c, size_t i) { return c->channels[i / c->pairs * 2 * c->pairs + i % c->pairs]; }
static size_t second_of(const struct commvq_code *c, size_t i) {
    return c->channels[i / c->pairs * 2 * c->pairs + c->pairs + i % c->pairs];
}

/* Returns the largest size that a pair's numbers can have. */
static double size_of(const struct setup *u, size_t i, double gain) {
    const struct commvq_code *c = u->code;
    size_t at = i / c->pairs * c->stride + i % c->pairs;
    double mean = fmax(fabs((double)c->mean[first_of(c, i)]), fabs((double)c->mean[second_of(c, i)]));
    return (double)u->rotation.magnitude * sqrt(2) * (mean + gain * (double)c->steps[at] * (double)c->largest[at]);
}

/* Returns the logit of slot t, and in *terms the largest sum that the sizes of its terms can have. */
static double logit_of(const struct setup *u, const float *channels, const float *q, size_t t, double gain, double *terms) {
    const struct commvq_code *c = u->code;
    double sum = 0;
    *terms = 0;
    for (size_t i = 0; i < c->subvectors * c->pairs; i++) {
        size_t first = first_of(c, i), second = second_of(c, i);
        bool rotated = i < u->rotation.pairs;
        double cosine = rotated ? (double)u->cosine[i * 64 + t] : 1, sine = rotated ? (double)u->sine[i * 64 + t] : 0;
        double x = (double)channels[first * 64 + t], y = (double)channels[second * 64 + t];
        sum += (double)q[first] * (x * cosine - y * sine) + (double)q[second] * (x * sine + y * cosine);
        *terms += (fabs((double)q[first]) + fabs((double)q[second])) * size_of(u, i, gain);
    }
    return sum;
}

static void check_scores(const struct shape *s, const struct setup *u, const struct tier *k, size_t G, int kind) {
    float *gains = guard_floats(64, GUARD_END), *q = guard_floats(G * s->hd, GUARD_START), channels[64 * MOST_HD];
    float *logits = guard_floats(G * 64, G % 2 ? GUARD_END : GUARD_START);
    double largest = 0, square = 0, error = 0;
    set_gains(kind, gains);
    for (size_t t = 0; t < 64; t++) largest = fmax(largest, (double)gains[t]);
    fill_floats(&source, FILL_NORMAL, q, G * s->hd);
    for (size_t c = 0; G > 1 && c < s->hd; c++) q[c] = 0; /* one query is nothing */
    commvq_ops_at(CPU_SCALAR)->decode(u->code, gains, u->codes, channels);
    for (size_t i = 0; i < G * 64; i++) logits[i] = -7;
    bool served = k->commvq->score_rotated(u->code, &u->rotation, gains, q, G, u->codes, logits);
    assert_int_equal(served, s->serves);
    for (size_t i = 0; i < G * 64; i++) {
        double terms, want = logit_of(u, channels, q + i / 64 * s->hd, i % 64, largest, &terms);
        if (!served) {
            assert_true(logits[i] == -7);
            continue;
        }
        check_close((double)logits[i], want, terms, 1.0 / 6000 + s->hd / 45000.0, 1e-6, "%s score_rotated, head_dim %u rounds %u",
                    k->name, s->hd, s->rounds);
        square += terms * terms;
        error += ((double)logits[i] - want) * ((double)logits[i] - want);
    }
    assert_true(error <= square * 1e-8); /* far below the bound, as roundings make up for each other */
}

static void i16_scores_are_as_the_definition_says(void **state) {
    (void)state;
    static const size_t subvectors[] = {1, 2, 3, 4, 5, 8, MOST_QUERIES};
    const struct tier *k;
    EACH_SHAPE(s) {
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            if (!k->commvq->score_rotated || !pq_ops()->has_register_lut) continue;
            for (size_t i = 0; i < sizeof subvectors / sizeof *subvectors; i++) {
                struct setup u = setup_new(s);
                for (int kind = 0; kind < GAINS; kind++)
                    if (s->serves || kind < 2) check_scores(s, &u, k, subvectors[i], kind);
                setup_free(&u);
            }
        }
    }
}

/* Without 16-bit angles, with other pairs than the codebook's, and without byte planes nothing is written. */
static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    const struct shape *s = shapes;
    const struct tier *k;
    struct setup u = setup_new(s);
    float gains[64], q[MOST_HD], logits[64];
    set_gains(0, gains);
    fill_floats(&source, FILL_NORMAL, q, MOST_HD);
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (int what = 0; k->commvq->score_rotated && what < 4; what++) {
            struct key_rotation rotation = u.rotation;
            struct commvq_code code = *u.code;
            if (what == 0) rotation.i16 = NULL;
            if (what == 1) rotation.pairs = 48;
            if (what == 2) rotation.adjacent = !rotation.adjacent;
            if (what == 3) code.planes = NULL;
            memset(logits, 0, sizeof logits);
            assert_false(k->commvq->score_rotated(&code, &rotation, gains, q, 1, u.codes, logits));
            for (size_t t = 0; t < 64; t++) assert_true(logits[t] == 0);
        }
    }
    setup_free(&u);
}

static void numbers_that_are_none_stay_so(void **state) {
    (void)state;
    const struct tier *k;
    struct setup u = setup_new(shapes);
    float gains[64], q[2 * MOST_HD] = {0}, logits[2 * 64];
    set_gains(0, gains);
    q[3] = NAN;
    q[shapes->hd + 5] = INFINITY;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        if (!k->commvq->score_rotated || !pq_ops()->has_register_lut) continue;
        assert_true(k->commvq->score_rotated(u.code, &u.rotation, gains, q, 2, u.codes, logits));
        for (size_t i = 0; i < 2 * 64; i++) assert_false(isfinite(logits[i]));
    }
    setup_free(&u);
}

/* Runs follow one another, none could be longer, and no sum of one leaves a byte. */
static void sums_of_a_run_are_bytes(void **state) {
    (void)state;
    EACH_SHAPE(s) {
        struct setup u = setup_new(s);
        const struct commvq_code *c = u.code;
        size_t pairs = c->subvectors * c->stride, rounds = 0;
        int *most = calloc(pairs * 2, sizeof *most), *span = most + pairs;
        float *all = calloc(pairs, sizeof *all);
        for (size_t i = 0; i < c->spans; i++) {
            bool longer = i > 0; /* the last span with this one's first round */
            assert_in_range(c->span[i], 1, c->rounds);
            for (size_t r = 0; r < c->span[i]; r++, rounds++) {
                bool leaves = false;
                for (size_t j = 0; j < pairs; j++) {
                    const int8_t *rows = c->rows + (j / c->stride * c->rounds + rounds) * E * 2 * c->stride + j % c->stride;
                    int re = 0, im = 0;
                    for (size_t l = 0; l < E; l++) {
                        re = abs(rows[l * 2 * c->stride]) > re ? abs(rows[l * 2 * c->stride]) : re;
                        im = abs(rows[(2 * l + 1) * c->stride]) > im ? abs(rows[(2 * l + 1) * c->stride]) : im;
                    }
                    most[j] = re + im;
                    all[j] += (float)most[j];
                    leaves |= span[j] + most[j] > COMMVQ_SUM;
                }
                assert_true(r == 0 ? !longer || leaves : !leaves);
                for (size_t j = 0; j < pairs; j++) span[j] = r == 0 ? most[j] : span[j] + most[j];
            }
        }
        assert_int_equal(rounds, c->rounds);
        assert_memory_equal(all, c->largest, pairs * sizeof *all);
        free(most);
        free(all);
        setup_free(&u);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(i16_scores_are_as_the_definition_says),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(numbers_that_are_none_stay_so),
        cmocka_unit_test(sums_of_a_run_are_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
