/* Writes and reads pages of CommVQ's values: the local search that the CPU's codec has (backend/cpu/codec/binary_code_search.h), with
 * its arithmetic and order but for the couplings, which are sums in another order, as are norms and gains: so now and then another
 * sign is set.
 *
 * A block of 256 threads has a page, a warp an octet of its tokens, four at a time. A lane has every 32nd sign of each, with its
 * field. In turn the sign with the largest field is set, and moves the fields of all others by its row of the couplings; then signs
 * against whose field they point are flipped. */
#include "backend/cuda/kv/encode_shapes.cuh"

constexpr uint32_t FOUR = 4;          /* tokens that a warp searches for together */
constexpr float LEAST_FIELD = 1e-5f;  /* against which a sign is flipped: less is rounding, in rows whose numbers are about 1 */
constexpr uint32_t ALL = 0xffffffffu; /* lanes */

template <int HD> struct additive_memory {
    float numbers[HD][NUMBERS_STRIDE]; /* normalized rows */
    token_sums sums;
    float size[PAGE_TOKENS]; /* that they had */
};

/* ---- The search */

/* Returns a key's bits as an integer that orders as floats do; the same function turns it back. */
static __device__ inline int ordered(int bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

/* Returns x with the sign's number in its lowest bits. */
static __device__ inline int tagged(float x, uint32_t place) {
    return ordered((int)((__float_as_uint(x) & ~(ADDITIVE_MOST_CODES - 1u)) | place));
}

/* A lane_signs has a lane's signs of one token: their fields, and a bit of each that is set and of each that is positive. */
template <int K> struct lane_signs {
    float field[K];
    uint32_t set, positive;
};

/* Moves the fields by `by` times a row of the couplings. */
template <int K> static __device__ void move_fields(const float *row, float by, lane_signs<K> &s) {
#pragma unroll
    for (int k = 0; k < K; k++) s.field[k] = fmaf(-by, __ldg(row + threadIdx.x % 32 + 32 * k), s.field[k]);
}

/* Returns the sign that is not set and has the largest field, of all lanes. */
template <int K> static __device__ uint32_t largest_field(const lane_signs<K> &s) {
    int least = 0x7fffffff;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int set = (int)(s.set << (31 - k)) >> 31; /* all bits; predicates are too few for this */
        least = min(least, (tagged(0 - fabsf(s.field[k]), threadIdx.x % 32 + 32 * k) & ~set) | (set & 0x7fffffff));
    }
    return (uint32_t)ordered(__reduce_min_sync(ALL, least)) % ADDITIVE_MOST_CODES;
}

/* Returns the key of the sign that lies most against its field. */
template <int K> static __device__ int most_against(const lane_signs<K> &s) {
    int least = 0x7fffffff;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const uint32_t negative = ~(s.positive << (31 - k)) & 0x80000000u;
        least = min(least, tagged(__uint_as_float(__float_as_uint(s.field[k]) ^ negative), threadIdx.x % 32 + 32 * k));
    }
    return ordered(__reduce_min_sync(ALL, least));
}

/* Sets a sign along its field and returns it. */
template <int K> static __device__ float set_sign(uint32_t at, lane_signs<K> &s) {
    uint32_t negative = 0;
#pragma unroll
    for (int k = 0; k < K; k++) negative |= __float_as_uint(s.field[k] + 0.0f) >> 31 << k; /* of fields, -0 not among them */
    negative = __shfl_sync(ALL, negative, (int)(at % 32)) >> at / 32 & 1;
    if (threadIdx.x % 32 == at % 32) s.set |= 1u << at / 32, s.positive |= (1 - negative) << at / 32;
    return negative ? -1.0f : 1.0f;
}

/* Flips a sign and returns what moves the fields. */
template <int K> static __device__ float flip_sign(uint32_t at, lane_signs<K> &s) {
    if (threadIdx.x % 32 == at % 32) s.positive ^= 1u << at / 32;
    const uint32_t positive = __shfl_sync(ALL, s.positive, (int)(at % 32));
    return positive >> at / 32 & 1 ? 2.0f : -2.0f;
}

template <int K> static __device__ void search(const struct additive_view &view, lane_signs<K> (&s)[FOUR]) {
    constexpr uint32_t n = 32 * K;
    for (uint32_t i = 0; i < n; i++)
#pragma unroll
        for (uint32_t r = 0; r < FOUR; r++) {
            const uint32_t at = largest_field(s[r]);
            move_fields(view.couplings + at * n, set_sign(at, s[r]), s[r]);
        }
    for (uint32_t flipped = 0, any = 1; flipped < n && any; flipped++) {
        any = 0;
#pragma unroll
        for (uint32_t r = 0; r < FOUR; r++) {
            const int key = most_against(s[r]);
            if (!(__int_as_float(key) < -LEAST_FIELD)) continue;
            const uint32_t at = (uint32_t)key % ADDITIVE_MOST_CODES;
            any = 1;
            move_fields(view.couplings + at * n, flip_sign(at, s[r]), s[r]);
        }
    }
}

/* Computes the fields that act on the signs of tokens first, ..., first + 3 before any is set. */
template <int HD, int K>
static __device__ void find_fields(const struct additive_view &view, uint32_t first, const additive_memory<HD> &m,
                                   lane_signs<K> (&s)[FOUR]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t r = 0; r < FOUR; r++) {
        s[r].set = s[r].positive = 0;
#pragma unroll
        for (int k = 0; k < K; k++) s[r].field[k] = 0;
    }
    for (uint32_t c = 0; c < HD; c += 8) {
        uint2 levels[K]; /* of 8 channels: a lane's rows lie HD bytes apart */
#pragma unroll
        for (int k = 0; k < K; k++) levels[k] = *(const uint2 *)(view.levels + (size_t)(lane + 32 * k) * HD + c);
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            const float low = view.low[c + j], step = view.step[c + j];
            const float4 x = *(const float4 *)&m.numbers[c + j][first];
#pragma unroll
            for (int k = 0; k < K; k++) {
                const uint32_t level = (j < 4 ? levels[k].x : levels[k].y) >> (j % 4 * 8) & 0xff;
                const float half = (low + step * (float)level) / 2;
                s[0].field[k] = fmaf(x.x, half, s[0].field[k]);
                s[1].field[k] = fmaf(x.y, half, s[1].field[k]);
                s[2].field[k] = fmaf(x.z, half, s[2].field[k]);
                s[3].field[k] = fmaf(x.w, half, s[3].field[k]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (uint32_t r = 0; r < FOUR; r++) s[r].field[k] = s[r].field[k] - view.offset[lane + 32 * k];
}

/* Finds, by a warp, the codes of its octet of tokens and writes them: zeros where there is no token. */
template <int HD, int K>
static __device__ void search_octet(const struct additive_view &view, const struct page_job &job, const additive_memory<HD> &m) {
    const uint32_t octet = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t bytes[K] = {};
#pragma unroll 1
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t first = 8 * octet + FOUR * half;
        if (first >= job.count) break;
        lane_signs<K> s[FOUR];
        find_fields<HD, K>(view, first, m, s);
        search<K>(view, s);
#pragma unroll
        for (uint32_t r = 0; r < FOUR; r++)
#pragma unroll
            for (int k = 0; k < K; k++)
                if (first + r < job.count) bytes[k] |= (s[r].positive >> k & 1) << (FOUR * half + r);
    }
#pragma unroll
    for (int k = 0; k < K; k++) job.page[PAGE_TOKENS + octet * 32 * K + lane + 32 * k] = (uint8_t)bytes[k];
}

/* ---- Shapes */

/* Computes, by a warp, the channels 4 (lane + 32 i) and the three behind it of a token's shape. */
template <int HD>
static __device__ void shape_of(const struct additive_view &view, const uint8_t *octet, uint32_t t,
                                float (&shape)[(HD + 127) / 128][4]) {
    constexpr uint32_t words = (HD + 127) / 128;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t even[words] = {}, odd[words] = {}, n = 0; /* sums of up to 512 levels of 7 bits, two in a word */
    for (uint32_t i = 0; i < view.codes; i++) {
        if (!(octet[i] >> t % 8 & 1)) continue;
        n++;
#pragma unroll
        for (uint32_t w = 0; w < words; w++) {
            if (lane + 32 * w >= HD / 4) continue;
            const uint32_t levels = *(const uint32_t *)(view.levels + (size_t)i * HD + 4 * (lane + 32 * w));
            even[w] += levels & 0x00ff00ff, odd[w] += levels >> 8 & 0x00ff00ff;
        }
    }
#pragma unroll
    for (uint32_t w = 0; w < words; w++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t c = 4 * (lane + 32 * w) + j, sum = (j % 2 ? odd[w] : even[w]) >> (j / 2 * 16) & 0xffff;
            shape[w][j] = c < HD ? view.low[c] * (float)n + view.step[c] * (float)sum : 0;
        }
}

/* Writes gains, once the codes are written. */
template <int HD>
static __device__ void write_gains(const struct additive_view &view, const struct page_job &job, const additive_memory<HD> &m) {
    for (uint32_t t = threadIdx.x / 32; t < PAGE_TOKENS; t += TRANSFORM_THREADS / 32) {
        float shape[(HD + 127) / 128][4], square = 0, product = 0;
        if (t < job.count) shape_of<HD>(view, job.page + PAGE_TOKENS + t / 8 * view.codes, t, shape);
#pragma unroll
        for (uint32_t i = 0; i < 4 * ((HD + 127) / 128); i++) {
            const uint32_t c = 4 * (threadIdx.x % 32 + i / 4 * 32) + i % 4;
            if (t >= job.count || c >= HD) continue;
            square = square + shape[i / 4][i % 4] * shape[i / 4][i % 4];
            product = product + m.numbers[c][t] * shape[i / 4][i % 4];
        }
        for (int o = 16; o; o /= 2) {
            square += __shfl_xor_sync(ALL, square, o);
            product += __shfl_xor_sync(ALL, product, o);
        }
        if (threadIdx.x % 32 == 0)
            job.page[t] = t < job.count ? fit_gain(CODEC_VALUES, product * m.size[t], square, view.gain_scale) : 0;
    }
}

/* ---- Pages */

static __device__ const struct additive_view &values_of(const struct encode &e, const struct page_job &job) {
    return ((const struct additive_view *)e.learned[job.side])[job.place];
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS)
    encode_additive_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    additive_memory<HD> &m = *(additive_memory<HD> *)memory;
    const struct page_job job = job_of_block(e, sides);
    const struct additive_view &view = values_of(e, job);
    load_numbers<HD>(e, job, {NULL, view.mean}, m.numbers);
    const struct row_size size = size_of_row<HD>(m.sums, m.numbers);
    if (threadIdx.x < PAGE_TOKENS) m.size[threadIdx.x] = sqrtf(size.square / (float)HD);
    scale_row<HD>(size.inverse, m.numbers);
    if (view.codes == HD)
        search_octet<HD, HD / 32>(view, job, m);
    else
        search_octet<HD, HD / 16>(view, job, m);
    __syncthreads(); /* codes are written */
    write_gains<HD>(view, job, m);
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS)
    decode_additive_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    float(*const numbers)[NUMBERS_STRIDE] = (float(*)[NUMBERS_STRIDE])memory;
    const struct page_job job = job_of_block(e, sides);
    const struct additive_view &view = values_of(e, job);
    for (uint32_t t = threadIdx.x / 32; t < job.count; t += TRANSFORM_THREADS / 32) {
        float shape[(HD + 127) / 128][4];
        const float gain = gain_at(view.gain_scale, job.page[t]);
        shape_of<HD>(view, job.page + PAGE_TOKENS + t / 8 * view.codes, t, shape);
#pragma unroll
        for (uint32_t i = 0; i < 4 * ((HD + 127) / 128); i++) {
            const uint32_t c = 4 * (threadIdx.x % 32 + i / 4 * 32) + i % 4;
            if (c < HD) numbers[c][t] = view.mean[c] + gain * shape[i / 4][i % 4];
        }
    }
    __syncthreads();
    store_numbers<HD>(e, job, numbers);
}

cudaError_t encode_additive(const struct encode *encode, struct encode_sides sides, cudaStream_t stream){
#define LAUNCH(hd) launch_shapes<hd>(encode_additive_kernel<hd>, sizeof(additive_memory<hd>), encode, sides, stream)
    COMMVQ_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}

cudaError_t decode_additive(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
#define LAUNCH(hd) launch_shapes<hd>(decode_additive_kernel<hd>, hd * NUMBERS_STRIDE * sizeof(float), encode, sides, stream)
    COMMVQ_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}

/* ---- What the search needs of a codebook */

/* A block has a row of the couplings, and at last its sum. */
static __global__ void __launch_bounds__(TRANSFORM_THREADS) couplings_kernel(struct additive_view view, uint32_t hd) {
    __shared__ float row[ADDITIVE_MOST_CODES];
    const uint32_t i = blockIdx.x;
    for (uint32_t k = threadIdx.x; k < view.codes; k += TRANSFORM_THREADS) {
        double product = 0;
        for (uint32_t c = 0; c < hd; c++) {
            const float x = view.low[c] + view.step[c] * (float)view.levels[(size_t)i * hd + c],
                        y = view.low[c] + view.step[c] * (float)view.levels[(size_t)k * hd + c];
            product = product + (double)x * (double)y;
        }
        row[k] = (float)product / 4;
        view.couplings[(size_t)i * view.codes + k] = k == i ? 0 : row[k];
    }
    __syncthreads();
    if (threadIdx.x) return;
    double sum = 0;
    for (uint32_t k = 0; k < view.codes; k++) sum = sum + (double)row[k];
    view.offset[i] = (float)sum;
}

cudaError_t additive_find_couplings(const struct additive_view *view, uint32_t head_dim, cudaStream_t stream) {
    couplings_kernel<<<view->codes, TRANSFORM_THREADS, 0, stream>>>(*view, head_dim);
    return cudaGetLastError();
}
