/* The codec sign: blocks against their definition in double precision, its bits per token, scores and mixes against decoded rows, and
 * the kernels of every tier between guard pages. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/index.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "base/half.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST_HD 256

static const size_t head_dims[] = {32, 64, 96, 128, 256};
static const size_t counts[] = {1, 17, 63, 64};

static float *make_floats(size_t n) {
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    return x;
}

/* Keys of 64 n tokens, with channels of different sizes and means, and some channel that hardly moves. */
static float *make_keys(struct random *random, size_t n, size_t hd) {
    float *rows = make_floats(n * hd), size[MOST_HD], middle[MOST_HD];
    for (size_t c = 0; c < hd; c++) {
        size[c] = c == 7 ? 0 : c == 9 ? 1e-6f : expf(random_normal(random));
        middle[c] = 3 * random_normal(random);
    }
    for (size_t i = 0; i < n * hd; i++) rows[i] = middle[i % hd] + size[i % hd] * random_normal(random);
    return rows;
}

struct keys {
    struct codec_shape shape;
    float *rows, *fitted, *decoded;
    uint8_t *page;
};

static struct keys make(struct random *random, size_t hd, size_t n, uint32_t G) {
    struct keys keys = {.shape = {.head_dim = (uint32_t)hd, .group = G}};
    struct index_options options = index_options_defaults();
    keys.rows = make_keys(random, 64, hd);
    keys.fitted = malloc(codec_fitted_bytes(&codec_sign, keys.shape, CODEC_KEYS));
    cpu_codec_sign.fit(keys.shape, CODEC_KEYS, keys.rows, 64, hd, &options, keys.fitted);
    keys.shape.fitted = keys.fitted;
    keys.decoded = make_floats(64 * hd);
    size_t bytes = codec_page_bytes(&codec_sign, keys.shape, CODEC_KEYS);
    keys.page = aligned_alloc(64, bytes);
    memset(keys.page, 0xa5, bytes);
    cpu_codec_sign.encode(keys.shape, CODEC_KEYS, keys.rows, n, keys.page);
    cpu_codec_sign.decode(keys.shape, CODEC_KEYS, keys.page, keys.decoded);
    return keys;
}

static void release(struct keys *keys) {
    free(keys->rows);
    free(keys->fitted);
    free(keys->decoded);
    free(keys->page);
}

static const float *alpha_of(const struct keys *keys) { return keys->fitted + keys->shape.head_dim * 17; }

/* Keys and values of a token take 896 bits at 128 channels, 3.5 per number at any, tables per sequence not counted. */
static void a_token_takes_three_and_a_half_bits_per_number(void **state) {
    (void)state;
    for (size_t h = 0; h < sizeof head_dims / sizeof head_dims[0]; h++) {
        size_t hd = head_dims[h];
        struct codec_shape shape = {.head_dim = (uint32_t)hd, .group = 1};
        size_t bytes = codec_page_bytes(&codec_sign, shape, CODEC_KEYS) + codec_page_bytes(&codec_sign, shape, CODEC_VALUES);
        assert_int_equal(
            codec_page_bytes(&codec_sign, shape, CODEC_KEYS) % 64 + codec_page_bytes(&codec_sign, shape, CODEC_VALUES) % 64, 0);
        assert_int_equal(bytes * 8, 64 * 7 * hd);
        if (hd == 128) assert_int_equal(bytes * 8 / 64, 896);
        assert_int_equal(codec_fitted_bytes(&codec_sign, shape, CODEC_VALUES), 0);
    }
}

/* alpha is the largest distance from the mean, but for channels that hardly move. */
static void alpha_is_the_largest_magnitude(void **state) {
    (void)state;
    struct random random = {1};
    for (size_t h = 0; h < sizeof head_dims / sizeof head_dims[0]; h++) {
        size_t hd = head_dims[h];
        struct keys keys = make(&random, hd, 64, 1);
        const float *mean = index_sign_learned(hd, keys.fitted).mean;
        float largest = 0, want[MOST_HD] = {0};
        for (size_t i = 0; i < 64 * hd; i++) want[i % hd] = fmaxf(want[i % hd], fabsf(keys.rows[i] - mean[i % hd]));
        for (size_t c = 0; c < hd; c++) largest = fmaxf(largest, want[c]);
        for (size_t c = 0; c < hd; c++) assert_true(alpha_of(&keys)[c] == fmaxf(want[c], largest / 1024));
        release(&keys);
    }
}

/* The stored sign is that of the key less its mean and of what is decoded, magnitudes are within half a step, and so is the step a
 * third of the group's span. */
static void check_page(const struct keys *keys, size_t n) {
    size_t hd = keys->shape.head_dim;
    const float *mean = index_sign_learned(hd, keys->fitted).mean, *alpha = alpha_of(keys);
    for (size_t t = 0; t < n; t++) {
        for (size_t c = 0; c < hd; c++) {
            float centred = keys->rows[t * hd + c] - mean[c];
            bool positive = keys->page[c / 8 * 64 + t] >> c % 8 & 1;
            double got = (double)keys->decoded[t * hd + c] - (double)mean[c], size = fabs((double)mean[c]) + fabs(got),
                   least = INFINITY, most = 0;
            const uint16_t *pair = (const uint16_t *)(keys->page + 8 * hd + t * (3 * hd / 8) + hd / 4) + c / 32 * 2;
            double scale = (double)half_to_float(pair[0]), zero = (double)half_to_float(pair[1]);
            assert_true(positive == (centred >= 0));
            assert_true(positive ? got >= -1e-6 * size : got <= 1e-6 * size);
            for (size_t i = c / 32 * 32; i < c / 32 * 32 + 32; i++) {
                double x = fabs((double)(keys->rows[t * hd + i] - mean[i])) / (double)alpha[i];
                least = fmin(least, x);
                most = fmax(most, x);
            }
            assert_true(fabs(scale * 3 - (most - least)) <= 1e-3 * most && fabs(zero - least) <= 1e-3 * most);
            double error = fabs(fabs(got) - fabs((double)centred)) / (double)alpha[c];
            assert_true(error <= scale / 2 + 2e-3 * most + 1e-6 * size / (double)alpha[c]);
        }
    }
}

static void pages_are_signs_and_magnitudes(void **state) {
    (void)state;
    struct random random = {2};
    for (size_t h = 0; h < sizeof head_dims / sizeof head_dims[0]; h++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            struct keys keys = make(&random, head_dims[h], counts[i], 1);
            check_page(&keys, counts[i]);
            release(&keys);
        }
}

/* A block is index_sign's to begin with. */
static void pages_begin_with_the_index(void **state) {
    (void)state;
    struct random random = {3};
    struct keys keys = make(&random, 96, 63, 1);
    uint8_t signs[64 * 96 / 8];
    cpu_index_sign.encode(96, keys.fitted, keys.rows, 63, signs);
    assert_memory_equal(signs, keys.page, sizeof signs);
    release(&keys);
}

static void scores_and_channels_equal_decoded_keys(void **state) {
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 11};
    struct random random = {4};
    for (size_t h = 0; h < sizeof head_dims / sizeof head_dims[0]; h++)
        for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
            size_t hd = head_dims[h], G = groups[i];
            struct keys keys = make(&random, hd, 64, (uint32_t)G);
            float *q = make_floats(G * hd), *tables = make_floats(cpu_codec_sign.queries->floats(keys.shape)),
                  *channels = make_floats(64 * hd);
            float *logits = make_floats(2 * G * 64);
            fill_floats(&random, FILL_NORMAL, q, G * hd);
            cpu_codec_sign.queries->prepare(keys.shape, q, tables);
            cpu_codec_sign.score(keys.shape, q, tables, keys.page, logits);
            cpu_codec_sign.score(keys.shape, q, NULL, keys.page, logits + G * 64);
            cpu_codec_sign.channels(keys.shape, keys.page, channels);
            for (size_t g = 0; g < G; g++)
                for (size_t t = 0; t < 64; t++) {
                    double want = 0, terms = 0;
                    for (size_t c = 0; c < hd; c++) {
                        double x = (double)q[g * hd + c] * (double)keys.decoded[t * hd + c];
                        want += x;
                        terms += fabs((double)q[g * hd + c]) * (double)(alpha_of(&keys)[c] * 2 + 3);
                        assert_true(channels[c * 64 + t] == keys.decoded[t * hd + c]);
                    }
                    check_close(logits[g * 64 + t], want, terms, 1.0 / 253, 0, "hd %zu G %zu token %zu", hd, G, t);
                    assert_true(logits[(G + g) * 64 + t] == logits[g * 64 + t]);
                }
            free(q);
            free(tables);
            free(channels);
            free(logits);
            release(&keys);
        }
}

/* Values are kivi-2's, bit for bit. */
static void values_are_those_of_kivi(void **state) {
    (void)state;
    struct random random = {5};
    struct codec_shape shape = {.head_dim = 64, .group = 2};
    float rows[64 * 64], weights[128], decoded[2][64 * 64], acc[2][128] = {{0}};
    uint8_t pages[2][64 * 24];
    fill_floats(&random, FILL_NORMAL, rows, 64 * 64);
    fill_floats(&random, FILL_NORMAL, weights, 128);
    for (size_t i = 0; i < 2; i++) {
        const struct codec *codec = i ? &codec_sign : &codec_kivi_2;
        cpu_codec_of(codec)->encode(shape, CODEC_VALUES, rows, 64, pages[i]);
        cpu_codec_of(codec)->decode(shape, CODEC_VALUES, pages[i], decoded[i]);
        cpu_codec_of(codec)->accumulate_values(shape, weights, pages[i], acc[i]);
    }
    assert_memory_equal(pages[0], pages[1], sizeof pages[0]);
    assert_memory_equal(decoded[0], decoded[1], sizeof decoded[0]);
    assert_memory_equal(acc[0], acc[1], sizeof acc[0]);
}

static void infinities_and_nan_are_survived(void **state) {
    (void)state;
    struct random random = {6};
    struct keys keys = make(&random, 32, 64, 1);
    struct index_options options = index_options_defaults();
    float logits[64], q[32];
    fill_floats(&random, FILL_NORMAL, q, 32);
    keys.rows[1] = 1e30f, keys.rows[40] = -3e38f;
    cpu_codec_sign.encode(keys.shape, CODEC_KEYS, keys.rows, 64, keys.page);
    cpu_codec_sign.score(keys.shape, q, NULL, keys.page, logits); /* far outliers of later tokens leave finite logits */
    for (size_t t = 0; t < 64; t++) assert_true(isfinite(logits[t]));
    keys.rows[5] = INFINITY, keys.rows[70] = NAN;
    cpu_codec_sign.encode(keys.shape, CODEC_KEYS, keys.rows, 64, keys.page);
    cpu_codec_sign.score(keys.shape, q, NULL, keys.page, logits);
    for (size_t t = 0; t < 64; t++) assert_true(isfinite(logits[t]));
    cpu_codec_sign.fit(keys.shape, CODEC_KEYS, keys.rows, 64, 32, &options, keys.fitted);
    cpu_codec_sign.encode(keys.shape, CODEC_KEYS, keys.rows, 64, keys.page);
    cpu_codec_sign.score(keys.shape, q, NULL, keys.page, logits);
    memset(keys.rows, 0, 64 * 32 * sizeof *keys.rows);
    cpu_codec_sign.fit(keys.shape, CODEC_KEYS, keys.rows, 64, 32, &options, keys.fitted);
    cpu_codec_sign.encode(keys.shape, CODEC_KEYS, keys.rows, 64, keys.page);
    cpu_codec_sign.score(keys.shape, q, NULL, keys.page, logits);
    for (size_t t = 0; t < 64; t++) assert_true(logits[t] == 0);
    release(&keys);
}

/* ---- Kernels */

/* The part of a block that kivi-2's values are, rows of hd / 4 bytes of codes and hd / 32 pairs of halves: any scales, any codes. */
static void fill_pairs(struct random *random, enum fill fill, size_t hd, uint8_t *page) {
    uint16_t pairs[MOST_HD / 16];
    fill_bytes(random, page, PAGE_BYTES_KIVI(hd, 2));
    for (size_t t = 0; t < 64; t++) {
        fill_halves(random, fill, pairs, hd / 16);
        memcpy(page + t * (3 * hd / 8) + hd / 4, pairs, hd / 8);
    }
}

/* Number c of token t, and how large its like are. */
static double pair_number(const uint8_t *page, size_t hd, size_t c, size_t t, double *terms) {
    const uint8_t *row = page + t * (3 * hd / 8);
    const uint16_t *pair = (const uint16_t *)(row + hd / 4) + c / 32 * 2;
    unsigned code = row[c % (hd / 4)] >> 2 * (c / (hd / 4)) & 3;
    double scale = (double)half_to_float(pair[0]), zero = (double)half_to_float(pair[1]);
    *terms = fabs(zero) + fabs(scale) * 3;
    return zero + scale * code;
}

static void check_score(struct random *random, enum fill fill, size_t G, size_t hd, enum guard_side side) {
    size_t signs = 8 * hd;
    float *q = guard_floats(G * hd, side), *mean = guard_floats(hd, side), *alpha = guard_floats(hd, side);
    float *tables = guard_floats(G * sign_table_floats(hd), side), *logits = guard_floats(G * 64, side);
    uint8_t *page = guard_bytes(signs + PAGE_BYTES_KIVI(hd, 2), side);
    fill_bytes(random, page, signs);
    fill_pairs(random, fill == FILL_LARGE ? FILL_NORMAL : fill, hd, page + signs);
    fill_floats(random, fill == FILL_TINY ? FILL_NORMAL : fill, q, G * hd);
    fill_floats(random, FILL_NORMAL, mean, hd);
    fill_floats(random, fill == FILL_OUTLIER ? FILL_OUTLIER : FILL_NORMAL, alpha, hd);
    for (size_t c = 0; c < hd; c++) alpha[c] = fabsf(alpha[c]);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        k->scaled->prepare_sign(q, mean, alpha, G, hd, tables);
        k->scaled->score_sign(tables, G, hd, page, logits);
        for (size_t g = 0; g < G; g++) {
            double most[MOST_HD / 32] = {0}, base = 0, size = 0;
            for (size_t c = 0; c < hd; c++) {
                most[c / 32] = fmax(most[c / 32], fabs((double)q[g * hd + c] * (double)alpha[c]));
                base += (double)q[g * hd + c] * (double)mean[c];
                size += fabs((double)q[g * hd + c] * (double)mean[c]);
            }
            for (size_t t = 0; t < 64; t++) {
                double want = base, terms = size, rounded = 0;
                for (size_t c = 0; c < hd; c++) {
                    double wide, x = pair_number(page + signs, hd, c, t, &wide), product = (double)q[g * hd + c] * (double)alpha[c];
                    want += product * (page[c / 8 * 64 + t] >> c % 8 & 1 ? x : -x);
                    terms += fabs(product) * wide;
                    rounded += most[c / 32] * wide / 253;
                }
                double slack = tier == 0 ? 0 : rounded; /* fixed point */
                check_close(logits[g * 64 + t], want, 1, slack + terms * 0x1p-24 * (double)(hd + 8), 1e-37,
                            "%s G %zu hd %zu %s slot %zu", k->name, G, hd, fill_name(fill), t);
            }
        }
    }
    guard_release();
}

static void kernels_equal_sums_in_double_precision(void **state) {
    (void)state;
    struct random random = {7};
    for (int fill = 0; fill < FILLS; fill++)
        for (size_t G = 1; G <= 9; G++)
            for (int side = GUARD_END; side <= GUARD_START; side++)
                check_score(&random, (enum fill)fill, G, 96, (enum guard_side)side);
    for (size_t hd = 32; hd <= MOST_HD; hd += 32)
        for (size_t G = 1; G <= 19; G += G == 5 ? 6 : G == 11 ? 8 : 1)
            check_score(&random, FILL_NORMAL, G, hd, G % 2 ? GUARD_END : GUARD_START);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_takes_three_and_a_half_bits_per_number),
        cmocka_unit_test(alpha_is_the_largest_magnitude),
        cmocka_unit_test(pages_are_signs_and_magnitudes),
        cmocka_unit_test(pages_begin_with_the_index),
        cmocka_unit_test(scores_and_channels_equal_decoded_keys),
        cmocka_unit_test(values_are_those_of_kivi),
        cmocka_unit_test(infinities_and_nan_are_survived),
        cmocka_unit_test(kernels_equal_sums_in_double_precision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
