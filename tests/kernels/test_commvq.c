/* CommVQ's keys: the algebra (codewords commute with rotations), every kernel against its definition in double precision on every
 * tier, encoding against brute force, both ways of scoring against decoding, rotating and multiplying, how codes lie, and what is
 * refused. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/commvq.h"
#include "backend/cpu/codec/commvq_search.h"
#include "backend/cpu/kernels/pq/code_planes.h"
#include "base/half.h"
#include "support/kernel_check.h"
#include "train/codec_learning.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_HD = 256, E = COMMVQ_ENTRIES };

static struct random source = {11};

static float normal(void) { return random_normal(&source); }
static double uniform(void) { return random_unit(&source); }

/* ---- A codec with tables made of random numbers: like those of residual rounds, smaller and smaller */

static const struct shape {
    uint32_t hd, width, rounds, pairs;
    bool adjacent;
} shapes[] = {{128, 128, 11, 64, true}, {128, 128, 3, 64, false}, {64, 64, 5, 32, false},  {64, 64, 21, 32, true},
              {96, 96, 4, 32, false},   {256, 128, 4, 128, true}, {128, 32, 2, 40, false}, {32, 32, 1, 16, true},
              {160, 80, 3, 80, false},  {64, 64, 2, 0, true},     {128, 64, 2, 37, true}};
#define EACH_SHAPE(s) for (const struct shape *s = shapes; s < shapes + sizeof shapes / sizeof *shapes; s++)

struct setup {
    struct codec_shape shape;
    size_t n; /* parameters */
    float *parameters, *rows;
    float *tables; /* [groups][rounds][E][width] as they are read */
    void *learned;
    uint8_t *page;
};

static struct codec_shape shape_of(const struct shape *s) {
    return (struct codec_shape){.head_dim = s->hd, .group = 1, .width = s->width, .bits = COMMVQ_BITS * s->rounds};
}

static float *parameters_new(const struct shape *s) {
    struct codec_shape shape = shape_of(s);
    size_t n = codec_parameters(&codec_commvq, shape), tables = commvq_table_numbers(shape), round = (size_t)E * s->width;
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < tables; i++) p[i] = 0.7f * normal() * powf(0.8f, (float)(i / round % s->rounds));
    commvq_set_pairing(shape, p, s->pairs, s->adjacent);
    for (size_t c = 0; c < s->hd; c++) p[tables + 2 + c] = normal();
    p[n - 1] = 1.25f;
    for (size_t i = 0; i < n; i++) p[i] = half_to_float(half_from_float(p[i]));
    return p;
}

/* Rounds the tables as kernels read them: integers of at most 63, with a step for each pair of a group. */
static float *round_tables(const struct shape *s, const float *parameters) {
    size_t g = s->width / 2, rows = 2 * s->rounds * E;
    float *tables = malloc(s->hd / s->width * rows * g * sizeof *tables);
    for (size_t k = 0; k < s->hd / s->width; k++) {
        for (size_t j = 0; j < g; j++) {
            const float *from = parameters + k * rows * g + j;
            float most = 0;
            for (size_t i = 0; i < rows; i++) most = fmaxf(most, fabsf(from[i * g]));
            for (size_t i = 0; i < rows; i++)
                tables[(k * rows + i) * g + j] = most / 63 * (float)lrintf(from[i * g] * (1 / (most / 63)));
        }
    }
    return tables;
}

static struct setup setup_new(const struct shape *s, size_t tokens) {
    struct setup u = {.shape = shape_of(s), .parameters = parameters_new(s)};
    struct terse_error error;
    assert_int_equal(codec_check(&codec_commvq, u.shape, CODEC_KEYS, &error), TERSE_OK);
    u.n = codec_parameters(&codec_commvq, u.shape);
    u.tables = round_tables(s, u.parameters);
    u.rows = malloc(64 * s->hd * sizeof(float));
    for (size_t t = 0; t < 64; t++) {
        float size = expf(2 * normal());
        for (size_t c = 0; c < s->hd; c++)
            u.rows[t * s->hd + c] = u.parameters[commvq_table_numbers(u.shape) + 2 + c] + (t == 5 ? 0 : size * normal());
    }
    if (cpu_codec_commvq.learned->make(u.shape, CODEC_KEYS, u.parameters, &u.learned, &error)) fail_msg("%s", error.message);
    u.shape.learned = u.learned;
    assert_int_equal(posix_memalign((void **)&u.page, 64, codec_page_bytes(&codec_commvq, u.shape, CODEC_KEYS)), 0);
    cpu_codec_commvq.encode(u.shape, CODEC_KEYS, u.rows, tokens, u.page);
    return u;
}

static void setup_free(struct setup *u) {
    cpu_codec_commvq.learned->free(u->learned);
    free(u->parameters);
    free(u->tables);
    free(u->rows);
    free(u->page);
}

/* Finds the two channels of the model's pair i, by RoPE's own definition. */
static void pair_of(const struct shape *s, size_t i, size_t *first, size_t *second) {
    bool split = !s->adjacent && i < s->pairs;
    *first = split ? i : 2 * i;
    *second = split ? i + s->pairs : 2 * i + 1;
}

static unsigned code_at(const struct setup *u, const struct shape *s, size_t group, size_t round, size_t t) {
    uint16_t codes[64];
    code_planes_read(u->page + 64 + (group * s->rounds + round) * COMMVQ_PART, COMMVQ_BITS, codes);
    return codes[t];
}

/* The key that a token's codes stand for, by the definition; returns its gain. */
static double key_by_definition(const struct setup *u, const struct shape *s, size_t t, double *key) {
    const float *mean = u->parameters + commvq_table_numbers(u->shape) + 2;
    size_t g = s->width / 2;
    double gain = u->page[t] ? 1.25 * exp2(((double)u->page[t] - 128) / 20) : 0;
    for (size_t k = 0; k < s->hd / s->width; k++) {
        for (size_t j = 0; j < g; j++) {
            size_t first, second;
            double re = 0, im = 0;
            pair_of(s, k * g + j, &first, &second);
            for (size_t r = 0; r < s->rounds; r++) {
                unsigned code = code_at(u, s, k, r, t);
                const float *table = u->tables + (k * s->rounds + r) * E * s->width;
                const float *a = table + (code & 63) * s->width, *b = table + (code >> 6) * s->width;
                re += (double)a[j] - (double)b[g + j];
                im += (double)a[g + j] + (double)b[j];
            }
            key[first] = (double)mean[first] + gain * re;
            key[second] = (double)mean[second] + gain * im;
        }
    }
    return gain;
}

/* ---- The algebra ----------------------------------------------------------------------------------------------------------- */

/* The paper's matrices [[x, y], [-y, x]] commute with every rotation, and so do the codewords [1 0] C[a] + [0 1] C[b] of them:
 * rotating what was decoded is decoding with rotated tables. */
static void codewords_commute_with_rotations(void **state) {
    (void)state;
    for (int i = 0; i < 1000; i++) {
        double x = (double)normal(), y = (double)normal(), u = (double)normal(), v = (double)normal(),
               angle = 1000 * uniform() - 500;
        double c = cos(angle), s = sin(angle);
        double C[2][2] = {{x, y}, {-y, x}}, R[2][2] = {{c, s}, {-s, c}};
        for (int a = 0; a < 2; a++)
            for (int b = 0; b < 2; b++)
                assert_true(fabs(C[a][0] * R[0][b] + C[a][1] * R[1][b] - R[a][0] * C[0][b] - R[a][1] * C[1][b]) <=
                            1e-15 * (fabs(x) + fabs(y)) * 4);
        /* z[a] = x + iy, z[b] = u + iv: the row [x y] + [-v u] is z[a] + i z[b] */
        double re = x - v, im = y + u, rotated_re = re * c - im * s, rotated_im = re * s + im * c;
        double xr = x * c - y * s, yr = x * s + y * c, ur = u * c - v * s, vr = u * s + v * c;
        assert_true(fabs(xr - vr - rotated_re) <= 1e-14 * 4 && fabs(yr + ur - rotated_im) <= 1e-14 * 4);
    }
}

/* The same of the kernels' rows: the residuals that rotated tables leave of rotated rows are the residuals, rotated. */
static void rotated_codes_leave_rotated_residuals(void **state) {
    (void)state;
    enum { G = 19, K = 64, N = 20 };
    float table[2][K * 2 * G], rows[2][N * 2 * G];
    uint16_t codes[N];
    fill_floats(&source, FILL_NORMAL, table[0], K * 2 * G);
    fill_floats(&source, FILL_NORMAL, rows[0], N * 2 * G);
    for (size_t t = 0; t < N; t++) codes[t] = (uint16_t)(random_bits(&source) % (K * K));
    for (size_t i = 0; i < (K + N) * G; i++) {
        size_t row = i / G, j = i % G;
        float *from = row < K ? table[0] + row * 2 * G + j : rows[0] + (row - K) * 2 * G + j,
              *to = from + (row < K ? K : N) * 2 * G;
        double c = cos(777.0 * (double)j), d = sin(777.0 * (double)j);
        to[0] = (float)((double)from[0] * c - (double)from[G] * d);
        to[G] = (float)((double)from[0] * d + (double)from[G] * c);
    }
    commvq_subtract(table[0], G, K, codes, N, rows[0], 2 * G);
    commvq_subtract(table[1], G, K, codes, N, rows[1], 2 * G);
    for (size_t i = 0; i < N * G; i++) {
        const float *x = rows[0] + i / G * 2 * G + i % G, *y = rows[1] + i / G * 2 * G + i % G;
        double c = cos(777.0 * (double)(i % G)), d = sin(777.0 * (double)(i % G));
        assert_true(fabs((double)y[0] - (double)x[0] * c + (double)x[G] * d) <= 3e-6);
        assert_true(fabs((double)y[G] - (double)x[0] * d - (double)x[G] * c) <= 3e-6);
    }
}

/* The same of the codec, whose tables are integers: with tables and mean rotated, the same codes give the keys rotated. */
static void rotated_tables_give_rotated_keys(void **state) {
    (void)state;
    EACH_SHAPE(s) {
        struct setup u = setup_new(s, 64);
        float *rotated = malloc(u.n * sizeof *rotated), before[64 * MOST_HD], after[64 * MOST_HD];
        size_t g = s->width / 2;
        memcpy(rotated, u.parameters, u.n * sizeof *rotated);
        float *mean = rotated + commvq_table_numbers(u.shape) + 2;
        cpu_codec_commvq.decode(u.shape, CODEC_KEYS, u.page, before);
        for (size_t i = 0; i < s->hd / 2; i++) {
            float c = cosf((float)i + 0.3f), d = sinf((float)i + 0.3f);
            size_t first, second;
            pair_of(s, i, &first, &second);
            for (size_t row = 0; row <= s->rounds * E + 64; row++) {
                float *table = rotated + i / g * s->rounds * E * s->width + row * s->width, *re = table + i % g, *im = re + g;
                if (row == s->rounds * E) re = mean + first, im = mean + second;
                if (row > s->rounds * E) { /* and the keys themselves */
                    re = before + (row - 1 - s->rounds * E) * s->hd + first;
                    im = before + (row - 1 - s->rounds * E) * s->hd + second;
                }
                float x = *re * c - *im * d, y = *re * d + *im * c;
                *re = x;
                *im = y;
            }
        }
        struct terse_error error;
        void *learned;
        struct codec_shape shape = u.shape;
        shape.learned = NULL;
        assert_int_equal(cpu_codec_commvq.learned->make(shape, CODEC_KEYS, rotated, &learned, &error), TERSE_OK);
        shape.learned = learned;
        cpu_codec_commvq.decode(shape, CODEC_KEYS, u.page, after);
        double unit = 0;
        for (size_t j = 0; j < s->hd / s->width * commvq_code_of(shape)->stride; j++)
            unit = fmax(unit, (double)commvq_code_of(shape)->steps[j] + (double)commvq_code_of(u.shape)->steps[j]);
        float gains[64];
        commvq_gains(shape, u.page, gains);
        for (size_t t = 0; t < 64; t++)
            for (size_t c = 0; c < s->hd; c++)
                assert_true(fabs((double)after[t * s->hd + c] - (double)before[t * s->hd + c]) <=
                            2 * s->rounds * unit * (double)gains[t] + 1e-5 * (10 + 10 * (double)gains[t]));
        cpu_codec_commvq.learned->free(learned);
        free(rotated);
        setup_free(&u);
    }
}

/* ---- Kernels ------------------------------------------------------------------------------------------------------------- */

/* Every tier's keys are those of the definition, whether it reads rows or planes. */
static void decoding_is_what_the_definition_says(void **state) {
    (void)state;
    const struct tier *k;
    EACH_SHAPE(s) {
        struct setup u = setup_new(s, 64);
        const struct commvq_code *c = commvq_code_of(u.shape);
        float decoded[64 * MOST_HD], gains[64];
        double key[MOST_HD];
        size_t bytes = codec_page_bytes(&codec_commvq, u.shape, CODEC_KEYS);
        cpu_codec_commvq.decode(u.shape, CODEC_KEYS, u.page, decoded);
        commvq_gains(u.shape, u.page, gains);
        for (size_t t = 0; t < 64; t++) {
            double gain = key_by_definition(&u, s, t, key), apart = 1e-5 * gain + 1e-6;
            for (size_t i = 0; i < s->hd; i++) assert_true(fabs((double)decoded[t * s->hd + i] - key[i]) <= apart);
        }
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            float *channels = guard_floats(s->hd * 64, GUARD_END);
            uint8_t *codes =
                guard_copy(commvq_codes(u.page), s->hd / s->width * s->rounds * COMMVQ_PART, tier % 2 ? GUARD_START : GUARD_END);
            for (int planes = 0; planes < 2; planes++) {
                struct commvq_code some = *c;
                if (!planes) some.planes = NULL;
                k->commvq->decode(&some, gains, codes, channels);
                for (size_t i = 0; i < 64 * s->hd; i++) {
                    float want = decoded[i % 64 * s->hd + i / 64];
                    assert_true(fabsf(channels[i] - want) <= 1e-5f * (1 + fabsf(want) + 10 * gains[i % 64]));
                }
            }
            guard_release();
        }
        assert_int_equal(bytes % 64, 0);
        setup_free(&u);
    }
}

struct angles {
    float cosine[MOST_HD / 2 * 64], sine[MOST_HD / 2 * 64];
    struct key_rotation rotation;
};

static void angles_set(struct angles *a, const struct shape *s, double first) {
    for (size_t i = 0; i < s->pairs * 64; i++) {
        double angle = (first + (double)(i % 64)) * pow(10000, -(double)(i / 64) / (s->pairs ? s->pairs : 1));
        a->cosine[i] = (float)cos(angle);
        a->sine[i] = (float)sin(angle);
    }
    a->rotation = (struct key_rotation){.cosine = a->cosine, .sine = a->sine, .pairs = s->pairs, .adjacent = s->adjacent};
}

/* <q, key of slot t rotated>, and in *terms the sum of its terms' sizes. */
static double score_by_definition(const struct shape *s, const struct angles *a, const float *q, const float *key, size_t t,
                                  double *terms) {
    double sum = 0;
    *terms = 0;
    for (size_t i = 0; i < s->hd / 2; i++) {
        size_t first, second;
        pair_of(s, i, &first, &second);
        bool rotated = i < s->pairs;
        double c = rotated ? (double)a->cosine[i * 64 + t] : 1, d = rotated ? (double)a->sine[i * 64 + t] : 0;
        double x = (double)key[first] * c - (double)key[second] * d, y = (double)key[first] * d + (double)key[second] * c;
        sum += (double)q[first] * x + (double)q[second] * y;
        *terms += fabs((double)q[first]) * (fabs((double)key[first]) + fabs((double)key[second]));
        *terms += fabs((double)q[second]) * (fabs((double)key[first]) + fabs((double)key[second]));
    }
    return sum;
}

static void both_ways_of_scoring_equal_decode_rotate_multiply(void **state) {
    (void)state;
    static const uint32_t groups[] = {1, 3, 8, 9};
    static struct angles angles;
    EACH_SHAPE(s) {
        struct setup u = setup_new(s, 64);
        const struct commvq_code *c = commvq_code_of(u.shape);
        float decoded[64 * MOST_HD], q[9 * MOST_HD], gains[64], *tables = malloc(9 * commvq_table_floats(c) * sizeof *tables);
        const struct tier *k;
        angles_set(&angles, s, 3000);
        cpu_codec_commvq.decode(u.shape, CODEC_KEYS, u.page, decoded);
        commvq_gains(u.shape, u.page, gains);
        fill_floats(&source, FILL_NORMAL, q, 9 * s->hd);
        for (size_t i = 0; i < 4; i++) {
            float logits[9 * 64], by_table[9 * 64], unrotated[9 * 64];
            u.shape.group = groups[i];
            commvq_prepare(u.shape, q, tables);
            commvq_score_by_table(u.shape, tables, &angles.rotation, u.page, by_table);
            cpu_codec_commvq.score_rotated(u.shape, q, &angles.rotation, u.page, logits);
            cpu_codec_commvq.score(u.shape, q, NULL, u.page, unrotated);
            for (size_t m = 0; m < groups[i] * 64; m++) {
                const float *query = q + m / 64 * s->hd, *key = decoded + m % 64 * s->hd;
                double terms, want = score_by_definition(s, &angles, query, key, m % 64, &terms), plain = 0;
                for (size_t j = 0; j < s->hd; j++) plain += (double)query[j] * (double)key[j];
                check_close((double)logits[m], want, terms, 1e-5, 1e-6, "decoded, head_dim %u", s->hd);
                check_close((double)by_table[m], want, terms + (double)gains[m % 64], 1e-5, 1e-6, "by table, head_dim %u", s->hd);
                check_close((double)unrotated[m], plain, terms, 1e-5, 1e-6, "unrotated, head_dim %u", s->hd);
            }
        }
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            float *own = guard_floats(commvq_table_floats(c), GUARD_END), *logits = guard_floats(64, GUARD_END);
            float *query = guard_copy(q, s->hd * sizeof *q, GUARD_END);
            k->commvq->prepare(c, query, own);
            k->commvq->look_up(c, &angles.rotation, own, gains, commvq_codes(u.page), logits);
            for (size_t t = 0; t < 64; t++) {
                double terms, want = score_by_definition(s, &angles, q, decoded + t * s->hd, t, &terms);
                check_close((double)logits[t], want, terms + (double)gains[t], 1e-5, 1e-6, "%s look_up, head_dim %u", k->name,
                            s->hd);
            }
            guard_release();
        }
        free(tables);
        setup_free(&u);
    }
}

/* Rotating queries and keys further by the same angle changes nothing. */
static void scores_depend_on_relative_positions(void **state) {
    (void)state;
    static struct angles near, far, shift;
    EACH_SHAPE(s) {
        struct setup u = setup_new(s, 64);
        float q[MOST_HD], moved[MOST_HD], a[64], b[64], norm = 0;
        u.shape.group = 1;
        angles_set(&near, s, 0);
        angles_set(&far, s, 500);
        angles_set(&shift, s, 500); /* of slot 0 */
        for (size_t i = 0; i < s->hd; i++) moved[i] = q[i] = normal();
        for (size_t i = 0; i < s->pairs; i++) {
            size_t first, second;
            pair_of(s, i, &first, &second);
            float c = shift.cosine[i * 64], d = shift.sine[i * 64];
            moved[first] = q[first] * c - q[second] * d;
            moved[second] = q[first] * d + q[second] * c;
        }
        cpu_codec_commvq.score_rotated(u.shape, q, &near.rotation, u.page, a);
        cpu_codec_commvq.score_rotated(u.shape, moved, &far.rotation, u.page, b);
        for (size_t t = 0; t < 64; t++) {
            norm = 0;
            for (size_t i = 0; i < s->hd; i++) norm += fabsf(u.rows[t * s->hd + i]);
            assert_true(fabsf(a[t] - b[t]) <= 1e-4f * (norm + 10));
        }
        setup_free(&u);
    }
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------------------- */

static double distance_to(const float *x, const float *table, size_t g, size_t entries, unsigned code) {
    const float *a = table + code % entries * 2 * g, *b = table + code / entries * 2 * g;
    double sum = 0;
    for (size_t j = 0; j < g; j++) {
        double re = (double)x[j] - (double)a[j] + (double)b[g + j], im = (double)x[g + j] - (double)a[g + j] - (double)b[j];
        sum += re * re + im * im;
    }
    return sum;
}

/* Each round's code is the nearest to what earlier rounds left of (row - mean) / rms; the gain keeps the norm. */
static void encoding_is_greedy_by_rounds(void **state) {
    (void)state;
    EACH_SHAPE(s) {
        struct setup u = setup_new(s, 61);
        const float *mean = u.parameters + commvq_table_numbers(u.shape) + 2;
        size_t g = s->width / 2;
        for (size_t t = 0; t < 61; t += 5) {
            double size = 0, kept = 0, key[MOST_HD];
            if (leaves_out(t / 5)) continue;
            for (size_t c = 0; c < s->hd; c++) size += pow((double)u.rows[t * s->hd + c] - (double)mean[c], 2);
            double rms = sqrt(size / s->hd), inverse = rms > 0 ? 1 / rms : 0;
            for (size_t k = 0; k < s->hd / s->width; k++) {
                float x[MOST_HD];
                for (size_t j = 0; j < g; j++) {
                    size_t first, second;
                    pair_of(s, k * g + j, &first, &second);
                    x[j] = (float)(((double)u.rows[t * s->hd + first] - (double)mean[first]) * inverse);
                    x[g + j] = (float)(((double)u.rows[t * s->hd + second] - (double)mean[second]) * inverse);
                }
                for (size_t r = 0; r < s->rounds; r++) {
                    const float *table = u.tables + (k * s->rounds + r) * E * s->width;
                    unsigned code = code_at(&u, s, k, r, t);
                    uint16_t chosen = (uint16_t)code;
                    double got = distance_to(x, table, g, E, code), least = got;
                    for (unsigned other = 0; other < E * E; other++) least = fmin(least, distance_to(x, table, g, E, other));
                    assert_true(got <= least + 1e-5 * (least + 1));
                    commvq_subtract(table, g, E, &chosen, 1, x, 2 * g);
                }
            }
            key_by_definition(&u, s, t, key);
            for (size_t c = 0; c < s->hd; c++) kept += pow(key[c] - (double)mean[c], 2);
            if (u.page[t] > 1 && u.page[t] < 255) assert_true(fabs(sqrt(kept) - sqrt(size)) <= 0.019 * sqrt(size));
            if (t == 5) assert_int_equal(u.page[t], 0);
        }
        for (size_t t = 61; t < 64; t++) assert_int_equal(u.page[t], 0); /* slots without tokens are the mean */
        size_t used = 64 + s->hd / s->width * s->rounds * COMMVQ_PART, bytes = codec_page_bytes(&codec_commvq, u.shape, CODEC_KEYS);
        for (size_t i = used; i < bytes; i++) assert_int_equal(u.page[i], 0);
        /* A row's code does not depend on the rows encoded with it. */
        uint8_t *alone = malloc(bytes);
        cpu_codec_commvq.encode(u.shape, CODEC_KEYS, u.rows + 7 * s->hd, 1, alone);
        assert_int_equal(alone[0], u.page[7]);
        for (size_t k = 0; k < s->hd / s->width * s->rounds; k++) {
            uint16_t one[64], all[64];
            code_planes_read(alone + 64 + k * COMMVQ_PART, COMMVQ_BITS, one);
            code_planes_read(u.page + 64 + k * COMMVQ_PART, COMMVQ_BITS, all);
            assert_int_equal(one[0], all[7]);
        }
        free(alone);
        setup_free(&u);
    }
}

/* A table whose entry 0 is zero has a zero codeword (both parts of the code are 0), so that no round makes a residual longer. */
static void residuals_never_grow(void **state) {
    (void)state;
    enum { G = 32, N = 64, ROUNDS = 8 };
    float table[E * 2 * G], x[N * 2 * G];
    double before[N];
    struct commvq_search search;
    struct terse_error error;
    assert_int_equal(commvq_search_new(G, E, &search, &error), TERSE_OK);
    fill_floats(&source, FILL_NORMAL, x, N * 2 * G);
    for (size_t t = 0; t < N; t++) before[t] = INFINITY;
    for (size_t r = 0; r < ROUNDS; r++) {
        uint16_t codes[N];
        double grown = 0;
        fill_floats(&source, FILL_NORMAL, table, E * 2 * G);
        for (size_t i = 0; i < E * 2 * G; i++) table[i] = i < 2 * G ? 0 : 0.3f * table[i];
        commvq_search_set(&search, table);
        commvq_search_nearest(&search, x, N, 2 * G, codes);
        commvq_subtract(table, G, E, codes, N, x, 2 * G);
        for (size_t t = 0; t < N; t++) {
            double square = 0;
            for (size_t i = 0; i < 2 * G; i++) square += (double)x[t * 2 * G + i] * (double)x[t * 2 * G + i];
            assert_true(square <= before[t] * (1 + 1e-5));
            grown += square < before[t];
            before[t] = square;
        }
        assert_true(grown > 0); /* and some get shorter */
    }
    commvq_search_free(&search);
}

/* ---- How codes lie ------------------------------------------------------------------------------------------------------- */

static void codes_of_12_bits_lie_without_waste(void **state) {
    (void)state;
    uint16_t codes[64], back[64];
    uint8_t planes[COMMVQ_PART];
    for (unsigned first = 0; first < 4096; first += 64) { /* every a and b */
        for (unsigned t = 0; t < 64; t++) codes[t] = (uint16_t)(first + (t * 29) % 64);
        code_planes_write(codes, COMMVQ_BITS, planes);
        code_planes_read(planes, COMMVQ_BITS, back);
        assert_memory_equal(codes, back, sizeof codes);
    }
    static const struct {
        uint32_t hd, bits, width, rounds, bytes;
    } want[] = {{128, 1, 128, 11, 1152}, {128, 2, 128, 21, 2112}, {64, 1, 64, 5, 576},   {64, 2, 64, 11, 1152},
                {96, 1, 96, 8, 832},     {96, 2, 96, 16, 1600},   {32, 1, 32, 3, 384},   {32, 2, 32, 5, 576},
                {256, 1, 128, 11, 2176}, {256, 2, 128, 21, 4096}, {160, 1, 80, 7, 1408}, {192, 1, 96, 8, 1600},
                {224, 2, 112, 19, 3712}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct coding coding = commvq_coding(want[i].hd, want[i].bits);
        struct codec_shape shape = {.head_dim = want[i].hd, .group = 1, .width = coding.width, .bits = coding.bits};
        struct terse_error error;
        assert_ptr_equal(coding.codec, &codec_commvq);
        assert_int_equal(coding.width, want[i].width);
        assert_int_equal(coding.bits, COMMVQ_BITS * want[i].rounds);
        assert_int_equal(codec_check(&codec_commvq, shape, CODEC_KEYS, &error), TERSE_OK);
        assert_int_equal(codec_page_bytes(&codec_commvq, shape, CODEC_KEYS), want[i].bytes);
        /* rounds log2(64) 2 / width bits of codes, 8 bits of gain a token, and less than 64 bytes to fill up */
        double exact = 64 * (want[i].rounds * 12.0 * want[i].hd / want[i].width + 8) / 8;
        assert_true((double)want[i].bytes >= exact && (double)want[i].bytes < exact + 64);
    }
}

/* The first rounds of a longer code are a shorter code. */
static void many_rounds_contain_fewer(void **state) {
    (void)state;
    const struct shape many = {64, 64, 21, 32, true}, few = {64, 64, 11, 32, true};
    struct setup u = setup_new(&many, 64);
    struct codec_shape shape = shape_of(&few);
    size_t tables = commvq_table_numbers(shape), n = codec_parameters(&codec_commvq, shape), same = 0;
    float *parameters = malloc(n * sizeof *parameters);
    memcpy(parameters, u.parameters, tables * sizeof *parameters);
    memcpy(parameters + tables, u.parameters + commvq_table_numbers(u.shape), (n - tables) * sizeof *parameters);
    void *learned;
    struct terse_error error;
    assert_int_equal(cpu_codec_commvq.learned->make(shape, CODEC_KEYS, parameters, &learned, &error), TERSE_OK);
    shape.learned = learned;
    uint8_t *page = malloc(codec_page_bytes(&codec_commvq, shape, CODEC_KEYS));
    cpu_codec_commvq.encode(shape, CODEC_KEYS, u.rows, 64, page);
    for (size_t r = 0; r < few.rounds; r++) {
        uint16_t a[64], b[64];
        code_planes_read(page + 64 + r * COMMVQ_PART, COMMVQ_BITS, a);
        code_planes_read(u.page + 64 + r * COMMVQ_PART, COMMVQ_BITS, b);
        for (size_t t = 0; t < 64; t++) same += a[t] == b[t];
    }
    assert_true(same >= few.rounds * 64 * 97 / 100); /* steps differ, and with them what is as near as another */
    cpu_codec_commvq.learned->free(learned);
    free(page);
    free(parameters);
    setup_free(&u);
}

static void more_rounds_err_less(void **state) {
    (void)state;
    double last = INFINITY;
    for (uint32_t rounds = 1; rounds <= 16; rounds *= 2) {
        const struct shape s = {64, 64, rounds, 32, false};
        source.state = 5; /* the same rows and first tables but for the gains' sake */
        struct setup u = setup_new(&s, 64);
        float decoded[64 * 64];
        double sum = 0;
        source.state = 77;
        fill_floats(&source, FILL_NORMAL, u.rows, 64 * 64);
        cpu_codec_commvq.encode(u.shape, CODEC_KEYS, u.rows, 64, u.page);
        cpu_codec_commvq.decode(u.shape, CODEC_KEYS, u.page, decoded);
        for (size_t i = 0; i < 64 * 64; i++) sum += pow((double)decoded[i] - (double)u.rows[i], 2);
        assert_true(sum < last);
        last = sum;
        setup_free(&u);
    }
}

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

static void bad_shapes_are_refused(void **state) {
    (void)state;
    static const struct codec_shape bad[] = {
        {.head_dim = 128, .group = 1, .width = 0, .bits = 132},   {.head_dim = 128, .group = 1, .width = 96, .bits = 132},
        {.head_dim = 128, .group = 1, .width = 128, .bits = 0},   {.head_dim = 128, .group = 1, .width = 128, .bits = 130},
        {.head_dim = 256, .group = 1, .width = 256, .bits = 132}, {.head_dim = 100, .group = 1, .width = 50, .bits = 12},
        {.head_dim = 128, .group = 1, .width = 128, .bits = 780}, {.head_dim = 96, .group = 1, .width = 3, .bits = 12},
        {.head_dim = 256, .group = 1, .width = 16, .bits = 12}};
    struct terse_error error;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error.message[0] = 0;
        assert_int_equal(codec_check(&codec_commvq, bad[i], CODEC_KEYS, &error), TERSE_E_UNSUPPORTED);
        assert_true(strlen(error.message) > 20);
    }
    assert_int_equal(codec_check(&codec_commvq, (struct codec_shape){.head_dim = 128, .group = 1, .width = 128, .bits = 132},
                                 CODEC_VALUES, &error),
                     TERSE_E_UNSUPPORTED);
}

static void hostile_parameters_are_refused(void **state) {
    (void)state;
    const struct shape s = {64, 64, 2, 16, false};
    const struct codec_shape shape = shape_of(&s);
    float *p = parameters_new(&s);
    size_t tables = commvq_table_numbers(shape), n = codec_parameters(&codec_commvq, shape);
    const struct {
        size_t at;
        float value;
        bool fine;
    } cases[] = {{0, NAN, false},          {tables - 1, INFINITY, false},
                 {77, -INFINITY, false},   {77, 1e30f, false},
                 {77, 65504, true},        {tables, -1, false},
                 {tables, 33, false},      {tables, 0.5f, false},
                 {tables, NAN, false},     {tables, 32, true},
                 {tables, 0, true},        {tables + 1, 2, false},
                 {tables + 1, NAN, false}, {tables + 1, 1, true},
                 {tables + 2, NAN, false}, {n - 2, INFINITY, false},
                 {n - 1, -1, false},       {n - 1, NAN, false},
                 {n - 1, 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct terse_error error;
        void *learned;
        float was = p[cases[i].at];
        p[cases[i].at] = cases[i].value;
        error.message[0] = 0;
        assert_int_equal(codec_check_parameters(&codec_commvq, shape, p, &error), cases[i].fine ? TERSE_OK : TERSE_E_FORMAT);
        learned = NULL;
        if (cases[i].fine) assert_int_equal(cpu_codec_commvq.learned->make(shape, CODEC_KEYS, p, &learned, &error), TERSE_OK);
        assert_true(!learned == !cases[i].fine);
        assert_true(cases[i].fine || strlen(error.message) > 20);
        cpu_codec_commvq.learned->free(learned);
        p[cases[i].at] = was;
    }
    cpu_codec_commvq.learned->free(NULL);
    free(p);
}

/* Rows of NaN and infinities, pages of random bytes and tables of extreme sizes do no harm. */
static void strange_numbers_do_no_harm(void **state) {
    (void)state;
    static const float sizes[] = {0, 1e-7f, 6e4f};
    for (size_t i = 0; i < 3; i++) {
        const struct shape s = {64, 32, 3, 32, false};
        struct codec_shape shape = shape_of(&s);
        float *p = parameters_new(&s), rows[64 * 64];
        for (size_t j = 0; j < commvq_table_numbers(shape); j++)
            p[j] = half_to_float(half_from_float(j % 2 ? sizes[i] : -sizes[i]));
        struct terse_error error;
        void *learned;
        assert_int_equal(cpu_codec_commvq.learned->make(shape, CODEC_KEYS, p, &learned, &error), TERSE_OK);
        assert_true(cpu_codec_commvq.learned->bytes(learned) > 2 * commvq_table_numbers(shape));
        shape.learned = learned;
        size_t bytes = codec_page_bytes(&codec_commvq, shape, CODEC_KEYS);
        uint8_t *page = malloc(bytes);
        fill_bytes(&source, page, bytes);
        cpu_codec_commvq.decode(shape, CODEC_KEYS, page, rows);
        for (size_t j = 0; j < 64 * 64; j++) assert_true(isfinite(rows[j]));
        for (size_t j = 0; j < 64 * 64; j++) rows[j] = j % 97 == 0 ? NAN : j % 89 == 0 ? INFINITY : j % 5 == 0 ? 3e38f : normal();
        cpu_codec_commvq.encode(shape, CODEC_KEYS, rows, 64, page);
        cpu_codec_commvq.decode(shape, CODEC_KEYS, page, rows);
        for (size_t j = 0; j < 64 * 64; j++) assert_true(isfinite(rows[j]));
        cpu_codec_commvq.learned->free(learned);
        free(page);
        free(p);
    }
}

static void normalization_is_the_mean_and_the_usual_size(void **state) {
    (void)state;
    enum { HD = 32, ROWS = 300 };
    const struct shape s = {HD, HD, 1, 16, true};
    struct codec_shape shape = shape_of(&s);
    float *p = parameters_new(&s), rows[ROWS * HD], row[HD], *mean = p + commvq_table_numbers(shape) + 2;
    double scale = 0;
    for (size_t i = 0; i < ROWS * HD; i++) rows[i] = (float)(i % HD) + (float)(1 + i / HD) * normal();
    codec_fit_normalization(&codec_commvq, shape, rows, ROWS, p);
    for (size_t c = 0; c < HD; c++) {
        double sum = 0;
        for (size_t r = 0; r < ROWS; r++) sum += (double)rows[r * HD + c] / ROWS;
        assert_true(fabs(sum - (double)mean[c]) <= 1e-3);
    }
    for (size_t r = 0; r < ROWS; r++) {
        double size = 0, one = 0;
        for (size_t c = 0; c < HD; c++) size += pow((double)rows[r * HD + c] - (double)mean[c], 2) / HD;
        memcpy(row, rows + r * HD, sizeof row);
        assert_true(fabs((double)codec_normalize_row(&codec_commvq, shape, p, row) - sqrt(size)) <= 1e-4 * sqrt(size));
        for (size_t c = 0; c < HD; c++) one += (double)row[c] * (double)row[c] / HD;
        assert_true(fabs(one - 1) <= 1e-4);
        scale += sqrt(size) / ROWS;
    }
    assert_true(fabs((double)mean[HD] - scale) <= 1e-3 * scale);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codewords_commute_with_rotations),
        cmocka_unit_test(rotated_codes_leave_rotated_residuals),
        cmocka_unit_test(rotated_tables_give_rotated_keys),
        cmocka_unit_test(decoding_is_what_the_definition_says),
        cmocka_unit_test(both_ways_of_scoring_equal_decode_rotate_multiply),
        cmocka_unit_test(scores_depend_on_relative_positions),
        cmocka_unit_test(encoding_is_greedy_by_rounds),
        cmocka_unit_test(residuals_never_grow),
        cmocka_unit_test(codes_of_12_bits_lie_without_waste),
        cmocka_unit_test(many_rounds_contain_fewer),
        cmocka_unit_test(more_rounds_err_less),
        cmocka_unit_test(bad_shapes_are_refused),
        cmocka_unit_test(hostile_parameters_are_refused),
        cmocka_unit_test(strange_numbers_do_no_harm),
        cmocka_unit_test(normalization_is_the_mean_and_the_usual_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
