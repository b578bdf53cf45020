/* dequantize[] and matmul[] of every tier: against blocks and floats made by other software (fixtures/make_quant_blocks.py),
 * against the scalar reference bit for bit, against sums in double precision, and at the ends of accessible memory.
 * bench/micro/bench_weights.c measures their speed.
 */
#include "base/memory.h"
#include "support/fixed_point.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The types, and where the halves of a block lie: the scale, then the minimum if there is one. */
static const struct weight_type {
    enum tensor_type type;
    const char *fixture;
    int n_halves;
    size_t halves[2];
} types[] = {
    {TENSOR_F32, NULL, 0, {0}},        {TENSOR_F16, "f16", 0, {0}},        {TENSOR_BF16, "bf16", 0, {0}},
    {TENSOR_Q8_0, "q8_0", 1, {0}},     {TENSOR_Q4_0, "q4_0", 1, {0}},      {TENSOR_Q4_1, "q4_1", 2, {0, 2}},
    {TENSOR_Q5_0, "q5_0", 1, {0}},     {TENSOR_Q5_1, "q5_1", 2, {0, 2}},   {TENSOR_Q4_K, "q4_k", 2, {0, 2}},
    {TENSOR_Q5_K, "q5_k", 2, {0, 2}},  {TENSOR_Q6_K, "q6_k", 1, {208}},    {TENSOR_IQ4_NL, "iq4_nl", 1, {0}},
    {TENSOR_IQ4_XS, "iq4_xs", 1, {0}}, {TENSOR_Q2_K, "q2_k", 2, {80, 82}}, {TENSOR_Q3_K, "q3_k", 1, {108}},
    {TENSOR_MXFP4, "mxfp4", 0, {0}},
};
#define N_TYPES (sizeof types / sizeof *types)

static const struct tensor_type_info *info_of(const struct weight_type *type) { return tensor_type_info(type->type); }
static size_t row_size(const struct weight_type *type, size_t n) { return n / info_of(type)->block * info_of(type)->bytes; }
static const struct tier *scalar(void) { return tier_at(0); }

/* ---- Made-up rows ------------------------------------------------------------------------------------------------------- */

enum weights {
    WEIGHTS_NORMAL,    /* random codes, scales such as models have */
    WEIGHTS_ZERO,      /* random codes, scales of zero and of negative zero, or the smallest that the type has */
    WEIGHTS_SUBNORMAL, /* random codes, scales below the smallest normal half */
    WEIGHTS_LARGEST,   /* the largest scales, codes at the ends of their range */
    WEIGHTS_COUNTING,  /* code bytes 0, 1, 2, ...: every code */
    WEIGHTS_KINDS
};

static uint16_t random_half(struct random *random, enum weights kind) {
    uint16_t sign = (uint16_t)(random_bits(random) & 0x8000);
    switch (kind) {
    case WEIGHTS_ZERO: return sign;
    case WEIGHTS_SUBNORMAL: return (uint16_t)(sign | (random_bits(random) & 0x3ff));
    case WEIGHTS_LARGEST: return sign | 0x7bff;
    default: return (uint16_t)(sign | (0x1c00 + (random_bits(random) & 0xfff))); /* 2^-8 to 2^-4 */
    }
}

/* Returns an exponent of MXFP4. The largest is about that of the other types' largest weights, so that the bounds of sums hold for it too. */
static uint8_t random_exponent(struct random *random, enum weights kind) {
    switch (kind) {
    case WEIGHTS_ZERO: return 0;
    case WEIGHTS_SUBNORMAL: return (uint8_t)(random_bits(random) % 3);
    case WEIGHTS_LARGEST: return 128 + 16;
    default: return (uint8_t)(119 + random_bits(random) % 4); /* 2^-9 to 2^-6 */
    }
}

static void make_plain_row(struct random *random, enum tensor_type type, enum weights kind, unsigned char *row, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t half = random_half(random, kind);
        float value =
            kind == WEIGHTS_LARGEST ? 1e17f : random_normal(random) * (kind == WEIGHTS_SUBNORMAL ? 1e-40f : kind != WEIGHTS_ZERO);
        if (type == TENSOR_F32) memcpy(row + 4 * i, &value, 4);
        if (type == TENSOR_F16) memcpy(row + 2 * i, &half, 2);
        if (type == TENSOR_BF16) memcpy(row + 2 * i, (const char *)&value + 2, 2); /* the upper half of a float */
    }
}

static void make_row(struct random *random, const struct weight_type *type, enum weights kind, unsigned char *row, size_t n) {
    if (info_of(type)->block == 1) {
        make_plain_row(random, type->type, kind, row, n);
        return;
    }
    size_t bytes = info_of(type)->bytes;
    for (size_t b = 0; b < n / info_of(type)->block; b++, row += bytes) {
        fill_bytes(random, row, bytes);
        for (size_t i = 0; i < bytes && kind >= WEIGHTS_LARGEST; i++)
            row[i] = kind == WEIGHTS_COUNTING ? (unsigned char)(b * bytes + i) : row[i] & 1 ? 0xff : row[i] & 2 ? 0x80 : 0;
        for (int h = 0; h < type->n_halves; h++) {
            uint16_t half = random_half(random, kind);
            memcpy(row + type->halves[h], &half, sizeof half);
        }
        if (type->type == TENSOR_MXFP4) row[0] = random_exponent(random, kind);
    }
}

/* ---- dequantize --------------------------------------------------------------------------------------------------------- */

static void *read_fixture(const char *type, const char *suffix, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, TESTS_DIR "/fixtures/quant_blocks/%s.%s", type, suffix);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    void *data = guard_bytes(bytes, GUARD_END);
    assert_int_equal(fread(data, 1, bytes, file), bytes);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    return data;
}

static void check_same_bits(const float *got, const float *want, size_t n, const char *tier, const char *type, const char *what) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s %s, %s: weight %zu of %zu is %.9g (%a), not %.9g (%a)", tier, type, what, i, n, (double)got[i],
                     (double)got[i], (double)want[i], (double)want[i]);
    }
}

static void test_blocks_of_other_software(void **state) {
    (void)state;
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        if (!type->fixture) continue;
        size_t n = 8 * (info_of(type)->block == 1 ? 32 : info_of(type)->block);
        const void *blocks = read_fixture(type->fixture, "blocks", row_size(type, n));
        const float *want = read_fixture(type->fixture, "f32", n * sizeof *want);
        const struct tier *k;
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            float *got = guard_floats(n, GUARD_END);
            k->weights->dequantize[type->type](blocks, got, n);
            check_same_bits(got, want, n, k->name, info_of(type)->name, "fixture");
        }
        guard_release();
    }
}

/* Row lengths in weights: for types with blocks, one to many of them, on both sides of eight blocks of 32. */
static size_t length_at(const struct weight_type *type, size_t i) {
    static const size_t in_blocks[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 40};
    static const size_t in_k_blocks[] = {0, 1, 2, 3, 5};
    size_t block = info_of(type)->block;
    if (block == 1) return i < n_odd_lengths ? odd_lengths[i] : SIZE_MAX;
    if (block == 32) return i < sizeof in_blocks / sizeof *in_blocks ? in_blocks[i] * block : SIZE_MAX;
    return i < sizeof in_k_blocks / sizeof *in_k_blocks ? in_k_blocks[i] * block : SIZE_MAX;
}

static void test_every_tier_dequantizes_alike(void **state) {
    (void)state;
    struct random random = {1};
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        size_t n;
        for (size_t l = 0; (n = length_at(type, l)) != SIZE_MAX; l++) {
            for (enum weights kind = 0; kind < WEIGHTS_KINDS; kind++) {
                for (enum guard_side side = GUARD_END; side <= GUARD_START; side++) {
                    unsigned char *row = guard_bytes(row_size(type, n), side);
                    make_row(&random, type, kind, row, n);
                    float *want = guard_floats(n, side);
                    scalar()->weights->dequantize[type->type](row, want, n);
                    for (size_t i = 0; i < n; i++) assert_true(isfinite(want[i]));
                    const struct tier *k;
                    for (size_t tier = 1; (k = tier_at(tier)); tier++) {
                        float *got = guard_floats(n, side);
                        k->weights->dequantize[type->type](row, got, n);
                        check_same_bits(got, want, n, k->name, info_of(type)->name, "made-up row");
                    }
                    guard_release();
                }
            }
        }
    }
}

/* Infinities, NaN and subnormals included. */
static void test_every_half_of_every_tier(void **state) {
    (void)state;
    static const struct weight_type *const plain[] = {&types[1], &types[2]};
    enum { N = 65536 };
    static uint16_t halves[N];
    static float want[N], got[N];
    for (size_t i = 0; i < N; i++) halves[i] = (uint16_t)i;
    for (int t = 0; t < 2; t++) {
        scalar()->weights->dequantize[plain[t]->type](halves, want, N);
        const struct tier *k;
        for (size_t tier = 1; (k = tier_at(tier)); tier++) {
            k->weights->dequantize[plain[t]->type](halves, got, N);
            check_same_bits(got, want, N, k->name, info_of(plain[t])->name, "every half");
        }
    }
}

/* ---- matmul ------------------------------------------------------------------------------------------------------------- */

/* y[t * stride + r] of `count` vectors x, x[t] being `apart` floats after x[t - 1], in the form in which the tier reads them. */
static void multiply(const struct tier *k, enum tensor_type type, const void *w, size_t row_bytes, size_t rows, size_t n,
                     const float *x, size_t apart, size_t count, float *y, size_t stride) {
    const void *vectors[16];
    void *fixed[16] = {0};
    assert_true(count <= 16);
    for (size_t t = 0; t < count; t++) {
        vectors[t] = x + t * apart;
        if (!k->weights->fix[type]) continue;
        size_t bytes = k->weights->fixed_bytes[type](n);
        assert_int_equal(bytes % 32, 0);
        vectors[t] = fixed[t] = memory_array(bytes, 1);
        memset(fixed[t], 0xff, bytes);
        k->weights->fix[type](x + t * apart, n, fixed[t]);
    }
    k->weights->matmul[type](w, row_bytes, rows, n, vectors, count, y, stride);
    for (size_t t = 0; t < count; t++) memory_free(fixed[t]);
}

/* Multiplies one vector. */
static void matvec(const struct tier *k, enum tensor_type type, const void *w, size_t row_bytes, size_t rows, size_t n,
                   const float *x, float *y) {
    multiply(k, type, w, row_bytes, rows, n, x, 0, 1, y, rows);
}

/* Returns how far from exact a sum of products w x may be, relative to the sum of |w x|: unit roundoff times the number of roundings that a
 * term can go through. The scalar kernel rounds the product, adds it to a run of `step` products and adds up the runs: 1 + step + n / step. The
 * others fuse product and addition and hold at least eight partial sums, so a term is rounded at most n / 8 times, three times for the sums of
 * four lanes or more and twice when the rest of a row is added. */
static double allowed_error(const struct tier *k, size_t block, size_t n) {
    size_t step = block == 1 ? 32 : block;
    double roundings = k == scalar() ? 1 + (double)step + (double)n / (double)step : (double)n / 8 + 6;
    return 1.01 * 0x1p-24 * roundings;
}

struct product {
    const struct weight_type *type;
    size_t rows, n, row_bytes;
    unsigned char *w;
    float *x;
    double *exact, *magnitude; /* [rows]: sum of w x, and of |w x| */
    double *fixed;             /* [rows]: the most that x as fixed point adds to the error, as weights/ops.h says */
};

static double fixed_error(const float *row, const float *x, size_t n, size_t group, double part) {
    double error = 0;
    for (size_t i = 0; i < n; i += group) {
        double largest = 0, sum = 0;
        for (size_t j = i; j < i + group && j < n; j++) {
            largest = fmax(largest, fabs((double)x[j]));
            sum += fabs((double)row[j]);
        }
        error += fmax(largest * part, largest < 1e-25 ? largest : 0) * sum;
    }
    return error;
}

static void product_allocate(struct product *p, enum guard_side side) {
    p->w = guard_bytes(p->rows ? (p->rows - 1) * p->row_bytes + row_size(p->type, p->n) : 0, side);
    p->x = guard_floats(p->n, side);
    p->exact = guard_bytes(p->rows * sizeof *p->exact, GUARD_END);
    p->magnitude = guard_bytes(p->rows * sizeof *p->magnitude, GUARD_END);
    p->fixed = guard_bytes(p->rows * sizeof *p->fixed, GUARD_END);
}

/* Makes up the weights and multiplies them by x. */
static void product_compute(struct product *p, struct random *random, enum weights weights) {
    float *row = guard_floats(p->n, GUARD_END);
    for (size_t r = 0; r < p->rows; r++) {
        make_row(random, p->type, weights, p->w + r * p->row_bytes, p->n);
        scalar()->weights->dequantize[p->type->type](p->w + r * p->row_bytes, row, p->n);
        p->exact[r] = p->magnitude[r] = 0;
        for (size_t i = 0; i < p->n; i++) {
            p->exact[r] += (double)row[i] * (double)p->x[i];
            p->magnitude[r] += fabs((double)row[i] * (double)p->x[i]);
        }
        const double part = fixed_part(p->type->type);
        p->fixed[r] = part > 0 ? fixed_error(row, p->x, p->n, fixed_group(p->type->type), part) : 0;
    }
}

static void product_make(struct product *p, struct random *random, enum weights weights, enum fill fill, enum guard_side side) {
    product_allocate(p, side);
    fill_floats(random, fill, p->x, p->n);
    product_compute(p, random, weights);
}

static void product_check(const struct product *p, const char *what, enum guard_side side) {
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        float *y = guard_floats(p->rows, side);
        matvec(k, p->type->type, p->w, p->row_bytes, p->rows, p->n, p->x, y);
        double allowed = allowed_error(k, info_of(p->type)->block, p->n);
        for (size_t r = 0; r < p->rows; r++)
            check_close((double)y[r], p->exact[r], p->magnitude[r], allowed,
                        (double)p->n * 0x1p-149 + (k == scalar() ? 0 : p->fixed[r]), "%s %s, row %zu of %zu, n %zu, %s", k->name,
                        info_of(p->type)->name, r, p->rows, p->n, what);
    }
}

static void test_matvec_at_all_shapes(void **state) {
    (void)state;
    struct random random = {2};
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        size_t n;
        for (size_t l = 0; (n = length_at(type, l)) != SIZE_MAX; l++) {
            for (size_t rows = 0; rows <= 9; rows += rows < 5 ? 1 : 4) {
                size_t gap = rows % 2 * 16; /* rows need not touch */
                struct product p = {.type = type, .rows = rows, .n = n, .row_bytes = row_size(type, n) + gap};
                enum guard_side side = (l + rows) % 2 ? GUARD_START : GUARD_END;
                product_make(&p, &random, WEIGHTS_NORMAL, FILL_NORMAL, side);
                product_check(&p, "normal", side);
                guard_release();
            }
        }
    }
}

static void test_matvec_of_extreme_numbers(void **state) {
    (void)state;
    struct random random = {3};
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        for (enum weights weights = 0; weights < WEIGHTS_KINDS; weights++) {
            for (enum fill fill = 0; fill < FILLS; fill++) {
                for (enum guard_side side = GUARD_END; side <= GUARD_START; side++) {
                    struct product p = {.type = type, .rows = 3, .n = 768, .row_bytes = row_size(type, 768)};
                    product_make(&p, &random, weights, fill, side);
                    product_check(&p, fill_name(fill), side);
                    guard_release();
                }
            }
        }
    }
}

/* The ends of the range that fixed point has: all of a size just below a power of two, and one such number among small ones. */
static void test_matvec_at_the_ends_of_fixed_point(void **state) {
    (void)state;
    struct random random = {9};
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        for (enum weights weights = 0; weights < WEIGHTS_KINDS; weights++) {
            for (size_t apart = 1; apart <= 32; apart += 31) {
                struct product p = {.type = type, .rows = 3, .n = 768, .row_bytes = row_size(type, 768)};
                product_allocate(&p, GUARD_END);
                for (size_t i = 0; i < p.n; i++) {
                    float size = i % apart ? 0x1p-10f : nextafterf(2, 0) - (float)(random_bits(&random) % 256) * 0x1p-23f;
                    p.x[i] = random_bits(&random) & 1 ? size : -size;
                }
                product_compute(&p, &random, weights);
                product_check(&p, "next to a power of two", GUARD_END);
                guard_release();
            }
        }
    }
}

static void test_matvec_of_long_rows(void **state) {
    (void)state;
    struct random random = {4};
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        struct product p = {.type = type, .rows = 6, .n = 14336, .row_bytes = row_size(type, 14336)};
        product_make(&p, &random, WEIGHTS_NORMAL, FILL_NORMAL, GUARD_END);
        product_check(&p, "long row", GUARD_END);
        guard_release();
    }
}

/* x of a single one picks single weights out: no other weight may show, and no rounding but that of a step of bytes, which is a 127th. */
static void test_matvec_picks_each_weight(void **state) {
    (void)state;
    struct random random = {5};
    enum { N = 512, ROWS = 5 };
    static float want[ROWS][N], x[N], y[ROWS];
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        size_t row_bytes = row_size(type, N);
        unsigned char *w = guard_bytes(ROWS * row_bytes, GUARD_END);
        for (size_t r = 0; r < ROWS; r++) {
            make_row(&random, type, WEIGHTS_NORMAL, w + r * row_bytes, N);
            scalar()->weights->dequantize[type->type](w + r * row_bytes, want[r], N);
        }
        const struct tier *k;
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            for (size_t i = 0; i < N; i++) {
                x[i] = 1;
                matvec(k, type->type, w, row_bytes, ROWS, N, x, y);
                x[i] = 0;
                for (size_t r = 0; r < ROWS; r++) {
                    float off = k == scalar() || fixed_part(type->type) < FIXED_BYTES ? 0 : 0x1p-22f * fabsf(want[r][i]);
                    if (!(fabsf(y[r] - want[r][i]) <= off))
                        fail_msg("%s %s: row %zu, weight %zu", k->name, info_of(type)->name, r, i);
                }
            }
        }
        guard_release();
    }
}

/* A number of the vector that is not finite must show in the result, whatever the weights. */
static void test_matvec_of_infinities(void **state) {
    (void)state;
    struct random random = {8};
    enum { N = 512, ROWS = 3 };
    static const float wrong[] = {INFINITY, -INFINITY, NAN};
    static float x[N], y[ROWS];
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        size_t row_bytes = row_size(type, N);
        unsigned char *w = guard_bytes(ROWS * row_bytes, GUARD_END);
        for (size_t r = 0; r < ROWS; r++) make_row(&random, type, r ? WEIGHTS_NORMAL : WEIGHTS_ZERO, w + r * row_bytes, N);
        fill_floats(&random, FILL_NORMAL, x, N);
        const struct tier *k;
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            for (size_t i = 0; i < 3 * N; i += 37) {
                float before = x[i % N];
                x[i % N] = wrong[i / N];
                matvec(k, type->type, w, row_bytes, ROWS, N, x, y);
                x[i % N] = before;
                for (size_t r = 0; r < ROWS; r++)
                    if (isfinite(y[r]))
                        fail_msg("%s %s: %g in place %zu", k->name, info_of(type)->name, (double)wrong[i / N], i % N);
            }
        }
        guard_release();
    }
}

/* However rows are split among threads, the result is the same. */
static void test_a_row_does_not_depend_on_its_neighbours(void **state) {
    (void)state;
    struct random random = {6};
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        size_t n = info_of(type)->block == 1 ? 333 : 1024;
        struct product p = {.type = type, .rows = 11, .n = n, .row_bytes = row_size(type, n)};
        product_make(&p, &random, WEIGHTS_NORMAL, FILL_SPREAD, GUARD_END);
        const struct tier *k;
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            float together[11], apart[11];
            matvec(k, type->type, p.w, p.row_bytes, 11, n, p.x, together);
            for (size_t r = 0, count = 1; r < 11; r += count, count = count % 3 + 1) {
                if (count > 11 - r) count = 11 - r;
                matvec(k, type->type, p.w + r * p.row_bytes, p.row_bytes, count, n, p.x, apart + r);
            }
            check_same_bits(apart, together, 11, k->name, info_of(type)->name, "rows split");
        }
        guard_release();
    }
}

/* However many vectors a row is multiplied by at once, and whatever is beside it, each product is what the vector alone gives. */
static void test_vectors_do_not_depend_on_each_other(void **state) {
    (void)state;
    struct random random = {10};
    enum { MOST = 16, ROWS = 7, GAP = 3 };
    static const size_t in_blocks[] = {1, 3, 8, 9, 300}, in_k_blocks[] = {1, 2, 5, 33};
    for (const struct weight_type *type = types; type < types + N_TYPES; type++) {
        size_t block = info_of(type)->block, lengths = block == 256 ? 4 : 5;
        for (size_t l = 0; l < lengths; l++) {
            size_t n = block == 256 ? in_k_blocks[l] * 256 : in_blocks[l] * 32 + (block == 1 ? 5 : 0);
            struct product p = {.type = type, .rows = ROWS, .n = n, .row_bytes = row_size(type, n)};
            product_make(&p, &random, WEIGHTS_NORMAL, FILL_NORMAL, GUARD_END);
            float *x = guard_floats(MOST * n, GUARD_END);
            fill_floats(&random, FILL_SPREAD, x, MOST * n);
            if (l == 1) x[2 * n + 1] = NAN; /* the others do not notice */
            const struct tier *k;
            for (size_t tier = 0; (k = tier_at(tier)); tier++) {
                static float alone[MOST][ROWS];
                for (size_t t = 0; t < MOST; t++) matvec(k, type->type, p.w, p.row_bytes, ROWS, n, x + t * n, alone[t]);
                for (size_t first = 0, count = 2; count <= MOST; count += count < 6 ? 1 : 5, first = MOST - count) {
                    float *y = guard_floats((count - 1) * (ROWS + GAP) + ROWS, GUARD_END);
                    for (size_t i = 0; i < (count - 1) * (ROWS + GAP) + ROWS; i++) y[i] = 77;
                    multiply(k, type->type, p.w, p.row_bytes, ROWS, n, x + first * n, n, count, y, ROWS + GAP);
                    for (size_t t = 0; t < count; t++) {
                        if (!(l == 1 && first + t == 2))
                            check_same_bits(y + t * (ROWS + GAP), alone[first + t], ROWS, k->name, info_of(type)->name, "vectors");
                        for (size_t i = ROWS; i < ROWS + GAP && t + 1 < count; i++)
                            assert_true(y[t * (ROWS + GAP) + i] >= 77 && y[t * (ROWS + GAP) + i] <= 77);
                    }
                }
            }
            guard_release();
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_of_other_software),
        cmocka_unit_test(test_every_tier_dequantizes_alike),
        cmocka_unit_test(test_every_half_of_every_tier),
        cmocka_unit_test(test_matvec_at_all_shapes),
        cmocka_unit_test(test_matvec_of_extreme_numbers),
        cmocka_unit_test(test_matvec_of_long_rows),
        cmocka_unit_test(test_matvec_at_the_ends_of_fixed_point),
        cmocka_unit_test(test_matvec_of_infinities),
        cmocka_unit_test(test_matvec_picks_each_weight),
        cmocka_unit_test(test_a_row_does_not_depend_on_its_neighbours),
        cmocka_unit_test(test_vectors_do_not_depend_on_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
