/* This template implements q4_0 by products of bytes in registers of 32: keys, and values whose weights may be one byte.
 * avx2_nibbles.c and avxvnni_nibbles.c include it once after lanes/avx2_i16.h, with ISA defined, and after lanes/avx2_products.h or
 * lanes/avxvnni_products.h; it defines scaled_init_ISA_nibbles.
 *
 * Codes are multiplied as they are stored, from 0 on, so all sums begin with minus the surplus. Sums of 16 bits may wrap around
 * meanwhile: of 16 channels, or 32 tokens, the products of codes less ZERO_Q4_0 and numbers of at most COARSE_MOST sum to less than
 * 2^15. */
#include "backend/cpu/kernels/scaled/init.h"

#define ZERO_Q4_0 8
#define COARSE_MOST 127
#define HALF_GROUP (SCALE_GROUP / 2) /* bytes of a block */

INLINE __m256i four_bytes(const int8_t *bytes) {
    int32_t four;
    memcpy(&four, bytes, sizeof four);
    return _mm256_set1_epi32(four);
}

INLINE __m256i load_bytes(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
INLINE __m256i high_nibbles(__m256i x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }

/* Rounds 32 numbers, in order, to whole multiples of a step; those that are not finite become some byte. */
INLINE __m256i to_i8(const __m256 *x, float inverse) {
    __m256i i[4];
    UNROLL for (size_t v = 0; v < 4; v++) i[v] = _mm256_cvtps_epi32(_mm256_mul_ps(x[v], _mm256_set1_ps(inverse)));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(i[0], i[1]), _mm256_packs_epi32(i[2], i[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Returns in each dword the number that sums begin with: minus ZERO_Q4_0 times all bytes, which are multiplied in fours, of these
 * sums. */
INLINE __m256i start_of(__m256i sum) {
    sum = add_sums(sum, _mm256_permute2x128_si256(sum, sum, 1));
    sum = add_sums(sum, _mm256_shuffle_epi32(sum, 0x4e));
    return minus_sums(add_sums(sum, _mm256_shuffle_epi32(sum, 0xb1)));
}

INLINE __m256i zeros(void) { return _mm256_set1_epi8(ZERO_Q4_0); }

/* ---- Keys: a dword has four channels of a token ---------------------------------------------------------------------------- */

/* A block of a query's table is int8 [hd], then for each 32 channels the number that their sums begin with and a step of their own,
 * so that large channels do not cost the others precision. */
struct block {
    int32_t start;
    float step;
};

INLINE struct block block_of(const float *table, size_t hd, size_t b) {
    struct block block;
    memcpy(&block, table + hd / 4 + 2 * b, sizeof block);
    return block;
}

static void PASTE(prepare_q4_0, ISA)(const float *q, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += hd) {
        for (size_t b = 0; b < hd / SCALE_GROUP; b++) {
            __m256 x[4], most = _mm256_setzero_ps();
            float step[4], inverse[4];
            UNROLL for (size_t v = 0; v < 4; v++) {
                x[v] = vec_load(q + b * SCALE_GROUP + v * LANES);
                most = _mm256_max_ps(most, magnitude(x[v]));
            }
            fixed_steps(largest_of(1, &most), COARSE_MOST, step, inverse);
            __m256i bytes = to_i8(x, *inverse);
            struct block block = {_mm256_cvtsi256_si32(start_of(first_products(zeros(), bytes))), *step};
            _mm256_storeu_si256((__m256i *)((int8_t *)tables + b * SCALE_GROUP), bytes);
            memcpy(tables + hd / 4 + 2 * b, &block, sizeof block);
        }
    }
}

/* Reads four channels of 16 of 32 tokens, rows PAGE_TOKENS apart: tokens 0 to 3 and 16 to 19, and 4 to 7 and 20 to 23; with `upper`
 * those 8 further on. */
INLINE void four_channels(const uint8_t *rows, bool upper, __m256i *to) {
    __m256i x[4];
    UNROLL for (size_t i = 0; i < 4; i++) x[i] = load_bytes(rows + i * PAGE_TOKENS);
    __m256i a = upper ? _mm256_unpackhi_epi8(x[0], x[1]) : _mm256_unpacklo_epi8(x[0], x[1]);
    __m256i b = upper ? _mm256_unpackhi_epi8(x[2], x[3]) : _mm256_unpacklo_epi8(x[2], x[3]);
    to[0] = _mm256_unpacklo_epi16(a, b);
    to[1] = _mm256_unpackhi_epi16(a, b);
}

/* Exchanges eight numbers of tokens from 0 and from 16 on, to or from the order of four_channels. */
INLINE void exchange(__m256 *x) {
    __m256 a = x[0];
    x[0] = _mm256_permute2f128_ps(a, x[1], 0x20);
    x[1] = _mm256_permute2f128_ps(a, x[1], 0x31);
}

/* Computes the logits of those 16 tokens, to be kept in that order, (+)= those of a block of channels, rows[16][64]. */
INLINE void score_sixteen(size_t G, const uint8_t *rows, bool upper, const uint16_t *scale, const float *tables, size_t hd,
                          size_t b, bool last, float *logits) {
    __m256i sum[TOGETHER][2];
    struct block block[TOGETHER];
    __m256 scales[2] = {vec_halves(scale), vec_halves(scale + 16)};
    UNROLL for (size_t g = 0; g < G; g++) {
        block[g] = block_of(tables + g * hd, hd, b);
        sum[g][0] = sum[g][1] = _mm256_set1_epi32(block[g].start);
    }
    for (size_t c = 0; c < HALF_GROUP; c += 4, rows += 4 * PAGE_TOKENS) {
        __m256i x[2];
        four_channels(rows, upper, x);
        UNROLL for (size_t high = 0; high < 2; high++) {
            __m256i codes[2] = {high ? high_nibbles(x[0]) : low_nibbles(x[0]), high ? high_nibbles(x[1]) : low_nibbles(x[1])};
            UNROLL for (size_t g = 0; g < G; g++) {
                __m256i q = four_bytes((const int8_t *)(tables + g * hd) + b * SCALE_GROUP + high * HALF_GROUP + c);
                sum[g][0] = more_products(sum[g][0], codes[0], q);
                sum[g][1] = more_products(sum[g][1], codes[1], q);
            }
        }
    }
    exchange(scales);
    UNROLL for (size_t g = 0; g < G; g++, logits += PAGE_TOKENS) {
        const __m256 step = _mm256_set1_ps(block[g].step);
        __m256 x[2];
        UNROLL for (size_t i = 0; i < 2; i++) {
            __m256 part = _mm256_cvtepi32_ps(whole_sums(sum[g][i])), before = b ? vec_load(logits + 16 * i) : vec_zero();
            x[i] = _mm256_fmadd_ps(part, _mm256_mul_ps(scales[i], step), before);
        }
        if (last) exchange(x);
        vec_store(logits, x[0]);
        vec_store(logits + 16, x[1]);
    }
}

INLINE void score_q4_0(size_t G, const float *tables, size_t hd, const void *page, float *logits) {
    const size_t groups = hd / SCALE_GROUP;
    const uint16_t *scale = page;
    const uint8_t *rows = (const uint8_t *)(scale + groups * PAGE_TOKENS);
    for (size_t b = 0; b < groups; b++, scale += PAGE_TOKENS, rows += HALF_GROUP * PAGE_TOKENS) {
        prefetch_step(scale, 0, PAGE_TOKENS * sizeof *scale);
        for (size_t at = 0; at < PAGE_TOKENS; at += 32) {
            prefetch_step(rows, at / 32, HALF_GROUP * PAGE_TOKENS / 2);
            score_sixteen(G, rows + at, false, scale + at, tables, hd, b, b + 1 == groups, logits + at);
            score_sixteen(G, rows + at, true, scale + at + 8, tables, hd, b, b + 1 == groups, logits + at + 8);
        }
    }
}

PAGE_KERNELS_4(score_q4_0)
static void PASTE(score_q4_0, ISA)(const float *tables, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_q4_0_of, TOGETHER, tables, hd, G, hd, page, logits, PAGE_TOKENS);
}

/* ---- Values: a dword has four tokens of a channel, the lower 128 bits one block, the upper ones the next ----------------------- */

#define QUADS (PAGE_TOKENS / 4)

/* A two_blocks holds weights times the scales of 64 tokens for two blocks; those of the second may be anything where there is
 * none. */
struct two_blocks {
    __m256i bytes[QUADS][TOGETHER]; /* of four tokens, in every dword */
    __m256i start[TOGETHER];
    float step[2][TOGETHER];
};

/* A one_block holds the weights of one block: four tokens in each dword, in order. */
struct one_block {
    __m256i bytes[TOGETHER][2], start[TOGETHER];
};

INLINE void quantize_block(size_t G, const float *weights, const uint16_t *scale, struct one_block *to, float *step) {
    __m256 scales[PAGE_TOKENS / LANES], x[TOGETHER][PAGE_TOKENS / LANES], most[TOGETHER];
    float inverse[TOGETHER];
    UNROLL for (size_t v = 0; v < PAGE_TOKENS / LANES; v++) scales[v] = vec_halves(scale + v * LANES);
    for (size_t g = 0; g < G; g++) {
        most[g] = _mm256_setzero_ps();
        UNROLL for (size_t v = 0; v < PAGE_TOKENS / LANES; v++) {
            x[g][v] = _mm256_mul_ps(scales[v], vec_load(weights + g * PAGE_TOKENS + v * LANES));
            most[g] = _mm256_max_ps(most[g], magnitude(x[g][v]));
        }
    }
    fixed_steps(largest_of(G, most), COARSE_MOST, step, inverse);
    for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t i = 0; i < 2; i++) to->bytes[g][i] = to_i8(x[g] + 4 * i, inverse[g]);
        to->start[g] = start_of(more_products(first_products(zeros(), to->bytes[g][0]), zeros(), to->bytes[g][1]));
    }
}

INLINE void quantize_blocks(size_t G, bool two, const float *weights, const uint16_t *scale, struct two_blocks *to) {
    struct one_block block[2]; /* too large to be cleared */
    quantize_block(G, weights, scale, &block[0], to->step[0]);
    if (two) quantize_block(G, weights, scale + PAGE_TOKENS, &block[1], to->step[1]);
    const struct one_block *next = two ? &block[1] : block;
    for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t i = 0; i < 4; i++) {
            __m256i a = block[0].bytes[g][i / 2], b = next->bytes[g][i / 2];
            __m256i quads = i % 2 ? _mm256_permute2x128_si256(a, b, 0x31) : _mm256_permute2x128_si256(a, b, 0x20);
            to->bytes[4 * i][g] = _mm256_shuffle_epi32(quads, 0x00);
            to->bytes[4 * i + 1][g] = _mm256_shuffle_epi32(quads, 0x55);
            to->bytes[4 * i + 2][g] = _mm256_shuffle_epi32(quads, 0xaa);
            to->bytes[4 * i + 3][g] = _mm256_shuffle_epi32(quads, 0xff);
        }
        to->start[g] = _mm256_blend_epi32(block[0].start[g], next->start[g], 0xf0);
    }
}

/* Interleaves bytes 4 i to 4 i + 3 of each block of four tokens, whose rows are `length` apart. */
INLINE __m256i four_tokens(bool two, const uint8_t *rows, size_t length, size_t i) {
    __m256i x[4];
    UNROLL for (size_t t = 0; t < 4; t++) x[t] =
        two ? load_bytes(rows + t * length) : _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows + t * length)));
    __m256i a = i / 2 ? _mm256_unpackhi_epi8(x[0], x[1]) : _mm256_unpacklo_epi8(x[0], x[1]);
    __m256i b = i / 2 ? _mm256_unpackhi_epi8(x[2], x[3]) : _mm256_unpacklo_epi8(x[2], x[3]);
    return i % 2 ? _mm256_unpackhi_epi16(a, b) : _mm256_unpacklo_epi16(a, b);
}

/* Computes acc[4] += step * whole. */
INLINE void add_four(__m128i whole, float step, float *acc) {
    _mm_storeu_ps(acc, _mm_fmadd_ps(_mm_cvtepi32_ps(whole), _mm_set1_ps(step), _mm_loadu_ps(acc)));
}

/* Adds to acc[G][32 or 64 of hd] the products of bytes 4 i to 4 i + 3 of each block. */
INLINE void accumulate_fours(size_t G, bool two, size_t i, const struct two_blocks *w, const uint8_t *rows, size_t length,
                             const uint8_t *ahead, size_t hd, float *acc) {
    __m256i sum[TOGETHER][2];
    UNROLL for (size_t g = 0; g < G; g++) sum[g][0] = sum[g][1] = w->start[g];
    for (size_t k = 0; k < QUADS; k += 2) {
        prefetch_step(ahead, k / 2, two ? 4 * HALF_GROUP : 2 * HALF_GROUP);
        UNROLL for (size_t next = k; next < k + 2; next++, rows += 4 * length) {
            __m256i x = four_tokens(two, rows, length, i), low = low_nibbles(x), high = high_nibbles(x);
            UNROLL for (size_t g = 0; g < G; g++) {
                __m256i weights = w->bytes[next][g];
                sum[g][0] = more_products(sum[g][0], low, weights);
                sum[g][1] = more_products(sum[g][1], high, weights);
            }
        }
    }
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t high = 0; high < 2; high++) {
            __m256i whole = whole_sums(sum[g][high]);
            float *to = acc + g * hd + high * HALF_GROUP + 4 * i;
            add_four(_mm256_castsi256_si128(whole), w->step[0][g], to);
            if (two) add_four(_mm256_extracti128_si256(whole, 1), w->step[1][g], to + SCALE_GROUP);
        }
    }
}

INLINE void accumulate_blocks(size_t G, bool two, const float *weights, const uint16_t *scale, const uint8_t *rows, size_t length,
                              const uint8_t *ahead, size_t hd, float *acc) {
    const size_t part = (two ? 2 : 1) * HALF_GROUP * PAGE_TOKENS / 4;
    struct two_blocks w; /* too large to be cleared */
    quantize_blocks(G, two, weights, scale, &w);
    UNROLL for (size_t i = 0; i < 4; i++) accumulate_fours(G, two, i, &w, rows, length, ahead + i * part, hd, acc);
}

INLINE void accumulate_int8_q4_0(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    const size_t groups = hd / SCALE_GROUP, length = groups * HALF_GROUP;
    const uint16_t *scale = page;
    const uint8_t *codes = (const uint8_t *)(scale + groups * PAGE_TOKENS), *ahead = codes;
    prefetch_step(scale, 0, groups * PAGE_TOKENS * sizeof *scale);
    size_t b = 0;
    for (; b + 2 <= groups; b += 2, scale += 2 * PAGE_TOKENS, acc += 2 * SCALE_GROUP, ahead += 2 * HALF_GROUP * PAGE_TOKENS)
        accumulate_blocks(G, true, weights, scale, codes + b * HALF_GROUP, length, ahead, hd, acc);
    if (b < groups) accumulate_blocks(G, false, weights, scale, codes + b * HALF_GROUP, length, ahead, hd, acc);
}

PAGE_KERNELS_4(accumulate_int8_q4_0)
static void PASTE(accumulate_int8_q4_0, ISA)(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_int8_q4_0_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}

void PASTE(PASTE(scaled_init, ISA), nibbles)(struct scaled_ops *ops) {
    ops->int8_is_faster = true;
    ops->prepare_q4_0 = PASTE(prepare_q4_0, ISA);
    ops->score_q4_0 = PASTE(score_q4_0, ISA);
    ops->accumulate_int8_q4_0 = PASTE(accumulate_int8_q4_0, ISA);
}
