/* Reads pages of the codec transform with NEON: 16 bytes are half an octet's codes, and products of bytes are added up in 16 bits.
 * The dwords are tokens of keys, components of values; each of their bytes has a sum of its own until these are added in pairs. */
#include "backend/cpu/kernels/lanes/neon.h"

#include "backend/cpu/kernels/lanes/sums_template.h"

#include "backend/cpu/kernels/transform/init.h"
#include "backend/cpu/kernels/transform/places_template.h"
#include "backend/cpu/kernels/vector/exp_constants.h"

#include <math.h>
#include <string.h>

#define TOGETHER 4 /* queries that a kernel reads a page for */
#define OCTETS 8   /* of a plane: 8 tokens each */
#define OCTET 32   /* bytes */
#define PARTS 16   /* halves of octets */

/* ---- Codes: x[v][half] ----------------------------------------------------------------------------------------------------- */

typedef uint8x16_t plane_codes[OCTETS][2];

INLINE void read_codes(struct place place, plane_codes x) {
    const uint8x16_t mask = vdupq_n_u8((uint8_t)place.cut->mask);
    const int8x16_t low = vdupq_n_s8((int8_t) - (int)place.cut->shift), high = vsubq_s8(low, vdupq_n_s8(4)); /* to the left */
    UNROLL for (size_t half = 0; half < 2; half++) {
        UNROLL for (size_t i = 0; i < 4; i++) {
            const size_t v = i / 2 * 4 + i % 2;
            uint8x16_t both = vld1q_u8(place.at + i * OCTET + 16 * half);
            x[v][half] = vandq_u8(vshlq_u8(both, low), mask);
            x[v + 2][half] = vandq_u8(vshlq_u8(both, high), mask);
        }
    }
}

/* ---- Gains --------------------------------------------------------------------------------------------------------------- */

INLINE void read_gains(const uint8_t *codes, float least, float step, float *gains) {
    for (size_t t = 0; t < PAGE_TOKENS; t += LANES) {
        uint32x4_t code = vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(codes + t))));
        vec_store(gains + t, vec_fma(vec_set(step), vcvtq_f32_u32(code), vec_set(least)));
    }
}

static void gains_neon(const uint8_t codes[64], float least, float step, float gains[64]) {
    prefetch_step(codes, 0, 64);
    read_gains(codes, least, step, gains);
}

/* ---- Keys: a register of products has two tokens. A sum of eight planes is at most 8 * 127 * 15 ------------------------------- */

/* Adds to logits the products of a step's planes, whose codes are codes[planes]. */
INLINE void score_step(size_t R, size_t planes, size_t step, const plane_codes *codes, const struct transform_query *queries,
                       float *logits) {
    for (size_t v = 0; v < OCTETS; v++) {
        int16x8_t sum[TOGETHER][4];
        UNROLL for (size_t m = 0; m < R; m++) { UNROLL for (size_t i = 0; i < 4; i++) sum[m][i] = vdupq_n_s16(0); }
        for (size_t p = 0; p < planes; p++) {
            int8x16_t x[2] = {vreinterpretq_s8_u8(codes[p][v][0]), vreinterpretq_s8_u8(codes[p][v][1])};
            UNROLL for (size_t m = 0; m < R; m++) {
                int8x8_t w =
                    vreinterpret_s8_u8(four_bytes(queries[m].weights + (step * TRANSFORM_STEP_PLANES + p) * TRANSFORM_QUAD));
                UNROLL for (size_t half = 0; half < 2; half++) {
                    sum[m][2 * half] = vmlal_s8(sum[m][2 * half], vget_low_s8(x[half]), w);
                    sum[m][2 * half + 1] = vmlal_s8(sum[m][2 * half + 1], vget_high_s8(x[half]), w);
                }
            }
        }
        UNROLL for (size_t m = 0; m < R; m++) {
            const vec by = vec_set(queries[m].steps[step]);
            const int32x4_t bias = vdupq_n_s32(queries[m].bias[step]);
            UNROLL for (size_t half = 0; half < 2; half++) {
                float *to = logits + m * PAGE_TOKENS + v * 8 + half * LANES;
                int32x4_t all = vpaddq_s32(vpaddlq_s16(sum[m][2 * half]), vpaddlq_s16(sum[m][2 * half + 1]));
                all = vaddq_s32(vaddq_s32(all, all), bias);
                vec_store(to, vec_fma(by, vcvtq_f32_s32(all), vec_load(to)));
            }
        }
    }
}

INLINE void score_queries(size_t R, const struct transform_layout *layout, const uint8_t *codes, const float *gains,
                          const struct transform_query *queries, bool ahead, float *logits) {
    memset(logits, 0, R * PAGE_TOKENS * sizeof *logits);
    for (size_t first = 0; first < layout->planes; first += TRANSFORM_STEP_PLANES) {
        plane_codes x[TRANSFORM_STEP_PLANES];
        const size_t planes = SMALLER(TRANSFORM_STEP_PLANES, layout->planes - first);
        for (size_t p = 0; p < planes; p++) {
            if (ahead) prefetch_plane(layout, first + p, codes);
            read_codes(place_of(&layout->plane[first + p], codes), x[p]);
        }
        score_step(R, planes, first / TRANSFORM_STEP_PLANES, (const plane_codes *)x, queries, logits);
    }
    UNROLL for (size_t m = 0; m < R; m++) {
        for (size_t t = 0; t < PAGE_TOKENS; t += LANES) {
            float *to = logits + m * PAGE_TOKENS + t;
            vec_store(to, vec_fma(vec_load(gains + t), vec_load(to), vec_set(queries[m].offset)));
        }
    }
}

static uint16_t rank_neon(const struct transform_layout *layout, const void *page, float least, float step,
                          const struct transform_query *query, const float *added, uint16_t ranks[64]) {
    float gains[PAGE_TOKENS], logits[PAGE_TOKENS];
    read_gains(page, least, step, gains);
    score_queries(1, layout, (const uint8_t *)page + PAGE_TOKENS, gains, query, false, logits);
    uint16x4_t most = vdup_n_u16(0);
    for (size_t t = 0; t < PAGE_TOKENS; t += LANES) {
        vec rank = vec_fma(vec_add(vec_load(logits + t), vec_load(added + t)), vec_set(256), vec_set(32768));
        uint16x4_t four = vmin_u16(vqmovun_s32(vcvtnq_s32_f32(rank)), vdup_n_u16(TRANSFORM_RANK_MOST));
        most = vmax_u16(most, four);
        vst1_u16(ranks + t, four);
    }
    return vmaxv_u16(most);
}

/* ---- Values: a register of products has two components of four tokens. A sum of 16 is at most 16 * 255 * 15 -------------------- */

/* Computes exp(logits - base). */
INLINE vec weights_of(vec logits, vec base) {
    vec t = vmaxq_f32(vec_set(EXP2_LOWEST), vec_mul(vec_set(EXP_LOG2_E), vsubq_f32(logits, base))), whole = vrndnq_f32(t),
        r = vsubq_f32(t, whole);
    vec p = vec_fma(vec_set(EXP2_SHORT_C3), r, vec_set(EXP2_SHORT_C2));
    p = vec_fma(vec_fma(p, r, vec_set(EXP2_SHORT_C1)), r, vec_set(EXP2_SHORT_C0));
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(whole), 23)));
}

/* Quantizes one row; `upper` is NULL where its integers have 8 bits. `largest_logit`: of the logits that `weights` then are, or
 * NULL. */
INLINE float quantize_row(const float *weights, const float *largest_logit, const float *gains, float whole, uint8_t *upper,
                          uint8_t *lower, float *scale) {
    const bool none = largest_logit && *largest_logit == -INFINITY;
    const vec base = vec_set(none || !largest_logit ? INFINITY : *largest_logit);
    vec x[PAGE_TOKENS / LANES], sum = vec_zero(), most = vec_zero();
    UNROLL_16 for (size_t v = 0; v < PAGE_TOKENS / LANES; v++) {
        vec w = vec_load(weights + v * LANES);
        if (largest_logit) w = weights_of(w, base);
        sum = vec_add(sum, w);
        x[v] = vec_mul(w, vec_load(gains + v * LANES));
        most = vmaxq_f32(most, x[v]);
    }
    float largest = vmaxvq_f32(most);
    *scale = largest > TRANSFORM_LEAST_WEIGHT ? largest / whole : 0;
    vec inverse = vec_set(largest > TRANSFORM_LEAST_WEIGHT ? whole / largest : 0);
    UNROLL for (size_t v = 0; v < PAGE_TOKENS / LANES; v += 2) {
        uint16x4_t first = vmovn_u32(vcvtnq_u32_f32(vec_mul(x[v], inverse)));
        uint16x4_t second = vmovn_u32(vcvtnq_u32_f32(vec_mul(x[v + 1], inverse)));
        uint16x8_t integers = vcombine_u16(first, second);
        vst1_u8(lower + v * LANES, vmovn_u16(integers));
        if (upper) vst1_u8(upper + v * LANES, vshrn_n_u16(integers, 8));
    }
    return none ? 0 : vaddvq_f32(sum);
}

static void weigh_neon(const float *logits, const float *largest, const float *gains, size_t G, uint8_t *bytes, float *scales,
                       float *sums_of_weights) {
    for (size_t m = 0; m < G; m++)
        sums_of_weights[m] +=
            quantize_row(logits + m * PAGE_TOKENS, &largest[m], gains, 255, NULL, bytes + m * PAGE_TOKENS, &scales[m]);
}

static void quantize_weights_neon(const float *weights, const float *gains, size_t G, size_t planes, uint8_t *bytes, float *scales,
                                  float *sums_of_weights) {
    for (size_t m = 0; m < G; m++) {
        uint8_t *upper = bytes + m * PAGE_TOKENS;
        if (planes == 1) {
            sums_of_weights[m] += quantize_row(weights + m * PAGE_TOKENS, NULL, gains, 255, NULL, upper, &scales[m]);
            continue;
        }
        float *scale = &scales[G + m];
        sums_of_weights[m] += quantize_row(weights + m * PAGE_TOKENS, NULL, gains, 65535, upper, upper + G * PAGE_TOKENS, scale);
        scales[m] = 256 * *scale;
    }
}

/* Adds a plane's sums for R queries. spread[row][part] has four tokens' weights, twice. */
INLINE void add_plane(size_t R, uint8x8_t (*spread)[PARTS], const int32_t *sum_of_weights, plane_codes x, int32_t most,
                      const float *scales, size_t row, float *out) {
    UNROLL for (size_t m = 0; m < R; m++) {
        uint16x8_t low = vdupq_n_u16(0), high = vdupq_n_u16(0);
        UNROLL_16 for (size_t i = 0; i < PARTS; i++) {
            low = vmlal_u8(low, vget_low_u8(x[i / 2][i % 2]), spread[m][i]);
            high = vmlal_u8(high, vget_high_u8(x[i / 2][i % 2]), spread[m][i]);
        }
        int32x4_t all = vreinterpretq_s32_u32(vpaddq_u32(vpaddlq_u16(low), vpaddlq_u16(high)));
        all = vsubq_s32(vaddq_s32(all, all), vdupq_n_s32(most * sum_of_weights[m]));
        vec_store(out + m * row, vec_fma(vec_set(scales[m]), vcvtq_f32_s32(all), vec_load(out + m * row)));
    }
}

INLINE void accumulate_queries(size_t R, const struct transform_layout *layout, const uint8_t *codes, const uint8_t *weights,
                               const float *scales, float *out) {
    const size_t row = (size_t)layout->planes * TRANSFORM_SUM_LANES;
    uint8x8_t spread[TOGETHER][PARTS];
    int32_t sum_of_weights[TOGETHER];
    UNROLL for (size_t m = 0; m < R; m++) {
        sum_of_weights[m] = 0;
        for (size_t i = 0; i < PARTS; i++) {
            spread[m][i] = four_bytes(weights + m * PAGE_TOKENS + i * 4);
            sum_of_weights[m] += vaddlv_u8(spread[m][i]) / 2;
        }
    }
    for (size_t p = 0; p < layout->planes; p++, out += TRANSFORM_SUM_LANES) {
        const struct place place = place_of(&layout->plane[p], codes);
        plane_codes x;
        prefetch_plane(layout, p, codes);
        read_codes(place, x);
        add_plane(R, spread, sum_of_weights, x, (int32_t)transform_most(layout->plane[p].bits), scales, row, out);
    }
}

#include "backend/cpu/kernels/transform/queries_template.h"

/* ---- Gathering, a word of 32 bits at a time: a key's four components of a nibble lie in one, a value's in a byte of four ------------- */

/* A move takes four bits from a slot of a nibble to one of another: the bytes of the first word, and the shifts and mask of each word. */
struct word_move {
    size_t from, to;
    uint32_t right, left; /* shifts, one after the other */
    uint32_t mask;        /* of the bits that are the slot's */
};

/* Returns where a slot's words begin in a nibble, and its lowest bit in them. */
INLINE size_t first_word(bool keys, size_t slot, uint32_t *shift) {
    *shift = (keys ? 0 : 8 * (uint32_t)(slot % 4)) + (uint32_t)(slot / 16 % 2 * 4);
    return (keys ? 4 * (slot % 8) : 16 * (slot % 8 / 4)) + slot / 8 % 2 * 32 + slot / 32 * 64;
}

INLINE struct word_move word_move_of(bool keys, size_t from, size_t to) {
    struct word_move move;
    uint32_t source, target;
    move.from = first_word(keys, from, &source);
    move.to = first_word(keys, to, &target);
    move.right = source > target ? source - target : 0;
    move.left = target > source ? target - source : 0;
    move.mask = (keys ? 0x01010101u : 1u) * 15u << target;
    return move;
}

typedef uint32_t four_words __attribute__((vector_size(16)));

INLINE void move_words(bool keys, struct word_move move, const uint8_t *from, uint8_t *to, size_t nibbles) {
    from += move.from;
    to += move.to;
    const four_words right = {move.right, move.right, move.right, move.right}, left = {move.left, move.left, move.left, move.left},
                     mask = {move.mask, move.mask, move.mask, move.mask};
    for (size_t n = 0; n < nibbles; n++, from += PAGE_TRANSFORM_NIBBLE, to += PAGE_TRANSFORM_NIBBLE) {
        if (keys) {
            uint32_t x, y;
            memcpy(&x, from, sizeof x);
            memcpy(&y, to, sizeof y);
            y ^= (y ^ x >> move.right << move.left) & move.mask;
            memcpy(to, &y, sizeof y);
        } else {
            four_words x, y;
            memcpy(&x, from, sizeof x);
            memcpy(&y, to, sizeof y);
            y ^= (y ^ x >> right << left) & mask;
            memcpy(to, &y, sizeof y);
        }
    }
}

static void gather_neon(const struct transform_layout *layout, enum codec_side side, const void *from, const uint8_t *slots,
                        size_t n, void *to, size_t at) {
    for (size_t k = 0; k < n; k++) {
        if (side == CODEC_KEYS)
            move_words(true, word_move_of(true, slots[k], at + k), from, to, layout->nibbles);
        else
            move_words(false, word_move_of(false, slots[k], at + k), from, to, layout->nibbles);
    }
}

void transform_init_neon(struct transform_ops *ops) {
    ops->gains = gains_neon;
    ops->score = score_neon;
    ops->rank = rank_neon;
    ops->quantize_weights = quantize_weights_neon;
    ops->weigh = weigh_neon;
    ops->accumulate = accumulate_neon;
    ops->gather = gather_neon;
}
