/* Implements a prompt's attention by products of warpgroups and copies of tiles, for compute capability 9.0 (FlashAttention-3's
 * way).
 *
 * One block of threads stays on each multiprocessor and takes tile after tile. Its first warpgroup feeds: a warp of it asks for
 * blocks of keys and values, two ahead, the others convert the queries of the next tile. Each other warpgroup has 64 rows of the
 * tile. It asks for the logits of a block and, behind them, for the sum of the values of the block before, and computes the weights
 * while those are summed. The warpgroups take turns asking, so that one computes weights while the tensor cores compute the other's
 * products. Sums are rescaled only when a row's largest logit has grown by more than LAZY: weights may be 2^LAZY times larger than
 * those of the largest logit. */
#include "backend/cuda/kv/attend_prefill_tile.cuh"
#include "backend/cuda/kv/hopper.cuh"

#ifdef TERSE_CUDA_WGMMA

#define WARPGROUP 128
#define STAGES 2
#define LAZY 4.f
#define QUERY_THREADS 96 /* of the feeding warpgroup */

/* A shape has the sizes for a head_dim. Shared memory holds panels of 64 channels: all panels of one warpgroup's queries, then the
 * next warpgroup's. */
template <int HD> struct wgmma_shape {
    static constexpr int CONSUMERS = HD == 64 ? 3 : 2, ROWS = 64 * CONSUMERS, KEYS = HD == 256 ? 64 : 128;
    static constexpr int QUERY_STAGES = HD == 256 ? 1 : 2, PANELS = (HD + 63) / 64;
    static constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);
    static constexpr int PANEL_BYTES = KEYS * 128, BLOCK_BYTES = PANELS * PANEL_BYTES;
    static constexpr int QUERY_BYTES = PANELS * 64 * 128; /* of a warpgroup */
    static constexpr int BYTES = QUERY_STAGES * CONSUMERS * QUERY_BYTES + 2 * STAGES * BLOCK_BYTES;
    static constexpr int FEED_REGISTERS = CONSUMERS == 3 ? 32 : 40, REGISTERS = CONSUMERS == 3 ? 160 : 232;
};

struct prefill_barriers {
    uint64_t queries_full[2], queries_empty[2], keys_full[STAGES], keys_empty[STAGES], values_full[STAGES], values_empty[STAGES];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Returns the round-th tile of a block of threads. Rounds go through the tiles there and back again, so that all blocks have long
 * and short ones. */
static __device__ __forceinline__ uint32_t work_of(uint32_t round) {
    return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

/* A ring counts the uses of `N` places. */
template <int N> struct ring {
    uint32_t place = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++place == N) place = 0, parity ^= 1;
    }
};

template <int HD>
static __device__ __forceinline__ void feed_rows(const struct prefill_launch &a, uint32_t works, const CUtensorMap *keys,
                                                 const CUtensorMap *values, uint32_t k, uint32_t v, struct prefill_barriers *b) {
    using shape = wgmma_shape<HD>;
    struct ring<STAGES> at;
    for (uint32_t round = 0, work; (work = work_of(round)) < works || round * gridDim.x < works; round++) {
        if (work >= works) continue;
        struct prefill_share share = share_of<shape::ROWS, shape::KEYS>(a, work);
        for (uint32_t block = share.end; block-- > share.first; at.next()) {
            int row = (int)(a.begin + block * shape::KEYS);
            uint32_t to = at.place * shape::BLOCK_BYTES;
            barrier_wait(&b->keys_empty[at.place], at.parity ^ 1);
            barrier_expect(&b->keys_full[at.place], shape::BLOCK_BYTES);
            for (int p = 0; p < shape::PANELS; p++)
                copy_box(k + to + p * shape::PANEL_BYTES, keys, p * 64, (int)share.head, row, &b->keys_full[at.place]);
            barrier_wait(&b->values_empty[at.place], at.parity ^ 1);
            barrier_expect(&b->values_full[at.place], shape::BLOCK_BYTES);
            for (int p = 0; p < shape::PANELS; p++)
                copy_box(v + to + p * shape::PANEL_BYTES, values, p * 64, (int)share.head, row, &b->values_full[at.place]);
        }
    }
}

/* Converts queries. Channels past head_dim are never read: products stop there. */
template <int HD>
static __device__ __forceinline__ void feed_queries(const struct prefill_launch &a, uint32_t works, char *q,
                                                    struct prefill_barriers *b) {
    using shape = wgmma_shape<HD>;
    constexpr int CHUNKS = HD / 8; /* of 8 halves */
    struct ring<shape::QUERY_STAGES> at;
    for (uint32_t round = 0, work; (work = work_of(round)) < works || round * gridDim.x < works; round++) {
        if (work >= works) continue;
        struct prefill_share share = share_of<shape::ROWS, shape::KEYS>(a, work);
        char *to = q + at.place * shape::CONSUMERS * shape::QUERY_BYTES;
        barrier_wait(&b->queries_empty[at.place], at.parity ^ 1);
#pragma unroll 2
        for (int i = (int)threadIdx.x - (WARPGROUP - QUERY_THREADS); i < shape::ROWS * CHUNKS; i += QUERY_THREADS) {
            int r = i / CHUNKS, c = i % CHUNKS;
            const float4 *from =
                (const float4 *)(a.q + query_offset(a, share.head, min(share.first_row + r, a.rows - 1), HD) + c * 8);
            float4 x = from[0], y = from[1];
            __half2 half[4] = {query_halves(x.x, x.y, a.scale), query_halves(x.z, x.w, a.scale), query_halves(y.x, y.y, a.scale),
                               query_halves(y.z, y.w, a.scale)};
            *(uint4 *)(to + r / 64 * shape::QUERY_BYTES + c / 8 * 64 * 128 + r % 64 * 128 + ((c % 8) ^ (r % 8)) * 16) =
                *(const uint4 *)half;
        }
        fence_shared();
        barrier_arrive(&b->queries_full[at.place]);
        at.next();
    }
}

/* A thread of a consuming warpgroup keeps this state of its two rows, lane / 4 and lane / 4 + 8 of its warp's 16. */
struct thread_rows {
    uint32_t row[2], reach[2]; /* in the tile's KV head; the last row of keys that is read */
    float slope[2];
    struct row_state state[2];
};

/* Turns logits of a block into weights, in place. Returns whether sums must be multiplied by factor[] first. ALTERED: logits are
 * capped or have ALiBi, or queries see a window. */
template <int KEYS, bool ALTERED>
static __device__ __forceinline__ bool weigh(const struct prefill_launch &a, float (&s)[KEYS / 2], struct thread_rows &t,
                                             uint32_t first, bool masked, float (&factor)[2]) {
    float largest[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (ALTERED || masked) {
            int last =
                (int)(t.reach[h] - first) - (int)(threadIdx.x % 4 * 2); /* the last key to be read, from this thread's first on */
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[j * 4 + h * 2 + e];
                    if (ALTERED && a.cap > 0) x = soft_cap(x, a.cap);
                    if (ALTERED && a.slopes) x += t.slope[h] * (float)(j * 8 + e - last);
                    if (masked && (ALTERED ? (uint32_t)(last - (j * 8 + e)) >= a.window : j * 8 + e > last)) x = -INFINITY;
                }
        }
        float most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) most[j % 2 * 2 + e] = fmaxf(most[j % 2 * 2 + e], s[j * 4 + h * 2 + e]);
        largest[h] = largest_of_row(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
    }
    bool grown = __any_sync(~0u, largest[0] > t.state[0].largest + LAZY || largest[1] > t.state[1].largest + LAZY);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float shift = t.state[h].largest == -INFINITY ? 0 : t.state[h].largest - BIAS, sum[4] = {};
        if (grown) factor[h] = renew(t.state[h], largest[h], &shift);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[j * 4 + h * 2 + e];
                x = exp2_fast(x - shift);
                sum[j % 2 * 2 + e] += x;
            }
        t.state[h].sum += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    return grown;
}

template <int KEYS> static __device__ __forceinline__ void pack_weights(uint32_t (&p)[KEYS / 4], const float (&s)[KEYS / 2]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) p[i] = pack_halves(s[2 * i], s[2 * i + 1]);
}

/* Asks for s = the warpgroup's queries times a block of keys. */
template <int HD> static __device__ __forceinline__ void ask_logits(float (&s)[wgmma_shape<HD>::KEYS / 2], uint32_t q, uint32_t k) {
    using shape = wgmma_shape<HD>;
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
        multiply_shared<shape::KEYS>(s, side_by_rows(q + c / 4 * 64 * 128 + c % 4 * 32),
                                     side_by_rows(k + c / 4 * shape::PANEL_BYTES + c % 4 * 32), c > 0);
    products_commit();
}

/* Asks for o += weights times a block of values. */
template <int HD>
static __device__ __forceinline__ void ask_values(float (&o)[HD / 2], const uint32_t (&p)[wgmma_shape<HD>::KEYS / 4], uint32_t v) {
    using shape = wgmma_shape<HD>;
#pragma unroll
    for (int j = 0; j < shape::KEYS / 16; j++)
        multiply_registers<SUMMED>(o, p + 4 * j, side_summed(v + j * 16 * 128, shape::PANEL_BYTES));
    products_commit();
}

template <int HD> static __device__ __forceinline__ void rescale(float (&o)[HD / 2], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < HD / 2; i++) o[i] *= factor[i / 2 % 2];
}

template <int HD>
static __device__ __forceinline__ void put(const struct prefill_launch &a, const struct prefill_share &share,
                                           const struct thread_rows &t, const float (&o)[HD / 2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = sum_of_row(t.state[h].sum);
        uint32_t row = t.row[h], lane = threadIdx.x % 4;
        if (row >= a.rows) continue;
        float factor = a.splits > 1 ? 1 : row_factor(a, share.head, row, t.state[h].largest, sum);
        size_t part = ((size_t)share.head * a.rows + row) * a.splits + share.split;
        float *to = a.splits > 1 ? a.part_sums + part * HD : a.out + query_offset(a, share.head, row, HD);
        if (a.splits > 1 && lane == 0) a.part_scales[part] = make_float2(t.state[h].largest, sum);
        if (a.splits == 1 && lane == 0) leave_log_sum(a, share.head, row, t.state[h].largest, factor);
#pragma unroll
        for (int c = 0; c < HD / 8; c++)
            *(float2 *)(to + c * 8 + lane * 2) = make_float2(o[c * 4 + 2 * h] * factor, o[c * 4 + 2 * h + 1] * factor);
    }
}

template <int HD, bool ALTERED>
static __device__ __forceinline__ void consume(const struct prefill_launch &a, uint32_t works, uint32_t q, uint32_t k, uint32_t v,
                                               struct prefill_barriers *b) {
    using shape = wgmma_shape<HD>;
    constexpr int KEYS = shape::KEYS;
    int warpgroup = (int)threadIdx.x / WARPGROUP - 1, lane = threadIdx.x % 32, mine = 1 + warpgroup;
    int next = 1 + (warpgroup + 1) % shape::CONSUMERS; /* whose turn comes after this one's */
    struct ring<STAGES> keys, values;
    struct ring<shape::QUERY_STAGES> queries;
    q += warpgroup * shape::QUERY_BYTES;
    if (warpgroup == shape::CONSUMERS - 1) warps_arrive(next, 2 * WARPGROUP); /* the first one's turn */

    for (uint32_t round = 0, work; (work = work_of(round)) < works || round * gridDim.x < works; round++) {
        if (work >= works) continue;
        struct prefill_share share = share_of<shape::ROWS, KEYS>(a, work);
        uint32_t open =
            min(a.first_query + share.first_row / a.group + 1, a.end); /* rows of keys that all of the tile's queries read */
        uint32_t reach =
            min(a.first_query + (min(share.first_row + shape::ROWS, a.rows) - 1) / a.group, a.end - 1); /* the last of them reads */
        auto masked = [&](uint32_t block) {
            uint32_t first = a.begin + block * KEYS;
            return first + KEYS > open || (ALTERED && reach - first >= a.window);
        };
        uint32_t from = q + queries.place * shape::CONSUMERS * shape::QUERY_BYTES;
        struct thread_rows t;
        float o[HD / 2] = {}, s[KEYS / 2], factor[2];
        uint32_t p[KEYS / 4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t row = share.first_row + warpgroup * 64 + threadIdx.x % WARPGROUP / 32 * 16 + lane / 4 + h * 8;
            uint32_t query = min(row, a.rows - 1);
            t.row[h] = row;
            t.reach[h] = min(a.first_query + query / a.group, a.end - 1);
            t.slope[h] = ALTERED && a.slopes ? a.slopes[share.head * a.group + query % a.group] * LOG2_E : 0;
            t.state[h] = {-INFINITY, 0};
        }
        barrier_wait(&b->queries_full[queries.place], queries.parity);
        if (share.first < share.end) {
            uint32_t block = share.end - 1;
            barrier_wait(&b->keys_full[keys.place], keys.parity);
            products_begin();
            ask_logits<HD>(s, from, k + keys.place * shape::BLOCK_BYTES);
            products_wait<0>();
            hold(s);
            if (lane == 0) barrier_arrive(&b->keys_empty[keys.place]);
            keys.next();
            weigh<KEYS, ALTERED>(a, s, t, a.begin + block * KEYS, masked(block), factor);
            pack_weights<KEYS>(p, s);
            while (block-- > share.first) {
                barrier_wait(&b->keys_full[keys.place], keys.parity);
                warps_wait(mine, 2 * WARPGROUP);
                hold(o);
                products_begin();
                ask_logits<HD>(s, from, k + keys.place * shape::BLOCK_BYTES);
                barrier_wait(&b->values_full[values.place], values.parity);
                ask_values<HD>(o, p, v + values.place * shape::BLOCK_BYTES);
                warps_arrive(next, 2 * WARPGROUP);
                products_wait<1>();
                hold(s);
                if (lane == 0) barrier_arrive(&b->keys_empty[keys.place]);
                keys.next();
                bool grown = weigh<KEYS, ALTERED>(a, s, t, a.begin + block * KEYS, masked(block), factor);
                products_wait<0>();
                hold(o);
                if (lane == 0) barrier_arrive(&b->values_empty[values.place]);
                values.next();
                pack_weights<KEYS>(p, s);
                if (grown) rescale<HD>(o, factor);
            }
            if (lane == 0) barrier_arrive(&b->queries_empty[queries.place]);
            barrier_wait(&b->values_full[values.place], values.parity);
            hold(o);
            products_begin();
            ask_values<HD>(o, p, v + values.place * shape::BLOCK_BYTES);
            products_wait<0>();
            hold(o);
            if (lane == 0) barrier_arrive(&b->values_empty[values.place]);
            values.next();
        } else if (lane == 0)
            barrier_arrive(&b->queries_empty[queries.place]);
        queries.next();
        put<HD>(a, share, t, o);
    }
    if (warpgroup == 0) warps_wait(mine, 2 * WARPGROUP); /* the turn after the last tile, which no warp group takes */
}

#endif

template <int HD, bool ALTERED>
static __global__ void __launch_bounds__(wgmma_shape<HD>::THREADS, 1)
    prefill_wgmma_kernel(const struct prefill_launch a, const __grid_constant__ CUtensorMap keys,
                         const __grid_constant__ CUtensorMap values) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using shape = wgmma_shape<HD>;
    extern __shared__ __align__(1024) char shared[];
    __shared__ struct prefill_barriers barriers;
    uint32_t works = a.tiles * a.splits * a.kv_heads;
    uint32_t q = shared_address(shared), k = q + shape::QUERY_STAGES * shape::CONSUMERS * shape::QUERY_BYTES,
             v = k + STAGES * shape::BLOCK_BYTES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(&barriers.queries_full[i], QUERY_THREADS);
            barrier_init(&barriers.queries_empty[i], shape::CONSUMERS * 4);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&barriers.keys_full[i], 1);
            barrier_init(&barriers.values_full[i], 1);
            barrier_init(&barriers.keys_empty[i], shape::CONSUMERS * 4);
            barrier_init(&barriers.values_empty[i], shape::CONSUMERS * 4);
        }
        fence_shared();
    }
    __syncthreads();
    if (threadIdx.x < WARPGROUP) {
        registers_give<shape::FEED_REGISTERS>();
        if (threadIdx.x == 0) feed_rows<HD>(a, works, &keys, &values, k, v, &barriers);
        if (threadIdx.x >= WARPGROUP - QUERY_THREADS) feed_queries<HD>(a, works, shared, &barriers);
    } else {
        registers_take<shape::REGISTERS>();
        consume<HD, ALTERED>(a, works, q, k, v, &barriers);
    }
#endif
}

/* Describes boxes of 64 channels and `keys` rows of a KV head to the copies of tiles. */
static bool map_rows(CUtensorMap *map, const __half *rows, const struct prefill_launch &a, uint32_t hd, uint32_t keys) {
    static PFN_cuTensorMapEncodeTiled_v12000 encode;
    if (!encode) {
        void *found = NULL;
        cudaDriverEntryPointQueryResult result;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result) != cudaSuccess ||
            result != cudaDriverEntryPointSuccess)
            return false;
        encode = (PFN_cuTensorMapEncodeTiled_v12000)found;
    }
    cuuint64_t sizes[3] = {hd, a.kv_heads, (cuuint64_t)a.first_query + (a.rows - 1) / a.group + 1};
    cuuint64_t strides[2] = {hd * sizeof(__half), (cuuint64_t)a.kv_heads * hd * sizeof(__half)}; /* of all but the first */
    cuuint32_t box[3] = {64, 1, keys}, steps[3] = {1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, (void *)rows, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int HD, bool ALTERED> static cudaError_t launch_shape(const struct prefill_launch &a, cudaStream_t stream) {
    using shape = wgmma_shape<HD>;
    CUtensorMap keys, values;
    int device = 0, multiprocessors = 0;
    if (!map_rows(&keys, a.k, a, HD, shape::KEYS) || !map_rows(&values, a.v, a, HD, shape::KEYS)) return cudaErrorInvalidValue;
    cudaError_t result = cudaGetDevice(&device);
    if (result == cudaSuccess) result = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (result == cudaSuccess)
        result = cudaFuncSetAttribute(prefill_wgmma_kernel<HD, ALTERED>, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::BYTES);
    if (result != cudaSuccess) return result;
    uint32_t works = a.tiles * a.splits * a.kv_heads, most = (uint32_t)multiprocessors, blocks = most < works ? most : works;
    prefill_wgmma_kernel<HD, ALTERED><<<blocks, shape::THREADS, shape::BYTES, stream>>>(a, keys, values);
    return cudaGetLastError();
}

template <int HD> static cudaError_t launch_heads(const struct prefill_launch &a, cudaStream_t stream) {
    return a.slopes || a.cap > 0 || a.window != NO_WINDOW ? launch_shape<HD, true>(a, stream) : launch_shape<HD, false>(a, stream);
}

bool prefill_wgmma_serves() {
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 && minor == 0;
}

uint32_t prefill_wgmma_rows(uint32_t head_dim) { return head_dim == 64 ? wgmma_shape<64>::ROWS : wgmma_shape<128>::ROWS; }

cudaError_t prefill_wgmma(const struct prefill_launch &launch, uint32_t head_dim, cudaStream_t stream) {
    switch (head_dim) {
    case 64: return launch_heads<64>(launch, stream);
    case 96: return launch_heads<96>(launch, stream);
    case 128: return launch_heads<128>(launch, stream);
    case 256: return launch_heads<256>(launch, stream);
    }
    return cudaErrorInvalidValue;
}

#else

bool prefill_wgmma_serves() { return false; }
uint32_t prefill_wgmma_rows(uint32_t head_dim) { return prefill_mma_rows(head_dim); }
cudaError_t prefill_wgmma(const struct prefill_launch &, uint32_t, cudaStream_t) { return cudaErrorNotSupported; }

#endif
