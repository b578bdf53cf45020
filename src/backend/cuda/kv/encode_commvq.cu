/* Writes and reads pages of CommVQ's keys: the codes that the CPU's search gives (encode_commvq_search.cuh). Keys come rotated, are rotated
 * back by their own positions and normalized with sums in another order than the CPU's: so now and then another code is nearest, and then
 * the rounds behind it differ, too.
 *
 * A block of 256 threads has a page, a warp 8 of its tokens through all rounds, in registers; warps wait for each other only before. */
#include "backend/cuda/kv/encode_commvq_search.cuh"

template <int HD> struct commvq_memory {
    float numbers[HD][NUMBERS_STRIDE]; /* normalized rows */
    warp_memory<SUBVECTOR_PAIRS<HD>> search[TRANSFORM_THREADS / 32];
    token_sums sums;
    float square[PAGE_TOKENS]; /* of rows before they were normalized */
};

static __device__ inline struct pair_channels channels_of(const struct commvq_view &view, uint32_t pair) {
    if (!view.adjacent && pair < view.rotated_pairs) return {pair, pair + view.rotated_pairs};
    return {2 * pair, 2 * pair + 1};
}

/* ---- Rows */

/* Rotates numbers in the frame of their run back by their offsets from its position and centres them, or (BACK false) the reverse. */
template <int HD, bool BACK>
static __device__ void turn_by_offsets(const struct encode &e, const struct page_job &job, const float *mean,
                                       float (*numbers)[NUMBERS_STRIDE]) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS, part = threadIdx.x / PAGE_TOKENS, pairs = e.heads.n_rot / 2;
    const float2 *const angles = (const float2 *)e.pre_rope.offsets + (size_t)(job.item->set.first % ROPE_RUN_TOKENS + t) * pairs;
    const bool there = t < job.count;
    for (uint32_t pair = part; pair < pairs; pair += TOKEN_PARTS) {
        const struct pair_channels at = channels_of_pair(e.heads, pair);
        const float scale = BACK ? 1 / e.heads.magnitude : e.heads.magnitude;
        const float2 angle = angles[pair];
        float2 x = make_float2(numbers[at.a][t], numbers[at.b][t]);
        if (!BACK) x = make_float2(x.x + mean[at.a], x.y + mean[at.b]);
        x = BACK ? rotate_back(x, angle) : rotate_forth(x, angle);
        x = make_float2(x.x * scale, x.y * scale);
        if (BACK) x = there ? make_float2(x.x - mean[at.a], x.y - mean[at.b]) : make_float2(0, 0);
        numbers[at.a][t] = x.x, numbers[at.b][t] = x.y;
    }
    for (uint32_t c = 2 * pairs + part; c < HD; c += TOKEN_PARTS)
        numbers[c][t] = !BACK ? numbers[c][t] + mean[c] : there ? numbers[c][t] - mean[c] : 0;
    __syncthreads();
}

/* ---- Pages */

static __device__ const struct commvq_view &keys_of(const struct encode &e, const struct page_job &job) {
    return ((const struct commvq_view *)e.learned[job.side])[job.place];
}

/* Calls at(j, channels) for the lane's pairs of a sub-vector. */
template <int HD, class At> static __device__ void each_pair_of_lane(const struct commvq_view &view, uint32_t subvector, At at) {
#pragma unroll
    for (uint32_t j = 0; j < SUBVECTOR_PAIRS<HD> / 4; j++)
        at(j, channels_of(view, subvector * SUBVECTOR_PAIRS<HD> + threadIdx.x % 4 * (SUBVECTOR_PAIRS<HD> / 4) + j));
}

/* Returns the steps of the lane's pairs. */
template <int HD> static __device__ const float *steps_of_lane(const struct commvq_view &view, uint32_t subvector) {
    return view.steps + subvector * SUBVECTOR_PAIRS<HD> + threadIdx.x % 4 * (SUBVECTOR_PAIRS<HD> / 4);
}

/* Writes, by a warp, the codes of its tokens: a byte of each, then half a byte. */
static __device__ inline void write_warp_codes(uint32_t code, uint32_t token, uint8_t *bytes) {
    const uint32_t upper = code >> 8, next = __shfl_down_sync(ALL, upper, 4);
    if (threadIdx.x % 4) return;
    bytes[token] = (uint8_t)code;
    if (token % 2 == 0) bytes[PAGE_TOKENS + token / 2] = (uint8_t)(upper | next << 4);
}

/* Writes, by a warp, the codes of its tokens in all rounds of a sub-vector, and returns the sum of the squares of the shape that they stand
 * for. */
template <int HD>
static __device__ float write_subvector(const struct commvq_view &view, uint32_t subvector, uint32_t tokens,
                                        const float (*numbers)[NUMBERS_STRIDE], warp_memory<SUBVECTOR_PAIRS<HD>> &m,
                                        uint8_t *codes) {
    const uint32_t token = threadIdx.x / 4;
    lane_numbers<SUBVECTOR_PAIRS<HD>> x;
    float step[SUBVECTOR_PAIRS<HD> / 4];
    each_pair_of_lane<HD>(view, subvector, [&](uint32_t j, struct pair_channels at) {
        x.re[j] = numbers[at.a][token], x.im[j] = numbers[at.b][token];
        step[j] = steps_of_lane<HD>(view, subvector)[j];
    });
#pragma unroll 1
    for (uint32_t part = subvector * view.rounds; part < (subvector + 1) * view.rounds; part++) {
        const uint32_t code =
            nearest_codeword<SUBVECTOR_PAIRS<HD>>(view, part, view.steps + subvector * SUBVECTOR_PAIRS<HD>, step, tokens, x, m);
        write_warp_codes(code, token, codes + part * COMMVQ_PART);
        subtract_codeword<SUBVECTOR_PAIRS<HD>>(rows_of_round(view, part), code, step, x);
    }
    __syncwarp();
    const lane_numbers<SUBVECTOR_PAIRS<HD>> sum = sum_codewords<SUBVECTOR_PAIRS<HD>>(view, codes, subvector, token);
    float square = 0;
#pragma unroll
    for (uint32_t j = 0; j < SUBVECTOR_PAIRS<HD> / 4; j++) {
        const float re = step[j] * sum.re[j], im = step[j] * sum.im[j];
        square = square + (re * re + im * im);
    }
    square = square + __shfl_xor_sync(ALL, square, 1);
    return square + __shfl_xor_sync(ALL, square, 2);
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS, 2)
    encode_commvq_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    commvq_memory<HD> &m = *(commvq_memory<HD> *)memory;
    const struct page_job job = job_of_block(e, sides);
    const struct commvq_view &view = keys_of(e, job);
    uint8_t *const codes = job.page + PAGE_TOKENS;
    const uint32_t token = threadIdx.x / 4, warp = threadIdx.x / 32, first = warp * WARP_TOKENS;
    const uint32_t tokens = job.count > first ? (1u << min(job.count - first, WARP_TOKENS)) - 1 : 0;
    load_numbers<HD>(e, job, {NULL, NULL}, m.numbers);
    turn_by_offsets<HD, true>(e, job, view.mean, m.numbers);
    const struct row_size size = size_of_row<HD>(m.sums, m.numbers);
    if (threadIdx.x < PAGE_TOKENS) m.square[threadIdx.x] = size.square;
    scale_row<HD>(size.inverse, m.numbers);
    float shape = 0;
#pragma unroll 1
    for (uint32_t subvector = 0; subvector < SUBVECTORS<HD>; subvector++)
        shape = shape + write_subvector<HD>(view, subvector, tokens, m.numbers, m.search[warp], codes);
    for (uint32_t i = SUBVECTORS<HD> * view.rounds * COMMVQ_PART + threadIdx.x;
         i < PAGE_BYTES_COMMVQ(SUBVECTORS<HD>, view.rounds) - PAGE_TOKENS; i += TRANSFORM_THREADS)
        codes[i] = 0;
    if (threadIdx.x % 4 == 0)
        job.page[token] = token < job.count ? fit_gain(CODEC_KEYS, m.square[token], shape, view.gain_scale) : 0;
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS)
    decode_commvq_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    float(*const numbers)[NUMBERS_STRIDE] = (float(*)[NUMBERS_STRIDE])memory;
    const struct page_job job = job_of_block(e, sides);
    const struct commvq_view &view = keys_of(e, job);
    const uint32_t token = threadIdx.x / 4;
    const float gain = gain_at(view.gain_scale, job.page[token]);
#pragma unroll 1
    for (uint32_t subvector = 0; subvector < SUBVECTORS<HD>; subvector++) {
        const lane_numbers<SUBVECTOR_PAIRS<HD>> sum =
            sum_codewords<SUBVECTOR_PAIRS<HD>>(view, job.page + PAGE_TOKENS, subvector, token);
        each_pair_of_lane<HD>(view, subvector, [&](uint32_t j, struct pair_channels at) {
            const float unit = gain * steps_of_lane<HD>(view, subvector)[j];
            numbers[at.a][token] = unit * sum.re[j], numbers[at.b][token] = unit * sum.im[j];
        });
    }
    __syncthreads();
    turn_by_offsets<HD, false>(e, job, view.mean, numbers);
    change_frame<HD, false>(e, job, {}, numbers);
    store_numbers<HD>(e, job, numbers);
}

cudaError_t encode_commvq(const struct encode *encode, struct encode_sides sides, cudaStream_t stream){
#define LAUNCH(hd) launch_shapes<hd>(encode_commvq_kernel<hd>, sizeof(commvq_memory<hd>), encode, sides, stream)
    COMMVQ_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}

cudaError_t decode_commvq(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
#define LAUNCH(hd) launch_shapes<hd>(decode_commvq_kernel<hd>, hd * NUMBERS_STRIDE * sizeof(float), encode, sides, stream)
    COMMVQ_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}

/* ---- What the search needs of a codebook */

/* A round_sizes has what a block's threads have found of a round. */
struct round_sizes {
    float least[TRANSFORM_THREADS], most[TRANSFORM_THREADS]; /* halves */
    float square[ENTRIES], magnitudes[ENTRIES];              /* of entries: of their numbers, of their integers */
};

/* Sets what becomes of halves and products of a round (encode_commvq_search.cuh); by one thread. */
static __device__ inline void set_limits(const struct round_sizes &sizes, uint32_t pairs, float *limits, float *middle) {
    float least = sizes.least[0], most = sizes.most[0], square = 0, magnitudes = 0;
    for (uint32_t i = 1; i < TRANSFORM_THREADS; i++) least = fminf(least, sizes.least[i]), most = fmaxf(most, sizes.most[i]);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        square = fmaxf(square, sizes.square[i]);
        magnitudes = fmaxf(magnitudes, sizes.magnitudes[i]);
    }
    /* Products of rows of size 1 do not exceed PRODUCT_MOST units, whatever they are. */
    float unit = fmaxf((most - least) / (2 * HALF_MOST), sqrtf(2 * (float)pairs * square) / (float)PRODUCT_MOST);
    if (!(unit > 0)) unit = 1;
    limits[INVERSE_UNIT] = 1 / unit;
    limits[REACH] = magnitudes / unit;
    limits[TOLERANCE] = 2.1f + 0x1p-20f * (most / unit);
    limits[UNIT] = unit;
    *middle = (least + most) / 2;
}

/* A block has a round of a sub-vector. */
static __global__ void __launch_bounds__(TRANSFORM_THREADS) halves_kernel(struct commvq_view view, uint32_t pairs) {
    __shared__ struct round_sizes sizes;
    __shared__ float middle;
    const uint32_t part = blockIdx.x, t = threadIdx.x;
    const float *const steps = view.steps + part / view.rounds * pairs;
    const uint8_t *const rows = rows_of_round(view, part);
    float *const half = view.half + (size_t)part * CELLS, *const limits = view.limits + part * COMMVQ_LIMITS;
    const auto integer = [&](uint32_t entry, uint32_t place) {
        return (float)((int)rows[entry * COMMVQ_ROW + place] - COMMVQ_MIDDLE);
    };
    sizes.least[t] = INFINITY, sizes.most[t] = 0;
    for (uint32_t i = t; i < CELLS; i += TRANSFORM_THREADS) {
        const uint32_t a = i / ENTRIES, b = i % ENTRIES;
        double square = 0;
        for (uint32_t j = 0; j < pairs; j++) {
            const uint32_t at = commvq_place(j);
            const auto number = [&](uint32_t entry, uint32_t place) { return (double)(steps[j] * integer(entry, place)); };
            const double re = number(a, at) - number(b, at + 8), im = number(a, at + 8) + number(b, at);
            square = square + (re * re + im * im);
        }
        half[i] = (float)(square / 2);
        sizes.least[t] = fminf(sizes.least[t], half[i]), sizes.most[t] = fmaxf(sizes.most[t], half[i]);
    }
    if (t < ENTRIES) {
        float square = 0, magnitudes = 0;
        for (uint32_t j = 0; j < pairs; j++) {
            const float re = integer(t, commvq_place(j)), im = integer(t, commvq_place(j) + 8);
            square = square + steps[j] * steps[j] * (re * re + im * im);
            magnitudes = magnitudes + (fabsf(re) + fabsf(im));
        }
        sizes.square[t] = square, sizes.magnitudes[t] = magnitudes;
    }
    __syncthreads();
    if (t == 0) set_limits(sizes, pairs, limits, &middle);
    __syncthreads();
    for (uint32_t i = t; i < CELLS; i += TRANSFORM_THREADS) {
        const uint32_t a = i / ENTRIES, b = i % ENTRIES;
        if (b / 8 % 2) continue;
        const auto units = [&](uint32_t entry) {
            return (uint32_t)(int)rint(((double)half[a * ENTRIES + entry] - (double)middle) / (double)limits[UNIT]);
        };
        view.coarse[(size_t)part * (CELLS / 2) + coarse_place(a, b)] = (units(b) & 0xffff) | units(b + 8) << 16;
    }
}

cudaError_t commvq_find_halves(const struct commvq_view *view, uint32_t pairs, cudaStream_t stream) {
    halves_kernel<<<view->subvectors * view->rounds, TRANSFORM_THREADS, 0, stream>>>(*view, pairs);
    return cudaGetLastError();
}
