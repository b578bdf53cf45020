/* Finds codes of sub-vectors of 16 or 32 channels, for encode_centroids.cu: tensor cores score all centroids, and the search's exact sums
 * (format/pq.h) decide among the few that may be nearest.
 *
 * A block goes through the centroids as they lie in memory, as halves, a step at a time: the next step is copied to shared memory while one is
 * scored. A warp has one sub-vector and every `shares`-th group of centroids; where a head has more than 128 channels, the block goes through
 * the centroids once for each 128. Of a run, the 16 centroids of a group that a lane scores, the least score is kept, and of a lane's runs the
 * three least, with the number of the group in their lowest bits. Then half a warp decides for each token, a lane for each centroid of a run.
 * Where the third of a lane's runs may have the nearest centroid, so may those that are not kept: all centroids are decided among.
 *
 * The bound: let h be y rounded to halves, d = y - h, o the origin, and c a centroid, so that z = (c - o) scale. A score is
 *
 *     bias + half / scale - <h, c> = bias - <h, o> + (value + <d, z>) / scale
 *
 * in real numbers, of which bias and <h, o> are the same for all centroids. |z| is at most sqrt(2 most), where `most` is the largest half of the
 * sub-vector, so |<d, z>| <= |d| sqrt(2 most). All magnitudes of products and of their partial sums are below R = sum |h o| + |h| sqrt(2 most) /
 * scale, and halves below H = most / scale. The bias is 1.125 (R + H) with the largest R of the rows that have it, half of the warp's (with one
 * bias for all, the compiler would copy each product's first summand): scores are positive, so that they are compared as integers, and no
 * summand or partial sum is larger than P = 2 bias. With a unit of 2^-23 P: tensor cores align the summands of a product to the largest one and
 * cut off what is below, less than a unit for each of the width + width / 16, and again for each of at most as many partial sums; rounding the
 * first summand takes half a unit; the exact search's sums round by half a unit for each channel at most, and its z and half by a unit together.
 * So two scores differ from what the values say by less than 2 (2.7 width + 2) units and 2 |d| sqrt(2 most) / scale. The lowest 6 bits, and
 * rounding the limit, are 128 units more. 6 width + 144 are allowed. Rows whose |y| sum up to 2^15 or more are outside of the halves' range: all
 * centroids are decided among. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_SCORES_WIDE_CUH
#define TERSE_BACKEND_CUDA_KV_ENCODE_SCORES_WIDE_CUH

#include "backend/cuda/kv/encode_scores.cuh"

constexpr uint32_t WIDE_KEPT = 3; /* runs of a lane */
constexpr int GROUP_BITS = 63;    /* of a score, where the group's number is: of 4,096 centroids there are 64 */
constexpr int NO_SCORE = 0x7fffffff;

template <int HD, int WIDTH> struct wide_memory {
    static constexpr uint32_t window = HD < 128 ? HD : 128, parts = window / WIDTH; /* channels and sub-vectors at a time */
    static constexpr uint32_t shares = WARPS / parts, step_centroids = SCORE_GROUP * shares;
    static constexpr uint32_t chunks = window / 8; /* of a row, 16 bytes each; one more brings rows to different banks */
    struct step {
        uint4 rows[step_centroids][chunks + 1];
        float half[parts][step_centroids];
    };
    union {
        struct step steps[2];
        struct {
            int least[WIDE_KEPT][WARPS][PAGE_TOKENS][4]; /* of each token the scores of a quad's lanes */
            float within[parts][PAGE_TOKENS];
            uint16_t codes[parts][PAGE_TOKENS];
        } found;
    };
};

/* Begins to copy `n` centroids, step_centroids at most, and their halves, of the k of each sub-vector; the pointers are to those of a window. */
template <int HD, int WIDTH>
static __device__ void copy_step(const device_half *centroids, const float *half, uint32_t n, uint32_t k,
                                 typename wide_memory<HD, WIDTH>::step &to) {
    using memory = wide_memory<HD, WIDTH>;
    constexpr uint32_t chunks = memory::chunks, together = TRANSFORM_THREADS / chunks, quads = memory::step_centroids / 4;
    static_assert(memory::parts * quads <= TRANSFORM_THREADS, "a thread copies halves at most once");
    const uint32_t row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
    const device_half *const from = centroids + row * HD + 8 * chunk;
    const uint32_t at = shared_address(&to.rows[row][chunk]);
#pragma unroll
    for (uint32_t i = 0; i < memory::step_centroids; i += together)
        if ((TRANSFORM_THREADS % chunks == 0 || row < together) && (i + together <= memory::step_centroids || row + i < n))
            copy_async<16>(at + i * (uint32_t)sizeof to.rows[0], from + i * HD, row + i < n);
    const uint32_t part = threadIdx.x / quads, j = threadIdx.x % quads * 4;
    if (part < memory::parts && j < n) copy_async<16>(shared_address(&to.half[part][j]), half + part * k + j);
    commit_copies();
}

/* A wide_rows has a lane's part of the left operands of all 64 tokens, -y. Row 2 i + h is token 16 i + 8 h + lane / 4. */
template <int WIDTH> struct wide_rows {
    uint32_t a[4][WIDTH / 4];
    float bias[2];   /* of even rows, of odd ones */
    float within[8]; /* how far above the least score those may be that are decided among; negative: all */
};

static __device__ inline float sum_of_quad(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

template <int WIDTH>
static __device__ struct wide_rows<WIDTH> wide_rows_of(const struct centroid_view &view, uint32_t part,
                                                       const float (*numbers)[NUMBERS_STRIDE]) {
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float inverse = 1 / view.scale[part], most = view.most[part], reach = sqrtf(2 * most) * inverse;
    struct wide_rows<WIDTH> rows;
    float range[2] = {0, 0};
#pragma unroll
    for (uint32_t row = 0; row < 8; row++) {
        float sum = 0, square = 0, rest = 0, shift = 0;
#pragma unroll
        for (uint32_t q = 0; q < WIDTH / 8; q++) {
            const uint32_t c = part * WIDTH + 8 * q + 2 * t;
            float y[2];
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                y[i] = -numbers[c + i][8 * row + g];
                const float d = rest_of_half(y[i]), h = y[i] - d;
                sum = sum + fabsf(y[i]);
                square = fmaf(h, h, square);
                rest = fmaf(d, d, rest);
                shift = fmaf(fabsf(h), fabsf(view.origin[c + i]), shift);
            }
            rows.a[row / 2][2 * q + row % 2] = two_halves(y[0], y[1]);
        }
        const bool bounded = sum_of_quad(sum) < 0x1p15f;
        const float own = fmaf(sqrtf(sum_of_quad(square)), reach, sum_of_quad(shift));
        rest = sum_of_quad(rest);
        rows.within[row] = bounded ? 2.002f * sqrtf(rest) * reach : -1;
        if (bounded) range[row % 2] = fmaxf(range[row % 2], own);
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        for (int lanes = 4; lanes < 32; lanes *= 2) range[i] = fmaxf(range[i], __shfl_xor_sync(~0u, range[i], lanes));
        rows.bias[i] = 1.125f * (range[i] + most * inverse) + 0x1p-100f;
    }
#pragma unroll
    for (uint32_t row = 0; row < 8; row++)
        if (rows.within[row] >= 0) rows.within[row] += rows.bias[row % 2] * (6 * WIDTH + 144) * 0x1p-22f;
    return rows;
}

/* Scores a group, whose rows of centroids and halves these are, and keeps what its runs have. `part` counts from the window's first. */
template <int HD, int WIDTH>
static __device__ void score_group(const struct wide_rows<WIDTH> &rows,
                                   const uint4 (*centroids)[wide_memory<HD, WIDTH>::chunks + 1], const float *half, uint32_t part,
                                   uint32_t group, float inverse, int (&least)[WIDE_KEPT][8]) {
    constexpr uint32_t chunks = WIDTH / 8, together = 4 / chunks; /* of a centroid; tiles of which a lane loads all words at once */
    const uint32_t lane = threadIdx.x % 32, matrix = lane / 8;
    const uint32_t from = shared_address(&centroids[matrix / chunks * 8 + lane % 8][part * chunks + matrix % chunks]);
    int run[8];
#pragma unroll
    for (uint32_t row = 0; row < 8; row++) run[row] = NO_SCORE;
#pragma unroll
    for (uint32_t first = 0; first < 8; first += together) {
        uint32_t b[4];
        load_matrices(b, from + first * 8 * (uint32_t)sizeof *centroids);
#pragma unroll
        for (uint32_t tile = 0; tile < together; tile++) {
            const float2 halves = *(const float2 *)&half[8 * (first + tile) + 2 * (lane % 4)];
            const float from_halves[4] = {fmaf(halves.x, inverse, rows.bias[0]), fmaf(halves.y, inverse, rows.bias[0]),
                                          fmaf(halves.x, inverse, rows.bias[1]), fmaf(halves.y, inverse, rows.bias[1])};
            float d[4][4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                mma_from(d[i], from_halves, rows.a[i][0], rows.a[i][1], rows.a[i][2], rows.a[i][3], b[tile * chunks],
                         b[tile * chunks + 1]);
            if constexpr (WIDTH == 32)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) mma(d[i], rows.a[i][4], rows.a[i][5], rows.a[i][6], rows.a[i][7], b[2], b[3]);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                run[2 * i] = least_of(run[2 * i], __float_as_int(d[i][0]), __float_as_int(d[i][1]));
                run[2 * i + 1] = least_of(run[2 * i + 1], __float_as_int(d[i][2]), __float_as_int(d[i][3]));
            }
        }
    }
#pragma unroll
    for (uint32_t row = 0; row < 8; row++) {
        int more = (run[row] & ~GROUP_BITS) | (int)group;
#pragma unroll
        for (uint32_t i = 0; i < WIDE_KEPT; i++) {
            const int other = max(least[i][row], more);
            least[i][row] = min(least[i][row], more);
            more = other;
        }
    }
}

/* Scores, by a block, all centroids for the sub-vectors of a window; what it finds is in m.found after the next barrier. */
template <int HD, int WIDTH>
static __device__ void score_window(const struct centroid_view &view, uint32_t window, const float (*numbers)[NUMBERS_STRIDE],
                                    wide_memory<HD, WIDTH> &m) {
    using memory = wide_memory<HD, WIDTH>;
    const uint32_t k = 1u << view.shape.bits, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t part = warp / memory::shares, share = warp % memory::shares;
    const bool works = part < memory::parts;
    const uint32_t numbered = window / WIDTH + (works ? part : 0), n = min(memory::step_centroids, k);
    const device_half *const centroids = view.centroids + window;
    const float *const halves = view.half + window / WIDTH * k;
    copy_step<HD, WIDTH>(centroids, halves, n, k, m.steps[0]);
    const struct wide_rows<WIDTH> rows = wide_rows_of<WIDTH>(view, numbered, numbers);
    const float inverse = 1 / view.scale[numbered];
    int least[WIDE_KEPT][8];
#pragma unroll
    for (uint32_t i = 0; i < WIDE_KEPT * 8; i++) least[i / 8][i % 8] = NO_SCORE;
#pragma unroll 1
    for (uint32_t first = 0, at = 0; first < k; first += memory::step_centroids, at ^= 1) {
        wait_copies<0>();
        __syncthreads(); /* and the step before has been scored */
        const uint32_t next = first + memory::step_centroids;
        if (next < k) copy_step<HD, WIDTH>(centroids + next * HD, halves + next, n, k, m.steps[at ^ 1]);
        const uint32_t own = SCORE_GROUP * share;
        if (works && first + own < k)
            score_group<HD, WIDTH>(rows, m.steps[at].rows + own, m.steps[at].half[part] + own, part, (first + own) / SCORE_GROUP,
                                   inverse, least);
    }
    __syncthreads();
    if (!works) return;
#pragma unroll
    for (uint32_t row = 0; row < 8; row++) {
        const uint32_t token = 8 * row + lane / 4;
#pragma unroll
        for (uint32_t i = 0; i < WIDE_KEPT; i++) m.found.least[i][warp][token][lane % 4] = least[i][row];
        if (share == 0 && lane % 4 == 0) m.found.within[part][token] = rows.within[row];
    }
}

/* A wide_part is what the exact search reads of a sub-vector. */
template <int WIDTH> struct wide_part {
    const device_half *centroids;           /* [k], HD halves from one to the next */
    const float *half;                      /* [k] */
    const float (*numbers)[NUMBERS_STRIDE]; /* [WIDTH], y */
    float origin[WIDTH], scale;
};

template <int HD, int WIDTH>
static __device__ struct wide_part<WIDTH> wide_part_of(const struct centroid_view &view, uint32_t part,
                                                       const float (*numbers)[NUMBERS_STRIDE]) {
    struct wide_part<WIDTH> own;
    own.centroids = view.centroids + part * WIDTH;
    own.half = view.half + ((size_t)part << view.shape.bits);
    own.numbers = numbers + part * WIDTH;
#pragma unroll
    for (uint32_t c = 0; c < WIDTH; c++) own.origin[c] = view.origin[part * WIDTH + c];
    own.scale = view.scale[part];
    return own;
}

/* Computes the value (format/pq.h) of centroid j for a token. */
template <int HD, int WIDTH>
static __device__ float exact_value(const struct wide_part<WIDTH> &part, uint32_t token, uint32_t j) {
    const uint4 *const from = (const uint4 *)(part.centroids + (size_t)j * HD);
    float value = __ldg(part.half + j);
#pragma unroll
    for (uint32_t i = 0; i < WIDTH / 8; i++) {
        const uint4 x = __ldg(from + i);
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (uint32_t q = 0; q < 4; q++) {
            const uint32_t c = 8 * i + 2 * q;
            float low, high;
            spread_halves(words[q], &low, &high);
            value = fmaf(-part.numbers[c][token], (low - part.origin[c]) * part.scale, value);
            value = fmaf(-part.numbers[c + 1][token], (high - part.origin[c + 1]) * part.scale, value);
        }
    }
    return value;
}

/* Finds, by half a warp, the code of a token, of which each lane of the half has some runs' least scores; 0 where there is no token, as `any`
 * says. All lanes of the warp call this. */
template <int HD, int WIDTH>
static __device__ uint32_t decide(const struct wide_part<WIDTH> &part, uint32_t k, const int (&least)[WIDE_KEPT], float within,
                                  uint32_t token, bool any) {
    const uint32_t lane = threadIdx.x % 16, half = threadIdx.x % 32 / 16 * 16;
    int lowest = least[0];
    for (int lanes = 8; lanes; lanes /= 2) lowest = min(lowest, __shfl_xor_sync(~0u, lowest, lanes));
    const int limit = __float_as_int(__int_as_float(lowest) + within);
    uint32_t near[WIDE_KEPT]; /* a bit for each lane */
#pragma unroll
    for (uint32_t i = 0; i < WIDE_KEPT; i++) near[i] = __ballot_sync(~0u, least[i] <= limit) >> half & 0xffff;
    const bool all = within < 0 || near[2];
    uint32_t left = !any  ? 0
                    : all ? k / 16
                          : near[0] | near[1] << 16; /* how many times 16, or runs: the lanes' first, their second */
    float best = INFINITY;
    uint32_t code = 0;
    while (__any_sync(~0u, left != 0)) {
        const uint32_t bit = left ? (uint32_t)__ffs((int)left) - 1 : 0;
        const int of_run = __shfl_sync(~0u, bit < 16 ? least[0] : least[1], (int)(half + bit % 16));
        if (!left) continue;
        const uint32_t in_group = bit % 4 * 2 + lane / 2 * 8 + lane % 2;
        const uint32_t j = all ? (left - 1) * 16 + lane : (uint32_t)(of_run & GROUP_BITS) * SCORE_GROUP + in_group;
        left = all ? left - 1 : left & (left - 1);
        const float value = exact_value<HD, WIDTH>(part, token, j);
        if (value < best || (value == best && j < code)) best = value, code = j;
    }
    float of_all = best;
    for (int lanes = 8; lanes; lanes /= 2) of_all = fminf(of_all, __shfl_xor_sync(~0u, of_all, lanes));
    if (best != of_all) code = ~0u;
    for (int lanes = 8; lanes; lanes /= 2) code = min(code, __shfl_xor_sync(~0u, code, lanes));
    return code;
}

/* Decides, by a block, about the sub-vectors of a window, of which a warp has one, alone or with others. */
template <int HD, int WIDTH>
static __device__ void decide_window(const struct centroid_view &view, uint32_t window, uint32_t tokens,
                                     const float (*numbers)[NUMBERS_STRIDE], wide_memory<HD, WIDTH> &m) {
    constexpr uint32_t shares = wide_memory<HD, WIDTH>::shares;
    const uint32_t warp = threadIdx.x / 32, part = warp / shares, lane = threadIdx.x % 16, k = 1u << view.shape.bits;
    if (part >= wide_memory<HD, WIDTH>::parts) return;
    const struct wide_part<WIDTH> own = wide_part_of<HD, WIDTH>(view, window / WIDTH + part, numbers);
#pragma unroll 1
    for (uint32_t first = warp % shares * 2; first < PAGE_TOKENS; first += shares * 2) {
        const uint32_t token = first + threadIdx.x % 32 / 16;
        int least[WIDE_KEPT];
#pragma unroll
        for (uint32_t i = 0; i < WIDE_KEPT; i++)
            least[i] = lane < 4 * shares ? m.found.least[i][part * shares + lane / 4][token][lane % 4] : NO_SCORE;
        const uint32_t code = decide<HD, WIDTH>(own, k, least, m.found.within[part][token], token, token < tokens);
        if (lane == 0) m.found.codes[part][token] = (uint16_t)code;
    }
}

/* Finds and writes, by a block, the codes of all sub-vectors, of WIDTH channels, with at least 64 centroids each. */
template <int HD, int WIDTH>
static __device__ void search_wide(const struct centroid_view &view, uint32_t tokens, float (*numbers)[NUMBERS_STRIDE],
                                   wide_memory<HD, WIDTH> &m, uint8_t *bytes) {
    using memory = wide_memory<HD, WIDTH>;
    for (uint32_t c = threadIdx.x / PAGE_TOKENS; c < HD; c += TOKEN_PARTS) {
        float &y = numbers[c][threadIdx.x % PAGE_TOKENS];
        y = (y - view.origin[c]) * view.scale[c / WIDTH];
    }
    __syncthreads();
    for (uint32_t window = 0; window < HD; window += memory::window) {
        score_window<HD, WIDTH>(view, window, numbers, m);
        __syncthreads();
        decide_window<HD, WIDTH>(view, window, tokens, numbers, m);
        __syncthreads();
        const uint32_t part = threadIdx.x / 32;
        if (part < memory::parts)
            write_codes(m.found.codes[part], view.shape.bits, bytes + (window / WIDTH + part) * PAGE_PQ_PART(view.shape.bits));
        __syncthreads();
    }
}

#endif
