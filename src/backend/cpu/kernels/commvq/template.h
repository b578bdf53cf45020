/* This template implements CommVQ's keys for any vector instruction set. avx2.c, avx512.c and neon.c include it once; it defines
 * fill_commvq(ops). Parameters, besides those of lanes/sums_template.h:
 *
 *     vec_lower(s, j, &best, &at)     where s < best: best = s, at = j
 *     vec_any_less(a, b)              whether a lane of a is less
 *     vec_i16                      LANES 16-bit numbers as floats
 *     i16s, I16_LANES                  a register of 16-bit numbers, and how many it has; i16s_zero, i16s_load, i16s_store,
 *                                     i16s_add
 *     bytes_load, bytes_add, bytes_sub  the same register as signed bytes
 *     i16s_even, i16s_odd         of a register of bytes every other one, from the first or the second on, as int16
 *     CHANNELS                        if there is a better way than channels_by_rows below
 *
 * A token's key is a sum of two rows a round, as they lie in the tables: all its channels' sums stay in registers, as bytes, while
 * a span of rounds is summed, and then go to sums of 16 bits. Eight tokens at a time are then transposed to channels, the order in
 * which queries are multiplied. The tables of a head are 8 KB a round at 128 channels: the second-level cache bounds the speed.
 * Therefore tables are not floats, and a table made for each query (function look_up, floats) is slower. */
#include "backend/cpu/kernels/commvq/init.h"
#include "backend/cpu/kernels/lanes/sums_template.h"
#include "backend/cpu/kernels/pq/code_planes.h"

#include <math.h>

/* ---- The search ---------------------------------------------------------------------------------------------------------- */

/* Multiplies G rows of x by W vectors of the panel's columns from j on. */
INLINE void products_tile(size_t G, size_t W, const float *x, size_t d, size_t stride, const float *panel, size_t width, size_t j,
                          float *out) {
    sums sum;
    sums_clear(G, W, sum);
    for (size_t i = 0; i < d; i++) {
        vec c[4];
        UNROLL for (size_t w = 0; w < W; w++) c[w] = vec_load(panel + i * width + j + w * LANES);
        sums_add(G, W, x + i, stride, c, sum);
    }
    sums_store(G, W, sum, false, out + j, width, LANES);
}

/* Multiplies rows by the panel. Each inner product is summed in order of d, whatever rows and columns are taken together: it does
 * not depend on how rows are cut into calls. */
static void PASTE(products, ISA)(const float *x, size_t n, size_t d, size_t stride, const float *panel, size_t width, float *out) {
    size_t r = 0, step = width % (TILE(4) * LANES) ? COMMVQ_COLUMNS : TILE(4) * LANES;
    for (; r + 4 <= n; r += 4, x += 4 * stride, out += 4 * width)
        for (size_t j = 0; j < width; j += step) {
            if (step == TILE(4) * LANES)
                products_tile(4, TILE(4), x, d, stride, panel, width, j, out);
            else
                products_tile(4, COMMVQ_COLUMNS / LANES, x, d, stride, panel, width, j, out);
        }
    for (; r < n; r++, x += stride, out += width)
        for (size_t j = 0; j < width; j += COMMVQ_COLUMNS)
            products_tile(1, COMMVQ_COLUMNS / LANES, x, d, stride, panel, width, j, out);
}

struct lowest {
    float value;
    uint32_t a, b;
};

/* Finds the least of W vectors of columns from b on: each lane keeps the first entry a that gives its least, as a float. */
INLINE void lowest_of(size_t W, const float *half, size_t entries, size_t columns, const float *products, size_t b,
                      struct lowest *lowest) {
    float values[4 * LANES], at[4 * LANES];
    vec best[4], where[4], own[4];
    UNROLL for (size_t w = 0; w < W; w++) {
        best[w] = vec_set(INFINITY);
        where[w] = vec_zero();
        own[w] = vec_load(products + columns + b + w * LANES);
    }
    for (size_t a = 0; a < entries; a++) {
        vec minus = vec_set(-products[a]), j = vec_set((float)a);
        UNROLL for (size_t w = 0; w < W; w++) {
            vec s = vec_fnma(own[w], vec_set(1), vec_load(half + a * columns + b + w * LANES));
            vec_lower(vec_add(s, minus), j, &best[w], &where[w]);
        }
    }
    UNROLL for (size_t w = 0; w < W; w++) {
        vec_store(values + w * LANES, best[w]);
        vec_store(at + w * LANES, where[w]);
    }
    for (size_t i = 0; i < W * LANES; i++) {
        if (values[i] > lowest->value || (values[i] == lowest->value && (uint32_t)at[i] >= lowest->a)) continue;
        *lowest = (struct lowest){values[i], (uint32_t)at[i], (uint32_t)(b + i)};
    }
}

static uint32_t PASTE(least_commvq, ISA)(const float *half, size_t entries, size_t columns, const float *products, float *least) {
    struct lowest lowest = {INFINITY, UINT32_MAX, 0};
    size_t b = 0;
    for (; LANES == COMMVQ_COLUMNS && b + 4 * LANES <= columns; b += 4 * LANES)
        lowest_of(4, half, entries, columns, products, b, &lowest);
    for (; b < columns; b += COMMVQ_COLUMNS) lowest_of(COMMVQ_COLUMNS / LANES, half, entries, columns, products, b, &lowest);
    *least = lowest.value;
    return lowest.value < INFINITY ? lowest.a * (uint32_t)columns + lowest.b : 0;
}

static size_t PASTE(within_commvq, ISA)(const float *half, size_t entries, size_t columns, const float *products, float limit,
                                        size_t most, uint32_t *cells, float *values) {
    const vec bound = vec_set(limit), one = vec_set(1);
    size_t found = 0;
    for (size_t a = 0; a < entries; a++) {
        vec minus = vec_set(-products[a]);
        for (size_t b = 0; b < columns; b += LANES) {
            float some[LANES];
            vec s = vec_add(vec_fnma(vec_load(products + columns + b), one, vec_load(half + a * columns + b)), minus);
            if (!vec_any_less(s, bound)) continue;
            vec_store(some, s);
            for (size_t i = 0; i < LANES; i++) {
                if (!(some[i] < limit)) continue;
                if (found < most) {
                    cells[found] = (uint32_t)(a * columns + b + i);
                    values[found] = some[i];
                }
                found++;
            }
        }
    }
    return found;
}

/* ---- Keys by channel ----------------------------------------------------------------------------------------------------- */

#define TRANSPOSED 8 /* tokens that are transposed together */

/* These are the offsets at which the rows of all rounds' codes begin: a's and b's. */
struct places {
    uint32_t of[COMMVQ_MOST_ROUNDS][PAGE_TOKENS][2];
};

static void read_places(const struct commvq_code *c, const void *codes, size_t subvector, struct places *places) {
    for (size_t r = 0; r < c->rounds; r++) {
        uint16_t code[PAGE_TOKENS];
        code_planes_read((const uint8_t *)codes + (subvector * c->rounds + r) * COMMVQ_PART, COMMVQ_BITS, code);
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            places->of[r][t][0] = (uint32_t)((r * COMMVQ_ENTRIES + code[t] % COMMVQ_ENTRIES) * 2 * c->stride);
            places->of[r][t][1] = (uint32_t)((r * COMMVQ_ENTRIES + code[t] / COMMVQ_ENTRIES) * 2 * c->stride);
        }
    }
}

/* Returns the place of number j of a half in the sums: even bytes become int16 first, then odd ones. */
static inline size_t place_of(size_t j) {
    return j / (2 * I16_LANES) * (2 * I16_LANES) + j % 2 * I16_LANES + j % (2 * I16_LANES) / 2;
}

/* Adds to to[2][P], one token's sums of P numbers of each half, those of `rounds` rounds, which are bytes; number j lies at
 * place_of(j). */
INLINE void add_span(size_t P, const int8_t *rows, const uint32_t (*places)[PAGE_TOKENS][2], size_t t, size_t rounds, bool first,
                     int16_t *to) {
    const size_t N = P / I16_LANES / 2;
    i16s x[COMMVQ_MOST_PAIRS / I16_LANES / 2], y[COMMVQ_MOST_PAIRS / I16_LANES / 2];
    UNROLL for (size_t i = 0; i < N; i++) x[i] = y[i] = i16s_zero();
    for (size_t r = 0; r < rounds; r++) {
        const int8_t *a = rows + places[r][t][0], *b = rows + places[r][t][1];
        UNROLL for (size_t i = 0; i < N; i++) {
            size_t at = i * 2 * I16_LANES;
            x[i] = bytes_sub(bytes_add(x[i], bytes_load(a + at)), bytes_load(b + P + at));
            y[i] = bytes_add(bytes_add(y[i], bytes_load(a + P + at)), bytes_load(b + at));
        }
    }
    UNROLL for (size_t i = 0; i < 2 * N; i++) {
        i16s even = i16s_even(i < N ? x[i] : y[i - N]), odd = i16s_odd(i < N ? x[i] : y[i - N]);
        i16s_store(to + 2 * i * I16_LANES, first ? even : i16s_add(even, i16s_load(to + 2 * i * I16_LANES)));
        i16s_store(to + (2 * i + 1) * I16_LANES, first ? odd : i16s_add(odd, i16s_load(to + (2 * i + 1) * I16_LANES)));
    }
}

typedef int16_t eight __attribute__((vector_size(16)));

/* Transposes rows[8][n] to columns[n][64], n a multiple of 8. */
INLINE void transpose(size_t n, const int16_t *rows, int16_t *columns) {
    for (size_t i = 0; i < n; i += TRANSPOSED) {
        eight x[8], y[8];
        UNROLL for (size_t r = 0; r < 8; r++) memcpy(&x[r], rows + r * n + i, sizeof x[r]);
        UNROLL for (size_t r = 0; r < 4; r++) {
            y[2 * r] = __builtin_shufflevector(x[r], x[r + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            y[2 * r + 1] = __builtin_shufflevector(x[r], x[r + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        UNROLL for (size_t r = 0; r < 4; r++) {
            x[2 * r] = __builtin_shufflevector(y[r], y[r + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            x[2 * r + 1] = __builtin_shufflevector(y[r], y[r + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        UNROLL for (size_t r = 0; r < 4; r++) {
            y[2 * r] = __builtin_shufflevector(x[r], x[r + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            y[2 * r + 1] = __builtin_shufflevector(x[r], x[r + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        UNROLL for (size_t r = 0; r < 8; r++) memcpy(columns + (i + r) * PAGE_TOKENS, &y[r], sizeof y[r]);
    }
}

/* Computes sums[2 P][64] of one sub-vector. */
INLINE void sum_subvector(size_t P, const struct commvq_code *c, const int8_t *rows, const struct places *places,
                          int16_t *sums_by_channel) {
    _Alignas(64) int16_t some[PAGE_TOKENS * 2 * COMMVQ_MOST_PAIRS];
    for (size_t span = 0, r = 0; span < c->spans; r += c->span[span], span++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) add_span(P, rows, places->of + r, t, c->span[span], span == 0, some + t * 2 * P);
    for (size_t t = 0; t < PAGE_TOKENS; t += TRANSPOSED) transpose(2 * P, some + t * 2 * P, sums_by_channel + t);
}

/* Computes one channel from a sub-vector's sums: mean + gain step sum. */
INLINE void to_channel(const int16_t *sum, float step, float mean, const float *gains, float *channel) {
    UNROLL_16 for (size_t t = 0; t < PAGE_TOKENS; t += LANES) {
        vec gain = vec_mul(vec_load(gains + t), vec_set(step));
        vec_store(channel + t, vec_fma(gain, vec_i16(sum + t), vec_set(mean)));
    }
}

static void channels_by_rows(const struct commvq_code *c, const float *gains, const void *codes, float *channels) {
    struct places places;
    int16_t sum[2 * COMMVQ_MOST_PAIRS * PAGE_TOKENS];
    for (size_t k = 0; k < c->subvectors; k++) {
        const int8_t *rows = c->rows + k * c->rounds * COMMVQ_ENTRIES * 2 * c->stride;
        const uint8_t *at = c->channels + k * 2 * c->pairs;
        read_places(c, codes, k, &places);
        if (c->stride == 32)
            sum_subvector(32, c, rows, &places, sum);
        else
            sum_subvector(64, c, rows, &places, sum);
        for (size_t j = 0; j < c->pairs; j++) {
            float step = c->steps[k * c->stride + j];
            const int16_t *re = sum + place_of(j) * PAGE_TOKENS, *im = re + c->stride * PAGE_TOKENS;
            to_channel(re, step, c->mean[at[j]], gains, channels + at[j] * PAGE_TOKENS);
            to_channel(im, step, c->mean[at[c->pairs + j]], gains, channels + at[c->pairs + j] * PAGE_TOKENS);
        }
    }
}

#ifndef CHANNELS
#define CHANNELS channels_by_rows
#endif

/* ---- Scores from a table of one query ------------------------------------------------------------------------------------ */

/* Computes out[2][n] = conj(q) z of n pairs. */
INLINE void conjugate_times(size_t n, const float *q, const float *z, float *out) {
    for (size_t j = 0; j < n; j += LANES) {
        vec qr = vec_load(q + j), qi = vec_load(q + n + j), zr = vec_load(z + j), zi = vec_load(z + n + j);
        vec_store(out + j, vec_fma(qr, zr, vec_mul(qi, zi)));
        vec_store(out + n + j, vec_fnma(qi, zr, vec_mul(qr, zi)));
    }
}

/* Gathers x[2][pairs] of a head's channels in the order of sub-vector k, zeros past them. */
static void gather_subvector(const struct commvq_code *c, size_t k, const float *head, float *x) {
    const uint8_t *at = c->channels + k * 2 * c->pairs;
    memset(x, 0, 2 * c->stride * sizeof *x);
    for (size_t j = 0; j < c->pairs; j++) {
        x[j] = head[at[j]];
        x[c->stride + j] = head[at[c->pairs + j]];
    }
}

static void PASTE(prepare_commvq, ISA)(const struct commvq_code *c, const float *q, float *tables) {
    float x[2 * COMMVQ_MOST_PAIRS], z[2 * COMMVQ_MOST_PAIRS];
    for (size_t k = 0; k < c->subvectors; k++) {
        const int8_t *row = c->rows + k * c->rounds * COMMVQ_ENTRIES * 2 * c->stride;
        const float *steps = c->steps + k * c->stride;
        gather_subvector(c, k, q, x);
        for (size_t i = 0; i < c->rounds * COMMVQ_ENTRIES; i++, row += 2 * c->stride, tables += 2 * c->stride) {
            for (size_t j = 0; j < 2 * c->stride; j += LANES)
                vec_store(z + j, vec_mul(vec_load(steps + j % c->stride), vec_bytes(row + j)));
            conjugate_times(c->stride, x, z, tables);
        }
        gather_subvector(c, k, c->mean, z);
        conjugate_times(c->stride, x, z, tables);
        tables += 2 * c->stride;
    }
}

/* Computes to[2][P] as sum_rows does, of floats. */
INLINE void sum_tables(size_t P, const float *tables, size_t rounds, const struct places *places, size_t t, float *to) {
    for (size_t first = 0; first < P; first += 32) {
        vec re[32 / LANES], im[32 / LANES];
        UNROLL for (size_t i = 0; i < 32 / LANES; i++) re[i] = im[i] = vec_zero();
        for (size_t r = 0; r < rounds; r++) {
            const float *a = tables + places->of[r][t][0] + first, *b = tables + places->of[r][t][1] + first;
            UNROLL for (size_t i = 0; i < 32 / LANES; i++) {
                re[i] = vec_fnma(vec_load(b + P + i * LANES), vec_set(1), vec_add(re[i], vec_load(a + i * LANES)));
                im[i] = vec_add(vec_add(im[i], vec_load(a + P + i * LANES)), vec_load(b + i * LANES));
            }
        }
        UNROLL for (size_t i = 0; i < 32 / LANES; i++) {
            vec_store(to + first + i * LANES, re[i]);
            vec_store(to + P + first + i * LANES, im[i]);
        }
    }
}

typedef float four __attribute__((vector_size(16)));

/* Transposes rows[4][n] to columns[n][64], n a multiple of 4. */
INLINE void transpose_floats(size_t n, const float *rows, float *columns) {
    for (size_t i = 0; i < n; i += 4) {
        four x[4], y[4];
        UNROLL for (size_t r = 0; r < 4; r++) memcpy(&x[r], rows + r * n + i, sizeof x[r]);
        UNROLL for (size_t r = 0; r < 2; r++) {
            y[2 * r] = __builtin_shufflevector(x[r], x[r + 2], 0, 4, 1, 5);
            y[2 * r + 1] = __builtin_shufflevector(x[r], x[r + 2], 2, 6, 3, 7);
        }
        UNROLL for (size_t r = 0; r < 2; r++) {
            x[2 * r] = __builtin_shufflevector(y[r], y[r + 2], 0, 4, 1, 5);
            x[2 * r + 1] = __builtin_shufflevector(y[r], y[r + 2], 2, 6, 3, 7);
        }
        UNROLL for (size_t r = 0; r < 4; r++) memcpy(columns + (i + r) * PAGE_TOKENS, &x[r], sizeof x[r]);
    }
}

INLINE void sum_subvector_tables(size_t P, const float *tables, size_t rounds, const struct places *places,
                                 float *sums_by_channel) {
    float some[4 * 2 * P];
    for (size_t t = 0; t < PAGE_TOKENS; t += 4) {
        for (size_t i = 0; i < 4; i++) sum_tables(P, tables, rounds, places, t + i, some + i * 2 * P);
        transpose_floats(2 * P, some, sums_by_channel + t);
    }
}

/* Adds to logits[64] the real parts of (mean + gain sum) exp(i angle) of one pair; angles NULL: none. */
INLINE void add_pair(const float *re, const float *im, const float *mean, size_t stride, const float *gains, const float *cosine,
                     const float *sine, float *logits) {
    for (size_t t = 0; t < PAGE_TOKENS; t += LANES) {
        vec gain = vec_load(gains + t), x = vec_fma(gain, vec_load(re + t), vec_set(mean[0])), sum = vec_load(logits + t);
        if (cosine) {
            vec y = vec_fma(gain, vec_load(im + t), vec_set(mean[stride]));
            sum = vec_fnma(y, vec_load(sine + t), vec_fma(x, vec_load(cosine + t), sum));
        } else {
            sum = vec_add(sum, x);
        }
        vec_store(logits + t, sum);
    }
}

static void PASTE(look_up_commvq, ISA)(const struct commvq_code *c, const struct key_rotation *rotation, const float *tables,
                                       const float *gains, const void *codes, float *logits) {
    struct places places;
    float sum[2 * COMMVQ_MOST_PAIRS * PAGE_TOKENS];
    memset(logits, 0, PAGE_TOKENS * sizeof *logits);
    for (size_t k = 0; k < c->subvectors; k++, tables += 2 * c->stride) {
        read_places(c, codes, k, &places);
        if (c->stride == 32)
            sum_subvector_tables(32, tables, c->rounds, &places, sum);
        else
            sum_subvector_tables(64, tables, c->rounds, &places, sum);
        tables += c->rounds * COMMVQ_ENTRIES * 2 * c->stride;
        for (size_t j = 0; j < c->pairs; j++) {
            size_t pair = k * c->pairs + j, angles = pair * PAGE_TOKENS;
            const float *re = sum + j * PAGE_TOKENS, *im = sum + (c->stride + j) * PAGE_TOKENS;
            if (pair < rotation->pairs)
                add_pair(re, im, tables + j, c->stride, gains, rotation->cosine + angles, rotation->sine + angles, logits);
            else
                add_pair(re, im, tables + j, c->stride, gains, NULL, NULL, logits);
        }
    }
}

static void fill_commvq(struct commvq_ops *ops) {
    ops->multiply_panel = PASTE(products, ISA);
    ops->nearest = PASTE(least_commvq, ISA);
    ops->within = PASTE(within_commvq, ISA);
    ops->decode = CHANNELS;
    ops->prepare = PASTE(prepare_commvq, ISA);
    ops->look_up = PASTE(look_up_commvq, ISA);
}
