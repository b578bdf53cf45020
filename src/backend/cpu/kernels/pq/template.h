/* Product quantization and score_turned for any vector instruction set: included once by avx2_product.c, avx512_product.c and
 * neon_product.c after their lanes, which bring besides
 *
 *     DECODE_CHUNK                   if there is a better way than decode_by_rows below
 *     wide, WIDE_PARTS               a register of 16-bit numbers, and how many parts of eight numbers it has
 *     wide_load, wide_store, wide_low_N(a, b), wide_high_N(a, b) for N = 16, 32, 64
 *                                    unpacking: numbers of N bits from a and b by turns, of the low or the high half of each part
 *
 * Centroids are wanted by channel for keys (a logit is a sum over channels) but lie by row: a token's row is copied in pieces of up
 * to eight channels, a batch of tokens is turned over in registers, and the result is keys in half precision in the layout of f16,
 * a chunk of channels at a time, which stays in the first-level cache and meets all queries there. Copying row by row costs two
 * loads a piece; gathers cost as much for each number, and more than that on many processors.
 */
#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/lanes/sums_template.h"

#define CHUNK_CHANNELS 64              /* at least the widest sub-vector */
#define BATCH ((size_t)8 * WIDE_PARTS) /* tokens turned over together */

static size_t product_centroids(const struct product_code *p) { return (size_t)1 << p->bits; }
static size_t product_channels(const struct product_code *p) { return p->parts * p->width; }
static const uint16_t *product_rows(const struct product_code *p, size_t m) {
    return p->rows + m * product_centroids(p) * p->width;
}

static void product_codes(const struct product_code *p, const void *block, size_t m, uint16_t *codes) {
    code_planes_read((const uint8_t *)block + m * BLOCK_PQ_PART(p->bits), p->bits, codes);
}

/* Where the rows of 64 codes begin, `step` numbers apart. */
static void product_offsets(const struct product_code *p, const void *block, size_t m, size_t step, uint32_t *offsets) {
    uint16_t codes[BLOCK_TOKENS];
    if (p->bits == 8) { /* most often; they lie as they are */
        const uint8_t *bytes = (const uint8_t *)block + m * BLOCK_PQ_PART(8);
        for (size_t t = 0; t < BLOCK_TOKENS; t++) offsets[t] = bytes[t] * (uint32_t)step;
        return;
    }
    product_codes(p, block, m, codes);
    for (size_t t = 0; t < BLOCK_TOKENS; t++) offsets[t] = codes[t] * (uint32_t)step;
}

/* Copies 1, 2, 4 or 8 halves. The empty statement keeps compilers from putting pieces together in vector registers, one costly
 * insertion after the other: loads and stores have ports of their own. */
INLINE void copy_piece(size_t unit, const uint16_t *from, uint16_t *to) {
    uint64_t piece = 0;
    if (unit == 8) {
        memcpy(to, from, 8 * sizeof *to);
        return;
    }
    memcpy(&piece, from, unit * sizeof *to);
    __asm__("" : "+r"(piece));
    memcpy(to, &piece, unit * sizeof *to);
}

/* The same of all sub-vectors: offsets[parts][64]. */
static void product_all_offsets(const struct product_code *p, const void *block, size_t step, uint32_t (*offsets)[BLOCK_TOKENS]) {
    for (size_t m = 0; m < p->parts; m++) product_offsets(p, block, m, step, offsets[m]);
}

/* Sub-vectors of a chunk: about CHUNK_CHANNELS / 2 channels. */
static size_t chunk_parts(const struct product_code *p) {
    return p->width * 2 < CHUNK_CHANNELS ? CHUNK_CHANNELS / 2 / p->width : 1;
}

/* ---- Rows to channels ------------------------------------------------------------------------------------------------------ */

/* Copies `unit` channels of the rows of BATCH tokens to where unpacking them brings tokens 8 l to 8 l + 7 to part l of a register:
 * of eight tokens the k-th is the one found by following the unpacking below backwards. */
INLINE void copy_pieces(size_t unit, const uint16_t *rows, const uint32_t *offsets, uint16_t *pieces) {
    for (size_t l = 0; l < WIDE_PARTS; l++, offsets += 8, pieces += 8) {
        UNROLL for (size_t k = 0; k < 8; k++) {
            size_t bits_from_behind = (k & 1) * 4 + (k & 2) + k / 4;
            size_t place = unit == 8 ? k : unit == 4 ? k % 4 * 2 + k / 4 : unit == 2 ? bits_from_behind : k;
            size_t a_register = 8 / unit, at = place / a_register * BATCH + place % a_register * unit;
            copy_piece(unit, rows + offsets[k], pieces + at);
        }
    }
}

INLINE void unpack_8(const wide *x, wide *out) {
    wide a[8], b[8];
    UNROLL for (size_t i = 0; i < 4; i++) {
        a[2 * i] = wide_low_16(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = wide_high_16(x[2 * i], x[2 * i + 1]);
    }
    UNROLL for (size_t i = 0; i < 2; i++) {
        b[4 * i] = wide_low_32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = wide_high_32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = wide_low_32(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = wide_high_32(a[4 * i + 1], a[4 * i + 3]);
    }
    UNROLL for (size_t i = 0; i < 4; i++) {
        out[2 * i] = wide_low_64(b[i], b[4 + i]);
        out[2 * i + 1] = wide_high_64(b[i], b[4 + i]);
    }
}

INLINE void unpack_4(const wide *x, wide *out) {
    wide a = wide_low_16(x[0], x[1]), b = wide_high_16(x[0], x[1]), c = wide_low_16(x[2], x[3]), d = wide_high_16(x[2], x[3]);
    wide e = wide_low_32(a, c), f = wide_high_32(a, c), g = wide_low_32(b, d), h = wide_high_32(b, d);
    out[0] = wide_low_64(e, g);
    out[1] = wide_high_64(e, g);
    out[2] = wide_low_64(f, h);
    out[3] = wide_high_64(f, h);
}

INLINE void unpack_2(const wide *x, wide *out) {
    wide a = wide_low_16(x[0], x[1]), b = wide_high_16(x[0], x[1]);
    wide c = wide_low_32(a, b), d = wide_high_32(a, b);
    out[0] = wide_low_64(c, d);
    out[1] = wide_high_64(c, d);
}

/* Sub-vectors [m, m + n) to halves[...][64], `unit` channels at a time: first all copies, then all unpacking, since loading what
 * was just stored in smaller pieces would wait for the stores to reach the cache. */
INLINE void decode_pieces(size_t unit, const struct product_code *p, const void *block, size_t m, size_t n, uint16_t *halves) {
    uint16_t pieces[CHUNK_CHANNELS * BLOCK_TOKENS], *piece = pieces;
    uint32_t offsets[BLOCK_TOKENS];
    for (size_t i = 0; i < n; i++) {
        product_offsets(p, block, m + i, p->width, offsets);
        for (size_t c = 0; c < p->width; c += unit) {
            for (size_t t = 0; t < BLOCK_TOKENS; t += BATCH, piece += unit * BATCH)
                copy_pieces(unit, product_rows(p, m + i) + c, offsets + t, piece);
        }
    }
    piece = pieces;
    for (size_t c = 0; c < n * p->width; c += unit, halves += unit * BLOCK_TOKENS) {
        for (size_t t = 0; t < BLOCK_TOKENS; t += BATCH, piece += unit * BATCH) {
            wide x[8], out[8];
            UNROLL for (size_t r = 0; r < unit; r++) x[r] = wide_load(piece + r * BATCH);
            if (unit == 8) unpack_8(x, out);
            if (unit == 4) unpack_4(x, out);
            if (unit == 2) unpack_2(x, out);
            if (unit == 1) out[0] = x[0];
            UNROLL for (size_t r = 0; r < unit; r++) wide_store(halves + r * BLOCK_TOKENS + t, out[r]);
        }
    }
}

/* At most CHUNK_CHANNELS channels. */
static void decode_by_rows(const struct product_code *p, const void *block, size_t m, size_t n, uint16_t *halves) {
    if (p->width % 8 == 0)
        decode_pieces(8, p, block, m, n, halves);
    else if (p->width % 4 == 0)
        decode_pieces(4, p, block, m, n, halves);
    else if (p->width % 2 == 0)
        decode_pieces(2, p, block, m, n, halves);
    else
        decode_pieces(1, p, block, m, n, halves);
}

#ifndef DECODE_CHUNK
#define DECODE_CHUNK decode_by_rows
#endif

static void PASTE(channels_pq, ISA)(const struct product_code *p, const void *block, float *channels) {
    uint16_t halves[CHUNK_CHANNELS * BLOCK_TOKENS];
    for (size_t m = 0, step = chunk_parts(p); m < p->parts; m += step) {
        size_t n = SMALLER(step, p->parts - m), count = n * p->width * BLOCK_TOKENS;
        DECODE_CHUNK(p, block, m, n, halves);
        float *to = channels + m * p->width * BLOCK_TOKENS;
        for (size_t i = 0; i < count; i += LANES) vec_store(to + i, vec_halves(halves + i));
    }
}

/* ---- One specialisation for each number of queries -------------------------------------------------------------------------- */

/* What is read, the queries or weights, and what comes out. */
typedef void special_pq(const void *what, const float *in, float *out);

/* clang-format off */
#define SPECIAL_PQ(name, number) \
    static __attribute__((noinline)) void PASTE(name##_##number, ISA)(const void *what, const float *in, float *out) { \
        name(SMALLER(number, MOST_QUERIES), what, in, out); \
    }
#define EACH_PQ(name) \
    SPECIAL_PQ(name, 1) SPECIAL_PQ(name, 2) SPECIAL_PQ(name, 3) SPECIAL_PQ(name, 4) \
    SPECIAL_PQ(name, 5) SPECIAL_PQ(name, 6) SPECIAL_PQ(name, 7) SPECIAL_PQ(name, 8) \
    static special_pq *const name##_of[] = {PASTE(name##_1, ISA), PASTE(name##_2, ISA), PASTE(name##_3, ISA), PASTE(name##_4, ISA), \
                                            PASTE(name##_5, ISA), PASTE(name##_6, ISA), PASTE(name##_7, ISA), PASTE(name##_8, ISA)};
/* clang-format on */

/* As serve() in sums_template.h: passes as even as they can be. */
static void serve_pq(special_pq *const *of, const void *what, const float *in, size_t in_row, size_t G, float *out,
                     size_t out_row) {
    for (size_t passes = (G + MOST_QUERIES - 1) / MOST_QUERIES; passes > 0; passes--) {
        size_t share = G / passes;
        of[share - 1](what, in, out);
        in += share * in_row;
        out += share * out_row;
        G -= share;
    }
}

/* ---- Keys by channels ---------------------------------------------------------------------------------------------------- */

struct decoded {
    const uint16_t *halves; /* [channels][64], some of a head's hd */
    size_t channels, hd;
    bool first;
};

/* logits[G][64] (+)= <q[G][channels of hd], halves> */
INLINE void score_halves(size_t G, const void *what, const float *q, float *logits) {
    const struct decoded *decoded = what;
    const size_t W = TILE(G);
    for (size_t t = 0; t < BLOCK_TOKENS; t += W * LANES) {
        sums sum;
        sums_clear(G, W, sum);
        for (size_t c = 0; c < decoded->channels; c++) {
            vec x[4];
            UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_halves(decoded->halves + c * BLOCK_TOKENS + t + w * LANES);
            sums_add(G, W, q + c, decoded->hd, x, sum);
        }
        sums_store(G, W, sum, !decoded->first, logits + t, BLOCK_TOKENS, LANES);
    }
}

EACH_PQ(score_halves)

/* A chunk is decoded and meets all queries before the next. */
static void PASTE(score_pq, ISA)(const struct product_code *p, const float *q, size_t G, const void *block, float *logits) {
    uint16_t halves[CHUNK_CHANNELS * BLOCK_TOKENS];
    size_t hd = product_channels(p);
    for (size_t m = 0, step = chunk_parts(p); m < p->parts; m += step) {
        size_t n = SMALLER(step, p->parts - m);
        struct decoded decoded = {halves, n * p->width, hd, m == 0};
        DECODE_CHUNK(p, block, m, n, halves);
        serve_pq(score_halves_of, &decoded, q + m * p->width, hd, G, logits, BLOCK_TOKENS);
    }
}

/* ---- Rows ------------------------------------------------------------------------------------------------------------------- */

/* Copies the centroids of one sub-vector, `unit` channels at a time, to rows of hd halves. */
INLINE void copy_rows(size_t unit, const uint16_t *rows, size_t width, const uint32_t *offsets, size_t hd, uint16_t *to) {
    for (size_t i = 0; i < width; i += unit) {
        for (size_t t = 0; t < BLOCK_TOKENS; t += 8) {
            UNROLL for (size_t k = 0; k < 8; k++) copy_piece(unit, rows + offsets[t + k] + i, to + (t + k) * hd + i);
        }
    }
}

/* halves[64][hd] */
static void decode_rows(const struct product_code *p, const void *block, uint16_t *halves) {
    uint32_t offsets[BLOCK_TOKENS];
    size_t hd = product_channels(p), width = p->width;
    for (size_t m = 0; m < p->parts; m++, halves += width) {
        const uint16_t *rows = product_rows(p, m);
        product_offsets(p, block, m, width, offsets);
        if (width % 8 == 0)
            copy_rows(8, rows, width, offsets, hd, halves);
        else if (width % 4 == 0)
            copy_rows(4, rows, width, offsets, hd, halves);
        else if (width % 2 == 0)
            copy_rows(2, rows, width, offsets, hd, halves);
        else
            copy_rows(1, rows, width, offsets, hd, halves);
    }
}

static void PASTE(rows_pq, ISA)(const struct product_code *p, const void *block, float *rows) {
    uint16_t halves[BLOCK_TOKENS * KERNELS_MOST_CHANNELS];
    decode_rows(p, block, halves);
    for (size_t i = 0; i < BLOCK_TOKENS * product_channels(p); i += LANES) vec_store(rows + i, vec_halves(halves + i));
}

/* ---- Values: rows of whole vectors are met where the centroids lie, narrower ones are brought together first --------------------
 */

struct values {
    const struct product_code *p;
    uint32_t (*offsets)[BLOCK_TOKENS]; /* [parts] */
    const uint16_t *rows;              /* or else halves[64][hd] */
};

/* W vectors of each token's value, from the v-th on. */
INLINE void mix_stripe(size_t G, size_t W, bool whole, const struct values *values, size_t v, const float *weights, float *acc) {
    const struct product_code *p = values->p;
    const uint16_t *row[4];
    const uint32_t *offset[4];
    size_t hd = product_channels(p);
    sums sum;
    UNROLL for (size_t w = 0; whole && w < W; w++) {
        size_t c = (v + w) * LANES, m = c / p->width;
        row[w] = product_rows(p, m) + c % p->width;
        offset[w] = values->offsets[m];
    }
    sums_clear(G, W, sum);
    for (size_t t = 0; t < BLOCK_TOKENS; t++) {
        vec x[4];
        UNROLL for (size_t w = 0; w < W; w++) x[w] =
            vec_halves(whole ? row[w] + offset[w][t] : values->rows + t * hd + (v + w) * LANES);
        sums_add(G, W, weights + t, BLOCK_TOKENS, x, sum);
    }
    sums_store(G, W, sum, true, acc + v * LANES, hd, LANES);
}

INLINE void mix_vectors(size_t G, bool whole, const struct values *values, const float *weights, float *acc) {
    size_t v = 0, vectors = product_channels(values->p) / LANES;
    for (; v + TILE(G) <= vectors; v += TILE(G)) mix_stripe(G, TILE(G), whole, values, v, weights, acc);
    for (; v < vectors; v++) mix_stripe(G, 1, whole, values, v, weights, acc);
}

INLINE void mix_whole(size_t G, const void *what, const float *weights, float *acc) { mix_vectors(G, true, what, weights, acc); }
INLINE void mix_copied(size_t G, const void *what, const float *weights, float *acc) { mix_vectors(G, false, what, weights, acc); }

EACH_PQ(mix_whole)
EACH_PQ(mix_copied)

static void PASTE(mix_pq, ISA)(const struct product_code *p, const float *weights, size_t G, const void *block, float *acc) {
    uint32_t offsets[KERNELS_MOST_CHANNELS / LANES][BLOCK_TOKENS];
    uint16_t halves[BLOCK_TOKENS * KERNELS_MOST_CHANNELS];
    struct values values = {p, offsets, halves};
    bool whole = p->width % LANES == 0;
    if (whole)
        product_all_offsets(p, block, p->width, offsets);
    else
        decode_rows(p, block, halves);
    serve_pq(whole ? mix_whole_of : mix_copied_of, &values, weights, BLOCK_TOKENS, G, acc, product_channels(p));
}

/* ---- By code: tables and tallies ----------------------------------------------------------------------------------------- */

#define SOME_CENTROIDS 16 /* turned into floats at a time; divides every number of them */

static void some_centroids(const struct product_code *p, size_t m, size_t first, float *floats) {
    const uint16_t *rows = product_rows(p, m) + first * p->width;
    for (size_t i = 0; i < SOME_CENTROIDS * p->width; i += LANES) vec_store(floats + i, vec_halves(rows + i));
}

#define N 1
#include "backend/cpu/kernels/pq/rows_template.h"
#define N 2
#include "backend/cpu/kernels/pq/rows_template.h"
#define N 4
#include "backend/cpu/kernels/pq/rows_template.h"
#define N 8
#include "backend/cpu/kernels/pq/rows_template.h"

/* Columns beyond eight queries go eight at a time: tables and tallies then lie in groups of eight, [stride / 8][parts][2^bits][8].
 */
static size_t group_of(size_t G) { return product_stride(G) < 8 ? product_stride(G) : 8; }
static size_t group_floats(const struct product_code *p, size_t n) { return p->parts * PRODUCT_PLANE(p->bits) * n; }

/* rows[n][columns] of G <= n rows in[G][columns], `stride` apart, to turned[columns][n]. */
static void turn_to_rows(const float *in, size_t G, size_t columns, size_t stride, size_t n, float *turned) {
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0; i < columns; i++) turned[i * n + g] = g < G ? in[g * stride + i] : 0;
}

static void PASTE(look_up_pq, ISA)(const struct product_code *p, const float *tables, size_t G, const void *block, float *logits) {
    uint32_t offsets[KERNELS_MOST_CHANNELS][BLOCK_TOKENS];
    float sum[BLOCK_TOKENS * 8];
    size_t n = group_of(G), floats = group_floats(p, n);
    product_all_offsets(p, block, n, offsets);
    for (size_t first = 0; first < G; first += n, tables += floats) {
        memset(sum, 0, n * BLOCK_TOKENS * sizeof *sum);
        (n == 1 ? look_up_1 : n == 2 ? look_up_2 : n == 4 ? look_up_4 : look_up_8)(p, tables, offsets, sum);
        for (size_t g = 0; g < n && first + g < G; g++)
            for (size_t t = 0; t < BLOCK_TOKENS; t++) logits[(first + g) * BLOCK_TOKENS + t] = sum[t * n + g];
    }
}

static void PASTE(tally_pq, ISA)(const struct product_code *p, const float *weights, size_t G, const void *block, float *tallies) {
    float turned[BLOCK_TOKENS * 8];
    size_t n = group_of(G), floats = group_floats(p, n);
    for (size_t first = 0; first < G; first += n, tallies += floats, weights += n * BLOCK_TOKENS) {
        turn_to_rows(weights, SMALLER(n, G - first), BLOCK_TOKENS, BLOCK_TOKENS, n, turned);
        (n == 1 ? tally_1 : n == 2 ? tally_2 : n == 4 ? tally_4 : tally_8)(p, turned, block, tallies);
    }
}

static void PASTE(prepare_pq, ISA)(const struct product_code *p, const float *q, size_t G, float *tables) {
    size_t n = group_of(G), hd = product_channels(p), table = PRODUCT_PLANE(p->bits) * n;
    float turned[PRODUCT_MOST_WIDTH * 8];
    for (size_t first = 0; first < G; first += n) {
        for (size_t m = 0; m < p->parts; m++, tables += table) {
            turn_to_rows(q + first * hd + m * p->width, SMALLER(n, G - first), p->width, hd, n, turned);
            (n == 1 ? prepare_1 : n == 2 ? prepare_2 : n == 4 ? prepare_4 : prepare_8)(p, m, turned, tables);
        }
    }
}

static void PASTE(finish_pq, ISA)(const struct product_code *p, const float *tallies, size_t G, float *acc) {
    size_t n = group_of(G), hd = product_channels(p), table = PRODUCT_PLANE(p->bits) * n;
    float sum[PRODUCT_MOST_WIDTH * 8];
    for (size_t first = 0; first < G; first += n) {
        for (size_t m = 0; m < p->parts; m++, tallies += table) {
            (n == 1 ? finish_1 : n == 2 ? finish_2 : n == 4 ? finish_4 : finish_8)(p, m, tallies, sum);
            for (size_t g = 0; g < n && first + g < G; g++)
                for (size_t i = 0; i < p->width; i++) acc[(first + g) * hd + m * p->width + i] += sum[i * n + g];
        }
    }
}

/* ---- Keys that are turned: as floats, or as halves just decoded --------------------------------------------------------- */

struct turning {
    const struct key_turn *turn;
    const float *keys; /* or else halves[hd][64] */
    const uint16_t *halves;
    size_t hd;
};

/* Tokens from t on of channel c. */
INLINE vec turning_key(bool floats, bool gain, const struct turning *turning, size_t c, size_t t) {
    if (floats) return vec_load(turning->keys + c * BLOCK_TOKENS + t);
    vec key = vec_halves(turning->halves + c * BLOCK_TOKENS + t);
    return gain ? vec_fma(key, vec_load(turning->turn->gain + t), vec_set(turning->turn->mean[c])) : key;
}

INLINE void score_turned_stripe(size_t G, bool floats, bool gain, const struct turning *turning, size_t t, const float *q,
                                float *logits) {
    const size_t W = TILE(G), hd = turning->hd, pairs = turning->turn->pairs;
    const size_t apart = turning->turn->adjacent ? 1 : pairs, step = turning->turn->adjacent ? 2 : 1;
    const float *cosine = turning->turn->cosine + t, *sine = turning->turn->sine + t;
    sums sum;
    sums_clear(G, W, sum);
    for (size_t i = 0; i < pairs; i++) {
        vec x[4], y[4];
        UNROLL for (size_t w = 0; w < W; w++) {
            vec a = turning_key(floats, gain, turning, i * step, t + w * LANES);
            vec b = turning_key(floats, gain, turning, i * step + apart, t + w * LANES);
            vec c = vec_load(cosine + i * BLOCK_TOKENS + w * LANES), s = vec_load(sine + i * BLOCK_TOKENS + w * LANES);
            x[w] = vec_fnma(b, s, vec_mul(a, c));
            y[w] = vec_fma(b, c, vec_mul(a, s));
        }
        sums_add(G, W, q + i * step, hd, x, sum);
        sums_add(G, W, q + i * step + apart, hd, y, sum);
    }
    for (size_t c = 2 * pairs; c < hd; c++) {
        vec x[4];
        UNROLL for (size_t w = 0; w < W; w++) x[w] = turning_key(floats, gain, turning, c, t + w * LANES);
        sums_add(G, W, q + c, hd, x, sum);
    }
    sums_store(G, W, sum, false, logits + t, BLOCK_TOKENS, LANES);
}

INLINE void turn_floats(size_t G, const void *what, const float *q, float *logits) {
    for (size_t t = 0; t < BLOCK_TOKENS; t += TILE(G) * LANES) score_turned_stripe(G, true, false, what, t, q, logits);
}

INLINE void turn_halves(size_t G, const void *what, const float *q, float *logits) {
    for (size_t t = 0; t < BLOCK_TOKENS; t += TILE(G) * LANES) score_turned_stripe(G, false, false, what, t, q, logits);
}

INLINE void turn_gained(size_t G, const void *what, const float *q, float *logits) {
    for (size_t t = 0; t < BLOCK_TOKENS; t += TILE(G) * LANES) score_turned_stripe(G, false, true, what, t, q, logits);
}

EACH_PQ(turn_floats)
EACH_PQ(turn_halves)
EACH_PQ(turn_gained)

static void PASTE(score_turned, ISA)(const struct key_turn *turn, const float *q, size_t G, size_t hd, const float *keys,
                                     float *logits) {
    struct turning turning = {turn, keys, NULL, hd};
    serve_pq(turn_floats_of, &turning, q, hd, G, logits, BLOCK_TOKENS);
}

static void PASTE(score_turned_pq, ISA)(const struct product_code *p, const struct key_turn *turn, const float *q, size_t G,
                                        const void *block, float *logits) {
    size_t hd = product_channels(p), step = chunk_parts(p);
    uint16_t halves[KERNELS_MOST_CHANNELS * BLOCK_TOKENS];
    struct turning turning = {turn, NULL, halves, hd};
    for (size_t m = 0; m < p->parts; m += step)
        DECODE_CHUNK(p, block, m, SMALLER(step, p->parts - m), halves + m * p->width * BLOCK_TOKENS);
    serve_pq(turn->gain ? turn_gained_of : turn_halves_of, &turning, q, hd, G, logits, BLOCK_TOKENS);
}

static void product_fill(struct kernels *k) {
    k->channels_pq = PASTE(channels_pq, ISA);
    k->rows_pq = PASTE(rows_pq, ISA);
    k->score_pq = PASTE(score_pq, ISA);
    k->mix_pq = PASTE(mix_pq, ISA);
    k->mix_light_pq = PASTE(mix_pq, ISA);
    k->prepare_pq = PASTE(prepare_pq, ISA);
    k->look_up_pq = PASTE(look_up_pq, ISA);
    k->tally_pq = PASTE(tally_pq, ISA);
    k->finish_pq = PASTE(finish_pq, ISA);
    k->score_turned = PASTE(score_turned, ISA);
    k->score_turned_pq = PASTE(score_turned_pq, ISA);
}
