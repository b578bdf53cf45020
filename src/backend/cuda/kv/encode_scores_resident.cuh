/* Finds codes of sub-vectors of 4 channels with 512 to 4,096 centroids, for encode_centroids.cu: a block keeps the centroids of one sub-vector in
 * shared memory and goes through pages, a warp with each. Tensor cores score all centroids, and the search's exact sums (format/pq.h) decide among
 * the few that may be nearest.
 *
 * One product m16n8k16 gives scores of 16 tokens and 8 centroids. Let y = h + l + d, where h is y rounded to halves and l what this leaves, o the
 * origin, and c a centroid, halves as they are, so that z = (c - o) scale; n is `half` as two halves. A score is
 *
 *     bias + n / scale - <h + l, c> = bias - <h + l, o> + (value + <d, z>) / scale
 *
 * in real numbers and for exact n. It has 11 products: 4 of h, 4 of l, 2 of n, and the bias by 1; so sums begin with zero. The same eight
 * rows are both halves of the right operand. Of a run, the 32 centroids of a group of 128 that a lane scores, the least score is kept, and of a
 * lane's runs the three least, with the number of the group in their lowest bits. Then a lane decides for each of its two tokens. Where the third
 * of a lane's runs may have the nearest centroid, so may those that are not kept: all centroids are decided among.
 *
 * The bound, as in encode_scores_wide.cuh: |z| is at most sqrt(2 most), where `most` is the sub-vector's largest half, so |<d, z>| <= |d| sqrt(2
 * most). Let R = <|h| + |l|, |o|> + norm(|h| + |l|) sqrt(2 most) / scale and H = most / scale. The bias, a half, is at least 1.125 (R + H): scores
 * are positive, so that they are compared as integers, and no summand or partial sum is larger than P = 2 bias. With a unit of 2^-23 P: tensor
 * cores align the summands of a product to the largest one and cut off what is below, less than a unit for each of 11, and again for each of at
 * most as many partial sums; n is within 2 units; the exact search's sums round by half a unit for each channel at most, and its z and half by a
 * unit together. So two scores differ from what the values say by less than 2 * 27 units and 2 |d| sqrt(2 most) / scale. The lowest 5 bits, and
 * rounding the limit, are 64 units more. 128 are allowed. Where the bias or 1 / scale are outside of the halves' range, as the bias is where a number
 * is, all centroids are decided among. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_SCORES_RESIDENT_CUH
#define TERSE_BACKEND_CUDA_KV_ENCODE_SCORES_RESIDENT_CUH

#include "backend/cuda/kv/encode_shapes.cuh"

constexpr uint32_t RESIDENT_WIDTH = 4, RESIDENT_LEAST = 512, RESIDENT_MOST = 4096; /* channels, centroids */
constexpr uint32_t RESIDENT_RUN = 32, RESIDENT_GROUP = 4 * RESIDENT_RUN;
constexpr uint32_t RESIDENT_KEPT = 3;                                    /* runs of a lane */
constexpr int RESIDENT_BITS = (int)(RESIDENT_MOST / RESIDENT_GROUP) - 1; /* of a score, where the group's number is */
constexpr int RESIDENT_NONE = 0x7fffffff;

/* A record is eight halves, a column of half of the right operand: a centroid's 4 channels, its half as two halves, one and zero. */
struct resident_memory {
    uint4 records[RESIDENT_MOST]; /* in the order of resident_place */
    struct {
        union {
            uint32_t operands[2][PAGE_TOKENS][4]; /* words of the left operand's rows, columns 0 to 7 and 8 to 15 */
            int least[RESIDENT_KEPT][PAGE_TOKENS][4];
        };
        uint16_t codes[PAGE_TOKENS];
    } of[WARPS];
};

/* Returns where the j-th centroid's record is, so that a lane's columns are 32 consecutive centroids of a group. */
static __device__ inline uint32_t resident_place(uint32_t j) {
    return j / RESIDENT_GROUP * RESIDENT_GROUP + j % RESIDENT_RUN / 2 * 8 + j / RESIDENT_RUN % 4 * 2 + j % 2;
}

/* A resident_part is what a lane reads of a sub-vector. */
struct resident_part {
    const float *half; /* [k] */
    float origin[RESIDENT_WIDTH], scale, most;
    uint32_t k, first; /* centroids; the first channel */
};

static __device__ inline struct resident_part resident_part_of(const struct centroid_view &view, uint32_t part) {
    struct resident_part own;
    own.k = 1u << view.shape.bits;
    own.first = RESIDENT_WIDTH * part;
    own.half = view.half + (size_t)part * own.k;
#pragma unroll
    for (uint32_t c = 0; c < RESIDENT_WIDTH; c++) own.origin[c] = view.origin[own.first + c];
    own.scale = view.scale[part];
    own.most = view.most[part];
    return own;
}

/* Makes, by a block, the records of a sub-vector. */
static __device__ inline void make_records(const struct centroid_view &view, const struct resident_part &part, uint32_t head_dim,
                                           uint4 *records) {
    const device_half *const from = view.centroids + part.first;
#pragma unroll 4
    for (uint32_t j = threadIdx.x; j < part.k; j += TRANSFORM_THREADS) {
        const uint2 c = __ldg((const uint2 *)(from + (size_t)j * head_dim));
        const float half = __ldg(part.half + j);
        records[resident_place(j)] = make_uint4(c.x, c.y, two_halves(half, rest_of_half(half)), 0x3c00);
    }
}

/* A resident_token is what the decision needs of a token. */
struct resident_token {
    float y[RESIDENT_WIDTH];
    float within; /* how far above the least score those may be that are decided among; negative: all */
};

/* Makes a token's numbers of its row's 4 halves, and writes its row of the left operand. */
static __device__ inline struct resident_token prepare_token(const struct resident_part &part, uint2 row, uint32_t (&low)[4],
                                                             uint32_t (&high)[4]) {
    const float inverse = 1 / part.scale, reach = sqrtf(2 * part.most) * inverse;
    struct resident_token token;
    float left[RESIDENT_WIDTH], square = 0, rest = 0, shift = 0;
    spread_halves(row.x, &token.y[0], &token.y[1]);
    spread_halves(row.y, &token.y[2], &token.y[3]);
#pragma unroll
    for (uint32_t c = 0; c < RESIDENT_WIDTH; c++) {
        const float y = token.y[c] = (token.y[c] - part.origin[c]) * part.scale;
        left[c] = rest_of_half(y);
        const float d = rest_of_half(left[c]), size = fabsf(y - left[c]) + fabsf(left[c] - d);
        square = fmaf(size, size, square);
        rest = fmaf(d, d, rest);
        shift = fmaf(size, fabsf(part.origin[c]), shift);
    }
    const float range = fmaf(sqrtf(square), reach, shift), wide = 1.13f * (range + part.most * inverse) + 0x1p-24f;
    const float bias = wide - rest_of_half(wide);
    const bool bounded = bias < 0x1p15f && inverse >= 0x1p-24f && inverse <= 0x1p15f;
    low[0] = two_halves(-token.y[0], -token.y[1]), low[1] = two_halves(-token.y[2], -token.y[3]);
    low[2] = two_halves(inverse, inverse), low[3] = two_halves(bias, 0);
    high[0] = two_halves(-left[0], -left[1]), high[1] = two_halves(-left[2], -left[3]);
    high[2] = high[3] = 0;
    token.within = bounded ? fmaf(2.002f * sqrtf(rest), reach, bias * (128 * 0x1p-22f)) : -1;
    return token;
}

/* Scores, by a warp, all centroids for 64 tokens: least[i][row] is of token 8 row + lane / 4. */
static __device__ inline void score_resident(const uint4 *records, uint32_t k, const uint32_t (&operands)[2][PAGE_TOKENS][4],
                                             int (&least)[RESIDENT_KEPT][8]) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t a[4][4];
#pragma unroll
    for (uint32_t row = 0; row < 8; row++) {
        a[row / 2][row % 2] = operands[0][8 * row + g][t];
        a[row / 2][row % 2 + 2] = operands[1][8 * row + g][t];
    }
#pragma unroll
    for (uint32_t i = 0; i < RESIDENT_KEPT * 8; i++) least[i / 8][i % 8] = RESIDENT_NONE;
    const uint32_t own = shared_address(records + lane / 16 * 8 + lane % 8); /* of two tiles of 8 centroids, each twice */
#pragma unroll 1
    for (uint32_t first = 0; first < k; first += RESIDENT_GROUP) {
        int run[8];
#pragma unroll
        for (uint32_t row = 0; row < 8; row++) run[row] = RESIDENT_NONE;
#pragma unroll
        for (uint32_t two = 0; two < RESIDENT_GROUP; two += 16) {
            uint32_t b[4];
            load_matrices(b, own + (first + two) * (uint32_t)sizeof *records);
#pragma unroll
            for (uint32_t tile = 0; tile < 2; tile++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    const float zeros[4] = {0, 0, 0, 0};
                    float d[4];
                    mma_from(d, zeros, a[i][0], a[i][1], a[i][2], a[i][3], b[2 * tile], b[2 * tile + 1]);
                    run[2 * i] = least_of(run[2 * i], __float_as_int(d[0]), __float_as_int(d[1]));
                    run[2 * i + 1] = least_of(run[2 * i + 1], __float_as_int(d[2]), __float_as_int(d[3]));
                }
        }
#pragma unroll
        for (uint32_t row = 0; row < 8; row++) {
            int more = (run[row] & ~RESIDENT_BITS) | (int)(first / RESIDENT_GROUP);
#pragma unroll
            for (uint32_t i = 0; i < RESIDENT_KEPT; i++) {
                const int other = max(least[i][row], more);
                least[i][row] = min(least[i][row], more);
                more = other;
            }
        }
    }
}

/* Goes through a run of centroids, from a multiple of 32 on, as the search does. */
static __device__ inline void decide_run(const struct resident_part &part, const uint4 *records, const struct resident_token &token,
                                         uint32_t first, float &best, uint32_t &code) {
    const uint4 *const from = records + resident_place(first);
    float least = INFINITY;
    uint32_t least_code = 0;
#pragma unroll 2
    for (uint32_t j = 0; j < RESIDENT_RUN; j += 4) {
        const float4 halves = __ldg((const float4 *)(part.half + first + j));
        float value[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint2 words = *(const uint2 *)&from[4 * j + resident_place(i)];
            float c[RESIDENT_WIDTH];
            spread_halves(words.x, &c[0], &c[1]);
            spread_halves(words.y, &c[2], &c[3]);
#pragma unroll
            for (uint32_t n = 0; n < RESIDENT_WIDTH; n++)
                value[i] = fmaf(-token.y[n], (c[n] - part.origin[n]) * part.scale, value[i]);
            if (value[i] < least) least = value[i], least_code = first + j + i;
        }
    }
    if (least < best || (least == best && least_code < code)) best = least, code = least_code;
}

/* Finds the code of a token by the scores that its quad's lanes kept. */
static __device__ inline uint32_t decide_resident(const struct resident_part &part, const uint4 *records,
                                                  const struct resident_token &token, uint32_t t,
                                                  const int (&kept)[RESIDENT_KEPT][PAGE_TOKENS][4]) {
    int lowest = RESIDENT_NONE;
#pragma unroll
    for (uint32_t lane = 0; lane < 4; lane++) lowest = min(lowest, kept[0][t][lane]);
    const int limit = __float_as_int(__int_as_float(lowest) + token.within);
    bool all = token.within < 0;
    uint32_t left = 0; /* a bit for each run: the lanes' first, their second */
#pragma unroll
    for (uint32_t lane = 0; lane < 4; lane++) {
        if (kept[0][t][lane] <= limit) left |= 1u << lane;
        if (kept[1][t][lane] <= limit) left |= 16u << lane;
        all = all || kept[2][t][lane] <= limit;
    }
    if (all) left = part.k / RESIDENT_RUN; /* how many runs */
    float best = INFINITY;
    uint32_t code = 0;
    while (left) {
        uint32_t run = left - 1;
        if (!all) {
            const uint32_t bit = (uint32_t)__ffs((int)left) - 1;
            run = 4 * (uint32_t)(kept[bit / 4][t][bit % 4] & RESIDENT_BITS) + bit % 4;
        }
        left = all ? left - 1 : left & (left - 1);
        decide_run(part, records, token, RESIDENT_RUN * run, best, code);
    }
    return code;
}

/* Finds, by a warp, the codes of a page's sub-vector: lanes' tokens lane and lane + 32, of `tokens`. */
static __device__ inline void search_resident(const struct resident_part &part, const device_half *rows, size_t token_stride,
                                              uint32_t tokens, resident_memory &m, uint32_t (&code)[2]) {
    auto &own = m.of[threadIdx.x / 32];
    const uint32_t lane = threadIdx.x % 32;
    struct resident_token token[2];
    __syncwarp();
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t t = lane + 32 * r;
        const uint2 row = t < tokens ? *(const uint2 *)(rows + t * token_stride + part.first) : make_uint2(0, 0);
        token[r] = prepare_token(part, row, own.operands[0][t], own.operands[1][t]);
    }
    __syncwarp();
    int least[RESIDENT_KEPT][8];
    score_resident(m.records, part.k, own.operands, least);
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < RESIDENT_KEPT * 8; i++) own.least[i / 8][i % 8 * 8 + lane / 4][lane % 4] = least[i / 8][i % 8];
    __syncwarp();
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) code[r] = decide_resident(part, m.records, token[r], lane + 32 * r, own.least);
}

#endif
