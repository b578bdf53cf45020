/* Indexes: what index_sign learns against sums in double precision, its look-ups against centroid products, index_quest's bounds
 * against every key, and the kernels of all tiers against the scalar ones between guard pages. */
#include "backend/cpu/codec/index.h"
#include "backend/cpu/kv/top_k.h"
#include "base/half.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const size_t head_dims[] = {32, 64, 96, 128, 256};
#define EACH_HEAD_DIM(hd) for (size_t h_ = 0, hd = head_dims[0]; h_ < 5; hd = head_dims[++h_ % 5])
#define MOST_HD 256

static float *make_floats(size_t n) {
    float *x = malloc((n ? n : 1) * sizeof *x);
    assert_non_null(x);
    return x;
}

/* Keys whose channels have sizes and means of their own, as real ones do. */
static float *make_keys(struct random *random, size_t n, size_t hd, size_t stride) {
    float *rows = make_floats(n * stride), size[MOST_HD], middle[MOST_HD];
    for (size_t c = 0; c < hd; c++) {
        size[c] = expf(random_normal(random));
        middle[c] = 3 * size[c] * random_normal(random);
    }
    for (size_t i = 0; i < n * stride; i++)
        rows[i] = i % stride < hd ? middle[i % stride] + size[i % stride] * random_normal(random) : NAN;
    return rows;
}

static void *fitted(const struct index *index, size_t hd, const float *rows, size_t n, size_t stride, bool median) {
    struct index_options options = {.median = median};
    void *learned = make_floats(index_learned_bytes(index, hd) / sizeof(float));
    cpu_index_of(index)->fit(hd, rows, n, stride, &options, learned);
    return learned;
}

/* ---- What is learned */

static unsigned code_of(const float *x, const float *mean) {
    unsigned code = 0;
    for (unsigned i = 0; i < 4; i++) code |= x[i] - mean[i] >= 0 ? 1u << i : 0;
    return code;
}

static void check_centroids(size_t hd, const float *rows, size_t n, size_t stride, const struct index_sign_learned *learned) {
    for (size_t g = 0; g < hd / 4; g++) {
        double sums[16][4] = {{0}}, sizes[4] = {0}, all[4] = {0};
        size_t counts[16] = {0};
        const float *mean = learned->mean + 4 * g;
        for (size_t r = 0; r < n; r++) {
            const float *x = rows + r * stride + 4 * g;
            unsigned code = code_of(x, mean);
            counts[code]++;
            for (size_t i = 0; i < 4; i++) {
                double centred = (double)(x[i] - mean[i]);
                sums[code][i] += centred;
                sizes[i] += fabs(centred);
                all[i] += centred;
            }
        }
        for (unsigned code = 0; code < 16; code++) {
            for (size_t i = 0; i < 4; i++) {
                float got = learned->centroids[(g * 16 + code) * 4 + i];
                double sign = code >> i & 1 ? 1 : -1;
                double want = counts[code] ? sums[code][i] / (double)counts[code] : sign * sizes[i] / (double)n;
                assert_true(got * sign >= 0); /* its orthant */
                check_close(got, want, sizes[i] / (double)n, 1e-4, 1e-30, "hd %zu n %zu group %zu code %u channel %zu", hd, n, g,
                            code, i);
                all[i] -= (double)counts[code] * (double)got; /* their sum is the keys' */
            }
        }
        for (size_t i = 0; i < 4; i++) assert_true(fabs(all[i]) <= 1e-4 * sizes[i]);
    }
}

static void centroids_are_means_of_keys_with_their_signs(void **state) {
    (void)state;
    static const size_t counts[] = {1, 5, 64, 511, 1500};
    struct random random = {1};
    EACH_HEAD_DIM(hd) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            size_t n = counts[i], stride = hd + i * 7;
            float *rows = make_keys(&random, n, hd, stride), *learned = fitted(&index_sign, hd, rows, n, stride, i == 3);
            struct index_sign_learned view = index_sign_learned(hd, learned);
            for (size_t c = 0; i != 3 && c < hd; c++) {
                double sum = 0, size = 0;
                for (size_t r = 0; r < n; r++) {
                    sum += (double)rows[r * stride + c];
                    size += fabs((double)rows[r * stride + c]);
                }
                check_close(view.mean[c], sum / (double)n, size / (double)n, 1e-5, 0, "hd %zu n %zu mean %zu", hd, n, c);
            }
            check_centroids(hd, rows, n, stride, &view);
            free(rows);
            free(learned);
        }
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void medians_are_lower_medians(void **state) {
    (void)state;
    static const size_t counts[] = {1, 2, 3, 64, 65, 1000};
    struct random random = {2};
    float column[1000];
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        size_t n = counts[i], hd = i % 2 ? 96 : 32;
        float *rows = make_keys(&random, n, hd, hd);
        for (size_t r = 0; r < n; r++) rows[r * hd + 5] = (float)(int)(3 * random_normal(&random)); /* with ties, signs and zeros */
        float *learned = fitted(&index_sign, hd, rows, n, hd, true);
        for (size_t c = 0; c < hd; c++) {
            for (size_t r = 0; r < n; r++) column[r] = rows[r * hd + c];
            qsort(column, n, sizeof *column, by_size);
            assert_true(index_sign_learned(hd, learned).mean[c] == column[(n - 1) / 2]);
        }
        free(rows);
        free(learned);
    }
}

/* ---- Blocks and scores of index_sign */

static void *make_page(const struct index *index, size_t hd, const void *learned, const float *rows, size_t n) {
    void *page = aligned_alloc(64, index_bytes(index, hd));
    memset(page, 0xa5, index_bytes(index, hd));
    assert_int_equal(index_bytes(index, hd) % 64, 0);
    cpu_index_of(index)->encode(hd, learned, rows, n, page);
    return page;
}

static void all_sign_patterns_lie_where_the_layout_says(void **state) {
    (void)state;
    const size_t hd = 32;
    float mean[32 * 17] = {0}, rows[64 * 32];
    for (size_t t = 0; t < 64; t++) /* of token t, group g holds the pattern (t + g) % 16; zeros of either sign are positive */
        for (size_t c = 0; c < hd; c++)
            rows[t * hd + c] = (t + c / 4) % 16 >> c % 4 & 1 ? (t % 3 == 0 ? 0.0f : t % 3 == 1 ? -0.0f : 1e-40f) : -1e-40f;
    uint8_t *page = make_page(&index_sign, hd, mean, rows, 64);
    assert_int_equal(index_bytes(&index_sign, hd), 64 * 32 / 8);
    for (size_t t = 0; t < 64; t++)
        for (size_t g = 0; g < hd / 4; g++) assert_int_equal(page[g / 2 * 64 + t] >> g % 2 * 4 & 15, (t + g) % 16);
    free(page);
    page = make_page(&index_sign, hd, mean, rows, 17);
    for (size_t i = 0; i < 4 * 64; i++)
        if (i % 64 >= 17) assert_int_equal(page[i], 0);
    free(page);
}

/* Centroid products of one token, in double precision. */
static double product_sum(size_t hd, const void *learned, const double *q, const float *key) {
    struct index_sign_learned view = index_sign_learned(hd, learned);
    double sum = 0;
    for (size_t g = 0; g < hd / 4; g++) {
        const float *c = view.centroids + (g * 16 + code_of(key + 4 * g, view.mean + 4 * g)) * 4;
        for (size_t i = 0; i < 4; i++) sum += q[4 * g + i] * (double)c[i];
    }
    return sum;
}

static void scores_are_centroid_products_within_the_bound(void **state) {
    (void)state;
    struct random random = {3};
    double closest = 0;
    EACH_HEAD_DIM(hd) {
        for (size_t G = 1; G <= 5; G++) {
            float *rows = make_keys(&random, 200, hd, hd), *learned = fitted(&index_sign, hd, rows, 200, hd, G % 2);
            float *q = make_floats(G * hd);
            double mean[MOST_HD] = {0}, size = 0;
            fill_floats(&random, G == 5 ? FILL_OUTLIER : FILL_NORMAL, q, G * hd);
            for (size_t i = 0; i < G * hd; i++) mean[i % hd] += (double)q[i] / (double)G;
            void *tables = malloc(cpu_index_sign.table_bytes(hd));
            float step, base;
            cpu_index_sign.prepare(hd, learned, q, G, tables);
            index_sign_scale(hd, tables, &step, &base);
            for (size_t c = 0; c < hd; c++) size += fabs(mean[c]) * 10;
            for (size_t first = 0; first < 192; first += 64) {
                uint16_t scores[64];
                void *page = make_page(&index_sign, hd, learned, rows + first * hd, 64);
                cpu_index_sign.scores(hd, tables, page, scores);
                for (size_t t = 0; t < 64; t++) {
                    double want = product_sum(hd, learned, mean, rows + (first + t) * hd);
                    double bound = (double)hd / 4 * (double)step / 2 + 1e-4 * size;
                    double error = fabs((double)base + (double)step * scores[t] - want);
                    if (!(error <= bound)) fail_msg("hd %zu G %zu token %zu: off by %g, bound %g", hd, G, t, error, bound);
                    closest = fmax(closest, error / bound);
                }
                free(page);
            }
            free(tables);
            free(q);
            free(learned);
            free(rows);
        }
    }
    assert_true(closest > 0.02); /* the bound is of the errors' size */
}

/* The attention of keys less their mean is that of the keys: what makes centring free. */
static void centring_moves_no_attention(void **state) {
    (void)state;
    struct random random = {4};
    const size_t hd = 128, n = 300;
    float *rows = make_keys(&random, n, hd, hd), *learned = fitted(&index_sign, hd, rows, n, hd, false), q[128];
    const float *mean = index_sign_learned(hd, learned).mean;
    double sums[2] = {0}, logits[2][300], most[2] = {-INFINITY, -INFINITY};
    fill_floats(&random, FILL_NORMAL, q, hd);
    for (size_t t = 0; t < n; t++) {
        logits[0][t] = logits[1][t] = 0;
        for (size_t c = 0; c < hd; c++) {
            logits[0][t] += (double)q[c] / 11.3 * (double)rows[t * hd + c];
            logits[1][t] += (double)q[c] / 11.3 * (double)(rows[t * hd + c] - mean[c]);
        }
        for (size_t i = 0; i < 2; i++) most[i] = fmax(most[i], logits[i][t]);
    }
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < 2; i++) sums[i] += exp(logits[i][t] - most[i]);
    for (size_t t = 0; t < n; t++)
        assert_true(fabs(exp(logits[0][t] - most[0]) / sums[0] - exp(logits[1][t] - most[1]) / sums[1]) <= 1e-5);
    free(rows);
    free(learned);
}

/* Centroids of keys as they lie, without a mean. */
static void learn_uncentred(size_t hd, const float *rows, size_t n, float *learned) {
    uint32_t counts[MOST_HD / 4][16] = {{0}};
    const float none[4] = {0};
    memset(learned, 0, index_learned_bytes(&index_sign, hd));
    for (size_t i = 0; i < n * hd; i += 4) counts[i % hd / 4][code_of(rows + i, none)]++;
    for (size_t i = 0; i < n * hd; i++) {
        size_t g = i % hd / 4;
        unsigned code = code_of(rows + i / 4 * 4, none);
        learned[hd + (g * 16 + code) * 4 + i % 4] += rows[i] / (float)counts[g][code];
    }
}

/* Counts, over some queries, how many of the tokens that the index finds are among the best 7.5 %. */
static size_t recalled(size_t hd, const float *learned, const float *rows, size_t n, uint64_t seed) {
    struct random random = {seed};
    size_t k = n * 3 / 40, found = 0;
    float *q = make_floats(hd);
    uint16_t *scores = malloc(n * sizeof *scores);
    uint32_t *tokens = malloc(k * sizeof *tokens);
    double *logits = malloc(n * sizeof *logits);
    void *tables = malloc(cpu_index_sign.table_bytes(hd));
    for (int query = 0; query < 8; query++) {
        fill_floats(&random, FILL_NORMAL, q, hd);
        cpu_index_sign.prepare(hd, learned, q, 1, tables);
        for (size_t b = 0; b < n; b += 64) {
            void *page = make_page(&index_sign, hd, learned, rows + b * hd, 64);
            cpu_index_sign.scores(hd, tables, page, scores + b);
            free(page);
        }
        for (size_t t = 0; t < n; t++) {
            logits[t] = 0;
            for (size_t c = 0; c < hd; c++) logits[t] += (double)q[c] * (double)rows[t * hd + c];
        }
        top_tokens(scores, n, k, tokens);
        for (size_t i = 0; i < k; i++) {
            size_t better = 0;
            for (size_t t = 0; t < n; t++) better += logits[t] > logits[tokens[i]];
            found += better < k;
        }
    }
    free(q);
    free(scores);
    free(tokens);
    free(logits);
    free(tables);
    return found;
}

/* Most of the best tokens are found, and fewer without centring. */
static void centred_signs_find_the_best(void **state) {
    (void)state;
    struct random random = {5};
    const size_t hd = 128, n = 1024;
    float *rows = make_keys(&random, n, hd, hd), *learned = fitted(&index_sign, hd, rows, n, hd, false);
    size_t all = 8 * (n * 3 / 40), centred = recalled(hd, learned, rows, n, 11);
    learn_uncentred(hd, rows, n, learned);
    size_t uncentred = recalled(hd, learned, rows, n, 11);
    assert_true(centred * 2 > all);
    assert_true(centred > uncentred + all / 20);
    free(rows);
    free(learned);
}

/* ---- index_quest */

static void bounds_hold_and_are_tight(void **state) {
    (void)state;
    struct random random = {6};
    EACH_HEAD_DIM(hd) {
        for (size_t G = 1; G <= 3; G++) {
            size_t n = G == 3 ? 37 : 64;
            float *rows = make_keys(&random, n, hd, hd), *q = make_floats(G * hd);
            double mean[MOST_HD] = {0}, bounds[4];
            void *tables = malloc(cpu_index_quest.table_bytes(hd)), *page;
            uint16_t scores[64];
            fill_floats(&random, FILL_NORMAL, q, G * hd);
            for (size_t i = 0; i < G * hd; i++) mean[i % hd] += (double)q[i] / (double)G;
            for (size_t i = 0; i < n * hd && G == 2; i++) rows[i] += mean[i % hd] > 0 ? -8 : 8; /* then all bounds are negative */
            page = make_page(&index_quest, hd, NULL, rows, n);
            cpu_index_quest.prepare(hd, NULL, q, G, tables);
            cpu_index_quest.scores(hd, tables, page, scores);
            double size = 0;
            for (size_t c = 0; c < hd; c++) size += fabs(mean[c]);
            for (size_t p = 0; p * 16 < n; p++) {
                size_t end = p * 16 + 16 < n ? p * 16 + 16 : n;
                bounds[p] = 0;
                for (size_t c = 0; c < hd; c++) {
                    double most = -INFINITY;
                    for (size_t t = p * 16; t < end; t++) most = fmax(most, mean[c] * (double)rows[t * hd + c]);
                    bounds[p] += most;
                }
                for (size_t t = p * 16; t < p * 16 + 16; t++) assert_int_equal(scores[t], scores[p * 16]);
                uint16_t bits = scores[p * 16] & 0x8000 ? scores[p * 16] & 0x7fff : (uint16_t)~scores[p * 16];
                check_close((double)half_to_float(bits) * size, bounds[p], size * 10, 2e-3, 0, "hd %zu page %zu", hd, p);
            }
            for (size_t p = 1; p * 16 < n; p++) /* the order of scores is that of bounds */
                for (size_t r = 0; r < p; r++)
                    if (fabs(bounds[p] - bounds[r]) > 0.02 * size)
                        assert_true((bounds[p] > bounds[r]) == (scores[p * 16] > scores[r * 16]));
            free(tables);
            free(page);
            free(rows);
            free(q);
        }
    }
}

/* Least and most of a page enclose its keys, exactly. */
static void pages_enclose_their_keys(void **state) {
    (void)state;
    struct random random = {7};
    const size_t hd = 32;
    for (int fill = 0; fill < FILLS; fill++) {
        float rows[64 * 32];
        fill_floats(&random, (enum fill)fill, rows, 64 * hd);
        uint16_t *page = make_page(&index_quest, hd, NULL, rows, 64);
        for (size_t t = 0; t < 64; t++)
            for (size_t c = 0; c < hd; c++) {
                float x = fminf(fmaxf(rows[t * hd + c], -65504), 65504);
                assert_true(half_to_float(page[t / 16 * 2 * hd + c]) <= x && half_to_float(page[t / 16 * 2 * hd + hd + c]) >= x);
            }
        free(page);
    }
}

/* ---- Both: what no key should hold must not be undefined behaviour */

static void infinities_and_nan_are_survived(void **state) {
    (void)state;
    static const struct index *const all[] = {&index_sign, &index_quest};
    struct random random = {8};
    const size_t hd = 64;
    for (size_t i = 0; i < 2; i++) {
        float *rows = make_keys(&random, 64, hd, hd), q[64];
        fill_floats(&random, FILL_LARGE, q, hd);
        rows[3] = INFINITY, rows[70] = NAN, rows[140] = -INFINITY, rows[200] = 3e38f, rows[201] = 1e-45f;
        for (int times = 0; times < 3; times++) {
            float *learned = fitted(all[i], hd, rows, 64, hd, times == 1);
            void *page = make_page(all[i], hd, learned, rows, 64), *tables = malloc(cpu_index_of(all[i])->table_bytes(hd));
            uint16_t scores[64];
            q[times] = times == 1 ? NAN : INFINITY;
            cpu_index_of(all[i])->prepare(hd, learned, q, 1, tables);
            cpu_index_of(all[i])->scores(hd, tables, page, scores);
            free(learned);
            free(page);
            free(tables);
        }
        free(rows);
    }
}

static void odd_head_sizes_are_refused(void **state) {
    (void)state;
    static const size_t bad[] = {0, 16, 100, 288};
    struct terse_error error;
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(index_check(&index_sign, bad[i], &error), TERSE_E_UNSUPPORTED);
        assert_int_equal(index_check(&index_quest, bad[i], &error), TERSE_E_UNSUPPORTED);
    }
    EACH_HEAD_DIM(hd) assert_int_equal(index_check(&index_sign, hd, &error) | index_check(&index_quest, hd, &error), TERSE_OK);
}

/* ---- Kernels: every tier equals sums made here */

static void check_sign_slot(const struct tier *k, struct random *random, size_t n, bool large, enum guard_side side) {
    uint8_t *tables = guard_bytes(2 * n * 16, side), *planes = guard_bytes(n * 64, side);
    uint16_t *scores = guard_bytes(64 * sizeof *scores, side);
    fill_bytes(random, tables, 2 * n * 16);
    fill_bytes(random, planes, n * 64);
    if (large) memset(tables, 255, 2 * n * 16);
    k->select->scores_sign(tables, n, planes, scores);
    for (size_t t = 0; t < 64; t++) {
        unsigned want = 0;
        for (size_t j = 0; j < n; j++)
            want += tables[32 * j + planes[64 * j + t] % 16] + tables[32 * j + 16 + planes[64 * j + t] / 16];
        assert_int_equal(scores[t], want);
    }
    guard_release();
}

static void check_quest_slot(const struct tier *k, struct random *random, size_t hd, enum fill fill, enum guard_side side) {
    float *q = guard_floats(hd, side), *bounds = guard_floats(4, side);
    uint16_t *page = guard_bytes(index_bytes(&index_quest, hd), side);
    fill_floats(random, fill, q, hd);
    fill_halves(random, fill, page, 8 * hd);
    k->select->scores_quest(q, hd, page, bounds);
    for (size_t p = 0; p < 4; p++) {
        double want = 0, terms = 0;
        for (size_t c = 0; c < hd; c++) {
            double a = (double)q[c] * (double)half_to_float(page[p * 2 * hd + c]);
            double b = (double)q[c] * (double)half_to_float(page[p * 2 * hd + hd + c]);
            want += fmax(a, b);
            terms += fabs(fmax(a, b));
        }
        check_close(bounds[p], want, terms, 0x1p-24 * (double)(hd + 4), 1e-42, "%s scores_quest hd %zu", k->name, hd);
    }
    guard_release();
}

static void kernels_equal_plain_sums(void **state) {
    (void)state;
    struct random random = {9};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (size_t n = 4; n <= 32; n += 4)
            for (int side = GUARD_END; side <= GUARD_START; side++)
                check_sign_slot(k, &random, n, n % 8 == 0, (enum guard_side)side);
        EACH_HEAD_DIM(hd)
        for (int fill = 0; fill < FILLS; fill++)
            check_quest_slot(k, &random, hd, (enum fill)fill, fill % 2 ? GUARD_END : GUARD_START);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(centroids_are_means_of_keys_with_their_signs),
        cmocka_unit_test(medians_are_lower_medians),
        cmocka_unit_test(all_sign_patterns_lie_where_the_layout_says),
        cmocka_unit_test(scores_are_centroid_products_within_the_bound),
        cmocka_unit_test(centring_moves_no_attention),
        cmocka_unit_test(centred_signs_find_the_best),
        cmocka_unit_test(bounds_hold_and_are_tight),
        cmocka_unit_test(pages_enclose_their_keys),
        cmocka_unit_test(infinities_and_nan_are_survived),
        cmocka_unit_test(odd_head_sizes_are_refused),
        cmocka_unit_test(kernels_equal_plain_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
