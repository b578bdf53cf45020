/* Score and mix of q8_0, q4_0 and kivi by sums of floats, for instruction sets that have no file of their own for them: included once
 * by neon_cache.c after cache_template.h; kernels_fill_ISA_codes comes out. Queries are read as they are, the scalar tier's tables. */
#include <string.h>

/* ---- Scales, for q8_0 and q4_0 -------------------------------------------------------------------------------------------- */

/* logits (+)= sum times the scales of 32 channels. */
INLINE void score_scaled(size_t G, size_t W, sums sum, const uint16_t *scale, bool add, float *logits) {
    UNROLL for (size_t w = 0; w < W; w++) {
        vec s = vec_halves(scale + w * LANES);
        UNROLL for (size_t g = 0; g < G; g++) sum[g][w] = vec_mul(sum[g][w], s);
    }
    sums_store(G, W, sum, add, logits, BLOCK_TOKENS, LANES);
}

/* scaled[G][64] = weights times the scales of 32 channels; what is left to mix is bare codes. */
INLINE void scale_weights(size_t G, const float *weights, const uint16_t *scale, float *scaled) {
    prefetch_step(scale, 0, BLOCK_TOKENS * 2);
    for (size_t t = 0; t < BLOCK_TOKENS; t += LANES) {
        vec s = vec_halves(scale + t);
        UNROLL for (size_t g = 0; g < G; g++) {
            size_t at = g * BLOCK_TOKENS + t;
            vec_store(scaled + at, vec_mul(vec_load(weights + at), s));
        }
    }
}

/* ---- q8_0 ---------------------------------------------------------------------------------------------------------------- */

INLINE void score_q8_0(size_t G, const float *q, size_t hd, const void *block, float *logits) {
    const size_t W = TILE(G);
    const uint16_t *scale = block;
    const int8_t *k = (const int8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS);
    for (size_t b = 0; b < hd / BLOCK_QK; b++, scale += BLOCK_TOKENS, q += BLOCK_QK, k += BLOCK_QK * BLOCK_TOKENS) {
        prefetch_step(scale, 0, BLOCK_TOKENS * 2);
        for (size_t t = 0; t < BLOCK_TOKENS; t += W * LANES) {
            sums sum;
            sums_clear(G, W, sum);
            for (size_t c = 0; c < BLOCK_QK; c++) {
                vec x[4];
                prefetch_step(k + t * BLOCK_QK, c, W * LANES);
                UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_bytes(k + c * BLOCK_TOKENS + t + w * LANES);
                sums_add(G, W, q + c, hd, x, sum);
            }
            score_scaled(G, W, sum, scale + t, b > 0, logits + t);
        }
    }
}

INLINE void mix_q8_0(size_t G, const float *weights, size_t hd, const void *block, float *acc) {
    const size_t W = SMALLER(TILE(G), BLOCK_QK / LANES);
    const bool two_sets = 2 * G * W <= MOST_SUMS; /* with few queries, so that they do not wait for their own last sum */
    const uint16_t *scale = block;
    const int8_t *v = (const int8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS), *ahead = v;
    float scaled[MOST_QUERIES * BLOCK_TOKENS];
    for (size_t c = 0; c < hd; c += W * LANES, ahead += BLOCK_TOKENS * W * LANES) {
        if (c % BLOCK_QK == 0) scale_weights(G, weights, scale + c / BLOCK_QK * BLOCK_TOKENS, scaled);
        sums even, odd;
        sums_clear(G, W, even);
        sums_clear(G, W, odd);
        for (size_t t = 0; t < BLOCK_TOKENS; t += 2) {
            const int8_t *row = v + t * hd + c;
            vec x[4], y[4];
            prefetch_step(ahead, t / 2, 2 * W * LANES);
            UNROLL for (size_t w = 0; w < W; w++) x[w] = vec_bytes(row + w * LANES);
            sums_add(G, W, scaled + t, BLOCK_TOKENS, x, even);
            UNROLL for (size_t w = 0; w < W; w++) y[w] = vec_bytes(row + hd + w * LANES);
            sums_add(G, W, scaled + t + 1, BLOCK_TOKENS, y, two_sets ? odd : even);
        }
        sums_store(G, W, even, true, acc + c, hd, LANES);
        if (two_sets) sums_store(G, W, odd, true, acc + c, hd, LANES);
    }
}

/* ---- q4_0 ---------------------------------------------------------------------------------------------------------------- */

INLINE void score_q4_0(size_t G, const float *q, size_t hd, const void *block, float *logits) {
    const size_t W = TILE_Q4(G);
    const uint16_t *scale = block;
    const uint8_t *k = (const uint8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS);
    for (size_t b = 0; b < hd / BLOCK_QK; b++, scale += BLOCK_TOKENS, q += BLOCK_QK, k += BLOCK_QK / 2 * BLOCK_TOKENS) {
        prefetch_step(scale, 0, BLOCK_TOKENS * 2);
        for (size_t t = 0; t < BLOCK_TOKENS; t += W * LANES) {
            sums sum;
            sums_clear(G, W, sum);
            for (size_t c = 0; c < BLOCK_QK / 2; c++) {
                vec low[4], high[4];
                prefetch_step(k + t * BLOCK_QK / 2, c, W * LANES);
                UNROLL for (size_t w = 0; w < W; w++) vec_nibbles(k + c * BLOCK_TOKENS + t + w * LANES, &low[w], &high[w]);
                sums_add(G, W, q + c, hd, low, sum);
                sums_add(G, W, q + c + BLOCK_QK / 2, hd, high, sum);
            }
            score_scaled(G, W, sum, scale + t, b > 0, logits + t);
        }
    }
}

/* LANES bytes of a value are LANES channels and the LANES channels 16 further on: two sums for each query. */
INLINE void mix_q4_0(size_t G, const float *weights, size_t hd, const void *block, float *acc) {
    const bool two_sets = 4 * G <= MOST_SUMS;
    const uint16_t *scale = block;
    const uint8_t *v = (const uint8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS), *ahead = v;
    float scaled[MOST_QUERIES * BLOCK_TOKENS];
    for (size_t b = 0; b < hd / BLOCK_QK; b++, scale += BLOCK_TOKENS, acc += BLOCK_QK, v += BLOCK_QK / 2) {
        scale_weights(G, weights, scale, scaled);
        for (size_t c = 0; c < BLOCK_QK / 2; c += LANES, ahead += BLOCK_TOKENS * LANES) {
            sums even, odd;
            sums_clear(G, 2, even);
            sums_clear(G, 2, odd);
            for (size_t t = 0; t < BLOCK_TOKENS; t += 2) {
                const uint8_t *row = v + t * (hd / 2) + c;
                vec x[2], y[2];
                prefetch_step(ahead, t / 2, 2 * LANES);
                vec_nibbles(row, &x[0], &x[1]);
                sums_add(G, 2, scaled + t, BLOCK_TOKENS, x, even);
                vec_nibbles(row + hd / 2, &y[0], &y[1]);
                sums_add(G, 2, scaled + t + 1, BLOCK_TOKENS, y, two_sets ? odd : even);
            }
            sums_store(G, 2, even, true, acc + c, hd, BLOCK_QK / 2);
            if (two_sets) sums_store(G, 2, odd, true, acc + c, hd, BLOCK_QK / 2);
        }
    }
}

/* ---- kivi ---------------------------------------------------------------------------------------------------------------- */

#define HALVES (BLOCK_TOKENS / BLOCK_QK) /* runs of tokens of a key's channel that share scales */
#define MOST_NUMBERS (BLOCK_TOKENS * KERNELS_MOST_CHANNELS)
#define MOST_SCALES (MOST_NUMBERS / BLOCK_QK)

/* n codes of a packed row, whole words of it at a time. */
INLINE void unpack_row(unsigned bits, const uint8_t *packed, size_t n, uint8_t *codes) {
    const uint64_t mask = 0x0101010101010101u * ((1u << bits) - 1);
    const size_t bytes = n * bits / 8;
    for (size_t i = 0; i < bytes; i += sizeof mask) {
        uint64_t word;
        memcpy(&word, packed + i, sizeof word);
        for (size_t k = 0; k < 8 / bits; k++, word >>= bits) {
            const uint64_t some = word & mask;
            memcpy(codes + k * bytes + i, &some, sizeof some);
        }
    }
}

/* scaled[n] = in times scales; returns in times zeros. */
INLINE float scale_row(const float *in, const float *scale, const float *zero, size_t n, float *scaled) {
    float lanes[LANES], base = 0;
    vec sum = vec_zero();
    for (size_t i = 0; i < n; i += LANES) {
        vec x = vec_load(in + i);
        vec_store(scaled + i, vec_mul(x, vec_load(scale + i)));
        sum = vec_fma(x, vec_load(zero + i), sum);
    }
    vec_store(lanes, sum);
    for (size_t i = 0; i < LANES; i++) base += lanes[i];
    return base;
}

INLINE void score_kivi(size_t G, unsigned bits, const float *q, size_t hd, const void *block, float *logits) {
    uint8_t codes[MOST_NUMBERS];
    float scale[2 * MOST_SCALES], *zero = scale + HALVES * hd;
    const uint16_t *halves = block;
    const uint8_t *packed = (const uint8_t *)(halves + 2 * HALVES * hd);
    float scaled[MOST_QUERIES * KERNELS_MOST_CHANNELS];
    for (size_t i = 0; i < 2 * HALVES * hd; i += LANES) vec_store(scale + i, vec_halves(halves + i));
    for (size_t c = 0; c < hd; c++) {
        prefetch_step(packed, c, 8 * bits);
        unpack_row(bits, packed + c * 8 * bits, BLOCK_TOKENS, codes + c * BLOCK_TOKENS);
    }
    for (size_t h = 0; h < HALVES; h++) {
        const struct bytes columns = {codes + h * BLOCK_QK, hd, BLOCK_TOKENS, BLOCK_TOKENS};
        float *to = logits + h * BLOCK_QK;
        for (size_t g = 0; g < G; g++) {
            float base = scale_row(q + g * hd, scale + h * hd, zero + h * hd, hd, scaled + g * hd);
            for (size_t t = 0; t < BLOCK_QK; t++) to[g * BLOCK_TOKENS + t] = base;
        }
        add_bytes(G, scaled, &columns, to);
    }
}

INLINE void mix_kivi(size_t G, unsigned bits, const float *weights, size_t hd, const void *block, float *acc) {
    uint8_t codes[MOST_NUMBERS];
    uint16_t halves[2 * MOST_SCALES];
    float scale[2 * MOST_SCALES], *zero = scale + hd / BLOCK_QK * BLOCK_TOKENS;
    const size_t bytes = hd * bits / 8, groups = hd / BLOCK_QK;
    const uint8_t *row = block;
    float scaled[MOST_QUERIES * BLOCK_TOKENS];
    for (size_t t = 0; t < BLOCK_TOKENS; t++, row += bytes + 4 * groups) {
        const uint16_t *pairs = (const uint16_t *)(row + bytes);
        prefetch_step(row, 0, bytes + 4 * groups);
        unpack_row(bits, row, hd, codes + t * hd);
        for (size_t b = 0; b < groups; b++) {
            halves[b * BLOCK_TOKENS + t] = pairs[2 * b];
            halves[(groups + b) * BLOCK_TOKENS + t] = pairs[2 * b + 1];
        }
    }
    for (size_t i = 0; i < 2 * groups * BLOCK_TOKENS; i += LANES) vec_store(scale + i, vec_halves(halves + i));
    for (size_t b = 0; b < groups; b++) {
        const struct bytes columns = {codes + b * BLOCK_QK, BLOCK_TOKENS, hd, hd};
        float *to = acc + b * BLOCK_QK;
        for (size_t g = 0; g < G; g++) {
            float base = scale_row(weights + g * BLOCK_TOKENS, scale + b * BLOCK_TOKENS, zero + b * BLOCK_TOKENS, BLOCK_TOKENS,
                                   scaled + g * BLOCK_TOKENS);
            for (size_t c = 0; c < BLOCK_QK; c++) to[g * hd + c] += base;
        }
        add_bytes(G, scaled, &columns, to);
    }
}

FOR_ONE(score_kivi_4, score_kivi, 4)
FOR_ONE(score_kivi_2, score_kivi, 2)

FOR_ONE(mix_kivi_4, mix_kivi, 4)
FOR_ONE(mix_kivi_2, mix_kivi, 2)

SLOT(score_q8_0, hd, BLOCK_TOKENS)
SLOT(mix_q8_0, BLOCK_TOKENS, hd)
SLOT(score_q4_0, hd, BLOCK_TOKENS)
SLOT(mix_q4_0, BLOCK_TOKENS, hd)
SLOT(score_kivi_4, hd, BLOCK_TOKENS)
SLOT(mix_kivi_4, BLOCK_TOKENS, hd)
SLOT(score_kivi_2, hd, BLOCK_TOKENS)
SLOT(mix_kivi_2, BLOCK_TOKENS, hd)

void PASTE(PASTE(kernels_fill, ISA), codes)(struct kernels *k) {
    k->score_q8_0 = PASTE(score_q8_0, ISA);
    k->mix_q8_0 = PASTE(mix_q8_0, ISA);
    k->score_q4_0 = PASTE(score_q4_0, ISA);
    k->mix_q4_0 = PASTE(mix_q4_0, ISA);
    k->score_kivi_4 = PASTE(score_kivi_4, ISA);
    k->mix_kivi_4 = PASTE(mix_kivi_4, ISA);
    k->score_kivi_2 = PASTE(score_kivi_2, ISA);
    k->mix_kivi_2 = PASTE(mix_kivi_2, ISA);
    k->mix_light_q4_0 = PASTE(mix_q4_0, ISA);
    k->mix_light_kivi_4 = PASTE(mix_kivi_4, ISA);
    k->mix_light_kivi_2 = PASTE(mix_kivi_2, ISA);
}
