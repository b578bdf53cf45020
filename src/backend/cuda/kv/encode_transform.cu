/* Writes pages of the codec transform, as the CPU's transform_encode.c does, a block for each page, where encode_transform_tiles.cu does
 * not serve. Which of the two kernels writes pages goes by heads and device alone: they round differently, and no page may depend on
 * when it is written. Most of the time goes to the
 * product that gives the coefficients. Elsewhere four threads share a token, and what is summed over a row is summed in parts, where
 * the CPU goes from the first component to the last. Codes are written nibble by nibble: a warp has a whole one. */
#include "backend/cuda/kv/encode_transform.cuh"

#define ENCODE_WARPS (TRANSFORM_THREADS / 32)

/* A nibble_part is a plane of a nibble: `below` of its quad's bits are in other planes below it. */
struct nibble_part {
    uint8_t quad, below, bits, shift;
};

template <int HD> struct encode_memory {
    struct page_numbers<HD> z; /* coefficients */
    union {
        float cut[TRANSFORM_ROW_SCALES][TOKEN_PARTS][PAGE_TOKENS]; /* what levels cut off of rows, by size and part of a row */
        struct {
            float whole[HD], weighed[HD];              /* coefficients of a row that may be coded less no mean, and in the metric */
            float errors[TRANSFORM_NO_MEAN_GAINS + 1]; /* of that row with each such gain; last as it is */
        } small;
    };
    float size[HD];
    alignas(16) float half_step[HD], inverse_step[HD]; /* between levels of a component */
    float reach[HD], noise; /* as of struct layout_limits of transform_encode.c; infinite where there are no bits */
    float square[PAGE_TOKENS], unit[PAGE_TOKENS]; /* |z|^2; what makes the coefficients those of a row of size 1 */
    float2 sums[TOKEN_PARTS][PAGE_TOKENS];        /* of the threads that share a token */
    uint8_t gain[PAGE_TOKENS];                    /* as of struct page_rows of transform_encode.c */
    struct nibble_part parts[HD / TRANSFORM_QUAD * 2][TRANSFORM_NIBBLE_BITS]; /* of nibbles, by their lowest bit; else bits are 0 */
    struct page_layout l;
};

/* All threads call this after load_layout, and may read what it sets after their next barrier but one. */
template <int HD> static __device__ void set_sizes(const struct transform_view &view, struct encode_memory<HD> &m) {
    for (uint32_t i = threadIdx.x; i < m.l.layout.nibbles * (uint32_t)TRANSFORM_NIBBLE_BITS; i += TRANSFORM_THREADS)
        m.parts[i / TRANSFORM_NIBBLE_BITS][i % TRANSFORM_NIBBLE_BITS] = {0, 0, 0, 0};
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < HD; c += TRANSFORM_THREADS) {
        const uint32_t quad = c / TRANSFORM_QUAD, first = m.l.first[quad],
                       last = m.l.second[quad] != NO_PLANE ? m.l.second[quad] : first;
        const float size = view.size[c], half_step = last == NO_PLANE ? 0 : m.l.layout.plane[last].scale;
        m.size[c] = size;
        m.half_step[c] = half_step * size;
        m.inverse_step[c] = size > 0 ? 1 / (2 * half_step * size) : 0;
    }
    for (uint32_t p = threadIdx.x; p < m.l.layout.planes; p += TRANSFORM_THREADS) {
        const struct transform_plane plane = m.l.layout.plane[p];
        const bool upper = p == m.l.first[plane.quad];
        m.parts[plane.nibble][plane.shift] = {plane.quad, (uint8_t)(upper ? m.l.layout.quad_bits[plane.quad] - plane.bits : 0),
                                              plane.bits, plane.shift};
    }
}

/* All threads call this after set_sizes, and may read what it sets after their next barrier. */
template <int HD> static __device__ void set_limits(struct encode_memory<HD> &m) {
    for (uint32_t c = threadIdx.x; c < HD; c += TRANSFORM_THREADS) {
        float reach = m.l.first[c / TRANSFORM_QUAD] == NO_PLANE ? INFINITY : 0;
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t p = k ? m.l.second[c / TRANSFORM_QUAD] : m.l.first[c / TRANSFORM_QUAD];
            if (p != NO_PLANE) reach = reach + m.l.layout.plane[p].scale * (float)((1u << m.l.layout.plane[p].bits) - 1);
        }
        m.reach[c] = reach == INFINITY ? reach : m.size[c] * reach;
    }
    if (threadIdx.x >= 32) return;
    float noise = 0;
    for (uint32_t quad = threadIdx.x; quad < m.l.layout.quads; quad += 32)
        for (uint32_t c = quad * TRANSFORM_QUAD; c < (quad + 1) * TRANSFORM_QUAD; c++)
            noise = noise + m.size[c] * m.size[c] * device_distortion[m.l.layout.quad_bits[quad]];
    for (uint32_t lanes = 16; lanes; lanes /= 2) noise = noise + __shfl_xor_sync(~0u, noise, lanes);
    if (threadIdx.x == 0) m.noise = noise;
}

/* Returns the code of what is x in a row of size 1. */
static __device__ uint32_t code_of(float x, float inverse_step, float middle, float most) {
    return (uint32_t)fminf(fmaxf(x * inverse_step + middle, 0), most); /* NaN becomes 0, too */
}

/* Calls at(c) for the channels or components of a thread's part of a row, in their order. */
template <int HD, class At> static __device__ void each_of_part(At at) {
    const uint32_t part = threadIdx.x / PAGE_TOKENS;
#pragma unroll 4
    for (uint32_t i = 0; i < HD / TOKEN_PARTS; i++) at(part + i * TOKEN_PARTS);
}

/* Adds to a sum what levels cut off of a component that is x in a row of size 1, if the row is coded as one of so many times its size. */
template <int HD>
static __device__ void add_cut_off(const struct encode_memory<HD> &m, uint32_t c, float x, float scale, float &sum) {
    const float beyond = fmaxf(fmaf(-m.reach[c], scale, fabsf(x)), 0); /* NaN becomes 0, too */
    sum = fmaf(beyond, beyond, sum);
}

/* Returns the sums over the threads that share a token, to its first thread. */
template <int HD> static __device__ float2 sum_parts(float2 own, struct encode_memory<HD> &m) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    m.sums[threadIdx.x / PAGE_TOKENS][t] = own;
    __syncthreads();
    if (threadIdx.x < PAGE_TOKENS)
        for (uint32_t part = 1; part < TOKEN_PARTS; part++) own = make_float2(own.x + m.sums[part][t].x, own.y + m.sums[part][t].y);
    return own;
}

/* Returns the unit of the size with which a row errs least (TRANSFORM_ROW_SCALES), as far as gains reach; the row's sums in m.cut are
 * there. */
template <int HD>
static __device__ float scaled_unit(const struct encode_memory<HD> &m, const struct transform_view &view, float unit, float cut) {
    constexpr float scales[TRANSFORM_ROW_SCALES] = TRANSFORM_ROW_SCALE;
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    const float most = (view.gain_zero + 255 * view.gain_step) * unit;
    float least = cut + m.noise, best = 1;
    if (!(cut > (scales[0] * scales[0] - 1) * m.noise)) return unit; /* no other can err less */
#pragma unroll
    for (int i = 0; i < TRANSFORM_ROW_SCALES; i++) {
        if (scales[i] > most) continue;
        float error = m.cut[i][0][t];
        for (uint32_t part = 1; part < TOKEN_PARTS; part++) error = error + m.cut[i][part][t];
        error = error + m.noise * (scales[i] * scales[i]);
        if (error < least) least = error, best = scales[i];
    }
    return unit / best;
}

/* Codes rows as ones of the size with which they err least, where that may be another than their own. All threads call this. */
template <int HD> static __device__ void scale_rows(const struct transform_view &view, struct encode_memory<HD> &m) {
    constexpr float scales[TRANSFORM_ROW_SCALES] = TRANSFORM_ROW_SCALE;
    const uint32_t t = threadIdx.x % PAGE_TOKENS, part = threadIdx.x / PAGE_TOKENS;
    const float unit = m.unit[t];
    float own = 0, cut[TRANSFORM_ROW_SCALES] = {};
    each_of_part<HD>([&](uint32_t c) { add_cut_off(m, c, m.z.of[c][t] * unit, 1, own); });
    own = sum_parts(make_float2(own, 0), m).x;
    if (!__syncthreads_or(threadIdx.x < PAGE_TOKENS && own > (scales[0] * scales[0] - 1) * m.noise)) return;
    each_of_part<HD>([&](uint32_t c) {
#pragma unroll
        for (int i = 0; i < TRANSFORM_ROW_SCALES; i++) add_cut_off(m, c, m.z.of[c][t] * unit, scales[i], cut[i]);
    });
#pragma unroll
    for (int i = 0; i < TRANSFORM_ROW_SCALES; i++) m.cut[i][part][t] = cut[i];
    __syncthreads();
    if (threadIdx.x < PAGE_TOKENS) m.unit[t] = scaled_unit(m, view, unit, own);
    __syncthreads();
}

template <int HD> static __device__ void set_units(const struct transform_view &view, struct encode_memory<HD> &m) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    float own = 0;
    each_of_part<HD>([&](uint32_t c) { own = own + m.z.of[c][t] * m.z.of[c][t]; });
    const float square = sum_parts(make_float2(own, 0), m).x;
    if (threadIdx.x < PAGE_TOKENS) {
        const float unit = square > 0 ? sqrtf((float)HD / square) : 0;
        m.square[t] = square;
        m.unit[t] = isfinite(unit) ? unit : 0;
    }
    __syncthreads();
    scale_rows(view, m);
}

/* ---- Rows of values less no mean */

/* Marks the rows of values that are much smaller than they are less the mean, before they become coefficients; returns whether there are
 * any. All threads call this. */
template <int HD>
static __device__ bool mark_small_rows(const struct page_job &job, const struct transform_view &view, struct encode_memory<HD> &m) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    float2 own = make_float2(0, 0); /* squares of the row, of the row less the mean */
    bool small = false;
    if (job.side == CODEC_VALUES && view.gain > 0) {
        each_of_part<HD>([&](uint32_t c) {
            const float rest = m.z.of[c][t], x = rest + view.mean[c];
            own = make_float2(own.x + x * x, own.y + rest * rest);
        });
    }
    own = sum_parts(own, m);
    if (threadIdx.x < PAGE_TOKENS) {
        small = t < job.count && TRANSFORM_MUCH_SMALLER * own.x < own.y;
        m.gain[t] = small ? 0 : TRANSFORM_NO_MEAN_GAINS;
    }
    return __syncthreads_or(small);
}

/* Computes the coefficients of a token's row itself. All threads call this. */
template <int HD>
static __device__ void find_whole(const struct encode &e, const struct page_job &job, const struct transform_view &view, uint32_t t,
                                  struct encode_memory<HD> &m) {
    const __half *const metric = (const __half *)view.metric, *const row = (const __half *)(job.rows + t * e.token_stride);
    for (uint32_t c = threadIdx.x; c < HD; c += TRANSFORM_THREADS) {
        float sum = 0;
        for (uint32_t i = 0; i < HD; i++) {
            const __half *const at = metric + metric_place(HD, c, i);
            sum = sum + (__half2float(at[0]) + __half2float(at[METRIC_REST])) * __half2float(row[i]);
        }
        m.small.weighed[c] = sum * __uint_as_float(view.metric[HD * HD]);
    }
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < HD; c += TRANSFORM_THREADS) {
        float sum = 0;
        for (uint32_t i = 0; i < HD; i++) sum = sum + (float)view.basis[(size_t)HD * c + i] * m.small.weighed[i];
        m.small.whole[c] = view.unit[c] * sum;
    }
    __syncthreads();
}

/* Returns how much a row with coefficients z(component) is expected to err: what is cut off, the levels' noise, and components without
 * bits. */
template <int HD, class Coefficient>
static __device__ float expected_error(const struct encode_memory<HD> &m, Coefficient z, float unit) {
    float cut = 0;
    for (uint32_t c = 0; c < m.l.layout.quads * (uint32_t)TRANSFORM_QUAD; c++) add_cut_off(m, c, z(c) * unit, 1, cut);
    float sum = (cut + m.noise) / (unit * unit);
    for (uint32_t c = m.l.layout.quads * (uint32_t)TRANSFORM_QUAD; c < HD; c++) sum = sum + z(c) * z(c);
    return sum;
}

/* Codes a marked row less no mean if it errs less so with one of the gains that there are. All threads call this. */
template <int HD>
static __device__ void leave_out_mean(const struct transform_view &view, uint32_t t, struct encode_memory<HD> &m) {
    const uint32_t i = threadIdx.x;
    uint32_t best = TRANSFORM_NO_MEAN_GAINS;
    if (i < best)
        m.small.errors[i] = expected_error(
            m, [&](uint32_t c) { return m.small.whole[c]; }, 1 / TRANSFORM_NO_MEAN_GAIN(view.gain, i));
    else if (i == best)
        m.small.errors[i] = expected_error(
            m, [&](uint32_t c) { return m.z.of[c][t]; }, m.unit[t]);
    __syncthreads();
    float least = m.small.errors[best];
    for (uint32_t code = 0; code < TRANSFORM_NO_MEAN_GAINS; code++)
        if (m.small.errors[code] < least) least = m.small.errors[code], best = code;
    if (best < TRANSFORM_NO_MEAN_GAINS) {
        for (uint32_t c = i; c < HD; c += TRANSFORM_THREADS) m.z.of[c][t] = m.small.whole[c];
        if (i == 0) m.unit[t] = 1 / TRANSFORM_NO_MEAN_GAIN(view.gain, best);
    }
    if (i == 0) m.gain[t] = (uint8_t)best;
    __syncthreads();
}

/* Leaves the mean out of marked rows. All threads call this. */
template <int HD>
static __device__ void leave_out_means(const struct encode &e, const struct page_job &job, const struct transform_view &view,
                                       struct encode_memory<HD> &m) {
    for (uint32_t t = 0; t < job.count; t++) {
        if (m.gain[t] == TRANSFORM_NO_MEAN_GAINS) continue;
        find_whole(e, job, view, t, m);
        leave_out_mean(view, t, m);
    }
}

/* ---- Rows at some sizes */

/* Returns the fit of a row that is quantized in such a unit, to its first thread. All threads call this. */
template <int HD>
static __device__ struct row_fit quantized(int side, const struct transform_view &view, struct encode_memory<HD> &m, float unit) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    struct row_sums own = {};
    each_of_part<HD>([&](uint32_t c) {
        if (m.reach[c] == INFINITY) return; /* it has no bits */
        const uint32_t bits = m.l.layout.quad_bits[c / TRANSFORM_QUAD];
        const float middle = (float)(1u << (bits - 1)), most = (float)((1u << bits) - 1), x = m.z.of[c][t] * unit,
                    level = m.half_step[c] * (2 * (float)code_of(x, m.inverse_step[c], middle, most) - most), rest = x - level;
        own = {fmaf(rest, rest, own.rest), fmaf(rest, level, own.cross), fmaf(level, level, own.square)};
    });
    const float2 sums = sum_parts(make_float2(own.rest, own.cross), m);
    __syncthreads();
    const float square = sum_parts(make_float2(own.square, 0), m).x;
    __syncthreads();
    return fit_row(side, view, m.square[t], unit, {sums.x, sums.y, square});
}

/* Codes each row as one of the size with which it errs least (TRANSFORM_ROW_TRIALS), and finds its gain, but for rows less no mean, which
 * have one. All threads call this. */
template <int HD> static __device__ void try_sizes(int side, const struct transform_view &view, struct encode_memory<HD> &m) {
    constexpr float trials[TRANSFORM_ROW_TRIALS] = TRANSFORM_ROW_TRIAL;
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    const float unit = m.unit[t];
    struct row_fit least = {INFINITY, TRANSFORM_NO_MEAN_GAINS};
    float best = 1;
#pragma unroll 1
    for (int n = 0; n < TRANSFORM_ROW_TRIALS; n++) {
        const struct row_fit own = quantized(side, view, m, unit / trials[n]);
        if (own.error < least.error) least = own, best = trials[n];
    }
    if (threadIdx.x < PAGE_TOKENS && m.gain[t] == TRANSFORM_NO_MEAN_GAINS) m.unit[t] = unit / best, m.gain[t] = (uint8_t)least.gain;
    __syncthreads();
}

/* ---- Codes. A lane has two tokens, 16 apart, which share bytes of nibbles. */

/* Returns the first token of a lane in its k-th turn, k = 0 or 1: lanes of a warp have tokens in different banks. */
static __device__ uint32_t token_of_turn(uint32_t k) {
    const uint32_t lane = threadIdx.x % 32;
    return lane % 16 + 32 * (lane / 16) + 16 * ((k + lane / 16) % 2);
}

/* Returns the parts of four components' codes that a nibble has, a byte each. */
template <int HD>
static __device__ uint32_t quantize(const struct encode_memory<HD> &m, const struct nibble_part &part, uint32_t t) {
    const uint32_t bits = m.l.layout.quad_bits[part.quad], c = part.quad * TRANSFORM_QUAD, own = (1u << part.bits) - 1;
    const float middle = (float)(1u << (bits - 1)), most = (float)((1u << bits) - 1), unit = m.unit[t];
    const float4 inverses = *(const float4 *)&m.inverse_step[c];
    const float inverse[TRANSFORM_QUAD] = {inverses.x, inverses.y, inverses.z, inverses.w};
    uint32_t word = 0;
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) {
        const uint32_t code = code_of(m.z.of[c + i][t] * unit, inverse[i], middle, most);
        word |= (code >> part.below & own) << (8 * i);
    }
    return word << part.shift;
}

/* Writes all nibbles. */
template <int HD> static __device__ void write_nibbles(const struct page_job &job, const struct encode_memory<HD> &m) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t n = warp; n < m.l.layout.nibbles; n += ENCODE_WARPS) {
        uint32_t words[2] = {};
#pragma unroll 1
        for (uint32_t i = 0; i < TRANSFORM_NIBBLE_BITS; i++) {
            const struct nibble_part part = m.parts[n][i];
            if (!part.bits) continue;
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) words[k] |= quantize(m, part, token_of_turn(k));
        }
        const uint32_t word = lane < 16 ? words[0] | words[1] << 4 : words[1] | words[0] << 4;
        ((uint32_t *)(job.page + PAGE_TOKENS + n * PAGE_TRANSFORM_NIBBLE))[lane] = nibble_word(job.side, word);
    }
}

/* ---- Pages */

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS, HD > 128 ? 1 : 4)
    encode_transform_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    struct encode_memory<HD> &m = *(struct encode_memory<HD> *)memory;
    const struct page_job job = job_of_block(e, sides);
    const struct transform_view &view = view_of(e, job);
    if (!job.count) {
        clear_page(e, job, threadIdx.x, TRANSFORM_THREADS);
        return;
    }
    const struct page_rows<HD> rows = load_rows<HD>(e, job); /* which takes a while */
    load_layout(view.layout, &m.l);
    set_sizes(view, m);
    __syncthreads();
    set_limits(m);
    set_numbers<HD>(e, job, rows, {view.pre_rope_mean, view.mean}, m.z.of);
    const bool small_rows = mark_small_rows(job, view, m);
    find_coefficients<HD>(view, m.z);
    set_units(view, m);
    if (small_rows) leave_out_means(e, job, view, m);
    try_sizes(job.side, view, m);
    write_nibbles(job, m);
    if (threadIdx.x < PAGE_TOKENS) job.page[threadIdx.x] = threadIdx.x < job.count ? m.gain[threadIdx.x] : 0;
}

template <int HD> static cudaError_t launch(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    const size_t bytes = sizeof(struct encode_memory<HD>);
    const cudaError_t result = allow_shared(encode_transform_kernel<HD>, bytes);
    if (result != cudaSuccess) return result;
    encode_transform_kernel<HD><<<encode_grid(encode, sides), TRANSFORM_THREADS, bytes, stream>>>(*encode, sides);
    return cudaGetLastError();
}

cudaError_t encode_transform(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    if (encode_transform_has_tiles(&encode->heads)) return encode_transform_tiles(encode, sides, stream);
#define LAUNCH(hd) launch<hd>(encode, sides, stream)
    TRANSFORM_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}
