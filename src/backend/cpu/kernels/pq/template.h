/* This template implements product quantization for any vector instruction set. avx2.c, avx512.c and neon.c include it once; it
 * defines fill_pq(ops). Parameters, besides those of lanes/sums_template.h:
 *
 *     DECODE_CHUNK                   if there is a better way than decode_by_rows below
 *     wide, WIDE_PARTS               a register of 16-bit numbers, and how many parts of eight numbers it has
 *     wide_load, wide_store, wide_low_N(a, b), wide_high_N(a, b) for N = 16, 32, 64
 *                                    unpacking: N-bit numbers from a and b alternately, of the low or the high half of each part
 *
 * Centroids are wanted by channel for keys (a logit is a sum over channels) but lie by row: a token's row is copied in pieces of up
 * to eight channels, a batch of tokens is transposed in registers, and the result is keys in half precision in the layout of f16, a
 * chunk of channels at a time, which stays in the first-level cache and is multiplied by all queries there. Copying row by row
 * costs two loads a piece; gathers cost as much for each number, and more than that on many processors. */
#include "backend/cpu/kernels/lanes/sums_template.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/pq/each_query_count.h"
#include "backend/cpu/kernels/pq/init.h"

#define CHUNK_CHANNELS 64              /* at least the widest sub-vector */
#define BATCH ((size_t)8 * WIDE_PARTS) /* tokens transposed together */

static const uint16_t *pq_rows(const struct pq_codebook *p, size_t m) { return p->rows + m * pq_centroids(p) * p->width; }

static void pq_codes(const struct pq_codebook *p, const void *page, size_t m, uint16_t *codes) {
    code_planes_read((const uint8_t *)page + m * PAGE_PQ_PART(p->bits), p->bits, codes);
}

/* Finds where the rows of 64 codes begin; the rows are `step` numbers apart. */
static void pq_offsets(const struct pq_codebook *p, const void *page, size_t m, size_t step, uint32_t *offsets) {
    uint16_t codes[PAGE_TOKENS];
    if (p->bits == 8) { /* most often; they lie as they are */
        const uint8_t *bytes = (const uint8_t *)page + m * PAGE_PQ_PART(8);
        for (size_t t = 0; t < PAGE_TOKENS; t++) offsets[t] = bytes[t] * (uint32_t)step;
        return;
    }
    pq_codes(p, page, m, codes);
    for (size_t t = 0; t < PAGE_TOKENS; t++) offsets[t] = codes[t] * (uint32_t)step;
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

/* Finds the offsets of all sub-vectors: offsets[parts][64]. */
static void pq_all_offsets(const struct pq_codebook *p, const void *page, size_t step, uint32_t (*offsets)[PAGE_TOKENS]) {
    for (size_t m = 0; m < p->parts; m++) pq_offsets(p, page, m, step, offsets[m]);
}

/* Returns how many sub-vectors a chunk has: about CHUNK_CHANNELS / 2 channels. */
static size_t chunk_parts(const struct pq_codebook *p) { return p->width * 2 < CHUNK_CHANNELS ? CHUNK_CHANNELS / 2 / p->width : 1; }

/* ---- Rows to channels ---------------------------------------------------------------------------------------------------- */

/* Copies `unit` channels of the rows of BATCH tokens to where unpacking brings tokens 8 l to 8 l + 7 to part l of a register. Of
 * eight tokens the k-th is found by following the unpacking below backwards. */
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

/* Decodes sub-vectors [m, m + n) to halves[...][64], `unit` channels at a time: first all copies, then all unpacking, since loading
 * what was just stored in smaller pieces would wait for the stores to reach the cache. */
INLINE void decode_pieces(size_t unit, const struct pq_codebook *p, const void *page, size_t m, size_t n, uint16_t *halves) {
    uint16_t pieces[CHUNK_CHANNELS * PAGE_TOKENS], *piece = pieces;
    uint32_t offsets[PAGE_TOKENS];
    for (size_t i = 0; i < n; i++) {
        pq_offsets(p, page, m + i, p->width, offsets);
        for (size_t c = 0; c < p->width; c += unit) {
            for (size_t t = 0; t < PAGE_TOKENS; t += BATCH, piece += unit * BATCH)
                copy_pieces(unit, pq_rows(p, m + i) + c, offsets + t, piece);
        }
    }
    piece = pieces;
    for (size_t c = 0; c < n * p->width; c += unit, halves += unit * PAGE_TOKENS) {
        for (size_t t = 0; t < PAGE_TOKENS; t += BATCH, piece += unit * BATCH) {
            wide x[8], out[8];
            UNROLL for (size_t r = 0; r < unit; r++) x[r] = wide_load(piece + r * BATCH);
            if (unit == 8) unpack_8(x, out);
            if (unit == 4) unpack_4(x, out);
            if (unit == 2) unpack_2(x, out);
            if (unit == 1) out[0] = x[0];
            UNROLL for (size_t r = 0; r < unit; r++) wide_store(halves + r * PAGE_TOKENS + t, out[r]);
        }
    }
}

/* Decodes at most CHUNK_CHANNELS channels. */
static void decode_by_rows(const struct pq_codebook *p, const void *page, size_t m, size_t n, uint16_t *halves) {
    if (p->width % 8 == 0)
        decode_pieces(8, p, page, m, n, halves);
    else if (p->width % 4 == 0)
        decode_pieces(4, p, page, m, n, halves);
    else if (p->width % 2 == 0)
        decode_pieces(2, p, page, m, n, halves);
    else
        decode_pieces(1, p, page, m, n, halves);
}

#ifndef DECODE_CHUNK
#define DECODE_CHUNK decode_by_rows
#endif

static void PASTE(channels_pq, ISA)(const struct pq_codebook *p, const void *page, float *channels) {
    uint16_t halves[CHUNK_CHANNELS * PAGE_TOKENS];
    for (size_t m = 0, step = chunk_parts(p); m < p->parts; m += step) {
        size_t n = SMALLER(step, p->parts - m), count = n * p->width * PAGE_TOKENS;
        DECODE_CHUNK(p, page, m, n, halves);
        float *to = channels + m * p->width * PAGE_TOKENS;
        for (size_t i = 0; i < count; i += LANES) vec_store(to + i, vec_halves(halves + i));
    }
}

/* ---- Keys by channels ---------------------------------------------------------------------------------------------------- */

struct decoded {
    const uint16_t *halves; /* [channels][64], some of a head's hd */
    size_t channels, hd;
    bool first;
};

/* Computes logits[G][64] (+)= <q[G][channels of hd], halves>. */
INLINE void score_halves(size_t G, const void *what, const float *q, float *logits) {
    const struct decoded *decoded = what;
    const size_t W = TILE(G);
    for (size_t t = 0; t < PAGE_TOKENS; t += W * LANES) {
        sums sum;
        sums_clear(G, W, sum);
        for (size_t c = 0; c < decoded->channels; c++) {
            vec x[4];
            UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_halves(decoded->halves + c * PAGE_TOKENS + t + w * LANES);
            sums_add(G, W, q + c, decoded->hd, x, sum);
        }
        sums_store(G, W, sum, !decoded->first, logits + t, PAGE_TOKENS, LANES);
    }
}

PQ_KERNELS(score_halves)

/* Scores a page: a chunk is decoded and multiplied by all queries before the next. */
static void PASTE(score_pq, ISA)(const struct pq_codebook *p, const float *q, size_t G, const void *page, float *logits) {
    uint16_t halves[CHUNK_CHANNELS * PAGE_TOKENS];
    size_t hd = pq_channels(p);
    for (size_t m = 0, step = chunk_parts(p); m < p->parts; m += step) {
        size_t n = SMALLER(step, p->parts - m);
        struct decoded decoded = {halves, n * p->width, hd, m == 0};
        DECODE_CHUNK(p, page, m, n, halves);
        call_pq_kernels(score_halves_of, &decoded, q + m * p->width, hd, G, logits, PAGE_TOKENS);
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

/* Copies the centroids of one sub-vector, `unit` channels at a time, to rows of hd halves. */
INLINE void copy_rows(size_t unit, const uint16_t *rows, size_t width, const uint32_t *offsets, size_t hd, uint16_t *to) {
    for (size_t i = 0; i < width; i += unit) {
        for (size_t t = 0; t < PAGE_TOKENS; t += 8) {
            UNROLL for (size_t k = 0; k < 8; k++) copy_piece(unit, rows + offsets[t + k] + i, to + (t + k) * hd + i);
        }
    }
}

/* Decodes halves[64][hd]. */
static void decode_rows(const struct pq_codebook *p, const void *page, uint16_t *halves) {
    uint32_t offsets[PAGE_TOKENS];
    size_t hd = pq_channels(p), width = p->width;
    for (size_t m = 0; m < p->parts; m++, halves += width) {
        const uint16_t *rows = pq_rows(p, m);
        pq_offsets(p, page, m, width, offsets);
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

static void PASTE(rows_pq, ISA)(const struct pq_codebook *p, const void *page, float *rows) {
    uint16_t halves[PAGE_TOKENS * KERNELS_MOST_CHANNELS];
    decode_rows(p, page, halves);
    for (size_t i = 0; i < PAGE_TOKENS * pq_channels(p); i += LANES) vec_store(rows + i, vec_halves(halves + i));
}

/* ---- Values: rows of whole vectors are read where the centroids lie, narrower ones are brought together first ------------ */

struct values {
    const struct pq_codebook *p;
    uint32_t (*offsets)[PAGE_TOKENS]; /* [parts] */
    const uint16_t *rows;             /* or else halves[64][hd] */
};

/* Accumulates W vectors of each token's value, from the v-th on. */
INLINE void accumulate_stripe(size_t G, size_t W, bool whole, const struct values *values, size_t v, const float *weights,
                              float *acc) {
    const struct pq_codebook *p = values->p;
    const uint16_t *row[4];
    const uint32_t *offset[4];
    size_t hd = pq_channels(p);
    sums sum;
    UNROLL for (size_t w = 0; whole && w < W; w++) {
        size_t c = (v + w) * LANES, m = c / p->width;
        row[w] = pq_rows(p, m) + c % p->width;
        offset[w] = values->offsets[m];
    }
    sums_clear(G, W, sum);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        vec x[4];
        UNROLL for (size_t w = 0; w < W; w++) x[w] =
            vec_halves(whole ? row[w] + offset[w][t] : values->rows + t * hd + (v + w) * LANES);
        sums_add(G, W, weights + t, PAGE_TOKENS, x, sum);
    }
    sums_store(G, W, sum, true, acc + v * LANES, hd, LANES);
}

INLINE void accumulate_vectors(size_t G, bool whole, const struct values *values, const float *weights, float *acc) {
    size_t v = 0, vectors = pq_channels(values->p) / LANES;
    for (; v + TILE(G) <= vectors; v += TILE(G)) accumulate_stripe(G, TILE(G), whole, values, v, weights, acc);
    for (; v < vectors; v++) accumulate_stripe(G, 1, whole, values, v, weights, acc);
}

INLINE void accumulate_whole(size_t G, const void *what, const float *weights, float *acc) {
    accumulate_vectors(G, true, what, weights, acc);
}
INLINE void accumulate_copied(size_t G, const void *what, const float *weights, float *acc) {
    accumulate_vectors(G, false, what, weights, acc);
}

PQ_KERNELS(accumulate_whole)
PQ_KERNELS(accumulate_copied)

static void PASTE(accumulate_pq, ISA)(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    uint32_t offsets[KERNELS_MOST_CHANNELS / LANES][PAGE_TOKENS];
    uint16_t halves[PAGE_TOKENS * KERNELS_MOST_CHANNELS];
    struct values values = {p, offsets, halves};
    bool whole = p->width % LANES == 0;
    if (whole)
        pq_all_offsets(p, page, p->width, offsets);
    else
        decode_rows(p, page, halves);
    call_pq_kernels(whole ? accumulate_whole_of : accumulate_copied_of, &values, weights, PAGE_TOKENS, G, acc, pq_channels(p));
}

/* ---- By code: tables and code sums --------------------------------------------------------------------------------------- */

#define SOME_CENTROIDS 16 /* converted to floats at a time; divides every number of them */

static void some_centroids(const struct pq_codebook *p, size_t m, size_t first, float *floats) {
    const uint16_t *rows = pq_rows(p, m) + first * p->width;
    for (size_t i = 0; i < SOME_CENTROIDS * p->width; i += LANES) vec_store(floats + i, vec_halves(rows + i));
}

#define N 1
#include "backend/cpu/kernels/pq/by_code_template.h"
#define N 2
#include "backend/cpu/kernels/pq/by_code_template.h"
#define N 4
#include "backend/cpu/kernels/pq/by_code_template.h"
#define N 8
#include "backend/cpu/kernels/pq/by_code_template.h"

/* Returns how many columns lie together. Those beyond eight queries go eight at a time: tables and code sums are then [stride /
 * 8][parts][2^bits][8]. */
static size_t columns_together(size_t G) { return pq_stride(G) < 8 ? pq_stride(G) : 8; }
static size_t floats_of_columns(const struct pq_codebook *p, size_t n) { return p->parts * PQ_CHANNEL_ENTRIES(p->bits) * n; }

/* Transposes rows[n][columns] of G <= n rows in[G][columns], `stride` apart, to out[columns][n]. */
static void transpose_queries(const float *in, size_t G, size_t columns, size_t stride, size_t n, float *out) {
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0; i < columns; i++) out[i * n + g] = g < G ? in[g * stride + i] : 0;
}

static void PASTE(look_up_pq, ISA)(const struct pq_codebook *p, const float *tables, size_t G, const void *page, float *logits) {
    uint32_t offsets[KERNELS_MOST_CHANNELS][PAGE_TOKENS];
    float sum[PAGE_TOKENS * 8];
    size_t n = columns_together(G), floats = floats_of_columns(p, n);
    pq_all_offsets(p, page, n, offsets);
    for (size_t first = 0; first < G; first += n, tables += floats) {
        memset(sum, 0, n * PAGE_TOKENS * sizeof *sum);
        (n == 1 ? look_up_1 : n == 2 ? look_up_2 : n == 4 ? look_up_4 : look_up_8)(p, tables, offsets, sum);
        for (size_t g = 0; g < n && first + g < G; g++)
            for (size_t t = 0; t < PAGE_TOKENS; t++) logits[(first + g) * PAGE_TOKENS + t] = sum[t * n + g];
    }
}

static void PASTE(accumulate_by_code_pq, ISA)(const struct pq_codebook *p, const float *weights, size_t G, const void *page,
                                              float *code_sums) {
    float columns[PAGE_TOKENS * 8];
    size_t n = columns_together(G), floats = floats_of_columns(p, n);
    for (size_t first = 0; first < G; first += n, code_sums += floats, weights += n * PAGE_TOKENS) {
        transpose_queries(weights, SMALLER(n, G - first), PAGE_TOKENS, PAGE_TOKENS, n, columns);
        (n == 1   ? accumulate_by_code_1
         : n == 2 ? accumulate_by_code_2
         : n == 4 ? accumulate_by_code_4
                  : accumulate_by_code_8)(p, columns, page, code_sums);
    }
}

static void PASTE(prepare_pq, ISA)(const struct pq_codebook *p, const float *q, size_t G, float *tables) {
    size_t n = columns_together(G), hd = pq_channels(p), table = PQ_CHANNEL_ENTRIES(p->bits) * n;
    float columns[PQ_WIDTH_MAX * 8];
    for (size_t first = 0; first < G; first += n) {
        for (size_t m = 0; m < p->parts; m++, tables += table) {
            transpose_queries(q + first * hd + m * p->width, SMALLER(n, G - first), p->width, hd, n, columns);
            (n == 1 ? prepare_1 : n == 2 ? prepare_2 : n == 4 ? prepare_4 : prepare_8)(p, m, columns, tables);
        }
    }
}

static void PASTE(finish_pq, ISA)(const struct pq_codebook *p, const float *code_sums, size_t G, float *acc) {
    size_t n = columns_together(G), hd = pq_channels(p), table = PQ_CHANNEL_ENTRIES(p->bits) * n;
    float sum[PQ_WIDTH_MAX * 8];
    for (size_t first = 0; first < G; first += n) {
        for (size_t m = 0; m < p->parts; m++, code_sums += table) {
            (n == 1 ? finish_1 : n == 2 ? finish_2 : n == 4 ? finish_4 : finish_8)(p, m, code_sums, sum);
            for (size_t g = 0; g < n && first + g < G; g++)
                for (size_t i = 0; i < p->width; i++) acc[(first + g) * hd + m * p->width + i] += sum[i * n + g];
        }
    }
}

/* ---- Keys stored before RoPE, decoded ------------------------------------------------------- */

struct rotating {
    const struct key_rotation *rotation;
    const float *keys; /* [hd][64] */
    size_t hd;
};

INLINE void score_rotated_stripe(size_t G, const struct rotating *rotating, size_t t, const float *q, float *logits) {
    const size_t W = TILE(G), hd = rotating->hd, pairs = rotating->rotation->pairs;
    const size_t apart = rotating->rotation->adjacent ? 1 : pairs, step = rotating->rotation->adjacent ? 2 : 1;
    const float *cosine = rotating->rotation->cosine + t, *sine = rotating->rotation->sine + t;
    sums sum;
    sums_clear(G, W, sum);
    for (size_t i = 0; i < pairs; i++) {
        vec x[4], y[4];
        UNROLL for (size_t w = 0; w < W; w++) {
            vec a = vec_load(rotating->keys + (i * step) * PAGE_TOKENS + t + w * LANES);
            vec b = vec_load(rotating->keys + (i * step + apart) * PAGE_TOKENS + t + w * LANES);
            vec c = vec_load(cosine + i * PAGE_TOKENS + w * LANES), s = vec_load(sine + i * PAGE_TOKENS + w * LANES);
            x[w] = vec_fnma(b, s, vec_mul(a, c));
            y[w] = vec_fma(b, c, vec_mul(a, s));
        }
        sums_add(G, W, q + i * step, hd, x, sum);
        sums_add(G, W, q + i * step + apart, hd, y, sum);
    }
    for (size_t c = 2 * pairs; c < hd; c++) {
        vec x[4];
        UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_load(rotating->keys + (c)*PAGE_TOKENS + t + w * LANES);
        sums_add(G, W, q + c, hd, x, sum);
    }
    sums_store(G, W, sum, false, logits + t, PAGE_TOKENS, LANES);
}

INLINE void rotate_floats(size_t G, const void *what, const float *q, float *logits) {
    for (size_t t = 0; t < PAGE_TOKENS; t += TILE(G) * LANES) score_rotated_stripe(G, what, t, q, logits);
}

PQ_KERNELS(rotate_floats)

static void PASTE(score_rotated, ISA)(const struct key_rotation *rotation, const float *q, size_t G, size_t hd, const float *keys,
                                      float *logits) {
    struct rotating rotating = {rotation, keys, hd};
    call_pq_kernels(rotate_floats_of, &rotating, q, hd, G, logits, PAGE_TOKENS);
}

static void fill_pq(struct pq_ops *ops) {
    ops->decode_channels = PASTE(channels_pq, ISA);
    ops->decode_rows = PASTE(rows_pq, ISA);
    ops->score = PASTE(score_pq, ISA);
    ops->accumulate = PASTE(accumulate_pq, ISA);
    ops->accumulate_int8 = PASTE(accumulate_pq, ISA);
    ops->prepare = PASTE(prepare_pq, ISA);
    ops->look_up = PASTE(look_up_pq, ISA);
    ops->accumulate_by_code = PASTE(accumulate_by_code_pq, ISA);
    ops->finish_code_sums = PASTE(finish_pq, ISA);
    ops->score_rotated_channels = PASTE(score_rotated, ISA);
}
