/* The codec transform on the CPU, as a whole: rows come back within what their bits allow, what reads codes equals what reads decoded rows,
 * gathered tokens decode to the same bits, and rows of no size or of a huge one do no harm. */
#include "backend/cpu/codec/transform.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "format/transform_codes.h"
#include "format/transform_fit.h"
#include "support/fit_oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define G 5
#define ROWS 512 /* of which the first 64 make a page, and all are fitted to */

static uint64_t random_state = 11;

static double random_unit(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(random_state >> 11) + 0.5) * 0x1p-53;
}
static double random_normal(void) { return sqrt(-2 * log(random_unit())) * cos(2 * M_PI * random_unit()); }

/* Parameters with an orthogonal basis (a product of random reflections), sizes that fall by `fall` each, and rows made of them. */
struct sample {
    size_t hd;
    float *parameters;
    float rows[ROWS * CODEC_HEAD_DIM_MAX];
    struct transform_layout layout;
    struct codec_shape shape;
    void *learned;
    void *fitted; /* a record; NULL: pages go by the parameters */
    void *page;
};

/* True while the samples' rows lie far from the parameters' means, sizes and directions, and the codec is fitted to them. */
static bool fits;

static int fit_from_here(void **state) {
    (void)state;
    fits = true;
    return 0;
}

static int fit_no_more(void **state) {
    (void)state;
    fits = false;
    return 0;
}

static void make_parameters(struct sample *s, double fall) {
    size_t hd = s->hd;
    float *mean = s->parameters, *pre_rope_mean = mean + hd, *size = pre_rope_mean + hd, *basis = size + hd,
          *rest = basis + hd * hd;
    double square = 0, own = 1;
    for (size_t c = 0; c < hd; c++, own *= fall) {
        mean[c] = (float)random_normal();
        pre_rope_mean[c] = 0;
        size[c] = (float)own;
        square += own * own;
        for (size_t ch = 0; ch < hd; ch++) basis[c * hd + ch] = c == ch;
    }
    for (size_t c = 0; c < hd && square > 0; c++) size[c] *= (float)sqrt((double)hd / square);
    for (int reflection = 0; reflection < 5; reflection++) {
        double v[CODEC_HEAD_DIM_MAX], norm = 0;
        for (size_t ch = 0; ch < hd; ch++) {
            v[ch] = random_normal();
            norm += v[ch] * v[ch];
        }
        for (size_t c = 0; c < hd; c++) {
            double dot = 0;
            for (size_t ch = 0; ch < hd; ch++) dot += v[ch] * (double)basis[c * hd + ch];
            for (size_t ch = 0; ch < hd; ch++) basis[c * hd + ch] -= (float)(2 * dot / norm * v[ch]);
        }
    }
    rest[0] = 0.1f, rest[1] = 4, rest[2] = 1, rest[3] = rest[4] = 0;
}

static void make_rows(struct sample *s) {
    size_t hd = s->hd;
    struct transform_parameters own = transform_parameters_at(s->parameters, (uint32_t)hd);
    for (size_t t = 0; t < ROWS; t++) {
        double gain = exp(random_unit() - 0.5);
        for (size_t ch = 0; ch < hd; ch++) s->rows[t * hd + ch] = own.mean[ch];
        for (size_t c = 0; c < hd; c++) {
            float y = (float)(gain * random_normal()) * own.size[c];
            for (size_t ch = 0; ch < hd; ch++) s->rows[t * hd + ch] += y * own.basis[c * hd + ch];
        }
    }
}

/* Reflects rows about their channels' mean: the parameters' basis is theirs no more. */
static void turn_rows(struct sample *s) {
    size_t hd = s->hd;
    for (size_t t = 0; t < ROWS; t++) {
        float *row = s->rows + t * hd, mean = 0;
        for (size_t c = 0; c < hd; c++) mean += row[c] / (float)hd;
        for (size_t c = 0; c < hd; c++) row[c] -= 2 * mean;
    }
}

/* Fits to the first n rows. */
static void fit(struct sample *s, size_t n) {
    const struct transform_learned *learned = s->learned;
    s->fitted = calloc(1, TRANSFORM_RECORD_BYTES(s->hd));
    assert_non_null(s->fitted);
    assert_int_equal(transform_fit_rows(vector_ops()->multiply, learned->record, learned->metric, (uint32_t)s->hd, s->rows, n, NULL,
                                        s->fitted, NULL),
                     TERSE_OK);
    s->shape.fitted = s->fitted;
}

static void set_layout(struct sample *s, const float *size, double rate) {
    uint8_t bits[TRANSFORM_QUADS_MAX] = {0};
    struct transform_share share = {.size = size, .quad_bits = bits};
    assert_int_equal(transform_share_bits(&share, 1, (uint32_t)s->hd, rate, NULL), TERSE_OK);
    transform_layout_set(bits, (uint32_t)s->hd, &s->layout);
}

static struct sample *new_sample(size_t hd, double fall, double rate, enum codec_side side) {
    struct sample *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->hd = hd;
    s->parameters = calloc(transform_parameter_floats((uint32_t)hd), sizeof(float));
    assert_non_null(s->parameters);
    make_parameters(s, fall);
    make_rows(s);
    s->shape = (struct codec_shape){.head_dim = (uint32_t)hd, .group = G, .layout = &s->layout};
    assert_int_equal(cpu_codec_transform.learned->make(s->shape, side, s->parameters, &s->learned, NULL), TERSE_OK);
    s->shape.learned = s->learned;
    for (size_t i = 0; i < ROWS * hd && fits; i++) s->rows[i] = 3 * s->rows[i] + (float)(i % hd);
    if (fits) turn_rows(s);
    if (fits) fit(s, ROWS);
    set_layout(s, transform_of(s->shape).size, rate);
    s->page = aligned_alloc(64, codec_page_bytes(&codec_transform, s->shape, side));
    assert_non_null(s->page);
    return s;
}

static void free_sample(struct sample *s) {
    cpu_codec_transform.learned->free(s->learned);
    free(s->parameters);
    free(s->fitted);
    free(s->page);
    free(s);
}

static void round_trips_have_the_error_of_their_bits(void **state) {
    (void)state;
    static const double rates[] = {1, 2, 4, 7};
    for (size_t r = 0; r < 4; r++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct sample *s = new_sample(128, 0.97, rates[r], side);
            float decoded[64 * 128];
            double expected = 0, error = 0, power = 0;
            cpu_codec_transform.encode(s->shape, side, s->rows, 64, s->page);
            cpu_codec_transform.decode(s->shape, side, s->page, decoded);
            const struct transform_fitted own = transform_of(s->shape);
            for (size_t c = 0; c < 128; c++)
                expected += pow((double)own.size[c], 2) * (double)transform_distortion[s->layout.quad_bits[c / 4]] / 128;
            for (size_t i = 0; i < 64 * 128; i++) {
                error += pow((double)(decoded[i] - s->rows[i]), 2);
                power += pow((double)(s->rows[i] - own.mean[i % 128]), 2);
            }
            /* The gains' bytes add (most - least)^2 / 255^2 / 12 of the mean power 1, rows' sizes are estimates. */
            assert_true(error / power < (rates[r] < 2 ? 1.05 : 0.97) * expected); /* rows have the best of some sizes */
            assert_true(error / power > 0.5 * expected);
            free_sample(s);
        }
    }
}

/* Values of tokens on which attention rests are nearly zero. Less the mean, such rows lie where others hardly differ: far beyond the
 * levels of a small component, here 15 times its size. They are coded as larger ones. Cut off, they would err by 0.15 of their square,
 * however many bits there are. */
static void rows_beyond_the_levels_are_not_cut_off(void **state) {
    (void)state;
    static const struct { double rate, most; } bounds[] = {{8, 0.002}, {6, 0.015}, {4, 0.145}};
    for (size_t r = 0; r < sizeof bounds / sizeof bounds[0]; r++)
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct sample *s = new_sample(64, 0.98, bounds[r].rate, side);
            const struct transform_parameters own = transform_parameters_at(s->parameters, 64);
            float decoded[64 * 64];
            const size_t c = 4 * (size_t)s->layout.quads - 1;
            double error = 0, power = 0;
            for (size_t t = 0; t < 64; t++)
                for (size_t ch = 0; ch < 64; ch++) {
                    const float row = s->rows[t * 64 + ch] - own.mean[ch];
                    s->rows[t * 64 + ch] = own.mean[ch] + 0.25f * (row + 15 * own.size[c] * own.basis[c * 64 + ch]);
                }
            cpu_codec_transform.encode(s->shape, side, s->rows, 64, s->page);
            cpu_codec_transform.decode(s->shape, side, s->page, decoded);
            for (size_t i = 0; i < 64 * 64; i++) {
                error += pow((double)(decoded[i] - s->rows[i]), 2);
                power += pow((double)(s->rows[i] - own.mean[i % 64]), 2);
            }
            assert_true(error / power < bounds[r].most);
            free_sample(s);
        }
}

/* Makes every 8th row nearly zero. */
static void shrink_rows(struct sample *s) {
    for (size_t t = 3; t < 64; t += 8)
        for (size_t c = 0; c < s->hd; c++) s->rows[t * s->hd + c] *= 0.03f;
}

/* Rows of values that are nearly zero are coded less no mean, which would else be most of what is coded, at 400 times their own square. */
static void rows_near_zero_keep_their_own_accuracy(void **state) {
    (void)state;
    static const struct { double rate, most; } bounds[] = {{8, 0.001}, {4, 0.04}, {2, 0.3}};
    for (size_t r = 0; r < sizeof bounds / sizeof bounds[0]; r++) {
        struct sample *s = new_sample(64, 0.98, bounds[r].rate, CODEC_VALUES);
        float decoded[64 * 64];
        shrink_rows(s);
        cpu_codec_transform.encode(s->shape, CODEC_VALUES, s->rows, 64, s->page);
        cpu_codec_transform.decode(s->shape, CODEC_VALUES, s->page, decoded);
        for (size_t t = 0; t < 64; t++) {
            double error = 0, power = 0;
            for (size_t c = 0; c < 64; c++) {
                error += pow((double)(decoded[t * 64 + c] - s->rows[t * 64 + c]), 2);
                power += pow((double)s->rows[t * 64 + c], 2);
            }
            assert_int_equal(((const uint8_t *)s->page)[t] < TRANSFORM_NO_MEAN_GAINS, t % 8 == 3);
            if (t % 8 == 3) assert_true(error / power < bounds[r].most);
        }
        free_sample(s);
    }
}

/* Makes a row have this size: the root of its components' mean square, which is its gain but for the codes' error. */
static void resize_row(struct sample *s, size_t t, double gain) {
    const float *mean = transform_of(s->shape).mean;
    double square = 0;
    for (size_t c = 0; c < s->hd; c++) square += pow((double)(s->rows[t * s->hd + c] - mean[c]), 2) / (double)s->hd;
    for (size_t c = 0; c < s->hd; c++)
        s->rows[t * s->hd + c] = mean[c] + (float)(gain / sqrt(square)) * (s->rows[t * s->hd + c] - mean[c]);
}

/* Rows of all sizes from 0.2 to 3, between the least and the most gain (0.1 and 4): keys keep their size, and the error of values is
 * at right angles to what stands for them, as it is where their gain is the best. A gain is off by half a step, and is that of a
 * row of at least 0.7 times its size. */
static void gains_keep_the_size_of_keys_and_are_best_for_values(void **state) {
    (void)state;
    for (double rate = 1; rate <= 4; rate *= 2) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct sample *s = new_sample(64, 0.95, rate, side);
            const struct transform_fitted own = transform_of(s->shape);
            float decoded[64 * 64];
            for (size_t t = 0; t < 64; t++) resize_row(s, t, 0.2 + 2.8 * (double)t / 63);
            cpu_codec_transform.encode(s->shape, side, s->rows, 64, s->page);
            cpu_codec_transform.decode(s->shape, side, s->page, decoded);
            for (size_t t = 0; t < 64; t++) {
                double square = 0, cross = 0, power = 0;
                for (size_t c = 0; c < 64; c++) {
                    const double y = (double)(decoded[t * 64 + c] - own.mean[c]), x = (double)(s->rows[t * 64 + c] - own.mean[c]);
                    square += y * y;
                    cross += x * y;
                    power += x * x;
                }
                const double gain = sqrt(power / 64), wanted = side == CODEC_KEYS ? sqrt(square * power) : cross;
                assert_true(fabs(wanted / square - 1) < 0.6 / 0.7 * (double)transform_gain_step(&own) / gain + 2e-3);
            }
            free_sample(s);
        }
    }
}

/* Each code of every plane is the nearest to some of so many components. */
static void every_level_is_written(void **state) {
    (void)state;
    static const double rates[] = {1, 2, 3, 4, 5, 6, 8};
    for (size_t r = 0; r < sizeof rates / sizeof rates[0]; r++) {
        struct sample *s = new_sample(64, 1, rates[r], CODEC_KEYS);
        const uint8_t *codes = (const uint8_t *)s->page + PAGE_TOKENS;
        bool seen[TRANSFORM_NIBBLE_BITS + 1][16] = {{false}}, has[TRANSFORM_NIBBLE_BITS + 1] = {false};
        cpu_codec_transform.encode(s->shape, CODEC_KEYS, s->rows, 64, s->page);
        for (size_t p = 0; p < s->layout.planes; p++) {
            const struct transform_plane *plane = &s->layout.plane[p];
            has[plane->bits] = true;
            for (size_t i = 0; i < 64 * TRANSFORM_QUAD; i++) {
                const int level = transform_level(plane, codes, CODEC_KEYS, i / TRANSFORM_QUAD, i % TRANSFORM_QUAD),
                          most = (int)transform_most(plane->bits);
                assert_true(abs(level) <= most && (level + most) % 2 == 0);
                seen[plane->bits][(level + most) / 2] = true;
            }
        }
        for (unsigned bits = 1; bits <= TRANSFORM_NIBBLE_BITS; bits++)
            for (unsigned code = 0; code <= transform_most(bits); code++) assert_true(seen[bits][code] == has[bits]);
        free_sample(s);
    }
}

/* Scores from integers of queries: off by at most half a step for each component, times its largest level. */
static void scores_are_products_with_decoded_keys(void **state) {
    (void)state;
    static const size_t head_dims[] = {32, 64, 96, 128, 256};
    for (size_t h = 0; h < 5; h++) {
        struct sample *s = new_sample(head_dims[h], 0.95, 2, CODEC_KEYS);
        size_t hd = s->hd;
        float *decoded = malloc(64 * hd * sizeof *decoded),
              *tables = malloc(cpu_codec_transform.queries->floats(s->shape) * sizeof *tables);
        float q[G * CODEC_HEAD_DIM_MAX], logits[G * 64];
        for (size_t i = 0; i < G * hd; i++) q[i] = (float)random_normal();
        cpu_codec_transform.encode(s->shape, CODEC_KEYS, s->rows, 64, s->page);
        cpu_codec_transform.decode(s->shape, CODEC_KEYS, s->page, decoded);
        cpu_codec_transform.queries->prepare(s->shape, q, tables);
        cpu_codec_transform.score(s->shape, q, tables, s->page, logits);
        for (size_t g = 0; g < G; g++) {
            for (size_t t = 0; t < 64; t++) {
                double sum = 0, square = 0, norm = 0;
                for (size_t c = 0; c < hd; c++) {
                    sum += (double)q[g * hd + c] * (double)decoded[t * hd + c];
                    square += pow((double)decoded[t * hd + c], 2);
                    norm += pow((double)q[g * hd + c], 2);
                }
                assert_true(fabs((double)logits[g * 64 + t] - sum) < 8e-3 * sqrt(square * norm));
            }
        }
        free(decoded);
        free(tables);
        free_sample(s);
    }
}

/* Ranks of keys with few enough bits equal their scores. Other ranks leave out the smaller components and differ from the scores by those. */
static void ranks_are_scores_of_the_largest_components(void **state) {
    (void)state;
    for (int all = 0; all < 2; all++) {
        struct sample *s = new_sample(128, 0.95, all ? 0.7 : 2, CODEC_KEYS);
        static float tables[RANK_FLOATS];
        float q[G * 128], logits[G * 64], *whole = malloc(cpu_codec_transform.queries->floats(s->shape) * sizeof *whole);
        double difference = 0, square = 0, mean = 0;
        for (size_t i = 0; i < G * 128; i++) q[i] = 0.3f * (float)random_normal();
        cpu_codec_transform.encode(s->shape, CODEC_KEYS, s->rows, 64, s->page);
        cpu_codec_transform.queries->prepare(s->shape, q, whole);
        cpu_codec_transform.score(s->shape, q, whole, s->page, logits);
        cpu_codec_transform.ranks->prepare(s->shape, q, tables);
        size_t bytes = cpu_codec_transform.ranks->bytes(s->shape), page = codec_page_bytes(&codec_transform, s->shape, CODEC_KEYS);
        assert_true(all ? bytes == page : bytes < page);
        memset((uint8_t *)s->page + bytes, 0xff, page - bytes); /* nothing else is read */
        for (size_t g = 0; g < G; g++) {
            const float none[64] = {0};
            uint16_t ranks[64], most = 0, largest = cpu_codec_transform.ranks->rank(s->shape, tables, g, s->page, none, ranks);
            for (size_t t = 0; t < 64; t++) {
                double logit = (double)logits[g * 64 + t], own = (ranks[t] - 32768) / 256.0;
                if (all) assert_true(fabs(own - logit) < 0.51 / 256);
                most = ranks[t] > most ? ranks[t] : most;
                difference += pow(own - logit, 2) / (64 * G);
                square += pow(logit, 2) / (64 * G);
                mean += logit / (64 * G);
            }
            assert_int_equal(largest, most);
        }
        assert_true(difference < 0.5 * (square - mean * mean));
        free(whole);
        free_sample(s);
    }
}

static void sums_are_of_decoded_values(void **state) {
    (void)state;
    for (int pass = 0; pass < 2; pass++) { /* weights of two bytes, of one */
        struct sample *s = new_sample(128, 0.96, 2, CODEC_VALUES);
        size_t hd = s->hd, floats = cpu_codec_transform.code_sums->floats(s->shape);
        float decoded[64 * 128], weights[G * 64], *sums = calloc(floats, sizeof *sums), acc[G * 128] = {0};
        for (size_t i = 0; i < G * 64; i++) weights[i] = (float)random_unit();
        for (size_t t = 0; t < 64; t++) weights[3 * 64 + t] = 0; /* a query that sees nothing */
        shrink_rows(s);
        cpu_codec_transform.encode(s->shape, CODEC_VALUES, s->rows, 60, s->page);
        cpu_codec_transform.decode(s->shape, CODEC_VALUES, s->page, decoded);
        for (size_t g = 0; g < G; g++)
            for (size_t t = 60; t < 64; t++) weights[g * 64 + t] = 0;
        for (int page = 0; page < 2; page++)
            (pass ? cpu_codec_transform.code_sums->integer->add : cpu_codec_transform.code_sums->add)(s->shape, weights, s->page,
                                                                                                      sums);
        cpu_codec_transform.code_sums->finish(s->shape, sums, acc);
        for (size_t g = 0; g < G; g++) {
            for (size_t c = 0; c < hd; c++) {
                double sum = 0, most = 0;
                for (size_t t = 0; t < 60; t++) {
                    sum += 2 * (double)weights[g * 64 + t] * (double)decoded[t * hd + c];
                    most += fabs((double)weights[g * 64 + t] * (double)decoded[t * hd + c]);
                }
                assert_true(fabs((double)acc[g * hd + c] - sum) <= (pass ? 1e-2 : 1e-4) * most);
            }
        }
        free(sums);
        free_sample(s);
    }
}

/* A page adds the same to the sums whether it is given logits or their softmax weights. */
static void logits_count_as_their_weights(void **state) {
    (void)state;
    struct sample *s = new_sample(128, 0.96, 2, CODEC_VALUES);
    size_t hd = s->hd, floats = cpu_codec_transform.code_sums->floats(s->shape);
    float logits[G * 64], largest[G], weights[G * 64], seen[G], *sums = calloc(2 * floats, sizeof *sums), acc[2][G * 128] = {{0}};
    shrink_rows(s);
    cpu_codec_transform.encode(s->shape, CODEC_VALUES, s->rows, 64, s->page);
    assert_true(cpu_codec_transform.code_sums->integer->suffice(s->shape));
    for (size_t g = 0; g < G; g++) {
        largest[g] = 3 + (float)g;
        seen[g] = 0.5f;
        for (size_t t = 0; t < 64; t++) {
            logits[g * 64 + t] = largest[g] - 6 * (float)random_unit();
            weights[g * 64 + t] = expf(logits[g * 64 + t] - largest[g]);
        }
    }
    cpu_codec_transform.code_sums->integer->add(s->shape, weights, s->page, sums);
    cpu_codec_transform.code_sums->finish(s->shape, sums, acc[0]);
    cpu_codec_transform.code_sums->integer->add_logits(s->shape, logits, largest, s->page, sums + floats, seen);
    cpu_codec_transform.code_sums->finish(s->shape, sums + floats, acc[1]);
    for (size_t g = 0; g < G; g++) {
        double sum = 0.5, most = 0;
        for (size_t t = 0; t < 64; t++) sum += (double)weights[g * 64 + t];
        assert_true(fabs((double)seen[g] - sum) <= 1e-4 * sum);
        for (size_t c = 0; c < hd; c++) most = fmax(most, fabs((double)acc[0][g * hd + c]));
        for (size_t c = 0; c < hd; c++) assert_true(fabs((double)acc[1][g * hd + c] - (double)acc[0][g * hd + c]) <= 5e-3 * most);
    }
    free(sums);
    free_sample(s);
}

static void gathered_tokens_decode_to_the_same_bits(void **state) {
    (void)state;
    for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        struct sample *s = new_sample(96, 0.95, 2.5, side);
        static const uint8_t slots[] = {0, 3, 4, 17, 31, 32, 63};
        size_t bytes = codec_page_bytes(&codec_transform, s->shape, side);
        float before[64 * 96], after[64 * 96];
        void *to = aligned_alloc(64, bytes);
        memset(to, 0, bytes);
        cpu_codec_transform.encode(s->shape, side, s->rows, 64, s->page);
        cpu_codec_transform.decode(s->shape, side, s->page, before);
        cpu_codec_transform.gather_tokens(s->shape, side, s->page, slots, 7, to, 50);
        cpu_codec_transform.gather_tokens(s->shape, side, s->page, slots, 7, to, 54); /* over what was there */
        cpu_codec_transform.decode(s->shape, side, to, after);
        for (size_t k = 0; k < 7; k++) {
            assert_memory_equal(after + (54 + k) * 96, before + slots[k] * 96, 96 * sizeof(float));
            if (k < 4) assert_memory_equal(after + (50 + k) * 96, before + slots[k] * 96, 96 * sizeof(float));
        }
        free(to);
        free_sample(s);
    }
}

/* Rows that are the mean, constant, huge or not finite leave finite pages; heads whose components have no size keep their mean. */
static void odd_rows_do_no_harm(void **state) {
    (void)state;
    for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        for (int none = 0; none < 2; none++) {
            struct sample *s = new_sample(64, none ? 0 : 0.9, none ? 0 : 2, side);
            float decoded[64 * 64];
            for (size_t c = 0; c < 64; c++) {
                s->rows[c] = s->parameters[c];
                s->rows[64 + c] = 3;
                s->rows[128 + c] = c % 2 ? 3e38f : -3e38f;
                s->rows[192 + c] = c == 5 ? NAN : c == 6 ? INFINITY : 1e-42f;
            }
            if (none) s->layout = (struct transform_layout){0};
            cpu_codec_transform.encode(s->shape, side, s->rows, 64, s->page);
            cpu_codec_transform.decode(s->shape, side, s->page, decoded);
            for (size_t i = 0; i < 64 * 64; i++) {
                assert_true(isfinite(decoded[i]));
                if (none) assert_true(fabsf(decoded[i] - s->parameters[i % 64]) <= 1e-6f);
            }
            free_sample(s);
        }
    }
}

/* A record that is fitted with the backend's own products is what its rows say. */
static void records_are_of_their_rows(void **state) {
    (void)state;
    static const size_t head_dims[] = {32, 64, 96, 128};
    for (size_t h = 0; h < 4; h++) {
        struct sample *s = new_sample(head_dims[h], 0.95, 2, CODEC_KEYS);
        double *rows = malloc(ROWS * s->hd * sizeof *rows);
        assert_non_null(rows);
        for (size_t i = 0; i < ROWS * s->hd; i++) rows[i] = (double)s->rows[i];
        fit_oracle_check(((struct transform_learned *)s->learned)->record, s->fitted, (uint32_t)s->hd, rows, ROWS, 1e-3);
        free(rows);
        free_sample(s);
    }
}

/* Pages that go by a fit to odd rows are finite: rows that are all alike, one row, rows at the edge of what a float holds, others that are not
 * finite among huge and tiny ones. */
static void odd_rows_can_be_fitted_to(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct sample *s = new_sample(64, 0.9, 2, CODEC_KEYS);
        float decoded[64 * 64];
        for (size_t i = 0; i < 64 * 64; i++) {
            size_t t = i / 64, c = i % 64;
            if (kind == 0) s->rows[i] = (float)c - 7;
            if (kind == 2) s->rows[i] = (t + c) % 2 ? 3.4e38f : -3.4e38f;
            if (kind == 3) s->rows[i] = t == 9 ? (c % 3 ? NAN : INFINITY) : t % 2 ? 1e30f * s->rows[i] : 1e-30f;
        }
        fit(s, kind == 1 ? 1 : 64);
        cpu_codec_transform.encode(s->shape, CODEC_KEYS, s->rows, 64, s->page);
        cpu_codec_transform.decode(s->shape, CODEC_KEYS, s->page, decoded);
        for (size_t i = 0; i < 64 * 64; i++) assert_true(isfinite(decoded[i]));
        free_sample(s);
    }
}

static void singular_bases_are_refused(void **state) {
    (void)state;
    struct sample *s = new_sample(32, 0.9, 2, CODEC_KEYS);
    struct terse_error error;
    void *learned;
    memset(s->parameters + 2 * 32 + 5 * 32, 0, 32 * sizeof(float));
    assert_int_equal(cpu_codec_transform.learned->make(s->shape, CODEC_KEYS, s->parameters, &learned, &error), TERSE_E_FORMAT);
    assert_non_null(strstr(error.message, "singular"));
    assert_null(learned);
    free_sample(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips_have_the_error_of_their_bits),
        cmocka_unit_test(gains_keep_the_size_of_keys_and_are_best_for_values),
        cmocka_unit_test(every_level_is_written),
        cmocka_unit_test(scores_are_products_with_decoded_keys),
        cmocka_unit_test(ranks_are_scores_of_the_largest_components),
        cmocka_unit_test(sums_are_of_decoded_values),
        cmocka_unit_test(logits_count_as_their_weights),
        cmocka_unit_test(gathered_tokens_decode_to_the_same_bits),
        cmocka_unit_test(odd_rows_do_no_harm),
        cmocka_unit_test(odd_rows_can_be_fitted_to),
        cmocka_unit_test(singular_bases_are_refused),
        cmocka_unit_test(rows_beyond_the_levels_are_not_cut_off),
        cmocka_unit_test(rows_near_zero_keep_their_own_accuracy),
        cmocka_unit_test_setup_teardown(round_trips_have_the_error_of_their_bits, fit_from_here, fit_no_more),
        cmocka_unit_test_setup_teardown(records_are_of_their_rows, fit_from_here, fit_no_more),
        cmocka_unit_test_setup_teardown(scores_are_products_with_decoded_keys, fit_from_here, fit_no_more),
        cmocka_unit_test_setup_teardown(sums_are_of_decoded_values, fit_from_here, fit_no_more),
        cmocka_unit_test_setup_teardown(gathered_tokens_decode_to_the_same_bits, fit_from_here, fit_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
