/* Writes and reads pages of CommVQ's values: the local search that the CPU's codec has (backend/cpu/codec/binary_code_search.h), with
 * its arithmetic and order but for the couplings, which are sums in another order, as are norms and gains: so now and then another
 * sign is set.
 *
 * A block of 256 threads has a page, a warp an octet of its tokens, four at a time. A lane has four signs of each 128, with their
 * fields. In turn the sign with the largest field is set, and moves the fields of all others by its row of the couplings; then signs
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

/* A lane has K signs of a token, WIDE ones that follow one another at a time. */
template <int K> constexpr int WIDE = K < 4 ? K : 4;

/* Returns which sign is a lane's k-th. */
template <int K> static __device__ constexpr uint32_t sign_of(uint32_t lane, uint32_t k) {
    return k / WIDE<K> * 32 * WIDE<K> + lane * WIDE<K> + k % WIDE<K>;
}
template <int K> static __device__ uint32_t lane_of(uint32_t sign) { return sign / WIDE<K> % 32; }
template <int K> static __device__ uint32_t place_in_lane(uint32_t sign) { return sign / (32 * WIDE<K>)*WIDE<K> + sign % WIDE<K>; }

/* A lane_signs has a lane's signs of one token: their fields, and a byte of each, four to a word, whose highest bit says that it is set and the
 * next that it is positive. */
template <int K> struct lane_signs {
    float field[K];
    uint32_t state[(K + 3) / 4];
};
constexpr uint32_t IS_SET = 0x80, IS_POSITIVE = 0x40;

/* Adds a state to that of a lane's sign, in the lane that has it. */
template <int K> static __device__ void change_state(uint32_t sign, uint32_t state, lane_signs<K> &s) {
    const uint32_t place = place_in_lane<K>(sign), own = threadIdx.x % 32 == lane_of<K>(sign) ? state << 8 * (place % 4) : 0;
#pragma unroll
    for (uint32_t word = 0; word < (K + 3) / 4; word++) s.state[word] ^= place / 4 == word ? own : 0;
}

/* Moves the fields by `by` times a row of the couplings, of which `row` is the lane's part. */
template <int K> static __device__ void move_fields(const float *row, float by, lane_signs<K> &s) {
#pragma unroll
    for (int k = 0; k < K; k += WIDE<K>) {
        const float *const from = row + sign_of<K>(0, k);
        if constexpr (WIDE<K> == 4) {
            const float4 four = __ldg((const float4 *)from);
            s.field[k] = fmaf(-by, four.x, s.field[k]), s.field[k + 1] = fmaf(-by, four.y, s.field[k + 1]);
            s.field[k + 2] = fmaf(-by, four.z, s.field[k + 2]), s.field[k + 3] = fmaf(-by, four.w, s.field[k + 3]);
        } else {
            const float2 two = __ldg((const float2 *)from);
            s.field[k] = fmaf(-by, two.x, s.field[k]), s.field[k + 1] = fmaf(-by, two.y, s.field[k + 1]);
        }
    }
}

/* Returns the key of the sign that is not set and has the largest field, of all lanes: the sign times two, one more where its field is
 * negative, and above that the 22 highest bits of the field but its own sign; these are zeros in keys of set signs. */
constexpr uint32_t KEY_TAG = 2 * ADDITIVE_MOST_CODES;
template <int K> static __device__ uint32_t largest_field(const lane_signs<K> &s) {
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const uint32_t set = permute(s.state[k / 4], 0, 0x8888 + 0x1111 * (k % 4)), bits = __float_as_uint(s.field[k]);
        most = max(most, ((bits << 1 | bits >> 31) & ~set & ~(KEY_TAG - 2)) + 2 * sign_of<K>(0, k));
    }
    return __reduce_max_sync(ALL, most + 2 * sign_of<K>(threadIdx.x % 32, 0));
}

/* Returns the key of the last sign that is not set: where no field has bits above the tag. */
template <int K> static __device__ uint32_t last_unset(const lane_signs<K> &s) {
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const uint32_t negative = __float_as_uint(s.field[k] + 0.0f) >> 31; /* which -0 is not */
        if (!(s.state[k / 4] >> 8 * (k % 4) & IS_SET)) most = max(most, KEY_TAG | 2 * sign_of<K>(threadIdx.x % 32, k) | negative);
    }
    return __reduce_max_sync(ALL, most);
}

/* Returns the field that lies most against its sign, with the sign's number in the lowest bits. Fields times their signs, those below zero,
 * are ordered as their bits are. */
template <int K> static __device__ uint32_t most_against(const lane_signs<K> &s) {
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const uint32_t negative = ~(s.state[k / 4] << (25 - 8 * (k % 4))) & 0x80000000u;
        most = max(most, ((__float_as_uint(s.field[k]) ^ negative) & ~(ADDITIVE_MOST_CODES - 1u)) + sign_of<K>(0, k));
    }
    return __reduce_max_sync(ALL, most + sign_of<K>(threadIdx.x % 32, 0));
}

/* Returns whether a sign is positive. */
template <int K> static __device__ bool is_positive(uint32_t sign, const lane_signs<K> &s) {
    constexpr uint32_t words = (K + 3) / 4;
    const uint32_t place = place_in_lane<K>(sign);
    uint32_t state = permute(s.state[0], s.state[words > 1], place % 8);
    if constexpr (words > 2) state = place < 8 ? state : permute(s.state[2], s.state[3], place % 8);
    return __shfl_sync(ALL, state, (int)lane_of<K>(sign)) & IS_POSITIVE;
}

template <int K> static __device__ void search(const struct additive_view &view, lane_signs<K> (&s)[FOUR]) {
    constexpr uint32_t n = 32 * K;
    const float *const couplings = view.couplings + sign_of<K>(threadIdx.x % 32, 0);
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key[FOUR], least = ALL;
#pragma unroll
        for (uint32_t r = 0; r < FOUR; r++) {
            key[r] = largest_field(s[r]);
            least = min(least, key[r]);
        }
        if (least < KEY_TAG)
#pragma unroll
            for (uint32_t r = 0; r < FOUR; r++)
                if (key[r] < KEY_TAG) key[r] = last_unset(s[r]);
#pragma unroll
        for (uint32_t r = 0; r < FOUR; r++) {
            const uint32_t sign = key[r] % KEY_TAG / 2, negative = key[r] % 2;
            move_fields(couplings + sign * n, __uint_as_float(0x3f800000 | negative << 31), s[r]);
            change_state(sign, negative ? IS_SET : IS_SET | IS_POSITIVE, s[r]);
        }
    }
    for (uint32_t flipped = 0, any = 1; flipped < n && any; flipped++) {
        any = 0;
#pragma unroll
        for (uint32_t r = 0; r < FOUR; r++) {
            const uint32_t key = most_against(s[r]), sign = key % ADDITIVE_MOST_CODES;
            if (!(__uint_as_float(key) < -LEAST_FIELD)) continue;
            any = 1;
            move_fields(couplings + sign * n, is_positive(sign, s[r]) ? -2.0f : 2.0f, s[r]);
            change_state(sign, IS_POSITIVE, s[r]);
        }
    }
}

/* Returns a byte of a word as a number. */
static __device__ inline float level_of(uint32_t word, uint32_t byte) {
    return __uint_as_float(permute(word, 0x4b000000, 0x7650 | byte)) - 0x1p23f;
}

/* Computes the fields that act on the signs of tokens first, ..., first + 3 before any is set. */
template <int HD, int K>
static __device__ void find_fields(const struct additive_view &view, uint32_t first, const additive_memory<HD> &m,
                                   lane_signs<K> (&s)[FOUR]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t r = 0; r < FOUR; r++) {
#pragma unroll
        for (int word = 0; word < (K + 3) / 4; word++) s[r].state[word] = 0;
#pragma unroll
        for (int k = 0; k < K; k++) s[r].field[k] = 0;
    }
#pragma unroll 1
    for (uint32_t c = 0; c < HD; c += 8) {
        uint2 levels[K]; /* of 8 channels: a lane's rows lie HD bytes apart */
#pragma unroll
        for (int k = 0; k < K; k++) levels[k] = *(const uint2 *)(view.levels + (size_t)sign_of<K>(lane, k) * HD + c);
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            const float low = view.low[c + j], step = view.step[c + j];
            const float4 x = *(const float4 *)&m.numbers[c + j][first];
#pragma unroll
            for (int k = 0; k < K; k++) {
                const float half = (low + step * level_of(j < 4 ? levels[k].x : levels[k].y, j % 4)) / 2;
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
        for (uint32_t r = 0; r < FOUR; r++) s[r].field[k] = s[r].field[k] - view.offset[sign_of<K>(lane, k)];
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
                if (first + r < job.count) bytes[k] |= (s[r].state[k / 4] >> (8 * (k % 4) + 6) & 1) << (FOUR * half + r);
    }
#pragma unroll
    for (int k = 0; k < K; k++) job.page[PAGE_TOKENS + octet * 32 * K + sign_of<K>(lane, k)] = (uint8_t)bytes[k];
}

/* ---- Shapes */

/* The shapes of a warp's octet of tokens: of each how many rows are its sum, and the sums of their levels, two in a word: up to 512 of 7 bits.
 * A lane has channels 4 (lane + 32 w) and the three behind it. */
template <int HD> struct octet_shapes {
    static constexpr uint32_t words = (HD + 127) / 128;
    uint32_t n[8], even[8][words], odd[8][words];
};

/* Sums, by a warp, what an octet's codes say; `octet` are a page's. */
template <int HD> static __device__ struct octet_shapes<HD> sum_octet(const struct additive_view &view, const uint8_t *octet) {
    constexpr uint32_t words = octet_shapes<HD>::words;
    const uint32_t lane = threadIdx.x % 32;
    struct octet_shapes<HD> sum = {};
    for (uint32_t i = lane; i < view.codes; i += 32) {
        const uint32_t byte = octet[i];
#pragma unroll
        for (uint32_t t = 0; t < 8; t++) sum.n[t] += (uint32_t)__popc(__ballot_sync(ALL, byte >> t & 1));
    }
    for (uint32_t i = 0; i < view.codes; i += 8) {
        const uint2 bytes = *(const uint2 *)(octet + i); /* of 8 rows */
        uint32_t levels[8][words];
#pragma unroll
        for (uint32_t j = 0; j < 8; j++)
#pragma unroll
            for (uint32_t w = 0; w < words; w++)
                levels[j][w] =
                    lane + 32 * w < HD / 4 ? __ldg((const uint32_t *)(view.levels + (size_t)(i + j) * HD) + lane + 32 * w) : 0;
#pragma unroll
        for (uint32_t j = 0; j < 8; j++)
#pragma unroll
            for (uint32_t w = 0; w < words; w++) {
                const uint32_t even = levels[j][w] & 0x00ff00ff, odd = levels[j][w] >> 8 & 0x00ff00ff;
#pragma unroll
                for (uint32_t t = 0; t < 8; t++)
                    if ((j < 4 ? bytes.x : bytes.y) >> (j % 4 * 8 + t) & 1) sum.even[t][w] += even, sum.odd[t][w] += odd;
            }
    }
    return sum;
}

/* Calls at(channel, number) for a lane's numbers of the i-th token's shape. */
template <int HD, class At>
static __device__ void each_number(const struct additive_view &view, const struct octet_shapes<HD> &sum, uint32_t i, At at) {
#pragma unroll
    for (uint32_t w = 0; w < octet_shapes<HD>::words; w++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t c = 4 * (threadIdx.x % 32 + 32 * w) + j;
            if (c >= HD) continue;
            const uint32_t levels = (j % 2 ? sum.odd[i][w] : sum.even[i][w]) >> (j / 2 * 16) & 0xffff;
            at(c, view.low[c] * (float)sum.n[i] + view.step[c] * (float)levels);
        }
}

/* Writes gains, by a warp those of its octet, once the codes are written. */
template <int HD>
static __device__ void write_gains(const struct additive_view &view, const struct page_job &job, const additive_memory<HD> &m) {
    const uint32_t octet = threadIdx.x / 32;
    const struct octet_shapes<HD> sum = sum_octet<HD>(view, job.page + PAGE_TOKENS + octet * view.codes);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t t = 8 * octet + i;
        float square = 0, product = 0;
        each_number<HD>(view, sum, i, [&](uint32_t c, float number) {
            square = square + number * number;
            product = product + m.numbers[c][t] * number;
        });
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
    __syncwarp(); /* codes are written */
    write_gains<HD>(view, job, m);
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS)
    decode_additive_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    float(*const numbers)[NUMBERS_STRIDE] = (float(*)[NUMBERS_STRIDE])memory;
    const struct page_job job = job_of_block(e, sides);
    const struct additive_view &view = values_of(e, job);
    const uint32_t octet = threadIdx.x / 32;
    const struct octet_shapes<HD> sum = sum_octet<HD>(view, job.page + PAGE_TOKENS + octet * view.codes);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const float gain = gain_at(view.gain_scale, job.page[8 * octet + i]);
        each_number<HD>(view, sum, i, [&](uint32_t c, float number) { numbers[c][8 * octet + i] = view.mean[c] + gain * number; });
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
