/* Finds the codes of one round of CommVQ's keys, by a warp for 8 tokens, and the sums of their codewords, for encode_commvq.cu. Lane 4 g + t
 * has a quarter of the sub-vector's pairs of token g, the t-th, which lie together in a row of a table (struct commvq_view).
 *
 * Which codeword is nearest is what the CPU's search says (backend/cpu/codec/commvq_search.h): the least of
 *
 *     value[a][b] = half[a][b] - <x, i z[b]> - <x, z[a]>
 *
 * in fp32, each product summed in its order. These sums are only computed where they decide (search_exactly). Before that all values are
 * found in whole units of the round, in integers: numbers of a row times their steps become 16 bits, of which tensor cores multiply the two
 * bytes with the tables' bytes exactly; halves and the products with i z, 16 bits each, are added and compared two at a time. Where a single
 * codeword is within `tolerance` of the least value, no other one can have the least exact value.
 *
 * The bound, for both of two values: a half and a product with i z are off by 1/2 unit each, since they become integers. Let reach be the
 * largest number of a row times its step, times the largest sum of magnitudes of integers of an entry, which no sum of magnitudes of a
 * product exceeds. Each number is off by at most 0.503 / SCALED_MOST of the largest, a product so by 1.54e-5 reach. The exact search's own
 * sums of up to 128 products round by 130 * 2^-24 reach, and what else is multiplied by 8 * 2^-24 reach: together less than 2.4e-5 reach, twice
 * in a value. Values are rounded by 2^-8 units here, and there by 2^-23 of the half. So two values differ from the exact ones by less than
 * 2.02 units + 9.6e-5 reach + 2^-21 halves together; 2.1 + 1e-4 reach + 2^-20 halves are allowed. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_COMMVQ_SEARCH_CUH
#define TERSE_BACKEND_CUDA_KV_ENCODE_COMMVQ_SEARCH_CUH

#include "backend/cuda/kv/encode_shapes.cuh"

template <int HD> constexpr uint32_t SUBVECTOR_PAIRS = HD == 64 ? 32 : 64;
template <int HD> constexpr uint32_t SUBVECTORS = HD / 2 / SUBVECTOR_PAIRS<HD>;
constexpr uint32_t ENTRIES = COMMVQ_ENTRIES, CELLS = ENTRIES * ENTRIES;
constexpr uint32_t WARP_TOKENS = 8, ALL = 0xffffffffu; /* lanes */

constexpr float SCALED_MOST = 32760;                            /* of a row's numbers as integers */
constexpr uint32_t PRODUCT_MOST = 26000;                        /* units of a product with i z; larger ones are searched exactly */
constexpr float HALF_MOST = 6000;                               /* units of a half, less the middle of all */
constexpr float LEAST_SCALED = 0x1p-60f, MOST_SCALED = 0x1p60f; /* rows whose largest number is outside are searched exactly */
constexpr float AS_INTEGER = 0x1.8p23f;                         /* what is added to it has its integer in its lowest bits */
constexpr uint32_t AS_INTEGER_BITS = 0x4b400000;

/* These are the places of a round's numbers in the `limits` of struct commvq_view. Reach is for a row whose largest number times its step is 1. */
enum { INVERSE_UNIT, REACH, TOLERANCE, UNIT };
static_assert(UNIT < COMMVQ_LIMITS, "limits of a round");

/* Returns which word of a round's coarse halves has those of entries a and b, and a and b + 8, where b / 8 is even: four words of eight
 * entries a lie together, as lanes load them. */
static __device__ inline uint32_t coarse_place(uint32_t a, uint32_t b) {
    const uint32_t word = b / 16 * 8 + b % 8;
    return ((a / 8 * (ENTRIES / 2) + word) / 4 * 8 + a % 8) * 4 + word % 4;
}

/* A warp_memory is the shared memory of a warp's search. */
template <int PAIRS> struct warp_memory {
    alignas(16) uint32_t products[WARP_TOKENS][ENTRIES / 2 + 4]; /* with -i z of entries b and b + 8, in units */
    float row[2 * PAIRS];     /* of a token that is searched exactly: real parts, imaginary parts */
    float exact[2 * ENTRIES]; /* its products with z, with i z */
};

/* A lane_numbers has a lane's numbers of its token, or the steps of its pairs. */
template <int PAIRS> struct lane_numbers { float re[PAIRS / 4], im[PAIRS / 4]; };

/* A lane_row has a lane's bytes of a row, four to a word. */
template <int PAIRS> struct lane_row { uint32_t re[PAIRS / 16], im[PAIRS / 16]; };

static __device__ inline const uint8_t *rows_of_round(const struct commvq_view &view, uint32_t part) {
    return view.rows + (size_t)part * ENTRIES * COMMVQ_ROW;
}

template <int PAIRS> static __device__ struct lane_row<PAIRS> load_row(const uint8_t *table, uint32_t entry) {
    const uint4 *const from = (const uint4 *)(table + entry * COMMVQ_ROW + threadIdx.x % 4 * (PAIRS / 2));
    struct lane_row<PAIRS> row;
#pragma unroll
    for (int u = 0; u < PAIRS / 32; u++) {
        const uint4 words = __ldg(from + u);
        row.re[2 * u] = words.x, row.re[2 * u + 1] = words.y, row.im[2 * u] = words.z, row.im[2 * u + 1] = words.w;
    }
    return row;
}

/* Returns the number that a byte of a row stands for, in units of its pair's step. */
static __device__ inline float
number_of(uint32_t word, uint32_t byte) {
    return __uint_as_float(permute(word, 0x4b000000, 0x7650 | byte)) - (0x1p23f + COMMVQ_MIDDLE);
}

/* ---- Numbers as integers */

/* A lane_bytes has the bytes of a lane's numbers as integers, of the lower halves and of the upper ones: what is multiplied with real parts
 * and with imaginary parts for the product with z, and with i z. */
template <int PAIRS> struct lane_bytes { uint32_t low[3][PAIRS / 16], high[3][PAIRS / 16]; /* re, im, -re */ };

/* A token_scale says what becomes of a token's integer products: (product - offset) times `ratio` are units. */
struct token_scale {
    float ratio, tolerance;
    int offset[2]; /* of products with z, with i z: bytes of tables are COMMVQ_MIDDLE too large */
    bool bounded;
};

/* Makes integers of a token's numbers. Limits of the round: see struct commvq_view. */
template <int PAIRS>
static __device__ struct token_scale scale_numbers(const float *limits, const lane_numbers<PAIRS> &x,
                                                   const float (&step)[PAIRS / 4], lane_bytes<PAIRS> &bytes) {
    uint32_t largest = 0; /* a magnitude's bits: those of NaN are larger than any number's */
#pragma unroll
    for (int j = 0; j < PAIRS / 4; j++)
        largest = max(largest, max(__float_as_uint(fabsf(x.re[j] * step[j])), __float_as_uint(fabsf(x.im[j] * step[j]))));
    largest = max(largest, __shfl_xor_sync(ALL, largest, 1));
    largest = max(largest, __shfl_xor_sync(ALL, largest, 2));
    const float most = __uint_as_float(largest);
    struct token_scale scale;
    scale.bounded = most > LEAST_SCALED && most < MOST_SCALED;
    const float by = scale.bounded ? SCALED_MOST / most : 0;
    scale.ratio = most / SCALED_MOST * limits[INVERSE_UNIT];
    scale.tolerance = limits[TOLERANCE] + 1e-4f * (most * limits[REACH]);
    uint32_t re = 0, im = 0; /* sums of all integers and of what makes them integers */
#pragma unroll
    for (int s = 0; s < PAIRS / 16; s++)
#pragma unroll
        for (int kind = 0; kind < 3; kind++) {
            uint32_t four[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int j = 4 * s + i;
                const float number = (kind == 1 ? x.im[j] : kind ? -x.re[j] : x.re[j]) * step[j];
                four[i] = __float_as_uint(fmaf(number, by, AS_INTEGER));
                if (kind == 0) re += four[i];
                if (kind == 1) im += four[i];
            }
            const uint32_t first = permute(four[0], four[1], 0x5140), second = permute(four[2], four[3], 0x5140);
            bytes.low[kind][s] = permute(first, second, 0x5410);
            bytes.high[kind][s] = permute(first, second, 0x7632);
        }
    const int sum_re = (int)(re - PAIRS / 4 * AS_INTEGER_BITS), sum_im = (int)(im - PAIRS / 4 * AS_INTEGER_BITS);
    scale.offset[0] = sum_im + sum_re, scale.offset[1] = sum_im - sum_re;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        scale.offset[i] += __shfl_xor_sync(ALL, scale.offset[i], 1);
        scale.offset[i] += __shfl_xor_sync(ALL, scale.offset[i], 2);
        scale.offset[i] *= COMMVQ_MIDDLE;
    }
    return scale;
}

/* ---- Values in units */

/* Lane 4 g + t has values of tokens 2 t and 2 t + 1 by entries a = 8 k + g. */
struct lane_products {
    float z[8][2];           /* [k][token], in units */
    uint32_t minus_iz[4][2]; /* integers of entries b = 16 m + g and 8 more, [m][token] */
    bool bounded[2];
};

template <int PAIRS>
static __device__ void find_products(const uint8_t *table, const lane_bytes<PAIRS> &x, const struct token_scale (&scale)[2],
                                     struct lane_products &products) {
    const uint32_t g = threadIdx.x % 32 / 4;
    products.bounded[0] = scale[0].bounded, products.bounded[1] = scale[1].bounded;
#pragma unroll
    for (uint32_t m = 0; m < 4; m++) {
        const struct lane_row<PAIRS> row = load_row<PAIRS>(table, 16 * m + g), next = load_row<PAIRS>(table, 16 * m + 8 + g);
        int z[2][4] = {}, iz[2][4] = {}; /* of lower bytes, of upper ones */
#pragma unroll
        for (int s = 0; s < PAIRS / 16; s++) {
            mma_u8(z[0], row.re[s], next.re[s], row.im[s], next.im[s], x.low[0][s], x.low[1][s]);
            mma_u8_s8(z[1], row.re[s], next.re[s], row.im[s], next.im[s], x.high[0][s], x.high[1][s]);
            mma_u8(iz[0], row.re[s], next.re[s], row.im[s], next.im[s], x.low[1][s], x.low[2][s]);
            mma_u8_s8(iz[1], row.re[s], next.re[s], row.im[s], next.im[s], x.high[1][s], x.high[2][s]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t integer[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int at = 2 * r + i;
                products.z[2 * m + r][i] = (float)(z[1][at] * 256 + z[0][at] - scale[i].offset[0]) * scale[i].ratio;
                integer[r] =
                    __float_as_uint(fmaf((float)(iz[1][at] * 256 + iz[0][at] - scale[i].offset[1]), -scale[i].ratio, AS_INTEGER));
                if (integer[r] - (AS_INTEGER_BITS - PRODUCT_MOST) > 2 * PRODUCT_MOST) products.bounded[i] = false;
            }
            products.minus_iz[m][i] = permute(integer[0], integer[1], 0x5410);
        }
    }
}

static __device__ inline int low_integer(uint32_t word) { return (int)(word << 16) >> 16; }
static __device__ inline int high_integer(uint32_t word) { return (int)word >> 16; }

/* Returns the word of halves of entry a and of entries 16 m + g and 8 more, of the lane's g. */
static __device__ inline uint32_t coarse_word(const uint32_t *coarse, uint32_t a, uint32_t m) {
    return __ldg(coarse + coarse_place(a, 16 * m + threadIdx.x % 32 / 4));
}

/* Finds the code of token 2 t + i, if one codeword alone can be the nearest one; all lanes of a column t agree. `least` are the least sums of
 * halves and products with -i z of entries a = 8 k + g. */
static __device__ inline bool decide(const uint32_t *coarse, const struct lane_products &products, const int (&least)[8],
                                     float tolerance, int i, uint32_t *code) {
    const uint32_t lane = threadIdx.x % 32, column = 0x11111111u << lane % 4;
    float value[8], best = INFINITY;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        value[k] = (float)least[k] - products.z[k][i];
        best = fminf(best, value[k]);
    }
    for (int lanes = 4; lanes < 32; lanes *= 2) best = fminf(best, __shfl_xor_sync(ALL, best, lanes));
    uint32_t near = 0;
    int of_near = 0;
#pragma unroll
    for (int k = 7; k >= 0; k--)
        if (value[k] <= best + tolerance) near |= 1u << k, of_near = least[k];
    const uint32_t with = __ballot_sync(ALL, near != 0) & column, several = __ballot_sync(ALL, (near & (near - 1)) != 0) & column;
    const uint32_t from = with ? (uint32_t)__ffs((int)with) - 1 : lane;
    const uint32_t a = 8 * (uint32_t)max(__shfl_sync(ALL, __ffs((int)near) - 1, (int)from), 0) + from / 4;
    const int least_of_a = __shfl_sync(ALL, of_near, (int)from);
    uint32_t found = 0; /* entries b = 8 k + g */
#pragma unroll
    for (uint32_t m = 0; m < 4; m++) {
        const uint32_t half = coarse_word(coarse, a, m), own = products.minus_iz[m][i];
        const int low = low_integer(half) + low_integer(own), high = high_integer(half) + high_integer(own);
        if ((float)(low - least_of_a) <= tolerance) found |= 1u << 2 * m;
        if ((float)(high - least_of_a) <= tolerance) found |= 2u << 2 * m;
    }
    const uint32_t cells = __ballot_sync(ALL, found != 0) & column, more = __ballot_sync(ALL, (found & (found - 1)) != 0) & column;
    const uint32_t at = cells ? (uint32_t)__ffs((int)cells) - 1 : lane;
    const uint32_t b = 8 * (uint32_t)max(__shfl_sync(ALL, __ffs((int)found) - 1, (int)at), 0) + at / 4;
    *code = a | b << 6;
    const uint32_t unbounded = __ballot_sync(ALL, !products.bounded[i]) & column;
    return !(several | more | unbounded) && !(with & (with - 1)) && !(cells & (cells - 1)) && with && cells;
}

/* ---- The exact search */

/* Returns the code of the token of `m.row`: of equally near codewords that of the lowest a, then b. */
template <int PAIRS>
static __device__ uint32_t search_exactly(const struct commvq_view &view, uint32_t part, const float *steps,
                                          warp_memory<PAIRS> &m) {
    const uint32_t lane = threadIdx.x % 32;
    const uint8_t *const rows = rows_of_round(view, part) + lane * COMMVQ_ROW; /* of entries lane and lane + 32 */
    float z[2] = {}, iz[2] = {};
#pragma unroll 1
    for (uint32_t j = 0; j < 2 * PAIRS; j += 8) {
        const bool real = j < PAIRS;
        uint4 words[2];
#pragma unroll
        for (int l = 0; l < 2; l++) words[l] = __ldg((const uint4 *)(rows + 32 * l * COMMVQ_ROW + commvq_place(j % PAIRS)));
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const float x = m.row[j + i], step = steps[j % PAIRS + i];
#pragma unroll
            for (int l = 0; l < 2; l++) {
                const float re = step * number_of(i < 4 ? words[l].x : words[l].y, i % 4),
                            im = step * number_of(i < 4 ? words[l].z : words[l].w, i % 4);
                z[l] = fmaf(x, real ? re : im, z[l]);
                iz[l] = fmaf(x, real ? -im : re, iz[l]);
            }
        }
    }
#pragma unroll
    for (int l = 0; l < 2; l++) m.exact[lane + 32 * l] = z[l], m.exact[ENTRIES + lane + 32 * l] = iz[l];
    __syncwarp();
    float least = INFINITY;
    uint32_t cell = 0;
#pragma unroll 16
    for (uint32_t i = lane; i < CELLS; i += 32) {
        const float value = (view.half[(size_t)part * CELLS + i] - m.exact[ENTRIES + i % ENTRIES]) - m.exact[i / ENTRIES];
        if (value < least) least = value, cell = i;
    }
    for (int lanes = 16; lanes; lanes /= 2) {
        const float other = __shfl_xor_sync(ALL, least, lanes);
        const uint32_t at = __shfl_xor_sync(ALL, cell, lanes);
        if (other < least || (other == least && at < cell)) least = other, cell = at;
    }
    __syncwarp();
    return cell / ENTRIES | cell % ENTRIES << 6;
}

/* ---- A round */

/* Returns the code of the lane's token in a round of a sub-vector, `part`; 0 where it is not among the `tokens`, a bit each. `steps` are the
 * sub-vector's, of which `step` are the lane's. */
template <int PAIRS>
static __device__ uint32_t nearest_codeword(const struct commvq_view &view, uint32_t part, const float *steps,
                                            const float (&step)[PAIRS / 4], uint32_t tokens, const lane_numbers<PAIRS> &x,
                                            warp_memory<PAIRS> &m) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t *const coarse = view.coarse + (size_t)part * (CELLS / 2);
    struct lane_products products;
    struct token_scale scale[2];
    {
        lane_bytes<PAIRS> bytes;
        const struct token_scale own = scale_numbers<PAIRS>(view.limits + part * COMMVQ_LIMITS, x, step, bytes);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int from = (int)(4 * (2 * t + i)); /* a lane of token 2 t + i */
            scale[i].ratio = __shfl_sync(ALL, own.ratio, from), scale[i].tolerance = __shfl_sync(ALL, own.tolerance, from);
            scale[i].offset[0] = __shfl_sync(ALL, own.offset[0], from), scale[i].offset[1] = __shfl_sync(ALL, own.offset[1], from);
            scale[i].bounded = __shfl_sync(ALL, (int)own.bounded, from) != 0;
        }
        find_products<PAIRS>(rows_of_round(view, part), bytes, scale, products);
    }
    __syncwarp(); /* the round before has been read */
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        m.products[2 * t][8 * k + g] = products.minus_iz[k][0], m.products[2 * t + 1][8 * k + g] = products.minus_iz[k][1];
    __syncwarp();
    uint32_t sums[8][2];
#pragma unroll
    for (int k = 0; k < 8; k++) sums[k][0] = sums[k][1] = 0x7fff7fff;
    const uint4 *at = (const uint4 *)coarse + g; /* halves of entry a = g */
    const uint32_t *const own_products = m.products[2 * t], *const next_products = m.products[2 * t + 1];
#pragma unroll 2
    for (uint32_t word = 0; word < ENTRIES / 2; word += 4, at += 8) {
        const uint4 first = *(const uint4 *)(own_products + word), second = *(const uint4 *)(next_products + word);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            const uint4 half = __ldg(at + k * (ENTRIES / 2 * 8 / 4));
            sums[k][0] = least_sums(half.x, first.x, sums[k][0]), sums[k][1] = least_sums(half.x, second.x, sums[k][1]);
            sums[k][0] = least_sums(half.y, first.y, sums[k][0]), sums[k][1] = least_sums(half.y, second.y, sums[k][1]);
            sums[k][0] = least_sums(half.z, first.z, sums[k][0]), sums[k][1] = least_sums(half.z, second.z, sums[k][1]);
            sums[k][0] = least_sums(half.w, first.w, sums[k][0]), sums[k][1] = least_sums(half.w, second.w, sums[k][1]);
        }
    }
    uint32_t code[2], undecided[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int least[8];
#pragma unroll
        for (int k = 0; k < 8; k++) least[k] = min(low_integer(sums[k][i]), high_integer(sums[k][i]));
        const bool decided = decide(coarse, products, least, scale[i].tolerance, i, &code[i]);
        undecided[i] = __ballot_sync(ALL, !decided);
    }
    const uint32_t even = __shfl_sync(ALL, code[0], (int)(g / 2)), odd = __shfl_sync(ALL, code[1], (int)(g / 2));
    uint32_t own = g % 2 ? odd : even;
#pragma unroll 1
    for (uint32_t token = 0; token < WARP_TOKENS; token++) {
        if (!(undecided[token % 2] >> token / 2 & tokens >> token & 1)) continue;
        if (g == token)
#pragma unroll
            for (int j = 0; j < PAIRS / 4; j++) m.row[t * (PAIRS / 4) + j] = x.re[j], m.row[PAIRS + t * (PAIRS / 4) + j] = x.im[j];
        __syncwarp();
        const uint32_t exact = search_exactly<PAIRS>(view, part, steps, m);
        if (g == token) own = exact;
    }
    return tokens >> g & 1 ? own : 0;
}

/* Subtracts a codeword from the lane's numbers. */
template <int PAIRS>
static __device__ void subtract_codeword(const uint8_t *table, uint32_t code, const float (&step)[PAIRS / 4],
                                         lane_numbers<PAIRS> &x) {
    const struct lane_row<PAIRS> a = load_row<PAIRS>(table, code % ENTRIES), b = load_row<PAIRS>(table, code / ENTRIES);
#pragma unroll
    for (int j = 0; j < PAIRS / 4; j++) {
        x.re[j] = x.re[j] - (step[j] * number_of(a.re[j / 4], j % 4) - step[j] * number_of(b.im[j / 4], j % 4));
        x.im[j] = x.im[j] - (step[j] * number_of(a.im[j / 4], j % 4) + step[j] * number_of(b.re[j / 4], j % 4));
    }
}

/* ---- Sums of codewords */

/* Computes a lane's part of the sum of a token's codewords in units of steps, of all rounds of a sub-vector; `codes` are a page's. */
template <int PAIRS>
static __device__ struct lane_numbers<PAIRS> sum_codewords(const struct commvq_view &view, const uint8_t *codes, uint32_t subvector,
                                                           uint32_t token) {
    constexpr uint32_t bytes = 0x00ff00ff;
    uint32_t re[2][PAIRS / 16] = {}, im[2][PAIRS / 16] = {}; /* of even and odd bytes: up to 64 rounds, less than 2^16 */
#pragma unroll 2
    for (uint32_t part = subvector * view.rounds; part < (subvector + 1) * view.rounds; part++) {
        const uint32_t code = code_at(codes + part * COMMVQ_PART, COMMVQ_BITS, token);
        const uint8_t *const table = rows_of_round(view, part);
        const struct lane_row<PAIRS> a = load_row<PAIRS>(table, code % ENTRIES), b = load_row<PAIRS>(table, code / ENTRIES);
#pragma unroll
        for (int s = 0; s < PAIRS / 16; s++)
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                re[odd][s] += (a.re[s] >> 8 * odd & bytes) + (~b.im[s] >> 8 * odd & bytes); /* 255 less a byte */
                im[odd][s] += (a.im[s] >> 8 * odd & bytes) + (b.re[s] >> 8 * odd & bytes);
            }
    }
    struct lane_numbers<PAIRS> sum;
#pragma unroll
    for (int j = 0; j < PAIRS / 4; j++) {
        const int shift = j % 4 / 2 * 16;
        sum.re[j] = (float)((int)(re[j % 2][j / 4] >> shift & 0xffff) - (int)(255 * view.rounds));
        sum.im[j] = (float)((int)(im[j % 2][j / 4] >> shift & 0xffff) - (int)(2 * COMMVQ_MIDDLE * view.rounds));
    }
    return sum;
}

#endif
