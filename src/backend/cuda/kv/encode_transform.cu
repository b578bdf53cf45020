/* Writes pages of the codec transform, as the CPU's transform_encode.c does, a block for each page. Most of the time goes to the
 * product that gives the coefficients, and to the path through the stream, a thread for each of the 64 tokens. Elsewhere four threads share
 * a token, and what is summed over a row is summed in four parts, where the CPU goes from the first component to the last. */
#include "backend/cuda/kv/transform_path.cuh"

#define MOST_STEPS(hd) ((hd) / TRANSFORM_QUAD + 1)

template <int HD> struct encode_memory {
    struct page_numbers<HD> z; /* coefficients */
    union {
        uint16_t from[TRANSFORM_QUAD * MOST_STEPS(HD)][PAGE_TOKENS]; /* of paths */
        float cut[TRANSFORM_ROW_SCALES][TOKEN_PARTS][PAGE_TOKENS];   /* what levels cut off of rows, by size and part of a row */
        struct {
            float whole[HD], weighed[HD];              /* coefficients of a row that may be coded less no mean, and in the metric */
            float errors[TRANSFORM_NO_MEAN_GAINS + 1]; /* of that row with each such gain; last as it is */
        } small;
    };
    float size[HD], inverse_size[HD];
    float reach[HD], noise; /* as of struct layout_limits of transform_encode.c; infinite where there are no bits */
    float square[PAGE_TOKENS], unit[PAGE_TOKENS]; /* |z|^2; what makes the coefficients those of a row of size 1 */
    float2 sums[TOKEN_PARTS][PAGE_TOKENS];        /* of the threads that share a token */
    uint8_t no_mean[PAGE_TOKENS];                 /* the code of the gain of a row less no mean; else TRANSFORM_NO_MEAN_GAINS */
    struct path_factors factors[HD];              /* by component */
    struct page_layout l;
    struct path_ring ring;
    uint32_t path_thread; /* the first thread that finds a path */
};

static_assert(TRANSFORM_QUAD * MOST_STEPS(64) >= 2 * TRANSFORM_PATH_WARM_UP, "steps across a seam");

template <int HD> static __device__ void set_sizes(const struct transform_view &view, struct encode_memory<HD> &m) {
    for (uint32_t c = threadIdx.x; c < HD; c += TRANSFORM_THREADS) {
        const float size = view.size[c];
        m.size[c] = size;
        m.inverse_size[c] = size > 0 ? 1 / size : 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < m.l.layout.planes * (uint32_t)TRANSFORM_QUAD; i += TRANSFORM_THREADS) {
        const struct transform_plane plane = m.l.layout.plane[i / TRANSFORM_QUAD];
        const uint32_t c = plane.quad * TRANSFORM_QUAD + i % TRANSFORM_QUAD;
        const float unit = m.size[c] * plane.scale;
        if (plane.nibble >= m.l.layout.stream)
            m.factors[c] = {m.inverse_size[c] / plane.scale, 4 * (float)plane.largest + 8 * upper_step_of(plane.table / 4u),
                            unit * unit};
    }
    if (threadIdx.x >= TRANSFORM_THREADS - 32) set_path_ring(m.l.layout, m.ring);
    /* Two warps find paths. A multiprocessor's four parts have every fourth warp each: blocks that are on it together take turns. */
    if (threadIdx.x == 32) m.path_thread = warp_slot() / (TRANSFORM_THREADS / 32) % (TOKEN_PARTS / 2) * (2 * 32);
}

/* All threads call this after set_sizes, and may read what it sets after their next barrier. */
template <int HD> static __device__ void set_limits(struct encode_memory<HD> &m) {
    for (uint32_t c = threadIdx.x; c < HD; c += TRANSFORM_THREADS) {
        float reach = m.l.first[c / TRANSFORM_QUAD] == NO_PLANE ? INFINITY : 0;
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t p = k ? m.l.second[c / TRANSFORM_QUAD] : m.l.first[c / TRANSFORM_QUAD];
            if (p != NO_PLANE) reach = reach + m.l.layout.plane[p].scale * (float)m.l.layout.plane[p].largest;
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
        m.no_mean[t] = small ? 0 : TRANSFORM_NO_MEAN_GAINS;
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
    if (i == 0) m.no_mean[t] = (uint8_t)best;
    __syncthreads();
}

/* Leaves the mean out of marked rows. All threads call this. */
template <int HD>
static __device__ void leave_out_means(const struct encode &e, const struct page_job &job, const struct transform_view &view,
                                       struct encode_memory<HD> &m) {
    for (uint32_t t = 0; t < job.count; t++) {
        if (m.no_mean[t] == TRANSFORM_NO_MEAN_GAINS) continue;
        find_whole(e, job, view, t, m);
        leave_out_mean(view, t, m);
    }
}

/* ---- Components with nibbles of their own: x is in units of the component's size */

/* These return four components' codes, subtract the levels from what is wanted of them and add them to what was found. */
static __device__ uint32_t quantize_gaussian(const struct page_layout &l, float scale, float (&x)[TRANSFORM_QUAD],
                                             float (&found)[TRANSFORM_QUAD]) {
    const int8_t *const levels = l.levels[TRANSFORM_GAUSSIAN_4];
    uint32_t codes = 0;
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) {
        uint32_t code = 0;
#pragma unroll
        for (uint32_t half = 8; half; half /= 2) /* the code is at least code + half if x lies beyond the middle of two levels */
            code += x[i] > 0.5f * scale * (float)(levels[code + half - 1] + levels[code + half]) ? half : 0;
        const float level = scale * (float)levels[code];
        x[i] = x[i] - level, found[i] = found[i] + level;
        codes |= code << (4 * i);
    }
    return codes;
}

/* The nearest level is step (code - 7.5). */
static __device__ uint32_t quantize_uniform(float scale, float (&x)[TRANSFORM_QUAD], float (&found)[TRANSFORM_QUAD]) {
    const float step = 2 * scale, inverse = 1 / step;
    uint32_t codes = 0;
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) {
        const uint32_t code = (uint32_t)fminf(fmaxf(x[i] * inverse + 8, 0), 15); /* NaN becomes 0, too */
        const float level = step * ((float)code - 7.5f);
        x[i] = x[i] - level, found[i] = found[i] + level;
        codes |= code << (4 * i);
    }
    return codes;
}

static __device__ uint8_t *nibble_at(const struct page_job &job, uint32_t n) {
    return job.page + PAGE_TOKENS + n * PAGE_TRANSFORM_NIBBLE;
}

/* Writes the codes of a quad that has no part in the stream, of which a row wants x, and adds its levels: it has 4 bits or twice as
 * many. */
static __device__ void write_alone(const struct page_job &job, const struct page_layout &l, uint32_t quad,
                                   float (&x)[TRANSFORM_QUAD], float (&found)[TRANSFORM_QUAD]) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    const struct transform_plane first = l.layout.plane[l.first[quad]];
    if (l.second[quad] == NO_PLANE) {
        write_nibble(job.side, t, quantize_gaussian(l, first.scale, x, found), nibble_at(job, first.nibble));
        return;
    }
    const struct transform_plane second = l.layout.plane[l.second[quad]];
    write_nibble(job.side, t, quantize_uniform(first.scale, x, found), nibble_at(job, first.nibble));
    write_nibble(job.side, t, quantize_uniform(second.scale, x, found), nibble_at(job, second.nibble));
}

/* ---- The stream */

template <int HD> static __device__ struct path_row row_of(const struct encode_memory<HD> &m, uint32_t t) {
    return {m.z.of, m.factors, m.unit[t], t};
}

/* Finds the windows of all rows' paths. */
template <int HD> static __device__ void find_paths(struct encode_memory<HD> &m) {
    const uint32_t t = threadIdx.x - m.path_thread;
    if (t < PAGE_TOKENS && m.ring.round.steps) find_path(m.ring, row_of(m, t), m.from);
    __syncthreads();
}

/* Writes the stream's nibbles. */
template <int HD> static __device__ void write_stream(const struct page_job &job, const struct encode_memory<HD> &m) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS, nibbles = m.l.layout.nibbles - m.l.layout.stream;
    for (uint32_t n = threadIdx.x / PAGE_TOKENS; n < nibbles; n += TOKEN_PARTS)
        write_nibble(job.side, t, nibble_of_path(m.ring, n, t, m.from), nibble_at(job, stream_place(m.l.layout, n)));
}

/* Sets the levels of a quad in the stream, and writes its upper bits if it has any. */
template <int HD>
static __device__ void write_uppers(const struct page_job &job, const struct encode_memory<HD> &m, const struct path_row &row,
                                    uint32_t quad, float (&level)[TRANSFORM_QUAD]) {
    const bool upper = m.l.second[quad] != NO_PLANE;
    const struct transform_plane plane = m.l.layout.plane[upper ? m.l.second[quad] : m.l.first[quad]];
    const int8_t *const levels = m.l.levels[plane.table / 4u];
    const uint16_t(*const windows)[PAGE_TOKENS] = m.from + m.ring.step_of[quad];
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) level[i] = (float)levels[windows[i * m.ring.round.steps][row.t]];
    if (upper) {
        const float step = upper_step_of(plane.table / 4u);
        uint32_t codes = 0;
#pragma unroll
        for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) {
            const uint32_t code = upper_code(path_term_at(row, quad * TRANSFORM_QUAD + i).x - level[i], step);
            codes |= code << (4 * i);
            level[i] = level[i] + step * ((float)code - 7.5f);
        }
        write_nibble(job.side, row.t, codes, nibble_at(job, m.l.layout.plane[m.l.first[quad]].nibble));
    }
#pragma unroll
    for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) level[i] = plane.scale * level[i];
}

/* ---- All quads */

/* Writes the nibbles that are not the stream's. Returns sums over a thread's quads: the products of a row's coefficients with the levels
 * that they got, for a row of size 1, and of these with themselves. */
template <int HD> static __device__ float2 write_quads(const struct page_job &job, const struct encode_memory<HD> &m) {
    const struct path_row row = row_of(m, threadIdx.x % PAGE_TOKENS);
    float2 sums = make_float2(0, 0);
    for (uint32_t quad = threadIdx.x / PAGE_TOKENS; quad < m.l.layout.quads; quad += TOKEN_PARTS) {
        const uint32_t last = m.l.second[quad] != NO_PLANE ? m.l.second[quad] : m.l.first[quad];
        float z[TRANSFORM_QUAD], level[TRANSFORM_QUAD] = {};
#pragma unroll
        for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) z[i] = m.z.of[quad * TRANSFORM_QUAD + i][row.t];
        if (m.l.layout.plane[last].nibble < m.l.layout.stream) {
            float x[TRANSFORM_QUAD];
#pragma unroll
            for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) x[i] = z[i] * row.unit * m.inverse_size[quad * TRANSFORM_QUAD + i];
            write_alone(job, m.l, quad, x, level);
        } else
            write_uppers(job, m, row, quad, level);
#pragma unroll
        for (uint32_t i = 0; i < TRANSFORM_QUAD; i++) {
            const float own = level[i] * m.size[quad * TRANSFORM_QUAD + i];
            sums = make_float2(sums.x + z[i] * own, sums.y + own * own);
        }
    }
    return sums;
}

/* ---- Gains */

static __device__ uint8_t gain_code(const struct transform_view &view, float gain) {
    if (!(view.gain_step > 0)) return TRANSFORM_NO_MEAN_GAINS;
    const float code = roundf((gain - view.gain_zero) / view.gain_step), least = TRANSFORM_NO_MEAN_GAINS;
    return (uint8_t)(code > least ? code < 255 ? code : 255 : least);
}

/* `own` is what write_quads has returned. */
template <int HD>
static __device__ void write_gains(const struct page_job &job, const struct transform_view &view, float2 own,
                                   struct encode_memory<HD> &m) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    own = sum_parts(own, m);
    if (threadIdx.x >= PAGE_TOKENS) return;
    float gain = 0;
    if (own.y > 0) gain = job.side == CODEC_KEYS ? sqrtf(m.square[t] / own.y) : own.x / own.y;
    const uint8_t no_mean = m.no_mean[t];
    job.page[t] = t >= job.count ? 0 : no_mean < TRANSFORM_NO_MEAN_GAINS ? no_mean : gain_code(view, gain);
}

/* ---- Pages */

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS, HD > 128 ? 1 : 3)
    encode_transform_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    struct encode_memory<HD> &m = *(struct encode_memory<HD> *)memory;
    const struct page_job job = job_of_block(e, sides);
    const struct transform_view &view = view_of(e, job);
    if (!job.count) {
        const uint32_t words = places_of(e, *job.item)[job.place].bytes[job.side] / 4;
        for (uint32_t i = threadIdx.x; i < words; i += TRANSFORM_THREADS) ((uint32_t *)job.page)[i] = 0;
        return;
    }
    const struct page_rows<HD> rows = load_rows<HD>(e, job); /* which takes a while */
    load_layout(view.layout, &m.l);
    set_sizes(view, m);
    set_limits(m);
    set_numbers<HD>(e, job, rows, {view.pre_rope_mean, view.mean}, m.z.of);
    const bool small_rows = mark_small_rows(job, view, m);
    find_coefficients<HD>(view, m.z);
    set_units(view, m);
    if (small_rows) leave_out_means(e, job, view, m);
    find_paths(m);
    write_stream(job, m);
    write_gains(job, view, write_quads(job, m), m);
}

template <int HD> static cudaError_t launch(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    const size_t bytes = sizeof(struct encode_memory<HD>);
    const cudaError_t result = allow_shared(encode_transform_kernel<HD>, bytes);
    if (result != cudaSuccess) return result;
    encode_transform_kernel<HD><<<encode_grid(encode, sides), TRANSFORM_THREADS, bytes, stream>>>(*encode, sides);
    return cudaGetLastError();
}

cudaError_t encode_transform(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
#define LAUNCH(hd) launch<hd>(encode, sides, stream)
    TRANSFORM_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}
