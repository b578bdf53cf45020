/* Kernels of the codec transform: every tier against sums in double precision over codes that were put where format/page_layout.h says,
 * for every number of bits and many numbers of rows, with extreme weights, between inaccessible pages. Where all floats are whole
 * numbers the sums must be exact.
 */
#include "format/page_layout.h"
#include "support/kernel_check.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EPSILON 0x1p-24
#define MOST_ROWS 9
#define MOST_BITS (TRANSFORM_BITS_MAX * TRANSFORM_QUADS_MAX + 4) /* of a token and component, in nibbles */
#define MOST_STEPS ((TRANSFORM_PLANES_MAX + TRANSFORM_STEP_PLANES - 1) / TRANSFORM_STEP_PLANES)

/* ---- A page whose codes are known ---------------------------------------------------------------------------------------- */

struct page {
    struct transform_layout layout;
    unsigned char bit[MOST_BITS][64]
                     [4]; /* [place][token][component]: bits of nibbles in the order of the page, the highest first */
    unsigned char *bytes; /* as they lie behind the gains */
};

/* Puts one bit where page_layout.h says. */
static void put_bit(bool keys, unsigned char *codes, size_t place, size_t t, size_t i, unsigned bit) {
    size_t v = t / 8, j = keys ? 4 * (t % 8) + i : 16 * (t % 8 / 4) + 4 * i + t % 4, shift = 4 * (v / 2 % 2) + 3 - place % 4;
    unsigned char *at = codes + place / 4 * 128 + 64 * (v / 4) + 32 * (v % 2) + j;
    *at = (unsigned char)((*at & ~(1u << shift)) | bit << shift);
}

static struct page *make_page(struct random *random, const unsigned char *quad_bits, uint32_t head_dim, bool keys,
                              enum guard_side side) {
    struct page *page = malloc(sizeof *page);
    transform_layout_set(quad_bits, head_dim, &page->layout);
    size_t bytes = PAGE_BYTES_TRANSFORM(page->layout.nibbles) - 64;
    page->bytes = guard_bytes(bytes, side);
    memset(page->bytes, 0, bytes);
    for (size_t place = 0; place < 4 * (size_t)page->layout.nibbles; place++) {
        for (size_t t = 0; t < 64; t++) {
            for (size_t i = 0; i < 4; i++) {
                page->bit[place][t][i] = (unsigned char)(random_bits(random) % 2);
                put_bit(keys, page->bytes, place, t, i, page->bit[place][t][i]);
            }
        }
    }
    return page;
}

static double level(const struct page *page, size_t p, size_t t, size_t i) {
    const struct transform_plane *plane = &page->layout.plane[p];
    size_t place = 4 * (size_t)plane->nibble + 4u - plane->shift - plane->bits;
    int code = 0, most = 0;
    for (size_t b = 0; b < plane->bits; b++) {
        code = 2 * code + page->bit[place + b][t][i];
        most = 2 * most + 1;
    }
    return 2 * code - most;
}

/* Bits of quads: names of the cases below. */
enum allocation { NONE, EQUAL, FALLING, ONE_QUAD };

static void set_bits(enum allocation how, unsigned bits, unsigned char *quad_bits, uint32_t head_dim) {
    uint32_t quads = head_dim / 4;
    for (uint32_t q = 0; q < quads; q++) {
        unsigned own = how == EQUAL ? bits : how == FALLING ? bits - (q * (bits + 1) / quads) : q == 0 ? bits : 0;
        quad_bits[q] = (unsigned char)(how == NONE ? 0 : own == 7 ? 6 : own); /* there are no quads of 7 bits */
    }
}

/* Any bits, as many of each number as come. */
static void draw_bits(struct random *random, unsigned char *quad_bits, uint32_t head_dim) {
    static const unsigned char own[] = {8, 6, 5, 4, 3, 2, 1, 0};
    uint32_t quads = head_dim / 4, q = 0;
    for (size_t i = 0; i < 8; i++)
        for (uint32_t end = i == 7 ? quads : q + (uint32_t)(random_bits(random) % (quads / 3)); q < end && q < quads; q++)
            quad_bits[q] = own[i];
}

/* Numbers of rows: 0 plain, 1 whole numbers so that every sum is exact, 2 the same with extreme weights. */
enum numbers { PLAIN, WHOLE, EXTREME, NUMBERS };

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

struct queries {
    struct transform_query query[MOST_ROWS];
    float gains[64];
};

static void make_queries(struct random *random, enum numbers how, const struct transform_layout *layout, size_t rows,
                         enum guard_side side, struct queries *queries) {
    const size_t planes = layout->planes, steps = (planes + TRANSFORM_STEP_PLANES - 1) / TRANSFORM_STEP_PLANES;
    for (size_t t = 0; t < 64; t++) queries->gains[t] = how == PLAIN ? 2 + random_normal(random) : 1;
    for (size_t m = 0; m < rows; m++) {
        float *step = guard_floats(steps, side);
        int32_t *bias = guard_bytes(steps * sizeof *bias, side);
        int8_t *weights = guard_bytes(steps * TRANSFORM_STEP_PLANES * 4, side);
        for (size_t i = 0; i < steps; i++) {
            step[i] = how == PLAIN ? fabsf(random_normal(random)) : 1;
            bias[i] = 0;
        }
        for (size_t i = 0; i < planes * 4; i++) {
            int spread = how == EXTREME ? (random_bits(random) % 2 ? 127 : -127) : (int)(random_bits(random) % 255) - 127;
            if (how == EXTREME && m < 2) spread = m ? -127 : 127;
            weights[i] = (int8_t)spread;
            bias[i / (TRANSFORM_STEP_PLANES * 4)] -= (int32_t)transform_most(layout->plane[i / 4].bits) * spread;
        }
        queries->query[m] = (struct transform_query){how == PLAIN ? random_normal(random) : 0, step, bias, weights};
    }
}

static void check_scores(struct random *random, const unsigned char *quad_bits, uint32_t head_dim, enum numbers how, size_t rows,
                         enum guard_side side) {
    struct page *page = make_page(random, quad_bits, head_dim, true, side);
    const size_t planes = page->layout.planes;
    static struct queries queries;
    make_queries(random, how, &page->layout, rows, side, &queries);
    float *gains = guard_copy(queries.gains, sizeof queries.gains, side), *logits = guard_floats(rows * 64, side);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        memset(logits, 0xff, rows * 64 * sizeof *logits);
        k->transform->score(&page->layout, page->bytes, gains, queries.query, rows, logits);
        for (size_t m = 0; m < rows; m++) {
            const struct transform_query *query = &queries.query[m];
            for (size_t t = 0; t < 64; t++) {
                double sum = 0, terms = 0;
                for (size_t p = 0; p < planes; p++) {
                    for (size_t i = 0; i < 4; i++) {
                        double term = (double)query->steps[p / TRANSFORM_STEP_PLANES] * query->weights[p * 4 + i] *
                                      level(page, p, t, i) * (double)gains[t];
                        sum += term;
                        terms += fabs(term);
                    }
                }
                double want = (double)query->offset + sum;
                check_close(logits[m * 64 + t], want, terms + fabs((double)query->offset),
                            how == PLAIN ? EPSILON * (MOST_STEPS + 4) : 0, 0,
                            "%s score of %zu planes, %zu bits, row %zu of %zu, token %zu", k->name, planes,
                            4 * (size_t)page->layout.nibbles, m, rows, t);
            }
        }
    }
    free(page);
    guard_release();
}

/* Layouts of all kinds, products of any size and all of them 0, by the definition in double precision. */
static void check_query(struct random *random, const unsigned char *quad_bits, uint32_t head_dim, float size,
                        enum guard_side side) {
    struct transform_layout layout;
    transform_layout_set(quad_bits, head_dim, &layout);
    const size_t planes = layout.planes, groups = (planes + TRANSFORM_STEP_PLANES - 1) / TRANSFORM_STEP_PLANES;
    const size_t n = (size_t)layout.quads * TRANSFORM_QUAD;
    float *products = guard_floats(n, side), *steps = guard_floats(groups, side);
    int32_t *bias = guard_bytes(groups * sizeof *bias, side);
    int8_t *weights = guard_bytes(groups * TRANSFORM_STEP_PLANES * TRANSFORM_QUAD, side);
    for (size_t i = 0; i < n; i++) products[i] = size * random_normal(random);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        memset(steps, 0xff, groups * sizeof *steps);
        memset(bias, 0xff, groups * sizeof *bias);
        memset(weights, 0x7f, groups * TRANSFORM_STEP_PLANES * TRANSFORM_QUAD);
        k->transform->quantize_query(&layout, products, steps, bias, weights);
        for (size_t j = planes * TRANSFORM_QUAD; j < groups * TRANSFORM_STEP_PLANES * TRANSFORM_QUAD; j++)
            assert_int_equal(weights[j], 0);
        for (size_t group = 0; group < groups; group++) {
            size_t end = (group + 1) * TRANSFORM_STEP_PLANES < planes ? (group + 1) * TRANSFORM_STEP_PLANES : planes;
            double largest = 0;
            int32_t sum = 0;
            for (size_t j = group * TRANSFORM_STEP_PLANES * TRANSFORM_QUAD; j < end * TRANSFORM_QUAD; j++) {
                const struct transform_plane *plane = &layout.plane[j / TRANSFORM_QUAD];
                largest =
                    fmax(largest, fabs((double)plane->scale * (double)products[plane->quad * TRANSFORM_QUAD + j % TRANSFORM_QUAD]));
            }
            check_close(steps[group], largest / 127, largest, 4 * EPSILON, 1e-45, "%s step %zu of %zu", k->name, group, groups);
            for (size_t j = group * TRANSFORM_STEP_PLANES * TRANSFORM_QUAD; j < end * TRANSFORM_QUAD; j++) {
                const struct transform_plane *plane = &layout.plane[j / TRANSFORM_QUAD];
                double exact = (double)plane->scale * (double)products[plane->quad * TRANSFORM_QUAD + j % TRANSFORM_QUAD];
                sum -= (int32_t)transform_most(plane->bits) * weights[j];
                assert_in_range(weights[j] + 127, 0, 254);
                check_close(weights[j] * (double)steps[group], largest > 1e-36 ? exact : 0, largest, 8 * EPSILON, largest / 254,
                            "%s weight %zu of %zu planes", k->name, j, planes);
            }
            assert_int_equal(bias[group], sum);
        }
    }
    guard_release();
}

static void queries_are_rounded_to_integers(void **state) {
    (void)state;
    struct random random = {8};
    static const float sizes[] = {1, 0, 1e20f, 1e-20f, 1e-42f};
    for (uint32_t head_dim = 32; head_dim <= 256; head_dim += 32) {
        for (unsigned bits = 0; bits <= TRANSFORM_BITS_MAX; bits++) {
            unsigned char quad_bits[TRANSFORM_QUADS_MAX];
            set_bits(bits % 2 ? EQUAL : FALLING, bits, quad_bits, head_dim);
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                check_query(&random, quad_bits, head_dim, sizes[i], GUARD_END);
                check_query(&random, quad_bits, head_dim, sizes[i], GUARD_START);
            }
        }
    }
}

/* Pages with their gains, for one query, by the planes that have the first `bits` bits; ranks are cut off where how is 2. */
static void check_ranks(struct random *random, const unsigned char *quad_bits, uint32_t head_dim, unsigned bits, enum numbers how,
                        enum guard_side side) {
    struct page *page = make_page(random, quad_bits, head_dim, true, side);
    const size_t bytes = PAGE_BYTES_TRANSFORM(page->layout.nibbles) - 64;
    unsigned char *whole = guard_bytes(64 + bytes, side);
    uint16_t *ranks = guard_bytes(64 * sizeof *ranks, side);
    float *added = guard_floats(64, side);
    const float step = 1.0f / 64;
    static struct queries queries;
    struct transform_layout first;
    transform_layout_first(&page->layout, bits, &first);
    make_queries(random, how, &first, 1, side, &queries);
    const struct transform_query *query = &queries.query[0];
    for (size_t t = 0; t < 64; t++) whole[t] = (unsigned char)(how == WHOLE ? 0 : random_bits(random) % 256);
    for (size_t t = 0; t < 64; t++) added[t] = (float)(random_bits(random) % 1024) / 256 - 2;
    memcpy(whole + 64, page->bytes, bytes);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        uint16_t most = 0, largest = k->transform->rank(&first, whole, how == WHOLE ? 1.0f / 256 : 0, step, query, added, ranks);
        for (size_t t = 0; t < 64; t++) {
            double gain = how == WHOLE ? 1.0 / 256 : (double)step * whole[t], want = (double)query->offset + (double)added[t],
                   terms = fabs(want);
            for (size_t p = 0; p < first.planes; p++) {
                for (size_t i = 0; i < 4; i++) {
                    double term =
                        gain * (double)query->steps[p / TRANSFORM_STEP_PLANES] * query->weights[p * 4 + i] * level(page, p, t, i);
                    want += term;
                    terms += fabs(term);
                }
            }
            want = fmin(fmax(256 * want + 32768, 0), TRANSFORM_RANK_MOST);
            check_close(ranks[t], want, 256 * terms + 32768, how == WHOLE ? 0 : EPSILON * (MOST_STEPS + 4), how == WHOLE ? 0 : 0.5,
                        "%s rank of %zu planes, token %zu", k->name, (size_t)first.planes, t);
            most = ranks[t] > most ? ranks[t] : most;
        }
        assert_int_equal(largest, most);
    }
    free(page);
    guard_release();
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

static void check_accumulation(struct random *random, const unsigned char *quad_bits, uint32_t head_dim, enum numbers how,
                               size_t rows, enum guard_side side) {
    struct page *page = make_page(random, quad_bits, head_dim, false, side);
    const size_t planes = page->layout.planes, lanes = TRANSFORM_SUM_LANES, n = rows * planes * lanes;
    unsigned char *weights = guard_bytes(rows * 64, side);
    float *scales = guard_floats(rows, side), *sums = guard_floats(n, side), *before = malloc((n + 1) * sizeof *before);
    for (size_t i = 0; i < rows * 64; i++) weights[i] = (unsigned char)(how == EXTREME ? 255 : random_bits(random) % 256);
    if (how == EXTREME) memset(weights, 0, 32);
    for (size_t m = 0; m < rows; m++) scales[m] = how == PLAIN ? fabsf(random_normal(random)) : 1;
    for (size_t i = 0; i < n; i++) before[i] = how == PLAIN ? 100 * random_normal(random) : (float)(random_bits(random) % 100);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        memcpy(sums, before, n * sizeof *sums);
        k->transform->accumulate(&page->layout, page->bytes, weights, scales, rows, sums);
        for (size_t m = 0; m < rows; m++) {
            for (size_t p = 0; p < planes; p++) {
                const size_t first = (m * planes + p) * lanes;
                for (size_t i = 0; i < 4; i++) {
                    double got = 0, want = 0, terms = 0;
                    for (size_t t = 0; t < 64; t++) {
                        double term = (double)scales[m] * weights[m * 64 + t] * level(page, p, t, i);
                        want += term;
                        terms += fabs(term);
                    }
                    for (size_t lane = i; lane < lanes; lane += 4) {
                        got += (double)sums[first + lane];
                        want += (double)before[first + lane];
                        terms += fabs((double)before[first + lane]);
                    }
                    check_close(got, want, terms, how == PLAIN ? 4 * EPSILON : 0, 0,
                                "%s sums of plane %zu of %zu, %zu bits, row %zu of %zu, component %zu", k->name, p, planes,
                                4 * (size_t)page->layout.nibbles, m, rows, i);
                }
            }
        }
    }
    free(before);
    free(page);
    guard_release();
}

static void check_layout(struct random *random, const unsigned char *quad_bits, uint32_t head_dim, enum numbers numbers,
                         size_t rows) {
    for (int side = GUARD_END; side <= GUARD_START; side++) {
        check_scores(random, quad_bits, head_dim, numbers, rows, (enum guard_side)side);
        check_ranks(random, quad_bits, head_dim, UINT_MAX, numbers, (enum guard_side)side);
        check_ranks(random, quad_bits, head_dim, TRANSFORM_RANK_BITS(head_dim), numbers, (enum guard_side)side);
        check_accumulation(random, quad_bits, head_dim, numbers, rows, (enum guard_side)side);
    }
}

static void check_both(struct random *random, enum allocation how, unsigned bits, uint32_t head_dim, enum numbers numbers,
                       size_t rows) {
    unsigned char quad_bits[TRANSFORM_QUADS_MAX];
    set_bits(how, bits, quad_bits, head_dim);
    check_layout(random, quad_bits, head_dim, numbers, rows);
}

/* ---- Cases --------------------------------------------------------------------------------------------------------------- */

static void bits_of_every_number(void **state) {
    (void)state;
    struct random random = {1};
    for (unsigned bits = 1; bits <= TRANSFORM_BITS_MAX; bits++) {
        for (size_t rows = 1; rows <= MOST_ROWS; rows++) {
            check_both(&random, ONE_QUAD, bits, 32, WHOLE, rows);
            check_both(&random, EQUAL, bits, 64, PLAIN, rows);
        }
    }
}

static void layouts_of_falling_bits(void **state) {
    (void)state;
    struct random random = {2};
    for (uint32_t head_dim = 32; head_dim <= 256; head_dim += 32) {
        for (unsigned bits = 1; bits <= TRANSFORM_BITS_MAX; bits++) {
            check_both(&random, FALLING, bits, head_dim, PLAIN, bits % 5);
            check_both(&random, FALLING, bits, head_dim, WHOLE, 4);
        }
    }
}

static void layouts_of_any_bits(void **state) {
    (void)state;
    struct random random = {10};
    for (size_t i = 0; i < 48; i++) {
        const uint32_t head_dim = 32 * (1 + (uint32_t)(i % 8));
        unsigned char quad_bits[TRANSFORM_QUADS_MAX];
        draw_bits(&random, quad_bits, head_dim);
        check_layout(&random, quad_bits, head_dim, (enum numbers)(i % NUMBERS), 1 + i % 5);
    }
}

static void weights_at_their_limits(void **state) {
    (void)state;
    struct random random = {3};
    for (unsigned bits = 1; bits <= TRANSFORM_BITS_MAX; bits++) check_both(&random, EQUAL, bits, 128, EXTREME, 7);
}

static int level_of_same(const struct transform_plane *plane, unsigned same) {
    const unsigned most = transform_most(plane->bits);
    return (int)(2 * (same >> plane->shift & most)) - (int)most;
}

/* The same four bits in every nibble, ones and zeros among them, the largest levels of a nibble: with extreme weights the largest sums. */
static void the_largest_sums(void **state) {
    (void)state;
    const struct tier *k;
    for (unsigned bits = 1; bits <= TRANSFORM_BITS_MAX; bits++) {
        for (unsigned same = 0; same < 16; same++) {
            unsigned char quad_bits[TRANSFORM_QUADS_MAX], weights[64];
            int8_t most[TRANSFORM_PLANES_MAX * 4];
            int32_t bias[MOST_STEPS];
            float steps[MOST_STEPS], gains[64], logits[64], scale = 1;
            static float sums[TRANSFORM_PLANES_MAX * TRANSFORM_SUM_LANES];
            struct transform_layout layout;
            set_bits(EQUAL, bits, quad_bits, 256);
            transform_layout_set(quad_bits, 256, &layout);
            size_t bytes = PAGE_BYTES_TRANSFORM(layout.nibbles) - 64;
            double want = 0;
            for (size_t p = 0; p < layout.planes; p++) {
                want += 4 * 127 * level_of_same(&layout.plane[p], same);
            }
            for (size_t s = 0; s < MOST_STEPS; s++) {
                bias[s] = 0;
                for (size_t p = s * TRANSFORM_STEP_PLANES; p < (s + 1) * TRANSFORM_STEP_PLANES && p < layout.planes; p++)
                    bias[s] -= 127 * 4 * (int32_t)transform_most(layout.plane[p].bits);
                steps[s] = 1;
            }
            memset(most, 127, sizeof most);
            memset(weights, 255, sizeof weights);
            for (size_t t = 0; t < 64; t++) gains[t] = 1;
            unsigned char *codes = guard_bytes(bytes, GUARD_END);
            memset(codes, (int)(17 * same), bytes);
            struct transform_query query = {0, steps, bias, most};
            for (size_t tier = 0; (k = tier_at(tier)); tier++) {
                k->transform->score(&layout, codes, gains, &query, 1, logits);
                for (size_t t = 0; t < 64; t++) check_close(logits[t], want, 0, 0, 0, "%s score of %u bits", k->name, bits);
                memset(sums, 0, sizeof sums);
                k->transform->accumulate(&layout, codes, weights, &scale, 1, sums);
                for (size_t p = 0; p < layout.planes; p++) {
                    double sum = 0;
                    for (size_t lane = 0; lane < TRANSFORM_SUM_LANES; lane += 4)
                        sum += (double)sums[p * TRANSFORM_SUM_LANES + lane];
                    check_close(sum, 64 * 255 * level_of_same(&layout.plane[p], same), 0, 0, 0, "%s sum of %u bits", k->name, bits);
                }
            }
            guard_release();
        }
    }
}

/* In a head without bits every key scores the offset, and no sum is touched. */
static void heads_without_bits(void **state) {
    (void)state;
    struct random random = {4};
    for (size_t rows = 0; rows <= 5; rows++) check_both(&random, NONE, 0, 64, PLAIN, rows);
}

static void many_rows(void **state) {
    (void)state;
    enum { ROWS = 96, HD = 64 };
    struct random random = {5};
    unsigned char quad_bits[TRANSFORM_QUADS_MAX];
    static struct transform_query queries[ROWS];
    static int8_t weights[ROWS][TRANSFORM_PLANES_MAX * 4];
    static uint8_t bytes[ROWS][64];
    static float all[ROWS][64], one[64], scales[ROWS], sums[ROWS * TRANSFORM_PLANES_MAX * TRANSFORM_SUM_LANES];
    float steps[MOST_STEPS], gains[64];
    int32_t bias[ROWS][MOST_STEPS] = {{0}};
    set_bits(FALLING, 6, quad_bits, HD);
    struct page *keys = make_page(&random, quad_bits, HD, true, GUARD_END);
    struct page *values = make_page(&random, quad_bits, HD, false, GUARD_END);
    const size_t planes = keys->layout.planes, each = planes * TRANSFORM_SUM_LANES;
    for (size_t s = 0; s < MOST_STEPS; s++) steps[s] = 0.25f;
    for (size_t t = 0; t < 64; t++) gains[t] = random_normal(&random);
    for (size_t m = 0; m < ROWS; m++) {
        for (size_t i = 0; i < planes * 4; i++) {
            weights[m][i] = (int8_t)(random_bits(&random) % 255 - 127);
            bias[m][i / (TRANSFORM_STEP_PLANES * 4)] -= (int32_t)transform_most(keys->layout.plane[i / 4].bits) * weights[m][i];
        }
        for (size_t t = 0; t < 64; t++) bytes[m][t] = (uint8_t)random_bits(&random);
        scales[m] = 1;
        queries[m] = (struct transform_query){1, steps, bias[m], weights[m]};
    }
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        static float own[TRANSFORM_PLANES_MAX * TRANSFORM_SUM_LANES];
        memset(sums, 0, sizeof sums);
        k->transform->score(&keys->layout, keys->bytes, gains, queries, ROWS, all[0]);
        k->transform->accumulate(&values->layout, values->bytes, bytes[0], scales, ROWS, sums);
        for (size_t m = 0; m < ROWS; m++) {
            k->transform->score(&keys->layout, keys->bytes, gains, &queries[m], 1, one);
            assert_memory_equal(all[m], one, sizeof one); /* no result depends on who is served beside it */
            memset(own, 0, sizeof own);
            k->transform->accumulate(&values->layout, values->bytes, bytes[m], &scales[m], 1, own);
            assert_memory_equal(sums + m * each, own, each * sizeof *own);
        }
    }
    free(keys);
    free(values);
    guard_release();
}

static void gains_of_all_bytes(void **state) {
    (void)state;
    struct random random = {6};
    for (int side = GUARD_END; side <= GUARD_START; side++) {
        unsigned char *codes = guard_bytes(64, (enum guard_side)side);
        float *gains = guard_floats(64, (enum guard_side)side);
        const struct tier *k;
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            for (size_t first = 0; first < 256; first += 64) {
                float least = fabsf(random_normal(&random)), step = fabsf(random_normal(&random)) / 255;
                for (size_t t = 0; t < 64; t++) codes[t] = (unsigned char)(255 - first - t);
                k->transform->gains(codes, least, step, gains);
                for (size_t t = 0; t < 64; t++) {
                    double want = (double)least + (double)step * (double)(255 - first - t);
                    check_close(gains[t], want, want, 2 * EPSILON, 0, "%s gain of code %zu", k->name, 255 - first - t);
                }
            }
        }
        guard_release();
    }
}

/* Rows of usual, of equal and of hardly any weights, and one of none. */
static void fill_weights(struct random *random, size_t rows, float *weights) {
    for (size_t i = 0; i < rows * 64; i++) {
        double x = random_unit(random);
        weights[i] = (float)(i / 64 % 4 == 0 ? exp(-12 * x) : i / 64 % 4 == 1 ? 1e-3 : i / 64 % 4 == 2 ? 1e-38 * x : 0);
    }
}

static void weights_are_rounded_to_integers(void **state) {
    (void)state;
    struct random random = {7};
    for (size_t rows = 0; rows <= MOST_ROWS; rows++) {
        for (size_t planes = 1; planes <= 2; planes++) {
            enum guard_side side = rows % 2 ? GUARD_START : GUARD_END;
            float *weights = guard_floats(rows * 64, side), *gains = guard_floats(64, side), *sums = guard_floats(rows, side),
                  *scales = guard_floats(planes * rows, side);
            unsigned char *bytes = guard_bytes(planes * rows * 64, side);
            fill_weights(&random, rows, weights);
            for (size_t t = 0; t < 64; t++) gains[t] = (float)random_unit(&random) + 0.1f;
            const struct tier *k;
            for (size_t tier = 0; (k = tier_at(tier)); tier++) {
                for (size_t m = 0; m < rows; m++) sums[m] = 1;
                k->transform->quantize_weights(weights, gains, rows, planes, bytes, scales, sums);
                for (size_t m = 0; m < rows; m++) {
                    double sum = 1, largest = 0, step = (double)scales[(planes - 1) * rows + m];
                    for (size_t t = 0; t < 64; t++) {
                        sum += (double)weights[m * 64 + t];
                        largest = fmax(largest, (double)weights[m * 64 + t] * (double)gains[t]);
                    }
                    if (planes == 2) check_close(scales[m], 256 * step, 0, 0, 0, "%s scale of upper bytes", k->name);
                    if (largest <= (double)TRANSFORM_LEAST_WEIGHT) largest = 0;
                    check_close(step, largest / (planes == 1 ? 255 : 65535), largest, 4 * EPSILON, 0, "%s scale, row %zu of %zu",
                                k->name, m, rows);
                    check_close(sums[m], sum, sum, 64 * EPSILON, 0, "%s sum of row %zu of %zu", k->name, m, rows);
                    for (size_t t = 0; t < 64; t++) {
                        double want = largest > 0 ? (double)weights[m * 64 + t] * (double)gains[t] : 0;
                        double got = bytes[((planes - 1) * rows + m) * 64 + t] + (planes == 2 ? 256.0 * bytes[m * 64 + t] : 0);
                        check_close(got * step, want, largest, 4 * EPSILON, 0.5 * step,
                                    "%s weight %zu of row %zu of %zu, %zu bytes", k->name, t, m, rows, planes);
                        if (largest == 0) assert_true(got == 0);
                    }
                }
            }
            guard_release();
        }
    }
}

/* Logits near the largest, a common distance below it, so far below that nothing is left of them, and a row that has seen none. */
static void logits_become_integers(void **state) {
    (void)state;
    struct random random = {8};
    for (size_t rows = 0; rows <= MOST_ROWS; rows++) {
        enum guard_side side = rows % 2 ? GUARD_START : GUARD_END;
        float *logits = guard_floats(rows * 64, side), *gains = guard_floats(64, side), *sums = guard_floats(rows, side),
              *scales = guard_floats(rows, side), *largest = guard_floats(rows, side);
        unsigned char *bytes = guard_bytes(rows * 64, side);
        for (size_t m = 0; m < rows; m++) {
            largest[m] = m % 4 == 3 ? -INFINITY : (float)((m == 4 ? 4e5 : 40) * (random_unit(&random) - 0.5));
            for (size_t t = 0; t < 64; t++)
                logits[m * 64 + t] = largest[m] - (float)((m % 4 == 0   ? 0
                                                           : m % 4 == 1 ? 9
                                                                        : 200) +
                                                          (t == 5 ? 0 : 12 * random_unit(&random)));
        }
        for (size_t t = 0; t < 64; t++) gains[t] = (float)random_unit(&random) + 0.1f;
        const struct tier *k;
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            for (size_t m = 0; m < rows; m++) sums[m] = 1;
            k->transform->weigh(logits, largest, gains, rows, bytes, scales, sums);
            for (size_t m = 0; m < rows; m++) {
                double sum = 1, most = 0, weights[64];
                for (size_t t = 0; t < 64; t++) {
                    weights[t] = m % 4 == 3 ? 0 : exp((double)logits[m * 64 + t] - (double)largest[m]);
                    sum += weights[t];
                    most = fmax(most, weights[t] * (double)gains[t]);
                }
                if (m % 4 > 1) most = 0;
                check_close(sums[m], sum, sum, 1e-4, 0, "%s sum of row %zu of %zu", k->name, m, rows);
                check_close(scales[m], most / 255, most / 255, 1e-4, 0, "%s scale of row %zu of %zu", k->name, m, rows);
                for (size_t t = 0; t < 64; t++) {
                    double want = most > 0 ? weights[t] * (double)gains[t] : 0, got = bytes[m * 64 + t] * (double)scales[m];
                    check_close(got, want, want, 2e-4, 0.501 * (double)scales[m], "%s weight %zu of row %zu of %zu", k->name, t, m,
                                rows);
                    if (most == 0) assert_true(bytes[m * 64 + t] == 0);
                }
            }
        }
        guard_release();
    }
}

/* ---- Gathering ----------------------------------------------------------------------------------------------------------- */

/* `n` slots of a page to the slots from `at` on of another, by code. */
static void check_gathering(struct random *random, const unsigned char *quad_bits, uint32_t head_dim, bool keys, size_t n,
                            size_t at, enum guard_side side) {
    struct page *from = make_page(random, quad_bits, head_dim, keys, side),
                *to = make_page(random, quad_bits, head_dim, keys, side);
    const size_t bytes = PAGE_BYTES_TRANSFORM(from->layout.nibbles) - 64;
    unsigned char *slots = guard_bytes(n, side), *want = malloc(bytes + 1), *before = malloc(bytes + 1);
    for (size_t k = 0, next = 0; k < n; next++) /* in order */
        if (random_bits(random) % (64 - next) < n - k) slots[k++] = (unsigned char)next;
    memcpy(before, to->bytes, bytes);
    memcpy(want, to->bytes, bytes);
    for (size_t place = 0; place < 4 * (size_t)from->layout.nibbles; place++) {
        for (size_t k = 0; k < n; k++) {
            for (size_t i = 0; i < 4; i++) {
                put_bit(keys, want, place, at + k, i, from->bit[place][slots[k]][i]);
            }
        }
    }
    const struct tier *tier;
    for (size_t t = 0; (tier = tier_at(t)); t++) {
        memcpy(to->bytes, before, bytes);
        tier->transform->gather(&from->layout, keys ? CODEC_KEYS : CODEC_VALUES, from->bytes, slots, n, to->bytes, at);
        if (memcmp(to->bytes, want, bytes))
            fail_msg("%s: %s of %zu planes, %zu bits, %zu slots from %zu on", tier->name, keys ? "keys" : "values",
                     (size_t)from->layout.planes, 4 * (size_t)from->layout.nibbles, n, at);
    }
    free(want);
    free(before);
    free(from);
    free(to);
    guard_release();
}

static void gathered_codes_are_those_of_their_slots(void **state) {
    (void)state;
    static const size_t numbers[] = {0, 1, 2, 5, 16, 17, 40, 64};
    struct random random = {8};
    for (unsigned bits = 0; bits <= TRANSFORM_BITS_MAX; bits++) {
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
            for (int times = 0; times < 12; times++) {
                unsigned char quad_bits[TRANSFORM_QUADS_MAX];
                size_t n = numbers[i], at = times ? random_bits(&random) % (65 - n) : 0;
                set_bits(bits ? FALLING : NONE, bits, quad_bits, 96);
                check_gathering(&random, quad_bits, 96, times % 2, n, at, times % 4 < 2 ? GUARD_END : GUARD_START);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_every_number),
        cmocka_unit_test(layouts_of_falling_bits),
        cmocka_unit_test(layouts_of_any_bits),
        cmocka_unit_test(weights_at_their_limits),
        cmocka_unit_test(the_largest_sums),
        cmocka_unit_test(heads_without_bits),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(queries_are_rounded_to_integers),
        cmocka_unit_test(gains_of_all_bytes),
        cmocka_unit_test(weights_are_rounded_to_integers),
        cmocka_unit_test(logits_become_integers),
        cmocka_unit_test(gathered_codes_are_those_of_their_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
